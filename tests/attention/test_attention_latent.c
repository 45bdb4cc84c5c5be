/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/attention/latent.h"
#include "tests/device.h"

static const struct mla_kernels *kernels(void)
{
	return mla_kernels_for(test_on_cuda() ? "cuda" : "cpu");
}

/* ---- right numbers ---- */

static struct latent_shape draw_shape(struct latent_world *dice)
{
	static const uint32_t page_tokens[] = { 1, 4, 16 }, lengths[] = { 40, 130, 300 };

	return (struct latent_shape){
		.n_heads = 1 + latent_draw(dice, 4),
		.rank = 1 + latent_draw(dice, 40),
		.nope = 1 + latent_draw(dice, 8),
		.rope = 2 * (1 + latent_draw(dice, 4)),
		.v = 1 + latent_draw(dice, 10),
		.page_tokens = page_tokens[latent_draw(dice, 3)],
		.max_seq_len = lengths[latent_draw(dice, 3)],
	};
}

/* At the edge of a page, a tile or a split, at the very end, or anywhere. */
static uint32_t draw_length(struct latent_world *dice, const struct latent_shape *shape)
{
	uint32_t edge = (1 + latent_draw(dice, 4)) * (latent_draw(dice, 2) ? 32 : shape->page_tokens);
	uint32_t n = edge + latent_draw(dice, 2);

	switch (latent_draw(dice, 4)) {
	case 0:
		n = edge - latent_draw(dice, 2);
		break;
	case 1:
		return shape->max_seq_len;
	case 2:
		return 1 + latent_draw(dice, shape->max_seq_len);
	}
	return n < 1 ? 1 : n < shape->max_seq_len ? n : shape->max_seq_len;
}

/* 0 ... 4 rows, one in four empty, decodes and chunks. */
static uint32_t draw_rows(
	struct latent_world *dice, const struct latent_shape *shape, struct latent_row *rows)
{
	uint32_t n_rows = latent_draw(dice, 5);

	for (uint32_t r = 0; r < n_rows; r++) {
		uint32_t seq_len = latent_draw(dice, 4) ? draw_length(dice, shape) : 0;
		uint32_t most = seq_len && seq_len < 12 ? seq_len : 12;

		rows[r] = (struct latent_row){
			.seed = 1 + latent_draw(dice, 1000),
			.seq_len = seq_len,
			.n_query = latent_draw(dice, 2) ? 1 : latent_draw(dice, most + 1),
		};
	}
	return n_rows;
}

static void agree_with_dense(const char *backend)
{
	struct latent_world dice = { .random = 7 };

	for (int round = 0; round < 40; round++) {
		struct latent_shape shape = draw_shape(&dice);
		struct latent_world w;

		latent_init(&w, backend, &shape);
		for (int batch = 0; batch < 2; batch++) {
			struct latent_row rows[LATENT_ROWS];
			uint32_t n_rows = draw_rows(&dice, &shape, rows), n_tokens = 0;

			for (uint32_t r = 0; r < n_rows; r++)
				n_tokens += rows[r].n_query;
			latent_place(&w, rows, n_rows, n_rows + latent_draw(&dice, 3),
				n_tokens + latent_draw(&dice, 9));
			latent_run(&w);
			latent_verify(&w);
		}
		latent_deinit(&w);
	}
}

static void test_mla_agrees_with_dense_reference(void **state)
{
	(void)state;
	agree_with_dense("mla");
}

static void test_mla_planned_agrees_with_dense_reference(void **state)
{
	(void)state;
	agree_with_dense("mla_planned");
}

static void test_naive_expansion_agrees_with_dense_reference(void **state)
{
	(void)state;
	agree_with_dense("naive");
}

/* DeepSeek's rank and rope, for which a device may have kernels of their own: more heads than a block
 * takes, numbers of them that fill none, pages of several sizes. */
