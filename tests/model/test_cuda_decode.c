/* SPDX-License-Identifier: MIT */

/*
 * decode_step, a decode in one kernel, against the same decode op by op: a model of random weights, two caches
 * with the same contents, and for each batch what both left: logits, hidden states, keys and values.
 */

#include "tests/model/decode_rig.h"

static void run_decode(struct rig *rig, uint32_t n_rows)
{
	assert_int_equal(queue_decode(rig, n_rows), 0);
	assert_int_equal(rig->device->ops->stream_sync(rig->stream), 0);
}

/* ---- comparison ---- */

/* What a way left; the buffers are poisoned before the other one runs. */
struct results {
	float *logits;
	uint16_t *normed, *last;
};

static void results_take(struct rig *rig, struct results *ret)
{
	const size_t bytes = ROWS * rig->shape.hidden * 2, logits = ROWS * rig->shape.vocab * sizeof(float);
	const struct device_ops *ops = rig->device->ops;

	ret->logits = malloc(logits);
	ret->normed = malloc(bytes);
	ret->last = malloc(bytes);
	assert_true(ret->logits && ret->normed && ret->last);
	assert_int_equal(ops->copy(rig->device, ret->logits, rig->buffers.logits, logits), 0);
	assert_int_equal(ops->copy(rig->device, ret->normed, rig->buffers.normed, bytes), 0);
	assert_int_equal(ops->copy(rig->device, ret->last, rig->buffers.last_hidden, bytes), 0);
	assert_int_equal(ops->fill_async(rig->stream, rig->buffers.logits, 0xff, logits), 0);
	assert_int_equal(ops->fill_async(rig->stream, rig->buffers.normed, 0xff, bytes), 0);
	assert_int_equal(ops->fill_async(rig->stream, rig->buffers.last_hidden, 0xff, bytes), 0);
	assert_int_equal(ops->stream_sync(rig->stream), 0);
}

static void results_free(struct results *r)
{
	free(r->logits);
	free(r->normed);
	free(r->last);
}

static void check_close(const float *got, const float *want, size_t n, double limit, const char *what)
{
	double error = 0, size = 0;

	for (size_t i = 0; i < n; i++) {
		error += (double)(got[i] - want[i]) * (got[i] - want[i]);
		size += (double)want[i] * want[i];
	}
	if (!(error <= limit * limit * size))
		fail_msg("%s: relative error %g", what, sqrt(error / size));
}

static void check_bf16(const uint16_t *got, const uint16_t *want, size_t n, double limit, const char *what)
{
	float *g = calloc(n, sizeof(*g)), *w = calloc(n, sizeof(*w));

	assert_true(g && w);
	for (size_t i = 0; i < n; i++) {
		if ((got[i] == 0xffff) != (want[i] == 0xffff))
			fail_msg("%s: element %zu is %04x, not %04x", what, i, got[i], want[i]);
		g[i] = got[i] == 0xffff ? 0 : bf16_to_f32(got[i]);
		w[i] = want[i] == 0xffff ? 0 : bf16_to_f32(want[i]);
	}
	check_close(g, w, n, limit, what);
	free(g);
	free(w);
}

static void check_caches(struct rig *rig)
{
	uint16_t *want = malloc(rig->kv_elements * 2), *got = malloc(rig->kv_elements * 2);

	assert_true(want && got);
	for (uint32_t l = 0; l < rig->shape.n_layers; l++) {
		assert_int_equal(rig->device->ops->copy(rig->device, want, rig->kv[0][l], rig->kv_elements * 2), 0);
		assert_int_equal(rig->device->ops->copy(rig->device, got, rig->kv[1][l], rig->kv_elements * 2), 0);
		check_bf16(got, want, rig->kv_elements, 0.01, "cache");
	}
	free(want);
	free(got);
}

/* Of rows that are not empty. */
static void check_results(struct rig *rig, const struct results *got, const struct results *want, uint32_t n_rows)
{
	const uint32_t hidden = rig->shape.hidden, vocab = rig->shape.vocab;

	for (uint32_t r = 0; r < n_rows; r++) {
		if (!rig->lens[r])
			continue;
		check_close(got->logits + r * vocab, want->logits + r * vocab, vocab, 0.04, "logits");
		check_bf16(got->normed + r * hidden, want->normed + r * hidden, hidden, 0.04, "normed");
		check_bf16(got->last + r * hidden, want->last + r * hidden, hidden, 0.04, "last");
	}
}

static void compare(struct rig *rig, uint32_t n_rows, int (*again)(struct rig *rig))
{
	struct results want, got;

	batch_put(rig, n_rows);
	run_op_by_op(rig, n_rows);
	results_take(rig, &want);
	if (again)
		assert_int_equal(again(rig), 0);
	else
		run_decode(rig, n_rows);
	results_take(rig, &got);
	check_results(rig, &got, &want, n_rows);
	check_caches(rig);
	results_free(&want);
	results_free(&got);
}

/* ---- claims ---- */

