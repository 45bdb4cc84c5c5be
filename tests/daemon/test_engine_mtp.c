/* SPDX-License-Identifier: MIT */
/*
 * MTP heads in the engine, whose attention is latent as their models' is, under `mla` and under `mla_planned`, whose
 * plan is lazy: what they draw from is the dense reference's, whatever graphs run it; graphs of both of the
 * draft's passes plan; and nothing is lost, be the head trained, noised or random.
 */
#include "tests/daemon/traffic.h"

#include <jansson.h>

#include "tests/daemon/checkpoint.h"
#include "tests/device_memory.h"

enum { K = 4, VOCAB = 97, N_PROMPT = 21, N_TOKENS = 60, N_MODES = 4, N_PLANS = 2 };

static const enum graph_mode modes[N_MODES] = {
	GRAPH_NONE, GRAPH_PIECEWISE, GRAPH_FULL_DECODE_ONLY, GRAPH_FULL_AND_PIECEWISE};
static const char *const plans[N_PLANS] = {"mla", "mla_planned"};

/* A model with its head in one folder. */
static struct rig_options options_of(const char *folder, const char *attention, enum graph_mode mode)
{
	return (struct rig_options){.mode = mode, .attention = attention, .model = folder, .draft = folder,
		.n_drafts = K};
}

/* Random, of a vocabulary of 97 ids. */
static struct rig_options small(uint32_t plan, uint32_t mode)
{
	struct rig_options options = options_of(rig_source("tests/data/drafts/mtp"), plans[plan], modes[mode]);

	options.max_seq_len = 128;
	return options;
}

/* ---- against the reference ---- */

static json_t *reference;

/* The row of logits at a position. */
static const json_t *reference_row(uint32_t position)
{
	const json_t *entry;
	size_t i;

	json_array_foreach(json_object_get(reference, "logits"), i, entry) {
		if (json_integer_value(json_object_get(entry, "position")) == position)
			return json_object_get(entry, "row");
	}
	fail_msg("the reference has no position %u", position);
	return NULL;
}

/* What slot 0's first draft token was drawn from. */
static void assert_drawn_from_reference(struct rig *rig)
{
	const json_t *row = reference_row(N_PROMPT - 1);
	float *have = test_fetch(rig->device, rig->runner->inputs.persistent.slot_draft_logits,
		VOCAB * sizeof(*have));
	double largest = 0;

	assert_int_equal(json_array_size(row), VOCAB);
	for (uint32_t i = 0; i < VOCAB; i++)
		largest = fmax(largest, fabs(json_number_value(json_array_get(row, i))));
	for (uint32_t i = 0; i < VOCAB; i++) {
		double want = json_number_value(json_array_get(row, i));

		if (!(fabs((double)have[i] - want) <= TEST_LOGITS_CPU * largest))
			fail_msg("id %u: logit %g, not %g (largest %g)", i, (double)have[i], want, largest);
	}
	free(have);
}

static void check_reference(const struct rig_options *options)
{
	int32_t ids[N_PROMPT + 1], token;
	uint64_t seed = 0;
	struct rig rig;

	assert_int_equal(json_array_size(json_object_get(reference, "ids")), N_PROMPT + 1);
	for (uint32_t i = 0; i <= N_PROMPT; i++)
		ids[i] = (int32_t)json_integer_value(json_array_get(json_object_get(reference, "ids"), i));
	rig_open_client(&rig, options);
	/* The reference's sequence has its own token behind the prompt: until that one is drawn. */
	do {
		struct rig_request request = rig_ask_sampled(&rig.client, ids, N_PROMPT, 1, seed);

		assert_true(seed++ < 2000);
		assert_int_equal(rig_do(&rig.client, request).n_generated, 1);
		token = rig_tokens(&rig.client, &request)[0];
		rig_assert_all_free(&rig); /* so that it is slot 0 again */
	} while (token != ids[N_PROMPT]);
	assert_drawn_from_reference(&rig);
	rig_close(&rig);
}

static void test_draft_tokens_are_drawn_from_the_references_logits(void **state)
{
	char path[600];

	snprintf(path, sizeof(path), "%s/reference.json", rig_source("tests/data/drafts/mtp"));
	reference = json_load_file(path, 0, NULL);
	assert_non_null(reference);
	for (uint32_t i = 0; i < N_MODES * N_PLANS; i++) {
		const struct rig_options options = small(i % N_PLANS, i / N_PLANS);

		check_reference(&options);
	}
	json_decref(reference);
}

/* ---- graphs ---- */

static uint32_t check_plans(struct rig *rig, const struct graph_set *set, uint32_t n)
{
	uint32_t n_full = 0;

	for (uint32_t i = 0; i < set->n; i++) {
		const struct graph_entry *entry = &set->entries[i];

		if (entry->descriptor.mode != GRAPH_FULL)
			continue;
		assert_int_equal(test_count_nodes(rig->device, entry->graph, "mla_plan"), n);
		n_full++;
	}
	return n_full;
}

/* F1, F2: each graph plans, once, for the lengths that its replay finds. */
static void test_full_graphs_of_both_passes_hold_the_plan(void **state)
{
	for (uint32_t plan = 0; plan < N_PLANS; plan++) {
		const struct rig_options options = small(plan, N_MODES - 1);
		struct rig rig;

		rig_open_client(&rig, &options);
		assert_true(check_plans(&rig, &rig.speculator->prefill.graphs, plan) > 1);
		assert_true(check_plans(&rig, &rig.speculator->decode.graphs, plan) > 1);
		rig_close(&rig);
	}
}

