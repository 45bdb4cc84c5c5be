/* SPDX-License-Identifier: MIT */

/* mimeo-run, the program (argv[1] of this test), against a fake daemon that counts. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/msg_table.h"
#include "tests/ipc/test.h"
#include "tests/sdk/session.h"

static const char *program;

struct outcome {
	int status;
	char out[4096], err[1024];
	size_t out_bytes;
	uint32_t draft_tokens, first_token_ms; /* of the request that was answered */
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

/* The answer to the program's only call. */
static void say_that_models_have_no_files(struct fake *fake)
{
	uint8_t bytes[MSG_CALL_MAX];
	int n = msg_table_write(&msg_reply_table, &(struct msg_reply){0}, bytes, sizeof(bytes));

	assert_true(n > 0);
	socket_send(fake->socket, bytes, (size_t)n, NULL, 0); /* fails if the program has refused the model */
}

static void *serve_when_attached(void *argument)
{
	struct fake *fake = argument;

	fake_session(fake);
	if (!fake->script.silent)
		say_that_models_have_no_files(fake);
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
	outcome.first_token_ms = fake.first_token_ms;
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

/* A run of mimeo-run, with a daemon unless it has no use for one, and the outcome. */
struct run_case {
	const char *claim;
	const char *arguments;
	struct fake_script script;
	bool alone;
	int status;
	const char *out;  /* NULL: anything */
	const char *err;  /* behind "mimeo-run: ", without the end of the line; NULL: nothing */
	const char *says; /* instead of err: a part of it */
};

static void run_cases(const struct run_case *cases, size_t n)
{
	char err[1024];

	for (size_t i = 0; i < n; i++) {
		const struct run_case *c = &cases[i];
		struct outcome outcome = c->alone ? run_alone(c->arguments)
			: run_logits(&c->script, c->arguments, NULL, NULL);

		print_message("# %s\n", c->claim);
		snprintf(err, sizeof(err), c->err ? "mimeo-run: %s\n" : "", c->err);
		if (c->says)
			assert_non_null(strstr(outcome.err, c->says));
		else
			assert_string_equal(outcome.err, err);
		assert_int_equal(outcome.status, c->status);
		if (c->out)
			assert_string_equal(outcome.out, c->out);
	}
}

/* ---- the answer ---- */

#define ASK "--model count --tokens 7,8,9 --max-tokens 2"

static void test_answers(void **state)
{
	static const struct run_case cases[] = {
		{"text is the answer's bytes and nothing else",
			"--model count --prompt abc --max-tokens 4", .out = "defg"},
		{"ids come as one line", "--model count --tokens 7,9 --max-tokens 3 --ids",
			.out = "10,11,12\n"},
		{"other vocabularies print ids", "--model wide --tokens 7,9 --max-tokens 3",
			.out = "10,11,12\n"},
		{"the end token is left out", "--model count --tokens 254 --ids --stop 77",
			.out = "255,0,1\n"},
		{"... even if it comes before the final event",
			"--model count --tokens 254 --ids --stop 77",
			{.tokens_a_completion = 1}, .out = "255,0,1\n"},
		{"... among other tokens", "--model count --tokens 254 --ids --stop 77",
			{.tokens_a_completion = 2}, .out = "255,0,1\n"},
		{"... at the end of several", "--model count --tokens 254 --ids --stop 77",
			{.tokens_a_completion = 3}, .out = "255,0,1\n"},
		{"a stop id is left out", "--model count --prompt abc --stop 104,103", .out = "def"},
		{"an ignored end token is part of the answer",
			"--model count --tokens 254 --ids --ignore-eos --max-tokens 6",
			{.tokens_a_completion = 1}, .out = "255,0,1,2,3,4\n"},
		{"an answer of the end token alone is empty", "--model count --tokens 1 --ids",
			.out = "\n"},
		{"... without ids too", "--model count --tokens 1", .out = ""},
		{"draft tokens without a draft model are noted",
			"--model wide --tokens 7,9 --max-tokens 3 --draft-tokens 2", {.no_draft = true},
			.out = "10,11,12\n",
			.err = "--draft-tokens is ignored: model wide has no draft model (mimeod --draft)"},
		{"... if they are asked for", "--model wide --tokens 7,9 --max-tokens 3",
			{.no_draft = true}, .out = "10,11,12\n"},
		{"... and not none", "--model wide --tokens 7,9 --max-tokens 3 --draft-tokens none",
			{.no_draft = true}, .out = "10,11,12\n"},
		{"a model without masks has the causal one", ASK " --mask causal",
			{.no_masks = true}},
	};

	run_cases(cases, ARRAY_SIZE(cases));
}

static void test_limit_of_speculation_is_the_requests(void **state)
{
	static const struct {
		const char *arguments;
		uint32_t draft_tokens;
	} cases[] = {{ASK, 0}, {ASK " --draft-tokens 1", 1}, {ASK " --draft-tokens 8", 8},
		{ASK " --draft-tokens none", MIMEO_DRAFT_NONE}};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct outcome outcome = run(cases[i].arguments);

		assert_int_equal(outcome.draft_tokens, cases[i].draft_tokens);
		assert_string_equal(outcome.err, "");
	}
}

