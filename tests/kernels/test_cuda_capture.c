/* SPDX-License-Identifier: MIT */
#include "tests/kernels/cuda_fixture.h"

#include <pthread.h>

/* ---- recording and replay ---- */

static struct graph_exec *instantiated(struct fixture *f, struct graph *graph)
{
	struct graph_exec *exec;

	assert_int_equal(f->ops->graph_instantiate(f->device, graph, &exec), 0);
	assert_int_equal(f->ops->graph_upload(exec, f->stream), 0);
	return exec;
}

static void replay(struct fixture *f, struct graph_exec *exec)
{
	assert_int_equal(f->ops->graph_launch(exec, f->stream), 0);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
}

static void test_capture_records_and_does_not_execute(void **state)
{
	struct fixture *f = *state;
	struct graph_exec *exec;
	struct graph *graph;

	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	assert_true(f->ops->capturing(f->stream));
	assert_int_equal(fill(f, f->stream, 0, 7), 0);
	assert_int_equal(f->ops->capture_end(f->stream, &graph), 0);
	assert_false(f->ops->capturing(f->stream));
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	assert_int_equal(f->pinned[0], 0);
	exec = instantiated(f, graph);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	assert_int_equal(f->pinned[0], 0);
	replay(f, exec);
	assert_int_equal(f->pinned[0], 7);
	f->ops->graph_exec_free(exec);
	f->ops->graph_free(graph);
}

static void test_replay_has_the_addresses_and_scalars_of_capture(void **state)
{
	struct fixture *f = *state;
	struct graph_exec *exec;
	struct graph *graph;
	uint8_t *from;
	void *memory;

	assert_int_equal(f->ops->mem_alloc(f->device, 512, &memory), 0);
	from = memory;
	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	assert_int_equal(f->ops->copy_async(f->stream, (void *)f->pinned, from, 4), 0);
	assert_int_equal(fill(f, f->stream, 8, 5), 0);
	from += 256; /* not what was captured */
	assert_int_equal(f->ops->capture_end(f->stream, &graph), 0);
	exec = instantiated(f, graph);
	f->ops->graph_free(graph);
	for (uint8_t round = 1; round < 4; round++) {
		f->ops->fill_async(f->stream, memory, round, 256);
		f->ops->fill_async(f->stream, from, 99, 256);
		fill(f, f->stream, 8, 0);
		replay(f, exec);
		assert_int_equal(f->pinned[3], round);
		assert_int_equal(f->pinned[4], 0);
		assert_int_equal(f->pinned[8], 5);
	}
	f->ops->graph_exec_free(exec);
	f->ops->mem_free(f->device, memory);
}

static void test_graph_tells_its_nodes_in_order(void **state)
{
	struct fixture *f = *state;
	struct graph_info info;
	struct graph_exec *exec;
	struct graph *graph;
	void *memory;

	assert_int_equal(f->ops->mem_alloc(f->device, 512, &memory), 0);
	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	assert_int_equal(f->ops->fill_async(f->stream, memory, 1, 512), 0);
	assert_int_equal(f->ops->copy_async(f->stream, (void *)f->pinned, memory, 64), 0);
	assert_int_equal(f->ops->fill_async(f->stream, memory, 2, 0), 0);
	assert_int_equal(f->ops->fill_async(f->stream, memory, 2, 512), 0);
	assert_int_equal(f->ops->capture_end(f->stream, &graph), 0);
	assert_string_equal(f->ops->graph_node_name(graph, 0), "fill");
	assert_string_equal(f->ops->graph_node_name(graph, 1), "copy");
	assert_string_equal(f->ops->graph_node_name(graph, 2), "fill");
	assert_null(f->ops->graph_node_name(graph, 3));
	exec = instantiated(f, graph);
	assert_int_equal(f->ops->graph_info(exec, &info), 0);
	assert_int_equal(info.n_nodes, 3);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	f->ops->graph_exec_free(exec);
	f->ops->graph_free(graph);
	f->ops->mem_free(f->device, memory);
}

