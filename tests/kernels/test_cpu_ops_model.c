/* SPDX-License-Identifier: MIT */
#include "tests/kernels/cpu_ops_fixture.h"

/* ---- embed ---- */

/* Every bit pattern of a 16-bit dtype, as a table of 1024 rows of 64. */
static void check_all_values(enum dtype dtype)
{
	enum { ROWS = 1024, COLS = 64 };
	struct buffer table = buffer_new(ROWS * COLS * 2), ids = buffer_new(ROWS * 4);
	struct buffer out = buffer_new(ROWS * COLS * sizeof(float));
	struct op_embed a = {
		.table = {.data = table.data, .dtype = dtype, .rows = ROWS, .cols = COLS},
		.ids = ids.data,
		.out = out.data,
		.n_tokens = ROWS,
	};

	for (uint32_t i = 0; i < ROWS * COLS; i++)
		((uint16_t *)table.data)[i] = (uint16_t)i;
	for (int32_t i = 0; i < ROWS; i++)
		((int32_t *)ids.data)[i] = i;
	RUN(embed, &a);
	for (uint32_t i = 0; i < ROWS * COLS; i++) {
		double want = weight_at(&a.table, i / COLS, i % COLS);

		if (isnan(want))
			assert_true(isnan(F(out)[i]));
		else
			assert_true(
				(double)F(out)[i] == want && !signbit(F(out)[i]) == !signbit(want));
	}
}

static void test_embed_converts_every_bf16_exactly(void **state)
{
	check_all_values(DTYPE_BF16);
}

static void test_embed_converts_every_f16_exactly(void **state)
{
	check_all_values(DTYPE_F16);
}

static void test_embed_clamps_ids_into_the_vocabulary(void **state)
{
	static const int32_t ids[] = {0, 16, 17, -1, INT32_MIN, INT32_MAX, 3};
	static const uint32_t rows[] = {0, 16, 16, 0, 0, 16, 3};
	enum { COLS = 45 };

	for (size_t d = 0; d < COUNT_OF(weight_dtypes); d++) {
		struct op_embed a = {
			.table = random_weight(weight_dtypes[d], 17, COLS),
			.ids = ids,
			.n_tokens = COUNT_OF(ids),
		};
		struct buffer out = buffer_new(sizeof(float) * COLS * COUNT_OF(ids));

		a.out = out.data;
		RUN(embed, &a);
		for (size_t i = 0; i < COLS * COUNT_OF(ids); i++)
			assert_true(
				(double)F(out)[i] == weight_at(&a.table, rows[i / COLS], i % COLS));
	}
}

/* Given ones lie anywhere, and their ids stand for nothing; the others are the table's. */
static void test_embed_takes_given_embeddings_bit_for_bit_and_ids_for_the_others(void **state)
{
	static const int32_t ids[] = {3, -1, 16, INT32_MAX, 0, 7};
	static const bool is_given[] = {false, true, false, true, true, false};
	enum { COLS = 45, N = COUNT_OF(ids), BYTES = COLS * sizeof(float) };
	const void *from[N] = {NULL};

	for (size_t d = 0; d < COUNT_OF(weight_dtypes); d++) {
		struct op_embed a = {
			.table = random_weight(weight_dtypes[d], 17, COLS),
			.ids = ids,
			.from = from,
			.n_tokens = N,
		};
		struct buffer out = buffer_new(N * BYTES), given = buffer_new(N * BYTES + 3);

		for (size_t i = 0; i < N * BYTES; i++)
			((uint8_t *)given.data)[i] = (uint8_t)random_u32(&rng);
		for (size_t t = 0; t < N; t++)
			if (is_given[t])
				from[t] = (uint8_t *)given.data + (N - 1 - t) * BYTES + t % 4;
		a.out = out.data;
		RUN(embed, &a);
		for (size_t t = 0; t < N; t++) {
			const float *row = F(out) + t * COLS;

			if (is_given[t])
				assert_memory_equal(row, from[t], BYTES);
			for (size_t i = 0; i < COLS && !is_given[t]; i++)
				assert_true((double)row[i] ==
					weight_at(&a.table, (size_t)ids[t], i));
		}
	}
}

