/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_KERNELS_DEVICE_CLAIMS_H
#define MIMEO_TESTS_KERNELS_DEVICE_CLAIMS_H

/* What device.h says of streams, events and memory, for any device; behind the device's own
 * fixture. */

#include <pthread.h>

#include "tests/kernels/device_fixture.h"

/* ---- streams and events ---- */

static void test_work_is_put_on_a_stream_before_it_runs(void **state)
{
	struct fixture *f = *state;

	gate_close(f, f->stream);
	assert_int_equal(fill(f, f->stream, 0, 7), 0);
	assert_int_equal(f->ops->stream_query(f->stream), DEVICE_E_NOT_READY);
	assert_int_equal(f->pinned[0], 0);
	gates_open(f);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	assert_int_equal(f->pinned[0], 7);
	assert_int_equal(f->ops->stream_query(f->stream), 0);
}

static void test_streams_run_independently(void **state)
{
	struct fixture *f = *state;

	gate_close(f, f->stream);
	assert_int_equal(fill(f, f->stream, 0, 1), 0);
	assert_int_equal(fill(f, f->other, 1, 2), 0);
	assert_int_equal(f->ops->stream_sync(f->other), 0);
	assert_int_equal(f->pinned[0], 0);
	assert_int_equal(f->pinned[1], 2);
}

static void test_host_func_runs_when_the_stream_gets_there(void **state)
{
	struct fixture *f = *state;
	sem_t called;

	sem_init(&called, 0, 0);
	gate_close(f, f->stream);
	assert_int_equal(f->ops->stream_host_func(f->stream, post, &called), 0);
	assert_int_equal(sem_trywait(&called), -1);
	gates_open(f);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	assert_int_equal(sem_trywait(&called), 0);
	sem_destroy(&called);
}

static void test_copies_and_fills_run_in_stream_order(void **state)
{
	struct fixture *f = *state;
	uint8_t host[3] = {0};
	void *memory;

	assert_int_equal(f->ops->mem_alloc(f->device, 1000, &memory), 0);
	assert_int_equal((uintptr_t)memory % 256, 0);
	assert_int_equal(f->ops->fill_async(f->stream, memory, 0x5a, 1000), 0);
	assert_int_equal(f->ops->copy_async(f->stream, (void *)f->pinned, memory, 100), 0);
	assert_int_equal(f->ops->fill_async(f->stream, memory, 1, 1000), 0);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	assert_int_equal(f->pinned[0], 0x5a);
	assert_int_equal(f->pinned[99], 0x5a);
	assert_int_equal(f->pinned[100], 0);
	assert_int_equal(f->ops->copy(f->device, host, (uint8_t *)memory + 998, 2), 0);
	assert_int_equal(host[1], 1);
	assert_int_equal(host[2], 0);
	assert_int_equal(f->ops->copy_async(f->stream, NULL, memory, 1), DEVICE_E_INVALID);
	f->ops->mem_free(f->device, memory);
}

static void test_event_is_done_when_its_stream_got_there(void **state)
{
	struct fixture *f = *state;
	struct event *event;

	assert_int_equal(f->ops->event_new(f->device, &event), 0);
	assert_int_equal(f->ops->event_query(event), 0);
	assert_int_equal(f->ops->event_sync(event), 0);
	gate_close(f, f->stream);
	assert_int_equal(f->ops->event_record(event, f->stream), 0);
	assert_int_equal(f->ops->event_query(event), DEVICE_E_NOT_READY);
	gates_open(f);
	assert_int_equal(f->ops->event_sync(event), 0);
	assert_int_equal(f->ops->event_query(event), 0);
	f->ops->event_free(event);
}

