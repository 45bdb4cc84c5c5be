/* SPDX-License-Identifier: MIT */
/* Which graph a step takes, how that is counted, and when graphs and pages come. */
#include "tests/daemon/rig.h"

#include <errno.h>

#include "tests/device_memory.h"

#define MAX_ROWS 16

/* ---- dispatch ---- */

static uint32_t n_graphs(struct rig *rig)
{
	struct engine_graph_facts facts;
	uint32_t n = 0;

	while (engine_graph_facts(rig->engine, 0, n, &facts))
		n++;
	return n;
}

static struct engine_graph_facts graph(struct rig *rig, uint32_t rows)
{
	struct engine_graph_facts facts;

	for (uint32_t i = 0; engine_graph_facts(rig->engine, 0, i, &facts); i++)
		if (facts.rows == rows && facts.query_len)
			return facts;
	fail_msg("no graph of %u rows", rows);
	return facts;
}

static uint64_t n_eager(const struct engine_stats *stats)
{
	uint64_t n = 0;

	for (unsigned reason = 0; reason < N_EAGER_REASONS; reason++)
		n += stats->n_eager[reason];
	return n;
}

/* n decodes replay the graph of `rows` rows, or none if rows is 0. */
static void assert_takes(struct rig *rig, struct rig_client *client, uint32_t n, uint32_t rows)
{
	const struct engine_stats *stats = engine_stats(rig->engine);
	uint64_t replays = stats->n_replays, padded = stats->n_padded_rows;
	uint64_t wide = stats->n_eager[EAGER_TOO_WIDE], eager = n_eager(stats);
	struct engine_graph_facts before = {0}, after;

	if (rows)
		before = graph(rig, rows);
	rig_must(client, rig_decode(client, n, MIMEO_STEP_TOKENS));
	assert_int_equal(stats->n_replays - replays, rows != 0);
	assert_int_equal(stats->n_eager[EAGER_TOO_WIDE] - wide, rows == 0);
	assert_int_equal(n_eager(stats) - eager, rows == 0);
	if (!rows)
		return;
	after = graph(rig, rows);
	assert_int_equal(after.n_replays - before.n_replays, 1);
	assert_int_equal(after.n_padded_rows - before.n_padded_rows, rows - n);
	assert_int_equal(stats->n_padded_rows - padded, rows - n);
	assert_int_equal(after.n_shared_replays, 0);
}

static void test_each_number_of_decodes_takes_the_smallest_graph_that_holds_it(void **state)
{
	struct rig *rig = *state;
	static const uint32_t rows[MAX_ROWS + 1] = {
		0, 1, 2, 4, 4, 8, 8, 8, 8, 16, 16, 16, 16, 16, 16, 16, 16};

	/* 1, 2, 4, 8, 16 for decodes; 1, 2, 4, 8, 16, 24 ... 64 in pieces */
	assert_int_equal(n_graphs(rig), 5 + 11);
	rig_open_histories(&rig->client, MAX_ROWS, "c");
	for (uint32_t n = 1; n <= MAX_ROWS; n++)
		assert_takes(rig, &rig->client, n, rows[n]);
	for (uint32_t n = MAX_ROWS; n > 1; n -= 5)
		assert_takes(rig, &rig->client, n, rows[n]);
}

static void test_each_graph_is_captured_once_however_many_clients_come_and_go(void **state)
{
	struct rig *rig = *state;
	struct engine_graph_facts facts;

	for (uint32_t i = 0; i < 5; i++) {
		struct rig_client client;

		rig_attach(rig, &client, 8);
		rig_assert_answer(&client, 0, "9+8=", "17");
		rig_detach(&client);
	}
	for (uint32_t i = 0; engine_graph_facts(rig->engine, 0, i, &facts); i++) {
		assert_int_equal(facts.n_captures, 1);
		assert_true(facts.n_nodes > 0);
		assert_string_equal(facts.mode, facts.query_len ? "FULL" : "PIECEWISE");
		assert_int_equal(facts.n_segments,
			facts.query_len ? 1 : rig->engine->runners.all[0]->model->config.n_layers + 1);
	}
	/* "17" and the end token; one more if the end was seen late. */
	assert_in_range(graph(rig, 1).n_replays, 5 * 2, 5 * 3);
}

