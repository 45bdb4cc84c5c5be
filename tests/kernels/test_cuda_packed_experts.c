/* SPDX-License-Identifier: MIT */
/* Products of experts whose weights are packed (kernels/packed.h), eager and in a graph, against sums in double
 * precision. */
#include "tests/kernels/own_gemm.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* A routing: experts' numbers of pairs. */
struct load {
	uint32_t n_experts;
	const uint32_t *counts;
	uint32_t n_padding; /* pairs of no expert */
};

struct product {
	struct shape_case w; /* of all experts, one below the other */
	const struct load *load;
	uint32_t n_active, x_div;
};

enum { GUARD = 64 }; /* bytes behind y */

/* A product on the device, and what it is made of. */
struct run {
	struct product p;
	uint32_t n_pairs, n_tokens, n_listed; /* pairs with an expert: n_listed */
	uint16_t *x;
	float *w;
	int32_t *pairs;
	uint8_t *memory; /* x, w, expert_start, pairs, gate_up, y */
	size_t w_at, start_at, pairs_at, gate_up_at, y_at, y_bytes;
};

static uint32_t out_of(const struct product *p)
{
	return p->w.n / p->load->n_experts;
}

static uint32_t y_cols_of(const struct product *p)
{
	return out_of(p) / (p->w.gated ? 2 : 1);
}

static uint32_t x_rows_of(const struct run *r)
{
	return r->n_pairs / r->p.x_div;
}

/* Pairs in a random order. The first ones belong to experts, the last ones to none. */
static void run_list(struct run *r, int32_t *starts, uint64_t *seed)
{
	int32_t *order = calloc(r->n_pairs + 1, sizeof(*order));

	assert_non_null(order);
	for (uint32_t i = 0; i < r->n_pairs; i++) {
		const uint32_t j = random_below(i + 1, seed);

		order[i] = order[j];
		order[j] = (int32_t)i;
	}
	for (uint32_t i = 0; i < r->n_pairs; i++)
		r->pairs[i] = i < r->n_listed ? order[i] : -1;
	free(order);
	for (uint32_t e = 0; e < r->p.load->n_experts; e++)
		starts[e + 1] = starts[e] + (int32_t)r->p.load->counts[e];
}

static void run_place(struct fixture *f, struct run *r, const uint8_t *units, const int32_t *starts)
{
	const size_t x_bytes = (size_t)x_rows_of(r) * r->p.w.k * 2, n_starts = r->p.load->n_experts + 1;
	void *memory;

	r->w_at = aligned(x_bytes + 1);
	r->start_at = r->w_at + aligned(w_bytes_of(&r->p.w));
	r->pairs_at = r->start_at + aligned(n_starts * sizeof(*starts));
	r->gate_up_at = r->pairs_at + aligned(r->n_pairs * sizeof(*r->pairs) + 1);
	r->y_at = r->gate_up_at + aligned((size_t)r->n_pairs * out_of(&r->p) * 2 + 1);
	r->y_bytes = (size_t)r->n_pairs * y_cols_of(&r->p) * 2;
	assert_int_equal(f->ops->mem_alloc(f->device, r->y_at + r->y_bytes + GUARD, &memory), 0);
	r->memory = memory;
	assert_int_equal(f->ops->copy(f->device, r->memory, r->x, x_bytes), 0);
	assert_int_equal(f->ops->copy(f->device, r->memory + r->w_at, units, w_bytes_of(&r->p.w)), 0);
	assert_int_equal(f->ops->copy(f->device, r->memory + r->start_at, starts, n_starts * sizeof(*starts)), 0);
	assert_int_equal(f->ops->copy(f->device, r->memory + r->pairs_at, r->pairs, r->n_pairs * sizeof(*r->pairs)), 0);
}

static struct run run_new(struct fixture *f, const struct product *p, uint64_t *seed)
{
	struct run r = {.p = *p};
	int32_t *starts = calloc(p->load->n_experts + 1, sizeof(*starts));
	float *no_factors = calloc(p->w.n, sizeof(*no_factors));
	uint8_t *units;

