/* SPDX-License-Identifier: MIT */
/* Which experts compute what, and the sum of what they did, on the CUDA device, against the
 * cpu's. */
#include "tests/kernels/cuda_routing.h"

/* ---- routing ---- */

struct route_case {
	struct op_moe_route a;
	struct both logits, bias, slots, experts, weights;
};

/* Logits are of `levels` different values, so that there are ties; 0: of any. */
static struct route_case route_new(const struct op_moe_route *shape, bool biased, uint32_t levels)
{
	const size_t n = (size_t)shape->n_tokens * shape->n_experts;
	const size_t pairs = (size_t)shape->n_tokens * shape->n_active;
	float *logits = scratch(n * sizeof(*logits));
	int32_t *slots = scratch(shape->n_tokens * sizeof(*slots));
	struct route_case c = {.a = *shape};

	for (size_t i = 0; i < n; i++)
		logits[i] = levels ? (float)random_below(&rng, levels) - 1 : 4 * random_float(&rng);
	for (uint32_t t = 0; t < shape->n_tokens; t++)
		slots[t] = t % 7 == 3 ? -1 : (int32_t)random_below(&rng, 1000);
	c.logits = both_of(logits, n * sizeof(*logits));
	c.slots = both_of(slots, shape->n_tokens * sizeof(*slots));
	c.experts = both_new(BYTES, pairs * sizeof(int32_t));
	c.weights = both_new(BYTES, pairs * sizeof(float));
	if (biased)
		c.bias = random_weight(&c.a.bias, DTYPE_F32, 1, shape->n_experts);
	return c;
}

static struct op_moe_route route_args(const struct route_case *c, int side)
{
	struct op_moe_route a = c->a;

	a.logits = c->logits.at[side];
	a.slot_mapping = c->slots.at[side];
	a.experts = c->experts.at[side];
	a.weights = c->weights.at[side];
	a.bias.data = c->bias.n ? c->bias.at[side] : NULL;
	return a;
}

static void route_check(const struct route_case *c)
{
	const size_t n = (size_t)c->a.n_tokens * c->a.n_active;
	float *want = scratch(n * sizeof(*want) + 1), *got = scratch(n * sizeof(*got));

	for (int side = 0; side < N_SIDES; side++) {
		struct op_moe_route a = route_args(c, side);

		RUN(side, moe_route, &a);
	}
	both_check_equal(&c->experts, "experts");
	both_copy(CPU, want, c->weights.at[CPU], n * sizeof(*want));
	both_copy(CUDA, got, c->weights.at[CUDA], n * sizeof(*got));
	for (size_t i = 0; i < n; i++)
		if (!(fabsf(got[i] - want[i]) <= 1e-6f * fabsf(want[i]) + 1e-30f) &&
			!(isnan(got[i]) && isnan(want[i])))
			fail_msg("weight %zu: cuda %.9g, cpu %.9g", i, (double)got[i],
				(double)want[i]);
}

static const struct op_moe_route route_shapes[] = {
	{.n_experts = 8, .n_active = 2, .n_groups = 1, .n_groups_active = 1, .scale = 1},
	{.n_experts = 8, .n_active = 3, .n_groups = 4, .n_groups_active = 2, .scale = 1},
	{.n_experts = 64, .n_active = 6, .n_groups = 1, .n_groups_active = 1, .scale = 16},
	{.n_experts = 160, .n_active = 6, .n_groups = 8, .n_groups_active = 3, .scale = 16},
	{.n_experts = 256, .n_active = 8, .n_groups = 8, .n_groups_active = 4, .scale = 2.5f},
	{.n_experts = 12, .n_active = 12, .n_groups = 3, .n_groups_active = 3, .scale = -1},
	{.n_experts = 1, .n_active = 1, .n_groups = 1, .n_groups_active = 1, .scale = 1},
	{.n_experts = 1024, .n_active = 40, .n_groups = 512, .n_groups_active = 100, .scale = 1},
	{.n_experts = 1024,
		.n_active = 1024,
		.n_groups = 1024,
		.n_groups_active = 1024,
		.scale = 1},
	{.n_experts = 33, .n_active = 9, .n_groups = 3, .n_groups_active = 1, .scale = 1},
};

