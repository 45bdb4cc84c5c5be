/* SPDX-License-Identifier: MIT */
/* Copies of the files that make text of a model's tokens. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "daemon/model/text_files.h"
#include "tests/model/fixture.h"

static void expect_text(int fd, const char *text)
{
	char bytes[64];
	ssize_t n = pread(fd, bytes, sizeof(bytes), 0);

	assert_int_equal(n, strlen(text));
	assert_memory_equal(bytes, text, (size_t)n);
}

static struct mimeo_model_files *load(const struct scratch *scratch)
{
	struct mimeo_model_files *files = NULL;
	struct model_error error = {.text = ""};
	int rc = text_files_load(scratch->directory, &files, &error);

	if (rc)
		fail_msg("%d: %s", rc, error.text);
	return files;
}

static void test_each_file_is_copied_to_its_descriptor(void **state)
{
	scratch_text(*state, "tokenizer.json", "{\"t\": 1}");
	scratch_text(*state, "tokenizer_config.json", "{}");
	scratch_text(*state, "chat_template.jinja", "hello");
	struct mimeo_model_files *files = load(*state);
	expect_text(files->tokenizer, "{\"t\": 1}");
	expect_text(files->config, "{}");
	expect_text(files->chat_template, "hello");
	assert_int_equal(fcntl(files->tokenizer, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
	text_files_free(files);
}

static void test_absent_file_has_no_descriptor(void **state)
{
	scratch_text(*state, "chat_template.jinja", "");
	struct mimeo_model_files *files = load(*state);
	assert_int_equal(files->tokenizer, -1);
	assert_int_equal(files->config, -1);
	expect_text(files->chat_template, "");
	text_files_free(files);
}

static void test_copy_cannot_be_changed(void **state)
{
	char path[64];

	scratch_text(*state, "tokenizer.json", "{}");
	struct mimeo_model_files *files = load(*state);
	assert_int_equal(pwrite(files->tokenizer, "x", 1, 0), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(ftruncate(files->tokenizer, 0), -1);
	assert_ptr_equal(mmap(NULL, 2, PROT_READ | PROT_WRITE, MAP_SHARED, files->tokenizer, 0), MAP_FAILED);
	/* Nor through another description of it. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", files->tokenizer);
	CLEANUP(cleanup_close) int again = open(path, O_RDWR | O_CLOEXEC);
	if (again >= 0)
		assert_int_equal(write(again, "x", 1), -1);
	expect_text(files->tokenizer, "{}");
	text_files_free(files);
}

static void test_copy_stays_when_the_file_is_edited(void **state)
{
	scratch_text(*state, "tokenizer.json", "old");
	struct mimeo_model_files *files = load(*state);
	scratch_text(*state, "tokenizer.json", "new!");
	expect_text(files->tokenizer, "old");
	text_files_free(files);
}

static void expect_refused(const struct scratch *scratch, int status, const char *why)
{
	struct mimeo_model_files *files = NULL;
	struct model_error error = {.text = ""};

	assert_int_equal(text_files_load(scratch->directory, &files, &error), status);
	assert_null(files);
	if (!strstr(error.text, why) || !strstr(error.text, scratch->directory))
		fail_msg("\"%s\" does not say \"%s\"", error.text, why);
}

static void test_what_is_no_regular_file_is_refused(void **state)
{
	char path[256];

	scratch_text(*state, "tokenizer.json", "{}");
	scratch_path(*state, "chat_template.jinja", path);
	assert_int_equal(mkfifo(path, 0600), 0);
	expect_refused(*state, -EINVAL, "chat_template.jinja: is not a regular file");
}

static void test_file_above_its_limit_is_refused(void **state)
{
	char path[256];

	scratch_text(*state, "tokenizer.json", "{}");
	scratch_text(*state, "chat_template.jinja", "");
	scratch_path(*state, "chat_template.jinja", path);
	assert_int_equal(truncate(path, TEXT_FILES_TEMPLATE_MAX), 0);
	text_files_free(load(*state));
	assert_int_equal(truncate(path, TEXT_FILES_TEMPLATE_MAX + 1), 0);
	expect_refused(*state, -EFBIG, "exceed the limit");
}

static void test_directory_that_is_none_is_refused(void **state)
{
	struct scratch absent = *(struct scratch *)*state;

	strcat(absent.directory, "-no");
	expect_refused(&absent, -ENOENT, "cannot be opened as a directory");
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		scratch_test(test_each_file_is_copied_to_its_descriptor),
		scratch_test(test_absent_file_has_no_descriptor),
		scratch_test(test_copy_cannot_be_changed),
		scratch_test(test_copy_stays_when_the_file_is_edited),
		scratch_test(test_what_is_no_regular_file_is_refused),
		scratch_test(test_file_above_its_limit_is_refused),
		scratch_test(test_directory_that_is_none_is_refused),
	};

	return cmocka_run_group_tests_name("text_files", tests, NULL, NULL);
}
