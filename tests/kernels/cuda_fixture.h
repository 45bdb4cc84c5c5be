/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_KERNELS_CUDA_FIXTURE_H
#define MIMEO_TESTS_KERNELS_CUDA_FIXTURE_H

/*
 * A cuda device. What loses a device or needs a second one runs in a process of its own: this
 * program again, with arguments.
 */

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cuda/cuda.h"
#include "tests/kernels/device_fixture.h"

#define CHILD_FD 77 /* where a child finds the handle's descriptor */

static inline int fixture_setup(void **state)
{
	return fixture_open(state, "cuda", NULL);
}

static inline int fixture_check(struct device *device)
{
	return device->ops->status(device);
}

static inline int fixture_teardown(void **state)
{
	return fixture_close(state, fixture_check);
}

/* ---- what the claims on any device ask of it ---- */

/* Begins one of two ops that the device does not load by itself. */
static inline int use_op(struct stream *stream, int which)
{
	static const char *const names[] = {"nothing", "nothing else"};

	return cuda_launch_begin(stream, names[which], NULL);
}

static inline int use_workspace(
	struct fixture *f, struct stream *stream, size_t bytes, void **ret)
{
	return cuda_workspace(stream, bytes, ret);
}

/* ---- processes ---- */

/* True, and the plan says so, where there is nothing to test on. */
static inline bool no_cuda(void)
{
	struct device *device;
	int rc = device_open("cuda", NULL, &device);

	if (rc == -ENODEV)
		puts("1..0 # SKIP no CUDA device");
	else if (rc == 0)
		device->ops->free(device);
	return rc == -ENODEV;
}

/* Runs this program with these arguments and that descriptor; returns its exit status. */
static inline int run_child(char *const argv[], int fd)
{
	extern char **environ;
	posix_spawn_file_actions_t actions;
	int status = -1;
	pid_t pid;

	posix_spawn_file_actions_init(&actions);
	if (fd >= 0)
		posix_spawn_file_actions_adddup2(&actions, fd, CHILD_FD);
	assert_int_equal(posix_spawn(&pid, "/proc/self/exe", &actions, NULL, argv, environ), 0);
	posix_spawn_file_actions_destroy(&actions);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#endif
