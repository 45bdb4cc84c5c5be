/* SPDX-License-Identifier: MIT */
/* norm_gemm: the product of a norm in one launch (skinny.cu), against rms_norm and the product. */
#include <errno.h>

#include "tests/kernels/own_gemm.h"

struct normed {
	struct fixture *f;
	struct shape_case c;
	struct sample s;
	uint8_t *memory; /* the norm's weight, its result, and y again */
	size_t out_at, y_at;
};

static void normed_begin(struct normed *n, struct fixture *f, const struct shape_case *c, uint64_t *seed)
{
	uint16_t *weight = random_bf16(c->k, 1, seed);
	void *memory;

	*n = (struct normed){.f = f, .c = *c, .s = sample_new(f, c, seed)};
	n->out_at = aligned((size_t)c->k * 2);
	n->y_at = n->out_at + aligned((size_t)c->rows * c->k * 2);
	assert_int_equal(f->ops->mem_alloc(f->device, n->y_at + n->s.y_bytes, &memory), 0);
	n->memory = memory;
	f->ops->copy(f->device, memory, weight, (size_t)c->k * 2);
	f->ops->fill_async(f->stream, n->memory + n->y_at, 0xff, n->s.y_bytes);
	free(weight);
}

static void normed_end(struct normed *n)
{
	n->f->ops->mem_free(n->f->device, n->memory);
	sample_free(n->f, &n->s);
}

static struct weight norm_of(const struct normed *n)
{
	return (struct weight){.data = n->memory, .dtype = DTYPE_BF16, .rows = 1, .cols = n->c.k};
}

static int queue_at_once_of(struct normed *n, void *x)
{
	const struct weight w = sample_weight(&n->c, &n->s);
	const struct op_norm_gemm op = {.x = x,
		.norm = norm_of(n),
		.eps = 1e-5f,
		.w = w,
		.bias = sample_bias(&n->c, &n->s),
		.gate_up = n->c.gated ? n->s.memory + n->s.gate_up_at : NULL,
		.y = n->memory + n->y_at,
		.n_rows = n->c.rows};

	return n->f->device->kernels->norm_gemm(n->f->stream, &op);
}

static int queue_at_once(struct normed *n)
{
	return queue_at_once_of(n, n->s.memory + n->s.x_at);
}

static void queue_norm(struct normed *n)
{
	const struct op_rms_norm op = {.x = n->s.memory + n->s.x_at,
		.weight = norm_of(n),
		.out = n->memory + n->out_at,
		.n_rows = n->c.rows,
		.eps = 1e-5f};

	assert_int_equal(n->f->device->kernels->rms_norm(n->f->stream, &op), 0);
}

/* Into the sample's y. */
static void queue_one_by_one(struct normed *n)
{
	struct sample s = n->s;

	s.x_at = (size_t)(n->memory + n->out_at - s.memory);
	queue_norm(n);
	assert_int_equal(sample_queue(n->f, &n->c, &s), 0);
}

/* Behind the kernel that writes its x, which it may overlap. */
static void check_chain(struct normed *n)
{
	uint8_t *want = calloc(2, n->s.y_bytes), *got = want + n->s.y_bytes;
	struct graph_exec *exec;

	assert_non_null(want);
	queue_norm(n);
	assert_int_equal(n->f->ops->stream_sync(n->f->stream), 0);
	assert_int_equal(queue_at_once_of(n, n->memory + n->out_at), 0);
	assert_int_equal(n->f->ops->stream_sync(n->f->stream), 0);
	assert_int_equal(n->f->ops->copy(n->f->device, want, n->memory + n->y_at, n->s.y_bytes), 0);
	assert_int_equal(n->f->ops->capture_begin(n->f->stream), 0);
	for (int i = 0; i < 3; i++) {
		queue_norm(n);
		assert_int_equal(queue_at_once_of(n, n->memory + n->out_at), 0);
	}
	exec = finish(n->f);
	n->f->ops->fill_async(n->f->stream, n->memory + n->out_at, 0xff, (size_t)n->c.rows * n->c.k * 2);
	n->f->ops->fill_async(n->f->stream, n->memory + n->y_at, 0xff, n->s.y_bytes);
	replay(n->f, exec);
	assert_int_equal(n->f->ops->copy(n->f->device, got, n->memory + n->y_at, n->s.y_bytes), 0);
	assert_memory_equal(got, want, n->s.y_bytes);
	n->f->ops->graph_exec_free(exec);
	free(want);
}

