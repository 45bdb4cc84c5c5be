/* SPDX-License-Identifier: MIT */
/* Fences on the cpu device: recorded behind a request's work, reported before it is done. */
#include "tests/e2e/buffer_rows.h"

static struct mimeo_event expect(struct mimeo *m, uint32_t kind)
{
	struct mimeo_event event = wait_event(m);

	assert_int_equal(event.kind, kind);
	assert_int_equal(event.status, 0);
	mimeo_event_seen(m, &event);
	return event;
}

static void test_waiting_for_the_fence_waits_for_a_lane_that_is_late(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0);
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_step_row rows[N_ROWS];
	const struct mimeo_handle *fence;
	struct results expected;
	struct mimeo_event event;
	uint8_t *memory;

	results_make(m, &expected);
	make_rows(m, rows);
	step.outputs = MIMEO_STEP_LOGITS;
	step.flags = MIMEO_STEP_FENCE;
	step.logits.buffer = buffer_of(m, sizeof(expected.logits), &memory);
	struct mimeo_request *request = step_prepare(m, &step, rows, N_ROWS);
	assert_int_equal(mimeo_request_fence(request, &fence), 0);
	/* Never recorded: there is nothing to wait for. */
	assert_int_equal(mimeo_fence_wait(m, fence, 0), 1);
	lane_hold(*state);
	assert_true(mimeo_submit(m) >= 1);
	expect(m, MIMEO_EVENT_RECORDED);
	/* Recorded, and the work is not done. */
	assert_int_equal(mimeo_event_wait(m, &event, 20), 0);
	assert_int_equal(mimeo_fence_wait(m, fence, 20), 0);
	assert_zero(memory, sizeof(expected.logits));
	uint64_t start = now_ms();
	pid_t pid = process_fork();
	if (pid == 0) {
		pause_ms(50);
		lane_go(*state);
		_exit(0);
	}
	assert_int_equal(mimeo_fence_wait(m, fence, -1), 1);
	assert_memory_equal(memory, expected.logits, sizeof(expected.logits));
	assert_true(now_ms() - start >= 50);
	assert_int_equal(process_exit_status(pid, PATIENCE_MS), 0);
	expect(m, MIMEO_EVENT_FINAL);
	/* The next request of that index records the same fence again. */
	close_rows(m, rows);
	mimeo_close(m);
}

static void test_fence_is_recorded_behind_the_last_chunk_of_the_last_row(void **state)
{
	enum { N = 1100 };
	static int32_t ids[N] = {1};
	struct mimeo *m = daemon_connect(*state, 0, 0);
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_step_row rows[2] = {{sequence_of(m), 1, ids}, {sequence_of(m), N, ids}};
	const struct mimeo_handle *fence;
	float zero[2 * VOCAB] = {0}, *memory;

	for (int i = 1; i < N; i++)
		ids[i] = '0' + i % 10;
	step.outputs = MIMEO_STEP_LOGITS;
	step.flags = MIMEO_STEP_FENCE;
	step.logits.buffer = buffer_of(m, sizeof(zero), &memory);
	for (int turn = 0; turn < 3; turn++) {
		memset(memory, 0, sizeof(zero));
		struct mimeo_request *request = step_prepare(m, &step, rows, 2);
		assert_int_equal(mimeo_request_fence(request, &fence), 0);
		assert_true(mimeo_submit(m) >= 1);
		expect(m, MIMEO_EVENT_RECORDED);
		assert_int_equal(mimeo_fence_wait(m, fence, -1), 1);
		assert_memory_not_equal(memory, zero, VOCAB * sizeof(float));
		assert_memory_not_equal(memory + VOCAB, zero, VOCAB * sizeof(float));
		expect(m, MIMEO_EVENT_FINAL);
		rows[0].n_tokens = rows[1].n_tokens = 1;
	}
	mimeo_close(m);
}

/* A ring of four entries that a stream has filled: one event is taken, and its place holds
 * the step's final one alone. */
