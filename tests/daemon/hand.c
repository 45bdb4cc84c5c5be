/* SPDX-License-Identifier: MIT */
#include "tests/daemon/hand.h"

#include "tests/device_memory.h"

#define KV_PAGES (HAND_ROWS * HAND_PAGES)
#define PAGE_TOKENS 16u /* the rig's */

void hand_open(struct hand *hand, const struct rig_options *options)
{
	struct rig_options o = *options;

	o.kv_pages = KV_PAGES;
	o.max_seq_len = HAND_TOKENS;
	*hand = (struct hand){0};
	rig_open(&hand->rig, &o);
	hand->runner = &hand->rig.engine->runners[0];
	hand->lane = hand->rig.engine->lane.stream;
	hand->layer_bytes =
		(KV_PAGES + 1) * kv_layer_page_bytes(kv_cache_config(hand->runner->kv));
	hand->cache = malloc(hand->layer_bytes * hand->runner->model->config.n_layers);
	assert_non_null(hand->cache);
}

void hand_close(struct hand *hand)
{
	graph_set_deinit(&hand->queries, hand->rig.device);
	free(hand->cache);
	rig_close(&hand->rig);
}

void hand_capture_queries(
	struct hand *hand, uint32_t query, const uint32_t *sizes, uint32_t n_sizes)
{
	struct breakable_runner *breakable = &hand->runner->executor.breakable;
	struct ladder ladder;
	uint32_t bad;

	assert_int_equal(ladder_user(&ladder, sizes, n_sizes, HAND_TOKENS, &bad), 0);
	assert_int_equal(graph_set_init(&hand->queries, GRAPH_FULL_DECODE_ONLY, &ladder, query,
				 HAND_ROWS), 0);
	assert_int_equal(graph_set_capture(&hand->queries, breakable, hand->lane, NULL, NULL), 0);
}

/* ---- steps ---- */

static int32_t token_at(int32_t slot, uint32_t position)
{
	return '0' + (int32_t)((7 * (uint32_t)slot + position + position / 10) % 10);
}

static void add_row(struct inputs_slot *slot, const struct hand_row *row)
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
static void init_slots(struct hand *hand, const struct hand_row *rows, uint32_t n)
{
	const struct slot_sampling greedy = {.top_p = 1};
	const struct descriptor no_rows = descriptor_eager(0, 0);
	struct inputs *inputs = &hand->runner->inputs;
	uint32_t i = 0;

	while (i < n) {
		struct inputs_slot *slot = inputs_begin(inputs, 0);

		assert_non_null(slot);
		for (; i < n && inputs_can_init(inputs, slot, HAND_PAGES); i++) {
			uint32_t pages[HAND_PAGES];

			for (uint32_t k = 0; k < HAND_PAGES; k++)
				pages[k] = 1 + (uint32_t)rows[i].slot * HAND_PAGES + k;
			inputs_add_init(slot, rows[i].slot, &greedy, pages, HAND_PAGES);
		}
		assert_int_equal(inputs_prepare(inputs, slot, hand->lane, &no_rows, 0,
					 kv_pages_total(hand->runner->kv) + 1), 0);
		assert_int_equal(hand->rig.device->ops->stream_sync(hand->lane), 0);
	}
}

int hand_try(struct hand *hand, const struct hand_row *rows, uint32_t n,
	const struct graph_entry *entry)
{
	uint32_t query_lens[HAND_ROWS], seq_lens[HAND_ROWS];
	struct inputs_slot *slot;
	int rc;

	init_slots(hand, rows, n);
	slot = inputs_begin(&hand->runner->inputs, 0);
	assert_non_null(slot);
	assert_true(n <= HAND_ROWS);
	for (uint32_t i = 0; i < n; i++) {
		add_row(slot, &rows[i]);
		query_lens[i] = rows[i].n_tokens;
		seq_lens[i] = rows[i].start + rows[i].n_tokens;
	}
	rc = executor_run(
		&hand->runner->executor, entry, slot, query_lens, seq_lens, hand->lane);
	assert_int_equal(hand->rig.device->ops->stream_sync(hand->lane), 0);
	return rc;
}

void hand_run(struct hand *hand, const struct hand_row *rows, uint32_t n,
	const struct graph_entry *entry, float *ret)
{
	/* What an earlier step left behind must not be taken for this one's. */
	if (ret)
		hand_fill(hand, hand->runner->pool, 0xff, hand->runner->pool_bytes);
	assert_int_equal(hand_try(hand, rows, n, entry), 0);
	if (ret)
		test_copy(hand->rig.device, ret, hand->runner->context.buffers.logits,
			(size_t)n * HAND_VOCAB * sizeof(*ret));
}

struct graph_entry *hand_graph(
	struct hand *hand, const struct hand_row *rows, uint32_t n, bool past_prompt)
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
	entry = graph_set_dispatch(past_prompt && shape.query_len > 1 ? &hand->queries
		: &hand->runner->graphs, &shape, &reason);
	assert_int_equal(reason, EAGER_NO);
	return entry;
}

