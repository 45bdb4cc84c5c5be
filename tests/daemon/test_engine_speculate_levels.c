/* SPDX-License-Identifier: MIT */
/*
 * What graphs a draft's two managers get: of the target's mode as much as the draft's own attention can
 * take. The resolution of modes is tested in test_mode.c.
 */
#include "tests/daemon/rig.h"

enum { K = 4, Q = 1 + K };

static void close_world(struct rig *rig)
{
	rig_assert_answer(&rig->client, 0, "9+8=", "17");
	rig_close(rig);
}

/* By the target's resolved mode; prefill by the draft's level. */
struct expectation {
	enum graph_mode target;
	bool no_pieces;
	enum graph_mode prefill[4];
};

static const struct expectation table[] = {
	{GRAPH_NONE, false, {GRAPH_NONE, GRAPH_NONE, GRAPH_NONE, GRAPH_NONE}},
	{GRAPH_PIECEWISE, false, {GRAPH_NONE, GRAPH_PIECEWISE, GRAPH_PIECEWISE, GRAPH_PIECEWISE}},
	{GRAPH_FULL, false, {GRAPH_NONE, GRAPH_PIECEWISE, GRAPH_FULL_AND_PIECEWISE, GRAPH_FULL}},
	{GRAPH_FULL, true, {GRAPH_NONE, GRAPH_NONE, GRAPH_FULL_DECODE_ONLY, GRAPH_FULL}},
	{GRAPH_FULL_DECODE_ONLY, false, {GRAPH_NONE, GRAPH_PIECEWISE, GRAPH_FULL_DECODE_ONLY,
						GRAPH_FULL_DECODE_ONLY}},
	{GRAPH_FULL_DECODE_ONLY, true, {GRAPH_NONE, GRAPH_NONE, GRAPH_FULL_DECODE_ONLY,
					       GRAPH_FULL_DECODE_ONLY}},
	{GRAPH_FULL_AND_PIECEWISE, false, {GRAPH_NONE, GRAPH_PIECEWISE, GRAPH_FULL_AND_PIECEWISE,
						  GRAPH_FULL_AND_PIECEWISE}},
};

/* Graphs of decodes of more than one token want a level that has them; never wants none at all. */
static void assert_held(const struct graph_set *set, enum attention_support level)
{
	if (level == ATTENTION_NEVER)
		assert_int_equal(set->n, 0);
	for (uint32_t i = 0; i < set->n; i++) {
		const struct descriptor *d = &set->descriptors[i];

		if (d->mode != GRAPH_FULL)
			continue;
		assert_true(d->query_len || level == ATTENTION_ALWAYS);
		assert_true(d->query_len == 1 || level >= ATTENTION_UNIFORM_BATCH);
	}
}

/* F13 and F5 of the draft */
static void test_drafts_graphs_are_what_its_own_attention_holds(void **state)
{
	static const uint32_t sizes[] = {1, 5, 16, 40};

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		const struct expectation *e = &table[i];
		bool decodes = graph_mode_decode(e->target) == GRAPH_FULL;

		for (int l = ATTENTION_NEVER; l <= ATTENTION_ALWAYS; l++) {
			const enum attention_support level = (enum attention_support)l;
			struct rig rig;

			rig_open_client(&rig, &(struct rig_options){.n_drafts = K, .mode = e->target,
				.attention = e->target == GRAPH_FULL ? "flex" : "paged",
				.no_pieces = e->no_pieces, .draft_support = &level,
				.paged = attention_find(l == ATTENTION_ALWAYS ? "flex" : "paged"),
				.capture_sizes = sizes, .n_capture_sizes = 4});
			assert_int_equal(rig.runner->options.mode.resolved, e->target);
			assert_int_equal(rig.speculator->prefill.graphs.mode, e->prefill[l]);
			assert_int_equal(rig.speculator->decode.graphs.mode,
				decodes && l != ATTENTION_NEVER ? GRAPH_FULL_DECODE_ONLY : GRAPH_NONE);
			assert_held(&rig.speculator->prefill.graphs, level);
			assert_held(&rig.speculator->decode.graphs, level);
			close_world(&rig);
		}
	}
}

/* ---- the configuration of managers ---- */

static const struct attention_backend *real_paged;
static uint32_t queries[8], n_managers;

static int note_manager(struct device *device, const struct attention_config *config,
	const struct step_inputs *inputs, struct attention_manager **ret)
{
	if (n_managers < 8)
		queries[n_managers++] = config->max_decode_query;
	return real_paged->manager_new(device, config, inputs, ret);
}

static void test_managers_know_the_longest_query_of_their_decodes(void **state)
{
	struct attention_backend paged;
	struct rig rig;

	real_paged = attention_find("paged");
	paged = *real_paged;
	paged.manager_new = note_manager;
	n_managers = 0;
	rig_open_client(&rig, &(struct rig_options){.n_drafts = K, .mode = GRAPH_FULL_AND_PIECEWISE, .paged = &paged});
	assert_int_equal(n_managers, 3);
	assert_int_equal(queries[0], Q); /* the target's */
	assert_int_equal(queries[1], Q); /* the draft's, of all tokens */
	assert_int_equal(queries[2], 1);
	close_world(&rig);
}

/* ---- the ladder ---- */

static const struct descriptor *widest_decode(const struct graph_set *set, uint32_t query_len)
{
	const struct descriptor *widest = NULL;

	for (uint32_t i = 0; i < set->n; i++) {
		const struct descriptor *d = &set->descriptors[i];

		if (d->query_len == query_len && (!widest || d->tokens > widest->tokens))
			widest = d;
	}
	assert_non_null(widest);
	return widest;
}

/* So many requests that, each with its drafts, they are past the ladder's usual end. */
static void test_default_ladder_holds_verifications_of_all_requests(void **state)
{
	enum { ROWS = 110 };
	struct rig rig;

	rig_open_client(&rig, &(struct rig_options){.n_drafts = K, .mode = GRAPH_FULL_DECODE_ONLY,
		.max_requests = ROWS, .max_batch_tokens = 2 * ROWS * Q});
	assert_int_equal(widest_decode(&rig.runner->graphs, Q)->rows, ROWS);
	assert_int_equal(widest_decode(&rig.runner->graphs, 1)->rows, ROWS);
	assert_int_equal(widest_decode(&rig.speculator->prefill.graphs, Q)->rows, ROWS);
	close_world(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_drafts_graphs_are_what_its_own_attention_holds),
		cmocka_unit_test(test_managers_know_the_longest_query_of_their_decodes),
		cmocka_unit_test(test_default_ladder_holds_verifications_of_all_requests),
	};

	return cmocka_run_group_tests_name("engine speculation's levels", tests, NULL, NULL);
}
