/* SPDX-License-Identifier: MIT */

/*
 * mimeo-bench as a user runs it: what it prints is whole and consistent. How large the figures are
 * is the machine's affair, and no test's.
 */

#include "tests/bench/run.h"

static void test_attach_prints_each_leg_beside_its_floor(void **state)
{
	static const char *const measures[] = {
		"connect and handshake", "to the first token", "to the first decoded token"};
	json_t *rows = rows_of("attach --count 2");

	assert_measured(rows, measures, 3, 2);
	assert_true(number(rows, 0, "median_s") < number(rows, 1, "median_s"));
	assert_true(number(rows, 1, "median_s") < number(rows, 2, "median_s"));
	assert_true(number(rows, 2, "target_s") == 0.010);
	json_decref(rows);
}

static void test_share_tells_the_rows_of_its_replays(void **state)
{
	json_t *rows = rows_of("share --processes 1,2 --tokens 12");

	assert_int_equal(json_array_size(rows), 2);
	for (size_t i = 0; i < 2; i++) {
		assert_true(number(rows, i, "processes") == (double)i + 1);
		assert_true(number(rows, i, "tokens") == 12 * ((double)i + 1));
		assert_true(number(rows, i, "floor_median_s") > 0);
		assert_true(number(rows, i, "rows_per_step") <= (double)i + 1);
		assert_true(number(rows, i, "prompt") == 16);
		assert_true(number(rows, i, "overall_tokens_per_s") > 0);
		assert_true(number(rows, i, "token_median_s") <= number(rows, i, "token_p99_s"));
	}
	/* The first token is the prompt's; with one process all others come out of a graph. */
	assert_true(number(rows, 0, "replays") >= 11);
	assert_true(number(rows, 0, "shared_replays") == 0);
	json_decref(rows);
}

/* tiny: 2 layers of 2 heads of keys and values of 16, float32 on the cpu device; weights bf16:
 * 2 (2 x 64 + 128 x 64 + 64 x 64 + 3 x 160 x 64) elements, the norm's 64, the head's 256 x 64 */
#define TINY_WEIGHT_BYTES (2 * (2 * (2 * 64 + 192 * 64 + 480 * 64) + 64 + 256 * 64))
#define TINY_KV_BYTES_A_TOKEN (2 * 2 * 2 * 16 * 4)

static void test_decode_counts_the_bytes_that_its_floor_is_made_of(void **state)
{
	json_t *rows = rows_of_tiny("decode --batches 1,3 --contexts 64,100 --count 6");

	assert_int_equal(json_array_size(rows), 4);
	for (size_t i = 0; i < 4; i++) {
		double batch = i < 2 ? 1 : 3, context = i % 2 ? 100 : 64;
		double bytes = TINY_WEIGHT_BYTES + batch * context * TINY_KV_BYTES_A_TOKEN;

		assert_true(number(rows, i, "batch") == batch);
		assert_true(number(rows, i, "context") == context);
		assert_true(number(rows, i, "samples") == 6);
		assert_true(number(rows, i, "weight_bytes") == TINY_WEIGHT_BYTES);
		assert_true(number(rows, i, "kv_bytes") ==
			batch * context * TINY_KV_BYTES_A_TOKEN);
		assert_near(number(rows, i, "floor_median_s"),
			bytes / number(rows, i, "copy_bytes_per_s"));
		assert_near(number(rows, i, "tokens_per_s"), batch / number(rows, i, "step_median_s"));
		assert_ratio(rows, i, "step_median_s", "floor_median_s");
		assert_true(number(rows, i, "load_bytes") > TINY_WEIGHT_BYTES - 1);
		assert_true(strncmp(text(rows, i, "device"), "cpu", 3) == 0);
	}
	json_decref(rows);
}

/* Of 256 x 64 elements, which the cpu device widens to float32. */
static void test_decode_reads_a_head_in_fp8_as_the_device_has_it(void **state)
{
	json_t *rows = rows_of_tiny("decode --batches 1 --contexts 64 --count 2 --head-dtype fp8");

	assert_true(number(rows, 0, "weight_bytes") == TINY_WEIGHT_BYTES + 2 * 256 * 64);
	json_decref(rows);
}

static void test_decode_counts_keys_and_values_in_fp8_as_a_byte_each(void **state)
{
	json_t *rows = rows_of_tiny("decode --batches 3 --contexts 64 --count 2 --kv-dtype fp8");

	assert_true(number(rows, 0, "kv_bytes") == 3 * 64 * TINY_KV_BYTES_A_TOKEN / 4);
	json_decref(rows);
}

static void test_rows_say_how_head_and_keys_and_values_are_stored(void **state)
{
	json_t *rows = rows_of_tiny("decode --batches 1 --contexts 64 --count 2 --head-dtype fp8");
	json_t *other = rows_of("share --processes 1 --tokens 4 --kv-dtype fp8");

	assert_string_equal(text(rows, 0, "head_dtype"), "fp8");
	assert_string_equal(text(rows, 0, "kv_dtype"), "model");
	assert_string_equal(text(other, 0, "head_dtype"), "model");
	assert_string_equal(text(other, 0, "kv_dtype"), "fp8");
	json_decref(other);
	json_decref(rows);
}

