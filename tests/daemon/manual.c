/* SPDX-License-Identifier: MIT */
#include "tests/daemon/manual.h"

#include "tests/device_memory.h"

#define KV_PAGES (MANUAL_ROWS * MANUAL_PAGES)
#define PAGE_TOKENS 16u /* the rig's */

void manual_open(struct manual *manual, const struct rig_options *options)
{
	struct rig_options o = *options;

	o.kv_pages = KV_PAGES;
	o.max_seq_len = MANUAL_TOKENS;
	*manual = (struct manual){0};
	rig_open(&manual->rig, &o);
	manual->runner = manual->rig.engine->runners.all[0];
	manual->lane = manual->rig.engine->lane.stream;
	manual->layer_bytes =
		(KV_PAGES + 1) * kv_layer_page_bytes(kv_cache_config(manual->runner->kv));
	manual->cache = malloc(manual->layer_bytes * manual->runner->model->config.n_layers);
	assert_non_null(manual->cache);
}

void manual_close(struct manual *manual)
{
	graph_set_deinit(&manual->queries, manual->rig.device);
	free(manual->cache);
	rig_close(&manual->rig);
}

int manual_setup(void **state)
{
	static struct manual manual;

	manual_open(&manual, *state);
	*state = &manual;
	return 0;
}

int manual_teardown(void **state)
{
	manual_close(*state);
	return 0;
}

void manual_capture_queries(
	struct manual *manual, uint32_t query, const uint32_t *sizes, uint32_t n_sizes)
{
	struct breakable_runner *breakable = &manual->runner->executor.breakable;
	struct ladder ladder;
	uint32_t bad;

	assert_int_equal(ladder_user(&ladder, sizes, n_sizes, MANUAL_TOKENS, &bad), 0);
	assert_int_equal(graph_set_init(&manual->queries, GRAPH_FULL_DECODE_ONLY, &ladder, query,
				 MANUAL_ROWS), 0);
	assert_int_equal(graph_set_capture(&manual->queries, breakable, manual->lane, NULL, NULL), 0);
}

/* ---- steps ---- */

static int32_t token_at(int32_t slot, uint32_t position)
{
	return '0' + (int32_t)((7 * (uint32_t)slot + position + position / 10) % 10);
}

static void add_row(struct inputs_slot *slot, const struct manual_row *row)
{
	const struct step_row step_row = {.slot = row->slot,
		.n_tokens = row->n_tokens,
		.start = row->start,
		.flags = ROW_SAMPLE};
	int32_t *ids = inputs_add_row(slot, &step_row);

	for (uint32_t i = 0; i < row->n_tokens; i++)
		ids[i] = token_at(row->slot, row->start + i);
}

/* Set up the rows' slots, as many at a time as one step may. */
static void init_slots(struct manual *manual, const struct manual_row *rows, uint32_t n)
{
	const struct slot_sampling greedy = {.top_p = 1};
	const struct descriptor no_rows = descriptor_eager(0, 0);
	struct inputs *inputs = &manual->runner->inputs;
	uint32_t i = 0;

	while (i < n) {
		struct inputs_slot *slot = inputs_begin(inputs, 0);

		assert_non_null(slot);
		for (; i < n && inputs_can_init(inputs, slot, MANUAL_PAGES); i++) {
			uint32_t pages[MANUAL_PAGES];

			for (uint32_t k = 0; k < MANUAL_PAGES; k++)
				pages[k] = 1 + (uint32_t)rows[i].slot * MANUAL_PAGES + k;
			inputs_add_init(slot, rows[i].slot, &greedy, pages, MANUAL_PAGES);
		}
		assert_int_equal(inputs_prepare(inputs, slot, manual->lane, &no_rows, 0,
					 kv_pages_total(manual->runner->kv) + 1), 0);
		assert_int_equal(manual->rig.device->ops->stream_sync(manual->lane), 0);
	}
}

int manual_try(struct manual *manual, const struct manual_row *rows, uint32_t n,
	const struct graph_entry *entry)
{
	uint32_t query_lens[MANUAL_ROWS], seq_lens[MANUAL_ROWS];
	struct inputs_slot *slot;
	int rc;

	init_slots(manual, rows, n);
	slot = inputs_begin(&manual->runner->inputs, 0);
	assert_non_null(slot);
	assert_true(n <= MANUAL_ROWS);
	for (uint32_t i = 0; i < n; i++) {
		add_row(slot, &rows[i]);
		query_lens[i] = rows[i].n_tokens;
		seq_lens[i] = rows[i].start + rows[i].n_tokens;
	}
	rc = executor_run(
		&manual->runner->executor, entry, slot, query_lens, seq_lens, manual->lane);
	assert_int_equal(manual->rig.device->ops->stream_sync(manual->lane), 0);
	return rc;
}

void manual_run(struct manual *manual, const struct manual_row *rows, uint32_t n,
	const struct graph_entry *entry, float *ret)
{
	/* What an earlier step left behind must not be taken for this one's. */
	if (ret)
		manual_fill(manual, manual->runner->pool, 0xff, manual->runner->pool_bytes);
	assert_int_equal(manual_try(manual, rows, n, entry), 0);
	if (ret)
		test_copy(manual->rig.device, ret, manual->runner->context.buffers.logits,
			(size_t)n * MANUAL_VOCAB * sizeof(*ret));
}

