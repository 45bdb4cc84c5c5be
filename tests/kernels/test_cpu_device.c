/* SPDX-License-Identifier: MIT */
#include "tests/kernels/cpu_fixture.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>

#include "tests/kernels/device_claims.h"

#define QUEUE_NODES 1024 /* of a stream */

/* ---- opening ---- */

static void test_open_auto_is_the_cpu_without_cuda(void **state)
{
	struct device_info info;
	struct device *device;

	if (device_open("cuda", NULL, &device) == 0) {
		device->ops->free(device);
		skip();
	}
	assert_int_equal(device_open("auto", NULL, &device), 0);
	assert_int_equal(device->ops->info(device, &info), 0);
	assert_string_equal(info.kind, "cpu");
	assert_int_equal(info.activation_dtype, DTYPE_F32);
	assert_true(info.free_bytes > 0 && info.free_bytes <= info.total_bytes);
	device->ops->free(device);
}

static void test_open_of_a_cuda_device_that_cannot_be_is_refused(void **state)
{
#ifdef MIMEO_HAVE_CUDA
	const int condition = -ENODEV;
#else
	const int condition = -ENOTSUP;
#endif
	struct device *device = NULL;

	assert_int_equal(device_open("cuda:4096", NULL, &device), condition);
	assert_null(device);
}

static void test_open_unknown_name_is_no_device(void **state)
{
	struct device *device = NULL;

	assert_int_equal(device_open("gpu", NULL, &device), -ENODEV);
	assert_int_equal(device_open("cuda:", NULL, &device), -ENODEV);
	assert_int_equal(device_open("cuda:1x", NULL, &device), -ENODEV);
	assert_null(device);
}

static void test_strerror_names_conditions_as_cuda_does(void **state)
{
	assert_string_equal(
		device_strerror(DEVICE_E_CAPTURE_UNSUPPORTED), "cudaErrorStreamCaptureUnsupported");
	assert_string_equal(device_strerror(-ENOMEM), "Cannot allocate memory");
	assert_string_equal(device_strerror(424242), "unknown device condition");
}

/* ---- streams ---- */

static void test_launch_copies_its_arguments(void **state)
{
	struct fixture *f = *state;
	int value = 0;
	struct store_args args = {.to = &value, .value = 1};

	launch_gate(f, f->stream);
	assert_int_equal(cpu_launch(f->stream, &store_op, &args, sizeof(args), 0), 0);
	args.value = 2;
	sem_post(&f->open);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	assert_int_equal(value, 1);
}

static void test_launch_of_too_large_arguments_is_refused(void **state)
{
	struct fixture *f = *state;
	uint8_t args[CPU_ARGS_MAX + 1] = {0};

	assert_int_equal(cpu_launch(f->stream, &store_op, args, sizeof(args), 0), -EINVAL);
}

static void test_stream_runs_in_order_round_the_ring(void **state)
{
	static struct trace trace;
	struct fixture *f = *state;

	trace.n = 0;
	for (int i = 0; i < 5000; i++)
		assert_int_equal(launch_trace(f->stream, &trace, i), 0);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	assert_int_equal(trace.n, 5000);
	for (int i = 0; i < 5000; i++)
		assert_int_equal(trace.values[i], i);
}

struct flood {
	struct fixture *f;
	struct trace trace;
	_Atomic int pushed;
};

static void *flood_main(void *arg)
{
	struct flood *flood = arg;

	for (int i = 0; i < 2 * QUEUE_NODES; i++) {
		launch_trace(flood->f->stream, &flood->trace, i);
		atomic_fetch_add(&flood->pushed, 1);
	}
	return NULL;
}

static void test_full_queue_holds_the_producer_and_loses_nothing(void **state)
{
	static struct flood flood;
	struct fixture *f = *state;
	pthread_t thread;

	flood.f = f;
	launch_gate(f, f->stream);
	gate_wait(f);
	assert_int_equal(pthread_create(&thread, NULL, flood_main, &flood), 0);
	while (atomic_load(&flood.pushed) < QUEUE_NODES - 1)
		sched_yield();
	for (int i = 0; i < 100; i++)
		sched_yield();
	assert_int_equal(atomic_load(&flood.pushed), QUEUE_NODES - 1);
	sem_post(&f->open);
	pthread_join(thread, NULL);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	assert_int_equal(flood.trace.n, 2 * QUEUE_NODES);
	for (int i = 0; i < 2 * QUEUE_NODES; i++)
		assert_int_equal(flood.trace.values[i], i);
}

