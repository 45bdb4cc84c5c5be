/* SPDX-License-Identifier: MIT */
#include "tests/loop/config_lines.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void test_config_defaults(void **state)
{
	struct config config;

	assert_int_equal(parse("--model m=/models/m", &config), 0);
	assert_int_equal(config.n_models, 1);
	assert_string_equal(config.models[0].name, "m");
	assert_string_equal(config.models[0].dir, "/models/m");
	assert_int_equal(config.models[0].graph_mode, GRAPH_FULL_AND_PIECEWISE);
	assert_string_equal(config.models[0].attention, "auto");
	assert_int_equal(config.models[0].kv_pages, 0);
	assert_int_equal(config.models[0].kv_bytes, 0);
	assert_string_equal(config.device, "auto");
	assert_string_equal(config.socket, "");
	assert_string_equal(config.loop, "");
	assert_int_equal(config.n_capture_sizes, 0);
	assert_int_equal(config.max_requests, 0); /* the device decides */
	assert_int_equal(config.max_batch_tokens, 0); /* nor here */
	assert_int_equal(config.token_us, 50000);
	assert_int_equal(config.page_tokens, 16);
	assert_int_equal(config.max_seq_len, 0);
	assert_int_equal(config.memory, 0);
	assert_int_equal(config.max_sessions, 64);
	assert_int_equal(config.max_sessions_per_uid, 32);
	assert_int_equal(config.max_sequences, 256);
	assert_int_equal(config.max_arena_bytes, 256 << 20);
	assert_int_equal(config.max_shared_bytes, UINT64_C(2) << 30);
	assert_int_equal(config.max_sequence_bytes, UINT64_C(16) << 30);
	assert_int_equal(config.max_client_buffers, 64);
	assert_int_equal(config.max_client_buffer_bytes, 256 << 20);
	assert_int_equal(config.max_buffer_bytes, UINT64_C(1) << 30);
	assert_string_equal(config.allow_client_ipc, "same-uid");
	assert_int_equal(config.drain_timeout_s, 30);
	assert_int_equal(config.log_level, LOG_LEVEL_INFO);
	assert_true(config.spin_us == 50 || config.spin_us == 0);
	config_deinit(&config);
}

/* Each key, with a value it takes, as the file would show it; then values it refuses. */
static const struct {
	const char *key, *value, *shown;
	const char *refused[6];
} values[] = {
	{ "device", "cuda:3", "cuda:3", { "gpu", "cuda:", "cuda:x", "cuda:256", "cuda:-1" } },
	{ "socket", "/run/x.sock", "/run/x.sock",
		{ "/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
		  "aaaaaaaaaaaaa" } },
	{ "graph_mode", "full-decode-only", "FULL_DECODE_ONLY", { "fast", "full_", "1" } },
	{ "breakable", "no", "no", { "maybe", "or", "1", "YES" } },
	{ "deterministic", "yes", "yes", { "maybe", "or", "1", "NO" } },
	{ "head_dtype", "fp8", "fp8", { "bf16", "or", "FP8", "int4", "" } },
	{ "kv_dtype", "fp8", "fp8", { "bf16", "or", "FP8", "e5m2", "" } },
	{ "capture", "lazy", "lazy", { "never", "or", "0" } },
	{ "prefix_sharing", "all", "all", { "yes", "or", "uid", "" } },
	{ "weights", "alice:3,@batch:1,1001:1000", "alice:3, @batch:1, 1001:1000",
		{ "alice", "alice:0", "alice:1001", ":1", "alice:1,", "alice:1,alice:2" } },
	{ "attention", "flex", "flex", { "flash", "fle", "or", "auto,", "nai", "NAIVE" } },
	{ "mask", "window:128+4", "window:128+4",
		{ "window", "window:0", "window:8+", "window:8+4+", "window:8+-1", "tree" } },
	{ "draft", "/models/d", "/models/d", { "" } },
	{ "draft_tokens", "8", "8", { "0", "9", "-1", "1.5", "none", "" } },
	{ "kv_pages", "100", "100", { "0", "-1", "1.5", "2147483648", "1K" } },
	{ "kv_bytes", "3G", "3G", { "0", "1KX", "K", "18446744073709551616", "16777216T", "1.5" } },
	{ "capture_sizes", "8,1,8", "8,1,8", { "0", "1,,2", "1,", ",1", "65537", "1;2" } },
	{ "max_requests", "4096", "4096", { "0", "4097", "x", "+1", "1e3" } },
	{ "max_batch_tokens", "65536", "64K", { "0", "65537" } },
	{ "max_seq_len", "0", "0", { "16777217", "-1" } },
	{ "page_tokens", "32", "32", { "0", "1025" } },
	{ "memory", "1T", "1T", { "0", "90%", "-1" } },
	{ "max_sessions", "1024", "1024", { "0", "1025" } },
	{ "max_sessions_per_uid", "2", "2", { "0", "1025" } },
	{ "max_sequences", "65536", "65536", { "0", "65537" } },
	{ "max_arena_bytes", "64k", "64K", { "65535", "1025M", "" } },
	{ "max_shared_bytes", "1M", "1M", { "1048575", "-1", "" } },
	{ "max_sequence_bytes", "3G", "3G", { "1048575", "16E", "" } },
	{ "max_client_buffers", "0", "0", { "4097", "-1", "" } },
	{ "max_client_buffer_bytes", "3M", "3M", { "9223372036854775808", "x" } },
	{ "max_buffer_bytes", "0", "0", { "9223372036854775808", "1B" } },
	{ "allow_client_ipc", "yes", "yes", { "same", "uid", "YES", "or", "1" } },
	{ "monitor_group", "prometheus", "prometheus", { "?", "a/b", "@staff", "a-name-of-33-bytes-is-longer-than-" } },
	{ "metrics_port", "9400", "9400", { "65536", "-1", "localhost:9400" } },
	{ "token_us", "60000000", "60000000", { "60000001", "-1", "soon" } },
	{ "spin_us", "forever", "forever", { "always", "1000001", "-1" } },
	{ "drain_timeout_s", "0", "0", { "86401", "1.5s", "25h", "1d" } },
	{ "loop", "epoll", "epoll", { "select", "io-uring" } },
	{ "log_level", "debug", "debug", { "verbose", "5", "DEBUG", "trace" } },
	{ "log_format", "json", "json", { "xml", "journal", "JSON" } },
	{ "request_log", "yes", "yes", { "on", "1", "YES" } },
};
enum { N_VALUES = sizeof(values) / sizeof(values[0]) };
_Static_assert(N_VALUES == CONFIG_N_KEYS, "every key is tested");

