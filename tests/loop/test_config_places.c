/* SPDX-License-Identifier: MIT */
/* Where settings come from, which place wins, and that all that is wrong is reported. */
#include "tests/loop/config_lines.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The error has these sentences and no others, in this order. */
static void assert_sentences(const char *const *parts, size_t n)
{
	const char *line = error.text;

	for (size_t i = 0; i < n; i++, line += strcspn(line, "\n"), line += *line == '\n') {
		const char *at = strstr(line, parts[i]);

		if (!at || at >= line + strcspn(line, "\n"))
			fail_msg("\"%.*s\" lacks \"%s\"", (int)strcspn(line, "\n"), line, parts[i]);
	}
	assert_string_equal(line, "");
	assert_int_equal(error.n, n);
}

#define ASSERT_SENTENCES(...)                                                                      \
	assert_sentences((const char *const[]){__VA_ARGS__},                                       \
		sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *))

static void write_text(const char *path, const char *text)
{
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static void test_config_every_error_is_reported(void **state)
{
	char text[1024];
	struct config config;

	snprintf(text, sizeof(text), "[mimeod]\nloop = x\nbogus = 1\nwhat\n[other]\nignored = 1\n%0300d\n"
				     "[mimeod]\nmax_sessions = 0\n[model m]\nattention = naive\n", 1);
	assert_int_equal(parse_file(text, "--max-arena-bytes 1 --nonsense --max-arena 2 stray", &config), -EINVAL);
	ASSERT_SENTENCES(":2: loop: \"x\" is not", ":3: bogus: unknown key", ":4: neither",
		":5: unknown section [other]", ":7: a line of more than", ":9: max_sessions: \"0\" is not",
		"--max-arena-bytes: \"1\" is not", "--nonsense: unknown option", "--max-arena: unknown option (did you mean --max-arena-bytes?)",
		"stray: not an option",
		":10: [model m]: model \"m\" has no directory");
}

/* What a refused line leaves undone is no second error. */
static void test_config_refused_model_is_one_error(void **state)
{
	struct config config;

	assert_int_equal(parse("--model m", &config), -EINVAL);
	ASSERT_SENTENCES("--model: \"m\" is not NAME=DIR");
	assert_int_equal(parse("--model m=", &config), -EINVAL);
	ASSERT_SENTENCES("--model: \"\" is not a directory");
	assert_int_equal(parse_file("[model a b]\ndir = d\n", "", &config), -EINVAL);
	ASSERT_SENTENCES(":1: [model a b]: \"a b\" is not a model name");
}

static void test_config_comments_follow_values(void **state)
{
	struct config config;

	assert_int_equal(parse_file("[mimeod] # all\nmax_requests = 7\t# seven\n  max_sessions = 8 ; eight\n"
				    "[model m] ; one\ndir = /a#b;c #d\n#dir = e\n",
				 "", &config), 0);
	assert_int_equal(config.max_requests, 7);
	assert_int_equal(config.max_sessions, 8);
	assert_string_equal(config.models[0].dir, "/a#b;c");
	config_deinit(&config);
}

static void test_config_long_comments_are_no_long_lines(void **state)
{
	char text[1024];
	struct config config;

	snprintf(text, sizeof(text), "[mimeod]\nmax_requests = 7 # %0500d\n", 1);
	assert_int_equal(parse_file(text, "--model m=d", &config), 0);
	assert_int_equal(config.max_requests, 7);
	config_deinit(&config);
}

/* ---- the default file ---- */

static void test_config_of_a_user_is_read_where_the_system_has_none(void **state)
{
	char system[] = "/tmp/test_config.XXXXXX", fragments[64], found[CONFIG_FOLDER_MAX];

	assert_non_null(mkdtemp(system));
	snprintf(fragments, sizeof(fragments), "%s.d", system);
	setenv("HOME", "/home/u", 1);
	unsetenv("XDG_CONFIG_HOME");
	assert_string_equal(options_find_config(system, false, found), system); /* it is there */
	assert_int_equal(rmdir(system), 0);
	assert_string_equal(options_find_config(system, false, found), "/home/u/.config/mimeo/mimeod.conf");
	assert_string_equal(options_find_config(system, true, found), system);
	setenv("XDG_CONFIG_HOME", "/x", 1);
	assert_string_equal(options_find_config(system, false, found), "/x/mimeo/mimeod.conf");
	setenv("XDG_CONFIG_HOME", "relative", 1);
	assert_string_equal(options_find_config(system, false, found), "/home/u/.config/mimeo/mimeod.conf");
	unsetenv("XDG_CONFIG_HOME");
	unsetenv("HOME");
	assert_string_equal(options_find_config(system, false, found), system);
	setenv("HOME", "/home/u", 1);
	assert_int_equal(mkdir(fragments, 0700), 0);
	assert_string_equal(options_find_config(system, false, found), system);
	rmdir(fragments);
}

/* ---- fragments ---- */

#define FRAGMENTS_MAX 4

struct fragment {
	const char *name, *text;
};

/* Parse c.conf, unless its text is NULL, with these files in c.conf.d. */
static int parse_fragments(const char *text, const struct fragment *fragments, const char *line, struct config *ret)
{
	char folder[] = "/tmp/test_config.XXXXXX", paths[FRAGMENTS_MAX + 3][128];
	int n = 0, rc;

	assert_non_null(mkdtemp(folder));
	snprintf(paths[n++], sizeof(paths[0]), "%s", folder);
	snprintf(paths[n++], sizeof(paths[0]), "%s/c.conf.d", folder);
	assert_int_equal(mkdir(paths[1], 0700), 0);
	for (; fragments->name; fragments++, n++) {
		snprintf(paths[n], sizeof(paths[0]), "%s/c.conf.d/%s", folder, fragments->name);
		write_text(paths[n], fragments->text);
	}
	snprintf(paths[n], sizeof(paths[0]), "%s/c.conf", folder);
	if (text)
		write_text(paths[n], text);
	rc = parse_with(line, paths[n], stdout, ret);
	while (n >= 0)
		remove(paths[n--]);
	return rc;
}

#define FRAGMENTS(...) ((const struct fragment[]){__VA_ARGS__, {0}})

static void test_config_fragments_are_read_in_the_order_of_their_names(void **state)
{
	const struct fragment *fragments = FRAGMENTS({"20-b.conf", "[mimeod]\nmax_requests = 20\nmax_sessions = 20\n"},
		{"10-a.conf", "[mimeod]\nmax_requests = 10\nmax_sequences = 10\n[model m]\ndir = /ten\n"});
	struct config config;

	assert_int_equal(parse_fragments("[mimeod]\nmax_requests = 1\nmax_sequences = 1\nspin_us = 1\n[model m]\n"
					 "dir = /one\n", fragments, "--token-us 7", &config), 0);
	assert_int_equal(config.max_requests, 20);
	assert_int_equal(config.max_sessions, 20);
	assert_int_equal(config.max_sequences, 10);
	assert_int_equal(config.spin_us, 1);
	assert_int_equal(config.token_us, 7);
	assert_string_equal(config.models[0].dir, "/ten");
	assert_int_equal(config.n_files, 3);
	config_deinit(&config);
}

static void test_config_fragments_are_read_without_the_main_file(void **state)
{
	struct config config;

	assert_int_equal(parse_fragments(NULL, FRAGMENTS({"m.conf", "[model m]\ndir = d\n"}), "", &config), 0);
	assert_string_equal(config.models[0].dir, "d");
	config_deinit(&config);
}

static void test_config_fragments_end_in_conf_and_are_not_hidden(void **state)
{
	const struct fragment *fragments = FRAGMENTS({"a.conf~", "x"}, {".a.conf", "x"}, {"README", "x"});
	struct config config;

	assert_int_equal(parse_fragments("", fragments, "--model m=d", &config), 0);
	config_deinit(&config);
}

static void test_config_fragments_name_themselves_in_errors(void **state)
{
	const struct fragment *fragments = FRAGMENTS({"1.conf", "[mimeod]\nloop = x\n"},
		{"2.conf", "[mimeod]\n\nkv_pages = 0\nloop = epoll\nloop = epoll\n"});
	struct config config;

	assert_int_equal(parse_fragments("", fragments, "--model m=d", &config), -EINVAL);
	ASSERT_SENTENCES("c.conf.d/1.conf:2: loop: \"x\"", "c.conf.d/2.conf:3: kv_pages: \"0\"",
		"c.conf.d/2.conf:5: loop: given twice, first by /tmp/");
	assert_non_null(strstr(error.text, "2.conf:4"));
}

/* One file excludes both; a later file changes its mind. */
static void test_config_fragment_may_give_bytes_in_place_of_pages(void **state)
{
	struct config config;

	assert_int_equal(parse_fragments("[mimeod]\nkv_pages = 9\n",
		FRAGMENTS({"1.conf", "[mimeod]\nkv_bytes = 64\n"}), "--model m=d", &config), 0);
	assert_int_equal(config.models[0].kv_pages, 0);
	assert_int_equal(config.models[0].kv_bytes, 64);
	config_deinit(&config);
}

/* Unlike an option: files are read as one. */
static void test_config_fragment_for_all_models_leaves_a_models_own_value(void **state)
{
	struct config config;

	assert_int_equal(parse_fragments("[model m]\ndir = d\nattention = naive\n",
		FRAGMENTS({"1.conf", "[mimeod]\nattention = paged\n"}), "", &config), 0);
	assert_string_equal(config.models[0].attention, "naive");
	config_deinit(&config);
}

/* ---- environment ---- */

static void test_config_environment_beats_files_and_the_command_line_beats_it(void **state)
{
	const struct fragment *fragments = FRAGMENTS({"1.conf", "[mimeod]\nmax_requests = 2\n"});
	const char *text = "[mimeod]\nmax_requests = 1\nkv_pages = 1\n[model m]\ndir = d\nattention = naive\n";
	struct config config;

	setenv("MIMEO_MAX_REQUESTS", "3", 1);
	setenv("MIMEO_KV_BYTES", "4K", 1);
	setenv("MIMEO_ATTENTION", "paged", 1);
	assert_int_equal(parse_fragments(text, fragments, "", &config), 0);
	assert_int_equal(config.max_requests, 3);
	assert_int_equal(config.models[0].kv_pages, 0);
	assert_int_equal(config.models[0].kv_bytes, 4096);
	assert_string_equal(config.models[0].attention, "paged");
	config_deinit(&config);
	assert_int_equal(parse_fragments(text, fragments, "--max-requests 4 --attention m=flex", &config), 0);
	assert_int_equal(config.max_requests, 4);
	assert_string_equal(config.models[0].attention, "flex");
	config_deinit(&config);
	without_environment(NULL);
}

static void test_config_every_key_has_a_variable(void **state)
{
	char name[64], text[96], accepted[CONFIG_ACCEPTED_MAX];
	struct config config;

	for (int i = 0; i < CONFIG_N_KEYS; i++) {
		if (config_keys[i].kind == CONFIG_SOCKET || config_keys[i].kind == CONFIG_FOLDER)
			continue; /* take nearly any text */
		snprintf(name, sizeof(name), "MIMEO_%s", config_keys[i].name);
		for (char *at = name; *at; at++)
			*at = (char)toupper((unsigned char)*at);
		setenv(name, "?", 1);
		assert_int_equal(parse("--model m=d", &config), -EINVAL);
		snprintf(text, sizeof(text), "%s: \"?\" is not ", name);
		ASSERT_SENTENCES(text);
		assert_non_null(strstr(error.text, config_accepted(&config_keys[i], accepted, sizeof(accepted))));
		unsetenv(name);
	}
}

static void test_config_empty_variables_are_not_set(void **state)
{
	struct config config;

	setenv("MIMEO_MAX_REQUESTS", "", 1);
	assert_int_equal(parse("--model m=d", &config), 0);
	assert_int_equal(config.max_requests, 0);
	config_deinit(&config);
	without_environment(NULL);
}

static void test_config_variables_that_exclude_each_other_are_refused(void **state)
{
	struct config config;

	setenv("MIMEO_KV_PAGES", "1", 1);
	setenv("MIMEO_KV_BYTES", "1G", 1);
	assert_int_equal(parse("--model m=d", &config), -EINVAL);
	ASSERT_SENTENCES("MIMEO_KV_BYTES: kv_pages and kv_bytes exclude each other: "
			 "kv_pages is given by MIMEO_KV_PAGES");
	without_environment(NULL);
}

/* ---- the effective configuration ---- */

/* What --check-config prints (malloc). */
static char *check(const char *text, const char *line)
{
	char path[] = "/tmp/test_config.XXXXXX", *printed = NULL;
	struct config config;
	size_t size;
	FILE *out = open_memstream(&printed, &size);

	close(mkstemp(path));
	write_text(path, text);
	assert_int_equal(parse_with(line, path, out, &config), OPTIONS_CHECK);
	fclose(out);
	unlink(path);
	config_deinit(&config);
	return printed;
}

static void assert_line(const char *text, const char *key, const char *value, const char *origin)
{
	char begin[64];

	snprintf(begin, sizeof(begin), "\n%s = %s ", key, value);
	const char *at = strstr(text, begin);
	if (!at)
		fail_msg("no line \"%s\" in \"%s\"", begin + 1, text);
	const char *end = strchr(at + 1, '\n'), *found = strstr(at, origin);
	if (!found || found > end)
		fail_msg("\"%.*s\" lacks \"%s\"", (int)(end - at - 1), at + 1, origin);
}

static void test_config_check_prints_each_value_with_its_origin(void **state)
{
	setenv("MIMEO_MAX_SESSIONS", "9", 1);
	char *text = check("[mimeod]\nmax_requests = 7\nkv_bytes = 6K\n[model m]\ndir = d\nattention = naive\n"
			   "[model n]\ndir = e\n",
		"--check-config --spin-us forever --graph-mode n=none");

	assert_line(text, "max_requests", "7", ":2\n");
	assert_line(text, "max_sessions", "9", "# environment: MIMEO_MAX_SESSIONS\n");
	assert_line(text, "spin_us", "forever", "# command line: --spin-us\n");
	assert_line(text, "# page_tokens", "16", "# default\n");
	assert_non_null(strstr(text, "\n# memory: default: 90 % of what is free at start\n"));
	assert_line(strstr(text, "[model m]"), "dir", "d", ":5\n");
	assert_line(strstr(text, "[model m]"), "attention", "naive", ":6\n");
	assert_line(strstr(text, "[model m]"), "kv_bytes", "3K", ":3\n");
	assert_line(strstr(text, "[model n]"), "graph_mode", "NONE", "# command line: --graph-mode\n");
	free(text);
	without_environment(NULL);
}

static void test_config_check_prints_a_file_of_the_same_effect(void **state)
{
	char *first = check("[mimeod]\nweights = 1:2, @3:4\nmask = window:8+1\n[model m]\ndir = /a b\ndraft = d\n"
			    "draft_tokens = 3\n[model n]\ndir = e\nkv_pages = 5\n",
		"--check-config --kv-bytes m=3M --capture-sizes 1,2,4 --max-arena-bytes 64M");
	char *second = check(first, "--check-config");
	const char *at = first, *other = second;

	/* all but the origins */
	while (*at && *other) {
		size_t n = strcspn(at, "\n"), m = strcspn(other, "\n");
		const char *origin = strstr(at, "  # ");
		size_t length = origin && origin < at + n ? (size_t)(origin - at) : n;

		assert_memory_equal(at, other, length);
		at += n + 1;
		other += m + 1;
	}
	assert_true(!*at && !*other);
	free(first);
	free(second);
}

static void test_config_quotes_keep_spaces_and_comment_characters(void **state)
{
	struct config config;

	assert_int_equal(parse_file("[mimeod]\nmax_requests = \"7\" # seven\n[model m]\ndir=\" /a #b ;c\"\"d\" ; e\n", "",
				 &config), 0);
	assert_int_equal(config.max_requests, 7);
	assert_string_equal(config.models[0].dir, " /a #b ;c\"d");
	config_deinit(&config);
	assert_int_equal(parse_file("[model m]\ndir = \"a\n[model n]\ndir = \"b\" c\n", "", &config), -EINVAL);
	assert_non_null(strstr(error.text, ":2: a value in quotes"));
	assert_non_null(strstr(error.text, ":4: a value in quotes"));
}

static void test_config_check_quotes_what_a_file_would_cut(void **state)
{
	char file[1024], longer[512];

	memset(longer, 'l', 300);
	longer[300] = '\0';
	snprintf(file, sizeof(file), "[model m]\ndir = /a#b\n[model n]\ndir = \"/a #b\"\n[model o]\ndir = \"/%s\"\n"
		"[model p]\ndir = \"/a\f\"\n", longer);
	setenv("MIMEO_DRAFT", "/d \" #e", 1);
	char *text = check(file, "--check-config");

	assert_line(strstr(text, "[model m]"), "dir", "/a#b", ":2\n");
	assert_line(strstr(text, "[model m]"), "draft", "\"/d \"\" #e\"", "# environment: MIMEO_DRAFT\n");
	assert_line(strstr(text, "[model n]"), "dir", "\"/a #b\"", ":4\n");
	without_environment(NULL);
	char *again = check(text, "--check-config");
	assert_non_null(strstr(again, "\ndir = \"/a #b\" "));
	snprintf(file, sizeof(file), "\ndir = \"/%s\" ", longer);
	assert_non_null(strstr(again, file));
	assert_non_null(strstr(again, "\ndir = \"/a\f\" "));
	assert_non_null(strstr(again, "\ndraft = \"/d \"\" #e\" "));
	free(text);
	free(again);
}

static void test_config_check_prints_errors_only(void **state)
{
	char *printed = NULL;
	struct config config;
	size_t size;
	FILE *out = open_memstream(&printed, &size);

	assert_int_equal(parse_with("--check-config --max-requests 0 --model m", NULL, out, &config), -EINVAL);
	fclose(out);
	assert_int_equal(size, 0);
	ASSERT_SENTENCES("--max-requests: \"0\"", "--model: \"m\" is not NAME=DIR");
	free(printed);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_config_every_error_is_reported),
		cmocka_unit_test(test_config_refused_model_is_one_error),
		cmocka_unit_test(test_config_comments_follow_values),
		cmocka_unit_test(test_config_of_a_user_is_read_where_the_system_has_none),
		cmocka_unit_test(test_config_long_comments_are_no_long_lines),
		cmocka_unit_test(test_config_fragments_are_read_in_the_order_of_their_names),
		cmocka_unit_test(test_config_fragments_are_read_without_the_main_file),
		cmocka_unit_test(test_config_fragments_end_in_conf_and_are_not_hidden),
		cmocka_unit_test(test_config_fragments_name_themselves_in_errors),
		cmocka_unit_test(test_config_fragment_may_give_bytes_in_place_of_pages),
		cmocka_unit_test(test_config_fragment_for_all_models_leaves_a_models_own_value),
		cmocka_unit_test(test_config_environment_beats_files_and_the_command_line_beats_it),
		cmocka_unit_test(test_config_every_key_has_a_variable),
		cmocka_unit_test(test_config_empty_variables_are_not_set),
		cmocka_unit_test(test_config_variables_that_exclude_each_other_are_refused),
		cmocka_unit_test(test_config_check_prints_each_value_with_its_origin),
		cmocka_unit_test(test_config_check_prints_a_file_of_the_same_effect),
		cmocka_unit_test(test_config_quotes_keep_spaces_and_comment_characters),
		cmocka_unit_test(test_config_check_quotes_what_a_file_would_cut),
		cmocka_unit_test(test_config_check_prints_errors_only),
	};

	return cmocka_run_group_tests_name("config_places", tests, without_environment, NULL);
}
