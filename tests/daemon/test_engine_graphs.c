/* SPDX-License-Identifier: MIT */
/*
 * Which graph a step takes, and what a padded replay touches. The second half drives the lane by
 * hand, with the engine's own inputs, graphs and KV cache, while the engine has nothing to do.
 */
#include "tests/daemon/rig.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/device_memory.h"

#define VOCAB 256
#define MAX_ROWS 16

static const struct rig_options full = {.mode = GRAPH_FULL_AND_PIECEWISE};

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

/* Open sequences 1 ... n, each with a history of two tokens. */
static void open_rows(struct rig_client *client, uint32_t n)
{
	for (uint32_t i = 1; i <= n; i++) {
		struct rig_request request;

		rig_ok(client, 0, RING_OP_OPEN, i, 0);
		request = rig_step_text(client, 0, i, "c", true);
		assert_int_equal(rig_do(client, &request).status, 0);
	}
}

/* One step of one token for each of the sequences 1 ... n: n decodes at once. */
static void decode(struct rig_client *client, uint32_t n)
{
	struct msg_step msg = {.n_rows = n, .outputs = MSG_STEP_TOKENS};
	struct msg_row rows[MAX_ROWS];
	int32_t tokens[MAX_ROWS];
	struct rig_request request;

	for (uint32_t i = 0; i < n; i++) {
		rows[i] = (struct msg_row){i + 1, 1};
		tokens[i] = 'x';
	}
	request = rig_step(client, 0, &msg, rows, tokens);
	assert_int_equal(rig_do(client, &request).status, 0);
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
	decode(client, n);
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
	static const uint32_t rows[MAX_ROWS + 1] = {
		0, 1, 2, 4, 4, 8, 8, 8, 8, 16, 16, 16, 16, 16, 16, 16, 16};
	struct rig_client client;
	struct rig rig;

	(void)state;
	rig_open(&rig, &full);
	rig_attach(&rig, &client, 8);
	/* 1, 2, 4, 8, 16 for decodes; 1, 2, 4, 8, 16, 24 ... 64 in pieces */
	assert_int_equal(n_graphs(&rig), 5 + 11);
	open_rows(&client, MAX_ROWS);
	for (uint32_t n = 1; n <= MAX_ROWS; n++)
		assert_takes(&rig, &client, n, rows[n]);
	for (uint32_t n = MAX_ROWS; n > 1; n -= 5)
		assert_takes(&rig, &client, n, rows[n]);
	rig_detach(&client);
	rig_close(&rig);
}

static void test_each_graph_is_captured_once_however_many_clients_come_and_go(void **state)
{
	struct engine_graph_facts facts;
	struct rig rig;

	(void)state;
	rig_open(&rig, &full);
	for (uint32_t i = 0; i < 5; i++) {
		struct rig_client client;

		rig_attach(&rig, &client, 8);
		rig_assert_answer(&client, 0, "9+8=", "17");
		rig_detach(&client);
	}
	for (uint32_t i = 0; engine_graph_facts(rig.engine, 0, i, &facts); i++) {
		assert_int_equal(facts.n_captures, 1);
		assert_true(facts.n_nodes > 0);
		assert_string_equal(facts.mode, facts.query_len ? "FULL" : "PIECEWISE");
		assert_int_equal(facts.n_segments,
			facts.query_len ? 1 : rig.engine->runners[0].model->config.n_layers + 1);
	}
	/* "17" and the end token; one more if the end was seen late. */
	assert_in_range(graph(&rig, 1).n_replays, 5 * 2, 5 * 3);
	rig_close(&rig);
}

