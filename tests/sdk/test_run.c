/* SPDX-License-Identifier: MIT */

/* mimeo-run, the program (argv[1] of this test), against a fake daemon that counts. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/sdk/session.h"

static const char *program;

struct outcome {
	int status;
	char out[4096], err[1024];
	size_t out_bytes;
	uint32_t draft_tokens; /* of the request that was answered */
};

static size_t slurp(const char *path, void *buffer, size_t size)
{
	FILE *file = fopen(path, "rb");
	assert_non_null(file);
	size_t n = fread(buffer, 1, size - 1, file);

	((char *)buffer)[n] = '\0';
	fclose(file);
	unlink(path);
	return n;
}

/* Run with shell-quoted arguments; standard output and error come back. */
static struct outcome run_at(const char *folder, const char *socket, const char *arguments)
{
	char command[8192], out[100], err[100];
	struct outcome outcome = {0};

	snprintf(out, sizeof(out), "%s/out", folder);
	snprintf(err, sizeof(err), "%s/err", folder);
	snprintf(command, sizeof(command), "'%s' %s%s %s >'%s' 2>'%s' </dev/null", program,
		socket ? "--socket " : "", socket ? socket : "", arguments, out, err);
	int status = system(command);
	assert_true(WIFEXITED(status));
	outcome.status = WEXITSTATUS(status);
	outcome.out_bytes = slurp(out, outcome.out, sizeof(outcome.out));
	slurp(err, outcome.err, sizeof(outcome.err));
	return outcome;
}

static void *serve_when_attached(void *argument)
{
	struct fake *fake = argument;

	fake_session(fake);
	if (!fake->script.stalled)
		fake_serve(fake);
	return NULL;
}

static struct outcome run_logits(const struct fake_script *script, const char *arguments,
	float *ret_logits, size_t *ret_logits_bytes)
{
	struct fake fake;
	pthread_t starter;
	char line[4096], path[100];

	fake_init(&fake, script);
	snprintf(path, sizeof(path), "%s/logits", fake.folder);
	snprintf(line, sizeof(line), "%s %s%s", arguments, ret_logits ? "--logits " : "",
		ret_logits ? path : "");
	assert_int_equal(pthread_create(&starter, NULL, serve_when_attached, &fake), 0);
	struct outcome outcome = run_at(fake.folder, fake.path, line);
	pthread_join(starter, NULL);
	if (ret_logits)
		*ret_logits_bytes = slurp(path, ret_logits, 4096);
	fake_deinit(&fake);
	outcome.draft_tokens = fake.draft_tokens;
	return outcome;
}

static struct outcome run(const char *arguments)
{
	return run_logits(NULL, arguments, NULL, NULL);
}

static struct outcome run_alone(const char *arguments)
{
	char folder[] = "/tmp/mimeo-run-XXXXXX";

	assert_non_null(mkdtemp(folder));
	struct outcome outcome = run_at(folder, NULL, arguments);
	rmdir(folder);
	return outcome;
}

/* ---- the answer ---- */

static void test_text_is_the_answers_bytes_and_nothing_else(void **state)
{
	struct outcome outcome = run("--model count --prompt abc --max-tokens 4");

	assert_int_equal(outcome.status, 0);
	assert_string_equal(outcome.out, "defg");
	assert_string_equal(outcome.err, "");
}

static void test_ids_come_as_one_line(void **state)
{
	struct outcome outcome = run("--model count --tokens 7,9 --max-tokens 3 --ids");

	assert_int_equal(outcome.status, 0);
	assert_string_equal(outcome.out, "10,11,12\n");
}

static void test_limit_of_speculation_is_the_requests(void **state)
{
	static const struct {
		const char *option;
		uint32_t draft_tokens;
	} cases[] = {{"", 0}, {"--draft-tokens 1", 1}, {"--draft-tokens 8", 8},
		{"--draft-tokens none", MIMEO_DRAFT_NONE}};
	char line[128];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		snprintf(line, sizeof(line), "--model count --tokens 7,9 --max-tokens 3 --ids %s",
			cases[i].option);
		struct outcome outcome = run(line);

		assert_string_equal(outcome.out, "10,11,12\n");
		assert_int_equal(outcome.draft_tokens, cases[i].draft_tokens);
		assert_string_equal(outcome.err, "");
	}
}

