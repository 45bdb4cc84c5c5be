/* SPDX-License-Identifier: MIT */

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/output/log.h"

#define SECOND UINT64_C(1000000000)

/* The log goes into a pipe; what it wrote is read back. */
static int pipe_fds[2];

static int setup(void **state)
{
	unsetenv("JOURNAL_STREAM");
	if (pipe2(pipe_fds, O_CLOEXEC | O_NONBLOCK) < 0)
		return -1;
	log_open(pipe_fds[1]);
	log_set_level(LOG_LEVEL_INFO);
	return 0;
}

static int teardown(void **state)
{
	close(pipe_fds[0]);
	close(pipe_fds[1]);
	return 0;
}

static const char *written(void)
{
	static char text[65536];
	ssize_t n = read(pipe_fds[0], text, sizeof(text) - 1);

	text[n > 0 ? n : 0] = '\0';
	return text;
}

static const char *escaped(const char *text)
{
	static char result[256];

	log_escape(text, strlen(text), result, sizeof(result));
	return result;
}

static void test_log_line_carries_time_level_and_text(void **state)
{
	int year, month, day, hour, minute, second, ms;
	char level[16], rest[64];

	log_warn("session %u: %s", 7u, "odd");
	assert_int_equal(sscanf(written(), "%4d-%2d-%2d %2d:%2d:%2d.%3d %15[a-z]: %63[^\n]", &year,
				 &month, &day, &hour, &minute, &second, &ms, level, rest), 9);
	assert_string_equal(level, "warn");
	assert_string_equal(rest, "session 7: odd");
}

static void test_log_under_the_journal_has_priorities(void **state)
{
	static const struct {
		enum log_level level;
		const char *line;
	} table[] = {
		{ LOG_LEVEL_ERROR, "<3>x\n" },
		{ LOG_LEVEL_WARN, "<4>x\n" },
		{ LOG_LEVEL_INFO, "<6>x\n" },
		{ LOG_LEVEL_DEBUG, "<7>x\n" },
	};
	struct stat status;
	char stream[64];

	assert_int_equal(fstat(pipe_fds[1], &status), 0);
	snprintf(stream, sizeof(stream), "%ju:%ju", (uintmax_t)status.st_dev,
		(uintmax_t)status.st_ino);
	setenv("JOURNAL_STREAM", stream, 1);
	log_open(pipe_fds[1]);
	log_set_level(LOG_LEVEL_DEBUG);
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		log_at(table[i].level, "x");
		assert_string_equal(written(), table[i].line);
	}
}

static void test_log_of_another_journal_stream_has_times(void **state)
{
	setenv("JOURNAL_STREAM", "1:2", 1);
	log_open(pipe_fds[1]);
	log_info("x");
	assert_non_null(strstr(written(), " info: x\n"));
}

static void test_log_below_the_level_is_silent_and_evaluates_nothing(void **state)
{
	int n = 0;

	log_set_level(LOG_LEVEL_WARN);
	log_info("%d", ++n);
	assert_string_equal(written(), "");
	assert_int_equal(n, 0);
	log_error("%d", ++n);
	assert_non_null(strstr(written(), "error: 1\n"));
}

static void test_log_level_names_are_parsed_back(void **state)
{
	enum log_level level;

	for (int i = LOG_LEVEL_ERROR; i <= LOG_LEVEL_DEBUG; i++) {
		assert_int_equal(log_level_parse(log_level_name((enum log_level)i), &level), 0);
		assert_int_equal(level, i);
	}
	assert_int_equal(log_level_parse("verbose", &level), -EINVAL);
	assert_int_equal(log_level_parse("", &level), -EINVAL);
}

/* ---- forms ---- */

static const struct log_field fields[] = {
	{.name = "request", .kind = LOG_FIELD_COUNT, .count = 17},
	{.name = "client", .text = "a \"b\"\n<3>c"},
	{.name = "model", .text = "tinycalc"},
	{.name = "total_s", .kind = LOG_FIELD_SECONDS, .seconds = 1.5},
};

static void test_log_fields_stand_behind_a_text(void **state)
{
	log_write_fields(LOG_LEVEL_INFO, "request ended", fields, 4);
	assert_non_null(strstr(written(), " info: request ended request=17 client=\"a \\\"b\\\"\\\\n<3>c\" model=tinycalc "
		"total_s=1.500000\n"));
}

