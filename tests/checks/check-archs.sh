#!/bin/sh
# SPDX-License-Identifier: MIT
# What the device code of a build is for: machine code of each architecture that was asked for, and
# PTX that later chips can take, which that of an architecture-specific one (90a) is not. In TAP.
#   check-archs.sh OBJECT ARCH...    an object of any .cu, and the build's gpu_archs
set -eu
object=$1
shift
if ! command -v cuobjdump >/dev/null; then
	for dir in /usr/local/cuda/bin; do
		[ ! -x "$dir/cuobjdump" ] || PATH=$PATH:$dir
	done
fi
command -v cuobjdump >/dev/null || { echo "1..0 # SKIP no cuobjdump"; exit 0; }
bad=0

claim() # number, words, what is wrong with it
{
	[ -z "$3" ] && echo "ok $1 - $2" || { echo "not ok $1 - $2"; echo "# $3"; bad=1; }
}

elf=$(cuobjdump --list-elf "$object" | sed -n 's/.*\.sm_\([0-9a-z]*\)\.cubin.*/\1/p' | sort -u)
ptx=$(cuobjdump --list-ptx "$object" 2>/dev/null | sed -n 's/.*\.sm_\([0-9a-z]*\)\.ptx.*/\1/p' | sort -u)
missing=
plain=
for arch in "$@"; do
	echo "$elf" | grep -qx "$arch" || missing="$missing $arch"
	case $arch in *[a-z]) ;; *) plain=$arch ;; esac
done
specific=$(echo "$ptx" | grep '[a-z]' | tr '\n' ' ' || true)

echo "# machine code:" $elf "- PTX:" ${ptx:-none}
claim 1 "machine code for each of gpu_archs" "${missing:+none for$missing}"
claim 2 "no PTX that later chips cannot take" "${specific:+PTX for $specific}"
if [ -z "$plain" ]; then
	echo "ok 3 - PTX for later chips # SKIP built for $* alone"
else
	claim 3 "PTX for later chips" "$(echo "$ptx" | grep -qx "$plain" || echo "none for $plain")"
fi
echo "1..3"
exit $bad
