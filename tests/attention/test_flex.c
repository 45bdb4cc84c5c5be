/* SPDX-License-Identifier: MIT */
/* Attention under block masks: right numbers, whatever a program says. */
#include "tests/attention/flex_group.h"

#define FLEX_WIDTH 512u /* of FLEX_ORDINARY's outputs */

/* ---- right numbers ---- */

static void test_masks_agree_with_dense_reference(void **state)
{
	static const uint32_t page_tokens[] = { 1, 4, 16, 24 };
	static uint64_t words[FIXTURE_ROWS][LENGTH];
	uint64_t dice = 11;

	for (uint32_t round = 0; round < 6 * N_FLEX_SHAPES; round++) {
		struct shape shape = flex_shapes[round % N_FLEX_SHAPES];
		struct fixture f;

		if (shape.head_dim == 16)
			shape.page_tokens = page_tokens[random_below(&dice, 4)];
		shape.window = random_below(&dice, 3) ? 0 : 1 + random_below(&dice, 120);
		shape.soft_cap = random_below(&dice, 4) ? 0 : 0.3f; /* scores are about 1 */
		fixture_init(&f, flex_device, "flex", &shape);
		for (int batch = 0; batch < 2; batch++) {
			struct row rows[FIXTURE_ROWS];
			uint32_t n_rows = flex_draw_rows(&dice, shape.page_tokens, rows, words);

			fixture_check(
				&f, rows, n_rows, n_rows + random_below(&dice, 3), FIXTURE_TOKENS);
		}
		fixture_deinit(&f);
	}
}

/* Sequences of many cuts: one alone, and several whose edges lie anywhere. */
static void test_long_sequences_agree_with_dense_reference(void **state)
{
	static uint64_t words[5000];
	const struct row rows[] = {
		{ .seed = 1, .n_query = 1, .seq_len = 5000 },
		{ .seed = 2, .n_query = 1, .seq_len = 3 },
		{ .seed = 3, .n_query = 5, .seq_len = 2777,
			.mask = { .kind = MASK_WINDOW, .window = 1500, .end = 70 } },
		{ .seed = 4, .n_query = 40, .seq_len = 4096,
			.mask = { .kind = MASK_DOCUMENTS }, .words = words },
	};
	struct fixture f;

	for (uint32_t p = 1000; p < 5000; p++)
		words[p] = p < 4080 ? 1000 : 4070;
	for (size_t i = 1; i < 5; i++) {
		struct shape shape = flex_shapes[i];

		shape.max_seq_len = 5000;
		fixture_init(&f, flex_device, "flex", &shape);
		for (uint32_t n_rows = 1; n_rows <= 4; n_rows += 3) {
			fixture_check(&f, rows, n_rows, 0, 0);
		}
		fixture_deinit(&f);
	}
}

/* More blocks of queries than a device has multiprocessors, each of several tiles. */
static void verify_many_blocks(const struct shape *shape)
{
	static uint64_t words[LENGTH];
	const struct row rows[] = {
		{ .seed = 1, .n_query = 290, .seq_len = LENGTH },
		{ .seed = 2, .n_query = 1, .seq_len = 77 },
		{ .seed = 3, .n_query = 119, .seq_len = 250,
			.mask = { .kind = MASK_TREE, .begin = 186 }, .words = words },
	};
	struct fixture f;

	for (uint32_t p = 0; p < LENGTH; p++)
		words[p] = (uint64_t)p * 0x9e3779b97f4a7c15u;
	fixture_init(&f, flex_device, "flex", shape);
	fixture_place(&f, rows, 3, 4, FIXTURE_TOKENS);
	for (int i = 0; i < 2; i++) { /* what the first left behind is no harm */
		fixture_run(&f);
		fixture_verify(&f);
	}
	fixture_deinit(&f);
}

