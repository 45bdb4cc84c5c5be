/* SPDX-License-Identifier: MIT */
/*
 * Breakable graphs: what is in the segments and what is between them, and who replays them.
 * Attention is paged's with a mark: host work that each call repeats, and whose effect is in the
 * logits.
 */
#include "tests/daemon/manual.h"

#include <errno.h>

#include "tests/device_memory.h"

/* ---- the backend ---- */

static struct {
	struct device *device; /* NULL: no mark */
	size_t bytes;          /* of the first token's output */
	uint8_t value;
	uint32_t n_recorded, n_executed; /* calls while the stream captured, and others */
	const void *outputs[32];         /* of the last calls that executed, by layer */
} mark;

static struct attention_backend marked;

static int marked_run(struct attention_metadata *metadata, struct stream *stream,
	const struct attention_args *args)
{
	int rc = attention_paged.run(metadata, stream, args);

	if (rc || !mark.device)
		return rc;
	if (mark.device->ops->capturing(stream)) {
		mark.n_recorded++;
	} else {
		mark.n_executed++;
		mark.outputs[args->layer] = args->out;
	}
	return mark.device->ops->fill_async(
		stream, args->out, (uint8_t)(mark.value + args->layer), mark.bytes);
}

static void register_marked(void)
{
	marked = attention_paged;
	marked.name = "marked";
	marked.run = marked_run;
	(void)attention_register(&marked);
}

/* ---- helpers ---- */

static float logits[MANUAL_ROWS * MANUAL_VOCAB], expected[MANUAL_ROWS * MANUAL_VOCAB];

static const struct manual_row mixed[] = {{0, 5, 3}, {1, 1, 3}, {2, 3, 3}};
static const struct manual_row decode[] = {{0, 1, 8}, {1, 1, 4}, {2, 1, 6}};

/* Three histories of 8 tokens. */
static int open_marked(void **state)
{
	struct manual *h;

	*state = &(struct rig_options){.mode = GRAPH_FULL_AND_PIECEWISE, .attention = "marked"};
	manual_setup(state);
	h = *state;
	manual_prefill(h, 3, 8);
	memset(&mark, 0, sizeof(mark));
	mark.device = h->rig.device;
	mark.value = 0x3c; /* 0.01 in float32 and in bfloat16 */
	mark.bytes = h->runner->model->config.n_heads * h->runner->model->config.head_dim *
		dtype_bytes(h->runner->activation_dtype);
	return 0;
}

static int close_marked(void **state)
{
	mark.device = NULL;
	return manual_teardown(state);
}

static uint32_t n_layers(const struct manual *h)
{
	return h->runner->model->config.n_layers;
}

static uint32_t n_nodes(const struct manual *h, struct graph *graph)
{
	uint32_t n = 0;

	while (h->rig.device->ops->graph_node_name(graph, n))
		n++;
	return n;
}

/* ---- recording ---- */

static void test_n_breaks_give_n_plus_one_segments_none_of_them_empty(void **state)
{
	struct manual *h = *state;
	struct graph_entry *entry;

	entry = manual_graph(h, mixed, 3, false);
	assert_int_equal(entry->pieces.n_breaks, n_layers(h));
	for (uint32_t i = 0; i <= n_layers(h); i++) {
		assert_non_null(entry->pieces.execs[i]);
		assert_true(n_nodes(h, entry->pieces.graphs[i]) > 0);
	}
	for (uint32_t i = 0; i < n_layers(h); i++)
		assert_int_equal(entry->pieces.breaks[i].layer, i);
	assert_null(entry->graph);
	assert_null(entry->exec);
}

/* F20: attention is in the full graph, and in no segment. */
static void test_attention_is_recorded_by_full_graphs_and_by_no_segment(void **state)
{
	struct manual *h = *state;
	struct graph_entry *pieces, *whole;

	pieces = manual_graph(h, mixed, 3, false);
	whole = manual_graph(h, decode, 3, true);
	assert_int_equal(whole->descriptor.mode, GRAPH_FULL);
	capture_drop(pieces, h->rig.device);
	capture_drop(whole, h->rig.device);
	assert_int_equal(capture_now(pieces, &h->runner->executor.breakable, h->lane), 0);
	assert_int_equal(mark.n_recorded, 0);
	assert_int_equal(mark.n_executed, 2 * n_layers(h)); /* warm-up, and between the segments */
	mark.n_executed = 0;
	assert_int_equal(capture_now(whole, &h->runner->executor.breakable, h->lane), 0);
	assert_int_equal(mark.n_recorded, n_layers(h));
	assert_int_equal(mark.n_executed, n_layers(h));
	if (!test_on_cuda()) { /* where the op has one name */
		assert_int_equal(test_count_nodes(h->rig.device, whole->graph, "paged_attention"),
			n_layers(h));
		for (uint32_t i = 0; i <= n_layers(h); i++)
			assert_int_equal(
				test_count_nodes(h->rig.device, pieces->pieces.graphs[i],
					"paged_attention"), 0);
	}
}

