/* SPDX-License-Identifier: MIT */
#include "tests/attention/fixture.h"

static struct device *cpu; /* of the group */

static const char *const backends[] = { "naive", "paged", "flex" };

#define N_BACKENDS COUNT(backends)

static const struct shape ordinary = {
	.n_heads = 6, .n_kv_heads = 2, .head_dim = 24, .page_tokens = 4, .max_seq_len = 150,
};
static const struct shape windowed = {
	.n_heads = 4, .n_kv_heads = 4, .head_dim = 32, .page_tokens = 16, .window = 37,
	.max_seq_len = 150,
};

/* ---- right numbers ---- */

static struct shape draw_shape(uint64_t *dice)
{
	static const uint32_t dims[] = { 8, 10, 24, 42, 64, 80, 96, 128 };
	static const uint32_t page_tokens[] = { 1, 4, 16 };
	struct shape shape = { .n_heads = 1 + random_below(dice, 8), .max_seq_len = 130 };

	do {
		shape.n_kv_heads = 1 + random_below(dice, shape.n_heads);
	} while (shape.n_heads % shape.n_kv_heads != 0);
	shape.head_dim = dims[random_below(dice, 8)];
	shape.page_tokens = page_tokens[random_below(dice, 3)];
	shape.window = random_below(dice, 2) ? 1 + random_below(dice, 60) : 0;
	shape.soft_cap = random_below(dice, 3) ? 0 : 0.3f; /* scores are about 1 */
	return shape;
}

static void test_agrees_with_dense_reference(void **state)
{
	uint64_t dice = 7;

	fixture_check_drawn(cpu, *state, &dice, 60, draw_shape, 5, 20);
}

static void test_window_is_the_layers_own(void **state)
{
	struct fixture f;
	struct row row = { .seed = 3, .n_query = 1, .seq_len = 90 };
	float *all;

	for (size_t b = 0; b < N_BACKENDS; b++) {
		fixture_init(&f, cpu, backends[b], &windowed);
		fixture_place(&f, &row, 1, 0, 0);
		assert_int_equal(fixture_build(&f, ATTENTION_EAGER), 0);
		assert_int_equal(fixture_enqueue(&f, 0), 0);
		fixture_sync(&f);
		all = fixture_copy(&f);
		fixture_run(&f);
		fixture_verify(&f);
		assert_memory_not_equal(all, f.out, fixture_bytes(&f, 1));
		f.windows[1] = 0; /* the reference's; the manager has its own copy */
		memcpy(f.out, all, fixture_bytes(&f, 1));
		fixture_verify(&f);
		free(all);
		fixture_deinit(&f);
	}
}

/* ---- empty rows and padding ---- */

/* A batch that every backend gives what the dense reference does. */
struct batch {
	const struct shape *shape;
	uint32_t n_rows, padded_rows, padded_tokens;
	struct row rows[4];
};

static const struct shape window_of_one = { .n_heads = 2, .n_kv_heads = 2, .head_dim = 16,
	.page_tokens = 4, .window = 1, .max_seq_len = 64 };

static const struct batch sees_itself = { &window_of_one, 1, 0, 0, { { 5, 3, 34 } } },
	empty_rows = { &ordinary, 4, 8, 16, { { 1, 2, 0 }, { 2, 3, 10 }, { 3, 0, 7 }, { 4, 1, 0 } } },
	idle = { &ordinary, 0, 4, 4, { { 0, 0, 0 } } },
	/* fewer tokens in all than in the row's query */
	before_the_sequence = { &ordinary, 1, 0, 0, { { 9, 2, 1 } } };

static void test_batch(void **state)
{
	const struct batch *batch = *state;

	for (size_t b = 0; b < N_BACKENDS; b++)
		fixture_check_once(cpu, backends[b], batch->shape, batch->n_rows ? batch->rows : NULL,
			batch->n_rows, batch->padded_rows, batch->padded_tokens);
}

#define BATCH(claim, batch) { claim, test_batch, NULL, NULL, (void *)&(batch) }

static void test_page_that_does_not_exist_reads_as_null_page(void **state)
{
	struct row row = { .seed = 9, .n_query = 1, .seq_len = 7 };
	struct fixture f;

	for (size_t b = 0; b < N_BACKENDS; b++) {
		fixture_init(&f, cpu, backends[b], &ordinary);
		fixture_check_missing_pages(&f, &row);
		fixture_deinit(&f);
	}
}

