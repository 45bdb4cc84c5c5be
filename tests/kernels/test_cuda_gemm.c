/* SPDX-License-Identifier: MIT */
#include "tests/kernels/cuda_fixture.h"

#include <math.h>
#include <time.h>

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

static uint16_t bf16_of(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

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
		half[i] = bf16_of(values[i]);
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

static float rounded(float value)
{
	uint32_t bits = (uint32_t)bf16_of(value) << 16;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

static bool bf16_is_right(const struct operands *o, size_t i, uint16_t half)
{
	const float bias = o->bias[i % o->args.w.rows];

	if (half == bf16_of(o->expected[i]))
		return true;
	return (o->args.w.cols % 8 != 0 || o->args.w.rows % 8 != 0) &&
	       half == bf16_of(rounded(o->expected[i] - bias) + bias);
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
			uint8_t *bytes;

			poison(f, &o);
			assert_int_equal(f->device->kernels->gemm(f->stream, &o.args), 0);
			bytes = result(f, &o);
			wrong += differences(&o, bytes);
			free(bytes);
			operands_free(f, &o);
		}
	}
	assert_int_equal(wrong, 0);
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
	struct op_gemm a = o.args;

	a.w.dtype = DTYPE_F16;
	assert_int_equal(f->device->kernels->gemm(f->stream, &a), -ENOTSUP);
	a = o.args;
	a.bias.dtype = DTYPE_F32;
	assert_int_equal(f->device->kernels->gemm(f->stream, &a), -ENOTSUP);
	a = o.args;
	a.bias.cols = 15;
	assert_int_equal(f->device->kernels->gemm(f->stream, &a), -EINVAL);
	a = o.args;
	a.y_dtype = DTYPE_I32;
	assert_int_equal(f->device->kernels->gemm(f->stream, &a), -EINVAL);
	a = o.args;
	a.x = NULL;
	assert_int_equal(f->device->kernels->gemm(f->stream, &a), -EINVAL);
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

static void test_gemm_of_a_new_shape_is_recorded_untimed(void **state)
{
	struct fixture *f = *state;
	struct operands warm = operands_new(f, 3, 64, 64, DTYPE_BF16, false);
	struct operands o = operands_new(f, 7, 128, 96, DTYPE_F32, true);
	struct graph_exec *exec;
	struct graph *graph;
	uint8_t *bytes;

	assert_int_equal(f->device->kernels->gemm(f->stream, &warm.args), 0);
	poison(f, &o);
	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	assert_int_equal(f->device->kernels->gemm(f->stream, &o.args), 0);
	assert_int_equal(f->ops->capture_end(f->stream, &graph), 0);
	assert_int_equal(f->ops->graph_instantiate(f->device, graph, &exec), 0);
	assert_int_equal(f->ops->graph_launch(exec, f->stream), 0);
	bytes = result(f, &o);
	assert_int_equal(differences(&o, bytes), 0);
	free(bytes);
	f->ops->graph_exec_free(exec);
	f->ops->graph_free(graph);
	operands_free(f, &o);
	operands_free(f, &warm);
}

static void test_gemm_of_a_new_shape_after_lock_allocates_nothing(void **state)
{
	struct fixture *f = *state;
	struct operands warm = operands_new(f, 3, 64, 64, DTYPE_BF16, false);
	struct operands o = operands_new(f, 9, 96, 128, DTYPE_F32, false);
	struct graph *graph;
	uint8_t *bytes;

	assert_int_equal(f->device->kernels->gemm(f->stream, &warm.args), 0);
	assert_int_equal(f->ops->lock(f->device), 0);
	poison(f, &o);
	assert_int_equal(f->device->kernels->gemm(f->stream, &o.args), 0);
	bytes = result(f, &o);
	assert_int_equal(differences(&o, bytes), 0);
	free(bytes);
	/* one stream's scratch is not another's */
	assert_int_equal(f->device->kernels->gemm(f->other, &warm.args), DEVICE_E_LOCKED);
	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	assert_int_equal(f->device->kernels->gemm(f->stream, &warm.args), 0);
	assert_int_equal(f->ops->capture_end(f->stream, &graph), 0);
	f->ops->graph_free(graph);
	operands_free(f, &o);
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

/* ---- each of our variants, against sums in double precision ---- */

static double normal(uint64_t *state)
{
	double u, v;

	*state = *state * 6364136223846793005u + 1442695040888963407u;
	u = ((double)(*state >> 33) + 0.5) / 2147483648.0;
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	v = (double)(*state >> 33) / 2147483648.0;
	return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

struct shape_case {
	uint32_t rows, n, k;
	bool f32, bias, gated;
};

struct sample {
	uint16_t *x, *w, *bias;
	float *bias32;
	uint8_t *memory; /* on the device: x, w, bias, gate_up, y */
	size_t w_at, bias_at, gate_up_at, y_at, y_bytes;
};

static uint16_t *random_bf16(size_t n, double scale, uint64_t *state)
{
	uint16_t *values = calloc(n, sizeof(*values));

	assert_non_null(values);
	for (size_t i = 0; i < n; i++)
		values[i] = bf16_of((float)(scale * normal(state)));
	return values;
}

static float widened(uint16_t half)
{
	uint32_t bits = (uint32_t)half << 16;
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

static struct sample sample_new(struct fixture *f, const struct shape_case *c, uint64_t *state)
{
	struct sample s = {.w_at = aligned((size_t)c->rows * c->k * 2)};
	const uint32_t y_cols = c->gated ? c->n / 2 : c->n;
	void *memory;

	s.x = random_bf16((size_t)c->rows * c->k, 1, state);
	s.w = random_bf16((size_t)c->n * c->k, 1 / sqrt((double)c->k), state);
	s.bias = random_bf16(c->n, 1, state);
	s.bias32 = calloc(c->n, sizeof(*s.bias32));
	assert_non_null(s.bias32);
	for (uint32_t i = 0; i < c->n; i++)
		s.bias32[i] = widened(s.bias[i]);
	s.bias_at = s.w_at + aligned((size_t)c->n * c->k * 2);
	s.gate_up_at = s.bias_at + aligned((size_t)c->n * 4);
	s.y_at = s.gate_up_at + aligned((size_t)c->rows * c->n * 2);
	s.y_bytes = (size_t)c->rows * y_cols * (c->f32 ? 4 : 2);
	assert_int_equal(f->ops->mem_alloc(f->device, s.y_at + s.y_bytes + 64, &memory), 0);
	s.memory = memory;
	f->ops->copy(f->device, s.memory, s.x, (size_t)c->rows * c->k * 2);
	f->ops->copy(f->device, s.memory + s.w_at, s.w, (size_t)c->n * c->k * 2);
	f->ops->copy(f->device, s.memory + s.bias_at, c->f32 ? (void *)s.bias32 : (void *)s.bias,
		(size_t)c->n * (c->f32 ? 4 : 2));
	return s;
}

static void sample_free(struct fixture *f, struct sample *s)
{
	f->ops->mem_free(f->device, s->memory);
	free(s->x);
	free(s->w);
	free(s->bias);
	free(s->bias32);
}

static int sample_queue(struct fixture *f, const struct shape_case *c, const struct sample *s)
{
	const struct weight w = {
		.data = s->memory + s->w_at, .dtype = DTYPE_BF16, .rows = c->n, .cols = c->k};
	const struct weight bias = {.data = c->bias ? s->memory + s->bias_at : NULL,
		.dtype = c->f32 ? DTYPE_F32 : DTYPE_BF16, .rows = 1, .cols = c->n};
	const struct op_gemm gemm = {.x = s->memory, .w = w, .bias = bias,
		.y = s->memory + s->y_at, .y_dtype = bias.dtype, .n_rows = c->rows};
	const struct op_gated_gemm gated = {.x = s->memory, .w = w, .bias = bias,
		.gate_up = s->memory + s->gate_up_at, .y = s->memory + s->y_at, .n_rows = c->rows};

	return c->gated ? f->device->kernels->gated_gemm(f->stream, &gated)
			: f->device->kernels->gemm(f->stream, &gemm);
}

static double exact(const struct shape_case *c, const struct sample *s, uint32_t r, uint32_t col)
{
	double sum = c->bias ? s->bias32[col] : 0;

	for (uint32_t i = 0; i < c->k; i++)
		sum += (double)widened(s->x[(size_t)r * c->k + i]) *
		       (double)widened(s->w[(size_t)col * c->k + i]);
	return sum;
}

/* |y - exact| / |exact| over all elements, of a large matrix over every 31st column; NaN where one
 * was not written. */
static double distance(const struct shape_case *c, const struct sample *s, const uint8_t *bytes)
{
	const uint32_t cols = c->gated ? c->n / 2 : c->n;
	const uint32_t step = (uint64_t)c->n * c->k > 1u << 24 ? 31 : 1;
	double off = 0, all = 0;

	for (uint32_t r = 0; r < c->rows; r++)
		for (uint32_t col = 0; col < cols; col += step) {
			const size_t at = (size_t)r * cols + col;
			const double got = c->f32 ? (double)((const float *)bytes)[at]
						  : (double)widened(((const uint16_t *)bytes)[at]);
			double want = exact(c, s, r, col);

			if (c->gated)
				want = want / (1 + exp(-want)) * exact(c, s, r, col + cols);
			off += (got - want) * (got - want);
			all += want * want;
		}
	return sqrt(off / all);
}

/* Checks it eagerly and replayed; the second has the bits of the first. */
static void check_case(struct fixture *f, const struct shape_case *c, uint64_t *state)
{
	struct sample s = sample_new(f, c, state);
	uint8_t *bytes = calloc(2, s.y_bytes + 64), *again = bytes + s.y_bytes + 64;
	struct graph_exec *exec;
	struct graph *graph;
	double off;

	assert_non_null(bytes);
	f->ops->fill_async(f->stream, s.memory + s.y_at, 0xff, s.y_bytes + 64);
	assert_int_equal(sample_queue(f, c, &s), 0);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	assert_int_equal(f->ops->copy(f->device, bytes, s.memory + s.y_at, s.y_bytes + 64), 0);
	off = distance(c, &s, bytes);
	if (!(off < (c->f32 ? 1e-5 : c->gated ? 8e-3 : 4e-3)))
		fail_msg("%u rows, [%u, %u]%s%s%s: off by %g", c->rows, c->n, c->k,
			c->f32 ? " f32" : "", c->bias ? " bias" : "", c->gated ? " gated" : "", off);
	for (int i = 0; i < 64; i++)
		assert_int_equal(bytes[s.y_bytes + (size_t)i], 0xff);
	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	for (int i = 0; i < 3; i++) /* each behind another of its kind: launches overlap */
		assert_int_equal(sample_queue(f, c, &s), 0);
	assert_int_equal(f->ops->capture_end(f->stream, &graph), 0);
	assert_int_equal(f->ops->graph_instantiate(f->device, graph, &exec), 0);
	f->ops->fill_async(f->stream, s.memory + s.y_at, 0xff, s.y_bytes + 64);
	assert_int_equal(f->ops->graph_launch(exec, f->stream), 0);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	assert_int_equal(f->ops->copy(f->device, again, s.memory + s.y_at, s.y_bytes + 64), 0);
	assert_memory_equal(again, bytes, s.y_bytes + 64);
	f->ops->graph_exec_free(exec);
	f->ops->graph_free(graph);
	free(bytes);
	sample_free(f, &s);
}

static void test_each_variant_is_the_product_of_random_numbers(void **state)
{
	static const uint32_t rows[] = {1, 2, 5, 8, 9, 16, 17, 29, 32};
	static const uint32_t shapes[][2] = {
		{8, 32}, {24, 64}, {100, 96}, {2120, 2048}, {144, 4128}, {272, 8192}, {1, 14336}};
	struct fixture *f = *state;
	uint64_t seed = (uint64_t)time(NULL);

	print_message("# seed %llu\n", (unsigned long long)seed);
	for (int variant = 0; variant < 4; variant++) {
		fixture_teardown(state);
		assert_int_equal(fixture_setup(state), 0);
		f = *state;
		cuda_gemm_choose(f->device, (enum cuda_gemm_choice)(CUDA_GEMM_OWN + 1 + variant));
		for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) * 7; i++) {
			const struct shape_case c = {.rows = rows[i / 7], .n = shapes[i % 7][0],
				.k = shapes[i % 7][1], .f32 = (i + i / 7) & 1, .bias = i & 2};

			check_case(f, &c, &seed);
		}
	}
}

static void test_gated_gemm_is_a_gemm_and_a_silu_mul(void **state)
{
	static const uint32_t rows[] = {1, 3, 8, 13, 16, 24, 40};
	static const uint32_t shapes[][2] = {
		{16, 32}, {48, 2048}, {96, 2080}, {4400, 1024}, {22, 64}, {64, 36}};
	struct fixture *f = *state;
	uint64_t seed = (uint64_t)time(NULL);

	print_message("# seed %llu\n", (unsigned long long)seed);
	for (int variant = -1; variant < 3; variant++) {
		fixture_teardown(state);
		assert_int_equal(fixture_setup(state), 0);
		f = *state;
		cuda_gemm_choose(f->device, (enum cuda_gemm_choice)(CUDA_GEMM_OWN + variant));
		for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) * 6; i++) {
			const struct shape_case c = {.rows = rows[i / 6], .n = shapes[i % 6][0],
				.k = shapes[i % 6][1], .bias = i & 1, .gated = true};

			check_case(f, &c, &seed);
		}
	}
}

