/* SPDX-License-Identifier: MIT */
/*
 * A step under each kind of graph against the same step eager, and what its padding touches. The
 * lane is driven by hand.
 */
#include "tests/daemon/manual.h"

#include <errno.h>

#include "tests/device_memory.h"

/* Of a kind of graph: what makes such graphs, and what batches they run. */
struct kind {
	const char *name;
	struct rig_options options;
	enum graph_mode mode; /* of the graph that runs */
	uint32_t query; /* of each row, past their prompts; 0: a mixture of chunks and decodes */
};

static const struct kind decodes = {
	"FULL, one token a row", {.mode = GRAPH_FULL_AND_PIECEWISE}, GRAPH_FULL, 1};
static const struct kind queries = {
	"FULL, four tokens a row", {.mode = GRAPH_FULL_AND_PIECEWISE}, GRAPH_FULL, 4};
static const struct kind pieces = {
	"PIECEWISE", {.mode = GRAPH_FULL_AND_PIECEWISE}, GRAPH_PIECEWISE, 0};
static const struct kind whole = {
	"FULL, any batch", {.mode = GRAPH_FULL, .attention = "flex"}, GRAPH_FULL, 0};

static const uint32_t query_sizes[] = {3, 6, 13}; /* of 4: graphs of 4, 8 and 16 tokens */

static float logits[MANUAL_ROWS * MANUAL_VOCAB], expected[MANUAL_ROWS * MANUAL_VOCAB];

static const struct kind *tested;

/* *state is the kind. */
static int open_kind(void **state)
{
	struct manual *h;

	tested = *state;
	*state = (void *)&tested->options;
	manual_setup(state);
	h = *state;
	if (tested->query > 1)
		manual_capture_queries(h, tested->query, query_sizes, 3);
	return 0;
}

static uint32_t most_rows(const struct kind *kind)
{
	return kind->query > 1 ? 4 : MANUAL_ROWS;
}

/* Rows of the slots 0 ... n - 1, all with a history of `start`. */
static void make_batch(const struct kind *kind, uint32_t n, uint32_t start, struct manual_row *ret)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t n_tokens = kind->query ? kind->query : i % 2 ? 1 : 2 + i % 4;

		if (n_tokens > MANUAL_TOKENS - start)
			n_tokens = MANUAL_TOKENS - start;
		ret[i] = (struct manual_row){(int32_t)i, n_tokens, start};
	}
}

/* The smallest graph that holds the batch, or the next larger one. */
static struct graph_entry *graph_of(struct manual *h, const struct kind *kind,
	const struct manual_row *rows, uint32_t n, bool larger)
{
	struct graph_entry *entry = manual_graph(h, rows, n, kind->query != 0);

	assert_int_equal(entry->descriptor.mode, kind->mode);
	assert_int_equal(entry->descriptor.query_len, kind->query);
	if (larger && entry[1].descriptor.mode == kind->mode &&
		entry[1].descriptor.query_len == kind->query)
		entry++;
	return entry;
}

static void assert_equals_eager(struct manual *h, const struct kind *kind, uint32_t n, uint32_t start,
	bool larger)
{
	struct manual_row rows[MANUAL_ROWS];
	struct graph_entry *entry;
	char what[128], text[64];

	make_batch(kind, n, start, rows);
	entry = graph_of(h, kind, rows, n, larger);
	descriptor_format(&entry->descriptor, text, sizeof(text));
	snprintf(what, sizeof(what), "%u rows at %u by %s", n, start, text);
	manual_run(h, rows, n, NULL, expected);
	manual_run(h, rows, n, entry, logits);
	manual_assert_logits(logits, expected, n, what);
}

/* ---- claims about each kind ---- */

static void test_replay_equals_eager(void **state)
{
	struct manual *h = *state;

	manual_prefill(h, MANUAL_ROWS, 20);
	for (uint32_t n = most_rows(tested); n > 0; n -= n > 4 ? 2 : 1) {
		assert_equals_eager(h, tested, n, 20 - n % 5, false);
		assert_equals_eager(h, tested, n, 20 - n % 5, n < most_rows(tested));
	}
}

