/* SPDX-License-Identifier: MIT */
/* Splits, chunks and the workspace of latent attention, as one function sizes them. */
#include "attention/mla/mla.h"
#include "tests/ranges.h"

static void test_splits_cover_the_longest_sequence_and_no_more_than_the_limit(void **state)
{
	struct attention_config config = { .max_tokens = 40 };

	for (config.max_seq_len = 1; config.max_seq_len < 5000; config.max_seq_len++) {
		struct mla_sizes s =
			mla_sizes(&config, &mla_cpu_kernels, 1 + config.max_seq_len % 90);

		assert_int_equal(s.split_keys % MLA_TILE, 0);
		assert_in_range(s.n_splits, 1, mla_cpu_kernels.max_splits);
		assert_true(s.n_splits * s.split_keys >= config.max_seq_len);
		assert_int_equal(s.chunk_tokens, 40);
	}
}

/* Whatever splits a backend's number of blocks gives: the workspace holds any batch's. */
static void test_workspace_holds_the_splits_of_every_number_of_tokens(void **state)
{
	static const uint32_t heads[] = {1, 16, 33, 128, 5000}, lengths[] = {1, 70, 4096, 163840};
	const struct mla_kernels blocks = {
		.max_splits = 128, .chunk_tokens = 512, .n_blocks = 132, .block_heads = 32 };

	for (uint32_t i = 0; i < 40; i++) {
		struct attention_config config = {
			.n_heads = heads[i % 5],
			.latent.rank = 1,
			.max_seq_len = lengths[i / 5 % 4],
			.max_tokens = 700,
			.activation_dtype = DTYPE_F32,
		};
		bool planned = i >= 20;
		struct mla_workspace work = { 0 };
		struct arena arena = { 0 };
		uint64_t capacity;

		mla_workspace_carve(&config, &blocks, planned, &arena, &work);
		arena = (struct arena){ .base = (void *)(uintptr_t)4096, .size = arena.used };
		mla_workspace_carve(&config, &blocks, planned, &arena, &work);
		capacity = (uint64_t)((uintptr_t)work.lse - (uintptr_t)work.partial) / sizeof(float);
		for (uint32_t n = 1; n <= 700; n++) {
			struct mla_sizes s = mla_sizes(&config, &blocks, n);
			uint64_t rows = n < s.chunk_tokens ? n : s.chunk_tokens;

			assert_true((uint64_t)s.n_splits * s.split_keys >= config.max_seq_len);
			assert_in_range(s.n_splits, 1, 128);
			if (s.n_splits > 1)
				assert_true(rows * s.n_splits * config.n_heads <= capacity);
			if (planned)
				assert_true(2ull * s.n_slots * config.n_heads <= capacity);
		}
	}
}

static void test_more_tokens_have_fewer_splits(void **state)
{
	const struct attention_config config = {
		.n_heads = 16, .max_seq_len = 16384, .max_tokens = 512 };
	const struct mla_kernels blocks = {
		.max_splits = 128, .chunk_tokens = 512, .n_blocks = 132, .block_heads = 32 };

	assert_int_equal(mla_sizes(&config, &blocks, 1).n_splits, 128);
	assert_int_equal(mla_sizes(&config, &blocks, 32).n_splits, 4);
	assert_int_equal(mla_sizes(&config, &blocks, 128).n_splits, 1);
	assert_in_range(
		mla_sizes(&config, &blocks, 136).n_splits, 2, 8); /* one would be two rounds */
	assert_int_equal(mla_sizes(&config, &blocks, 500).n_splits, 1);
}

/* Numbers of tokens that end at what memory is aligned to. */
static void test_plan_of_any_number_of_tokens_shares_no_memory(void **state)
{
	static const uint32_t tokens[] = {1, 63, 64, 65, 128};

	for (int i = 0; i < 5; i++) {
		const struct attention_config config = {
			.n_heads = 16,
			.latent.rank = 32,
			.max_seq_len = 700,
			.max_tokens = tokens[i],
			.activation_dtype = DTYPE_F32,
		};
		const struct mla_sizes sizes = mla_sizes(&config, &mla_cpu_kernels, 0);
		struct mla_workspace work;
		struct arena arena = {0};
		void *block;

		mla_workspace_carve(&config, &mla_cpu_kernels, true, &arena, &work);
		block = aligned_alloc(
			ARENA_ALIGN, (arena.used + ARENA_ALIGN) & ~(ARENA_ALIGN - 1u));
		assert_non_null(block);
		arena = (struct arena){.base = block, .size = arena.used};
		mla_workspace_carve(&config, &mla_cpu_kernels, true, &arena, &work);
		struct range ranges[] = {
			RANGE(work.partial,
				sizes.chunk_tokens * config.n_heads * sizes.n_splits * 32),
			RANGE(work.lse, sizes.chunk_tokens * config.n_heads * sizes.n_splits),
			{work.latent, sizes.chunk_tokens * config.n_heads * 32 * sizeof(float)},
			RANGE(work.plan.token_items, config.max_tokens + 1),
			RANGE(work.plan.items, config.max_tokens * sizes.n_splits),
		};

		assert_ranges_disjoint(ranges, 5, block, arena.size);
		free(block);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_splits_cover_the_longest_sequence_and_no_more_than_the_limit),
		cmocka_unit_test(test_workspace_holds_the_splits_of_every_number_of_tokens),
		cmocka_unit_test(test_more_tokens_have_fewer_splits),
		cmocka_unit_test(test_plan_of_any_number_of_tokens_shares_no_memory),
	};

	return cmocka_run_group_tests_name("latent sizes", tests, NULL, NULL);
}
