/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_KERNELS_CPU_FIXTURE_H
#define MIMEO_TESTS_KERNELS_CPU_FIXTURE_H

/* A cpu device with small ops; the gate decides when a stream goes on. */

#include "kernels/cpu/cpu.h"
#include "tests/kernels/device_fixture.h"

struct trace {
	uint32_t n;
	int values[8192];
};

struct gate_args {
	sem_t *entered, *open;
};

static void gate_run(const void *args, void *workspace)
{
	const struct gate_args *a = args;

	sem_post(a->entered);
	gate(a->open);
}

struct store_args {
	int *to;
	int value;
};

static void store_run(const void *args, void *workspace)
{
	const struct store_args *store = args;

	*store->to = store->value;
}

struct copy_int_args {
	int *to;
	const int *from;
};

static void copy_int_run(const void *args, void *workspace)
{
	const struct copy_int_args *copy = args;

	*copy->to = *copy->from;
}

struct trace_args {
	struct trace *trace;
	int value;
};

static void trace_run(const void *args, void *workspace)
{
	const struct trace_args *append = args;

	append->trace->values[append->trace->n++] = append->value;
}

struct workspace_args {
	uint8_t **ret;
	size_t bytes;
};

/* Writes the whole of its workspace and says where it is. */
static void workspace_run(const void *args, void *workspace)
{
	const struct workspace_args *use = args;

	memset(workspace, 1, use->bytes);
	*use->ret = workspace;
}

static const struct cpu_op gate_op = {.name = "gate", .run = gate_run};
static const struct cpu_op store_op = {.name = "store", .run = store_run};
static const struct cpu_op copy_int_op = {.name = "copy_int", .run = copy_int_run};
static const struct cpu_op trace_op = {.name = "trace", .run = trace_run};
static const struct cpu_op workspace_op = {.name = "workspace", .run = workspace_run};

static inline int launch_gate(struct fixture *f, struct stream *stream)
{
	const struct gate_args args = {.entered = &f->entered, .open = &f->open};

	return cpu_launch(stream, &gate_op, &args, sizeof(args), 0);
}

static inline int launch_store(struct stream *stream, int *to, int value)
{
	const struct store_args args = {.to = to, .value = value};

	return cpu_launch(stream, &store_op, &args, sizeof(args), 0);
}

static inline int launch_copy_int(struct stream *stream, int *to, const int *from)
{
	const struct copy_int_args args = {.to = to, .from = from};

	return cpu_launch(stream, &copy_int_op, &args, sizeof(args), 0);
}

static inline int launch_trace(struct stream *stream, struct trace *trace, int value)
{
	const struct trace_args args = {.trace = trace, .value = value};

	return cpu_launch(stream, &trace_op, &args, sizeof(args), 0);
}

static inline int launch_workspace(struct stream *stream, uint8_t **ret, size_t bytes)
{
	const struct workspace_args args = {.ret = ret, .bytes = bytes};

	return cpu_launch(stream, &workspace_op, &args, sizeof(args), bytes);
}

static inline void gate_wait(struct fixture *f)
{
	while (sem_wait(&f->entered) != 0)
		;
}

static inline int fixture_setup_spinning(void **state, uint32_t spin_us)
{
	return fixture_open(state, "cpu", &(struct device_options){.spin_us = spin_us});
}

static inline int fixture_setup(void **state)
{
	return fixture_setup_spinning(state, 0);
}

/* The device asserts that nothing of it is left. */
static inline int fixture_teardown(void **state)
{
	sem_post(&((struct fixture *)*state)->open); /* for the gate of a test that failed */
	return fixture_close(state, NULL);
}

/* ---- what the claims on any device ask of it ---- */

static inline void nothing_run(const void *args, void *workspace)
{
}

/* Launches one of two ops that the device does not load by itself. */
static inline int use_op(struct stream *stream, int which)
{
	static const struct cpu_op ops[] = {
		{.name = "nothing", .run = nothing_run}, {.name = "nothing else", .run = nothing_run}};

	return cpu_launch(stream, &ops[which], NULL, 0, 0);
}

/* Where an op of so much workspace finds it. */
static inline int use_workspace(
	struct fixture *f, struct stream *stream, size_t bytes, void **ret)
{
	uint8_t *where;
	int rc = launch_workspace(stream, &where, bytes);

	if (rc)
		return rc;
	rc = f->ops->stream_sync(stream);
	*ret = where;
	return rc;
}

#endif
