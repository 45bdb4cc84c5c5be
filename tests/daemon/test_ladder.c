/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/graph/graph_set.h"

static bool has(const struct ladder *ladder, uint32_t size)
{
	for (uint32_t i = 0; i < ladder->n; i++) {
		if (ladder->sizes[i] == size)
			return true;
	}
	return false;
}

static void assert_ascending(const struct ladder *ladder)
{
	for (uint32_t i = 1; i < ladder->n; i++)
		assert_true(ladder->sizes[i - 1] < ladder->sizes[i]);
}

static void test_ladder_default_has_the_documented_sizes(void **state)
{
	struct ladder ladder;

	ladder_default(&ladder, 8192, 256, 1);
	assert_ascending(&ladder);
	/* 1, 2, 4; 8 ... 248 by 8; 256 ... 512 by 16 */
	assert_int_equal(ladder.n, 3 + 31 + 17);
	assert_true(has(&ladder, 1) && has(&ladder, 2) && has(&ladder, 4) && has(&ladder, 8));
	assert_true(has(&ladder, 248) && has(&ladder, 256) && has(&ladder, 272) && has(&ladder, 512));
	assert_false(has(&ladder, 3) || has(&ladder, 12) || has(&ladder, 264) || has(&ladder, 528));
}

static void test_ladder_default_always_holds_its_exact_maximum(void **state)
{
	struct ladder ladder;

	for (uint32_t maximum = 1; maximum < 700; maximum++) {
		ladder_default(&ladder, maximum, 16, 1);
		assert_ascending(&ladder);
		assert_int_equal(ladder.sizes[ladder.n - 1], maximum < 512 ? maximum : 512);
	}
	/* The widest decode is covered. */
	ladder_default(&ladder, 100000, 700, 5);
	assert_int_equal(ladder.sizes[ladder.n - 1], 3500);
	ladder_default(&ladder, 1u << 30, 1u << 20, 1);
	assert_ascending(&ladder);
	assert_int_equal(ladder.sizes[ladder.n - 1], 1u << 20);
}

static void test_wide_sizes_are_multiples_of_a_quarter_of_a_power_of_two(void **state)
{
	static const uint32_t sizes[] = {2049, 2048, 1792, 1536, 1280, 1024, 896, 768, 640, 512};

	for (size_t i = 0; i + 1 < sizeof(sizes) / sizeof(sizes[0]); i++)
		assert_int_equal(ladder_wide(sizes[i] - 1), sizes[i + 1]);
	for (uint32_t tokens = 0; tokens < 8; tokens++)
		assert_int_equal(ladder_wide(tokens), tokens);
}

static void test_ladder_of_a_user_is_sorted_made_distinct_and_otherwise_kept(void **state)
{
	const uint32_t sizes[] = {7, 3, 1, 3, 42};
	struct ladder ladder;
	uint32_t bad = 0;

	assert_int_equal(ladder_user(&ladder, sizes, 5, 64, &bad), 0);
	assert_int_equal(ladder.n, 4);
	assert_int_equal(ladder.sizes[0], 1);
	assert_int_equal(ladder.sizes[1], 3);
	assert_int_equal(ladder.sizes[2], 7);
	assert_int_equal(ladder.sizes[3], 42);
}

static void test_ladder_of_a_user_out_of_range_is_an_error_not_a_drop(void **state)
{
	const uint32_t wide[] = {1, 65}, zero[] = {0};
	struct ladder ladder;
	uint32_t bad = 0;

	assert_int_equal(ladder_user(&ladder, wide, 2, 64, &bad), -ERANGE);
	assert_int_equal(bad, 65);
	assert_int_equal(ladder_user(&ladder, zero, 1, 64, &bad), -ERANGE);
	assert_int_equal(bad, 0);
	assert_int_equal(ladder_user(&ladder, wide, LADDER_MAX + 1, 64, &bad), -E2BIG);
}

