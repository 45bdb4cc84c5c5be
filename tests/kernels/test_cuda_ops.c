/* SPDX-License-Identifier: MIT */
#include "tests/kernels/cuda_ops_fixture.h"

/* A rounding to bf16 is half of 2^-7. The norm of a rounded residual has three: its own, that of
 * the scale, which a narrow row shares, and the result's. */
#define ONE_ROUNDING 0.0040

static const uint32_t widths[] = {1, 7, 8, 63, 96, 1000, 1001, 2048, 4104, 8192, 8200, 20000};
static const uint32_t row_counts[] = {0, 1, 3, 17, 130};

static uint32_t any_rows(void)
{
	return row_counts[random_below(&rng, COUNT_OF(row_counts))];
}

/* ---- embed ---- */

/* Some tokens' embeddings are given, at any element of `given`: as `from` is to have it. */
static struct both random_from(const struct both *given, uint32_t cols, uint32_t n)
{
	struct both from = both_new(BYTES, n * sizeof(void *));

	for (uint32_t t = 0; t < n; t++) {
		size_t element = random_below(&rng, (uint32_t)given->n - cols + 1);
		bool is_given = random_below(&rng, 3);

		if (random_below(&rng, 2))
			element -= element % 8;
		for (int side = 0; side < N_SIDES; side++) {
			const uint8_t *at = is_given ? (uint8_t *)given->at[side] +
							      element * (side == CPU ? 4 : 2)
						     : NULL;

			both_copy(side, (uint8_t *)from.at[side] + t * sizeof(at), &at, sizeof(at));
		}
	}
	return from;
}

static void check_embed(enum dtype dtype, uint32_t cols, uint32_t n, bool some_given)
{
	const struct mark mark = mark_here();
	const uint32_t beyond = some_given ? 8 : 0;
	struct op_embed a = {.n_tokens = n, .out_stride = beyond ? cols + beyond : 0, .scale = n % 2 ? 1.7f : 0};
	struct both table = random_weight(&a.table, dtype, 37, cols), ids, out;
	struct both given = random_act((size_t)cols * 5 + 1), from = random_from(&given, cols, n);
	int32_t *values = scratch(n * sizeof(*values));

	for (uint32_t i = 0; i < n; i++)
		values[i] = i % 5 ? (int32_t)random_below(&rng, 37) : (int32_t)random_u32(&rng);
	ids = both_of(values, n * sizeof(*values));
	out = random_act_at((size_t)n * (cols + beyond), 1, random_below(&rng, 2));
	for (int side = 0; side < N_SIDES; side++) {
		a.table.data = table.at[side];
		a.ids = ids.at[side];
		a.from = some_given ? from.at[side] : NULL;
		a.out = out.at[side];
		RUN(side, embed, &a);
	}
	both_check_close(&out, dtype == DTYPE_BF16 && !a.scale ? 0 : ONE_ROUNDING, 1e-30);
	release_to(mark);
}

static void test_embed_equals_the_oracle(void **state)
{
	for (size_t i = 0; i < COUNT_OF(widths) * COUNT_OF(weight_dtypes); i++)
		check_embed(weight_dtypes[i % 3], widths[i / 3], any_rows(), false);
}

static void test_embed_of_given_embeddings_equals_the_oracle(void **state)
{
	for (size_t i = 0; i < COUNT_OF(widths) * COUNT_OF(weight_dtypes); i++)
		check_embed(weight_dtypes[i % 3], widths[i / 3], any_rows(), true);
}

/* ---- norms ---- */

enum way { INTO, IN_PLACE, ADD };

/* A permutation: 10007 is a prime, and no width's factor. */
static struct both order_of(uint32_t cols)
{
	uint32_t *order = malloc(cols * sizeof(*order));
	struct both both;

	assert_non_null(order);
	for (uint64_t k = 0; k < cols; k++)
		order[k] = (uint32_t)(k * 10007 % cols);
	both = both_of(order, cols * sizeof(*order));
	free(order);
	return both;
}

