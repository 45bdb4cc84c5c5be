/* SPDX-License-Identifier: MIT */
#include "tests/kernels/cpu_capture_fixture.h"

#include <unistd.h>

/* ---- recording and replay ---- */

static void test_capture_records_and_does_not_execute(void **state)
{
	struct fixture *f = *state;
	struct graph_exec *exec;
	int value = 0;

	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	assert_true(f->ops->capturing(f->stream));
	assert_int_equal(launch_store(f->stream, &value, 5), 0);
	exec = finish(f);
	assert_false(f->ops->capturing(f->stream));
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	assert_int_equal(value, 0);
	replay(f, exec);
	assert_int_equal(value, 5);
	f->ops->graph_exec_free(exec);
}

static void test_replay_has_the_scalars_of_capture_time(void **state)
{
	struct fixture *f = *state;
	struct graph_exec *exec;
	int value = 0, scalar = 5;

	f->ops->capture_begin(f->stream);
	launch_store(f->stream, &value, scalar);
	scalar = 6;
	exec = finish(f);
	replay(f, exec);
	assert_int_equal(value, 5);
	assert_int_equal(scalar, 6);
	f->ops->graph_exec_free(exec);
}

static void test_replay_reads_the_memory_of_replay_time(void **state)
{
	struct fixture *f = *state;
	struct graph_exec *exec;
	int value = 0, from = 1;

	f->ops->capture_begin(f->stream);
	launch_copy_int(f->stream, &value, &from);
	exec = finish(f);
	for (from = 10; from < 13; from++) {
		replay(f, exec);
		assert_int_equal(value, from);
	}
	f->ops->graph_exec_free(exec);
}

