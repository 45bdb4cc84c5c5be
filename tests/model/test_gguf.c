/* SPDX-License-Identifier: MIT */

/* GGUF's container: what is found in a header, and what is refused. Tensors: test_gguf_tensors.c. */
#include "tests/model/gguf_file.h"

#include <errno.h>

#define F32 0u

/* ---- what is found ---- */

static void test_fields_have_the_values_of_all_types(void **state)
{
	struct gguf_file file = GGUF_FILE_INIT;
	struct gguf gguf;
	struct model_error error = {""};
	static const struct {
		enum gguf_value type;
		uint32_t bytes;
		uint64_t bits;
		json_int_t value;
	} cases[] = {
		{GGUF_U8, 1, 0xff, 255}, {GGUF_I8, 1, 0xff, -1}, {GGUF_U16, 2, 0xffff, 65535},
		{GGUF_I16, 2, 0xfffe, -2}, {GGUF_U32, 4, 0xffffffff, 0xffffffff},
		{GGUF_I32, 4, 0xfffffffd, -3}, {GGUF_U64, 8, 1ull << 40, 1ll << 40},
		{GGUF_I64, 8, UINT64_MAX, -1}, {GGUF_U64, 8, UINT64_MAX, INT64_MAX},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
		put_uint(put_key(&file, (char[]){(char)('a' + i), 0}, cases[i].type),
			cases[i].bits, cases[i].bytes);
	put_f32(&file, "float", 0.5f);
	put_bytes(put_key(&file, "double", GGUF_F64), &(double){0.25}, 8);
	put_uint(put_key(&file, "bool", GGUF_BOOL), 1, 1);
	put_text(&file, "text", "words");
	assert_int_equal(gguf_file_parse(&file, 0, &gguf, &error), 0);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
		assert_int_equal(json_integer_value(json_object_get(gguf.fields,
					 (char[]){(char)('a' + i), 0})),
			cases[i].value);
	assert_true(json_real_value(json_object_get(gguf.fields, "float")) == 0.5);
	assert_true(json_real_value(json_object_get(gguf.fields, "double")) == 0.25);
	assert_true(json_is_true(json_object_get(gguf.fields, "bool")));
	assert_string_equal(json_string_value(json_object_get(gguf.fields, "text")), "words");
	gguf_deinit(&gguf);
	(void)state;
}

static void test_strings_of_an_array_are_taken_one_by_one(void **state)
{
	struct scratch *scratch = *state;
	struct gguf_file file = GGUF_FILE_INIT;
	struct gguf gguf;
	struct model_error error = {""};
	struct gguf_bytes *to = put_array(&file, "list", GGUF_STRING, 2);
	char path[256];
	size_t length;

	put_string(to, "ab");
	put_string(to, "");
	struct gguf_bytes bytes = gguf_file_finish(&file);
	scratch_write(scratch, "m.gguf", bytes.data, bytes.n);
	free(bytes.data);
	scratch_path(scratch, "m.gguf", path);
	assert_int_equal(gguf_open(path, &gguf, &error), 0);
	const struct gguf_array *list = gguf_find_array(&gguf, "list");
	assert_non_null(list);
	assert_null(gguf_find_array(&gguf, "lis"));
	assert_int_equal(list->n, 2);
	const uint8_t *at = list->data;
	assert_memory_equal(gguf_next_string(&at, &length), "ab", 2);
	assert_int_equal(length, 2);
	gguf_next_string(&at, &length);
	assert_int_equal(length, 0);
	gguf_deinit(&gguf);
}

static void test_header_longer_than_the_first_read_is_read_whole(void **state)
{
	struct scratch *scratch = *state;
	struct gguf_file file = GGUF_FILE_INIT;
	struct gguf gguf;
	struct model_error error = {""};
	char path[256], *text = calloc(1, 3 << 20);

	assert_non_null(text);
	memset(text, 'x', (3 << 20) - 1);
	put_text(&file, "long", text);
	put_tensor(&file, "a", 1, 0, F32, 0);
	struct gguf_bytes bytes = gguf_file_finish(&file);
	put_uint(&bytes, 0, 4);
	scratch_write(scratch, "m.gguf", bytes.data, bytes.n);
	scratch_path(scratch, "m.gguf", path);
	if (gguf_open(path, &gguf, &error))
		fail_msg("%s", error.text);
	assert_string_equal(json_string_value(json_object_get(gguf.fields, "long")), text);
	assert_int_equal(gguf.n_tensors, 1);
	gguf_deinit(&gguf);
	free(bytes.data);
	free(text);
}

/* ---- what is refused ---- */

static void test_file_cut_anywhere_is_refused(void **state)
{
	struct gguf_file file = GGUF_FILE_INIT;
	struct gguf gguf;

	put_text(&file, "text", "words");
	put_uint(put_array(&file, "list", GGUF_U16, 2), 0x10002, 4);
	put_tensor(&file, "a", 5, 0, F32, 0);
	struct gguf_bytes bytes = gguf_file_finish(&file);
	for (int i = 0; i < 20; i++)
		put_uint(&bytes, 0, 1);
	for (size_t n = 0; n < bytes.n; n++) {
		struct model_error error = {""};
		uint8_t *cut = malloc(n + 1); /* so that sanitizers see its end */

		assert_non_null(cut);
		memcpy(cut, bytes.data, n);
		assert_int_equal(gguf_parse("x", cut, n, n, &gguf, &error), -EINVAL);
		free(cut);
	}
	struct model_error error = {""};
	assert_int_equal(gguf_parse("x", bytes.data, bytes.n, bytes.n, &gguf, &error), 0);
	gguf_deinit(&gguf);
	free(bytes.data);
	(void)state;
}

static void test_header_beyond_the_bytes_given_asks_for_more(void **state)
{
	struct gguf_file file = GGUF_FILE_INIT;
	struct gguf gguf;
	struct model_error error = {""};

	put_text(&file, "text", "words");
	struct gguf_bytes bytes = gguf_file_finish(&file);
	for (size_t n = 0; n < 24 + 8 + 4 + 4 + 8 + 5; n++)
		assert_int_equal(gguf_parse("x", bytes.data, n, bytes.n, &gguf, &error), GGUF_MORE);
	free(bytes.data);
	(void)state;
}

static void test_header_above_its_limit_is_refused(void **state)
{
	struct scratch *scratch = *state;
	struct gguf_file file = GGUF_FILE_INIT;
	struct gguf gguf;
	struct model_error error = {""};
	char path[256];

	put_uint(put_key(&file, "text", GGUF_STRING), GGUF_HEADER_MAX, 8);
	struct gguf_bytes bytes = gguf_file_finish(&file);
	scratch_write(scratch, "m.gguf", bytes.data, bytes.n);
	free(bytes.data);
	scratch_path(scratch, "m.gguf", path);
	assert_int_equal(truncate(path, GGUF_HEADER_MAX + 4096), 0);
	assert_int_equal(gguf_open(path, &gguf, &error), -EINVAL);
	assert_contains(error.text, "its header exceeds the limit of 268435456 bytes");
}

static void test_model_in_several_files_is_refused(void **state)
{
	struct scratch *scratch = *state;
	struct gguf_file file = GGUF_FILE_INIT;
	struct gguf gguf;
	struct model_error error = {""};
	char path[256];

	put_uint(put_key(&file, "split.count", GGUF_U16), 3, 2);
	struct gguf_bytes bytes = gguf_file_finish(&file);
	scratch_write(scratch, "m.gguf", bytes.data, bytes.n);
	free(bytes.data);
	scratch_path(scratch, "m.gguf", path);
	assert_int_equal(gguf_open(path, &gguf, &error), -ENOTSUP);
	assert_contains(error.text, "split.count 3");
}

static void test_missing_file_is_named(void **state)
{
	struct gguf gguf;
	struct model_error error = {""};

	assert_int_equal(gguf_open("/nonexistent/m.gguf", &gguf, &error), -ENOENT);
	assert_contains(error.text, "/nonexistent/m.gguf: does not exist");
	(void)state;
}

static void test_other_magic_or_version_is_refused(void **state)
{
	struct gguf gguf;
	struct model_error error = {""};
	uint8_t ggml[24] = "GGML";

	assert_int_equal(gguf_parse("x", ggml, sizeof(ggml), sizeof(ggml), &gguf, &error), -EINVAL);
	assert_contains(error.text, "does not begin with \"GGUF\"");
	gguf_file_refused((struct gguf_file){.version = 1}, 0, "version 1 is neither 2 nor 3");
	gguf_file_refused((struct gguf_file){.version = 3u << 24}, 0, "version 50331648");
	(void)state;
}

static void test_counts_above_their_limits_are_refused(void **state)
{
	struct gguf_file file = GGUF_FILE_INIT;

	file.n_tensors = GGUF_TENSORS_MAX + 1;
	gguf_file_refused(file, WHOLE, "65537 tensors; the limit is 65536");
	file = (struct gguf_file)GGUF_FILE_INIT;
	file.n_fields = UINT64_MAX;
	gguf_file_refused(file, WHOLE, "18446744073709551615 fields of metadata; the limit is 4096");
	(void)state;
}

/* A field alone in a header. */
static void refuse_field(enum gguf_value type, uint64_t bits, uint32_t bytes, const char *words)
{
	struct gguf_file file = GGUF_FILE_INIT;

	put_uint(put_key(&file, "key", type), bits, bytes);
	gguf_file_refused(file, WHOLE, words);
}

static void test_bad_value_is_refused_with_its_key(void **state)
{
	struct gguf_file file = GGUF_FILE_INIT;

	refuse_field(13, 0, 4, "key has type 13, which is not known");
	refuse_field(GGUF_BOOL, 2, 1, "key is neither a finite number nor a boolean");
	refuse_field(GGUF_F32, 0x7fc00000, 4, "key is neither a finite number");
	refuse_field(GGUF_F64, 0x7ffull << 52, 8, "key is neither a finite number");
	refuse_field(GGUF_STRING, UINT64_MAX, 8, "its header leaves the file");
	put_array(&file, "key", GGUF_ARRAY, 1);
	gguf_file_refused(file, WHOLE, "key is an array of type 9, which is not supported");
	file = (struct gguf_file)GGUF_FILE_INIT;
	put_array(&file, "key", GGUF_U64, 1ull << 61);
	gguf_file_refused(file, WHOLE, "key: a length of 2305843009213693952 overflows");
	file = (struct gguf_file)GGUF_FILE_INIT;
	put_array(&file, "key", GGUF_U8, 1ull << 61);
	gguf_file_refused(file, WHOLE, "its header leaves the file");
	file = (struct gguf_file)GGUF_FILE_INIT;
	put_array(&file, "key", GGUF_STRING, UINT64_MAX);
	gguf_file_refused(file, 1, "its header leaves the file");
	(void)state;
}

static void put_bad_text(struct gguf_file *file, const char *key, bool has_nul)
{
	struct gguf_bytes *to = put_key(file, key, GGUF_STRING);

	put_uint(to, 3, 8);
	put_bytes(to, has_nul ? "a\0b" : "a\xff" "b", 3);
}

static void test_bad_text_of_a_field_that_counts_is_refused_with_its_key(void **state)
{
	static const char *const keys[] = {
		"llama.rope.scaling.type", "tokenizer.ggml.pre", "general.architecture"};

	for (size_t i = 0; i < 2 * ARRAY_SIZE(keys); i++) {
		const char *key = keys[i / 2];
		struct gguf_file file = GGUF_FILE_INIT;
		char words[96];

		put_bad_text(&file, key, i % 2);
		if (strcmp(key, "general.architecture"))
			put_text(&file, "general.architecture", "llama");
		snprintf(words, sizeof(words), "%s is not UTF-8 or has a NUL", key);
		gguf_file_refused(file, 0, words);
	}
	(void)state;
}

static void test_bad_text_of_another_field_is_null(void **state)
{
	static const char *const keys[] = {"general.name", "quantize.imatrix.file", "llamas.x"};

	for (size_t i = 0; i < 2 * ARRAY_SIZE(keys); i++) {
		struct gguf_file file = GGUF_FILE_INIT;
		struct gguf gguf;
		struct model_error error = {""};

		put_bad_text(&file, keys[i / 2], i % 2);
		put_text(&file, "general.architecture", "llama");
		assert_int_equal(gguf_file_parse(&file, 0, &gguf, &error), 0);
		assert_true(json_is_null(json_object_get(gguf.fields, keys[i / 2])));
		gguf_deinit(&gguf);
	}
	(void)state;
}

static void test_bad_key_is_refused(void **state)
{
	struct gguf_file file = GGUF_FILE_INIT;
	char key[GGUF_KEY_MAX + 2] = "";

	put_u32(&file, "same", 1);
	put_text(&file, "same", "again");
	gguf_file_refused(file, 0, "same comes twice");
	file = (struct gguf_file)GGUF_FILE_INIT;
	put_u32(&file, "", 1);
	gguf_file_refused(file, 0, "a key is empty or has a NUL");
	file = (struct gguf_file)GGUF_FILE_INIT;
	put_uint(&file.fields, 2, 8);
	put_bytes(&file.fields, "a\0", 2);
	file.n_fields++;
	gguf_file_refused(file, WHOLE, "a key is empty or has a NUL");
	file = (struct gguf_file)GGUF_FILE_INIT;
	memset(key, 'k', GGUF_KEY_MAX + 1);
	put_u32(&file, key, 1);
	gguf_file_refused(file, 0, "a name of 256 bytes; the limit is 255");
	(void)state;
}

static void test_alignment_that_is_no_power_of_two_is_refused(void **state)
{
	struct gguf_file file = GGUF_FILE_INIT;

	put_u32(&file, "general.alignment", 24);
	gguf_file_refused(file, 0, "general.alignment 24 is not a power of two");
	file = (struct gguf_file)GGUF_FILE_INIT;
	put_u32(&file, "general.alignment", 1 << 20);
	gguf_file_refused(file, 0, "general.alignment 1048576 is not between 1 and 65536");
	(void)state;
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fields_have_the_values_of_all_types),
		scratch_test(test_strings_of_an_array_are_taken_one_by_one),
		scratch_test(test_header_longer_than_the_first_read_is_read_whole),
		cmocka_unit_test(test_file_cut_anywhere_is_refused),
		cmocka_unit_test(test_header_beyond_the_bytes_given_asks_for_more),
		scratch_test(test_header_above_its_limit_is_refused),
		scratch_test(test_model_in_several_files_is_refused),
		cmocka_unit_test(test_missing_file_is_named),
		cmocka_unit_test(test_other_magic_or_version_is_refused),
		cmocka_unit_test(test_counts_above_their_limits_are_refused),
		cmocka_unit_test(test_bad_value_is_refused_with_its_key),
		cmocka_unit_test(test_bad_text_of_a_field_that_counts_is_refused_with_its_key),
		cmocka_unit_test(test_bad_text_of_another_field_is_null),
		cmocka_unit_test(test_bad_key_is_refused),
		cmocka_unit_test(test_alignment_that_is_no_power_of_two_is_refused),
	};

	return cmocka_run_group_tests_name("gguf", tests, NULL, NULL);
}
