/* SPDX-License-Identifier: MIT */
#include "tests/bench/capture_late.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/bench/client.h"
#include "daemon/bench/stats.h"
#include "daemon/ctl/order.h"

#define STREAM_TOKENS 256u /* of a request; another follows */
#define BEGUN_AT 8u

struct stream {
	const struct bench_options *options;
	const struct target *target;
};

/* Streams until it is killed; says so once it is in the middle. */
static int run_stream(void *arg, int fd)
{
	const struct stream *stream = arg;
	struct mimeo_event event;
	bool told = false;
	struct mimeo *m;

	if (client_connect(&m, stream->target->socket, MIMEO_SPIN_DEFAULT) < 0)
		return 1;
	while (client_generate(m, stream->options->model_name, CLIENT_PROMPT_TOKENS,
		       STREAM_TOKENS) == 0) {
		bool last = false;

		while (!last && client_next(m, &event) == 0) {
			if (!told && event.n_generated >= BEGUN_AT)
				told = write(fd, "", 1) == 1;
			last = event.kind == MIMEO_EVENT_FINAL;
			mimeo_event_seen(m, &event);
		}
		if (!last)
			break;
	}
	return 1; /* it has told why */
}

static int order(const struct target *target, const char *op)
{
	struct answer *answer;
	int r = ask_send(target->admin, &(struct ask){.op = op, .graph = "all"});

	if (r == 0)
		r = ask_receive(target->admin, &answer);
	if (r < 0)
		return r;
	r = answer->status < 0 ? -EPROTO : 0;
	answer_free(answer);
	if (r == 0)
		r = order_await(target->admin, &answer);
	if (r == 0 || r == -ETIMEDOUT)
		answer_free(answer);
	/* The stream wants again what is dropped, and that may go on. */
	return r == -ETIMEDOUT ? 0 : r;
}

static int take_counters(const struct target *target, struct capture_late *ret)
{
	struct answer *status, *metrics;
	int r = target_ask(target, "status", &status);

	if (r < 0)
		return r;
	*ret = (struct capture_late){
		.n = answer_count(status, 0, "late_captures", 0),
		.gap_seconds = answer_number(status, 0, "late_gap_s"),
	};
	answer_free(status);
	r = target_ask(target, "metrics", &metrics);
	if (r < 0)
		return r;
	if (ret->n)
		ret->turn_seconds =
			(double)answer_metric(metrics, "mimeo_late_capture_nanoseconds_total") *
			1e-9 / (double)ret->n;
	answer_free(metrics);
	return 0;
}

int capture_late_measure(const struct bench_options *options, const struct target *target,
	struct capture_late *ret)
{
	struct stream stream = {options, target};
	struct child child = {.pid = 0};
	int r = child_start(&child, run_stream, &stream);

	if (r == 0)
		r = child_next(&child, stats_now() + options->timeout_s * UINT64_C(1000000000));
	if (r == 1)
		r = order(target, "drop");
	else if (r == 0)
		r = -ECHILD;
	if (r == 0)
		r = order(target, "capture");
	if (r == 0)
		r = take_counters(target, ret);
	child_kill(&child);
	if (r < 0)
		fprintf(stderr, "mimeo-bench: captures while serving: %s\n", strerror(-r));
	return r;
}
