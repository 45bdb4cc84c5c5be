/* SPDX-License-Identifier: MIT */

/* Latent attention over a cache of fp8: the reference attends to rows that were rounded through e4m3. */

#include "tests/attention/latent_group.h"

static struct device *shared; /* of the group */

/* DeepSeek's rank and rope, small heads. */
#define NARROW { .rank = 512, .nope = 16, .rope = 64, .v = 8 }
#define SHAPE(heads, page, most)                                                                                      \
	{ .n_heads = heads, .latent = NARROW, .page_tokens = page, .max_seq_len = most, .fp8 = true }

static const struct shape ordinary = SHAPE(3, 16, 300);
static const struct shape small = { .n_heads = 3, .latent = { .rank = 20, .nope = 6, .rope = 4, .v = 7 },
	.page_tokens = 4, .max_seq_len = 300, .fp8 = true };
/* Heads as DeepSeek has them, few of whose keys decide. */
static const struct shape sharp = { .n_heads = 2, .latent = { .rank = 512, .nope = 128, .rope = 64, .v = 128 },
	.page_tokens = 16, .max_seq_len = 300, .sharp = 8, .fp8 = true };

static void check_both(const struct shape *shape, const struct row *rows, uint32_t n_rows, uint32_t padded_rows,
	uint32_t padded_tokens)
{
	for (size_t b = 0; b < N_MLA; b++)
		fixture_check_once(shared, latent_backends[b], shape, rows, n_rows, padded_rows, padded_tokens);
}

/* ---- right numbers ---- */

static struct shape draw_shape(uint64_t *dice)
{
	static const uint32_t page_tokens[] = { 1, 4, 16 }, lengths[] = { 40, 130, 300 };

	return (struct shape){
		.n_heads = 1 + random_below(dice, 4),
		.latent = { .rank = 1 + random_below(dice, 40), .nope = 1 + random_below(dice, 8),
			.rope = 2 * (1 + random_below(dice, 4)), .v = 1 + random_below(dice, 10) },
		.page_tokens = page_tokens[random_below(dice, 3)],
		.max_seq_len = lengths[random_below(dice, 3)],
		.fp8 = true,
	};
}

static void test_rows_of_any_model_agree_with_dense_reference(void **state)
{
	for (size_t b = 0; b < latent_n_backends(); b++) {
		uint64_t dice = 8;

		fixture_check_drawn(shared, latent_backends[b], &dice, 20, draw_shape, 4, 60);
	}
}

/* DeepSeek's rank and rope, for which a device may have kernels of their own: more heads than a block takes,
 * numbers of them that fill none, and pages of several sizes, one no power of two. */
static void test_decodes_agree_with_dense_reference(void **state)
{
	static const struct shape shapes[] = { SHAPE(16, 16, 1000), SHAPE(3, 64, 300), SHAPE(37, 8, 200),
		SHAPE(5, 32, 300), SHAPE(2, 24, 150) };
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 1, .seq_len = 97 },
		{ .seed = 2, .n_query = 1, .seq_len = 1 },
		{ .seed = 3, .n_query = 1, .seq_len = 64 },
		{ .seed = 4, .n_query = 1, .seq_len = 150 },
		{ .seed = 5, .n_query = 1, .seq_len = 1000 },
	};

	for (size_t i = 0; i < COUNT(shapes); i++) {
		check_both(&shapes[i], rows, i ? 4 : 5, 0, 0);
		check_both(&shapes[i], rows, 1, 0, 0);
	}
}

/* A key or a column out of place shows. */
static void test_decodes_that_few_keys_decide_agree_with_dense_reference(void **state)
{
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 1, .seq_len = 300 },
		{ .seed = 2, .n_query = 1, .seq_len = 33 },
		{ .seed = 3, .n_query = 1, .seq_len = 129 },
		{ .seed = 4, .n_query = 1, .seq_len = 2 },
	};

	check_both(&sharp, rows, 4, 0, 0);
	check_both(&sharp, rows, 1, 0, 0);
}

