#!/bin/sh
# SPDX-License-Identifier: MIT
# Every manual page passes mandoc's lint without a word, and every page that README or another page
# names is there.
set -eu
cd "${MIMEO_SOURCE:-$(dirname "$0")/../..}/man"

if ! command -v scdoc >/dev/null || ! command -v mandoc >/dev/null; then
	echo "1..0 # SKIP no scdoc or mandoc"
	exit 0
fi
n=0
bad=0
for page in *.scd; do
	n=$((n + 1))
	said=$(scdoc <"$page" 2>&1 >/dev/null || true
		scdoc <"$page" 2>/dev/null | mandoc -T lint -W error 2>&1 || true)
	if [ -z "$said" ]; then
		echo "ok $n - ${page%.scd} passes the lint"
	else
		echo "not ok $n - ${page%.scd} passes the lint"
		echo "$said" | sed 's/^/# /'
		bad=1
	fi
done
# Pages of ours that the pages name.
for name in $(grep -ohE '\*?mimeo[a-z_-]*(\.conf)?\*?\([1-8]\)' ./*.scd | tr -d '*' | sort -u); do
	n=$((n + 1))
	page=$(echo "$name" | sed 's/(\([1-8]\))/.\1/')
	alias=$(awk -v f="${page%.3}" '$1 == f' aliases.txt)
	if [ -f "$page.scd" ] || [ -n "$alias" ]; then
		echo "ok $n - $name exists"
	else
		echo "not ok $n - $name exists"
		bad=1
	fi
done
# The built page of each other name says where the page is, and nothing else.
while read -r name page; do
	[ "$name" != "$page" ] && [ -f "${MIMEO_BUILD:-/none}/man/$name.3" ] || continue
	n=$((n + 1))
	if [ "$(cat "$MIMEO_BUILD/man/$name.3")" = ".so man3/$page.3" ]; then
		echo "ok $n - $name leads to $page"
	else
		echo "not ok $n - $name leads to $page"
		bad=1
	fi
done <aliases.txt
echo "1..$n"
exit $bad
