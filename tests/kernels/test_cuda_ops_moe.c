/* SPDX-License-Identifier: MIT */
/* The ops of experts on the CUDA device, each against the cpu device's. */
#include "tests/kernels/cuda_ops_fixture.h"

/* ---- routings ---- */

enum spread { RANDOM, TO_ONE, SPARSE, PADDED, SPREADS };

struct routing {
	uint32_t n_tokens, n_active, n_experts;
	struct both experts, start, pairs;
};

/* Distinct experts, as a router has it, but for TO_ONE. */
static void choose(const struct routing *r, enum spread spread, uint32_t t, int32_t *ret)
{
	for (uint32_t i = 0; i < r->n_active; i++) {
		bool again = true;

		while (again) {
			ret[i] = spread == TO_ONE ? (int32_t)r->n_experts - 1
						  : (int32_t)random_below(r->n_experts);
			if (spread == SPARSE && r->n_experts >= 2 * r->n_active)
				ret[i] |= 1;
			ret[i] = ret[i] < (int32_t)r->n_experts ? ret[i] : 1;
			again = false;
			for (uint32_t j = 0; spread != TO_ONE && j < i; j++)
				again = again || ret[j] == ret[i];
		}
	}
	for (uint32_t i = 0; spread == PADDED && t % 3 == 1 && i < r->n_active; i++)
		ret[i] = -1;
}

static void routing_fill(struct routing *r, enum spread spread)
{
	int32_t *ids = malloc((size_t)r->n_tokens * r->n_active * sizeof(*ids) + 1);
	struct op_moe_group a = {
		.n_tokens = r->n_tokens, .n_active = r->n_active, .n_experts = r->n_experts};

	assert_non_null(ids);
	for (uint32_t t = 0; t < r->n_tokens; t++)
		choose(r, spread, t, ids + (size_t)t * r->n_active);
	both_put(&r->experts, ids);
	free(ids);
	for (int side = 0; side < N_SIDES; side++) {
		a.experts = r->experts.at[side];
		a.expert_start = r->start.at[side];
		a.pairs = r->pairs.at[side];
		RUN(side, moe_group, &a);
	}
}

static struct routing routing_new(uint32_t n_tokens, uint32_t n_active, uint32_t n_experts)
{
	const size_t pairs = (size_t)n_tokens * n_active;

	return (struct routing){
		.n_tokens = n_tokens,
		.n_active = n_active,
		.n_experts = n_experts,
		.experts = both_new(BYTES, pairs * sizeof(int32_t)),
		.start = both_new(BYTES, ((size_t)n_experts + 1) * sizeof(int32_t)),
		.pairs = both_new(BYTES, pairs * sizeof(int32_t)),
	};
}

static void routing_free(struct routing *r)
{
	both_free(&r->experts);
	both_free(&r->start);
	both_free(&r->pairs);
}

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
	float *logits = malloc(n * sizeof(*logits) + 1);
	int32_t *slots = malloc(shape->n_tokens * sizeof(*slots) + 1);
	struct route_case c = {.a = *shape};

	assert_true(logits && slots);
	for (size_t i = 0; i < n; i++)
		logits[i] = levels ? (float)random_below(levels) - 1 : 4 * random_float();
	for (uint32_t t = 0; t < shape->n_tokens; t++)
		slots[t] = t % 7 == 3 ? -1 : (int32_t)random_below(1000);
	c.logits = both_of(logits, n * sizeof(*logits));
	c.slots = both_of(slots, shape->n_tokens * sizeof(*slots));
	c.experts = both_new(BYTES, pairs * sizeof(int32_t));
	c.weights = both_new(BYTES, pairs * sizeof(float));
	if (biased)
		c.bias = random_weight(&c.a.bias, DTYPE_F32, 1, shape->n_experts);
	free(logits);
	free(slots);
	return c;
}

static void route_free(struct route_case *c)
{
	both_free(&c->logits);
	both_free(&c->slots);
	both_free(&c->experts);
	both_free(&c->weights);
	if (c->bias.n)
		both_free(&c->bias);
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
	float *want = malloc(n * sizeof(*want) + 1), *got = malloc(n * sizeof(*got) + 1);

	assert_true(want && got);
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
	free(want);
	free(got);
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
	struct op_moe_route shape = *base;
	struct route_case c;

	shape.n_tokens = base->n_experts > 256 ? 9 : 43;
	shape.score = flags & 1 ? MOE_SIGMOID : MOE_SOFTMAX;
	shape.normalise = flags & 2;
	shape.group_top_two = flags & 4 && shape.n_experts / shape.n_groups > 1;
	c = route_new(&shape, flags & 8, levels);
	route_check(&c);
	route_free(&c);
}

