/* SPDX-License-Identifier: MIT */
/* The builder and its closing queue, over a device that only counts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "daemon/engine/builder.h"
#include "ipc/clock.h"

#define PATIENCE_NS UINT64_C(20000000000)

static _Atomic uint32_t n_in_lane;
static _Atomic uint32_t n_exports, n_export_frees, n_ipc_frees, n_import_frees, n_event_frees;
static _Atomic uint32_t n_refusals;
static _Atomic int answer; /* of what is asked of the device next */
static _Atomic uint64_t ipc_freed_ns;
static _Atomic uint64_t there_is;
static char block[64];
static _Atomic bool shut, at_the_gate; /* exports wait until it is open */
static _Atomic int n_exports_before_free;

static int fake_export(
	struct device *device, size_t bytes, void **ret, struct device_handle *ret_handle)
{
	int rc = atomic_load(&answer);

	if (rc != 0) {
		atomic_fetch_add(&n_refusals, 1);
		return rc;
	}
	for (; atomic_load(&shut); nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL))
		atomic_store(&at_the_gate, true);
	atomic_fetch_add(&n_exports, 1);
	*ret = block;
	*ret_handle = (struct device_handle){.fd = -1};
	return 0;
}

static void fake_export_free(struct device *device, void *memory)
{
	assert_ptr_equal(memory, block);
	atomic_store(&n_exports_before_free, atomic_load(&n_exports));
	atomic_fetch_add(&n_export_frees, 1);
}

static void fake_ipc_free(struct device *device, void *memory)
{
	assert_ptr_equal(memory, block);
	atomic_store(&ipc_freed_ns, clock_ns());
	atomic_fetch_add(&n_ipc_frees, 1);
}

static int fake_import(struct device *device, const struct device_handle *handle, void **ret)
{
	/* CUDA IPC: how much there is, is asked afterwards. */
	assert_int_equal(handle->size, handle->fd < 0 ? 1 : 100);
	*ret = block;
	return atomic_load(&answer);
}

static uint64_t fake_import_bytes(struct device *device, const void *memory)
{
	assert_ptr_equal(memory, block);
	return atomic_load(&there_is);
}

static void fake_import_free(struct device *device, void *memory)
{
	atomic_fetch_add(&n_import_frees, 1);
}

static int fake_handle(struct device *device, int fd, uint64_t bytes, struct device_handle *ret)
{
	*ret = (struct device_handle){.fd = fd, .size = bytes};
	return 0;
}

static int fake_event(struct device *device, struct event **ret, struct device_handle *ret_handle)
{
	*ret = (struct event *)block;
	*ret_handle = (struct device_handle){.fd = -1};
	return 0;
}

static void fake_event_free(struct event *event)
{
	assert_ptr_equal(event, block);
	atomic_fetch_add(&n_event_frees, 1);
}

static const struct device_ops ops = {
	.export_alloc = fake_export,
	.export_free = fake_export_free,
	.export_ipc_alloc = fake_export,
	.export_ipc_free = fake_ipc_free,
	.import = fake_import,
	.import_free = fake_import_free,
	.import_bytes = fake_import_bytes,
	.handle_of_fd = fake_handle,
	.event_new_shared = fake_event,
	.event_free = fake_event_free,
};
static struct device device = {.ops = &ops};

static int setup(void **state)
{
	struct builder *builder;

	atomic_store(&n_in_lane, 0);
	atomic_store(&answer, 0);
	atomic_store(&there_is, 100);
	n_exports = n_export_frees = n_ipc_frees = n_import_frees = n_event_frees = 0;
	if (builder_new(&device, &n_in_lane, &builder) != 0)
		return -1;
	*state = builder;
	return 0;
}

static int teardown(void **state)
{
	builder_free(*state);
	return 0;
}

