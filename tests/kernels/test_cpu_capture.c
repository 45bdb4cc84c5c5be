/* SPDX-License-Identifier: MIT */
#include "tests/kernels/cpu_fixture.h"

#include <pthread.h>
#include <unistd.h>

/* ---- recording and replay ---- */

/* Captures what the caller launched since capture_begin and makes it executable. */
static struct graph_exec *finish(struct fixture *f)
{
	struct graph_exec *exec = NULL;
	struct graph *graph;

	assert_int_equal(f->ops->capture_end(f->stream, &graph), 0);
	assert_int_equal(f->ops->graph_instantiate(f->device, graph, &exec), 0);
	f->ops->graph_free(graph);
	return exec;
}

static void replay(struct fixture *f, struct graph_exec *exec)
{
	assert_int_equal(f->ops->graph_launch(exec, f->stream), 0);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
}

/* What a capture may name has to be loaded before. */
static void load(struct fixture *f)
{
	static struct trace trace;
	int a = 0, b = 0;

	trace.n = 0;
	assert_int_equal(launch_store(f->stream, &a, 1), 0);
	assert_int_equal(launch_copy_int(f->stream, &a, &b), 0);
	assert_int_equal(launch_trace(f->stream, &trace, 1), 0);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
}

static int setup_loaded(void **state)
{
	int rc = fixture_setup(state);

	if (rc == 0)
		load(*state);
	return rc;
}

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

/* ---- what a capturing thread may not do ---- */

struct outside {
	struct event *recorded; /* before the capture */
	struct event *captured; /* in it */
	struct graph *graph;
	struct graph_exec *exec;
	void *memory, *pinned;
	int value;
};

struct refusal {
	const char *name;
	int (*call)(struct fixture *f, struct outside *outside);
	int condition;
};

static int call_mem_alloc(struct fixture *f, struct outside *outside)
{
	void *memory;

	return f->ops->mem_alloc(f->device, 64, &memory);
}

static int call_host_alloc(struct fixture *f, struct outside *outside)
{
	void *memory;

	return f->ops->host_alloc(f->device, 64, &memory);
}

static int call_host_register(struct fixture *f, struct outside *outside)
{
	return f->ops->host_register(f->device, &outside->value, sizeof(outside->value));
}

static int call_stream_sync(struct fixture *f, struct outside *outside)
{
	return f->ops->stream_sync(f->stream);
}

static int call_other_stream_sync(struct fixture *f, struct outside *outside)
{
	return f->ops->stream_sync(f->other);
}

static int call_stream_query(struct fixture *f, struct outside *outside)
{
	return f->ops->stream_query(f->stream);
}

static int call_other_stream_query(struct fixture *f, struct outside *outside)
{
	return f->ops->stream_query(f->other);
}

static int call_event_sync(struct fixture *f, struct outside *outside)
{
	return f->ops->event_sync(outside->recorded);
}

static int call_event_query(struct fixture *f, struct outside *outside)
{
	return f->ops->event_query(outside->recorded);
}

static int call_captured_event_sync(struct fixture *f, struct outside *outside)
{
	return f->ops->event_sync(outside->captured);
}

static int call_captured_event_query(struct fixture *f, struct outside *outside)
{
	return f->ops->event_query(outside->captured);
}

static int call_wait_for_outside(struct fixture *f, struct outside *outside)
{
	return f->ops->stream_wait_event(f->stream, outside->recorded);
}

static int call_wait_by_other_stream(struct fixture *f, struct outside *outside)
{
	return f->ops->stream_wait_event(f->other, outside->captured);
}

static int call_blocking_copy(struct fixture *f, struct outside *outside)
{
	return f->ops->copy(f->device, outside->memory, outside->pinned, 8);
}

static int call_host_func(struct fixture *f, struct outside *outside)
{
	return f->ops->stream_host_func(f->stream, free, NULL);
}

static int call_graph_launch(struct fixture *f, struct outside *outside)
{
	return f->ops->graph_launch(outside->exec, f->stream);
}

static int call_graph_upload(struct fixture *f, struct outside *outside)
{
	return f->ops->graph_upload(outside->exec, f->stream);
}

static int call_graph_instantiate(struct fixture *f, struct outside *outside)
{
	struct graph_exec *exec;

	return f->ops->graph_instantiate(f->device, outside->graph, &exec);
}

static int call_first_use(struct fixture *f, struct outside *outside)
{
	return launch_gate(f, f->stream);
}

static int call_first_use_on_other_stream(struct fixture *f, struct outside *outside)
{
	return launch_gate(f, f->other);
}

static int call_workspace_growth(struct fixture *f, struct outside *outside)
{
	static uint8_t *where;

	return launch_workspace(f->stream, &where, 1000);
}

static int call_first_use_after_lock(struct fixture *f, struct outside *outside)
{
	f->ops->lock(f->device);
	return launch_gate(f, f->stream);
}

