#!/bin/sh
# SPDX-License-Identifier: MIT
# Installs what is missing, builds, and runs every test with the io_uring loop; then with epoll those of programs that
# have a loop.
#   ./tests/run.sh           all of it; the last line is "N passed, N failed, N skipped"
#   ./tests/run.sh --deps    install packages only
# BUILD=DIR names the build folder (default build-test); MESON_ARGS is given to meson setup.
# MIMEO_DEVICE=cuda runs it on a GPU, and fails where there is none; tests/gpu.sh has parts of it.
set -eu
cd "$(dirname "$0")/.."

./tests/deps.sh test
[ "${1-}" != --deps ] || exit 0

build=${BUILD:-build-test}
archs=
command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] && archs=-Dgpu_archs=90a
if [ ! -f "$build/build.ninja" ]; then
	meson setup "$build" --werror -Dtests=true -Dman=enabled -Dtest_faults=true $archs ${MESON_ARGS-} \
		>"$build.log" 2>&1 || { cat "$build.log"; exit 1; }
	sed -n '/^  Mimeo$/,/^$/p' "$build.log"
	mv "$build.log" "$build/setup.log"
fi
ninja -C "$build" --quiet

failed=0
echo "== the suite with the io_uring loop"
MIMEO_LOOP=auto meson test -C "$build" --no-rebuild --print-errorlogs --logbase io_uring ${TEST_ARGS-} || failed=1
echo "== what has a loop, with epoll"
MIMEO_LOOP=epoll MIMEO_CHAOS_S=${MIMEO_CHAOS_S-20} meson test -C "$build" --no-rebuild --print-errorlogs --logbase epoll ${TEST_ARGS-} \
	--suite loop --suite model --suite serve --suite e2e --suite http || failed=1
python3 tests/tally.py "$build/meson-logs/io_uring.json" "$build/meson-logs/epoll.json" || failed=1
exit $failed
