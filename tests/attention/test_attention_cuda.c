/* SPDX-License-Identifier: MIT */
#include "tests/attention/cuda_group.h"

/* ---- right numbers ---- */

static struct shape draw_shape(uint64_t *dice, const uint32_t *dims, const uint32_t *pages)
{
	static const uint32_t groups[] = { 1, 2, 3, 4, 7, 16 };
	uint32_t n_kv_heads = 1 + random_below(dice, 3);
	struct shape shape = {
		.n_kv_heads = n_kv_heads,
		.n_heads = n_kv_heads * groups[random_below(dice, 6)],
		.head_dim = dims[random_below(dice, 4)],
		.page_tokens = pages[random_below(dice, 4)],
		.window = random_below(dice, 2) ? 1 + random_below(dice, 150) : 0,
	};

	shape.max_seq_len = 40000 / (shape.head_dim + 60);
	return shape;
}

static const uint32_t fast_dims[] = { 64, 96, 128, 256 };

static struct shape draw_fast(uint64_t *dice)
{
	return draw_shape(dice, fast_dims, (const uint32_t[]){ 16, 32, 64, 128 });
}

static struct shape draw_slow(uint64_t *dice)
{
	return draw_shape(
		dice, (const uint32_t[]){ 8, 42, 80, 200 }, (const uint32_t[]){ 1, 4, 24, 16 });
}

/* Sizes for which there are fast kernels, which know no soft cap; scores are about 1. */
static struct shape draw_capped(uint64_t *dice)
{
	struct shape shape = draw_fast(dice);

	shape.soft_cap = 0.3f;
	return shape;
}

/* Batches of so many rows at most, with queries of so many tokens at most. */
static const struct drawn {
	struct shape (*draw)(uint64_t *dice);
	int n_shapes;
	uint32_t most_rows, most;
} decodes = { draw_fast, 12, FIXTURE_ROWS - 3, 1 }, short_queries = { draw_fast, 12, 24, 16 },
  mixed = { draw_fast, 16, 10, 250 }, any_size = { draw_slow, 12, 10, 40 },
  capped = { draw_capped, 12, 10, 40 };

static void test_agrees_with_dense_reference(void **state)
{
	const struct drawn *d = *state;
	uint64_t dice = 7 + d->most;

	fixture_check_drawn(shared, "paged", &dice, d->n_shapes, d->draw, d->most_rows, d->most);
}

/* One sequence over all slots of the line, and several whose edges lie inside of slots. */
static void test_long_sequences_cut_in_many_pieces_agree_with_dense_reference(void **state)
{
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 1, .seq_len = 5000 },
		{ .seed = 2, .n_query = 1, .seq_len = 3 },
		{ .seed = 3, .n_query = 5, .seq_len = 2777 },
		{ .seed = 4, .n_query = 1, .seq_len = 4096 },
	};
	struct shape shape = ordinary;

	shape.max_seq_len = 5000;
	for (size_t i = 0; i < COUNT(fast_dims); i++) {
		shape.head_dim = fast_dims[i];
		shape.n_heads = i == 1 ? 5 : 8;
		shape.n_kv_heads = i == 1 ? 5 : 1;
		fixture_check_once(shared, "paged", &shape, rows, 1, 0, 0);
		fixture_check_once(shared, "paged", &shape, rows, 4, 0, 0);
	}
}

static void test_chunks_of_a_prompt_agree_with_dense_reference(void **state)
{
	static const uint32_t chunks[] = { 129, 1, 17, 64, 16, 63, 2, 108 }; /* 400 */
	struct fixture f;

	for (size_t s = 0; s < 2; s++) {
		uint32_t done = 0;

		fixture_init(&f, shared, "paged", shapes[s]);
		for (size_t i = 0; i < COUNT(chunks); i++) {
			done += chunks[i];
			fixture_check(&f, &(struct row){ .seed = 6, .n_query = chunks[i],
				.seq_len = done }, 1, 0, 0);
		}
		assert_int_equal(done, 400);
		fixture_deinit(&f);
	}
}

/* More blocks of packed rows than multiprocessors, of many tiles, in groups that are no power of
 * two, with windows whose first tiles are cut; so many heads that blocks are of the larger size;
 * and a short row that has all of one warpgroup's rows and none of the other's. */
