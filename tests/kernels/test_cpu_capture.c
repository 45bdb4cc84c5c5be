/* SPDX-License-Identifier: MIT */
#include "tests/kernels/cpu_fixture.h"

#include "tests/kernels/capture_claims.h"

/* What a capture may name has to be loaded before. */
static void load(struct fixture *f, struct trace *trace, int *value)
{
	assert_int_equal(launch_store(f->stream, value, 0), 0);
	assert_int_equal(launch_trace(f->stream, trace, 0), 0);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	trace->n = 0;
}

static void test_replay_runs_its_nodes_in_order(void **state)
{
	static struct trace trace;
	struct fixture *f = *state;
	struct graph_exec *exec;
	struct graph_info info;
	int value;

	load(f, &trace, &value);
	f->ops->capture_begin(f->stream);
	for (int i = 0; i < 300; i++)
		launch_trace(f->stream, &trace, i);
	exec = finish(f);
	assert_int_equal(f->ops->graph_info(exec, &info), 0);
	assert_int_equal(info.n_nodes, 300);
	assert_true(info.bytes >= (uint64_t)300 * CPU_ARGS_MAX);
	replay(f, exec);
	assert_int_equal(trace.n, 300);
	for (int i = 0; i < 300; i++)
		assert_int_equal(trace.values[i], i);
	f->ops->graph_exec_free(exec);
}

static void test_replay_keeps_its_place_among_eager_work(void **state)
{
	static struct trace trace;
	struct fixture *f = *state;
	struct graph_exec *exec;
	int value;

	load(f, &trace, &value);
	f->ops->capture_begin(f->stream);
	launch_trace(f->stream, &trace, 2);
	launch_trace(f->stream, &trace, 3);
	exec = finish(f);
	launch_trace(f->stream, &trace, 1);
	assert_int_equal(f->ops->graph_upload(exec, f->stream), 0);
	f->ops->graph_launch(exec, f->stream);
	launch_trace(f->stream, &trace, 4);
	f->ops->graph_launch(exec, f->stream);
	f->ops->stream_sync(f->stream);
	assert_int_equal(trace.n, 6);
	for (int i = 0; i < 4; i++)
		assert_int_equal(trace.values[i], i + 1);
	assert_int_equal(trace.values[5], 3);
	f->ops->graph_exec_free(exec);
}

static void test_recording_names_its_ops(void **state)
{
	static struct trace trace;
	struct fixture *f = *state;
	struct graph *graph;
	int value;

	load(f, &trace, &value);
	f->ops->capture_begin(f->stream);
	launch_store(f->stream, &value, 1);
	assert_int_equal(f->ops->capture_end(f->stream, &graph), 0);
	assert_string_equal(f->ops->graph_node_name(graph, 0), "store");
	assert_null(f->ops->graph_node_name(graph, 1));
	f->ops->graph_free(graph);
}

static void test_replay_uses_the_workspace_of_capture_time(void **state)
{
	struct fixture *f = *state;
	uint8_t *eager, *replayed, *grown;
	struct graph_exec *exec;

	launch_workspace(f->stream, &eager, 500);
	f->ops->stream_sync(f->stream);
	f->ops->capture_begin(f->stream);
	assert_int_equal(launch_workspace(f->stream, &replayed, 500), 0);
	exec = finish(f);
	launch_workspace(f->stream, &grown, 5000);
	replay(f, exec);
	assert_ptr_equal(replayed, eager);
	assert_ptr_not_equal(replayed, grown);
	f->ops->graph_exec_free(exec);
}

/* ---- device loss ---- */

static int setup_lost_by_replay(void **state)
{
	int rc;

	setenv("MIMEO_CPU_FAULT", "op:store:2", 1);
	rc = fixture_setup(state);
	unsetenv("MIMEO_CPU_FAULT");
	return rc;
}

static void test_fault_counts_the_ops_of_replays(void **state)
{
	struct fixture *f = *state;
	struct graph_exec *exec;
	static struct trace trace;
	int value;

	load(f, &trace, &value);
	f->ops->capture_begin(f->stream);
	launch_trace(f->stream, &trace, 1);
	launch_store(f->stream, &value, 1);
	launch_trace(f->stream, &trace, 2);
	exec = finish(f);
	f->ops->graph_launch(exec, f->stream);
	assert_int_equal(f->ops->stream_sync(f->stream), DEVICE_E_LOST);
	assert_int_equal(trace.n, 1);
	assert_int_equal(value, 0);
	f->ops->graph_exec_free(exec);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CAPTURE_CLAIMS,
		ON_DEVICE(test_replay_runs_its_nodes_in_order),
		ON_DEVICE(test_replay_keeps_its_place_among_eager_work),
		ON_DEVICE(test_recording_names_its_ops),
		ON_DEVICE(test_replay_uses_the_workspace_of_capture_time),
		cmocka_unit_test_setup_teardown(test_fault_counts_the_ops_of_replays,
			setup_lost_by_replay, fixture_teardown),
	};

	return cmocka_run_group_tests_name("cpu_capture", tests, NULL, NULL);
}