static void check_rms_norm(enum dtype dtype, uint32_t cols, uint32_t n, enum way way, bool ordered)
{
	const struct mark mark = mark_here();
	struct op_rms_norm a = {.n_rows = n, .eps = 1e-5f, .add = way == ADD};
	struct both order = order_of(cols);
	struct both w = random_weight(&a.weight, dtype, 1, cols);
	struct both x = random_act_at((size_t)n * cols, 4, random_below(&rng, 2));
	struct both out = random_act((size_t)n * cols);

	for (int side = 0; side < N_SIDES; side++) {
		a.weight.data = w.at[side];
		a.x = x.at[side];
		a.out = way == IN_PLACE ? x.at[side] : out.at[side];
		a.order = ordered ? order.at[side] : NULL;
		RUN(side, rms_norm, &a);
	}
	both_check_close(way == IN_PLACE ? &x : &out, ONE_ROUNDING, 1e-6);
	release_to(mark);
}

static void test_rms_norm_equals_the_oracle(void **state)
{
	for (size_t i = 0; i < COUNT_OF(widths) * COUNT_OF(weight_dtypes); i++)
		check_rms_norm(weight_dtypes[i % 3], widths[i / 3], any_rows(),
			(enum way[]){INTO, ADD, INTO, IN_PLACE, ADD}[i % 5], false);
}

static void test_rms_norm_in_an_order_equals_the_oracle(void **state)
{
	for (size_t i = 0; i < COUNT_OF(widths) * COUNT_OF(weight_dtypes); i++)
		check_rms_norm(weight_dtypes[i % 3], widths[i / 3], any_rows(),
			random_below(&rng, 2) ? IN_PLACE : INTO, true);
}

static void test_rms_norm_of_a_row_does_not_depend_on_the_batch(void **state)
{
	enum { ROWS = 9, COLS = 2048 };
	struct op_rms_norm a = {.eps = 1e-5f};
	struct both w = random_weight(&a.weight, DTYPE_BF16, 1, COLS), x = random_act(ROWS * COLS);
	struct both whole = both_new(ACT, ROWS * COLS), single = both_new(ACT, ROWS * COLS);
	float *want, *got;

	a.weight.data = w.at[CUDA];
	a.x = x.at[CUDA];
	a.out = whole.at[CUDA];
	a.n_rows = ROWS;
	RUN(CUDA, rms_norm, &a);
	a.n_rows = 1;
	for (size_t r = 0; r < ROWS; r++) {
		a.x = (uint16_t *)x.at[CUDA] + r * COLS;
		a.out = (uint16_t *)single.at[CUDA] + r * COLS;
		RUN(CUDA, rms_norm, &a);
	}
	want = both_floats(&whole, CUDA);
	got = both_floats(&single, CUDA);
	assert_memory_equal(got, want, ROWS * COLS * sizeof(float));
}

/* ---- rope and cache ---- */

struct rope_shape {
	uint32_t n_tokens, n_heads, n_kv_heads, head_dim, page_tokens;
	int q_norm, k_norm; /* -1: none; else a dtype's index */
};

static const struct rope_shape rope_shapes[] = {
	{1, 32, 8, 64, 16, -1, -1},
	{37, 32, 8, 128, 64, -1, -1},
	{5, 4, 4, 96, 16, 0, 0},
	{9, 6, 2, 256, 1, 1, 1},
	{33, 16, 8, 128, 16, 1, 1},
	{3, 3, 1, 6, 5, 2, -1},
	{4, 2, 1, 2, 3, -1, 0},
	{2, 5, 5, 80, 7, 0, 2},
	{2, 3, 1, 1024, 2, 1, -1},
	{0, 8, 8, 64, 16, -1, -1},
};

enum { ROPE_PAGES = 11, ROPE_POSITIONS = 50 };

static struct both rope_indices(uint32_t n, uint32_t n_slots, bool slots)
{
	int32_t *values = scratch(n * sizeof(*values));

