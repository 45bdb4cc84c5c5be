/* SPDX-License-Identifier: MIT */

/* The parts of models against simple ones: merges, cuts of long words, the best path, tries,
 * tables. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sdk/text/merges.h"
#include "sdk/text/model.h"
#include "sdk/text/score.h"
#include "sdk/text/trie.h"
#include "sdk/text/vocabulary.h"
#include "tests/random.h"
#include "tests/text/fixture.h"

/* ---- merges ---- */

#define LETTERS 4

/* Random merges over ids: each makes a new id of two that are there. */
static uint32_t fill_merges(struct merges *merges, uint64_t *random, uint32_t n)
{
	uint32_t n_ids = LETTERS;

	assert_int_equal(merges_init(merges, n), 0);
	for (uint32_t rank = 0; rank < n; rank++) {
		int32_t left = (int32_t)random_below(random, n_ids),
			right = (int32_t)random_below(random, n_ids);

		if (merges_find(merges, left, right)->rank == MERGES_NONE)
			merges_add(merges, left, right, random_below(random, 20) * n + rank,
				(int32_t)n_ids++);
	}
	return n_ids;
}

/* By the definition: the lowest rank, the leftmost, until there is none. */
static size_t merge_by_definition(const struct merges *merges, int32_t *ids, size_t n)
{
	for (;;) {
		uint32_t best = MERGES_NONE;
		size_t at = 0;

		for (size_t i = 0; i + 1 < n; i++) {
			uint32_t rank = merges_find(merges, ids[i], ids[i + 1])->rank;

			if (rank < best) {
				best = rank;
				at = i;
			}
		}
		if (best == MERGES_NONE)
			return n;
		ids[at] = merges_find(merges, ids[at], ids[at + 1])->id;
		memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof(*ids));
		n--;
	}
}

static void test_merges_of_short_and_long_words_follow_the_definition(void **state)
{
	uint64_t random = 11;
	uint32_t links[4 * 300];
	uint64_t heap[2 * 300];

	for (int round = 0; round < 300; round++) {
		struct merges merges;
		int32_t expected[300], ids[300];
		size_t n = 1 + random_below(&random, round % 2 ? 300 : MERGES_SHORT);

		fill_merges(&merges, &random, 30);
		for (size_t i = 0; i < n; i++)
			expected[i] = (int32_t)random_below(&random, LETTERS);
		memcpy(ids, expected, sizeof(ids));
		size_t n_expected = merge_by_definition(&merges, expected, n);
		assert_int_equal(merges_apply_long(&merges, ids, n, links, heap), n_expected);
		assert_memory_equal(ids, expected, n_expected * sizeof(*ids));
		merges_deinit(&merges);
	}
}

static void test_short_words_merge_like_long_ones(void **state)
{
	uint64_t random = 12;

	for (int round = 0; round < 300; round++) {
		struct merges merges;
		int32_t expected[MERGES_SHORT], ids[MERGES_SHORT];
		size_t n = 1 + random_below(&random, MERGES_SHORT);

		fill_merges(&merges, &random, 30);
		for (size_t i = 0; i < n; i++)
			expected[i] = (int32_t)random_below(&random, LETTERS);
		memcpy(ids, expected, sizeof(ids));
		size_t n_expected = merge_by_definition(&merges, expected, n);
		assert_int_equal(merges_apply(&merges, ids, n), n_expected);
		assert_memory_equal(ids, expected, n_expected * sizeof(*ids));
		merges_deinit(&merges);
	}
}

/* ---- cuts ---- */

/* A text of the characters that the model's corpus had, and some that it had not. */
static size_t random_text(char *out, size_t size, uint64_t *random)
{
	static const char *const parts[] = {"▁", "e", "t", "s", "o", "l", "d", "▁the", "test",
		"world", "é", "テ", "😀", "<", "x", "▁"};
	size_t n = 0;

	while (n + 16 < size) {
		const char *part = parts[random_below(random, ARRAY_SIZE(parts))];

		memcpy(out + n, part, strlen(part));
		n += strlen(part);
	}
	return n;
}

