/* SPDX-License-Identifier: MIT */
/*
 * The same requests give the same tokens (traffic.h) if each is preempted after every token and computed again: with
 * every attention backend, under every mode.
 */
#include "tests/daemon/traffic.h"

#define MLA "examples/models/tinycalc-mla"
#define MOE "examples/models/tinycalc-moe"

static const struct preempted_case {
	const char *name, *model; /* NULL: tinycalc */
	struct rig_options options;
	enum graph_mode resolved;
} cases[] = {
	{"test_preempted_load_without_graphs_gives_the_tokens_of_each_request_alone", NULL, {.mode = GRAPH_NONE},
		GRAPH_NONE},
	{"test_preempted_load_in_pieces_gives_the_tokens_of_eager", NULL, {.mode = GRAPH_PIECEWISE}, GRAPH_PIECEWISE},
	{"test_preempted_load_under_full_gives_the_tokens_of_eager", NULL,
		{.mode = GRAPH_FULL, .attention = "flex"}, GRAPH_FULL},
	{"test_preempted_load_under_full_decode_only_gives_the_tokens_of_eager", NULL,
		{.mode = GRAPH_FULL_DECODE_ONLY}, GRAPH_FULL_DECODE_ONLY},
	{"test_preempted_load_under_full_and_piecewise_gives_the_tokens_of_eager", NULL,
		{.mode = GRAPH_FULL_AND_PIECEWISE}, GRAPH_FULL_AND_PIECEWISE},
	{"test_preempted_load_without_pieces_gives_the_tokens_of_eager", NULL,
		{.mode = GRAPH_FULL_AND_PIECEWISE, .no_pieces = true}, GRAPH_FULL_DECODE_ONLY},
	{"test_preempted_load_with_host_side_attention_in_pieces_gives_the_tokens_of_eager", NULL,
		{.mode = GRAPH_FULL_AND_PIECEWISE, .attention = "naive"}, GRAPH_PIECEWISE},
	{"test_preempted_load_with_latent_attention_gives_the_tokens_of_expansion", MLA,
		{.mode = GRAPH_FULL_AND_PIECEWISE, .attention = "mla"}, GRAPH_FULL_AND_PIECEWISE},
	{"test_preempted_load_with_planned_latent_attention_gives_the_tokens_of_expansion", MLA,
		{.mode = GRAPH_FULL_AND_PIECEWISE, .attention = "mla_planned"}, GRAPH_FULL_AND_PIECEWISE},
	{"test_preempted_load_with_experts_gives_the_tokens_of_expansion", MOE,
		{.mode = GRAPH_FULL_AND_PIECEWISE, .attention = "mla"}, GRAPH_FULL_AND_PIECEWISE},
};
enum { N_CASES = sizeof(cases) / sizeof(cases[0]) };

/* The requests of one model are made once. */
static void make_load(const char *model)
{
	static const char *made_of;
	static bool made;

	if (made && made_of == model)
		return;
	if (model)
		traffic_make(rig_source(model), test_on_cuda() ? "mla" : "naive");
	else
		traffic_make(NULL, NULL);
	made = true;
	made_of = model;
}

/* The shorter the chunks, the longer it takes to compute a preempted request again. */
static void run_case(void **state)
{
	const struct preempted_case *c = *state;
	struct rig_options options = c->options;

	make_load(c->model);
	options.model = c->model ? rig_source(c->model) : NULL;
	options.preempt_every = 1;
	traffic_run(&options, c->resolved, &traffic_ladders[0], 64, 0);
	options.preempt_every = 3;
	traffic_run(&options, c->resolved, &traffic_ladders[1], 7, 1);
}

int main(void)
{
	struct CMUnitTest tests[N_CASES];
	static const struct test_cpu_only only[] = {
		{"test_preempted_load_with_host_side_attention", "the naive backend is for the cpu device"},
	};

	for (size_t i = 0; i < N_CASES; i++)
		tests[i] = (struct CMUnitTest){cases[i].name, run_case, NULL, NULL, (void *)(uintptr_t)&cases[i]};
	return TEST_RUN_GROUP("engine oracle preempted", tests, only, NULL, NULL);
}
