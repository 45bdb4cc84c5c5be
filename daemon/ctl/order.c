/* SPDX-License-Identifier: MIT */
#include "daemon/ctl/order.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ipc/clock.h"

#define LOOK_MS 50

static size_t order_count(const struct answer *answer, const char *wanted)
{
	size_t n = 0;
	char state[32];

	for (size_t i = 0; i < answer->n_rows; i++) {
		answer_text(answer, i, "state", state, sizeof(state));
		n += strcmp(state, wanted) == 0;
	}
	return n;
}

bool order_failed(const struct answer *answer)
{
	return order_count(answer, "failed") > 0;
}

/* Orders that the engine has not started, and graphs that it is capturing or dropping. */
static int order_look(int fd, size_t *ret_n, struct answer **ret)
{
	CLEANUP(cleanup_answer) struct answer *status = NULL;

	int rc = ask_once(fd, &(struct ask){.op = "status"}, &status);
	if (rc < 0)
		return rc;
	rc = ask_once(fd, &(struct ask){.op = "graphs"}, ret);
	if (rc < 0)
		return rc;
	*ret_n = answer_count(status, 0, "graph_orders", 0) + order_count(*ret, "wanted") +
		order_count(*ret, "building") + order_count(*ret, "dropping");
	return 0;
}

int order_await(int fd, struct answer **ret)
{
	uint64_t end = clock_ns() + ORDER_WAIT_MS * UINT64_C(1000000);
	bool terminal = isatty(STDOUT_FILENO);

	for (;;) {
		CLEANUP(cleanup_answer) struct answer *answer = NULL;
		size_t n;

		int rc = order_look(fd, &n, &answer);
		if (rc < 0)
			return rc;
		bool late = clock_ns() >= end;

		if (terminal)
			printf(n ? "\rgraphs to be captured or dropped: %zu \033[K" : "\r\033[K", n);
		fflush(stdout);
		if (n == 0 || late) {
			*ret = STEAL(answer);
			return n ? -ETIMEDOUT : 0;
		}
		poll(NULL, 0, LOOK_MS);
	}
}