static void option_of(const char *key, char *ret, size_t size)
{
	snprintf(ret, size, "--%s", key);
	for (char *at = ret; (at = strchr(at, '_')); at++)
		*at = '-';
}

static void test_config_every_key_is_an_option_and_a_key_of_the_file(void **state)
{
	struct config config;
	char text[512], option[64], shown[128];

	for (size_t i = 0; i < N_VALUES; i++) {
		const struct config_key *key = key_named(values[i].key);
		const char *expected = strcmp(key->name, "max_batch_tokens") ? values[i].shown : "65536";

		option_of(key->name, option, sizeof(option));
		/* a draft's tokens need a draft */
		const char *rest = strcmp(key->name, "draft_tokens") ? "" : " --draft d";
		snprintf(text, sizeof(text), "--model m=d %s %s%s", option, values[i].value, rest);
		assert_int_equal(parse(text, &config), 0);
		assert_string_equal(config_show(key, &config, NULL, shown, sizeof(shown)), expected);
		config_deinit(&config);

		snprintf(text, sizeof(text), "[mimeod]\n%s = %s\n", key->name, values[i].value);
		char line[64];
		snprintf(line, sizeof(line), "--model m=d%s", rest);
		assert_int_equal(parse_file(text, line, &config), 0);
		assert_string_equal(config_show(key, &config, NULL, shown, sizeof(shown)), expected);
		config_deinit(&config);
	}
}

static void test_config_refused_values_name_place_value_and_what_is_accepted(void **state)
{
	struct config config;
	char text[512], option[64], accepted[160];

	for (size_t i = 0; i < N_VALUES; i++) {
		const struct config_key *key = key_named(values[i].key);

		option_of(key->name, option, sizeof(option));
		config_accepted(key, accepted, sizeof(accepted));
		for (int j = 0; j < 6 && values[i].refused[j]; j++) {
			const char *value = values[i].refused[j];

			snprintf(text, sizeof(text), "--model m=d %s=%s", option, value);
			assert_int_equal(parse(text, &config), -EINVAL);
			assert_memory_equal(error.text, option, strlen(option));
			assert_non_null(strstr(error.text, accepted));
			snprintf(text, sizeof(text), "[mimeod]\n\n%s = %s\n", key->name, value);
			if (strchr(value, ';'))
				continue; /* begins a comment there only after a space */
			assert_int_equal(parse_file(text, "--model m=d", &config), -EINVAL);
			snprintf(text, sizeof(text), ":3: %s: \"", key->name);
			assert_non_null(strstr(error.text, text));
			assert_non_null(strstr(error.text, accepted));
		}
	}
}