static void test_stream_free_waits_for_its_work(void **state)
{
	struct fixture *f = *state;
	struct stream *stream;
	int value = 0;

	assert_int_equal(f->ops->stream_new(f->device, &stream), 0);
	for (int i = 1; i <= 100; i++)
		launch_store(stream, &value, i);
	f->ops->stream_free(stream);
	assert_int_equal(value, 100);
}

struct worker_seen {
	char name[16];
	int blocked;
};

static void look_run(const void *args, void *workspace)
{
	struct worker_seen *seen = *(struct worker_seen *const *)args;
	sigset_t mask;

	pthread_getname_np(pthread_self(), seen->name, sizeof(seen->name));
	pthread_sigmask(SIG_BLOCK, NULL, &mask);
	seen->blocked = sigismember(&mask, SIGTERM) && sigismember(&mask, SIGINT) &&
			sigismember(&mask, SIGCHLD);
}

static void test_worker_is_named_and_takes_no_signals(void **state)
{
	static const struct cpu_op look_op = {.name = "look", .run = look_run};
	struct fixture *f = *state;
	struct worker_seen seen = {0}, *where = &seen;

	assert_int_equal(cpu_launch(f->stream, &look_op, &where, sizeof(where), 0), 0);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	assert_string_equal(seen.name, "mimeo-lane");
	assert_true(seen.blocked);
}

/* ---- events ---- */

static void test_streams_pass_a_baton_in_strict_turn(void **state)
{
	static struct trace trace;
	struct fixture *f = *state;
	struct event *here, *there;

	trace.n = 0;
	f->ops->event_new(f->device, &here);
	f->ops->event_new(f->device, &there);
	for (int i = 0; i < 4000; i += 2) {
		assert_int_equal(launch_trace(f->stream, &trace, i), 0);
		assert_int_equal(f->ops->event_record(here, f->stream), 0);
		assert_int_equal(f->ops->stream_wait_event(f->other, here), 0);
		assert_int_equal(launch_trace(f->other, &trace, i + 1), 0);
		assert_int_equal(f->ops->event_record(there, f->other), 0);
		assert_int_equal(f->ops->stream_wait_event(f->stream, there), 0);
	}
	assert_int_equal(f->ops->event_sync(there), 0);
	assert_int_equal(trace.n, 4000);
	for (int i = 0; i < 4000; i++)
		assert_int_equal(trace.values[i], i);
	f->ops->event_free(here);
	f->ops->event_free(there);
}

static void test_wait_is_for_the_record_at_the_time_of_the_wait(void **state)
{
	struct fixture *f = *state;
	struct stream *third;
	struct event *event;
	int value = 0;

	f->ops->stream_new(f->device, &third);
	f->ops->event_new(f->device, &event);
	launch_gate(f, f->stream);
	launch_store(f->stream, &value, 1);
	f->ops->event_record(event, f->stream);
	f->ops->stream_wait_event(f->other, event);
	f->ops->event_record(event, third);
	assert_int_equal(f->ops->event_query(event), 0);
	launch_store(f->other, &value, 2);
	gate_wait(f);
	assert_int_equal(f->ops->stream_query(f->other), DEVICE_E_NOT_READY);
	sem_post(&f->open);
	f->ops->stream_sync(f->other);
	assert_int_equal(value, 2);
	f->ops->event_free(event);
	f->ops->stream_free(third);
}

static void test_event_outlives_its_stream_and_stays_done(void **state)
{
	struct fixture *f = *state;
	struct stream *third;
	struct event *event;

	f->ops->event_new(f->device, &event);
	f->ops->stream_new(f->device, &third);
	for (int i = 0, value; i < 10; i++)
		launch_store(third, &value, i), f->ops->stream_sync(third);
	f->ops->event_record(event, third);
	f->ops->stream_free(third);
	assert_int_equal(f->ops->stream_new(f->device, &third), 0);
	assert_int_equal(f->ops->event_query(event), 0);
	assert_int_equal(f->ops->stream_query(third), 0);
	f->ops->stream_free(third);
	f->ops->event_free(event);
}

