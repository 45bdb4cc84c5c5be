/* SPDX-License-Identifier: MIT */
/*
 * Pages of layers with a window: those that have left it are given back, and tokens are what they are if all pages are
 * kept. A page holds 16 tokens of one set of layers (attention/kv_sets.h). tinycalc has 5 layers: with full_every 2
 * there are 2 sets of layers without a window, with 5 one of these and 4 with it, with 0 all layers have one.
 */
#include "tests/daemon/traffic.h"

#define WINDOW 40u

struct division {
	uint32_t full_every, n_sets, n_full;
};
static const struct division divisions[] = {{0, 1, 0}, {2, 3, 2}, {5, 5, 1}};
#define N_DIVISIONS (sizeof(divisions) / sizeof(divisions[0]))

static uint32_t pages_used(struct rig *rig)
{
	return rig->runner->options.kv_pages - rig_pages_free(rig, 0);
}

/* ---- tokens ---- */

static void test_load_gives_the_tokens_of_kept_pages_in_every_mode(void **state)
{
	static const struct {
		enum graph_mode mode;
		const char *attention;
		uint32_t chunk, ladder, preempt_every;
		enum engine_prefix_sharing sharing;
	} cases[] = {
		{GRAPH_NONE, "paged", 64, 0, 0, ENGINE_PREFIX_NONE},
		{GRAPH_PIECEWISE, "paged", 7, 1, 0, ENGINE_PREFIX_ALL},
		{GRAPH_FULL_AND_PIECEWISE, "paged", 64, 0, 0, ENGINE_PREFIX_ALL},
		{GRAPH_FULL_AND_PIECEWISE, "paged", 64, 2, 5, ENGINE_PREFIX_ALL},
		{GRAPH_FULL, "flex", 64, 0, 0, ENGINE_PREFIX_ALL},
	};

	for (size_t d = 0; d < N_DIVISIONS; d++) {
		traffic_make_by(&(struct rig_options){.mode = GRAPH_NONE, .window = WINDOW,
			.full_every = divisions[d].full_every, .one_set = true});
		for (uint32_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
			traffic_run(&(struct rig_options){.mode = cases[i].mode, .attention = cases[i].attention,
					.window = WINDOW, .full_every = divisions[d].full_every,
					.preempt_every = cases[i].preempt_every, .prefix_sharing = cases[i].sharing},
				cases[i].mode, &traffic_ladders[cases[i].ladder], cases[i].chunk, i);
	}
}

/* ---- memory ---- */

/* The most of all the times that it was looked at until the request has ended. */
static uint32_t most_pages_used(struct rig *rig, uint32_t index)
{
	uint32_t most = 0, n;

	memset(&rig->results[index], 0, sizeof(rig->results[index]));
	while (!rig->results[index].done) {
		rig_poll(&rig->client, rig->results);
		n = pages_used(rig);
		most = n > most ? n : most;
	}
	return most;
}

static void test_long_request_holds_pages_of_its_window_alone(void **state)
{
	for (size_t d = 0; d < N_DIVISIONS; d++) {
		const struct division *division = &divisions[d];
		/* the window and the slack before it, which begin and end within a page, and the last rows in flight */
		const uint32_t seen = (WINDOW + KV_WINDOW_SLACK + 2) / 16 + 2, all = 1600 / 16;
		int32_t tokens[1500];
		struct rig_request request;
		struct rig rig;

		rig_open_client(&rig, &(struct rig_options){.window = WINDOW, .full_every = division->full_every,
			.max_seq_len = 2048, .kv_pages = 1024});
		assert_int_equal(rig.runner->options.sets.n, division->n_sets);
		assert_int_equal(rig.runner->options.sets.n_full, division->n_full);
		rig_nonsense(tokens, 1500, 7);
		rig_ok(&rig.client, 0, RING_OP_OPEN, 1, 0);
		request = rig_ask(&rig.client, 1, 1, tokens, 1500, 100, MIMEO_GENERATE_IGNORE_EOS);
		rig_submit(&rig.client, request);
		assert_in_range(most_pages_used(&rig, 1), 1,
			kv_pages_in_all(kv_cache_config(rig.runner->kv), 1600, false));
		assert_int_equal(rig.results[1].status, 0);
		assert_int_equal(rig.results[1].n_generated, 100);
		assert_in_range(pages_used(&rig), division->n_full * (all - 1),
			division->n_full * all + (division->n_sets - division->n_full) * seen);
		rig_ok(&rig.client, 0, RING_OP_CLOSE, 1, 0);
		rig_close(&rig);
	}
}

#define LONG 131072u

/* In a cache of 512 tokens. */
static void test_request_of_128k_tokens_fits_the_pages_of_its_window(void **state)
{
	struct rig rig;
	struct rig_request request;
	int32_t *tokens = calloc(LONG, sizeof(*tokens));

	assert_non_null(tokens);
	for (uint32_t i = 0; i < LONG; i++)
		tokens[i] = (int32_t)(3 + i % 190);
	rig_open_client(&rig, &(struct rig_options){.model = rig_source("tests/data/checkpoints/mistral-window"),
		.max_seq_len = LONG, .kv_pages = 32, .max_batch_tokens = 64, .max_requests = 2});
	assert_int_equal(rig.runner->options.sets.n_full, 0);
	request = rig_ask(&rig.client, 0, 0, tokens, LONG - 16, 16, MIMEO_GENERATE_IGNORE_EOS);
	assert_int_equal(rig_must(&rig.client, request).n_generated, 16);
	rig_close(&rig);
	free(tokens);
}

/* Behind a history that was longer than all pages. */
static void test_step_behind_a_long_history_needs_the_pages_of_its_window(void **state)
{
	const struct msg_step msg = {.n_rows = 1, .outputs = MIMEO_STEP_TOKENS};
	const struct msg_row row = {1, 1};
	const int32_t token = 70;
	int32_t tokens[1500];
	struct rig rig;

	rig_open_client(&rig, &(struct rig_options){.window = WINDOW, .max_seq_len = 2048, .kv_pages = 32});
	rig_nonsense(tokens, 1500, 7);
	rig_ok(&rig.client, 0, RING_OP_OPEN, 1, 0);
	rig_must(&rig.client, rig_ask(&rig.client, 1, 1, tokens, 1500, 4, MIMEO_GENERATE_IGNORE_EOS));
	for (uint32_t i = 0; i < 40; i++)
		rig_must(&rig.client, rig_step(&rig.client, 2, &msg, &row, &token));
	rig_ok(&rig.client, 0, RING_OP_CLOSE, 1, 0);
	rig_assert_all_free(&rig);
	rig_close(&rig);
}

/* Each first token is written to a page of each set that all share; the lane is full, so the copies wait. */
static void test_forks_that_start_together_copy_a_page_of_each_set(void **state)
{
	enum { N = 8 };
	const struct msg_step msg = {.n_rows = N - 1, .outputs = MIMEO_STEP_TOKENS};
	struct msg_row rows[N - 1];
	int32_t tokens[N - 1];
	struct rig_request endless, step;
	struct rig rig;

	rig_open_client(&rig, &(struct rig_options){.window = WINDOW, .full_every = 2, .max_requests = N});
	assert_int_equal(rig.runner->options.sets.n, 3);
	rig_ok(&rig.client, 0, RING_OP_OPEN, 1, 0);
	rig_must(&rig.client, rig_ask_text(&rig.client, 0, 1, "9+8="));
	for (uint32_t i = 0; i < N - 1; i++) {
		rig_ok(&rig.client, 0, RING_OP_FORK, 1, 2 + i);
		rows[i] = (struct msg_row){2 + i, 1};
		tokens[i] = 70;
	}
	rig_gate_close(&rig);
	endless = rig_endless(&rig.client, 0, 0, 40);
	rig_submit(&rig.client, endless);
	RIG_AWAIT(rig.engine->lane.n_inflight == LANE_STEPS && rig.engine->lane.idle.sleeping);
	step = rig_step(&rig.client, 1, &msg, rows, tokens);
	rig_submit(&rig.client, step);
	RIG_AWAIT(engine_stats(rig.engine)->n_slots_free == 0 && rig.engine->lane.idle.sleeping);
	assert_int_equal(rig.runner->slots.n_copies, 3 * (N - 1));
	rig_gate_open(&rig);
	rig_wait(&rig.client, rig.results, 1);
	assert_int_equal(rig.results[1].status, 0);
	rig_wait(&rig.client, rig.results, 0);
	for (uint32_t i = 0; i < N; i++)
		rig_ok(&rig.client, 0, RING_OP_CLOSE, 1 + i, 0);
	rig_assert_all_free(&rig);
	rig_close(&rig);
}

/* ---- histories: what a fork, a cut and a prefix have of the window ---- */

#define LENGTH 700u
#define CUT 300u /* so far back that its window's pages were given back */
#define MORE 20u

static int32_t history[LENGTH];

static void open_history(struct rig *rig, const struct division *division, bool one_set,
	enum engine_prefix_sharing sharing)
{
	rig_open_client(rig, &(struct rig_options){.window = WINDOW, .full_every = division->full_every,
		.one_set = one_set, .prefix_sharing = sharing, .max_seq_len = 1024, .kv_pages = 1024});
	rig_nonsense(history, LENGTH, 3);
}

/* Append a token to the sequence, and take MORE that follow. */
static void go_on(struct rig *rig, uint32_t sequence, int32_t token, int32_t *ret)
{
	struct rig_request request =
		rig_ask(&rig->client, 9, sequence, &token, 1, MORE, MIMEO_GENERATE_IGNORE_EOS);

	assert_int_equal(rig_must(&rig->client, request).n_generated, MORE);
	memcpy(ret, rig_tokens(&rig->client, &request), MORE * sizeof(*ret));
}

/* What follows a history; before that, a fork of it, the fork cut by a little, and by much. */
static void run_histories(const struct division *division, bool one_set, int32_t ret[4][MORE])
{
	struct rig rig;
	struct rig_request request;

	open_history(&rig, division, one_set, ENGINE_PREFIX_NONE);
	rig_ok(&rig.client, 0, RING_OP_OPEN, 1, 0);
	request = rig_ask(&rig.client, 1, 1, history, LENGTH, MORE, MIMEO_GENERATE_IGNORE_EOS);
	rig_must(&rig.client, request);
	rig_ok(&rig.client, 0, RING_OP_FORK, 1, 2);
	go_on(&rig, 2, 70, ret[1]);
	rig_ok(&rig.client, 0, RING_OP_TRUNCATE, 2, LENGTH - 30);
	go_on(&rig, 2, 71, ret[2]);
	rig_ok(&rig.client, 0, RING_OP_TRUNCATE, 2, CUT);
	go_on(&rig, 2, 72, ret[3]);
	go_on(&rig, 1, 70, ret[0]);
	rig_ok(&rig.client, 0, RING_OP_CLOSE, 1, 0);
	rig_ok(&rig.client, 0, RING_OP_CLOSE, 2, 0);
	rig_assert_all_free(&rig);
	rig_close(&rig);
}

static void test_forks_and_cuts_go_on_as_with_kept_pages(void **state)
{
	for (size_t d = 0; d < N_DIVISIONS; d++) {
		int32_t kept[4][MORE], given[4][MORE];

		run_histories(&divisions[d], true, kept);
		run_histories(&divisions[d], false, given);
		assert_memory_equal(given, kept, sizeof(kept));
		assert_memory_equal(given[0], given[1], sizeof(given[0])); /* the parent, as its fork before */
	}
}

static void test_prefix_of_another_request_has_its_window(void **state)
{
	for (size_t d = 0; d < N_DIVISIONS; d++) {
		int32_t first[MORE];
		struct rig_request request;
		struct rig_result result;
		struct rig rig;

		open_history(&rig, &divisions[d], false, ENGINE_PREFIX_ALL);
		for (uint32_t i = 0; i < 2; i++) {
			request = rig_ask(&rig.client, i, 0, history, LENGTH, MORE, MIMEO_GENERATE_IGNORE_EOS);
			result = rig_must(&rig.client, request);
			assert_int_equal(result.n_cached, i ? (LENGTH - 1) / 16 * 16 : 0);
			if (i)
				assert_memory_equal(rig_tokens(&rig.client, &request), first, sizeof(first));
			else
				memcpy(first, rig_tokens(&rig.client, &request), sizeof(first));
		}
		rig_close(&rig);
	}
}

/* Keys of such a mask cannot be computed again, so a cut has to find them. */
static void test_fixed_sequence_keeps_the_pages_of_its_window(void **state)
{
	const struct mimeo_mask mask = {.kind = MIMEO_MASK_WINDOW, .window = 30};
	const struct msg_step msg = {.n_rows = 1, .outputs = MIMEO_STEP_TOKENS, .mask = mask};
	const struct msg_row row = {1, LENGTH};
	struct rig rig;

	rig_open_client(&rig, &(struct rig_options){.window = WINDOW, .full_every = 2, .max_seq_len = 1024,
		.kv_pages = 1024, .attention = "flex"});
	rig_nonsense(history, LENGTH, 3);
	rig_ok(&rig.client, 0, RING_OP_OPEN, 1, 0);
	rig_must(&rig.client, rig_step(&rig.client, 1, &msg, &row, history));
	assert_int_equal(pages_used(&rig), 3 * ((LENGTH + 15) / 16));
	rig_ok(&rig.client, 0, RING_OP_TRUNCATE, 1, CUT);
	assert_int_equal(pages_used(&rig), 3 * ((CUT + 15) / 16));
	rig_ok(&rig.client, 0, RING_OP_CLOSE, 1, 0);
	rig_close(&rig);
}

/* ---- short of pages ---- */

/* More long prompts than there are pages for at a time: they wait for each other's, or are preempted. */
static void test_long_prompts_that_share_too_few_pages_all_end(void **state)
{
	enum { N = 6 };

	for (size_t d = 0; d < N_DIVISIONS; d++) {
		int32_t alone[N][MORE], tokens[N][400];
		struct rig_request requests[N];
		struct rig rig;

		rig_open_client(&rig, &(struct rig_options){.window = WINDOW, .full_every = divisions[d].full_every,
			.kv_pages = divisions[d].n_full * 40 + (divisions[d].n_sets - divisions[d].n_full) * 22});
		for (uint32_t i = 0; i < N; i++) {
			rig_nonsense(tokens[i], 400, i);
			requests[i] = rig_ask(&rig.client, i, 0, tokens[i], 400, MORE, MIMEO_GENERATE_IGNORE_EOS);
			rig_must(&rig.client, requests[i]);
			memcpy(alone[i], rig_tokens(&rig.client, &requests[i]), sizeof(alone[i]));
		}
		for (uint32_t i = 0; i < N; i++) {
			requests[i] = rig_ask(&rig.client, i, 0, tokens[i], 400, MORE, MIMEO_GENERATE_IGNORE_EOS);
			rig_submit(&rig.client, requests[i]);
		}
		for (uint32_t i = 0; i < N; i++) {
			rig_wait(&rig.client, rig.results, i);
			assert_int_equal(rig.results[i].n_generated, MORE);
			if (!test_on_cuda())
				assert_memory_equal(rig_tokens(&rig.client, &requests[i]), alone[i], sizeof(alone[i]));
		}
		rig_assert_all_free(&rig);
		rig_close(&rig);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_load_gives_the_tokens_of_kept_pages_in_every_mode),
		cmocka_unit_test(test_long_request_holds_pages_of_its_window_alone),
		cmocka_unit_test(test_request_of_128k_tokens_fits_the_pages_of_its_window),
		cmocka_unit_test(test_step_behind_a_long_history_needs_the_pages_of_its_window),
		cmocka_unit_test(test_forks_that_start_together_copy_a_page_of_each_set),
		cmocka_unit_test(test_forks_and_cuts_go_on_as_with_kept_pages),
		cmocka_unit_test(test_prefix_of_another_request_has_its_window),
		cmocka_unit_test(test_fixed_sequence_keeps_the_pages_of_its_window),
		cmocka_unit_test(test_long_prompts_that_share_too_few_pages_all_end),
	};

	static const struct test_cpu_only only[] = {
		{"test_forks_and_cuts", "what is computed again depends on the size of its chunks"},
	};

	return TEST_RUN_GROUP("engine windows", tests, only, NULL, NULL);
}
