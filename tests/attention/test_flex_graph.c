/* SPDX-License-Identifier: MIT */
/* Attention under block masks in graphs, and in caches of more elements than 31 bits count. */
#include <sys/mman.h>

#include "tests/attention/flex_group.h"

#define LAYER 1u
#define FLEX_WIDTH 512u /* of FLEX_ORDINARY's outputs */

/* ---- graphs ---- */

static struct graph_exec *capture(struct world *w, uint32_t n_rows, uint32_t n_tokens)
{
	const struct device_ops *ops = w->device->ops;
	struct graph *graph = NULL;
	struct graph_exec *exec = NULL;

	world_place(w, NULL, 0, n_rows, n_tokens);
	assert_int_equal(world_build(w, ATTENTION_WARM_UP), 0);
	assert_int_equal(world_enqueue(w, LAYER), 0);
	world_sync(w);
	assert_int_equal(ops->lock(w->device), 0);
	assert_int_equal(world_build(w, ATTENTION_CAPTURE), 0);
	world_sync(w);
	assert_int_equal(ops->capture_begin(w->stream), 0);
	assert_int_equal(world_enqueue(w, LAYER), 0);
	assert_int_equal(ops->capture_end(w->stream, &graph), 0);
	assert_string_equal(ops->graph_node_name(graph, 0), "flex_attention");
	assert_null(ops->graph_node_name(graph, 1));
	assert_int_equal(ops->graph_instantiate(w->device, graph, &exec), 0);
	ops->graph_free(graph);
	return exec;
}

/* Captured with nothing to do; decodes beside chunks, each under a mask of its own. */
static void test_replay_of_mixed_batches_and_masks_equals_eager(void **state)
{
	static uint64_t words[WORLD_ROWS][LENGTH];
	float *replayed = calloc(WORLD_TOKENS * FLEX_WIDTH, sizeof(float));
	struct world dice = { .random = 21 };
	struct graph_exec *exec;
	struct world w;

	(void)state;
	world_init_on(&w, NULL, "flex", FLEX_ORDINARY);
	exec = capture(&w, WORLD_ROWS, WORLD_TOKENS);
	for (int round = 0; round < 20; round++) {
		struct row rows[WORLD_ROWS];
		uint32_t n_rows = flex_draw_rows(&dice, 16, rows, words);

		if (round == 10)
			n_rows = 0;
		world_place(&w, rows, n_rows, WORLD_ROWS, WORLD_TOKENS);
		world_poison_out(&w);
		assert_int_equal(world_build(&w, ATTENTION_REPLAY), 0);
		assert_int_equal(w.device->ops->graph_launch(exec, w.stream), 0);
		world_sync(&w);
		world_verify(&w);
		memcpy(replayed, w.out, WORLD_TOKENS * w.width * sizeof(float));
		world_place(&w, rows, n_rows, 0, 0);
		world_run(&w);
		assert_memory_equal(
			w.out, replayed, w.batch.n_tokens * w.width * sizeof(float));
	}
	w.device->ops->graph_exec_free(exec);
	world_deinit(&w);
	free(replayed);
}

/* Nothing is left of the big batch's plan for the small one, although both have the same padding. */
static void test_small_batch_after_a_big_one_has_a_plan_of_its_own(void **state)
{
	struct row big[WORLD_ROWS], small = { .seed = 40, .n_query = 1, .seq_len = 3 };
	struct graph_exec *exec;
	struct world w;

	(void)state;
	for (uint32_t r = 0; r < WORLD_ROWS; r++)
		big[r] = (struct row){ .seed = r, .n_query = 50, .seq_len = LENGTH };
	world_init_on(&w, NULL, "flex", FLEX_ORDINARY);
	exec = capture(&w, WORLD_ROWS, WORLD_TOKENS);
	for (int turn = 0; turn < 2; turn++) {
		world_place(&w, turn ? &small : big, turn ? 1 : WORLD_ROWS, WORLD_ROWS,
			WORLD_TOKENS);
		world_poison_out(&w);
		assert_int_equal(world_build(&w, ATTENTION_REPLAY), 0);
		assert_int_equal(w.device->ops->graph_launch(exec, w.stream), 0);
		world_sync(&w);
		world_verify(&w);
	}
	w.device->ops->graph_exec_free(exec);
	world_deinit(&w);
}