static void test_decode_family_rounds_up_to_the_query_and_covers_the_widest(void **state)
{
	struct descriptor family[LADDER_MAX];
	struct ladder ladder;
	uint32_t n;

	ladder_default(&ladder, 512, 20, 5);
	n = ladder_decode_family(&ladder, 5, 20, family);
	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(family[i].mode, GRAPH_FULL);
		assert_int_equal(family[i].tokens, family[i].rows * 5);
		assert_int_equal(family[i].query_len, 5);
		assert_true(!i || family[i - 1].rows < family[i].rows);
	}
	assert_int_equal(family[0].rows, 1);
	assert_int_equal(family[n - 1].rows, 20);
}

static struct batch_shape decodes(uint32_t rows)
{
	return (struct batch_shape){
		.rows = rows, .tokens = rows, .uniform = true, .past_prompt = true, .query_len = 1};
}

static void test_dispatch_takes_the_smallest_descriptor_that_fits(void **state)
{
	const uint32_t sizes[] = {1, 3, 7};
	struct descriptor family[LADDER_MAX];
	struct batch_shape shape;
	struct ladder ladder;
	uint32_t bad, n;

	assert_int_equal(ladder_user(&ladder, sizes, 3, 64, &bad), 0);
	n = ladder_decode_family(&ladder, 1, 64, family);
	for (uint32_t rows = 1; rows <= 7; rows++) {
		shape = decodes(rows);
		assert_int_equal(family[descriptor_find(family, n, &shape)].rows,
			rows <= 1 ? 1 : rows <= 3 ? 3 : 7);
	}
	shape = decodes(8);
	assert_int_equal(descriptor_find(family, n, &shape), -1);
}

static void test_dispatch_refuses_a_prompt_chunk_that_looks_like_a_decode(void **state)
{
	struct descriptor family[LADDER_MAX];
	struct batch_shape shape = decodes(4);
	struct ladder ladder;
	uint32_t n;

	ladder_default(&ladder, 512, 64, 1);
	n = ladder_decode_family(&ladder, 1, 64, family);
	assert_true(descriptor_find(family, n, &shape) >= 0);
	shape.past_prompt = false;
	assert_int_equal(descriptor_find(family, n, &shape), -1);
	shape = decodes(4);
	shape.uniform = false;
	assert_int_equal(descriptor_find(family, n, &shape), -1);
	shape = decodes(4);
	shape.query_len = 2;
	assert_int_equal(descriptor_find(family, n, &shape), -1);
	shape = decodes(0);
	assert_int_equal(descriptor_find(family, n, &shape), -1);
}

static void make_set(struct graph_set *set, enum graph_mode mode, bool ready)
{
	struct ladder ladder;

	ladder_default(&ladder, 64, 8, 1);
	assert_int_equal(graph_set_init(set, mode, &ladder, 1, 8), 0);
	for (uint32_t i = 0; ready && i < set->n; i++)
		atomic_store(&set->entries[i].state, GRAPH_READY);
}

/* "FULL 4x1", or the reason why not. */
static const char *taken(const struct graph_set *set, struct batch_shape shape, char buffer[32])
{
	enum eager_reason reason;
	const struct graph_entry *entry = graph_set_dispatch(set, &shape, &reason);

	if (reason != EAGER_NO)
		return eager_reason_name(reason);
	descriptor_format(&entry->descriptor, buffer, 32);
	return buffer;
}

static struct batch_shape mixed(uint32_t rows, uint32_t tokens)
{
	return (struct batch_shape){.rows = rows, .tokens = tokens};
}

static void test_each_mode_takes_the_graphs_that_it_has(void **state)
{
	static const struct {
		enum graph_mode mode;
		const char *decode, *decode_5, *prompt, *wide;
	} expected[] = {
		{GRAPH_NONE, "mode", "mode", "mode", "mode"},
		{GRAPH_PIECEWISE, "PIECEWISE 2", "PIECEWISE 8", "PIECEWISE 16", "too_wide"},
		{GRAPH_FULL, "FULL 2", "FULL 8", "FULL 16", "too_wide"},
		{GRAPH_FULL_DECODE_ONLY, "FULL 2x1", "FULL 8x1", "mixed", "mixed"},
		{GRAPH_FULL_AND_PIECEWISE, "FULL 2x1", "FULL 8x1", "PIECEWISE 16", "too_wide"},
	};
	struct graph_set set;
	char text[32];

	for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
		make_set(&set, expected[i].mode, true);
		assert_string_equal(taken(&set, decodes(2), text), expected[i].decode);
		assert_string_equal(taken(&set, decodes(5), text), expected[i].decode_5);
		assert_string_equal(taken(&set, mixed(2, 9), text), expected[i].prompt);
		assert_string_equal(taken(&set, mixed(2, 65), text), expected[i].wide);
		graph_set_deinit(&set, NULL);
	}
}

