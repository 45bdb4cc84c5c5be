/* SPDX-License-Identifier: MIT */
#include "tests/bench/stream.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "daemon/bench/bench_client.h"

#define BEGUN_AT 4u /* tokens */

struct streaming {
	const struct bench_options *options;
	const struct target *target;
};

static int stream_child(void *arg, int fd)
{
	const struct streaming *stream = arg;
	const struct client_prompt prompt = {.model = stream->options->model_name,
		.n_prompt = CLIENT_PROMPT_TOKENS,
		.n_tokens = STREAM_TOKENS};
	struct mimeo_event event;
	bool begun = false;
	struct mimeo *m;

	if (client_connect(&m, stream->target->socket, MIMEO_SPIN_DEFAULT) < 0)
		return 1;
	while (client_generate(m, &prompt) == 0) {
		bool last = false;

		while (!last && client_next(m, &event) == 0) {
			if (!begun && event.n_generated >= BEGUN_AT)
				begun = write(fd, "", 1) == 1;
			last = event.kind == MIMEO_EVENT_FINAL;
			mimeo_event_seen(m, &event);
		}
		if (!last)
			break;
	}
	return 1; /* it has said why */
}

int stream_start(
	struct child *ret, const struct bench_options *options, const struct target *target)
{
	struct streaming stream = {options, target};
	int rc = child_start(ret, stream_child, &stream);

	if (rc == 0)
		rc = child_next(ret, clock_ns() + options->timeout_s * 1000000000ull);
	if (rc == 1)
		return 0;
	rc = rc == 0 ? -ECHILD : rc;
	return rc == -EINTR ? rc : bench_fail(rc, "a client that generates: %s",
		rc == -ECHILD || rc == -EFAULT ? "it ended" : strerror(-rc));
}
