/* SPDX-License-Identifier: MIT */

/*
 * Prompts that are not absorbed, on the device of MIMEO_DEVICE, against a dense reference; and what
 * the host plans for them.
 */

#include <math.h>
#include <string.h>

#include "attention/mla/mla_segments.h"
#include "tests/attention/prompt_world.h"

/* ---- right numbers ---- */

/* No size a multiple of anything; tuned: those that cuda has a kernel for. */
static const struct prompt_shape odd = {
	.n_heads = 3, .rank = 21, .nope = 6, .rope = 4, .v = 7,
	.page_tokens = 4, .max_seq_len = 1500 };
static const struct prompt_shape odd_small = {
	.n_heads = 3, .rank = 21, .nope = 6, .rope = 4, .v = 7,
	.page_tokens = 4, .max_seq_len = 1500, .small = true };
static const struct prompt_shape wide = {
	.n_heads = 2, .rank = 40, .nope = 136, .rope = 24, .v = 280,
	.page_tokens = 1, .max_seq_len = 700, .small = true };
static const struct prompt_shape tuned = {
	.n_heads = 3, .rank = 64, .nope = 128, .rope = 64, .v = 128,
	.page_tokens = 16, .max_seq_len = 1500 };
static const struct prompt_shape tuned_small = {
	.n_heads = 3, .rank = 64, .nope = 128, .rope = 64, .v = 128,
	.page_tokens = 16, .max_seq_len = 1500, .small = true };

static void check_shape(const struct prompt_shape *shape)
{
	/* alone, with history, at edges of pages, tiles, blocks and chunks */
	static const struct prompt_row alone[] = {
		{ .seed = 1, .n_query = 17, .seq_len = 17 },
		{ .seed = 2, .n_query = 64, .seq_len = 64 },
		{ .seed = 3, .n_query = 127, .seq_len = 257 },
		{ .seed = 4, .n_query = 129, .seq_len = 256 },
		{ .seed = 5, .n_query = 300, .seq_len = 300 },
		{ .seed = 6, .n_query = 17, .seq_len = 700 },
		{ .seed = 7, .n_query = 520, .seq_len = 650 },
		{ .seed = 8, .n_query = 200, .seq_len = 512 },
	};
	static const struct prompt_row crowd[] = {
		{ .seed = 11, .n_query = 17, .seq_len = 33, .gap = 1 },
		{ .seed = 12, .n_query = 300, .seq_len = 640 },
		{ .seed = 13, .n_query = 130, .seq_len = 130, .gap = 16 },
		{ .seed = 14, .n_query = 20, .seq_len = 127 },
		{ .seed = 15, .n_query = 90, .seq_len = 90 },
	};
	struct prompt_world w;

	prompt_init(&w, shape);
	for (size_t i = 0; i < sizeof(alone) / sizeof(*alone); i++)
		prompt_check(&w, &alone[i], 1);
	prompt_check(&w, crowd, 5);
	prompt_deinit(&w);
}

static void test_odd_sizes_agree_with_dense_reference(void **state)
{
	(void)state;
	check_shape(&odd);
}

static void test_odd_sizes_in_small_chunks_agree_with_dense_reference(void **state)
{
	(void)state;
	check_shape(&odd_small);
}

static void test_wide_heads_agree_with_dense_reference(void **state)
{
	(void)state;
	check_shape(&wide);
}

static void test_tuned_sizes_agree_with_dense_reference(void **state)
{
	(void)state;
	check_shape(&tuned);
}

static void test_tuned_sizes_in_small_chunks_agree_with_dense_reference(void **state)
{
	(void)state;
	check_shape(&tuned_small);
}

