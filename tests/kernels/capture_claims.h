/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_KERNELS_CAPTURE_CLAIMS_H
#define MIMEO_TESTS_KERNELS_CAPTURE_CLAIMS_H

/* What device.h says of captures and graphs, for any device; behind the device's own fixture. */

#include <pthread.h>
#include <unistd.h>

#include "tests/kernels/device_fixture.h"

/* ---- recording and replay ---- */

static void test_capture_records_and_does_not_execute(void **state)
{
	struct fixture *f = *state;
	struct graph_exec *exec;

	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	assert_true(f->ops->capturing(f->stream));
	assert_int_equal(fill(f, f->stream, 0, 7), 0);
	exec = finish(f);
	assert_false(f->ops->capturing(f->stream));
	assert_int_equal(f->ops->graph_upload(exec, f->stream), 0);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	assert_int_equal(f->pinned[0], 0);
	replay(f, exec);
	assert_int_equal(f->pinned[0], 7);
	f->ops->graph_exec_free(exec);
}

static void test_replay_has_the_addresses_and_scalars_of_capture(void **state)
{
	struct fixture *f = *state;
	struct graph_exec *exec;
	uint8_t *from, value = 5;
	void *memory;

	assert_int_equal(f->ops->mem_alloc(f->device, 512, &memory), 0);
	from = memory;
	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	assert_int_equal(f->ops->copy_async(f->stream, (void *)f->pinned, from, 4), 0);
	assert_int_equal(fill(f, f->stream, 8, value), 0);
	from += 256; /* not what was captured */
	value = 6;
	exec = finish(f);
	for (uint8_t round = 1; round < 4; round++) {
		f->ops->fill_async(f->stream, memory, round, 256);
		f->ops->fill_async(f->stream, from, 99, 256);
		fill(f, f->stream, 8, value);
		replay(f, exec);
		assert_int_equal(f->pinned[3], round);
		assert_int_equal(f->pinned[4], 0);
		assert_int_equal(f->pinned[8], 5);
	}
	f->ops->graph_exec_free(exec);
	f->ops->mem_free(f->device, memory);
}

static void test_executable_outlives_its_recording_and_replays_elsewhere(void **state)
{
	struct fixture *f = *state;
	struct graph_exec *exec;

	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	fill(f, f->stream, 0, 9);
	exec = finish(f); /* frees the recording */
	assert_int_equal(f->ops->graph_launch(exec, f->other), 0);
	assert_int_equal(f->ops->stream_sync(f->other), 0);
	assert_int_equal(f->pinned[0], 9);
	f->ops->graph_exec_free(exec);
}

static void test_graph_names_its_nodes_in_order(void **state)
{
	struct fixture *f = *state;
	struct graph_info info;
	struct graph_exec *exec;
	struct graph *graph;
	void *memory;

	assert_int_equal(f->ops->mem_alloc(f->device, 64, &memory), 0);
	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	assert_int_equal(fill(f, f->stream, 0, 1), 0);
	assert_int_equal(f->ops->copy_async(f->stream, (void *)f->pinned, memory, 64), 0);
	assert_int_equal(f->ops->fill_async(f->stream, (void *)f->pinned, 2, 0), 0);
	assert_int_equal(fill(f, f->stream, 0, 2), 0);
	assert_int_equal(f->ops->capture_end(f->stream, &graph), 0);
	assert_string_equal(f->ops->graph_node_name(graph, 0), "fill");
	assert_string_equal(f->ops->graph_node_name(graph, 1), "copy");
	assert_string_equal(f->ops->graph_node_name(graph, 2), "fill");
	assert_null(f->ops->graph_node_name(graph, 3));
	assert_int_equal(f->ops->graph_instantiate(f->device, graph, &exec), 0);
	assert_int_equal(f->ops->graph_info(exec, &info), 0);
	assert_int_equal(info.n_nodes, 3);
	f->ops->graph_exec_free(exec);
	f->ops->graph_free(graph);
	f->ops->mem_free(f->device, memory);
}

static void test_empty_capture_replays_as_nothing(void **state)
{
	struct fixture *f = *state;
	struct graph_exec *exec;

	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	exec = finish(f);
	replay(f, exec);
	f->ops->graph_exec_free(exec);
}