static void test_batches_wider_than_a_list_of_sizes_run_eager_and_are_counted(void **state)
{
	struct rig *rig = *state;

	assert_int_equal(n_graphs(rig), 3 + 3);
	rig_open_histories(&rig->client, MAX_ROWS, "c");
	for (uint32_t n = 1; n <= 9; n++)
		assert_takes(rig, &rig->client, n, n == 1 ? 1 : n <= 3 ? 3 : n <= 7 ? 7 : 0);
	assert_takes(rig, &rig->client, MAX_ROWS, 0);
}

static void test_without_graphs_all_steps_are_counted_as_eager_by_mode(void **state)
{
	struct rig *rig = *state;

	assert_int_equal(n_graphs(rig), 0);
	rig_assert_answer(&rig->client, 0, "9+8=", "17");
	assert_int_equal(engine_stats(rig->engine)->n_replays, 0);
	assert_int_equal(
		engine_stats(rig->engine)->n_eager[EAGER_MODE], engine_stats(rig->engine)->n_steps);
}

static void test_prompt_whose_last_chunk_is_one_token_replays_no_decode_graph(void **state)
{
	struct rig *rig = *state;
	struct engine_graph_facts facts;
	int32_t tokens[64];

	for (int i = 0; i < 64; i++)
		tokens[i] = 'a';
	for (uint32_t tail = 0; tail <= 8; tail++) {
		uint32_t n = tail ? 16 + tail : 1;
		struct msg_row row = {1, n};
		struct msg_step msg = {.n_rows = 1, .outputs = MIMEO_STEP_TOKENS};

		rig_must(&rig->client, rig_ask(&rig->client, 0, 0, tokens, n, 1, 0));
		rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
		/* Also behind a history, as a second turn has it. */
		for (uint32_t turn = 0; turn < 2; turn++) {
			rig_must(&rig->client, rig_ask(&rig->client, 0, 1, tokens, n, 1, 0));
			if (n == 1)
				continue;
			rig_must(&rig->client, rig_step(&rig->client, 0, &msg, &row, tokens));
		}
		rig_ok(&rig->client, 0, RING_OP_CLOSE, 1, 0);
	}
	for (uint32_t i = 0; engine_graph_facts(rig->engine, 0, i, &facts); i++)
		assert_true(!facts.query_len || !facts.n_replays);
	assert_int_equal(engine_stats(rig->engine)->n_replays, engine_stats(rig->engine)->n_steps);
}

static void test_first_token_of_a_step_request_is_a_prompt(void **state)
{
	struct rig *rig = *state;
	const struct engine_stats *stats;

	stats = engine_stats(rig->engine);
	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	rig_must(&rig->client, rig_decode(&rig->client, 1, MIMEO_STEP_TOKENS));
	assert_int_equal(stats->n_replays, 1);
	assert_int_equal(graph(rig, 1).n_replays, 0);
	rig_must(&rig->client, rig_decode(&rig->client, 1, MIMEO_STEP_TOKENS));
	assert_int_equal(graph(rig, 1).n_replays, 1);
}

static void test_full_with_a_backend_that_cannot_is_an_error_that_names_it(void **state)
{
	const struct mode_request request = {
		.configured = GRAPH_FULL,
		.support = attention_naive.support(&(struct attention_config){.max_decode_query = 1},
			&(uint32_t){0}),
		.backend = attention_naive.name,
		.decode_query = 1,
	};
	struct mode_resolution resolution;

	assert_int_equal(mode_resolve(&request, &resolution), -ENOTSUP);
	assert_non_null(strstr(resolution.reason, "naive"));
}

static void test_replays_among_several_processes_are_counted_as_shared(void **state)
{
	struct rig *rig = *state;
	const struct engine_stats *stats;
	struct engine_graph_facts facts;
	uint64_t n_shared = 0;
	struct rig_client *clients = rig->others;
	struct rig_request requests[2];

	stats = engine_stats(rig->engine);
	rig_other(rig, 8);
	rig_other(rig, 8);
	rig_gate_close(rig);
	for (uint32_t c = 0; c < 2; c++) {
		requests[c] = rig_ask_text(&clients[c], 0, 0, "count 4 30\n");
		rig_submit(&clients[c], requests[c]);
		rig_wait_steps(rig, 1);
	}
	rig_gate_open(rig);
	for (uint32_t c = 0; c < 2; c++)
		rig_wait(&clients[c], &rig->results[c], 0);
	assert_true(stats->n_shared_replays > 0);
	assert_true(stats->n_shared_replays <= stats->n_replays);
	for (uint32_t i = 0; engine_graph_facts(rig->engine, 0, i, &facts); i++)
		n_shared += facts.n_shared_replays;
	assert_int_equal(n_shared, stats->n_shared_replays);
	assert_true(graph(rig, 2).n_shared_replays > 0);
	assert_int_equal(graph(rig, 1).n_shared_replays, 0);
}