/* ---- what holds ---- */

struct outcome {
	int32_t tokens[3][N_TOKENS];
	struct engine_speculation account;
};

/* One behind the other, of different lengths, so that a graph is replayed with what others planned in between. */
static void run_sampled(const struct rig_options *options, struct outcome *ret)
{
	struct rig rig;

	rig_open_client(&rig, options);
	for (int32_t i = 0; i < 3; i++) {
		const int32_t prompt[] = {1, 10 + i, 20 + i, 30 + i, 5};
		struct rig_request request =
			rig_ask_sampled(&rig.client, prompt, 5 - (uint32_t)i, N_TOKENS, 7 + (uint64_t)i);

		assert_int_equal(rig_do(&rig.client, request).n_generated, N_TOKENS);
		memcpy(ret->tokens[i], rig_tokens(&rig.client, &request), sizeof(ret->tokens[i]));
	}
	ret->account = rig_facts(&rig).speculation;
	rig_close(&rig);
}

/* F33 */
static void test_sampled_draft_tokens_hold_as_often_under_every_mode_and_either_plan(void **state)
{
	struct outcome first, more;

	for (uint32_t i = 0; i < N_MODES * N_PLANS; i++) {
		const struct rig_options options = small(i % N_PLANS, i / N_PLANS);

		run_sampled(&options, i ? &more : &first);
		if (!i)
			continue;
		assert_memory_equal(more.tokens, first.tokens, sizeof(first.tokens));
		assert_memory_equal(
			&more.account, &first.account, offsetof(struct engine_speculation, n_draft_steps));
	}
	printf("# random head, flat distributions: first draft tokens: %u of %u held, last ones %u of %u\n",
		(unsigned)first.account.n_accepted[0], (unsigned)first.account.n_offered[0],
		(unsigned)first.account.n_accepted[K - 1], (unsigned)first.account.n_offered[K - 1]);
	assert_true(2 * first.account.n_accepted[0] > first.account.n_offered[0]);
	assert_true(first.account.n_accepted[0] < first.account.n_offered[0]);
	assert_true(first.account.n_accepted[K - 1] > 0);
}

/* ---- nothing is lost ---- */

#define TRAINED "examples/models/tinycalc-mtp"

static struct checkpoint noised;

static int make(void **state)
{
	checkpoint_copy(&noised, rig_source(TRAINED));
	checkpoint_flip_signs(&noised, "model.layers.5.", 12);
	traffic_make(rig_source(TRAINED), "mla");
	return 0;
}

static int unmake(void **state)
{
	checkpoint_remove(&noised);
	return 0;
}

struct lossless_case {
	bool noised;
	uint32_t plan, mode, n_drafts, chunk, ladder;
	uint32_t preempt_every; /* tokens; 0: never */
};

static const struct lossless_case cases[] = {
	{false, 0, 0, 4, 64, 0},
	{false, 0, 1, 4, 16, 1},
	{false, 0, 2, 8, 64, 2},
	{false, 0, 3, 4, 64, 0},
	{false, 1, 0, 4, 64, 0},
	{false, 1, 1, 1, 64, 0},
	{false, 1, 2, 4, 64, 0},
	{false, 1, 3, 8, 16, 1},
	{true, 0, 0, 3, 64, 0},
	{true, 1, 1, 4, 64, 0},
	{true, 0, 2, 4, 64, 0},
	{true, 1, 3, 4, 64, 2},
#ifdef MIMEO_TEST_FAULTS
	{false, 1, 3, 4, 64, 0, .preempt_every = 1}, /* F36 */
#endif
};
enum { N_CASES = sizeof(cases) / sizeof(cases[0]) };

static void test_greedy_output_is_that_without_a_draft(void **state)
{
	const struct lossless_case *c = *state;
	struct rig_options options =
		options_of(c->noised ? noised.folder : rig_source(TRAINED), plans[c->plan], modes[c->mode]);

	options.n_drafts = c->n_drafts;
	options.preempt_every = c->preempt_every;
	traffic_run(&options, modes[c->mode], &traffic_ladders[c->ladder], c->chunk, c->n_drafts);
}

int main(void)
{
	static struct CMUnitTest tests[N_CASES + 3] = {
		cmocka_unit_test(test_draft_tokens_are_drawn_from_the_references_logits),
		cmocka_unit_test(test_full_graphs_of_both_passes_hold_the_plan),
		cmocka_unit_test(test_sampled_draft_tokens_hold_as_often_under_every_mode_and_either_plan),
	};
	static char names[N_CASES][128];
	static const struct test_cpu_only only[] = {
		{"test_draft_tokens_are_drawn", "rounding to bf16 chooses other experts of a random head"},
		{"test_sampled_draft_tokens_hold",
			"float32 sums go by what else is in the step, and draws by their last bits"},
	};

	for (size_t i = 0; i < N_CASES; i++) {
		snprintf(names[i], sizeof(names[i]), "test_greedy_output_is_that_without_a_draft_%s_%s_%s_%u%s",
			cases[i].noised ? "noised" : "trained", plans[cases[i].plan],
			graph_mode_name(modes[cases[i].mode]), cases[i].n_drafts,
			cases[i].preempt_every ? "_preempted" : "");
		tests[3 + i] = (struct CMUnitTest){.name = names[i],
			.test_func = test_greedy_output_is_that_without_a_draft,
			.initial_state = (void *)(uintptr_t)&cases[i]};
	}
	return TEST_RUN_GROUP("engine mtp", tests, only, make, unmake);
}
