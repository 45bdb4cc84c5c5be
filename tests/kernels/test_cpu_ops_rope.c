/* SPDX-License-Identifier: MIT */
/* Rope, and the caching of keys and values at their slots. */
#include "tests/kernels/cpu_ops_fixture.h"

#include <sys/mman.h>

#include "tests/e4m3.h"

enum { ROPE_TOKENS = 11, ROPE_POSITIONS = 50, ROPE_PAGES = 6, PAGE_TOKENS = 5 };

struct rope_case {
	uint32_t n_heads, n_kv_heads, head_dim;
	bool normed;
	enum dtype norm_dtype;
};

struct rope {
	struct op_rope_and_cache args;
	struct buffer qkv, before, positions, slots, cos_sin, kv;
	size_t stride;
};

static void rope_init(struct rope *rope, const struct rope_case *c)
{
	size_t kv_floats = (size_t)ROPE_PAGES * 2 * PAGE_TOKENS * c->n_kv_heads * c->head_dim;

	rope->stride = (size_t)(c->n_heads + 2 * c->n_kv_heads) * c->head_dim;
	rope->qkv = random_floats(ROPE_TOKENS * rope->stride);
	rope->before = buffer_new(rope->qkv.bytes);
	memcpy(rope->before.data, rope->qkv.data, rope->qkv.bytes);
	rope->positions = buffer_new(ROPE_TOKENS * 4);
	rope->slots = buffer_new(ROPE_TOKENS * 4);
	rope->cos_sin = random_floats((size_t)ROPE_POSITIONS * c->head_dim);
	rope->kv = buffer_new(kv_floats * sizeof(float));
	rope->args = (struct op_rope_and_cache){
		.qkv = rope->qkv.data,
		.positions = rope->positions.data,
		.slot_mapping = rope->slots.data,
		.cos_sin = rope->cos_sin.data,
		.max_positions = ROPE_POSITIONS,
		.eps = 1e-6f,
		.kv = rope->kv.data,
		.n_tokens = ROPE_TOKENS,
		.n_heads = c->n_heads,
		.n_kv_heads = c->n_kv_heads,
		.head_dim = c->head_dim,
		.page_tokens = PAGE_TOKENS,
	};
	rope->args.q_norm = random_weight(c->norm_dtype, 1, c->head_dim);
	rope->args.k_norm = random_weight(c->norm_dtype, 1, c->head_dim);
	if (!c->normed)
		rope->args.q_norm.data = rope->args.k_norm.data = NULL;
	/* Distinct slots in no order; every third token has none. */
	for (int32_t t = 0; t < ROPE_TOKENS; t++) {
		((int32_t *)rope->positions.data)[t] = (int32_t)random_below(&rng, ROPE_POSITIONS);
		((int32_t *)rope->slots.data)[t] =
			t % 3 == 2 ? -1 : (t * 7 + 4) % (ROPE_PAGES * PAGE_TOKENS);
	}
}

/* Element i of a head, normed and turned by the angle of its pair. */
static double rotated(const struct op_rope_and_cache *a, const float *head,
	const struct weight *norm, int32_t position, uint32_t i)
{
	uint32_t half = a->head_dim / 2, pair = i % half;
	double scale = norm->data ? norm_scale(head, a->head_dim, a->eps) : 1;
	double lower = (double)head[pair] * scale, upper = (double)head[pair + half] * scale;
	double c, s;

	position = position < 0 ? 0 : position >= ROPE_POSITIONS ? ROPE_POSITIONS - 1 : position;
	c = (double)a->cos_sin[(size_t)position * a->head_dim + pair];
	s = (double)a->cos_sin[(size_t)position * a->head_dim + half + pair];
	if (norm->data) {
		lower *= weight_at(norm, 0, pair);
		upper *= weight_at(norm, 0, pair + half);
	}
	return i < half ? lower * c - upper * s : upper * c + lower * s;
}

