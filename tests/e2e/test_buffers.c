/* SPDX-License-Identifier: MIT */
/* Results into device buffers and embeddings out of them, on the cpu device. */
#include <fcntl.h>
#include <sys/mman.h>

#include "tests/e2e/buffer_rows.h"

/* ---- results ---- */

static void test_results_in_a_buffer_are_those_in_the_arena_bit_for_bit(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0);
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_step_row rows[N_ROWS];
	struct results expected;
	uint8_t *memory;
	const size_t logits_at = 128, hidden_at = 8192, size = 16384;

	results_make(m, &expected);
	make_rows(m, rows);
	step.outputs = MIMEO_STEP_LOGITS | MIMEO_STEP_HIDDEN | MIMEO_STEP_TOKENS;
	step.logits.buffer = step.hidden.buffer = buffer_of(m, size, &memory);
	step.logits.offset = logits_at;
	step.hidden.offset = hidden_at;
	struct mimeo_event event = step_wait(m, &step, rows, N_ROWS);
	assert_int_equal(event.status, 0);
	assert_int_equal(event.n_rows, N_ROWS);
	assert_int_equal(event.n_tokens, N_ROWS);
	assert_null(event.logits);
	assert_null(event.hidden);
	assert_memory_equal(memory + logits_at, expected.logits, sizeof(expected.logits));
	assert_memory_equal(memory + hidden_at, expected.hidden, sizeof(expected.hidden));
	assert_zero(memory, logits_at);
	assert_zero(memory + logits_at + sizeof(expected.logits),
		hidden_at - logits_at - sizeof(expected.logits));
	assert_zero(memory + hidden_at + sizeof(expected.hidden),
		size - hidden_at - sizeof(expected.hidden));
	mimeo_event_seen(m, &event);
	mimeo_close(m);
}

static void test_logits_alone_may_go_to_a_buffer(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0);
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_step_row rows[N_ROWS];
	struct results expected;
	float *memory;

	results_make(m, &expected);
	make_rows(m, rows);
	step.outputs = MIMEO_STEP_LOGITS | MIMEO_STEP_HIDDEN;
	step.logits.buffer = buffer_of(m, sizeof(expected.logits), &memory);
	struct mimeo_event event = step_wait(m, &step, rows, N_ROWS);
	assert_int_equal(event.status, 0);
	assert_memory_equal(memory, expected.logits, sizeof(expected.logits));
	assert_memory_equal(event.hidden, expected.hidden, sizeof(expected.hidden));
	mimeo_event_seen(m, &event);
	mimeo_close(m);
}

/* A decode step replays a graph; the copy comes behind it. */
static void test_replayed_decode_leaves_its_logits_in_the_buffer(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0);
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_step_row row = {sequence_of(m), 5, tokens}, again = {sequence_of(m), 5, tokens};
	struct mimeo_event event;
	float expected[VOCAB], *memory;

	step.outputs = MIMEO_STEP_LOGITS;
	event = step_wait(m, &step, &row, 1);
	mimeo_event_seen(m, &event);
	event = step_wait(m, &step, &again, 1);
	mimeo_event_seen(m, &event);
	row.n_tokens = again.n_tokens = 1;
	row.tokens = again.tokens = tokens + 5;
	event = step_wait(m, &step, &row, 1);
	memcpy(expected, event.logits, sizeof(expected));
	mimeo_event_seen(m, &event);
	step.logits.buffer = buffer_of(m, sizeof(expected), &memory);
	int64_t replays = daemon_count(*state, "replays");
	event = step_wait(m, &step, &again, 1);
	assert_int_equal(event.status, 0);
	assert_int_equal(daemon_count(*state, "replays"), replays + 1);
	assert_memory_equal(memory, expected, sizeof(expected));
	mimeo_event_seen(m, &event);
	mimeo_close(m);
}

