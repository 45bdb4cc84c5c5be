/* SPDX-License-Identifier: MIT */
#include "tests/kernels/cpu_ops_fixture.h"

/* y = x W^T + bias in double, checked element by element. The tolerance scales with the sum of the
 * magnitudes, which is what float32 rounding scales with. */
static void check_product(const struct op_gemm *a)
{
	for (uint32_t r = 0; r < a->n_rows; r++) {
		const float *x = (const float *)a->x + (size_t)r * a->w.cols;

		for (uint32_t c = 0; c < a->w.rows; c++) {
			double sum = a->bias.data ? weight_at(&a->bias, 0, c) : 0;
			double magnitude = fabs(sum);

			for (uint32_t i = 0; i < a->w.cols; i++) {
				double term = (double)x[i] * weight_at(&a->w, c, i);

				sum += term;
				magnitude += fabs(term);
			}
			assert_close((double)((const float *)a->y)[(size_t)r * a->w.rows + c], sum,
				2e-6 * magnitude);
		}
	}
}

static void check_shape(uint32_t n_rows, uint32_t out, uint32_t k, enum dtype dtype, int bias_dtype)
{
	struct op_gemm a = {
		.w = random_weight(dtype, out, k),
		.n_rows = n_rows,
		.y_dtype = DTYPE_F32,
	};
	struct buffer x = random_floats((size_t)n_rows * k);
	struct buffer y = buffer_new((size_t)n_rows * out * sizeof(float));

	if (bias_dtype >= 0)
		a.bias = random_weight((enum dtype)bias_dtype, 1, out);
	a.x = x.data;
	a.y = y.data;
	RUN(gemm, &a);
	check_product(&a);
}

static void test_gemm_equals_double_reference_at_random_shapes(void **state)
{
	rng = 1;
	for (size_t d = 0; d < COUNT_OF(weight_dtypes); d++)
		for (int i = 0; i < 24; i++)
			check_shape(1 + random_below(&rng, 33), 1 + random_below(&rng, 100),
				1 + random_below(&rng, 400), weight_dtypes[d], (int)(i % 4) - 1);
}

static void test_gemm_equals_double_reference_past_a_block_of_columns(void **state)
{
	static const uint32_t columns[] = {1023, 1024, 1025, 2048, 3001};

	rng = 2;
	for (size_t i = 0; i < COUNT_OF(columns); i++)
		check_shape(9, 33, columns[i], weight_dtypes[i % 3], -1);
}

static void test_a_gemm_that_adds_adds_what_one_that_does_not_writes(void **state)
{
	rng = 7;
	for (int i = 0; i < 24; i++) {
		const uint32_t n = 1 + random_below(&rng, 20), out = 1 + random_below(&rng, 90), k = 1 + random_below(&rng, 200);
		struct op_gemm a = {.w = random_weight(DTYPE_BF16, out, k), .n_rows = n, .y_dtype = DTYPE_F32};
		struct buffer x = random_floats((size_t)n * k), sum = random_floats((size_t)n * out);
		struct buffer y = buffer_new(sum.bytes), before = buffer_new(sum.bytes);

		if (i % 2)
			a.bias = random_weight(DTYPE_F32, 1, out);
		memcpy(before.data, sum.data, sum.bytes);
		a.x = x.data;
		a.y = y.data;
		RUN(gemm, &a);
		a.y = sum.data;
		a.add = true;
		RUN(gemm, &a);
		for (size_t j = 0; j < (size_t)n * out; j++)
			assert_true(F(sum)[j] == F(before)[j] + F(y)[j]);
	}
}

static void test_gemm_of_one_row_column_and_output(void **state)
{
	rng = 3;
	for (size_t d = 0; d < COUNT_OF(weight_dtypes); d++) {
		check_shape(1, 1, 1, weight_dtypes[d], DTYPE_BF16);
		check_shape(1, 65, 1, weight_dtypes[d], -1);
		check_shape(17, 1, 1025, weight_dtypes[d], -1);
	}
}