static void test_capture_after_lock_of_loaded_ops_works(void **state)
{
	struct fixture *f = *state;
	struct graph_exec *exec;

	f->ops->lock(f->device);
	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	assert_int_equal(fill(f, f->stream, 0, 8), 0);
	exec = finish(f);
	replay(f, exec);
	assert_int_equal(f->pinned[0], 8);
	f->ops->graph_exec_free(exec);
}

static void test_begin_twice_and_end_without_begin_are_refused(void **state)
{
	struct fixture *f = *state;
	struct graph *graph = NULL;

	assert_int_equal(f->ops->capture_end(f->stream, &graph), DEVICE_E_ILLEGAL_STATE);
	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	assert_int_equal(f->ops->capture_begin(f->stream), DEVICE_E_ILLEGAL_STATE);
	assert_int_equal(f->ops->capture_end(f->other, &graph), DEVICE_E_ILLEGAL_STATE);
	assert_null(graph);
	f->ops->graph_exec_free(finish(f));
}

static void test_stream_freed_in_its_capture_leaves_nothing_behind(void **state)
{
	struct fixture *f = *state;
	struct stream *stream;
	void *memory;

	assert_int_equal(f->ops->stream_new(f->device, &stream), 0);
	assert_int_equal(f->ops->capture_begin(stream), 0);
	assert_int_equal(fill(f, stream, 0, 1), 0);
	f->ops->stream_free(stream);
	assert_int_equal(f->pinned[0], 0);
	/* and the thread captures no more */
	assert_int_equal(f->ops->mem_alloc(f->device, 1, &memory), 0);
	f->ops->mem_free(f->device, memory);
}

static void test_what_is_allowed_in_a_capture_leaves_it_sound(void **state)
{
	struct fixture *f = *state;
	struct device_handle handle;
	struct device_info info;
	struct stream *stream;
	struct event *event, *unrecorded;
	struct graph *graph;
	void *range, *shared, *imported;
	size_t unit;

	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	assert_int_equal(fill(f, f->stream, 0, 1), 0);
	assert_int_equal(fill(f, f->other, 1, 2), 0);
	assert_int_equal(f->ops->stream_new(f->device, &stream), 0);
	assert_int_equal(fill(f, stream, 2, 3), 0);
	assert_int_equal(f->ops->event_new(f->device, &event), 0);
	assert_int_equal(f->ops->event_new(f->device, &unrecorded), 0);
	assert_int_equal(f->ops->event_record(event, f->stream), 0);
	assert_int_equal(f->ops->stream_wait_event(f->stream, event), 0);
	assert_int_equal(f->ops->stream_wait_event(f->stream, unrecorded), 0);
	assert_int_equal(f->ops->event_record(unrecorded, f->other), 0);
	assert_int_equal(f->ops->reserve(f->device, MIB, &range, &unit), 0);
	assert_int_equal(f->ops->map(f->device, range, 0, unit), 0);
	assert_int_equal(f->ops->unmap(f->device, range, 0, unit), 0);
	f->ops->release(f->device, range, MIB);
	assert_int_equal(f->ops->export_alloc(f->device, MIB, &shared, &handle), 0);
	assert_int_equal(f->ops->import(f->device, &handle, &imported), 0);
	assert_int_equal(f->ops->info(f->device, &info), 0);
	assert_int_equal(f->ops->status(f->device), 0);
	assert_int_equal(fill(f, f->stream, 3, 4), 0);
	assert_int_equal(f->ops->capture_end(f->stream, &graph), 0);
	assert_string_equal(f->ops->graph_node_name(graph, 1), "fill");
	assert_null(f->ops->graph_node_name(graph, 2));
	f->ops->import_free(f->device, imported);
	f->ops->export_free(f->device, shared);
	close(handle.fd);
	assert_int_equal(f->ops->event_sync(unrecorded), 0);
	f->ops->event_free(unrecorded);
	f->ops->event_free(event);
	f->ops->stream_free(stream);
	f->ops->graph_free(graph);
	assert_int_equal(f->pinned[1], 2);
	assert_int_equal(f->pinned[2], 3);
}

