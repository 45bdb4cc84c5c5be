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

static struct graph_exec *capture_decode(struct twin *t, uint32_t n_rows, uint32_t n_query)
{
	const struct device_ops *ops = t->device->ops;
	struct row rows[WORLD_ROWS];
	struct graph *graph = NULL;
	struct graph_exec *exec = NULL;

	for (uint32_t r = 0; r < n_rows; r++)
		rows[r] = (struct row){ .seed = r, .n_query = n_query, .seq_len = 0 };
	twin_place(t, rows, n_rows, 0, 0);
	assert_int_equal(twin_build(t, ATTENTION_WARM_UP), 0);
	assert_int_equal(twin_enqueue(t, 1), 0);
	assert_int_equal(ops->stream_sync(t->stream), 0);
	assert_int_equal(ops->lock(t->device), 0);
	assert_int_equal(twin_build(t, ATTENTION_CAPTURE), 0);
	assert_int_equal(ops->capture_begin(t->stream), 0);
	assert_int_equal(twin_enqueue(t, 1), 0);
	assert_int_equal(ops->capture_end(t->stream, &graph), 0);
	assert_string_equal(ops->graph_node_name(graph, 0), "paged_attention");
	assert_null(ops->graph_node_name(graph, 1));
	assert_int_equal(ops->graph_instantiate(t->device, graph, &exec), 0);
	ops->graph_free(graph);
	return exec;
}

static void replay_equals_eager(const struct shape *shape, uint32_t n_query)
{
	struct device *device = open_own();
	struct row rows[5];
	uint16_t *replayed;
	struct graph_exec *exec;
	struct twin t;
	size_t bytes;

	twin_init(&t, device, shape);
	bytes = (size_t)WORLD_TOKENS * t.w.width * 2;
	replayed = malloc(bytes);
	assert_non_null(replayed);
	exec = capture_decode(&t, 6, n_query);
	for (uint32_t r = 0; r < 5; r++)
		rows[r] = (struct row){
			.seed = 11 + r,
			.n_query = n_query,
			.seq_len = n_query + (r * 97 + 60) % 390,
		};
	for (uint32_t n_rows = 0; n_rows <= 5; n_rows++) {
		twin_place(&t, rows, n_rows, 6, 6 * n_query);
		twin_poison_out(&t);
		assert_int_equal(twin_build(&t, ATTENTION_REPLAY), 0);
		assert_int_equal(device->ops->graph_launch(exec, t.stream), 0);
		twin_fetch(&t);
		twin_verify(&t);
		memcpy(replayed, t.got, bytes);
		twin_run(&t);
		assert_memory_equal(t.got, replayed, bytes);
	}
	device->ops->graph_exec_free(exec);
	twin_deinit(&t);
	free(replayed);
	device->ops->free(device);
}

static void test_replay_at_other_lengths_equals_eager(void **state)
{
	(void)state;
	replay_equals_eager(&ordinary, 1);
	replay_equals_eager(&windowed, 5);
	replay_equals_eager(&ordinary, 10);
}

/* What an engine records of a layer: the step's keys and values go into the cache, by the op that
 * does it, and attention sees them at once. */
struct layer {
	struct op_rope_and_cache rope;
	void *slots, *positions, *table;
	int32_t slot_of[WORLD_ROWS * 16];
	size_t row_bytes; /* keys, or values, of a token */
};

static void *device_copy_of(struct twin *t, const void *from, size_t bytes)
{
	void *memory = NULL;

	assert_int_equal(t->device->ops->mem_alloc(t->device, bytes, &memory), 0);
	assert_int_equal(t->device->ops->copy(t->device, memory, from, bytes), 0);
	return memory;
}

static void layer_init(struct layer *l, struct twin *t)
{
	const struct attention_config *c = &t->config;
	float identity[256] = { 0 };
	int32_t zeros[WORLD_ROWS * 16] = { 0 };

	for (uint32_t i = 0; i < c->head_dim / 2; i++)
		identity[i] = 1.0f;
	*l = (struct layer){ .row_bytes = (size_t)c->n_kv_heads * c->head_dim * 2 };
	l->slots = device_copy_of(t, zeros, sizeof(zeros));
	l->positions = device_copy_of(t, zeros, sizeof(zeros));
	l->table = device_copy_of(t, identity, sizeof(identity));
	l->rope = (struct op_rope_and_cache){
		.qkv = t->q, .positions = l->positions, .slot_mapping = l->slots,
		.cos_sin = l->table, .max_positions = 1, .kv = t->kv, .n_heads = c->n_heads,
		.n_kv_heads = c->n_kv_heads, .head_dim = c->head_dim,
		.page_tokens = c->page_tokens,
	};
}