#define POOL 33

/* Each row alone, then in batches of every size at random places: the same bits. */
static void check_rows_alone_and_together(uint32_t out, uint32_t k, enum dtype dtype)
{
	struct op_gemm a = {
		.bias = random_weight(dtype, 1, out),
		.w = random_weight(dtype, out, k),
		.y_dtype = DTYPE_F32,
	};
	struct buffer pool = random_floats((size_t)POOL * k), x = random_floats((size_t)POOL * k);
	struct buffer alone = buffer_new(sizeof(float) * POOL * out);
	struct buffer y = buffer_new(sizeof(float) * POOL * out);

	for (uint32_t r = 0; r < POOL; r++) {
		a.n_rows = 1;
		a.x = (float *)pool.data + (size_t)r * k;
		a.y = (float *)alone.data + (size_t)r * out;
		RUN(gemm, &a);
	}
	a.x = x.data;
	a.y = y.data;
	for (a.n_rows = 1; a.n_rows <= POOL; a.n_rows++) {
		uint32_t picked[POOL];

		for (uint32_t r = 0; r < a.n_rows; r++) {
			picked[r] = random_below(&rng, POOL);
			memcpy((float *)x.data + (size_t)r * k,
				(float *)pool.data + (size_t)picked[r] * k, k * sizeof(float));
		}
		memset(y.data, 0xff, y.bytes);
		RUN(gemm, &a);
		for (uint32_t r = 0; r < a.n_rows; r++)
			assert_memory_equal((float *)y.data + (size_t)r * out,
				(float *)alone.data + (size_t)picked[r] * out, out * sizeof(float));
	}
}

static void test_gemm_row_is_bitwise_the_same_in_any_batch(void **state)
{
	static const struct {
		uint32_t out, k;
	} shapes[] = {
		{1, 7},
		{31, 31},
		{100, 160},
		{65, 448},
		{48, 1500},
		{33, 2049},
	};

	rng = 4;
	for (size_t d = 0; d < COUNT_OF(weight_dtypes); d++)
		for (size_t i = 0; i < COUNT_OF(shapes); i++)
			check_rows_alone_and_together(shapes[i].out, shapes[i].k, weight_dtypes[d]);
}

static void test_gemm_row_is_unchanged_beside_rows_of_nan(void **state)
{
	enum { N = 13, K = 1100, OUT = 40 };
	struct op_gemm a = {
		.w = random_weight(DTYPE_BF16, OUT, K),
		.n_rows = N,
		.y_dtype = DTYPE_F32,
	};
	struct buffer x = random_floats(N * K), y = buffer_new(sizeof(float) * N * OUT);
	struct buffer clean = buffer_new(sizeof(float) * N * OUT);

	a.x = x.data;
	a.y = clean.data;
	RUN(gemm, &a);
	for (uint32_t r = 0; r < N; r++)
		if (r != 5 && r != 12)
			memset((float *)x.data + r * K, 0xff, sizeof(float) * K);
	a.y = y.data;
	RUN(gemm, &a);
	assert_memory_equal(
		(float *)y.data + 5 * OUT, (float *)clean.data + 5 * OUT, sizeof(float) * OUT);
	assert_memory_equal(
		(float *)y.data + 12 * OUT, (float *)clean.data + 12 * OUT, sizeof(float) * OUT);
	assert_true(isnan(((float *)y.data)[0]));
}

static void test_gemm_of_no_rows_writes_nothing(void **state)
{
	struct op_gemm a = {
		.w = random_weight(DTYPE_F16, 32, 32),
		.n_rows = 0,
		.y_dtype = DTYPE_F32,
	};
	struct buffer y = buffer_new(128);

	a.x = a.w.data;
	a.y = y.data;
	RUN(gemm, &a);
	for (size_t i = 0; i < y.bytes; i++)
		assert_int_equal(((uint8_t *)y.data)[i], 0xff);
}

