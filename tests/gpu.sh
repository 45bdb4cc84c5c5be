#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The tests and measurements that want a GPU. Each ends within 8 minutes and prints a short table
# last, also when it is cut short; the exit status is 0 if everything ran and nothing failed.
#   tests/gpu.sh ops         every op and the attention backends against references
#   tests/gpu.sh serve       whatever of the suite has a device, with MIMEO_DEVICE=cuda
#   tests/gpu.sh sanitize    compute-sanitizer: memcheck and racecheck of the ops, memcheck of a short
#                            serving run
#   tests/gpu.sh bench       every bench of mimeo-bench and bench-internals, beside floors and targets;
#                            not "shapes" and "growth_...", for which ONLY=shapes and ONLY=growth ask
# Programs of ops and serve are spread over all GPUs; each sees one.
# In a source tree it builds first. Where what the build needs is not installed, MIMEO_BUILD names a
# build folder made elsewhere; libraries that this machine lacks may lie in its lib/.
#   MIMEO_BUILD (build-gpu)  MIMEO_DEVICE (cuda)  JOBS  LIMIT (450: seconds in all)
#   ONLY (a regular expression: programs of such names alone)  MIMEO_MODELS (bench: folders, or shapes)
#   KEEP (a folder that the full outputs are left in)
set -u
cd "$(dirname "$0")/.." || exit 1

mode=${1-}
case $mode in
ops | serve | sanitize | bench) ;;
*) sed -n '3,19s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac

export MIMEO_SOURCE=$PWD MIMEO_DEVICE=${MIMEO_DEVICE:-cuda} CMOCKA_MESSAGE_OUTPUT=TAP
limit=${LIMIT:-450}
work=$(mktemp -d)
chmod 711 "$work" # clients of other users reach a daemon in it
mkdir "$work/models"
order=() pids=()
exec 3>&1 4>&2

# ---- the table ----

