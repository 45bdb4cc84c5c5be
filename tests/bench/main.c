/* SPDX-License-Identifier: MIT */
/*
 * bench-internals: what the parts of Mimeo cost, for those who work on them. It is not installed.
 */
#include "daemon/bench/options.h"
#include "tests/bench/attention_mask.h"
#include "tests/bench/attention_mla.h"
#include "tests/bench/internals.h"

static int check_attention(const struct bench_options *options)
{
	struct bench_mask mask;

	if (!bench_mask_parse(options->mask, &mask))
		return options_misuse("--mask %s: no such mask: there are causal, window:N, prefix:N, "
			"documents:N and tree:N, N 1 or more, of trees 64 at most", options->mask);
	if (bench_is_mla(options) && (options->mask || options->prompts.n))
		return options_misuse("--%s is not for latent attention",
			options->mask ? "mask" : "prompts");
	return 0;
}

static const struct bench benches[] = {
	{"gap", "idle time on the lane between decode steps, and the engine's time", bench_gap, 0,
		"processes prompt tokens spin-us", "processes=1,2,4,8,16 prompt=16 tokens=200"},
	{"kill", "how soon what a killed client had is back", bench_kill, 0, "count", "count=30"},
	{"capture", "seconds and bytes of each graph that a daemon captured", bench_capture, 0, "",
		NULL},
	{"buffer", "device buffers: making, using and closing them", bench_buffer, 0, "count",
		"count=20"},
	{"modes", "a load under each graph mode; decode steps whole, in pieces, eager",
		bench_modes, BENCH_PRIVATE | BENCH_LANE,
		"processes prompt tokens spin-us batches contexts count",
		"processes=8 prompt=1000 tokens=200 batches=1,2,4,8,16,32,64 contexts=1024 count=64"},
	{"attention", "a model's attention, decoding and on whole prompts", bench_attention,
		BENCH_IN_PROCESS | BENCH_ALONE | BENCH_CONFIG_ONLY,
		"attention batches contexts prompts heads rank rope mask",
		"batches=1,8,32,128 contexts=1024", .check = check_attention},
	{"gemm", "a model's matrix products", bench_gemm,
		BENCH_IN_PROCESS | BENCH_ALONE | BENCH_CONFIG_ONLY, "batches",
		"batches=1,8,32,128"},
	{"experts", "a model's experts: routing, grouping, products and their sum", bench_experts,
		BENCH_IN_PROCESS | BENCH_ALONE | BENCH_CONFIG_ONLY, "batches", "batches=1,8,32,128", .model = "tinycalc-moe"},
};

int main(int argc, char **argv)
{
	static const struct program program = {
		.purpose = "Measure the parts of Mimeo, beside the floor that this machine sets.",
		.benches = benches,
		.n_benches = sizeof(benches) / sizeof(benches[0]),
	};

	return program_main(&program, argc, argv);
}