static void test_replay_runs_its_nodes_in_order(void **state)
{
	static struct trace trace;
	struct fixture *f = *state;
	struct graph_exec *exec;
	struct graph_info info;

	trace.n = 0;
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

	trace.n = 0;
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

static void test_executable_outlives_its_recording_and_replays_elsewhere(void **state)
{
	struct fixture *f = *state;
	struct graph_exec *exec;
	int value = 0;

	f->ops->capture_begin(f->stream);
	launch_store(f->stream, &value, 9);
	exec = finish(f); /* frees the recording */
	assert_int_equal(f->ops->graph_launch(exec, f->other), 0);
	assert_int_equal(f->ops->stream_sync(f->other), 0);
	assert_int_equal(value, 9);
	f->ops->graph_exec_free(exec);
}

static void test_recording_names_its_nodes(void **state)
{
	struct fixture *f = *state;
	struct graph *graph;
	uint8_t memory[4];
	int value = 0;

	f->ops->capture_begin(f->stream);
	f->ops->fill_async(f->stream, memory, 0, sizeof(memory));
	launch_store(f->stream, &value, 1);
	f->ops->copy_async(f->stream, memory, &value, sizeof(memory));
	assert_int_equal(f->ops->capture_end(f->stream, &graph), 0);
	assert_string_equal(f->ops->graph_node_name(graph, 0), "fill");
	assert_string_equal(f->ops->graph_node_name(graph, 1), "store");
	assert_string_equal(f->ops->graph_node_name(graph, 2), "copy");
	assert_null(f->ops->graph_node_name(graph, 3));
	f->ops->graph_free(graph);
}

static void test_empty_capture_is_an_empty_graph(void **state)
{
	struct fixture *f = *state;
	struct graph_exec *exec;

	f->ops->capture_begin(f->stream);
	exec = finish(f);
	replay(f, exec);
	f->ops->graph_exec_free(exec);
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

static void test_capture_after_lock_of_loaded_ops_works(void **state)
{
	struct fixture *f = *state;
	struct graph_exec *exec;
	int value = 0;

	f->ops->lock(f->device);
	f->ops->capture_begin(f->stream);
	assert_int_equal(launch_store(f->stream, &value, 8), 0);
	exec = finish(f);
	replay(f, exec);
	assert_int_equal(value, 8);
	f->ops->graph_exec_free(exec);
}

/* ---- begin and end ---- */

static void test_end_without_begin_is_an_illegal_state(void **state)
{
	struct fixture *f = *state;
	struct graph *graph = NULL;

	assert_int_equal(f->ops->capture_end(f->stream, &graph), DEVICE_E_ILLEGAL_STATE);
	assert_null(graph);
}

static void test_begin_twice_is_refused_and_spoils_nothing(void **state)
{
	struct fixture *f = *state;

	f->ops->capture_begin(f->stream);
	assert_int_equal(f->ops->capture_begin(f->stream), DEVICE_E_ILLEGAL_STATE);
	f->ops->graph_exec_free(finish(f));
}

static void test_stream_may_be_freed_while_it_captures(void **state)
{
	struct fixture *f = *state;
	struct stream *stream;
	void *memory;
	int value = 0;

	f->ops->stream_new(f->device, &stream);
	f->ops->capture_begin(stream);
	launch_store(stream, &value, 1);
	f->ops->stream_free(stream);
	assert_int_equal(value, 0);
	/* and the thread captures no more */
	assert_int_equal(f->ops->mem_alloc(f->device, 1, &memory), 0);
	f->ops->mem_free(f->device, memory);
}

static void test_launches_on_other_streams_execute_meanwhile(void **state)
{
	struct fixture *f = *state;
	struct event *event;
	int value = 0;

	f->ops->capture_begin(f->stream);
	assert_int_equal(launch_store(f->other, &value, 4), 0);
	assert_int_equal(f->ops->event_new(f->device, &event), 0);
	assert_int_equal(f->ops->event_record(event, f->other), 0);
	f->ops->graph_exec_free(finish(f));
	assert_int_equal(f->ops->event_sync(event), 0);
	assert_int_equal(value, 4);
	f->ops->event_free(event);
}

static void test_mapping_and_export_are_allowed_meanwhile(void **state)
{
	struct fixture *f = *state;
	struct device_handle handle;
	void *range, *memory;
	size_t granularity;

	f->ops->capture_begin(f->stream);
	assert_int_equal(f->ops->reserve(f->device, 1, &range, &granularity), 0);
	assert_int_equal(f->ops->map(f->device, range, 0, granularity), 0);
	assert_int_equal(f->ops->unmap(f->device, range, 0, granularity), 0);
	f->ops->release(f->device, range, 1);
	assert_int_equal(f->ops->export_alloc(f->device, 1, &memory, &handle), 0);
	f->ops->export_free(f->device, memory);
	f->ops->graph_exec_free(finish(f));
	assert_int_equal(close(handle.fd), 0);
}

static void test_order_within_a_capture_needs_no_wait(void **state)
{
	struct fixture *f = *state;
	struct event *event, *never;
	int value = 0;

	f->ops->event_new(f->device, &event);
	f->ops->event_new(f->device, &never);
	f->ops->capture_begin(f->stream);
	f->ops->event_record(event, f->stream);
	launch_store(f->stream, &value, 1);
	assert_int_equal(f->ops->stream_wait_event(f->stream, event), 0);
	assert_int_equal(f->ops->stream_wait_event(f->stream, never), 0);
	f->ops->graph_exec_free(finish(f));
	f->ops->event_free(event);
	f->ops->event_free(never);
}

static void test_event_of_an_ended_capture_is_invalid_until_recorded_again(void **state)
{
	struct fixture *f = *state;
	struct event *event;

	f->ops->event_new(f->device, &event);
	f->ops->capture_begin(f->stream);
	f->ops->event_record(event, f->stream);
	f->ops->graph_exec_free(finish(f));
	assert_int_equal(f->ops->event_query(event), DEVICE_E_INVALID);
	assert_int_equal(f->ops->event_sync(event), DEVICE_E_INVALID);
	assert_int_equal(f->ops->stream_wait_event(f->other, event), DEVICE_E_INVALID);
	f->ops->event_record(event, f->stream);
	assert_int_equal(f->ops->event_sync(event), 0);
	f->ops->event_free(event);
}

/* ---- device loss ---- */

static int setup_lost_by_replay(void **state)
{
	int rc;

	setenv("MIMEO_CPU_FAULT", "op:store:2", 1);
	rc = setup_loaded(state);
	unsetenv("MIMEO_CPU_FAULT");
	return rc;
}

static void test_fault_counts_the_ops_of_replays(void **state)
{
	struct fixture *f = *state;
	struct graph_exec *exec;
	static struct trace trace;
	int value = 0;

	trace.n = 0;
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
		LOADED(test_capture_records_and_does_not_execute),
		LOADED(test_replay_has_the_scalars_of_capture_time),
		LOADED(test_replay_reads_the_memory_of_replay_time),
		LOADED(test_replay_runs_its_nodes_in_order),
		LOADED(test_replay_keeps_its_place_among_eager_work),
		LOADED(test_executable_outlives_its_recording_and_replays_elsewhere),
		LOADED(test_recording_names_its_nodes),
		LOADED(test_empty_capture_is_an_empty_graph),
		LOADED(test_replay_uses_the_workspace_of_capture_time),
		LOADED(test_capture_after_lock_of_loaded_ops_works),
		LOADED(test_end_without_begin_is_an_illegal_state),
		LOADED(test_begin_twice_is_refused_and_spoils_nothing),
		LOADED(test_stream_may_be_freed_while_it_captures),
		LOADED(test_launches_on_other_streams_execute_meanwhile),
		LOADED(test_mapping_and_export_are_allowed_meanwhile),
		LOADED(test_order_within_a_capture_needs_no_wait),
		LOADED(test_event_of_an_ended_capture_is_invalid_until_recorded_again),
		cmocka_unit_test_setup_teardown(test_fault_counts_the_ops_of_replays,
			setup_lost_by_replay, fixture_teardown),
	};

	return cmocka_run_group_tests_name("cpu_capture", tests, NULL, NULL);
}