static void test_stream_waits_for_another_streams_event(void **state)
{
	struct fixture *f = *state;
	struct event *event;

	assert_int_equal(f->ops->event_new(f->device, &event), 0);
	gate_close(f, f->stream);
	assert_int_equal(fill(f, f->stream, 0, 1), 0);
	assert_int_equal(f->ops->event_record(event, f->stream), 0);
	assert_int_equal(f->ops->stream_wait_event(f->other, event), 0);
	f->ops->event_free(event);
	assert_int_equal(fill(f, f->other, 0, 2), 0);
	assert_int_equal(f->ops->stream_query(f->other), DEVICE_E_NOT_READY);
	gates_open(f);
	assert_int_equal(f->ops->stream_sync(f->other), 0);
	assert_int_equal(f->pinned[0], 2);
}

/* ---- memory ---- */

static void test_too_much_memory_is_refused_and_the_device_lives(void **state)
{
	struct fixture *f = *state;
	void *memory = NULL;

	assert_int_equal(f->ops->mem_alloc(f->device, (size_t)1 << 50, &memory), DEVICE_E_MEMORY);
	assert_int_equal(f->ops->mem_alloc(f->device, 0, &memory), DEVICE_E_INVALID);
	assert_int_equal(f->ops->host_alloc(f->device, 0, &memory), DEVICE_E_INVALID);
	assert_null(memory);
	assert_int_equal(f->ops->status(f->device), 0);
	assert_int_equal(fill(f, f->stream, 0, 1), 0);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
}

static void test_freeing_null_is_nothing(void **state)
{
	struct fixture *f = *state;

	f->ops->mem_free(f->device, NULL);
	f->ops->host_free(f->device, NULL);
	f->ops->export_free(f->device, NULL);
	f->ops->export_ipc_free(f->device, NULL);
	f->ops->import_free(f->device, NULL);
	f->ops->release(f->device, NULL, 0);
	f->ops->stream_free(NULL);
	f->ops->event_free(NULL);
	f->ops->graph_free(NULL);
	f->ops->graph_exec_free(NULL);
	assert_int_equal(f->ops->status(f->device), 0);
}

static void test_mapped_memory_stays_where_it_was_reserved(void **state)
{
	struct fixture *f = *state;
	uint8_t *range, host = 0;
	size_t unit;
	void *start;

	assert_int_equal(f->ops->reserve(f->device, 100 * MIB, &start, &unit), 0);
	range = start;
	assert_int_equal(f->ops->map(f->device, range, unit, 2 * unit), 0);
	assert_int_equal(f->ops->fill_async(f->stream, range + unit, 3, 2 * unit), 0);
	assert_int_equal(f->ops->map(f->device, range, 0, unit), 0);
	assert_int_equal(f->ops->fill_async(f->stream, range, 4, unit), 0);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	assert_int_equal(f->ops->copy(f->device, &host, range + 3 * unit - 1, 1), 0);
	assert_int_equal(host, 3);
	assert_int_equal(f->ops->copy(f->device, &host, range + unit - 1, 1), 0);
	assert_int_equal(host, 4);
	assert_int_equal(f->ops->unmap(f->device, range, 0, 3 * unit), 0);
	assert_int_equal(f->ops->map(f->device, range, 0, unit), 0);
	f->ops->release(f->device, range, 100 * MIB);
}

static void test_map_of_what_is_mapped_or_outside_is_refused(void **state)
{
	struct fixture *f = *state;
	const struct device_ops *ops = f->ops;
	uint8_t *range;
	size_t unit;
	void *start;

	assert_int_equal(ops->reserve(f->device, 10 * MIB, &start, &unit), 0);
	range = start;
	assert_int_equal(ops->map(f->device, range, unit, 2 * unit), 0);
	assert_int_equal(ops->map(f->device, range, 0, 2 * unit), DEVICE_E_INVALID);
	assert_int_equal(ops->map(f->device, range, 1, unit), DEVICE_E_INVALID);
	assert_int_equal(ops->map(f->device, range, 0, unit - 1), DEVICE_E_INVALID);
	assert_int_equal(ops->map(f->device, range, 0, 1000 * unit), DEVICE_E_INVALID);
	assert_int_equal(ops->map(f->device, range, SIZE_MAX - unit + 1, unit), DEVICE_E_INVALID);
	assert_int_equal(ops->map(f->device, range, 0, 0), DEVICE_E_INVALID);
	assert_int_equal(ops->map(f->device, range + unit, 0, unit), DEVICE_E_INVALID);
	assert_int_equal(ops->map(f->device, f, 0, unit), DEVICE_E_INVALID);
	assert_int_equal(ops->unmap(f->device, range, 0, unit), DEVICE_E_INVALID);
	assert_int_equal(ops->unmap(f->device, range, 0, 2 * unit), DEVICE_E_INVALID);
	assert_int_equal(ops->unmap(f->device, range, unit, 2 * unit), 0);
	ops->release(f->device, range, 10 * MIB);
}