static void test_batches_wider_than_a_list_of_sizes_run_eager_and_are_counted(void **state)
{
	static const uint32_t sizes[] = {7, 1, 3, 3};
	struct rig_options options = full;
	struct rig_client client;
	struct rig rig;

	(void)state;
	options.capture_sizes = sizes;
	options.n_capture_sizes = 4;
	rig_open(&rig, &options);
	rig_attach(&rig, &client, 8);
	assert_int_equal(n_graphs(&rig), 3 + 3);
	open_rows(&client, MAX_ROWS);
	for (uint32_t n = 1; n <= 9; n++)
		assert_takes(&rig, &client, n, n == 1 ? 1 : n <= 3 ? 3 : n <= 7 ? 7 : 0);
	assert_takes(&rig, &client, MAX_ROWS, 0);
	rig_detach(&client);
	rig_close(&rig);
}

static void test_without_graphs_all_steps_are_counted_as_eager_by_mode(void **state)
{
	static const struct rig_options none = {.mode = GRAPH_NONE};
	struct rig_client client;
	struct rig rig;

	(void)state;
	rig_open(&rig, &none);
	rig_attach(&rig, &client, 8);
	assert_int_equal(n_graphs(&rig), 0);
	rig_assert_answer(&client, 0, "9+8=", "17");
	assert_int_equal(engine_stats(rig.engine)->n_replays, 0);
	assert_int_equal(
		engine_stats(rig.engine)->n_eager[EAGER_MODE], engine_stats(rig.engine)->n_steps);
	rig_detach(&client);
	rig_close(&rig);
}

static void test_prompt_whose_last_chunk_is_one_token_replays_no_decode_graph(void **state)
{
	struct rig_options options = full;
	struct engine_graph_facts facts;
	struct rig_client client;
	struct rig_request request;
	int32_t tokens[64];
	struct rig rig;

	(void)state;
	options.max_batch_tokens = 8;
	rig_open(&rig, &options);
	rig_attach(&rig, &client, 8);
	for (int i = 0; i < 64; i++)
		tokens[i] = 'a';
	for (uint32_t tail = 0; tail <= 8; tail++) {
		uint32_t n = tail ? 16 + tail : 1;
		struct msg_row row = {1, n};
		struct msg_step msg = {.n_rows = 1, .outputs = MSG_STEP_TOKENS};

		request = rig_ask(&client, 0, 0, tokens, n, 1, 0);
		assert_int_equal(rig_do(&client, &request).status, 0);
		rig_ok(&client, 0, RING_OP_OPEN, 1, 0);
		/* Also behind a history, as a second turn has it. */
		for (uint32_t turn = 0; turn < 2; turn++) {
			request = rig_ask(&client, 0, 1, tokens, n, 1, 0);
			assert_int_equal(rig_do(&client, &request).status, 0);
			if (n == 1)
				continue;
			request = rig_step(&client, 0, &msg, &row, tokens);
			assert_int_equal(rig_do(&client, &request).status, 0);
		}
		rig_ok(&client, 0, RING_OP_CLOSE, 1, 0);
	}
	for (uint32_t i = 0; engine_graph_facts(rig.engine, 0, i, &facts); i++)
		assert_true(!facts.query_len || !facts.n_replays);
	assert_int_equal(engine_stats(rig.engine)->n_replays, engine_stats(rig.engine)->n_steps);
	rig_detach(&client);
	rig_close(&rig);
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

	(void)state;
	assert_int_equal(mode_resolve(&request, &resolution), -ENOTSUP);
	assert_non_null(strstr(resolution.reason, "naive"));
}

/* ---- by hand ---- */

struct hand {
	struct rig rig;
	struct runner *runner;
	struct stream *lane;
	size_t layer_bytes; /* mapped, null page counted in */
	uint8_t *canaries;  /* [n_layers, layer_bytes] */
};

static void set_up(struct hand *h)
{
	struct rig_options options = full;

	options.kv_pages = 64;
	*h = (struct hand){0};
	rig_open(&h->rig, &options);
	h->runner = &h->rig.engine->runners[0];
	h->lane = h->rig.engine->lane;
	h->layer_bytes = 65 * kv_layer_page_bytes(kv_cache_config(h->runner->kv));
	h->canaries = malloc(h->layer_bytes * h->runner->model->config.n_layers);
	assert_non_null(h->canaries);
}