static void test_limit_of_speculation_says_that_it_means_nothing_without_a_draft(void **state)
{
	const struct fake_script script = {.no_draft = true};
	struct outcome outcome =
		run_logits(&script, "--model wide --tokens 7,9 --max-tokens 3 --draft-tokens 2", NULL, NULL);

	assert_int_equal(outcome.status, 0);
	assert_string_equal(outcome.out, "10,11,12\n");
	assert_string_equal(outcome.err, "mimeo-run: --draft-tokens: model wide has no draft, and the number "
		"means nothing: mimeod gives it one by --draft\n");
	assert_string_equal(run_logits(&script, "--model wide --tokens 7,9 --max-tokens 3", NULL, NULL).err, "");
	assert_string_equal(run_logits(&script, "--model wide --tokens 7,9 --max-tokens 3 --draft-tokens none",
		NULL, NULL).err, "");
}

static void test_other_vocabularies_print_ids(void **state)
{
	struct outcome outcome = run("--model wide --tokens 7,9 --max-tokens 3");

	assert_string_equal(outcome.out, "10,11,12\n");
}

static void test_end_token_is_left_out_even_if_it_comes_before_the_final_event(void **state)
{
	for (uint32_t stride = 0; stride < 4; stride++) {
		const struct fake_script script = {.tokens_a_completion = stride};
		struct outcome outcome = run_logits(
			&script, "--model count --tokens 254 --ids --stop 77", NULL, NULL);

		assert_string_equal(outcome.out, "255,0,1\n");
	}
}

static void test_stop_id_is_left_out(void **state)
{
	struct outcome outcome = run("--model count --prompt abc --stop 104,103");

	assert_string_equal(outcome.out, "def");
}

static void test_ignored_end_token_is_part_of_the_answer(void **state)
{
	const struct fake_script script = {.tokens_a_completion = 1};
	struct outcome outcome = run_logits(&script,
		"--model count --tokens 254 --ids --ignore-eos --max-tokens 6", NULL, NULL);

	assert_string_equal(outcome.out, "255,0,1,2,3,4\n");
}

static void test_answer_of_the_end_token_alone_is_empty(void **state)
{
	assert_string_equal(run("--model count --tokens 1 --ids").out, "\n");
	assert_int_equal(run("--model count --tokens 1").out_bytes, 0);
}

static void test_default_limit_is_128_or_what_the_model_has_room_for(void **state)
{
	char tokens[2200] = "--model count --ignore-eos --tokens 1";

	assert_int_equal(run("--model count --tokens 50 --ignore-eos").out_bytes, 128);
	for (unsigned i = 1; i < FAKE_MAX_SEQ_LEN - 10; i++)
		strcat(tokens, ",1");
	struct outcome outcome = run(tokens);
	assert_string_equal(outcome.err, "");
	assert_int_equal(outcome.out_bytes, 10);
}

static void test_logits_file_is_raw_floats_of_the_vocabulary(void **state)
{
	float logits[1024];
	size_t bytes;
	struct outcome outcome = run_logits(
		NULL, "--model count --prompt a --max-tokens 2", logits, &bytes);

	assert_int_equal(outcome.status, 0);
	assert_string_equal(outcome.out, "bc");
	assert_int_equal(bytes, FAKE_VOCAB * sizeof(float));
	for (unsigned i = 0; i < FAKE_VOCAB; i++)
		assert_true(logits[i] == (float)i);
}

/* ---- what goes wrong ---- */