/* Where what a shape's folder was made in is empty again. */
static void test_made_model_goes_with_the_run(void **state)
{
	char output[OUTPUT_MAX];

	run_in_folder("--device cpu --shape tiny decode --batches 1 --contexts 16 --count 2 "
		">/dev/null 2>&1", output);
	assert_string_equal(output, "status 0\nempty\n");
}

static void test_one_failure_is_one_line(void **state)
{
	assert_one_line(1, "--device cuda:63 --shape tiny decode", "device cuda:63: ");
	assert_one_line(1, "ring --socket /nonexistent/x.sock", "/nonexistent/x.sock");
	assert_one_line(1, "--device cpu --shape tiny decode --batches 1 --contexts 4096",
		"the model takes 2048 tokens, not ");
}

static void test_more_tokens_than_the_model_takes_are_refused(void **state)
{
	assert_run(1, "--device cpu --model " MODELS "tinycalc share --processes 1 --tokens 1000000",
		"the model's length leaves capacity for");
	assert_run(1, "--device cpu --model " MODELS "tinycalc share --processes 1 --prompt 5001",
		"a prompt of 5001 tokens and one to generate: model bench takes 2048");
}

static void test_share_says_why_a_column_is_empty(void **state)
{
	char output[OUTPUT_MAX];

	run_shipped("share --processes 1 --tokens 4", output);
	assert_non_null(strstr(output, "DEVICE MEMORY"));
	assert_non_null(strstr(output, "\nnote: this device has no memory of its own"));
}

static void test_table_names_device_and_floor(void **state)
{
	char output[OUTPUT_MAX];

	run_shipped("attach --count 1", output);
	assert_non_null(strstr(output, "mimeo-bench attach: device cpu"));
	assert_non_null(strstr(output, "MEDIAN"));
	assert_non_null(strstr(output, "\nfloor: connecting to a Unix socket"));
}

static void test_nonsense_is_status_2_and_no_daemon_status_1(void **state)
{
	static const char *const nonsense[] = {"", "attach --count x", "attach --tokens 5",
		"share --count 5", "decode --socket /nonexistent/x.sock", "decode --batches 1,,2",
		"decode --batches 513", "decode --shape tiny --model /nonexistent"};

	for (size_t i = 0; i < sizeof(nonsense) / sizeof(nonsense[0]); i++)
		assert_run(2, nonsense[i], "see --help");
	assert_run(2, "ring --timeout 0", "--timeout 0: not a number of seconds from 1 to 86400");
	assert_run(2, "attach --count x", "--count x: not a number from 1 to 10000000");
	assert_run(2, "decode --batches 1,,2", ": not a list of at most 16 numbers of rows from 1 to 65536");
	assert_run(2, "load --prompt 5-2", ": not N or N-M, numbers of tokens from 1 to 1048576");
	assert_run(2, "decode --head-dtype int8", "--head-dtype int8: not model or fp8");
	assert_run(2, "decode --kv-dtype int8", "--kv-dtype int8: not model or fp8");
	assert_run(2, "melt", "there is no bench \"melt\"");
	assert_run(1, "decode --shape 9T", "there is no shape \"9T\"");
	assert_run(1, "attach --socket /nonexistent/x.sock", "");
}

/* A copy of the program, where nothing is beside it. */
static void test_missing_model_is_status_1_with_each_place_named(void **state)
{
	char output[OUTPUT_MAX];

	shell(output, "d=$(mktemp -d); mkdir -p $d/a/b/c; cp \"$MIMEO_BUILD\"/daemon/mimeo-bench $d/a/b/c; "
		"cd $d; export LD_LIBRARY_PATH=\"$MIMEO_BUILD\"/sdk:\"$MIMEO_BUILD\"/sdk/text:$LD_LIBRARY_PATH; "
		"a/b/c/mimeo-bench --mimeod /bin/true attach 2>&1; echo \"status $?\"; cd /; rm -r $d");
	assert_non_null(strstr(output, "a/b/c/../share/mimeo/models/tinycalc"));
	assert_non_null(strstr(output, "a/b/c/../../examples/models/tinycalc"));
	assert_non_null(strstr(output, "\nstatus 1\n"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_attach_prints_each_leg_beside_its_floor),
		cmocka_unit_test(test_share_tells_the_rows_of_its_replays),
		cmocka_unit_test(test_decode_counts_the_bytes_that_its_floor_is_made_of),
		cmocka_unit_test(test_decode_reads_a_head_in_fp8_as_the_device_has_it),
		cmocka_unit_test(test_decode_counts_keys_and_values_in_fp8_as_a_byte_each),
		cmocka_unit_test(test_rows_say_how_head_and_keys_and_values_are_stored),
		cmocka_unit_test(test_made_model_goes_with_the_run),
		cmocka_unit_test(test_more_tokens_than_the_model_takes_are_refused),
		cmocka_unit_test(test_share_says_why_a_column_is_empty),
		cmocka_unit_test(test_table_names_device_and_floor),
		cmocka_unit_test(test_nonsense_is_status_2_and_no_daemon_status_1),
		cmocka_unit_test(test_one_failure_is_one_line),
		cmocka_unit_test(test_missing_model_is_status_1_with_each_place_named),
	};

	return cmocka_run_group_tests_name("bench", tests, NULL, NULL);
}