static void test_config_errors(void **state)
{
	static const struct {
		const char *file, *line, *text;
	} table[] = {
		{ "", "", "no model: give one with --model NAME=DIR" },
		{ "", "--model m", "--model: \"m\" is not NAME=DIR" },
		{ "", "--model m=", "--model: \"\" is not a directory" },
		{ "", "--model a/b=d", "--model: \"a/b\" is not a model name" },
		{ "", "--model =d", "--model: \"\" is not a model name" },
		{ "", "--model m=a --model m=b", "--model: model \"m\" is given twice" },
		{ "[model m]\ndir=a\n[model m]\ndir=b\n", "", ":4: dir: model \"m\" is given twice" },
		{ "[model a]\n", "", ":1: [model a]: model \"a\" has no directory" },
		{ "[model a]\n[model b]\ndir=b\n", "", ":1: [model a]: model \"a\" has no directory" },
		{ "", "--model m=d --max-requests 513 --max-batch-tokens 512",
			"max_requests 513 (--max-requests) exceeds max_batch_tokens 512 (--max-batch-tokens)" },
		{ "[mimeod]\nmax_batch_tokens = 63\nmax_requests = 64\n", "--model m=d",
			"lower max_requests or raise max_batch_tokens" },
		{ "", "--model m=d --attention x=naive", "--attention: model \"x\" has no directory" },
		{ "", "--model m=d --bogus", "--bogus: unknown option" },
		{ "", "--model m=d --max", "--max: unknown option" },
		{ "", "--model m=d -x", "-x: unknown option" },
		{ "", "--model m=d --max-requests", "--max-requests: needs a value" },
		{ "", "--model m=d stray", "stray: not an option" },
		{ "", "--model m=d --kv-pages 3 --kv-bytes 1G", "exclude each other" },
		{ "", "--model m=d --config /nonexistent/c", "/nonexistent/c: No such file" },
		{ "max_requests = 1\n", "--model m=d", ":1: a key before the first section" },
		{ "[mimeod]\nbogus = 1\n", "--model m=d", ":2: bogus: unknown key: see mimeod.conf(5)" },
		{ "[mimeod]\nmax_shared_bytes = 1\n", "--model m=d", "\"1\" is not a size of at least 1M: bytes, or" },
		{ "\n[server]\n", "--model m=d", ":2: unknown section [server]: known are [mimeod]" },
		{ "[mimeod\n", "--model m=d", ":1: neither \"key = value\" nor" },
		{ "[mimeod]\nwhat\n", "--model m=d", ":2: neither \"key = value\" nor" },
		{ "[mimeod]\nloop = epoll\nloop = auto\n", "--model m=d", ":3: loop: given twice, first by /tmp/" },
		{ "[mimeod]\nloop = epoll\n  auto\n", "--model m=d", ":3: neither \"key = value\" nor" },
		{ "[mimeod]\nmax_arena_bytes = 64M\nmax_shared_bytes = 32M\n", "--model m=d",
			":3), which is for all clients together" },
		{ "[mimeod]\nkv_pages=1\nkv_bytes=1\n", "--model m=d",
			":3: kv_bytes: kv_pages and kv_bytes exclude each other: kv_pages is given by /tmp/" },
		{ "[model m]\ndir=d\nkv_pages=1\nkv_bytes=1\n", "", ":4: kv_bytes: kv_pages and" },
		{ "[model m]\ndir = d\nmax_requests = 3\n", "",
			":3: max_requests: unknown key of a model: it belongs in [mimeod]" },
		{ "[mimeod]\nkv_page = 1\n", "--model m=d", ":2: kv_page: unknown key (did you mean kv_pages?)" },
		{ "[model m]\ndirr = d\n", "", ":2: dirr: unknown key (did you mean dir?)" },
		{ "[model ]\ndir = d\n", "", "is not a model name" },
		{ "[model a b]\ndir = d\n", "", "\"a b\" is not a model name" },
		{ "[model m]\nattention = naive\n", "", ":1: [model m]: model \"m\" has no directory" },
		{ "[model m]\ndir =\n", "", ":2: dir: \"\" is not a directory" },
	};
	struct config config;

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		assert_true(parse_file(table[i].file, table[i].line, &config) < 0);
		if (!strstr(error.text, table[i].text))
			fail_msg("\"%s\" lacks \"%s\"", error.text, table[i].text);
	}
}