/* ---- faults on demand ---- */

static int setup_fault(void **state)
{
	int rc;

	setenv("MIMEO_CPU_FAULT", *state, 1);
	rc = fixture_setup(state);
	unsetenv("MIMEO_CPU_FAULT");
	return rc;
}

static void test_fault_takes_the_nth_op_and_all_after_it(void **state)
{
	struct fixture *f = *state;
	struct device_fault fault;
	struct trace trace = {0};
	int value = 0;

	for (int i = 1; i <= 5 && launch_trace(f->stream, &trace, i) == 0; i++)
		;
	assert_int_equal(f->ops->stream_sync(f->stream), DEVICE_E_LOST);
	assert_int_equal(trace.n, 2);
	assert_int_equal(launch_store(f->other, &value, 1), DEVICE_E_LOST);
	f->ops->last_fault(f->device, &fault);
	assert_int_equal(fault.condition, DEVICE_E_LOST);
	assert_string_equal(fault.call, "trace launch");
}

static void test_fault_of_one_op_counts_that_op_alone(void **state)
{
	struct fixture *f = *state;
	struct device_fault fault;
	struct trace trace = {0};
	int value = 0;

	for (int i = 1; i <= 10; i++)
		assert_int_equal(launch_trace(f->stream, &trace, i), 0);
	launch_store(f->stream, &value, 1);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	f->ops->last_fault(f->device, &fault);
	assert_int_equal(fault.condition, 0);
	launch_store(f->stream, &value, 2);
	assert_int_equal(f->ops->stream_sync(f->stream), DEVICE_E_LOST);
	assert_int_equal(value, 1);
	f->ops->last_fault(f->device, &fault);
	assert_string_equal(fault.call, "store launch");
}

static void test_lost_device_answers_nothing_else(void **state)
{
	struct fixture *f = *state;
	struct device_info info;
	struct stream *stream;
	struct event *event;
	size_t granularity;
	void *memory;
	int value = 0;

	f->ops->event_new(f->device, &event);
	launch_store(f->stream, &value, 1);
	assert_int_equal(f->ops->stream_sync(f->stream), DEVICE_E_LOST);
	assert_int_equal(f->ops->status(f->device), DEVICE_E_LOST);
	assert_true(device_is_lost(f->ops->status(f->device)));
	assert_int_equal(f->ops->info(f->device, &info), DEVICE_E_LOST);
	assert_int_equal(f->ops->lock(f->device), DEVICE_E_LOST);
	assert_int_equal(f->ops->mem_alloc(f->device, 1, &memory), DEVICE_E_LOST);
	assert_int_equal(f->ops->host_alloc(f->device, 1, &memory), DEVICE_E_LOST);
	assert_int_equal(f->ops->reserve(f->device, 1, &memory, &granularity), DEVICE_E_LOST);
	assert_int_equal(f->ops->stream_new(f->device, &stream), DEVICE_E_LOST);
	assert_int_equal(f->ops->stream_query(f->stream), DEVICE_E_LOST);
	assert_int_equal(f->ops->event_record(event, f->stream), DEVICE_E_LOST);
	assert_int_equal(f->ops->event_query(event), DEVICE_E_LOST);
	assert_int_equal(f->ops->event_sync(event), DEVICE_E_LOST);
	assert_int_equal(f->ops->stream_wait_event(f->stream, event), DEVICE_E_LOST);
	assert_int_equal(f->ops->copy(f->device, &value, &value, 0), DEVICE_E_LOST);
	assert_int_equal(f->ops->capture_begin(f->stream), DEVICE_E_LOST);
	f->ops->event_free(event);
}