static void test_thousands_of_tokens_agree_with_dense_reference(void **state)
{
	static const struct prompt_shape full = {
		.n_heads = 2, .rank = 512, .nope = 128, .rope = 64, .v = 128,
		.page_tokens = 16, .max_seq_len = 5000 };
	static const struct prompt_shape longer = {
		.n_heads = 1, .rank = 64, .nope = 128, .rope = 64, .v = 128,
		.page_tokens = 16, .max_seq_len = 9000 };
	static const struct prompt_shape longer_small = {
		.n_heads = 1, .rank = 64, .nope = 128, .rope = 64, .v = 128,
		.page_tokens = 16, .max_seq_len = 9000, .small = true };
	static const struct prompt_row whole = { .seed = 1, .n_query = 5000, .seq_len = 5000 };
	static const struct prompt_row chunk = { .seed = 2, .n_query = 600, .seq_len = 9000 };
	struct prompt_world w;

	(void)state;
	prompt_init(&w, &full);
	prompt_check(&w, &whole, 1);
	prompt_deinit(&w);
	prompt_init(&w, &longer);
	prompt_check(&w, &chunk, 1);
	prompt_deinit(&w);
	prompt_init(&w, &longer_small);
	prompt_check(&w, &chunk, 1);
	prompt_deinit(&w);
}

/* A block of cuda's kernel takes one after the other, and the tickets start over with each launch; an H200
 * has 132 blocks. */
static void test_more_items_than_blocks_agree_with_dense_reference(void **state)
{
	const struct prompt_shape many = {
		.n_heads = test_on_cuda() ? 20 : 2, .rank = 64, .nope = 128, .rope = 64, .v = 128,
		.page_tokens = 16, .max_seq_len = 1500 };
	static const struct prompt_row rows[] = { { .seed = 1, .n_query = 1000, .seq_len = 1000 },
		{ .seed = 2, .n_query = 300, .seq_len = 1400 } };
	struct prompt_world w;

	(void)state;
	prompt_init(&w, &many);
	for (int i = 0; i < 3; i++)
		prompt_check(&w, rows, 2);
	prompt_deinit(&w);
}

/* More of them than a chunk has pieces, and more keys than it holds. */
static void test_many_short_prompts_share_chunks(void **state)
{
	struct prompt_row rows[PROMPT_ROWS];
	struct prompt_world w;

	(void)state;
	for (uint32_t r = 0; r < PROMPT_ROWS; r++)
		rows[r] = (struct prompt_row){
			.seed = 50 + r, .n_query = 17 + r, .seq_len = 17 + 3 * r };
	prompt_init(&w, &tuned);
	prompt_check(&w, rows, PROMPT_ROWS);
	prompt_deinit(&w);
	prompt_init(&w, &odd_small);
	prompt_check(&w, rows, PROMPT_ROWS);
	prompt_deinit(&w);
}

static void test_pages_beyond_two_to_the_31_elements(void **state)
{
	static const struct prompt_shape far = {
		.n_heads = 2, .rank = 64, .nope = 128, .rope = 64, .v = 128,
		.page_tokens = 16, .max_seq_len = 300, .far = true };
	static const struct prompt_row rows[] = { { .seed = 1, .n_query = 50, .seq_len = 300 },
		{ .seed = 2, .n_query = 20, .seq_len = 20 } };
	struct prompt_world w;

	(void)state;
	prompt_init(&w, &far);
	prompt_check(&w, rows, 2);
	prompt_deinit(&w);
}

/* ---- what is not there ---- */

static void test_tokens_before_the_first_are_zero(void **state)
{
	static const struct prompt_row rows[] = {
		{ .seed = 1, .n_query = 40 }, { .seed = 2, .n_query = 30, .seq_len = 30 } };
	struct prompt_world w;
	void *out;

	(void)state;
	prompt_init(&w, &tuned);
	prompt_place(&w, rows, 2);
	w.rows[1].n_query = 30;
	w.rows[1].seq_len = 10; /* its last ten tokens, as the first of a sequence */
	out = prompt_run(&w, 2);
	for (size_t i = 0; i < (size_t)60 * w.out_width; i++)
		assert_true(prompt_get(&w, out, i) == 0.0f);
	for (size_t i = (size_t)60 * w.out_width; i < (size_t)70 * w.out_width; i++)
		assert_false(isnan(prompt_get(&w, out, i)));
	free(out);
	prompt_deinit(&w);
}

