/* SPDX-License-Identifier: MIT */
#include "sdk/event.h"

#include <assert.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "ipc/clock.h"
#include "ipc/doorbell.h"
#include "sdk/client.h"

#define LIFE_NS 1000000ull /* interval of checks that the daemon lives, while spinning */
#define BELL_NS 50000ull   /* interval of checks of the doorbell, if mimeo_fd is in use */
#define SPINS_AT_ONCE 64u  /* polls of the ring between two reads of the clock */
#define SPINS_UNPAUSED 512u

/* Send nothing more; completions that the daemon has posted are still taken. */
static void event_give_up(struct mimeo *m)
{
	m->gone = true;
}

/* The daemon broke the protocol: treat it as gone at once, and hang up. */
static void event_break_off(struct mimeo *m)
{
	shutdown(m->socket, SHUT_RDWR);
	m->gone = true;
	m->drained = true;
}

/* ---- a completion becomes an event ---- */

static int event_hold(struct mimeo *m, struct mimeo_request *request, const struct mimeo_event *event)
{
	assert(!m->holding && request->state != REQUEST_FREE);
	m->event = *event;
	m->event.user_data = request->sqe.user_data;
	m->event.slot = ++m->event_number;
	m->event_request = request;
	m->holding = true;
	return 1;
}

/* The request of a completion; NULL if the completion is not valid for it. */
static struct mimeo_request *event_request_of(struct mimeo *m, const struct ring_cqe *cqe)
{
	if (cqe->request >= m->region.ring.entries)
		return NULL;
	struct mimeo_request *request = &m->requests[cqe->request];

	if (request->state != REQUEST_IN_FLIGHT || request->sqe.generation != cqe->generation)
		return NULL;
	if (cqe->kind != RING_CQE_FINAL &&
		(cqe->kind != RING_CQE_TOKENS || request->sqe.op != RING_OP_GENERATE) &&
		(cqe->kind != RING_CQE_RECORDED || !request->fenced))
		return NULL;
	if (cqe->status > 0 || cqe->finish > MIMEO_FINISH_ERROR)
		return NULL;
	/* A step counts no tokens: its sampled ones are one a row. */
	if (request->sqe.op == RING_OP_GENERATE &&
		(cqe->n_generated < request->n_reported || cqe->n_generated > request->capacity))
		return NULL;
	return request;
}

static struct mimeo_event event_from(const struct ring_cqe *cqe)
{
	return (struct mimeo_event){
		.kind = cqe->kind == RING_CQE_FINAL ? MIMEO_EVENT_FINAL : MIMEO_EVENT_TOKENS,
		.status = cqe->status,
		.finish = cqe->finish,
		.n_prompt = cqe->n_prompt,
		.n_generated = cqe->n_generated,
		.detail = cqe->detail,
		.detail_values = {cqe->values[0], cqe->values[1], cqe->values[2], cqe->values[3]},
		.n_cached = cqe->kind == RING_CQE_FINAL ? cqe->n_cached : 0,
		.n_sequence = cqe->kind == RING_CQE_FINAL ? cqe->n_sequence : 0,
	};
}

static int event_take_generate(struct mimeo *m, struct mimeo_request *request, const struct ring_cqe *cqe)
{
	struct mimeo_event event = event_from(cqe);

	if (cqe->status < 0 && event.finish == MIMEO_FINISH_NONE)
		event.finish = MIMEO_FINISH_ERROR;
	assert(request->n_reported <= cqe->n_generated && cqe->n_generated <= request->capacity);
	event.n_tokens = cqe->n_generated - request->n_reported;
	event.n_logprobs = request->n_logprobs;
	if (event.n_tokens > 0)
		event.tokens = request->tokens + request->n_reported;
	else if (event.kind == MIMEO_EVENT_TOKENS)
		return 0;
	if (event.n_tokens > 0 && request->logprobs)
		event.logprobs = request->logprobs + (size_t)request->n_reported * request->n_logprobs;
	/* The logits are there once a token was drawn from them. */
	if (event.kind == MIMEO_EVENT_FINAL && request->logits && cqe->n_generated > 0) {
		event.logits = request->logits;
		event.n_rows = request->n_rows;
	}
	if (event.kind == MIMEO_EVENT_FINAL)
		event.n_positions = request->n_positions;
	if (event.kind == MIMEO_EVENT_FINAL && cqe->n_generated > 0)
		event.prompt_logprobs = request->prompt_logprobs;
	request->n_reported = cqe->n_generated;
	return event_hold(m, request, &event);
}

static int event_take_step(struct mimeo *m, struct mimeo_request *request, const struct ring_cqe *cqe)
{
	struct mimeo_event event = event_from(cqe);

	event.finish = MIMEO_FINISH_NONE;
	event.n_generated = 0;
	if (cqe->status == 0) {
		event.n_rows = request->n_rows;
		event.n_tokens = event.n_generated = request->capacity;
		event.tokens = request->capacity > 0 ? request->tokens : NULL;
		event.logits = request->logits;
		event.hidden = request->hidden;
		event.prompt_logprobs = request->prompt_logprobs;
		event.n_logprobs = request->n_logprobs;
		event.n_positions = request->n_positions;
	}
	return event_hold(m, request, &event);
}