static void test_graph_set_is_eager_until_all_is_captured(void **state)
{
	struct graph_set set;
	char text[32];

	make_set(&set, GRAPH_FULL_DECODE_ONLY, false);
	assert_string_equal(taken(&set, decodes(2), text), "not_captured");
	atomic_store(&set.entries[1].state, GRAPH_READY);
	assert_string_equal(taken(&set, decodes(2), text), "FULL 2x1");
	assert_string_equal(taken(&set, decodes(1), text), "not_captured");
	assert_string_equal(taken(&set, decodes(9), text), "too_wide");
	graph_set_deinit(&set, NULL);
}

/* F11: a wider full graph shadows a piecewise one that fits better. */
static void test_decode_prefers_a_wider_full_graph_to_a_narrower_piecewise_one(void **state)
{
	const uint32_t sizes[] = {3, 7, 12};
	struct graph_set set;
	struct ladder ladder;
	uint32_t bad;
	char text[32];

	assert_int_equal(ladder_user(&ladder, sizes, 3, 64, &bad), 0);
	/* Decodes of two tokens: rounded up, the full graphs are 4, 8 and 12 wide. */
	assert_int_equal(graph_set_init(&set, GRAPH_FULL_AND_PIECEWISE, &ladder, 2, 8), 0);
	for (uint32_t i = 0; i < set.n; i++)
		atomic_store(&set.entries[i].state, GRAPH_READY);
	for (uint32_t rows = 1; rows <= 6; rows++) {
		struct batch_shape shape = {rows, 2 * rows, true, true, 2};
		char expected[32];

		snprintf(expected, sizeof(expected), "FULL %ux2", rows <= 2 ? 2 : rows <= 4 ? 4 : 6);
		assert_string_equal(taken(&set, shape, text), expected);
		shape.past_prompt = false;
		snprintf(expected, sizeof(expected), "PIECEWISE %u",
			rows <= 1 ? 3 : rows <= 3 ? 7 : 12);
		assert_string_equal(taken(&set, shape, text), expected);
	}
	graph_set_deinit(&set, NULL);
}

/* F8: with K drafts a decode has 1 + K tokens, and so may the tail of a prompt. */
static void test_prompt_tails_of_any_length_take_no_decode_graph(void **state)
{
	enum eager_reason reason;
	struct graph_set set;
	struct ladder ladder;

	ladder_default(&ladder, 64, 8, 5);
	for (uint32_t drafts = 0; drafts <= 4; drafts++) {
		assert_int_equal(graph_set_init(&set, GRAPH_FULL_AND_PIECEWISE, &ladder,
					 1 + drafts, 8), 0);
		for (uint32_t i = 0; i < set.n; i++)
			atomic_store(&set.entries[i].state, GRAPH_READY);
		for (uint32_t tail = 1; tail <= drafts + 2; tail++) {
			for (uint32_t rows = 1; rows <= 8; rows++) {
				struct batch_shape shape = {rows, rows * tail, true, false, tail};
				const struct graph_entry *entry =
					graph_set_dispatch(&set, &shape, &reason);

				assert_int_equal(reason, EAGER_NO);
				assert_int_equal(entry->descriptor.mode, GRAPH_PIECEWISE);
				/* The same shape past its prompt takes one, if it is a decode's. */
				shape.past_prompt = true;
				entry = graph_set_dispatch(&set, &shape, &reason);
				assert_int_equal(reason, EAGER_NO);
				assert_int_equal(entry->descriptor.mode,
					tail == 1 + drafts ? GRAPH_FULL : GRAPH_PIECEWISE);
			}
		}
		graph_set_deinit(&set, NULL);
	}
}