static void test_event_of_an_ended_capture_is_invalid_until_recorded_again(void **state)
{
	struct fixture *f = *state;
	struct event *event;

	assert_int_equal(f->ops->event_new(f->device, &event), 0);
	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	assert_int_equal(f->ops->event_record(event, f->stream), 0);
	f->ops->graph_exec_free(finish(f));
	assert_int_equal(f->ops->event_query(event), DEVICE_E_INVALID);
	assert_int_equal(f->ops->event_sync(event), DEVICE_E_INVALID);
	assert_int_equal(f->ops->stream_wait_event(f->other, event), DEVICE_E_INVALID);
	assert_int_equal(f->ops->event_record(event, f->stream), 0);
	assert_int_equal(f->ops->event_sync(event), 0);
	f->ops->event_free(event);
}

/* ---- what a capturing thread may not do ---- */

/* Made before the capture, but for `captured`, which is recorded in it. */
struct outside {
	struct event *recorded, *captured;
	struct graph *graph;
	struct graph_exec *exec;
	void *memory;
};

struct refusal {
	const char *name;
	int (*call)(struct fixture *f, struct outside *outside);
	int condition;
};

#define CALL(name, expression)                                                                     \
	static int call_##name(struct fixture *f, struct outside *outside)                         \
	{                                                                                          \
		return f->ops->expression;                                                         \
	}

CALL(mem_alloc, mem_alloc(f->device, 64, &(void *){NULL}))
CALL(host_alloc, host_alloc(f->device, 64, &(void *){NULL}))
CALL(stream_sync, stream_sync(f->stream))
CALL(other_stream_sync, stream_sync(f->other))
CALL(stream_query, stream_query(f->stream))
CALL(other_stream_query, stream_query(f->other))
CALL(event_sync, event_sync(outside->recorded))
CALL(event_query, event_query(outside->recorded))
CALL(captured_event_sync, event_sync(outside->captured))
CALL(captured_event_query, event_query(outside->captured))
CALL(wait_for_outside, stream_wait_event(f->stream, outside->recorded))
CALL(wait_by_other_stream, stream_wait_event(f->other, outside->captured))
CALL(blocking_copy, copy(f->device, outside->memory, (void *)f->pinned, 8))
CALL(host_func, stream_host_func(f->stream, free, NULL))
CALL(graph_launch, graph_launch(outside->exec, f->stream))
CALL(graph_upload, graph_upload(outside->exec, f->stream))
CALL(graph_instantiate,
	graph_instantiate(f->device, outside->graph, &(struct graph_exec *){NULL}))
CALL(capture_end, capture_end(f->stream, &(struct graph *){NULL}))

static int call_first_use(struct fixture *f, struct outside *outside)
{
	return use_op(f->stream, 0);
}

static int call_first_use_on_other_stream(struct fixture *f, struct outside *outside)
{
	return use_op(f->other, 0);
}

static int call_first_use_after_lock(struct fixture *f, struct outside *outside)
{
	f->ops->lock(f->device);
	return use_op(f->stream, 0);
}

static int call_workspace_growth(struct fixture *f, struct outside *outside)
{
	return use_workspace(f, f->stream, 1000, &(void *){NULL});
}

/* A capture begun among what was made before, with one node and one event in it. */
static void begin_among(struct fixture *f, struct outside *outside)
{
	void *workspace;

	assert_int_equal(f->ops->event_new(f->device, &outside->recorded), 0);
	assert_int_equal(f->ops->event_new(f->device, &outside->captured), 0);
	assert_int_equal(f->ops->mem_alloc(f->device, 64, &outside->memory), 0);
	assert_int_equal(use_workspace(f, f->stream, 100, &workspace), 0);
	assert_int_equal(fill(f, f->other, 0, 1), 0);
	assert_int_equal(f->ops->event_record(outside->recorded, f->other), 0);
	assert_int_equal(f->ops->stream_sync(f->other), 0);
	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	assert_int_equal(fill(f, f->stream, 0, 2), 0);
	assert_int_equal(f->ops->capture_end(f->stream, &outside->graph), 0);
	assert_int_equal(f->ops->graph_instantiate(f->device, outside->graph, &outside->exec), 0);
	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	assert_int_equal(fill(f, f->stream, 0, 3), 0);
	assert_int_equal(f->ops->event_record(outside->captured, f->stream), 0);
}