static void test_replayed_op_reads_new_contents_and_is_named(void **state)
{
	static const uint16_t ones[4] = {0x3f80, 0x3f80, 0x3f80, 0x3f80}, twos[1] = {0x4000};
	struct fixture *f = *state;
	struct op_to_f32 args = {.out = (float *)(uintptr_t)f->pinned, .n = 4};
	const volatile float *out = (const volatile float *)f->pinned;
	struct graph_exec *exec;
	struct graph *graph;
	void *memory;

	assert_int_equal(f->ops->mem_alloc(f->device, 512, &memory), 0);
	assert_int_equal(f->ops->copy(f->device, memory, ones, sizeof(ones)), 0);
	args.x = memory;
	assert_int_equal(f->device->kernels->to_f32(f->stream, &args), 0);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	assert_true(out[3] == 1.0f);
	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	assert_int_equal(f->device->kernels->to_f32(f->stream, &args), 0);
	assert_int_equal(f->ops->capture_end(f->stream, &graph), 0);
	assert_string_equal(f->ops->graph_node_name(graph, 0), "to_f32");
	exec = instantiated(f, graph);
	assert_int_equal(f->ops->copy(f->device, memory, twos, sizeof(twos)), 0);
	replay(f, exec);
	assert_true(out[0] == 2.0f);
	assert_true(out[1] == 1.0f);
	f->ops->graph_exec_free(exec);
	f->ops->graph_free(graph);
	f->ops->mem_free(f->device, memory);
}

static void test_empty_capture_replays_as_nothing(void **state)
{
	struct fixture *f = *state;
	struct graph_exec *exec;
	struct graph *graph;

	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	assert_int_equal(f->ops->capture_end(f->stream, &graph), 0);
	assert_null(f->ops->graph_node_name(graph, 0));
	exec = instantiated(f, graph);
	replay(f, exec);
	f->ops->graph_exec_free(exec);
	f->ops->graph_free(graph);
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
	assert_int_equal(f->ops->capture_end(f->stream, &graph), 0);
	f->ops->graph_free(graph);
}

/* ---- what spoils a capture ---- */

/* Used by the table of refusals; made before the capture. */
struct bystanders {
	struct fixture *f;
	struct event *recorded;
	struct graph *graph;
	struct graph_exec *exec;
	uint8_t page[4096];
};

static int try_mem_alloc(struct bystanders *b)
{
	void *memory;

	return b->f->ops->mem_alloc(b->f->device, 1, &memory);
}

static int try_host_alloc(struct bystanders *b)
{
	void *memory;

	return b->f->ops->host_alloc(b->f->device, 1, &memory);
}

static int try_sync(struct bystanders *b)
{
	return b->f->ops->stream_sync(b->f->stream);
}

static int try_sync_other(struct bystanders *b)
{
	return b->f->ops->stream_sync(b->f->other);
}

static int try_query_other(struct bystanders *b)
{
	return b->f->ops->stream_query(b->f->other);
}

static int try_event_query(struct bystanders *b)
{
	return b->f->ops->event_query(b->recorded);
}

static int try_event_sync(struct bystanders *b)
{
	return b->f->ops->event_sync(b->recorded);
}

static int try_instantiate(struct bystanders *b)
{
	struct graph_exec *exec;

	return b->f->ops->graph_instantiate(b->f->device, b->graph, &exec);
}

static int try_launch_graph(struct bystanders *b)
{
	return b->f->ops->graph_launch(b->exec, b->f->stream);
}

static int try_upload_graph(struct bystanders *b)
{
	return b->f->ops->graph_upload(b->exec, b->f->stream);
}

static void never(void *arg)
{
	abort();
}

static int try_host_func(struct bystanders *b)
{
	return b->f->ops->stream_host_func(b->f->stream, never, NULL);
}

static int try_first_use(struct bystanders *b)
{
	return cuda_launch_begin(b->f->stream, "never used", NULL);
}

static int try_workspace(struct bystanders *b)
{
	void *memory;

	return cuda_workspace(b->f->stream, 100, &memory);
}