/* F27: what capture bakes in is the longest sequence's, though it ran on none. */
static void test_histories_up_to_the_longest_sequence_replay_as_they_run_eager(void **state)
{
	struct manual *h = *state;
	uint32_t query = tested->query ? tested->query : 5;

	manual_prefill(h, most_rows(tested), MANUAL_TOKENS - query);
	for (uint32_t n = 1; n <= most_rows(tested); n += 3) {
		assert_equals_eager(h, tested, n, 0, false); /* the same tokens once more */
		assert_equals_eager(h, tested, n, MANUAL_TOKENS - query, false);
	}
}

/* F6 */
static void test_padding_writes_nothing_anywhere(void **state)
{
	struct manual *h = *state;

	for (uint32_t n = 1; n < most_rows(tested); n += 2) {
		const struct step_inputs *in = &h->runner->inputs.persistent;
		struct slot_sampling before[MANUAL_ROWS], after[MANUAL_ROWS];
		struct manual_row rows[MANUAL_ROWS];
		struct graph_entry *entry;
		int32_t last[MANUAL_ROWS];

		/* A wide step leaves valid slots and pages in all rows; then all is poisoned. */
		make_batch(tested, n, 3, rows);
		manual_prefill(h, n, 3);
		for (uint32_t i = 0; i < MANUAL_ROWS; i++)
			rows[i] = (struct manual_row){(int32_t)i, 3, 3};
		manual_run(h, rows, MANUAL_ROWS, NULL, NULL);
		make_batch(tested, n, 3, rows);
		manual_poison(h, rows, n);
		for (uint32_t i = 0; i < MANUAL_ROWS; i++)
			last[i] = 1000 + (int32_t)i;
		test_copy(h->rig.device, in->slot_last_token, last, sizeof(last));
		test_copy(h->rig.device, before, in->slot_sampling, sizeof(before));
		entry = graph_of(h, tested, rows, n, true);
		manual_run(h, rows, n, entry, NULL);
		manual_assert_written(h, rows, n, tested->name);
		test_copy(h->rig.device, last, in->slot_last_token, sizeof(last));
		for (uint32_t i = 0; i < MANUAL_ROWS; i++) {
			if (i < n)
				assert_in_range(last[i], 0, MANUAL_VOCAB - 1);
			else
				assert_int_equal(last[i], 1000 + i);
		}
		test_copy(h->rig.device, after, in->slot_sampling, sizeof(after));
		assert_memory_equal(before, after, sizeof(before));
	}
}

/* F7 */
static void test_slots_of_the_chunk_before_are_gone_between_tokens_and_padding(void **state)
{
	struct manual *h = *state;

	for (uint32_t n = 1; n < 9; n++) {
		const struct manual_row first = {0, 20, 0}, next = {0, n, 20}, other = {1, 13, 5};
		const struct manual_row both[] = {next, {1, 3, 18}};

		/* A chunk of 20 tokens fills the places where the next one's padding is. */
		manual_prefill(h, 2, 5);
		manual_run(h, &other, 1, NULL, NULL);
		manual_run(h, &first, 1, manual_graph(h, &first, 1, false), NULL);
		manual_poison(h, both, 2);
		manual_run(h, &next, 1, graph_of(h, tested, &next, 1, true), NULL);
		manual_assert_written(h, &next, 1, tested->name);
		/* And with another's chunk behind it. */
		manual_prefill(h, 2, 20);
		manual_run(h, &first, 1, manual_graph(h, &first, 1, false), NULL);
		manual_poison(h, both, 2);
		manual_run(h, both, 2, graph_of(h, tested, both, 2, true), NULL);
		manual_assert_written(h, both, 2, tested->name);
	}
}

/* F15 */
static void test_nan_in_what_padding_reads_leaves_real_rows_bitwise_unchanged(void **state)
{
	struct manual *h = *state;

	for (uint32_t n = 1; n < most_rows(tested); n += 2) {
		struct manual_row rows[MANUAL_ROWS];
		struct graph_entry *entry;

		manual_prefill(h, n, 3);
		make_batch(tested, n, 3, rows);
		entry = graph_of(h, tested, rows, n, true);
		assert_true(entry->descriptor.tokens > n * (tested->query ? tested->query : 1));
		manual_run(h, rows, n, entry, expected);
		manual_poison(h, rows, n);
		manual_fill(h, h->runner->pool, 0xff, h->runner->pool_bytes);
		manual_run(h, rows, n, entry, logits);
		for (uint32_t i = 0; i < n * MANUAL_VOCAB; i++)
			assert_true(isfinite(expected[i]));
		assert_memory_equal(logits, expected, (size_t)n * MANUAL_VOCAB * sizeof(logits[0]));
	}
}