static void test_route_chooses_what_the_cpu_does(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT_OF(route_shapes); i++)
		for (unsigned flags = 0; flags < 16; flags++)
			check_route_shape(&route_shapes[i], flags, 0);
}

static void test_route_breaks_ties_by_the_lowest_index(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT_OF(route_shapes); i++)
		for (unsigned flags = 0; flags < 8; flags++)
			check_route_shape(&route_shapes[i], flags, 1 + flags % 3);
}

static void test_route_of_logits_that_are_no_numbers_is_the_cpus(void **state)
{
	static const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f};

	(void)state;
	for (unsigned flags = 0; flags < 4; flags++)
		for (size_t b = 0; b < COUNT_OF(bad); b++) {
			struct op_moe_route shape = route_shapes[1];
			float logits[48], bias[8];
			struct route_case c;

			shape.n_tokens = 6;
			shape.group_top_two = true;
			shape.score = flags & 1 ? MOE_SIGMOID : MOE_SOFTMAX;
			c = route_new(&shape, flags & 2, 0);
			for (uint32_t i = 0; i < 48; i++)
				logits[i] = i % 8 <= i / 8 ? bad[b] : random_float();
			for (uint32_t i = 0; i < 8; i++)
				bias[i] = i % 2 ? 3e38f : bad[b];
			both_put(&c.logits, logits);
			if (flags & 2)
				both_put(&c.bias, bias);
			route_check(&c);
			route_free(&c);
		}
}

static void test_route_refuses_groups_that_cannot_be(void **state)
{
	struct op_moe_route shape = route_shapes[1];
	struct route_case c;

	(void)state;
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
	route_free(&c);
}

/* ---- grouping ---- */