struct graph_entry *manual_graph(
	struct manual *manual, const struct manual_row *rows, uint32_t n, bool past_prompt)
{
	struct batch_shape shape = {
		.rows = n,
		.uniform = true,
		.past_prompt = past_prompt,
		.query_len = rows[0].n_tokens,
	};
	struct graph_entry *entry;
	enum eager_reason reason;

	for (uint32_t i = 0; i < n; i++) {
		shape.tokens += rows[i].n_tokens;
		shape.uniform &= rows[i].n_tokens == shape.query_len;
	}
	entry = graph_set_dispatch(past_prompt && shape.query_len > 1 ? &manual->queries
		: &manual->runner->graphs, &shape, &reason);
	assert_int_equal(reason, EAGER_NO);
	return entry;
}

void manual_prefill(struct manual *manual, uint32_t n, uint32_t length)
{
	uint32_t most = manual->runner->inputs.limits.max_tokens;

	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t at = 0; at < length; at += most) {
			uint32_t left = length - at;
			const struct manual_row row = {(int32_t)i, left < most ? left : most, at};

			manual_run(manual, &row, 1, NULL, NULL);
		}
	}
}

/* ---- memory ---- */

void manual_fill(struct manual *manual, void *memory, uint8_t value, size_t bytes)
{
	assert_int_equal(manual->rig.device->ops->fill_async(manual->lane, memory, value, bytes), 0);
	assert_int_equal(manual->rig.device->ops->stream_sync(manual->lane), 0);
}

static size_t page_bytes(const struct manual *manual)
{
	return kv_layer_page_bytes(kv_cache_config(manual->runner->kv));
}

/* Of K, and of V. */
static size_t token_bytes(const struct manual *manual)
{
	return page_bytes(manual) / 2 / PAGE_TOKENS;
}

/* Where a position's K is in a layer, and its V half a page further. */
static size_t place_of(const struct manual *manual, int32_t slot, uint32_t position)
{
	size_t page = 1 + (uint32_t)slot * MANUAL_PAGES + position / PAGE_TOKENS;

	return page * page_bytes(manual) + position % PAGE_TOKENS * token_bytes(manual);
}

/* Copy a position's K and V from one image of a layer to another. */
static void copy_token(const struct manual *manual, uint8_t *to, const uint8_t *from, int32_t slot,
	uint32_t position)
{
	size_t k = place_of(manual, slot, position), v = k + page_bytes(manual) / 2;

	memcpy(to + k, from + k, token_bytes(manual));
	memcpy(to + v, from + v, token_bytes(manual));
}

static bool is_poison(const uint8_t *bytes, size_t n)
{
	size_t i = 0;

	while (i < n && bytes[i] == 0xff)
		i++;
	return i == n;
}

static bool is_written(
	const struct manual *manual, const uint8_t *layer, int32_t slot, uint32_t position)
{
	size_t k = place_of(manual, slot, position), v = k + page_bytes(manual) / 2;

	return !is_poison(layer + k, token_bytes(manual)) && !is_poison(layer + v, token_bytes(manual));
}

void manual_poison(struct manual *manual, const struct manual_row *rows, uint32_t n)
{
	for (uint32_t layer = 0; layer < manual->runner->model->config.n_layers; layer++) {
		uint8_t *image = manual->cache + layer * manual->layer_bytes;
		void *kv = manual->runner->context.kv_layers[layer];
		uint8_t *before = test_fetch(manual->rig.device, kv, manual->layer_bytes);

		memset(image, 0xff, manual->layer_bytes);
		for (uint32_t i = 0; i < n; i++)
			for (uint32_t p = 0; p < rows[i].start; p++)
				copy_token(manual, image, before, rows[i].slot, p);
		test_copy(manual->rig.device, kv, image, manual->layer_bytes);
		free(before);
	}
}

void manual_assert_written(
	struct manual *manual, const struct manual_row *rows, uint32_t n, const char *what)
{
	for (uint32_t layer = 0; layer < manual->runner->model->config.n_layers; layer++) {
		uint8_t *expected = manual->cache + layer * manual->layer_bytes;
		uint8_t *kv = test_fetch(manual->rig.device, manual->runner->context.kv_layers[layer],
			manual->layer_bytes);

		for (uint32_t i = 0; i < n; i++) {
			const struct manual_row *row = &rows[i];

			for (uint32_t p = row->start; p < row->start + row->n_tokens; p++) {
				if (!is_written(manual, kv, row->slot, p))
					fail_msg("%s: layer %u has not position %u of slot %d",
						what, layer, p, row->slot);
				copy_token(manual, expected, kv, row->slot, p);
			}
		}
		if (memcmp(expected, kv, manual->layer_bytes))
			fail_msg("%s: layer %u was written where it should not be", what, layer);
		free(kv);
	}
}

void manual_assert_logits(const float *logits, const float *expected, uint32_t n, const char *what)
{
	double largest = 0, tolerance = 0;

	for (uint32_t i = 0; i < n * MANUAL_VOCAB; i++)
		largest = fmax(largest, fabs(expected[i]));
	if (test_on_cuda())
		tolerance = TEST_LOGITS_CUDA_RANDOM * largest;
	for (uint32_t i = 0; i < n * MANUAL_VOCAB; i++) {
		if (!(fabs(logits[i] - expected[i]) <= tolerance))
			fail_msg("%s: row %u, logit %u: %g and %g", what, i / MANUAL_VOCAB,
				i % MANUAL_VOCAB, logits[i], expected[i]);
	}
}
