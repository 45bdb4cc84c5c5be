/* SPDX-License-Identifier: MIT */
/* What a service manager's watchdog gets. */
#include "harness.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define PERIOD_MS 20u

static int notices = -1;
static struct sockaddr_un address = {.sun_family = AF_UNIX};

static void configure_watched(struct harness *harness)
{
	char us[16];

	notices = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/notify", harness->folder);
	assert_int_equal(bind(notices, (struct sockaddr *)&address, sizeof(address)), 0);
	setenv("NOTIFY_SOCKET", address.sun_path, 1);
	snprintf(us, sizeof(us), "%u", PERIOD_MS * 1000);
	setenv("WATCHDOG_USEC", us, 1);
}

/* Is there a report within the time? Other messages are dropped. */
static bool reported(unsigned timeout_ms)
{
	struct pollfd readable = {.fd = notices, .events = POLLIN};
	char message[512];

	while (poll(&readable, 1, (int)timeout_ms) > 0) {
		ssize_t n = recv(notices, message, sizeof(message) - 1, 0);

		message[n > 0 ? n : 0] = '\0';
		if (strcmp(message, "WATCHDOG=1") == 0)
			return true;
	}
	return false;
}

static void forget(void)
{
	unsetenv("NOTIFY_SOCKET");
	unsetenv("WATCHDOG_USEC");
	close(notices);
	unlink(address.sun_path);
}

static void test_watchdog_gets_reports_while_the_engine_takes_turns(void **state)
{
	for (int i = 0; i < 5; i++)
		assert_true(reported(PATIENCE_MS));
	forget();
}

static void test_watchdog_gets_no_report_of_an_engine_that_hangs(void **state)
{
	struct harness *harness = *state;
	unsigned n = 0;

	assert_true(reported(PATIENCE_MS));
	fake_engine_hang(harness->engine);
	while (n < 1000 && reported(10 * PERIOD_MS))
		n++;
	/* those that were sent before it hung, and at most one behind the last ping that was answered */
	assert_in_range(n, 0, 999);
	answer_free(operator_ask(harness, "status", NULL)); /* the loop thread goes on */
	forget();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		harness_test_with(test_watchdog_gets_reports_while_the_engine_takes_turns, configure_watched),
		harness_test_with(test_watchdog_gets_no_report_of_an_engine_that_hangs, configure_watched),
	};

	return cmocka_run_group_tests_name("serve-watchdog", tests, NULL, NULL);
}