/* ---- lock ---- */

static void test_lock_ends_allocation_and_first_use(void **state)
{
	struct fixture *f = *state;
	struct stream *stream;
	size_t unit;
	void *memory, *pinned, *none = NULL;

	assert_int_equal(f->ops->mem_alloc(f->device, 64, &memory), 0);
	assert_int_equal(f->ops->host_alloc(f->device, 64, &pinned), 0);
	assert_int_equal(use_op(f->stream, 0), 0);
	assert_int_equal(f->ops->lock(f->device), 0);
	assert_int_equal(f->ops->mem_alloc(f->device, 1, &none), DEVICE_E_LOCKED);
	assert_int_equal(f->ops->host_alloc(f->device, 1, &none), DEVICE_E_LOCKED);
	assert_null(none);
	assert_int_equal(use_op(f->stream, 1), DEVICE_E_LOCKED);
	assert_int_equal(use_op(f->other, 0), 0);
	f->ops->mem_free(f->device, memory);
	f->ops->host_free(f->device, pinned);
	assert_int_equal(f->ops->reserve(f->device, MIB, &memory, &unit), 0);
	assert_int_equal(f->ops->map(f->device, memory, 0, unit), 0);
	assert_int_equal(f->ops->unmap(f->device, memory, 0, unit), 0);
	f->ops->release(f->device, memory, MIB);
	assert_int_equal(f->ops->stream_new(f->device, &stream), 0);
	f->ops->stream_free(stream);
	assert_int_equal(fill(f, f->stream, 0, 1), 0);
	assert_int_equal(f->ops->copy_async(f->stream, (void *)(f->pinned + 1),
				 (const void *)f->pinned, 1), 0);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	assert_int_equal(f->pinned[1], 1);
}

static void test_workspace_grows_until_lock_and_smaller_asks_reuse_it(void **state)
{
	struct fixture *f = *state;
	void *first, *second, *third;

	assert_int_equal(use_workspace(f, f->stream, 1000, &first), 0);
	assert_int_equal(use_workspace(f, f->stream, MIB, &second), 0);
	assert_int_equal(use_workspace(f, f->stream, 10, &third), 0);
	assert_ptr_not_equal(first, second);
	assert_ptr_equal(second, third);
	assert_int_equal((uintptr_t)second % 256, 0);
	assert_int_equal(f->ops->lock(f->device), 0);
	assert_int_equal(use_workspace(f, f->stream, MIB, &third), 0);
	assert_int_equal(use_workspace(f, f->stream, MIB + 1, &third), DEVICE_E_LOCKED);
	/* each stream has its own */
	assert_int_equal(use_workspace(f, f->other, 1, &third), DEVICE_E_LOCKED);
}

static void *alloc_beside(void *arg)
{
	struct fixture *f = arg;
	void *memory;

	return (void *)(intptr_t)f->ops->mem_alloc(f->device, 1, &memory);
}

static void test_lock_is_lifted_for_one_thread(void **state)
{
	struct fixture *f = *state;
	void *memory, *answer;
	pthread_t thread;

	assert_int_equal(f->ops->lock(f->device), 0);
	f->ops->lift_lock(f->device, true);
	assert_int_equal(pthread_create(&thread, NULL, alloc_beside, f), 0);
	assert_int_equal(pthread_join(thread, &answer), 0);
	assert_int_equal((intptr_t)answer, DEVICE_E_LOCKED);
	assert_int_equal(f->ops->mem_alloc(f->device, 64, &memory), 0);
	assert_int_equal(use_op(f->stream, 1), 0);
	f->ops->mem_free(f->device, memory);
	f->ops->lift_lock(f->device, false);
	assert_int_equal(f->ops->mem_alloc(f->device, 1, &memory), DEVICE_E_LOCKED);
	assert_int_equal(use_op(f->other, 1), 0);
}