	for (uint32_t e = 0; e < p->load->n_experts; e++)
		r.n_listed += p->load->counts[e];
	r.n_tokens = (r.n_listed + p->load->n_padding + p->n_active - 1) / p->n_active;
	r.n_pairs = r.n_tokens * p->n_active;
	r.x = random_bf16((size_t)x_rows_of(&r) * p->w.k + 1, 1, seed);
	r.w = calloc((size_t)p->w.n * p->w.k, sizeof(*r.w));
	r.pairs = calloc(r.n_pairs + 1, sizeof(*r.pairs));
	assert_true(starts && no_factors && r.w && r.pairs);
	units = random_weight(&p->w, r.w, no_factors, seed);
	run_list(&r, starts, seed);
	run_place(f, &r, units, starts);
	free(units);
	free(no_factors);
	free(starts);
	return r;
}

static void run_free(struct fixture *f, struct run *r)
{
	f->ops->mem_free(f->device, r->memory);
	free(r->x);
	free(r->w);
	free(r->pairs);
}

static int run_queue(struct fixture *f, const struct run *r)
{
	const struct weight w = {.data = r->memory + r->w_at, .dtype = dtype_of(r->p.w.packed), .rows = r->p.w.n,
		.cols = r->p.w.k};
	const struct op_expert_gemm plain = {.x = r->memory,
		.x_div = r->p.x_div,
		.w = w,
		.expert_start = (const int32_t *)(r->memory + r->start_at),
		.pairs = (const int32_t *)(r->memory + r->pairs_at),
		.y = r->memory + r->y_at,
		.n_tokens = r->n_tokens,
		.n_active = r->p.n_active,
		.n_experts = r->p.load->n_experts};
	const struct op_expert_gated_gemm gated = {.x = plain.x,
		.w = w,
		.expert_start = plain.expert_start,
		.pairs = plain.pairs,
		.gate_up = r->memory + r->gate_up_at,
		.y = plain.y,
		.n_tokens = plain.n_tokens,
		.n_active = plain.n_active,
		.n_experts = plain.n_experts};

	return r->p.w.gated ? f->device->kernels->expert_gated_gemm(f->stream, &gated)
			    : f->device->kernels->expert_gemm(f->stream, &plain);
}

/* ---- what it should be ---- */

static double run_exact(const struct run *r, uint32_t x_row, uint32_t w_row)
{
	const uint16_t *x = r->x + (size_t)x_row * r->p.w.k;
	const float *w = r->w + (size_t)w_row * r->p.w.k;
	double sum = 0;

	for (uint32_t i = 0; i < r->p.w.k; i++)
		sum += (double)bf16_to_f32(x[i]) * (double)w[i];
	return sum;
}

static double run_want(const struct run *r, uint32_t expert, uint32_t pair, uint32_t col)
{
	const uint32_t first = expert * out_of(&r->p), x_row = pair / r->p.x_div;
	const double y = run_exact(r, x_row, first + col);

	return r->p.w.gated ? y / (1 + exp(-y)) * run_exact(r, x_row, first + y_cols_of(&r->p) + col) : y;
}

/* Which elements are wrong, for its message. */
struct wrong {
	uint32_t n, pair, col;
	double got, want;
};

/* y's rounding and that of W, which is rounded where pairs are many; NaN where an element was not written. */
static bool is_close(const struct run *r, double got, double want)
{
	return fabs(got - want) <= (r->p.w.gated ? 0.06 : 0.03) + fabs(want) / 64;
}

static struct wrong run_compare(const struct run *r, uint32_t expert, uint32_t first, uint32_t n, const uint16_t *y)
{
	const uint32_t cols = y_cols_of(&r->p), step = column_step(&r->p.w);
	struct wrong wrong = {0};