static void test_wrong_usage_exits_2_with_one_line(void **state)
{
	const char *const lines[] = {"", "--model m", "--prompt x",
		"--model m --prompt x --tokens 1", "--model m --tokens 1,", "--model m --tokens ''",
		"--model m --tokens -1",
		"--model m --tokens 1 --max-tokens 0", "--model m --tokens 1 --top-p 1.5",
		"--model m --tokens 1 --temperature nan", "--model m --tokens 1 --sampling none",
		"--model m --tokens 1 --sampling model --top-k 3", "--model m --tokens 1 --bogus",
		"--model m --tokens 1 --stop 1,2,3,4,5,6,7,8,9", "--model m --tokens 1 extra",
		"--model m --tokens 1 --model", "--model m --tokens 1 --timeout 0",
		"--model m --tokens 1 --draft-tokens 0", "--model m --tokens 1 --draft-tokens 9",
		"--model m --tokens 1 --draft-tokens all",
		"--model m --tokens 1 --logits /no/such/folder/file"};

	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		struct outcome outcome = run_alone(lines[i]);

		assert_int_equal(outcome.status, 2);
		assert_int_equal(outcome.out_bytes, 0);
		assert_memory_equal(outcome.err, "mimeo-run: ", 11);
		assert_ptr_equal(strchr(outcome.err, '\n'), outcome.err + strlen(outcome.err) - 1);
	}
}

static void test_prompt_for_other_vocabularies_says_so(void **state)
{
	struct outcome outcome = run("--model wide --prompt abc");

	assert_int_equal(outcome.status, 2);
	assert_non_null(strstr(outcome.err, "vocabulary of 1000"));
}

static void test_no_daemon_exits_1(void **state)
{
	struct outcome outcome =
		run_alone("--socket /tmp/mimeo-no-such.sock --model m --tokens 1");

	assert_int_equal(outcome.status, 1);
	assert_string_equal(outcome.err,
		"mimeo-run: /tmp/mimeo-no-such.sock: no daemon answers on the socket: "
		"No such file or directory\n");
}

static void test_connection_errors_say_why(void **state)
{
	char empty[] = "--socket '' --model m --tokens 1";
	char lengthy[300] = "--socket /", *end = lengthy + strlen(lengthy);

	assert_string_equal(run_alone("--socket /etc/passwd --model m --tokens 1").err,
		"mimeo-run: /etc/passwd: no daemon answers on the socket: not a socket\n");
	assert_string_equal(run_alone("--socket /etc/passwd/x --model m --tokens 1").err,
		"mimeo-run: /etc/passwd/x: no daemon answers on the socket: Not a directory\n");
	struct outcome outcome = run_alone(empty);
	assert_int_equal(outcome.status, 2);
	assert_string_equal(outcome.err,
		"mimeo-run: the socket's path must be 1 to 107 bytes, this one has 0\n");
	memset(end, 'x', 107);
	strcpy(end + 107, " --model m --tokens 1");
	outcome = run_alone(lengthy);
	assert_int_equal(outcome.status, 2);
	assert_string_equal(outcome.err,
		"mimeo-run: the socket's path must be 1 to 107 bytes, this one has 108\n");
}

static void test_daemon_that_does_not_greet_is_given_up_at_the_timeout(void **state)
{
	const struct fake_script script = {.silent = true};
	struct outcome outcome = run_logits(
		&script, "--model count --tokens 1 --timeout 0.05", NULL, NULL);

	assert_int_equal(outcome.status, 1);
	assert_non_null(strstr(outcome.err, "timed out"));
}

static void test_daemon_that_stops_is_given_up_at_the_timeout(void **state)
{
	const struct fake_script script = {.stalled = true};
	struct outcome outcome = run_logits(
		&script, "--model count --tokens 1 --timeout 0.05", NULL, NULL);

	assert_int_equal(outcome.status, 1);
	assert_string_equal(outcome.err, "mimeo-run: the daemon does not answer\n");
}

static void test_timeout_out_of_range_names_the_range(void **state)
{
	struct outcome outcome = run_alone("--model m --tokens 1 --timeout 0.0001");

	assert_int_equal(outcome.status, 2);
	assert_non_null(strstr(outcome.err, "from 0.001 to 4000000"));
}

static void test_stop_id_outside_the_vocabulary_is_refused(void **state)
{
	struct outcome outcome = run("--model count --tokens 1 --stop 3,256");

	assert_int_equal(outcome.status, 3);
	assert_string_equal(outcome.err,
		"mimeo-run: --stop: token 256 is outside the vocabulary of 256 of model count\n");
}