# Passed, failed and skipped of a log in TAP, and a failure if it ended badly without naming one.
tally() # log, exit status
{
	awk -v rc="$2" '
		/^1\.\.0/ && /SKIP/ { skipped++ }
		/^# skipped: / { skipped++ }
		/^ok/ { if (/# *[Ss][Kk][Ii][Pp]/) skipped++; else passed++ }
		/^not ok/ { if (/# *[Ss][Kk][Ii][Pp]/) skipped++; else failed++ }
		END {
			if (rc != 0 && !failed) failed = 1
			if (rc == 0 && !passed && !skipped) passed = 1
			printf "%d %d %d\n", passed, failed, skipped
		}' "$1"
}

row()
{
	printf '%-44s %7s %7s %7s %8s  %s\n' "$@"
}

table()
{
	local name passed failed skipped seconds note bad=0 all=(0 0 0)
	echo
	row "program" passed failed skipped seconds ""
	for name in "${order[@]}"; do
		if [ -f "$work/$name.result" ]; then
			read -r passed failed skipped seconds note <"$work/$name.result"
		else
			passed=0 failed=0 skipped=0 seconds=- note="not run to its end"
			bad=1
		fi
		row "$name" "$passed" "$failed" "$skipped" "$seconds" "$note"
		all=($((all[0] + passed)) $((all[1] + failed)) $((all[2] + skipped)))
	done
	row "all on $device" "${all[@]}" "$SECONDS" ""
	[ $bad = 0 ] && [ "${all[1]}" = 0 ] && [ "${#order[@]}" -gt 0 ]
}

finish()
{
	trap - EXIT TERM INT HUP
	exec >&3 2>&4 # a signal may come where they are redirected
	[ ${#pids[@]} = 0 ] || kill "${pids[@]}" 2>/dev/null
	wait 2>/dev/null
	if [ "$mode" = bench ]; then
		python3 performance/figures.py table "$device" "$work"/*.json
	else
		table
	fi
	local rc=$?
	[ -z "${KEEP-}" ] || { mkdir -p "$KEEP" && cp "$work"/*.log "$work"/*.json "$KEEP" 2>/dev/null; }
	rm -rf "$work"
	exit $rc
}

# ---- programs ----

left()
{
	echo $((limit - SECONDS))
}

# Runs one to its end, or to its time's.
run_one() # name, seconds, command ...
{
	local name=$1 most=$2 rc=0 note= start=$EPOCHREALTIME child
	shift 2
	timeout -k 5 "$most" "$@" >"$work/$name.log" 2>&1 </dev/null &
	child=$!
	trap 'kill $child 2>/dev/null' TERM
	wait $child || rc=$?
	[ $rc != 143 ] || note="cut short"
	[ $rc != 124 ] && [ $rc != 137 ] || note="cut after $most s"
	if [ "$mode" = sanitize ] && [ -z "$note" ]; then
		note=$(sed -n 's/.*\(ERROR\|RACECHECK\) SUMMARY: //p' "$work/$name.log" | tail -n 1)
		[ -n "$note" ] || { note="no summary: not checked"; rc=1; }
	fi
	echo "$(tally "$work/$name.log" $rc) $(awk "BEGIN { printf \"%.1f\", $EPOCHREALTIME - $start }") $note" \
		>"$work/$name.part"
	mv "$work/$name.part" "$work/$name.result"
	if grep -q '^not ok' "$work/$name.log" || [ $rc != 0 ]; then
		echo "---- $name, status $rc"
		grep -v '^ok' "$work/$name.log" | tail -n 25
	fi
}

# Wait until fewer than n run.
settle() # n
{
	local alive pid
	while :; do
		alive=()
		for pid in ${pids[@]+"${pids[@]}"}; do
			kill -0 "$pid" 2>/dev/null && alive+=("$pid")
		done
		pids=(${alive[@]+"${alive[@]}"})
		[ ${#pids[@]} -ge "$1" ] || return 0
		wait -n 2>/dev/null || true
	done
}

start() # name, seconds, command ...
{
	local name=$1 most=$2
	shift 2
	[[ $name =~ ${ONLY-} ]] || return
	order+=("$name")
	settle "$jobs"
	[ "$(left)" -gt 2 ] || return
	[ "$most" -le "$(left)" ] || most=$(left)
	CUDA_VISIBLE_DEVICES=${gpus[$((${#order[@]} % ${#gpus[@]}))]} run_one "$name" "$most" "$@" &
	pids+=($!)
}

programs() # globs below the build folder
{
	local glob path
	for glob in "$@"; do
		for path in "$build"/tests/$glob; do
			[ -x "$path" ] && [ -f "$path" ] && echo "$path"
		done
	done
}

ops_programs()
{
	programs 'kernels/test_cuda_*' 'kernels/test_ops_*' 'attention/test_*cuda*' 'attention/test_attention_fp8' \
		'attention/test_flex*' 'attention/test_mla_*' 'attention/test_*latent*' 'model/test_cuda_*'
}

# What has a device, the slowest first.
serve_programs()
{
	programs 'e2e/test_e2e_*' 'daemon/test_engine_*' 'model/test_model_*' 'model/test_graph_capture' \
		'model/test_draft_*' 'model/test_eagle' 'model/test_speculation' 'model/test_quantised_answers' \
		'model/test_fused_load' 'model/test_quantised_load' 'model/test_packed_*' 'model/test_head_load' \
		'model/test_kv_factors' 'model/test_gguf_load' \
		'bench/test_bench_speculation' 'daemon/test_inputs' 'attention/test_kv_*' 'bench/test_bench' \
		'kernels/test_cpu_ops_speculate*' 'kernels/test_cpu_ops_verify' 'kernels/test_cpu_ops_draft'
}

# ---- compute-sanitizer ----

# Refusals that a test provokes are errors of the API to it; only what kernels do counts here.
sanitizer()
{
	MIMEO_TEST_SHORT=1 compute-sanitizer --target-processes application-only --report-api-errors no --error-exitcode 99 \
		--print-limit 10 "$@"
}

# The slowest first. cuBLASLt's kernels are not ours to check, and racecheck breaks down where one of
# them runs, be it excluded by name or not. Our products it sees in test_cuda_race, which launches them
# by themselves and in a form that racecheck follows: kernels/cuda/racecheck.cuh says what that leaves
# out.
start_sanitizers()
{
	local path tool name
	for tool in racecheck memcheck; do
		for name in test_cuda_step test_attention_cuda; do
			start_sanitizer $tool $(ops_programs | grep "/$name\$")
		done
	done
	start "memcheck serving" 240 bash -c serving_under_memcheck
	for path in $(ops_programs | grep -v -e '/test_cuda_step$' -e '/test_attention_cuda$'); do
		case $path in
		*/test_latent_sizes) ;; # runs nothing on the device
		*/test_cuda_gemm | */test_cuda_*_gemm | */test_cuda_packed_* | */test_mla_prompt | */test_*latent*)
			start_sanitizer memcheck "$path" --kernel-name-exclude kns=nvjet
			;;
		*)
			start_sanitizer memcheck "$path"
			start_sanitizer racecheck "$path"
			;;
		esac
	done
}

start_sanitizer() # tool, program, arguments of compute-sanitizer
{
	local tool=$1 path=${2-}
	[ -n "$path" ] || return 0
	shift 2
	start "$tool $(basename "$path")" 400 bash -c 'sanitizer "$@"' - --tool "$tool" "$@" "$path"
}

# A daemon under memcheck, two clients that check every answer, an orderly end.
serving_under_memcheck()
{
	local folder pid rc=0 daemon
	folder=$(mktemp -d)
	sanitizer --tool memcheck "$build/daemon/mimeod" --device "$MIMEO_DEVICE" --socket "$folder/m.sock" \
		--model "tinycalc=$MIMEO_SOURCE/examples/models/tinycalc" --capture-sizes 1,2,4 --kv-pages 256 &
	daemon=$!
	trap 'kill $daemon $(cat "$folder/pid" 2>/dev/null) 2>/dev/null; rm -rf "$folder"' EXIT
	until "$build/daemon/mimeoctl" --socket "$folder/m.sock" --json status >"$folder/status" 2>/dev/null; do
		kill -0 $daemon 2>/dev/null || return 1
		sleep 0.2
	done
	sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' "$folder/status" | head -1 >"$folder/pid"
	"$build/examples/quickstart" --socket "$folder/m.sock" --processes 2 --questions 8 || rc=1
	pid=$(cat "$folder/pid")
	kill -TERM "$pid" || rc=1
	wait $daemon || rc=$?
	rm -rf "$folder"
	trap - EXIT
	echo "serving ended with status $rc"
	[ $rc = 0 ] && echo "ok 1 - serving" || echo "not ok 1 - serving"
	return $rc
}

# ---- benches ----

bench_programs=(daemon/mimeo-bench tests/bench/bench-internals)

benches() # program
{
	"$build/$1" --help | sed -n 's/^  \([a-z][a-z]*\)  .*/\1/p'
	# decode, load, attention and experts with other options
	case $1 in
	daemon/mimeo-bench) echo deterministic prefix decode_fp8 ;;
	*) echo attention_fp8; [ "$compute" != 9.0 ] || echo experts_packed ;;
	esac
	# decode and share, which take minutes with these models and lists: only if ONLY names them
	[ "$1" != daemon/mimeo-bench ] || [ -z "${ONLY-}" ] || echo shapes growth_rows growth_contexts growth_processes
}

# Those of the folders; none is shipped.
with_tokenizer() # model ...
{
	local model
	for model; do
		[ ! -f "$model/tokenizer.json" ] || echo "$model"
	done
}

# What a bench is run with: models (a folder, or a shape that it makes), then its own options.
models_of() # bench
{
	[ "$1" != perplexity ] || { with_tokenizer ${MIMEO_MODELS-}; return; }
	[ -z "${MIMEO_MODELS-}" ] || { echo "$MIMEO_MODELS"; return; }
	case $1 in
	decode | growth_*) echo 1B 8B ;;
	whole) echo 1B Qwen2.5-0.5B Qwen2.5-1.5B ;;
	shapes) echo 3B Qwen2.5-0.5B Qwen2.5-1.5B Mistral-7B ;;
	attention* | decode_fp8 | deterministic | gemm | share | load | prefix | fair | gap | modes | speculation) echo 1B ;;
	experts*) echo V2-Lite ;; # its sizes alone
	*) echo "$MIMEO_SOURCE/examples/models/tinycalc" ;;
	esac
}

