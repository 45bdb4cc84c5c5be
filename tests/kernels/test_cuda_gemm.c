/* SPDX-License-Identifier: MIT */
#include "kernels/convert.h"
#include "tests/kernels/cuda_fixture.h"

/*
 * Operands are small multiples of 1/8, so that every product and sum is exact in float32 and the
 * answer does not depend on the order of the sums: results are compared bit by bit, a bf16 one
 * after rounding. Where rows are not whole 16-byte words, cuBLASLt may round before it adds a bias.
 */

struct operands {
	struct op_gemm args;
	float *expected; /* [n_rows, n] */
	float *bias;     /* [n] */
	size_t y_bytes;
	void *memory;
};

static float eighths(uint32_t *seed)
{
	*seed = *seed * 1664525u + 1013904223u;
	return (float)((int)(*seed >> 24 & 15) - 8) / 8;
}

static float *random_floats(size_t n, uint32_t seed)
{
	float *values = calloc(n, sizeof(*values));

	assert_non_null(values);
	for (size_t i = 0; i < n; i++)
		values[i] = eighths(&seed);
	return values;
}

/* n values at `to`, as bf16 or as they are. */
static void put(struct fixture *f, void *to, const float *values, size_t n, enum dtype dtype)
{
	uint16_t *half = calloc(n, sizeof(*half));

	assert_non_null(half);
	for (size_t i = 0; i < n; i++)
		half[i] = f32_to_bf16(values[i]);
	if (dtype == DTYPE_BF16)
		assert_int_equal(f->ops->copy(f->device, to, half, n * sizeof(*half)), 0);
	else
		assert_int_equal(f->ops->copy(f->device, to, values, n * sizeof(*values)), 0);
	free(half);
}

static void multiply(float *y, const float *x, const float *w, const float *bias, uint32_t rows,
	uint32_t n, uint32_t k)
{
	for (uint32_t r = 0; r < rows; r++) {
		for (uint32_t c = 0; c < n; c++) {
			float sum = bias[c];

			for (uint32_t i = 0; i < k; i++)
				sum += x[(size_t)r * k + i] * w[(size_t)c * k + i];
			y[(size_t)r * n + c] = sum;
		}
	}
}

static size_t aligned(size_t bytes)
{
	return (bytes + 255) / 256 * 256;
}

static struct operands operands_new(
	struct fixture *f, uint32_t rows, uint32_t n, uint32_t k, enum dtype y_dtype, bool bias)
{
	const size_t x_bytes = aligned((size_t)rows * k * 2), w_bytes = aligned((size_t)n * k * 2);
	const size_t bias_bytes = aligned((size_t)n * 4);
	struct operands o = {.y_bytes = (size_t)rows * n * dtype_bytes(y_dtype)};
	float *x = random_floats((size_t)rows * k, 1), *w = random_floats((size_t)n * k, 2);
	float *b = random_floats(n, 3);
	uint8_t *at;

	if (!bias)
		memset(b, 0, n * sizeof(*b));
	o.expected = calloc((size_t)rows * n, sizeof(float));
	assert_non_null(o.expected);
	multiply(o.expected, x, w, b, rows, n, k);
	assert_int_equal(f->ops->mem_alloc(f->device,
				 x_bytes + w_bytes + bias_bytes + o.y_bytes + 256, &o.memory),
		0);
	at = o.memory;
	o.args = (struct op_gemm){.n_rows = rows,
		.y_dtype = y_dtype,
		.x = at,
		.w = {.data = at + x_bytes, .dtype = DTYPE_BF16, .rows = n, .cols = k},
		.y = at + x_bytes + w_bytes + bias_bytes};
	put(f, at, x, (size_t)rows * k, DTYPE_BF16);
	put(f, at + x_bytes, w, (size_t)n * k, DTYPE_BF16);
	if (bias) {
		o.args.bias = (struct weight){
			.data = at + x_bytes + w_bytes, .dtype = y_dtype, .rows = 1, .cols = n};
		put(f, at + x_bytes + w_bytes, b, n, y_dtype);
	}
	free(x);
	free(w);
	o.bias = b;
	return o;
}

static void operands_free(struct fixture *f, struct operands *o)
{
	f->ops->mem_free(f->device, o->memory);
	free(o->expected);
	free(o->bias);
}

/* y as the device has it, and 64 canary bytes behind it. */
static uint8_t *result(struct fixture *f, const struct operands *o)
{
	uint8_t *bytes = malloc(o->y_bytes + 64);

	assert_non_null(bytes);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	assert_int_equal(f->ops->copy(f->device, bytes, o->args.y, o->y_bytes + 64), 0);
	for (int i = 0; i < 64; i++)
		assert_int_equal(bytes[o->y_bytes + i], 0xff);
	return bytes;
}

static void poison(struct fixture *f, const struct operands *o)
{
	assert_int_equal(f->ops->fill_async(f->stream, o->args.y, 0xff, o->y_bytes + 64), 0);
}