static void test_slow_reader_gets_the_final_event_without_recorded(void **state)
{
	struct mimeo *m = daemon_connect(*state, 2, 0);
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_step_row row = {.sequence = sequence_of(m), .n_tokens = 3, .tokens = tokens};
	const int64_t n = daemon_count(*state, "requests") + 1; /* the sequence's counts, too */
	const struct mimeo_handle *fence;
	struct mimeo_event event;
	unsigned n_finals = 0;

	assert_int_equal(mimeo_submit(m), 1);
	assert_true(EVENTUALLY(daemon_count(*state, "sequences") == 1));
	assert_int_equal(mimeo_event_wait(m, &event, 20), 0);
	struct mimeo_request *request = mimeo_request_get(m);
	assert_int_equal(mimeo_request_fence(request, &fence), 0);
	assert_int_equal(endless_submit(m, 8, 1, NULL), 0);
	assert_true(EVENTUALLY(daemon_count(*state, "requests") > n &&
			       daemon_count(*state, "running") == 0));
	step.rows = &row;
	step.n_rows = 1;
	step.outputs = MIMEO_STEP_TOKENS;
	step.flags = MIMEO_STEP_FENCE;
	assert_int_equal(mimeo_request_prep_step(request, &step), 0);
	assert_int_equal(mimeo_submit(m), 1);
	event = take_event(m);
	assert_true(EVENTUALLY(daemon_count(*state, "requests") > n + 1 &&
			       daemon_count(*state, "running") == 0));
	while (n_finals < 2) {
		event = wait_event(m);
		assert_int_equal(event.status, 0);
		assert_true(event.kind == MIMEO_EVENT_TOKENS || event.kind == MIMEO_EVENT_FINAL);
		n_finals += event.kind == MIMEO_EVENT_FINAL;
		mimeo_event_seen(m, &event);
	}
	assert_int_equal(mimeo_fence_wait(m, fence, 0), 1);
	mimeo_close(m);
}

/* From the final event on, whatever it says, the buffer is the client's to use. */
static void test_cancelled_request_ends_when_the_lane_has_left_its_buffer(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0);
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_step_row rows[N_ROWS];
	uint8_t *memory, mine[sizeof(float) * VOCAB];
	struct mimeo_event event;

	memset(mine, 0x55, sizeof(mine));
	make_rows(m, rows);
	step.outputs = MIMEO_STEP_LOGITS;
	step.logits.buffer = buffer_of(m, N_ROWS * sizeof(mine), &memory);
	lane_hold(*state);
	struct mimeo_request *request = step_prepare(m, &step, rows, N_ROWS);
	struct mimeo_request *cancel = mimeo_request_get(m);
	assert_true(mimeo_submit(m) >= 1);
	assert_true(EVENTUALLY(daemon_count(*state, "running") == N_ROWS));
	assert_int_equal(mimeo_event_wait(m, &event, 20), 0);
	assert_int_equal(mimeo_request_prep_cancel(cancel, mimeo_request_id(request)), 0);
	mimeo_request_set_data(cancel, 77);
	assert_int_equal(mimeo_submit(m), 1);
	event = wait_event(m);
	assert_int_equal(event.user_data, 77);
	mimeo_event_seen(m, &event);
	assert_int_equal(mimeo_event_wait(m, &event, 50), 0);
	lane_go(*state);
	assert_int_equal(wait_final(m).status, MIMEO_E_CANCELLED);
	memcpy(memory, mine, sizeof(mine));
	pause_ms(20);
	assert_memory_equal(memory, mine, sizeof(mine));
	close_rows(m, rows);
	mimeo_close(m);
}

static void test_session_has_64_fences_at_most(void **state)
{
	struct mimeo *m = daemon_connect(*state, 128, 0);
	const struct mimeo_handle *fence;

	for (int i = 0; i < 64; i++)
		assert_int_equal(mimeo_request_fence(mimeo_request_get(m), &fence), 0);
	assert_int_equal(mimeo_request_fence(mimeo_request_get(m), &fence), MIMEO_E_QUOTA);
	assert_string_equal(mimeo_buffer_message(m),
		"fences: 1 asked for, 0 left for this session (64 for each session)");
	mimeo_close(m);
}

static void test_step_whose_request_has_no_fence_is_refused(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0);
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_step_row row = {sequence_of(m), 3, tokens};

	step.outputs = MIMEO_STEP_TOKENS;
	step.flags = MIMEO_STEP_FENCE;
	struct mimeo_event event = step_wait(m, &step, &row, 1);
	assert_int_equal(event.kind, MIMEO_EVENT_FINAL);
	assert_int_equal(event.status, MIMEO_E_INVALID);
	assert_message_has(&event, "fence");
	mimeo_event_seen(m, &event);
	mimeo_close(m);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		T(test_waiting_for_the_fence_waits_for_a_lane_that_is_late),
		T(test_fence_is_recorded_behind_the_last_chunk_of_the_last_row),
		T(test_slow_reader_gets_the_final_event_without_recorded),
		T(test_cancelled_request_ends_when_the_lane_has_left_its_buffer),
		T(test_session_has_64_fences_at_most),
		T(test_step_whose_request_has_no_fence_is_refused),
	};

	RUN("fences", tests);
}
