/* SPDX-License-Identifier: MIT */
/* What graphs and steps may not do: outgrow their memory, their backend, or what was built for them.
 * The lane is driven by hand. */
#include "tests/daemon/manual.h"

#include <errno.h>

#include "tests/ranges.h"

static float logits[MANUAL_ROWS * MANUAL_VOCAB], expected[MANUAL_ROWS * MANUAL_VOCAB];

/* What a pass of so many padded tokens and rows touches. */
static void ranges_of(const struct manual *h, uint32_t tokens, uint32_t rows, struct range ret[8])
{
	const struct model_config *c = &h->runner->model->config;
	const struct model_buffers *b = &h->runner->context.buffers;
	const size_t act = tokens * dtype_bytes(h->runner->activation_dtype);
	const size_t q = act * c->n_heads * c->head_dim, kv = act * c->n_kv_heads * c->head_dim;
	const struct range all[8] = {
		{b->residual, act * c->hidden_size}, {b->normed, act * c->hidden_size},
		{b->qkv, q + 2 * kv}, {b->attention, q},
		{b->gate_up, 2 * act * c->intermediate_size},
		{b->activated, act * c->intermediate_size},
		{b->last_hidden, act / tokens * rows * c->hidden_size},
		{b->logits, (size_t)rows * c->vocab_size * sizeof(float)},
	};

	memcpy(ret, all, sizeof(all));
}

/* F12 */
static void test_widest_graph_has_memory_for_its_padding(void **state)
{
	struct manual *h = *state;
	const struct manual_row row = {0, 1, 0};
	struct range ranges[8];

	for (uint32_t i = 0; i < h->runner->graphs.n; i++) {
		const struct graph_entry *entry = &h->runner->graphs.entries[i];
		const struct descriptor *d = &entry->descriptor;

		assert_true(d->tokens <= h->runner->inputs.limits.max_tokens);
		assert_true(d->rows <= h->runner->inputs.limits.max_rows);
		ranges_of(h, d->tokens, d->rows ? d->rows : 5, ranges);
		assert_ranges_disjoint(ranges, 8, h->runner->pool, h->runner->pool_bytes);
		/* One token, and all the rest padding. */
		manual_run(h, &row, 1, NULL, expected);
		manual_poison(h, &row, 1);
		manual_run(h, &row, 1, entry, logits);
		manual_assert_written(h, &row, 1, "one token");
		manual_assert_logits(logits, expected, 1, "one token");
	}
	assert_int_equal(h->runner->graphs.descriptors[h->runner->graphs.n - 1].tokens, 50);
}

/* F13, by the backend itself: paged attention holds queries of 16 tokens at most in a graph. */
static void test_decodes_longer_than_the_backend_holds_are_not_captured(void **state)
{
	struct manual *h = *state;
	struct breakable_runner *breakable;
	struct graph_entry entry = {.descriptor = descriptor_decode(17, 17, 1)};

	breakable = &h->runner->executor.breakable;
	assert_int_equal(capture_now(&entry, breakable, h->lane), -ENOTSUP);
	assert_null(entry.exec);
	assert_int_equal(graph_entry_state(&entry), GRAPH_EMPTY);
	assert_false(h->rig.device->ops->capturing(h->lane));
	entry.descriptor = descriptor_decode(16, 16, 1);
	assert_int_equal(capture_now(&entry, breakable, h->lane), 0);
	manual_run(h, &(struct manual_row){0, 16, 0}, 1, NULL, expected);
	manual_run(h, &(struct manual_row){0, 16, 0}, 1, &entry, logits);
	manual_assert_logits(logits, expected, 1, "16 tokens a row");
	capture_drop(&entry, h->rig.device);
}

/* F3: a few tokens may need more of something than many. */
static void test_no_batch_needs_memory_after_lock_that_warm_up_did_not_allocate(void **state)
{
	struct manual *h = *state;

	for (uint32_t n = 1; n <= MANUAL_ROWS; n++) {
		for (uint32_t each = MANUAL_TOKENS / n; each > 0; each = each * 2 / 3) {
			struct manual_row rows[MANUAL_ROWS];

			for (uint32_t i = 0; i < n; i++)
				rows[i] = (struct manual_row){(int32_t)i, each, MANUAL_TOKENS - each};
			assert_int_equal(manual_try(h, rows, n, NULL), 0);
		}
	}
}

static void test_step_does_not_run_on_what_was_built_for_another_descriptor(void **state)
{
	struct manual *h = *state;
	struct manual_row rows[] = {{0, 1, 3}, {1, 1, 3}};
	const struct descriptor *two, *four;
	struct forward *replay, *eager;

	replay = &h->runner->executor.replay;
	eager = &h->runner->executor.eager;
	manual_prefill(h, MANUAL_ROWS, 3);
	two = &h->runner->graphs.descriptors[1];
	four = &h->runner->graphs.descriptors[2];
	manual_run(h, rows, 2, &h->runner->graphs.entries[1], NULL);
	assert_int_equal(forward_check(replay, two), 0);
	assert_int_equal(forward_check(replay, four), -ESTALE);
	/* Inputs of this step, metadata of an earlier one. */
	assert_int_equal(forward_check(eager, two), -ESTALE);
	manual_run(h, rows, 2, &h->runner->graphs.entries[2], NULL);
	assert_int_equal(forward_check(replay, two), -ESTALE);
	/* Metadata of that descriptor, inputs of another. */
	manual_run(h, rows, 2, NULL, NULL);
	assert_int_equal(forward_check(replay, four), -ESTALE);
	manual_poison(h, rows, 2);
	assert_int_equal(forward_run(replay, four, four->rows, h->lane), -ESTALE);
	assert_int_equal(forward_run(eager, four, four->rows, h->lane), -ESTALE);
	assert_int_equal(h->rig.device->ops->stream_sync(h->lane), 0);
	manual_assert_written(h, NULL, 0, "stale");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		MANUAL_TEST(test_widest_graph_has_memory_for_its_padding,
			.mode = GRAPH_FULL_AND_PIECEWISE, .max_batch_tokens = 50, .max_requests = 5),
		MANUAL_TEST(test_decodes_longer_than_the_backend_holds_are_not_captured,
			.mode = GRAPH_FULL_AND_PIECEWISE),
		MANUAL_TEST(test_no_batch_needs_memory_after_lock_that_warm_up_did_not_allocate,
			.mode = GRAPH_NONE),
		MANUAL_TEST(test_step_does_not_run_on_what_was_built_for_another_descriptor,
			.mode = GRAPH_FULL_AND_PIECEWISE),
	};

	return cmocka_run_group_tests_name("engine bounds", tests, NULL, NULL);
}
