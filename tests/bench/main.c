/* SPDX-License-Identifier: MIT */
/*
 * bench-internals: what the parts of Mimeo cost, for those who work on them. It is not installed; it
 * has the options, the table and the JSON of mimeo-bench(1), and --help lists what each bench takes.
 *
 *	gap        idle time of the lane between the steps of a serving daemon, the time of its
 *	           engine's thread a step; floor: a bare loop in one process
 *	kill       from SIGKILL of a client to its pages, slots and descriptors; floor: the hang-up of
 *	           a socket of a process that only waits
 *	capture    each graph's segments, nodes, seconds and bytes; captures beside a stream
 *	buffer     calls that make and close device buffers, steps with logits in one, the longest gap
 *	           of another client while memory is given back
 *	modes      a decode step as one graph, in pieces and eager, and what a break between pieces
 *	           costs; mimeo-bench load --graph-mode serves under each
 *	whole      a decode step as a graph of nodes and in one kernel, whichever the device would take
 *	attention  by the backend interface: --query tokens a row for each batch and context, whole
 *	           prompts; of a latent model also part by part, prompts included
 *	gemm       products of a model's step, ours and the library's (--sides, --packed)
 *	experts    the ops of a layer of experts (--packed)
 *
 * For example, paged attention of heads of 128 (the sizes of the 8B shape), decodes, verifications
 * of 5 tokens and prompts; prompts of DeepSeek-V2-Lite's attention; whose products are quicker:
 *
 *	bench-internals --shape 8B --contexts 1024,4096 --prompts 2048,8192 attention
 *	bench-internals --shape 8B --batches 8 --contexts 4096 --query 5 attention
 *	bench-internals --shape V2-Lite --prompts 512,2048,8192 attention
 *	bench-internals --shape 1B --sides 0,1,2 gemm
 */
#include "tests/bench/internals.h"

static const struct bench benches[] = {
	{"gap", "idle time on the lane between decode steps, and the engine's time", bench_gap, 0,
		"processes prompt tokens spin-us" BENCH_FINDS,
		"processes=1,2,4,8,16 prompt=16 tokens=200"},
	{"kill", "how soon the resources of a killed client are released", bench_kill, 0,
		"count" BENCH_FINDS,
		"count=30"},
	{"capture", "seconds and bytes of each graph that a daemon captured", bench_capture, 0,
		BENCH_FINDS, NULL},
	{"buffer", "device buffers: making, using and closing them", bench_buffer, 0,
		"count" BENCH_FINDS, "count=20"},
	{"modes", "a decode step as one graph, in pieces and eager; the cost of a break", bench_modes,
		BENCH_IN_PROCESS | BENCH_LANE, "batches contexts count attention",
		"batches=1,2,4,8,16,32,64 contexts=1024 count=64"},
	{"whole", "a decode step as a graph of nodes and in one kernel", bench_whole, BENCH_IN_PROCESS | BENCH_LANE,
		"batches contexts count attention", "batches=1,2,4,8 contexts=1024 count=64"},
	{"attention", "a model's attention, decoding and on whole prompts", bench_attention,
		BENCH_IN_PROCESS | BENCH_CONFIG_ONLY,
		"attention batches contexts query prompts kv-dtype", "batches=1,8,32,128 contexts=1024 query=1"},
	{"gemm", "a model's matrix products", bench_gemm, BENCH_IN_PROCESS | BENCH_CONFIG_ONLY,
		"batches sides packed", "batches=1,8,32,128 sides=0 packed=0"},
	{"experts", "a model's experts: routing, grouping, products and their sum", bench_experts,
		BENCH_IN_PROCESS | BENCH_CONFIG_ONLY, "batches packed",
		"batches=1,8,32,128 packed=0",
		.model = "tinycalc-moe"},
};

int main(int argc, char **argv)
{
	static const struct program program = {
		.purpose = "Measure parts of Mimeo against the bounds of this machine.",
		.benches = benches,
		.n_benches = sizeof(benches) / sizeof(benches[0]),
	};

	return program_main(&program, argc, argv);
}
