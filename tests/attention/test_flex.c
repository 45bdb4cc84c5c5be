/* SPDX-License-Identifier: MIT */
/* Attention under block masks, on the cpu device. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <cmocka.h>

#include "attention/flex/flex.h"
#include "attention/flex/mask.h"
#include "tests/attention/world.h"

#define LENGTH 150u
#define LAYER 1u

static const struct shape ordinary = {
	.n_heads = 4, .n_kv_heads = 2, .head_dim = 16, .page_tokens = 4, .max_seq_len = LENGTH,
};

/* ---- drawing ---- */

/* At the edge of a page, of a block of keys, or anywhere in [1, LENGTH]. */
static uint32_t draw_length(struct world *dice, uint32_t page_tokens)
{
	uint32_t unit = world_draw(dice, 2) ? FLEX_KEYS : page_tokens;
	uint32_t edge = (1 + world_draw(dice, 4)) * unit;

	switch (world_draw(dice, 3)) {
	case 0:
		return 1 + world_draw(dice, LENGTH);
	case 1:
		return edge > 1 ? edge - 1 : 1;
	default:
		return edge + world_draw(dice, 2);
	}
}

static struct slot_mask draw_mask(struct world *dice, uint32_t seq_len)
{
	struct slot_mask mask = {
		.kind = world_draw(dice, MASK_KINDS),
		.window = 1 + world_draw(dice, 70),
		.begin = world_draw(dice, seq_len + 1),
	};

	mask.end = mask.begin + world_draw(dice, seq_len + 1 - mask.begin);
	if (mask.kind == MASK_WINDOW)
		mask.end = world_draw(dice, 40);
	return mask;
}

/* Documents and trees; the others don't look. */
static void draw_words(struct world *dice, const struct slot_mask *mask, uint64_t *words)
{
	uint64_t start = 0;

	for (uint32_t p = 0; p < LENGTH; p++) {
		if (world_draw(dice, 10) == 0)
			start = p;
		words[p] = start;
		if (mask->kind == MASK_TREE)
			words[p] = (uint64_t)world_draw(dice, UINT32_MAX) << 32 ^
				   world_draw(dice, UINT32_MAX);
	}
}

static uint32_t draw_rows(struct world *dice, uint32_t page_tokens, struct row *rows,
	uint64_t (*words)[LENGTH])
{
	uint32_t n_rows = 1 + world_draw(dice, 4);

	for (uint32_t r = 0; r < n_rows; r++) {
		uint32_t seq_len = draw_length(dice, page_tokens);

		rows[r] = (struct row){
			.seed = world_draw(dice, 1000),
			.seq_len = seq_len,
			.n_query = 1 + world_draw(dice, seq_len < 39 ? seq_len : 39),
			.mask = draw_mask(dice, seq_len),
			.words = words[r],
		};
		draw_words(dice, &rows[r].mask, words[r]);
	}
	return n_rows;
}

/* ---- right numbers ---- */

static void test_masks_agree_with_dense_reference(void **state)
{
	static const uint32_t page_tokens[] = { 1, 4, 16, 24 };
	static uint64_t words[WORLD_ROWS][LENGTH];
	struct world dice = { .random = 11 };

	(void)state;
	for (int round = 0; round < 80; round++) {
		struct shape shape = ordinary;
		struct row rows[WORLD_ROWS];
		uint32_t n_rows;
		struct world w;

		shape.page_tokens = page_tokens[world_draw(&dice, 4)];
		shape.window = world_draw(&dice, 3) ? 0 : 1 + world_draw(&dice, 60);
		world_init(&w, "flex", &shape);
		n_rows = draw_rows(&dice, shape.page_tokens, rows, words);
		world_place(&w, rows, n_rows, n_rows + world_draw(&dice, 3), WORLD_TOKENS);
		world_run(&w);
		world_verify(&w);
		world_deinit(&w);
	}
}

/* One row, one mask: the outputs against the reference. */
static void verify_one(const struct row *row)
{
	struct world w;

	world_init(&w, "flex", &ordinary);
	world_place(&w, row, 1, 0, 0);
	world_run(&w);
	world_verify(&w);
	world_deinit(&w);
}