static void test_verified_rows_agree_with_dense_reference(void **state)
{
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 5, .seq_len = 299 },
		{ .seed = 2, .n_query = 5, .seq_len = 5 },
		{ .seed = 3, .n_query = 5, .seq_len = 66 },
		{ .seed = 4, .n_query = 2, .seq_len = 130 },
	};

	check_both(&ordinary, rows, 3, 0, 0);
	check_both(&ordinary, rows, 4, 8, 40);
	check_both(&sharp, rows, 4, 0, 0);
}

/* So many tokens that each is one piece, which leaves no partial result. */
static void test_many_tokens_agree_with_dense_reference(void **state)
{
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 16, .seq_len = 131 },
		{ .seed = 2, .n_query = 16, .seq_len = 200 },
		{ .seed = 3, .n_query = 16, .seq_len = 16 },
		{ .seed = 4, .n_query = 16, .seq_len = 300 },
		{ .seed = 5, .n_query = 16, .seq_len = 63 },
		{ .seed = 6, .n_query = 16, .seq_len = 64 },
		{ .seed = 7, .n_query = 16, .seq_len = 65 },
		{ .seed = 8, .n_query = 16, .seq_len = 200 },
	};

	check_both(&ordinary, rows, 8, 0, 0);
	check_both(&ordinary, rows, 8, 0, 160);
}

static void test_prompts_beside_decodes_agree_with_dense_reference(void **state)
{
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 1, .seq_len = 33 },
		{ .seed = 2, .n_query = 130, .seq_len = 300 },
		{ .seed = 3, .n_query = 40, .seq_len = 40 },
		{ .seed = 4, .n_query = 4, .seq_len = 200 },
		{ .seed = 5, .n_query = 17, .seq_len = 257 },
	};

	check_both(&ordinary, rows, 5, 8, 200);
	check_both(&sharp, rows, 5, 0, 0);
}

/* Each sees what is cached of those before it, whichever way it goes. */
static void test_chunks_of_a_prompt_agree_with_dense_reference(void **state)
{
	static const uint32_t chunks[] = { 129, 1, 17, 64, 16, 63, 2 }; /* 292 */

	for (size_t b = 0; b < N_MLA; b++) {
		struct fixture f;
		uint32_t done = 0;

		fixture_init(&f, shared, latent_backends[b], &sharp);
		for (size_t i = 0; i < COUNT(chunks); i++) {
			done += chunks[i];
			fixture_check(&f, &(struct row){ .seed = 6, .n_query = chunks[i], .seq_len = done }, 1, 0, 0);
		}
		fixture_deinit(&f);
	}
}

/* ---- edges ---- */

static void test_empty_rows_and_padding_give_zero(void **state)
{
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 2, .seq_len = 0 },
		{ .seed = 2, .n_query = 3, .seq_len = 10 },
		{ .seed = 3, .n_query = 0, .seq_len = 7 },
		{ .seed = 4, .n_query = 1, .seq_len = 0 },
	};

	check_both(&ordinary, rows, 4, 8, 16);
	check_both(&ordinary, NULL, 0, 4, 4);
}

static void test_page_that_does_not_exist_reads_as_null_page(void **state)
{
	for (size_t i = 0; i < 2 * N_MLA; i++) {
		const struct row row = { .seed = 9, .n_query = i % 2 ? 20 : 1, .seq_len = 20 };
		struct fixture f;

		fixture_init(&f, shared, latent_backends[i / 2], &ordinary);
		fixture_check_missing_pages(&f, &row);
		fixture_deinit(&f);
	}
}

static void test_pages_beyond_4_g_elements_are_read(void **state)
{
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 1, .seq_len = 100 },
		{ .seed = 2, .n_query = 30, .seq_len = 60 },
	};

	for (size_t b = 0; b < N_MLA; b++) {
		struct fixture f;

		fixture_init(&f, shared, latent_backends[b], &ordinary);
		fixture_go_far(&f);
		fixture_check(&f, rows, 2, 0, 0);
		fixture_check(&f, rows, 1, 0, 0);
		fixture_deinit(&f);
	}
}