	for (uint32_t t = 0; t < n; t++) {
		if (slots) /* distinct, some absent */
			values[t] = random_below(&rng, 5) && t < n_slots
					    ? (int32_t)((t * 7919u) % n_slots)
					    : -1;
		else
			values[t] = (int32_t)random_below(&rng, ROPE_POSITIONS + 20) - 10;
	}
	for (uint32_t t = 0; slots && t < n; t++)
		for (uint32_t u = 0; u < t; u++)
			if (values[u] == values[t])
				values[t] = -1;
	return both_of(values, n * sizeof(*values));
}

/* In a graph, behind another kernel: indices are read before that one is done. */
static void replay_rope(int side, const struct op_rope_and_cache *a)
{
	const struct device_ops *ops = devices[side]->ops;
	struct op_rope_and_cache none = *a;
	struct graph_exec *exec;
	struct graph *graph;

	none.n_tokens = 0;
	assert_int_equal(ops->capture_begin(streams[side]), 0);
	assert_int_equal(devices[side]->kernels->rope_and_cache(streams[side], &none), 0);
	assert_int_equal(devices[side]->kernels->rope_and_cache(streams[side], a), 0);
	assert_int_equal(ops->capture_end(streams[side], &graph), 0);
	assert_int_equal(ops->graph_instantiate(devices[side], graph, &exec), 0);
	assert_int_equal(ops->graph_launch(exec, streams[side]), 0);
	assert_int_equal(ops->stream_sync(streams[side]), 0);
	ops->graph_exec_free(exec);
	ops->graph_free(graph);
}

static void check_rope(const struct rope_shape *s, bool replayed, bool fp8)
{
	const struct mark mark = mark_here();
	uint32_t n_slots = ROPE_PAGES * s->page_tokens;
	struct op_rope_and_cache a = {
		.max_positions = ROPE_POSITIONS,
		.eps = 1e-6f,
		.n_tokens = s->n_tokens,
		.n_heads = s->n_heads,
		.n_kv_heads = s->n_kv_heads,
		.head_dim = s->head_dim,
		.page_tokens = s->page_tokens,
		.fp8 = fp8,
		.factors = {0.0031f, 0.0017f}, /* so that large values saturate */
	};
	struct both q_norm = random_weight(
		&a.q_norm, weight_dtypes[s->q_norm < 0 ? 0 : s->q_norm], 1, s->head_dim);
	struct both k_norm = random_weight(
		&a.k_norm, weight_dtypes[s->k_norm < 0 ? 0 : s->k_norm], 1, s->head_dim);
	struct both qkv =
		random_act((size_t)s->n_tokens * (s->n_heads + 2 * s->n_kv_heads) * s->head_dim);
	struct both kv = both_new(fp8 ? BYTES : ACT, (size_t)n_slots * 2 * s->n_kv_heads * s->head_dim);
	struct both positions = rope_indices(s->n_tokens, n_slots, false);
	struct both slots = rope_indices(s->n_tokens, n_slots, true);
	struct both cos_sin = random_both_floats((size_t)ROPE_POSITIONS * s->head_dim);

	for (int side = 0; side < N_SIDES; side++) {
		a.q_norm.data = s->q_norm < 0 ? NULL : q_norm.at[side];
		a.k_norm.data = s->k_norm < 0 ? NULL : k_norm.at[side];
		a.qkv = qkv.at[side];
		a.kv = kv.at[side];
		a.positions = positions.at[side];
		a.slot_mapping = slots.at[side];
		a.cos_sin = cos_sin.at[side];
		if (replayed)
			replay_rope(side, &a);
		else
			RUN(side, rope_and_cache, &a);
	}
	both_check_close(&qkv, ONE_ROUNDING, 1e-5);
	if (fp8)
		both_check_codes(&kv);
	else
		both_check_close(&kv, ONE_ROUNDING, 1e-5);
	release_to(mark);
}

static void test_rope_and_cache_equals_the_oracle(void **state)
{
	for (size_t i = 0; i < COUNT_OF(rope_shapes); i++)
		check_rope(&rope_shapes[i], false, false);
}