/* A kernel of its own for each size of head, on cuda; each has more blocks than 132. */
static void test_prompts_of_many_blocks_agree_with_dense_reference(void **state)
{
	static const struct shape shapes[] = {
		{ .n_heads = 48, .n_kv_heads = 6, .head_dim = 64, .page_tokens = 16,
			.max_seq_len = LENGTH },
		{ .n_heads = 48, .n_kv_heads = 6, .head_dim = 96, .page_tokens = 32,
			.max_seq_len = LENGTH },
		{ .n_heads = 48, .n_kv_heads = 6, .head_dim = 128, .page_tokens = 16,
			.max_seq_len = LENGTH },
		{ .n_heads = 96, .n_kv_heads = 12, .head_dim = 256, .page_tokens = 128,
			.max_seq_len = LENGTH },
	};

	for (size_t i = 0; i < (test_on_cuda() ? 4 : 1); i++)
		verify_many_blocks(&shapes[i]);
}

static void test_each_mask_differs_from_causal_where_it_says(void **state)
{
	static uint64_t words[LENGTH];
	struct row row = { .seed = 4, .n_query = 60, .seq_len = 100, .words = words };
	static const struct slot_mask masks[MASK_KINDS] = {
		[MASK_WINDOW] = { .kind = MASK_WINDOW, .window = 5, .end = 2 },
		[MASK_PREFIX] = { .kind = MASK_PREFIX, .begin = 45, .end = 80 },
		[MASK_DOCUMENTS] = { .kind = MASK_DOCUMENTS },
		[MASK_TREE] = { .kind = MASK_TREE, .begin = 50 },
	};
	/* the first token of the row's 60 to see other keys than a causal one does, and the last */
	static const uint32_t differ[MASK_KINDS][2] = {
		[MASK_WINDOW] = { 0, 59 }, [MASK_PREFIX] = { 5, 38 },
		[MASK_DOCUMENTS] = { 30, 59 }, [MASK_TREE] = { 11, 59 },
	};
	float *causal = calloc(FIXTURE_TOKENS * FLEX_WIDTH, sizeof(float));

	for (uint32_t p = 70; p < LENGTH; p++)
		words[p] = 70;
	for (uint32_t kind = 0; kind < MASK_KINDS; kind++) {
		struct fixture f;

		row.mask = masks[kind];
		fixture_init(&f, flex_device, "flex", FLEX_ORDINARY);
		fixture_check(&f, &row, 1, 0, 0);
		if (kind == MASK_TREE) /* each token of the tree sees itself alone of them */
			for (uint32_t t = 0; t < 60; t++)
				f.inputs.mask_words[t] = t < 10 ? 0 : (uint64_t)1 << (t - 10);
		fixture_run(&f);
		if (kind == MASK_CAUSAL)
			memcpy(causal, f.out, 60 * f.width * sizeof(float));
		for (uint32_t t = 0; t < 60 && kind != MASK_CAUSAL; t++)
			assert_int_equal(t >= differ[kind][0] && t <= differ[kind][1],
				memcmp(fixture_out(&f, 0, t), causal + t * f.width,
					f.width * sizeof(float)) != 0);
		fixture_deinit(&f);
	}
	free(causal);
}

/* What the cpu device promises, on it; another's backends differ in how they cut. */
static void test_causal_is_paged_to_the_last_bit(void **state)
{
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 5, .seq_len = 71 },
		{ .seed = 2, .n_query = 0, .seq_len = 0 },
		{ .seed = 3, .n_query = 1, .seq_len = 128 },
		{ .seed = 4, .n_query = 17, .seq_len = 17 },
		{ .seed = 5, .n_query = 33, .seq_len = 96 },
	};

	for (uint32_t window = 0; window < 80; window += 37) {
		struct shape shape = *FLEX_ORDINARY;
		struct fixture f;
		float *paged;

		shape.window = window;
		fixture_init_cpu(&f, "paged", &shape);
		fixture_run_rows(&f, rows, 5, 8, 64);
		paged = fixture_copy(&f);
		fixture_deinit(&f);
		fixture_init_cpu(&f, "flex", &shape);
		fixture_run_rows(&f, rows, 5, 8, 64);
		assert_memory_equal(f.out, paged, fixture_bytes(&f, 64));
		fixture_deinit(&f);
		free(paged);
	}
}

/* A mask of the window's size is the layer's window, and prompt chunks that do not cut the prefix
 * give what the whole gives. */