static void test_lengths_past_the_table_stay_inside_it(void **state)
{
	struct row row = { .seed = 9, .n_query = 1, .seq_len = 4 };
	struct fixture f;

	fixture_init(&f, cpu, "paged", &ordinary);
	fixture_place(&f, &row, 1, 0, 0);
	for (uint32_t i = 0; i < FIXTURE_ROWS * f.config.max_pages; i++)
		f.inputs.block_table[i] = f.inputs.block_table[0];
	f.inputs.seq_lens[0] = INT32_MAX;
	f.inputs.query_start[1] = INT32_MAX;
	fixture_run(&f);
	/* every key is one of the cached four: a number for the token, nothing past it */
	assert_false(isnan(f.out[0]));
	assert_true(isnan(f.out[f.width]));
	fixture_deinit(&f);
}

/* ---- a token's bits are its own ---- */

static void test_bits_do_not_depend_on_the_batch(void **state)
{
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 5, .seq_len = 71 },
		{ .seed = 2, .n_query = 0, .seq_len = 0 },
		{ .seed = 3, .n_query = 1, .seq_len = 128 },
		{ .seed = 4, .n_query = 17, .seq_len = 17 },
		{ .seed = 5, .n_query = 1, .seq_len = 1 },
	};
	struct fixture f;

	for (size_t b = 0; b < 2 * N_BACKENDS; b++) {
		fixture_init(&f, cpu, backends[b / 2], b % 2 ? &windowed : &ordinary);
		fixture_check_alone(&f, rows, COUNT(rows), 8, 40);
		fixture_deinit(&f);
	}
}

static void test_bits_do_not_depend_on_the_chunking(void **state)
{
	static const uint32_t chunks[] = { 33, 1, 7, 40, 1, 1, 32, 5 }; /* 120 */
	struct fixture f;

	for (size_t b = 0; b < 2 * N_BACKENDS; b++) {
		uint32_t done = 0;
		float *whole;

		fixture_init(&f, cpu, backends[b / 2], b % 2 ? &windowed : &ordinary);
		fixture_run_rows(
			&f, &(struct row){ .seed = 6, .n_query = 120, .seq_len = 120 }, 1, 0, 0);
		whole = fixture_copy(&f);
		for (size_t i = 0; i < COUNT(chunks); done += chunks[i++]) {
			fixture_run_rows(&f, &(struct row){ .seed = 6, .n_query = chunks[i],
				.seq_len = done + chunks[i] }, 1, 0, 0);
			assert_memory_equal(f.out, whole + (size_t)done * f.width,
				fixture_bytes(&f, chunks[i]));
		}
		assert_int_equal(done, 120);
		free(whole);
		fixture_deinit(&f);
	}
}

static void test_bits_do_not_depend_on_the_page_size(void **state)
{
	static const uint32_t sizes[] = { 1, 4, 16, 24, 64 };
	float *first = NULL;
	struct fixture f;

	for (size_t i = 0; i < COUNT(sizes); i++) {
		struct shape shape = windowed;

		shape.page_tokens = sizes[i];
		fixture_init(&f, cpu, "paged", &shape);
		fixture_run_rows(
			&f, &(struct row){ .seed = 8, .n_query = 9, .seq_len = 111 }, 1, 0, 0);
		if (i == 0)
			first = fixture_copy(&f);
		assert_memory_equal(f.out, first, fixture_bytes(&f, 9));
		fixture_deinit(&f);
	}
	free(first);
}

/* ---- refusals ---- */

static void test_rebuild_forgets_the_batch_before(void **state)
{
	static const struct row big[] = {
		{ .seed = 1, .n_query = 9, .seq_len = 90 },
		{ .seed = 2, .n_query = 9, .seq_len = 91 },
	};
	static const struct row small = { .seed = 3, .n_query = 1, .seq_len = 5 };
	struct fixture f;

	for (size_t b = 0; b < N_BACKENDS; b++) {
		fixture_init(&f, cpu, backends[b], &ordinary);
		fixture_run_rows(&f, big, 2, 4, 20);
		fixture_check(&f, &small, 1, 0, 0);
		/* a build that fails leaves nothing to run */
		f.batch.n_tokens = 2;
		assert_int_equal(fixture_build(&f, ATTENTION_EAGER), -EINVAL);
		assert_int_equal(fixture_enqueue(&f, 1), -EINVAL);
		fixture_deinit(&f);
	}
}