/* On the cpu device: to the last bit, in any batch. */
static void test_rows_do_not_depend_on_the_batch(void **state)
{
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 1, .seq_len = 97 },
		{ .seed = 2, .n_query = 40, .seq_len = 66 },
		{ .seed = 3, .n_query = 4, .seq_len = 300 },
	};

	for (size_t b = 0; b < latent_n_backends(); b++) {
		struct fixture f;

		fixture_init(&f, shared, latent_backends[b], &small);
		fixture_check_alone(&f, rows, 3, 5, 60);
		fixture_deinit(&f);
	}
}

/* ---- graphs ---- */

static void test_replay_at_other_lengths_equals_eager(void **state)
{
	static const struct row rows[] = {
		{ .seed = 11, .n_query = 2, .seq_len = 297 },
		{ .seed = 12, .n_query = 2, .seq_len = 2 },
		{ .seed = 13, .n_query = 2, .seq_len = 65 },
	};

	for (size_t b = 0; b < N_MLA; b++) {
		struct row warm[4];
		struct graph_exec *exec;
		struct fixture f;

		for (uint32_t r = 0; r < COUNT(warm); r++)
			warm[r] = (struct row){ .seed = 1 + r, .n_query = 2, .seq_len = 2 };
		fixture_init(&f, NULL, latent_backends[b], &ordinary); /* it is locked */
		fixture_place(&f, warm, COUNT(warm), 0, 0);
		exec = fixture_instantiate(&f, fixture_record(&f, 2));
		for (uint32_t n_rows = 0; n_rows <= COUNT(rows); n_rows++)
			fixture_check_replay(&f, exec, rows, n_rows, 4, 8, true);
		f.device->ops->graph_exec_free(exec);
		fixture_deinit(&f);
	}
}

static void test_warm_up_without_a_token_loads_what_later_batches_need(void **state)
{
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 100, .seq_len = 300 },
		{ .seed = 2, .n_query = 1, .seq_len = 70 },
	};

	for (size_t b = 0; b < N_MLA; b++) {
		struct fixture f;

		fixture_init(&f, NULL, latent_backends[b], &ordinary);
		fixture_run_rows(&f, NULL, 0, 0, 0);
		assert_int_equal(f.device->ops->lock(f.device), 0);
		fixture_check(&f, rows, 2, 0, 0);
		fixture_check(&f, rows + 1, 1, 0, 0);
		fixture_deinit(&f);
	}
}

int main(void)
{
	static const struct test_cpu_only only[] = {
		{ "do_not_depend_on_the_batch", "sums go by the batch's shape" },
	};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rows_of_any_model_agree_with_dense_reference),
		cmocka_unit_test(test_decodes_agree_with_dense_reference),
		cmocka_unit_test(test_decodes_that_few_keys_decide_agree_with_dense_reference),
		cmocka_unit_test(test_verified_rows_agree_with_dense_reference),
		cmocka_unit_test(test_many_tokens_agree_with_dense_reference),
		cmocka_unit_test(test_prompts_beside_decodes_agree_with_dense_reference),
		cmocka_unit_test(test_chunks_of_a_prompt_agree_with_dense_reference),
		cmocka_unit_test(test_empty_rows_and_padding_give_zero),
		cmocka_unit_test(test_page_that_does_not_exist_reads_as_null_page),
		cmocka_unit_test(test_pages_beyond_4_g_elements_are_read),
		cmocka_unit_test(test_rows_do_not_depend_on_the_batch),
		cmocka_unit_test(test_replay_at_other_lengths_equals_eager),
		cmocka_unit_test(test_warm_up_without_a_token_loads_what_later_batches_need),
	};
	int failed;

	shared = test_device_open(0);
	failed = TEST_RUN_GROUP("latent attention over fp8", tests, only, NULL, NULL);
	shared->ops->free(shared);
	return failed;
}
