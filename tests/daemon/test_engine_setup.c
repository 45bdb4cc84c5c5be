/* SPDX-License-Identifier: MIT */
/*
 * What an engine whose model has a draft queues before it serves: warm-up, lock and capture, seen
 * through the device's tables and through an attention backend that plans lazily. And what a step
 * that verifies gives attention's planner.
 */
#include <errno.h>

#include "tests/daemon/rig.h"

enum { K = 4, Q = 1 + K, MAX_SEQ_LEN = 512 };
#define MIB (UINT64_C(1) << 20)

/* ---- the device, observed ---- */

static struct observed {
	struct device *device;
	void *plan; /* device memory, of the lazy backend */
	const struct device_ops *ops; /* the device's own tables, and what replaces them */
	const struct kernel_ops *kernels;
	struct device_ops observed_ops;
	struct kernel_ops observed_kernels;
	bool locked;
	bool pending;             /* inputs are being written: the lane was not synchronised since */
	uint32_t rows, tokens;    /* of the target's inputs, as last written */
	uint32_t n_captures, n_captures_unlocked, n_captures_pending;
	uint32_t n_drafts_begun, n_drafts_on_other_inputs;
	uint64_t free_bytes;      /* what the device answers; 0: what it has */
} seen;

static int observed_lock(struct device *device)
{
	seen.locked = true;
	return seen.ops->lock(device);
}

static int observed_sync(struct stream *stream)
{
	seen.pending = false;
	return seen.ops->stream_sync(stream);
}

static int observed_capture_begin(struct stream *stream)
{
	seen.n_captures++;
	seen.n_captures_unlocked += !seen.locked;
	seen.n_captures_pending += seen.pending;
	return seen.ops->capture_begin(stream);
}

static int observed_info(struct device *device, struct device_info *ret)
{
	int rc = seen.ops->info(device, ret);

	if (seen.free_bytes)
		ret->free_bytes = seen.free_bytes;
	return rc;
}

static int observed_prepare(struct stream *stream, const struct op_prepare *args)
{
	seen.pending = true;
	seen.rows = args->record->padded_rows;
	seen.tokens = args->record->padded_tokens;
	return seen.kernels->prepare(stream, args);
}

/* The target's inputs are written again for every pass of the draft that set-up runs. */
static int observed_draft_begin(struct stream *stream, const struct op_draft_begin *args)
{
	seen.pending = true;
	seen.n_drafts_begun++;
	seen.n_drafts_on_other_inputs += seen.rows != args->n_rows || seen.tokens != args->n_tokens;
	seen.rows = seen.tokens = 0;
	return seen.kernels->draft_begin(stream, args);
}

static void observe(struct device *device)
{
	uint64_t free_bytes = seen.free_bytes;

	memset(&seen, 0, sizeof(seen));
	seen.free_bytes = free_bytes;
	seen.device = device;
	seen.ops = device->ops;
	seen.kernels = device->kernels;
	seen.observed_ops = *device->ops;
	seen.observed_ops.lock = observed_lock;
	seen.observed_ops.stream_sync = observed_sync;
	seen.observed_ops.capture_begin = observed_capture_begin;
	seen.observed_ops.info = observed_info;
	seen.observed_kernels = *device->kernels;
	seen.observed_kernels.prepare = observed_prepare;
	seen.observed_kernels.draft_begin = observed_draft_begin;
	device->ops = &seen.observed_ops;
	device->kernels = &seen.observed_kernels;
	assert_int_equal(seen.ops->mem_alloc(device, 8, &seen.plan), 0);
}

/* ---- paged attention that plans with its first run, for ever ---- */

#define PLAN_NODE "copy" /* no other node of a forward pass is one */

struct attention_metadata {
	struct attention_metadata *paged;
	bool planned;
};

/* Planned lengths of rows of Q tokens in steps. */
static uint32_t n_verified, shortest, longest;

static int lazy_metadata_new(struct attention_manager *manager, struct attention_metadata **ret)
{
	struct attention_metadata *metadata = calloc(1, sizeof(*metadata));

	assert_non_null(metadata);
	*ret = metadata;
	return attention_paged.metadata_new(manager, &metadata->paged);
}

static void lazy_metadata_free(struct attention_metadata *metadata)
{
	if (metadata)
		attention_paged.metadata_free(metadata->paged);
	free(metadata);
}

static void note_length(uint32_t length)
{
	n_verified++;
	shortest = length < shortest ? length : shortest;
	longest = length > longest ? length : longest;
}

static int lazy_build(struct attention_metadata *metadata, const struct attention_batch *batch,
	struct stream *stream)
{
	metadata->planned &= batch->phase != ATTENTION_EAGER;
	for (uint32_t i = 0; i < batch->n_rows; i++) {
		if (batch->query_lens[i] == Q)
			note_length(batch->seq_lens[i]);
	}
	return attention_paged.build(metadata->paged, batch, stream);
}

