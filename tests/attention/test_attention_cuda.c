/* SPDX-License-Identifier: MIT */
#include "tests/attention/cuda_group.h"

/* ---- right numbers ---- */

static const uint32_t fast_dims[] = { 64, 96, 128, 256 };
static const uint32_t fast_pages[] = { 16, 32, 64, 128 };
static const uint32_t slow_dims[] = { 8, 42, 80, 200 };
static const uint32_t slow_pages[] = { 1, 4, 24, 16 };

static struct shape draw_shape(struct world *dice, const uint32_t *dims, const uint32_t *pages)
{
	static const uint32_t groups[] = { 1, 2, 3, 4, 7, 16 };
	uint32_t n_kv_heads = 1 + world_draw(dice, 3);
	struct shape shape = {
		.n_kv_heads = n_kv_heads,
		.n_heads = n_kv_heads * groups[world_draw(dice, 6)],
		.head_dim = dims[world_draw(dice, 4)],
		.page_tokens = pages[world_draw(dice, 4)],
		.window = world_draw(dice, 2) ? 1 + world_draw(dice, 150) : 0,
	};

	shape.max_seq_len = 40000 / (shape.head_dim + 60);
	return shape;
}

/* A length at the edge of a page or of a tile, or anywhere. */
static uint32_t draw_length(struct world *dice, const struct shape *shape)
{
	uint32_t edge = (1 + world_draw(dice, 2)) * (world_draw(dice, 2) ? 64 : shape->page_tokens);
	uint32_t length = 1 + world_draw(dice, shape->max_seq_len);

	if (world_draw(dice, 3) == 0)
		length = edge + world_draw(dice, 3) - 1;
	return length && length <= shape->max_seq_len ? length : 1;
}

/* Queries of 0 ... most tokens; one row in eight has no sequence. */
static uint32_t draw_rows(struct world *dice, const struct shape *shape, uint32_t n_rows,
	uint32_t most, struct row *rows)
{
	uint32_t n_tokens = 0;

	for (uint32_t r = 0; r < n_rows; r++) {
		uint32_t seq_len = world_draw(dice, 8) ? draw_length(dice, shape) : 0;
		uint32_t n = world_draw(dice, 2) ? 1 : world_draw(dice, most + 1);

		if (seq_len && n > seq_len)
			n = seq_len;
		if (n_tokens + n > WORLD_TOKENS - 20)
			n = 0;
		n_tokens += n;
		rows[r] = (struct row){
			.seed = world_draw(dice, 1000), .seq_len = seq_len, .n_query = n };
	}
	return n_tokens;
}

static void agree_with_cpu(const uint32_t *dims, const uint32_t *pages, uint32_t most, int rounds)
{
	struct world dice = { .random = 7 + most };

	for (int round = 0; round < rounds; round++) {
		struct shape shape = draw_shape(&dice, dims, pages);
		struct twin t;

		twin_init(&t, shared, &shape);
		for (int batch = 0; batch < 2; batch++) {
			struct row rows[WORLD_ROWS];
			uint32_t n_rows = world_draw(&dice, batch ? 6 : WORLD_ROWS - 2);
			uint32_t n_tokens = draw_rows(&dice, &shape, n_rows, most, rows);

			twin_place(&t, rows, n_rows, n_rows + world_draw(&dice, 3),
				n_tokens + world_draw(&dice, 20));
			twin_run(&t);
			twin_verify(&t);
		}
		twin_deinit(&t);
	}
}

static void test_decode_agrees_with_cpu(void **state)
{
	(void)state;
	agree_with_cpu(fast_dims, fast_pages, 1, 12);
}

static void test_short_queries_agree_with_cpu(void **state)
{
	(void)state;
	agree_with_cpu(fast_dims, fast_pages, 16, 12);
}

static void test_mixed_batches_agree_with_cpu(void **state)
{
	(void)state;
	agree_with_cpu(fast_dims, fast_pages, 250, 16);
}

static void test_sizes_without_a_fast_kernel_agree_with_cpu(void **state)
{
	(void)state;
	agree_with_cpu(slow_dims, slow_pages, 40, 12);
}

/* One sequence over all slots of the line, and several whose edges lie inside of slots. */
static void test_long_sequences_cut_in_many_pieces_agree_with_cpu(void **state)
{
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 1, .seq_len = 5000 },
		{ .seed = 2, .n_query = 1, .seq_len = 3 },
		{ .seed = 3, .n_query = 5, .seq_len = 2777 },
		{ .seed = 4, .n_query = 1, .seq_len = 4096 },
	};
	struct shape shape = ordinary;
	struct twin t;

	(void)state;
	shape.max_seq_len = 5000;
	for (size_t i = 0; i < 4; i++) {
		shape.head_dim = fast_dims[i];
		shape.n_heads = i == 1 ? 5 : 8;
		shape.n_kv_heads = i == 1 ? 5 : 1;
		twin_init(&t, shared, &shape);
		for (uint32_t n_rows = 1; n_rows <= 4; n_rows += 3) {
			twin_place(&t, rows, n_rows, 0, 0);
			twin_run(&t);
			twin_verify(&t);
		}
		twin_deinit(&t);
	}
}

