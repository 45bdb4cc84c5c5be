/* SPDX-License-Identifier: MIT */

/* Capture and replay of paged attention on CUDA, as an engine records its layers. */

#include "tests/attention/cuda_group.h"

/* ---- replay against eager ---- */

static struct device *open_own(void)
{
	struct device *device = NULL;

	assert_int_equal(device_open("cuda", NULL, &device), 0);
	return device;
}

/* A new plan, then the graph. */
static void replay(struct fixture *f, struct graph_exec *exec)
{
	assert_int_equal(fixture_build(f, ATTENTION_REPLAY), 0);
	fixture_replay(f, exec);
}

static void replay_equals_eager(const struct shape *shape, uint32_t n_query)
{
	struct device *device = open_own();
	struct row rows[5];
	struct graph_exec *exec;
	struct fixture f;

	fixture_init(&f, device, "paged", shape);
	exec = fixture_capture_paged(&f, 6, n_query);
	for (uint32_t r = 0; r < 5; r++)
		rows[r] = (struct row){
			.seed = 11 + r,
			.n_query = n_query,
			.seq_len = n_query + (r * 97 + 60) % 390,
		};
	for (uint32_t n_rows = 0; n_rows <= 5; n_rows++)
		fixture_check_replay(&f, exec, rows, n_rows, 6, 6 * n_query, true);
	device->ops->graph_exec_free(exec);
	fixture_deinit(&f);
	device->ops->free(device);
}

static void test_replay_at_other_lengths_equals_eager(void **state)
{
	replay_equals_eager(&ordinary, 1);
	replay_equals_eager(&windowed, 5);
	replay_equals_eager(&ordinary, 10);
}

/* What an engine records of a layer: the step's keys and values go into the cache, by the op that
 * does it, and attention sees them at once. */
struct layer {
	struct op_rope_and_cache rope;
	void *slots, *positions, *table;
	int32_t slot_of[FIXTURE_ROWS * 16];
};

static void *device_copy_of(struct fixture *f, const void *from, size_t bytes)
{
	void *memory = NULL;

	assert_int_equal(f->device->ops->mem_alloc(f->device, bytes, &memory), 0);
	test_copy(f->device, memory, from, bytes);
	return memory;
}

static void layer_init(struct layer *l, struct fixture *f)
{
	const struct attention_config *c = &f->config;
	float identity[256] = { 0 };
	int32_t zeros[FIXTURE_ROWS * 16] = { 0 };

	for (uint32_t i = 0; i < c->head_dim / 2; i++)
		identity[i] = 1.0f;
	*l = (struct layer){
		.slots = device_copy_of(f, zeros, sizeof(zeros)),
		.positions = device_copy_of(f, zeros, sizeof(zeros)),
		.table = device_copy_of(f, identity, sizeof(identity)),
	};
	l->rope = (struct op_rope_and_cache){
		.qkv = f->q_device, .positions = l->positions, .slot_mapping = l->slots,
		.cos_sin = l->table, .max_positions = 1, .kv = f->kv_device,
		.n_heads = c->n_heads, .n_kv_heads = c->n_kv_heads, .head_dim = c->head_dim,
		.page_tokens = c->page_tokens,
	};
}

static void layer_deinit(struct layer *l, struct fixture *f)
{
	f->device->ops->mem_free(f->device, l->table);
	f->device->ops->mem_free(f->device, l->positions);
	f->device->ops->mem_free(f->device, l->slots);
}

static void layer_enqueue(struct layer *l, struct fixture *f, uint32_t n_tokens)
{
	l->rope.n_tokens = n_tokens;
	assert_int_equal(f->device->kernels->rope_and_cache(f->stream, &l->rope), 0);
	assert_int_equal(fixture_enqueue(f, FIXTURE_LAYER), 0);
}

/* The placed rows' own tokens move from the cache, where NaN remains, into the fused qkv rows. */
static void layer_take_tokens(struct layer *l, struct fixture *f, uint32_t n_rows, uint32_t n_query)
{
	const struct attention_config *c = &f->config;
	size_t width = (size_t)c->n_kv_heads * c->head_dim;
	uint32_t n = 0;

	for (uint32_t r = 0; r < n_rows; r++)
		for (uint32_t j = 0; j < n_query; j++, n++) {
			uint32_t p = f->rows[r].seq_len - n_query + j, in = p % c->page_tokens;
			int32_t page = f->inputs.block_table[r * c->max_pages + p / c->page_tokens];
			float *key = f->kv + ((size_t)page * 2 * c->page_tokens + in) * width;

			l->slot_of[n] = page * (int32_t)c->page_tokens + (int32_t)in;
			for (int half = 0; half < 2; half++, key += c->page_tokens * width) {
				memcpy(f->q + (size_t)n * f->q_stride + f->width + half * width,
					key, width * sizeof(float));
				memset(key, 0xff, width * sizeof(float));
			}
		}
	test_copy(f->device, l->slots, l->slot_of, n * sizeof(*l->slot_of));
}

