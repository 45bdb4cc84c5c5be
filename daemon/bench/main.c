/* SPDX-License-Identifier: MIT */
#include "daemon/bench/users.h"

static const struct bench_panel share_panels[] = {
	{"tokens per second of all processes", "processes", NULL,
		{"tokens_per_s", "floor_tokens_per_s"}, {"Mimeo", "floor"}},
	{"time of a token", "processes", NULL, {"token_median_s", "token_p99_s", "floor_median_s"},
		{"median", "P99", "floor"}},
	{0},
};

static const struct bench_panel load_panels[] = {
	{"tokens per second of all processes", "processes", NULL, {"tokens_per_s"}, {"tokens/s"}},
	{"time to the first token", "processes", NULL,
		{"first_median_s", "first_p90_s", "first_p99_s"}, {"median", "P90", "P99"}},
	{"time between tokens", "processes", NULL,
		{"between_median_s", "between_p90_s", "between_p99_s", "floor_s"},
		{"median", "P90", "P99", "floor"}},
	{0},
};

static const struct bench_panel decode_panels[] = {
	{"time of a step against rows", "batch", "context", {"step_median_s", "floor_median_s"},
		{"step", "floor"}},
	{"time of a step against context", "context", "batch", {"step_median_s", "floor_median_s"},
		{"step", "floor"}},
	{"tokens per second against rows", "batch", "context", {"tokens_per_s"}, {"tokens/s"}},
	{0},
};

static const struct bench_panel fair_panels[] = {
	{"computed tokens a second", "processes", NULL, {"light_tokens_per_s", "heavy_tokens_per_s"},
		{"weight 1", "weight 3"}},
	{"P99 of the time of a token", "processes", NULL, {"beside_p99_s", "alone_p99_s"},
		{"beside the flood", "alone"}},
	{0},
};

static const struct bench_panel speculation_panels[] = {
	{"tokens per second of all processes", "processes", "draft_tokens", {"tokens_per_s"},
		{"tokens/s"}},
	{0},
};

static const struct bench benches[] = {
	{"decode", "decode steps of a model in this process, against the bandwidth floor", bench_decode,
		BENCH_IN_PROCESS | BENCH_LANE, "batches contexts count attention deterministic head-dtype"
		" kv-dtype plot",
		"batches=1,8,32,128 contexts=1024 count=64", decode_panels},
	{"share", "N processes with a sequence each, against a loop in one process", bench_share, 0,
		"processes prompt tokens spin-us plot" BENCH_FINDS, "processes=1,2,4,8,16 prompt=16 tokens=200",
		share_panels},
	{"load", "N processes with mixed requests in flight: throughput and latency", bench_load,
		BENCH_RANGES, "processes in-flight requests prompt tokens prefix prefix-sharing seed spin-us graph-mode"
		" plot" BENCH_FINDS,
		"processes=1,2,4,8 in-flight=4 requests=16 prompt=100-1000 tokens=50-200 prefix=0 seed=1",
		load_panels},
	{"fair", "two users of weights 1 and 3 with more requests than there is room for", bench_fair,
		BENCH_RANGES, "processes in-flight requests prompt tokens flood seconds seed token-us spin-us plot" BENCH_STARTS,
		"processes=8 in-flight=8 requests=12 prompt=100-1000 tokens=50-200 flood=1500-2000 seconds=10 seed=1",
		fair_panels},
	{"speculation", "a load with and without a draft model; the step times of both",
		bench_speculation, BENCH_DRAFT,
		"processes prompt text tokens draft draft-tokens spin-us plot" BENCH_STARTS,
		"processes=1,2,4,8,16 prompt=16 tokens=200 draft-tokens=4", speculation_panels},
	{"perplexity", "accuracy: how well a model with a tokenizer predicts a text", bench_perplexity,
		BENCH_WINDOWS, "text contexts graph-mode" BENCH_FINDS, "contexts=512 timeout=600"},
	{"attach", "connect, handshake and first tokens of one more process", bench_attach, 0,
		"count" BENCH_FINDS, "count=50"},
	{"ring", "round trips of null requests, spinning and asleep", bench_ring, 0,
		"count" BENCH_FINDS, "count=4000"},
};

int main(int argc, char **argv)
{
	static const struct program program = {
		.purpose = "Measure Mimeo against the bounds of this machine.",
		.benches = benches,
		.n_benches = sizeof(benches) / sizeof(benches[0]),
	};

	return program_main(&program, argc, argv);
}