static void test_config_command_line_beats_the_file(void **state)
{
	struct config config;

	assert_int_equal(parse_file("[mimeod]\nmax_requests = 3\nmax_sessions = 4\nkv_pages = 9\n"
				    "attention = naive\n"
				    "[model m]\ndir = /file/m\nattention = paged\ngraph_mode = none\n"
				    "[model n]\ndir = /file/n\n",
				 "--max-requests 5 --model m=/line/m --kv-bytes 100 --attention auto",
				 &config), 0);
	assert_int_equal(config.max_requests, 5);
	assert_int_equal(config.max_sessions, 4);
	assert_int_equal(config.n_models, 2);
	assert_string_equal(config.models[0].dir, "/line/m");
	assert_string_equal(config.models[0].attention, "auto");
	assert_int_equal(config.models[0].graph_mode, GRAPH_NONE);
	assert_string_equal(config.models[1].dir, "/file/n");
	assert_int_equal(config.kv_pages, 0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(config.models[i].kv_pages, 0);
		assert_int_equal(config.models[i].kv_bytes, 50);
	}
	config_deinit(&config);
}

static void test_config_own_value_of_a_model_beats_the_one_for_all(void **state)
{
	struct config config;

	assert_int_equal(parse("--attention b=naive --graph-mode a=none --attention paged "
			       "--graph-mode full --kv-bytes 1K --kv-bytes c=7 "
			       "--model a=/a --model b=/b --model c=/c", &config), 0);
	assert_string_equal(config.models[0].name, "b"); /* as first named */
	assert_string_equal(config.models[0].attention, "naive");
	assert_int_equal(config.models[0].graph_mode, GRAPH_FULL);
	assert_int_equal(config.models[0].kv_bytes, 512);
	assert_string_equal(config.models[1].name, "a");
	assert_string_equal(config.models[1].attention, "paged");
	assert_int_equal(config.models[1].graph_mode, GRAPH_NONE);
	assert_int_equal(config.models[1].kv_bytes, 512);
	assert_int_equal(config.models[2].kv_bytes, 7);
	config_deinit(&config);
}

static void test_config_pages_are_for_each_model(void **state)
{
	struct config config;

	assert_int_equal(parse("--model a=/a --model b=/b --kv-pages 10 --kv-bytes b=1M", &config), 0);
	assert_int_equal(config.models[0].kv_pages, 10);
	assert_int_equal(config.models[1].kv_pages, 0);
	assert_int_equal(config.models[1].kv_bytes, 1 << 20);
	config_deinit(&config);
}

static void test_config_mask_of_a_window_may_say_that_it_has_no_sinks(void **state)
{
	struct config config;

	assert_int_equal(parse("--model m=d --mask window:8+0", &config), 0);
	assert_int_equal(config.mask.window, 8);
	assert_int_equal(config.mask.sinks, 0);
	config_deinit(&config);
}

static void test_config_last_option_wins(void **state)
{
	struct config config;

	assert_int_equal(parse("--model m=d --max-requests 3 --max-requests 4", &config), 0);
	assert_int_equal(config.max_requests, 4);
	config_deinit(&config);
}

static void test_config_takes_32_models_and_refuses_the_33rd(void **state)
{
	struct config config;
	char text[2048] = "";
	size_t used = 0;

	for (int i = 0; i < CONFIG_MODELS_MAX; i++)
		used += (size_t)snprintf(text + used, sizeof(text) - used, "[model m%d]\ndir=d\n", i);
	assert_int_equal(parse_file(text, "", &config), 0);
	assert_int_equal(config.n_models, CONFIG_MODELS_MAX);
	config_deinit(&config);
	assert_int_equal(parse_file(text, "--model another=d", &config), -EINVAL);
	assert_non_null(strstr(error.text, "--model: more than 32 models"));
	snprintf(text + used, sizeof(text) - used, "[model another]\ndir=d\n");
	assert_int_equal(parse_file(text, "", &config), -EINVAL);
	assert_non_null(strstr(error.text, ":65: [model another]: more than 32 models"));
}