static void test_each_mask_differs_from_causal_where_it_says(void **state)
{
	static uint64_t words[LENGTH];
	struct row row = { .seed = 4, .n_query = 60, .seq_len = 100, .words = words };
	static const struct slot_mask masks[MASK_KINDS] = {
		[MASK_WINDOW] = { .kind = MASK_WINDOW, .window = 5, .end = 2 },
		[MASK_PREFIX] = { .kind = MASK_PREFIX, .begin = 45, .end = 80 },
		[MASK_DOCUMENTS] = { .kind = MASK_DOCUMENTS },
		[MASK_TREE] = { .kind = MASK_TREE, .begin = 50 },
	};
	/* the first token of the row's 60 to see other keys than a causal one does, and the last */
	static const uint32_t differ[MASK_KINDS][2] = {
		[MASK_WINDOW] = { 0, 59 }, [MASK_PREFIX] = { 5, 38 },
		[MASK_DOCUMENTS] = { 30, 59 }, [MASK_TREE] = { 11, 59 },
	};
	float *causal = calloc(WORLD_TOKENS * 64, sizeof(float));

	(void)state;
	for (uint32_t p = 70; p < LENGTH; p++)
		words[p] = 70;
	for (uint32_t kind = 0; kind < MASK_KINDS; kind++) {
		struct world w;

		row.mask = masks[kind];
		verify_one(&row);
		world_init(&w, "flex", &ordinary);
		world_place(&w, &row, 1, 0, 0);
		if (kind == MASK_TREE) /* each token of the tree sees itself alone of them */
			for (uint32_t t = 0; t < 60; t++)
				w.inputs.mask_words[t] = t < 10 ? 0 : (uint64_t)1 << (t - 10);
		world_run(&w);
		if (kind == MASK_CAUSAL)
			memcpy(causal, w.out, 60 * w.width * sizeof(float));
		for (uint32_t t = 0; t < 60 && kind != MASK_CAUSAL; t++)
			assert_int_equal(t >= differ[kind][0] && t <= differ[kind][1],
				memcmp(world_out(&w, 0, t), causal + t * w.width,
					w.width * sizeof(float)) != 0);
		world_deinit(&w);
	}
	free(causal);
}

static void test_causal_is_paged_to_the_last_bit(void **state)
{
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 5, .seq_len = 71 },
		{ .seed = 2, .n_query = 0, .seq_len = 0 },
		{ .seed = 3, .n_query = 1, .seq_len = 128 },
		{ .seed = 4, .n_query = 17, .seq_len = 17 },
		{ .seed = 5, .n_query = 33, .seq_len = 96 },
	};
	float *paged = calloc(WORLD_TOKENS * 64, sizeof(float));

	(void)state;
	for (uint32_t window = 0; window < 80; window += 37) {
		struct shape shape = ordinary;

		shape.window = window;
		for (int flex = 0; flex < 2; flex++) {
			struct world w;

			world_init(&w, flex ? "flex" : "paged", &shape);
			world_place(&w, rows, 5, 8, 64);
			world_run(&w);
			if (!flex)
				memcpy(paged, w.out, 64 * w.width * sizeof(float));
			else
				assert_memory_equal(w.out, paged, 64 * w.width * sizeof(float));
			world_deinit(&w);
		}
	}
	free(paged);
}

/* A mask of the window's size is the layer's window, and prompt chunks that do not cut the prefix give
 * what the whole gives. */