/* F10: what was captured under a key is found under it, and every step is counted once. */
static void test_hits_of_all_graphs_and_eager_steps_add_up_to_all_steps(void **state)
{
	static const struct rig_options each[] = {{.mode = GRAPH_NONE}, {.mode = GRAPH_PIECEWISE},
		{.mode = GRAPH_FULL_DECODE_ONLY}, {.mode = GRAPH_FULL_AND_PIECEWISE},
		{.mode = GRAPH_FULL_AND_PIECEWISE, .no_pieces = true},
		{.mode = GRAPH_FULL, .attention = "flex"}};

	for (size_t i = 0; i < sizeof(each) / sizeof(each[0]); i++) {
		uint64_t replays = 0, padded = 0, tokens = 0;
		const struct engine_stats *stats;
		struct engine_graph_facts facts;
		struct rig_client client;
		struct rig rig;

		if (each[i].attention && test_on_cuda())
			continue; /* no backend there is ALWAYS */
		rig_open(&rig, &each[i]);
		stats = engine_stats(rig.engine);
		rig_attach(&rig, &client, 8);
		rig_assert_answer(&client, 0, "sort 52 17 33 8 91\n", "8 17 33 52 91");
		rig_assert_answer(&client, 0, "9+8=", "17");
		rig_detach(&client);
		for (uint32_t k = 0; engine_graph_facts(rig.engine, 0, k, &facts); k++) {
			replays += facts.n_replays;
			padded += facts.n_padded_rows;
			tokens += facts.n_replays * facts.tokens;
		}
		assert_int_equal(stats->n_replays, replays);
		assert_int_equal(stats->n_replays + n_eager(stats), stats->n_steps);
		assert_int_equal(stats->n_padded_rows, padded);
		assert_true(!replays == (each[i].mode == GRAPH_NONE));
		if (!n_eager(stats))
			assert_int_equal(tokens - padded, stats->n_tokens_in);
		else
			assert_true(each[i].mode == GRAPH_NONE || each[i].no_pieces ||
				each[i].mode == GRAPH_FULL_DECODE_ONLY);
		rig_close(&rig);
	}
}

/* ---- phases ---- */

static struct {
	uint32_t n_captures, n_maps, n_captures_before_map;
	uint32_t n_captured;
	struct descriptor captured[64]; /* in their order */
	uint32_t pages_before, pages_at_capture, pages_asked;
	uint64_t graph_bytes;
} phases;

int __real_graph_set_capture(struct graph_set *set, struct breakable_runner *runner,
	struct stream *stream, graph_progress *progress, void *userdata);
int __wrap_graph_set_capture(struct graph_set *set, struct breakable_runner *runner,
	struct stream *stream, graph_progress *progress, void *userdata);
int __real_capture_now(
	struct graph_entry *entry, struct breakable_runner *runner, struct stream *stream);
int __wrap_capture_now(
	struct graph_entry *entry, struct breakable_runner *runner, struct stream *stream);
int __real_kv_cache_map(struct kv_cache *kv, uint32_t n_pages);
int __wrap_kv_cache_map(struct kv_cache *kv, uint32_t n_pages);

int __wrap_graph_set_capture(struct graph_set *set, struct breakable_runner *runner,
	struct stream *stream, graph_progress *progress, void *userdata)
{
	int rc = __real_graph_set_capture(set, runner, stream, progress, userdata);

	phases.n_captures++;
	phases.pages_at_capture = kv_pages_total(runner->context->kv);
	for (uint32_t i = 0; i < set->n; i++)
		phases.graph_bytes += set->entries[i].bytes;
	return rc;
}

int __wrap_capture_now(
	struct graph_entry *entry, struct breakable_runner *runner, struct stream *stream)
{
	if (phases.n_captured < sizeof(phases.captured) / sizeof(phases.captured[0]))
		phases.captured[phases.n_captured++] = entry->descriptor;
	return __real_capture_now(entry, runner, stream);
}

