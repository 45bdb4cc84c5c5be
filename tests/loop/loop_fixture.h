/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_LOOP_LOOP_FIXTURE_H
#define MIMEO_TESTS_LOOP_LOOP_FIXTURE_H

/* Every claim is tested on both backends; those about io_uring are listed as skipped where it is
 * refused. */

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/loop/loop.h"

/* Far above what any step takes: a wait that needs it has failed. */
#define PATIENCE_MS 10000

struct counter {
	struct loop *loop;
	unsigned n;
	uint32_t events;
	struct loop_source *victim; /* removed by the callback */
	struct loop_source *source;
	int fd; /* read empty by read_all */
};

static inline struct loop *loop_by_name(void **state)
{
	struct loop *loop = NULL;

	assert_int_equal(loop_new(&loop, *state), 0);
	return loop;
}

/* Run tests[n], but for those of io_uring where it is refused: cmocka's own skip() is a failure in TAP. */
static inline int run_loop_tests(const char *name, const struct CMUnitTest *tests, size_t n)
{
	struct CMUnitTest chosen[64];
	struct loop *probe = NULL;
	bool refused = loop_new(&probe, "io_uring") == -ENOTSUP;
	size_t n_chosen = 0, n_left = 0;
	const char *left[64];
	int failed;

	loop_free(probe);
	assert_true(n <= 64);
	for (size_t i = 0; i < n; i++) {
		const char *backend = tests[i].initial_state;

		if (refused && backend && strcmp(backend, "io_uring") == 0)
			left[n_left++] = tests[i].name;
		else
			chosen[n_chosen++] = tests[i];
	}
	failed = _cmocka_run_group_tests(name, chosen, n_chosen, NULL, NULL);
	/* Last: nothing may stand before TAP's first line. */
	for (size_t i = 0; i < n_left; i++)
		printf("# skipped: %s: io_uring is refused here\n", left[i]);
	return failed;
}

static inline int bell_new(void)
{
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

	assert_true(fd >= 0);
	return fd;
}

static inline void bell_add(int fd, uint64_t value)
{
	assert_int_equal(write(fd, &value, sizeof(value)), sizeof(value));
}

static inline uint64_t bell_take(int fd)
{
	uint64_t value = 0;

	return read(fd, &value, sizeof(value)) == sizeof(value) ? value : 0;
}

static inline void set_blocking(int fd)
{
	assert_int_equal(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK), 0);
}

static inline void count(void *userdata, struct loop_source *source, uint32_t events)
{
	struct counter *counter = userdata;

	counter->n++;
	counter->events |= events;
}

static inline void count_and_remove(void *userdata, struct loop_source *source, uint32_t events)
{
	struct counter *counter = userdata;

	count(userdata, source, events);
	loop_remove(counter->loop, counter->victim);
	counter->victim = NULL;
}

/* A doorbell whose events are counted; and its end. */
static inline int bell_watch(struct loop *loop, struct counter *counter)
{
	int fd = bell_new();

	assert_int_equal(loop_add(loop, fd, EPOLLIN, count, counter, &counter->source), 0);
	return fd;
}

static inline void bell_end(struct loop *loop, struct counter *counter, int fd)
{
	loop_remove(loop, counter->source);
	close(fd);
}

/* Run until nothing is left to report. */
static inline void settle(struct loop *loop)
{
	while (loop_run_once(loop, 0) > 0)
		;
}

static inline void run_until(struct loop *loop, const struct counter *counter, unsigned n)
{
	while (counter->n < n)
		assert_true(loop_run_once(loop, PATIENCE_MS) >= 0);
}

static inline uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* For the rest of the calling thread: `number` meets `match`, every other system call `other`. */
static inline void filter(unsigned number, uint32_t match, uint32_t other)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, match),
		BPF_STMT(BPF_RET | BPF_K, other),
	};
	struct sock_fprog program = { sizeof(code) / sizeof(code[0]), code };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
		prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
		_exit(99);
}

/* As a container's filter does. */
static inline void refuse(unsigned number)
{
	filter(number, SECCOMP_RET_ERRNO | EPERM, SECCOMP_RET_ALLOW);
}

/* Run the claim in a process of its own, which says by its exit status which step failed. */
static inline void in_child(int (*claim)(void))
{
	int status = -1;
	pid_t pid = fork();

	if (pid == 0)
		syscall(SYS_exit_group, claim()); /* and no sanitizer's last look */
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

/* *state: the backend's name before, the loop behind. */
static inline int loop_setup(void **state)
{
	*state = loop_by_name(state);
	return 0;
}

static inline int loop_teardown(void **state)
{
	loop_free(*state);
	return 0;
}

#define BY_NAME(f, setup, teardown)                                                                \
	{ #f " (io_uring)", f, setup, teardown, (void *)"io_uring" },                              \
		{ #f " (epoll)", f, setup, teardown, (void *)"epoll" }
/* Tests whose state is a loop, and tests whose state is the name of a backend. */
#define BOTH(f) BY_NAME(f, loop_setup, loop_teardown)
#define BOTH_NAMES(f) BY_NAME(f, NULL, NULL)

#endif