/* q in place, k and v in the cache where a slot names the place, and poison everywhere else. */
static void rope_check(const struct rope *rope)
{
	const struct op_rope_and_cache *a = &rope->args;
	size_t row = (size_t)a->n_kv_heads * a->head_dim;

	for (uint32_t t = 0; t < ROPE_TOKENS; t++) {
		const float *before = F(rope->before) + t * rope->stride;

		for (uint32_t i = 0; i < a->n_heads * a->head_dim; i++)
			assert_close((double)F(rope->qkv)[t * rope->stride + i],
				rotated(a, before + i / a->head_dim * a->head_dim, &a->q_norm,
					a->positions[t], i % a->head_dim),
				1e-5);
	}
	for (uint32_t slot = 0; slot < ROPE_PAGES * PAGE_TOKENS; slot++) {
		size_t page = slot / PAGE_TOKENS, offset = slot % PAGE_TOKENS;
		const float *k = F(rope->kv) + (page * 2 * PAGE_TOKENS + offset) * row;
		const float *v = F(rope->kv) + ((page * 2 + 1) * PAGE_TOKENS + offset) * row;
		const float *from = NULL;
		int32_t position = 0;

		for (uint32_t t = 0; t < ROPE_TOKENS; t++)
			if (a->slot_mapping[t] == (int32_t)slot) {
				from = F(rope->before) + t * rope->stride +
				       (size_t)a->n_heads * a->head_dim;
				position = a->positions[t];
			}
		for (uint32_t i = 0; i < row; i++) {
			if (!from) {
				assert_true(isnan(k[i]) && isnan(v[i]));
				continue;
			}
			assert_close((double)k[i],
				rotated(a, from + i / a->head_dim * a->head_dim, &a->k_norm,
					position, i % a->head_dim),
				1e-5);
			assert_true(v[i] == from[row + i]);
		}
	}
}

static void test_rope_turns_q_and_caches_k_and_v_at_their_slots_only(void **state)
{
	static const struct rope_case cases[] = {
		{4, 2, 64, false, DTYPE_F32},
		{1, 1, 2, false, DTYPE_F32},
		{6, 2, 10, true, DTYPE_BF16},
		{8, 8, 16, true, DTYPE_F16},
		{5, 1, 128, true, DTYPE_F32},
	};

	rng = 20;
	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		struct rope rope;

		rope_init(&rope, &cases[i]);
		RUN(rope_and_cache, &rope.args);
		rope_check(&rope);
	}
}

static void test_rope_without_slots_writes_no_page(void **state)
{
	struct rope rope;

	rng = 21;
	rope_init(&rope, &(struct rope_case){2, 2, 8, true, DTYPE_F32});
	for (int t = 0; t < ROPE_TOKENS; t++)
		((int32_t *)rope.slots.data)[t] = t % 2 ? -1 : INT32_MIN;
	RUN(rope_and_cache, &rope.args);
	for (size_t i = 0; i < rope.kv.bytes; i++)
		assert_int_equal(((uint8_t *)rope.kv.data)[i], 0xff);
}

static void test_rope_clamps_positions(void **state)
{
	struct rope rope;

	rng = 22;
	rope_init(&rope, &(struct rope_case){2, 1, 8, false, DTYPE_F32});
	((int32_t *)rope.positions.data)[0] = -1;
	((int32_t *)rope.positions.data)[1] = ROPE_POSITIONS;
	((int32_t *)rope.positions.data)[2] = INT32_MAX;
	((int32_t *)rope.positions.data)[3] = INT32_MIN;
	RUN(rope_and_cache, &rope.args);
	rope_check(&rope);
}