static void test_replayed_rope_and_cache_equals_the_oracle(void **state)
{
	check_rope(&rope_shapes[0], false, false); /* the first use is no part of a graph */
	for (size_t i = 0; i < COUNT_OF(rope_shapes); i++)
		check_rope(&rope_shapes[i], true, false);
}

static void test_rope_and_cache_of_fp8_equals_the_oracle(void **state)
{
	for (size_t i = 0; i < 2 * COUNT_OF(rope_shapes); i++)
		check_rope(&rope_shapes[i / 2], i % 2, true);
}

/* ---- silu_mul, gather_rows, to_f32 ---- */

static void test_silu_mul_equals_the_oracle(void **state)
{
	for (size_t i = 0; i < COUNT_OF(widths); i++) {
		const struct mark mark = mark_here();
		struct op_silu_mul a = {.n_rows = any_rows(), .cols = widths[i], .gelu = i % 2};
		size_t n = (size_t)a.n_rows * a.cols;
		struct both x = random_act_at(2 * n, 20, random_below(&rng, 2)),
			    out = both_new(ACT, n);

		for (int side = 0; side < N_SIDES; side++) {
			a.gate_up = x.at[side];
			a.out = out.at[side];
			RUN(side, silu_mul, &a);
		}
		both_check_close(&out, ONE_ROUNDING, 1e-20);
		release_to(mark);
	}
}

static void test_soft_cap_equals_the_oracle(void **state)
{
	static const uint64_t sizes[] = {1, 3, 4, 7, 1000, 2048 * 31 + 5};

	for (size_t i = 0; i < 2 * COUNT_OF(sizes); i++) {
		const struct mark mark = mark_here();
		const uint64_t n = sizes[i / 2], skip = i % 2; /* aligned to a pack, and not */
		struct op_soft_cap a = {.n = n, .cap = 0.5f};
		struct both x = random_both_floats(n + 1);
		float *got = scratch((n + 1) * sizeof(*got)), *want = scratch((n + 1) * sizeof(*want));

		for (int side = 0; side < N_SIDES; side++) {
			a.x = (float *)x.at[side] + skip;
			RUN(side, soft_cap, &a);
		}
		both_copy(CUDA, got, x.at[CUDA], x.n);
		both_copy(CPU, want, x.at[CPU], x.n);
		assert_floats_close(got, want, n + 1, 1e-6, 1e-7);
		release_to(mark);
	}
}

static void test_silu_mul_of_extremes_is_finite(void **state)
{
	static const float values[16] = {
		-3e38f, -1000, -100, -88, 88, 100, 1000, 3e38f, 1, 1, 1, 1, 1, 1, 1, 1};
	struct op_silu_mul a = {.n_rows = 1, .cols = 8};
	struct both x = both_new(ACT, 16), out = both_new(ACT, 8);

	both_put(&x, values);
	for (int side = 0; side < N_SIDES; side++) {
		a.gate_up = x.at[side];
		a.out = out.at[side];
		RUN(side, silu_mul, &a);
	}
	both_check_close(&out, ONE_ROUNDING, 1e-30);
}

/* By an index or in order, into rows of their width or wider. */
static void test_gather_rows_takes_the_same_rows(void **state)
{
	for (size_t i = 0; i < COUNT_OF(widths); i++) {
		const struct mark mark = mark_here();
		struct op_gather_rows a = {.n_rows = any_rows(), .x_rows = 21, .cols = widths[i]};
		const uint32_t beyond[] = {0, 8, 3}, stride = a.cols + beyond[i % 3];
		struct both x = random_act_at((size_t)21 * a.cols, 1, random_below(&rng, 2));
		struct both out = random_act((size_t)a.n_rows * stride), index;
		int32_t values[256];

		a.out_stride = beyond[i % 3] ? stride : 0;

		for (uint32_t r = 0; r < a.n_rows; r++)
			values[r] =
				r % 7 ? (int32_t)random_below(&rng, 21) : (int32_t)random_u32(&rng);
		index = both_of(values, a.n_rows * 4);
		for (int side = 0; side < N_SIDES; side++) {
			a.x = x.at[side];
			a.index = i % 4 == 3 ? NULL : index.at[side];
			a.out = out.at[side];
			RUN(side, gather_rows, &a);
		}
		both_check_close(&out, 0, 0);
		release_to(mark);
	}
}

