/* SPDX-License-Identifier: MIT */
/* What a session may not do with device buffers, what it gets when it tries, and how all comes back. */
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "tests/e2e/buffers.h"

#define VOCAB 256u
#define EXIT_DEVICE_LOST 70

static const int32_t tokens[] = {1, '9', '7', ' ', '+', ' ', '5', '\n'};

/* ---- places ---- */

/* The request alone is refused, and the next one is served. */
static void assert_refused(struct mimeo *m, const struct mimeo_step *given, int status,
	const char *text)
{
	struct mimeo_step refused = *given;
	struct mimeo_step_row row = {sequence_of(m), 3, tokens};
	struct mimeo_event event = step_wait(m, &refused, &row, 1);

	assert_int_equal(event.kind, MIMEO_EVENT_FINAL);
	assert_int_equal(event.status, status);
	assert_message_has(&event, text);
	mimeo_event_seen(m, &event);
	assert_int_equal(step(m, row.sequence, tokens, 3, NULL), 0);
	mimeo_sequence_close(m, row.sequence);
	mimeo_submit(m);
}

static void test_place_outside_its_buffer_costs_the_request_alone(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0), *other = daemon_connect(*state, 0, 0);
	uint32_t mine = buffer_of(m, VOCAB * sizeof(float) + 64, NULL);
	struct mimeo_step given = MIMEO_STEP_INIT;
	const struct {
		uint32_t buffer;
		uint64_t offset;
		int status;
		const char *text;
	} cases[] = {
		{mine, 128, MIMEO_E_INVALID, "exceed its 1088 bytes"},
		{mine, UINT64_MAX - 63, MIMEO_E_INVALID, "offset at least 2147483647 and"},
		{mine, 1ull << 40, MIMEO_E_INVALID, "exceed"},
		{mine + 1, 0, MIMEO_E_UNKNOWN_BUFFER, "is not open"},
		{BUFFERS_MAX + 1, 0, MIMEO_E_UNKNOWN_BUFFER, "is not open"},
		{UINT32_MAX, 0, MIMEO_E_UNKNOWN_BUFFER, "is not open"},
	};

	/* Another session has a second buffer: its id means nothing here. */
	buffer_of(other, 4096, NULL);
	assert_true(buffer_of(other, 4096, NULL) != mine);
	given.outputs = MIMEO_STEP_LOGITS | MIMEO_STEP_HIDDEN;
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		for (unsigned field = 0; field < 3; field++) {
			struct mimeo_step step = given;
			struct mimeo_place *place = field == 0 ? &step.logits
				: field == 1 ? &step.hidden : &step.embeddings;

			place->buffer = cases[i].buffer;
			place->offset = cases[i].offset;
			if (field != 0 && i == 0)
				place->offset = 512; /* 640 bytes a row; 3 rows of embeddings */
			assert_refused(m, &step, cases[i].status, cases[i].text);
		}
	}
	mimeo_close(other);
	mimeo_close(m);
}

static void test_library_refuses_a_place_that_no_daemon_would_take(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0);
	struct mimeo_request *request = mimeo_request_get(m);
	struct mimeo_step_row row = {sequence_of(m), 3, tokens};
	struct mimeo_step good = MIMEO_STEP_INIT, step;

	good.n_rows = 1;
	good.rows = &row;
	good.outputs = MIMEO_STEP_LOGITS;
	good.logits.buffer = buffer_of(m, 4096, NULL);
	step = good;
	step.logits.offset = 4;
	assert_int_equal(mimeo_request_prep_step(request, &step), MIMEO_E_INVALID);
	step = good;
	step.hidden.buffer = good.logits.buffer; /* and no hidden state is asked for */
	assert_int_equal(mimeo_request_prep_step(request, &step), MIMEO_E_INVALID);
	/* A row of logits is 1024 bytes, of hidden state fewer: they would overlap. */
	step = good;
	step.outputs |= MIMEO_STEP_HIDDEN;
	step.hidden.buffer = good.logits.buffer;
	for (uint64_t at = 0; at < 1024; at += 512) {
		step.hidden.offset = at;
		assert_int_equal(
			mimeo_request_prep_step(request, &step), MIMEO_E_INVALID);
		step.logits.offset = 64;
		step.hidden.offset = 0;
		assert_int_equal(
			mimeo_request_prep_step(request, &step), MIMEO_E_INVALID);
		step.logits.offset = 0;
	}
	step = good;
	step.flags = 4;
	assert_int_equal(mimeo_request_prep_step(request, &step), MIMEO_E_INVALID);
	row.tokens = NULL;
	assert_int_equal(mimeo_request_prep_step(request, &good), MIMEO_E_INVALID);
	/* A caller built before there were buffers. */
	row.tokens = tokens;
	step = good;
	step.size = offsetof(struct mimeo_step, logits);
	step.logits.buffer = 77;
	assert_int_equal(mimeo_request_prep_step(request, &step), 0);
	assert_int_equal(mimeo_submit(m), 2);
	struct mimeo_event event = wait_event(m);
	assert_int_equal(event.status, 0);
	assert_non_null(event.logits);
	mimeo_close(m);
}