static void test_embed_scales_what_is_of_the_table_alone(void **state)
{
	enum { COLS = 5, N = 3 };
	static const int32_t ids[N] = {2, 0, 1};
	struct buffer given = random_floats(COLS), out = buffer_new(N * COLS * sizeof(float));
	const void *from[N] = {NULL, given.data, NULL};
	struct op_embed a = {.table = random_weight(DTYPE_BF16, 3, COLS), .ids = ids, .from = from, .out = out.data,
		.n_tokens = N, .scale = 6.5f};

	RUN(embed, &a);
	for (size_t t = 0; t < N; t++)
		for (size_t i = 0; i < COLS; i++)
			assert_true(F(out)[t * COLS + i] ==
				(from[t] ? F(given)[i] : (float)weight_at(&a.table, (size_t)ids[t], i) * 6.5f));
}

/* ---- norms ---- */

static void test_rms_norm_adds_to_what_is_there(void **state)
{
	enum { ROWS = 3, COLS = 45 };
	struct buffer x = random_floats(ROWS * COLS), out = random_floats(ROWS * COLS);
	struct buffer alone = buffer_new(ROWS * COLS * sizeof(float)), before = buffer_new(ROWS * COLS * sizeof(float));
	struct op_rms_norm a = {.x = x.data, .weight = random_weight(DTYPE_BF16, 1, COLS), .out = alone.data,
		.n_rows = ROWS, .eps = 1e-6f};

	RUN(rms_norm, &a);
	memcpy(before.data, out.data, before.bytes);
	a.out = out.data;
	a.add = true;
	RUN(rms_norm, &a);
	for (size_t i = 0; i < ROWS * COLS; i++)
		assert_close((double)F(out)[i], (double)F(before)[i] + (double)F(alone)[i],
			4e-7 * (fabs((double)F(before)[i]) + fabs((double)F(alone)[i])));
}

static void check_normed(
	const float *got, const float *x, const struct weight *w, uint32_t n_rows, float eps)
{
	for (uint32_t r = 0; r < n_rows; r++) {
		const float *row = x + (size_t)r * w->cols;
		double scale = norm_scale(row, w->cols, eps);

		for (uint32_t i = 0; i < w->cols; i++) {
			double want = (double)row[i] * scale * weight_at(w, 0, i);

			assert_close((double)got[(size_t)r * w->cols + i], want,
				4e-7 * fabs(want) + 1e-30);
		}
	}
}

static const uint32_t odd_sizes[] = {1, 2, 7, 8, 9, 63, 160, 1001, 4096};

static void test_rms_norm_equals_double_reference(void **state)
{
	rng = 10;
	for (size_t i = 0; i < COUNT_OF(odd_sizes) * 3; i++) {
		uint32_t n = 1 + random_below(&rng, 9), cols = odd_sizes[i / 3];
		struct op_rms_norm a = {
			.weight = random_weight(weight_dtypes[i % 3], 1, cols),
			.n_rows = n,
			.eps = 1e-5f,
		};
		struct buffer x = random_floats((size_t)n * cols), out = buffer_new(x.bytes);

		a.x = x.data;
		a.out = out.data;
		RUN(rms_norm, &a);
		check_normed(F(out), F(x), &a.weight, n, a.eps);
	}
}

static void test_rms_norm_of_zeroes_is_zero(void **state)
{
	struct op_rms_norm a = {
		.weight = random_weight(DTYPE_F32, 1, 19),
		.n_rows = 1,
		.eps = 1e-6f,
	};
	struct buffer x = buffer_new(19 * 4);

	memset(x.data, 0, x.bytes);
	a.x = x.data;
	a.out = x.data;
	RUN(rms_norm, &a);
	for (int i = 0; i < 19; i++)
		assert_true(F(x)[i] == 0);
}