static void test_prompts_of_many_blocks_agree_with_dense_reference(void **state)
{
	static const struct shape large[] = {
		{ .n_heads = 32, .n_kv_heads = 4, .head_dim = 64, .page_tokens = 64,
			.max_seq_len = 800 },
		{ .n_heads = 160, .n_kv_heads = 4, .head_dim = 64, .page_tokens = 32,
			.max_seq_len = 320 },
		{ .n_heads = 48, .n_kv_heads = 4, .head_dim = 128, .page_tokens = 16,
			.max_seq_len = 450 },
		{ .n_heads = 12, .n_kv_heads = 12, .head_dim = 96, .page_tokens = 16,
			.window = 333, .max_seq_len = 800 },
		{ .n_heads = 48, .n_kv_heads = 4, .head_dim = 256, .page_tokens = 128,
			.max_seq_len = 300 },
		{ .n_heads = 8, .n_kv_heads = 8, .head_dim = 128, .page_tokens = 256, .window = 201,
			.max_seq_len = 900 },
		{ .n_heads = 8, .n_kv_heads = 2, .head_dim = 256, .page_tokens = 16, .window = 40,
			.max_seq_len = 900 },
	};
	struct fixture f;

	for (size_t i = 0; i < COUNT(large); i++) {
		uint32_t most = large[i].max_seq_len;
		const struct row rows[] = {
			{ .seed = 1, .n_query = 290, .seq_len = most },
			{ .seed = 2, .n_query = 1, .seq_len = most / 2 },
			{ .seed = 3, .n_query = 256, .seq_len = 256 },
			{ .seed = 4, .n_query = 17, .seq_len = most - 1 },
		};
		float *first;

		fixture_init(&f, shared, "paged", &large[i]);
		fixture_check(&f, rows, 4, 0, 0);
		first = fixture_copy(&f);
		fixture_run(&f); /* what the first left behind is no harm */
		assert_memory_equal(f.out, first, fixture_bytes(&f, f.batch.n_tokens));
		free(first);
		fixture_deinit(&f);
	}
}

static void test_window_is_the_layers_own(void **state)
{
	static const struct row rows[] = {
		{ .seed = 3, .n_query = 1, .seq_len = 390 },
		{ .seed = 4, .n_query = 30, .seq_len = 390 },
	};
	struct fixture f;

	fixture_init(&f, shared, "paged", &windowed);
	fixture_check(&f, rows, 2, 0, 0);
	fixture_poison_out(&f);
	assert_int_equal(fixture_enqueue(&f, 0), 0); /* the same build: layer 0 has no window */
	fixture_sync(&f);
	f.windows[FIXTURE_LAYER] = 0; /* the reference's; the manager has its own copy */
	fixture_verify(&f);
	fixture_deinit(&f);
}

/* ---- empty rows, padding, lengths that lie ---- */

static void test_empty_rows_and_padding_give_zero(void **state)
{
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 2, .seq_len = 0 },
		{ .seed = 2, .n_query = 3, .seq_len = 10 },
		{ .seed = 3, .n_query = 0, .seq_len = 7 },
		{ .seed = 4, .n_query = 1, .seq_len = 0 },
		{ .seed = 5, .n_query = 40, .seq_len = 0 },
		{ .seed = 6, .n_query = 40, .seq_len = 50 },
	};
	struct fixture f;

	for (size_t s = 0; s < N_SHAPES; s++) {
		fixture_init(&f, shared, "paged", shapes[s]);
		fixture_check(&f, rows, 6, 8, 130);
		fixture_check(&f, NULL, 0, 4, 4);
		fixture_check(&f, NULL, 0, 0, 0);
		fixture_deinit(&f);
	}
}

/* Fewer tokens in all than in the row's query. */
static void test_tokens_before_the_sequence_give_zero(void **state)
{
	static const struct row rows[] = {
		{ .seed = 9, .n_query = 2, .seq_len = 1 },
		{ .seed = 9, .n_query = 30, .seq_len = 1 },
	};

	for (size_t s = 0; s < 2 * N_SHAPES; s++)
		fixture_check_once(shared, "paged", shapes[s / 2], &rows[s % 2], 1, 0, 0);
}

static void test_page_that_does_not_exist_reads_as_null_page(void **state)
{
	struct fixture f;

	for (size_t s = 0; s < N_SHAPES; s++) {
		fixture_init(&f, shared, "paged", shapes[s]);
		for (uint32_t n = 1; n <= 20; n += 19)
			fixture_check_missing_pages(
				&f, &(struct row){ .seed = 9, .n_query = n, .seq_len = 20 });
		fixture_deinit(&f);
	}
}

