/* SPDX-License-Identifier: MIT */
/* Which experts a token goes to, against a plain loop. */
#include "tests/kernels/cpu_ops_fixture.h"

#define EXPERTS_MAX 64

struct route_case {
	struct op_moe_route a;
	struct buffer logits, experts, weights, slots;
};

static struct route_case route_new(const struct op_moe_route *shape, bool biased)
{
	struct route_case c = {.a = *shape};
	size_t pairs = (size_t)shape->n_tokens * shape->n_active;

	c.logits = random_floats((size_t)shape->n_tokens * shape->n_experts);
	for (size_t i = 0; i < (size_t)shape->n_tokens * shape->n_experts; i++)
		F(c.logits)[i] *= 3;
	c.experts = buffer_new(pairs * sizeof(int32_t));
	c.weights = buffer_new(pairs * sizeof(float));
	c.slots = buffer_new(shape->n_tokens * sizeof(int32_t));
	memset(c.slots.data, 0, c.slots.bytes);
	if (biased)
		c.a.bias = random_weight(DTYPE_F32, 1, shape->n_experts);
	c.a.logits = c.logits.data;
	c.a.experts = c.experts.data;
	c.a.weights = c.weights.data;
	c.a.slot_mapping = c.slots.data;
	return c;
}

static void scores_of(const struct op_moe_route *a, const float *logits, double *scores)
{
	double sum = 0;

	for (uint32_t e = 0; e < a->n_experts; e++)
		sum += exp((double)logits[e]);
	for (uint32_t e = 0; e < a->n_experts; e++)
		scores[e] = a->score == MOE_SOFTMAX ? exp((double)logits[e]) / sum
						    : 1 / (1 + exp(-(double)logits[e]));
}

/* How many of the n values are ahead of value i. */
static uint32_t ahead(const double *values, uint32_t n, uint32_t i)
{
	uint32_t count = 0;

	for (uint32_t j = 0; j < n; j++)
		count += values[j] > values[i] || (values[j] == values[i] && j < i);
	return count;
}

static double group_score(const struct op_moe_route *a, const double *choice, uint32_t n)
{
	double first = -INFINITY, second = -INFINITY;

	for (uint32_t e = 0; e < n; e++) {
		uint32_t before = ahead(choice, n, e);

		first = before == 0 ? choice[e] : first;
		second = before == 1 ? choice[e] : second;
	}
	return a->group_top_two ? first + second : first;
}

/* The choice by rank: an expert is chosen if fewer than n_active of those in play are ahead. */
static void check_token(const struct route_case *c, uint32_t t)
{
	const struct op_moe_route *a = &c->a;
	double scores[EXPERTS_MAX], choice[EXPERTS_MAX], groups[EXPERTS_MAX], sum = 0;
	uint32_t n = a->n_experts / a->n_groups;
	const int32_t *experts = I(c->experts) + t * a->n_active;

	scores_of(a, F(c->logits) + t * a->n_experts, scores);
	for (uint32_t e = 0; e < a->n_experts; e++)
		choice[e] = scores[e] + (a->bias.data ? weight_at(&a->bias, 0, e) : 0);
	for (uint32_t g = 0; g < a->n_groups; g++)
		groups[g] = group_score(a, choice + g * n, n);
	for (uint32_t e = 0; e < a->n_experts; e++)
		if (ahead(groups, a->n_groups, e / n) >= a->n_groups_active)
			choice[e] = -INFINITY;
	for (uint32_t e = 0; e < a->n_experts; e++) {
		uint32_t rank = ahead(choice, a->n_experts, e);

		if (rank < a->n_active) {
			assert_int_equal(experts[rank], e);
			sum += scores[e];
		}
	}
	for (uint32_t i = 0; i < a->n_active; i++) {
		double weight = scores[experts[i]] / (a->normalise ? sum : 1) * (double)a->scale;

		assert_close((double)F(c->weights)[t * a->n_active + i], weight,
			2e-6 * fabs((double)a->scale));
	}
}

static void check_route(const struct op_moe_route *shape, bool biased)
{
	struct route_case c = route_new(shape, biased);

	RUN(moe_route, &c.a);
	for (uint32_t t = 0; t < shape->n_tokens; t++)
		check_token(&c, t);
}

static void test_route_equals_a_plain_loop(void **state)
{
	static const struct op_moe_route shapes[] = {
		{.n_experts = 8, .n_active = 2, .n_groups = 1, .n_groups_active = 1, .scale = 1},
		{.n_experts = 64, .n_active = 6, .n_groups = 1, .n_groups_active = 1, .scale = 16},
		{.n_experts = 16, .n_active = 5, .n_groups = 8, .n_groups_active = 3, .scale = 2},
		{.n_experts = 12, .n_active = 12, .n_groups = 3, .n_groups_active = 3, .scale = -1},
		{.n_experts = 1, .n_active = 1, .n_groups = 1, .n_groups_active = 1, .scale = 1},
		{.n_experts = 12, .n_active = 6, .n_groups = 6, .n_groups_active = 3, .scale = 1},
	};

	rng = 1;
	for (size_t i = 0; i < COUNT_OF(shapes); i++) {
		for (unsigned flags = 0; flags < 16; flags++) {
			struct op_moe_route shape = shapes[i];

			shape.n_tokens = 25;
			shape.score = flags & 1 ? MOE_SIGMOID : MOE_SOFTMAX;
			shape.normalise = flags & 2;
			shape.group_top_two = flags & 4 && shape.n_experts / shape.n_groups > 1;
			check_route(&shape, flags & 8);
		}
	}
}