options_of() # bench
{
	case $1 in
	attention) echo --batches 1,32,128 --contexts 1024,4096 --prompts 8192 ;;
	attention_fp8) echo --batches 1,32,128 --contexts 1024,4096 --prompts 8192 --kv-dtype fp8 ;;
	deterministic) echo --deterministic ;;
	decode_fp8) echo --kv-dtype fp8 ;;
	experts_packed) echo --packed 1,2 ;;
	share) echo --prompt 920 --tokens 200 ;; # a context of about 1024
	load) echo --processes 1,4,16,32 --in-flight 8 --requests 16 ;;
	prefix) echo --processes 8 --in-flight 1 --requests 16 --prefix 2000 --prompt 2020 --tokens 16 ;;
	# At most half of the timeout until tokens are counted; a decode step of the 1B model alone takes 0.85 to 1 ms.
	fair) echo --timeout 60 --token-us 1200 ;;
	gemm) echo --sides 0,1,2 ;;
	gap) echo --processes 1,8 --prompt 1000 --tokens 100 ;;
	speculation) echo --processes 1,8,16 ;;
	shapes) echo --batches 1,8 ;;
	growth_rows) echo --batches 1,2,4,8,16,32,64,96,128,192,256 ;;
	# The last step of 16 attends to 7 tokens more than the middle one: 131072.
	growth_contexts) echo --batches 1,8,32 --contexts 128,512,2048,8192,32768,131064 --count 16 ;;
	growth_processes) echo --processes 1,2,4,8,16,32 --prompt 960 --tokens 128 ;; # a context of about 1024
	esac
}