static void test_bits_depend_on_what_is_seen_alone(void **state)
{
	struct row row = { .seed = 6, .n_query = 90, .seq_len = 90 };
	struct shape windowed = *FLEX_ORDINARY;
	struct fixture f;
	float *expected;

	windowed.window = 21;
	fixture_init(&f, flex_device, "flex", &windowed);
	fixture_run_rows(&f, &row, 1, 0, 0);
	expected = fixture_copy(&f);
	fixture_deinit(&f);
	fixture_init(&f, flex_device, "flex", FLEX_ORDINARY);
	row.mask = (struct slot_mask){ .kind = MASK_WINDOW, .window = 21 };
	fixture_run_rows(&f, &row, 1, 0, 0);
	assert_memory_equal(f.out, expected, fixture_bytes(&f, 90));
	free(expected);

	row.mask = (struct slot_mask){ .kind = MASK_PREFIX, .begin = 10, .end = 50 };
	fixture_run_rows(&f, &row, 1, 0, 0);
	expected = fixture_copy(&f);
	for (uint32_t end = 50; end <= 90; end += 20) {
		row.n_query = end == 50 ? 45 : 20;
		row.seq_len = end;
		fixture_run_rows(&f, &row, 1, 0, 0);
		assert_memory_equal(f.out, expected + (end - row.n_query) * f.width,
			fixture_bytes(&f, row.n_query));
	}
	fixture_deinit(&f);
	free(expected);
}

/* ---- whatever a program says ---- */

static const uint32_t hard[] = { 0, 1, 31, 32, 64, LENGTH, INT32_MAX, UINT32_MAX };

static struct slot_mask draw_hostile(uint64_t *dice)
{
	return (struct slot_mask){ random_below(dice, MASK_KINDS + 2), hard[random_below(dice, 8)],
		hard[random_below(dice, 8)], hard[random_below(dice, 8)] };
}

static void test_views_of_hostile_programs_stay_within_the_sequence(void **state)
{
	uint64_t dice = 30;

	for (int round = 0; round < 20000; round++) {
		struct slot_mask mask = draw_hostile(&dice);
		uint32_t seq_len = 1 + random_below(&dice, LENGTH);
		uint32_t position = random_below(&dice, seq_len);
		uint64_t word = random_below(&dice, 2) ? UINT64_MAX : hard[random_below(&dice, 8)];
		struct mask_view view = mask_view_of(
			&mask, word, position, seq_len, hard[random_below(&dice, 8)]);

		assert_true(view.low <= position && view.sinks <= position);
		assert_true(view.first <= position && position < view.end);
		assert_true(view.end <= seq_len);
		for (uint32_t i = 0; i < 64; i++)
			if (view.bits >> i & 1)
				assert_true(view.tree + i < seq_len);
		assert_true(mask_sees(&view, position));
	}
}

static void test_bits_and_unions_say_what_views_do(void **state)
{
	uint64_t dice = 12;

	for (int round = 0; round < 4000; round++) {
		struct slot_mask mask = random_below(&dice, 2) ? draw_hostile(&dice)
			: (struct slot_mask){ random_below(&dice, MASK_KINDS),
				1 + random_below(&dice, 99), random_below(&dice, LENGTH),
				random_below(&dice, LENGTH) };
		uint32_t seq_len = 1 + random_below(&dice, LENGTH),
			 from = random_below(&dice, LENGTH);
		uint32_t first = random_below(&dice, seq_len),
			 end = from + 1 + random_below(&dice, 64);
		uint32_t window = random_below(&dice, 2) ? 0 : 1 + random_below(&dice, LENGTH);
		struct mask_union views = mask_union_none();
		bool some = false, all = true;

		for (uint32_t p = first; p < seq_len && p < first + 33; p++) {
			uint64_t word = (uint64_t)random_below(&dice, UINT32_MAX) << 33 ^
					random_below(&dice, LENGTH);
			struct mask_view view = mask_view_of(&mask, word, p, seq_len, window);
			struct mask_union one = mask_union_of(&view);
			uint64_t bits = mask_view_bits(&view, from);

			for (uint32_t i = 0; i < 64; i++) {
				assert_int_equal(bits >> i & 1, mask_sees(&view, from + i));
				some |= from + i < end && (bits >> i & 1);
				all &= from + i >= end || (bits >> i & 1);
			}
			mask_union_add(&views, &one);
		}
		assert_int_equal(mask_union_block(&views, from, end) != MASK_BLOCK_NONE, some);
		if (mask_union_block(&views, from, end) == MASK_BLOCK_ALL)
			assert_true(all);
		else if (all && mask.kind == MASK_PREFIX)
			fail_msg("a prefix that all see is not said to be");
	}
}