static void check_group(uint32_t n_tokens, uint32_t n_active, uint32_t n_experts)
{
	struct routing r = routing_new(n_tokens, n_active, n_experts);
	const size_t pairs = (size_t)n_tokens * n_active;
	int32_t *ids = malloc(pairs * sizeof(*ids) + 1);
	struct op_moe_group a = {
		.n_tokens = n_tokens, .n_active = n_active, .n_experts = n_experts};

	assert_non_null(ids);
	for (size_t p = 0; p < pairs; p++) {
		uint32_t kind = random_below(16);

		ids[p] = kind == 0   ? -1
			 : kind == 1 ? (int32_t)random_u32()
			 : kind == 2 ? (int32_t)n_experts
				     : (int32_t)random_below(n_experts);
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
	free(ids);
	routing_free(&r);
}

static void test_group_lists_each_experts_pairs_in_order(void **state)
{
	static const uint32_t tokens[] = {0, 1, 5, 8, 9, 128, 1000, 8192};
	static const uint32_t experts[] = {1, 8, 64, 160, 256, 1024};

	(void)state;
	for (size_t i = 0; i < COUNT_OF(tokens); i++)
		for (size_t j = 0; j < COUNT_OF(experts); j++)
			check_group(tokens[i], 1 + random_below(8), experts[j]);
}

/* ---- products ---- */

struct product_shape {
	uint32_t n_active, n_experts, out, in;
	size_t shift; /* of x, off the alignment */
};

static const struct product_shape small_shapes[] = {
	{2, 8, 192, 160, 0}, /* tinycalc-moe: gate and up; down */
	{2, 8, 160, 96, 0},
	{3, 8, 32, 48, 0}, /* the checkpoints deepseek-* */
	{3, 8, 48, 16, 0},
	{6, 64, 272, 200, 0}, /* neither a whole tile nor a whole stage */
	{4, 40, 16, 8, 0},
	{3, 5, 34, 70, 0}, /* no packs of eight anywhere */
	{2, 9, 64, 64, 1},
	{1, 1, 130, 64, 0},
	{8, 1024, 32, 64, 0},
};

static const struct product_shape large_shapes[] = {
	{6, 12, 2816, 2048, 0}, /* V2-Lite, of fewer experts */
	{6, 12, 2048, 1408, 0},
};

static void run_plain(const struct routing *r, const struct both *x, uint32_t x_div,
	struct weight w, const struct both *data, struct both *y)
{
	for (int side = 0; side < N_SIDES; side++) {
		struct op_expert_gemm a = {.x = x->at[side],
			.x_div = x_div,
			.w = w,
			.expert_start = r->start.at[side],
			.pairs = r->pairs.at[side],
			.y = y->at[side],
			.n_tokens = r->n_tokens,
			.n_active = r->n_active,
			.n_experts = r->n_experts};

		a.w.data = data->at[side];
		RUN(side, expert_gemm, &a);
	}
}

static void run_gated(const struct routing *r, const struct both *x, struct weight w,
	const struct both *data, struct both *gate_up, struct both *y)
{
	for (int side = 0; side < N_SIDES; side++) {
		struct op_expert_gated_gemm a = {.x = x->at[side],
			.w = w,
			.expert_start = r->start.at[side],
			.pairs = r->pairs.at[side],
			.gate_up = gate_up->at[side],
			.y = y->at[side],
			.n_tokens = r->n_tokens,
			.n_active = r->n_active,
			.n_experts = r->n_experts};

		a.w.data = data->at[side];
		RUN(side, expert_gated_gemm, &a);
	}
}

/* What is left alone stays poison on both sides. */
static void check_products(const struct routing *r, const struct product_shape *s, struct weight w,
	const struct both *data)
{
	const size_t pairs = (size_t)r->n_tokens * r->n_active;
	const double absolute = 2e-5 * s->in;
	struct both x = random_act_at(pairs * s->in, 2, s->shift);
	struct both y = both_new(ACT, pairs * s->out), again = both_new(ACT, pairs * s->out);
	struct both half = both_new(ACT, pairs * s->out / 2);

	run_plain(r, &x, 1, w, data, &y);
	both_check_close(&y, 0x1p-7, absolute);
	run_plain(r, &x, r->n_active, w, data, &again);
	both_check_close(&again, 0x1p-7, absolute);
	run_gated(r, &x, w, data, &y, &half);
	both_check_close(&half, 0x1p-7, absolute * 20);
	both_free(&half);
	both_free(&again);
	both_free(&y);
	both_free(&x);
}

static void check_shape(
	const struct product_shape *s, const uint32_t *tokens, size_t n, enum spread end)
{
	struct weight w;
	struct both data = random_weight(&w, DTYPE_BF16, s->n_experts * s->out, s->in);

	for (size_t i = 0; i < n; i++) {
		struct routing r = routing_new(tokens[i], s->n_active, s->n_experts);

		for (int spread = 0; spread < (int)end; spread++) {
			routing_fill(&r, (enum spread)spread);
			check_products(&r, s, w, &data);
		}
		routing_free(&r);
	}
	both_free(&data);
}

static void test_products_of_small_experts_equal_the_cpus(void **state)
{
	static const uint32_t tokens[] = {0, 1, 2, 8, 9, 33, 128, 1000};

	(void)state;
	for (size_t i = 0; i < COUNT_OF(small_shapes); i++)
		check_shape(&small_shapes[i], tokens, COUNT_OF(tokens), SPREADS);
}

static void test_products_of_large_experts_equal_the_cpus(void **state)
{
	static const uint32_t tokens[] = {8, 300};

	(void)state;
	for (size_t i = 0; i < COUNT_OF(large_shapes); i++)
		check_shape(&large_shapes[i], tokens, COUNT_OF(tokens), TO_ONE);
}

/* Each width of tiles, and parts of one expert of unequal size. */
static void test_products_of_every_number_of_pairs_equal_the_cpus(void **state)
{
	static const struct product_shape s = {1, 2, 48, 72, 0};
	struct weight w;
	struct both data = random_weight(&w, DTYPE_BF16, s.n_experts * s.out, s.in);

	(void)state;
	for (uint32_t n = 1; n < 700; n += n < 70 ? 1 : 13) {
		struct routing r = routing_new(n, s.n_active, s.n_experts);

		routing_fill(&r, n % 2 ? TO_ONE : RANDOM);
		check_products(&r, &s, w, &data);
		routing_free(&r);
	}
	both_free(&data);
}

static void test_products_of_other_shapes_are_refused(void **state)
{
	struct routing r = routing_new(4, 3, 5);
	struct op_expert_gemm a = {.n_tokens = 4, .n_active = 3};
	struct both data = random_weight(&a.w, DTYPE_BF16, 5 * 8, 8), x = random_act(12 * 8);

	(void)state;
	a.w.data = data.at[CUDA];
	a.x = a.y = x.at[CUDA];
	a.expert_start = r.start.at[CUDA];
	for (int fault = 0; fault < 4; fault++) {
		a.n_experts = fault == 0 ? 3 : fault == 1 ? 0 : 5;
		a.x_div = fault == 2 ? 2 : 1;
		a.pairs = fault == 3 ? NULL : r.pairs.at[CUDA];
		assert_int_equal(devices[CUDA]->kernels->expert_gemm(streams[CUDA], &a), -EINVAL);
	}
	both_free(&x);
	both_free(&data);
	routing_free(&r);
}

/* The router's: sums stay float32, so that near scores keep their order. */
static void test_router_logits_are_float32(void **state)
{
	static const uint32_t shapes[][2] = {{8, 48}, {8, 160}, {64, 2048}, {256, 7168}};
	static const uint32_t tokens[] = {1, 9, 70};

	(void)state;
	for (size_t i = 0; i < COUNT_OF(shapes) * COUNT_OF(tokens); i++) {
		const uint32_t n = tokens[i / COUNT_OF(shapes)],
			       *shape = shapes[i % COUNT_OF(shapes)];
		const size_t count = (size_t)n * shape[0];
		struct op_gemm a = {.y_dtype = DTYPE_F32, .n_rows = n};
		struct both data = random_weight(&a.w, DTYPE_BF16, shape[0], shape[1]);
		struct both x = random_act((size_t)n * shape[1]), y = both_new(BYTES, count * 4);
		float *sums[N_SIDES];

		for (int side = 0; side < N_SIDES; side++) {
			a.x = x.at[side];
			a.w.data = data.at[side];
			a.y = y.at[side];
			RUN(side, gemm, &a);
			sums[side] = malloc(count * sizeof(float));
			assert_non_null(sums[side]);
			both_copy(side, sums[side], y.at[side], count * sizeof(float));
		}
		for (size_t j = 0; j < count; j++)
			if (!(fabsf(sums[CUDA][j] - sums[CPU][j]) <= 2e-6f * (float)shape[1]))
				fail_msg("logit %zu of %u experts: cuda %.9g, cpu %.9g", j,
					shape[0], (double)sums[CUDA][j], (double)sums[CPU][j]);
		free(sums[CPU]);
		free(sums[CUDA]);
		both_free(&y);
		both_free(&x);
		both_free(&data);
	}
}

/* ---- the sum ---- */

static void check_combine(uint32_t n_tokens, uint32_t n_active, uint32_t cols, int base)
{
	struct routing r = routing_new(n_tokens, n_active, 32);
	const size_t pairs = (size_t)n_tokens * n_active, n = (size_t)n_tokens * cols;
	float *weights = malloc(pairs * sizeof(*weights) + 1);
	struct both of, y = random_act(pairs * cols), from = random_act(n), out = both_new(ACT, n);

	assert_non_null(weights);
	for (size_t p = 0; p < pairs; p++)
		weights[p] = random_float();
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
			t += 3) /* nobody wrote what no expert computes */
			assert_int_equal(devices[side]->ops->fill_async(streams[side],
						 (uint8_t *)y.at[side] + t * n_active * row, 0xff,
						 n_active * row),
				0);
		RUN(side, moe_combine, &a);
	}
	both_check_close(base == 2 ? &from : &out, 0x1p-7, 1e-3);
	free(weights);
	both_free(&out);
	both_free(&from);
	both_free(&y);
	both_free(&of);
	routing_free(&r);
}

