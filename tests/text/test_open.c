/* SPDX-License-Identifier: MIT */

/* Opening a folder, a file, descriptors. */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/text/fixture.h"

static const char tokenizer[] =
	"{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":0},\"unk_token\":\"a\"}}";

static void put(const char *folder, const char *name, const char *content)
{
	char path[200];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	FILE *file = fopen(path, "w");
	assert_non_null(file);
	fputs(content, file);
	fclose(file);
}

static void remove_folder(const char *folder)
{
	char command[200];

	snprintf(command, sizeof(command), "rm -r '%s'", folder);
	assert_int_equal(system(command), 0);
}

static void test_folder_and_file(void **state)
{
	char folder[] = "/tmp/mimeo-text-XXXXXX", path[200], message[256] = "";
	struct mimeo_text *text;

	assert_non_null(mkdtemp(folder));
	put(folder, "tokenizer.json", tokenizer);
	assert_int_equal(mimeo_text_open(&text, folder, message, sizeof(message)), 0);
	mimeo_text_close(text);
	put(folder, "tokenizer_config.json", "{\"bos_token\":\"a\"}");
	assert_int_equal(mimeo_text_open(&text, folder, message, sizeof(message)), 0);
	mimeo_text_close(text);
	snprintf(path, sizeof(path), "%s/tokenizer.json", folder);
	assert_int_equal(mimeo_text_open(&text, path, message, sizeof(message)), 0);
	mimeo_text_close(text);
	remove_folder(folder);
}

static void test_failures_name_the_file(void **state)
{
	char folder[] = "/tmp/mimeo-text-XXXXXX", path[200], message[256] = "";
	struct mimeo_text *text = NULL;

	assert_non_null(mkdtemp(folder));
	assert_int_equal(mimeo_text_open(&text, folder, message, sizeof(message)), MIMEO_E_INVALID);
	assert_non_null(strstr(message, folder));
	assert_non_null(strstr(message, "tokenizer.json"));
	assert_non_null(strstr(message, strerror(ENOENT)));
	put(folder, "tokenizer.json", "{\"model\":{\"type\":\"Markov\"}}");
	assert_int_equal(
		mimeo_text_open(&text, folder, message, sizeof(message)), MIMEO_E_UNSUPPORTED);
	assert_non_null(strstr(message, folder));
	assert_non_null(strstr(message, "Markov"));
	/* a pipe would block its reader */
	snprintf(path, sizeof(path), "%s/pipe", folder);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(mimeo_text_open(&text, path, message, sizeof(message)), MIMEO_E_INVALID);
	assert_non_null(strstr(message, "regular file"));
	assert_null(text);
	remove_folder(folder);
}

static void test_descriptors_keep_their_offsets(void **state)
{
	struct mimeo_model_files files = MIMEO_MODEL_FILES_INIT;
	char message[256] = "";
	struct mimeo_text *text;

	files.tokenizer = fixture_file(tokenizer, strlen(tokenizer));
	assert_int_equal(lseek(files.tokenizer, 5, SEEK_SET), 5);
	assert_int_equal(mimeo_text_open_files(&text, &files, message, sizeof(message)), 0);
	assert_int_equal(lseek(files.tokenizer, 0, SEEK_CUR), 5);
	close(files.tokenizer);
	assert_int_equal(mimeo_text_id(text, "a"), 0);
	mimeo_text_close(text);
}

static void test_wrong_descriptors_are_refused(void **state)
{
	struct mimeo_model_files files = MIMEO_MODEL_FILES_INIT;
	char message[256] = "";
	struct mimeo_text *text = NULL;
	int pair[2];

	assert_int_equal(
		mimeo_text_open_files(&text, NULL, message, sizeof(message)), MIMEO_E_INVALID);
	assert_int_equal(
		mimeo_text_open_files(&text, &files, message, sizeof(message)), MIMEO_E_INVALID);
	assert_int_equal(pipe(pair), 0);
	files.tokenizer = pair[0];
	assert_int_equal(
		mimeo_text_open_files(&text, &files, message, sizeof(message)), MIMEO_E_INVALID);
	files.reserved = 3;
	assert_int_equal(
		mimeo_text_open_files(&text, &files, message, sizeof(message)), MIMEO_E_INVALID);
	files.reserved = -1;
	files.size = 4;
	assert_int_equal(
		mimeo_text_open_files(&text, &files, message, sizeof(message)), MIMEO_E_INVALID);
	close(pair[0]);
	close(pair[1]);
	/* a file that says it is too large is not read */
	files = (struct mimeo_model_files)MIMEO_MODEL_FILES_INIT;
	files.tokenizer = fixture_file("", 0);
	assert_int_equal(ftruncate(files.tokenizer, ((off_t)128 << 20) + 1), 0);
	assert_int_equal(
		mimeo_text_open_files(&text, &files, message, sizeof(message)), MIMEO_E_INVALID);
	assert_non_null(strstr(message, "the limit is"));
	close(files.tokenizer);
	mimeo_text_close(NULL);
}

static void test_chat_without_a_template_is_unsupported(void **state)
{
	struct mimeo_text *text = fixture_open_bytes();
	static const char chat[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}";
	char message[256] = "", *utf8;
	int32_t *ids;
	size_t n;

	assert_int_equal(
		mimeo_text_chat(text, chat, strlen(chat), &ids, &n, message, sizeof(message)),
		MIMEO_E_UNSUPPORTED);
	assert_non_null(strstr(message, "chat template"));
	assert_int_equal(mimeo_text_chat_render(text, chat, strlen(chat), &utf8, &n, NULL, 0),
		MIMEO_E_UNSUPPORTED);
	mimeo_text_close(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_folder_and_file),
		cmocka_unit_test(test_failures_name_the_file),
		cmocka_unit_test(test_descriptors_keep_their_offsets),
		cmocka_unit_test(test_wrong_descriptors_are_refused),
		cmocka_unit_test(test_chat_without_a_template_is_unsupported),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