static void test_chunks_of_a_prompt_agree_with_cpu(void **state)
{
	static const uint32_t chunks[] = { 129, 1, 17, 64, 16, 63, 2, 108 }; /* 400 */
	struct twin t;

	(void)state;
	for (size_t s = 0; s < 2; s++) {
		uint32_t done = 0;

		twin_init(&t, shared, shapes[s]);
		for (size_t i = 0; i < sizeof(chunks) / sizeof(*chunks); i++) {
			done += chunks[i];
			twin_place(&t, &(struct row){
				.seed = 6, .n_query = chunks[i], .seq_len = done }, 1, 0, 0);
			twin_run(&t);
			twin_verify(&t);
		}
		assert_int_equal(done, 400);
		twin_deinit(&t);
	}
}

/* More blocks of packed rows than multiprocessors, of many tiles, in groups that are no power of
 * two, with windows whose first tiles are cut; so many heads that blocks are of the larger size;
 * and a short row that has all of one warpgroup's rows and none of the other's. */
static void test_prompts_of_many_blocks_agree_with_cpu(void **state)
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
	struct twin t;

	(void)state;
	for (size_t i = 0; i < sizeof(large) / sizeof(*large); i++) {
		uint32_t most = large[i].max_seq_len;
		const struct row rows[] = {
			{ .seed = 1, .n_query = 290, .seq_len = most },
			{ .seed = 2, .n_query = 1, .seq_len = most / 2 },
			{ .seed = 3, .n_query = 256, .seq_len = 256 },
			{ .seed = 4, .n_query = 17, .seq_len = most - 1 },
		};

		twin_init(&t, shared, &large[i]);
		twin_place(&t, rows, 4, 0, 0);
		twin_run(&t);
		twin_verify(&t);
		twin_run(&t); /* what the first left behind is no harm */
		twin_verify(&t);
		twin_deinit(&t);
	}
}

static void test_window_is_the_layers_own(void **state)
{
	static const struct row rows[] = {
		{ .seed = 3, .n_query = 1, .seq_len = 390 },
		{ .seed = 4, .n_query = 30, .seq_len = 390 },
	};
	struct twin t;

	(void)state;
	twin_init(&t, shared, &windowed);
	twin_place(&t, rows, 2, 0, 0);
	twin_run(&t);
	twin_verify(&t);
	twin_poison_out(&t);
	assert_int_equal(twin_enqueue(&t, 0), 0); /* the same build: layer 0 has no window */
	twin_fetch(&t);
	attention_paged.manager_free(t.w.manager);
	t.w.windows[1] = 0;
	assert_int_equal(attention_paged.manager_new(
		t.w.device, &t.w.config, &t.w.inputs, &t.w.manager), 0);
	attention_paged.metadata_free(t.w.metadata);
	assert_int_equal(attention_paged.metadata_new(t.w.manager, &t.w.metadata), 0);
	twin_verify(&t);
	twin_deinit(&t);
}

/* ---- empty rows, padding, lies ---- */

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
	struct twin t;

	(void)state;
	for (size_t s = 0; s < N_SHAPES; s++) {
		twin_init(&t, shared, shapes[s]);
		twin_place(&t, rows, 6, 8, 130);
		twin_run(&t);
		twin_verify(&t);
		twin_place(&t, NULL, 0, 4, 4);
		twin_run(&t);
		twin_verify(&t);
		twin_place(&t, NULL, 0, 0, 0);
		twin_run(&t);
		twin_verify(&t);
		twin_deinit(&t);
	}
}

/* As a row of a lying length would have: fewer tokens in all than in its query. */
static void test_tokens_before_the_sequence_give_zero(void **state)
{
	static const uint32_t queries[] = { 2, 30 };
	struct twin t;

	(void)state;
	for (size_t s = 0; s < N_SHAPES; s++) {
		twin_init(&t, shared, shapes[s]);
		for (size_t i = 0; i < 2; i++) {
			uint32_t n = queries[i];

			struct row row = { .seed = 9, .n_query = n, .seq_len = n };

			twin_place(&t, &row, 1, 0, 0);
			t.w.inputs.seq_lens[0] = 1;
			t.w.seq_lens[0] = 1;
			twin_upload(&t);
			twin_run(&t);
			twin_verify(&t);
			for (uint32_t e = 0; e < (n - 1) * t.w.width; e++)
				assert_int_equal(t.got[e], 0);
			assert_int_not_equal(t.got[(n - 1) * t.w.width], 0);
		}
		twin_deinit(&t);
	}
}

