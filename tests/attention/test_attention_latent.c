/* SPDX-License-Identifier: MIT */
#include <errno.h>

#include "tests/attention/latent_group.h"

static const struct mla_kernels *kernels(void)
{
	return mla_kernels_for(test_on_cuda() ? "cuda" : "cpu");
}

/* ---- right numbers ---- */

static struct shape draw_shape(uint64_t *dice)
{
	static const uint32_t page_tokens[] = { 1, 4, 16 }, lengths[] = { 40, 130, 300 };

	return (struct shape){
		.n_heads = 1 + random_below(dice, 4),
		.latent = {
			.rank = 1 + random_below(dice, 40),
			.nope = 1 + random_below(dice, 8),
			.rope = 2 * (1 + random_below(dice, 4)),
			.v = 1 + random_below(dice, 10),
		},
		.page_tokens = page_tokens[random_below(dice, 3)],
		.max_seq_len = lengths[random_below(dice, 3)],
	};
}

static void test_agrees_with_dense_reference(void **state)
{
	uint64_t dice = 7;

	fixture_check_drawn(NULL, *state, &dice, 40, draw_shape, 4, 12);
}

/* DeepSeek's rank and rope, for which a device may have kernels of their own: more heads than a
 * block takes, numbers of them that fill none, pages of several sizes. */
static void test_sizes_of_deepseek_agree_with_dense_reference(void **state)
{
	static const struct shape shapes[] = {
		{ .n_heads = 16, .page_tokens = 16, .max_seq_len = 1000 },
		{ .n_heads = 3, .page_tokens = 64, .max_seq_len = 300 },
		{ .n_heads = 37, .page_tokens = 8, .max_seq_len = 200 },
		{ .n_heads = 2, .page_tokens = 24, .max_seq_len = 100 },
	};
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 1, .seq_len = 97 },
		{ .seed = 2, .n_query = 0, .seq_len = 0 },
		{ .seed = 3, .n_query = 4, .seq_len = 66 },
		{ .seed = 4, .n_query = 1, .seq_len = 1 },
		{ .seed = 5, .n_query = 1, .seq_len = 0 },
		{ .seed = 6, .n_query = 1, .seq_len = 1000 },
	};

	for (size_t i = 0; i < COUNT(shapes) * N_MLA; i++) {
		struct shape shape = shapes[i / N_MLA];
		struct fixture f;

		shape.latent = (struct attention_latent){
			.rank = 512, .nope = 16, .rope = 64, .v = 8 };
		fixture_init(&f, NULL, latent_backends[i % N_MLA], &shape);
		fixture_check(&f, rows, shape.max_seq_len == 1000 ? 6 : 5, 8, 12);
		fixture_check(&f, &rows[2], 1, 1, 4);
		fixture_deinit(&f);
	}
}

/* So many tokens that each is one split, or one that is cut off in the middle. */
static void test_many_tokens_at_the_sizes_of_deepseek_agree_with_dense_reference(void **state)
{
	static const struct shape shape = {
		.n_heads = 2, .latent = { .rank = 512, .nope = 8, .rope = 64, .v = 8 },
		.page_tokens = 16, .max_seq_len = 150,
	};
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 130, .seq_len = 131 },
		{ .seed = 2, .n_query = 7, .seq_len = 140 },
	};
	struct fixture f;

	for (size_t b = 0; b < N_MLA; b++) {
		fixture_init(&f, NULL, latent_backends[b], &shape);
		fixture_check(&f, rows, 2, 3, 140);
		fixture_check(&f, rows + 1, 1, 3, 300); /* padding, most of it */
		fixture_deinit(&f);
	}
}

static void test_prompt_longer_than_the_workspace_goes_chunk_by_chunk(void **state)
{
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 1, .seq_len = 50 },
		{ .seed = 2, .n_query = 140, .seq_len = 150 },
		{ .seed = 3, .n_query = 2, .seq_len = 2 },
		{ .seed = 4, .n_query = 280, .seq_len = 290 },
		{ .seed = 5, .n_query = 260, .seq_len = 260 },
	};
	struct fixture f;

	for (size_t b = 0; b < N_MLA; b++) {
		fixture_init(&f, NULL, latent_backends[b], &latent_ordinary);
		assert_true(683 > mla_sizes(&f.config, kernels(), 683).chunk_tokens);
		fixture_check(&f, rows, 5, 6, 690);
		fixture_deinit(&f);
	}
}

/* ---- empty rows and padding ---- */

