/* SPDX-License-Identifier: MIT */
/* Who may look at the daemon without being its operator: the monitors' socket, and metrics over HTTP. */
#include "harness.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <mimeo/types.h>

static in_port_t port;

static void configure(struct harness *harness)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof(address);

	harness->options.monitored = true;
	harness->options.monitor_gid = getegid();
	harness->options.metrics_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	assert_true(harness->options.metrics_fd > 0);
	assert_int_equal(bind(harness->options.metrics_fd, (struct sockaddr *)&address, length), 0);
	assert_int_equal(listen(harness->options.metrics_fd, 16), 0);
	assert_int_equal(getsockname(harness->options.metrics_fd, (struct sockaddr *)&address, &length), 0);
	port = address.sin_port;
}

static int monitor_connect(const struct harness *harness)
{
	char path[SOCKET_PATH_MAX];

	assert_int_equal(socket_monitor_path(path, harness->socket), 0);
	int fd = socket_connect(path, PATIENCE_MS);
	assert_true(fd >= 0);
	return fd;
}

static struct answer *monitor_ask(const struct harness *harness, struct ask ask)
{
	struct answer *answer = NULL;
	int fd = monitor_connect(harness);

	assert_int_equal(ask_once(fd, &ask, &answer), 0);
	close(fd);
	return answer;
}

static void test_monitor_sees_all_listings(void **state)
{
	static const char *const ops[] = {
		"status", "sessions", "models", "graphs", "metrics", "requests", "pages", "limits"};

	for (size_t i = 0; i < ARRAY_SIZE(ops); i++) {
		struct answer *answer = monitor_ask(*state, (struct ask){.op = ops[i]});

		assert_int_equal(answer->status, 0);
		answer_free(answer);
	}
}

static void test_monitor_can_order_nothing(void **state)
{
	static const char *const ops[] = {"drain", "reload", "kill", "cancel", "drop_pages", "capture", "drop",
		"set", "trace", "load", "unload", "nonsense"};
	struct harness *harness = *state;
	struct engine_graphs_order last;

	for (size_t i = 0; i < ARRAY_SIZE(ops); i++) {
		struct answer *answer = monitor_ask(harness, (struct ask){.op = ops[i], .graph = "all", .session = 1,
			.has_session = true, .request = 7, .has_request = true});

		assert_int_equal(answer->status, MIMEO_E_DENIED);
		assert_non_null(strstr(answer->text, "takes no orders"));
		answer_free(answer);
	}
	assert_int_equal(fake_engine_orders(harness->engine, &last), 0);
	assert_int_equal(fake_engine_n_cancelled(harness->engine), 0);
	struct answer *answer = operator_ask(harness, "status", NULL);
	expect_text(answer, 0, "state", "serving");
	answer_free(answer);
}

static void test_monitors_socket_is_for_its_group(void **state)
{
	char path[SOCKET_PATH_MAX];
	struct stat st;

	assert_int_equal(socket_monitor_path(path, ((struct harness *)*state)->socket), 0);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0660);
	assert_int_equal(st.st_gid, getegid());
}

static void test_16_monitors_keep_no_operator_out(void **state)
{
	int fds[20];

	for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
		fds[i] = monitor_connect(*state);
	struct answer *answer = operator_ask(*state, "status", NULL);
	assert_int_equal(answer->status, 0);
	answer_free(answer);
	for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
		close(fds[i]);
}

/* ---- HTTP ---- */

/* The reply to the request, whole. */
static const char *http_ask(const char *request)
{
	static char reply[1 << 20];
	const struct sockaddr_in address = {
		.sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	size_t used = 0;
	ssize_t n;

	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(send(fd, request, strlen(request), MSG_NOSIGNAL), strlen(request));
	while ((n = recv(fd, reply + used, sizeof(reply) - 1 - used, 0)) > 0)
		used += (size_t)n;
	close(fd);
	reply[used] = '\0';
	return reply;
}

static bool is_of_process(const char *line)
{
	return strncmp(line, "process_", 8) == 0;
}

/* Line by line; what the process has used changes. */
static void assert_same_metrics(const char *text, const char *expected)
{
	while (*expected) {
		const size_t length = strcspn(expected, "\n") + 1;

		if (is_of_process(expected)) {
			assert_true(is_of_process(text));
			assert_memory_equal(text, expected, strcspn(expected, " "));
		} else if (strncmp(text, expected, length) != 0) {
			fail_msg("not %.*s", (int)length, expected);
		}
		text = strchr(text, '\n') + 1;
		expected += length;
	}
	assert_string_equal(text, "");
}

static void test_http_serves_the_metrics(void **state)
{
	const char *reply = http_ask("GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
	struct answer *answer = operator_ask(*state, "metrics", NULL);

	assert_memory_equal(reply, "HTTP/1.1 200 ", 13);
	assert_non_null(strstr(reply, "text/plain; version=0.0.4"));
	assert_non_null(strstr(reply, "\r\n\r\n# HELP mimeo_build_info "));
	assert_same_metrics(strstr(reply, "\r\n\r\n") + 4, answer->text);
	answer_free(answer);
}

static void test_http_serves_nothing_else(void **state)
{
	assert_memory_equal(http_ask("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"), "HTTP/1.1 404 ", 13);
	assert_memory_equal(
		http_ask("POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
		"HTTP/1.1 405 ", 13);
}

#define monitored(test) harness_test_with(test, configure)

int main(void)
{
	const struct CMUnitTest tests[] = {
		monitored(test_monitor_sees_all_listings),
		monitored(test_monitor_can_order_nothing),
		monitored(test_monitors_socket_is_for_its_group),
		monitored(test_16_monitors_keep_no_operator_out),
		monitored(test_http_serves_the_metrics),
		monitored(test_http_serves_nothing_else),
	};

	return cmocka_run_group_tests_name("monitor", tests, NULL, NULL);
}
