/* SPDX-License-Identifier: MIT */
/* Where a plan of latent attention lies, for numbers of tokens that end at what memory is aligned to. */
#include "attention/mla/mla.h"
#include "tests/ranges.h"

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
		block = aligned_alloc(ARENA_ALIGN, (arena.used + ARENA_ALIGN) & ~(ARENA_ALIGN - 1u));
		assert_non_null(block);
		arena = (struct arena){.base = block, .size = arena.used};
		mla_workspace_carve(&config, &mla_cpu_kernels, true, &arena, &work);
		struct range ranges[] = {
			RANGE(work.partial, sizes.chunk_tokens * config.n_heads * sizes.n_splits * 32),
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
		cmocka_unit_test(test_plan_of_any_number_of_tokens_shares_no_memory),
	};

	return cmocka_run_group_tests_name("latent plan memory", tests, NULL, NULL);
}
