/* SPDX-License-Identifier: MIT */
/*
 * EAGLE-3 drafts in the engine: what they draw from is the dense reference's, of the target's hidden
 * states and by the target's ids, whatever graphs run it; and they lose nothing. The drafts are random:
 * greedy ones hardly ever hold, sampled ones of flat distributions often.
 */
#include "tests/daemon/traffic.h"

#include <jansson.h>

#include "tests/daemon/checkpoint.h"
#include "tests/device_memory.h"

enum { K = 4, VOCAB = 97, N_PROMPT = 21, N_TOKENS = 60 };

struct eagle3_case {
	enum graph_mode mode;
	const char *attention;
};

static const struct eagle3_case cases[] = {
	{GRAPH_NONE, "paged"},
	{GRAPH_PIECEWISE, "paged"},
	{GRAPH_FULL_AND_PIECEWISE, "paged"},
	{GRAPH_FULL, "flex"}, /* paged cannot */
};
enum { N_CASES = sizeof(cases) / sizeof(cases[0]) };

static struct rig_options small(const struct eagle3_case *c, const char *draft)
{
	return (struct rig_options){.mode = c->mode, .attention = c->attention, .max_seq_len = 128,
		.model = rig_source("tests/data/drafts/target"), .draft = draft, .n_drafts = K};
}

/* ---- against the reference ---- */

struct reference {
	json_t *root;
	int32_t ids[N_PROMPT + 1];
};

static void reference_init(struct reference *r, const char *draft)
{
	char path[600];

	snprintf(path, sizeof(path), "%s/reference.json", draft);
	r->root = json_load_file(path, 0, NULL);
	assert_non_null(r->root);
	assert_int_equal(json_array_size(json_object_get(r->root, "ids")), N_PROMPT + 1);
	for (uint32_t i = 0; i <= N_PROMPT; i++)
		r->ids[i] = (int32_t)json_integer_value(
			json_array_get(json_object_get(r->root, "ids"), i));
}

/* The row of logits at the prompt's last position. */
static const json_t *reference_row(const struct reference *r)
{
	const json_t *entry;
	size_t i;

	json_array_foreach(json_object_get(r->root, "logits"), i, entry)
	{
		if (json_integer_value(json_object_get(entry, "position")) == N_PROMPT - 1)
			return json_object_get(entry, "row");
	}
	fail_msg("the reference has no such position");
	return NULL;
}

/* What slot 0's first draft was drawn from is the reference's, and -inf for ids that d2t has none of. */
static void assert_drawn_from(struct rig *rig, const struct reference *r)
{
	const struct runner *runner = rig->engine->runners.all[0];
	const uint32_t draft_vocab = runner->options.draft->config.draft.vocab_size;
	float *have = test_fetch(rig->device, runner->inputs.persistent.slot_draft_logits,
		VOCAB * sizeof(*have));
	int32_t *d2t = runner->options.draft->d2t ? test_fetch(rig->device,
		runner->options.draft->d2t, draft_vocab * sizeof(*d2t)) : NULL;
	const double tolerance = test_on_cuda() ? TEST_LOGITS_CUDA_DRAFT : TEST_LOGITS_CPU;
	double want[VOCAB], largest = 0;

	for (uint32_t i = 0; i < VOCAB; i++)
		want[i] = -INFINITY;
	assert_int_equal(json_array_size(reference_row(r)), draft_vocab);
	for (uint32_t i = 0; i < draft_vocab; i++) {
		double logit = json_number_value(json_array_get(reference_row(r), i));

		want[(int32_t)i + (d2t ? d2t[i] : 0)] = logit;
		largest = fmax(largest, fabs(logit));
	}
	for (uint32_t i = 0; i < VOCAB; i++) {
		if (isinf(want[i]) ? (double)have[i] != want[i]
				   : !(fabs((double)have[i] - want[i]) <= tolerance * largest))
			fail_msg("id %u: logit %g, not %g (largest %g)", i, (double)have[i],
				want[i], largest);
	}
	free(d2t);
	free(have);
}