static uint64_t offset_in_pool(const struct manual *h, const void *memory)
{
	return (uint64_t)((const uint8_t *)memory - (const uint8_t *)h->runner->pool);
}

/* F19: such memory is not kept until the replay. */
static void test_break_that_names_memory_outside_the_pool_is_refused(void **state)
{
	struct manual *h = *state;
	struct forward_context context;
	struct breakable_runner runner;
	struct graph_entry entry = {.descriptor = descriptor_mixed(GRAPH_PIECEWISE, 8, MANUAL_ROWS)};
	const struct model_buffers *pool;
	struct model_buffers *b = &context.buffers;

	context = h->runner->context;
	pool = &h->runner->context.buffers;
	breakable_runner_init(&runner, &context);
	for (unsigned i = 0; i < 4; i++) {
		*b = *pool;
		context.pool_bytes = h->runner->pool_bytes;
		/* Large enough, but the cache's; or it begins in the pool and ends behind it. */
		if (i == 0)
			b->qkv = context.kv_layers[0];
		else if (i == 1)
			b->attention = context.kv_layers[0];
		else if (i == 2)
			context.pool_bytes = offset_in_pool(h, b->qkv) + 1;
		else
			context.pool_bytes = offset_in_pool(h, b->attention = b->logits) + 1;
		assert_int_equal(capture_now(&entry, &runner, h->lane), -EFAULT);
		assert_int_equal(graph_entry_state(&entry), GRAPH_EMPTY);
		assert_int_equal(entry.pieces.n_breaks, 0);
		assert_null(entry.pieces.graphs);
		assert_false(h->rig.device->ops->capturing(h->lane));
	}
	/* Right behind the pool's end. */
	*b = *pool;
	context.pool_bytes = offset_in_pool(h, b->attention);
	assert_int_equal(capture_now(&entry, &runner, h->lane), -EFAULT);
	context.pool_bytes = h->runner->pool_bytes;
	assert_int_equal(capture_now(&entry, &runner, h->lane), 0);
	capture_drop(&entry, h->rig.device);
}

static void test_recording_that_fails_between_segments_leaves_nothing(void **state)
{
	struct manual *h = *state;
	struct breakable_runner runner;
	struct graph_entry *entry;

	entry = manual_graph(h, mixed, 3, false);
	runner = h->runner->executor.breakable;
	capture_drop(entry, h->rig.device);
	for (runner.max_breaks = 0; runner.max_breaks < n_layers(h); runner.max_breaks++) {
		assert_int_equal(capture_now(entry, &runner, h->lane), -E2BIG);
		assert_int_equal(graph_entry_state(entry), GRAPH_EMPTY);
		assert_null(entry->pieces.graphs);
		assert_false(h->rig.device->ops->capturing(h->lane));
	}
	assert_int_equal(capture_now(entry, &runner, h->lane), 0);
	manual_run(h, mixed, 3, NULL, expected);
	manual_run(h, mixed, 3, entry, logits);
	manual_assert_logits(logits, expected, 3, "captured at last");
}

/* ---- replay ---- */

/* F19 */
static void test_segments_read_what_the_break_before_them_has_written(void **state)
{
	struct manual *h = *state;
	struct graph_entry *entry;

	entry = manual_graph(h, mixed, 3, false);
	manual_run(h, mixed, 3, NULL, expected);
	/* What lay there before must not show. */
	manual_fill(h, h->runner->pool, 0xff, h->runner->pool_bytes);
	manual_run(h, mixed, 3, entry, logits);
	manual_assert_logits(logits, expected, 3, "marked");
	for (uint32_t i = 0; i < n_layers(h); i++)
		assert_ptr_equal(mark.outputs[i], entry->pieces.breaks[i].out);
	mark.device = NULL;
	manual_run(h, mixed, 3, NULL, logits);
	assert_memory_not_equal(logits, expected, MANUAL_VOCAB * sizeof(float));
}

/* F24 */
static void test_host_side_work_of_a_break_is_repeated_by_every_replay(void **state)
{
	struct manual *h = *state;
	struct graph_entry *entry;

	entry = manual_graph(h, mixed, 3, false);
	for (uint8_t value = 0x38; value < 0x3e; value++) {
		mark.value = value;
		manual_run(h, mixed, 3, NULL, expected);
		mark.n_executed = 0;
		manual_run(h, mixed, 3, entry, logits);
		assert_int_equal(mark.n_executed, n_layers(h));
		manual_assert_logits(logits, expected, 3, "another mark");
	}
	/* A full graph has its capture's mark for ever: hence the level NEVER for such work. */
	mark.n_executed = mark.n_recorded = 0;
	manual_run(h, decode, 3, manual_graph(h, decode, 3, true), NULL);
	assert_int_equal(mark.n_executed + mark.n_recorded, 0);
}