static int try_copy(struct bystanders *b)
{
	return b->f->ops->copy(b->f->device, b->page, b->page + 8, 8);
}

static int try_wait_outside(struct bystanders *b)
{
	return b->f->ops->stream_wait_event(b->f->stream, b->recorded);
}

static int try_event_of_capture(struct bystanders *b)
{
	b->f->ops->event_record(b->recorded, b->f->stream);
	return b->f->ops->event_query(b->recorded);
}

static int try_join_other(struct bystanders *b)
{
	b->f->ops->event_record(b->recorded, b->f->stream);
	return b->f->ops->stream_wait_event(b->f->other, b->recorded);
}

static void spoil_by(struct bystanders *b, int (*call)(struct bystanders *b), int condition)
{
	struct fixture *f = b->f;
	struct graph *graph = NULL;

	assert_int_equal(f->ops->event_record(b->recorded, f->other), 0);
	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	assert_int_equal(fill(f, f->stream, 0, 1), 0);
	assert_int_equal(call(b), condition);
	assert_int_equal(fill(f, f->stream, 0, 1), DEVICE_E_CAPTURE_INVALIDATED);
	assert_int_equal(f->ops->capture_end(f->stream, &graph), DEVICE_E_CAPTURE_INVALIDATED);
	assert_null(graph);
	/* and it is over */
	assert_int_equal(fill(f, f->stream, 1, 1), 0);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
}

static void test_what_a_capture_cannot_hold_spoils_it(void **state)
{
	static const struct {
		int (*call)(struct bystanders *b);
		int condition;
	} refusals[] = {
		{try_mem_alloc, DEVICE_E_CAPTURE_UNSUPPORTED},
		{try_host_alloc, DEVICE_E_CAPTURE_UNSUPPORTED},
		{try_sync, DEVICE_E_CAPTURE_UNSUPPORTED},
		{try_sync_other, DEVICE_E_CAPTURE_UNSUPPORTED},
		{try_query_other, DEVICE_E_CAPTURE_UNSUPPORTED},
		{try_event_query, DEVICE_E_CAPTURE_UNSUPPORTED},
		{try_event_sync, DEVICE_E_CAPTURE_UNSUPPORTED},
		{try_instantiate, DEVICE_E_CAPTURE_UNSUPPORTED},
		{try_launch_graph, DEVICE_E_CAPTURE_UNSUPPORTED},
		{try_upload_graph, DEVICE_E_CAPTURE_UNSUPPORTED},
		{try_host_func, DEVICE_E_CAPTURE_UNSUPPORTED},
		{try_first_use, DEVICE_E_CAPTURE_UNSUPPORTED},
		{try_workspace, DEVICE_E_CAPTURE_UNSUPPORTED},
		{try_copy, DEVICE_E_CAPTURE_IMPLICIT},
		{try_wait_outside, DEVICE_E_CAPTURE_ISOLATION},
		{try_event_of_capture, DEVICE_E_CAPTURED_EVENT},
		{try_join_other, DEVICE_E_CAPTURE_UNSUPPORTED},
	};
	struct fixture *f = *state;
	struct bystanders b = {.f = f};

	assert_int_equal(f->ops->event_new(f->device, &b.recorded), 0);
	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	assert_int_equal(fill(f, f->stream, 2, 1), 0);
	assert_int_equal(f->ops->capture_end(f->stream, &b.graph), 0);
	b.exec = instantiated(f, b.graph);
	for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++)
		spoil_by(&b, refusals[i].call, refusals[i].condition);
	replay(f, b.exec);
	assert_int_equal(f->pinned[2], 1);
	f->ops->graph_exec_free(b.exec);
	f->ops->graph_free(b.graph);
	f->ops->event_free(b.recorded);
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
	/* an event of a capture that is over says nothing */
	assert_int_equal(f->ops->event_query(event), DEVICE_E_INVALID);
	assert_int_equal(f->ops->stream_wait_event(f->other, event), DEVICE_E_INVALID);
	assert_int_equal(f->ops->event_record(event, f->other), 0);
	assert_int_equal(f->ops->event_sync(event), 0);
	f->ops->import_free(f->device, imported);
	f->ops->export_free(f->device, shared);
	close(handle.fd);
	f->ops->event_free(unrecorded);
	f->ops->event_free(event);
	f->ops->stream_free(stream);
	f->ops->graph_free(graph);
	assert_int_equal(f->pinned[2], 3);
}