static void test_gemm_of_one_row_loads_what_any_number_of_rows_needs(void **state)
{
	enum { N = 33, K = 300, OUT = 70 };
	struct device_options options = {.spin_us = 0};
	struct device *locked;
	struct stream *its_stream;
	struct op_gemm a = {.w = random_weight(DTYPE_BF16, OUT, K),
			       .n_rows = 1,
			       .y_dtype = DTYPE_F32},
		       wider;
	struct buffer x = random_floats(N * K), y = buffer_new(sizeof(float) * N * OUT);

	a.x = x.data;
	a.y = y.data;
	assert_int_equal(device_open("cpu", &options, &locked), 0);
	assert_int_equal(locked->ops->stream_new(locked, &its_stream), 0);
	assert_int_equal(locked->kernels->gemm(its_stream, &a), 0);
	assert_int_equal(locked->ops->stream_sync(its_stream), 0);
	assert_int_equal(locked->ops->lock(locked), 0);
	a.n_rows = N;
	assert_int_equal(locked->kernels->gemm(its_stream, &a), 0);
	assert_int_equal(locked->ops->stream_sync(its_stream), 0);
	check_product(&a);
	wider = a;
	wider.w.rows = 1;
	wider.w.cols = K + 1;
	assert_int_equal(locked->kernels->gemm(its_stream, &wider), DEVICE_E_LOCKED);
	locked->ops->stream_free(its_stream);
	locked->ops->free(locked);
}

static void test_gemm_replay_reads_its_inputs_anew(void **state)
{
	enum { N = 5, K = 90, OUT = 40 };
	const struct device_ops *ops = device->ops;
	struct op_gemm a = {
		.w = random_weight(DTYPE_F16, OUT, K),
		.n_rows = N,
		.y_dtype = DTYPE_F32,
	};
	struct buffer x = random_floats(N * K), y = buffer_new(sizeof(float) * N * OUT);
	struct graph *graph;
	struct graph_exec *exec;

	a.x = x.data;
	a.y = y.data;
	RUN(gemm, &a);
	memset(y.data, 0xff, y.bytes);
	assert_int_equal(ops->capture_begin(stream), 0);
	assert_int_equal(device->kernels->gemm(stream, &a), 0);
	assert_int_equal(ops->capture_end(stream, &graph), 0);
	assert_string_equal(ops->graph_node_name(graph, 0), "gemm");
	assert_int_equal(ops->graph_instantiate(device, graph, &exec), 0);
	assert_true(isnan(((float *)y.data)[0]));
	for (uint32_t i = 0; i < N * K; i++)
		((float *)x.data)[i] = random_float(&rng);
	assert_int_equal(ops->graph_launch(exec, stream), 0);
	assert_int_equal(ops->stream_sync(stream), 0);
	check_product(&a);
	ops->graph_exec_free(exec);
	ops->graph_free(graph);
}

static void test_gemm_refuses_shapes_that_cannot_be(void **state)
{
	float memory[4] = {0};
	const struct op_gemm good = {
		.x = memory,
		.w = {.data = memory, .dtype = DTYPE_F32, .rows = 2, .cols = 2},
		.y = memory,
		.y_dtype = DTYPE_F32,
	};
	struct op_gemm bad[9];

	for (size_t i = 0; i < COUNT_OF(bad); i++)
		bad[i] = good;
	bad[0].x = NULL;
	bad[1].y = NULL;
	bad[2].w.data = NULL;
	bad[3].w.rows = 0;
	bad[4].w.cols = 0;
	bad[5].w.dtype = DTYPE_U8;
	bad[6].y_dtype = DTYPE_BF16;
	bad[7].bias = (struct weight){.data = memory, .dtype = DTYPE_F32, .rows = 1, .cols = 3};
	bad[8].add = true; /* y is x */
	for (size_t i = 0; i < COUNT_OF(bad); i++)
		assert_refused(gemm, &bad[i]);
}