/* 7 has no factor of the widths. */
static void test_rms_norm_writes_columns_in_the_order_given(void **state)
{
	static const uint32_t widths[] = {1, 9, 160, 4096};

	rng = 12;
	for (size_t i = 0; i < COUNT_OF(widths); i++) {
		const uint32_t cols = widths[i], n = 3;
		struct op_rms_norm a = {.weight = random_weight(DTYPE_BF16, 1, cols), .n_rows = n, .eps = 1e-5f};
		struct buffer x = random_floats((size_t)n * cols), plain = buffer_new(x.bytes);
		struct buffer order = buffer_new(cols * sizeof(uint32_t));

		for (uint32_t k = 0; k < cols; k++)
			((uint32_t *)order.data)[k] = k * 7 % cols;
		a.x = x.data;
		a.out = plain.data;
		RUN(rms_norm, &a);
		a.out = x.data;
		a.order = order.data;
		RUN(rms_norm, &a);
		for (uint32_t k = 0; k < n * cols; k++)
			assert_true(F(x)[k] == F(plain)[k - k % cols + k % cols * 7 % cols]);
	}
}

/* ---- the rest ---- */

static void test_silu_mul_equals_double_reference(void **state)
{
	static const float gates[] = {0, -0.0f, 100, -100, 1e-30f, 88.8f, -88.8f, 3e38f, -3e38f};

	rng = 30;
	for (size_t c = 0; c < COUNT_OF(odd_sizes); c++) {
		uint32_t n = 1 + random_below(&rng, 5), cols = odd_sizes[c];
		struct buffer in = random_floats((size_t)n * 2 * cols);
		struct buffer out = buffer_new((size_t)n * cols * sizeof(float));
		struct op_silu_mul a = {in.data, out.data, n, cols};

		for (size_t i = 0; i < (size_t)n * 2 * cols; i++)
			F(in)[i] *= 8;
		for (size_t i = 0; i < COUNT_OF(gates) && i < cols; i++)
			F(in)[i] = gates[i];
		RUN(silu_mul, &a);
		for (size_t i = 0; i < (size_t)n * cols; i++) {
			const float *row = F(in) + i / cols * 2 * cols;
			double gate = (double)row[i % cols], up = (double)row[cols + i % cols];
			double want = gate / (1 + exp(-gate)) * up;

			if (fabs(want) < 1e38)
				assert_close((double)F(out)[i], want, 1e-6 * fabs(want) + 1e-35);
		}
	}
}

static void test_gather_rows_clamps_indices(void **state)
{
	static const int32_t index[] = {4, 0, 4, -7, 5, INT32_MAX, 2};
	static const uint32_t rows[] = {4, 0, 4, 0, 4, 4, 2};
	enum { COLS = 13 };
	struct buffer x = random_floats(5 * COLS);
	struct buffer out = buffer_new(COUNT_OF(index) * COLS * sizeof(float));
	struct op_gather_rows a = {x.data, index, out.data, COUNT_OF(index), 5, COLS};

	RUN(gather_rows, &a);
	for (size_t r = 0; r < COUNT_OF(index); r++)
		assert_memory_equal(F(out) + r * COLS, F(x) + rows[r] * COLS, COLS * sizeof(float));
}

/* Two halves of one row, as what a draft's first product reads has. */
static void test_gather_rows_and_embed_write_their_columns_of_wider_rows_alone(void **state)
{
	static const int32_t ids[] = {2, 0, 1};
	enum { COLS = 5, STRIDE = 2 * COLS + 3, N = COUNT_OF(ids) };
	struct buffer x = random_floats(4 * COLS), out = random_floats(N * STRIDE);
	float *want = malloc(out.bytes);
	struct op_embed embed = {
		.table = random_weight(DTYPE_F32, 3, COLS),
		.ids = ids,
		.n_tokens = N,
		.out_stride = STRIDE,
	};
	struct op_gather_rows gather = {x.data, NULL, F(out) + COLS, N, 4, COLS, STRIDE};

	assert_non_null(want);
	memcpy(want, out.data, out.bytes);
	for (size_t r = 0; r < N; r++) {
		memcpy(want + r * STRIDE, ((const float *)embed.table.data) + (size_t)ids[r] * COLS,
			COLS * sizeof(float));
		memcpy(want + r * STRIDE + COLS, F(x) + r * COLS, COLS * sizeof(float));
	}
	embed.out = out.data;
	RUN(embed, &embed);
	RUN(gather_rows, &gather);
	assert_memory_equal(out.data, want, out.bytes);
	free(want);
}