static void test_empty_rows_splits_and_padding_give_zero(void **state)
{
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 2, .seq_len = 0 },
		{ .seed = 2, .n_query = 3, .seq_len = 10 },
		{ .seed = 3, .n_query = 0, .seq_len = 7 },
		{ .seed = 4, .n_query = 1, .seq_len = 0 },
	};
	struct fixture f;

	for (size_t b = 0; b < 2 * latent_n_backends(); b++) {
		fixture_init(&f, NULL, latent_backends[b / 2], latent_shapes[b % 2]);
		fixture_check(&f, rows, 4, 8, 16);
		fixture_check(&f, NULL, 0, 4, 4);
		fixture_deinit(&f);
	}
}

/* What a long batch left in the workspace is not seen by a short one. */
static void test_short_batch_after_a_long_one_sees_its_own_splits(void **state)
{
	static const struct row big[] = {
		{.seed = 1, .n_query = 9, .seq_len = 300},
		{.seed = 2, .n_query = 9, .seq_len = 299},
	};
	static const struct row small = { .seed = 3, .n_query = 1, .seq_len = 5 };
	struct fixture f;

	for (size_t b = 0; b < 2 * N_MLA; b++) {
		fixture_init(&f, NULL, latent_backends[b / 2], latent_shapes[b % 2]);
		fixture_run_rows(&f, big, 2, 4, 20);
		fixture_check(&f, &small, 1, 2, 3);
		fixture_deinit(&f);
	}
}

static void test_page_that_does_not_exist_reads_as_null_page(void **state)
{
	struct row row = { .seed = 9, .n_query = 1, .seq_len = 20 };
	struct fixture f;

	for (size_t b = 0; b < 2 * latent_n_backends(); b++) {
		fixture_init(&f, NULL, latent_backends[b / 2], latent_shapes[b % 2]);
		fixture_check_missing_pages(&f, &row);
		fixture_deinit(&f);
	}
}

static void test_lengths_past_the_maximum_stay_inside(void **state)
{
	struct fixture f;

	for (size_t b = 0; b < 2 * N_MLA; b++) {
		struct row row = {
			.seed = 9, .n_query = 1, .seq_len = latent_shapes[b % 2]->page_tokens };

		fixture_init(&f, NULL, latent_backends[b / 2], latent_shapes[b % 2]);
		fixture_place(&f, &row, 1, 0, 0);
		for (uint32_t i = 0; i < FIXTURE_ROWS * f.config.max_pages; i++)
			f.inputs.block_table[i] = f.inputs.block_table[0];
		f.inputs.seq_lens[0] = INT32_MAX;
		fixture_run(&f);
		/* every key is one of the first page's: a number for the token, nothing past it */
		assert_false(isnan(f.out[0]));
		assert_true(isnan(f.out[f.width]));
		fixture_deinit(&f);
	}
}

/* ---- both ways in one batch ---- */

/* Rows that are absorbed, before and behind a prompt, which is not. */
static void test_more_short_rows_than_the_workspace_holds_go_chunk_by_chunk(void **state)
{
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 16, .seq_len = 270 },
		{ .seed = 2, .n_query = 15, .seq_len = 15 },
		{ .seed = 3, .n_query = 17, .seq_len = 40 },
		{ .seed = 4, .n_query = 16, .seq_len = 17 },
		{ .seed = 5, .n_query = 16, .seq_len = 90 },
		{ .seed = 6, .n_query = 16, .seq_len = 31 },
		{ .seed = 7, .n_query = 16, .seq_len = 64 },
		{ .seed = 8, .n_query = 16, .seq_len = 18 },
	};

	for (size_t b = 0; b < N_MLA; b++)
		fixture_check_once(
			NULL, latent_backends[b], &latent_ordinary, rows, 8, 8, FIXTURE_TOKENS);
}

static void test_prompts_beside_decodes_and_padding_agree_with_dense_reference(void **state)
{
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 1, .seq_len = 33 },
		{ .seed = 2, .n_query = 60, .seq_len = 300 },
		{ .seed = 3, .n_query = 40, .seq_len = 40 },
		{ .seed = 4, .n_query = 0, .seq_len = 9 },
		{ .seed = 5, .n_query = 17, .seq_len = 0 },
		{ .seed = 6, .n_query = 4, .seq_len = 200 },
		{ .seed = 7, .n_query = 20, .seq_len = 257 },
	};

	for (size_t b = 0; b < N_MLA; b++)
		fixture_check_once(NULL, latent_backends[b], &latent_ordinary, rows, 7, 8, 150);
}

/* ---- a token's bits are its own ---- */

static const struct row crowd[] = {
	{ .seed = 1, .n_query = 5, .seq_len = 71 },
	{ .seed = 2, .n_query = 0, .seq_len = 0 },
	{ .seed = 3, .n_query = 1, .seq_len = 300 },
	{ .seed = 4, .n_query = 70, .seq_len = 70 },
	{ .seed = 5, .n_query = 1, .seq_len = 1 },
};

