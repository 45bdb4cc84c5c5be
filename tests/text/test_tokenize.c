/* SPDX-License-Identifier: MIT */

/* mimeo-tokenize, the program (argv[1] of this test): what it prints and how it exits. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/text/fixture.h"

static const char *program;
static char folder[] = "/tmp/mimeo-tokenize-XXXXXX";

struct outcome {
	int status;
	size_t length;
	char out[4096], err[1024];
};

static size_t slurp(const char *name, char *buffer, size_t size)
{
	char path[100];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	FILE *file = fopen(path, "rb");
	assert_non_null(file);
	size_t n = fread(buffer, 1, size - 1, file);
	buffer[n] = '\0';
	fclose(file);
	return n;
}

static struct outcome run(const char *arguments, const char *input, size_t length)
{
	char command[2048];
	struct outcome outcome;

	snprintf(command, sizeof(command), "'%s' %s >%s/out 2>%s/err", program, arguments, folder,
		folder);
	FILE *pipe = popen(command, "w");
	assert_non_null(pipe);
	fwrite(input, 1, length, pipe);
	int status = pclose(pipe);
	assert_true(WIFEXITED(status));
	outcome.status = WEXITSTATUS(status);
	outcome.length = slurp("out", outcome.out, sizeof(outcome.out));
	slurp("err", outcome.err, sizeof(outcome.err));
	return outcome;
}

static struct outcome run_with(const char *arguments, const char *input, size_t length)
{
	char all[1024];

	snprintf(all, sizeof(all), "--tokenizer %s %s", folder, arguments);
	return run(all, input, length);
}

static void test_ids_one_a_line(void **state)
{
	struct outcome outcome = run_with("", "a b<s>", 6);

	assert_int_equal(outcome.status, 0);
	assert_string_equal(outcome.out, "1\n4\n2\n0\n");
	assert_string_equal(outcome.err, "");
}

static void test_special_and_literal(void **state)
{
	assert_string_equal(run_with("--special", "a", 1).out, "0\n1\n99\n");
	assert_string_equal(run_with("--literal", "<s>", 3).out, "5\n6\n7\n");
	assert_string_equal(run_with("", "", 0).out, "");
}

static void test_decoding(void **state)
{
	assert_string_equal(run_with("--decode", "1\n4\n2\n0\n", 8).out, "a b<s>");
	assert_string_equal(run_with("--decode", "1, 4 2", 6).out, "a b");
	assert_string_equal(run_with("--decode --skip-special", "0 1", 3).out, "a");
	assert_string_equal(run_with("--decode", "", 0).out, "");
}

static void test_several_texts(void **state)
{
	struct outcome outcome = run_with("--null", "a\0\0b a", 6);

	assert_string_equal(outcome.out, "1\n\n2 4 1\n");
	outcome = run_with("--null --decode", "1\n\n2 4 1\n", 9);
	assert_int_equal(outcome.length, 7);
	assert_memory_equal(outcome.out, "a\0\0b a\0", 7);
	assert_int_equal(run_with("--null --decode", "", 0).length, 0);
}

static void test_wrong_options_exit_with_2(void **state)
{
	static const char *const arguments[] = {"", "--tokenizer", "--tokenizer x --bogus",
		"--tokenizer x y", "--tokenizer x --decode --special", "--tokenizer x --render",
		"--tokenizer x --skip-special", "--tokenizer x --chat c --decode"};

	for (size_t i = 0; i < ARRAY_SIZE(arguments); i++) {
		struct outcome outcome = run(arguments[i], "", 0);

		if (outcome.status != 2)
			fail_msg("%s: status %d", arguments[i], outcome.status);
		assert_int_equal(strncmp(outcome.err, "mimeo-tokenize: ", 16), 0);
		assert_string_equal(outcome.out, "");
	}
}

static void test_what_is_no_id_is_refused(void **state)
{
	static const char *const wrong[] = {"1+2", "+1", "-0", "1-2", "1x", "1.2", "2147483648"};

	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		struct outcome outcome = run_with("--decode", wrong[i], strlen(wrong[i]));

		if (outcome.status != 1 || !strstr(outcome.err, wrong[i]))
			fail_msg("%s: status %d, %s", wrong[i], outcome.status, outcome.err);
	}
}

static void test_failures_exit_with_1(void **state)
{
	struct outcome outcome = run("--tokenizer /nonexistent", "", 0);

	assert_int_equal(outcome.status, 1);
	assert_non_null(strstr(outcome.err, "/nonexistent"));
	outcome = run_with("--decode", "1 x", 3);
	assert_int_equal(outcome.status, 1);
	assert_non_null(strstr(outcome.err, "'x'"));
	outcome = run_with("", "unknown: z", 10);
	assert_int_equal(outcome.status, 1);
	outcome = run_with("--chat /nonexistent", "", 0);
	assert_int_equal(outcome.status, 1);
	static const char chat[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}";
	outcome = run_with("--chat -", chat, strlen(chat));
	assert_int_equal(outcome.status, 1);
	assert_non_null(strstr(outcome.err, "chat template"));
}

static void test_help_and_version(void **state)
{
	struct outcome outcome = run("--help", "", 0);

	assert_int_equal(outcome.status, 0);
	assert_int_equal(strncmp(outcome.out, "Usage: mimeo-tokenize", 21), 0);
	outcome = run("--version", "", 0);
	assert_int_equal(outcome.status, 0);
	assert_int_equal(strncmp(outcome.out, "mimeo-tokenize ", 15), 0);
}

static int set_up(void **state)
{
	static const char json[] =
		"{\"added_tokens\":[{\"content\":\"<s>\",\"special\":true,\"normalized\":false}],"
		"\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"<s>\",0],\"sep\":[\"\","
		"99]},"
		"\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"type\":\"BPE\",\"merges\":[],\"unk_"
		"token\":\"?\",\"vocab\":"
		"{\"<s>\":0,\"a\":1,\"b\":2,\"c\":3,\" \":4,\"<\":5,\"s\":6,\">\":7}}}";
	char path[100];

	if (!mkdtemp(folder))
		return -1;
	snprintf(path, sizeof(path), "%s/tokenizer.json", folder);
	FILE *file = fopen(path, "w");
	if (!file)
		return -1;
	fputs(json, file);
	return fclose(file);
}

static int tear_down(void **state)
{
	char command[100];

	snprintf(command, sizeof(command), "rm -r '%s'", folder);
	return system(command);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ids_one_a_line),
		cmocka_unit_test(test_special_and_literal),
		cmocka_unit_test(test_decoding),
		cmocka_unit_test(test_several_texts),
		cmocka_unit_test(test_wrong_options_exit_with_2),
		cmocka_unit_test(test_what_is_no_id_is_refused),
		cmocka_unit_test(test_failures_exit_with_1),
		cmocka_unit_test(test_help_and_version),
	};

	if (argc < 2)
		return 2;
	program = argv[1];
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