static void test_prompt_logits_of_a_generate_go_to_a_buffer(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0);
	struct mimeo_generate generate = generate_of(tokens, 8, 3);
	float expected[VOCAB], *memory;

	generate.flags = MIMEO_GENERATE_PROMPT_LOGITS;
	submit_generate(m, &generate);
	struct mimeo_event event;
	while ((event = wait_event(m)).kind != MIMEO_EVENT_FINAL)
		mimeo_event_seen(m, &event);
	memcpy(expected, event.logits, sizeof(expected));
	mimeo_event_seen(m, &event);

	generate.logits.buffer = buffer_of(m, 4096, &memory);
	generate.logits.offset = 1024;
	submit_generate(m, &generate);
	while ((event = wait_event(m)).kind != MIMEO_EVENT_FINAL)
		mimeo_event_seen(m, &event);
	assert_int_equal(event.status, 0);
	assert_null(event.logits);
	assert_memory_equal(memory + 256, expected, sizeof(expected));
	mimeo_event_seen(m, &event);
	mimeo_close(m);
}

/* ---- what a client exports ---- */

static struct mimeo_handle handle_of(int fd, uint64_t offset, uint64_t bytes)
{
	struct mimeo_handle handle = MIMEO_HANDLE_INIT;

	handle.kind = MIMEO_HANDLE_MEMFD;
	handle.fd = fd;
	handle.offset = offset;
	handle.bytes = bytes;
	return handle;
}

static void test_same_memory_imported_twice_is_one_import(void **state)
{
	const size_t size = 64 << 10;
	struct mimeo *m = daemon_connect(*state, 0, 0);
	int fd = memfd_of(size, MEMFD_SEALS), other = memfd_of(size, MEMFD_SEALS);
	/* The first one goes furthest, so that the second finds it large enough. */
	struct mimeo_handle high = handle_of(fd, 32768, size - 32768);
	struct mimeo_handle low = handle_of(fd, 4096, 8192), third = handle_of(other, 0, size);
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_step_row rows[N_ROWS];
	struct results expected;
	uint32_t buffers[3];

	results_make(m, &expected);
	assert_int_equal(mimeo_buffer_import(m, &high, &buffers[0]), 0);
	uint32_t n_fds = process_n_fds(group_daemon.pid);
	assert_int_equal(mimeo_buffer_import(m, &low, &buffers[1]), 0);
	assert_true(EVENTUALLY(process_n_fds(group_daemon.pid) == n_fds));
	assert_int_equal(daemon_count(*state, "buffers"), 2);
	assert_int_equal(daemon_count(*state, "buffer_bytes"), size);
	assert_int_equal(mimeo_buffer_import(m, &third, &buffers[2]), 0);
	assert_int_equal(daemon_count(*state, "buffer_bytes"), 2 * size);
	assert_int_equal(mimeo_buffer_close(m, buffers[2]), 0);
	assert_int_equal(mimeo_buffer_close(m, buffers[0]), 0);

	make_rows(m, rows);
	step.outputs = MIMEO_STEP_LOGITS;
	step.logits.buffer = buffers[1];
	step.logits.offset = 64;
	struct mimeo_event event = step_wait(m, &step, rows, N_ROWS);
	assert_int_equal(event.status, 0);
	mimeo_event_seen(m, &event);
	float got[N_ROWS * VOCAB];
	assert_int_equal(pread(fd, got, sizeof(got), 4096 + 64), sizeof(got));
	assert_memory_equal(got, expected.logits, sizeof(got));
	assert_true(EVENTUALLY(daemon_count(*state, "buffer_bytes") == (int64_t)size));
	assert_int_equal(mimeo_buffer_close(m, buffers[1]), 0);
	assert_no_buffers(*state);
	close(fd);
	close(other);
	mimeo_close(m);
}