static void test_a_long_word_is_encoded_alike_with_and_without_cuts(void **state)
{
	static const char *const claims[] = {"BPE with byte fallback",
		"BPE with fused unknown tokens", "BPE with unknown tokens one by one",
		"BPE that leaves out unknown characters",
		"BPE with byte fallback for some bytes only"};
	json_t *table = fixture_load();
	uint64_t random = 13;

	for (size_t c = 0; c < ARRAY_SIZE(claims); c++) {
		const json_t *entry = fixture_find(table, claims[c]);
		size_t index = (size_t)json_integer_value(json_object_get(entry, "model"));
		json_t *root = json_pack(
			"{sO}", "model", json_array_get(json_object_get(table, "models"), index));
		struct fault fault = {0};
		struct spec_file file = {.fault = &fault};
		struct spec spec = {.json = root, .file = &file};
		struct model model;
		bool is_byte_level, was_cut = false;

		assert_true(model_init(&model, &spec, false, &is_byte_level));
		for (int round = 0; round < 100; round++) {
			char word[2000];
			size_t length = random_text(word, sizeof(word), &random);
			struct model_work work = {0};
			struct ids whole = {0}, cut = {0};

			assert_int_equal(
				bpe_encode(&model.bpe, &work.bpe, word, length, &whole), 0);
			assert_int_equal(model_encode(&model, &work, word, length, &cut), 0);
			was_cut |= bpe_cut(&model.bpe, word, length) < length;
			assert_int_equal(whole.n, cut.n);
			assert_memory_equal(whole.data, cut.data, whole.n * sizeof(*whole.data));
			ids_deinit(&whole);
			ids_deinit(&cut);
			model_work_deinit(&work);
		}
		assert_true(was_cut);
		model_deinit(&model);
		json_decref(root);
	}
	json_decref(table);
}

static void test_a_cached_word_has_the_same_ids(void **state)
{
	json_t *table = fixture_load();
	const json_t *entry = fixture_find(table, "BPE over bytes");
	size_t index = (size_t)json_integer_value(json_object_get(entry, "model"));
	json_t *root =
		json_pack("{sO}", "model", json_array_get(json_object_get(table, "models"), index));
	struct fault fault = {0};
	struct spec_file file = {.fault = &fault};
	struct spec spec = {.json = root, .file = &file};
	struct model_work cached = {0}, plain = {0};
	uint64_t random = 14;
	struct model model;
	bool is_byte_level;

	assert_true(model_init(&model, &spec, true, &is_byte_level));
	/* few lines, so that words replace one another */
	word_cache_init(&cached.cache, 0);
	for (int round = 0; round < 20000; round++) {
		char word[WORD_CACHE_BYTES + 8];
		size_t length =
			1 + random_below(&random, 3) + (round % 50 == 0 ? WORD_CACHE_BYTES - 2 : 0);
		struct ids a = {0}, b = {0};

		for (size_t i = 0; i < length; i++)
			word[i] = (char)("the test"[random_below(&random, 8)]);
		assert_int_equal(model_encode(&model, &cached, word, length, &a), 0);
		assert_int_equal(model_encode(&model, &plain, word, length, &b), 0);
		assert_int_equal(a.n, b.n);
		assert_memory_equal(a.data, b.data, a.n * sizeof(*a.data));
		ids_deinit(&a);
		ids_deinit(&b);
	}
	model_work_deinit(&cached);
	model_work_deinit(&plain);
	model_deinit(&model);
	json_decref(root);
	json_decref(table);
}

/* ---- the unigram model ---- */

/* The best sum of scores of all ways to cut a word of letters, by trying them all. */
static double best_score(
	const struct vocabulary *vocabulary, const double *scores, const char *word, size_t length)
{
	double best = length == 0 ? 0 : -INFINITY;

	for (size_t n = 1; n <= length; n++) {
		int32_t id = vocabulary_find(vocabulary, word, n);

		if (id >= 0)
			best = fmax(best,
				scores[id] + best_score(vocabulary, scores, word + n, length - n));
	}
	return best;
}