	for (uint32_t i = first; i < first + n; i++)
		for (uint32_t col = 0; col < cols; col += step) {
			const uint32_t pair = (uint32_t)r->pairs[i];
			const double got = (double)bf16_to_f32(y[(size_t)pair * cols + col]);
			const double want = run_want(r, expert, pair, col);

			if (is_close(r, got, want))
				continue;
			if (!wrong.n++)
				wrong = (struct wrong){1, i - first, col, got, want};
		}
	return wrong;
}

static void check_result(const struct run *r, const uint16_t *y)
{
	uint32_t first = 0;

	for (uint32_t e = 0; e < r->p.load->n_experts; e++) {
		const uint32_t n = r->p.load->counts[e];
		const struct wrong wrong = run_compare(r, e, first, n, y);

		if (wrong.n)
			fail_msg("form %d%s, %u pairs in %u experts of [%u, %u], expert %u of %u pairs: %u elements are wrong, "
				 "at first that of pair %u in column %u: %g, not %g",
				r->p.w.packed, r->p.w.gated ? " gated" : "", r->n_pairs, r->p.load->n_experts,
				out_of(&r->p), r->p.w.k, e, n, wrong.n, wrong.pair, wrong.col, wrong.got, wrong.want);
		first += n;
	}
}

/* A pair of no expert leaves its row alone. */
static void check_rest(const struct run *r, const uint8_t *y)
{
	const size_t row = y_cols_of(&r->p) * 2u;
	uint8_t *listed = calloc(r->n_pairs + 1, 1);

	assert_non_null(listed);
	for (uint32_t i = 0; i < r->n_listed; i++)
		listed[r->pairs[i]] = 1;
	for (uint32_t p = 0; p < r->n_pairs; p++)
		for (size_t i = 0; i < row && !listed[p]; i++)
			assert_int_equal(y[p * row + i], 0xff);
	for (size_t i = 0; i < GUARD; i++)
		assert_int_equal(y[r->y_bytes + i], 0xff);
	free(listed);
}

static void check_product(struct fixture *f, const struct product *p, uint64_t *seed)
{
	struct run r = run_new(f, p, seed);
	const size_t bytes = r.y_bytes + GUARD;
	uint8_t *eager = calloc(2, bytes), *again = eager + bytes, *y = r.memory + r.y_at;
	struct graph_exec *exec;

	assert_non_null(eager);
	f->ops->fill_async(f->stream, y, 0xff, bytes);
	assert_int_equal(run_queue(f, &r), 0);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	assert_int_equal(f->ops->copy(f->device, eager, y, bytes), 0);
	check_result(&r, (const uint16_t *)eager);
	check_rest(&r, eager);
	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	for (int i = 0; i < 3; i++) /* each behind another of its kind: launches overlap */
		assert_int_equal(run_queue(f, &r), 0);
	exec = finish(f);
	f->ops->fill_async(f->stream, y, 0xff, bytes);
	replay(f, exec);
	assert_int_equal(f->ops->copy(f->device, again, y, bytes), 0);
	assert_memory_equal(again, eager, bytes);
	f->ops->graph_exec_free(exec);
	free(eager);
	run_free(f, &r);
}

/* ---- the products ---- */

/* Rows of an expert, columns. */
struct size {
	uint32_t out, in;
};

static bool packs(struct fixture *f)
{
	struct device_info info;

	assert_int_equal(f->ops->info(f->device, &info), 0);
	return info.packs;
}

/* In each form, plain and gated. */
static void check_load(struct fixture *f, const struct load *load, struct size size, uint64_t *seed)
{
	for (uint32_t i = 0; i < 4; i++) {
		const struct product p = {
			.w = {.n = load->n_experts * size.out, .k = size.in, .gated = i & 1,
				.packed = i & 2 ? PACKED_U4 : PACKED_E4M3_GROUPS},
			.load = load,
			.n_active = 2,
			.x_div = i & 1 ? 2 : 1};

		check_product(f, &p, seed);
	}
}

