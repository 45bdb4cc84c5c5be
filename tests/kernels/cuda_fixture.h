/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_KERNELS_CUDA_FIXTURE_H
#define MIMEO_TESTS_KERNELS_CUDA_FIXTURE_H

/*
 * A cuda device with two streams, pinned bytes that fills write to, and a gate that holds a stream
 * until it is opened. What loses a device or needs a second one runs in a process of its own: this
 * program again, with arguments.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <semaphore.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cuda/cuda.h"

#define MIB ((size_t)1 << 20)
#define CHILD_FD 77 /* where a child finds the handle's descriptor */

struct fixture {
	struct device *device;
	const struct device_ops *ops;
	struct stream *stream, *other;
	volatile uint8_t *pinned; /* [256], zeroes */
	sem_t open;
	int n_gates;
};

static void gate(void *arg)
{
	while (sem_wait(arg) != 0)
		;
}

/* The stream goes no further until gates_open. */
static inline void gate_close(struct fixture *f, struct stream *stream)
{
	assert_int_equal(f->ops->stream_host_func(stream, gate, &f->open), 0);
	f->n_gates++;
}

static inline void gates_open(struct fixture *f)
{
	for (; f->n_gates > 0; f->n_gates--)
		sem_post(&f->open);
}

static inline int fill(struct fixture *f, struct stream *stream, int at, uint8_t value)
{
	return f->ops->fill_async(stream, (void *)(f->pinned + at), value, 1);
}

static inline int fixture_setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	void *pinned;
	int rc;

	if (f == NULL)
		return -1;
	rc = device_open("cuda", NULL, &f->device);
	if (rc != 0) {
		free(f);
		return rc;
	}
	f->ops = f->device->ops;
	sem_init(&f->open, 0, 0);
	rc = f->ops->stream_new(f->device, &f->stream);
	if (rc == 0)
		rc = f->ops->stream_new(f->device, &f->other);
	if (rc == 0)
		rc = f->ops->host_alloc(f->device, 256, &pinned);
	if (rc != 0)
		return rc;
	memset(pinned, 0, 256);
	f->pinned = pinned;
	*state = f;
	return 0;
}

static inline int fixture_teardown(void **state)
{
	struct fixture *f = *state;
	int rc;

	gates_open(f); /* a test that failed may have left one closed */
	f->ops->stream_free(f->other);
	f->ops->stream_free(f->stream);
	f->ops->host_free(f->device, (void *)f->pinned);
	rc = f->ops->status(f->device);
	f->ops->free(f->device);
	sem_destroy(&f->open);
	free(f);
	return rc;
}

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
