/* SPDX-License-Identifier: MIT */
/*
 * Speculation with latent attention, and with experts: verifications are rows of 1 + K tokens for `mla` and
 * `mla_planned`, whose lengths the host knows bounds of alone; the draft's own attention is an ordinary one.
 * The draft says the last token again, which holds now and then (made.h).
 */
#include "tests/daemon/traffic.h"

#include "tests/daemon/checkpoint.h"

static struct checkpoint draft;

struct latent_case {
	const char *model, *attention;
	enum graph_mode mode;
	uint32_t n_drafts, chunk, ladder;
};

#define MLA "examples/models/tinycalc-mla"
#define MOE "examples/models/tinycalc-moe"

static const struct latent_case cases[] = {
	{MLA, "mla", GRAPH_NONE, 4, 64, 0},
	{MLA, "mla", GRAPH_FULL_AND_PIECEWISE, 4, 64, 0},
	{MLA, "mla", GRAPH_FULL_AND_PIECEWISE, 8, 16, 1},
	{MLA, "mla_planned", GRAPH_NONE, 1, 64, 0},
	{MLA, "mla_planned", GRAPH_FULL_AND_PIECEWISE, 4, 64, 0},
	{MLA, "mla_planned", GRAPH_FULL_AND_PIECEWISE, 8, 16, 1},
	{MOE, "mla", GRAPH_FULL_AND_PIECEWISE, 4, 64, 0},
	{MOE, "mla_planned", GRAPH_NONE, 4, 64, 0},
	{MOE, "mla_planned", GRAPH_FULL_AND_PIECEWISE, 3, 64, 2},
};
enum { N_CASES = sizeof(cases) / sizeof(cases[0]) };

static int make_draft(void **state)
{
	static const char *const options[] = {"--family", "eagle", "--hidden", "160", "--heads", "4",
		"--kv-heads", "2", "--head-dim", "24", "--inner", "96", "--vocab", "256", NULL};

	checkpoint_make(&draft, options);
	checkpoint_repeat_last(&draft);
	return 0;
}

static int remove_draft(void **state)
{
	checkpoint_remove(&draft);
	return 0;
}

static struct rig_options options_of(const struct latent_case *c)
{
	return (struct rig_options){.mode = c->mode, .model = rig_source(c->model),
		.attention = c->attention, .draft = draft.folder, .n_drafts = c->n_drafts};
}

static void test_greedy_output_is_that_without_a_draft(void **state)
{
	static const char *made_for;
	const struct latent_case *c = *state;
	const struct rig_options options = options_of(c);

	if (made_for != c->model)
		traffic_make(options.model, "mla");
	made_for = c->model;
	traffic_run(&options, c->mode, &traffic_ladders[c->ladder], c->chunk, c->n_drafts);
}

/* What a text without an end comes to, and how often drafts hold. */
static struct engine_speculation run_text(const struct latent_case *c, int32_t *ret, uint32_t n)
{
	const struct rig_options options = options_of(c);
	struct engine_model_facts facts;
	struct rig_request request;
	struct rig rig;

	rig_open_client(&rig, &options);
	request = rig_endless(&rig.client, 0, 0, n);
	assert_int_equal(rig_do(&rig.client, request).n_generated, n);
	memcpy(ret, rig_tokens(&rig.client, &request), n * sizeof(*ret));
	engine_model_facts(rig.engine, 0, &facts);
	rig_close(&rig);
	return facts.speculation;
}

static void test_drafts_hold_as_often_under_every_mode_and_either_plan(void **state)
{
	static const enum graph_mode modes[] = {
		GRAPH_NONE, GRAPH_PIECEWISE, GRAPH_FULL_DECODE_ONLY, GRAPH_FULL_AND_PIECEWISE};
	static const char *const plans[] = {"mla", "mla_planned"};
	enum { N = 200 };
	struct engine_speculation first = {0};
	int32_t tokens[2][N];

	for (uint32_t i = 0; i < 8; i++) {
		const struct latent_case c = {MLA, plans[i % 2], modes[i / 2], 4};
		struct engine_speculation more = run_text(&c, tokens[i > 0], N);

		if (!i) {
			first = more;
			printf("# first drafts: %u of %u held, last ones %u of %u\n",
				(unsigned)first.n_accepted[0], (unsigned)first.n_offered[0],
				(unsigned)first.n_accepted[3], (unsigned)first.n_offered[3]);
			assert_true(first.n_accepted[0] > 0);
			assert_true(first.n_accepted[0] < first.n_offered[0]);
			continue;
		}
		assert_memory_equal(tokens[1], tokens[0], sizeof(tokens[0]));
		assert_memory_equal(
			&more, &first, offsetof(struct engine_speculation, n_draft_steps));
	}
}

int main(void)
{
	static struct CMUnitTest tests[N_CASES + 1];
	static char names[N_CASES][128];

	for (size_t i = 0; i < N_CASES; i++) {
		snprintf(names[i], sizeof(names[i]),
			"test_greedy_output_is_that_without_a_draft_%s_%s_%s_%u",
			cases[i].model + sizeof("examples/models"), cases[i].attention,
			graph_mode_name(cases[i].mode), cases[i].n_drafts);
		tests[i] = (struct CMUnitTest){.name = names[i],
			.test_func = test_greedy_output_is_that_without_a_draft,
			.initial_state = (void *)(uintptr_t)&cases[i]};
	}
	tests[N_CASES] = (struct CMUnitTest)cmocka_unit_test(
		test_drafts_hold_as_often_under_every_mode_and_either_plan);
	return cmocka_run_group_tests_name(
		"engine speculation, latent", tests, make_draft, remove_draft);
}