static void test_combine_weighs_what_experts_computed_and_nothing_else(void **state)
{
	static const uint32_t cols[] = {48, 37, 160, 2048}, active[] = {1, 3, 6, 8, 11};

	(void)state;
	for (size_t i = 0; i < COUNT_OF(cols); i++)
		for (size_t j = 0; j < COUNT_OF(active); j++)
			for (int base = 0; base < 3; base++)
				check_combine(1 + random_below(20), active[j], cols[i], base);
}

/* ---- graphs ---- */

enum { LAYER_TOKENS = 40, LAYER_ACTIVE = 6, LAYER_EXPERTS = 64, HIDDEN = 256, INNER = 176 };

/* All of a layer's experts, from the router's logits on; on the CUDA device alone. */
struct layer {
	struct both logits, slots, x, experts, weights, start, pairs, gate_up, activated, y, out;
	struct both gate_up_data, down_data;
	struct weight gate_up_w, down_w;
};

static struct layer layer_new(void)
{
	const size_t pairs = LAYER_TOKENS * LAYER_ACTIVE;
	struct layer l = {
		.logits = both_new(BYTES, LAYER_TOKENS * LAYER_EXPERTS * sizeof(float)),
		.slots = both_new(BYTES, LAYER_TOKENS * sizeof(int32_t)),
		.x = both_new(ACT, LAYER_TOKENS * HIDDEN),
		.experts = both_new(BYTES, pairs * sizeof(int32_t)),
		.weights = both_new(BYTES, pairs * sizeof(float)),
		.start = both_new(BYTES, (LAYER_EXPERTS + 1) * sizeof(int32_t)),
		.pairs = both_new(BYTES, pairs * sizeof(int32_t)),
		.gate_up = both_new(ACT, pairs * 2 * INNER),
		.activated = both_new(ACT, pairs * INNER),
		.y = both_new(ACT, pairs * HIDDEN),
		.out = both_new(ACT, LAYER_TOKENS * HIDDEN),
	};