static void test_log_in_json_has_an_object_a_line(void **state)
{
	static char long_text[3 * LOG_LINE_MAX];
	const char *line;

	log_set_format(LOG_FORMAT_JSON);
	log_write_fields(LOG_LEVEL_WARN, "request ended", fields, 4);
	line = written();
	assert_int_equal(strncmp(line, "{\"time\":\"2", 10), 0);
	assert_string_equal(line + strlen("{\"time\":\"2000-01-01T00:00:00.000"),
		"Z\",\"level\":\"warn\",\"message\":\"request ended\",\"request\":17,"
		"\"client\":\"a \\\"b\\\"\\\\n<3>c\",\"model\":\"tinycalc\",\"total_s\":1.500000}\n");
	/* also where its text, or a field, is cut */
	memset(long_text, '\\', sizeof(long_text) - 1);
	log_info("%s", long_text);
	line = written();
	assert_true(strlen(line) <= LOG_LINE_MAX);
	assert_string_equal(line + strlen(line) - 3, "\"}\n");
	long_text[LOG_LINE_MAX / 2 - 40] = '\0';
	log_write_fields(LOG_LEVEL_INFO, long_text, fields, 4);
	line = written();
	assert_null(strstr(line, "\"client\""));
	assert_string_equal(line + strlen(line) - 2, "}\n");
}

static void test_log_fields_become_fields_of_the_journal(void **state)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char bytes[LOG_LINE_MAX + 1];

	snprintf(address.sun_path, sizeof(address.sun_path), "/tmp/mimeo-log-%d", (int)getpid());
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
	log_set_journal(address.sun_path);
	log_write_fields(LOG_LEVEL_INFO, "request ended", fields, 4);
	ssize_t n = recv(fd, bytes, sizeof(bytes) - 1, MSG_DONTWAIT);
	assert_true(n > 0);
	bytes[n] = '\0';
	assert_string_equal(bytes, "PRIORITY=6\nSYSLOG_IDENTIFIER=mimeod\nMESSAGE=request ended request=17 "
		"client=\"a \\\"b\\\"\\\\n<3>c\" model=tinycalc total_s=1.500000\nMIMEO_REQUEST=17\n"
		"MIMEO_CLIENT=a \"b\"\\n<3>c\nMIMEO_MODEL=tinycalc\nMIMEO_TOTAL_S=1.500000\n");
	/* A journal that is gone: the line goes to standard error. */
	close(fd);
	unlink(address.sun_path);
	log_write_fields(LOG_LEVEL_INFO, "request ended", fields, 1);
	assert_non_null(strstr(written(), "info: request ended request=17\n"));
	log_set_journal(NULL);
}

static void test_log_escapes_what_could_forge_or_drive(void **state)
{
	assert_string_equal(escaped("plain gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80"),
		"plain gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80");
	assert_string_equal(escaped("a\nb\tc\rd"), "a\\nb\\tc\\rd");
	assert_string_equal(escaped("\x1b[2J\x7f\x01"), "\\x1b[2J\\x7f\\x01");
	assert_string_equal(escaped("\xc2\x9b" "1m"), "\\xc2\\x9b1m");       /* C1: CSI */
	assert_string_equal(escaped("\xe2\x80\xae" "x"), "\\xe2\\x80\\xaex"); /* right-to-left */
	assert_string_equal(escaped("\xc0\xaf"), "\\xc0\\xaf");             /* overlong */
	assert_string_equal(escaped("\xed\xa0\x80"), "\\xed\\xa0\\x80");    /* surrogate */
	assert_string_equal(escaped("\xf5\x80\x80\x80"), "\\xf5\\x80\\x80\\x80");
	assert_string_equal(escaped("cut \xe2\x82"), "cut \\xe2\\x82");
}

static void test_log_escape_cuts_between_characters(void **state)
{
	char small[8];

	assert_int_equal(log_escape("\x1b\x1b", 2, small, sizeof(small)), 4);
	assert_string_equal(small, "\\x1b");
	assert_int_equal(log_escape("ab\0c", 4, small, sizeof(small)), 7);
	assert_string_equal(small, "ab\\x00c");
	assert_int_equal(log_escape("abc", 3, small, 1), 0);
	assert_string_equal(small, "");
}

static void test_log_message_is_one_line_whatever_is_in_it(void **state)
{
	static char long_text[3 * LOG_LINE_MAX];
	const char *line;

	log_info("name %s", "a\n<3>forged");
	line = written();
	assert_ptr_equal(strchr(line, '\n'), line + strlen(line) - 1);
	memset(long_text, '\x1b', sizeof(long_text) - 1);
	log_info("%s", long_text);
	line = written();
	assert_true(strlen(line) <= LOG_LINE_MAX);
	assert_ptr_equal(strchr(line, '\n'), line + strlen(line) - 1);
}