static void test_bits_depend_on_what_is_seen_alone(void **state)
{
	struct row row = { .seed = 6, .n_query = 90, .seq_len = 90 };
	struct shape windowed = ordinary;
	float *expected = calloc(WORLD_TOKENS * 64, sizeof(float));
	struct world w;

	(void)state;
	windowed.window = 21;
	world_init(&w, "flex", &windowed);
	world_place(&w, &row, 1, 0, 0);
	world_run(&w);
	memcpy(expected, w.out, 90 * w.width * sizeof(float));
	world_deinit(&w);
	world_init(&w, "flex", &ordinary);
	row.mask = (struct slot_mask){ .kind = MASK_WINDOW, .window = 21 };
	world_place(&w, &row, 1, 0, 0);
	world_run(&w);
	assert_memory_equal(w.out, expected, 90 * w.width * sizeof(float));

	row.mask = (struct slot_mask){ .kind = MASK_PREFIX, .begin = 10, .end = 50 };
	world_place(&w, &row, 1, 0, 0);
	world_run(&w);
	memcpy(expected, w.out, 90 * w.width * sizeof(float));
	for (uint32_t end = 50; end <= 90; end += 20) {
		row.n_query = end == 50 ? 45 : 20;
		row.seq_len = end;
		world_place(&w, &row, 1, 0, 0);
		world_run(&w);
		assert_memory_equal(w.out, expected + (end - row.n_query) * w.width,
			row.n_query * w.width * sizeof(float));
	}
	world_deinit(&w);
	free(expected);
}

/* ---- whatever a program says ---- */

static const uint32_t hard[] = { 0, 1, 31, 32, 64, LENGTH, INT32_MAX, UINT32_MAX };

static struct slot_mask draw_hostile(struct world *dice)
{
	return (struct slot_mask){ world_draw(dice, MASK_KINDS + 2), hard[world_draw(dice, 8)],
		hard[world_draw(dice, 8)], hard[world_draw(dice, 8)] };
}

static void test_views_of_hostile_programs_stay_within_the_sequence(void **state)
{
	struct world dice = { .random = 30 };

	(void)state;
	for (int round = 0; round < 20000; round++) {
		struct slot_mask mask = draw_hostile(&dice);
		uint32_t seq_len = 1 + world_draw(&dice, LENGTH);
		uint32_t position = world_draw(&dice, seq_len);
		uint64_t word = world_draw(&dice, 2) ? UINT64_MAX : hard[world_draw(&dice, 8)];
		struct mask_view view = mask_view_of(
			&mask, word, position, seq_len, hard[world_draw(&dice, 8)]);

		assert_true(view.low <= position && view.sinks <= position);
		assert_true(view.first <= position && position < view.end);
		assert_true(view.end <= seq_len);
		for (uint32_t i = 0; i < 64; i++)
			if (view.bits >> i & 1)
				assert_true(view.tree + i < seq_len);
		assert_true(mask_sees(&view, position));
	}
}

static void test_hostile_programs_see_nothing_outside_the_sequence(void **state)
{
	static uint64_t words[LENGTH];
	struct world dice = { .random = 3 };
	struct world w;

	(void)state;
	world_init(&w, "flex", &ordinary);
	for (int round = 0; round < 1000; round++) {
		uint32_t seq_len = draw_length(&dice, 4);
		struct row row = {
			.seed = 1, .seq_len = seq_len,
			.n_query = 1 + world_draw(&dice, seq_len < 9 ? seq_len : 9),
			.mask = draw_hostile(&dice), .words = words,
		};

		for (uint32_t p = 0; p < LENGTH; p++)
			words[p] = world_draw(&dice, 2) ? UINT64_MAX : hard[world_draw(&dice, 8)];
		world_place(&w, &row, 1, 0, 0);
		world_run(&w);
		/* whatever is not the sequence's is NaN, and no keys at all would be 0/0 */
		for (uint32_t e = 0; e < row.n_query * w.width; e++)
			assert_false(isnan(w.out[e]));
	}
	world_deinit(&w);
}

static void test_rows_of_no_slot_are_causal(void **state)
{
	static const int32_t nobody[] = { -1, WORLD_ROWS, INT32_MAX, INT32_MIN };
	struct row row = { .seed = 2, .n_query = 20, .seq_len = 40 };
	struct world w;

	(void)state;
	world_init(&w, "flex", &ordinary);
	for (size_t i = 0; i < 4; i++) {
		world_place(&w, &row, 1, 0, 0);
		for (uint32_t s = 0; s < WORLD_ROWS; s++)
			w.inputs.slot_mask[s] =
				(struct slot_mask){ .kind = MASK_WINDOW, .window = 1 };
		w.inputs.row_slot[0] = nobody[i];
		world_run(&w);
		world_verify(&w);
	}
	world_deinit(&w);
}

