/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_KERNELS_CPU_CAPTURE_FIXTURE_H
#define MIMEO_TESTS_KERNELS_CPU_CAPTURE_FIXTURE_H

/* A cpu device whose small ops are loaded, so that captures may name them; ends of captures. */

#include "tests/kernels/cpu_fixture.h"

/* Captures what the caller launched since capture_begin and makes it executable. */
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

/* What a capture may name has to be loaded before. */
static inline void load(struct fixture *f)
{
	static struct trace trace;
	int a = 0, b = 0;

	trace.n = 0;
	assert_int_equal(launch_store(f->stream, &a, 1), 0);
	assert_int_equal(launch_copy_int(f->stream, &a, &b), 0);
	assert_int_equal(launch_trace(f->stream, &trace, 1), 0);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
}

static inline int setup_loaded(void **state)
{
	int rc = fixture_setup(state);

	if (rc == 0)
		load(*state);
	return rc;
}

#define LOADED(test) cmocka_unit_test_setup_teardown(test, setup_loaded, fixture_teardown)

#endif