/* ---- closing ---- */

static float *memory_of(struct mimeo *m, uint32_t buffer, size_t bytes)
{
	struct mimeo_handle handle = MIMEO_HANDLE_INIT;

	assert_int_equal(mimeo_buffer_handle(m, buffer, &handle), 0);
	float *memory = mmap(NULL, bytes, PROT_READ, MAP_SHARED, handle.fd, 0);
	assert_ptr_not_equal(memory, MAP_FAILED);
	return memory;
}

/* A step is held in the lane that writes its logits to a fresh buffer. */
static uint32_t hold_a_step(struct daemon *daemon, struct mimeo *m, size_t bytes)
{
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_step_row row = {sequence_of(m), 3, tokens};
	const struct mimeo_handle *fence;

	step.outputs = MIMEO_STEP_LOGITS;
	step.flags = MIMEO_STEP_FENCE;
	step.logits.buffer = buffer_of(m, bytes, NULL);
	struct mimeo_request *request = step_prepare(m, &step, &row, 1);
	assert_int_equal(mimeo_request_fence(request, &fence), 0);
	lane_hold(daemon);
	assert_true(mimeo_submit(m) >= 1);
	struct mimeo_event event = wait_event(m);
	assert_int_equal(event.kind, MIMEO_EVENT_RECORDED);
	mimeo_event_seen(m, &event);
	return step.logits.buffer;
}

static void test_buffer_closed_in_flight_lives_until_the_step_is_done(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0);
	uint32_t buffer = hold_a_step(*state, m, 4096);
	float *memory = memory_of(m, buffer, 4096);
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_step_row row = {sequence_of(m), 3, tokens};

	assert_int_equal(mimeo_buffer_close(m, buffer), 0);
	assert_int_equal(mimeo_buffer_close(m, buffer), MIMEO_E_UNKNOWN_BUFFER);
	/* Nobody can name it any more, and it is still there. */
	step.outputs = MIMEO_STEP_LOGITS;
	step.logits.buffer = buffer;
	struct mimeo_event event = step_wait(m, &step, &row, 1);
	assert_int_equal(event.status, MIMEO_E_UNKNOWN_BUFFER);
	mimeo_event_seen(m, &event);
	pause_ms(20);
	assert_int_equal(daemon_count(*state, "buffers"), 1);
	assert_int_equal(daemon_count(*state, "buffer_bytes"), 4096);
	assert_int_equal(daemon_count(*state, "buffers_closing"), 1);
	assert_true(memory[0] == 0);
	lane_go(*state);
	event = wait_final(m);
	assert_int_equal(event.status, 0);
	assert_true(memory[0] != 0);
	assert_no_buffers(*state);
	munmap(memory, 4096);
	mimeo_close(m);
}

/* The request is reported as ended only when the lane has come to its step. */
static void test_buffer_of_a_cancelled_step_lives_until_the_lane_has_passed_it(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0);
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_step_row row = {sequence_of(m), 3, tokens};

	step.outputs = MIMEO_STEP_LOGITS;
	step.logits.buffer = buffer_of(m, 4096, NULL);
	float *memory = memory_of(m, step.logits.buffer, 4096);
	struct mimeo_request *request = step_prepare(m, &step, &row, 1);
	uint64_t id = mimeo_request_id(request);
	lane_hold(*state);
	assert_true(mimeo_submit(m) >= 1);
	assert_true(EVENTUALLY(daemon_count(*state, "running") == 1));
	submit_cancel(m, id, 0);
	assert_int_equal(wait_final(m).status, 0); /* the cancel's own */
	assert_int_equal(mimeo_buffer_close(m, step.logits.buffer), 0);
	pause_ms(20);
	assert_int_equal(daemon_count(*state, "buffers"), 1);
	lane_go(*state);
	assert_int_equal(wait_final(m).status, MIMEO_E_CANCELLED);
	assert_no_buffers(*state);
	assert_true(memory[0] != 0);
	munmap(memory, 4096);
	mimeo_close(m);
}

