/* SPDX-License-Identifier: MIT */
#include "tests/model/fixture.h"

#include <errno.h>
#include <sys/stat.h>

#include "daemon/model/safetensors.h"

#define ONE "model.safetensors"
#define INDEX "model.safetensors.index.json"

static void expect_refusal(const struct scratch *scratch, const char *words)
{
	struct safetensors safetensors = {0};
	struct model_error error = {""};
	int rc = safetensors_open(scratch->directory, &safetensors, &error);

	assert_true(rc < 0);
	assert_contains(error.text, scratch->directory);
	assert_contains(error.text, words);
}

static struct safetensors open_scratch(const struct scratch *scratch)
{
	struct safetensors s = {0};
	struct model_error error = {""};

	if (safetensors_open(scratch->directory, &s, &error))
		fail_msg("%s", error.text);
	return s;
}

/* A header with its length in the file (UINT64_MAX: its own), or an index, that is refused with
 * those words. */
struct refused {
	const char *text;
	uint64_t length;
	size_t data_bytes;
	const char *words;
};

static void test_refused_header(void **state)
{
	const struct scratch *scratch = *state;
	const struct refused *refused = scratch->given;

	scratch_safetensors(scratch, ONE, refused->text, refused->length, refused->data_bytes);
	expect_refusal(scratch, refused->words);
}

#define HEADER_OF_LENGTH(claim, text, length, data_bytes, words)                           \
	{claim, test_refused_header, scratch_setup, scratch_teardown,                      \
		&(struct refused){text, length, data_bytes, words}}
#define HEADER(claim, text, data_bytes, words) \
	HEADER_OF_LENGTH(claim, text, UINT64_MAX, data_bytes, words)

static void test_tensors_are_found_with_shape_dtype_and_place(void **state)
{
	struct scratch *scratch = *state;
	const char *header =
		"{\"__metadata__\":{\"format\":\"pt\"},"
		"\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[4,28]},"
		"\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]},"
		"\"none\":{\"dtype\":\"F16\",\"shape\":[0,7],\"data_offsets\":[4,4]},"
		"\"scalar\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[28,36]}}";
	struct safetensors s;
	const struct safetensors_tensor *b;

	scratch_safetensors(scratch, ONE, header, UINT64_MAX, 36);
	s = open_scratch(scratch);
	assert_int_equal(s.n_tensors, 4);
	b = safetensors_find(&s, "b");
	assert_non_null(b);
	assert_true(b->usable);
	assert_int_equal(b->dtype, DTYPE_F32);
	assert_int_equal(b->n_dims, 2);
	assert_int_equal(b->shape[0], 2);
	assert_int_equal(b->shape[1], 3);
	assert_int_equal(b->offset, 8 + strlen(header) + 4);
	assert_int_equal(b->bytes, 24);
	assert_false(safetensors_find(&s, "scalar")->usable);
	assert_null(safetensors_find(&s, "__metadata__"));
	assert_null(safetensors_find(&s, "c"));
	safetensors_deinit(&s);
}

static void test_header_may_be_padded_with_spaces(void **state)
{
	struct scratch *scratch = *state;
	struct safetensors s;

	scratch_safetensors(scratch, ONE,
		"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}    ", UINT64_MAX,
		1);
	s = open_scratch(scratch);
	assert_int_equal(s.n_tensors, 1);
	safetensors_deinit(&s);
}

static void test_unknown_dtype_is_unusable_but_no_error(void **state)
{
	struct scratch *scratch = *state;
	struct safetensors s;

	scratch_safetensors(scratch, ONE,
		"{\"a\":{\"dtype\":\"Q3_MAGIC\",\"shape\":[5],\"data_offsets\":[0,3]}}", UINT64_MAX,
		3);
	s = open_scratch(scratch);
	assert_false(safetensors_find(&s, "a")->usable);
	assert_string_equal(safetensors_find(&s, "a")->dtype_name, "Q3_MAGIC");
	safetensors_deinit(&s);
}

/* ---- wrong lengths ---- */

static void test_empty_directory_is_refused(void **state)
{
	expect_refusal(*state, "has neither model.safetensors nor");
}

static void test_loop_of_symlinks_is_named(void **state)
{
	struct scratch *scratch = *state;
	char path[256];

	snprintf(path, sizeof(path), "%s/model.safetensors", scratch->directory);
	assert_int_equal(symlink("model.safetensors", path), 0);
	expect_refusal(*state, "model.safetensors: cannot be opened: Too many levels of symbolic links");
	unlink(path);
}