static void test_sizes_of_deepseek_agree_with_dense_reference(void **state)
{
	static const struct latent_shape shapes[] = {
		{ .n_heads = 16, .page_tokens = 16, .max_seq_len = 1000 },
		{ .n_heads = 3, .page_tokens = 64, .max_seq_len = 300 },
		{ .n_heads = 37, .page_tokens = 8, .max_seq_len = 200 },
		{ .n_heads = 2, .page_tokens = 24, .max_seq_len = 100 },
	};
	static const struct latent_row rows[] = {
		{ .seed = 1, .n_query = 1, .seq_len = 97 },
		{ .seed = 2, .n_query = 0, .seq_len = 0 },
		{ .seed = 3, .n_query = 4, .seq_len = 66 },
		{ .seed = 4, .n_query = 1, .seq_len = 1 },
		{ .seed = 5, .n_query = 1, .seq_len = 0 },
		{ .seed = 6, .n_query = 1, .seq_len = 1000 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes) * N_MLA; i++) {
		struct latent_shape shape = shapes[i / N_MLA];
		struct latent_world w;

		shape.rank = 512;
		shape.rope = 64;
		shape.nope = 16;
		shape.v = 8;
		latent_init(&w, latent_backends[i % N_MLA], &shape);
		latent_place(&w, rows, shape.max_seq_len == 1000 ? 6 : 5, 8, 12);
		latent_run(&w);
		latent_verify(&w);
		latent_place(&w, &rows[2], 1, 1, 4);
		latent_run(&w);
		latent_verify(&w);
		latent_deinit(&w);
	}
}

/* So many tokens that each is one split, or one that is cut off in the middle. */
static void test_many_tokens_at_the_sizes_of_deepseek_agree_with_dense_reference(void **state)
{
	static const struct latent_shape shape = {
		.n_heads = 2, .rank = 512, .nope = 8, .rope = 64, .v = 8, .page_tokens = 16,
		.max_seq_len = 150,
	};
	static const struct latent_row rows[] = {
		{ .seed = 1, .n_query = 130, .seq_len = 131 },
		{ .seed = 2, .n_query = 7, .seq_len = 140 },
	};
	struct latent_world w;

	(void)state;
	for (size_t b = 0; b < N_MLA; b++) {
		latent_init(&w, latent_backends[b], &shape);
		latent_place(&w, rows, 2, 3, 140);
		latent_run(&w);
		latent_verify(&w);
		latent_place(&w, rows + 1, 1, 3, 300); /* padding, most of it */
		latent_run(&w);
		latent_verify(&w);
		latent_deinit(&w);
	}
}

static void test_prompt_longer_than_the_workspace_goes_chunk_by_chunk(void **state)
{
	static const struct latent_row rows[] = {
		{ .seed = 1, .n_query = 1, .seq_len = 50 },
		{ .seed = 2, .n_query = 140, .seq_len = 150 },
		{ .seed = 3, .n_query = 2, .seq_len = 2 },
		{ .seed = 4, .n_query = 280, .seq_len = 290 },
		{ .seed = 5, .n_query = 260, .seq_len = 260 },
	};
	struct latent_world w;

	(void)state;
	for (size_t b = 0; b < N_MLA; b++) {
		latent_init(&w, latent_backends[b], &latent_ordinary);
		assert_true(683 > mla_sizes(&w.config, kernels(), 683).chunk_tokens);
		latent_place(&w, rows, 5, 6, 690);
		latent_run(&w);
		latent_verify(&w);
		latent_deinit(&w);
	}
}

/* ---- empty rows and padding ---- */

static void test_empty_rows_splits_and_padding_give_zero(void **state)
{
	static const struct latent_row rows[] = {
		{ .seed = 1, .n_query = 2, .seq_len = 0 },
		{ .seed = 2, .n_query = 3, .seq_len = 10 },
		{ .seed = 3, .n_query = 0, .seq_len = 7 },
		{ .seed = 4, .n_query = 1, .seq_len = 0 },
	};
	struct latent_world w;

	(void)state;
	for (size_t b = 0; b < 2 * latent_n_backends(); b++) {
		latent_init(&w, latent_backends[b / 2], latent_shapes[b % 2]);
		latent_place(&w, rows, 4, 8, 16);
		latent_run(&w);
		latent_verify(&w);
		latent_place(&w, NULL, 0, 4, 4);
		latent_run(&w);
		latent_verify(&w);
		latent_deinit(&w);
	}
}

