/* SPDX-License-Identifier: MIT */

/*
 * Capture of a backend that plans lazily: its metadata plans in its first run and, except in eager
 * steps, never again. Shared between warm-up and capture, or between descriptors, the plan would be
 * missing from the graph, and replays would use another batch's.
 */

#include "tests/device_memory.h"
#include "tests/model/fixture.h"
#include "tests/model/rig.h"

#include <math.h>
#include <stdlib.h>

#include "daemon/graph/capture.h"
#include "daemon/graph/graph_set.h"
#include "daemon/graph/executor.h"

/* ---- the backend: paged, and a plan: a copy of the lengths, which any device can record ---- */

#define PLAN_NODE "copy" /* no other node of a forward pass is one */

struct attention_manager {
	struct attention_manager *paged;
	struct device *device;
	const int32_t *seq_lens;
	int32_t *plan; /* [max_rows] device: the lengths that the plan was made for */
};

struct attention_metadata {
	struct attention_manager *manager;
	struct attention_metadata *paged;
	bool planned;
	struct attention_batch batch; /* of the last build; its arrays are gone */
	uint32_t n_builds;
};

static int lazy_manager_new(struct device *device, const struct attention_config *config,
	const struct step_inputs *inputs, struct attention_manager **ret)
{
	struct attention_manager *manager = calloc(1, sizeof(*manager));
	struct step_inputs planned = *inputs;
	void *plan;

	assert_non_null(manager);
	MUST(device->ops->mem_alloc(device, config->max_rows * sizeof(int32_t), &plan));
	/* Paged attention reads its lengths from the plan; on cuda it needs them before that. */
	if (!test_on_cuda())
		planned.seq_lens = plan;
	MUST(attention_paged.manager_new(device, config, &planned, &manager->paged));
	manager->device = device;
	manager->seq_lens = inputs->seq_lens;
	manager->plan = plan;
	*ret = manager;
	return 0;
}

static void lazy_manager_free(struct attention_manager *manager)
{
	attention_paged.manager_free(manager->paged);
	manager->device->ops->mem_free(manager->device, manager->plan);
	free(manager);
}

static int lazy_metadata_new(struct attention_manager *manager, struct attention_metadata **ret)
{
	struct attention_metadata *metadata = calloc(1, sizeof(*metadata));

	assert_non_null(metadata);
	metadata->manager = manager;
	MUST(attention_paged.metadata_new(manager->paged, &metadata->paged));
	*ret = metadata;
	return 0;
}

static void lazy_metadata_free(struct attention_metadata *metadata)
{
	if (!metadata)
		return;
	attention_paged.metadata_free(metadata->paged);
	free(metadata);
}

static int lazy_build(struct attention_metadata *metadata, const struct attention_batch *batch,
	struct stream *stream)
{
	metadata->batch = *batch;
	metadata->n_builds++;
	metadata->planned &= batch->phase != ATTENTION_EAGER;
	return attention_paged.build(metadata->paged, batch, stream);
}

static int lazy_run(struct attention_metadata *metadata, struct stream *stream,
	const struct attention_args *args)
{
	const struct attention_manager *manager = metadata->manager;
	int rc = 0;

	if (!metadata->planned)
		rc = manager->device->ops->copy_async(stream, manager->plan, manager->seq_lens,
			RIG_ROWS * sizeof(*manager->plan));
	metadata->planned = true;
	return rc ? rc : attention_paged.run(metadata->paged, stream, args);
}

static const struct attention_backend lazy = {
	.name = "lazy",
	.breaks = true,
	.manager_new = lazy_manager_new,
	.manager_free = lazy_manager_free,
	.metadata_new = lazy_metadata_new,
	.metadata_free = lazy_metadata_free,
	.build = lazy_build,
	.run = lazy_run,
};

/* ---- a model with graphs, and no engine ---- */

struct world {
	struct rig rig;
	struct forward_context context;
	struct kv_cache *kv;
	struct graph_set graphs;
	struct executor executor;
	uint32_t vocab;
	uint32_t n_positions; /* tokens of a step whose results are read */
	float *logits, *expected; /* [RIG_ROWS, vocab] */
};

static void take_attention(struct world *w)
{
	const struct attention_config config = rig_attention(&w->rig, &w->rig.model->config);

	MUST(lazy.manager_new(
		w->rig.device, &config, &w->rig.inputs.persistent, &w->context.manager));
}