/* ---- the plan ---- */

enum { PLAN_BLOCKS = WORLD_TOKENS / FLEX_QUERIES + WORLD_ROWS + 1, PLAN_KEYS = 6, CANARY = 77 };

struct plan_memory {
	struct flex_block blocks[PLAN_BLOCKS + 1];
	int32_t counts[PLAN_BLOCKS + 1];
	int32_t indices[PLAN_BLOCKS * (PLAN_KEYS + 1) + 1];
};

/* The plan of what was placed last, in memory of the test's own, with canaries behind each part. */
static void make_plan(struct world *w, struct plan_memory *m, uint32_t window)
{
	const struct flex_plan_args args = {
		.in = {
			.query_start = w->inputs.query_start,
			.seq_lens = w->inputs.seq_lens,
			.row_slot = w->inputs.row_slot,
			.slot_mask = w->inputs.slot_mask,
			.mask_words = w->inputs.mask_words,
			.max_slots = WORLD_ROWS,
			.max_blocks = PLAN_BLOCKS,
			.max_keys = PLAN_KEYS,
			.capacity = w->config.max_pages * w->config.page_tokens,
		},
		.plan = { m->blocks, m->counts, m->indices },
		.n_rows = w->batch.padded_rows,
		.n_tokens = w->batch.padded_tokens,
		.window = window,
	};

	memset(m, CANARY, sizeof(*m));
	assert_int_equal(flex_cpu_kernels.plan(w->stream, &args), 0);
	world_sync(w);
	assert_int_equal(m->blocks[PLAN_BLOCKS].row, 0x01010101 * CANARY);
	assert_int_equal(m->counts[PLAN_BLOCKS], 0x01010101 * CANARY);
	assert_int_equal(m->indices[PLAN_BLOCKS * (PLAN_KEYS + 1)], 0x01010101 * CANARY);
}

static void verify_list(const struct world *w, const struct plan_memory *m, uint32_t b)
{
	const struct flex_block *block = &m->blocks[b];
	const struct row *row = &w->rows[block->row];
	const int32_t *list = m->indices + b * (PLAN_KEYS + 1);
	uint32_t n = 0;

	for (uint32_t k = 0; k * FLEX_KEYS < row->seq_len; k++) {
		bool some = false, all = true;

		for (int32_t t = 0; t < block->n_tokens; t++) {
			uint32_t q = (uint32_t)(block->position + t);
			struct mask_view view = mask_view_of(&row->mask,
				row->words ? row->words[q] : 0, q, row->seq_len, 0);

			for (uint32_t i = k * FLEX_KEYS;
				i < (k + 1) * FLEX_KEYS && i < row->seq_len; i++) {
				some |= mask_sees(&view, i);
				all &= mask_sees(&view, i);
			}
		}
		if (!some)
			continue;
		assert_int_equal(FLEX_ENTRY_BLOCK(list[n]), k);
		if (FLEX_ENTRY_WHOLE(list[n]))
			assert_true(all);
		else if (row->mask.kind == MASK_CAUSAL || row->mask.kind == MASK_PREFIX)
			assert_false(all);
		n++;
	}
	assert_int_equal(m->counts[b], n);
	assert_int_equal(list[n], -1);
}

static void test_plan_lists_the_key_blocks_that_are_seen_and_ends_with_a_sentinel(void **state)
{
	static uint64_t words[WORLD_ROWS][LENGTH];
	static struct plan_memory m;
	struct world dice = { .random = 5 };
	struct world w;

	(void)state;
	world_init(&w, "flex", &ordinary);
	for (int round = 0; round < 60; round++) {
		struct row rows[WORLD_ROWS];
		uint32_t n_rows = draw_rows(&dice, 4, rows, words), token = 0, b = 0;

		world_place(&w, rows, n_rows, WORLD_ROWS, WORLD_TOKENS);
		make_plan(&w, &m, 0);
		for (; m.blocks[b].row >= 0; b++) {
			const struct flex_block *block = &m.blocks[b];
			const struct row *row = &w.rows[block->row];

			assert_int_equal(block->first, token);
			assert_in_range(block->n_tokens, 1, FLEX_QUERIES);
			assert_int_equal(block->seq_len, row->seq_len);
			assert_int_equal(block->position, row->seq_len - row->n_query + token -
				(uint32_t)w.inputs.query_start[block->row]);
			verify_list(&w, &m, b);
			token += (uint32_t)block->n_tokens;
		}
		assert_int_equal(token, w.batch.n_tokens);
		for (; b < PLAN_BLOCKS; b++) {
			assert_int_equal(m.blocks[b].row, -1);
			assert_int_equal(m.counts[b], 0);
			assert_int_equal(m.indices[b * (PLAN_KEYS + 1)], -1);
			token += (uint32_t)m.blocks[b].n_tokens;
		}
		assert_int_equal(token, WORLD_TOKENS);
	}
	world_deinit(&w);
}

