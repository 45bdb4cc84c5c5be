/* SPDX-License-Identifier: MIT */
#include "tests/attention/fixture.h"

int fixture_run_captured(struct fixture *f)
{
	const struct device_ops *ops = f->device->ops;
	struct graph *graph = NULL;
	int rc;

	assert_int_equal(fixture_build(f, ATTENTION_CAPTURE), 0);
	fixture_sync(f);
	assert_int_equal(ops->capture_begin(f->stream), 0);
	rc = fixture_enqueue(f, FIXTURE_LAYER);
	assert_int_equal(ops->capture_end(f->stream, &graph), 0);
	ops->graph_free(graph);
	return rc;
}

struct graph *fixture_record(struct fixture *f, uint32_t n)
{
	const struct device_ops *ops = f->device->ops;
	struct graph *graph = NULL;

	assert_int_equal(fixture_build(f, ATTENTION_WARM_UP), 0);
	assert_int_equal(fixture_enqueue(f, FIXTURE_LAYER), 0);
	fixture_sync(f);
	assert_int_equal(ops->lock(f->device), 0);
	f->backend->metadata_free(f->metadata);
	assert_int_equal(f->backend->metadata_new(f->manager, &f->metadata), 0);
	assert_int_equal(fixture_build(f, ATTENTION_CAPTURE), 0);
	fixture_sync(f);
	assert_int_equal(ops->capture_begin(f->stream), 0);
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(fixture_enqueue(f, FIXTURE_LAYER), 0);
	assert_int_equal(ops->capture_end(f->stream, &graph), 0);
	return graph;
}

struct graph_exec *fixture_instantiate(struct fixture *f, struct graph *graph)
{
	struct graph_exec *exec = NULL;

	assert_int_equal(f->device->ops->graph_instantiate(f->device, graph, &exec), 0);
	f->device->ops->graph_free(graph);
	return exec;
}

void fixture_replay(struct fixture *f, struct graph_exec *exec)
{
	fixture_poison_out(f);
	assert_int_equal(f->device->ops->graph_launch(exec, f->stream), 0);
	fixture_sync(f);
}

struct graph_exec *fixture_capture_paged(struct fixture *f, uint32_t n_rows, uint32_t n_query)
{
	struct row rows[FIXTURE_ROWS];
	struct graph *graph;

	for (uint32_t r = 0; r < n_rows; r++)
		rows[r] = (struct row){.seed = r, .n_query = n_query};
	fixture_place(f, rows, n_rows, 0, 0);
	graph = fixture_record(f, 1);
	assert_string_equal(f->device->ops->graph_node_name(graph, 0), "paged_attention");
	assert_null(f->device->ops->graph_node_name(graph, 1));
	return fixture_instantiate(f, graph);
}

void fixture_check_replay(struct fixture *f, struct graph_exec *exec, const struct row *rows,
	uint32_t n_rows, uint32_t padded_rows, uint32_t padded_tokens, bool eager_padded)
{
	float *replayed;

	fixture_place(f, rows, n_rows, padded_rows, padded_tokens);
	assert_int_equal(fixture_build(f, ATTENTION_REPLAY), 0);
	fixture_replay(f, exec);
	fixture_verify(f);
	replayed = fixture_copy(f);
	if (!eager_padded)
		fixture_run_rows(f, rows, n_rows, 0, 0);
	assert_memory_equal(f->out, replayed, fixture_bytes(f, f->batch.padded_tokens));
	free(replayed);
}

void fixture_check_recorded_plan(struct fixture *f, const struct row *row)
{
	static const int32_t shorter = 77;
	const struct device_ops *ops = f->device->ops;
	struct graph *graph = NULL;
	struct graph_exec *exec;
	void *length = NULL;
	float *replayed;

	assert_int_equal(ops->mem_alloc(f->device, sizeof(shorter), &length), 0);
	test_copy(f->device, length, &shorter, sizeof(shorter));
	fixture_run_rows(f, row, 1, 0, 0);
	assert_int_equal(ops->capture_begin(f->stream), 0);
	for (int turn = 0; turn < 2; turn++) {
		if (turn)
			assert_int_equal(ops->copy_async(f->stream, f->at_device.seq_lens, length,
				sizeof(shorter)), 0);
		assert_int_equal(f->backend->build(f->metadata, &f->batch, f->stream), 0);
		assert_int_equal(fixture_enqueue(f, FIXTURE_LAYER), 0);
	}
	assert_int_equal(ops->capture_end(f->stream, &graph), 0);
	exec = fixture_instantiate(f, graph);
	fixture_replay(f, exec);
	replayed = fixture_copy(f);
	fixture_run(f); /* of the cpu device the length is the shorter one already */
	assert_int_equal(memcmp(f->out, replayed, fixture_bytes(f, 1)) != 0, f->is_cuda);
	f->inputs.seq_lens[0] = shorter;
	fixture_run(f);
	assert_memory_equal(f->out, replayed, fixture_bytes(f, 1));
	ops->graph_exec_free(exec);
	ops->mem_free(f->device, length);
	free(replayed);
}