static void test_page_that_does_not_exist_reads_as_null_page(void **state)
{
	static const int32_t nowhere[] = { -1, INT32_MIN, INT32_MAX, 1 << 28 };
	static const struct prompt_row row = { .seed = 3, .n_query = 30, .seq_len = 60 };
	struct prompt_world w;

	(void)state;
	prompt_init(&w, &tuned);
	prompt_place(&w, &row, 1);
	test_fill(w.device, w.kv, 0, w.config.page_tokens * w.config.head_dim * w.act);
	test_copy(w.device, w.block_table, nowhere, sizeof(nowhere));
	void *out = prompt_run(&w, 1);

	for (size_t i = 0; i < (size_t)30 * w.out_width; i++)
		assert_true(prompt_get(&w, out, i) == 0.0f);
	free(out);
	prompt_deinit(&w);
}

/* ---- bits ---- */

/* On the cpu device whatever the chunks of keys are and whoever shares them; on cuda, where
 * products differ by their size, in equal surroundings. */
static void test_bits_depend_on_the_sequence_alone(void **state)
{
	static const struct prompt_row rows[] = { { .seed = 4, .n_query = 100, .seq_len = 500 },
		{ .seed = 5, .n_query = 333, .seq_len = 612, .gap = 3 } };
	const uint32_t n_before = test_on_cuda() ? 0 : 1;
	void *outs[2];
	struct prompt_world w;

	(void)state;
	for (uint32_t i = 0; i < 2; i++) {
		prompt_init(&w, i || test_on_cuda() ? &tuned_small : &tuned);
		prompt_place(&w, rows + n_before * (1 - i), 2 - n_before * (1 - i));
		outs[i] = prompt_run(&w, 2 - n_before * (1 - i));
		prompt_deinit(&w);
	}
	assert_memory_equal((uint8_t *)outs[0] + (103 - n_before * 100) * w.out_width * w.act,
		(uint8_t *)outs[1] + 103 * w.out_width * w.act, 333 * w.out_width * w.act);
	free(outs[0]);
	free(outs[1]);
}

/* ---- plans over integers ---- */

static void test_products_have_few_numbers_of_rows(void **state)
{
	struct mla_prompt_kernels kernels = { .granule = 128 };
	uint32_t n_classes = 0;

	(void)state;
	for (uint32_t n = 1; n <= 8192; n++) {
		uint32_t rows = mla_prompt_rows(&kernels, n);

		assert_true(rows >= n && rows % 128 == 0);
		assert_true(n <= 512 ? rows < n + 128 : rows <= n + n / 4);
		assert_int_equal(mla_prompt_rows(&kernels, rows), rows);
		n_classes += rows == n;
	}
	assert_in_range(n_classes, 4, 24);
	kernels.granule = 1;
	for (uint32_t n = 1; n < 500; n++)
		assert_int_equal(mla_prompt_rows(&kernels, n), n);
}

static void test_sizes_stay_within_their_bounds(void **state)
{
	const struct mla_prompt_kernels kernels = { .granule = 128, .max_keys = 8192,
		.expanded_bytes = 128u << 20, .sums_bytes = 128u << 20 };
	struct attention_config c = { .n_heads = 128, .latent = { 512, 128, 64, 128 },
		.max_rows = 2, .max_tokens = 8192, .max_seq_len = 100000,
		.activation_dtype = DTYPE_BF16 };
	struct mla_prompt_sizes s = mla_prompt_sizes(&c, &kernels);

	(void)state;
	assert_int_equal(s.n_keys, 2048);
	assert_int_equal(s.n_queries, 2048);
	assert_true(s.sums);
	c.n_heads = 16;
	s = mla_prompt_sizes(&c, &kernels);
	assert_int_equal(s.n_keys, 8192);
	assert_int_equal(s.n_queries, 8192);
	c.max_seq_len = 5000;
	s = mla_prompt_sizes(&c, &kernels);
	assert_int_equal(s.n_keys, 8192);
	assert_false(s.sums);
	c.max_rows = 1;
	s = mla_prompt_sizes(&c, &kernels);
	assert_int_equal(s.n_keys, 5120);
	c.n_heads = 100000;
	s = mla_prompt_sizes(&c, &kernels);
	assert_int_equal(s.n_keys, 256);
}

static void assert_segment(const struct mla_segments *s, uint32_t i, uint32_t first, uint32_t end,
	uint32_t n_prompts)
{
	assert_true(i < s->n);
	assert_int_equal(s->segments[i].first, first);
	assert_int_equal(s->segments[i].end, end);
	assert_int_equal(s->segments[i].n_prompts, n_prompts);
}

