/* SPDX-License-Identifier: MIT */
#include "daemon/bench/served.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "daemon/bench/bench_client.h"

#define IN_FLIGHT_MAX 64u

/* Concurrent requests of a process. */
static uint32_t served_in_flight(const struct bench_options *options)
{
	return options->in_flight ? options->in_flight : 1;
}

static uint32_t clients_between(uint64_t *state, uint32_t least, uint32_t most)
{
	assert(least <= most);
	return least + stats_random(state) % (most - least + 1);
}

/* Make the requests of n processes, with random lengths from the seed: the same lengths for every number of
 * processes and in every run. 0 or -ENOMEM; must be deinitialised even if it fails. */
static int clients_init(struct clients *ret, const struct bench_options *o, uint32_t n)
{
	uint32_t n_requests = o->requests ? o->requests : 1, n_tokens = n_requests * o->tokens;
	uint64_t state = 0x9e3779b97f4a7c15ull ^ o->seed;

	assert(n <= BENCH_PROCESSES_MAX);
	*ret = (struct clients){.n = n, .n_requests = n_requests, .in_flight = served_in_flight(o)};
	ret->requests = calloc((size_t)n * n_requests, sizeof(*ret->requests));
	if (!ret->requests)
		return -ENOMEM;
	for (uint32_t i = 0; i < n * n_requests; i++) {
		struct clients_request *request = &ret->requests[i];

		request->prompt = clients_between(&state, o->prompt_least, o->prompt);
		request->tokens = clients_between(&state, o->tokens_least, o->tokens);
		ret->n_prompt_tokens += request->prompt;
		ret->n_tokens += request->tokens;
	}
	ret->first = samples_new(n * n_requests);
	ret->between = samples_new(n * n_tokens);
	int rc = samples_make(ret->at, n, n_tokens);
	return ret->first && ret->between ? rc : -ENOMEM;
}

static void clients_deinit(struct clients *clients)
{
	for (uint32_t i = 0; i < clients->n; i++)
		samples_free(clients->at[i]);
	samples_free(clients->between);
	samples_free(clients->first);
	free(clients->requests);
	*clients = (struct clients){0};
}

/* ---- a client ---- */

struct clients_work {
	const struct bench_options *options;
	const struct target *target;
	struct clients *clients;
	int go[2]; /* a pipe; its closing starts the children */
	uint32_t index;
};

/* One request in flight. */
struct flow {
	uint32_t request, n, n_new;
	uint64_t submitted, last; /* when its last tokens came; 0: none so far */
	bool ended;
};

struct client {
	const struct clients_work *work;
	struct mimeo *m;
	struct flow flows[IN_FLIGHT_MAX];
	uint32_t next; /* request to submit */
};

/* Each prompt of a run is another one, or the daemon would find it in its prefix cache, and sequences would share
 * pages. That of a draft model's bench is fixed: how many draft tokens are accepted depends on it. */
static uint64_t client_seed(const struct bench_options *o, uint32_t round, uint32_t request)
{
	return o->draft_tokens ? 0 : ((uint64_t)(2 * o->seed + round) << 32) + request + 1;
}

static int client_submit(struct client *c, uint32_t flow)
{
	const struct clients *clients = c->work->clients;
	const struct bench_options *o = c->work->options;
	uint32_t own = c->work->index * clients->n_requests + c->next;

	assert(flow < IN_FLIGHT_MAX && c->next < clients->n_requests);
	c->flows[flow] = (struct flow){.request = own, .submitted = clock_ns()};
	c->next++;
	return client_generate(c->m, &(struct client_prompt){
		.model = o->model_name,
		.text = o->text,
		.n_prompt = clients->requests[own].prompt,
		.n_tokens = clients->requests[own].tokens,
		.seed = client_seed(o, clients->round, own),
		.n_prefix = o->prefix,
		.user_data = flow,
	});
}

/* Take all events that have come, at least one. */
static int client_take(struct client *c)
{
	struct mimeo_event event;
	int rc = client_next(c->m, &event);

	while (rc == 0) {
		struct flow *flow = &c->flows[event.user_data];

		flow->n_new += event.n_tokens;
		flow->ended = event.kind == MIMEO_EVENT_FINAL;
		mimeo_event_seen(c->m, &event);
		if (mimeo_event_peek(c->m, &event) <= 0)
			break;
		rc = client_event(&event);
	}
	return rc;
}