static void test_buffer_named_by_a_waiting_request_lives_until_that_has_run(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0);
	uint32_t held = hold_a_step(*state, m, 4096), buffer = buffer_of(m, 8192, NULL);
	float *memory = memory_of(m, buffer, 8192);
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_step_row row = {1, 2, tokens}; /* the held step's sequence: it waits for it */

	step.outputs = MIMEO_STEP_LOGITS;
	step.logits.buffer = buffer;
	step_prepare(m, &step, &row, 1);
	assert_true(mimeo_submit(m) >= 1);
	assert_true(EVENTUALLY(daemon_count(*state, "waiting") == 1));
	assert_int_equal(mimeo_buffer_close(m, buffer), 0);
	assert_int_equal(mimeo_buffer_close(m, held), 0);
	lane_go(*state);
	for (int i = 0; i < 2; i++)
		assert_int_equal(wait_final(m).status, 0);
	assert_true(memory[0] != 0);
	assert_no_buffers(*state);
	munmap(memory, 8192);
	mimeo_close(m);
}

static void test_session_that_ends_in_flight_leaves_nothing(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0);
	float *memory = memory_of(m, hold_a_step(*state, m, 4096), 4096);

	buffer_of(m, 4096, NULL);
	mimeo_close(m);
	pause_ms(20);
	/* The lane still names it; with the other buffer and the fence it waits for that. */
	assert_int_equal(daemon_count(*state, "buffer_bytes"), 8192);
	assert_int_equal(daemon_count(*state, "buffers"), 2);
	assert_int_equal(daemon_count(*state, "buffers_closing"), 3);
	lane_go(*state);
	assert_no_buffers(*state);
	munmap(memory, 4096);
}

struct victim {
	struct daemon *daemon;
	_Atomic uint32_t ready;
	unsigned round;
};

/* Steps into and out of buffers of both sorts, in flight for ever. */
static int be_a_victim(void *arg)
{
	struct victim *victim = arg;
	struct mimeo_handle handle = MIMEO_HANDLE_INIT;
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_step_row row = {.n_tokens = 8, .tokens = tokens};
	const struct mimeo_handle *fence;
	struct mimeo_event event;
	uint32_t spare;
	struct mimeo *m = daemon_connect_child(victim->daemon, MIMEO_SPIN_DEFAULT);

	CHILD_EXPECT(mimeo_buffer_alloc(m, 0, 65536, &step.logits.buffer) == 0);
	CHILD_EXPECT(mimeo_buffer_alloc(m, 0, 4096, &spare) == 0);
	handle.kind = MIMEO_HANDLE_MEMFD;
	handle.bytes = 65536;
	handle.fd = memfd_of(65536, MEMFD_SEALS);
	CHILD_EXPECT(mimeo_buffer_import(m, &handle, &step.embeddings.buffer) == 0);
	step.n_rows = 1;
	step.rows = &row;
	step.outputs = MIMEO_STEP_LOGITS;
	step.flags = MIMEO_STEP_FENCE;
	for (;;) {
		struct mimeo_request *request = mimeo_request_get(m);

		CHILD_EXPECT(mimeo_sequence_open(m, 0, &row.sequence) == 0);
		CHILD_EXPECT(mimeo_request_fence(request, &fence) == 0);
		CHILD_EXPECT(mimeo_request_prep_step(request, &step) == 0);
		CHILD_EXPECT(mimeo_submit(m) >= 1);
		atomic_fetch_add(&victim->ready, 1);
		do {
			CHILD_EXPECT(mimeo_event_wait(m, &event, -1) == 1);
			mimeo_event_seen(m, &event);
		} while (event.kind != MIMEO_EVENT_FINAL);
		CHILD_EXPECT(mimeo_sequence_close(m, row.sequence) == 0);
	}
}