static void test_batch_is_cut_where_the_way_changes(void **state)
{
	static const uint32_t query[] = { 1, 16, 17, 0, 40, 3, 100 };
	static const uint32_t seq[] = { 9, 16, 50, 0, 40, 90, 100 };
	const struct mla_prompt_kernels kernels = { .few_keys = UINT32_MAX };
	struct attention_batch batch = { .n_rows = 7, .padded_tokens = 180, .n_tokens = 177,
		.query_lens = query, .seq_lens = seq };
	struct mla_segments s;

	(void)state;
	assert_int_equal(mla_segments_init(&s, &kernels, 7), 0);
	for (int again = 0; again < 2; again++) {
		mla_segments_cut(&s, &batch);
		assert_int_equal(s.n, 5);
		assert_segment(&s, 0, 0, 17, 0);
		assert_segment(&s, 1, 17, 74, 2);
		assert_segment(&s, 2, 74, 77, 0);
		assert_segment(&s, 3, 77, 177, 1);
		assert_segment(&s, 4, 177, 180, 0);
		assert_int_equal(s.n_prompts, 3);
		assert_int_equal(s.prompts[1].row, 4);
		assert_int_equal(s.prompts[1].first_token, 34);
		assert_int_equal(s.prompts[1].seq_len, 40);
		assert_int_equal(s.segments[3].first_prompt, 2);
	}
	batch.n_rows = 0;
	batch.padded_tokens = 0;
	mla_segments_cut(&s, &batch);
	assert_int_equal(s.n, 1);
	assert_segment(&s, 0, 0, 0, 0);
	mla_segments_deinit(&s);
}

static void test_few_queries_over_many_keys_are_absorbed(void **state)
{
	static const uint32_t query[] = { 17, 17, 95, 96, 16 };
	static const uint32_t seq[] = { 1000, 1001, 9000, 9000, 16 };
	const struct mla_prompt_kernels kernels = { .many_queries = 96, .few_keys = 1000 };
	struct attention_batch batch = { .n_rows = 5, .padded_tokens = 241, .n_tokens = 241,
		.query_lens = query, .seq_lens = seq };
	struct mla_segments s;

	(void)state;
	assert_int_equal(mla_segments_init(&s, &kernels, 5), 0);
	mla_segments_cut(&s, &batch);
	assert_int_equal(s.n, 4);
	assert_segment(&s, 0, 0, 17, 1);
	assert_segment(&s, 1, 17, 129, 0);
	assert_segment(&s, 2, 129, 225, 1);
	assert_segment(&s, 3, 225, 241, 0);
	mla_segments_deinit(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_odd_sizes_agree_with_dense_reference),
		cmocka_unit_test(test_odd_sizes_in_small_chunks_agree_with_dense_reference),
		cmocka_unit_test(test_wide_heads_agree_with_dense_reference),
		cmocka_unit_test(test_tuned_sizes_agree_with_dense_reference),
		cmocka_unit_test(test_tuned_sizes_in_small_chunks_agree_with_dense_reference),
		cmocka_unit_test(test_thousands_of_tokens_agree_with_dense_reference),
		cmocka_unit_test(test_more_items_than_blocks_agree_with_dense_reference),
		cmocka_unit_test(test_many_short_prompts_share_chunks),
		cmocka_unit_test(test_pages_beyond_two_to_the_31_elements),
		cmocka_unit_test(test_tokens_before_the_first_are_zero),
		cmocka_unit_test(test_page_that_does_not_exist_reads_as_null_page),
		cmocka_unit_test(test_bits_depend_on_the_sequence_alone),
		cmocka_unit_test(test_products_have_few_numbers_of_rows),
		cmocka_unit_test(test_sizes_stay_within_their_bounds),
		cmocka_unit_test(test_batch_is_cut_where_the_way_changes),
		cmocka_unit_test(test_few_queries_over_many_keys_are_absorbed),
	};
	static const struct test_cpu_only only[] = { { NULL, NULL } };

	return TEST_RUN_GROUP("mla prompt", tests, only, NULL, NULL);
}