/* What a long batch left in the workspace is not seen by a short one. */
static void test_short_batch_after_a_long_one_sees_its_own_splits(void **state)
{
	static const struct latent_row big[] = {
		{ .seed = 1, .n_query = 9, .seq_len = 300 }, { .seed = 2, .n_query = 9, .seq_len = 299 },
	};
	static const struct latent_row small = { .seed = 3, .n_query = 1, .seq_len = 5 };
	struct latent_world w;

	(void)state;
	for (size_t b = 0; b < 2 * N_MLA; b++) {
		latent_init(&w, latent_backends[b / 2], latent_shapes[b % 2]);
		latent_place(&w, big, 2, 4, 20);
		latent_run(&w);
		latent_place(&w, &small, 1, 2, 3);
		latent_run(&w);
		latent_verify(&w);
		latent_deinit(&w);
	}
}

static void test_page_that_does_not_exist_reads_as_null_page(void **state)
{
	static const int32_t nowhere[] = { -1, INT32_MIN, INT32_MAX, 100000 };
	struct latent_row row = { .seed = 9, .n_query = 1, .seq_len = 4 };
	struct latent_world w;

	(void)state;
	for (size_t b = 0; b < 2 * latent_n_backends(); b++) {
		latent_init(&w, latent_backends[b / 2], latent_shapes[b % 2]);
		for (size_t i = 0; i < 4; i++) {
			latent_place(&w, &row, 1, 0, 0);
			memset(w.kv, 0, sizeof(float) * 4 * w.config.head_dim);
			w.tables.block_table[0] = nowhere[i];
			latent_run(&w);
			for (uint32_t e = 0; e < w.out_width; e++)
				assert_true(w.out[e] == 0.0f);
		}
		latent_deinit(&w);
	}
}

static void test_lengths_past_the_maximum_stay_inside(void **state)
{
	struct latent_world w;

	(void)state;
	for (size_t b = 0; b < 2 * N_MLA; b++) {
		struct latent_row row = {
			.seed = 9, .n_query = 1, .seq_len = latent_shapes[b % 2]->page_tokens };

		latent_init(&w, latent_backends[b / 2], latent_shapes[b % 2]);
		latent_place(&w, &row, 1, 0, 0);
		for (uint32_t i = 0; i < LATENT_ROWS * w.config.max_pages; i++)
			w.tables.block_table[i] = w.tables.block_table[0];
		w.tables.seq_lens[0] = INT32_MAX;
		latent_run(&w);
		/* every key is one of the first page's: a number for the token, nothing past it */
		assert_false(isnan(w.out[0]));
		assert_true(isnan(w.out[w.out_width]));
		latent_deinit(&w);
	}
}

/* ---- both ways in one batch ---- */

/* Rows that are absorbed, before and behind a prompt, which is not. */
static void test_more_short_rows_than_the_workspace_holds_go_chunk_by_chunk(void **state)
{
	static const struct latent_row rows[] = {
		{ .seed = 1, .n_query = 16, .seq_len = 270 },
		{ .seed = 2, .n_query = 15, .seq_len = 15 },
		{ .seed = 3, .n_query = 17, .seq_len = 40 },
		{ .seed = 4, .n_query = 16, .seq_len = 17 },
		{ .seed = 5, .n_query = 16, .seq_len = 90 },
		{ .seed = 6, .n_query = 16, .seq_len = 31 },
		{ .seed = 7, .n_query = 16, .seq_len = 64 },
		{ .seed = 8, .n_query = 16, .seq_len = 18 },
	};
	struct latent_world w;

	(void)state;
	for (size_t b = 0; b < N_MLA; b++) {
		latent_init(&w, latent_backends[b], &latent_ordinary);
		latent_place(&w, rows, 8, 8, LATENT_TOKENS);
		latent_run(&w);
		latent_verify(&w);
		latent_deinit(&w);
	}
}

