/* SPDX-License-Identifier: MIT */
#include "daemon/bench/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/bench/fail.h"
#include "daemon/bench/stats.h"

static sigset_t mask_before;
static int signals = -1, signal_taken;

void *child_memory(size_t bytes)
{
	void *memory =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	return memory == MAP_FAILED ? NULL : memory;
}

void child_memory_free(void *memory, size_t bytes)
{
	if (memory)
		munmap(memory, bytes);
}

int child_supervise(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	signal(SIGPIPE, SIG_IGN);
	if (sigprocmask(SIG_BLOCK, &set, &mask_before) < 0)
		return -errno;
	signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return signals < 0 ? -errno : 0;
}

int child_signal(void)
{
	return signal_taken;
}

static _Noreturn void child_main(
	pid_t parent, const int fds[2], int (*run)(void *arg, int fd), void *arg)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	close(fds[0]);
	if (signals >= 0) {
		close(signals);
		signals = -1; /* the parent of this child handles signals */
		sigprocmask(SIG_SETMASK, &mask_before, NULL);
	}
	int rc = run(arg, fds[1]);
	fflush(NULL);
	_exit(rc);
}

int child_start(struct child *ret, int (*run)(void *arg, int fd), void *arg)
{
	pid_t parent = getpid();
	int fds[2];

	if (pipe2(fds, O_CLOEXEC) < 0)
		return -errno;
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0)
		child_main(parent, fds, run, arg);
	int rc = pid < 0 ? -errno : 0;
	close(fds[1]);
	if (rc < 0)
		close(fds[0]);
	else
		*ret = (struct child){pid, fds[0]};
	return rc;
}

/* The child has closed its pipe, so it has ended or is about to. */
static int child_reap(struct child *child)
{
	int status = -1;

	while (waitpid(child->pid, &status, 0) < 0 && errno == EINTR)
		;
	close(child->fd);
	*child = (struct child){0};
	return status == 0 ? 0 : WIFSIGNALED(status) ? -EFAULT : -ECHILD;
}

static int child_take_signal(void)
{
	struct signalfd_siginfo info;

	if (read(signals, &info, sizeof(info)) == sizeof(info))
		signal_taken = (int)info.ssi_signo;
	return -EINTR;
}

int child_next(struct child *child, uint64_t deadline_ns)
{
	struct pollfd fds[] = {{child->fd, POLLIN, 0}, {signals, POLLIN, 0}};

	for (;;) {
		uint64_t now = clock_ns();
		uint64_t left_ms = now < deadline_ns ? (deadline_ns - now + 999999) / 1000000 : 0;
		int n = poll(fds, 2, left_ms < INT32_MAX ? (int)left_ms : INT32_MAX);
		char byte;

		if (n < 0 && errno != EINTR)
			return -errno;
		if (n > 0 && fds[1].revents)
			return child_take_signal();
		if (n > 0) {
			ssize_t got = read(child->fd, &byte, 1);

			return got == 1 ? 1 : got == 0 ? child_reap(child) : -errno;
		}
		if (n == 0 && left_ms == 0)
			return -ETIMEDOUT;
	}
}

int child_wait(struct child *child, uint64_t deadline_ns)
{
	int rc;

	do {
		rc = child_next(child, deadline_ns);
	} while (rc > 0);
	return rc;
}

void child_kill(struct child *child)
{
	if (!child || child->pid <= 0)
		return;
	kill(child->pid, SIGKILL);
	child_reap(child);
}

int child_run(const char *what, int (*run)(void *arg, int fd), void *arg, uint32_t timeout_s)
{
	struct child child = {0};
	int rc = child_start(&child, run, arg);

	if (rc == 0)
		rc = child_wait(&child, clock_ns() + timeout_s * 1000000000ull);
	child_kill(&child);
	if (rc == -ETIMEDOUT)
		bench_fail(rc, "%s: not done within %u s", what, timeout_s);
	else if (rc == -EFAULT)
		bench_fail(rc, "%s: ended by a signal", what);
	else if (rc < 0 && rc != -EINTR && rc != -ECHILD) /* -ECHILD: the child has reported the error */
		bench_fail(rc, "%s: %s", what, strerror(-rc));
	return rc;
}