static void test_deadline_of_the_first_token_is_the_requests(void **state)
{
	assert_int_equal(run(ASK).first_token_ms, 0);
	assert_int_equal(run(ASK " --first-token 1.5").first_token_ms, 1500);
}

static void test_default_limit_is_128_or_what_the_sequence_can_hold(void **state)
{
	char tokens[2200] = "--model count --ignore-eos --tokens 1";

	assert_int_equal(run("--model count --tokens 50 --ignore-eos").out_bytes, 128);
	for (unsigned i = 1; i < FAKE_MAX_SEQ_LEN - 10; i++)
		strcat(tokens, ",1");
	struct outcome outcome = run(tokens);
	assert_string_equal(outcome.err, "");
	assert_int_equal(outcome.out_bytes, 10);
}

static void test_limit_of_0_is_what_the_sequence_can_hold(void **state)
{
	char tokens[2200] = "--model count --ignore-eos --max-tokens 0 --tokens 1";
	const struct outcome refused = run("--model count --tokens 50 --ignore-eos --max-tokens 5000");

	assert_int_equal(refused.status, 3);
	assert_int_equal(run("--model count --tokens 50 --ignore-eos --max-tokens 0").out_bytes, FAKE_MAX_SEQ_LEN - 1);
	for (unsigned i = 1; i < FAKE_MAX_SEQ_LEN; i++)
		strcat(tokens, ",1");
	assert_int_equal(run(tokens).status, 3);
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
	const char *const lines[] = {"--model m --prompt x --tokens 1", "--chat --tokens 1", "--chat --score",
		"--system x --prompt x", "--prompt x --class fast", "--prompt x --logprobs 1",
		"--prompt x --json-events --logprobs 21", "--prompt x --repetition-penalty 0",
		"--prompt x --presence-penalty 2.5", "--prompt x --stop-text ''", "--tokenize --json-events --prompt x", "--model m --tokens 1,", "--model m --tokens ''",
		"--model m --tokens -1",
		"--model m --tokens 1 --max-tokens -1", "--model m --tokens 1 --top-p 1.5",
		"--model m --tokens 1 --temperature nan", "--model m --tokens 1 --sampling none",
		"--model m --tokens 1 --sampling model --top-k 3", "--model m --tokens 1 --bogus",
		"--model m --tokens 1 --stop 1,2,3,4,5,6,7,8,9", "--model m --tokens 1 extra",
		"--model m --tokens 1 --model", "--model m --tokens 1 --timeout 0",
		"--model m --tokens 1 --first-token 0",
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

#define REMEDY ": start mimeod, or name its socket with --socket"

static void test_errors_have_a_status_and_a_reason(void **state)
{
	static const struct run_case cases[] = {
		{"a prompt for another vocabulary", "--model wide --prompt abc", .status = 2,
			.says = "vocabulary of 1000"},
		{"a chat without a tokenizer", "--model count --chat --prompt a", .status = 2,
			.err = "--chat: model count has no tokenizer"},
		{"a stop text without a tokenizer", "--model count --tokens 1 --stop-text a", .status = 2,
			.err = "--stop-text: model count has no tokenizer"},
		{"no daemon", "--socket /tmp/mimeo-no-such.sock --model m --tokens 1", .alone = true,
			.status = 1,
			.err = "/tmp/mimeo-no-such.sock: no daemon answers on the socket: No such "
			       "file or directory" REMEDY},
		{"a file that is no socket", "--socket /etc/passwd --model m --tokens 1",
			.alone = true, .status = 1,
			.err = "/etc/passwd: no daemon answers on the socket: not a socket" REMEDY},
		{"a path below a file", "--socket /etc/passwd/x --model m --tokens 1",
			.alone = true, .status = 1,
			.err = "/etc/passwd/x: no daemon answers on the socket: Not a directory" REMEDY},
		{"an empty path", "--socket '' --model m --tokens 1", .alone = true, .status = 2,
			.err = "the socket's path must be 1 to 107 bytes, this one has 0"},
		{"a path of 108 bytes", "--model m --tokens 1 --socket "
			"/xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
			"xxxxxxxxxxxxxxxxxxxxxxxxxxxxx", .alone = true, .status = 2,
			.err = "the socket's path must be 1 to 107 bytes, this one has 108"},
		{"a daemon that does not send WELCOME within the timeout",
			"--model count --tokens 1 --timeout 0.05", {.silent = true}, .status = 1,
			.says = "timed out"},
		{"a daemon that stops answering", "--model count --tokens 1 --timeout 0.05",
			{.stalled = true}, .status = 1, .err = "the daemon does not answer"},
		{"a timeout out of range", "--model m --tokens 1 --timeout 0.0001", .alone = true,
			.status = 2, .says = "from 0.001 to 4000000"},
		{"a stop id outside the vocabulary", "--model count --tokens 1 --stop 3,256",
			.status = 3,
			.err = "--stop: token 256 is outside the vocabulary of 256 of model count"},
		{"a daemon that dies midway", "--model count --prompt abc --max-tokens 9",
			{.tokens_a_completion = 2, .hang_up_midway = true}, .status = 1, .out = "de\n",
			.says = "gone"},
		{"an unknown model", "--model none --tokens 1", .status = 3,
			.err = "no model 'none'; the daemon serves: count, wide"},
		{"a token outside the vocabulary", "--model count --tokens 5,999", .status = 3,
			.err = "token 1 is 999, outside the vocabulary of 256"},
		{"too many tokens", "--model count --tokens 5 --max-tokens 512", .status = 3,
			.says = "512"},
		{"an unknown mask", ASK " --mask tree", .alone = true, .status = 2,
			.err = "--mask: 'tree' is not causal, window:N (N at least 1), "
			       "window:N+SINKS or prefix"},
		{"a limit below 0", ASK " --max-tokens -1", .alone = true, .status = 2,
			.err = "--max-tokens: '-1' is not an integer of at least 0"},
		{"a limit of too many tokens", ASK " --max-tokens 5000000000", .alone = true, .status = 2,
			.err = "--max-tokens: '5000000000' is more than 4294967295"},
		{"a mask that the model does not support", ASK " --mask window:8",
			{.no_masks = true}, .status = 3,
			.err = "--mask window:8: the attention backend of model count supports the causal "
			       "mask only: start mimeod with --attention flex, unless the attention is "
			       "latent"},
		{"an unknown option", "--model m --bogus", .alone = true, .status = 2,
			.err = "--bogus: unknown option; see --help"},
		{"an option without its value", "--tokens 1 --model", .alone = true, .status = 2,
			.err = "--model: needs a value; see --help"},
	};

	run_cases(cases, ARRAY_SIZE(cases));
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

static void test_mask_is_sent_as_given(void **state)
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
static void test_causal_mask_for_a_model_with_another_default(void **state)
{
	const struct mimeo_mask window = {.kind = MIMEO_MASK_WINDOW, .window = 2};

	assert_mask(mask_sent(&window, ASK), MIMEO_MASK_DEFAULT, 0, 0, 0);
	assert_mask(mask_sent(&window, ASK " --mask causal"), MIMEO_MASK_WINDOW,
		FAKE_MAX_SEQ_LEN, 0, 0);
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
	assert_string_equal(outcome.err, "mimeo-run: --mask prefix: the prompt has 65 tokens and must "
		"fit one step: mimeod's --max-batch-tokens is 64\n");
}

static void test_help_and_version_go_to_standard_output(void **state)
{
	struct outcome help = run_alone("--help"), version = run_alone("--version");

	assert_int_equal(help.status, 0);
	assert_memory_equal(help.out, "Usage: ", 7);
	assert_int_equal(version.status, 0);
	assert_memory_equal(version.out, "mimeo-run ", 10);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_answers),
		cmocka_unit_test(test_limit_of_speculation_is_the_requests),
		cmocka_unit_test(test_deadline_of_the_first_token_is_the_requests),
		cmocka_unit_test(test_default_limit_is_128_or_what_the_sequence_can_hold),
		cmocka_unit_test(test_limit_of_0_is_what_the_sequence_can_hold),
		cmocka_unit_test(test_logits_file_is_raw_floats_of_the_vocabulary),
		cmocka_unit_test(test_wrong_usage_exits_2_with_one_line),
		cmocka_unit_test(test_errors_have_a_status_and_a_reason),
		cmocka_unit_test(test_mask_is_sent_as_given),
		cmocka_unit_test(test_causal_mask_for_a_model_with_another_default),
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