static void check_reference(const char *name, const struct eagle3_case *c)
{
	char draft[560];
	struct reference reference;
	struct rig_options options;
	struct rig rig;
	uint64_t seed = 0;
	int32_t token;

	snprintf(draft, sizeof(draft), "%s/%s", rig_source("tests/data/drafts"), name);
	options = small(c, draft);
	reference_init(&reference, draft);
	rig_open_client(&rig, &options);
	/* The reference's sequence has its own token behind the prompt: until that one is drawn. */
	do {
		struct rig_request request = rig_ask_sampled(&rig.client, reference.ids, N_PROMPT, 1, seed);

		assert_true(seed++ < 2000);
		assert_int_equal(rig_do(&rig.client, request).n_generated, 1);
		token = rig_tokens(&rig.client, &request)[0];
		rig_assert_all_free(&rig); /* so that it is slot 0 again */
	} while (token != reference.ids[N_PROMPT]);
	assert_drawn_from(&rig, &reference);
	rig_close(&rig);
	json_decref(reference.root);
}

static void test_drafts_are_drawn_from_the_references_logits_by_the_targets_ids(void **state)
{
	for (uint32_t i = 0; i < N_CASES; i++) {
		check_reference("eagle3", &cases[i]);
		check_reference("eagle3-own", &cases[i]);
	}
}

/* ---- what holds ---- */

struct outcome {
	int32_t tokens[3][N_TOKENS];
	struct engine_speculation account;
};

static void run_sampled(const struct eagle3_case *c, struct outcome *ret)
{
	const struct rig_options options = small(c, rig_source("tests/data/drafts/eagle3"));
	struct engine_model_facts facts;
	struct rig rig;

	rig_open_client(&rig, &options);
	for (int32_t i = 0; i < 3; i++) {
		const int32_t prompt[] = {1, 10 + i, 20 + i, 30 + i, 5};
		struct rig_request request =
			rig_ask_sampled(&rig.client, prompt, 5, N_TOKENS, 7 + (uint64_t)i);

		assert_int_equal(rig_do(&rig.client, request).n_generated, N_TOKENS);
		memcpy(ret->tokens[i], rig_tokens(&rig.client, &request), sizeof(ret->tokens[i]));
	}
	engine_model_facts(rig.engine, 0, &facts);
	ret->account = facts.speculation;
	rig_close(&rig);
}

static void test_sampled_drafts_hold_as_often_under_every_mode(void **state)
{
	struct outcome outcomes[3];

	for (uint32_t i = 0; i < 3; i++) { /* those of one attention */
		run_sampled(&cases[i], &outcomes[i]);
		assert_memory_equal(
			outcomes[i].tokens, outcomes[0].tokens, sizeof(outcomes[0].tokens));
		assert_memory_equal(&outcomes[i].account, &outcomes[0].account,
			offsetof(struct engine_speculation, n_draft_steps));
	}
	/* of flat distributions over 61 and 97 ids */
	assert_true(2 * outcomes[0].account.n_accepted[0] > outcomes[0].account.n_offered[0]);
	assert_true(outcomes[0].account.n_accepted[0] < outcomes[0].account.n_offered[0]);
	assert_true(outcomes[0].account.n_accepted[K - 1] > 0);
}

/* ---- nothing is lost ---- */

static void test_greedy_output_is_that_without_a_draft(void **state)
{
	static const char *const options[] = {"--family", "eagle3", "--hidden", "160", "--heads",
		"4", "--kv-heads", "2", "--head-dim", "24", "--inner", "96", "--vocab", "256",
		"--draft-vocab", "100", "--seed", "5", NULL};
	struct checkpoint draft;

	checkpoint_make(&draft, options);
	traffic_make(NULL, NULL);
	for (uint32_t i = 0; i < N_CASES; i++) {
		const struct rig_options rig = {.mode = cases[i].mode,
			.attention = cases[i].attention, .draft = draft.folder, .n_drafts = K};

		traffic_run(&rig, cases[i].mode, &traffic_ladders[0], 64, i);
	}
	checkpoint_remove(&draft);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			test_drafts_are_drawn_from_the_references_logits_by_the_targets_ids),
		cmocka_unit_test(test_sampled_drafts_hold_as_often_under_every_mode),
		cmocka_unit_test(test_greedy_output_is_that_without_a_draft),
	};

	return cmocka_run_group_tests_name("engine eagle3", tests, NULL, NULL);
}
