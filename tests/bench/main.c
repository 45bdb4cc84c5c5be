/* SPDX-License-Identifier: MIT */
/*
 * bench-internals: what the parts of Mimeo cost, for those who work on them. It is not installed.
 */
#include "daemon/bench/options.h"
#include "tests/bench/attention_mask.h"
#include "tests/bench/attention_mla.h"
#include "tests/bench/internals.h"

static const struct bench benches[] = {
	{"gap", "idle time on the lane between decode steps, and the engine's time", bench_gap,
		false, false, NULL},
	{"kill", "how soon what a killed client had is back", bench_kill, false, false, NULL},
	{"capture", "seconds and bytes of each graph that a daemon captured", bench_capture, false,
		false, NULL},
	{"buffer", "device buffers: making, using and closing them", bench_buffer, false, false, NULL},
	{"modes", "a load under each graph mode; decode steps whole, in pieces, eager",
		bench_modes, false, false, NULL},
	{"attention", "a model's attention, decoding and on whole prompts", bench_attention, true,
		true, NULL},
	{"gemm", "a model's matrix products", bench_gemm, true, true, NULL},
	{"experts", "a model's experts: routing, grouping, products and their sum", bench_experts,
		true, true, "tinycalc-moe"},
};

static int check(const struct bench *bench, const struct bench_options *options)
{
	struct bench_mask mask;

	if (!bench_mask_parse(options->mask, &mask))
		return options_misuse("--mask %s: no such mask: there are causal, window:N, prefix:N, "
			"documents:N and tree:N, N 1 or more, of trees 64 at most", options->mask);
	if (bench->run == bench_attention && bench_is_mla(options) &&
		(options->mask || options->n_prompts))
		return options_misuse("--%s is not for latent attention",
			options->mask ? "mask" : "prompts");
	return 0;
}

int main(int argc, char **argv)
{
	static const struct program program = {
		.name = "bench-internals",
		.purpose = "Measure the parts of Mimeo, beside the floor that this machine sets.",
		.benches = benches,
		.n_benches = sizeof(benches) / sizeof(benches[0]),
		.check = check,
	};

	return program_main(&program, argc, argv);
}