/* The rig's activations, which end with the logits. */
static void take_pool(struct world *w)
{
	w->vocab = w->rig.model->config.vocab_size;
	w->logits = calloc(RIG_ROWS * w->vocab, sizeof(float));
	w->expected = calloc(RIG_ROWS * w->vocab, sizeof(float));
	assert_non_null(w->logits);
	assert_non_null(w->expected);
	w->context.pool = w->rig.buffers.residual;
	w->context.pool_bytes = (uint64_t)((uint8_t *)w->rig.buffers.logits -
		(uint8_t *)w->rig.buffers.residual) + RIG_ROWS * w->vocab * sizeof(float);
}

static int world_setup(void **state)
{
	struct world *w = calloc(1, sizeof(*w));
	const uint32_t sizes[] = {1, 2, 4};
	struct ladder *ladder = calloc(1, sizeof(*ladder));
	char directory[512];
	uint32_t bad;

	assert_non_null(w);
	assert_non_null(ladder);
	snprintf(directory, sizeof(directory), "%s/tests/data/checkpoints/llama-tied",
		getenv("MIMEO_SOURCE") ? getenv("MIMEO_SOURCE") : ".");
	rig_init(&w->rig, directory, "paged");
	take_attention(w);
	MUST(kv_cache_new(w->rig.device,
		&(struct kv_config){w->rig.model->config.n_layers, w->rig.model->config.n_kv_heads,
			w->rig.model->config.head_dim, RIG_PAGE_TOKENS, RIG_PAGES,
			w->rig.info.kv_dtype},
		RIG_PAGES - 1, &w->kv));
	w->context.device = w->rig.device;
	w->context.model = w->rig.model;
	w->context.attention = &lazy;
	w->context.inputs = &w->rig.inputs;
	w->context.buffers = w->rig.buffers;
	w->context.kv = w->kv;
	w->context.kv_layers = w->rig.kv;
	w->context.page_tokens = RIG_PAGE_TOKENS;
	take_pool(w);
	MUST(executor_init(&w->executor, &w->context));
	MUST(ladder_user(ladder, sizes, 3, RIG_TOKENS, &bad));
	MUST(graph_set_init(&w->graphs, GRAPH_FULL_AND_PIECEWISE, ladder, 1, RIG_ROWS));
	free(ladder);
	*state = w;
	return 0;
}

static int world_teardown(void **state)
{
	struct world *w = *state;

	graph_set_deinit(&w->graphs, w->rig.device);
	executor_deinit(&w->executor);
	lazy.manager_free(w->context.manager);
	kv_cache_free(w->kv);
	rig_deinit(&w->rig);
	free(w->expected);
	free(w->logits);
	free(w);
	return 0;
}

static bool in_pieces(const struct graph_entry *entry)
{
	return entry->descriptor.mode == GRAPH_PIECEWISE;
}

/* Rows of n_tokens each from starts[r] on, under that graph or eager. */
static void run_rows(struct world *w, const struct graph_entry *entry, uint32_t n_rows,
	uint32_t n_tokens, const uint32_t *starts, float *ret)
{
	struct inputs_slot *slot = inputs_begin(&w->rig.inputs, 0);
	const struct slot_sampling greedy = {.top_p = 1};
	uint32_t query_lens[RIG_ROWS], seq_lens[RIG_ROWS];

	assert_non_null(slot);
	for (uint32_t r = 0; r < n_rows; r++) {
		const struct step_row row = {
			.slot = (int32_t)r, .n_tokens = n_tokens, .start = starts[r]};
		const uint32_t pages[] = {1 + 4 * r, 2 + 4 * r, 3 + 4 * r, 4 + 4 * r};
		int32_t *ids;

		inputs_add_init(slot, (int32_t)r, &greedy, pages, 4);
		ids = inputs_add_row(slot, &row);
		for (uint32_t i = 0; i < n_tokens; i++)
			ids[i] = (int32_t)(1 + r + (starts[r] + i) % 50);
		query_lens[r] = n_tokens;
		seq_lens[r] = starts[r] + n_tokens;
	}
	slot->n_positions = w->n_positions;
	/* Results of an earlier step must not pass for this one's. */
	MUST(w->rig.device->ops->fill_async(
		w->rig.stream, w->rig.buffers.residual, 0xff, w->context.pool_bytes));
	MUST(executor_run(&w->executor, entry, slot, query_lens, seq_lens, w->rig.stream));
	MUST(w->rig.device->ops->stream_sync(w->rig.stream));
	test_copy(w->rig.device, ret, w->rig.buffers.logits, n_rows * w->vocab * sizeof(float));
}

