/* SPDX-License-Identifier: MIT */
#include "daemon/bench/crowd.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/bench/client.h"

int crowd_init(struct crowd *crowd, uint32_t n, uint32_t tokens)
{
	bool ok = true;

	*crowd = (struct crowd){.n = n, .tokens = tokens};
	for (uint32_t i = 0; i < n; i++) {
		crowd->at[i] = samples_new(tokens);
		crowd->each[i] = samples_new(tokens);
		ok = ok && crowd->at[i] && crowd->each[i];
	}
	return ok ? 0 : -ENOMEM;
}

void crowd_deinit(struct crowd *crowd)
{
	for (uint32_t i = 0; i < crowd->n; i++) {
		samples_free(crowd->each[i]);
		samples_free(crowd->at[i]);
	}
	crowd->n = 0;
}

int crowd_target(const struct bench_options *options, struct target *ret)
{
	uint32_t most = 1;

	for (uint32_t i = 0; i < options->n_processes; i++)
		most = options->processes[i] > most ? options->processes[i] : most;
	return target_open(options,
		&(struct spawn_needs){
			.kv_pages = most * client_pages(options->prompt, options->tokens),
			.max_requests = BENCH_PROCESSES_MAX,
			.spin_us = options->spin_us,
		},
		ret);
}

/* ---- a client ---- */

struct crowd_work {
	const struct bench_options *options;
	const struct target *target;
	struct crowd *crowd;
	int go[2]; /* a pipe; its end is the start */
	uint32_t index;
};

/* Take what there is now that something is: 1 when the last token is among it. */
static int take_all(struct mimeo *m, uint32_t *ret_tokens)
{
	struct mimeo_event event;
	int r = client_next(m, &event);

	*ret_tokens = 0;
	while (r == 0) {
		bool last = event.kind == MIMEO_EVENT_FINAL;

		*ret_tokens += event.n_tokens;
		mimeo_event_seen(m, &event);
		if (last)
			return 1;
		if (mimeo_event_peek(m, &event) <= 0)
			break;
		if (event.status < 0)
			r = event.status;
	}
	return r;
}

static int stream(
	const struct crowd_work *work, const struct crowd_request *request, struct mimeo *m)
{
	struct samples *at = work->crowd->at[work->index], *each = work->crowd->each[work->index];
	uint64_t before = 0;
	uint32_t n_tokens, n_all = 0;
	int r = 0;

	while (r == 0) {
		r = take_all(m, &n_tokens);
		uint64_t now = stats_now();
		for (uint32_t i = 0; i < n_tokens; i++) {
			samples_add(at, now);
			if (before) /* the first token has the prompt in it */
				samples_add(each, (now - before) / n_tokens);
		}
		if (n_tokens > 0)
			before = now;
		n_all += n_tokens;
	}
	if (r > 0 && n_all < request->tokens) {
		fprintf(stderr,
			"mimeo-bench: the model's length leaves room for %u tokens, not %u\n",
			n_all, request->tokens);
		return -ERANGE;
	}
	return r < 0 ? r : 0;
}

static int ask_all(const struct crowd_work *work, struct mimeo *m)
{
	const struct bench_options *o = work->options;
	const struct crowd *crowd = work->crowd;
	const struct crowd_request one = {o->prompt, o->tokens}, *requests = &one;
	uint32_t n = crowd->requests ? crowd->n_requests : 1;
	int r = 0;

	if (crowd->requests)
		requests = crowd->requests + (size_t)work->index * n;
	for (uint32_t i = 0; i < n && r == 0; i++) {
		r = client_generate_text(m, o->model_name, o->text, requests[i].prompt,
			requests[i].tokens);
		if (r == 0)
			r = stream(work, &requests[i], m);
	}
	return r;
}

static int client(void *arg, int fd)
{
	const struct crowd_work *work = arg;
	struct mimeo *m;
	char byte;

	close(work->go[1]);
	if (client_connect(&m, work->target->socket, MIMEO_SPIN_DEFAULT) < 0)
		return 1;
	if (write(fd, "", 1) != 1 || read(work->go[0], &byte, 1) != 0)
		return 1;
	int r = ask_all(work, m);
	mimeo_close(m);
	return r < 0;
}

/* ---- N of them ---- */

static void close_end(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static int start_all(struct crowd_work *work, struct child *children, uint64_t deadline)
{
	int r = 0;

	for (work->index = 0; work->index < work->crowd->n && r == 0; work->index++)
		r = child_start(&children[work->index], client, work);
	for (uint32_t i = 0; i < work->crowd->n && r == 0; i++) {
		r = child_next(&children[i], deadline);
		r = r == 1 ? 0 : r == 0 ? -ECHILD : r;
	}
	return r;
}

int crowd_run(struct crowd *crowd, const struct bench_options *options, const struct target *target)
{
	struct crowd_work work = {.options = options, .target = target, .crowd = crowd};
	struct child children[BENCH_PROCESSES_MAX] = {0};
	uint64_t deadline = stats_now() + options->timeout_s * 1000000000ull;

	if (pipe2(work.go, 0) < 0)
		return -errno;
	int r = start_all(&work, children, deadline);
	uint64_t start = stats_now();
	close_end(&work.go[1]);
	for (uint32_t i = 0; i < crowd->n && r == 0; i++)
		r = child_wait(&children[i], deadline);
	crowd->ns = stats_now() - start;
	for (uint32_t i = 0; i < crowd->n; i++)
		child_kill(&children[i]);
	close_end(&work.go[0]);
	if (r < 0 && r != -EINTR)
		fprintf(stderr, "mimeo-bench: %u processes: %s\n", crowd->n,
			r == -ECHILD || r == -EFAULT ? "one of them failed" : strerror(-r));
	return r;
}

double crowd_steady_rate(const struct crowd *crowd)
{
	uint64_t from = 0, to = UINT64_MAX, n = 0;

	for (uint32_t i = 0; i < crowd->n; i++) {
		const struct samples *at = crowd->at[i];

		if (at->n == 0)
			return NAN;
		from = at->ns[0] > from ? at->ns[0] : from;
		to = at->ns[at->n - 1] < to ? at->ns[at->n - 1] : to;
	}
	if (to <= from)
		return NAN;
	for (uint32_t i = 0; i < crowd->n; i++)
		for (uint32_t j = 0; j < crowd->at[i]->n; j++)
			n += crowd->at[i]->ns[j] > from && crowd->at[i]->ns[j] <= to;
	return (double)n / ((double)(to - from) * 1e-9);
}