static bool event_is_call(const struct mimeo_request *request)
{
	return request->sqe.op == RING_OP_OPEN || request->sqe.op == RING_OP_FORK ||
		request->sqe.op == RING_OP_TRUNCATE || request->sqe.op == RING_OP_CLOSE ||
		request->sqe.op == RING_OP_LENGTH;
}

static int event_take_call(struct mimeo *m, struct mimeo_request *request, const struct ring_cqe *cqe)
{
	struct mimeo_event event = event_from(cqe);

	assert(request->state == REQUEST_IN_FLIGHT && event_is_call(request));
	event.sequence = sequence_id_completed(m, &request->sqe, cqe->status);
	if (cqe->status == 0 && request->sqe.op != RING_OP_LENGTH) {
		request_release(request);
		m->silence = true;
		return 0;
	}
	event.kind = MIMEO_EVENT_SEQUENCE;
	event.finish = MIMEO_FINISH_NONE;
	return event_hold(m, request, &event);
}

/* Once for each request. Later completions repeat the counts of this one. */
static int event_take_recorded(struct mimeo *m, struct mimeo_request *request, const struct ring_cqe *cqe)
{
	const struct mimeo_event event = {
		.kind = MIMEO_EVENT_RECORDED,
		.n_prompt = cqe->n_prompt,
		.n_generated = request->n_reported,
	};

	assert(request->fenced);
	request->fenced = false;
	return event_hold(m, request, &event);
}

static int event_take(struct mimeo *m, struct mimeo_request *request, const struct ring_cqe *cqe)
{
	struct mimeo_event event;

	if (cqe->kind == RING_CQE_RECORDED)
		return event_take_recorded(m, request, cqe);
	switch (request->sqe.op) {
	case RING_OP_GENERATE:
		return event_take_generate(m, request, cqe);
	case RING_OP_STEP:
		return event_take_step(m, request, cqe);
	case RING_OP_CANCEL:
		event = event_from(cqe);
		event.finish = MIMEO_FINISH_NONE;
		return event_hold(m, request, &event);
	default:
		return event_take_call(m, request, cqe);
	}
}

/* ---- the ring ---- */

static void event_disarm(struct mimeo *m)
{
	if (!m->armed)
		return;
	ring_client_awake(&m->region.ring);
	m->armed = false;
	m->bell_due = true;
}

/* Take completions until one makes an event: 1, or 0 if none does. */
static int event_reap(struct mimeo *m)
{
	struct ring_cqe cqe;

	if (m->committed && !m->gone && request_flush(m) < 0)
		event_break_off(m);
	while (!m->drained && ring_cq_peek(&m->region.ring, &cqe)) {
		struct mimeo_request *request = event_request_of(m, &cqe);

		if (!request) {
			event_break_off(m);
			return 0;
		}
		ring_cq_advance(&m->region.ring);
		event_disarm(m);
		m->tended_ns = 0;
		if (event_take(m, request, &cqe) > 0)
			return 1;
	}
	return 0;
}

/* A completion that breaks the protocol stays in the ring for the next peek. A doorbell that was rung for
 * completions taken here stays set, so no wake-up is lost. */
void events_take_silent(struct mimeo *m)
{
	struct ring_cqe cqe;

	while (!m->drained && ring_cq_peek(&m->region.ring, &cqe)) {
		struct mimeo_request *request = event_request_of(m, &cqe);

		if (!request || !event_is_call(request) || cqe.status != 0)
			return;
		ring_cq_advance(&m->region.ring);
		event_disarm(m);
		m->tended_ns = 0;
		event_take_call(m, request, &cqe);
	}
}

/* One request in flight after the other; sequence calls end without an event. 1, then GONE. */
static int event_reap_gone(struct mimeo *m)
{
	assert(m->gone && !m->holding);
	m->drained = true;
	while (m->gone_cursor < m->region.ring.entries) {
		struct mimeo_request *request = &m->requests[m->gone_cursor++];

		if (request->state != REQUEST_IN_FLIGHT && request->state != REQUEST_COMMITTED)
			continue;
		if (event_is_call(request))
			continue;
		const struct mimeo_event event = {
			.kind = MIMEO_EVENT_FINAL,
			.status = MIMEO_E_GONE,
			.finish = request->sqe.op == RING_OP_GENERATE ? MIMEO_FINISH_ERROR
			                                              : MIMEO_FINISH_NONE,
			.n_generated = request->n_reported,
		};
		return event_hold(m, request, &event);
	}
	return MIMEO_E_GONE;
}

/* ---- the fds ---- */