static void test_daemon_that_dies_midway_exits_1(void **state)
{
	const struct fake_script script = {.tokens_a_completion = 2, .hang_up_midway = true};
	struct outcome outcome =
		run_logits(&script, "--model count --prompt abc --max-tokens 9", NULL, NULL);

	assert_int_equal(outcome.status, 1);
	assert_string_equal(outcome.out, "de");
	assert_non_null(strstr(outcome.err, "gone"));
}

static void test_unknown_model_exits_3_and_names_those_served(void **state)
{
	struct outcome outcome = run("--model none --tokens 1");

	assert_int_equal(outcome.status, 3);
	assert_string_equal(outcome.err,
		"mimeo-run: the daemon serves no model 'none', but count, wide\n");
}

static void test_refused_token_exits_3_and_is_named(void **state)
{
	struct outcome outcome = run("--model count --tokens 5,999");

	assert_int_equal(outcome.status, 3);
	assert_string_equal(
		outcome.err, "mimeo-run: token 1 is 999, outside the vocabulary of 256\n");
}

static void test_too_long_exits_3_and_says_by_what(void **state)
{
	struct outcome outcome = run("--model count --tokens 5 --max-tokens 512");

	assert_int_equal(outcome.status, 3);
	assert_non_null(strstr(outcome.err, "512"));
}

/* ---- masks ---- */

static struct mimeo_mask mask_sent(const struct mimeo_mask *models, const char *arguments)
{
	struct mimeo_mask mask = {.kind = 99};
	const struct fake_script script = {.default_mask = *models, .ret_mask = &mask};
	struct outcome outcome = run_logits(&script, arguments, NULL, NULL);

	assert_string_equal(outcome.err, "");
	assert_int_equal(outcome.status, 0);
	return mask;
}

static void assert_mask(struct mimeo_mask mask, uint32_t kind, uint32_t window, uint32_t sinks,
	uint32_t prefix)
{
	assert_int_equal(mask.kind, kind);
	assert_int_equal(mask.window, window);
	assert_int_equal(mask.sinks, sinks);
	assert_int_equal(mask.prefix, prefix);
}

#define ASK "--model count --tokens 7,8,9 --max-tokens 2"

static void test_mask_goes_as_it_is_written(void **state)
{
	const struct mimeo_mask causal = {0};

	assert_mask(mask_sent(&causal, ASK), MIMEO_MASK_DEFAULT, 0, 0, 0);
	assert_mask(mask_sent(&causal, ASK " --mask causal"), MIMEO_MASK_DEFAULT, 0, 0, 0);
	assert_mask(mask_sent(&causal, ASK " --mask window:8"), MIMEO_MASK_WINDOW, 8, 0, 0);
	assert_mask(mask_sent(&causal, ASK " --mask window:8+0"), MIMEO_MASK_WINDOW, 8, 0, 0);
	assert_mask(mask_sent(&causal, ASK " --mask window:8+4"), MIMEO_MASK_WINDOW, 8, 4, 0);
	assert_mask(mask_sent(&causal, ASK " --mask prefix"), MIMEO_MASK_PREFIX, 0, 0, 3);
}

/* The default is not causal there: a window as long as any sequence is. */
static void test_causal_mask_is_had_of_a_model_with_another_default(void **state)
{
	const struct mimeo_mask window = {.kind = MIMEO_MASK_WINDOW, .window = 2};

	assert_mask(mask_sent(&window, ASK), MIMEO_MASK_DEFAULT, 0, 0, 0);
	assert_mask(mask_sent(&window, ASK " --mask causal"), MIMEO_MASK_WINDOW,
		FAKE_MAX_SEQ_LEN, 0, 0);
}

static void test_mask_that_is_none_exits_2_and_names_those_there_are(void **state)
{
	struct outcome outcome = run_alone(ASK " --mask tree");

	assert_int_equal(outcome.status, 2);
	assert_string_equal(outcome.err, "mimeo-run: --mask: 'tree' is not causal, window:N (N from 1 "
		"to 4294967295), window:N+SINKS (SINKS from 0) or prefix\n");
}

