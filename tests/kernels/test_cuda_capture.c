/* SPDX-License-Identifier: MIT */
#include "tests/kernels/cuda_fixture.h"

#include "tests/kernels/capture_claims.h"

static void test_replayed_op_reads_new_contents_and_is_named(void **state)
{
	static const uint16_t ones[4] = {0x3f80, 0x3f80, 0x3f80, 0x3f80}, twos[1] = {0x4000};
	struct fixture *f = *state;
	struct op_to_f32 args = {.out = (float *)(uintptr_t)f->pinned, .n = 4};
	const volatile float *out = (const volatile float *)f->pinned;
	struct graph_exec *exec;
	struct graph *graph;
	void *memory;

	assert_int_equal(f->ops->mem_alloc(f->device, 512, &memory), 0);
	assert_int_equal(f->ops->copy(f->device, memory, ones, sizeof(ones)), 0);
	args.x = memory;
	assert_int_equal(f->device->kernels->to_f32(f->stream, &args), 0);
	assert_int_equal(f->ops->stream_sync(f->stream), 0);
	assert_true(out[3] == 1.0f);
	assert_int_equal(f->ops->capture_begin(f->stream), 0);
	assert_int_equal(f->device->kernels->to_f32(f->stream, &args), 0);
	assert_int_equal(f->ops->capture_end(f->stream, &graph), 0);
	assert_string_equal(f->ops->graph_node_name(graph, 0), "to_f32");
	assert_int_equal(f->ops->graph_instantiate(f->device, graph, &exec), 0);
	assert_int_equal(f->ops->copy(f->device, memory, twos, sizeof(twos)), 0);
	replay(f, exec);
	assert_true(out[0] == 2.0f);
	assert_true(out[1] == 1.0f);
	f->ops->graph_exec_free(exec);
	f->ops->graph_free(graph);
	f->ops->mem_free(f->device, memory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CAPTURE_CLAIMS,
		ON_DEVICE(test_replayed_op_reads_new_contents_and_is_named),
	};

	return no_cuda() ? 0 : cmocka_run_group_tests_name("cuda_capture", tests, NULL, NULL);
}