static void test_page_that_does_not_exist_reads_as_null_page(void **state)
{
	static const int32_t nowhere[] = { -1, INT32_MIN, INT32_MAX, 100000 };
	struct twin t;

	(void)state;
	for (size_t s = 0; s < N_SHAPES; s++) {
		twin_init(&t, shared, shapes[s]);
		for (size_t i = 0; i < 8; i++) {
			uint32_t n = i < 4 ? 1 : 20;

			struct row row = { .seed = 9, .n_query = n, .seq_len = 20 };

			twin_place(&t, &row, 1, 0, 0);
			memset(t.w.kv, 0, t.kv_elements / t.w.n_pages * sizeof(float));
			t.w.inputs.block_table[0] = nowhere[i % 4];
			twin_upload(&t);
			twin_run(&t);
			twin_verify(&t);
		}
		twin_deinit(&t);
	}
}

static void test_lengths_past_the_table_stay_inside_it(void **state)
{
	struct row row = { .seed = 9, .n_query = 1, .seq_len = 4 };
	struct twin t;

	(void)state;
	for (size_t s = 0; s < N_SHAPES; s++) {
		twin_init(&t, shared, shapes[s]);
		twin_place(&t, &row, 1, 0, 0);
		for (uint32_t i = 0; i < WORLD_ROWS * t.config.max_pages; i++)
			t.w.inputs.block_table[i] = t.w.inputs.block_table[0];
		memset(t.w.kv, 0, t.kv_elements * sizeof(float));
		t.w.inputs.seq_lens[0] = INT32_MAX;
		t.w.inputs.query_start[1] = INT32_MAX;
		twin_upload(&t);
		twin_run(&t);
		for (uint32_t e = 0; e < t.w.width; e++)
			assert_int_equal(t.got[e], 0);
		assert_int_equal(t.got[t.w.width], 0xffff);
		twin_deinit(&t);
	}
}

static void test_same_batch_gives_the_same_bits(void **state)
{
	struct row rows[20];
	uint16_t *first;
	struct twin t;

	(void)state;
	for (uint32_t r = 0; r < 20; r++)
		rows[r] = (struct row){
			.seed = r, .n_query = r == 7 ? 100 : 1, .seq_len = 100 + 15 * r };
	twin_init(&t, shared, &ordinary);
	first = malloc((size_t)WORLD_TOKENS * t.w.width * 2);
	assert_non_null(first);
	twin_place(&t, rows, 20, 0, 0);
	twin_run(&t);
	memcpy(first, t.got, (size_t)WORLD_TOKENS * t.w.width * 2);
	for (int i = 0; i < 20; i++) {
		twin_run(&t);
		assert_memory_equal(t.got, first, (size_t)WORLD_TOKENS * t.w.width * 2);
	}
	free(first);
	twin_deinit(&t);
}

/* ---- refusals ---- */

static void test_naive_refuses_and_says_why(void **state)
{
	const struct attention_backend *backend = NULL;
	enum attention_support support;
	char why[512] = "";
	struct twin t;

	(void)state;
	twin_init(&t, shared, &ordinary);
	assert_int_equal(attention_naive.check(&t.config, why, sizeof(why)), -ENOTSUP);
	assert_non_null(strstr(why, "cpu device"));
	assert_int_equal(
		attention_choose("auto", &t.config, &backend, &support, why, sizeof(why)), 0);
	assert_ptr_equal(backend, &attention_paged);
	assert_int_equal(support, ATTENTION_UNIFORM_BATCH);
	twin_deinit(&t);
}

static void test_float32_is_refused(void **state)
{
	struct attention_manager *manager = NULL;
	struct twin t;

	(void)state;
	twin_init(&t, shared, &ordinary);
	assert_int_equal(attention_paged.manager_new(
		shared, &t.w.config, &t.inputs, &manager), -ENOTSUP);
	assert_null(manager);
	twin_deinit(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_decode_agrees_with_cpu),
		cmocka_unit_test(test_short_queries_agree_with_cpu),
		cmocka_unit_test(test_mixed_batches_agree_with_cpu),
		cmocka_unit_test(test_sizes_without_a_fast_kernel_agree_with_cpu),
		cmocka_unit_test(test_long_sequences_cut_in_many_pieces_agree_with_cpu),
		cmocka_unit_test(test_chunks_of_a_prompt_agree_with_cpu),
		cmocka_unit_test(test_prompts_of_many_blocks_agree_with_cpu),
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