static void test_hostile_programs_see_nothing_outside_the_sequence(void **state)
{
	static uint64_t words[LENGTH];
	uint64_t dice = 3;
	struct fixture f;

	fixture_init(&f, flex_device, "flex", FLEX_ORDINARY);
	for (int round = 0; round < 200; round++) {
		uint32_t seq_len = flex_draw_length(&dice, 4);
		struct row row = {
			.seed = 1, .seq_len = seq_len,
			.n_query = 1 + random_below(&dice, seq_len < 9 ? seq_len : 9),
			.mask = draw_hostile(&dice), .words = words,
		};

		for (uint32_t p = 0; p < LENGTH; p++)
			words[p] =
				random_below(&dice, 2) ? UINT64_MAX : hard[random_below(&dice, 8)];
		fixture_run_rows(&f, &row, 1, 0, 0);
		/* whatever is not the sequence's is NaN, and no keys at all would be 0/0 */
		for (uint32_t e = 0; e < row.n_query * f.width; e++)
			assert_false(isnan(f.out[e]));
	}
	fixture_deinit(&f);
}

static void test_rows_of_no_slot_are_causal(void **state)
{
	static const int32_t no_slots[] = { -1, FIXTURE_ROWS, INT32_MAX, INT32_MIN };
	struct row row = { .seed = 2, .n_query = 20, .seq_len = 40 };
	struct fixture f;

	fixture_init(&f, flex_device, "flex", FLEX_ORDINARY);
	for (size_t i = 0; i < 4; i++) {
		fixture_place(&f, &row, 1, 0, 0);
		for (uint32_t s = 0; s < FIXTURE_ROWS; s++)
			f.inputs.slot_mask[s] =
				(struct slot_mask){ .kind = MASK_WINDOW, .window = 1 };
		f.inputs.row_slot[0] = no_slots[i];
		fixture_run(&f);
		fixture_verify(&f);
	}
	fixture_deinit(&f);
}

/* A row of fewer tokens in all than in its query: the first are not the sequence's. */
static void test_tokens_before_the_sequence_give_zero(void **state)
{
	static const uint32_t queries[] = { 2, 30 };
	struct fixture f;

	for (uint32_t s = 0; s < 2 * N_FLEX_SHAPES; s++) {
		uint32_t n = queries[s / N_FLEX_SHAPES];
		struct row row = { .seed = 9, .n_query = n, .seq_len = n };

		fixture_init(&f, flex_device, "flex", &flex_shapes[s % N_FLEX_SHAPES]);
		fixture_place(&f, &row, 1, 0, 0);
		f.inputs.seq_lens[0] = 1;
		f.seq_lens[0] = 1;
		fixture_run(&f);
		for (uint32_t e = 0; e < (n - 1) * f.width; e++)
			assert_true(f.out[e] == 0.0f);
		/* the last token sees the first key alone, and the output is its value */
		for (uint32_t e = 0; e < f.config.head_dim; e++)
			assert_true(fixture_out(&f, 0, n - 1)[e] != 0.0f);
		fixture_deinit(&f);
	}
}

static void test_pages_that_do_not_exist_read_as_the_null_page(void **state)
{
	struct fixture f;

	for (uint32_t s = 0; s < N_FLEX_SHAPES; s++) {
		fixture_init(&f, flex_device, "flex", &flex_shapes[s]);
		for (uint32_t i = 0; i < 2; i++) {
			uint32_t n = f.config.page_tokens < 20 ? f.config.page_tokens : 20;

			fixture_check_missing_pages(
				&f, &(struct row){ .seed = 9, .n_query = i ? n : 1, .seq_len = n });
		}
		fixture_deinit(&f);
	}
}