static void outside_free(struct fixture *f, struct outside *outside)
{
	f->ops->graph_exec_free(outside->exec);
	f->ops->graph_free(outside->graph);
	f->ops->mem_free(f->device, outside->memory);
	f->ops->event_free(outside->captured);
	f->ops->event_free(outside->recorded);
}

static void assert_spoilt(struct fixture *f, struct stream *stream)
{
	struct graph *graph = NULL;

	assert_int_equal(f->ops->capture_end(stream, &graph), DEVICE_E_CAPTURE_INVALIDATED);
	assert_null(graph);
}

/* Refused with its condition, everything on the stream is refused from then on, the capture ends
 * without a graph, and the stream and the earlier graph work as before. */
static void test_refused_and_spoilt(void **state)
{
	struct fixture *f = *state;
	const struct refusal *refusal = f->parameter;
	struct outside outside = {0};

	begin_among(f, &outside);
	assert_int_equal(refusal->call(f, &outside), refusal->condition);
	assert_true(f->ops->capturing(f->stream));
	assert_int_equal(fill(f, f->stream, 0, 4), DEVICE_E_CAPTURE_INVALIDATED);
	assert_spoilt(f, f->stream);
	assert_int_equal(fill(f, f->stream, 0, 5), 0);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	assert_int_equal(f->pinned[0], 5);
	replay(f, outside.exec);
	assert_int_equal(f->pinned[0], 2);
	outside_free(f, &outside);
}

/* mem_free has no answer to give; the capture has. */
static void test_mem_free_spoils_a_capture(void **state)
{
	struct fixture *f = *state;
	void *memory;

	assert_int_equal(f->ops->mem_alloc(f->device, 64, &memory), 0);
	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	f->ops->mem_free(f->device, memory);
	assert_spoilt(f, f->stream);
}

static void test_refusal_spoils_every_capture_of_the_thread(void **state)
{
	struct fixture *f = *state;
	void *memory;

	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	assert_int_equal(f->ops->capture_begin(f->other), 0);
	assert_int_equal(
		f->ops->mem_alloc(f->device, 64, &memory), DEVICE_E_CAPTURE_UNSUPPORTED);
	assert_spoilt(f, f->stream);
	assert_spoilt(f, f->other);
}

/* ---- what another thread may do ---- */

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
	int rc = f->ops->mem_alloc(f->device, MIB, &memory);

	if (rc)
		return rc;
	rc = f->ops->fill_async(f->other, memory, 1, MIB);
	if (rc)
		return rc;
	rc = f->ops->event_sync(outside->recorded);
	if (rc)
		return rc;
	rc = f->ops->stream_sync(f->other);
	if (rc)
		return rc;
	rc = f->ops->copy(f->device, (void *)(f->pinned + 16), memory, 1);
	if (rc)
		return rc;
	f->ops->mem_free(f->device, memory);
	rc = f->ops->graph_instantiate(f->device, outside->graph, &exec);
	if (rc)
		return rc;
	f->ops->graph_exec_free(exec);
	rc = use_op(f->other, 0); /* its first use */
	return rc ? rc : f->ops->stream_sync(f->other);
}

static void test_other_threads_calls_neither_fail_nor_spoil(void **state)
{
	struct fixture *f = *state;
	struct outside outside = {0};

	begin_among(f, &outside);
	assert_int_equal(call_elsewhere(f, &outside, call_everything_else), 0);
	assert_int_equal(f->pinned[16], 1);
	f->ops->graph_exec_free(finish(f));
	outside_free(f, &outside);
}

/* The query, by another thread, of the capturing stream or of an event in the capture. */
static void test_other_threads_query_spoils(void **state)
{
	struct fixture *f = *state;
	const struct refusal *query = f->parameter;
	struct outside outside = {0};

	begin_among(f, &outside);
	assert_int_equal(call_elsewhere(f, &outside, query->call), query->condition);
	assert_spoilt(f, f->stream);
	outside_free(f, &outside);
}