static void test_lost_device_still_runs_queued_host_funcs(void **state)
{
	struct fixture *f = *state;
	struct event *event;
	int value = 0;
	sem_t called;

	sem_init(&called, 0, 0);
	f->ops->event_new(f->device, &event);
	assert_int_equal(f->ops->stream_host_func(f->other, post, &called), 0);
	f->ops->stream_sync(f->other);
	assert_int_equal(sem_trywait(&called), 0);
	launch_gate(f, f->stream);
	gate_wait(f);
	launch_store(f->stream, &value, 1);
	f->ops->stream_host_func(f->stream, post, &called);
	f->ops->event_record(event, f->stream);
	sem_post(&f->open);
	assert_int_equal(f->ops->event_sync(event), DEVICE_E_LOST);
	assert_int_equal(sem_trywait(&called), 0);
	assert_int_equal(value, 0);
	f->ops->event_free(event);
	sem_destroy(&called);
}

static void test_sync_of_a_lost_device_waits_until_the_stream_is_empty(void **state)
{
	struct fixture *f = *state;
	sem_t called;
	int value;

	sem_init(&called, 0, 0);
	launch_store(f->other, &value, 1);
	launch_gate(f, f->stream);
	gate_wait(f);
	for (int i = 0; i < 500; i++)
		f->ops->stream_host_func(f->stream, post, &called);
	assert_int_equal(f->ops->stream_sync(f->other), 0);
	launch_store(f->other, &value, 2);
	assert_int_equal(f->ops->stream_sync(f->other), DEVICE_E_LOST);
	sem_post(&f->open);
	assert_int_equal(f->ops->stream_sync(f->stream), DEVICE_E_LOST);
	for (int i = 0; i < 500; i++)
		assert_int_equal(sem_trywait(&called), 0);
	sem_destroy(&called);
}

static void test_malformed_fault_is_refused(void **state)
{
	static const char *const malformed[] = {
		"launch", "launch:", "launch:0", "launch:3x", "op:gemm", "op::3", "op:gemm:0", "3"};
	struct device *device = NULL;

	for (size_t i = 0; i < sizeof(malformed) / sizeof(malformed[0]); i++) {
		setenv("MIMEO_CPU_FAULT", malformed[i], 1);
		assert_int_equal(device_open("cpu", NULL, &device), -EINVAL);
	}
	unsetenv("MIMEO_CPU_FAULT");
	assert_null(device);
}

#define WITH_FAULT(test, fault)                                                                    \
	cmocka_unit_test_prestate_setup_teardown(                                                  \
		test, setup_fault, fixture_teardown, (void *)(uintptr_t)(fault))

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_open_auto_is_the_cpu_without_cuda),
		cmocka_unit_test(test_open_of_a_cuda_device_that_cannot_be_is_refused),
		cmocka_unit_test(test_open_unknown_name_is_no_device),
		cmocka_unit_test(test_strerror_names_conditions_as_cuda_does),
		DEVICE_CLAIMS,
		ON_DEVICE(test_launch_copies_its_arguments),
		ON_DEVICE(test_launch_of_too_large_arguments_is_refused),
		ON_DEVICE(test_stream_runs_in_order_round_the_ring),
		ON_DEVICE(test_full_queue_holds_the_producer_and_loses_nothing),
		ON_DEVICE(test_stream_free_waits_for_its_work),
		ON_DEVICE(test_worker_is_named_and_takes_no_signals),
		ON_DEVICE(test_streams_pass_a_baton_in_strict_turn),
		ON_DEVICE(test_wait_is_for_the_record_at_the_time_of_the_wait),
		ON_DEVICE(test_event_outlives_its_stream_and_stays_done),
		WITH_FAULT(test_fault_takes_the_nth_op_and_all_after_it, "launch:3"),
		WITH_FAULT(test_fault_of_one_op_counts_that_op_alone, "op:store:2"),
		WITH_FAULT(test_lost_device_answers_nothing_else, "launch:1"),
		WITH_FAULT(test_lost_device_still_runs_queued_host_funcs, "op:store:1"),
		WITH_FAULT(
			test_sync_of_a_lost_device_waits_until_the_stream_is_empty, "op:store:2"),
		cmocka_unit_test(test_malformed_fault_is_refused),
	};

	return cmocka_run_group_tests_name("cpu_device", tests, NULL, NULL);
}