static void nap(void)
{
	nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

#define EVENTUALLY(expression)                                                                     \
	do {                                                                                       \
		for (uint64_t until_ = clock_ns() + PATIENCE_NS; !(expression);) {                 \
			assert_true(clock_ns() < until_);                                          \
			nap();                                                                     \
		}                                                                                  \
	} while (0)

static struct builder_job *job_of(enum builder_kind kind, uint64_t bytes)
{
	struct builder_job *job = calloc(1, sizeof(*job));

	assert_non_null(job);
	job->thing = calloc(1, sizeof(*job->thing));
	assert_non_null(job->thing);
	job->thing->kind = kind;
	job->thing->bytes = bytes;
	job->handle = (struct device_handle){
		.fd = kind == BUILDER_IMPORT ? 0 : -1, .size = 100};
	return job;
}

static struct builder_job *done(struct builder *builder)
{
	struct builder_job *job;

	EVENTUALLY((job = builder_take(builder)) != NULL);
	return job;
}

static struct builder_thing *made(struct builder *builder, enum builder_kind kind, uint64_t bytes)
{
	builder_post(builder, job_of(kind, bytes));
	struct builder_job *job = done(builder);
	struct builder_thing *thing = job->thing;

	assert_int_equal(job->rc, 0);
	free(job);
	return thing;
}

static void test_bytes_count_from_the_order_until_they_are_given_back(void **state)
{
	struct builder *builder = *state;
	struct builder_thing *thing = made(builder, BUILDER_EXPORT, 1000);

	assert_int_equal(builder_bytes(builder), 1000);
	assert_ptr_equal(thing->address, block);
	struct builder_thing *import = made(builder, BUILDER_IMPORT, 24);
	assert_int_equal(builder_bytes(builder), 1024);
	builder_close(builder, thing);
	builder_close(builder, import);
	EVENTUALLY(builder_bytes(builder) == 0);
	EVENTUALLY(builder_n_closing(builder) == 0);
	assert_int_equal(n_export_frees, 1);
	assert_int_equal(n_import_frees, 1);
}

/* Behind a job that takes long, something to give back and two more jobs. */
static void test_what_is_given_back_takes_turns_with_what_is_made(void **state)
{
	struct builder *builder = *state;
	struct builder_thing *things[3], *first = made(builder, BUILDER_EXPORT, 1);

	atomic_store(&at_the_gate, false);
	atomic_store(&shut, true);
	builder_post(builder, job_of(BUILDER_EXPORT, 1));
	EVENTUALLY(atomic_load(&at_the_gate));
	builder_close(builder, first);
	builder_post(builder, job_of(BUILDER_EXPORT, 1));
	builder_post(builder, job_of(BUILDER_EXPORT, 1));
	atomic_store(&shut, false);
	for (int i = 0; i < 3; i++) {
		struct builder_job *job = done(builder);

		things[i] = job->thing;
		free(job);
	}
	EVENTUALLY(builder_n_closing(builder) == 0);
	assert_int_equal(n_exports_before_free, 2);
	for (int i = 0; i < 3; i++)
		builder_close(builder, things[i]);
	EVENTUALLY(builder_bytes(builder) == 0);
}

static void test_what_the_device_refuses_counts_for_nothing(void **state)
{
	struct builder *builder = *state;

	atomic_store(&answer, DEVICE_E_MEMORY);
	builder_post(builder, job_of(BUILDER_EXPORT, 1000));
	struct builder_job *job = done(builder);
	assert_int_equal(job->rc, DEVICE_E_MEMORY);
	assert_int_equal(builder_bytes(builder), 0);
	free(job->thing);
	free(job);
}

static _Atomic uint32_t n_asked;

/* userdata: what it answers. */
static bool relieve(void *userdata)
{
	atomic_fetch_add(&n_asked, 1);
	return userdata != NULL;
}

static void test_job_without_memory_waits_until_some_was_given_back(void **state)
{
	struct builder *builder = *state;

	atomic_store(&n_asked, 0);
	builder_on_pressure(builder, relieve, &n_asked);
	atomic_store(&answer, DEVICE_E_MEMORY);
	builder_post(builder, job_of(BUILDER_EXPORT, 1000));
	EVENTUALLY(atomic_load(&n_asked) == 1);
	assert_null(builder_take(builder));
	atomic_store(&answer, 0);
	builder_relieved(builder);
	struct builder_job *job = done(builder);
	assert_int_equal(job->rc, 0);
	builder_close(builder, job->thing);
	free(job);
	EVENTUALLY(builder_bytes(builder) == 0);
}

static void test_jobs_without_memory_wait_for_the_same_relief(void **state)
{
	struct builder *builder = *state;

	atomic_store(&n_asked, 0);
	atomic_store(&n_refusals, 0);
	builder_on_pressure(builder, relieve, &n_asked);
	atomic_store(&answer, DEVICE_E_MEMORY);
	for (int i = 0; i < 3; i++)
		builder_post(builder, job_of(BUILDER_EXPORT, 1000));
	EVENTUALLY(atomic_load(&n_asked) == 1);
	EVENTUALLY(atomic_load(&n_refusals) == 3);
	assert_null(builder_take(builder));
	atomic_store(&answer, 0);
	builder_relieved(builder);
	for (int i = 0; i < 3; i++) {
		struct builder_job *job = done(builder);

		assert_int_equal(job->rc, 0);
		builder_close(builder, job->thing);
		free(job);
	}
	assert_int_equal(n_asked, 1);
	EVENTUALLY(builder_bytes(builder) == 0);
}

static void test_job_is_tried_twice_and_not_more(void **state)
{
	struct builder *builder = *state;

	atomic_store(&n_asked, 0);
	builder_on_pressure(builder, relieve, &n_asked);
	atomic_store(&answer, DEVICE_E_MEMORY);
	builder_post(builder, job_of(BUILDER_EXPORT, 1000));
	EVENTUALLY(atomic_load(&n_asked) == 1);
	builder_relieved(builder);
	struct builder_job *job = done(builder);
	assert_int_equal(job->rc, DEVICE_E_MEMORY);
	assert_int_equal(n_asked, 1);
	free(job->thing);
	free(job);
	/* A second request for relief within so short a time is not made. */
	builder_post(builder, job_of(BUILDER_EXPORT, 1000));
	job = done(builder);
	assert_int_equal(job->rc, DEVICE_E_MEMORY);
	assert_int_equal(n_asked, 1);
	free(job->thing);
	free(job);
	assert_int_equal(builder_bytes(builder), 0);
}

static void test_job_without_memory_fails_at_once_where_none_can_be_freed(void **state)
{
	struct builder *builder = *state;

	atomic_store(&n_asked, 0);
	builder_on_pressure(builder, relieve, NULL);
	atomic_store(&answer, DEVICE_E_MEMORY);
	builder_post(builder, job_of(BUILDER_EXPORT, 1000));
	struct builder_job *job = done(builder);
	assert_int_equal(job->rc, DEVICE_E_MEMORY);
	assert_int_equal(n_asked, 1);
	free(job->thing);
	free(job);
}

static void test_end_frees_a_job_that_still_waits_for_memory(void **state)
{
	struct builder *builder;

	atomic_store(&n_asked, 0);
	assert_int_equal(builder_new(&device, &n_in_lane, &builder), 0);
	builder_on_pressure(builder, relieve, &n_asked);
	atomic_store(&answer, DEVICE_E_MEMORY);
	builder_post(builder, job_of(BUILDER_EXPORT, 1000));
	EVENTUALLY(atomic_load(&n_asked) == 1);
	builder_free(builder);
	atomic_store(&answer, 0);
}

struct counted_task {
	struct builder_task base;
	_Atomic uint32_t n_runs;
};

static void run_counted(struct builder_task *task)
{
	atomic_fetch_add(&((struct counted_task *)task)->n_runs, 1);
}

static void test_tasks_run_once_each_and_before_the_end(void **state)
{
	static struct counted_task tasks[100];
	struct builder *builder;

	memset(tasks, 0, sizeof(tasks));
	assert_int_equal(builder_new(&device, &n_in_lane, &builder), 0);
	for (int i = 0; i < 100; i++) {
		tasks[i].base.run = run_counted;
		builder_post_task(builder, &tasks[i].base);
	}
	builder_free(builder);
	for (int i = 0; i < 100; i++)
		assert_int_equal(tasks[i].n_runs, 1);
}

/* Both sorts come while the lane is busy: a mapping goes, what would wait for the device stays. */
static void test_only_what_waits_for_the_device_waits_for_an_empty_lane(void **state)
{
	struct builder *builder = *state;
	struct builder_thing *things[] = {
		made(builder, BUILDER_EXPORT_IPC, 1),
		made(builder, BUILDER_IMPORT_IPC, 1),
		made(builder, BUILDER_EXPORT, 1),
		made(builder, BUILDER_IMPORT, 1),
		made(builder, BUILDER_FENCE, 0),
	};

	atomic_store(&n_in_lane, 1);
	for (unsigned i = 0; i < 5; i++)
		builder_close(builder, things[i]);
	EVENTUALLY(builder_n_closing(builder) == 2);
	assert_int_equal(n_export_frees, 1);
	assert_int_equal(n_import_frees, 1);
	assert_int_equal(n_event_frees, 1);
	for (int i = 0; i < 30; i++)
		nap();
	assert_int_equal(n_ipc_frees, 0);
	assert_int_equal(n_import_frees, 1);
	assert_int_equal(builder_bytes(builder), 2);
	atomic_store(&n_in_lane, 0);
	EVENTUALLY(builder_n_closing(builder) == 0);
	assert_int_equal(n_ipc_frees, 1);
	assert_int_equal(n_import_frees, 2);
}

/* Its mapping must not be closed at once: that would hold up the lane whenever a client lies. */
static void test_import_that_is_too_small_is_refused_and_closed_by_the_queue(void **state)
{
	struct builder *builder = *state;

	atomic_store(&n_in_lane, 1);
	atomic_store(&there_is, 99);
	builder_post(builder, job_of(BUILDER_IMPORT_IPC, 100));
	struct builder_job *job = done(builder);
	assert_int_equal(job->rc, DEVICE_E_INVALID);
	assert_int_equal(builder_bytes(builder), 100);
	builder_close(builder, job->thing);
	free(job);
	for (int i = 0; i < 20; i++)
		nap();
	assert_int_equal(n_import_frees, 0);
	atomic_store(&n_in_lane, 0);
	EVENTUALLY(builder_n_closing(builder) == 0);
	assert_int_equal(n_import_frees, 1);
	assert_int_equal(builder_bytes(builder), 0);
}

static void test_lane_that_is_never_empty_is_held_up_at_the_limit(void **state)
{
	struct builder *builder = *state;
	struct builder_thing *thing = made(builder, BUILDER_EXPORT_IPC, 1);

	atomic_store(&n_in_lane, 2);
	uint64_t start = clock_ns();
	builder_close(builder, thing);
	EVENTUALLY(builder_n_closing(builder) == 0);
	assert_true(ipc_freed_ns - start >= BUILDER_CLOSE_LIMIT_MS * UINT64_C(1000000));
}

static void test_other_jobs_do_not_wait_behind_what_waits_for_the_lane(void **state)
{
	struct builder *builder = *state;

	atomic_store(&n_in_lane, 1);
	builder_close(builder, made(builder, BUILDER_EXPORT_IPC, 1));
	EVENTUALLY(builder_n_closing(builder) == 1);
	struct builder_thing *thing = made(builder, BUILDER_EXPORT, 5);
	assert_int_equal(n_ipc_frees, 0);
	builder_close(builder, thing);
	EVENTUALLY(builder_n_closing(builder) == 1);
}

static void test_end_gives_all_back_whatever_the_lane_does(void **state)
{
	struct builder *builder;

	n_ipc_frees = n_export_frees = n_exports = 0;
	assert_int_equal(builder_new(&device, &n_in_lane, &builder), 0);
	atomic_store(&n_in_lane, 1);
	builder_close(builder, made(builder, BUILDER_EXPORT_IPC, 1));
	builder_post(builder, job_of(BUILDER_EXPORT, 1)); /* never taken */
	EVENTUALLY(n_exports == 2);
	builder_free(builder);
	assert_int_equal(n_ipc_frees, 1);
	assert_int_equal(n_export_frees, 1);
	builder_free(NULL);
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
	static const struct CMUnitTest tests[] = {
		T(test_bytes_count_from_the_order_until_they_are_given_back),
		T(test_what_is_given_back_takes_turns_with_what_is_made),
		T(test_what_the_device_refuses_counts_for_nothing),
		T(test_only_what_waits_for_the_device_waits_for_an_empty_lane),
		T(test_import_that_is_too_small_is_refused_and_closed_by_the_queue),
		T(test_lane_that_is_never_empty_is_held_up_at_the_limit),
		T(test_other_jobs_do_not_wait_behind_what_waits_for_the_lane),
		T(test_job_without_memory_waits_until_some_was_given_back),
		T(test_jobs_without_memory_wait_for_the_same_relief),
		T(test_job_is_tried_twice_and_not_more),
		T(test_job_without_memory_fails_at_once_where_none_can_be_freed),
		cmocka_unit_test(test_end_frees_a_job_that_still_waits_for_memory),
		cmocka_unit_test(test_tasks_run_once_each_and_before_the_end),
		cmocka_unit_test(test_end_gives_all_back_whatever_the_lane_does),
	};

	return cmocka_run_group_tests_name("builder", tests, NULL, NULL);
}