static void layer_deinit(struct layer *l, struct twin *t)
{
	t->device->ops->mem_free(t->device, l->table);
	t->device->ops->mem_free(t->device, l->positions);
	t->device->ops->mem_free(t->device, l->slots);
}

static void layer_enqueue(struct layer *l, struct twin *t, uint32_t n_tokens)
{
	l->rope.n_tokens = n_tokens;
	assert_int_equal(t->device->kernels->rope_and_cache(t->stream, &l->rope), 0);
	assert_int_equal(twin_enqueue(t, 1), 0);
}

/* The placed rows' own tokens move from the cache, where NaN remains, into the fused qkv rows. */
static void layer_take_tokens(struct layer *l, struct twin *t, uint32_t n_rows, uint32_t n_query)
{
	struct world *w = &t->w;
	const struct attention_config *c = &w->config;
	size_t width = (size_t)c->n_kv_heads * c->head_dim;
	uint32_t n = 0;

	for (uint32_t r = 0; r < n_rows; r++)
		for (uint32_t j = 0; j < n_query; j++, n++) {
			uint32_t p = w->rows[r].seq_len - n_query + j, in = p % c->page_tokens;
			int32_t page = w->inputs.block_table[r * c->max_pages + p / c->page_tokens];
			size_t key = ((size_t)page * 2 * c->page_tokens + in) * width;

			l->slot_of[n] = page * (int32_t)c->page_tokens + (int32_t)in;
			for (int half = 0; half < 2; half++, key += c->page_tokens * width)
				memcpy(w->q + (size_t)n * w->q_stride + w->width + half * width,
					w->kv + key, width * sizeof(float));
		}
	twin_upload(t);
	for (uint32_t i = 0; i < n; i++)
		for (int half = 0; half < 2; half++) {
			size_t page = (size_t)l->slot_of[i] / c->page_tokens;
			size_t row = (page * 2 + half) * c->page_tokens +
				     (size_t)l->slot_of[i] % c->page_tokens;

			assert_int_equal(t->device->ops->fill_async(t->stream,
				(char *)t->kv + row * l->row_bytes, 0xff, l->row_bytes), 0);
		}
	assert_int_equal(t->device->ops->copy(t->device, l->slots, l->slot_of, n * 4), 0);
}

static void replay_sees_the_steps_tokens(const struct shape *shape, uint32_t n_query)
{
	struct device *device = open_own();
	const struct device_ops *ops = device->ops;
	struct row rows[6];
	struct graph *graph = NULL;
	struct graph_exec *exec = NULL;
	struct layer l;
	struct twin t;

	twin_init(&t, device, shape);
	layer_init(&l, &t);
	for (uint32_t r = 0; r < 6; r++)
		rows[r] = (struct row){ .seed = r, .n_query = n_query, .seq_len = 100 };
	twin_place(&t, rows, 6, 0, 0);
	layer_take_tokens(&l, &t, 6, n_query);
	assert_int_equal(twin_build(&t, ATTENTION_CAPTURE), 0);
	layer_enqueue(&l, &t, 6 * n_query);
	assert_int_equal(ops->stream_sync(t.stream), 0);
	assert_int_equal(ops->capture_begin(t.stream), 0);
	/* the layer's kernels come, and begin, while another runs */
	assert_int_equal(twin_enqueue(&t, 1), 0);
	layer_enqueue(&l, &t, 6 * n_query);
	assert_int_equal(ops->capture_end(t.stream, &graph), 0);
	assert_int_equal(ops->graph_instantiate(device, graph, &exec), 0);
	ops->graph_free(graph);
	for (uint32_t round = 0; round < 20; round++) {
		for (uint32_t r = 0; r < 6; r++) {
			rows[r].seed = 20 + round * 6 + r;
			rows[r].seq_len = n_query + (r * 97 + round * 31) % 390;
		}
		twin_place(&t, rows, 6, 0, 0);
		layer_take_tokens(&l, &t, 6, n_query);
		twin_poison_out(&t);
		assert_int_equal(twin_build(&t, ATTENTION_REPLAY), 0);
		assert_int_equal(ops->graph_launch(exec, t.stream), 0);
		twin_fetch(&t);
		twin_verify(&t);
	}
	ops->graph_exec_free(exec);
	layer_deinit(&l, &t);
	twin_deinit(&t);
	ops->free(device);
}