static void test_lengths_past_the_table_stay_inside_it(void **state)
{
	struct row row = { .seed = 9, .n_query = 1, .seq_len = 4 };
	struct fixture f;

	for (size_t s = 0; s < N_SHAPES; s++) {
		fixture_init(&f, shared, "paged", shapes[s]);
		fixture_place(&f, &row, 1, 0, 0);
		for (uint32_t i = 0; i < FIXTURE_ROWS * f.config.max_pages; i++)
			f.inputs.block_table[i] = 0;
		memset(f.kv, 0, (size_t)2 * f.config.page_tokens * f.config.n_kv_heads *
					f.config.head_dim * sizeof(float));
		f.inputs.seq_lens[0] = INT32_MAX;
		f.inputs.query_start[1] = INT32_MAX;
		fixture_run(&f);
		fixture_assert_zero(&f, 0, 1);
		assert_true(isnan(f.out[f.width]));
		fixture_deinit(&f);
	}
}

static void test_same_batch_gives_the_same_bits(void **state)
{
	struct row rows[20];
	float *first;
	struct fixture f;

	for (uint32_t r = 0; r < 20; r++)
		rows[r] = (struct row){
			.seed = r, .n_query = r == 7 ? 100 : 1, .seq_len = 100 + 15 * r };
	fixture_init(&f, shared, "paged", &ordinary);
	fixture_run_rows(&f, rows, 20, 0, 0);
	first = fixture_copy(&f);
	for (int i = 0; i < 20; i++) {
		fixture_run(&f);
		assert_memory_equal(f.out, first, fixture_bytes(&f, FIXTURE_TOKENS));
	}
	free(first);
	fixture_deinit(&f);
}

/* ---- refusals ---- */

static void test_naive_refuses_and_says_why(void **state)
{
	const struct attention_backend *backend = NULL;
	enum attention_support support;
	char why[512] = "";
	struct fixture f;

	fixture_init(&f, shared, "paged", &ordinary);
	assert_int_equal(attention_naive.check(&f.config, why, sizeof(why)), -ENOTSUP);
	assert_non_null(strstr(why, "cpu device"));
	assert_int_equal(
		attention_choose("auto", &f.config, &backend, &support, why, sizeof(why)), 0);
	assert_ptr_equal(backend, &attention_paged);
	assert_int_equal(support, ATTENTION_UNIFORM_BATCH);
	fixture_deinit(&f);
}

static void test_float32_is_refused(void **state)
{
	struct attention_manager *manager = NULL;
	struct fixture f;

	fixture_init(&f, shared, "paged", &ordinary);
	f.config.activation_dtype = f.config.kv_dtype = DTYPE_F32;
	assert_int_equal(
		f.backend->manager_new(shared, &f.config, &f.at_device, &manager), -ENOTSUP);
	assert_null(manager);
	fixture_deinit(&f);
}

#define DRAWN(claim, drawn)                                                                        \
	{ claim, test_agrees_with_dense_reference, NULL, NULL, (void *)(uintptr_t)&(drawn) }

int main(void)
{
	const struct CMUnitTest tests[] = {
		DRAWN("test_decode_agrees_with_dense_reference", decodes),
		DRAWN("test_short_queries_agree_with_dense_reference", short_queries),
		DRAWN("test_mixed_batches_agree_with_dense_reference", mixed),
		DRAWN("test_sizes_without_a_fast_kernel_agree_with_dense_reference", any_size),
		DRAWN("test_scores_with_a_soft_cap_agree_with_dense_reference", capped),
		cmocka_unit_test(
			test_long_sequences_cut_in_many_pieces_agree_with_dense_reference),
		cmocka_unit_test(test_chunks_of_a_prompt_agree_with_dense_reference),
		cmocka_unit_test(test_prompts_of_many_blocks_agree_with_dense_reference),
		cmocka_unit_test(test_window_is_the_layers_own),
		cmocka_unit_test(test_empty_rows_and_padding_give_zero),
		cmocka_unit_test(test_tokens_before_the_sequence_give_zero),
		cmocka_unit_test(test_page_that_does_not_exist_reads_as_null_page),
		cmocka_unit_test(test_lengths_past_the_table_stay_inside_it),
		cmocka_unit_test(test_same_batch_gives_the_same_bits),
		cmocka_unit_test(test_naive_refuses_and_says_why),
		cmocka_unit_test(test_float32_is_refused),
	};

	return CUDA_GROUP_RUN("attention on cuda", tests);
}