static void test_nothing_runs_on_a_dry_stream_but_captures_record(void **state)
{
	struct fixture *f = *state;
	struct graph_exec *exec;
	struct graph *graph;
	struct stream *dry;

	assert_int_equal(f->ops->stream_new_dry(f->device, &dry), 0);
	assert_int_equal(fill(f, dry, 0, 7), 0);
	assert_int_equal(f->ops->stream_sync(dry), 0);
	assert_int_equal(f->pinned[0], 0);
	assert_int_equal(f->ops->capture_begin(dry), 0);
	assert_int_equal(fill(f, dry, 0, 7), 0);
	assert_int_equal(f->ops->capture_end(dry, &graph), 0);
	assert_int_equal(f->ops->graph_instantiate(f->device, graph, &exec), 0);
	assert_int_equal(f->ops->graph_launch(exec, f->stream), 0);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	assert_int_equal(f->pinned[0], 7);
	f->ops->graph_exec_free(exec);
	f->ops->graph_free(graph);
	f->ops->stream_free(dry);
}

static void test_stream_gets_the_workspace_that_a_dry_one_needed(void **state)
{
	struct fixture *f = *state;
	struct stream *dry;
	void *first, *second;

	assert_int_equal(use_workspace(f, f->stream, 1000, &first), 0);
	assert_int_equal(f->ops->stream_new_dry(f->device, &dry), 0);
	assert_int_equal(f->ops->lock(f->device), 0);
	f->ops->lift_lock(f->device, true);
	assert_int_equal(f->ops->stream_match(f->stream, dry), 0);
	assert_int_equal(use_workspace(f, f->stream, 1000, &second), 0);
	assert_ptr_equal(first, second);
	assert_int_equal(use_workspace(f, f->other, MIB, &second), 0);
	assert_int_equal(f->ops->stream_match(f->stream, f->other), 0);
	f->ops->lift_lock(f->device, false);
	assert_int_equal(f->ops->stream_match(f->stream, f->other), DEVICE_E_LOCKED);
	assert_int_equal(use_workspace(f, f->stream, MIB, &second), 0);
	assert_int_equal(use_workspace(f, f->stream, MIB + 1, &second), DEVICE_E_LOCKED);
	f->ops->stream_free(dry);
}

#define DEVICE_CLAIMS                                                                              \
	ON_DEVICE(test_work_is_put_on_a_stream_before_it_runs),                                    \
		ON_DEVICE(test_streams_run_independently),                                         \
		ON_DEVICE(test_host_func_runs_when_the_stream_gets_there),                         \
		ON_DEVICE(test_copies_and_fills_run_in_stream_order),                              \
		ON_DEVICE(test_event_is_done_when_its_stream_got_there),                           \
		ON_DEVICE(test_stream_waits_for_another_streams_event),                            \
		ON_DEVICE(test_too_much_memory_is_refused_and_the_device_lives),                   \
		ON_DEVICE(test_freeing_null_is_nothing),                                           \
		ON_DEVICE(test_mapped_memory_stays_where_it_was_reserved),                         \
		ON_DEVICE(test_map_of_what_is_mapped_or_outside_is_refused),                       \
		ON_DEVICE(test_lock_ends_allocation_and_first_use),                                \
		ON_DEVICE(test_lock_is_lifted_for_one_thread),                                     \
		ON_DEVICE(test_nothing_runs_on_a_dry_stream_but_captures_record),                  \
		ON_DEVICE(test_stream_gets_the_workspace_that_a_dry_one_needed),                   \
		ON_DEVICE(test_workspace_grows_until_lock_and_smaller_asks_reuse_it)

#endif