static void tear_down(struct hand *h)
{
	free(h->canaries);
	rig_close(&h->rig);
}

static void fill(const struct hand *h, void *memory, uint8_t value, size_t bytes)
{
	assert_int_equal(h->rig.device->ops->fill_async(h->lane, memory, value, bytes), 0);
	assert_int_equal(h->rig.device->ops->stream_sync(h->lane), 0);
}

/* Row i of slot i, on page 2 i + 1 and the next; `entry` NULL: eager. Its logits go to ret. */
static void run_rows(struct hand *h, uint32_t n, uint32_t n_tokens, uint32_t start,
	const struct graph_entry *entry, float *ret)
{
	struct runner *runner = h->runner;
	const struct device_ops *ops = h->rig.device->ops;
	struct inputs_slot *slot = inputs_begin(&runner->inputs, 0);
	const struct slot_sampling greedy = {.top_p = 1};
	uint32_t query_lens[MAX_ROWS], seq_lens[MAX_ROWS];

	assert_non_null(slot);
	for (uint32_t i = 0; i < n; i++) {
		const uint32_t pages[] = {2 * i + 1, 2 * i + 2};
		const struct step_row row = {
			.slot = (int32_t)i, .n_tokens = n_tokens, .start = start, .flags = ROW_SAMPLE};
		int32_t *ids;

		inputs_add_init(slot, (int32_t)i, &greedy, pages, 2);
		ids = inputs_add_row(slot, &row);
		for (uint32_t k = 0; k < n_tokens; k++)
			ids[k] = (int32_t)('0' + (i + k + start) % 10);
		query_lens[i] = n_tokens;
		seq_lens[i] = start + n_tokens;
	}
	assert_int_equal(
		executor_run(&runner->executor, entry, slot, query_lens, seq_lens, h->lane), 0);
	assert_int_equal(ops->stream_sync(h->lane), 0);
	test_copy(h->rig.device, ret, runner->context.buffers.logits,
		(size_t)n * VOCAB * sizeof(*ret));
}

static const struct graph_entry *entry_of(const struct hand *h, uint32_t rows)
{
	const struct graph_set *set = &h->runner->graphs;

	for (uint32_t i = 0; i < set->n; i++)
		if (set->entries[i].descriptor.rows == rows && set->entries[i].descriptor.query_len)
			return &set->entries[i];
	fail_msg("no graph of %u rows", rows);
	return NULL;
}

static float logits[MAX_ROWS * VOCAB], others[MAX_ROWS * VOCAB];

/* K, then V, of 16 tokens. */
struct page_layout {
	size_t page, half, token;
};

static struct page_layout page_layout(const struct hand *h)
{
	const size_t page = kv_layer_page_bytes(kv_cache_config(h->runner->kv));

	return (struct page_layout){page, page / 2, page / 32};
}

/* All that no row of n at position 3 has written or will write, and K of that position. */
static void poison_cache(struct hand *h, uint32_t n)
{
	const struct page_layout l = page_layout(h);

	for (uint32_t layer = 0; layer < h->runner->model->config.n_layers; layer++) {
		uint8_t *kv = h->runner->context.kv_layers[layer];

		fill(h, kv + (2 * n + 1) * l.page, 0x5a, h->layer_bytes - (2 * n + 1) * l.page);
		for (uint32_t i = 0; i < n; i++)
			fill(h, kv + (2 * i + 1) * l.page + 3 * l.token, 0x5a, l.token);
		test_copy(h->rig.device, h->canaries + layer * h->layer_bytes, kv, h->layer_bytes);
	}
}