static void test_gelu_mul_equals_double_reference(void **state)
{
	enum { COLS = 77 };
	struct buffer x = random_floats(2 * COLS), out = buffer_new(COLS * sizeof(float));
	struct op_silu_mul a = {.gate_up = x.data, .out = out.data, .n_rows = 1, .cols = COLS, .gelu = true};

	for (size_t i = 0; i < COLS; i++)
		F(x)[i] *= 6;
	RUN(silu_mul, &a);
	for (size_t i = 0; i < COLS; i++) {
		const double g = (double)F(x)[i], up = (double)F(x)[COLS + i];
		const double inner = sqrt(2 / 3.14159265358979323846) * (g + 0.044715 * g * g * g);
		const double want = g / 2 * (1 + tanh(inner)) * up;

		assert_close((double)F(out)[i], want, 1e-6 * (fabs(g * up) + 1e-3));
	}
}

static void test_soft_cap_equals_double_reference(void **state)
{
	static const float values[] = {0, 1e-6f, 3, -29, 31, -1000, INFINITY, -INFINITY};
	struct buffer x = buffer_new(sizeof(values));
	struct op_soft_cap a = {.x = x.data, .n = COUNT_OF(values), .cap = 30};

	memcpy(x.data, values, sizeof(values));
	RUN(soft_cap, &a);
	for (size_t i = 0; i < COUNT_OF(values); i++) {
		const double want = 30 * tanh((double)values[i] / 30);

		assert_close((double)F(x)[i], want, 4e-7 * fabs(want) + 1e-9);
	}
}

static void test_to_f32_copies_float32(void **state)
{
	struct buffer x = random_floats(77), out = buffer_new(77 * sizeof(float));
	struct op_to_f32 a = {x.data, out.data, 77};

	RUN(to_f32, &a);
	assert_memory_equal(out.data, x.data, x.bytes);
}

static void test_copy_pages_touches_destinations_only(void **state)
{
	enum { PAGES = 9, BYTES = 1000 };
	static const uint32_t pairs[] = {1, 5, 2, 8, 1, 3, 7, 7};
	static const int sources[PAGES] = {0, 1, 2, 1, 4, 1, 6, 7, 2};
	struct buffer kv = buffer_new(PAGES * BYTES), before = buffer_new(PAGES * BYTES);
	struct op_copy_pages a = {kv.data, BYTES, pairs, 4};

	for (size_t i = 0; i < kv.bytes; i++)
		((uint8_t *)kv.data)[i] = (uint8_t)random_u32(&rng);
	memcpy(before.data, kv.data, kv.bytes);
	RUN(copy_pages, &a);
	for (int p = 0; p < PAGES; p++)
		assert_memory_equal((uint8_t *)kv.data + p * BYTES,
			(uint8_t *)before.data + sources[p] * BYTES, BYTES);
}

static void test_outbox_delivers_tokens_and_step(void **state)
{
	static const int32_t sampled[] = {3, -1, 70000};
	struct buffer out = buffer_new(sizeof(sampled));
	uint64_t flag = 6;
	struct op_outbox a = {sampled, out.data, &flag, UINT64_C(1) << 40, 3};

	RUN(outbox, &a);
	assert_int_equal(__atomic_load_n(&flag, __ATOMIC_ACQUIRE), UINT64_C(1) << 40);
	assert_memory_equal(out.data, sampled, sizeof(sampled));
}

