/* SPDX-License-Identifier: MIT */

/*
 * mimeo-bench perplexity as a user runs it, with models of bytes: tinycalc with a tokenizer whose tokens are bytes,
 * beside a dense reference; and a model that is made by hand, whose logits are the same after any token, so that its
 * perplexity is known.
 */

#include "tests/bench/run.h"
#include "tests/dense.h"

#define BEGIN 1 /* the begin token of both */

static char folder[] = "/tmp/mimeo-perplexity-XXXXXX";

/* The model by hand: layers add nothing to the embedding, which is all ones, and so is the norm's output. The row
 * of the letter a in the head is 2^-5 in each of its 160 columns: its logit is 5, that of all others 0. */
static const char by_hand[] =
	"import json, struct, sys\n"
	"folder, a = sys.argv[1], float(sys.argv[2])\n"
	"path = folder + '/model.safetensors'\n"
	"data = bytearray(open(path, 'rb').read())\n"
	"n = 8 + struct.unpack('<Q', data[:8])[0]\n"
	"header = json.loads(data[8:n])\n"
	"def fill(name, value, first=0, count=None):\n"
	"    begin, end = header[name]['data_offsets']\n"
	"    begin += n + 2 * first\n"
	"    end = n + end if count is None else begin + 2 * count\n"
	"    data[begin:end] = struct.pack('<f', value)[2:] * ((end - begin) // 2)\n"
	"for name in header:\n"
	"    if name != '__metadata__':\n"
	"        assert header[name]['dtype'] == 'BF16'\n"
	"        fill(name, 0)\n"
	"fill('model.embed_tokens.weight', 1)\n"
	"fill('model.norm.weight', 1)\n"
	"fill('lm_head.weight', a, 160 * ord('a'), 160)\n"
	"open(path, 'wb').write(data)\n";

/* A tokenizer of characters, in which the word "a" is "_a", and texts begin with a word. */
static const char of_spaces[] =
	"import json, sys\n"
	"tokenizer = json.load(open(sys.argv[1]))\n"
	"metaspace = {'type': 'Metaspace', 'replacement': '_', 'prepend_scheme': 'always', 'split': True}\n"
	"vocab = {chr(i): i for i in range(32, 127)}\n"
	"vocab.update({'<|begin|>': 1, '<|end|>': 2})\n"
	"tokenizer.update(pre_tokenizer=metaspace, decoder=metaspace)\n"
	"tokenizer['model'].update(vocab=vocab, merges=[])\n"
	"json.dump(tokenizer, open(sys.argv[2], 'w'))\n";

static void write_file(const char *name, const char *text)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	FILE *file = fopen(path, "we");
	assert_non_null(file);
	assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
	assert_int_equal(fclose(file), 0);
}

static int setup(void **state)
{
	char output[OUTPUT_MAX];

	assert_non_null(mkdtemp(folder));
	write_file("by_hand.py", by_hand);
	write_file("of_spaces.py", of_spaces);
	return shell(output, "set -e; cd %s; t=\"$MIMEO_SOURCE\"/tests/data/byte-tokenizer; "
		"for m in calc uniform hand plain spaces; do "
		"mkdir $m; cp " MODELS "tinycalc/[cgm]*.* $t/*.json $m; chmod u+w $m/*; done; python3 by_hand.py uniform 0; "
		"python3 by_hand.py hand 0.03125; python3 of_spaces.py $t/tokenizer.json spaces/tokenizer.json; "
		"sed -n '/\"post_processor\"/q;p' $t/tokenizer.json >plain/tokenizer.json; "
		"echo '\"post_processor\": null,' >>plain/tokenizer.json; "
		"sed -n '/\"decoder\"/,$p' $t/tokenizer.json >>plain/tokenizer.json", folder);
}

static int teardown(void **state)
{
	char output[OUTPUT_MAX];

	return shell(output, "rm -r %s", folder);
}

