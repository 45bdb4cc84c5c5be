/* SPDX-License-Identifier: MIT */
/* Products of experts on the CUDA device, and all of a layer's, eager and in a graph, against the
 * cpu's. */
#include "tests/kernels/cuda_routing.h"

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
	const struct mark mark = mark_here();
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
	release_to(mark);
}

static void check_shape(
	const struct product_shape *s, const uint32_t *tokens, size_t n, enum spread end)
{
	const struct mark mark = mark_here();
	struct weight w;
	struct both data = random_weight(&w, DTYPE_BF16, s->n_experts * s->out, s->in);

	for (size_t i = 0; i < n; i++) {
		const struct mark inner = mark_here();
		struct routing r = routing_new(tokens[i], s->n_active, s->n_experts);

		for (int spread = 0; spread < (int)end; spread++) {
			routing_fill(&r, (enum spread)spread);
			check_products(&r, s, w, &data);
		}
		release_to(inner);
	}
	release_to(mark);
}

static void test_products_of_small_experts_equal_the_cpus(void **state)
{
	static const uint32_t tokens[] = {0, 1, 2, 8, 9, 33, 128, 1000};

	for (size_t i = 0; i < COUNT_OF(small_shapes); i++)
		check_shape(&small_shapes[i], tokens, COUNT_OF(tokens), SPREADS);
}

static void test_products_of_large_experts_equal_the_cpus(void **state)
{
	static const uint32_t tokens[] = {8, 300};

	for (size_t i = 0; i < COUNT_OF(large_shapes); i++)
		check_shape(&large_shapes[i], tokens, COUNT_OF(tokens), TO_ONE);
}

/* Each width of tiles, and parts of one expert of unequal size. */
static void test_products_of_every_number_of_pairs_equal_the_cpus(void **state)
{
	static const struct product_shape s = {1, 2, 48, 72, 0};
	struct weight w;
	struct both data = random_weight(&w, DTYPE_BF16, s.n_experts * s.out, s.in);

	for (uint32_t n = 1; n < 700; n += n < 70 ? 1 : 13) {
		const struct mark mark = mark_here();
		struct routing r = routing_new(n, s.n_active, s.n_experts);

		routing_fill(&r, n % 2 ? TO_ONE : RANDOM);
		check_products(&r, &s, w, &data);
		release_to(mark);
	}
}

static void test_products_of_other_shapes_are_refused(void **state)
{
	struct routing r = routing_new(4, 3, 5);
	struct op_expert_gemm a = {.n_tokens = 4, .n_active = 3};
	struct both data = random_weight(&a.w, DTYPE_BF16, 5 * 8, 8), x = random_act(12 * 8);

	a.w.data = data.at[CUDA];
	a.x = a.y = x.at[CUDA];
	a.expert_start = r.start.at[CUDA];
	for (int fault = 0; fault < 4; fault++) {
		a.n_experts = fault == 0 ? 3 : fault == 1 ? 0 : 5;
		a.x_div = fault == 2 ? 2 : 1;
		a.pairs = fault == 3 ? NULL : r.pairs.at[CUDA];
		assert_int_equal(devices[CUDA]->kernels->expert_gemm(streams[CUDA], &a), -EINVAL);
	}
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

/* Other logits and x, and other tokens that are padding. */
static void layer_fill(struct layer *l)
{
	static float logits[LAYER_TOKENS * LAYER_EXPERTS], x[LAYER_TOKENS * HIDDEN];
	const uint32_t real = 1 + random_below(&rng, LAYER_TOKENS),
		       favourite = random_below(&rng, LAYER_EXPERTS);
	int32_t slots[LAYER_TOKENS];

	for (uint32_t i = 0; i < LAYER_TOKENS * LAYER_EXPERTS; i++)
		logits[i] = 2 * random_float(&rng) + (i % LAYER_EXPERTS == favourite ? 3 : 0);
	for (uint32_t i = 0; i < LAYER_TOKENS * HIDDEN; i++)
		x[i] = random_float(&rng);
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
	void *bits = scratch(bytes);

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
	}
	ops->graph_exec_free(exec);
	ops->graph_free(graph);
}

static void test_layer_of_experts_equals_the_cpus(void **state)
{
	struct layer l = layer_new();

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
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(test_products_of_small_experts_equal_the_cpus),
	cmocka_unit_test(test_products_of_every_number_of_pairs_equal_the_cpus),
	cmocka_unit_test(test_products_of_large_experts_equal_the_cpus),
	cmocka_unit_test(test_products_of_other_shapes_are_refused),
	cmocka_unit_test(test_layer_of_experts_equals_the_cpus),
	cmocka_unit_test(test_replay_after_other_choices_equals_eager_bit_for_bit),
};

CUDA_TEST_MAIN("cuda experts", tests)