static void test_bits_do_not_depend_on_the_batch(void **state)
{
	struct fixture f;

	for (size_t b = 0; b < latent_n_backends(); b++) {
		fixture_init(&f, NULL, latent_backends[b], &latent_ordinary);
		fixture_check_alone(&f, crowd, COUNT(crowd), 8, 90);
		fixture_deinit(&f);
	}
}

/* The outputs of one sequence's 120 tokens, n at a time (malloc). */
static float *run_chunks_of(struct fixture *f, uint32_t n)
{
	float *ret = malloc(fixture_bytes(f, 120));

	assert_non_null(ret);
	for (uint32_t done = 0; done < 120; done += n) {
		fixture_run_rows(
			f, &(struct row){.seed = 6, .n_query = n, .seq_len = done + n}, 1, 0, 0);
		memcpy(ret + (size_t)done * f->width, f->out, fixture_bytes(f, n));
	}
	return ret;
}

static double difference(const float *a, const float *b, size_t n)
{
	double most = 0;

	for (size_t i = 0; i < n; i++)
		most = fmax(most, fabs((double)a[i] - (double)b[i]));
	return most;
}

/*
 * Each of the two ways that mla has gives a token the same bits in any chunk that goes it. Between
 * the ways, which a chunk's length decides, there is rounding and no more; naive has one way.
 */
static void test_bits_do_not_depend_on_the_chunking_but_by_the_way(void **state)
{
	static const uint32_t chunks[] = { 33, 1, 7, 16, 17, 1, 40, 5 }; /* 120 */
	struct fixture f;

	for (size_t b = 0; b < latent_n_backends(); b++) {
		float *whole, *single;
		uint32_t done = 0;

		fixture_init(&f, NULL, latent_backends[b], &latent_ordinary);
		whole = run_chunks_of(&f, 120);
		single = run_chunks_of(&f, 1);
		assert_true(difference(whole, single, 120 * f.width) <= (b < N_MLA ? 2e-6 : 0));
		for (size_t i = 0; i < COUNT(chunks); done += chunks[i++]) {
			fixture_run_rows(&f, &(struct row){ .seed = 6, .n_query = chunks[i],
				.seq_len = done + chunks[i] }, 1, 0, 0);
			assert_memory_equal(f.out,
				(chunks[i] > MLA_MAX_UNIFORM_QUERY ? whole : single) +
					(size_t)done * f.width,
				fixture_bytes(&f, chunks[i]));
		}
		assert_int_equal(done, 120);
		free(single);
		free(whole);
		fixture_deinit(&f);
	}
}

/* Also of a batch with prompts, which goes without a plan. */
static void test_mla_planned_gives_the_bits_of_mla(void **state)
{
	for (uint32_t n_rows = 3; n_rows <= 5; n_rows += 2) {
		float *outs[N_MLA];
		struct fixture f;

		for (size_t b = 0; b < N_MLA; b++) {
			fixture_init(&f, NULL, latent_backends[b], &latent_ordinary);
			fixture_run_rows(&f, crowd, n_rows, 8, 90);
			outs[b] = fixture_copy(&f);
			fixture_deinit(&f);
		}
		assert_memory_equal(outs[0], outs[1], fixture_bytes(&f, 90));
		free(outs[0]);
		free(outs[1]);
	}
}

/* ---- refusals ---- */

static void refused_by(
	size_t first, size_t end, const struct attention_config *config, const char *words)
{
	for (size_t b = first; b < end; b++) {
		char why[256] = "";

		assert_int_equal(
			attention_find(latent_backends[b])->check(config, why, sizeof(why)),
			-ENOTSUP);
		if (!strstr(why, words))
			fail_msg("%s: \"%s\" does not say \"%s\"", latent_backends[b], why, words);
	}
}

static void refused(const struct attention_config *config, const char *words)
{
	refused_by(0, N_BACKENDS, config, words);
}

static void test_models_that_it_cannot_serve_are_refused_with_the_reason(void **state)
{
	uint32_t windows[FIXTURE_LAYERS] = { 0, 7 };
	struct attention_config config;
	struct fixture f;

	fixture_init(&f, NULL, "mla", &latent_ordinary);
	config = f.config;
	fixture_deinit(&f);
	config.windows = windows;
	refused(&config, "no sliding window");
	config.windows = NULL;
	config.n_kv_heads = 3;
	refused(&config, "rank 20, heads of 6 + 4 and 7");
	config.n_kv_heads = 1;
	config.max_pages = 3;
	refused(&config, "3 pages of 4 tokens");
	config.max_pages = 75;
	config.kv_dtype = config.activation_dtype = DTYPE_BF16;
	refused_by(N_MLA, N_BACKENDS, &config, "cpu device alone");
#ifdef MIMEO_HAVE_CUDA
	config.latent.rank = MLA_CUDA_WIDTH_MAX;
	config.head_dim = config.latent.rank + config.latent.rope;
	refused_by(0, N_MLA, &config, "more than the 4096 of cuda's kernels");
#else
	refused_by(0, N_MLA, &config, "cpu device alone");
#endif
}