void hand_prefill(struct hand *hand, uint32_t n, uint32_t length)
{
	uint32_t most = hand->runner->inputs.limits.max_tokens;

	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t at = 0; at < length; at += most) {
			uint32_t left = length - at;
			const struct hand_row row = {(int32_t)i, left < most ? left : most, at};

			hand_run(hand, &row, 1, NULL, NULL);
		}
	}
}

/* ---- memory ---- */

void hand_fill(struct hand *hand, void *memory, uint8_t value, size_t bytes)
{
	assert_int_equal(hand->rig.device->ops->fill_async(hand->lane, memory, value, bytes), 0);
	assert_int_equal(hand->rig.device->ops->stream_sync(hand->lane), 0);
}

static size_t page_bytes(const struct hand *hand)
{
	return kv_layer_page_bytes(kv_cache_config(hand->runner->kv));
}

/* Of K, and of V. */
static size_t token_bytes(const struct hand *hand)
{
	return page_bytes(hand) / 2 / PAGE_TOKENS;
}

/* Where a position's K is in a layer, and its V half a page further. */
static size_t place_of(const struct hand *hand, int32_t slot, uint32_t position)
{
	size_t page = 1 + (uint32_t)slot * HAND_PAGES + position / PAGE_TOKENS;

	return page * page_bytes(hand) + position % PAGE_TOKENS * token_bytes(hand);
}

/* Copy a position's K and V from one image of a layer to another. */
static void copy_token(const struct hand *hand, uint8_t *to, const uint8_t *from, int32_t slot,
	uint32_t position)
{
	size_t k = place_of(hand, slot, position), v = k + page_bytes(hand) / 2;

	memcpy(to + k, from + k, token_bytes(hand));
	memcpy(to + v, from + v, token_bytes(hand));
}

static bool is_poison(const uint8_t *bytes, size_t n)
{
	size_t i = 0;

	while (i < n && bytes[i] == 0xff)
		i++;
	return i == n;
}

static bool is_written(
	const struct hand *hand, const uint8_t *layer, int32_t slot, uint32_t position)
{
	size_t k = place_of(hand, slot, position), v = k + page_bytes(hand) / 2;

	return !is_poison(layer + k, token_bytes(hand)) && !is_poison(layer + v, token_bytes(hand));
}

void hand_poison(struct hand *hand, const struct hand_row *rows, uint32_t n)
{
	for (uint32_t layer = 0; layer < hand->runner->model->config.n_layers; layer++) {
		uint8_t *image = hand->cache + layer * hand->layer_bytes;
		void *kv = hand->runner->context.kv_layers[layer];
		uint8_t *before = test_fetch(hand->rig.device, kv, hand->layer_bytes);

		memset(image, 0xff, hand->layer_bytes);
		for (uint32_t i = 0; i < n; i++)
			for (uint32_t p = 0; p < rows[i].start; p++)
				copy_token(hand, image, before, rows[i].slot, p);
		test_copy(hand->rig.device, kv, image, hand->layer_bytes);
		free(before);
	}
}

void hand_assert_written(
	struct hand *hand, const struct hand_row *rows, uint32_t n, const char *what)
{
	for (uint32_t layer = 0; layer < hand->runner->model->config.n_layers; layer++) {
		uint8_t *expected = hand->cache + layer * hand->layer_bytes;
		uint8_t *kv = test_fetch(hand->rig.device, hand->runner->context.kv_layers[layer],
			hand->layer_bytes);

		for (uint32_t i = 0; i < n; i++) {
			const struct hand_row *row = &rows[i];

			for (uint32_t p = row->start; p < row->start + row->n_tokens; p++) {
				if (!is_written(hand, kv, row->slot, p))
					fail_msg("%s: layer %u has not position %u of slot %d",
						what, layer, p, row->slot);
				copy_token(hand, expected, kv, row->slot, p);
			}
		}
		if (memcmp(expected, kv, hand->layer_bytes))
			fail_msg("%s: layer %u was written where it should not be", what, layer);
		free(kv);
	}
}

void hand_assert_logits(const float *logits, const float *expected, uint32_t n, const char *what)
{
	double largest = 0, tolerance = 0;

	for (uint32_t i = 0; i < n * HAND_VOCAB; i++)
		largest = fmax(largest, fabs(expected[i]));
	if (test_on_cuda())
		tolerance = TEST_LOGITS_CUDA_RANDOM * largest;
	for (uint32_t i = 0; i < n * HAND_VOCAB; i++) {
		if (!(fabs(logits[i] - expected[i]) <= tolerance))
			fail_msg("%s: row %u, logit %u: %g and %g", what, i / HAND_VOCAB,
				i % HAND_VOCAB, logits[i], expected[i]);
	}
}