/* Of a number of pairs among experts that have few, as many, more and none. */
static void check_count(struct fixture *f, uint32_t count, struct size size, uint64_t *seed)
{
	const uint32_t even[] = {count, 0, count}, uneven[] = {2 * count + 1, count};
	uint32_t alone[24] = {[5] = count, [23] = 1};
	const struct load loads[] = {{COUNT_OF(even), even, 3}, {COUNT_OF(uneven), uneven, 0},
		{COUNT_OF(alone), alone, 1}};

	for (size_t i = 0; i < COUNT_OF(loads); i++)
		check_load(f, &loads[i], size, seed);
}

static void test_products_of_every_number_of_pairs_are_right(void **state)
{
	static const uint32_t counts[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 32, 33, 64, 65, 97,
		129};
	static const struct size sizes[] = {{16, 128}, {48, 384}, {144, 256}, {272, 128}};
	uint64_t seed = (uint64_t)time(NULL);

	print_message("# seed %llu\n", (unsigned long long)seed);
	if (!packs(*state))
		skip();
	for (size_t i = 0; i < COUNT_OF(counts); i++)
		check_count(*state, counts[i], sizes[i % COUNT_OF(sizes)], &seed);
}

/* A block's ring goes round more than once. */
static void test_products_of_wide_experts_are_right(void **state)
{
	static const uint32_t few[] = {1, 3, 0, 8}, some[] = {30, 0, 12, 9}, many[] = {60, 3, 0, 41}, most[] = {200, 0, 90, 1};
	static const struct load loads[] = {{4, few, 1}, {4, some, 0}, {4, many, 0}, {4, most, 0}};
	uint64_t seed = 5;

	if (!packs(*state))
		skip();
	for (size_t i = 0; i < COUNT_OF(loads); i++)
		check_load(*state, &loads[i], (struct size){64, 7168}, &seed);
}

/* More tiles than blocks, some of them of other experts or other pairs. */
static void test_products_of_many_tiles_are_right(void **state)
{
	enum { EXPERTS = 40 };
	uint32_t counts[EXPERTS];
	uint64_t seed = 6;

	if (!packs(*state))
		skip();
	for (uint32_t most = 2; most <= 128; most *= 4) {
		for (uint32_t e = 0; e < EXPERTS; e++)
			counts[e] = e % 7 == 3 ? 0 : e % 11 == 5 ? 3 * most : random_below(most, &seed);
		check_load(*state, &(struct load){EXPERTS, counts, 5}, (struct size){528, 256}, &seed);
	}
}

static void test_weights_that_are_no_experts_are_refused(void **state)
{
	struct fixture *f = *state;
	void *memory;

	if (!packs(f))
		skip();
	assert_int_equal(f->ops->mem_alloc(f->device, 1 << 16, &memory), 0);
	for (int fault = 0; fault < 5; fault++) {
		struct op_expert_gated_gemm a = {.x = memory,
			.w = {.data = memory, .dtype = DTYPE_E4M3, .rows = 4 * 16, .cols = 128},
			.expert_start = memory, .pairs = memory, .gate_up = memory, .y = memory,
			.n_tokens = 1, .n_active = 1, .n_experts = 4};

		a.n_experts = fault == 0 ? 3 : fault == 1 ? 8 : 4; /* an expert's ups begin within a unit */
		a.w.cols = fault == 2 ? 192 : 128;
		a.w.factors = fault == 3 ? memory : NULL;
		a.x = fault == 4 ? (uint8_t *)memory + 2 : memory;
		assert_int_equal(f->device->kernels->expert_gated_gemm(f->stream, &a), fault == 4 ? -ENOTSUP : -EINVAL);
	}
	f->ops->mem_free(f->device, memory);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		ON_DEVICE(test_products_of_every_number_of_pairs_are_right),
		ON_DEVICE(test_products_of_wide_experts_are_right),
		ON_DEVICE(test_products_of_many_tiles_are_right),
		ON_DEVICE(test_weights_that_are_no_experts_are_refused),
	};

	return no_cuda() ? 0 : cmocka_run_group_tests_name("cuda_packed_experts", tests, NULL, NULL);
}
