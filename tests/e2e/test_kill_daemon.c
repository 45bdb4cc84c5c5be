/* SPDX-License-Identifier: MIT */
/*
 * A daemon that is killed under load, again and again: every call of every client returns GONE,
 * each request in flight ends once with it, and a daemon started again is reached by mimeo_connect.
 */
#include <stdatomic.h>

#include <poll.h>

#include "tests/device.h"
#include "tests/e2e/daemon.h"
#include "tests/e2e/questions.h"

/* A daemon with a GPU takes seconds to start. */
#define N_KILLS (test_on_cuda() ? 12u : 50u)
#define N_STREAMS 3
#define HANG_MS 10000

enum manner { SLEEPING, SPINNING, PEEKING, POLLING, N_MANNERS };

struct shared {
	_Atomic uint64_t killed_ns; /* 0: not yet */
	_Atomic uint32_t n_ready;
	_Atomic uint64_t slowest_ns[N_MANNERS];
	_Atomic uint32_t n_gone; /* requests ended with it */
};

struct client {
	const struct daemon *daemon;
	struct shared *shared;
	enum manner manner;
	uint64_t seed;
	struct mimeo *m;
	uint32_t n_in_flight;
	uint32_t n_ends[N_STREAMS];
	uint32_t n_gone;
};

static struct mimeo *connect_patiently(const struct client *client)
{
	struct mimeo_config config = MIMEO_CONFIG_INIT;
	uint64_t until = now_ms() + PATIENCE_MS;
	struct mimeo *m;
	int rc;

	config.socket_path = client->daemon->socket;
	config.spin_us = client->manner == SPINNING ? MIMEO_SPIN_FOREVER : 0;
	config.connect_timeout_ms = 1000;
	while ((rc = mimeo_connect(&m, &config)) == MIMEO_E_UNREACHABLE && now_ms() < until)
		pause_ms(2);
	CHILD_EXPECT(rc == 0);
	return m;
}

/* The next event in the client's manner: 1, or GONE. */
static int next_event(struct client *client, struct mimeo_event *ret)
{
	struct pollfd fd;
	int rc;

	switch (client->manner) {
	case PEEKING:
		while ((rc = mimeo_event_peek(client->m, ret)) == 0)
			;
		return rc;
	case POLLING:
		fd = (struct pollfd){.fd = mimeo_fd(client->m), .events = POLLIN};
		while ((rc = mimeo_event_peek(client->m, ret)) == 0)
			poll(&fd, 1, -1);
		return rc;
	default:
		return mimeo_event_wait(client->m, ret, -1);
	}
}

static void submit_stream(struct client *client, uint32_t stream)
{
	int rc = endless_submit(client->m, 400, stream, NULL);

	CHILD_EXPECT(rc == 0 || rc == MIMEO_E_GONE);
	if (rc == 0) {
		client->n_ends[stream] = 0;
		client->n_in_flight++;
	}
}

static void take(struct client *client, const struct mimeo_event *event)
{
	if (event->kind != MIMEO_EVENT_FINAL)
		return;
	CHILD_EXPECT(event->user_data < N_STREAMS);
	CHILD_EXPECT(++client->n_ends[event->user_data] == 1);
	CHILD_EXPECT(event->status == 0 || event->status == MIMEO_E_GONE);
	client->n_in_flight--;
	client->n_gone += event->status == MIMEO_E_GONE;
}

/* Keep streams going until the daemon is gone. */
static void stream_until_gone(struct client *client)
{
	struct mimeo_event event;
	bool ready = false;
	int rc;

	for (uint32_t i = 0; i < N_STREAMS; i++)
		submit_stream(client, i);
	while ((rc = next_event(client, &event)) == 1) {
		uint32_t stream = (uint32_t)event.user_data;
		bool again = event.kind == MIMEO_EVENT_FINAL && event.status == 0;

		take(client, &event);
		mimeo_event_seen(client->m, &event);
		if (again)
			submit_stream(client, stream);
		if (!ready)
			atomic_fetch_add(&client->shared->n_ready, 1);
		ready = true;
	}
	CHILD_EXPECT(rc == MIMEO_E_GONE);
	CHILD_EXPECT(client->n_in_flight == 0);
}