/* Things from before a capture, and a capture begun, with one node and one event in it. */
static void begin_among(struct fixture *f, struct outside *outside)
{
	uint8_t *where;

	assert_int_equal(f->ops->event_new(f->device, &outside->recorded), 0);
	assert_int_equal(f->ops->event_new(f->device, &outside->captured), 0);
	assert_int_equal(f->ops->mem_alloc(f->device, 64, &outside->memory), 0);
	assert_int_equal(f->ops->host_alloc(f->device, 64, &outside->pinned), 0);
	assert_int_equal(launch_workspace(f->stream, &where, 100), 0);
	assert_int_equal(launch_store(f->other, &outside->value, 1), 0);
	assert_int_equal(f->ops->event_record(outside->recorded, f->other), 0);
	assert_int_equal(f->ops->stream_sync(f->other), 0);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	assert_int_equal(launch_store(f->stream, &outside->value, 2), 0);
	assert_int_equal(f->ops->capture_end(f->stream, &outside->graph), 0);
	assert_int_equal(f->ops->graph_instantiate(f->device, outside->graph, &outside->exec), 0);
	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	assert_int_equal(launch_store(f->stream, &outside->value, 3), 0);
	assert_int_equal(f->ops->event_record(outside->captured, f->stream), 0);
}

static void outside_free(struct fixture *f, struct outside *outside)
{
	f->ops->graph_exec_free(outside->exec);
	f->ops->graph_free(outside->graph);
	f->ops->host_free(f->device, outside->pinned);
	f->ops->mem_free(f->device, outside->memory);
	f->ops->event_free(outside->captured);
	f->ops->event_free(outside->recorded);
}

/* Refused with its condition, everything on the stream is refused from then on, the capture ends
 * without a graph, and the stream is as good as new. */
static void test_refused_and_spoilt(void **state)
{
	struct fixture *f = *state;
	const struct refusal *refusal = f->parameter;
	struct outside outside = {0};
	struct graph *graph = NULL;

	begin_among(f, &outside);
	assert_int_equal(refusal->call(f, &outside), refusal->condition);
	assert_true(f->ops->capturing(f->stream));
	assert_int_equal(launch_store(f->stream, &outside.value, 4), DEVICE_E_CAPTURE_INVALIDATED);
	assert_int_equal(f->ops->capture_end(f->stream, &graph), DEVICE_E_CAPTURE_INVALIDATED);
	assert_null(graph);
	assert_int_equal(launch_store(f->stream, &outside.value, 5), 0);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	assert_int_equal(outside.value, 5);
	outside_free(f, &outside);
}

/* mem_free has no answer to give; the capture has. */
static void test_mem_free_spoils_a_capture(void **state)
{
	struct fixture *f = *state;
	struct graph *graph = NULL;
	void *memory;

	f->ops->mem_alloc(f->device, 64, &memory);
	f->ops->capture_begin(f->stream);
	f->ops->mem_free(f->device, memory);
	assert_int_equal(f->ops->capture_end(f->stream, &graph), DEVICE_E_CAPTURE_INVALIDATED);
	assert_null(graph);
}

static void test_refusal_spoils_every_capture_of_the_thread(void **state)
{
	struct fixture *f = *state;
	struct graph *graph = NULL;
	void *memory;

	f->ops->capture_begin(f->stream);
	f->ops->capture_begin(f->other);
	f->ops->mem_alloc(f->device, 64, &memory);
	assert_int_equal(f->ops->capture_end(f->stream, &graph), DEVICE_E_CAPTURE_INVALIDATED);
	assert_int_equal(f->ops->capture_end(f->other, &graph), DEVICE_E_CAPTURE_INVALIDATED);
}

/* ---- what another thread may ---- */

struct elsewhere {
	struct fixture *f;
	struct outside *outside;
	int (*call)(struct fixture *f, struct outside *outside);
	int rc;
};

static void *elsewhere_main(void *arg)
{
	struct elsewhere *elsewhere = arg;

	elsewhere->rc = elsewhere->call(elsewhere->f, elsewhere->outside);
	return NULL;
}

static int call_elsewhere(struct fixture *f, struct outside *outside,
	int (*call)(struct fixture *f, struct outside *outside))
{
	struct elsewhere elsewhere = {.f = f, .outside = outside, .call = call, .rc = -1};
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, elsewhere_main, &elsewhere), 0);
	pthread_join(thread, NULL);
	return elsewhere.rc;
}

static int call_everything_else(struct fixture *f, struct outside *outside)
{
	struct graph_exec *exec;
	void *memory;
	int rc = f->ops->mem_alloc(f->device, 64, &memory);

	if (rc != 0)
		return rc;
	f->ops->mem_free(f->device, memory);
	rc = f->ops->copy(f->device, outside->memory, outside->pinned, 8);
	if (rc == 0)
		rc = f->ops->event_sync(outside->recorded);
	if (rc == 0)
		rc = f->ops->stream_sync(f->other);
	if (rc == 0)
		rc = f->ops->graph_instantiate(f->device, outside->graph, &exec);
	if (rc != 0)
		return rc;
	f->ops->graph_exec_free(exec);
	sem_post(&f->open);
	rc = launch_gate(f, f->other); /* its first use */
	return rc != 0 ? rc : f->ops->stream_sync(f->other);
}