static void check_route_shape(const struct op_moe_route *base, unsigned flags, uint32_t levels)
{
	const struct mark mark = mark_here();
	struct op_moe_route shape = *base;
	struct route_case c;

	shape.n_tokens = base->n_experts > 256 ? 9 : 43;
	shape.score = flags & 1 ? MOE_SIGMOID : MOE_SOFTMAX;
	shape.normalise = flags & 2;
	shape.group_top_two = flags & 4 && shape.n_experts / shape.n_groups > 1;
	c = route_new(&shape, flags & 8, levels);
	route_check(&c);
	release_to(mark);
}

static void test_route_chooses_what_the_cpu_does(void **state)
{
	for (size_t i = 0; i < COUNT_OF(route_shapes); i++)
		for (unsigned flags = 0; flags < 16; flags++)
			check_route_shape(&route_shapes[i], flags, 0);
}

static void test_route_breaks_ties_by_the_lowest_index(void **state)
{
	for (size_t i = 0; i < COUNT_OF(route_shapes); i++)
		for (unsigned flags = 0; flags < 8; flags++)
			check_route_shape(&route_shapes[i], flags, 1 + flags % 3);
}

static void test_route_of_logits_that_are_no_numbers_is_the_cpus(void **state)
{
	static const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f};

	for (unsigned flags = 0; flags < 4; flags++)
		for (size_t b = 0; b < COUNT_OF(bad); b++) {
			const struct mark mark = mark_here();
			struct op_moe_route shape = route_shapes[1];
			float logits[48], bias[8];
			struct route_case c;

			shape.n_tokens = 6;
			shape.group_top_two = true;
			shape.score = flags & 1 ? MOE_SIGMOID : MOE_SOFTMAX;
			c = route_new(&shape, flags & 2, 0);
			for (uint32_t i = 0; i < 48; i++)
				logits[i] = i % 8 <= i / 8 ? bad[b] : random_float(&rng);
			for (uint32_t i = 0; i < 8; i++)
				bias[i] = i % 2 ? 3e38f : bad[b];
			both_put(&c.logits, logits);
			if (flags & 2)
				both_put(&c.bias, bias);
			route_check(&c);
			release_to(mark);
		}
}

static void test_route_refuses_groups_that_cannot_be(void **state)
{
	struct op_moe_route shape = route_shapes[1];
	struct route_case c;

	shape.n_tokens = 2;
	shape.group_top_two = true;
	c = route_new(&shape, false, 0);
	for (int fault = 0; fault < 8; fault++) {
		struct op_moe_route a = route_args(&c, CUDA);

		a.n_groups = fault == 0 ? 3 : fault == 1 ? 0 : fault == 2 ? 8 : 4;
		a.n_groups_active = fault == 3 ? 5 : fault == 4 ? 1 : 2;
		a.n_active = fault == 5 ? 5 : 3;
		a.slot_mapping = fault == 6 ? NULL : c.slots.at[CUDA];
		a.n_experts = fault == 7 ? 2048 : 8;
		a.n_groups = fault == 7 ? 4 : a.n_groups;
		assert_int_equal(devices[CUDA]->kernels->moe_route(streams[CUDA], &a),
			fault == 7 ? -ENOTSUP : -EINVAL);
	}
}

/* ---- grouping ---- */