static bool bf16_is_right(const struct operands *o, size_t i, uint16_t half)
{
	const float bias = o->bias[i % o->args.w.rows];

	if (half == f32_to_bf16(o->expected[i]))
		return true;
	return (o->args.w.cols % 8 != 0 || o->args.w.rows % 8 != 0) &&
	       half == f32_to_bf16(bf16_to_f32(f32_to_bf16(o->expected[i] - bias)) + bias);
}

/* How many elements are wrong; the first of them is shown. */
static size_t differences(const struct operands *o, const uint8_t *bytes)
{
	const size_t n = (size_t)o->args.n_rows * o->args.w.rows;
	const bool f32 = o->args.y_dtype == DTYPE_F32;
	size_t wrong = 0;

	for (size_t i = 0; i < n; i++) {
		uint16_t half = ((const uint16_t *)bytes)[i];

		if (f32 ? ((const float *)bytes)[i] == o->expected[i] : bf16_is_right(o, i, half))
			continue;
		if (wrong++ == 0)
			print_message("# %u rows, [%u, %u], %s%s: %zu is %x, not %g\n",
				o->args.n_rows, o->args.w.rows, o->args.w.cols,
				f32 ? "f32" : "bf16", o->args.bias.data != NULL ? ", bias" : "", i,
				f32 ? ((const uint32_t *)bytes)[i] : half, o->expected[i]);
	}
	return wrong;
}

/* What the device has made of o, by whatever ran since poison(). */
static size_t wrong_in(struct fixture *f, const struct operands *o)
{
	uint8_t *bytes = result(f, o);
	size_t wrong = differences(o, bytes);

	free(bytes);
	return wrong;
}

static size_t run_wrong(struct fixture *f, const struct operands *o)
{
	poison(f, o);
	assert_int_equal(f->device->kernels->gemm(f->stream, &o->args), 0);
	return wrong_in(f, o);
}

static void test_gemm_is_the_product_over_shapes(void **state)
{
	static const uint32_t rows[] = {1, 2, 3, 8, 17, 100, 300};
	static const uint32_t shapes[][2] = {
		{8, 16}, {64, 64}, {96, 256}, {33, 48}, {40, 129}, {7, 5}, {512, 1024}};
	struct fixture *f = *state;
	size_t wrong = 0;

	for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
		for (size_t r = 0; r < 4 * sizeof(rows) / sizeof(rows[0]); r++) {
			struct operands o = operands_new(f, rows[r / 4], shapes[s][0], shapes[s][1],
				r & 1 ? DTYPE_F32 : DTYPE_BF16, r & 2);

			wrong += run_wrong(f, &o);
			operands_free(f, &o);
		}
	}
	assert_int_equal(wrong, 0);
}

/* So that near scores keep their order. */
static void test_router_logits_are_float32(void **state)
{
	static const uint32_t shapes[][2] = {{8, 48}, {8, 160}, {64, 2048}, {256, 7168}};
	static const uint32_t tokens[] = {1, 9, 70};
	struct fixture *f = *state;

	for (size_t i = 0; i < 4 * 3; i++) {
		struct operands o = operands_new(
			f, tokens[i / 4], shapes[i % 4][0], shapes[i % 4][1], DTYPE_F32, false);

		assert_int_equal(run_wrong(f, &o), 0);
		operands_free(f, &o);
	}
}

static void test_gemm_of_no_rows_writes_nothing(void **state)
{
	struct fixture *f = *state;
	struct operands o = operands_new(f, 2, 16, 16, DTYPE_BF16, false);
	uint8_t *bytes;

	poison(f, &o);
	o.args.n_rows = 0;
	assert_int_equal(f->device->kernels->gemm(f->stream, &o.args), 0);
	bytes = result(f, &o);
	for (size_t i = 0; i < o.y_bytes; i++)
		assert_int_equal(bytes[i], 0xff);
	free(bytes);
	operands_free(f, &o);
}

static void test_gemm_refuses_what_it_cannot(void **state)
{
	struct fixture *f = *state;
	struct operands o = operands_new(f, 2, 16, 16, DTYPE_BF16, true);
	struct op_gemm a[5] = {o.args, o.args, o.args, o.args, o.args};

	a[0].w.dtype = DTYPE_F16;
	a[1].bias.dtype = DTYPE_F32;
	a[2].bias.cols = 15;
	a[3].y_dtype = DTYPE_I32;
	a[4].x = NULL;
	for (int i = 0; i < 5; i++)
		assert_int_equal(f->device->kernels->gemm(f->stream, &a[i]),
			i < 2 ? -ENOTSUP : -EINVAL);
	operands_free(f, &o);
}

