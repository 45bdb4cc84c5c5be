/* SPDX-License-Identifier: MIT */
/*
 * A stream of a client's that waits for a fence while the lane is held (MIMEO_CUDA_HOLD): the lane
 * goes on, or the daemon loses its device, or is killed. Clients are processes of their own.
 */
#include <stdatomic.h>

#include "tests/device.h"
#include "tests/e2e/cuda_client.h"
#include "tests/e2e/daemon.h"

#define N 20u
#define END_MS 10000u /* for what has to come to an end, dead daemon or not */
#define EXIT_DEVICE_LOST 70

static int32_t tokens[N];

/* ---- the daemon ---- */

/* Of both processes. */
struct course {
	_Atomic bool waits; /* the client's stream does, so that what is to happen may happen */
	_Atomic bool again; /* another daemon serves */
};

struct scene {
	struct daemon daemon;
	char hold[96]; /* the file */
	struct course *course;
};

static void scene_start(struct scene *scene, const char *fault)
{
	char variable[128];

	scene->course = shared_new(sizeof(*scene->course));
	daemon_init(&scene->daemon);
	/* Results are compared bit by bit with those of the same prompt. */
	daemon_option(&scene->daemon, "--prefix-sharing", "none");
	snprintf(scene->hold, sizeof(scene->hold), "%.60s/hold", scene->daemon.folder);
	snprintf(variable, sizeof(variable), "prepare:%s", scene->hold);
	setenv("MIMEO_CUDA_HOLD", variable, 1);
	if (fault != NULL)
		setenv("MIMEO_CUDA_FAULT", fault, 1);
	daemon_start(&scene->daemon);
	unsetenv("MIMEO_CUDA_HOLD");
	unsetenv("MIMEO_CUDA_FAULT");
}

static void scene_end(struct scene *scene)
{
	daemon_stop(&scene->daemon);
	daemon_deinit(&scene->daemon);
	shared_free(scene->course, sizeof(*scene->course));
}

/* Its stream waits when this returns. */
static pid_t client_run(struct scene *scene, int (*fn)(void *scene))
{
	pid_t pid = process_run(fn, scene);

	assert_true(EVENTUALLY(
		atomic_load(&scene->course->waits) || process_exit_status(pid, 0) >= 0));
	assert_true(atomic_load(&scene->course->waits));
	return pid;
}

/* ---- in a client's process ---- */

struct waiter {
	struct client client;
	struct mimeo_step step;
	struct mimeo_step_row row;
	struct mimeo_cuda_memory memory;
	cudaEvent_t event;
	float expected[VOCAB];
};

static float *got; /* [VOCAB], pinned; the process's */

static void waiter_start(struct waiter *w, struct scene *scene)
{
	struct mimeo_handle handle = MIMEO_HANDLE_INIT;
	struct mimeo *m;

	*w = (struct waiter){.step = MIMEO_STEP_INIT, .row = {.n_tokens = N, .tokens = tokens}};
	client_start(&w->client, scene->daemon.socket);
	m = w->client.m;
	reference(&w->client, tokens, N, w->expected);
	CHILD_EXPECT(mimeo_buffer_alloc(m, MIMEO_HANDLE_VMM_FD, 4096, &w->step.logits.buffer) == 0);
	CHILD_EXPECT(mimeo_buffer_handle(m, w->step.logits.buffer, &handle) == 0);
	CUDA(mimeo_cuda_map(&handle, &w->memory));
	if (got == NULL)
		CUDA(cudaMallocHost((void **)&got, sizeof(w->expected)));
	memset(got, 0, sizeof(w->expected));
	w->step.outputs = MIMEO_STEP_LOGITS;
}

/* A step, and behind its fence the logits come to `got`. */
static void waiter_step(struct waiter *w)
{
	CHILD_EXPECT(mimeo_sequence_open(w->client.m, 0, &w->row.sequence) == 0);
	w->event = step_with_fence(&w->client, &w->step, &w->row);
	CUDA(cudaMemcpyAsync(got, w->memory.address, sizeof(w->expected),
		cudaMemcpyDeviceToHost, w->client.stream));
}

/* The same on a held lane: the stream waits. */
static void waiter_step_held(struct waiter *w, struct scene *scene)
{
	file_write(scene->hold, "", 0);
	waiter_step(w);
	pause_ms(20);
	CHILD_EXPECT(cudaStreamQuery(w->client.stream) == cudaErrorNotReady);
}

/* Whatever is in the stream is done, without error, in time. */
static bool stream_ends(cudaStream_t stream)
{
	const uint64_t until = now_ms() + END_MS;
	cudaError_t error;

	while ((error = cudaStreamQuery(stream)) == cudaErrorNotReady && now_ms() < until)
		pause_ms(1);
	return error == cudaSuccess;
}

static int final_status(struct waiter *w)
{
	struct mimeo_event event;

	CHILD_EXPECT(mimeo_event_wait(w->client.m, &event, END_MS) == 1);
	CHILD_EXPECT(event.kind == MIMEO_EVENT_FINAL);
	mimeo_event_seen(w->client.m, &event);
	return event.status;
}

static void expect_gone(struct waiter *w)
{
	struct mimeo_event event;
	uint32_t buffer;

	CHILD_EXPECT(mimeo_event_wait(w->client.m, &event, END_MS) == MIMEO_E_GONE);
	CHILD_EXPECT(mimeo_buffer_alloc(w->client.m, 0, 4096, &buffer) == MIMEO_E_GONE);
	CHILD_EXPECT(mimeo_buffer_close(w->client.m, w->step.logits.buffer) == MIMEO_E_GONE);
}

