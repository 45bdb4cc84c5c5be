/* SPDX-License-Identifier: MIT */
/*
 * Which graphs a model with a draft runs: every choice of a graph is recorded, the target's and those of
 * its draft's two managers. The choice itself is tested in test_ladder.c.
 */
#include "tests/daemon/choices.h"

/* Passes of the draft. */
static uint64_t n_eager(const struct rig *rig)
{
	struct engine_model_facts facts;
	uint64_t n = 0;

	engine_model_facts(rig->engine, 0, &facts);
	for (unsigned reason = 0; reason < N_EAGER_REASONS; reason++)
		n += facts.n_prefill_eager[reason] + facts.n_decode_eager[reason];
	return n;
}

/* ---- claims ---- */

static void assert_decodes_of(const struct speculator *s, enum graph_mode resolved)
{
	const struct graph_set *set = &s->decode.graphs;
	bool full = graph_mode_decode(resolved) == GRAPH_FULL;

	assert_int_equal(set->mode, full ? GRAPH_FULL_DECODE_ONLY : GRAPH_NONE);
	assert_int_equal(set->n, set->n_decode);
	assert_int_equal(set->n > 0, full);
	for (uint32_t i = 0; i < set->n; i++) {
		assert_int_equal(set->descriptors[i].mode, GRAPH_FULL);
		assert_int_equal(set->descriptors[i].query_len, 1);
	}
	if (full)
		assert_int_equal(set->descriptors[set->n - 1].rows, ROWS);
}

/* F5 */
static void test_draft_decodes_are_never_piecewise(void **state)
{
	static const char *const attentions[] = {"paged", "flex"};

	for (int mode = GRAPH_NONE; mode <= GRAPH_FULL_AND_PIECEWISE; mode++) {
		for (int a = 0; a < 2; a++) {
			struct rig rig;

			choices_open(&rig, &(struct rig_options){
				.mode = (enum graph_mode)mode, .attention = attentions[a]});
			assert_decodes_of(rig.speculator, rig.runner->options.mode.resolved);
			choices_run_many(&rig, 3, 20);
			assert_int_equal(
				choices_count(&rig.speculator->decode.graphs, GRAPH_PIECEWISE, 0), 0);
			rig_close(&rig);
		}
	}
}

/* F8: alone, behind chunks, and beside decodes of as many tokens. */
static void test_prompt_tails_take_no_decode_graphs(void **state)
{
	struct rig *rig = *state;
	int32_t tokens[TOKENS + Q + 2];

	for (uint32_t n = 1; n <= K + 2; n++) {
		for (uint32_t first = 0; first <= TOKENS; first += TOKENS) {
			rig_nonsense(tokens, first + n, n);
			rig_must(&rig->client,
				rig_ask(&rig->client, 0, 0, tokens, first + n, 1, 0));
		}
	}
	choices_settle(rig);
	assert_int_equal(choices_count(&rig->runner->graphs, GRAPH_FULL, 1), 0);
	assert_int_equal(choices_count(&rig->runner->graphs, GRAPH_FULL, Q), 0);
	assert_int_equal(choices_count(&rig->speculator->prefill.graphs, GRAPH_FULL, Q), 0);
	assert_int_equal(choices_count(&rig->runner->graphs, GRAPH_PIECEWISE, 0), 3 * (K + 2));
	assert_int_equal(
		choices_count(&rig->speculator->prefill.graphs, GRAPH_PIECEWISE, 0), 3 * (K + 2));
}

static void test_prompt_of_a_verifications_length_beside_one_takes_no_decode_graph(void **state)
{
	struct rig *rig = *state;
	int32_t tokens[Q];
	uint32_t n_beside = 0;

	rig_submit(&rig->client, rig_endless(&rig->client, 0, 0, 480));
	rig_nonsense(tokens, Q, 3);
	for (uint32_t i = 1; i <= 20; i++) {
		rig_submit(&rig->client, rig_ask(&rig->client, i, 0, tokens, Q, 1, 0));
		rig_wait(&rig->client, rig->results, i);
		assert_int_equal(rig->results[i].status, 0);
	}
	rig_wait(&rig->client, rig->results, 0);
	choices_settle(rig);
	for (uint32_t i = 0; i < n_choices; i++) {
		const struct choice *c = &choices[i];

		if (c->set == &rig->speculator->decode.graphs || c->shape.rows != 2 || !c->shape.uniform)
			continue;
		assert_true(c->shape.query_len == Q && !c->shape.past_prompt);
		assert_int_equal(c->descriptor.mode, GRAPH_PIECEWISE);
		n_beside++;
	}
	assert_true(n_beside > 0);
}