static void replay_sees_the_steps_tokens(const struct shape *shape, uint32_t n_query)
{
	struct device *device = open_own();
	const struct device_ops *ops = device->ops;
	struct row rows[6];
	struct graph *graph = NULL;
	struct graph_exec *exec;
	struct layer l;
	struct fixture f;

	fixture_init(&f, device, "paged", shape);
	layer_init(&l, &f);
	for (uint32_t r = 0; r < 6; r++)
		rows[r] = (struct row){ .seed = r, .n_query = n_query, .seq_len = 100 };
	fixture_place(&f, rows, 6, 0, 0);
	layer_take_tokens(&l, &f, 6, n_query);
	assert_int_equal(fixture_build(&f, ATTENTION_CAPTURE), 0);
	layer_enqueue(&l, &f, 6 * n_query);
	assert_int_equal(ops->stream_sync(f.stream), 0);
	assert_int_equal(ops->capture_begin(f.stream), 0);
	/* the layer's kernels come, and begin, while another runs */
	assert_int_equal(fixture_enqueue(&f, FIXTURE_LAYER), 0);
	layer_enqueue(&l, &f, 6 * n_query);
	assert_int_equal(ops->capture_end(f.stream, &graph), 0);
	exec = fixture_instantiate(&f, graph);
	for (uint32_t round = 0; round < 20; round++) {
		for (uint32_t r = 0; r < 6; r++) {
			rows[r].seed = 20 + round * 6 + r;
			rows[r].seq_len = n_query + (r * 97 + round * 31) % 390;
		}
		fixture_place(&f, rows, 6, 0, 0);
		layer_take_tokens(&l, &f, 6, n_query);
		replay(&f, exec);
		fixture_verify(&f);
	}
	ops->graph_exec_free(exec);
	layer_deinit(&l, &f);
	fixture_deinit(&f);
	ops->free(device);
}

static void test_replay_sees_what_the_step_itself_put_into_the_cache(void **state)
{
	struct shape wide = ordinary;

	replay_sees_the_steps_tokens(&ordinary, 1);
	replay_sees_the_steps_tokens(&windowed, 1);
	wide.head_dim = 128;
	wide.page_tokens = 64;
	replay_sees_the_steps_tokens(&wide, 5);
}

static void test_graph_with_its_own_plan_sees_the_lengths_of_its_time(void **state)
{
	static const struct row longer = { .seed = 5, .n_query = 1, .seq_len = 380 };
	struct device *device = open_own();
	struct fixture f;

	fixture_init(&f, device, "paged", &ordinary);
	fixture_check_recorded_plan(&f, &longer);
	fixture_deinit(&f);
	device->ops->free(device);
}

static void test_capture_of_more_than_the_level_is_refused(void **state)
{
	struct row row = { .seed = 1, .n_query = 17, .seq_len = 30 };
	struct fixture f;

	fixture_init(&f, shared, "paged", &ordinary);
	fixture_place(&f, &row, 1, 0, 0);
	assert_int_equal(fixture_run_captured(&f), -ENOTSUP);
	fixture_deinit(&f);
}

static void test_warm_up_of_any_batch_loads_what_later_ones_need(void **state)
{
	struct row row = { .seed = 1, .n_query = 40, .seq_len = 130 };

	for (size_t s = 0; s < N_SHAPES; s++) {
		struct device *device = open_own();
		struct fixture f;

		fixture_init(&f, device, "paged", shapes[s]);
		fixture_run_rows(&f, NULL, 0, 1, 1);
		assert_int_equal(device->ops->lock(device), 0);
		fixture_check(&f, &row, 1, 0, 0);
		fixture_deinit(&f);
		device->ops->free(device);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_replay_at_other_lengths_equals_eager),
		cmocka_unit_test(test_replay_sees_what_the_step_itself_put_into_the_cache),
		cmocka_unit_test(test_graph_with_its_own_plan_sees_the_lengths_of_its_time),
		cmocka_unit_test(test_capture_of_more_than_the_level_is_refused),
		cmocka_unit_test(test_warm_up_of_any_batch_loads_what_later_ones_need),
	};

	return CUDA_GROUP_RUN("attention in graphs on cuda", tests);
}