static void test_to_f32_is_exact(void **state)
{
	static const uint64_t sizes[] = {0, 1, 7, 8, 9, 1000, 2048 * 31 + 5, 3000001};

	for (size_t i = 0; i < COUNT_OF(sizes); i++) {
		const struct mark mark = mark_here();
		struct op_to_f32 a = {.n = sizes[i]};
		struct both x = random_act_at(a.n, 1, i % 2), out = both_new(BYTES, a.n * 4);

		for (int side = 0; side < N_SIDES; side++) {
			a.x = x.at[side];
			a.out = out.at[side];
			RUN(side, to_f32, &a);
		}
		both_check_equal(&out, "to_f32");
		release_to(mark);
	}
}

/* ---- copy_pages ---- */

/* Chains, swaps and a page that several pairs write: the pairs' order must show. */
static void test_copy_pages_keeps_the_order_of_the_pairs(void **state)
{
	static const uint64_t page_bytes[] = {1, 33, 64, 4096, 32768, 100000};
	enum { PAGES = 7, MAX_PAIRS = 600 };

	for (size_t i = 0; i < COUNT_OF(page_bytes) * 3; i++) {
		const struct mark mark = mark_here();
		struct op_copy_pages a = {.page_bytes = page_bytes[i / 3],
			.n_pairs = random_below(&rng, i % 2 ? MAX_PAIRS + 1 : 24)};
		struct both pairs = both_new_pinned(MAX_PAIRS * 8), kv;
		uint8_t *image = scratch(PAGES * a.page_bytes);
		uint32_t values[2 * MAX_PAIRS];

		for (size_t b = 0; b < PAGES * a.page_bytes; b++)
			image[b] = (uint8_t)random_u32(&rng);
		for (uint32_t p = 0; p < 2 * MAX_PAIRS; p++)
			values[p] = random_below(&rng, PAGES);
		both_put(&pairs, values);
		kv = both_of(image, PAGES * a.page_bytes);
		for (int side = 0; side < N_SIDES; side++) {
			a.kv = kv.at[side];
			a.pairs = pairs.at[side];
			RUN(side, copy_pages, &a);
		}
		both_check_equal(&kv, "pages");
		release_to(mark);
	}
}

/* ---- set_tables ---- */

enum {
	SET_ROWS = 4,
	SET_TOKENS = 24,
	SET_SLOTS = 5,
	SET_PAGES = 8, /* of a row */
	SET_PAGE_TOKENS = 4,
	SETS = 3,
	SET_ALL_PAGES = 200,
};

struct set_arrays {
	struct both slot_mapping, block_table, slot_block_table, query_start, seq_lens, row_slot, changes, pages;
};

/* As prepare leaves them: rows of slots 3, none and 1, with 2 tokens behind 17, one, and 5 from the beginning; a row
 * and tokens of padding. Pages 10, 11 ... of slot 3, 30 ... of slot 1, 100 more in the last set. */
static struct set_arrays set_arrays_new(void)
{
	static const int32_t query_start[] = {0, 2, 3, 8, 8}, seq_lens[] = {19, 0, 5, 0}, row_slot[] = {3, -1, 1, -1};
	static const uint32_t pages[] = {10, 11, 12, 13, 14, 110, 111, 112, 113, 114, 30, 31, 130, 131, 60, 61};
	static const struct set_change changes[] = {
		{3, 1, 0, 5, 0}, {3, 2, 0, 5, 5}, {1, 1, 0, 2, 10}, {1, 2, 0, 2, 12}, {3, 1, 3, 2, 14}};
	int32_t mapping[SETS * SET_TOKENS], tables[SETS * SET_SLOTS * SET_PAGES], rows[SETS * SET_ROWS * SET_PAGES];
	struct set_arrays ret = {.changes = both_new_pinned(sizeof(changes)), .pages = both_new_pinned(sizeof(pages))};

