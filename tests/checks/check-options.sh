#!/bin/sh
# SPDX-License-Identifier: MIT
# No program takes an option's name that is cut short: an option that is added later could change what it means.
set -eu

n=0
bad=0
for program in daemon/mimeod daemon/mimeoctl daemon/mimeo-run daemon/mimeo-tokenize daemon/mimeo-http \
	daemon/mimeo-bench examples/make-checkpoint; do
	if [ "$program" = daemon/mimeo-http ] && [ ! -x "$MIMEO_BUILD/$program" ]; then
		echo "# skipped: mimeo-http: not built"
		continue
	fi
	n=$((n + 1))
	status=0
	said=$("$MIMEO_BUILD/$program" --versio 2>&1 </dev/null) || status=$?
	case "$status $said" in
	0*) verdict="not ok" bad=1 ;;
	*"did you mean --version?"*) verdict=ok ;;
	*) verdict="not ok" bad=1 ;;
	esac
	echo "$verdict $n - ${program##*/} refuses --versio"
	[ "$verdict" = ok ] || echo "$said" | sed 's/^/# /'
done
echo "1..$n"
exit $bad