/* ---- threads ---- */

static void *other_thread(void *arg)
{
	struct fixture *f = arg;
	void *memory;
	intptr_t rc = f->ops->mem_alloc(f->device, MIB, &memory);

	if (rc == 0)
		rc = f->ops->fill_async(f->other, memory, 1, MIB);
	if (rc == 0)
		rc = f->ops->stream_sync(f->other);
	if (rc == 0)
		rc = f->ops->copy(f->device, (void *)(f->pinned + 16), memory, 1);
	if (rc == 0)
		f->ops->mem_free(f->device, memory);
	return (void *)rc;
}

static void test_another_threads_calls_do_not_disturb_a_capture(void **state)
{
	struct fixture *f = *state;
	struct graph *graph;
	pthread_t thread;
	void *rc;

	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	assert_int_equal(fill(f, f->stream, 0, 1), 0);
	assert_int_equal(pthread_create(&thread, NULL, other_thread, f), 0);
	pthread_join(thread, &rc);
	assert_null(rc);
	assert_int_equal(fill(f, f->stream, 1, 1), 0);
	assert_int_equal(f->ops->capture_end(f->stream, &graph), 0);
	assert_null(f->ops->graph_node_name(graph, 2));
	assert_int_equal(f->pinned[16], 1);
	f->ops->graph_free(graph);
}

static void *end_thread(void *arg)
{
	struct fixture *f = arg;
	struct graph *graph;

	return (void *)(intptr_t)f->ops->capture_end(f->stream, &graph);
}

static void test_capture_ended_by_another_thread_is_over_without_a_graph(void **state)
{
	struct fixture *f = *state;
	struct graph *graph;
	pthread_t thread;
	void *rc;

	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	assert_int_equal(fill(f, f->stream, 0, 1), 0);
	assert_int_equal(pthread_create(&thread, NULL, end_thread, f), 0);
	pthread_join(thread, &rc);
	assert_int_equal((intptr_t)rc, DEVICE_E_CAPTURE_WRONG_THREAD);
	assert_false(f->ops->capturing(f->stream));
	assert_int_equal(fill(f, f->stream, 1, 2), 0);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	assert_int_equal(f->pinned[0], 0);
	assert_int_equal(f->pinned[1], 2);
	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	assert_int_equal(f->ops->capture_end(f->stream, &graph), 0);
	f->ops->graph_free(graph);
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
	assert_int_equal(f->ops->mem_alloc(f->device, 1, &memory), 0);
	f->ops->mem_free(f->device, memory);
}

#define ON_DEVICE(test) cmocka_unit_test_setup_teardown(test, fixture_setup, fixture_teardown)

int main(void)
{
	static const struct CMUnitTest tests[] = {
		ON_DEVICE(test_capture_records_and_does_not_execute),
		ON_DEVICE(test_replay_has_the_addresses_and_scalars_of_capture),
		ON_DEVICE(test_graph_tells_its_nodes_in_order),
		ON_DEVICE(test_replayed_op_reads_new_contents_and_is_named),
		ON_DEVICE(test_empty_capture_replays_as_nothing),
		ON_DEVICE(test_begin_twice_and_end_without_begin_are_refused),
		ON_DEVICE(test_what_a_capture_cannot_hold_spoils_it),
		ON_DEVICE(test_what_is_allowed_in_a_capture_leaves_it_sound),
		ON_DEVICE(test_another_threads_calls_do_not_disturb_a_capture),
		ON_DEVICE(test_capture_ended_by_another_thread_is_over_without_a_graph),
		ON_DEVICE(test_stream_freed_in_its_capture_leaves_nothing_behind),
	};

	return no_cuda() ? 0 : cmocka_run_group_tests_name("cuda_capture", tests, NULL, NULL);
}