static void test_end_by_another_thread_gives_no_graph(void **state)
{
	struct fixture *f = *state;
	struct outside outside = {0};

	begin_among(f, &outside);
	assert_int_equal(
		call_elsewhere(f, &outside, call_capture_end), DEVICE_E_CAPTURE_WRONG_THREAD);
	assert_false(f->ops->capturing(f->stream));
	assert_int_equal(fill(f, f->stream, 1, 2), 0);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	assert_int_equal(f->pinned[0], 1);
	assert_int_equal(f->pinned[1], 2);
	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	f->ops->graph_exec_free(finish(f));
	outside_free(f, &outside);
}

#define REFUSAL(test, prefix, what, condition_)                                                    \
	{prefix #what, test, fixture_setup, fixture_teardown,                                      \
		&(struct refusal){#what, call_##what, DEVICE_E_##condition_}}
#define REFUSED(what, condition)                                                                   \
	REFUSAL(test_refused_and_spoilt, "test_capture_refuses_", what, condition)
#define SPOILS(what, condition)                                                                    \
	REFUSAL(test_other_threads_query_spoils, "test_other_thread_spoils_by_", what, condition)

#define CAPTURE_CLAIMS                                                                             \
	ON_DEVICE(test_capture_records_and_does_not_execute),                                      \
		ON_DEVICE(test_replay_has_the_addresses_and_scalars_of_capture),                   \
		ON_DEVICE(test_executable_outlives_its_recording_and_replays_elsewhere),           \
		ON_DEVICE(test_graph_names_its_nodes_in_order),                                    \
		ON_DEVICE(test_empty_capture_replays_as_nothing),                                  \
		ON_DEVICE(test_capture_after_lock_of_loaded_ops_works),                            \
		ON_DEVICE(test_begin_twice_and_end_without_begin_are_refused),                     \
		ON_DEVICE(test_stream_freed_in_its_capture_leaves_nothing_behind),                 \
		ON_DEVICE(test_what_is_allowed_in_a_capture_leaves_it_sound),                      \
		ON_DEVICE(test_event_of_an_ended_capture_is_invalid_until_recorded_again),         \
		REFUSED(mem_alloc, CAPTURE_UNSUPPORTED),                                           \
		REFUSED(host_alloc, CAPTURE_UNSUPPORTED),                                          \
		REFUSED(stream_sync, CAPTURE_UNSUPPORTED),                                         \
		REFUSED(other_stream_sync, CAPTURE_UNSUPPORTED),                                   \
		REFUSED(stream_query, CAPTURE_UNSUPPORTED),                                        \
		REFUSED(other_stream_query, CAPTURE_UNSUPPORTED),                                  \
		REFUSED(event_sync, CAPTURE_UNSUPPORTED),                                          \
		REFUSED(event_query, CAPTURE_UNSUPPORTED),                                         \
		REFUSED(captured_event_sync, CAPTURED_EVENT),                                      \
		REFUSED(captured_event_query, CAPTURED_EVENT),                                     \
		REFUSED(wait_for_outside, CAPTURE_ISOLATION),                                      \
		REFUSED(wait_by_other_stream, CAPTURE_UNSUPPORTED),                                \
		REFUSED(blocking_copy, CAPTURE_IMPLICIT),                                          \
		REFUSED(host_func, CAPTURE_UNSUPPORTED),                                           \
		REFUSED(graph_launch, CAPTURE_UNSUPPORTED),                                        \
		REFUSED(graph_upload, CAPTURE_UNSUPPORTED),                                        \
		REFUSED(graph_instantiate, CAPTURE_UNSUPPORTED),                                   \
		REFUSED(first_use, CAPTURE_UNSUPPORTED),                                           \
		REFUSED(first_use_on_other_stream, CAPTURE_UNSUPPORTED),                           \
		REFUSED(first_use_after_lock, CAPTURE_UNSUPPORTED),                                \
		REFUSED(workspace_growth, CAPTURE_UNSUPPORTED),                                    \
		ON_DEVICE(test_mem_free_spoils_a_capture),                                         \
		ON_DEVICE(test_refusal_spoils_every_capture_of_the_thread),                        \
		ON_DEVICE(test_other_threads_calls_neither_fail_nor_spoil),                        \
		SPOILS(stream_query, CAPTURE_UNSUPPORTED),                                         \
		SPOILS(captured_event_query, CAPTURED_EVENT),                                      \
		ON_DEVICE(test_end_by_another_thread_gives_no_graph)

#endif