static json_t *rows_of_text(const char *model, const char *arguments)
{
	char option[128], all[512];

	snprintf(option, sizeof(option), "--model %s/%s", folder, model);
	snprintf(all, sizeof(all), "--text %s/text perplexity %s", folder, arguments);
	return rows_of_model(option, all);
}

static bool sees_all_before(const void *mask, uint32_t q, uint32_t k)
{
	return k <= q;
}

/* In nats, of tokens[n - 1] after those before it. */
static double dense_nll(const struct dense *dense, const int32_t *tokens, uint32_t n)
{
	double logits[DENSE_VOCAB], sum = 0;

	dense_logits(dense, tokens, NULL, n - 1, sees_all_before, NULL, logits);
	for (uint32_t i = 0; i < DENSE_VOCAB; i++)
		sum += exp(logits[i]);
	return log(sum) - logits[tokens[n - 1]];
}

static void assert_close(double value, double expected)
{
	if (fabs(value / expected - 1) < 1e-4)
		return;
	fail_msg("%.9g, not %.9g", value, expected);
}

/* A window is the begin token and 19 bytes of the text; the bytes count. */
static void test_it_is_that_of_a_dense_reference(void **state)
{
	static const char text[] = "count 97 3\n97 98 99\nadd 12 30\n42\nreverse abc\ncba\n";
	const uint32_t own = 19, n_windows = (sizeof(text) - 1) / own;
	struct dense dense;
	double nll = 0;

	dense_open(&dense);
	for (uint32_t w = 0; w < n_windows; w++) {
		int32_t tokens[20] = {BEGIN};

		for (uint32_t i = 0; i < own; i++)
			tokens[1 + i] = (uint8_t)text[w * own + i];
		for (uint32_t n = 2; n <= own + 1; n++)
			nll += dense_nll(&dense, tokens, n);
	}
	dense_close(&dense);
	write_file("text", text);
	json_t *rows = rows_of_text("calc", "--contexts 20");
	assert_int_equal(json_array_size(rows), 1);
	assert_true(number(rows, 0, "windows") == n_windows);
	assert_true(number(rows, 0, "tokens") == n_windows * own);
	assert_true(number(rows, 0, "bytes") == n_windows * own);
	assert_close(number(rows, 0, "perplexity"), exp(nll / (n_windows * own)));
	assert_close(number(rows, 0, "bits_per_byte"), nll / log(2) / (n_windows * own));
	assert_close(number(rows, 0, "nats_per_token"), nll / (n_windows * own));
	json_decref(rows);
}

static void test_equal_logits_give_the_size_of_the_vocabulary(void **state)
{
	write_file("text", "one token is as likely as another");
	json_t *rows = rows_of_text("uniform", "--contexts 4,16");

	assert_int_equal(json_array_size(rows), 2);
	for (size_t i = 0; i < 2; i++) {
		assert_near(number(rows, i, "perplexity"), 256);
		assert_near(number(rows, i, "bits_per_byte"), 8);
	}
	assert_true(number(rows, 0, "context") == 4 && number(rows, 0, "windows") == 11);
	assert_true(number(rows, 1, "context") == 16 && number(rows, 1, "windows") == 2);
	json_decref(rows);
}

/* Three a's and two others in each window of 6; the norm divides by the root of 1 + 1e-5. */
static void test_model_by_hand_gives_what_is_computed_by_hand(void **state)
{
	const double logit = 5 / sqrt(1 + 1e-5), log_sum = log(exp(logit) + 255);

	write_file("text", "abacadaea");
	json_t *rows = rows_of_text("hand", "--contexts 6");
	assert_true(number(rows, 0, "tokens") == 5);
	assert_near(number(rows, 0, "perplexity"), exp((3 * (log_sum - logit) + 2 * log_sum) / 5));
	json_decref(rows);
}