static void client_count(struct client *c, struct flow *flow, uint64_t now)
{
	const struct clients *clients = c->work->clients;

	if (flow->n_new == 0)
		return;
	if (!flow->last)
		samples_add(clients->first, now - flow->submitted);
	for (uint32_t i = 0; i < flow->n_new; i++) {
		samples_add(clients->at[c->work->index], now);
		if (flow->last)
			samples_add(clients->between, (now - flow->last) / flow->n_new);
	}
	flow->last = now;
	flow->n += flow->n_new;
	flow->n_new = 0;
}

/* Evaluate the events that were taken, and replace requests that have ended. */
static int client_advance(struct client *c, uint32_t index, uint64_t now, uint32_t *n_ended)
{
	const struct clients *clients = c->work->clients;
	struct flow *flow = &c->flows[index];
	uint32_t wanted = clients->requests[flow->request].tokens;

	client_count(c, flow, now);
	if (!flow->ended)
		return 0;
	flow->ended = false;
	++*n_ended;
	if (flow->n < wanted)
		return bench_fail(-ERANGE, "the model's length leaves capacity for %u tokens, not %u",
			flow->n, wanted);
	return c->next < clients->n_requests ? client_submit(c, index) : 0;
}

static int client_stream(struct client *c)
{
	const struct clients *clients = c->work->clients;
	uint32_t n_flows =
		clients->in_flight < clients->n_requests ? clients->in_flight : clients->n_requests;
	uint32_t n_ended = 0;
	int rc = 0;

	for (uint32_t i = 0; i < n_flows && rc == 0; i++)
		rc = client_submit(c, i);
	while (rc == 0 && n_ended < clients->n_requests) {
		rc = client_take(c);
		uint64_t now = clock_ns();
		for (uint32_t i = 0; i < n_flows && rc == 0; i++)
			rc = client_advance(c, i, now, &n_ended);
	}
	return rc;
}

static int client_main(void *arg, int fd)
{
	const struct clients_work *work = arg;
	struct client client = {.work = work};
	char byte;

	close(work->go[1]);
	if (client_connect(&client.m, work->target->socket, MIMEO_SPIN_DEFAULT) < 0)
		return 1;
	if (write(fd, "", 1) != 1 || read(work->go[0], &byte, 1) != 0)
		return 1;
	int rc = client_stream(&client);
	mimeo_close(client.m);
	return rc < 0;
}

/* ---- N of them ---- */

/* All clients attach before the first one starts. */
static int clients_serve(struct clients_work *work, struct child *children, uint64_t deadline)
{
	struct clients *clients = work->clients;
	int rc = 0;

	for (work->index = 0; work->index < clients->n && rc == 0; work->index++)
		rc = child_start(&children[work->index], client_main, work);
	for (uint32_t i = 0; i < clients->n && rc == 0; i++) {
		rc = child_next(&children[i], deadline);
		rc = rc == 1 ? 0 : rc < 0 ? rc : -ECHILD;
	}
	close(work->go[1]);
	uint64_t start = clock_ns();
	for (uint32_t i = 0; i < clients->n && rc == 0; i++)
		rc = child_wait(&children[i], deadline);
	clients->ns = clock_ns() - start;
	return rc;
}

/* 0, or -errno with a sentence on standard error. */
static int clients_run(
	struct clients *clients, const struct bench_options *options, const struct target *target)
{
	struct clients_work work = {.options = options, .target = target, .clients = clients};
	struct child children[BENCH_PROCESSES_MAX] = {0};

	if (pipe2(work.go, 0) < 0)
		return -errno;
	int rc = clients_serve(
		&work, children, clock_ns() + options->timeout_s * 1000000000ull);
	for (uint32_t i = 0; i < clients->n; i++)
		child_kill(&children[i]);
	close(work.go[0]);
	if (rc < 0 && rc != -EINTR)
		bench_fail(rc, "%u processes: %s", clients->n,
			rc == -ECHILD || rc == -EFAULT ? "one of them failed" : strerror(-rc));
	return rc;
}

