/* SPDX-License-Identifier: MIT */
#include "daemon/ctl/order.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ipc/clock.h"

#define LOOK_MS 50

static size_t count_moving(const struct answer *answer)
{
	static const char *const moving[] = {"wanted", "building", "dropping"};
	size_t n = 0;
	char state[32];

	for (size_t i = 0; i < answer->n_rows; i++) {
		answer_text(answer, i, "state", state, sizeof(state));
		for (size_t j = 0; j < sizeof(moving) / sizeof(moving[0]); j++)
			n += strcmp(state, moving[j]) == 0;
	}
	return n;
}

int order_await(int fd, struct answer **ret)
{
	uint64_t end = clock_ns() + ORDER_WAIT_MS * UINT64_C(1000000);
	bool terminal = isatty(STDOUT_FILENO);

	for (;;) {
		struct answer *answer;
		int r = ask_send(fd, &(struct ask){.op = "graphs"});

		if (r == 0)
			r = ask_receive(fd, &answer);
		if (r < 0)
			return r;
		size_t n = count_moving(answer);
		bool late = clock_ns() >= end;

		if (terminal)
			printf(n ? "\rgraphs still to be captured or dropped: %zu \033[K" : "\r\033[K", n);
		fflush(stdout);
		if (n == 0 || late) {
			*ret = answer;
			return n ? -ETIMEDOUT : 0;
		}
		answer_free(answer);
		poll(NULL, 0, LOOK_MS);
	}
}