/* That many decodes, row r at start + r. */
static void run(struct world *w, const struct graph_entry *entry, uint32_t n_rows, uint32_t start,
	float *ret)
{
	const uint32_t starts[] = {start, start + 1, start + 2, start + 3};

	run_rows(w, entry, n_rows, 1, starts, ret);
}

/* 32 positions of each row; every op is used. */
static void write_history(struct world *w)
{
	for (uint32_t start = 0; start < 32; start += 16) {
		const uint32_t starts[] = {start, start, start, start};

		run_rows(w, NULL, RIG_ROWS, 16, starts, w->expected);
	}
}

static void capture_all(struct world *w)
{
	write_history(w);
	MUST(graph_set_warm_up(&w->graphs, &w->context, w->rig.stream, NULL, NULL));
	MUST(w->rig.device->ops->lock(w->rig.device));
	MUST(graph_set_capture(
		&w->graphs, &w->executor.breakable, w->rig.stream, NULL, NULL));
	assert_int_equal(w->graphs.n, 6);
	assert_int_equal(w->graphs.n_decode, 3);
}

/* The length that the last plan has for the row. */
static int32_t planned(struct world *w, uint32_t row)
{
	return test_fetch_int(w->rig.device, w->context.manager->plan + row);
}

static void assert_replay(struct world *w, const struct graph_entry *entry, uint32_t n_rows,
	uint32_t start)
{
	double largest = 0;

	run(w, NULL, n_rows, start, w->expected);
	run(w, entry, n_rows, start, w->logits);
	for (uint32_t r = 0; r < RIG_ROWS; r++)
		assert_int_equal(planned(w, r), r < n_rows ? start + r + 1 : 0);
	for (uint32_t i = 0; i < n_rows * w->vocab; i++)
		largest = fmax(largest, fabs(w->expected[i]));
	for (uint32_t i = 0; i < n_rows * w->vocab; i++)
		assert_true(fabs(w->logits[i] - w->expected[i]) <=
			(test_on_cuda() ? TEST_LOGITS_CUDA_RANDOM * largest : 0));
}

/* ---- claims ---- */

/* F1 */
static void test_lazy_plan_is_recorded_in_every_full_graph_and_in_no_segment(void **state)
{
	struct world *w = *state;
	struct device *device = w->rig.device;

	capture_all(w);
	for (uint32_t i = 0; i < w->graphs.n; i++) {
		const struct graph_entry *entry = &w->graphs.entries[i];
		struct graph *const *pieces = entry->pieces.graphs;

		if (!in_pieces(entry))
			assert_int_equal(test_count_nodes(device, entry->graph, PLAN_NODE), 1);
		for (uint32_t k = 0; in_pieces(entry) && k <= entry->pieces.n_breaks; k++)
			assert_int_equal(test_count_nodes(device, pieces[k], PLAN_NODE), 0);
	}
}

/* F2: PIECEWISE and FULL, one behind the other. */
static void test_warm_up_and_capture_have_states_of_their_own_built_once(void **state)
{
	struct world *w = *state;

	capture_all(w);
	for (uint32_t i = 0; i < w->graphs.n; i++) {
		const struct graph_entry *entry = &w->graphs.entries[i];

		assert_ptr_not_equal(entry->warm_up.metadata, entry->capture.metadata);
		assert_int_equal(entry->warm_up.metadata->n_builds, 1);
		assert_int_equal(entry->warm_up.metadata->batch.phase, ATTENTION_WARM_UP);
		assert_int_equal(entry->capture.metadata->n_builds, 1);
		assert_int_equal(entry->capture.metadata->batch.phase, ATTENTION_CAPTURE);
		for (uint32_t j = 0; j < i; j++) {
			assert_ptr_not_equal(entry->capture.metadata,
				w->graphs.entries[j].capture.metadata);
			assert_ptr_not_equal(entry->warm_up.metadata,
				w->graphs.entries[j].warm_up.metadata);
		}
	}
}

/* F1, F2 */
static void test_replay_after_lazy_plan_uses_new_lengths_whatever_was_captured_last(void **state)
{
	struct world *w = *state;

	capture_all(w);
	for (uint32_t start = 3; start < 20; start += 4) {
		for (uint32_t i = 0; i < w->graphs.n; i++) {
			const struct graph_entry *entry = &w->graphs.entries[(i * 5 + 2) % 6];

			assert_replay(w, entry, entry->descriptor.tokens, start);
			assert_replay(w, entry, (entry->descriptor.tokens + 1) / 2, start + i % 2);
		}
	}
}