static void test_config_model_names_have_1_to_63_characters(void **state)
{
	char name[65], text[256];
	struct config config;

	memset(name, 'n', sizeof(name));
	name[63] = '\0';
	snprintf(text, sizeof(text), "[model %s]\ndir=d\n", name);
	assert_int_equal(parse_file(text, "", &config), 0);
	assert_string_equal(config.models[0].name, name);
	config_deinit(&config);
	name[63] = 'n';
	name[64] = '\0';
	snprintf(text, sizeof(text), "[model %s]\ndir=d\n", name);
	assert_int_equal(parse_file(text, "", &config), -EINVAL);
	snprintf(text, sizeof(text), "--model %s=d", name);
	assert_int_equal(parse(text, &config), -EINVAL);
}

static void test_config_file_long_lines_are_refused_not_cut(void **state)
{
	char text[4096] = "[mimeod]\nsocket = ";
	struct config config;

	memset(text + strlen(text), 'x', 3000);
	assert_int_equal(parse_file(text, "--model m=d", &config), -EINVAL);
	assert_non_null(strstr(error.text, ":2: a line of more than"));
}

static void test_config_file_zero_bytes_are_refused(void **state)
{
	static const char text[] = "[mimeod]\nloop = epoll\0x\n";
	struct config_settings settings = { 0 };

	error = (struct config_error){0};
	assert_int_equal(config_parse_memory(&settings, "c", text, sizeof(text) - 1, &error), -EINVAL);
	assert_string_equal(error.text, "c:2: a zero byte");
	config_settings_deinit(&settings);
}

static void test_config_file_comments_spaces_and_missing_newline_are_fine(void **state)
{
	struct config config;

	assert_int_equal(parse_file("\xef\xbb\xbf# head\n ; more\n[mimeod]\r\n"
				    "max_requests=7 ; seven\n\n[model m]\ndir : /a b/c",
				 "", &config), 0);
	assert_int_equal(config.max_requests, 7);
	assert_string_equal(config.models[0].dir, "/a b/c");
	config_deinit(&config);
}

static void test_config_missing_default_file_is_no_error(void **state)
{
	struct config config;

	assert_int_equal(parse_with("--model m=d", "/nonexistent/c", stdout, &config), 0);
	config_deinit(&config);
}

static void test_config_help_and_version_are_written_and_end_it(void **state)
{
	struct config config;
	char *text = NULL, option[64];
	size_t size;
	FILE *out = open_memstream(&text, &size);

	assert_int_equal(parse_with("--help --bogus", NULL, out, &config), OPTIONS_DONE);
	fflush(out);
	for (size_t i = 0; i < N_VALUES; i++) {
		option_of(values[i].key, option, sizeof(option));
		assert_non_null(strstr(text, option));
	}
	rewind(out);
	assert_int_equal(parse_with("--version", NULL, out, &config), OPTIONS_DONE);
	fclose(out);
	assert_memory_equal(text, "mimeod ", 7);
	free(text);
}

static void test_config_help_has_at_most_80_columns(void **state)
{
	struct config config;
	char *text = NULL;
	size_t size;
	FILE *out = open_memstream(&text, &size);

	assert_int_equal(parse_with("--help", NULL, out, &config), OPTIONS_DONE);
	fclose(out);
	assert_true(size > 0);
	for (const char *line = text; *line; line += strcspn(line, "\n") + 1)
		assert_in_range(strcspn(line, "\n"), 0, 80);
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_config_defaults),
		cmocka_unit_test(test_config_every_key_is_an_option_and_a_key_of_the_file),
		cmocka_unit_test(test_config_refused_values_name_place_value_and_what_is_accepted),
		cmocka_unit_test(test_config_errors),
		cmocka_unit_test(test_config_command_line_beats_the_file),
		cmocka_unit_test(test_config_own_value_of_a_model_beats_the_one_for_all),
		cmocka_unit_test(test_config_pages_are_for_each_model),
		cmocka_unit_test(test_config_mask_of_a_window_may_say_that_it_has_no_sinks),
		cmocka_unit_test(test_config_last_option_wins),
		cmocka_unit_test(test_config_takes_32_models_and_refuses_the_33rd),
		cmocka_unit_test(test_config_model_names_have_1_to_63_characters),
		cmocka_unit_test(test_config_file_long_lines_are_refused_not_cut),
		cmocka_unit_test(test_config_file_zero_bytes_are_refused),
		cmocka_unit_test(test_config_file_comments_spaces_and_missing_newline_are_fine),
		cmocka_unit_test(test_config_missing_default_file_is_no_error),
		cmocka_unit_test(test_config_help_and_version_are_written_and_end_it),
		cmocka_unit_test(test_config_help_has_at_most_80_columns),
	};

	return cmocka_run_group_tests_name("config", tests, without_environment, NULL);
}