static int lazy_run(struct attention_metadata *metadata, struct stream *stream,
	const struct attention_args *args)
{
	int rc = 0;

	if (!metadata->planned)
		rc = seen.ops->copy_async(stream, seen.plan, (uint8_t *)seen.plan + 4, 4);
	metadata->planned = true;
	return rc ? rc : attention_paged.run(metadata->paged, stream, args);
}

static struct attention_backend lazy;

/* ---- the engine ---- */

static void open_engine(struct rig *rig, struct rig_options options)
{
	lazy = attention_paged;
	lazy.metadata_new = lazy_metadata_new;
	lazy.metadata_free = lazy_metadata_free;
	lazy.build = lazy_build;
	lazy.run = lazy_run;
	options.paged = &lazy;
	options.on_device = observe;
	rig_open(rig, &options);
	n_verified = longest = 0;
	shortest = UINT32_MAX;
}

static int setup(void **state)
{
	static struct rig rig;

	open_engine(&rig, (struct rig_options){
		.mode = GRAPH_FULL_AND_PIECEWISE, .n_drafts = K});
	*state = &rig;
	return 0;
}

static void close_engine(struct rig *rig)
{
	seen.ops->mem_free(seen.device, seen.plan);
	rig_close(rig);
}

static int teardown(void **state)
{
	close_engine(*state);
	return 0;
}

/* ---- claims ---- */

static void test_inputs_are_written_to_their_end_before_a_capture_begins(void **state)
{
	assert_true(seen.n_captures > 0);
	assert_int_equal(seen.n_captures_pending, 0);
}

static void test_nothing_is_captured_before_the_device_is_locked(void **state)
{
	assert_true(seen.n_captures > 0);
	assert_int_equal(seen.n_captures_unlocked, 0);
}

static void test_memory_and_first_uses_are_refused_once_the_engine_serves(void **state)
{
	const struct rig *rig = *state;
	const struct runner *runner = rig->engine->runners.all[0];
	const struct model_buffers *b = &runner->context.buffers;
	void *memory;

	assert_int_equal(seen.ops->mem_alloc(seen.device, 256, &memory), DEVICE_E_LOCKED);
	assert_int_equal(seen.ops->host_alloc(seen.device, 256, &memory), DEVICE_E_LOCKED);
	/* The model has no experts. */
	assert_int_equal(seen.kernels->moe_combine(rig->engine->lane.stream, &(struct op_moe_combine){
		.y = b->residual,
		.experts = runner->inputs.persistent.input_ids,
		.weights = b->logits,
		.out = b->normed,
		.n_tokens = 1,
		.n_active = 1,
		.cols = runner->model->config.hidden_size,
	}), DEVICE_E_LOCKED);
}

static void test_passes_of_the_draft_are_captured_on_inputs_written_for_them(void **state)
{
	const struct rig *rig = *state;
	const struct runner *runner = rig->engine->runners.all[0];

	/* Each of its graphs was warmed up and captured. */
	assert_true(seen.n_drafts_begun >= 2 * speculator_n_graphs(&runner->speculator));
	assert_int_equal(seen.n_drafts_on_other_inputs, 0);
}

/* F1 */
static void assert_plans(const struct graph_set *set)
{
	uint32_t n_full = 0;

	for (uint32_t i = 0; i < set->n; i++) {
		const struct graph_entry *entry = &set->entries[i];
		uint32_t n_plans = 0;
		const char *node;

		if (entry->descriptor.mode != GRAPH_FULL)
			continue;
		for (uint32_t k = 0; (node = seen.ops->graph_node_name(entry->graph, k)); k++)
			n_plans += !strcmp(node, PLAN_NODE);
		assert_int_equal(n_plans, 1);
		n_full++;
	}
	assert_true(n_full > 0);
}

static void test_lazy_plan_is_in_every_full_graph_of_target_and_draft(void **state)
{
	const struct rig *rig = *state;
	const struct runner *runner = rig->engine->runners.all[0];

	assert_plans(&runner->graphs);
	assert_plans(&runner->speculator.prefill.graphs);
	assert_plans(&runner->speculator.decode.graphs);
}

/* The device alone knows how many drafts were accepted. */
static void test_rows_that_verify_are_planned_as_the_longest_sequence(void **state)
{
	struct rig_client client;

	rig_attach(*state, &client, 8);
	assert_int_equal(
		rig_do(&client, rig_endless(&client, 0, 0, 60)).n_generated, 60);
	rig_detach(&client);
	assert_true(n_verified > 0);
	assert_int_equal(shortest, MAX_SEQ_LEN + K);
	assert_int_equal(longest, MAX_SEQ_LEN + K);
}