static void test_unigram_finds_the_greatest_sum_of_scores(void **state)
{
	uint64_t random = 15;

	for (int round = 0; round < 60; round++) {
		struct vocabulary vocabulary;
		double *scores = calloc(64, sizeof(*scores));
		struct unigram unigram = {
			.vocabulary = &vocabulary, .scores = scores, .unknown = -1};
		struct unigram_work work = {0};

		assert_int_equal(vocabulary_init(&vocabulary, 64), 0);
		for (int32_t id = 0; id < 64; id++) {
			char token[8];
			size_t n = id < 3 ? 1 : 1 + random_below(&random, 4);

			for (size_t i = 0; i < n; i++)
				token[i] = id < 3 ? (char)('a' + id)
						  : (char)('a' + random_below(&random, 3));
			scores[id] = -10.0 * (1 + random_float(&random));
			assert_int_equal(vocabulary_add(&vocabulary, token, n, id), 0);
		}
		assert_int_equal(unigram_prepare(&unigram), 0);
		for (int k = 0; k < 20; k++) {
			char word[10];
			struct ids ids = {0};
			double sum = 0;
			size_t length = 1 + random_below(&random, sizeof(word)), at = 0;

			for (size_t i = 0; i < length; i++)
				word[i] = (char)('a' + random_below(&random, 3));
			assert_int_equal(unigram_encode(&unigram, &work, word, length, &ids), 0);
			for (size_t i = 0; i < ids.n; i++) {
				size_t n;
				const char *token = vocabulary_token(&vocabulary, ids.data[i], &n);

				assert_memory_equal(token, word + at, n);
				at += n;
				sum += scores[ids.data[i]];
			}
			assert_int_equal(at, length);
			assert_true(
				fabs(sum - best_score(&vocabulary, scores, word, length)) < 1e-9);
			ids_deinit(&ids);
		}
		unigram_work_deinit(&work);
		unigram_deinit(&unigram);
		vocabulary_deinit(&vocabulary);
	}
}

static void test_scores_do_not_depend_on_the_decimal_point(void **state)
{
	assert_true(score_divide("-1.25e+01") == -12.5);
	assert_true(score_divide("-1,25e+01") == -12.5);
	assert_true(score_divide("1\xd9\xab"
				 "25e-01") == 0.125);
}

/* ---- tables ---- */

static void test_tries_and_vocabularies_find_what_was_added(void **state)
{
	uint64_t random = 16;
	struct vocabulary vocabulary;
	struct trie trie;
	struct trie_key keys[500];
	char tokens[500][6];
	uint32_t n = 0;

	assert_int_equal(vocabulary_init(&vocabulary, 500), 0);
	for (int32_t id = 0; id < 500; id++) {
		size_t length = 1 + random_below(&random, 5);

		for (size_t i = 0; i < length; i++)
			tokens[id][i] = (char)random_below(&random, 5);
		assert_int_equal(vocabulary_add(&vocabulary, tokens[id], length, id), 0);
		keys[n++] = (struct trie_key){tokens[id], (uint32_t)length, id};
	}
	assert_int_equal(trie_init(&trie, keys, n), 0);
	for (int round = 0; round < 20000; round++) {
		char text[8];
		size_t length = random_below(&random, sizeof(text)), found = 0, expected_length = 0;
		int32_t expected = -1;

		for (size_t i = 0; i < length; i++)
			text[i] = (char)random_below(&random, 5);
		for (size_t i = 1; i <= length; i++) {
			int32_t id = vocabulary_find(&vocabulary, text, i);

			if (id >= 0) {
				expected = id;
				expected_length = i;
			}
		}
		assert_int_equal(trie_longest(&trie, 0, text, length, &found), expected);
		assert_int_equal(found, expected_length);
	}
	/* an id has one token, and ids have a bound */
	assert_int_equal(vocabulary_add(&vocabulary, "x", 1, 3), MIMEO_E_INVALID);
	assert_int_equal(
		vocabulary_add(&vocabulary, "x", 1, (int32_t)VOCABULARY_IDS_MAX), MIMEO_E_INVALID);
	trie_deinit(&trie);
	vocabulary_deinit(&vocabulary);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_merges_of_short_and_long_words_follow_the_definition),
		cmocka_unit_test(test_short_words_merge_like_long_ones),
		cmocka_unit_test(test_a_long_word_is_encoded_alike_with_and_without_cuts),
		cmocka_unit_test(test_a_cached_word_has_the_same_ids),
		cmocka_unit_test(test_unigram_finds_the_greatest_sum_of_scores),
		cmocka_unit_test(test_scores_do_not_depend_on_the_decimal_point),
		cmocka_unit_test(test_tries_and_vocabularies_find_what_was_added),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
