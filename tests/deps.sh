#!/bin/sh
# SPDX-License-Identifier: MIT
# Installs, through apt, the packages that are missing; says nothing when none is.
#   tests/deps.sh build    what building and running needs
#   tests/deps.sh test     that, and what the tests, the manual pages and the fuzzers need
set -eu

missing()
{
	for p in "$@"; do
		dpkg-query -W -f '${Status}\n' "$p" 2>/dev/null | grep -q 'ok installed' || echo "$p"
	done
}

as_root()
{
	if [ "$(id -u)" = 0 ]; then
		env DEBIAN_FRONTEND=noninteractive "$@"
	else
		sudo env DEBIAN_FRONTEND=noninteractive "$@"
	fi
}

# The first of these names that apt offers.
offered()
{
	for p in "$@"; do
		if apt-cache policy "$p" 2>/dev/null | grep -q 'Candidate: [^(]'; then
			echo "$p"
			return
		fi
	done
	echo "deps.sh: apt offers none of: $*" >&2
	exit 1
}

build="gcc libc6-dev meson ninja-build pkg-config liburing-dev libjansson-dev libinih-dev
	libopenblas-dev libedit-dev libncurses-dev libmicrohttpd-dev libpcre2-dev libsmartcols-dev libsystemd-dev libutf8proc-dev libxxhash-dev uthash-dev
	scdoc"
test="g++ clang libcmocka-dev mandoc man-db python3"

case ${1-} in
build) want="$build" ;;
test) want="$build $test" ;;
*) sed -n '3,6p' "$0"; exit 2 ;;
esac

need=$(missing $want)
# The C library of msgpack has two names; either will do.
[ -n "$(missing libmsgpack-c-dev)" ] && [ -n "$(missing libmsgpack-dev)" ] && need="$need msgpack"
# The sanitizers' runtime for clang is a package of its own, named for clang's version.
if [ "$1" = test ]; then
	version=$(clang --version 2>/dev/null | sed -n 's/.*version \([0-9]*\).*/\1/p' | head -n 1)
	[ -n "$version" ] && [ -z "$(missing "libclang-rt-$version-dev")" ] || need="$need clang-rt"
fi
[ -n "$need" ] || exit 0

echo "installing:" $need
[ -n "$(ls /var/lib/apt/lists 2>/dev/null | grep -v -e lock -e partial)" ] || as_root apt-get update -qq
real=
for p in $need; do
	case $p in
	msgpack) real="$real $(offered libmsgpack-c-dev libmsgpack-dev)" ;;
	clang-rt) ;;
	*) real="$real $(offered "$p")" ;;
	esac
done
install()
{
	[ -z "$*" ] || as_root apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}
# A list of packages that has aged may name files that are gone.
install $real || { as_root apt-get update -qq; install $real; }
if [ "$1" = test ]; then
	version=$(clang --version | sed -n 's/.*version \([0-9]*\).*/\1/p' | head -n 1)
	install $(missing "libclang-rt-$version-dev")
fi