/* ---- results ---- */

double clients_rate(const struct clients *clients)
{
	return (double)clients->n_tokens / ((double)clients->ns * 1e-9);
}

double clients_steady_rate(const struct clients *clients)
{
	uint64_t from = 0, to = UINT64_MAX, n = 0;

	for (uint32_t i = 0; i < clients->n; i++) {
		const struct samples *at = clients->at[i];

		if (at->n == 0)
			return NAN;
		from = at->ns[0] > from ? at->ns[0] : from;
		to = at->ns[at->n - 1] < to ? at->ns[at->n - 1] : to;
	}
	if (to <= from)
		return NAN;
	for (uint32_t i = 0; i < clients->n; i++)
		for (uint32_t j = 0; j < clients->at[i]->n; j++)
			n += clients->at[i]->ns[j] > from && clients->at[i]->ns[j] <= to;
	return (double)n / ((double)(to - from) * 1e-9);
}

/* ---- served by a daemon ---- */

/* Answers that the daemon does not give stay NULL. */
static int served_run(const struct bench_options *options, const struct target *target,
	uint32_t n_processes, struct served *run)
{
	struct clients *clients = &run->clients;
	int rc = clients_init(clients, options, n_processes);

	if (rc < 0)
		return bench_fail(rc, "no memory");
	rc = clients_run(clients, options, target);
	if (rc < 0)
		return rc;
	clients->first->n = clients->between->n = 0;
	for (uint32_t i = 0; i < n_processes; i++)
		clients->at[i]->n = 0;
	clients->round = 1;
	(void)target_ask(target, "metrics", &run->before);
	rc = clients_run(clients, options, target);
	if (rc < 0)
		return rc;
	(void)target_ask(target, "metrics", &run->metrics);
	(void)target_ask(target, "status", &run->status);
	(void)target_ask(target, "models", &run->models);
	return 0;
}

int served_measure(const struct bench_options *options, const char *draft, struct results *results,
	struct served *ret)
{
	CLEANUP(target_close) struct target target; /* the floor may need its memory */
	uint32_t most = 1;

	for (uint32_t i = 0; i < options->processes.n; i++)
		most = options->processes.at[i] > most ? options->processes.at[i] : most;
	int rc = target_open(options,
		&(struct spawn_needs){
			.spin_us = options->spin_us,
			.graph_mode = options->graph_mode,
			.prefix_sharing = options->prefix_sharing,
			.draft = draft,
			.draft_tokens = options->draft_tokens,
			.kv_pages = most * served_in_flight(options) *
				    client_pages(options->prompt, options->tokens),
		},
		results, &target);

	for (uint32_t i = 0; i < options->processes.n && rc == 0; i++)
		rc = served_run(options, &target, options->processes.at[i], &ret[i]);
	return rc;
}

void served_free(const struct bench_options *options, struct served *runs)
{
	for (uint32_t i = 0; i < options->processes.n; i++) {
		answer_free(runs[i].before);
		answer_free(runs[i].metrics);
		answer_free(runs[i].status);
		answer_free(runs[i].models);
		clients_deinit(&runs[i].clients);
	}
}

double served_count(const struct served *run, const char *name, const char *label)
{
	if (!run->before || !run->metrics)
		return NAN;
	return (double)(answer_metric(run->metrics, name, label) -
			answer_metric(run->before, name, label));
}

int served_floors(const struct bench_options *options, struct replay_run *ret)
{
	for (uint32_t i = 0; i < options->processes.n; i++) {
		ret[i] = (struct replay_run){.mode = GRAPH_FULL,
			.n_rows = options->processes.at[i],
			.first = options->prompt,
			.n_steps = options->tokens - 1};
		if (replay_run_alloc(&ret[i]) < 0)
			return bench_fail(-ENOMEM, "no memory");
	}
	return options->model_dir ? replay_floors(options, ret, options->processes.n) : 0;
}

void served_floors_free(const struct bench_options *options, struct replay_run *floors)
{
	for (uint32_t i = 0; i < options->processes.n; i++)
		replay_run_deinit(&floors[i]);
}
