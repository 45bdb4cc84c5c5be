/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_KERNELS_DEVICE_FIXTURE_H
#define MIMEO_TESTS_KERNELS_DEVICE_FIXTURE_H

/* A device with two streams, pinned bytes that fills write to, and a gate that holds a stream until
 * it is opened. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/device.h"

#define MIB ((size_t)1 << 20)
#define PINNED_BYTES 256

struct fixture {
	struct device *device;
	const struct device_ops *ops;
	struct stream *stream, *other;
	volatile uint8_t *pinned; /* [PINNED_BYTES], zeroes */
	sem_t entered, open;      /* of gates */
	int n_gates;
	const void *parameter; /* of the test's table entry */
};

static inline void gate(void *arg)
{
	while (sem_wait(arg) != 0)
		;
}

static inline void post(void *arg)
{
	sem_post(arg);
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

static inline int fixture_open(
	void **state, const char *name, const struct device_options *options)
{
	struct fixture *f = calloc(1, sizeof(*f));
	void *pinned;
	int rc;

	if (f == NULL)
		return -1;
	rc = device_open(name, options, &f->device);
	if (rc) {
		free(f);
		return rc;
	}
	f->parameter = *state;
	f->ops = f->device->ops;
	sem_init(&f->entered, 0, 0);
	sem_init(&f->open, 0, 0);
	*state = f;
	rc = f->ops->stream_new(f->device, &f->stream);
	if (rc)
		return rc;
	rc = f->ops->stream_new(f->device, &f->other);
	if (rc)
		return rc;
	rc = f->ops->host_alloc(f->device, PINNED_BYTES, &pinned);
	if (rc)
		return rc;
	memset(pinned, 0, PINNED_BYTES);
	f->pinned = pinned;
	return 0;
}

/* `check`: what the device is to satisfy when all is freed; NULL: nothing. */
static inline int fixture_close(void **state, int (*check)(struct device *device))
{
	struct fixture *f = *state;
	int rc = 0;

	gates_open(f); /* a test that failed may have left one closed */
	f->ops->stream_free(f->other);
	f->ops->stream_free(f->stream);
	f->ops->host_free(f->device, (void *)f->pinned);
	if (check != NULL)
		rc = check(f->device);
	f->ops->free(f->device);
	sem_destroy(&f->open);
	sem_destroy(&f->entered);
	free(f);
	return rc;
}

/* ---- captures ---- */

/* Ends the stream's capture and makes it executable. */
static inline struct graph_exec *finish(struct fixture *f)
{
	struct graph_exec *exec = NULL;
	struct graph *graph;

	assert_int_equal(f->ops->capture_end(f->stream, &graph), 0);
	assert_int_equal(f->ops->graph_instantiate(f->device, graph, &exec), 0);
	f->ops->graph_free(graph);
	return exec;
}

static inline void replay(struct fixture *f, struct graph_exec *exec)
{
	assert_int_equal(f->ops->graph_launch(exec, f->stream), 0);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
}

/* Of the fixture's device, which defines fixture_setup and fixture_teardown. */
#define ON_DEVICE(test) cmocka_unit_test_setup_teardown(test, fixture_setup, fixture_teardown)

#endif