/* F24: naive attention queues an op a row, with lengths that the host knows. */
static void test_backend_with_host_side_work_is_captured_in_pieces_alone(void **state)
{
	struct manual *h = *state;
	struct graph_entry whole = {.descriptor = descriptor_decode(4, 1, MANUAL_ROWS)};
	struct manual_row rows[3];

	assert_int_equal(h->runner->options.mode.resolved, GRAPH_PIECEWISE);
	assert_int_equal(capture_now(&whole, &h->runner->executor.breakable, h->lane), -ENOTSUP);
	assert_null(whole.exec);
	assert_int_equal(graph_entry_state(&whole), GRAPH_EMPTY);
	manual_prefill(h, 3, 40);
	for (uint32_t start = 3; start < 40; start += 9) {
		for (uint32_t n = 1; n <= 3; n++) {
			for (uint32_t i = 0; i < n; i++)
				rows[i] = (struct manual_row){(int32_t)i, 1 + i * 3 % 5, start - i};
			manual_run(h, rows, n, NULL, expected);
			manual_run(h, rows, n, manual_graph(h, rows, n, false), logits);
			manual_assert_logits(logits, expected, n, "naive");
		}
	}
}

/* F20 */
static void test_full_graphs_and_eager_steps_never_go_through_the_breakable_runner(void **state)
{
	struct manual *h = *state;
	const struct breakable_runner *runner;

	runner = &h->runner->executor.breakable;
	assert_int_equal(runner->n_replays, 0); /* capture is none */
	for (uint32_t i = 0; i < 3; i++) {
		manual_run(h, decode, 3, manual_graph(h, decode, 3, true), NULL);
		manual_run(h, decode, 3, NULL, NULL);
		assert_int_equal(runner->n_replays, i);
		assert_int_equal(runner->n_breaks, i * n_layers(h));
		manual_run(h, mixed, 3, manual_graph(h, mixed, 3, false), NULL);
		assert_int_equal(runner->n_replays, i + 1);
		assert_int_equal(runner->n_breaks, (i + 1) * n_layers(h));
	}
}

/* Under a mode that is FULL throughout, the runner has nothing to do at all. */
static void test_mixed_batches_of_full_graphs_never_go_through_the_breakable_runner(void **state)
{
	struct manual *h = *state;
	struct graph_entry *entry;

	manual_prefill(h, 3, 8);
	entry = manual_graph(h, mixed, 3, false);
	assert_int_equal(entry->descriptor.mode, GRAPH_FULL);
	if (!test_on_cuda()) /* where the op has one name */
		assert_int_equal(test_count_nodes(h->rig.device, entry->graph, "flex_attention"),
			n_layers(h));
	manual_run(h, mixed, 3, entry, NULL);
	assert_int_equal(h->runner->executor.breakable.n_replays, 0);
	assert_int_equal(h->runner->executor.breakable.n_breaks, 0);
}

#define MARKED(test) cmocka_unit_test_setup_teardown(test, open_marked, close_marked)

int main(void)
{
	const struct CMUnitTest tests[] = {
		MARKED(test_n_breaks_give_n_plus_one_segments_none_of_them_empty),
		MARKED(test_attention_is_recorded_by_full_graphs_and_by_no_segment),
		MARKED(test_break_that_names_memory_outside_the_pool_is_refused),
		MARKED(test_recording_that_fails_between_segments_leaves_nothing),
		MARKED(test_segments_read_what_the_break_before_them_has_written),
		MARKED(test_host_side_work_of_a_break_is_repeated_by_every_replay),
		MANUAL_TEST(test_backend_with_host_side_work_is_captured_in_pieces_alone,
			.mode = GRAPH_FULL_AND_PIECEWISE, .attention = "naive"),
		MARKED(test_full_graphs_and_eager_steps_never_go_through_the_breakable_runner),
		MANUAL_TEST(test_mixed_batches_of_full_graphs_never_go_through_the_breakable_runner,
			.mode = GRAPH_FULL, .attention = "flex"),
	};
	static const struct test_cpu_only only[] = {
		{"test_backend_with_host_side_work_is_captured_in_pieces_alone",
			"the naive backend is for the cpu device"},
	};

	register_marked();
	return TEST_RUN_GROUP("engine breakable", tests, only, NULL, NULL);
}