static void test_killed_client_gives_back_buffers_bytes_and_descriptors(void **state)
{
	struct victim *victim = shared_new(sizeof(*victim));
	struct mimeo *m = daemon_connect(*state, 0, 0);
	const struct holdings before = daemon_holdings(*state);

	victim->daemon = *state;
	for (victim->round = 0; victim->round < 30; victim->round++) {
		bool hold = victim->round % 3 == 0;

		atomic_store(&victim->ready, 0);
		pid_t pid = process_run(be_a_victim, victim);
		assert_true(EVENTUALLY(atomic_load(&victim->ready) > victim->round % 5));
		if (hold) {
			/* Its step is in flight, and stays so beyond its death. */
			lane_hold(*state);
			assert_true(EVENTUALLY(daemon_count(*state, "running") == 1));
			pause_ms(5);
		}
		process_kill(pid);
		if (hold) {
			pause_ms(10);
			assert_true(daemon_count(*state, "buffer_bytes") > 0);
			lane_go(*state);
		}
		assert_no_buffers(*state);
		daemon_assert_settles(*state, &before);
		assert_int_equal(step(m, sequence_of(m), tokens, 3, NULL), 0);
		mimeo_close(m);
		m = daemon_connect(*state, 0, 0);
	}
	mimeo_close(m);
	shared_free(victim, sizeof(*victim));
}

/* ---- limits ---- */

static void test_limits_are_named_and_end_with_what_is_closed(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0), *other = daemon_connect(*state, 0, 0);
	uint32_t buffers[BUFFERS_MAX], one;

	for (unsigned i = 0; i < BUFFERS_MAX; i++)
		buffers[i] = buffer_of(m, 4096, NULL);
	assert_int_equal(mimeo_buffer_alloc(m, 0, 1, &one), MIMEO_E_QUOTA);
	assert_string_equal(mimeo_buffer_message(m),
		"device buffers: 1 asked for, 0 left for this session (max_client_buffers)");
	for (unsigned i = 0; i < BUFFERS_MAX; i++)
		assert_int_equal(mimeo_buffer_close(m, buffers[i]), 0);
	assert_no_buffers(*state);

	one = buffer_of(m, CLIENT_BYTES - 4096, NULL);
	assert_int_equal(mimeo_buffer_alloc(m, 0, 4097, &one), MIMEO_E_QUOTA);
	assert_non_null(strstr(mimeo_buffer_message(m), " bytes asked for, "));
	assert_non_null(strstr(mimeo_buffer_message(m), " left for this session (max_client_buffer_bytes)"));
	buffer_of(m, 4096, NULL);
	/* The other has a limit of its own, and both, of one user, have one together. */
	assert_int_equal(
		mimeo_buffer_alloc(other, 0, ALL_BYTES - CLIENT_BYTES + 1, &one), MIMEO_E_QUOTA);
	assert_non_null(strstr(mimeo_buffer_message(other), " left for user "));
	buffer_of(other, ALL_BYTES - CLIENT_BYTES, NULL);
	mimeo_close(m);
	mimeo_close(other);
}

/* The daemon has made it by then: it is given back. */
static void test_client_without_a_descriptor_for_its_buffer_is_refused_and_lives(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0);
	struct rlimit before, tight;
	uint32_t buffer;
	int next = dup(STDERR_FILENO);

	close(next);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	tight = (struct rlimit){.rlim_cur = (rlim_t)next, .rlim_max = before.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
	int rc = mimeo_buffer_alloc(m, 0, 4096, &buffer);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	assert_int_equal(rc, MIMEO_E_NO_MEMORY);
	assert_string_equal(mimeo_buffer_message(m), "this process has no descriptor left");
	assert_no_buffers(*state);
	buffer_of(m, 4096, NULL);
	mimeo_close(m);
}

static void test_client_s_memory_is_not_mapped_where_that_is_not_allowed(void **state)
{
	struct daemon strict;
	struct mimeo_handle handle = MIMEO_HANDLE_INIT;
	uint32_t buffer;

	daemon_init(&strict);
	daemon_option(&strict, "--allow-client-ipc", "no");
	daemon_start(&strict);
	struct mimeo *m = daemon_connect(&strict, 0, 0);
	handle.kind = MIMEO_HANDLE_MEMFD;
	handle.bytes = 4096;
	handle.fd = memfd_of(0, 0);
	assert_int_equal(mimeo_buffer_import(m, &handle, &buffer), MIMEO_E_DENIED);
	/* The daemon says it, or since Linux 6.16 the kernel. */
	assert_non_null(strstr(mimeo_buffer_message(m), "allow_client_ipc"));
	/* What the daemon allocates is another matter. */
	buffer_of(m, 4096, NULL);
	close(handle.fd);
	mimeo_close(m);
	daemon_stop(&strict);
	daemon_deinit(&strict);
}