/* F14 */
static void test_graphs_to_be_captured_later_have_their_memory_reserved(void **state)
{
	const uint64_t lazy_graph_bytes = 2 * MIB;
	const struct observed of_the_group = seen;
	struct engine_model_facts facts[2];

	for (int i = 0; i < 2; i++) {
		struct rig rig;

		seen.free_bytes = 80 * MIB;
		open_engine(&rig, (struct rig_options){.mode = GRAPH_FULL_AND_PIECEWISE,
			.lazy_capture = i, .kv_pages = 100000});
		engine_model_facts(rig.engine, 0, &facts[i]);
		close_engine(&rig);
	}
	seen = of_the_group;
	assert_true(facts[0].kv_bytes < 80 * MIB);
	assert_in_range(facts[0].kv_bytes - facts[1].kv_bytes,
		facts[1].n_graphs * lazy_graph_bytes - MIB,
		facts[1].n_graphs * lazy_graph_bytes + MIB);
}

/* ---- a device that decodes in one kernel ---- */

static struct {
	const struct kernel_ops *own;
	struct kernel_ops kernels;
	uint32_t n_decodes, n_gemms; /* gated ones of one row */
} whole;

static int whole_decode(struct stream *stream, const struct op_decode_step *args)
{
	whole.n_decodes++;
	return 0;
}

static int whole_refuses(struct stream *stream, const struct op_decode_step *args)
{
	whole.n_decodes++;
	return -ENOTSUP;
}

static int whole_gated_gemm(struct stream *stream, const struct op_gated_gemm *args)
{
	whole.n_gemms += args->n_rows == 1;
	return whole.own->gated_gemm(stream, args);
}

/* Models of the cpu device are deterministic, and have no such decodes. */
int __real_model_load(struct device *device, const char *directory,
	const struct model_config *config, uint32_t max_positions,
	void (*progress)(void *userdata, uint64_t done, uint64_t total), void *userdata,
	struct model **ret, struct model_error *error);
int __wrap_model_load(struct device *device, const char *directory,
	const struct model_config *config, uint32_t max_positions,
	void (*progress)(void *userdata, uint64_t done, uint64_t total), void *userdata,
	struct model **ret, struct model_error *error);

int __wrap_model_load(struct device *device, const char *directory,
	const struct model_config *config, uint32_t max_positions,
	void (*progress)(void *userdata, uint64_t done, uint64_t total), void *userdata,
	struct model **ret, struct model_error *error)
{
	int rc = __real_model_load(
		device, directory, config, max_positions, progress, userdata, ret, error);

	if (!rc && device->kernels == &whole.kernels)
		(*ret)->deterministic = false;
	return rc;
}

static void decode_whole(struct device *device)
{
	whole.own = device->kernels;
	whole.kernels = *whole.own;
	whole.kernels.decode_step = whole_decode;
	whole.kernels.gated_gemm = whole_gated_gemm;
	device->kernels = &whole.kernels;
}

static void refuse_whole(struct device *device)
{
	decode_whole(device);
	whole.kernels.decode_step = whole_refuses;
}

/* A decode whose graph is missing runs op by op, after the lock. */
static void test_ops_of_a_decode_in_one_kernel_are_warmed_up(void **state)
{
	const uint32_t sizes[] = {1};
	struct rig rig;

	memset(&whole, 0, sizeof(whole));
	rig_open(&rig, &(struct rig_options){.mode = GRAPH_FULL_DECODE_ONLY,
			       .capture_sizes = sizes,
			       .n_capture_sizes = 1,
			       .on_device = decode_whole});
	assert_true(whole.n_decodes > 0);
	assert_true(whole.n_gemms > 0);
	rig_close(&rig);
}

/* As of packed weights: warm-up and capture take the ops instead. */
static void test_decodes_that_the_kernel_refuses_are_captured_op_by_op(void **state)
{
	const uint32_t sizes[] = {1};
	struct rig rig;

	memset(&whole, 0, sizeof(whole));
	rig_open(&rig, &(struct rig_options){.mode = GRAPH_FULL_DECODE_ONLY,
			       .capture_sizes = sizes,
			       .n_capture_sizes = 1,
			       .on_device = refuse_whole});
	assert_true(whole.n_decodes > 1);
	assert_true(whole.n_gemms >= whole.n_decodes);
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_inputs_are_written_to_their_end_before_a_capture_begins),
		cmocka_unit_test(test_nothing_is_captured_before_the_device_is_locked),
		cmocka_unit_test(test_passes_of_the_draft_are_captured_on_inputs_written_for_them),
		cmocka_unit_test(test_lazy_plan_is_in_every_full_graph_of_target_and_draft),
		cmocka_unit_test(test_rows_that_verify_are_planned_as_the_longest_sequence),
		cmocka_unit_test(test_memory_and_first_uses_are_refused_once_the_engine_serves),
		cmocka_unit_test(test_graphs_to_be_captured_later_have_their_memory_reserved),
		cmocka_unit_test(test_ops_of_a_decode_in_one_kernel_are_warmed_up),
		cmocka_unit_test(test_decodes_that_the_kernel_refuses_are_captured_op_by_op),
	};
	static const struct test_cpu_only only[] = {
		{"test_graphs_to_be_captured_later_have_their_memory_reserved",
			"its memory is mapped in larger parts"},
	};

	return TEST_RUN_GROUP("engine set-up", tests, only, setup, teardown);
}