/* n rows have written position 3, and nothing else changed. */
static void assert_cache(struct hand *h, uint32_t n, uint32_t padded)
{
	const struct page_layout l = page_layout(h);

	for (uint32_t layer = 0; layer < h->runner->model->config.n_layers; layer++) {
		uint8_t *expected = h->canaries + layer * h->layer_bytes;
		uint8_t *kv = test_fetch(h->rig.device, h->runner->context.kv_layers[layer],
			h->layer_bytes);

		for (uint32_t i = 0; i < n; i++) {
			size_t k = (2 * i + 1) * l.page + 3 * l.token;

			assert_memory_not_equal(expected + k, kv + k, l.token);
			memcpy(expected + k, kv + k, l.token);
			memcpy(expected + k + l.half, kv + k + l.half, l.token);
		}
		if (memcmp(expected, kv, h->layer_bytes))
			fail_msg("%u rows of %u: layer %u was written elsewhere", n, padded, layer);
		free(kv);
	}
}

static void test_padded_rows_write_nothing_anywhere(void **state)
{
	struct hand h;

	(void)state;
	set_up(&h);
	for (uint32_t n = 1; n < 8; n += 2) {
		const struct graph_entry *entry = entry_of(&h, n == 1 ? 2 : 8);
		const struct step_inputs *in = &h.runner->inputs.persistent;
		struct slot_sampling before[MAX_ROWS], after[MAX_ROWS];
		int32_t last[MAX_ROWS];

		/* A wide step leaves valid slots and pages in all rows; then all is poisoned. */
		run_rows(&h, MAX_ROWS, 3, 0, NULL, logits);
		poison_cache(&h, n);
		for (uint32_t i = 0; i < MAX_ROWS; i++)
			last[i] = 1000 + (int32_t)i;
		test_copy(h.rig.device, in->slot_last_token, last, sizeof(last));
		test_copy(h.rig.device, before, in->slot_sampling, sizeof(before));
		run_rows(&h, n, 1, 3, entry, logits);
		assert_cache(&h, n, entry->descriptor.rows);
		test_copy(h.rig.device, last, in->slot_last_token, sizeof(last));
		for (uint32_t i = 0; i < MAX_ROWS; i++) {
			if (i < n)
				assert_in_range(last[i], 0, VOCAB - 1);
			else
				assert_int_equal(last[i], 1000 + i);
		}
		test_copy(h.rig.device, after, in->slot_sampling, sizeof(after));
		assert_memory_equal(before, after, sizeof(before));
	}
	tear_down(&h);
}

static void test_nan_in_what_padding_reads_leaves_real_rows_bitwise_unchanged(void **state)
{
	struct hand h;

	(void)state;
	set_up(&h);
	run_rows(&h, MAX_ROWS, 3, 0, NULL, logits);
	for (uint32_t n = 1; n < 16; n += 4) {
		const struct graph_entry *entry = entry_of(&h, n == 1 ? 2 : n < 8 ? 8 : 16);
		const size_t page = kv_layer_page_bytes(kv_cache_config(h.runner->kv));
		const uint32_t n_layers = h.runner->model->config.n_layers;

		run_rows(&h, n, 1, 3, entry, others);
		for (uint32_t layer = 0; layer < n_layers; layer++)
			fill(&h, h.runner->context.kv_layers[layer], 0xff, page);
		fill(&h, h.runner->pool, 0xff, h.runner->pool_bytes);
		run_rows(&h, n, 1, 3, entry, logits);
		assert_memory_equal(logits, others, (size_t)n * VOCAB * sizeof(logits[0]));
		for (uint32_t layer = 0; layer < n_layers; layer++)
			fill(&h, h.runner->context.kv_layers[layer], 0, page);
	}
	tear_down(&h);
}

static void assert_close(const float *a, const float *b, uint32_t n)
{
	double tolerance = 1e-3, largest = 0;

	for (uint32_t i = 0; i < n * VOCAB; i++)
		largest = fmax(largest, fabs(b[i]));
	if (test_on_cuda())
		tolerance = TEST_LOGITS_CUDA_RANDOM * largest;
	for (uint32_t i = 0; i < n * VOCAB; i++) {
		if (!(fabs(a[i] - b[i]) < tolerance))
			fail_msg("row %u, logit %u: %g and %g", i / VOCAB, i % VOCAB, a[i], b[i]);
	}
}