static void assert_same_host_numbers(
	const struct attention_metadata *a, const struct attention_metadata *b)
{
	assert_int_equal(a->batch.n_rows, b->batch.n_rows);
	assert_int_equal(a->batch.n_tokens, b->batch.n_tokens);
	assert_int_equal(a->batch.padded_rows, b->batch.padded_rows);
	assert_int_equal(a->batch.padded_tokens, b->batch.padded_tokens);
	assert_int_equal(a->batch.max_query, b->batch.max_query);
	assert_ptr_equal(a->manager, b->manager); /* with its longest sequence */
}

/* F27: a graph keeps the host numbers of the batch that it was captured with. */
static void test_host_numbers_of_a_graph_are_the_same_at_warm_up_capture_and_replay(void **state)
{
	struct world *w = *state;

	capture_all(w);
	for (uint32_t i = 0; i < w->graphs.n; i++) {
		const struct graph_entry *entry = &w->graphs.entries[i];
		const struct attention_metadata *capture = entry->capture.metadata;
		const struct attention_metadata *step = in_pieces(entry)
			? w->executor.eager.metadata : w->executor.replay.metadata;

		assert_same_host_numbers(entry->warm_up.metadata, capture);
		for (uint32_t n = 1; n <= entry->descriptor.tokens; n++) {
			run(w, entry, n, n, w->logits);
			assert_ptr_equal(step->manager, capture->manager);
			assert_int_equal(step->batch.max_query, capture->batch.max_query);
			assert_int_equal(step->batch.n_rows, n);
			/* The calls between segments see what is real. */
			assert_int_equal(step->batch.padded_rows,
				in_pieces(entry) ? n : capture->batch.padded_rows);
			assert_int_equal(step->batch.padded_tokens,
				in_pieces(entry) ? n : capture->batch.padded_tokens);
		}
	}
}

static void test_dropped_graph_is_captured_again_with_its_plan(void **state)
{
	struct world *w = *state;
	struct graph_entry *entry = &w->graphs.entries[1];

	capture_all(w);
	capture_drop(entry, w->rig.device);
	assert_null(entry->exec);
	MUST(capture_now(entry, &w->executor.breakable, w->rig.stream));
	assert_int_equal(test_count_nodes(w->rig.device, entry->graph, PLAN_NODE), 1);
	assert_replay(w, entry, 2, 0);
}

static void test_eager_pass_ends_with_its_rows_last_tokens_if_no_others_are_read(void **state)
{
	const uint32_t starts[] = {0, 0, 0, 0};
	struct world *w = *state;

	run_rows(w, NULL, 2, 8, starts, w->logits);
	assert_int_equal(w->executor.eager.n_last, 2);
	w->n_positions = 1;
	run_rows(w, NULL, 2, 8, starts, w->expected);
	assert_int_equal(w->executor.eager.n_last, 0);
	assert_memory_equal(w->logits, w->expected, 2 * w->vocab * sizeof(float));
}

static void test_graph_in_pieces_computes_all_tokens_to_the_end(void **state)
{
	const uint32_t starts[] = {0, 0, 0, 0};
	struct world *w = *state;

	capture_all(w);
	run_rows(w, NULL, 2, 2, starts, w->logits);
	for (uint32_t i = 0; i < w->graphs.n; i++) {
		if (!in_pieces(&w->graphs.entries[i]) || w->graphs.entries[i].descriptor.tokens < 4)
			continue;
		run_rows(w, &w->graphs.entries[i], 2, 2, starts, w->expected);
		assert_int_equal(w->executor.eager.n_last, 0);
		return;
	}
	fail_msg("no graph in pieces");
}

#define world_test(test) cmocka_unit_test_setup_teardown(test, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		world_test(test_lazy_plan_is_recorded_in_every_full_graph_and_in_no_segment),
		world_test(test_warm_up_and_capture_have_states_of_their_own_built_once),
		world_test(
			test_replay_after_lazy_plan_uses_new_lengths_whatever_was_captured_last),
		world_test(test_host_numbers_of_a_graph_are_the_same_at_warm_up_capture_and_replay),
		world_test(test_dropped_graph_is_captured_again_with_its_plan),
		world_test(test_eager_pass_ends_with_its_rows_last_tokens_if_no_others_are_read),
		world_test(test_graph_in_pieces_computes_all_tokens_to_the_end),
	};

	return cmocka_run_group_tests_name("graph capture", tests, NULL, NULL);
}
