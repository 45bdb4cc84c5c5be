/* SPDX-License-Identifier: MIT */

/*
 * Prompts that are not absorbed, on the device of MIMEO_DEVICE, against a dense reference; and what
 * the host plans for them.
 */

#include "attention/mla/mla_segments.h"
#include "tests/attention/fixture.h"

/* ---- a fixture without a backend, and what runs in its place ---- */

struct prompts {
	struct fixture f;
	struct mla_prompt_kernels kernels;
	struct mla_prompt *prompt;
	struct mla_prompt_row rows[FIXTURE_ROWS];
	uint32_t n_rows;
};

/* The sizes of a model: heads, rank, nope, rope, v, page_tokens, max_seq_len. */
#define MODEL(h, r, n, p, w, page, most)                                                           \
	{ .n_heads = h, .latent = { .rank = r, .nope = n, .rope = p, .v = w },                     \
		.page_tokens = page, .max_seq_len = most, .sharp = 8 }

static const struct prompt_model {
	struct shape shape;
	bool small; /* chunks, as small as the kernels can stand */
	bool far;   /* pages beyond 2^31 elements */
} /* no size a multiple of anything */
	odd = { MODEL(3, 21, 6, 4, 7, 4, 1500), false, false },
	odd_small = { MODEL(3, 21, 6, 4, 7, 4, 1500), true, false },
	wide = { MODEL(2, 40, 136, 24, 280, 1, 700), true, false },
	/* those that cuda has a kernel for */
	tuned = { MODEL(3, 64, 128, 64, 128, 16, 1500), false, false },
	tuned_small = { MODEL(3, 64, 128, 64, 128, 16, 1500), true, false };

/* The device is locked before the first run. */
static void prompts_init(struct prompts *p, const struct prompt_model *m)
{
	struct fixture *f = &p->f;

	fixture_init(f, NULL, NULL, &m->shape);
	f->samples = 24;
	if (m->far)
		fixture_go_far(f);
	p->kernels = *mla_prompt_kernels_for(f->is_cuda ? "cuda" : "cpu");
	if (m->small) {
		p->kernels.max_keys = p->kernels.granule > 1 ? 2 * p->kernels.granule : 64;
		p->kernels.sums_bytes = 1; /* 256 queries */
	}
	assert_int_equal(mla_prompt_new(f->device, &f->config, &p->kernels, &p->prompt), 0);
	assert_int_equal(mla_prompt_load(p->prompt, f->stream, &f->kv_b), 0);
	assert_int_equal(f->device->ops->stream_sync(f->stream), 0);
	assert_int_equal(f->device->ops->lock(f->device), 0);
}

static void prompts_deinit(struct prompts *p)
{
	mla_prompt_free(p->prompt);
	fixture_deinit(&p->f);
}

/* Rows of seed 0 stand for tokens of others: nothing runs for them. */
static void prompts_place(struct prompts *p, const struct row *rows, uint32_t n_rows)
{
	uint32_t token = 0;

	fixture_place(&p->f, rows, n_rows, 0, 0);
	p->n_rows = 0;
	for (uint32_t r = 0; r < n_rows; token += rows[r++].n_query)
		if (rows[r].seed)
			p->rows[p->n_rows++] = (struct mla_prompt_row){ .row = r,
				.first_token = token, .n_query = rows[r].n_query,
				.seq_len = rows[r].seq_len };
}

/* The others' tokens stay untouched; for the reference, which takes them for empty rows, they are 0
 * from then on. */
static void prompts_run(struct prompts *p)
{
	struct fixture *f = &p->f;
	const struct attention_args args = {.q = f->q_device,
		.q_stride = f->q_stride,
		.kv = f->kv_far ? f->kv_far : f->kv_device,
		.out = f->out_device,
		.kv_b = &f->kv_b};
	uint32_t token = 0;

	fixture_upload(f);
	fixture_poison_out(f);
	assert_int_equal(mla_prompt_run(p->prompt, f->stream, &args, f->at_device.block_table,
				 p->rows, p->n_rows), 0);
	fixture_sync(f);
	for (uint32_t r = 0; r < f->batch.n_rows; token += f->rows[r++].n_query)
		for (size_t i = 0; !f->rows[r].seed && i < f->rows[r].n_query * f->width; i++) {
			assert_true(isnan(f->out[token * f->width + i]));
			f->out[token * f->width + i] = 0;
		}
}