int __wrap_kv_cache_map(struct kv_cache *kv, uint32_t n_pages)
{
	phases.n_maps++;
	phases.n_captures_before_map = phases.n_captures;
	phases.pages_before = kv_pages_total(kv);
	phases.pages_asked = n_pages;
	return __real_kv_cache_map(kv, n_pages);
}

static int setup_phases(void **state)
{
	memset(&phases, 0, sizeof(phases));
	return rig_setup_engine(state);
}

/* F14: so that what is left for pages is known when they are mapped. */
static void test_pages_are_mapped_when_all_graphs_have_taken_their_memory(void **state)
{
	struct rig *rig = *state;
	struct engine_model_facts model;
	struct engine_graph_facts facts;
	uint64_t bytes = 0;

	assert_int_equal(phases.n_captures, 1);
	assert_int_equal(phases.n_maps, 1);
	assert_int_equal(phases.n_captures_before_map, 1);
	/* A batch's worth, for the warm-up; then all, and the null page. */
	assert_int_equal(phases.pages_at_capture, 64 / 16);
	assert_int_equal(phases.pages_before, 64 / 16);
	assert_int_equal(phases.pages_asked, 512 + 1);
	assert_int_equal(rig_pages_free(rig, 0), 512);
	for (uint32_t i = 0; engine_graph_facts(rig->engine, 0, i, &facts); i++) {
		assert_string_equal(facts.state, "ready");
		assert_true(test_on_cuda() || facts.bytes > 0);
		bytes += facts.bytes;
	}
	engine_model_facts(rig->engine, 0, &model);
	assert_int_equal(model.graph_bytes, bytes);
	assert_int_equal(phases.graph_bytes, bytes);
	assert_int_equal(model.n_ready, model.n_graphs);
}

static void test_pieces_are_captured_before_full_graphs_and_large_ones_before_small(void **state)
{
	struct rig *rig = *state;

	assert_int_equal(phases.n_captured, n_graphs(rig));
	for (uint32_t i = 1; i < phases.n_captured; i++) {
		const struct descriptor *a = &phases.captured[i - 1], *b = &phases.captured[i];

		if (a->mode == b->mode)
			assert_true(a->tokens > b->tokens);
		else
			assert_true(a->mode == GRAPH_PIECEWISE && b->mode == GRAPH_FULL);
	}
	assert_int_equal(phases.captured[0].mode, GRAPH_PIECEWISE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIG_FULL_TEST(test_each_number_of_decodes_takes_the_smallest_graph_that_holds_it),
		RIG_ENGINE_TEST(test_each_graph_is_captured_once_however_many_clients_come_and_go,
			.mode = GRAPH_FULL_AND_PIECEWISE),
		RIG_TEST(test_batches_wider_than_a_list_of_sizes_run_eager_and_are_counted,
			.mode = GRAPH_FULL_AND_PIECEWISE, .n_capture_sizes = 4,
			.capture_sizes = (const uint32_t[]){7, 1, 3, 3}),
		RIG_TEST(test_without_graphs_all_steps_are_counted_as_eager_by_mode,
			.mode = GRAPH_NONE),
		RIG_TEST(test_prompt_whose_last_chunk_is_one_token_replays_no_decode_graph,
			.mode = GRAPH_FULL_AND_PIECEWISE, .max_batch_tokens = 8),
		RIG_FULL_TEST(test_first_token_of_a_step_request_is_a_prompt),
		cmocka_unit_test(test_full_with_a_backend_that_cannot_is_an_error_that_names_it),
		RIG_ENGINE_TEST(test_replays_among_several_processes_are_counted_as_shared,
			.mode = GRAPH_FULL_AND_PIECEWISE),
		cmocka_unit_test(test_hits_of_all_graphs_and_eager_steps_add_up_to_all_steps),
		cmocka_unit_test_prestate_setup_teardown(
			test_pieces_are_captured_before_full_graphs_and_large_ones_before_small,
			setup_phases, rig_teardown, &(struct rig_options){.mode = GRAPH_FULL_AND_PIECEWISE}),
		cmocka_unit_test_prestate_setup_teardown(
			test_pages_are_mapped_when_all_graphs_have_taken_their_memory,
			setup_phases, rig_teardown, &(struct rig_options){.mode = GRAPH_FULL_AND_PIECEWISE}),
	};

	return cmocka_run_group_tests_name("engine graphs", tests, NULL, NULL);
}