static void test_missing_directory_is_refused(void **state)
{
	struct safetensors s;
	struct model_error error = {""};

	assert_int_equal(safetensors_open("/nonexistent/model", &s, &error), -ENOENT);
	assert_contains(error.text, "/nonexistent/model");
}

static void test_file_shorter_than_a_length_is_refused(void **state)
{
	scratch_write(*state, ONE, "1234567", 7);
	expect_refusal(*state, "too few for a header");
}

static void test_header_over_100_mib_is_refused(void **state)
{
	struct scratch *scratch = *state;
	char path[256];

	scratch_safetensors(scratch, ONE, "{}", SAFETENSORS_HEADER_MAX + 1u, 0);
	scratch_path(scratch, ONE, path);
	assert_int_equal(truncate(path, 8 + SAFETENSORS_HEADER_MAX + 100), 0);
	expect_refusal(scratch, "exceeds the limit");
}

static void test_header_nested_without_end_is_refused(void **state)
{
	static char header[10002];

	memset(header, '[', sizeof(header) - 1);
	memcpy(header, "{\"a\":", 5);
	scratch_safetensors(*state, ONE, header, UINT64_MAX, 0);
	expect_refusal(*state, "is not valid JSON");
}

static void test_header_with_millions_of_values_is_refused(void **state)
{
	size_t n = 4100000;
	char *header = malloc(n + 16);

	assert_non_null(header);
	strcpy(header, "{\"a\":[");
	memset(header + 6, ',', n);
	strcpy(header + 6 + n, "]}");
	scratch_safetensors(*state, ONE, header, UINT64_MAX, 0);
	expect_refusal(*state, "more than 4000000 values");
	free(header);
}

/* ---- wrong tensors ---- */

#define TENSOR(name, dtype, shape, offsets)                                                        \
	"\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void test_control_bytes_in_names_do_not_reach_the_error(void **state)
{
	struct scratch *scratch = *state;
	struct safetensors s = {0};
	struct model_error error = {""};

	scratch_safetensors(scratch, ONE, "{\"a\\n\\u001b[2J\":7}", UINT64_MAX, 0);
	assert_int_equal(safetensors_open(scratch->directory, &s, &error), -EINVAL);
	assert_contains(error.text, "tensor \"a??[2J\": is not an object");
}

/* ---- files ---- */

static void test_directory_in_place_of_the_file_is_refused(void **state)
{
	struct scratch *scratch = *state;
	char path[256];

	scratch_path(scratch, ONE, path);
	assert_int_equal(mkdir(path, 0700), 0);
	expect_refusal(scratch, "is not a regular file");
	rmdir(path);
}

static void test_fifo_in_place_of_the_file_is_refused_at_once(void **state)
{
	struct scratch *scratch = *state;
	char path[256];

	scratch_path(scratch, ONE, path);
	assert_int_equal(mkfifo(path, 0600), 0);
	expect_refusal(scratch, "is not a regular file");
}

static void test_symlink_to_a_file_is_followed(void **state)
{
	struct scratch *scratch = *state;
	struct safetensors s;
	char path[256];

	scratch_safetensors(scratch, "blob", "{}", UINT64_MAX, 0);
	scratch_path(scratch, ONE, path);
	assert_int_equal(symlink("blob", path), 0);
	s = open_scratch(scratch);
	safetensors_deinit(&s);
}

/* ---- shards ---- */

static void write_shards(const struct scratch *scratch, const char *index)
{
	scratch_safetensors(
		scratch, "s1", "{" TENSOR("a", "U8", "[2]", "[0,2]") "}", UINT64_MAX, 2);
	scratch_safetensors(
		scratch, "s2", "{" TENSOR("b", "U8", "[3]", "[0,3]") "}", UINT64_MAX, 3);
	scratch_text(scratch, INDEX, index);
}

static void test_refused_index(void **state)
{
	const struct scratch *scratch = *state;
	const struct refused *refused = scratch->given;

	write_shards(scratch, refused->text);
	expect_refusal(scratch, refused->words);
}

#define INDEXED(claim, text, words)                                       \
	{claim, test_refused_index, scratch_setup, scratch_teardown,      \
		&(struct refused){text, 0, 0, words}}