static const struct shape plain = {1024, 1536, 16, 4, 64, false, false, 2, 1000, 24};
static const struct shape biased = {512, 1024, 8, 8, 64, true, false, 2, 1000, 24};
static const struct shape normed = {1536, 2048, 16, 2, 128, false, true, 2, 1000, 24};
static const struct shape narrow = {1024, 3072, 16, 8, 128, true, true, 2, 1000, 24}; /* attention is wider */
static const struct shape qwen_small = {896, 4864, 14, 2, 64, true, false, 2, 1000, 24};
static const struct shape qwen = {1536, 8960, 12, 2, 128, true, false, 2, 1000, 24};
static const struct shape long_64 = {1024, 1536, 16, 4, 64, false, false, 2, 1000, MAX_PAGES_MAX};
static const struct shape long_128 = {1024, 1536, 8, 2, 128, false, false, 2, 1000, MAX_PAGES_MAX};
static const struct shape wide = {4096, 1088, 32, 8, 128, false, false, 2, 1000, 24};

static void lens_put(struct rig *rig, const int32_t (*lens)[ROWS])
{
	memcpy(rig->lens, lens, sizeof(rig->lens));
	caches_put(rig);
}

static void compare_all(const struct shape *shape)
{
	static const int32_t batches[][ROWS] = {
		{1, 16, 17, 384, 0, 33, 100, 2},
		{200, 0, 0, 31, 32, 64, 0, 15},
		{0, 0, 0, 0, 0, 0, 0, 0},
		{300, 301, 302, 303, 304, 305, 306, 307},
	};
	struct rig rig;

	rig_open(&rig, shape);
	for (uint32_t i = 0; i < sizeof(batches) / sizeof(batches[0]); i++)
		for (uint32_t n = ROWS; n; n /= 2) {
			lens_put(&rig, &batches[i]);
			compare(&rig, n, NULL);
		}
	rig_close(&rig);
}

static void test_decode_in_one_kernel_equals_op_by_op(void **state)
{
	compare_all(&plain);
}

static void test_decode_with_biases_equals_op_by_op(void **state)
{
	compare_all(&biased);
}

static void test_decode_with_head_norms_equals_op_by_op(void **state)
{
	compare_all(&normed);
}

static void test_decode_of_attention_wider_than_hidden_equals_op_by_op(void **state)
{
	compare_all(&narrow);
}

static void test_decode_of_4096_hidden_columns_equals_op_by_op(void **state)
{
	compare_all(&wide);
}

static void test_decode_of_896_columns_and_groups_of_7_equals_op_by_op(void **state)
{
	compare_all(&qwen_small);
}

static void test_decode_of_groups_of_6_equals_op_by_op(void **state)
{
	compare_all(&qwen);
}

/* Where columns of x merge one piece and where they merge two, and on both sides of that. */
static void compare_long(const struct shape *shape)
{
	static const struct {
		uint32_t n_rows;
		int32_t lens[ROWS];
	} batches[] = {
		{1, {768}}, {1, {769}}, {1, {1536}}, {1, {1537}}, {1, {1800}}, {1, {3200}},
		{2, {3000, 0}}, {2, {17, 2999}}, {4, {1, 300, 3111, 64}}, {8, {3200, 3199, 3185, 3184, 3183, 1, 0, 16}},
	};
	struct rig rig;

	rig_open(&rig, shape);
	for (uint32_t i = 0; i < sizeof(batches) / sizeof(batches[0]); i++) {
		lens_put(&rig, &batches[i].lens);
		compare(&rig, batches[i].n_rows, NULL);
	}
	rig_close(&rig);
}

static void test_long_decode_equals_op_by_op(void **state)
{
	compare_long(&long_64);
}

static void test_long_decode_of_heads_of_128_equals_op_by_op(void **state)
{
	compare_long(&long_128);
}

/* Bit by bit: which block finishes first must not matter. */
static void test_equal_decodes_have_equal_logits(void **state)
{
	static const int32_t lens[ROWS] = {3199, 40, 1700, 5};
	const size_t bytes = 4 * long_64.vocab * sizeof(float);
	float *first = malloc(bytes), *again = malloc(bytes);
	struct rig rig;

	assert_true(first && again);
	rig_open(&rig, &long_64);
	lens_put(&rig, &lens);
	batch_put(&rig, 4);
	for (uint32_t i = 0; i < 50; i++) {
		run_decode(&rig, 4);
		assert_int_equal(rig.device->ops->copy(rig.device, i ? again : first, rig.buffers.logits, bytes), 0);
		if (i)
			assert_memory_equal(again, first, bytes);
	}
	rig_close(&rig);
	free(first);
	free(again);
}

static void test_decodes_of_changing_size_follow_each_other(void **state)
{
	static const int32_t lens[ROWS] = {1, 14, 15, 30, 47, 64, 100, 127};
	struct rig rig;

	rig_open(&rig, &plain);
	lens_put(&rig, &lens);
	for (uint32_t i = 0; i < 40; i++) {
		compare(&rig, 1u << i * 7 % 4, NULL);
		for (uint32_t r = 0; r < 1u << i * 7 % 4; r++)
			rig.lens[r]++;
	}
	rig_close(&rig);
}