	l.gate_up_data = random_weight(&l.gate_up_w, DTYPE_BF16, LAYER_EXPERTS * 2 * INNER, HIDDEN);
	l.down_data = random_weight(&l.down_w, DTYPE_BF16, LAYER_EXPERTS * HIDDEN, INNER);
	return l;
}

static void layer_free(struct layer *l)
{
	struct both *all[] = {&l->logits, &l->slots, &l->x, &l->experts, &l->weights, &l->start,
		&l->pairs, &l->gate_up, &l->activated, &l->y, &l->out, &l->gate_up_data,
		&l->down_data};

	for (size_t i = 0; i < COUNT_OF(all); i++)
		both_free(all[i]);
}

/* Other logits and x, and other tokens that are padding. */
static void layer_fill(struct layer *l)
{
	static float logits[LAYER_TOKENS * LAYER_EXPERTS], x[LAYER_TOKENS * HIDDEN];
	const uint32_t real = 1 + random_below(LAYER_TOKENS),
		       favourite = random_below(LAYER_EXPERTS);
	int32_t slots[LAYER_TOKENS];

	for (uint32_t i = 0; i < LAYER_TOKENS * LAYER_EXPERTS; i++)
		logits[i] = 2 * random_float() + (i % LAYER_EXPERTS == favourite ? 3 : 0);
	for (uint32_t i = 0; i < LAYER_TOKENS * HIDDEN; i++)
		x[i] = random_float();
	for (uint32_t t = 0; t < LAYER_TOKENS; t++)
		slots[t] = t < real ? (int32_t)t : -1;
	both_put(&l->logits, logits);
	both_put(&l->x, x);
	both_put(&l->slots, slots);
}

static void layer_queue(struct layer *l, int side)
{
	const struct kernel_ops *ops = devices[side]->kernels;
	struct stream *stream = streams[side];
	const uint32_t tokens = LAYER_TOKENS, active = LAYER_ACTIVE, experts = LAYER_EXPERTS;
	struct op_moe_route route = {.logits = l->logits.at[side],
		.slot_mapping = l->slots.at[side],
		.experts = l->experts.at[side],
		.weights = l->weights.at[side],
		.n_tokens = tokens,
		.n_experts = experts,
		.n_active = active,
		.n_groups = 1,
		.n_groups_active = 1,
		.score = MOE_SOFTMAX,
		.scale = 1};
	struct op_moe_group group = {.experts = l->experts.at[side],
		.expert_start = l->start.at[side],
		.pairs = l->pairs.at[side],
		.n_tokens = tokens,
		.n_active = active,
		.n_experts = experts};
	struct op_expert_gated_gemm gated = {.x = l->x.at[side],
		.w = l->gate_up_w,
		.expert_start = l->start.at[side],
		.pairs = l->pairs.at[side],
		.gate_up = l->gate_up.at[side],
		.y = l->activated.at[side],
		.n_tokens = tokens,
		.n_active = active,
		.n_experts = experts};
	struct op_expert_gemm down = {.x = l->activated.at[side],
		.x_div = 1,
		.w = l->down_w,
		.expert_start = l->start.at[side],
		.pairs = l->pairs.at[side],
		.y = l->y.at[side],
		.n_tokens = tokens,
		.n_active = active,
		.n_experts = experts};
	struct op_moe_combine combine = {.y = l->y.at[side],
		.experts = l->experts.at[side],
		.weights = l->weights.at[side],
		.out = l->out.at[side],
		.n_tokens = tokens,
		.n_active = active,
		.cols = HIDDEN};

	gated.w.data = l->gate_up_data.at[side];
	down.w.data = l->down_data.at[side];
	assert_int_equal(ops->moe_route(stream, &route), 0);
	assert_int_equal(ops->moe_group(stream, &group), 0);
	assert_int_equal(ops->expert_gated_gemm(stream, &gated), 0);
	assert_int_equal(ops->expert_gemm(stream, &down), 0);
	assert_int_equal(ops->moe_combine(stream, &combine), 0);
}