static void check_same(struct normed *n)
{
	uint16_t *want = calloc(n->s.y_bytes, 2), *got = want + n->s.y_bytes / 2;
	double off = 0, all = 0;

	assert_non_null(want);
	assert_int_equal(n->f->ops->stream_sync(n->f->stream), 0);
	assert_int_equal(n->f->ops->copy(n->f->device, want, n->s.memory + n->s.y_at, n->s.y_bytes), 0);
	assert_int_equal(n->f->ops->copy(n->f->device, got, n->memory + n->y_at, n->s.y_bytes), 0);
	for (size_t i = 0; i < n->s.y_bytes / 2; i++) {
		const double w = (double)bf16_to_f32(want[i]), g = (double)bf16_to_f32(got[i]);

		off += (g - w) * (g - w);
		all += w * w;
	}
	if (!(off <= all * 1e-6))
		fail_msg("form %d, %u rows, [%u, %u]%s: off by %g", n->c.packed, n->c.rows, n->c.n, n->c.k,
			n->c.gated ? " gated" : "", sqrt(off / all));
	free(want);
}

/* The shapes of models; the last is one where x leaves a block few stages. */
static void check_kind(struct fixture *f, enum packed_kind kind, bool gated)
{
	static const uint32_t rows[] = {1, 2, 3, 4, 5, 6, 7, 8},
			      shapes[][2] = {{256, 128}, {3072, 2048}, {80, 896}, {1040, 1536}, {512, 4096}};
	const char *given = getenv("MIMEO_TEST_SEED");
	uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);

	print_message("# MIMEO_TEST_SEED=%llu\n", (unsigned long long)seed);
	for (uint32_t i = 0; i < 8 * 5; i++) {
		const struct shape_case c = {.rows = rows[i % 8],
			.n = shapes[i / 8][0],
			.k = shapes[i / 8][1],
			.bias = i % 3 == 0,
			.gated = gated,
			.packed = kind};
		struct normed n;

		normed_begin(&n, f, &c, &seed);
		assert_int_equal(queue_at_once(&n), 0);
		queue_one_by_one(&n);
		check_same(&n);
		if (i % 8 == 0 || i % 8 == 7)
			check_chain(&n);
		normed_end(&n);
	}
}

static void check_kinds(struct fixture *f, bool gated)
{
	struct device_info info;

	assert_int_equal(f->ops->info(f->device, &info), 0);
	if (!f->device->kernels->norm_gemm)
		skip();
	for (int kind = PACKED_NOT; kind <= PACKED_U4_32; kind++) {
		if (kind == PACKED_NOT || info.packs)
			check_kind(f, (enum packed_kind)kind, gated);
	}
}

/* Our ways alone: cuBLASLt has no norm. */
static int setup(void **state)
{
	int rc = fixture_setup(state);

	if (!rc)
		cuda_gemm_choose(((struct fixture *)*state)->device, CUDA_GEMM_OWN);
	return rc;
}

static void test_a_norm_and_its_product_at_once_are_what_both_are(void **state)
{
	check_kinds(*state, false);
}

static void test_a_norm_and_its_gated_product_at_once_are_what_both_are(void **state)
{
	check_kinds(*state, true);
}

/* Too many rows; rows too long; y where x is. */
static void test_what_cannot_be_done_at_once_is_refused(void **state)
{
	static const struct shape_case cases[] = {{.rows = 9, .n = 64, .k = 128}, {.rows = 2, .n = 64, .k = 8192}};
	struct fixture *f = *state;
	uint64_t seed = 3;

	if (!f->device->kernels->norm_gemm)
		skip();
	for (int i = 0; i < 2; i++) {
		struct normed n;

		normed_begin(&n, f, &cases[i], &seed);
		assert_int_equal(queue_at_once(&n), -ENOTSUP);
		n.y_at = (size_t)(n.s.memory + n.s.x_at - n.memory); /* y is x */
		assert_int_equal(queue_at_once(&n), -EINVAL);
		normed_end(&n);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			test_a_norm_and_its_product_at_once_are_what_both_are, setup, fixture_teardown),
		cmocka_unit_test_setup_teardown(
			test_a_norm_and_its_gated_product_at_once_are_what_both_are, setup, fixture_teardown),
		cmocka_unit_test_setup_teardown(
			test_what_cannot_be_done_at_once_is_refused, setup, fixture_teardown),
	};

	return no_cuda() ? 0 : cmocka_run_group_tests_name("cuda_norm_gemm", tests, NULL, NULL);
}
