#!/bin/sh
# SPDX-License-Identifier: MIT
# mimeod has the probes that mimeod(8) lists, and no other; where it was built without <sys/sdt.h> there are none.
set -eu
mimeod=$1
page="${MIMEO_SOURCE:-$(dirname "$0")/../..}/man/mimeod.8.scd"

notes=$(readelf -n "$mimeod" 2>/dev/null | awk '/Provider: mimeo/ { getline; print $2 }' | sort -u)
if [ -z "$notes" ]; then
	echo "1..0 # SKIP built without <sys/sdt.h>, or no readelf"
	exit 0
fi
listed=$(sed -n '/^# PROBES/,/^# ENV/p' "$page" | grep -oE '\*[a-z_]+\*\(_|\*[a-z_]+\*\(\)' | tr -d '*()' | sed 's/_$//' | sort -u)
echo "1..1"
if [ "$notes" = "$listed" ]; then
	echo "ok 1 - the page has the probes of the program"
else
	echo "not ok 1 - the page has the probes of the program"
	printf '# program: %s\n# page: %s\n' "$(echo $notes)" "$(echo $listed)"
	exit 1
fi