/* As many blocks of queries as a batch can have, each with every block of keys in its list. */
static void test_worst_batch_fits_the_plan(void **state)
{
	static struct plan_memory m;
	struct row rows[WORLD_ROWS];
	uint32_t b = 0;
	struct world w;

	(void)state;
	world_init(&w, "flex", &ordinary);
	for (uint32_t r = 0; r < WORLD_ROWS; r++)
		rows[r] = (struct row){ .seed = r, .n_query = 17, .seq_len = LENGTH,
			.mask = { .kind = MASK_PREFIX, .begin = 0, .end = LENGTH } };
	world_place(&w, rows, WORLD_ROWS, 0, 0);
	for (uint32_t r = 0; r < WORLD_ROWS; r++)
		w.inputs.seq_lens[r] = INT32_MAX;
	make_plan(&w, &m, 0);
	while (m.blocks[b].row >= 0)
		b++;
	assert_int_equal(b, 2 * WORLD_ROWS);
	assert_true(b <= flex_blocks(WORLD_ROWS, 17 * WORLD_ROWS));
	for (uint32_t i = 0; i < b; i++) {
		assert_in_range(m.counts[i], 5, PLAN_KEYS);
		assert_int_equal(m.blocks[i].seq_len, w.config.max_pages * w.config.page_tokens);
	}
	world_run(&w);
	world_deinit(&w);
}

/* ---- graphs ---- */

static struct graph_exec *capture(struct world *w, uint32_t n_rows, uint32_t n_tokens)
{
	const struct device_ops *ops = w->device->ops;
	struct graph *graph = NULL;
	struct graph_exec *exec = NULL;

	world_place(w, NULL, 0, n_rows, n_tokens);
	assert_int_equal(world_build(w, ATTENTION_WARM_UP), 0);
	assert_int_equal(world_enqueue(w, LAYER), 0);
	world_sync(w);
	assert_int_equal(ops->lock(w->device), 0);
	assert_int_equal(world_build(w, ATTENTION_CAPTURE), 0);
	world_sync(w);
	assert_int_equal(ops->capture_begin(w->stream), 0);
	assert_int_equal(world_enqueue(w, LAYER), 0);
	assert_int_equal(ops->capture_end(w->stream, &graph), 0);
	assert_string_equal(ops->graph_node_name(graph, 0), "flex_attention");
	assert_null(ops->graph_node_name(graph, 1));
	assert_int_equal(ops->graph_instantiate(w->device, graph, &exec), 0);
	ops->graph_free(graph);
	return exec;
}

/* Captured with nothing to do; decodes beside chunks, each under a mask of its own. */
static void test_replay_of_mixed_batches_and_masks_equals_eager(void **state)
{
	static uint64_t words[WORLD_ROWS][LENGTH];
	float *replayed = calloc(WORLD_TOKENS * 64, sizeof(float));
	struct world dice = { .random = 21 };
	struct graph_exec *exec;
	struct world w;

	(void)state;
	world_init(&w, "flex", &ordinary);
	exec = capture(&w, WORLD_ROWS, WORLD_TOKENS);
	for (int round = 0; round < 20; round++) {
		struct row rows[WORLD_ROWS];
		uint32_t n_rows = draw_rows(&dice, 4, rows, words);

		if (round == 10)
			n_rows = 0;
		world_place(&w, rows, n_rows, WORLD_ROWS, WORLD_TOKENS);
		world_poison_out(&w);
		assert_int_equal(world_build(&w, ATTENTION_REPLAY), 0);
		assert_int_equal(w.device->ops->graph_launch(exec, w.stream), 0);
		world_sync(&w);
		world_verify(&w);
		memcpy(replayed, w.out, WORLD_TOKENS * w.width * sizeof(float));
		world_place(&w, rows, n_rows, 0, 0);
		world_run(&w);
		assert_memory_equal(
			w.out, replayed, w.batch.n_tokens * w.width * sizeof(float));
	}
	w.device->ops->graph_exec_free(exec);
	world_deinit(&w);
	free(replayed);
}

