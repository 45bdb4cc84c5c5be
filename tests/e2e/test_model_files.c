/* SPDX-License-Identifier: MIT */
/* A model's files, for clients that may not read its folder. */
#include <sys/stat.h>
#include <sys/wait.h>

#include <mimeo/mimeo.h>

#include "tests/e2e/daemon.h"

#define OTHER_USER 1001u
#define TOKENIZER "{\"version\": \"1.0\"}"

static char folder[96], model_option[128];

/* A daemon whose model lies in a folder of its own, linked to the shipped one, with a tokenizer. */
static int start(void **state)
{
	static const char *const linked[] = {"config.json", "model.safetensors"};
	struct daemon *daemon = &group_daemon;
	char path[256], below[128];

	daemon_init(daemon);
	snprintf(folder, sizeof(folder), "%.80s/model", daemon->folder);
	assert_int_equal(mkdir(folder, 0700), 0);
	for (unsigned i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%s/%s", folder, linked[i]);
		snprintf(below, sizeof(below), "examples/models/tinycalc/%s", linked[i]);
		assert_int_equal(symlink(source_path(below), path), 0);
	}
	snprintf(path, sizeof(path), "%s/tokenizer.json", folder);
	file_write(path, TOKENIZER, strlen(TOKENIZER));
	snprintf(path, sizeof(path), "%s/chat_template.jinja", folder);
	assert_int_equal(mkfifo(path, 0600), 0);
	snprintf(model_option, sizeof(model_option), "own=%s", folder);
	daemon_option(daemon, "--model", model_option);
	return 0;
}

static void remove_template(void)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/chat_template.jinja", folder);
	assert_int_equal(unlink(path), 0);
}

static int end(void **state)
{
	daemon_deinit(&group_daemon);
	return 0;
}

static uint32_t model_named(struct mimeo *m, const char *name)
{
	int index = mimeo_model_find(m, name);

	CHILD_EXPECT(index >= 0);
	return (uint32_t)index;
}

/* In a child: the file comes, and cannot be written. */
static int read_files(void *arg)
{
	struct mimeo_model_files files = MIMEO_MODEL_FILES_INIT;
	char bytes[64];

	if (geteuid() == 0) {
		CHILD_EXPECT(setresgid(OTHER_USER, OTHER_USER, OTHER_USER) == 0);
		CHILD_EXPECT(setresuid(OTHER_USER, OTHER_USER, OTHER_USER) == 0);
		CHILD_EXPECT(access(folder, R_OK) < 0);
	}
	struct mimeo *m = daemon_connect_child(&group_daemon, MIMEO_SPIN_DEFAULT);
	CHILD_EXPECT(mimeo_model_files(m, model_named(m, "own"), &files) == 0);
	CHILD_EXPECT(files.config == -1 && files.chat_template == -1);
	CHILD_EXPECT(pread(files.tokenizer, bytes, sizeof(bytes), 0) == (ssize_t)strlen(TOKENIZER));
	CHILD_EXPECT(memcmp(bytes, TOKENIZER, strlen(TOKENIZER)) == 0);
	CHILD_EXPECT(pwrite(files.tokenizer, "x", 1, 0) < 0);
	CHILD_EXPECT(close(files.tokenizer) == 0);
	/* The shipped model has no tokenizer. */
	CHILD_EXPECT(mimeo_model_files(m, model_named(m, test_model()), &files) == 0);
	CHILD_EXPECT(files.tokenizer == -1 && files.config == -1 && files.chat_template == -1);
	mimeo_close(m);
	return 0;
}

static void test_file_that_is_no_regular_one_leaves_the_model_without_files(void **state)
{
	struct mimeo_model_files files = MIMEO_MODEL_FILES_INIT;

	daemon_start(&group_daemon);
	struct mimeo *m = daemon_connect(&group_daemon, 0, 0);
	assert_int_equal(mimeo_model_files(m, model_named(m, "own"), &files), 0);
	assert_int_equal(files.tokenizer, -1);
	assert_true(daemon_log_has(&group_daemon, "chat_template.jinja: is not a regular file"));
	mimeo_close(m);
	daemon_stop(&group_daemon);
}

static void test_client_without_rights_on_the_folder_reads_the_files(void **state)
{
	remove_template();
	daemon_start(&group_daemon);
	assert_int_equal(chmod(group_daemon.folder, 0711), 0);
	assert_int_equal(chmod(group_daemon.socket, 0666), 0);
	const struct holdings before = daemon_holdings(&group_daemon);
	assert_int_equal(process_exit_status(process_run(read_files, NULL), PATIENCE_MS), 0);
	daemon_assert_settles(&group_daemon, &before);
}

static void test_any_number_of_calls_holds_no_descriptor_in_the_daemon(void **state)
{
	const struct holdings before = daemon_holdings(&group_daemon);
	struct mimeo *m = daemon_connect(&group_daemon, 0, 0);

	for (int i = 0; i < 1000; i++) {
		struct mimeo_model_files files = MIMEO_MODEL_FILES_INIT;

		assert_int_equal(mimeo_model_files(m, model_named(m, "own"), &files), 0);
		assert_int_equal(close(files.tokenizer), 0);
	}
	mimeo_close(m);
	daemon_assert_settles(&group_daemon, &before);
	daemon_stop(&group_daemon);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_file_that_is_no_regular_one_leaves_the_model_without_files),
		cmocka_unit_test(test_client_without_rights_on_the_folder_reads_the_files),
		cmocka_unit_test(test_any_number_of_calls_holds_no_descriptor_in_the_daemon),
	};

	watchdog(WATCHDOG_SECONDS);
	return cmocka_run_group_tests_name("model_files", tests, start, end);
}
