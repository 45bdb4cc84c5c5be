#!/bin/sh
# SPDX-License-Identifier: MIT
# Every public function is in the symbol map, in the headers, in the manual (man/aliases.txt and the
# NAME of the page it leads to), and among what the built library exports; and nothing else is.
# Every member of the headers' structs stands in a page of section 3, with its type and with its
# struct, and every constant of its enums does.
# The library: the first argument, else sdk/libmimeo.so of $MIMEO_BUILD.
set -eu
LC_ALL=C
export LC_ALL
library=${1:-${MIMEO_BUILD:-.}/sdk/libmimeo.so}
case $library in
/*) ;;
*) library=$PWD/$library ;;
esac
cd "${MIMEO_SOURCE:-$(dirname "$0")/../..}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
headers='sdk/include/mimeo/mimeo.h ipc/include/mimeo/types.h'
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

sed -n '/global:/,/local:/s/^[[:space:]]*\(mimeo_[a-z_]*\);.*/\1/p' sdk/libmimeo.map |
	sort >"$work/map"
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

same "the headers (>) declare what the symbol map (<) names" map header
same "the manual's index (>) has what the symbol map (<) names" map aliases
same "the pages' NAMEs (>) are as the manual's index (<) says" pages names
if [ -e "$library" ] && command -v nm >/dev/null; then
	# A symbol's version stands behind @@; absolute symbols are the versions themselves.
	nm -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' |
		sort >"$work/exported"
	same "the library (>) exports what the symbol map (<) names" map exported
else
	n=$((n + 1))
	echo "ok $n - the library exports what the symbol map names # SKIP no library, or no nm"
fi
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