/* 64 MiB: what is so large has a deeper ring, with x beside it, and more variants when gated. */
static void test_each_variant_is_the_product_for_a_large_matrix(void **state)
{
	struct fixture *f = *state;
	uint64_t seed = (uint64_t)time(NULL);

	print_message("# seed %llu\n", (unsigned long long)seed);
	for (int variant = 0; variant < 4; variant++) {
		fixture_teardown(state);
		assert_int_equal(fixture_setup(state), 0);
		f = *state;
		cuda_gemm_choose(f->device, (enum cuda_gemm_choice)(CUDA_GEMM_OWN + 1 + variant));
		for (int i = variant < 2 ? 0 : 2; i < 4; i++) {
			const struct shape_case c = {.rows = i < 2 ? 13 : 5, .n = 16384, .k = 2048,
				.gated = i & 1};

			check_case(f, &c, &seed);
		}
	}
}

/* Both are of one class: the plan of the first must not be taken to where it cannot go. */
static void test_gemm_of_operands_aligned_otherwise_is_right(void **state)
{
	struct fixture *f = *state;
	struct operands o = operands_new(f, 4, 64, 256, DTYPE_BF16, false);
	const size_t x_bytes = 4 * 256 * 2;
	uint8_t *bytes;
	void *moved;

	o.args.y = (uint8_t *)o.args.y + 8;
	poison(f, &o);
	assert_int_equal(f->device->kernels->gemm(f->stream, &o.args), 0);
	bytes = result(f, &o);
	assert_int_equal(differences(&o, bytes), 0);
	free(bytes);
	assert_int_equal(f->ops->mem_alloc(f->device, x_bytes + 8, &moved), 0);
	assert_int_equal(f->ops->copy(f->device, (uint8_t *)moved + 8, o.args.x, x_bytes), 0);
	o.args.x = (uint8_t *)moved + 8;
	o.args.y = (uint8_t *)o.args.y - 8;
	poison(f, &o);
	assert_int_equal(f->device->kernels->gemm(f->stream, &o.args), 0);
	bytes = result(f, &o);
	assert_int_equal(differences(&o, bytes), 0);
	free(bytes);
	f->ops->mem_free(f->device, moved);
	operands_free(f, &o);
}