/* The first token of "aabbb" does not count, nor does its byte: one a is left, and three b's. */
static void test_without_a_begin_token_the_first_of_a_window_does_not_count(void **state)
{
	char output[OUTPUT_MAX];
	const double logit = 5 / sqrt(1 + 1e-5), log_sum = log(exp(logit) + 255);

	shell(output, "cp %s/plain/tokenizer.json %s/hand", folder, folder);
	write_file("text", "aabbb" "aabbb" "left");
	json_t *rows = rows_of_text("hand", "--contexts 5");
	shell(output, "cp %s/calc/tokenizer.json %s/hand", folder, folder);
	assert_true(number(rows, 0, "windows") == 2);
	assert_true(number(rows, 0, "tokens") == 8);
	assert_true(number(rows, 0, "bytes") == 8);
	assert_near(number(rows, 0, "nats_per_token"), (log_sum - logit + 3 * log_sum) / 4);
	json_decref(rows);
}

/* Each second token is a space: windows of two of them begin with one. The decoder drops the first one alone. */
static void test_space_ahead_of_a_window_counts(void **state)
{
	static const char text[] = "a b c d e f";

	write_file("text", text);
	json_t *rows = rows_of_text("spaces", "--contexts 3,4");
	for (size_t i = 0; i < 2; i++)
		assert_true(number(rows, i, "bytes") == sizeof(text) - 1);
	assert_true(number(rows, 0, "windows") == 6 && number(rows, 1, "windows") == 4);
	assert_true(number(rows, 0, "tokens") == sizeof(text) && number(rows, 1, "tokens") == sizeof(text));
	json_decref(rows);
}

/* The bytes of each character lie in two windows. */
static void test_character_between_windows_has_its_own_length(void **state)
{
	static const char text[] = "a\xc3\xa4\xc3\xb6\xc3\xbcz";

	write_file("text", text);
	json_t *rows = rows_of_text("calc", "--contexts 3");
	assert_true(number(rows, 0, "windows") == 4);
	assert_true(number(rows, 0, "bytes") == sizeof(text) - 1);
	json_decref(rows);
}

static void test_graphs_change_nothing(void **state)
{
	write_file("text", "count 97 3\n97 98 99\nadd 12 30\n42\n");
	json_t *rows = rows_of_text("calc", "--contexts 16");
	json_t *other = rows_of_text("calc", "--contexts 16 --graph-mode piecewise");

	assert_string_equal(text(rows, 0, "graph_mode"), "NONE");
	assert_string_equal(text(other, 0, "graph_mode"), "PIECEWISE");
	assert_true(number(rows, 0, "nats_per_token") == number(other, 0, "nats_per_token"));
	json_decref(other);
	json_decref(rows);
}

/* With `option` fp8, which rows report as `field`. */
static void check_fp8(const char *option, const char *field)
{
	char arguments[64];
	json_t *rows, *other;
	double change;

	snprintf(arguments, sizeof(arguments), "--contexts 16 %s fp8", option);
	write_file("text", "count 97 3\n97 98 99\nadd 12 30\n42\n");
	rows = rows_of_text("calc", "--contexts 16");
	other = rows_of_text("calc", arguments);
	change = number(other, 0, "nats_per_token") / number(rows, 0, "nats_per_token") - 1;
	assert_true(change != 0 && fabs(change) < 0.1);
	assert_string_equal(text(rows, 0, field), "model");
	assert_string_equal(text(other, 0, field), "fp8");
	json_decref(other);
	json_decref(rows);
}

static void test_head_in_fp8_changes_a_little(void **state)
{
	check_fp8("--head-dtype", "head_dtype");
}

static void test_keys_and_values_in_fp8_change_a_little(void **state)
{
	check_fp8("--kv-dtype", "kv_dtype");
}

