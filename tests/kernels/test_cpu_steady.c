/* SPDX-License-Identifier: MIT */
/*
 * What one launch costs the launching thread. Linked with --wrap for the allocator and for the
 * doors to the kernel that the device's code uses, so that calls from it can be counted.
 */
#include "tests/kernels/cpu_fixture.h"

#include <pthread.h>
#include <stdbool.h>

static _Thread_local bool counting;
static _Thread_local unsigned n_allocations, n_syscalls, n_locks;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
int __real_posix_memalign(void **ret, size_t alignment, size_t bytes);
void __real_free(void *memory);
int __real_sched_yield(void);
int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
long __real_syscall(long number, ...);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **ret, size_t alignment, size_t bytes);
void __wrap_free(void *memory);
int __wrap_sched_yield(void);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f);

void *__wrap_malloc(size_t bytes)
{
	n_allocations += counting;
	return __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
	n_allocations += counting;
	return __real_calloc(n, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
	n_allocations += counting;
	return __real_realloc(memory, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
	n_allocations += counting;
	return __real_aligned_alloc(alignment, bytes);
}

int __wrap_posix_memalign(void **ret, size_t alignment, size_t bytes)
{
	n_allocations += counting;
	return __real_posix_memalign(ret, alignment, bytes);
}

void __wrap_free(void *memory)
{
	n_allocations += counting;
	__real_free(memory);
}

int __wrap_sched_yield(void)
{
	n_syscalls += counting;
	return __real_sched_yield();
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
	if (counting)
		n_locks++;
	return __real_pthread_mutex_lock(mutex);
}

long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f)
{
	n_syscalls += counting;
	return __real_syscall(number, a, b, c, d, e, f);
}

static int setup_spinning(void **state)
{
	return fixture_setup_spinning(state, UINT32_MAX);
}

struct steady {
	struct graph_exec *exec;
	struct event *event;
	int value, copy;
	uint8_t *workspace;
};

/* One step: eager ops, a replay, an event, a copy, and waiting for it all. */
static void step(struct fixture *f, struct steady *steady, int i)
{
	assert_int_equal(launch_store(f->stream, &steady->value, i), 0);
	assert_int_equal(launch_workspace(f->stream, &steady->workspace, 256), 0);
	assert_int_equal(f->ops->graph_launch(steady->exec, f->stream), 0);
	assert_int_equal(
		f->ops->copy_async(f->stream, &steady->copy, &steady->value, sizeof(steady->value)),
		0);
	assert_int_equal(f->ops->event_record(steady->event, f->stream), 0);
	assert_int_equal(f->ops->stream_wait_event(f->other, steady->event), 0);
	while (f->ops->event_query(steady->event) == DEVICE_E_NOT_READY)
		;
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	assert_int_equal(f->ops->stream_sync(f->other), 0);
}

static void steady_begin(struct fixture *f, struct steady *steady)
{
	struct graph *graph;

	f->ops->event_new(f->device, &steady->event);
	launch_store(f->stream, &steady->value, 0);
	f->ops->capture_begin(f->stream);
	launch_store(f->stream, &steady->value, -1);
	assert_int_equal(f->ops->capture_end(f->stream, &graph), 0);
	f->ops->graph_instantiate(f->device, graph, &steady->exec);
	f->ops->graph_free(graph);
	step(f, steady, 0);
}

static void steady_end(struct fixture *f, struct steady *steady)
{
	f->ops->graph_exec_free(steady->exec);
	f->ops->event_free(steady->event);
}

static void test_steady_launches_neither_allocate_nor_lock_nor_enter_the_kernel(void **state)
{
	struct fixture *f = *state;
	struct steady steady = {0};

	steady_begin(f, &steady);
	n_allocations = n_syscalls = n_locks = 0;
	counting = true;
	for (int i = 0; i < 50; i++)
		step(f, &steady, i);
	counting = false;
	assert_int_equal(steady.copy, -1);
	assert_int_equal(n_allocations, 0);
	assert_int_equal(n_syscalls, 0);
	assert_int_equal(n_locks, 0);
	steady_end(f, &steady);
}

static void test_counters_see_a_sleeping_worker_being_woken(void **state)
{
	struct fixture *f = *state;
	struct steady steady = {0};

	steady_begin(f, &steady);
	n_syscalls = 0;
	counting = true;
	/* A worker that does not spin is asleep sooner or later; never would be a time-out. */
	for (int i = 0; n_syscalls == 0; i++)
		step(f, &steady, i);
	counting = false;
	assert_int_equal(steady.copy, -1);
	steady_end(f, &steady);
}

static void test_counters_see_what_allocates(void **state)
{
	struct fixture *f = *state;
	void *memory;

	n_allocations = n_locks = 0;
	counting = true;
	f->ops->mem_alloc(f->device, 64, &memory);
	f->ops->mem_free(f->device, memory);
	counting = false;
	assert_true(n_allocations >= 4);
	assert_true(n_locks >= 2);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			test_steady_launches_neither_allocate_nor_lock_nor_enter_the_kernel,
			setup_spinning, fixture_teardown),
		cmocka_unit_test_setup_teardown(test_counters_see_a_sleeping_worker_being_woken,
			fixture_setup, fixture_teardown),
		cmocka_unit_test_setup_teardown(
			test_counters_see_what_allocates, fixture_setup, fixture_teardown),
	};

	return cmocka_run_group_tests_name("cpu_steady", tests, NULL, NULL);
}