/* F16: attention over a batch whose rows have no keys at all. */
static void test_warm_up_with_lengths_of_zero_makes_no_nan(void **state)
{
	struct manual *h = *state;

	manual_prefill(h, MANUAL_ROWS, 3);
	for (uint32_t n = 1; n <= most_rows(tested); n++) {
		const struct model_buffers *b = &h->runner->context.buffers;
		struct manual_row rows[MANUAL_ROWS];
		struct graph_entry *entry;
		uint32_t n_rows, bytes;
		uint8_t *attention;

		make_batch(tested, n, 3, rows);
		entry = graph_of(h, tested, rows, n, false);
		n_rows = entry->descriptor.rows ? entry->descriptor.rows : 1;
		bytes = entry->descriptor.tokens * h->runner->model->config.n_heads *
			h->runner->model->config.head_dim *
			(uint32_t)dtype_bytes(h->runner->activation_dtype);
		manual_fill(h, h->runner->pool, 0xff, h->runner->pool_bytes);
		assert_int_equal(capture_warm_up(entry, &h->runner->context, h->lane), 0);
		test_copy(h->rig.device, logits, b->logits, n_rows * MANUAL_VOCAB * sizeof(float));
		for (uint32_t i = 0; i < n_rows * MANUAL_VOCAB; i++)
			assert_true(isfinite(logits[i]));
		attention = test_fetch(h->rig.device, b->attention, bytes);
		for (uint32_t i = 0; i < bytes; i++)
			assert_int_equal(attention[i] & 0x7f, 0);
		free(attention);
		assert_equals_eager(h, tested, n, 3, false);
	}
}

/* F29 */
static void test_step_without_rows_writes_nothing_and_changes_no_later_step(void **state)
{
	struct manual *h = *state;
	struct manual_row rows[MANUAL_ROWS];

	manual_prefill(h, MANUAL_ROWS, 3);
	for (uint32_t n = 1; n <= most_rows(tested); n *= 2) {
		make_batch(tested, n, 3, rows);
		manual_poison(h, rows, n);
		assert_int_equal(manual_try(h, NULL, 0, graph_of(h, tested, rows, n, false)), 0);
		manual_assert_written(h, NULL, 0, tested->name);
		assert_equals_eager(h, tested, n, 3, false);
		manual_prefill(h, MANUAL_ROWS, 3);
	}
}

/* F28 */
static void test_more_rows_than_were_captured_are_refused(void **state)
{
	struct manual *h = *state;
	struct manual_row rows[MANUAL_ROWS];
	struct graph_entry *entry;

	manual_prefill(h, MANUAL_ROWS, 3);
	make_batch(tested, MANUAL_ROWS, 3, rows);
	entry = graph_of(h, tested, rows, 1, false);
	for (uint32_t n = entry->descriptor.rows + 1; n <= MANUAL_ROWS; n += 7) {
		manual_poison(h, rows, n);
		assert_int_equal(manual_try(h, rows, n, entry), -EINVAL);
		manual_assert_written(h, NULL, 0, tested->name);
		manual_prefill(h, MANUAL_ROWS, 3);
	}
}

/* F28 */
static void test_more_tokens_than_were_captured_are_refused(void **state)
{
	struct manual *h = *state;
	struct manual_row few = {0, 4, 3}, many = few;
	struct graph_entry *entry;

	manual_prefill(h, 1, 3);
	entry = graph_of(h, tested, &few, 1, false);
	manual_poison(h, &few, 1);
	for (many.n_tokens = entry->descriptor.tokens + 1; many.n_tokens < 40; many.n_tokens += 9) {
		assert_int_equal(manual_try(h, &many, 1, entry), -EINVAL);
		manual_assert_written(h, NULL, 0, tested->name);
	}
}

/* ---- claims about all of them ---- */