/* ---- gated ---- */

static void check_gated(uint32_t n_rows, uint32_t cols, uint32_t k, bool biased)
{
	struct op_gated_gemm a = {
		.bias = random_weight(DTYPE_BF16, 1, 2 * cols),
		.w = random_weight(DTYPE_BF16, 2 * cols, k),
		.n_rows = n_rows,
	};
	struct buffer x = random_floats((size_t)n_rows * k);
	struct buffer gate_up = buffer_new((size_t)n_rows * 2 * cols * sizeof(float));
	struct buffer y = buffer_new((size_t)n_rows * cols * sizeof(float));

	if (!biased)
		a.bias.data = NULL;
	a.x = x.data;
	a.gate_up = gate_up.data;
	a.y = y.data;
	RUN(gated_gemm, &a);
	for (uint32_t i = 0; i < n_rows * cols; i++) {
		const float *row = (const float *)x.data + (size_t)(i / cols) * k;
		double sums[2], magnitude = 1, want;

		for (uint32_t half = 0; half < 2; half++) {
			const uint32_t out = half * cols + i % cols;

			sums[half] = biased ? weight_at(&a.bias, 0, out) : 0;
			for (uint32_t c = 0; c < k; c++) {
				const double term = (double)row[c] * weight_at(&a.w, out, c);

				sums[half] += term;
				magnitude += fabs(term);
			}
		}
		want = sums[0] / (1 + exp(-sums[0])) * sums[1];
		assert_close((double)((const float *)y.data)[i], want,
			4e-6 * magnitude * (1 + fabs(sums[0]) + fabs(sums[1])));
	}
}

static void test_gated_gemm_equals_double_reference(void **state)
{
	rng = 11;
	for (int i = 0; i < 24; i++)
		check_gated(random_below(&rng, 12), 1 + random_below(&rng, 70),
			1 + random_below(&rng, 300), i & 1);
}

static void test_gated_gemm_refuses_shapes_that_cannot_be(void **state)
{
	float memory[16] = {0};
	const struct op_gated_gemm good = {.x = memory,
		.w = {memory, DTYPE_F32, 4, 2}, .gate_up = memory, .y = memory, .n_rows = 1};
	struct op_gated_gemm bad[5];

	for (size_t i = 0; i < COUNT_OF(bad); i++)
		bad[i] = good;
	bad[0].x = NULL;
	bad[1].y = NULL;
	bad[2].gate_up = NULL;
	bad[3].w.rows = 3;
	bad[4].bias = (struct weight){memory, DTYPE_F32, 1, 2};
	for (size_t i = 0; i < COUNT_OF(bad); i++)
		assert_refused(gated_gemm, &bad[i]);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(test_gemm_equals_double_reference_at_random_shapes),
	cmocka_unit_test(test_gemm_equals_double_reference_past_a_block_of_columns),
	cmocka_unit_test(test_a_gemm_that_adds_adds_what_one_that_does_not_writes),
	cmocka_unit_test(test_gemm_of_one_row_column_and_output),
	cmocka_unit_test(test_gemm_row_is_bitwise_the_same_in_any_batch),
	cmocka_unit_test(test_gemm_row_is_unchanged_beside_rows_of_nan),
	cmocka_unit_test(test_gemm_of_no_rows_writes_nothing),
	cmocka_unit_test(test_gemm_of_one_row_loads_what_any_number_of_rows_needs),
	cmocka_unit_test(test_gemm_replay_reads_its_inputs_anew),
	cmocka_unit_test(test_gemm_refuses_shapes_that_cannot_be),
	cmocka_unit_test(test_gated_gemm_equals_double_reference),
	cmocka_unit_test(test_gated_gemm_refuses_shapes_that_cannot_be),
};

OPS_TEST_MAIN("cpu ops: gemm", tests)