static void prompts_check(struct prompts *p, const struct row *rows, uint32_t n_rows)
{
	prompts_place(p, rows, n_rows);
	prompts_run(p);
	fixture_verify(&p->f);
}

/* With a model of its own, n times. */
static void check_model(
	const struct prompt_model *m, const struct row *rows, uint32_t n_rows, int n)
{
	struct prompts p;

	prompts_init(&p, m);
	while (n-- > 0)
		prompts_check(&p, rows, n_rows);
	prompts_deinit(&p);
}

/* ---- right numbers ---- */

static void test_agrees_with_dense_reference(void **state)
{
	/* alone, with history, at edges of pages, tiles, blocks and chunks */
	static const struct row alone[] = {
		{ .seed = 1, .n_query = 17, .seq_len = 17 },
		{ .seed = 2, .n_query = 64, .seq_len = 64 },
		{ .seed = 3, .n_query = 127, .seq_len = 257 },
		{ .seed = 4, .n_query = 129, .seq_len = 256 },
		{ .seed = 5, .n_query = 300, .seq_len = 300 },
		{ .seed = 6, .n_query = 17, .seq_len = 700 },
		{ .seed = 7, .n_query = 520, .seq_len = 650 },
		{ .seed = 8, .n_query = 200, .seq_len = 512 },
	};
	static const struct row crowd[] = {
		{ .n_query = 1 },
		{ .seed = 11, .n_query = 17, .seq_len = 33 },
		{ .seed = 12, .n_query = 300, .seq_len = 640 },
		{ .n_query = 16 },
		{ .seed = 13, .n_query = 130, .seq_len = 130 },
		{ .seed = 14, .n_query = 20, .seq_len = 127 },
		{ .seed = 15, .n_query = 90, .seq_len = 90 },
	};
	struct prompts p;

	prompts_init(&p, *state);
	for (size_t i = 0; i < COUNT(alone); i++)
		prompts_check(&p, &alone[i], 1);
	prompts_check(&p, crowd, COUNT(crowd));
	prompts_deinit(&p);
}

static void test_thousands_of_tokens_agree_with_dense_reference(void **state)
{
	static const struct prompt_model full = {
		MODEL(2, 512, 128, 64, 128, 16, 5000), false, false};
	static const struct prompt_model longer = {
		MODEL(1, 64, 128, 64, 128, 16, 9000), false, false};
	static const struct prompt_model longer_small = {
		MODEL(1, 64, 128, 64, 128, 16, 9000), true, false };
	static const struct row whole = { .seed = 1, .n_query = 5000, .seq_len = 5000 };
	static const struct row chunk = { .seed = 2, .n_query = 600, .seq_len = 9000 };

	check_model(&full, &whole, 1, 1);
	check_model(&longer, &chunk, 1, 1);
	check_model(&longer_small, &chunk, 1, 1);
}

/* A block of cuda's kernel takes one after the other, and the tickets start over with each launch;
 * an H200 has 132 blocks. */
static void test_more_items_than_blocks_agree_with_dense_reference(void **state)
{
	const struct prompt_model many = {
		MODEL(test_on_cuda() ? 20 : 2, 64, 128, 64, 128, 16, 1500), false, false };
	static const struct row rows[] = { { .seed = 1, .n_query = 1000, .seq_len = 1000 },
		{ .seed = 2, .n_query = 300, .seq_len = 1400 } };

	check_model(&many, rows, 2, 3);
}

/* More of them than a chunk has pieces, and more keys than it holds. */
static void test_many_short_prompts_share_chunks(void **state)
{
	struct row rows[FIXTURE_ROWS];

	for (uint32_t r = 0; r < FIXTURE_ROWS; r++)
		rows[r] = (struct row){ .seed = 50 + r, .n_query = 17 + r, .seq_len = 17 + 3 * r };
	check_model(&tuned, rows, FIXTURE_ROWS, 1);
	check_model(&odd_small, rows, FIXTURE_ROWS, 1);
}