	for (uint32_t i = 0; i < COUNT_OF(mapping); i++)
		mapping[i] = i < 8 && i != 2 ? (int32_t)i : -1;
	for (uint32_t i = 0; i < COUNT_OF(tables); i++)
		tables[i] = 40 + (int32_t)i;
	for (uint32_t i = 0; i < COUNT_OF(rows); i++)
		rows[i] = (int32_t)random_below(&rng, SET_ALL_PAGES); /* of an earlier step */
	both_put(&ret.changes, changes);
	both_put(&ret.pages, pages);
	ret.slot_mapping = both_of(mapping, sizeof(mapping));
	ret.block_table = both_of(rows, sizeof(rows));
	ret.slot_block_table = both_of(tables, sizeof(tables));
	ret.query_start = both_of(query_start, sizeof(query_start));
	ret.seq_lens = both_of(seq_lens, sizeof(seq_lens));
	ret.row_slot = both_of(row_slot, sizeof(row_slot));
	return ret;
}

static void queue_set_tables(
	const struct set_arrays *arrays, int side, uint32_t n_full_sets, uint32_t first, uint32_t n)
{
	const struct op_set_tables a = {
		.inputs = {
			.max_rows = SET_ROWS,
			.max_tokens = SET_TOKENS,
			.max_slots = SET_SLOTS,
			.max_pages = SET_PAGES,
			.page_tokens = SET_PAGE_TOKENS,
			.n_sets = SETS,
			.slot_mapping = arrays->slot_mapping.at[side],
			.query_start = arrays->query_start.at[side],
			.seq_lens = arrays->seq_lens.at[side],
			.row_slot = arrays->row_slot.at[side],
			.block_table = arrays->block_table.at[side],
			.slot_block_table = arrays->slot_block_table.at[side],
		},
		.changes = (const struct set_change *)arrays->changes.at[side] + first,
		.pages = arrays->pages.at[side],
		.n_changes = n,
		.n_rows = SET_ROWS,
		.n_pages = SET_ALL_PAGES,
		.n_full_sets = n_full_sets,
		.window = 6,
	};

	assert_int_equal(devices[side]->kernels->set_tables(streams[side], &a), 0);
}

/* A step without changes, one with those of both slots, and straight behind it one that changes slot 3 again. */
static void test_set_tables_equals_the_oracle(void **state)
{
	static const uint32_t counts[][2] = {{0, 0}, {0, 4}, {4, 1}};

	for (uint32_t n_full_sets = 0; n_full_sets < SETS; n_full_sets++) {
		for (uint32_t n_steps = 1; n_steps <= COUNT_OF(counts); n_steps++) {
			const struct mark mark = mark_here();
			struct set_arrays arrays = set_arrays_new();

			for (int side = 0; side < N_SIDES; side++) {
				for (uint32_t i = 0; i < n_steps; i++)
					queue_set_tables(&arrays, side, n_full_sets, counts[i][0], counts[i][1]);
				assert_int_equal(devices[side]->ops->stream_sync(streams[side]), 0);
			}
			both_check_equal(&arrays.block_table, "block_table");
			both_check_equal(&arrays.slot_mapping, "slot_mapping");
			both_check_equal(&arrays.slot_block_table, "slot_block_table");
			release_to(mark);
		}
	}
}

/* ---- outbox ---- */