/* ---- the device is lost ---- */

static void test_lost_device_ends_the_step_and_the_daemon_with_its_buffers(void **state)
{
	struct daemon doomed;
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_step_row row = {.n_tokens = 8, .tokens = tokens};
	struct mimeo_event event;
	uint32_t n = 0, buffer;

	daemon_init(&doomed);
	setenv("MIMEO_CPU_FAULT", "op:outbox:40", 1);
	daemon_start(&doomed);
	unsetenv("MIMEO_CPU_FAULT");
	struct mimeo *m = daemon_connect(&doomed, 0, 0);
	step.outputs = MIMEO_STEP_LOGITS;
	step.logits.buffer = buffer_of(m, 4096, NULL);
	do {
		row.sequence = sequence_of(m);
		event = step_wait(m, &step, &row, 1);
		mimeo_event_seen(m, &event);
		mimeo_sequence_close(m, row.sequence);
	} while (event.status == 0 && n++ < 100);
	assert_int_equal(event.status, MIMEO_E_DEVICE_LOST);
	int rc = mimeo_buffer_alloc(m, 0, 4096, &buffer);
	assert_true(rc == MIMEO_E_DEVICE_LOST || rc == MIMEO_E_GONE);
	assert_int_equal(daemon_wait(&doomed), EXIT_DEVICE_LOST);
	assert_int_equal(mimeo_buffer_close(m, step.logits.buffer), MIMEO_E_GONE);
	mimeo_close(m);
	daemon_deinit(&doomed);
}

static void test_dead_daemon_ends_a_wait_for_its_fence(void **state)
{
	struct daemon doomed;
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_step_row row = {.n_tokens = 3, .tokens = tokens};
	const struct mimeo_handle *fence;

	daemon_init(&doomed);
	buffers_daemon_start(&doomed);
	struct mimeo *m = daemon_connect(&doomed, 0, 0);
	hold_a_step(&doomed, m, 4096);
	struct mimeo_request *request = mimeo_request_get(m);
	assert_int_equal(mimeo_request_fence(request, &fence), 0);
	/* The held step's own: request 0. */
	step.outputs = MIMEO_STEP_TOKENS;
	step.flags = MIMEO_STEP_FENCE;
	step.n_rows = 1;
	step.rows = &row;
	row.sequence = sequence_of(m);
	assert_int_equal(mimeo_request_prep_step(request, &step), 0);
	assert_true(mimeo_submit(m) >= 1);
	struct mimeo_event event = wait_event(m);
	assert_int_equal(event.kind, MIMEO_EVENT_RECORDED);
	mimeo_event_seen(m, &event);
	pid_t pid = process_fork();
	if (pid == 0) {
		pause_ms(30);
		kill(doomed.pid, SIGKILL);
		_exit(0);
	}
	assert_int_equal(mimeo_fence_wait(m, fence, -1), MIMEO_E_GONE);
	assert_int_equal(process_exit_status(pid, PATIENCE_MS), 0);
	mimeo_close(m);
	daemon_deinit(&doomed);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		T(test_place_outside_its_buffer_costs_the_request_alone),
		T(test_library_refuses_a_place_that_no_daemon_would_take),
		T(test_buffer_closed_in_flight_lives_until_the_step_is_done),
		T(test_buffer_of_a_cancelled_step_lives_until_the_lane_has_passed_it),
		T(test_buffer_named_by_a_waiting_request_lives_until_that_has_run),
		T(test_session_that_ends_in_flight_leaves_nothing),
		T(test_killed_client_gives_back_buffers_bytes_and_descriptors),
		T(test_limits_are_named_and_end_with_what_is_closed),
		T(test_client_without_a_descriptor_for_its_buffer_is_refused_and_lives),
		T(test_client_s_memory_is_not_mapped_where_that_is_not_allowed),
		T(test_lost_device_ends_the_step_and_the_daemon_with_its_buffers),
		T(test_dead_daemon_ends_a_wait_for_its_fence),
	};

	RUN("buffers_limits", tests);
}