/* A client's own loop, one token a step, beside a request that verifies. */
static void run_own_loop(struct rig *rig)
{
	const struct msg_row row = {1, 1};
	const struct msg_step msg = {.n_rows = 1, .outputs = MIMEO_STEP_TOKENS};
	struct rig_request request = rig_endless(&rig->client, 0, 0, 450);

	memset(rig->results, 0, sizeof(rig->results));
	rig_ok(&rig->client, 1, RING_OP_OPEN, 1, 0);
	rig_submit(&rig->client, rig_step_text(&rig->client, 1, 1, "count", true));
	rig_wait(&rig->client, rig->results, 1);
	rig_submit(&rig->client, request);
	for (uint32_t i = 2; i < 40; i++) {
		rig_submit(&rig->client, rig_step(&rig->client, i, &msg, &row, &(int32_t){'a'}));
		rig_wait(&rig->client, rig->results, i);
		assert_int_equal(rig->results[i].status, 0);
	}
	rig_wait(&rig->client, rig->results, 0);
	rig_ok(&rig->client, 1, RING_OP_CLOSE, 1, 0);
	choices_settle(rig);
}

/* F9: sizes that are no multiples of it, and batches that are none. */
static void test_decode_graphs_carry_whole_verifications(void **state)
{
	struct rig *rig = *state;
	uint32_t n_mixed = 0, n_decodes = 0;

	for (uint32_t i = 0; i < rig->runner->graphs.n_decode; i++) {
		const struct descriptor *d = &rig->runner->graphs.descriptors[i];

		assert_int_equal(d->tokens, d->rows * d->query_len);
		assert_in_range(d->tokens, 1, TOKENS);
	}
	for (uint32_t n = 1; n <= ROWS; n += 3)
		choices_run_many(rig, n, 24);
	run_own_loop(rig);
	assert_in_range(n_choices, 1, CHOICES_MAX);
	for (uint32_t i = 0; i < n_choices; i++) {
		const struct choice *c = &choices[i];

		if (c->descriptor.query_len) {
			assert_int_equal(c->shape.tokens, c->shape.rows * c->descriptor.query_len);
			assert_true(c->shape.past_prompt);
			n_decodes++;
		} else if (c->shape.tokens % Q) {
			n_mixed++;
		}
	}
	assert_true(n_mixed > 0 && n_decodes > 0);
}

static void test_passes_of_the_draft_run_in_graphs(void **state)
{
	struct rig *rig = *state;
	uint64_t before;

	before = n_eager(rig);
	for (uint32_t n = 1; n <= ROWS; n += 5)
		choices_run_many(rig, n, 24);
	assert_int_equal(n_eager(rig), before);
	assert_true(choices_count(&rig->speculator->prefill.graphs, GRAPH_FULL, Q) > 0);
	assert_true(choices_count(&rig->speculator->decode.graphs, GRAPH_FULL, 1) > 0);
}

/* Sequences whose prompt a client's own loop computed have no drafts. */
static void decode_together(struct rig *rig, uint32_t n)
{
	int32_t last = '\n';

	choices_settle(rig);
	n_choices = 0;
	rig_gate_close(rig);
	memset(rig->results, 0, sizeof(rig->results));
	for (uint32_t i = 0; i < n; i++)
		rig_submit(&rig->client,
			rig_ask(&rig->client, i, i + 1, &last, 1, 24, MIMEO_GENERATE_IGNORE_EOS));
	rig_gate_open(rig);
	for (uint32_t i = 0; i < n; i++) {
		rig_wait(&rig->client, rig->results, i);
		assert_int_equal(rig->results[i].n_generated, 24);
	}
	choices_settle(rig);
}