static void test_outbox_writes_tokens_and_then_the_flag(void **state)
{
	static const uint32_t counts[] = {0, 1, 31, 256, 1000};

	for (size_t i = 0; i < COUNT_OF(counts); i++) {
		const struct mark mark = mark_here();
		struct op_outbox a = {.step = 7000000000u + i, .n_rows = counts[i]};
		struct both out = both_new_pinned(a.n_rows * 4), flag = both_new_pinned(8), sampled;
		int32_t values[1000];

		for (size_t r = 0; r < COUNT_OF(values); r++)
			values[r] = (int32_t)random_u32(&rng);
		sampled = both_of(values, a.n_rows * 4);
		for (int side = 0; side < N_SIDES; side++) {
			a.sampled = sampled.at[side];
			a.out = out.at[side];
			a.flag = flag.at[side];
			RUN(side, outbox, &a);
			assert_int_equal(*a.flag, a.step);
			assert_memory_equal(a.out, values, a.n_rows * 4);
		}
		release_to(mark);
	}
}

/* ---- shapes that cannot be ---- */

#define REFUSES(op, ...)                                                                           \
	for (int side = 0; side < N_SIDES; side++)                                                 \
	assert_int_equal(                                                                          \
		devices[side]->kernels->op(streams[side], &(struct op_##op){__VA_ARGS__}),         \
		-EINVAL)

static void test_shapes_that_cannot_be_are_refused(void **state)
{
	float memory[8];
	int32_t ids[8];
	struct weight w = {.data = memory, .dtype = DTYPE_F32, .rows = 1, .cols = 8};
	struct weight bad = {.data = memory, .dtype = DTYPE_I32, .rows = 1, .cols = 8};

	REFUSES(embed, .table = bad, .ids = ids, .out = memory);
	REFUSES(embed, .table = w, .out = memory);
	REFUSES(rms_norm, .x = memory, .weight = w, .out = memory, .eps = NAN);
	REFUSES(rms_norm, .x = memory, .weight = bad, .out = memory);
	REFUSES(silu_mul, .gate_up = memory, .out = memory);
	REFUSES(gather_rows, .x = memory, .index = ids, .out = memory, .cols = 1);
	REFUSES(to_f32, .x = memory);
	REFUSES(soft_cap, .x = memory, .n = 1);
	REFUSES(copy_pages, .kv = memory, .page_bytes = 8, .n_pairs = 1);
	REFUSES(outbox, .sampled = ids, .out = ids);
	REFUSES(rope_and_cache, .qkv = memory, .positions = ids, .slot_mapping = ids,
		.cos_sin = memory, .kv = memory, .n_heads = 3, .n_kv_heads = 2, .head_dim = 2,
		.page_tokens = 1, .max_positions = 1);
	REFUSES(sample, .logits = memory, .sampled = ids, .vocab = 8, .n_rows = 1);
	REFUSES(prepare, .n_pages = 1);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(test_embed_equals_the_oracle),
	cmocka_unit_test(test_embed_of_given_embeddings_equals_the_oracle),
	cmocka_unit_test(test_rms_norm_equals_the_oracle),
	cmocka_unit_test(test_rms_norm_in_an_order_equals_the_oracle),
	cmocka_unit_test(test_rms_norm_of_a_row_does_not_depend_on_the_batch),
	cmocka_unit_test(test_rope_and_cache_equals_the_oracle),
	cmocka_unit_test(test_replayed_rope_and_cache_equals_the_oracle),
	cmocka_unit_test(test_rope_and_cache_of_fp8_equals_the_oracle),
	cmocka_unit_test(test_silu_mul_equals_the_oracle),
	cmocka_unit_test(test_silu_mul_of_extremes_is_finite),
	cmocka_unit_test(test_soft_cap_equals_the_oracle),
	cmocka_unit_test(test_gather_rows_takes_the_same_rows),
	cmocka_unit_test(test_to_f32_is_exact),
	cmocka_unit_test(test_copy_pages_keeps_the_order_of_the_pairs),
	cmocka_unit_test(test_set_tables_equals_the_oracle),
	cmocka_unit_test(test_outbox_writes_tokens_and_then_the_flag),
	cmocka_unit_test(test_shapes_that_cannot_be_are_refused),
};

CUDA_TEST_MAIN("cuda_ops", tests)