static void test_replayed_gemm_has_the_bits_of_the_eager_one(void **state)
{
	struct fixture *f = *state;
	struct operands o = operands_new(f, 5, 512, 1024, DTYPE_BF16, true);
	uint8_t *eager, *replayed;
	struct graph_exec *exec;
	struct graph *graph;

	poison(f, &o);
	assert_int_equal(f->device->kernels->gemm(f->stream, &o.args), 0);
	eager = result(f, &o);
	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	assert_int_equal(f->device->kernels->gemm(f->stream, &o.args), 0);
	assert_int_equal(f->ops->capture_end(f->stream, &graph), 0);
	assert_string_equal(f->ops->graph_node_name(graph, 0), "gemm");
	assert_int_equal(f->ops->graph_instantiate(f->device, graph, &exec), 0);
	poison(f, &o);
	assert_int_equal(f->ops->graph_launch(exec, f->stream), 0);
	replayed = result(f, &o);
	assert_memory_equal(eager, replayed, o.y_bytes);
	assert_int_equal(differences(&o, replayed), 0);
	free(eager);
	free(replayed);
	f->ops->graph_exec_free(exec);
	f->ops->graph_free(graph);
	operands_free(f, &o);
}

static void check_recorded_first(struct fixture *f, uint32_t rows, uint32_t k)
{
	struct operands o = operands_new(f, rows, 128, k, DTYPE_F32, true);
	struct graph_exec *exec;

	poison(f, &o);
	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	assert_int_equal(f->device->kernels->gemm(f->stream, &o.args), 0);
	exec = finish(f);
	replay(f, exec);
	assert_int_equal(wrong_in(f, &o), 0);
	f->ops->graph_exec_free(exec);
	operands_free(f, &o);
}

static void test_gemm_of_a_new_shape_is_recorded_untimed(void **state)
{
	struct fixture *f = *state;
	struct operands warm = operands_new(f, 3, 64, 64, DTYPE_BF16, false);

	assert_int_equal(f->device->kernels->gemm(f->stream, &warm.args), 0);
	check_recorded_first(f, 7, 96);
	check_recorded_first(f, 7, 128);
	check_recorded_first(f, 24, 1000);
	operands_free(f, &warm);
}

static void test_gemm_of_a_new_shape_after_lock_allocates_nothing(void **state)
{
	struct fixture *f = *state;
	struct operands warm = operands_new(f, 3, 64, 64, DTYPE_BF16, false);
	struct operands new[] = {operands_new(f, 9, 96, 128, DTYPE_F32, false),
		operands_new(f, 24, 96, 1000, DTYPE_F32, false)};

	assert_int_equal(f->device->kernels->gemm(f->stream, &warm.args), 0);
	assert_int_equal(f->ops->lock(f->device), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(run_wrong(f, &new[i]), 0);
	/* one stream's scratch is not another's */
	assert_int_equal(f->device->kernels->gemm(f->other, &warm.args), DEVICE_E_LOCKED);
	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	assert_int_equal(f->device->kernels->gemm(f->stream, &warm.args), 0);
	f->ops->graph_exec_free(finish(f));
	operands_free(f, &new[0]);
	operands_free(f, &new[1]);
	operands_free(f, &warm);
}

static void test_gemm_first_used_in_a_capture_spoils_it(void **state)
{
	struct fixture *f = *state;
	struct operands o = operands_new(f, 3, 64, 64, DTYPE_BF16, false);
	struct graph *graph;

	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	assert_int_equal(
		f->device->kernels->gemm(f->stream, &o.args), DEVICE_E_CAPTURE_UNSUPPORTED);
	assert_int_equal(f->ops->capture_end(f->stream, &graph), DEVICE_E_CAPTURE_INVALIDATED);
	operands_free(f, &o);
}

/* Both are of one class: the plan of the first must not be taken to where it cannot go. */
static void test_gemm_of_operands_aligned_otherwise_is_right(void **state)
{
	struct fixture *f = *state;
	struct operands o = operands_new(f, 4, 64, 256, DTYPE_BF16, false);
	const size_t x_bytes = 4 * 256 * 2;
	void *moved;

	o.args.y = (uint8_t *)o.args.y + 8;
	assert_int_equal(run_wrong(f, &o), 0);
	assert_int_equal(f->ops->mem_alloc(f->device, x_bytes + 8, &moved), 0);
	assert_int_equal(f->ops->copy(f->device, (uint8_t *)moved + 8, o.args.x, x_bytes), 0);
	o.args.x = (uint8_t *)moved + 8;
	o.args.y = (uint8_t *)o.args.y - 8;
	assert_int_equal(run_wrong(f, &o), 0);
	f->ops->mem_free(f->device, moved);
	operands_free(f, &o);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		ON_DEVICE(test_gemm_is_the_product_over_shapes),
		ON_DEVICE(test_router_logits_are_float32),
		ON_DEVICE(test_gemm_of_no_rows_writes_nothing),
		ON_DEVICE(test_gemm_refuses_what_it_cannot),
		ON_DEVICE(test_replayed_gemm_has_the_bits_of_the_eager_one),
		ON_DEVICE(test_gemm_of_a_new_shape_is_recorded_untimed),
		ON_DEVICE(test_gemm_of_a_new_shape_after_lock_allocates_nothing),
		ON_DEVICE(test_gemm_first_used_in_a_capture_spoils_it),
		ON_DEVICE(test_gemm_of_operands_aligned_otherwise_is_right),
	};

	return no_cuda() ? 0 : cmocka_run_group_tests_name("cuda_gemm", tests, NULL, NULL);
}