static void note_delay(struct client *client)
{
	_Atomic uint64_t *slowest = &client->shared->slowest_ns[client->manner];
	uint64_t killed = atomic_load(&client->shared->killed_ns);

	CHILD_EXPECT(killed != 0);
	uint64_t delay = now_ns() - killed;
	CHILD_EXPECT(delay < HANG_MS * 1000000ull);
	if (delay > atomic_load(slowest))
		atomic_store(slowest, delay);
}

static void expect_all_gone(struct client *client)
{
	struct mimeo_event event;
	uint32_t sequence;

	CHILD_EXPECT(next_event(client, &event) == MIMEO_E_GONE);
	CHILD_EXPECT(mimeo_event_wait(client->m, &event, -1) == MIMEO_E_GONE);
	CHILD_EXPECT(mimeo_event_peek(client->m, &event) == MIMEO_E_GONE);
	CHILD_EXPECT(mimeo_submit(client->m) == MIMEO_E_GONE);
	CHILD_EXPECT(mimeo_sequence_open(client->m, 0, &sequence) == MIMEO_E_GONE);
}

static int be_a_client(void *arg)
{
	struct client *client = arg;
	struct question question;
	struct reply reply;

	client->m = connect_patiently(client);
	stream_until_gone(client);
	note_delay(client);
	expect_all_gone(client);
	mimeo_close(client->m);
	atomic_fetch_add(&client->shared->n_gone, client->n_gone);

	client->m = connect_patiently(client);
	questions_make(&question, 1, client->seed);
	CHILD_EXPECT(questions_ask(client->m, &question, 1, 1, &reply) == 0);
	CHILD_EXPECT(replies_wrong(&question, &reply, 1) == 0);
	mimeo_close(client->m);
	return 0;
}

static void run_round(struct daemon *daemon, struct shared *shared, unsigned round)
{
	pid_t pids[N_MANNERS];

	atomic_store(&shared->killed_ns, 0);
	atomic_store(&shared->n_ready, 0);
	for (unsigned i = 0; i < N_MANNERS; i++) {
		struct client client = {.daemon = daemon,
			.shared = shared,
			.manner = i,
			.seed = round * N_MANNERS + i};

		pids[i] = process_run(be_a_client, &client);
	}
	assert_true(EVENTUALLY(atomic_load(&shared->n_ready) == N_MANNERS));
	pause_ms(round % 10); /* so that it is not always the same moment */
	atomic_store(&shared->killed_ns, now_ns());
	daemon_kill(daemon);
	daemon_start(daemon);
	for (unsigned i = 0; i < N_MANNERS; i++)
		assert_int_equal(process_exit_status(pids[i], PATIENCE_MS), 0);
}

static void test_every_call_returns_gone_and_reconnecting_works(void **state)
{
	static const char *const manners[] = {"sleeping", "spinning", "peeking", "polling"};
	struct shared *shared = shared_new(sizeof(*shared));

	for (unsigned round = 0; round < N_KILLS; round++)
		run_round(*state, shared, round);
	/* Of three streams a client, most were under way at any moment. */
	assert_true(atomic_load(&shared->n_gone) >= N_KILLS * N_MANNERS);
	for (unsigned i = 0; i < N_MANNERS; i++)
		print_message("# gone after %.1f ms at most, %s\n",
			(double)atomic_load(&shared->slowest_ns[i]) / 1e6, manners[i]);
	shared_free(shared, sizeof(*shared));
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_call_returns_gone_and_reconnecting_works),
	};

	watchdog(WATCHDOG_SECONDS);
	return cmocka_run_group_tests_name(
		"kill_daemon", tests, group_daemon_start, group_daemon_end);
}
