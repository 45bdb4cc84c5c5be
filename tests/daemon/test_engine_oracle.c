/* SPDX-License-Identifier: MIT */
/*
 * The same requests give the same tokens, whatever graphs run them (traffic.h): under every mode, with
 * several ladders, and prompts cut into chunks of any size.
 */
#include "tests/daemon/traffic.h"

static int make_load(void **state)
{
	traffic_make(NULL, NULL);
	return 0;
}

static const uint32_t chunks[] = {1, 2, 7, 64, 512};

/* On cuda, where a start takes long, the fewest that go through everything. */
static bool is_run(uint32_t ladder, uint32_t chunk)
{
	if (test_on_cuda())
		return ladder ? chunk == 64 : chunk == 7 || chunk == 512;
	return !ladder || chunk >= 7; /* the others are as wide as those chunks, or refused */
}

static void run_all(const struct rig_options *options, enum graph_mode resolved)
{
	uint32_t count = 0, n_ladders = resolved == GRAPH_NONE ? 1 : TRAFFIC_LADDERS;

	for (uint32_t ladder = 0; ladder < n_ladders; ladder++) {
		for (uint32_t i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++) {
			if (is_run(ladder, chunks[i]))
				traffic_run(options, resolved, &traffic_ladders[ladder], chunks[i], count++);
		}
	}
}

static const struct load_case {
	const char *name;
	struct rig_options options;
	enum graph_mode resolved;
	bool all; /* ladders and chunks; else one of each */
} cases[] = {
	{"test_load_without_graphs_gives_the_tokens_of_each_request_alone", {.mode = GRAPH_NONE},
		GRAPH_NONE, true},
	{"test_load_in_pieces_gives_the_tokens_of_eager_and_runs_nothing_eager",
		{.mode = GRAPH_PIECEWISE}, GRAPH_PIECEWISE, true},
	{"test_load_under_full_gives_the_tokens_of_eager_and_runs_nothing_eager",
		{.mode = GRAPH_FULL, .attention = "flex"}, GRAPH_FULL, true},
	{"test_load_under_full_decode_only_gives_the_tokens_of_eager",
		{.mode = GRAPH_FULL_DECODE_ONLY}, GRAPH_FULL_DECODE_ONLY, true},
	{"test_load_under_full_and_piecewise_gives_eager_tokens_and_runs_nothing_eager",
		{.mode = GRAPH_FULL_AND_PIECEWISE}, GRAPH_FULL_AND_PIECEWISE, true},
	{"test_load_without_pieces_gives_the_tokens_of_eager",
		{.mode = GRAPH_FULL_AND_PIECEWISE, .no_pieces = true}, GRAPH_FULL_DECODE_ONLY, false},
	{"test_load_with_host_side_attention_in_pieces_gives_the_tokens_of_eager",
		{.mode = GRAPH_FULL_AND_PIECEWISE, .attention = "naive"}, GRAPH_PIECEWISE, false},
};
enum { N_CASES = sizeof(cases) / sizeof(cases[0]) };

static void run_case(void **state)
{
	const struct load_case *c = *state;

	if (c->all) {
		run_all(&c->options, c->resolved);
		return;
	}
	traffic_run(&c->options, c->resolved, &traffic_ladders[0], 64, 0);
	traffic_run(&c->options, c->resolved, &traffic_ladders[1], 7, 1);
}

int main(void)
{
	struct CMUnitTest tests[N_CASES];
	static const struct test_cpu_only only[] = {
		{"test_load_with_host_side_attention", "the naive backend is for the cpu device"},
	};

	for (size_t i = 0; i < N_CASES; i++)
		tests[i] = (struct CMUnitTest){
			cases[i].name, run_case, NULL, NULL, (void *)(uintptr_t)&cases[i]};
	return TEST_RUN_GROUP("engine oracle", tests, only, make_load, NULL);
}