static void test_pages_beyond_two_to_the_31_elements(void **state)
{
	static const struct prompt_model far = { MODEL(2, 64, 128, 64, 128, 16, 300), false, true };
	static const struct row rows[] = { { .seed = 1, .n_query = 50, .seq_len = 300 },
		{ .seed = 2, .n_query = 20, .seq_len = 20 } };

	check_model(&far, rows, 2, 1);
}

/* ---- what is not there ---- */

static void test_tokens_before_the_first_are_zero(void **state)
{
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 40 }, { .seed = 2, .n_query = 30, .seq_len = 10 } };

	check_model(&tuned, rows, 2, 1);
}

static void test_page_that_does_not_exist_reads_as_null_page(void **state)
{
	static const int32_t nowhere[] = { -1, INT32_MIN, INT32_MAX, 1 << 28 };
	static const struct row row = { .seed = 3, .n_query = 30, .seq_len = 60 };
	struct prompts p;

	prompts_init(&p, &tuned);
	for (size_t i = 0; i < COUNT(nowhere); i++) {
		prompts_place(&p, &row, 1);
		fixture_null_page(&p.f, nowhere[i]);
		prompts_run(&p);
		fixture_verify(&p.f);
	}
	prompts_deinit(&p);
}

/* ---- bits ---- */

/* On the cpu device for any chunks of keys and any requests that share them; on cuda, where
 * products differ by their size, in equal surroundings. */
static void test_bits_depend_on_the_sequence_alone(void **state)
{
	static const struct row rows[] = { { .seed = 4, .n_query = 100, .seq_len = 500 },
		{ .n_query = 3 }, { .seed = 5, .n_query = 333, .seq_len = 612 } };
	float *outs[2];
	struct prompts p;

	for (uint32_t i = 0; i < 2; i++) {
		bool all = i || test_on_cuda();

		prompts_init(&p, all ? &tuned_small : &tuned);
		prompts_place(&p, all ? rows : rows + 2, all ? 3 : 1);
		prompts_run(&p);
		outs[i] = malloc(fixture_bytes(&p.f, 333));
		assert_non_null(outs[i]);
		memcpy(outs[i], fixture_out(&p.f, all ? 2 : 0, 0), fixture_bytes(&p.f, 333));
		if (i)
			assert_memory_equal(outs[0], outs[1], fixture_bytes(&p.f, 333));
		prompts_deinit(&p);
	}
	free(outs[0]);
	free(outs[1]);
}

/* ---- plans over integers ---- */

static void test_products_have_few_numbers_of_rows(void **state)
{
	struct mla_prompt_kernels kernels = { .granule = 128 };
	uint32_t n_classes = 0;

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

	assert_int_equal(mla_segments_init(&s, &kernels, 5), 0);
	mla_segments_cut(&s, &batch);
	assert_int_equal(s.n, 4);
	assert_segment(&s, 0, 0, 17, 1);
	assert_segment(&s, 1, 17, 129, 0);
	assert_segment(&s, 2, 129, 225, 1);
	assert_segment(&s, 3, 225, 241, 0);
	mla_segments_deinit(&s);
}

#define AGREES(claim, model)                                                                       \
	{ claim, test_agrees_with_dense_reference, NULL, NULL, (void *)(uintptr_t)&(model) }

int main(void)
{
	const struct CMUnitTest tests[] = {
		AGREES("test_odd_sizes_agree_with_dense_reference", odd),
		AGREES("test_odd_sizes_in_small_chunks_agree_with_dense_reference", odd_small),
		AGREES("test_wide_heads_agree_with_dense_reference", wide),
		AGREES("test_tuned_sizes_agree_with_dense_reference", tuned),
		AGREES("test_tuned_sizes_in_small_chunks_agree_with_dense_reference", tuned_small),
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

	return cmocka_run_group_tests_name("mla prompt", tests, NULL, NULL);
}