/* A hazard of overlap: each product reads what the one before wrote and writes what it read. */
static void test_a_long_chain_of_products_has_the_bits_of_one_run_serially(void **state)
{
	enum { N = 512, LINKS = 200, ROWS = 8 };
	struct fixture *f = *state;
	uint64_t seed = 7;
	uint16_t *w = random_bf16(N * N, 1 / sqrt((double)N), &seed);
	uint16_t *x = random_bf16(ROWS * N, 1, &seed), results[2][ROWS * N];
	void *memory;
	uint8_t *at;

	assert_int_equal(f->ops->mem_alloc(f->device, 2 * N * N + 4 * ROWS * N, &memory), 0);
	at = memory;
	f->ops->copy(f->device, at, w, 2 * N * N);
	for (int serial = 0; serial < 2; serial++) {
		f->ops->copy(f->device, at + 2 * N * N, x, 2 * ROWS * N);
		for (int i = 0; i < LINKS; i++) {
			uint8_t *from = at + 2 * N * N + i % 2 * 2 * ROWS * N;
			uint8_t *to = at + 2 * N * N + (i + 1) % 2 * 2 * ROWS * N;
			const struct op_gemm a = {.x = from, .y = to, .y_dtype = DTYPE_BF16,
				.w = {at, DTYPE_BF16, N, N}, .n_rows = ROWS};

			assert_int_equal(f->device->kernels->gemm(f->stream, &a), 0);
			if (serial)
				assert_int_equal(f->ops->stream_sync(f->stream), 0);
		}
		assert_int_equal(f->ops->stream_sync(f->stream), 0);
		f->ops->copy(f->device, results[serial],
			at + 2 * N * N + LINKS % 2 * 2 * ROWS * N, 2 * ROWS * N);
	}
	assert_memory_equal(results[0], results[1], sizeof(results[0]));
	f->ops->mem_free(f->device, memory);
	free(w);
	free(x);
}

