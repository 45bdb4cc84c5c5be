/* SPDX-License-Identifier: MIT */
#include "tests/kernels/cpu_capture_fixture.h"

#include <pthread.h>

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
		REFUSED(mem_alloc, CAPTURE_UNSUPPORTED),
		REFUSED(host_alloc, CAPTURE_UNSUPPORTED),
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
	};

	return cmocka_run_group_tests_name("cpu_capture_refuse", tests, NULL, NULL);
}
