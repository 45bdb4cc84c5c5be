#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds the Debian packages of this tree into its folder build-deb, and runs lintian over them where it is installed.
# MIMEO_CUDA=enabled builds the CUDA device, too; it needs nvcc (CUDA 12.1 or later) in PATH or /usr/local/cuda, which
# need not be a Debian package. MESON_ARGS is given to meson setup (-Dgpu_archs=90a).
set -eu
tree=$(cd "$(dirname "$0")/.." && pwd)
out=$tree/build-deb
# A fixed name: with it, a compiler cache finds what it compiled before.
work=$out/source
rm -rf "$work"
mkdir -p "$work/mimeo"
(cd "$tree" && git ls-files -z --cached --others --exclude-standard | tar --create --null --files-from=-) |
	tar --extract --directory "$work/mimeo"
cp -r "$work/mimeo/packaging/debian" "$work/mimeo/debian"
(cd "$work/mimeo" && dpkg-buildpackage --build=binary --no-sign)
rm -f "$out"/*mimeo*.deb "$out"/mimeo_*
mv "$work"/*.deb "$work"/*.changes "$work"/*.buildinfo "$out"/
rm -rf "$work"
ls "$out"
if command -v lintian >/dev/null; then
	# The project has no mail address.
	lintian --no-cfg --suppress-tags bogus-mail-host,bogus-mail-host-in-debian-changelog --fail-on=warning,error \
		"$out"/mimeo_*.changes
fi