/* As many rows as there can be, with few and with many drafts a step. */
static void test_rows_without_drafts_decode_by_one_in_full_graphs(void **state)
{
	static const uint32_t drafts[] = {1, 4, 8};

	for (int i = 0; i < 3; i++) {
		struct rig rig;

		choices_open(&rig, &(struct rig_options){
			.mode = GRAPH_FULL_AND_PIECEWISE, .n_drafts = drafts[i]});
		rig_open_histories(&rig.client, ROWS, "count 4 3");
		decode_together(&rig, ROWS);
		assert_true(choices_count(&rig.runner->graphs, GRAPH_FULL, 1) >= 23);
		assert_int_equal(choices_count(&rig.runner->graphs, GRAPH_FULL, 1 + drafts[i]), 0);
		for (uint32_t c = 0; c < n_choices; c++) {
			/* The prompts' last tokens are not decodes; no pass of the draft runs. */
			assert_ptr_equal(choices[c].set, &rig.runner->graphs);
			if (choices[c].shape.past_prompt)
				assert_int_equal(choices[c].descriptor.query_len, 1);
		}
		rig_close_histories(&rig.client, ROWS);
		rig_close(&rig);
	}
}

/* Where mixed batches run full, of as many rows as there can be. */
static void test_full_graphs_of_mixed_batches_hold_all_rows(void **state)
{
	struct rig *rig = *state;

	assert_int_equal(rig->runner->options.mode.resolved, GRAPH_FULL);
	rig_open_histories(&rig->client, ROWS, "count 4 3");
	decode_together(rig, ROWS);
	for (uint32_t c = 0; c < n_choices; c++)
		assert_int_equal(choices[c].descriptor.mode, GRAPH_FULL);
	rig_close_histories(&rig->client, ROWS);
}

/* The target's attention takes any batch in a full graph, the draft's only decodes. */
static void test_draft_whose_attention_takes_less_is_lowered(void **state)
{
	struct rig *rig = *state;
	struct engine_model_facts facts;

	assert_int_equal(rig->runner->options.mode.resolved, GRAPH_FULL);
	assert_int_equal(rig->speculator->prefill.graphs.mode, GRAPH_FULL_AND_PIECEWISE);
	choices_run_many(rig, 3, 60);
	engine_model_facts(rig->engine, 0, &facts);
	printf("# %.2f tokens a verification\n",
		(double)facts.speculation.n_tokens / (double)facts.speculation.n_rows);
	assert_true(facts.speculation.n_tokens > 3 * facts.speculation.n_rows);
}

static void test_lazily_captured_model_drafts_in_graphs(void **state)
{
	struct rig *rig = *state;
	uint64_t before;

	choices_run_many(rig, 3, 40);
	before = n_eager(rig);
	choices_run_many(rig, 3, 40);
	choices_run_many(rig, 3, 40);
	assert_int_equal(n_eager(rig), before);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_draft_decodes_are_never_piecewise),
		CHOICES_TEST(test_prompt_tails_take_no_decode_graphs,
			.mode = GRAPH_FULL_AND_PIECEWISE),
		CHOICES_TEST(test_prompt_of_a_verifications_length_beside_one_takes_no_decode_graph,
			.mode = GRAPH_FULL_AND_PIECEWISE),
		CHOICES_TEST(test_decode_graphs_carry_whole_verifications,
			.mode = GRAPH_FULL_AND_PIECEWISE, .n_capture_sizes = 5,
			.capture_sizes = (const uint32_t[]){3, 7, 12, 33, TOKENS}),
		CHOICES_TEST(test_passes_of_the_draft_run_in_graphs,
			.mode = GRAPH_FULL_AND_PIECEWISE),
		cmocka_unit_test(test_rows_without_drafts_decode_by_one_in_full_graphs),
		CHOICES_TEST(test_full_graphs_of_mixed_batches_hold_all_rows,
			.mode = GRAPH_FULL, .attention = "flex", .n_drafts = 8),
		CHOICES_TEST(test_draft_whose_attention_takes_less_is_lowered,
			.mode = GRAPH_FULL, .attention = "flex"),
		CHOICES_TEST(test_lazily_captured_model_drafts_in_graphs,
			.mode = GRAPH_FULL_AND_PIECEWISE, .lazy_capture = true),
	};

	return cmocka_run_group_tests_name("engine speculation's graphs", tests, NULL, NULL);
}