static void test_log_keeps_errno(void **state)
{
	log_open(-1);
	errno = EXDEV;
	log_info("nowhere");
	assert_int_equal(errno, EXDEV);
}

static void *write_many(void *userdata)
{
	for (int i = 0; i < 50; i++)
		log_info("thread %s writes a whole line", (const char *)userdata);
	return NULL;
}

static void test_log_lines_of_threads_stay_whole(void **state)
{
	pthread_t threads[4];
	const char *at;
	unsigned n = 0;

	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, write_many, (void *)"x"), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	for (at = written(); *at; at = strchr(at, '\n') + 1, n++) {
		const char *text = strstr(at, "info: thread x writes a whole line\n");

		assert_non_null(text);
		assert_int_equal(text - at, strlen("2000-01-01 00:00:00.000 "));
	}
	assert_int_equal(n, 200);
}

/* Blocking ends, as a supervisor's are: a line that waits for space would hang the test. */
static void test_log_into_a_full_pipe_loses_lines_and_counts_them(void **state)
{
	static char drain[1 << 20];
	int fds[2];

	for (int kind = 0; kind < 2; kind++) {
		assert_int_equal(kind ? socketpair(AF_UNIX, SOCK_STREAM, 0, fds) : pipe(fds), 0);
		log_open(fds[1]);
		alarm(20);
		for (int i = 0; i < 20000; i++)
			log_info("a line that nobody reads");
		alarm(0);
		assert_true(read(fds[0], drain, sizeof(drain) - 1) > 0);
		while (recv(fds[0], drain, sizeof(drain) - 1, MSG_DONTWAIT) > 0)
			continue;
		log_info("read again");
		ssize_t n = read(fds[0], drain, sizeof(drain) - 1);
		assert_true(n > 0);
		drain[n] = '\0';
		assert_non_null(strstr(drain, " lines of the log lost: nobody read them\n"));
		assert_non_null(strstr(drain, "info: read again\n"));
		close(fds[0]);
		close(fds[1]);
	}
}

static void test_log_limit_lets_n_a_second_through(void **state)
{
	struct log_limit limit = LOG_LIMIT(3);
	uint32_t dropped;

	for (int i = 0; i < 10; i++)
		assert_int_equal(log_limit_take(&limit, 5 * SECOND + (uint64_t)i, &dropped), i < 3);
	assert_false(log_limit_take(&limit, 6 * SECOND - 1, &dropped));
	assert_true(log_limit_take(&limit, 6 * SECOND, &dropped));
	assert_int_equal(dropped, 8);
	assert_true(log_limit_take(&limit, 6 * SECOND, &dropped));
	assert_int_equal(dropped, 0);
}

static void test_log_limited_says_how_many_it_dropped(void **state)
{
	struct log_limit limit = LOG_LIMIT(2);
	const char *text, *at;
	unsigned n = 0;

	/* The second may end between two messages; the budget then begins again, and only once. */
	for (int i = 0; i < 100; i++)
		log_limited(&limit, LOG_LEVEL_INFO, "flood");
	text = written();
	for (at = text; (at = strstr(at, "info: flood\n")); at++)
		n++;
	assert_in_range(n, 2, 4);
	limit.began_ns = 1; /* long ago */
	log_limited(&limit, LOG_LEVEL_INFO, "flood");
	if (n == 2)
		assert_non_null(strstr(written(), "info: 98 messages like the next one dropped\n"));
	else
		assert_non_null(strstr(text, "messages like the next one dropped\n"));
}

#define LOG_TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		LOG_TEST(test_log_line_carries_time_level_and_text),
		LOG_TEST(test_log_under_the_journal_has_priorities),
		LOG_TEST(test_log_of_another_journal_stream_has_times),
		LOG_TEST(test_log_below_the_level_is_silent_and_evaluates_nothing),
		LOG_TEST(test_log_level_names_are_parsed_back),
		LOG_TEST(test_log_fields_stand_behind_a_text),
		LOG_TEST(test_log_in_json_has_an_object_a_line),
		LOG_TEST(test_log_fields_become_fields_of_the_journal),
		LOG_TEST(test_log_escapes_what_could_forge_or_drive),
		LOG_TEST(test_log_escape_cuts_between_characters),
		LOG_TEST(test_log_message_is_one_line_whatever_is_in_it),
		LOG_TEST(test_log_keeps_errno),
		LOG_TEST(test_log_lines_of_threads_stay_whole),
		LOG_TEST(test_log_into_a_full_pipe_loses_lines_and_counts_them),
		LOG_TEST(test_log_limit_lets_n_a_second_through),
		LOG_TEST(test_log_limited_says_how_many_it_dropped),
	};

	return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
