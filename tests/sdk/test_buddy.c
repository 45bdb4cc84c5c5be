/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "sdk/buddy.h"

#define ARENA_BYTES (64u << 10)

static int setup(void **state)
{
	static struct buddy arena;

	*state = &arena;
	return buddy_init(&arena, ARENA_BYTES);
}

static int teardown(void **state)
{
	buddy_deinit(*state);
	return 0;
}

static void test_fresh_arena_gives_its_whole_size(void **state)
{
	struct buddy_block block;

	assert_true(buddy_take(*state, ARENA_BYTES, &block));
	assert_int_equal(block.offset, 0);
	assert_int_equal(block.bytes, ARENA_BYTES);
}

static void test_full_arena_refuses_the_smallest_block(void **state)
{
	struct buddy_block block;

	assert_true(buddy_take(*state, ARENA_BYTES, &block));
	assert_false(buddy_take(*state, 1, &block));
}

static void test_more_than_the_arena_is_refused(void **state)
{
	struct buddy_block block;

	assert_false(buddy_take(*state, ARENA_BYTES + 1, &block));
	assert_false(buddy_take(*state, UINT64_MAX, &block));
}

static void test_sizes_round_up_to_powers_of_two(void **state)
{
	const struct { uint64_t asked; uint32_t given; } cases[] = {
		{1, 64}, {64, 64}, {65, 128}, {128, 128}, {129, 256}, {4097, 8192}, {32769, 65536}};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct buddy_block block;

		assert_true(buddy_take(*state, cases[i].asked, &block));
		assert_int_equal(block.bytes, cases[i].given);
		assert_int_equal(block.offset % block.bytes, 0);
		buddy_give(*state, block);
	}
}

static void test_small_blocks_fill_the_arena_exactly(void **state)
{
	static struct buddy_block blocks[ARENA_BYTES / BUDDY_BLOCK_MIN];
	const size_t n = sizeof(blocks) / sizeof(blocks[0]);
	struct buddy_block more;

	for (size_t i = 0; i < n; i++)
		assert_true(buddy_take(*state, BUDDY_BLOCK_MIN, &blocks[i]));
	assert_false(buddy_take(*state, 1, &more));
	for (size_t i = 0; i < n; i += 2)
		buddy_give(*state, blocks[i]);
	assert_false(buddy_take(*state, BUDDY_BLOCK_MIN + 1, &more));
	for (size_t i = 1; i < n; i += 2)
		buddy_give(*state, blocks[i]);
	assert_true(buddy_take(*state, ARENA_BYTES, &more));
}

static void test_take_prefers_the_half_with_less_to_spare(void **state)
{
	struct buddy_block low, high, small;

	assert_true(buddy_take(*state, ARENA_BYTES / 2, &low));
	assert_true(buddy_take(*state, 64, &high));
	buddy_give(*state, low);
	assert_true(buddy_take(*state, 64, &small));
	assert_int_equal(small.offset, high.offset ^ 64);
	assert_true(buddy_take(*state, ARENA_BYTES / 2, &low));
}

static void test_giving_no_block_changes_nothing(void **state)
{
	struct buddy_block block;

	assert_true(buddy_take(*state, ARENA_BYTES, &block));
	buddy_give(*state, (struct buddy_block){0});
	assert_false(buddy_take(*state, 1, &block));
}

/* Against a map of which byte is whose, with sizes and order from a fixed generator. */
static void test_blocks_never_overlap_and_all_come_back(void **state)
{
	static uint8_t owner[ARENA_BYTES];
	struct buddy_block blocks[200] = {0}, whole;
	uint32_t random = 1;

	memset(owner, 0, sizeof(owner));
	for (unsigned round = 0; round < 20000; round++) {
		random = random * 1664525u + 1013904223u;
		unsigned i = (random >> 8) % 200;
		struct buddy_block *block = &blocks[i];

		if (block->bytes > 0) {
			for (uint32_t k = 0; k < block->bytes; k++) {
				assert_int_equal(owner[block->offset + k], i + 1);
				owner[block->offset + k] = 0;
			}
			buddy_give(*state, *block);
			*block = (struct buddy_block){0};
		} else if (buddy_take(*state, 1 + (random >> 16) % 3000, block)) {
			assert_true(block->offset + block->bytes <= ARENA_BYTES);
			for (uint32_t k = 0; k < block->bytes; k++) {
				assert_int_equal(owner[block->offset + k], 0);
				owner[block->offset + k] = (uint8_t)(i + 1);
			}
		}
	}
	for (unsigned i = 0; i < 200; i++)
		buddy_give(*state, blocks[i]);
	assert_true(buddy_take(*state, ARENA_BYTES, &whole));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_fresh_arena_gives_its_whole_size),
		TEST(test_full_arena_refuses_the_smallest_block),
		TEST(test_more_than_the_arena_is_refused),
		TEST(test_sizes_round_up_to_powers_of_two),
		TEST(test_small_blocks_fill_the_arena_exactly),
		TEST(test_take_prefers_the_half_with_less_to_spare),
		TEST(test_giving_no_block_changes_nothing),
		TEST(test_blocks_never_overlap_and_all_come_back),
	};

	return cmocka_run_group_tests_name("sdk", tests, NULL, NULL);
}