static void test_other_threads_calls_neither_fail_nor_spoil(void **state)
{
	struct fixture *f = *state;
	struct outside outside = {0};

	begin_among(f, &outside);
	assert_int_equal(call_elsewhere(f, &outside, call_everything_else), 0);
	f->ops->graph_exec_free(finish(f));
	outside_free(f, &outside);
}

static void test_other_threads_query_of_the_capturing_stream_spoils(void **state)
{
	struct fixture *f = *state;
	struct outside outside = {0};
	struct graph *graph = NULL;

	begin_among(f, &outside);
	assert_int_equal(
		call_elsewhere(f, &outside, call_stream_query), DEVICE_E_CAPTURE_UNSUPPORTED);
	assert_int_equal(f->ops->capture_end(f->stream, &graph), DEVICE_E_CAPTURE_INVALIDATED);
	outside_free(f, &outside);
}

static void test_other_threads_query_of_a_captured_event_spoils(void **state)
{
	struct fixture *f = *state;
	struct outside outside = {0};
	struct graph *graph = NULL;

	begin_among(f, &outside);
	assert_int_equal(
		call_elsewhere(f, &outside, call_captured_event_query), DEVICE_E_CAPTURED_EVENT);
	assert_int_equal(f->ops->capture_end(f->stream, &graph), DEVICE_E_CAPTURE_INVALIDATED);
	outside_free(f, &outside);
}

static int call_capture_end(struct fixture *f, struct outside *outside)
{
	struct graph *graph;

	return f->ops->capture_end(f->stream, &graph);
}

static void test_end_by_another_thread_gives_no_graph(void **state)
{
	struct fixture *f = *state;
	struct outside outside = {0};

	begin_among(f, &outside);
	assert_int_equal(
		call_elsewhere(f, &outside, call_capture_end), DEVICE_E_CAPTURE_WRONG_THREAD);
	assert_false(f->ops->capturing(f->stream));
	outside_free(f, &outside);
}

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

#define LOADED(test) cmocka_unit_test_setup_teardown(test, setup_loaded, fixture_teardown)
#define REFUSED(what, condition_)                                                                  \
	{                                                                                          \
		"test_capture_refuses_" #what, test_refused_and_spoilt, setup_loaded,              \
			fixture_teardown, &(struct refusal)                                        \
		{                                                                                  \
#what, call_##what, DEVICE_E_##condition_                                  \
		}                                                                                  \
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
		REFUSED(mem_alloc, CAPTURE_UNSUPPORTED),
		REFUSED(host_alloc, CAPTURE_UNSUPPORTED),
		REFUSED(host_register, CAPTURE_UNSUPPORTED),
		REFUSED(stream_sync, CAPTURE_UNSUPPORTED),
		REFUSED(other_stream_sync, CAPTURE_UNSUPPORTED),
		REFUSED(stream_query, CAPTURE_UNSUPPORTED),
		REFUSED(other_stream_query, CAPTURE_UNSUPPORTED),
		REFUSED(event_sync, CAPTURE_UNSUPPORTED),
		REFUSED(event_query, CAPTURE_UNSUPPORTED),
		REFUSED(captured_event_sync, CAPTURED_EVENT),
		REFUSED(captured_event_query, CAPTURED_EVENT),
		REFUSED(wait_for_outside, CAPTURE_ISOLATION),
		REFUSED(wait_by_other_stream, CAPTURE_UNSUPPORTED),
		REFUSED(blocking_copy, CAPTURE_IMPLICIT),
		REFUSED(host_func, CAPTURE_UNSUPPORTED),
		REFUSED(graph_launch, CAPTURE_UNSUPPORTED),
		REFUSED(graph_upload, CAPTURE_UNSUPPORTED),
		REFUSED(graph_instantiate, CAPTURE_UNSUPPORTED),
		REFUSED(first_use, CAPTURE_UNSUPPORTED),
		REFUSED(first_use_on_other_stream, CAPTURE_UNSUPPORTED),
		REFUSED(first_use_after_lock, CAPTURE_UNSUPPORTED),
		REFUSED(workspace_growth, CAPTURE_UNSUPPORTED),
		LOADED(test_mem_free_spoils_a_capture),
		LOADED(test_refusal_spoils_every_capture_of_the_thread),
		LOADED(test_other_threads_calls_neither_fail_nor_spoil),
		LOADED(test_other_threads_query_of_the_capturing_stream_spoils),
		LOADED(test_other_threads_query_of_a_captured_event_spoils),
		LOADED(test_end_by_another_thread_gives_no_graph),
		cmocka_unit_test_setup_teardown(test_fault_counts_the_ops_of_replays,
			setup_lost_by_replay, fixture_teardown),
	};

	return cmocka_run_group_tests_name("cpu_capture", tests, NULL, NULL);
}