static void test_shards_are_opened_by_their_index(void **state)
{
	struct scratch *scratch = *state;
	struct safetensors s;

	write_shards(scratch, "{\"metadata\":{},\"weight_map\":{\"a\":\"s1\",\"b\":\"s2\"}}");
	s = open_scratch(scratch);
	assert_int_equal(s.n_files, 2);
	assert_int_equal(safetensors_find(&s, "b")->bytes, 3);
	assert_contains(s.files[safetensors_find(&s, "b")->file].path, "/s2");
	safetensors_deinit(&s);
}

static void test_tensor_in_two_shards_is_refused(void **state)
{
	struct scratch *scratch = *state;

	write_shards(scratch, "{\"weight_map\":{\"a\":\"s1\",\"b\":\"s2\"}}");
	scratch_safetensors(scratch, "s2",
		"{" TENSOR("a", "U8", "[2]", "[0,2]") "," TENSOR("b", "U8", "[1]", "[2,3]") "}",
		UINT64_MAX, 3);
	expect_refusal(scratch, "tensor \"a\": is in ");
}

static void test_513_shards_are_refused(void **state)
{
	size_t size = 1 << 16, at;
	char *index = malloc(size);

	assert_non_null(index);
	at = (size_t)snprintf(index, size, "{\"weight_map\":{");
	for (int i = 0; i < 513; i++)
		at += (size_t)snprintf(
			index + at, size - at, "%s\"t%d\":\"s%d\"", i ? "," : "", i, i);
	snprintf(index + at, size - at, "}}");
	scratch_text(*state, INDEX, index);
	expect_refusal(*state, "names more than 512 files");
	free(index);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		scratch_test(test_tensors_are_found_with_shape_dtype_and_place),
		scratch_test(test_header_may_be_padded_with_spaces),
		scratch_test(test_unknown_dtype_is_unusable_but_no_error),
		scratch_test(test_empty_directory_is_refused),
		scratch_test(test_loop_of_symlinks_is_named),
		scratch_test(test_missing_directory_is_refused),
		scratch_test(test_file_shorter_than_a_length_is_refused),
		HEADER_OF_LENGTH("header length past the end is refused",
			"{}", 3, 0, "header length 3 leaves the file"),
		HEADER_OF_LENGTH("header length near 2 to 64 is refused",
			"{}", UINT64_MAX - 1, 0, "header length 18446744073709551614 exceeds"),
		scratch_test(test_header_over_100_mib_is_refused),
		HEADER_OF_LENGTH("header length that cuts the json is refused",
			"{\"__metadata__\":{}}", 10, 0, "is not valid JSON"),
		HEADER_OF_LENGTH("empty header is refused", "", 0, 0, "does not begin with {"),
		HEADER("header that is a list is refused", "[]", 0, "does not begin with {"),
		HEADER("header with bytes after the object is refused",
			"{}{}", 0, "is not valid JSON"),
		HEADER("header with bad utf8 is refused",
			"{\"\xff\xfe\":1}", 0, "is not valid JSON"),
		scratch_test(test_header_nested_without_end_is_refused),
		scratch_test(test_header_with_millions_of_values_is_refused),
		HEADER("tensor named twice is refused",
			"{" TENSOR("a", "U8", "[1]", "[0,1]") "," TENSOR("a", "U8", "[1]", "[1,2]") "}",
			2, "duplicate"),
		HEADER("offsets past the end are refused",
			"{" TENSOR("a", "U8", "[9]", "[0,9]") "}", 8,
			"tensor \"a\": data_offsets end at 9, but the file has 8"),
		HEADER("offsets that run backwards are refused",
			"{" TENSOR("a", "U8", "[4]", "[4,0]") "}", 4, "run backwards"),
		HEADER("negative offsets are refused",
			"{" TENSOR("a", "U8", "[4]", "[-4,0]") "}", 4,
			"data_offsets is not a list of two non-negative integers"),
		HEADER("three offsets are refused",
			"{" TENSOR("a", "U8", "[4]", "[0,4,4]") "}", 4,
			"data_offsets is not a list of two"),
		HEADER("real offsets are refused",
			"{" TENSOR("a", "U8", "[4]", "[0.0,4.0]") "}", 4,
			"data_offsets is not a list of two"),
		HEADER("overlapping tensors are refused",
			"{" TENSOR("a", "U8", "[4]", "[0,4]") "," TENSOR("b", "U8", "[4]", "[3,7]") "}",
			7, "overlap"),
		HEADER("tensors over the same bytes are refused",
			"{" TENSOR("a", "U8", "[4]", "[0,4]") "," TENSOR("b", "U8", "[4]", "[0,4]") "}",
			4, "overlap"),
		HEADER("hole between tensors is refused",
			"{" TENSOR("a", "U8", "[4]", "[0,4]") "," TENSOR("b", "U8", "[4]", "[6,10]") "}",
			10, "tensor \"b\": data_offsets leave a hole of 2 bytes"),
		HEADER("bytes after the last tensor are refused",
			"{" TENSOR("a", "U8", "[4]", "[0,4]") "}", 5,
			"bytes after the last tensor: 1"),
		HEADER("size that is not shape times dtype is refused",
			"{" TENSOR("a", "F32", "[2,2]", "[0,12]") "}", 12,
			"shape and dtype F32 make 128 bits, data_offsets 12 bytes"),
		/* 2^32 * 2^32 = 0 in 64 bits, which would pass for an empty tensor */
		HEADER("shape whose product overflows is refused",
			"{" TENSOR("a", "U8", "[4294967296,4294967296]", "[0,0]") "}", 0,
			"shape overflows"),
		/* 2^59 * 32 = 0 in 64 bits */
		HEADER("shape whose bits overflow are refused",
			"{" TENSOR("a", "F32", "[576460752303423488]", "[0,0]") "}", 0,
			"shape overflows"),
		HEADER("sub byte dtype of odd count is refused",
			"{" TENSOR("a", "F4", "[3]", "[0,1]") "}", 1, "make 12 bits"),
		HEADER("negative dimension is refused",
			"{" TENSOR("a", "U8", "[-1]", "[0,1]") "}", 1,
			"shape[0] is not a non-negative integer"),
		HEADER("nine dimensions are refused",
			"{" TENSOR("a", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1,
			"more than 8 dimensions"),
		HEADER("tensor without dtype is refused",
			"{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "dtype is missing"),
		HEADER("tensor without shape is refused",
			"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "shape is missing"),
		HEADER("tensor that is a number is refused",
			"{\"a\":7}", 0, "tensor \"a\": is not an object"),
		scratch_test(test_control_bytes_in_names_do_not_reach_the_error),
		scratch_test(test_directory_in_place_of_the_file_is_refused),
		scratch_test(test_fifo_in_place_of_the_file_is_refused_at_once),
		scratch_test(test_symlink_to_a_file_is_followed),
		scratch_test(test_shards_are_opened_by_their_index),
		INDEXED("index with a folder in a name is refused",
			"{\"weight_map\":{\"a\":\"s1\",\"b\":\"../s2\"}}",
			"weight_map.b \"../s2\" is not the name of a file beside it"),
		INDEXED("index with an absolute name is refused",
			"{\"weight_map\":{\"a\":\"/etc/passwd\"}}",
			"\"/etc/passwd\" is not the name of a file beside it"),
		INDEXED("index naming dot dot is refused",
			"{\"weight_map\":{\"a\":\"..\"}}",
			"\"..\" is not the name of a file beside it"),
		INDEXED("index naming a number is refused",
			"{\"weight_map\":{\"a\":1}}", "weight_map.a \"(not a string)\""),
		INDEXED("index without weight map is refused",
			"{\"metadata\":{}}", INDEX ": weight_map is missing"),
		INDEXED("index with empty weight map is refused",
			"{\"weight_map\":{}}", "weight_map names no tensor"),
		INDEXED("missing shard is refused",
			"{\"weight_map\":{\"a\":\"s1\",\"b\":\"s3\"}}", "/s3: does not exist"),
		INDEXED("tensor in another shard than said is refused",
			"{\"weight_map\":{\"a\":\"s2\",\"b\":\"s1\"}}",
			"weight_map.a: \"s2\" does not have it"),
		INDEXED("tensor in no shard is refused",
			"{\"weight_map\":{\"a\":\"s1\",\"c\":\"s2\"}}",
			"weight_map.c: \"s2\" does not have it"),
		scratch_test(test_tensor_in_two_shards_is_refused),
		scratch_test(test_513_shards_are_refused),
	};

	return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