/* Nothing is left of the big batch's plan for the small one, although both have the same padding. */
static void test_small_batch_after_a_big_one_has_a_plan_of_its_own(void **state)
{
	struct row big[WORLD_ROWS], small = { .seed = 40, .n_query = 1, .seq_len = 3 };
	struct graph_exec *exec;
	struct world w;

	(void)state;
	for (uint32_t r = 0; r < WORLD_ROWS; r++)
		big[r] = (struct row){ .seed = r, .n_query = 20, .seq_len = LENGTH };
	world_init(&w, "flex", &ordinary);
	exec = capture(&w, WORLD_ROWS, WORLD_TOKENS);
	for (int turn = 0; turn < 2; turn++) {
		world_place(&w, turn ? &small : big, turn ? 1 : WORLD_ROWS, WORLD_ROWS,
			WORLD_TOKENS);
		world_poison_out(&w);
		assert_int_equal(world_build(&w, ATTENTION_REPLAY), 0);
		assert_int_equal(w.device->ops->graph_launch(exec, w.stream), 0);
		world_sync(&w);
		world_verify(&w);
	}
	w.device->ops->graph_exec_free(exec);
	world_deinit(&w);
}

/* ---- a cache beyond 2^31 elements ---- */

#define FAR_PAGE (1u << 20) /* of 2 x 16 x 2 x 64 elements: the cache's element 2^32 */

/* Every second page of the row goes behind element 2^31, the others behind 2^32. */
static void move_far(struct world *w, float *far, const struct row *row)
{
	const struct attention_config *c = &w->config;
	size_t page = (size_t)2 * c->page_tokens * c->n_kv_heads * c->head_dim;

	for (uint32_t i = 0; i * c->page_tokens < row->seq_len; i++) {
		int32_t *entry = &w->inputs.block_table[i];
		int32_t to = *entry + (int32_t)(i % 2 ? FAR_PAGE : FAR_PAGE / 2);

		memcpy(far + (size_t)to * page, w->kv + (size_t)*entry * page,
			page * sizeof(float));
		*entry = to;
	}
}

static void test_cache_past_2_31_elements_is_addressed_in_64_bits(void **state)
{
	const struct shape shape = { .n_heads = 2, .n_kv_heads = 2, .head_dim = 64,
		.page_tokens = 16, .max_seq_len = LENGTH };
	const size_t bytes = (size_t)(FAR_PAGE + 1024) * 4096 * sizeof(float);
	struct row row = { .seed = 9, .n_query = 20, .seq_len = 140,
		.mask = { .kind = MASK_WINDOW, .window = 50, .end = 20 } };
	float *near, *far = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct world w;

	(void)state;
	assert_ptr_not_equal(far, MAP_FAILED);
	world_init(&w, "flex", &shape);
	w.backend->metadata_free(w.metadata);
	w.backend->manager_free(w.manager);
	w.config.n_kv_pages = FAR_PAGE + 1024;
	assert_int_equal(w.backend->manager_new(w.device, &w.config, &w.inputs, &w.manager), 0);
	assert_int_equal(w.backend->metadata_new(w.manager, &w.metadata), 0);
	world_place(&w, &row, 1, 0, 0);
	move_far(&w, far, &row);
	near = w.kv;
	w.kv = far;
	world_run(&w);
	world_verify(&w);
	w.kv = near;
	world_deinit(&w);
	munmap(far, bytes);
}