/* F9: a graph of a part of a request is none. */
static void test_decode_graphs_hold_whole_requests_whatever_the_ladder(void **state)
{
	struct descriptor family[LADDER_MAX];
	struct ladder ladder;
	uint32_t bad;

	for (uint32_t query = 1; query <= 16; query++) {
		for (uint32_t size = 1; size <= 40; size++) {
			const uint32_t sizes[] = {size, 41};
			struct batch_shape shape = {1, query, true, true, query};
			uint32_t n;

			assert_int_equal(ladder_user(&ladder, sizes, 2, 64, &bad), 0);
			n = ladder_decode_family(&ladder, query, 64, family);
			assert_in_range(n, 1, 2);
			for (uint32_t i = 0; i < n; i++) {
				assert_int_equal(family[i].tokens, family[i].rows * query);
				assert_int_equal(family[i].query_len, query);
			}
			assert_in_range(family[0].tokens, size, size + query - 1);
			for (; shape.tokens <= 41; shape.rows++, shape.tokens += query)
				assert_true(descriptor_find(family, n, &shape) >= 0);
		}
	}
}

/* F28 */
static void test_dispatch_never_takes_a_graph_of_fewer_requests(void **state)
{
	struct descriptor family[LADDER_MAX];
	struct batch_shape shape;
	struct ladder ladder;
	uint32_t n;

	ladder_default(&ladder, 512, 8, 1);
	n = ladder_mixed_family(&ladder, GRAPH_FULL, 8, family);
	for (uint32_t tokens = 1; tokens <= 512; tokens++) {
		for (uint32_t rows = 1; rows <= 9; rows++) {
			int index;

			shape = mixed(rows, tokens);
			index = descriptor_find(family, n, &shape);
			assert_true(index >= 0 || rows > 8);
			if (index >= 0)
				assert_true(family[index].rows >= rows);
		}
	}
}

static void test_graph_set_has_no_descriptors_under_none(void **state)
{
	struct batch_shape shape = decodes(2);
	enum eager_reason reason;
	struct graph_set set;
	struct ladder ladder;

	ladder_default(&ladder, 64, 8, 1);
	assert_int_equal(graph_set_init(&set, GRAPH_NONE, &ladder, 1, 8), 0);
	assert_int_equal(set.n, 0);
	assert_null(graph_set_dispatch(&set, &shape, &reason));
	assert_int_equal(reason, EAGER_MODE);
	graph_set_deinit(&set, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ladder_default_has_the_documented_sizes),
		cmocka_unit_test(test_ladder_default_always_holds_its_exact_maximum),
		cmocka_unit_test(test_wide_sizes_are_multiples_of_a_quarter_of_a_power_of_two),
		cmocka_unit_test(test_ladder_of_a_user_is_sorted_made_distinct_and_otherwise_kept),
		cmocka_unit_test(test_ladder_of_a_user_out_of_range_is_an_error_not_a_drop),
		cmocka_unit_test(test_decode_family_rounds_up_to_the_query_and_covers_the_widest),
		cmocka_unit_test(test_dispatch_takes_the_smallest_descriptor_that_fits),
		cmocka_unit_test(test_dispatch_refuses_a_prompt_chunk_that_looks_like_a_decode),
		cmocka_unit_test(test_each_mode_takes_the_graphs_that_it_has),
		cmocka_unit_test(test_graph_set_is_eager_until_all_is_captured),
		cmocka_unit_test(test_decode_prefers_a_wider_full_graph_to_a_narrower_piecewise_one),
		cmocka_unit_test(test_prompt_tails_of_any_length_take_no_decode_graph),
		cmocka_unit_test(test_decode_graphs_hold_whole_requests_whatever_the_ladder),
		cmocka_unit_test(test_dispatch_never_takes_a_graph_of_fewer_requests),
		cmocka_unit_test(test_graph_set_has_no_descriptors_under_none),
	};

	return cmocka_run_group_tests_name("ladder", tests, NULL, NULL);
}
