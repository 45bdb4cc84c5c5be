/* SPDX-License-Identifier: MIT */

/*
 * What a request costs while both sides are awake: no allocation, and no system call. Allocations
 * are counted by interposition. System calls are fatal: a child connects, warms up, and then runs
 * under a seccomp filter that lets it do nothing but poll (the look at the socket after a
 * millisecond of silence, which a busy machine can bring about) and leave.
 */

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/allocations.h"
#include "tests/sdk/session.h"

/* ---- the work ---- */

/* One of everything: an open, a generate on it, a step, a truncate, a cancel, a close. False if
 * anything is refused. Asserts nothing: it runs where a failing assertion could not speak. */
static bool round_trip(struct mimeo *m)
{
	static const int32_t prompt[] = {3, 4, 5};
	struct mimeo_generate generate = MIMEO_GENERATE_INIT;
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_step_row row = {.n_tokens = 2, .tokens = prompt};
	struct mimeo_event event;
	uint32_t sequence;

	if (mimeo_sequence_open(m, 0, &sequence) < 0)
		return false;
	struct mimeo_request *a = mimeo_request_get(m), *b = mimeo_request_get(m),
			     *c = mimeo_request_get(m);
	generate.tokens = prompt;
	generate.n_tokens = 3;
	generate.max_tokens = 8;
	generate.sequence = sequence;
	row.sequence = sequence;
	step.n_rows = 1;
	step.rows = &row;
	step.outputs = MIMEO_STEP_TOKENS | MIMEO_STEP_LOGITS;
	if (!a || !b || !c || mimeo_request_prep_generate(a, &generate) < 0 ||
		mimeo_request_prep_step(b, &step) < 0 ||
		mimeo_request_prep_cancel(c, mimeo_request_id(a)) < 0 ||
		mimeo_sequence_truncate(m, sequence, 1) < 0 ||
		mimeo_sequence_close(m, sequence) < 0 || mimeo_submit(m) != 6)
		return false;
	for (int finals = 0; finals < 3;) {
		int r = mimeo_event_peek(m, &event);

		if (r < 0)
			return false;
		if (r == 0)
			continue;
		finals += event.kind == MIMEO_EVENT_FINAL;
		mimeo_event_seen(m, &event);
	}
	return true;
}

/* Until the sequence's close is through as well. */
static bool round_trips(struct mimeo *m, unsigned n)
{
	struct mimeo_event event;

	for (unsigned i = 0; i < n; i++) {
		if (!round_trip(m))
			return false;
		struct mimeo_request *all[8];
		unsigned got = 0;
		while (got < 8) {
			if (mimeo_event_peek(m, &event) < 0)
				return false;
			if ((all[got] = mimeo_request_get(m)))
				got++;
		}
		while (got > 0)
			mimeo_request_put(all[--got]);
	}
	return true;
}

static void session_spinning(struct session *s)
{
	const struct fake_script script = {.spin = true, .tokens_a_completion = 4};
	struct mimeo_config config = MIMEO_CONFIG_INIT;

	config.entries = 8;
	config.arena_bytes = 64u << 10;
	config.spin_us = MIMEO_SPIN_FOREVER;
	session_start(s, &script, &config);
	fake_serve(&s->fake);
}

static void test_requests_allocate_nothing(void **state)
{
	struct session s;

	session_spinning(&s);
	free(malloc(1));
	assert_true(n_allocations > 0);
	n_allocations = 0;
	bool done = round_trips(s.m, 200);
	unsigned long n = n_allocations;
	assert_true(done);
	assert_int_equal(n, 0);
	session_stop(&s);
}

/* ---- system calls ---- */

#define ALLOW(number)                                                                              \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 1),                                       \
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

/* 0, or -errno. Only the calling thread is filtered. */
static int forbid_system_calls(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		ALLOW(SYS_exit_group),
#ifdef SYS_poll
		ALLOW(SYS_poll),
#endif
		ALLOW(SYS_ppoll),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};
	struct sock_fprog program = {
		.len = sizeof(filter) / sizeof(filter[0]), .filter = filter};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
		prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
		return -errno;
	return 0;
}

enum { CHILD_DONE, CHILD_FAILED, CHILD_NO_FILTER };

static int in_child(void (*body)(void))
{
	int status;
	pid_t child = fork();

	if (child == 0) {
		body();
		_exit(CHILD_FAILED);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		abort();
	return status;
}

static void leave(int code)
{
	syscall(SYS_exit_group, code);
}

/* Some machines' clocks have no vDSO; then reading one is a system call. */
static void body_clock(void)
{
	struct timespec now;

	if (forbid_system_calls() < 0)
		leave(CHILD_NO_FILTER);
	clock_gettime(CLOCK_MONOTONIC, &now);
	leave(CHILD_DONE);
}

static void body_forbidden(void)
{
	if (forbid_system_calls() == 0)
		syscall(SYS_getppid);
	leave(CHILD_DONE);
}

static void body_requests(void)
{
	struct session s;

	session_spinning(&s);
	fake_folder_remove(&s.fake); /* behind the filter it is not possible */
	if (!round_trips(s.m, 50))
		leave(CHILD_FAILED);
	if (forbid_system_calls() < 0)
		leave(CHILD_NO_FILTER);
	leave(round_trips(s.m, 200) ? CHILD_DONE : CHILD_FAILED);
}

static bool filter_works(void)
{
	int forbidden = in_child(body_forbidden);

	return WIFSIGNALED(forbidden) && WTERMSIG(forbidden) == SIGSYS &&
	       in_child(body_clock) == 0;
}

static void test_requests_make_no_system_call_while_both_sides_spin(void **state)
{
	assert_int_equal(in_child(body_requests), 0);
}

/* What this build or machine cannot show is skipped as a whole, which is how TAP can say it. */
int main(int argc, char **argv)
{
	const struct CMUnitTest allocations[] = {
		cmocka_unit_test(test_requests_allocate_nothing),
	};
	const struct CMUnitTest system_calls[] = {
		cmocka_unit_test(test_requests_make_no_system_call_while_both_sides_spin),
	};

	if (argc == 2 && strcmp(argv[1], "allocations") == 0) {
		if (!SANITIZED)
			return cmocka_run_group_tests_name("sdk", allocations, NULL, NULL);
		puts("1..0 # SKIP allocations cannot be counted under a sanitizer");
		return 0;
	}
	if (argc == 2 && strcmp(argv[1], "system-calls") == 0) {
		if (!SANITIZED && filter_works())
			return cmocka_run_group_tests_name("sdk", system_calls, NULL, NULL);
		puts("1..0 # SKIP no seccomp filter here, no vDSO clock, or a sanitizer");
		return 0;
	}
	fprintf(stderr, "usage: test_hot_path allocations|system-calls\n");
	return 2;
}
