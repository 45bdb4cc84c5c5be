#!/bin/sh
# SPDX-License-Identifier: MIT
# Every public function is in a symbol map, in the headers, in the manual (man/aliases.txt and the
# NAME of the page it leads to), and among what the built library exports; and nothing else is.
# Every member of the headers' structs stands in a page of section 3, with its type and with its
# struct, and every constant of its enums does.
# The libraries: the arguments, else sdk/libmimeo.so and sdk/text/libmimeo-text.so of $MIMEO_BUILD.
set -eu
LC_ALL=C
export LC_ALL
from_here()
{
	case $1 in
	/*) echo "$1" ;;
	*) echo "$PWD/$1" ;;
	esac
}
library=$(from_here "${1:-${MIMEO_BUILD:-.}/sdk/libmimeo.so}")
text_library=$(from_here "${2:-${MIMEO_BUILD:-.}/sdk/text/libmimeo-text.so}")
cd "${MIMEO_SOURCE:-$(dirname "$0")/../..}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
headers='sdk/include/mimeo/mimeo.h ipc/include/mimeo/types.h sdk/text/include/mimeo/text.h'
maps='sdk/libmimeo.map sdk/text/libmimeo-text.map'
n=0
bad=0

# same NAME FILE-A FILE-B: as a line of TAP; < and > tell which of the two has what the other lacks.
same() {
	n=$((n + 1))
	if [ -s "$work/$2" ] && diff "$work/$2" "$work/$3" >"$work/diff"; then
		echo "ok $n - $1"
		return
	fi
	echo "not ok $n - $1"
	sed -n 's/^[<>]/# &/p' "$work/diff"
	bad=1
}

functions_of() # the maps
{
	for map in "$@"; do
		sed -n '/global:/,/local:/s/^[[:space:]]*\(mimeo_[a-z_]*\);.*/\1/p' "$map"
	done | sort
}
# shellcheck disable=SC2086
functions_of $maps >"$work/map"
# A declaration starts with MIMEO_PUBLIC; the function is the name before its parenthesis.
sed -n 's/^MIMEO_PUBLIC [^(]*[ *]\(mimeo_[a-z_]*\)(.*/\1/p' $headers |
	sort >"$work/header"
sort man/aliases.txt >"$work/pages"
cut -d ' ' -f 1 "$work/pages" >"$work/aliases"
# The functions of a page: what stands in its NAME before " - ".
for page in man/*.3.scd; do
	stem=$(basename "$page" .3.scd)
	{ sed -n '/^# NAME/,/^# SYNOPSIS/p' "$page" | tr '\n' ' '; echo; } |
		sed 's/^# NAME//; s/ - .*//' | tr ', ' '\n\n' |
		sed -n "s/^\\(mimeo_[a-z_]*\\)\$/\\1 $stem/p"
done | sort >"$work/names"

same "the headers (>) declare what the symbol maps (<) name" map header
same "the manual's index (>) has what the symbol maps (<) name" map aliases
same "the pages' NAMEs (>) are as the manual's index (<) says" pages names
# exports LIBRARY MAP
exports()
{
	if [ ! -e "$1" ] || ! command -v nm >/dev/null; then
		n=$((n + 1))
		echo "ok $n - $(basename "$1") exports what its symbol map names # SKIP no library, or no nm"
		return
	fi
	functions_of "$2" >"$work/own"
	# A symbol's version stands behind @@; absolute symbols are the versions themselves.
	nm -D --defined-only "$1" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' |
		sort >"$work/exported"
	same "$(basename "$1") (>) exports what its symbol map (<) names" own exported
}
exports "$library" sdk/libmimeo.map
exports "$text_library" sdk/text/libmimeo-text.map
# "STRUCT: DECLARATION" for each member of each struct, and "ENUM: NAME" for each constant, spaces
# and comments evened out. The pages show them in the same form.
members()
{
	sed 's@/\*.*\*/@@; s@/\*.*@@' "$@" | awk '
		/^(struct|enum) mimeo_[a-z_]* \{/ { within = $1 " " $2; next }
		/^\}/ { within = "" }
		within ~ /^struct/ && /^\t[a-z].*;/ { sub(/;.*/, ""); print_member() }
		within ~ /^enum/ && /^\tMIMEO_/ { sub(/,.*/, ""); print_member() }
		function print_member() { gsub(/[ \t]+/, " "); print within ":" $0 }' | sort
}
members $headers >"$work/members"
members man/*.3.scd >"$work/shown"
same "the pages (>) show each member and constant of the headers' (<) types" members shown
# In words too: as _member_, underscores escaped, in a page that shows the struct.
for page in man/*.3.scd; do
	members "$page" | sed -n 's/^struct [^:]*:.*[ *]\([a-z_]*\)\(\[.*\)\{0,1\}$/\1/p' | sort -u |
		while read -r member; do
			grep -qF "_$(echo "$member" | sed 's/_/\\_/g')_" "$page" || echo "$page: $member"
		done
done | grep -v ': size$' >"$work/unexplained" || true
n=$((n + 1))
if [ -s "$work/unexplained" ]; then
	echo "not ok $n - each member is explained in the page that shows it"
	sed 's/^/# /' "$work/unexplained"
	bad=1
else
	echo "ok $n - each member is explained in the page that shows it"
fi
echo "1..$n"
exit $bad