static void test_prompts_beside_decodes_and_padding_agree_with_dense_reference(void **state)
{
	static const struct latent_row rows[] = {
		{ .seed = 1, .n_query = 1, .seq_len = 33 },
		{ .seed = 2, .n_query = 60, .seq_len = 300 },
		{ .seed = 3, .n_query = 40, .seq_len = 40 },
		{ .seed = 4, .n_query = 0, .seq_len = 9 },
		{ .seed = 5, .n_query = 17, .seq_len = 0 },
		{ .seed = 6, .n_query = 4, .seq_len = 200 },
		{ .seed = 7, .n_query = 20, .seq_len = 257 },
	};
	struct latent_world w;

	(void)state;
	for (size_t b = 0; b < N_MLA; b++) {
		latent_init(&w, latent_backends[b], &latent_ordinary);
		latent_place(&w, rows, 7, 8, 150);
		latent_run(&w);
		latent_verify(&w);
		latent_deinit(&w);
	}
}

/* ---- a token's bits are its own ---- */

static const struct latent_row crowd[] = {
	{ .seed = 1, .n_query = 5, .seq_len = 71 },
	{ .seed = 2, .n_query = 0, .seq_len = 0 },
	{ .seed = 3, .n_query = 1, .seq_len = 300 },
	{ .seed = 4, .n_query = 70, .seq_len = 70 },
	{ .seed = 5, .n_query = 1, .seq_len = 1 },
};

static void test_bits_do_not_depend_on_the_batch(void **state)
{
	float *alone = calloc(LATENT_TOKENS * 32, sizeof(float));
	struct latent_world w;

	(void)state;
	for (size_t b = 0; b < latent_n_backends(); b++) {
		latent_init(&w, latent_backends[b], &latent_ordinary);
		for (uint32_t r = 0; r < 5; r++) {
			size_t n = crowd[r].n_query * w.out_width;

			latent_place(&w, &crowd[r], 1, 0, 0);
			latent_run(&w);
			memcpy(alone, latent_out(&w, 0, 0), n * sizeof(float));
			latent_place(&w, crowd, 5, 8, 90);
			latent_run(&w);
			assert_memory_equal(latent_out(&w, r, 0), alone, n * sizeof(float));
		}
		latent_deinit(&w);
	}
	free(alone);
}

/* The outputs of one sequence's 120 tokens, n at a time. */
static void run_chunks_of(struct latent_world *w, uint32_t n, float *ret)
{
	for (uint32_t done = n; done <= 120; done += n) {
		latent_place(w,
			&(struct latent_row){ .seed = 6, .n_query = n, .seq_len = done }, 1, 0, 0);
		latent_run(w);
		memcpy(ret + (size_t)(done - n) * w->out_width, w->out,
			n * w->out_width * sizeof(float));
	}
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
	float *whole = calloc(LATENT_TOKENS * 32, sizeof(float));
	float *single = calloc(LATENT_TOKENS * 32, sizeof(float));
	struct latent_world w;

	(void)state;
	for (size_t b = 0; b < latent_n_backends(); b++) {
		uint32_t done = 0;

		latent_init(&w, latent_backends[b], &latent_ordinary);
		run_chunks_of(&w, 120, whole);
		run_chunks_of(&w, 1, single);
		assert_true(difference(whole, single, 120 * w.out_width) <= (b < N_MLA ? 2e-6 : 0));
		for (size_t i = 0; i < sizeof(chunks) / sizeof(*chunks); done += chunks[i++]) {
			latent_place(&w, &(struct latent_row){ .seed = 6, .n_query = chunks[i],
				.seq_len = done + chunks[i] }, 1, 0, 0);
			latent_run(&w);
			assert_memory_equal(w.out,
				(chunks[i] > MLA_MAX_UNIFORM_QUERY ? whole : single) +
					(size_t)done * w.out_width,
				chunks[i] * w.out_width * sizeof(float));
		}
		assert_int_equal(done, 120);
		latent_deinit(&w);
	}
	free(single);
	free(whole);
}