/* Small ones were captured last, in memory that large ones hold too. */
static void test_every_graph_equals_eager_whichever_was_captured_or_replayed_before(void **state)
{
	static const uint32_t order[] = {16, 1, 8, 2, 16, 4, 16, 1, 2, 4, 8, 16};
	uint32_t start = 3;
	struct hand h;

	(void)state;
	set_up(&h);
	run_rows(&h, MAX_ROWS, 3, 0, NULL, others);
	for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++, start++) {
		/* All rows grow by one eagerly, then the same position again by the graph. */
		run_rows(&h, MAX_ROWS, 1, start, NULL, others);
		run_rows(&h, order[i], 1, start, entry_of(&h, order[i]), logits);
		assert_close(logits, others, order[i]);
		if (order[i] > 1) { /* padded by one */
			run_rows(&h, order[i] - 1, 1, start, entry_of(&h, order[i]), logits);
			assert_close(logits, others, order[i] - 1);
		}
	}
	tear_down(&h);
}

static void test_replays_among_several_processes_are_counted_as_shared(void **state)
{
	const struct engine_stats *stats;
	struct engine_graph_facts facts;
	struct rig_result results[2] = {0};
	uint64_t n_shared = 0;
	struct rig_client clients[2];
	struct rig_request requests[2];
	struct rig rig;

	(void)state;
	rig_open(&rig, &full);
	stats = engine_stats(rig.engine);
	rig_attach(&rig, &clients[0], 8);
	rig_attach(&rig, &clients[1], 8);
	rig_gate_close(&rig);
	for (uint32_t c = 0; c < 2; c++) {
		requests[c] = rig_ask_text(&clients[c], 0, 0, "count 4 30\n");
		rig_submit(&clients[c], &requests[c]);
		rig_wait_steps(&rig, 1);
	}
	rig_gate_open(&rig);
	for (uint32_t c = 0; c < 2; c++)
		rig_wait(&clients[c], &results[c], 0);
	assert_true(stats->n_shared_replays > 0);
	assert_true(stats->n_shared_replays <= stats->n_replays);
	for (uint32_t i = 0; engine_graph_facts(rig.engine, 0, i, &facts); i++)
		n_shared += facts.n_shared_replays;
	assert_int_equal(n_shared, stats->n_shared_replays);
	assert_true(graph(&rig, 2).n_shared_replays > 0);
	assert_int_equal(graph(&rig, 1).n_shared_replays, 0);
	rig_detach(&clients[0]);
	rig_detach(&clients[1]);
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_number_of_decodes_takes_the_smallest_graph_that_holds_it),
		cmocka_unit_test(test_each_graph_is_captured_once_however_many_clients_come_and_go),
		cmocka_unit_test(test_batches_wider_than_a_list_of_sizes_run_eager_and_are_counted),
		cmocka_unit_test(test_without_graphs_all_steps_are_counted_as_eager_by_mode),
		cmocka_unit_test(test_prompt_whose_last_chunk_is_one_token_replays_no_decode_graph),
		cmocka_unit_test(test_full_with_a_backend_that_cannot_is_an_error_that_names_it),
		cmocka_unit_test(test_padded_rows_write_nothing_anywhere),
		cmocka_unit_test(test_nan_in_what_padding_reads_leaves_real_rows_bitwise_unchanged),
		cmocka_unit_test(
			test_every_graph_equals_eager_whichever_was_captured_or_replayed_before),
		cmocka_unit_test(test_replays_among_several_processes_are_counted_as_shared),
	};

	return cmocka_run_group_tests_name("engine graphs", tests, NULL, NULL);
}