static void test_import_refuses_what_is_not_such_memory(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0);
	int fd = memfd_of(4096, MEMFD_SEALS), loose = memfd_of(4096, 0), pipes[2];
	int huge = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
	int half = memfd_of(4096, F_SEAL_SHRINK), fixed = memfd_of(4096, MEMFD_SEALS | F_SEAL_WRITE);
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	int read_only = open(path, O_RDONLY | O_CLOEXEC);
	assert_int_equal(pipe(pipes), 0);
	if (huge >= 0 && (ftruncate(huge, 2 << 20) < 0 || fcntl(huge, F_ADD_SEALS, MEMFD_SEALS) < 0))
		fail_msg("no memfd of huge pages");
	const struct {
		struct mimeo_handle handle;
		const char *text;
	} cases[] = {
		{handle_of(fd, 0, 4097), "has 4096 bytes, and the handle ends at 4097"},
		{handle_of(fd, 4096, 1), "has 4096 bytes, and the handle ends at 4097"},
		{handle_of(loose, 0, 4096), "lacks seals: F_SEAL_SHRINK F_SEAL_GROW F_SEAL_SEAL"},
		{handle_of(half, 0, 4096), "lacks seals: F_SEAL_GROW F_SEAL_SEAL"},
		{handle_of(fixed, 0, 4096), "sealed against writing"},
		{handle_of(read_only, 0, 4096), "reading and writing"},
		{handle_of(huge >= 0 ? huge : pipes[1], 0, 4096), huge >= 0 ? "huge pages" : "no memfd"},
		{handle_of(pipes[1], 0, 4096), "no memfd"},
		{handle_of(1000, 0, 4096), "not open"},
		{handle_of(fd, 4, 64), "no multiple of 64"},
	};
	uint32_t buffer = 0;

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(
			mimeo_buffer_import(m, &cases[i].handle, &buffer), MIMEO_E_INVALID);
		assert_non_null(strstr(mimeo_buffer_message(m), cases[i].text));
	}
	assert_int_equal(buffer, 0);
	close(half);
	close(huge);
	close(fixed);
	close(read_only);
	close(pipes[0]);
	close(pipes[1]);
	/* The session lives on. */
	struct mimeo_handle good = handle_of(fd, 64, 4032);
	assert_int_equal(mimeo_buffer_import(m, &good, &buffer), 0);
	assert_string_equal(mimeo_buffer_message(m), "");
	assert_int_equal(mimeo_buffer_close(m, buffer), 0);
	assert_int_equal(mimeo_buffer_close(m, buffer), MIMEO_E_UNKNOWN_BUFFER);
	close(fd);
	close(loose);
	mimeo_close(m);
}

/* However little of the handle was filled in. */
static void test_memory_of_another_device_is_unsupported(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0);
	int fd = memfd_of(4096, MEMFD_SEALS);
	struct mimeo_handle cuda = handle_of(-1, 0, 4096);
	uint32_t buffer = 0;

	cuda.kind = MIMEO_HANDLE_CUDA_IPC;
	cuda.uuid[3] = cuda.opaque[5] = 1;
	assert_int_equal(mimeo_buffer_import(m, &cuda, &buffer), MIMEO_E_UNSUPPORTED);
	for (uint32_t kind = MIMEO_HANDLE_VMM_FD; kind <= MIMEO_HANDLE_CUDA_IPC; kind++) {
		for (int i = 0; i < 2; i++) {
			cuda = handle_of(i == 0 ? -1 : fd, 0, 4096);
			cuda.kind = kind;
			assert_int_equal(
				mimeo_buffer_import(m, &cuda, &buffer), MIMEO_E_UNSUPPORTED);
			assert_non_null(strstr(mimeo_buffer_message(m), "kind"));
		}
		assert_int_equal(mimeo_buffer_alloc(m, kind, 4096, &buffer), MIMEO_E_UNSUPPORTED);
	}
	assert_int_equal(buffer, 0);
	close(fd);
	mimeo_close(m);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		T(test_results_in_a_buffer_are_those_in_the_arena_bit_for_bit),
		T(test_logits_alone_may_go_to_a_buffer),
		T(test_replayed_decode_leaves_its_logits_in_the_buffer),
		T(test_prompt_logits_of_a_generate_go_to_a_buffer),
		T(test_same_memory_imported_twice_is_one_import),
		T(test_import_refuses_what_is_not_such_memory),
		T(test_memory_of_another_device_is_unsupported),
	};

	RUN("buffers", tests);
}