static void *out_bytes(const struct layer *l)
{
	const size_t bytes = LAYER_TOKENS * HIDDEN * 2;
	void *bits = malloc(bytes);

	assert_non_null(bits);
	assert_int_equal(devices[CUDA]->ops->stream_sync(streams[CUDA]), 0);
	both_copy(CUDA, bits, l->out.at[CUDA], bytes);
	return bits;
}

static void test_replay_after_other_choices_equals_eager_bit_for_bit(void **state)
{
	const struct device_ops *ops = devices[CUDA]->ops;
	struct layer l = layer_new();
	struct graph_exec *exec;
	struct graph *graph;

	(void)state;
	layer_fill(&l);
	layer_queue(&l, CUDA); /* first use */
	assert_int_equal(ops->stream_sync(streams[CUDA]), 0);
	assert_int_equal(ops->capture_begin(streams[CUDA]), 0);
	layer_queue(&l, CUDA);
	assert_int_equal(ops->capture_end(streams[CUDA], &graph), 0);
	assert_int_equal(ops->graph_instantiate(devices[CUDA], graph, &exec), 0);
	for (int i = 0; i < 20; i++) {
		void *eager, *replayed;

		layer_fill(&l);
		layer_queue(&l, CUDA);
		eager = out_bytes(&l);
		assert_int_equal(ops->fill_async(streams[CUDA], l.out.at[CUDA], 0xff,
					 LAYER_TOKENS * HIDDEN * 2),
			0);
		assert_int_equal(ops->graph_launch(exec, streams[CUDA]), 0);
		replayed = out_bytes(&l);
		assert_memory_equal(eager, replayed, LAYER_TOKENS * HIDDEN * 2);
		free(eager);
		free(replayed);
	}
	ops->graph_exec_free(exec);
	ops->graph_free(graph);
	layer_free(&l);
}

static void test_layer_of_experts_equals_the_cpus(void **state)
{
	struct layer l = layer_new();

	(void)state;
	for (int i = 0; i < 5; i++) {
		layer_fill(&l);
		for (int side = 0; side < N_SIDES; side++) {
			layer_queue(&l, side);
			assert_int_equal(devices[side]->ops->stream_sync(streams[side]), 0);
		}
		both_check_equal(&l.experts, "experts");
		both_check_equal(&l.start, "expert_start");
		both_check_equal(&l.pairs, "pairs");
		both_check_close(&l.out, 0x1p-5, 2);
	}
	layer_free(&l);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(test_route_chooses_what_the_cpu_does),
	cmocka_unit_test(test_route_breaks_ties_by_the_lowest_index),
	cmocka_unit_test(test_route_of_logits_that_are_no_numbers_is_the_cpus),
	cmocka_unit_test(test_route_refuses_groups_that_cannot_be),
	cmocka_unit_test(test_group_lists_each_experts_pairs_in_order),
	cmocka_unit_test(test_products_of_small_experts_equal_the_cpus),
	cmocka_unit_test(test_products_of_every_number_of_pairs_equal_the_cpus),
	cmocka_unit_test(test_products_of_large_experts_equal_the_cpus),
	cmocka_unit_test(test_products_of_other_shapes_are_refused),
	cmocka_unit_test(test_router_logits_are_float32),
	cmocka_unit_test(test_combine_weighs_what_experts_computed_and_nothing_else),
	cmocka_unit_test(test_layer_of_experts_equals_the_cpus),
	cmocka_unit_test(test_replay_after_other_choices_equals_eager_bit_for_bit),
};

CUDA_TEST_MAIN("cuda ops: experts", tests)
