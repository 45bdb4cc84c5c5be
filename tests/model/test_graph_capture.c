/* SPDX-License-Identifier: MIT */

/*
 * Capture of a backend that plans lazily: its metadata plans when it is first run and is marked
 * done for ever, whatever is built into it afterwards. Shared between warm-up and capture, or
 * between descriptors, it would leave the plan out of the graph, and replays would run on another
 * batch's.
 */

#include "tests/device_memory.h"
#include "tests/model/fixture.h"
#include "tests/model/rig.h"

#include <stdlib.h>

#include "daemon/graph/capture.h"
#include "daemon/graph/dispatch.h"

#define MUST(call) assert_int_equal(call, 0)
#define METADATA_MAX 16

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
	enum attention_phase phases[METADATA_MAX]; /* of each build */
	uint32_t n_builds;
};

static struct attention_metadata *made[METADATA_MAX];
static uint32_t n_made;

static int lazy_manager_new(struct device *device, const struct attention_config *config,
	const struct step_inputs *inputs, struct attention_manager **ret)
{
	struct attention_manager *manager = calloc(1, sizeof(*manager));
	void *plan;

	assert_non_null(manager);
	MUST(device->ops->mem_alloc(device, config->max_rows * sizeof(int32_t), &plan));
	MUST(attention_paged.manager_new(device, config, inputs, &manager->paged));
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
	assert_true(n_made < METADATA_MAX);
	metadata->manager = manager;
	MUST(attention_paged.metadata_new(manager->paged, &metadata->paged));
	made[n_made++] = metadata;
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
	assert_true(metadata->n_builds < METADATA_MAX);
	metadata->phases[metadata->n_builds++] = batch->phase;
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
	struct inputs inputs;
	struct forward_context context;
	struct kv_cache *kv;
	struct graph_set graphs;
	struct breakable_runner runner;
};

static void take_inputs(struct world *w)
{
	const struct model_config *c = &w->rig.model->config;
	const struct inputs_limits limits = {
		.max_rows = RIG_ROWS,
		.max_tokens = RIG_TOKENS,
		.max_slots = RIG_ROWS,
		.max_pages = RIG_PAGES_A_ROW,
		.page_tokens = RIG_PAGE_TOKENS,
		.vocab_size = c->vocab_size,
		.hidden_size = c->hidden_size,
		.max_init_pages = RIG_PAGES,
		.max_results = 1,
	};

	MUST(inputs_init(&w->inputs, w->rig.device, &limits));
}

static void take_attention(struct world *w)
{
	const struct attention_config config = rig_attention(&w->rig);

	n_made = 0;
	MUST(lazy.manager_new(
		w->rig.device, &config, &w->inputs.persistent, &w->context.manager));
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
	take_inputs(w);
	take_attention(w);
	MUST(kv_cache_new(w->rig.device,
		&(struct kv_config){w->rig.model->config.n_layers, w->rig.model->config.n_kv_heads,
			w->rig.model->config.head_dim, RIG_PAGE_TOKENS, RIG_PAGES,
			w->rig.info.kv_dtype},
		RIG_PAGES - 1, &w->kv));
	w->context.device = w->rig.device;
	w->context.model = w->rig.model;
	w->context.attention = &lazy;
	w->context.inputs = &w->inputs;
	w->context.buffers = w->rig.buffers;
	w->context.kv = w->kv;
	w->context.kv_layers = w->rig.kv;
	w->context.page_tokens = RIG_PAGE_TOKENS;
	breakable_runner_init(&w->runner, &w->context);
	MUST(ladder_user(ladder, sizes, 3, RIG_TOKENS, &bad));
	MUST(graph_set_init(&w->graphs, GRAPH_FULL_DECODE_ONLY, ladder, 1, RIG_ROWS));
	free(ladder);
	*state = w;
	return 0;
}

static int world_teardown(void **state)
{
	struct world *w = *state;

	graph_set_deinit(&w->graphs, w->rig.device);
	lazy.manager_free(w->context.manager);
	kv_cache_free(w->kv);
	inputs_deinit(&w->inputs);
	rig_deinit(&w->rig);
	free(w);
	return 0;
}

static void capture_all(struct world *w)
{
	MUST(graph_set_warm_up(&w->graphs, &w->context, w->rig.stream, NULL, NULL));
	MUST(w->rig.device->ops->lock(w->rig.device));
	MUST(graph_set_capture(&w->graphs, &w->runner, w->rig.stream, NULL, NULL));
	assert_int_equal(w->graphs.n, 3);
}

