/* SPDX-License-Identifier: MIT */
#include "daemon/bench/clients.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "daemon/bench/bench_client.h"

#define IN_FLIGHT_MAX 64u

uint32_t clients_in_flight(const struct bench_options *options)
{
	return options->in_flight ? options->in_flight : 1;
}

static uint32_t clients_between(uint64_t *state, uint32_t least, uint32_t most)
{
	assert(least <= most);
	return least + stats_random(state) % (most - least + 1);
}

int clients_init(struct clients *ret, const struct bench_options *o, uint32_t n)
{
	uint32_t n_requests = o->requests ? o->requests : 1, n_tokens = n_requests * o->tokens;
	uint64_t state = 0x9e3779b97f4a7c15ull ^ o->seed;

	assert(n <= BENCH_PROCESSES_MAX);
	*ret = (struct clients){.n = n, .n_requests = n_requests, .in_flight = clients_in_flight(o)};
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

void clients_deinit(struct clients *clients)
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
	const struct clients *clients;
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
	uint32_t own = c->work->index * clients->n_requests + c->next % clients->n_requests;
	uint32_t pass = c->next / clients->n_requests * clients->n * clients->n_requests;

	assert(flow < IN_FLIGHT_MAX && (clients->endless || pass == 0));
	c->flows[flow] = (struct flow){.request = own, .submitted = clock_ns()};
	c->next++;
	return client_generate(c->m, &(struct client_prompt){
		.model = o->model_name,
		.text = o->text,
		.n_prompt = clients->requests[own].prompt,
		.n_tokens = clients->requests[own].tokens,
		.seed = client_seed(o, clients->round, pass + own),
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
	return clients->endless || c->next < clients->n_requests ? client_submit(c, index) : 0;
}

static int client_stream(struct client *c)
{
	const struct clients *clients = c->work->clients;
	uint32_t n_flows = clients->endless || clients->in_flight < clients->n_requests ? clients->in_flight
											: clients->n_requests;
	uint32_t n_ended = 0;
	int rc = 0;

	for (uint32_t i = 0; i < n_flows && rc == 0; i++)
		rc = client_submit(c, i);
	while (rc == 0 && (clients->endless || n_ended < clients->n_requests)) {
		rc = client_take(c);
		uint64_t now = clock_ns();
		for (uint32_t i = 0; i < n_flows && rc == 0; i++)
			rc = client_advance(c, i, now, &n_ended);
	}
	return rc;
}

/* The kernel drops the signal for the parent's end when the user changes. The group stays: it may use the socket. */
static int client_become(uid_t uid)
{
	if (uid && (setresuid(uid, uid, uid) < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) < 0))
		return bench_fail(-errno, "a client with uid %u: %s", uid, strerror(errno));
	return 0;
}

static int client_main(void *arg, int fd)
{
	const struct clients_work *work = arg;
	struct client client = {.work = work};
	char byte;

	close(work->go[1]);
	if (client_become(work->clients->uid) < 0)
		return 1;
	if (client_connect(&client.m, work->target->socket, MIMEO_SPIN_DEFAULT) < 0)
		return 1;
	if (write(fd, "", 1) != 1 || read(work->go[0], &byte, 1) != 0)
		return 1;
	int rc = client_stream(&client);
	mimeo_close(client.m);
	return rc < 0;
}

/* ---- N of them ---- */

static int clients_fail(const struct clients *clients, int rc)
{
	if (rc == -EINTR)
		return rc;
	return bench_fail(rc, "%u processes: %s", clients->n,
		rc == -ECHILD || rc == -EFAULT ? "one of them failed" : strerror(-rc));
}

static uint64_t clients_deadline(const struct bench_options *options)
{
	return clock_ns() + options->timeout_s * 1000000000ull;
}

static int clients_attach(struct clients *clients, struct clients_work *work, uint64_t deadline)
{
	int rc = 0;

	for (work->index = 0; work->index < clients->n && rc == 0; work->index++)
		rc = child_start(&clients->children[work->index], client_main, work);
	for (uint32_t i = 0; i < clients->n && rc == 0; i++) {
		rc = child_next(&clients->children[i], deadline);
		rc = rc == 1 ? 0 : rc < 0 ? rc : -ECHILD;
	}
	return rc;
}

int clients_start(struct clients *clients, const struct bench_options *options, const struct target *target)
{
	struct clients_work work = {.options = options, .target = target, .clients = clients};

	if (pipe2(work.go, 0) < 0)
		return clients_fail(clients, -errno);
	int rc = clients_attach(clients, &work, clients_deadline(options));
	if (rc < 0)
		clients_stop(clients); /* before the pipe lets them start */
	close(work.go[1]);
	close(work.go[0]);
	clients->start_ns = clock_ns();
	return rc < 0 ? clients_fail(clients, rc) : 0;
}

int clients_let(struct clients *clients, double seconds)
{
	int rc = child_wait(&clients->children[0], clock_ns() + (uint64_t)(seconds * 1e9));

	for (uint32_t i = 1; i < clients->n && rc == -ETIMEDOUT; i++)
		rc = child_wait(&clients->children[i], 0);
	return rc == -ETIMEDOUT ? 0 : clients_fail(clients, rc < 0 ? rc : -ECHILD);
}

void clients_stop(struct clients *clients)
{
	for (uint32_t i = 0; i < clients->n; i++)
		child_kill(&clients->children[i]);
}

int clients_run(struct clients *clients, const struct bench_options *options, const struct target *target)
{
	uint64_t deadline = clients_deadline(options);
	int rc = clients_start(clients, options, target);

	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < clients->n && rc == 0; i++)
		rc = child_wait(&clients->children[i], deadline);
	clients->ns = clock_ns() - clients->start_ns;
	clients_stop(clients);
	return rc < 0 ? clients_fail(clients, rc) : 0;
}

void clients_clear(struct clients *clients)
{
	clients->first->n = clients->between->n = 0;
	for (uint32_t i = 0; i < clients->n; i++)
		clients->at[i]->n = 0;
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