/* Poll doorbell, socket and daemon for up to timeout_ms; a signal ends the wait early. */
static void event_look(struct mimeo *m, int timeout_ms)
{
	struct epoll_event events[1 + CLIENT_WATCHED];
	int n = epoll_wait(m->epoll, events, 1 + CLIENT_WATCHED, timeout_ms);

	for (int i = 0; i < n; i++) {
		if (events[i].data.fd == m->cq_bell)
			doorbell_clear(m->cq_bell);
		else
			event_give_up(m);
	}
	if (n >= 0)
		m->bell_due = false;
}

/* The ring is empty: look at the fds if it is time. True if the ring is to be looked at again. */
static bool event_tend(struct mimeo *m)
{
	uint64_t now = clock_ns();

	if (m->fd_taken && (m->bell_due || now - m->tended_ns >= BELL_NS)) {
		m->tended_ns = now;
		event_look(m, 0);
		return true;
	}
	if (m->tended_ns == 0) {
		m->tended_ns = now;
	} else if (!m->fd_taken && now - m->tended_ns >= LIFE_NS) {
		struct pollfd fds[CLIENT_WATCHED];

		m->tended_ns = now;
		client_watch(m, POLLIN | POLLRDHUP, fds);
		if (poll(fds, CLIENT_WATCHED, 0) > 0)
			event_give_up(m);
		else if (ring_cq_check(&m->region.ring) < 0)
			event_break_off(m);
		return m->gone;
	}
	return false;
}

/* Announce sleep; true if completions wait already, and the announcement is taken back. */
static bool event_arm(struct mimeo *m)
{
	bool waits = ring_client_sleep(&m->region.ring);

	m->armed = true;
	if (ring_cq_check(&m->region.ring) < 0) {
		event_break_off(m);
		waits = true;
	}
	if (!waits)
		return false;
	event_disarm(m);
	return true;
}

/* ---- peek, wait, seen ---- */

/* 1, 0 or GONE; the fds looked at when due. */
static int event_next(struct mimeo *m)
{
	if (m->holding)
		return 1;
	if (event_reap(m) > 0)
		return 1;
	if (!m->gone && event_tend(m) && event_reap(m) > 0)
		return 1;
	return m->gone ? event_reap_gone(m) : 0;
}

int mimeo_event_peek(struct mimeo *m, struct mimeo_event *ret_event)
{
	int rc = event_next(m);

	/* After arming, look again: an event may have come in between. */
	while (rc == 0 && m->fd_taken && !m->armed) {
		if (event_arm(m))
			rc = event_next(m);
	}
	if (rc > 0)
		*ret_event = m->event;
	return rc;
}

static void event_pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* All requests in flight have ended, some without an event: no event will come. */
static bool event_is_over(const struct mimeo *m)
{
	return m->silence && m->n_in_flight == 0;
}

/* Spin until an event comes, none can come any more, `until` passes, or the daemon is gone. */
static int event_spin(struct mimeo *m, uint64_t until)
{
	unsigned n = 0;
	int rc;

	do {
		for (unsigned i = 0; i < SPINS_AT_ONCE; i++) {
			if (event_reap(m) > 0)
				return 1;
			if (++n > SPINS_UNPAUSED)
				event_pause_cpu();
		}
		rc = event_next(m);
	} while (rc == 0 && !event_is_over(m) && clock_ns() < until);
	return rc;
}

/* Milliseconds until then, rounded up, for epoll_wait; -1 if never. No doorbell announces space in the
 * ring: with committed requests it is 1. */
static int event_sleep_ms(const struct mimeo *m, uint64_t now, uint64_t until)
{
	if (m->committed)
		return 1;
	if (until == UINT64_MAX)
		return -1;
	assert(until > now);
	uint64_t ms = (until - now + 999999) / 1000000;

	return ms > INT32_MAX ? INT32_MAX : (int)ms;
}

int mimeo_event_wait(struct mimeo *m, struct mimeo_event *ret_event, int timeout_ms)
{
	if (timeout_ms == 0)
		return mimeo_event_peek(m, ret_event);

	int rc = event_next(m);
	if (rc == 0 && !event_is_over(m)) {
		uint64_t now = clock_ns();
		uint64_t until = timeout_ms < 0 ? UINT64_MAX : now + timeout_ms * 1000000ull;
		uint64_t spin_until = m->spin_ns < until - now ? now + m->spin_ns : until;

		if (m->spin_ns > 0)
			rc = event_spin(m, spin_until);
		while (rc == 0 && !event_is_over(m) && (now = clock_ns()) < until) {
			if (!event_arm(m))
				event_look(m, event_sleep_ms(m, now, until));
			if (!m->fd_taken)
				event_disarm(m);
			rc = event_next(m);
		}
	}
	m->silence = false;
	if (rc > 0)
		*ret_event = m->event;
	return rc;
}

void mimeo_event_seen(struct mimeo *m, const struct mimeo_event *event)
{
	if (!m->holding || !event || event->slot != m->event.slot)
		return;
	assert(m->event_request);
	m->holding = false;
	if (m->event.kind != MIMEO_EVENT_TOKENS && m->event.kind != MIMEO_EVENT_RECORDED)
		request_release(m->event_request);
	m->event_request = NULL;
}
