/* SPDX-License-Identifier: MIT */
/* Latent attention where lengths, scores and sizes are at their edges. */
#include <errno.h>

#include "tests/attention/latent_group.h"

/* A row that says more tokens than its sequence has: the first ones have no position, and see
 * nothing. */
static void test_tokens_ahead_of_their_sequence_give_zero(void **state)
{
	static const struct row rows[] = {
		{ .seed = 1, .n_query = 5, .seq_len = 2 },
		{ .seed = 2, .n_query = 70, .seq_len = 1 },
		{ .seed = 3, .n_query = 1, .seq_len = 65 },
	};

	for (size_t b = 0; b < latent_n_backends(); b++)
		fixture_check_once(NULL, latent_backends[b], &latent_ordinary, rows, 3, 4, 80);
}

/* Scores past the range of a float's exp, both ways: only their differences count. */
static void test_scores_beyond_the_range_of_exp_give_what_expansion_gives(void **state)
{
	static const struct row rows[] = {
		{.seed = 1, .n_query = 4, .seq_len = 300},
		{.seed = 2, .n_query = 3, .seq_len = 3},
		{.seed = 3, .n_query = 2, .seq_len = 70},
	};
	float *expected = calloc((size_t)FIXTURE_TOKENS * 32, sizeof(float));
	struct fixture f;

	for (size_t b = N_BACKENDS; b-- > 0;) {
		fixture_init(&f, NULL, latent_backends[b], &latent_ordinary);
		f.config.scale *= 100;
		fixture_remake(&f);
		fixture_run_rows(&f, rows, 3, 0, 0);
		for (size_t i = 0; i < 9 * f.width; i++) {
			if (b == N_BACKENDS - 1)
				expected[i] = f.out[i];
			assert_true(fabsf(f.out[i] - expected[i]) <= 1e-3f);
		}
		fixture_deinit(&f);
	}
	free(expected);
}

static void test_sizes_that_contradict_each_other_or_overflow_are_refused(void **state)
{
	struct attention_config config;
	struct fixture f;

	fixture_init(&f, NULL, "mla", &latent_ordinary);
	for (size_t b = 0; b < latent_n_backends(); b++) {
		const struct attention_backend *backend = attention_find(latent_backends[b]);
		char why[256] = "";

		config = f.config;
		assert_int_equal(backend->check(&config, why, sizeof(why)), 0);
		config.head_dim++; /* no longer rank + rope */
		assert_int_equal(backend->check(&config, why, sizeof(why)), -ENOTSUP);
		config = f.config;
		config.latent.v = INT32_MAX; /* of three heads, past 32 bits */
		assert_int_equal(backend->check(&config, why, sizeof(why)), -ENOTSUP);
		config = f.config;
		config.latent.rank = config.head_dim = INT32_MAX / 2;
		config.latent.rope = 0;
		assert_int_equal(backend->check(&config, why, sizeof(why)), -ENOTSUP);
	}
	fixture_deinit(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tokens_ahead_of_their_sequence_give_zero),
		cmocka_unit_test(test_scores_beyond_the_range_of_exp_give_what_expansion_gives),
		cmocka_unit_test(test_sizes_that_contradict_each_other_or_overflow_are_refused),
	};

	static const struct test_cpu_only only[] = {
		{ "test_scores_beyond", "the naive backend is for the cpu device" },
	};

	return TEST_RUN_GROUP("latent attention at its edges", tests, only, NULL, NULL);
}
