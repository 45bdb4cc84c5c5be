#!/bin/sh
# SPDX-License-Identifier: MIT
# Installs what is missing, builds, starts mimeod with a small trained model, lets several client
# processes ask it questions at once, checks every answer, and prints one table. Exits 0 only if every
# answer is right.
#   ./examples/quickstart.sh
# PROCESSES (4), QUESTIONS (16 each, 64 at most), BUILD (build-quickstart) and MIMEO_DEVICE (auto; cpu, cuda) may be
# set.
set -eu
cd "$(dirname "$0")/.."

build=${BUILD:-build-quickstart}
processes=${PROCESSES:-4}
questions=${QUESTIONS:-16}

./tests/deps.sh build

if [ ! -f "$build/build.ninja" ]; then
	cuda=-Dcuda=disabled
	if cc=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1) && [ -n "$cc" ]; then
		arch=$(echo "$cc" | tr -d .)
		[ "$arch" -ge 90 ] && arch=${arch}a
		cuda="-Dcuda=auto -Dgpu_archs=$arch"
	fi
	echo "building ..."
	meson setup "$build" --buildtype=debugoptimized $cuda >"$build.log" 2>&1 || { cat "$build.log"; exit 1; }
	mv "$build.log" "$build/setup.log"
fi
ninja -C "$build" --quiet >"$build/build.log" || { cat "$build/build.log"; exit 1; }

run=$(mktemp -d)
daemon=
stop()
{
	[ -z "$daemon" ] || { kill "$daemon" 2>/dev/null || true; wait "$daemon" 2>/dev/null || true; }
	rm -rf "$run"
}
trap stop EXIT
trap 'exit 1' INT TERM

socket=$run/mimeod.sock
"$build/daemon/mimeod" --socket "$socket" --model tinycalc=examples/models/tinycalc \
	--device "${MIMEO_DEVICE:-auto}" --kv-bytes 256M >"$run/log" 2>&1 &
daemon=$!
until "$build/daemon/mimeoctl" --socket "$socket" status >/dev/null 2>&1; do
	kill -0 "$daemon" 2>/dev/null || { cat "$run/log" >&2; exit 1; }
	sleep 0.05
done

echo "asking $processes processes x $questions questions ..."
status=0
"$build/examples/quickstart" --socket "$socket" --processes "$processes" --questions "$questions" \
	>"$run/clients" || status=$?
[ "$status" != 2 ] || exit 1 # it has said what it was asked for
"$build/daemon/mimeoctl" --socket "$socket" metrics >"$run/metrics"

# The sum over a metric's labels.
metric()
{
	awk -v name="$1" '{ key = $1; sub(/[{].*/, "", key) } key == name { sum += $NF }
		END { printf "%.10g\n", sum }' "$run/metrics"
}
value()
{
	awk -v name="$1" '$1 == name { print $2 }' "$run/clients"
}
row()
{
	printf '  %-48s %12s\n' "$1" "$2"
}

captured=$(metric mimeo_graph_captures_total)
graphs=$(metric mimeo_graphs)
once=no
[ "$captured" = "$graphs" ] && once=once
echo
row "client processes" "$(value processes)"
row "questions" "$(value questions)"
row "right answers" "$(value right)"
row "tokens" "$(value tokens)"
row "graph replays" "$(metric mimeo_replays_total)"
row "replays that carried rows of several processes" "$(metric mimeo_shared_replays_total)"
row "graphs captured, each" "$graphs, $once"
row "capture, seconds" "$(metric mimeo_graph_capture_seconds | awk '{ printf "%.3f", $1 }')"
row "capture, bytes" "$(metric mimeo_graph_bytes)"
echo

[ "$once" = once ] || { echo "graphs were captured more than once" >&2; status=1; }
[ "$status" = 0 ] && echo "every answer is right" || echo "not every answer is right" >&2
exit $status