# The time limit of a bench, which is that of mimeo-bench's stages, too.
limit_of() # bench
{
	local most
	most=$(left)
	case $1 in
	shapes | growth_*) ;;
	*) [ "$most" -le 120 ] || most=120 ;;
	esac
	echo "$most"
}

# Runs a command that `finish` can end; its status.
watched() # seconds, command ...
{
	timeout -k 5 "$@" </dev/null &
	pids=($!)
	wait "${pids[0]}"
}

# A shape that several benches take is made once; in models/, where they then run, its path is its name.
make_model() # shape, log
{
	local folder=$work/models/$1
	[ ! -f "$folder/config.json" ] || return 0
	watched "$(left)" "$build/examples/make-checkpoint" --shape "$1" "$folder" >"$2" 2>&1 && return
	rm -rf "$folder"
	return 1
}

run_bench() # program, bench, model
{
	local program=$1 name bench=$2 model=(--shape "$3") place=$PWD start=$SECONDS most stages=()
	shift
	name=$1-$(basename "$2")
	case $bench in
	deterministic | decode_fp8 | shapes | growth_rows | growth_contexts) bench=decode ;;
	attention_fp8 | experts_packed) bench=${bench%_*} ;;
	prefix) bench=load ;;
	growth_processes) bench=share ;;
	esac
	echo "$1, $(basename "$2") ..."
	case $1 in
	growth_*)
		if [ ! -d "$2" ]; then
			if ! make_model "$2" "$work/$name.log"; then
				echo "  not measured, because the model could not be made:"
				sed 's/^/  /' "$work/$name.log" | tail -n 3
				return
			fi
			model=(--model "$2") place=$work/models
		fi
		;;
	esac
	if [ "$(left)" -le 5 ]; then
		echo "  not measured: no time is left"
		return
	fi
	most=$(limit_of "$1")
	[ "$most" -le 120 ] || stages=(--timeout "$most")
	[ ! -d "$2" ] || model=(--model "$2")
	[ ! -d "$2" ] || [ "$1" != speculation ] || model+=(--draft "$2-eagle")
	if TMPDIR=$work watched "$most" env -C "$place" "$build/$program" --json --device "$MIMEO_DEVICE" "${model[@]}" \
		${stages[@]+"${stages[@]}"} $(options_of "$1") "$bench" >"$work/$name.part" 2>"$work/$name.log"; then
		mv "$work/$name.part" "$work/$name.json"
		echo "  $((SECONDS - start)) s"
	else
		echo "  not measured:"
		sed 's/^/  /' "$work/$name.log" | tail -n 3
	fi
}

# "null" stands for what is not measured yet.
run_benches()
{
	local program bench model plan=() one
	for program in "${bench_programs[@]}"; do
		for bench in $(benches "$program"); do
			[[ $bench =~ ${ONLY-} ]] || continue
			for model in $(models_of "$bench"); do
				plan+=("$program $bench $model")
				echo null >"$work/$bench-$(basename "$model").json"
			done
		done
	done
	for one in ${plan[@]+"${plan[@]}"}; do
		[ "$(left)" -le 5 ] || run_bench $one
	done
}

# ---- what there is to run, and where ----

device=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1)
[ -n "$device" ] || { echo "no GPU: nvidia-smi names none" >&2; exit 1; }
compute=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1)
mapfile -t gpus < <(nvidia-smi --query-gpu=index --format=csv,noheader)

if [ -n "${MIMEO_BUILD-}" ]; then
	build=$(cd "$MIMEO_BUILD" && pwd) || exit 1
else
	build=$PWD/build-gpu
	if [ ! -f "$build/build.ninja" ]; then
		arch=${compute/./}
		[ "$arch" -lt 90 ] || arch=${arch}a
		meson setup "$build" -Dcuda=enabled -Dgpu_archs="$arch" -Dtests=true -Dtest_faults=true -Dman=disabled \
			>"$work/setup.log" 2>&1 || { cat "$work/setup.log"; exit 1; }
	fi
	ninja -C "$build" --quiet || exit 1
	SECONDS=0
fi
export MIMEO_BUILD=$build
export LD_LIBRARY_PATH=$build/lib:$build/sdk:$build/sdk/text${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
jobs=${JOBS:-$(($(nproc) / 4 > 0 ? $(nproc) / 4 : 1))}
trap finish EXIT
trap 'echo "cut short" >&4; exit 1' TERM INT HUP

case $mode in
ops)
	for path in $(ops_programs); do
		start "$(basename "$path")" "$limit" "$path"
	done
	;;
serve)
	for path in $(serve_programs); do
		start "$(basename "$path")" "$limit" "$path"
	done
	;;
sanitize)
	export -f sanitizer serving_under_memcheck
	export build
	start_sanitizers
	;;
bench)
	run_benches
	;;
esac
settle 1
exit 0