/* Another daemon, another stream: the process is as good as new. */
static void serve_again(struct scene *scene)
{
	struct waiter w;

	CHILD_EXPECT(EVENTUALLY(atomic_load(&scene->course->again)));
	waiter_start(&w, scene);
	waiter_step(&w);
	CHILD_EXPECT(stream_ends(w.client.stream));
	CHILD_EXPECT(memcmp(got, w.expected, sizeof(w.expected)) == 0);
	CHILD_EXPECT(final_status(&w) == 0);
	mimeo_close(w.client.m);
}

/* ---- the lane goes on ---- */

static int be_patient(void *arg)
{
	static const float none[VOCAB];
	struct scene *scene = arg;
	struct waiter w;

	waiter_start(&w, scene);
	waiter_step_held(&w, scene);
	CHILD_EXPECT(memcmp(got, none, sizeof(none)) == 0);
	unlink(scene->hold);
	CHILD_EXPECT(stream_ends(w.client.stream));
	CHILD_EXPECT(memcmp(got, w.expected, sizeof(w.expected)) == 0);
	CHILD_EXPECT(final_status(&w) == 0);
	mimeo_close(w.client.m);
	return 0;
}

static void test_client_s_stream_waits_for_a_lane_that_is_late(void **state)
{
	struct scene scene;

	scene_start(&scene, NULL);
	assert_int_equal(process_exit_status(process_run(be_patient, &scene), PATIENCE_MS), 0);
	scene_end(&scene);
}

/* ---- the device is lost ---- */

static int be_bereft(void *arg)
{
	struct scene *scene = arg;
	unsigned n = 0;
	struct waiter w;
	int status;

	waiter_start(&w, scene);
	do {
		waiter_step_held(&w, scene);
		unlink(scene->hold);
		status = final_status(&w);
		if (status == 0)
			CHILD_EXPECT(mimeo_sequence_close(w.client.m, w.row.sequence) == 0);
	} while (status == 0 && n++ < 100);
	CHILD_EXPECT(status == MIMEO_E_DEVICE_LOST);
	atomic_store(&scene->course->waits, true);
	expect_gone(&w);
	CHILD_EXPECT(stream_ends(w.client.stream));
	CUDA(cudaMemsetAsync(w.memory.address, 0, 4096, w.client.stream));
	CHILD_EXPECT(stream_ends(w.client.stream));
	CUDA(mimeo_cuda_unmap(&w.memory));
	mimeo_close(w.client.m);
	serve_again(scene);
	return 0;
}

static void test_stream_goes_on_when_the_daemon_loses_its_device(void **state)
{
	struct scene scene;

	scene_start(&scene, "op:outbox:40");
	pid_t pid = client_run(&scene, be_bereft);
	assert_int_equal(daemon_wait(&scene.daemon), EXIT_DEVICE_LOST);
	daemon_start(&scene.daemon);
	atomic_store(&scene.course->again, true);
	assert_int_equal(process_exit_status(pid, PATIENCE_MS), 0);
	scene_end(&scene);
}

/* ---- the daemon is killed ---- */

/* The stream may wait for ever: it is left, and what would wait for it is left alone. */
static int be_deserted(void *arg)
{
	struct scene *scene = arg;
	cudaStream_t other;
	struct waiter w;
	cudaError_t error;

	waiter_start(&w, scene);
	waiter_step_held(&w, scene);
	atomic_store(&scene->course->waits, true);
	CHILD_EXPECT(final_status(&w) == MIMEO_E_GONE);
	expect_gone(&w);
	error = cudaStreamQuery(w.client.stream);
	CHILD_EXPECT(error == cudaErrorNotReady || error == cudaSuccess);
	CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
	CUDA(cudaMemsetAsync(w.memory.address, 0, 4096, other));
	CHILD_EXPECT(stream_ends(other));
	CUDA(cudaEventDestroy(w.event));
	CUDA(cudaStreamDestroy(w.client.stream));
	CUDA(mimeo_cuda_unmap(&w.memory));
	mimeo_close(w.client.m);
	serve_again(scene);
	return 0;
}

static void test_daemon_killed_under_a_waiting_stream_leaves_the_client_its_device(void **state)
{
	struct scene scene;

	scene_start(&scene, NULL);
	pid_t pid = client_run(&scene, be_deserted);
	daemon_kill(&scene.daemon);
	unlink(scene.hold);
	daemon_start(&scene.daemon);
	atomic_store(&scene.course->again, true);
	assert_int_equal(process_exit_status(pid, PATIENCE_MS), 0);
	scene_end(&scene);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_client_s_stream_waits_for_a_lane_that_is_late),
		cmocka_unit_test(test_stream_goes_on_when_the_daemon_loses_its_device),
		cmocka_unit_test(
			test_daemon_killed_under_a_waiting_stream_leaves_the_client_its_device),
	};

	if (!test_on_cuda() || !test_can_lose_device()) {
		printf("1..0 # SKIP %s\n",
			test_on_cuda() ? TEST_CANNOT_LOSE : "MIMEO_DEVICE is not cuda");
		return 0;
	}
	for (uint32_t i = 0; i < N; i++)
		tokens[i] = i ? 32 + (int32_t)(i * 7 % 90) : 1;
	watchdog(WATCHDOG_SECONDS);
	return cmocka_run_group_tests_name("fences_cuda", tests, NULL, NULL);
}