/* F18: large ones were captured first, pieces before the rest; all in the same pool. */
static void test_graphs_replay_right_whichever_was_captured_or_replayed_before(void **state)
{
	struct manual *h = *state;
	static const uint32_t order[] = {16, 1, 8, 2, 16, 4, 15, 1, 3, 2, 7, 16};
	static const struct kind *const kinds[] = {&pieces, &decodes, &pieces, &queries};

	manual_prefill(h, MANUAL_ROWS, 30);
	for (uint32_t i = 0; i < 48; i++) {
		const struct kind *kind = kinds[(i + i / 12) % 4];
		uint32_t n = order[i % 12];

		if (n > most_rows(kind))
			n = 1 + n % most_rows(kind);
		assert_equals_eager(h, kind, n, 30 - i % 7, i % 3 == 2);
	}
}

static void test_full_graphs_of_any_batch_replay_right_whichever_came_before(void **state)
{
	struct manual *h = *state;
	static const uint32_t order[] = {16, 1, 8, 2, 16, 4, 15, 1, 3, 2, 7, 16};

	manual_prefill(h, MANUAL_ROWS, 30);
	for (uint32_t i = 0; i < 12; i++)
		assert_equals_eager(h, &whole, order[i], 30 - i % 7, i % 3 == 2);
}

/* F28: per-row metadata is nothing that pieces know. */
static void test_pieces_take_as_many_rows_as_they_have_tokens(void **state)
{
	struct manual *h = *state;
	struct manual_row rows[MANUAL_ROWS];

	manual_prefill(h, MANUAL_ROWS, 9);
	make_batch(&decodes, MANUAL_ROWS, 9, rows);
	for (uint32_t n = 1; n <= MANUAL_ROWS; n++) {
		struct graph_entry *entry = manual_graph(h, rows, n, false);

		assert_int_equal(entry->descriptor.mode, GRAPH_PIECEWISE);
		manual_run(h, rows, n, NULL, expected);
		manual_run(h, rows, n, entry, logits);
		manual_assert_logits(logits, expected, n, "decodes in pieces");
	}
}

#define CLAIM(test, kind, text) \
	{#test " (" text ")", test, open_kind, manual_teardown, (void *)&(kind)}
#define KIND_TEST(test, kind) {#test, test, open_kind, manual_teardown, (void *)&(kind)}
#define OF_EACH(test) \
	CLAIM(test, decodes, "FULL, one token a row"), \
		CLAIM(test, queries, "FULL, four tokens a row"), \
		CLAIM(test, pieces, "PIECEWISE"), CLAIM(test, whole, "FULL, any batch")

int main(void)
{
	const struct CMUnitTest tests[] = {
		OF_EACH(test_replay_equals_eager),
		OF_EACH(test_histories_up_to_the_longest_sequence_replay_as_they_run_eager),
		OF_EACH(test_padding_writes_nothing_anywhere),
		CLAIM(test_slots_of_the_chunk_before_are_gone_between_tokens_and_padding, pieces,
			"PIECEWISE"),
		CLAIM(test_slots_of_the_chunk_before_are_gone_between_tokens_and_padding, whole,
			"FULL, any batch"),
		OF_EACH(test_nan_in_what_padding_reads_leaves_real_rows_bitwise_unchanged),
		OF_EACH(test_warm_up_with_lengths_of_zero_makes_no_nan),
		OF_EACH(test_step_without_rows_writes_nothing_and_changes_no_later_step),
		CLAIM(test_more_rows_than_were_captured_are_refused, decodes,
			"FULL, one token a row"),
		CLAIM(test_more_rows_than_were_captured_are_refused, queries,
			"FULL, four tokens a row"),
		CLAIM(test_more_rows_than_were_captured_are_refused, whole, "FULL, any batch"),
		CLAIM(test_more_tokens_than_were_captured_are_refused, queries,
			"FULL, four tokens a row"),
		CLAIM(test_more_tokens_than_were_captured_are_refused, pieces, "PIECEWISE"),
		CLAIM(test_more_tokens_than_were_captured_are_refused, whole, "FULL, any batch"),
		KIND_TEST(test_graphs_replay_right_whichever_was_captured_or_replayed_before, queries),
		KIND_TEST(test_full_graphs_of_any_batch_replay_right_whichever_came_before, whole),
		KIND_TEST(test_pieces_take_as_many_rows_as_they_have_tokens, pieces),
	};

	return cmocka_run_group_tests_name("engine executor", tests, NULL, NULL);
}