/* Also of a batch with prompts, which goes without a plan. */
static void test_mla_planned_gives_the_bits_of_mla(void **state)
{
	float *planned = calloc(LATENT_TOKENS * 32, sizeof(float));
	struct latent_world w;

	(void)state;
	for (uint32_t n_rows = 3; n_rows <= 5; n_rows += 2) {
		latent_init(&w, "mla_planned", &latent_ordinary);
		latent_place(&w, crowd, n_rows, 8, 90);
		latent_run(&w);
		memcpy(planned, w.out, 90 * w.out_width * sizeof(float));
		latent_deinit(&w);
		latent_init(&w, "mla", &latent_ordinary);
		latent_place(&w, crowd, n_rows, 8, 90);
		latent_run(&w);
		assert_memory_equal(w.out, planned, 90 * w.out_width * sizeof(float));
		latent_deinit(&w);
	}
	free(planned);
}

/* ---- refusals ---- */

static void refused_by(
	size_t first, size_t end, const struct attention_config *config, const char *words)
{
	for (size_t b = first; b < end; b++) {
		char why[256] = "";

		assert_int_equal(
			attention_find(latent_backends[b])->check(config, why, sizeof(why)), -ENOTSUP);
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
	uint32_t windows[LATENT_LAYERS] = { 0, 7 };
	struct attention_config config;
	struct latent_world w;

	(void)state;
	latent_init(&w, "mla", &latent_ordinary);
	config = w.config;
	latent_deinit(&w);
	config.windows = windows;
	refused(&config, "no sliding window");
	config.windows = NULL;
	config.n_kv_heads = 3;
	refused(&config, "rank 20 with heads of 6 + 4 and 7");
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
	struct latent_world w;
	char why[512] = "";

	(void)state;
	latent_init(&w, "mla", &latent_ordinary);
	config = w.config;
	latent_deinit(&w);
	assert_int_equal(attention_choose("paged", &config, &chosen, &level, why, sizeof(why)), -ENOTSUP);
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
	struct latent_row row = { .seed = 3, .n_query = 2, .seq_len = 5 };
	struct latent_world w;

	(void)state;
	for (size_t b = 0; b < latent_n_backends(); b++) {
		latent_init(&w, latent_backends[b], &latent_ordinary);
		latent_place(&w, &row, 1, 2, 4);
		assert_int_equal(latent_enqueue(&w), -EINVAL); /* nothing built */
		assert_int_equal(latent_build(&w, ATTENTION_EAGER), 0);
		w.kv_b.rows--;
		assert_int_equal(latent_enqueue(&w), -EINVAL);
		w.kv_b.rows++;
		w.q_width--;
		assert_int_equal(latent_enqueue(&w), -EINVAL);
		w.q_width++;
		assert_int_equal(latent_enqueue(&w), 0);
		assert_int_equal(w.device->ops->stream_sync(w.stream), 0);
		latent_deinit(&w);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_mla_agrees_with_dense_reference),
		cmocka_unit_test(test_mla_planned_agrees_with_dense_reference),
		cmocka_unit_test(test_naive_expansion_agrees_with_dense_reference),
		cmocka_unit_test(test_sizes_of_deepseek_agree_with_dense_reference),
		cmocka_unit_test(
			test_many_tokens_at_the_sizes_of_deepseek_agree_with_dense_reference),
		cmocka_unit_test(test_prompt_longer_than_the_workspace_goes_chunk_by_chunk),
		cmocka_unit_test(test_empty_rows_splits_and_padding_give_zero),
		cmocka_unit_test(test_short_batch_after_a_long_one_sees_its_own_splits),
		cmocka_unit_test(test_page_that_does_not_exist_reads_as_null_page),
		cmocka_unit_test(test_lengths_past_the_maximum_stay_inside),
		cmocka_unit_test(test_more_short_rows_than_the_workspace_holds_go_chunk_by_chunk),
		cmocka_unit_test(test_prompts_beside_decodes_and_padding_agree_with_dense_reference),
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
