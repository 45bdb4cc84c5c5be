/* SPDX-License-Identifier: MIT */
#include "daemon/ctl/order.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ipc/clock.h"

#define LOOK_MS 50

static size_t count_in(const struct answer *answer, const char *wanted)
{
	size_t n = 0;
	char state[32];

	for (size_t i = 0; i < answer->n_rows; i++) {
		answer_text(answer, i, "state", state, sizeof(state));
		n += strcmp(state, wanted) == 0;
	}
	return n;
}

static size_t count_moving(const struct answer *answer)
{
	return count_in(answer, "wanted") + count_in(answer, "building") +
		count_in(answer, "dropping");
}

bool order_failed(const struct answer *answer)
{
	return count_in(answer, "failed") > 0;
}

static int take(int fd, const char *op, struct answer **ret)
{
	int r = ask_send(fd, &(struct ask){.op = op});

	return r < 0 ? r : ask_receive(fd, ret);
}

/* Orders that the engine has not come to; then what is in motion is not all that will be. */
static int count_orders(int fd, size_t *ret)
{
	struct answer *status;
	int r = take(fd, "status", &status);

	if (r < 0)
		return r;
	*ret = answer_count(status, 0, "graph_orders", 0);
	answer_free(status);
	return 0;
}

int order_await(int fd, struct answer **ret)
{
	uint64_t end = clock_ns() + ORDER_WAIT_MS * UINT64_C(1000000);
	bool terminal = isatty(STDOUT_FILENO);

	for (;;) {
		struct answer *answer;
		size_t n_orders = 0;
		int r = count_orders(fd, &n_orders);

		if (r == 0)
			r = take(fd, "graphs", &answer);
		if (r < 0)
			return r;
		size_t n = n_orders + count_moving(answer);
		bool late = clock_ns() >= end;

		if (terminal)
			printf(n ? "\rgraphs to be captured or dropped: %zu \033[K" : "\r\033[K", n);
		fflush(stdout);
		if (n == 0 || late) {
			*ret = answer;
			return n ? -ETIMEDOUT : 0;
		}
		answer_free(answer);
		poll(NULL, 0, LOOK_MS);
	}
}