#define ON_DEVICE(test) cmocka_unit_test_setup_teardown(test, fixture_setup, fixture_teardown)

int main(void)
{
	static const struct CMUnitTest tests[] = {
		ON_DEVICE(test_gemm_is_the_product_over_shapes),
		ON_DEVICE(test_gemm_of_no_rows_writes_nothing),
		ON_DEVICE(test_gemm_refuses_what_it_cannot),
		ON_DEVICE(test_replayed_gemm_has_the_bits_of_the_eager_one),
		ON_DEVICE(test_gemm_of_a_new_shape_is_recorded_untimed),
		ON_DEVICE(test_gemm_of_a_new_shape_after_lock_allocates_nothing),
		ON_DEVICE(test_gemm_first_used_in_a_capture_spoils_it),
		ON_DEVICE(test_each_variant_is_the_product_of_random_numbers),
		ON_DEVICE(test_gated_gemm_is_a_gemm_and_a_silu_mul),
		ON_DEVICE(test_each_variant_is_the_product_for_a_large_matrix),
		ON_DEVICE(test_gemm_of_operands_aligned_otherwise_is_right),
		ON_DEVICE(test_a_long_chain_of_products_has_the_bits_of_one_run_serially),
	};

	return no_cuda() ? 0 : cmocka_run_group_tests_name("cuda_gemm", tests, NULL, NULL);
}