/* 511 tokens of it in each window. */
static void test_shipped_text_is_ascii_and_the_default(void **state)
{
	char option[128], output[OUTPUT_MAX];

	snprintf(option, sizeof(option), "--model %s/uniform", folder);
	json_t *rows = rows_of_model(option, "perplexity");
	shell(output, "LC_ALL=C tr -d '\\000-\\177' <%s | wc -c; wc -c <%s", text(rows, 0, "text"), text(rows, 0, "text"));
	assert_int_equal(atoi(output), 0);
	int bytes = atoi(strchr(output, '\n'));
	assert_in_range(bytes, 20000, 30000);
	assert_true(number(rows, 0, "context") == 512);
	assert_true(number(rows, 0, "windows") == bytes / 511);
	assert_near(number(rows, 0, "perplexity"), 256);
	json_decref(rows);
}

static void assert_refused(const char *model, const char *arguments, const char *message)
{
	char all[512];

	snprintf(all, sizeof(all), "--device cpu --model %s/%s perplexity %s", folder, model, arguments);
	assert_one_line(1, all, message);
}

static void test_refusals_say_what_is_missing(void **state)
{
	char option[128], output[OUTPUT_MAX];

	assert_one_line(1, "--device cpu --model " MODELS "tinycalc perplexity",
		"tinycalc has no tokenizer (tokenizer.json), which the text has to be encoded with");
	shell(output, "cd %s; cp -r calc broken; echo '{}' >broken/tokenizer.json", folder);
	assert_refused("broken", "", "broken cannot be used: ");
	assert_refused("calc", "--text /nonexistent/text", "/nonexistent/text: No such file or directory");
	assert_refused("calc", "--text /", "/: Is a directory");
	write_file("text", "short");
	snprintf(option, sizeof(option), "--text %s/text --contexts 7", folder);
	assert_refused("calc", option, "/text has 6 tokens, less than a window of 7 (--contexts)");
	assert_refused("calc", "--contexts 2049", "a window of 2049 tokens: model bench takes 2048 (--contexts)");
	assert_run(2, "perplexity --socket s --model calc",
		"--model does not go with --socket: --name says which of the daemon's models is measured");
	assert_run(2, "perplexity --contexts 1", "--contexts 1: a window has 2 tokens or more");
	assert_run(2, "perplexity --shape tiny --plot x", "--plot is not for this bench");
}

static void test_table_has_six_digits_and_says_what_a_window_is(void **state)
{
	char output[OUTPUT_MAX];

	write_file("text", "one token is as likely as another");
	assert_int_equal(shell(output, "\"$MIMEO_BUILD\"/%s --device cpu --model %s/uniform --text %s/text perplexity "
		"--contexts 16", bench_program, folder, folder), 0);
	assert_non_null(strstr(output, "CONTEXT  WINDOWS  TOKENS  PERPLEXITY  BITS/BYTE"));
	assert_non_null(strstr(output, "16        2      30     256.000    8.00000"));
	assert_non_null(strstr(output, "the first token of a window, the begin token, is context and does not count"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_it_is_that_of_a_dense_reference),
		cmocka_unit_test(test_equal_logits_give_the_size_of_the_vocabulary),
		cmocka_unit_test(test_model_by_hand_gives_what_is_computed_by_hand),
		cmocka_unit_test(test_without_a_begin_token_the_first_of_a_window_does_not_count),
		cmocka_unit_test(test_space_ahead_of_a_window_counts),
		cmocka_unit_test(test_character_between_windows_has_its_own_length),
		cmocka_unit_test(test_graphs_change_nothing),
		cmocka_unit_test(test_head_in_fp8_changes_a_little),
		cmocka_unit_test(test_keys_and_values_in_fp8_change_a_little),
		cmocka_unit_test(test_shipped_text_is_ascii_and_the_default),
		cmocka_unit_test(test_refusals_say_what_is_missing),
		cmocka_unit_test(test_table_has_six_digits_and_says_what_a_window_is),
	};

	return cmocka_run_group_tests_name("bench_perplexity", tests, setup, teardown);
}