static void test_mask_that_the_model_does_not_take_exits_3_with_the_remedy(void **state)
{
	const struct fake_script script = {.no_masks = true};
	struct outcome outcome = run_logits(&script, ASK " --mask window:8", NULL, NULL);

	assert_int_equal(outcome.status, 3);
	assert_string_equal(outcome.err, "mimeo-run: --mask window:8: the attention of model count has "
		"the causal mask alone: mimeod gives it others by --attention flex, unless it is latent\n");
	assert_int_equal(run_logits(&script, ASK " --mask causal", NULL, NULL).status, 0);
}

static void test_prefix_longer_than_a_step_exits_3_with_the_limit(void **state)
{
	char line[1024] = "--model count --max-tokens 2 --mask prefix --tokens 7";

	for (uint32_t i = 1; i < FAKE_BATCH_TOKENS; i++)
		strcat(line, ",7");
	assert_int_equal(run(line).status, 0);
	strcat(line, ",7");
	struct outcome outcome = run(line);
	assert_int_equal(outcome.status, 3);
	assert_string_equal(outcome.err, "mimeo-run: --mask prefix: the prompt has 65 tokens and has to "
		"fit one step, of which mimeod's --max-batch-tokens is 64\n");
}

static void test_help_and_version_go_to_standard_output(void **state)
{
	struct outcome help = run_alone("--help"), version = run_alone("--version");

	assert_int_equal(help.status, 0);
	assert_memory_equal(help.out, "usage: ", 7);
	assert_int_equal(version.status, 0);
	assert_memory_equal(version.out, "mimeo-run ", 10);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_text_is_the_answers_bytes_and_nothing_else),
		cmocka_unit_test(test_ids_come_as_one_line),
		cmocka_unit_test(test_limit_of_speculation_is_the_requests),
		cmocka_unit_test(test_limit_of_speculation_says_that_it_means_nothing_without_a_draft),
		cmocka_unit_test(test_other_vocabularies_print_ids),
		cmocka_unit_test(
			test_end_token_is_left_out_even_if_it_comes_before_the_final_event),
		cmocka_unit_test(test_stop_id_is_left_out),
		cmocka_unit_test(test_ignored_end_token_is_part_of_the_answer),
		cmocka_unit_test(test_answer_of_the_end_token_alone_is_empty),
		cmocka_unit_test(test_default_limit_is_128_or_what_the_model_has_room_for),
		cmocka_unit_test(test_logits_file_is_raw_floats_of_the_vocabulary),
		cmocka_unit_test(test_wrong_usage_exits_2_with_one_line),
		cmocka_unit_test(test_prompt_for_other_vocabularies_says_so),
		cmocka_unit_test(test_no_daemon_exits_1),
		cmocka_unit_test(test_connection_errors_say_why),
		cmocka_unit_test(test_daemon_that_does_not_greet_is_given_up_at_the_timeout),
		cmocka_unit_test(test_daemon_that_stops_is_given_up_at_the_timeout),
		cmocka_unit_test(test_timeout_out_of_range_names_the_range),
		cmocka_unit_test(test_stop_id_outside_the_vocabulary_is_refused),
		cmocka_unit_test(test_daemon_that_dies_midway_exits_1),
		cmocka_unit_test(test_unknown_model_exits_3_and_names_those_served),
		cmocka_unit_test(test_refused_token_exits_3_and_is_named),
		cmocka_unit_test(test_too_long_exits_3_and_says_by_what),
		cmocka_unit_test(test_mask_goes_as_it_is_written),
		cmocka_unit_test(test_causal_mask_is_had_of_a_model_with_another_default),
		cmocka_unit_test(test_mask_that_is_none_exits_2_and_names_those_there_are),
		cmocka_unit_test(test_mask_that_the_model_does_not_take_exits_3_with_the_remedy),
		cmocka_unit_test(test_prefix_longer_than_a_step_exits_3_with_the_limit),
		cmocka_unit_test(test_help_and_version_go_to_standard_output),
	};

	if (argc != 2) {
		fprintf(stderr, "usage: test_run PROGRAM\n");
		return 2;
	}
	program = argv[1];
	return cmocka_run_group_tests_name("sdk", tests, NULL, NULL);
}