static void check_group(uint32_t n_tokens, uint32_t n_active, uint32_t n_experts)
{
	const struct mark mark = mark_here();
	struct routing r = routing_new(n_tokens, n_active, n_experts);
	const size_t pairs = (size_t)n_tokens * n_active;
	int32_t *ids = scratch(pairs * sizeof(*ids));
	struct op_moe_group a = {
		.n_tokens = n_tokens, .n_active = n_active, .n_experts = n_experts};

	for (size_t p = 0; p < pairs; p++) {
		uint32_t kind = random_below(&rng, 16);

		ids[p] = kind == 0   ? -1
			 : kind == 1 ? (int32_t)random_u32(&rng)
			 : kind == 2 ? (int32_t)n_experts
				     : (int32_t)random_below(&rng, n_experts);
	}
	both_put(&r.experts, ids);
	for (int side = 0; side < N_SIDES; side++) {
		a.experts = r.experts.at[side];
		a.expert_start = r.start.at[side];
		a.pairs = r.pairs.at[side];
		RUN(side, moe_group, &a);
	}
	both_check_equal(&r.start, "expert_start");
	both_check_equal(&r.pairs, "pairs");
	release_to(mark);
}

static void test_group_lists_each_experts_pairs_in_order(void **state)
{
	static const uint32_t tokens[] = {0, 1, 5, 8, 9, 128, 1000, 8192};
	static const uint32_t experts[] = {1, 8, 64, 160, 256, 1024};

	for (size_t i = 0; i < COUNT_OF(tokens); i++)
		for (size_t j = 0; j < COUNT_OF(experts); j++)
			check_group(tokens[i], 1 + random_below(&rng, 8), experts[j]);
}

/* ---- the sum ---- */

static void check_combine(uint32_t n_tokens, uint32_t n_active, uint32_t cols, int base)
{
	const struct mark mark = mark_here();
	struct routing r = routing_new(n_tokens, n_active, 32);
	const size_t pairs = (size_t)n_tokens * n_active, n = (size_t)n_tokens * cols;
	float *weights = scratch(pairs * sizeof(*weights));
	struct both of, y = random_act(pairs * cols), from = random_act(n), out = both_new(ACT, n);

	for (size_t p = 0; p < pairs; p++)
		weights[p] = random_float(&rng);
	of = both_of(weights, pairs * sizeof(*weights));
	routing_fill(&r, PADDED);
	for (int side = 0; side < N_SIDES; side++) {
		const size_t row = cols * (side == CPU ? 4u : 2u);
		struct op_moe_combine a = {.base = base ? from.at[side] : NULL,
			.y = y.at[side],
			.experts = r.experts.at[side],
			.weights = of.at[side],
			.out = base == 2 ? from.at[side] : out.at[side],
			.n_tokens = n_tokens,
			.n_active = n_active,
			.cols = cols};

		for (uint32_t t = 1; t < n_tokens;
			t += 3) /* what no expert computes is not written */
			assert_int_equal(devices[side]->ops->fill_async(streams[side],
						 (uint8_t *)y.at[side] + t * n_active * row, 0xff,
						 n_active * row),
				0);
		RUN(side, moe_combine, &a);
	}
	both_check_close(base == 2 ? &from : &out, 0x1p-7, 1e-3);
	release_to(mark);
}

static void test_combine_weighs_what_experts_computed_and_nothing_else(void **state)
{
	static const uint32_t cols[] = {48, 37, 160, 2048}, active[] = {1, 3, 6, 8, 11};

	for (size_t i = 0; i < COUNT_OF(cols); i++)
		for (size_t j = 0; j < COUNT_OF(active); j++)
			for (int base = 0; base < 3; base++)
				check_combine(1 + random_below(&rng, 20), active[j], cols[i], base);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(test_route_chooses_what_the_cpu_does),
	cmocka_unit_test(test_route_breaks_ties_by_the_lowest_index),
	cmocka_unit_test(test_route_of_logits_that_are_no_numbers_is_the_cpus),
	cmocka_unit_test(test_route_refuses_groups_that_cannot_be),
	cmocka_unit_test(test_group_lists_each_experts_pairs_in_order),
	cmocka_unit_test(test_combine_weighs_what_experts_computed_and_nothing_else),
};

CUDA_TEST_MAIN("cuda ops: routing of experts", tests)