static void test_contradicting_batches_are_refused(void **state)
{
	struct row row = { .seed = 3, .n_query = 2, .seq_len = 5 };
	struct fixture f;

	for (size_t b = 0; b < N_BACKENDS; b++) {
		fixture_init(&f, cpu, backends[b], &ordinary);
		for (int fault = 0; fault < 7; fault++) {
			fixture_place(&f, &row, 1, 2, 4);
			f.batch.padded_rows = fault == 0 ? 0 : fault == 1 ? FIXTURE_ROWS + 1 : 2;
			f.batch.padded_tokens = fault == 2   ? 1
						: fault == 3 ? FIXTURE_TOKENS + 1
							     : 4;
			f.batch.max_query = fault == 4 ? 1 : 2;
			f.seq_lens[0] = fault == 5 ? ordinary.max_seq_len + 1 : 5;
			f.batch.n_tokens = fault == 6 ? 3 : 2;
			assert_int_equal(fixture_build(&f, ATTENTION_EAGER), -EINVAL);
		}
		fixture_place(&f, &row, 1, 2, 4);
		assert_int_equal(fixture_build(&f, ATTENTION_EAGER), 0);
		fixture_deinit(&f);
	}
}

static void test_runs_of_layers_that_are_not_there_are_refused(void **state)
{
	struct row row = { .seed = 3, .n_query = 2, .seq_len = 5 };
	struct fixture f;

	for (size_t b = 0; b < N_BACKENDS; b++) {
		fixture_init(&f, cpu, backends[b], &ordinary);
		assert_int_equal(fixture_enqueue(&f, 1), -EINVAL); /* nothing built */
		fixture_place(&f, &row, 1, 0, 0);
		assert_int_equal(fixture_build(&f, ATTENTION_EAGER), 0);
		assert_int_equal(fixture_enqueue(&f, FIXTURE_LAYERS), -EINVAL);
		f.q_stride = f.width - 1;
		assert_int_equal(fixture_enqueue(&f, 1), -EINVAL);
		fixture_deinit(&f);
	}
}

static int other_info(struct device *device, struct device_info *ret)
{
	*ret = (struct device_info){ .name = "other", .kind = "other" };
	return 0;
}

static void test_device_without_kernels_is_refused(void **state)
{
	static const struct device_ops ops = { .info = other_info };
	struct device other = { .ops = &ops };
	struct attention_manager *manager = NULL;
	struct fixture f;

	for (size_t b = 0; b < N_BACKENDS; b++) {
		fixture_init(&f, cpu, backends[b], &ordinary);
		assert_int_equal(
			f.backend->manager_new(&other, &f.config, &f.inputs, &manager), -ENOTSUP);
		assert_null(manager);
		fixture_deinit(&f);
	}
}

static int open_cpu(void **state)
{
	return device_open("cpu", &(struct device_options){ 0 }, &cpu);
}

static int close_cpu(void **state)
{
	cpu->ops->free(cpu);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		{ "test_naive_agrees_with_dense_reference", test_agrees_with_dense_reference,
			NULL, NULL, "naive" },
		{ "test_paged_agrees_with_dense_reference", test_agrees_with_dense_reference,
			NULL, NULL, "paged" },
		{ "test_flex_agrees_with_dense_reference", test_agrees_with_dense_reference,
			NULL, NULL, "flex" },
		cmocka_unit_test(test_window_is_the_layers_own),
		BATCH("test_window_of_one_sees_only_itself", sees_itself),
		BATCH("test_empty_rows_and_padding_give_zero", empty_rows),
		BATCH("test_idle_batch_writes_zero_padding", idle),
		BATCH("test_tokens_before_the_sequence_give_zero", before_the_sequence),
		cmocka_unit_test(test_page_that_does_not_exist_reads_as_null_page),
		cmocka_unit_test(test_lengths_past_the_table_stay_inside_it),
		cmocka_unit_test(test_bits_do_not_depend_on_the_batch),
		cmocka_unit_test(test_bits_do_not_depend_on_the_chunking),
		cmocka_unit_test(test_bits_do_not_depend_on_the_page_size),
		cmocka_unit_test(test_rebuild_forgets_the_batch_before),
		cmocka_unit_test(test_contradicting_batches_are_refused),
		cmocka_unit_test(test_runs_of_layers_that_are_not_there_are_refused),
		cmocka_unit_test(test_device_without_kernels_is_refused),
	};

	return cmocka_run_group_tests_name("attention on the cpu", tests, open_cpu, close_cpu);
}