/* As of a loop that is unrolled into one graph: lengths change while it runs. */
static void test_graph_with_its_own_plan_sees_the_lengths_of_its_time(void **state)
{
	static const struct row longer = { .seed = 5, .n_query = 1, .seq_len = 280 };
	static const int32_t shorter = 77;
	float *replayed = calloc(FLEX_WIDTH, sizeof(float));
	const struct device_ops *ops;
	struct graph *graph = NULL;
	struct graph_exec *exec = NULL;
	void *length = NULL;
	struct world w;

	(void)state;
	world_init_on(&w, NULL, "flex", FLEX_ORDINARY);
	ops = w.device->ops;
	assert_int_equal(ops->mem_alloc(w.device, sizeof(shorter), &length), 0);
	test_copy(w.device, length, &shorter, sizeof(shorter));
	world_place(&w, &longer, 1, 0, 0);
	world_run(&w);
	assert_int_equal(ops->capture_begin(w.stream), 0);
	for (int turn = 0; turn < 2; turn++) {
		if (turn)
			assert_int_equal(ops->copy_async(w.stream, w.at_device.seq_lens, length,
				sizeof(shorter)), 0);
		assert_int_equal(w.backend->build(w.metadata, &w.batch, w.stream), 0);
		assert_int_equal(world_enqueue(&w, LAYER), 0);
	}
	assert_int_equal(ops->capture_end(w.stream, &graph), 0);
	assert_int_equal(ops->graph_instantiate(w.device, graph, &exec), 0);
	ops->graph_free(graph);
	world_poison_out(&w);
	assert_int_equal(ops->graph_launch(exec, w.stream), 0);
	world_sync(&w);
	memcpy(replayed, w.out, w.width * sizeof(float));
	world_run(&w); /* of the cpu device the length is the shorter one already */
	assert_int_equal(memcmp(w.out, replayed, w.width * sizeof(float)) != 0, w.is_cuda);
	w.inputs.seq_lens[0] = shorter;
	world_run(&w);
	assert_memory_equal(w.out, replayed, w.width * sizeof(float));
	ops->graph_exec_free(exec);
	ops->mem_free(w.device, length);
	world_deinit(&w);
	free(replayed);
}

/* ---- a cache beyond 2^31 elements ---- */

#define FAR_PAGE (1u << 20) /* of 2 x 16 x 2 x 64 elements: the cache's element 2^32 */

static void *far_alloc(struct world *w, size_t bytes)
{
	void *memory = NULL;

	if (w->is_cuda)
		assert_int_equal(w->device->ops->mem_alloc(w->device, bytes, &memory), 0);
	else
		memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	assert_ptr_not_equal(memory, MAP_FAILED);
	return memory;
}

static void far_free(struct world *w, void *memory, size_t bytes)
{
	if (w->is_cuda)
		w->device->ops->mem_free(w->device, memory);
	else
		munmap(memory, bytes);
}

/* Every second page of the row goes behind element 2^31, the others behind 2^32. */
static void move_far(struct world *w, size_t element_bytes, uint32_t r, const struct row *row)
{
	const struct attention_config *c = &w->config;
	size_t page = (size_t)2 * c->page_tokens * c->n_kv_heads * c->head_dim;

	for (uint32_t i = 0; i * c->page_tokens < row->seq_len; i++) {
		int32_t *entry = &w->inputs.block_table[r * c->max_pages + i];
		int32_t to = *entry + (int32_t)(i % 2 ? FAR_PAGE : FAR_PAGE / 2);

		world_put(w, (char *)w->kv_far + (size_t)to * page * element_bytes,
			w->kv + (size_t)*entry * page, page);
		*entry = to;
	}
}

static void verify_far(const struct shape *shape)
{
	const struct row rows[] = {
		{ .seed = 9, .n_query = 20, .seq_len = 140,
			.mask = { .kind = MASK_WINDOW, .window = 50, .end = 20 } },
		{ .seed = 10, .n_query = 1, .seq_len = 299 },
	};
	size_t element, bytes;
	struct world w;

	world_init_on(&w, flex_device, "flex", shape);
	element = w.is_cuda ? 2 : sizeof(float);
	bytes = (size_t)(FAR_PAGE + 1024) * 4096 * element;
	w.backend->metadata_free(w.metadata);
	w.backend->manager_free(w.manager);
	w.config.n_kv_pages = FAR_PAGE + 1024;
	assert_int_equal(w.backend->manager_new(w.device, &w.config, &w.at_device, &w.manager), 0);
	assert_int_equal(w.backend->metadata_new(w.manager, &w.metadata), 0);
	w.kv_far = far_alloc(&w, bytes);
	world_place(&w, rows, 2, 0, 0);
	move_far(&w, element, 0, &rows[0]);
	move_far(&w, element, 1, &rows[1]);
	world_run(&w);
	world_verify(&w);
	far_free(&w, w.kv_far, bytes);
	world_deinit(&w);
}

static void test_cache_past_2_31_elements_is_addressed_in_64_bits(void **state)
{
	struct shape shape = { .n_heads = 2, .n_kv_heads = 2, .head_dim = 64,
		.page_tokens = 16, .max_seq_len = LENGTH };

	(void)state;
	verify_far(&shape);
	/* the same bytes a page, of which a cuda device has no fast kernel */
	shape.head_dim = 32;
	shape.n_heads = shape.n_kv_heads = 4;
	verify_far(&shape);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_replay_of_mixed_batches_and_masks_equals_eager),
		cmocka_unit_test(test_small_batch_after_a_big_one_has_a_plan_of_its_own),
		cmocka_unit_test(test_graph_with_its_own_plan_sees_the_lengths_of_its_time),
		cmocka_unit_test(test_cache_past_2_31_elements_is_addressed_in_64_bits),
	};
	static const struct test_cpu_only only[] = {
		{ NULL, NULL },
	};

	return TEST_RUN_GROUP("block masks in graphs", tests, only, flex_device_open,
		flex_device_free);
}