/* A plan of a whole deployment: its lists together are beyond 2^31 elements. Only the places of two of
 * them are looked at. */
static void test_lists_past_2_31_elements_are_addressed_in_64_bits(void **state)
{
	enum { KEYS = (1 << 20) - 1, BLOCKS = 4200 }; /* beyond 2^32, too */
	const size_t bytes = (size_t)BLOCKS * (KEYS + 1) * sizeof(int32_t);
	struct row row = { .seed = 9, .n_query = 1, .seq_len = 1 };
	int32_t *indices = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct flex_block *blocks = calloc(BLOCKS, sizeof(*blocks));
	int32_t *counts = calloc(BLOCKS, sizeof(*counts));
	struct world w;

	(void)state;
	assert_ptr_not_equal(indices, MAP_FAILED);
	assert_non_null(blocks);
	assert_non_null(counts);
	world_init(&w, "flex", &ordinary);
	world_place(&w, &row, 1, 0, 0);
	assert_int_equal(flex_cpu_kernels.plan(w.stream, &(struct flex_plan_args){
		.in = {
			.query_start = w.inputs.query_start, .seq_lens = w.inputs.seq_lens,
			.max_blocks = BLOCKS, .max_keys = KEYS, .capacity = INT32_MAX,
		},
		.plan = { blocks, counts, indices },
		.n_rows = 1,
		.n_tokens = 1,
	}), 0);
	world_sync(&w);
	assert_int_equal(indices[0], FLEX_ENTRY(0, true));
	assert_int_equal(indices[1], -1);
	assert_int_equal(indices[(size_t)(BLOCKS - 1) * (KEYS + 1)], -1);
	world_deinit(&w);
	free(counts);
	free(blocks);
	munmap(indices, bytes);
}

/* ---- what it takes ---- */

static void test_models_that_it_cannot_serve_are_refused_with_the_reason(void **state)
{
	struct attention_config config;
	uint32_t max_query = 0;
	char why[128] = "";
	struct world w;

	(void)state;
	world_init(&w, "flex", &ordinary);
	config = w.config;
	assert_int_equal(w.backend->check(&config, why, sizeof(why)), 0);
	assert_int_equal(w.backend->support(&config, &max_query), ATTENTION_ALWAYS);
	assert_int_equal(max_query, WORLD_TOKENS);
	assert_true(w.backend->masks);
	config.kv_dtype = config.activation_dtype = DTYPE_BF16;
	assert_int_equal(w.backend->check(&config, why, sizeof(why)), -ENOTSUP);
	assert_non_null(strstr(why, "cpu device alone"));
	config = w.config;
	config.max_pages = INT32_MAX / config.page_tokens + 1;
	assert_int_equal(w.backend->check(&config, why, sizeof(why)), -ENOTSUP);
	assert_non_null(strstr(why, "too many"));
	world_deinit(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_masks_agree_with_dense_reference),
		cmocka_unit_test(test_each_mask_differs_from_causal_where_it_says),
		cmocka_unit_test(test_causal_is_paged_to_the_last_bit),
		cmocka_unit_test(test_bits_depend_on_what_is_seen_alone),
		cmocka_unit_test(test_views_of_hostile_programs_stay_within_the_sequence),
		cmocka_unit_test(test_hostile_programs_see_nothing_outside_the_sequence),
		cmocka_unit_test(test_rows_of_no_slot_are_causal),
		cmocka_unit_test(
			test_plan_lists_the_key_blocks_that_are_seen_and_ends_with_a_sentinel),
		cmocka_unit_test(test_worst_batch_fits_the_plan),
		cmocka_unit_test(test_replay_of_mixed_batches_and_masks_equals_eager),
		cmocka_unit_test(test_small_batch_after_a_big_one_has_a_plan_of_its_own),
		cmocka_unit_test(test_cache_past_2_31_elements_is_addressed_in_64_bits),
		cmocka_unit_test(test_lists_past_2_31_elements_are_addressed_in_64_bits),
		cmocka_unit_test(test_models_that_it_cannot_serve_are_refused_with_the_reason),
	};

	return cmocka_run_group_tests_name("attention under block masks", tests, NULL, NULL);
}