static void test_model_ops_refuse_shapes_that_cannot_be(void **state)
{
	float m[8] = {0};
	int32_t index[8] = {0};
	struct weight w = {m, DTYPE_F32, 1, 2}, two_rows = {m, DTYPE_F32, 2, 2};
	struct weight wide = {m, DTYPE_F32, 1, RMS_NORM_ORDER_MAX + 1};
	struct op_rope_and_cache rope = {
		.qkv = m,
		.positions = index,
		.slot_mapping = index,
		.cos_sin = m,
		.max_positions = 1,
		.kv = m,
		.n_heads = 2,
		.n_kv_heads = 1,
		.head_dim = 2,
		.page_tokens = 1,
	};
	struct op_rope_and_cache odd = rope, groups = rope, pages = rope, norm = rope;

	odd.head_dim = 3;
	groups.n_kv_heads = 3;
	pages.page_tokens = 0;
	norm.q_norm = two_rows;
	assert_refused(rope_and_cache, &odd);
	assert_refused(rope_and_cache, &groups);
	assert_refused(rope_and_cache, &pages);
	assert_refused(rope_and_cache, &norm);
	assert_refused(embed, &(struct op_embed){w, NULL, NULL, m, 1});
	assert_refused(rms_norm, &(struct op_rms_norm){m, two_rows, m, 1, 0});
	assert_refused(rms_norm, &(struct op_rms_norm){m, w, m, 1, -1});
	assert_refused(rms_norm, &(struct op_rms_norm){.x = m, .weight = wide, .out = m, .n_rows = 1, .order = (const uint32_t *)m});
	assert_refused(silu_mul, &(struct op_silu_mul){m, m, 1, 0});
	assert_refused(gather_rows, &(struct op_gather_rows){m, index, m, 1, 0, 2});
	assert_refused(gather_rows, &(struct op_gather_rows){m, index, m, 1, 1, 2, 1});
	assert_refused(embed, &(struct op_embed){w, index, NULL, m, 1, w.cols - 1});
	assert_refused(to_f32, &(struct op_to_f32){NULL, m, 1});
	assert_refused(soft_cap, &(struct op_soft_cap){m, 1, 0});
	assert_refused(soft_cap, &(struct op_soft_cap){m, 1, NAN});
	assert_refused(rms_norm, &(struct op_rms_norm){.x = m, .weight = w, .out = m, .n_rows = 1, .add = true});
	assert_refused(rms_norm, &(struct op_rms_norm){.x = m, .weight = w, .out = index, .n_rows = 1, .add = true,
		.order = (const uint32_t *)m});
	assert_refused(copy_pages, &(struct op_copy_pages){m, 4, NULL, 1});
	assert_refused(outbox, &(struct op_outbox){index, index, NULL, 1, 1});
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(test_embed_converts_every_bf16_exactly),
	cmocka_unit_test(test_embed_converts_every_f16_exactly),
	cmocka_unit_test(test_embed_clamps_ids_into_the_vocabulary),
	cmocka_unit_test(test_embed_takes_given_embeddings_bit_for_bit_and_ids_for_the_others),
	cmocka_unit_test(test_rms_norm_equals_double_reference),
	cmocka_unit_test(test_rms_norm_of_zeroes_is_zero),
	cmocka_unit_test(test_rms_norm_writes_columns_in_the_order_given),
	cmocka_unit_test(test_silu_mul_equals_double_reference),
	cmocka_unit_test(test_gather_rows_clamps_indices),
	cmocka_unit_test(test_gather_rows_and_embed_write_their_columns_of_wider_rows_alone),
	cmocka_unit_test(test_embed_scales_what_is_of_the_table_alone),
	cmocka_unit_test(test_rms_norm_adds_to_what_is_there),
	cmocka_unit_test(test_gelu_mul_equals_double_reference),
	cmocka_unit_test(test_soft_cap_equals_double_reference),
	cmocka_unit_test(test_to_f32_copies_float32),
	cmocka_unit_test(test_copy_pages_touches_destinations_only),
	cmocka_unit_test(test_outbox_delivers_tokens_and_step),
	cmocka_unit_test(test_model_ops_refuse_shapes_that_cannot_be),
};

OPS_TEST_MAIN("cpu ops: model", tests)