static void test_replay_sees_what_the_step_itself_put_into_the_cache(void **state)
{
	struct shape wide = ordinary;

	(void)state;
	replay_sees_the_steps_tokens(&ordinary, 1);
	replay_sees_the_steps_tokens(&windowed, 1);
	wide.head_dim = 128;
	wide.page_tokens = 64;
	replay_sees_the_steps_tokens(&wide, 5);
}

/* As of a loop that is unrolled into one graph: lengths change while it runs. */
static void test_graph_with_its_own_plan_sees_the_lengths_of_its_time(void **state)
{
	static const struct row long_row = { .seed = 5, .n_query = 1, .seq_len = 380 };
	static const int32_t shorter = 77;
	struct device *device = open_own();
	const struct device_ops *ops = device->ops;
	struct graph *graph = NULL;
	struct graph_exec *exec = NULL;
	struct twin t;
	void *length;

	(void)state;
	twin_init(&t, device, &ordinary);
	length = device_copy_of(&t, &shorter, sizeof(shorter));
	twin_place(&t, &long_row, 1, 0, 0);
	twin_run(&t);
	assert_int_equal(ops->capture_begin(t.stream), 0);
	assert_int_equal(twin_build(&t, ATTENTION_CAPTURE), 0);
	assert_int_equal(twin_enqueue(&t, 1), 0);
	assert_int_equal(ops->copy_async(t.stream, t.inputs.seq_lens, length, 4), 0);
	assert_int_equal(twin_build(&t, ATTENTION_CAPTURE), 0);
	assert_int_equal(twin_enqueue(&t, 1), 0);
	assert_int_equal(ops->capture_end(t.stream, &graph), 0);
	assert_int_equal(ops->graph_instantiate(device, graph, &exec), 0);
	ops->graph_free(graph);
	twin_poison_out(&t);
	assert_int_equal(ops->graph_launch(exec, t.stream), 0);
	twin_fetch(&t);
	t.w.inputs.seq_lens[0] = shorter;
	t.w.seq_lens[0] = (uint32_t)shorter;
	twin_verify(&t);
	ops->graph_exec_free(exec);
	ops->mem_free(device, length);
	twin_deinit(&t);
	ops->free(device);
}

static void test_capture_of_more_than_the_level_is_refused(void **state)
{
	struct row row = { .seed = 1, .n_query = 17, .seq_len = 30 };
	struct graph *graph = NULL;
	struct twin t;

	(void)state;
	twin_init(&t, shared, &ordinary);
	twin_place(&t, &row, 1, 0, 0);
	assert_int_equal(twin_build(&t, ATTENTION_CAPTURE), 0);
	assert_int_equal(shared->ops->capture_begin(t.stream), 0);
	assert_int_equal(twin_enqueue(&t, 1), -ENOTSUP);
	assert_int_equal(shared->ops->capture_end(t.stream, &graph), 0);
	shared->ops->graph_free(graph);
	twin_deinit(&t);
}

static void test_warm_up_of_any_batch_loads_what_later_ones_need(void **state)
{
	struct row row = { .seed = 1, .n_query = 40, .seq_len = 130 };

	(void)state;
	for (size_t s = 0; s < N_SHAPES; s++) {
		struct device *device = open_own();
		struct twin t;

		twin_init(&t, device, shapes[s]);
		twin_place(&t, NULL, 0, 1, 1);
		twin_run(&t);
		assert_int_equal(device->ops->lock(device), 0);
		twin_place(&t, &row, 1, 0, 0);
		twin_run(&t);
		twin_verify(&t);
		twin_deinit(&t);
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