static const struct op_moe_route grouped = {.n_tokens = 6, .n_experts = 8, .n_active = 3,
	.n_groups = 4, .n_groups_active = 2, .score = MOE_SIGMOID, .group_top_two = true, .scale = 1};

static void test_route_sends_padding_to_no_expert(void **state)
{
	struct route_case c = route_new(&grouped, false);
	for (uint32_t t = 0; t < 6; t++)
		I(c.slots)[t] = t % 2 ? -1 : 77;
	RUN(moe_route, &c.a);
	for (uint32_t i = 0; i < 18; i++) {
		if (i / 3 % 2) {
			assert_int_equal(I(c.experts)[i], -1);
			assert_true(F(c.weights)[i] == 0);
		} else {
			assert_in_range(I(c.experts)[i], 0, 7);
		}
	}
}

static void test_route_breaks_ties_by_the_lowest_index(void **state)
{
	struct route_case c = route_new(&grouped, false);
	for (uint32_t i = 0; i < 48; i++)
		F(c.logits)[i] = 0.5f;
	RUN(moe_route, &c.a);
	for (uint32_t i = 0; i < 18; i++)
		assert_int_equal(I(c.experts)[i], i % 3);
}

/* Whatever a broken activation brings, ids are in range and none comes twice. */
static void test_route_of_logits_that_are_no_numbers_names_experts(void **state)
{
	static const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f};

	rng = 5;
	for (unsigned flags = 0; flags < 4; flags++) {
		for (size_t b = 0; b < COUNT_OF(bad); b++) {
			struct op_moe_route shape = grouped;
			struct route_case c;

			shape.score = flags & 1 ? MOE_SIGMOID : MOE_SOFTMAX;
			c = route_new(&shape, flags & 2);
			for (uint32_t i = 0; flags & 2 && i < 8; i++)
				((float *)(uintptr_t)c.a.bias.data)[i] = i % 2 ? 3e38f : bad[b];
			for (uint32_t i = 0; i < 48; i++)
				F(c.logits)[i] = i % 8 <= i / 8 ? bad[b] : F(c.logits)[i];
			RUN(moe_route, &c.a);
			for (uint32_t t = 0; t < 6; t++) {
				uint32_t seen = 0;

				for (uint32_t i = 0; i < 3; i++) {
					assert_in_range(I(c.experts)[t * 3 + i], 0, 7);
					seen |= 1u << I(c.experts)[t * 3 + i];
				}
				assert_int_equal(__builtin_popcount(seen), 3);
			}
		}
	}
}

/* Two that make a group's score may add up to infinity. */
static void test_route_keeps_to_its_groups_where_scores_are_huge(void **state)
{
	static const float bias[] = {3.3e38f, 3e38f, 3.2e38f, 3e38f, 3.1e38f, 3e38f, 3e38f, 3e38f};
	struct route_case c = route_new(&grouped, true);
	memcpy((void *)(uintptr_t)c.a.bias.data, bias, sizeof(bias));
	RUN(moe_route, &c.a);
	for (uint32_t t = 0; t < 6; t++) {
		uint32_t groups = 0;

		for (uint32_t i = 0; i < 3; i++)
			groups |= 1u << I(c.experts)[t * 3 + i] / 2;
		assert_int_equal(__builtin_popcount(groups), 2);
	}
}

/* Beyond what exp of a float can be: 90 and more, up or down. */
static void test_route_of_large_logits_equals_a_plain_loop(void **state)
{
	struct route_case c;

	for (int sign = -1; sign <= 1; sign += 2) {
		c = route_new(&grouped, false);
		c.a.score = MOE_SOFTMAX;
		for (uint32_t i = 0; i < 48; i++)
			F(c.logits)[i] += 300.0f * (float)sign;
		RUN(moe_route, &c.a);
		for (uint32_t t = 0; t < 6; t++)
			check_token(&c, t);
	}
}

static void test_route_of_no_scores_at_all_weighs_nothing(void **state)
{
	struct route_case c = route_new(&grouped, false);
	c.a.normalise = true;
	for (uint32_t i = 0; i < 48; i++)
		F(c.logits)[i] = -200;
	RUN(moe_route, &c.a);
	for (uint32_t i = 0; i < 18; i++)
		assert_true(F(c.weights)[i] == 0);
}

static void test_route_refuses_groups_that_cannot_be(void **state)
{
	struct route_case c = route_new(&grouped, false);
	for (int fault = 0; fault < 7; fault++) {
		struct op_moe_route a = c.a;

		a.n_groups = fault == 0 ? 3 : fault == 1 ? 0 : fault == 2 ? 8 : 4;
		a.n_groups_active = fault == 3 ? 5 : fault == 4 ? 1 : 2;
		a.n_active = fault == 2 ? 2 : fault == 5 ? 5 : 3; /* 2: but one expert a group */
		a.slot_mapping = fault == 6 ? NULL : c.a.slot_mapping;
		assert_refused(moe_route, &a);
	}
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(test_route_equals_a_plain_loop),
	cmocka_unit_test(test_route_sends_padding_to_no_expert),
	cmocka_unit_test(test_route_breaks_ties_by_the_lowest_index),
	cmocka_unit_test(test_route_of_logits_that_are_no_numbers_names_experts),
	cmocka_unit_test(test_route_keeps_to_its_groups_where_scores_are_huge),
	cmocka_unit_test(test_route_of_large_logits_equals_a_plain_loop),
	cmocka_unit_test(test_route_of_no_scores_at_all_weighs_nothing),
	cmocka_unit_test(test_route_refuses_groups_that_cannot_be),
};

OPS_TEST_MAIN("cpu ops: routing", tests)