/* The model of one layer and that of two use one stream. */
static void test_decodes_of_two_models_follow_each_other(void **state)
{
	static const int32_t lens[ROWS] = {1, 14, 15, 30, 47, 64, 100, 127};
	struct rig rig;

	rig_open(&rig, &plain);
	for (uint32_t i = 0; i < 12; i++) {
		lens_put(&rig, &lens);
		rig.model.config.n_layers = 1 + i % 2;
		compare(&rig, 1 + i % 4 / 2, NULL);
	}
	rig_close(&rig);
}

static struct graph_exec *recorded;

static int replay(struct rig *rig)
{
	int rc = rig->device->ops->graph_launch(recorded, rig->stream);

	return rc ? rc : rig->device->ops->stream_sync(rig->stream);
}

static void test_replayed_decode_reads_new_inputs(void **state)
{
	static const int32_t lens[ROWS] = {1, 14, 15, 30, 47, 64, 100, 127};
	struct graph *graph;
	struct rig rig;

	rig_open(&rig, &plain);
	lens_put(&rig, &lens);
	compare(&rig, 4, NULL);
	assert_int_equal(rig.device->ops->lock(rig.device), 0);
	assert_int_equal(rig.device->ops->capture_begin(rig.stream), 0);
	assert_int_equal(queue_decode(&rig, 4), 0);
	assert_int_equal(rig.device->ops->capture_end(rig.stream, &graph), 0);
	assert_string_equal(rig.device->ops->graph_node_name(graph, 0), "decode_step");
	assert_null(rig.device->ops->graph_node_name(graph, 1));
	assert_int_equal(rig.device->ops->graph_instantiate(rig.device, graph, &recorded), 0);
	for (uint32_t i = 0; i < 12; i++) {
		for (uint32_t r = 0; r < 4; r++)
			rig.lens[r]++;
		compare(&rig, 4, replay);
	}
	rig.device->ops->graph_exec_free(recorded);
	rig.device->ops->graph_free(graph);
	rig_close(&rig);
}

/* A graph captured with a row in eight pieces serves one in sixteen. */
static void test_replayed_decode_is_divided_by_the_length_it_reads(void **state)
{
	static const int32_t lens[ROWS] = {1530};
	struct graph *graph;
	struct rig rig;

	rig_open(&rig, &long_64);
	lens_put(&rig, &lens);
	compare(&rig, 1, NULL);
	assert_int_equal(rig.device->ops->lock(rig.device), 0);
	assert_int_equal(rig.device->ops->capture_begin(rig.stream), 0);
	assert_int_equal(queue_decode(&rig, 1), 0);
	assert_int_equal(rig.device->ops->capture_end(rig.stream, &graph), 0);
	assert_int_equal(rig.device->ops->graph_instantiate(rig.device, graph, &recorded), 0);
	for (uint32_t i = 0; i < 12; i++) {
		rig.lens[0]++;
		compare(&rig, 1, replay);
	}
	rig.device->ops->graph_exec_free(recorded);
	rig.device->ops->graph_free(graph);
	rig_close(&rig);
}

static void test_what_the_kernel_cannot_do_is_not_queued(void **state)
{
	struct shape odd = plain;
	struct rig rig;

	odd.hidden = 992;
	rig_open(&rig, &odd);
	assert_int_equal(queue_decode(&rig, 4), -ENOTSUP);
	rig_close(&rig);
	rig_open(&rig, &plain);
	assert_int_equal(queue_decode(&rig, 3), -ENOTSUP);
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_decode_in_one_kernel_equals_op_by_op),
		cmocka_unit_test(test_decode_with_biases_equals_op_by_op),
		cmocka_unit_test(test_decode_with_head_norms_equals_op_by_op),
		cmocka_unit_test(test_decode_of_attention_wider_than_hidden_equals_op_by_op),
		cmocka_unit_test(test_decode_of_4096_hidden_columns_equals_op_by_op),
		cmocka_unit_test(test_decode_of_896_columns_and_groups_of_7_equals_op_by_op),
		cmocka_unit_test(test_decode_of_groups_of_6_equals_op_by_op),
		cmocka_unit_test(test_long_decode_equals_op_by_op),
		cmocka_unit_test(test_long_decode_of_heads_of_128_equals_op_by_op),
		cmocka_unit_test(test_equal_decodes_have_equal_logits),
		cmocka_unit_test(test_decodes_of_changing_size_follow_each_other),
		cmocka_unit_test(test_decodes_of_two_models_follow_each_other),
		cmocka_unit_test(test_replayed_decode_reads_new_inputs),
		cmocka_unit_test(test_replayed_decode_is_divided_by_the_length_it_reads),
		cmocka_unit_test(test_what_the_kernel_cannot_do_is_not_queued),
	};
	struct device *device;
	bool has;
	int rc = device_open("cuda", NULL, &device);

	if (rc) {
		printf("1..0 # SKIP no CUDA device: %s\n", device_strerror(rc));
		return 0;
	}
	has = device->kernels->decode_step != NULL;
	device->ops->free(device);
	if (!has) {
		printf("1..0 # SKIP no kernels of 9.0a in this build\n");
		return 0;
	}
	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests_name("cuda_decode", tests, NULL, NULL);
}