static uint32_t nodes_called(struct world *w, struct graph *graph, const char *name)
{
	const char *node;
	uint32_t n = 0;

	for (uint32_t i = 0; (node = w->rig.device->ops->graph_node_name(graph, i)); i++)
		n += strcmp(node, name) == 0;
	return n;
}

/* ---- claims ---- */

static void test_lazy_plan_is_recorded_in_every_graph(void **state)
{
	struct world *w = *state;

	capture_all(w);
	for (uint32_t i = 0; i < w->graphs.n; i++)
		assert_int_equal(nodes_called(w, w->graphs.entries[i].graph, PLAN_NODE), 1);
}

static void test_warm_up_and_capture_have_states_of_their_own_built_once(void **state)
{
	struct world *w = *state;

	capture_all(w);
	for (uint32_t i = 0; i < w->graphs.n; i++) {
		const struct graph_entry *entry = &w->graphs.entries[i];

		assert_ptr_not_equal(entry->warm_up.metadata, entry->capture.metadata);
		assert_int_equal(entry->warm_up.metadata->n_builds, 1);
		assert_int_equal(entry->warm_up.metadata->phases[0], ATTENTION_WARM_UP);
		assert_int_equal(entry->capture.metadata->n_builds, 1);
		assert_int_equal(entry->capture.metadata->phases[0], ATTENTION_CAPTURE);
		for (uint32_t j = 0; j < i; j++) {
			assert_ptr_not_equal(entry->capture.metadata,
				w->graphs.entries[j].capture.metadata);
			assert_ptr_not_equal(entry->warm_up.metadata,
				w->graphs.entries[j].warm_up.metadata);
		}
	}
}

/* Replay the graph of `index` for that many decodes at `start`. */
static void replay(struct world *w, uint32_t index, uint32_t n_rows, uint32_t start)
{
	struct inputs_slot *slot = inputs_begin(&w->inputs, 0);
	const struct slot_sampling greedy = {.top_p = 1};

	assert_non_null(slot);
	for (uint32_t r = 0; r < n_rows; r++) {
		const struct step_row row = {.slot = (int32_t)r, .n_tokens = 1, .start = start + r};
		const uint32_t pages[] = {1 + 2 * r, 2 + 2 * r};

		inputs_add_init(slot, (int32_t)r, &greedy, pages, 2);
		*inputs_add_row(slot, &row) = 1;
	}
	MUST(inputs_prepare(&w->inputs, slot, w->rig.stream, &w->graphs.descriptors[index],
		w->graphs.descriptors[index].rows, RIG_PAGES));
	MUST(w->rig.device->ops->graph_launch(w->graphs.entries[index].exec, w->rig.stream));
	MUST(w->rig.device->ops->stream_sync(w->rig.stream));
}

/* The length that the last replay's plan has for the row. */
static int32_t planned(struct world *w, uint32_t row)
{
	return test_fetch_int(w->rig.device, w->context.manager->plan + row);
}

static void test_replay_after_lazy_plan_uses_new_lengths(void **state)
{
	struct world *w = *state;

	capture_all(w);
	for (uint32_t start = 3; start < 12; start += 4) {
		replay(w, 2, 3, start);
		for (uint32_t r = 0; r < 3; r++)
			assert_int_equal(planned(w, r), start + r + 1);
		assert_int_equal(planned(w, 3), 0);
		replay(w, 0, 1, start + 1);
		assert_int_equal(planned(w, 0), start + 2);
		assert_int_equal(planned(w, 1), 0);
	}
}

static void test_dropped_graph_is_captured_again_with_its_plan(void **state)
{
	struct world *w = *state;
	struct graph_entry *entry = &w->graphs.entries[1];

	capture_all(w);
	capture_drop(entry, w->rig.device);
	assert_null(entry->exec);
	MUST(capture_now(entry, &w->runner, w->rig.stream));
	assert_int_equal(nodes_called(w, entry->graph, PLAN_NODE), 1);
	replay(w, 1, 2, 5);
	assert_int_equal(planned(w, 0), 6);
	assert_int_equal(planned(w, 1), 7);
}

#define world_test(test) cmocka_unit_test_setup_teardown(test, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		world_test(test_lazy_plan_is_recorded_in_every_graph),
		world_test(test_warm_up_and_capture_have_states_of_their_own_built_once),
		world_test(test_replay_after_lazy_plan_uses_new_lengths),
		world_test(test_dropped_graph_is_captured_again_with_its_plan),
	};

	return cmocka_run_group_tests_name("graph capture", tests, NULL, NULL);
}
