/* SPDX-License-Identifier: MIT */
/*
 * Speculation loses nothing: the same requests give the same tokens with a draft of any K as without one
 * (traffic.h), under every mode, with several ladders, alone and beside other clients.
 */
#include "tests/daemon/traffic.h"

struct speculate_case {
	uint32_t n_drafts;
	enum graph_mode mode;
	uint32_t chunk, ladder;
};

static int make_load(void **state)
{
	traffic_make(NULL, NULL);
	return 0;
}

static const struct speculate_case cases[] = {
	{4, GRAPH_NONE, 64, 0},
	{1, GRAPH_NONE, 64, 0},
	{8, GRAPH_NONE, 512, 0},
	{4, GRAPH_PIECEWISE, 64, 0},
	{4, GRAPH_PIECEWISE, 7, 1},
	{4, GRAPH_FULL_DECODE_ONLY, 64, 0},
	{2, GRAPH_FULL_DECODE_ONLY, 64, 2},
	{4, GRAPH_FULL_AND_PIECEWISE, 64, 0},
	{3, GRAPH_FULL_AND_PIECEWISE, 512, 0},
	{8, GRAPH_FULL_AND_PIECEWISE, 64, 2},
	{4, GRAPH_FULL, 64, 0},
	{8, GRAPH_FULL, 64, 1},
};

static void test_greedy_output_is_that_without_a_draft(void **state)
{
	const struct speculate_case *c = *state;
	const struct rig_options options = {.mode = c->mode, .n_drafts = c->n_drafts,
		.attention = c->mode == GRAPH_FULL ? "flex" : NULL, /* paged cannot */
		.draft = rig_draft()};

	traffic_run(&options, c->mode, &traffic_ladders[c->ladder], c->chunk, c->n_drafts);
}

int main(void)
{
	enum { N = sizeof(cases) / sizeof(cases[0]) };
	static struct CMUnitTest tests[N];
	static char names[N][96];

	for (size_t i = 0; i < N; i++) {
		snprintf(names[i], sizeof(names[i]), "test_greedy_output_is_that_without_a_draft_%u_%s_%u_%u",
			cases[i].n_drafts, graph_mode_name(cases[i].mode), cases[i].chunk, cases[i].ladder);
		tests[i] = (struct CMUnitTest){.name = names[i],
			.test_func = test_greedy_output_is_that_without_a_draft,
			.initial_state = (void *)(uintptr_t)&cases[i]};
	}
	return cmocka_run_group_tests_name("engine speculate", tests, make_load, NULL);
}