static void test_each_kind_of_attention_is_refused_by_the_others_backends(void **state)
{
	const struct attention_backend *chosen;
	enum attention_support level;
	struct attention_config config;
	struct fixture f;
	char why[512] = "";

	fixture_init(&f, NULL, "mla", &latent_ordinary);
	config = f.config;
	fixture_deinit(&f);
	assert_int_equal(
		attention_choose("paged", &config, &chosen, &level, why, sizeof(why)), -ENOTSUP);
	assert_non_null(strstr(why, "its attention is latent"));
	assert_int_equal(attention_choose("auto", &config, &chosen, &level, why, sizeof(why)), 0);
	assert_ptr_equal(chosen, &attention_mla_planned);
	assert_int_equal(level, ATTENTION_UNIFORM_BATCH);
	config.latent.rank = 0;
	for (size_t b = 0; b < N_MLA; b++) {
		assert_int_equal(attention_choose(latent_backends[b], &config, &chosen, &level, why,
					 sizeof(why)), -ENOTSUP);
		assert_non_null(strstr(why, "not latent"));
	}
	assert_int_equal(attention_choose("auto", &config, &chosen, &level, why, sizeof(why)), 0);
	assert_ptr_not_equal(chosen, &attention_mla);
}

static void test_arguments_of_another_shape_are_refused(void **state)
{
	struct row row = { .seed = 3, .n_query = 2, .seq_len = 5 };
	struct fixture f;

	for (size_t b = 0; b < latent_n_backends(); b++) {
		fixture_init(&f, NULL, latent_backends[b], &latent_ordinary);
		fixture_place(&f, &row, 1, 2, 4);
		assert_int_equal(fixture_enqueue(&f, FIXTURE_LAYER), -EINVAL); /* nothing built */
		assert_int_equal(fixture_build(&f, ATTENTION_EAGER), 0);
		f.kv_b.rows--;
		assert_int_equal(fixture_enqueue(&f, FIXTURE_LAYER), -EINVAL);
		f.kv_b.rows++;
		f.q_stride = f.q_width - 1;
		assert_int_equal(fixture_enqueue(&f, FIXTURE_LAYER), -EINVAL);
		f.q_stride = f.q_width;
		assert_int_equal(fixture_enqueue(&f, FIXTURE_LAYER), 0);
		assert_int_equal(f.device->ops->stream_sync(f.stream), 0);
		fixture_deinit(&f);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		{"test_mla_agrees_with_dense_reference", test_agrees_with_dense_reference, NULL,
			NULL, "mla"},
		{"test_mla_planned_agrees_with_dense_reference", test_agrees_with_dense_reference,
			NULL, NULL, "mla_planned"},
		{"test_naive_expansion_agrees_with_dense_reference",
			test_agrees_with_dense_reference, NULL, NULL, "naive"},
		cmocka_unit_test(test_sizes_of_deepseek_agree_with_dense_reference),
		cmocka_unit_test(
			test_many_tokens_at_the_sizes_of_deepseek_agree_with_dense_reference),
		cmocka_unit_test(test_prompt_longer_than_the_workspace_goes_chunk_by_chunk),
		cmocka_unit_test(test_empty_rows_splits_and_padding_give_zero),
		cmocka_unit_test(test_short_batch_after_a_long_one_sees_its_own_splits),
		cmocka_unit_test(test_page_that_does_not_exist_reads_as_null_page),
		cmocka_unit_test(test_lengths_past_the_maximum_stay_inside),
		cmocka_unit_test(test_more_short_rows_than_the_workspace_holds_go_chunk_by_chunk),
		cmocka_unit_test(
			test_prompts_beside_decodes_and_padding_agree_with_dense_reference),
		cmocka_unit_test(test_bits_do_not_depend_on_the_batch),
		cmocka_unit_test(test_bits_do_not_depend_on_the_chunking_but_by_the_way),
		cmocka_unit_test(test_mla_planned_gives_the_bits_of_mla),
		cmocka_unit_test(test_models_that_it_cannot_serve_are_refused_with_the_reason),
		cmocka_unit_test(test_each_kind_of_attention_is_refused_by_the_others_backends),
		cmocka_unit_test(test_arguments_of_another_shape_are_refused),
	};

	static const struct test_cpu_only only[] = {
		{"test_naive_expansion", "the naive backend is for the cpu device"},
		{"test_bits_do_not_depend", "splits are cut by how many tokens a step has"},
		{"test_mla_planned_gives_the_bits_of_mla", "they cut keys at different places"},
	};

	return TEST_RUN_GROUP("attention latent", tests, only, NULL, NULL);
}