static void test_same_batch_gives_the_same_bits(void **state)
{
	static uint64_t words[FIXTURE_ROWS][LENGTH];
	uint64_t dice = 77;
	struct fixture f;

	fixture_init(&f, flex_device, "flex", FLEX_ORDINARY);
	for (int round = 0; round < 5; round++) {
		struct row rows[FIXTURE_ROWS];
		uint32_t n_rows = flex_draw_rows(&dice, 16, rows, words);
		float *first;

		fixture_run_rows(&f, rows, n_rows, 0, 0);
		first = fixture_copy(&f);
		for (int i = 1; i < 5; i++) {
			fixture_run_rows(&f, rows, n_rows, 0, 0);
			assert_memory_equal(
				f.out, first, fixture_bytes(&f, f.batch.n_tokens));
		}
		free(first);
	}
	fixture_deinit(&f);
}

/* ---- what it takes ---- */

static void test_models_that_it_cannot_serve_are_refused_with_the_reason(void **state)
{
	struct attention_config config;
	uint32_t max_query = 0;
	char why[128] = "";
	struct fixture f;

	fixture_init(&f, flex_device, "flex", FLEX_ORDINARY);
	config = f.config;
	assert_int_equal(f.backend->check(&config, why, sizeof(why)), 0);
	assert_int_equal(f.backend->support(&config, &max_query), ATTENTION_ALWAYS);
	assert_int_equal(max_query, FIXTURE_TOKENS);
	assert_true(f.backend->masks);
	config.kv_dtype = config.activation_dtype = DTYPE_BF16;
	assert_int_equal(f.backend->check(&config, why, sizeof(why)), 0);
	config.head_dim = 1025;
	assert_int_equal(f.backend->check(&config, why, sizeof(why)), -ENOTSUP);
	assert_non_null(strstr(why, "1025"));
	config = f.config;
	config.max_pages = INT32_MAX / config.page_tokens + 1;
	assert_int_equal(f.backend->check(&config, why, sizeof(why)), -ENOTSUP);
	assert_non_null(strstr(why, "too many"));
	fixture_deinit(&f);
}

static void test_cache_of_the_other_devices_format_is_refused(void **state)
{
	struct attention_manager *manager = NULL;
	struct attention_config config;
	struct fixture f;

	fixture_init(&f, flex_device, "flex", FLEX_ORDINARY);
	config = f.config;
	config.kv_dtype = config.activation_dtype = f.is_cuda ? DTYPE_F32 : DTYPE_BF16;
	assert_int_equal(f.backend->manager_new(f.device, &config, &f.at_device, &manager),
		-ENOTSUP);
	assert_null(manager);
	fixture_deinit(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_masks_agree_with_dense_reference),
		cmocka_unit_test(test_long_sequences_agree_with_dense_reference),
		cmocka_unit_test(test_prompts_of_many_blocks_agree_with_dense_reference),
		cmocka_unit_test(test_each_mask_differs_from_causal_where_it_says),
		cmocka_unit_test(test_causal_is_paged_to_the_last_bit),
		cmocka_unit_test(test_bits_depend_on_what_is_seen_alone),
		cmocka_unit_test(test_views_of_hostile_programs_stay_within_the_sequence),
		cmocka_unit_test(test_bits_and_unions_say_what_views_do),
		cmocka_unit_test(test_hostile_programs_see_nothing_outside_the_sequence),
		cmocka_unit_test(test_rows_of_no_slot_are_causal),
		cmocka_unit_test(test_tokens_before_the_sequence_give_zero),
		cmocka_unit_test(test_pages_that_do_not_exist_read_as_the_null_page),
		cmocka_unit_test(test_same_batch_gives_the_same_bits),
		cmocka_unit_test(test_models_that_it_cannot_serve_are_refused_with_the_reason),
		cmocka_unit_test(test_cache_of_the_other_devices_format_is_refused),
	};

	return cmocka_run_group_tests_name(
		"attention under block masks", tests, flex_device_open, flex_device_free);
}