static void test_rope_reaches_slots_beyond_2_32_elements(void **state)
{
	enum { DIM = 64, SLOT = 40000003 };
	size_t bytes = ((size_t)SLOT / 16 + 1) * 2 * 16 * DIM * sizeof(float);
	float *kv = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct buffer qkv = random_floats(3 * DIM), cos_sin = random_floats(DIM);
	int32_t position = 0, slot = SLOT;
	struct op_rope_and_cache a = {
		.qkv = qkv.data,
		.positions = &position,
		.slot_mapping = &slot,
		.cos_sin = cos_sin.data,
		.max_positions = 1,
		.kv = kv,
		.n_tokens = 1,
		.n_heads = 1,
		.n_kv_heads = 1,
		.head_dim = DIM,
		.page_tokens = 16,
	};

	assert_ptr_not_equal(kv, MAP_FAILED);
	RUN(rope_and_cache, &a);
	assert_memory_equal(kv + ((size_t)SLOT / 16 * 2 * 16 + 16 + SLOT % 16) * DIM,
		F(qkv) + 2 * DIM, DIM * sizeof(float));
	munmap(kv, bytes);
}

/* Of a cache of fp8 that the same op has written: codes of what the other has, and poison elsewhere. */
static void check_codes(const struct rope *rope, const uint8_t *codes)
{
	const struct op_rope_and_cache *a = &rope->args;
	size_t half = (size_t)PAGE_TOKENS * a->n_kv_heads * a->head_dim;

	for (size_t i = 0; i < ROPE_PAGES * 2 * half; i++) {
		float wide = F(rope->kv)[i], factor = i / half % 2 ? a->factors.value : a->factors.key;

		assert_int_equal(codes[i], isnan(wide) ? 0xff : e4m3_from_float(wide / factor));
	}
}

static void test_rope_stores_fp8_rounded_to_nearest_by_a_factor_each_of_keys_and_values(void **state)
{
	static const struct rope_case cases[] = {{4, 2, 64, false, DTYPE_F32}, {6, 2, 10, true, DTYPE_BF16}};

	rng = 23;
	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		struct rope wide, narrow;
		uint32_t n_largest = 0;

		rope_init(&wide, &cases[i]);
		wide.args.factors = (struct kv_factors){0.03f, 0.0011f}; /* so that large values saturate */
		narrow = wide;
		narrow.qkv = buffer_new(wide.qkv.bytes);
		narrow.kv = buffer_new(wide.kv.bytes / sizeof(float));
		memcpy(narrow.qkv.data, wide.qkv.data, wide.qkv.bytes);
		narrow.args.qkv = narrow.qkv.data;
		narrow.args.kv = narrow.kv.data;
		narrow.args.fp8 = true;
		RUN(rope_and_cache, &wide.args);
		RUN(rope_and_cache, &narrow.args);
		assert_memory_equal(narrow.qkv.data, wide.qkv.data, wide.qkv.bytes);
		check_codes(&wide, narrow.kv.data);
		for (size_t b = 0; b < narrow.kv.bytes; b++)
			n_largest += (((uint8_t *)narrow.kv.data)[b] & 0x7f) == 0x7e;
		assert_true(n_largest > 0);
	}
}

static void test_rope_refuses_factors_of_fp8_that_are_no_numbers_above_0(void **state)
{
	static const float bad[] = {0, -1, INFINITY, NAN};
	struct rope rope;

	rng = 24;
	rope_init(&rope, &(struct rope_case){2, 1, 8, false, DTYPE_F32});
	rope.args.fp8 = true;
	for (size_t i = 0; i < 2 * COUNT_OF(bad); i++) {
		rope.args.factors = (struct kv_factors){i % 2 ? bad[i / 2] : 1, i % 2 ? 1 : bad[i / 2]};
		assert_refused(rope_and_cache, &rope.args);
	}
	rope.args.fp8 = false;
	RUN(rope_and_cache, &rope.args);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(test_rope_stores_fp8_rounded_to_nearest_by_a_factor_each_of_keys_and_values),
	cmocka_unit_test(test_rope_refuses_factors_of_fp8_that_are_no_numbers_above_0),
	cmocka_unit_test(test_rope_turns_q_and_caches_k_and_v_at_their_slots_only),
	cmocka_unit_test(test_rope_without_slots_writes_no_page),
	cmocka_unit_test(test_rope_clamps_positions),
	cmocka_unit_test(test_rope_reaches_slots_beyond_2_32_elements),
};

OPS_TEST_MAIN("cpu ops: rope", tests)
