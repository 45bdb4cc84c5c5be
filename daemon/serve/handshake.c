/* SPDX-License-Identifier: MIT */
#include "daemon/serve/handshake.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utlist.h>

#include <mimeo/types.h>

#include "daemon/serve/accept.h"
#include "daemon/serve/attach.h"
#include "daemon/serve/welcome.h"
#include "ipc/cleanup.h"

/*
 * From accept to WELCOME. The peer is untrusted: it gets one buffer of MSG_HELLO_MAX, one deadline and
 * its user's share of max_greetings. Anything but a HELLO in time is answered, if the socket has
 * space, and closed. A HELLO that exceeds a limit now and asks to wait stays in line: whenever a session
 * ends, the first waiting client that fits is admitted.
 */

#define GREETINGS_WHAT "clients that are connecting"
#define GREETINGS_PER_UID(serve) ((serve)->options.max_greetings / 4)

struct greeting {
	struct serve *serve;
	struct loop_source *source;
	struct socket_peer peer;
	int fd;
	int64_t deadline_ms;
	bool in_line; /* hello is complete and waits for a place */
	struct msg_hello hello;
	uint32_t n_bytes;
	uint8_t bytes[4 + MSG_HELLO_MAX + 1]; /* one byte more than allowed, to detect it */
	struct greeting *prev, *next;
};

static void handshake_free(struct greeting *greeting)
{
	if (!greeting)
		return;
	struct serve *serve = greeting->serve;

	loop_remove(serve->loop, greeting->source);
	if (greeting->fd >= 0)
		closer_hang_up(serve->closer, greeting->fd, greeting->peer.uid);
	cleanup_close(&greeting->peer.pidfd);
	assert(serve->n_greetings > 0 && serve->n_in_line >= greeting->in_line);
	DL_DELETE(serve->greetings, greeting);
	serve->n_greetings--;
	serve->n_in_line -= greeting->in_line;
	free(greeting);
}

/* Log the reason, send it to the peer, close. */
static void handshake_refuse(struct greeting *greeting, int status, const char *text)
{
	serve_complain(greeting->serve, "pid %d, uid %u: refused: %s", (int)greeting->peer.pid,
		(unsigned)greeting->peer.uid, text);
	greeting->serve->n_refused++;
	greeting->serve->n_quota_sessions += status == MIMEO_E_QUOTA;
	welcome_refuse(greeting->serve, greeting->fd, status, text);
	handshake_free(greeting);
}

/* ---- HELLO ---- */

static void handshake_describe(int status, const struct msg_detail *detail, char text[static MSG_TEXT_MAX])
{
	int field = detail->values[0];

	if (status == MIMEO_E_VERSION)
		snprintf(text, MSG_TEXT_MAX, "the client speaks protocol version %d, the daemon %u",
			detail->values[1], MSG_PROTOCOL_VERSION);
	else if (detail->detail == RING_DETAIL_RANGE && field == MSG_ENTRIES)
		snprintf(text, MSG_TEXT_MAX, "entries is not a power of two from %u to %u",
			RING_ENTRIES_MIN, RING_ENTRIES_MAX);
	else if (detail->detail == RING_DETAIL_RANGE && field == MSG_ARENA_BYTES)
		snprintf(text, MSG_TEXT_MAX, "arena_bytes is not a power of two from %llu to %llu",
			REGION_ARENA_MIN, REGION_ARENA_MAX);
	else if (detail->detail == RING_DETAIL_RANGE && field > 0)
		snprintf(text, MSG_TEXT_MAX, "HELLO's field %s is out of range or unknown",
			msg_field_name((unsigned)field));
	else
		snprintf(text, MSG_TEXT_MAX, "HELLO is not Mimeo's protocol");
}

/* HELLO may be admitted: make a session. */
static void handshake_admit(struct greeting *greeting)
{
	struct serve *serve = greeting->serve;
	char text[MSG_TEXT_MAX];

	assert(greeting->fd >= 0);
	loop_remove(serve->loop, greeting->source);
	greeting->source = NULL;
	int rc = attach_session(serve, greeting->fd, &greeting->peer, &greeting->hello);
	if (rc < 0) {
		snprintf(text, sizeof(text), "no session could be made: %s", strerror(-rc));
		handshake_refuse(greeting, MIMEO_E_NO_MEMORY, text);
		return;
	}
	greeting->fd = -1;
	greeting->peer.pidfd = -1;
	handshake_free(greeting);
}

/* Could it be admitted after other sessions have ended? */
static bool handshake_may_wait(const struct greeting *greeting, int status)
{
	if (status != MIMEO_E_QUOTA || greeting->hello.wait_ms == 0)
		return false;
	const struct quota_amounts amounts = welcome_charges(greeting->serve, &greeting->hello);
	return quota_may_fit(greeting->serve->quota, &amounts);
}

/* HELLO is complete: make a session, refuse, or put it in line. True if the greeting is over. */
static bool handshake_finish(struct greeting *greeting, uint32_t length)
{
	struct serve *serve = greeting->serve;
	struct msg_detail detail = {0};
	char text[MSG_TEXT_MAX];

	int status = msg_hello_decode(
		serve->codec, greeting->bytes + 4, length, &greeting->hello, &detail);
	if (status < 0)
		handshake_describe(status, &detail, text);
	else
		status = welcome_admit(serve, &greeting->peer, &greeting->hello, text);
	/* A place that became free in this turn goes to the clients in line. */
	bool behind = status == 0 && serve->line_moves && greeting->hello.wait_ms > 0;
	if (behind || handshake_may_wait(greeting, status)) {
		greeting->in_line = true;
		greeting->deadline_ms = serve_now_ms() + greeting->hello.wait_ms;
		serve->n_in_line++;
		return false;
	}
	if (status < 0)
		handshake_refuse(greeting, status, text);
	else
		handshake_admit(greeting);
	return true;
}

void handshake_move_line(struct serve *serve)
{
	struct greeting *greeting, *next;
	char text[MSG_TEXT_MAX];

	serve->line_moves = false;
	if (serve->n_in_line == 0)
		return;
	DL_FOREACH_SAFE (serve->greetings, greeting, next) {
		if (!greeting->in_line)
			continue;
		int status = welcome_admit(serve, &greeting->peer, &greeting->hello, text);

		if (status == 0)
			handshake_admit(greeting);
		else if (!handshake_may_wait(greeting, status))
			handshake_refuse(greeting, status, text);
	}
}

int handshake_wait_ms(const struct serve *serve)
{
	const struct greeting *greeting;
	int64_t first = INT64_MAX, left;

	if (serve->n_in_line == 0)
		return -1;
	DL_FOREACH (serve->greetings, greeting) {
		if (greeting->in_line && greeting->deadline_ms < first)
			first = greeting->deadline_ms;
	}
	left = first - serve_now_ms();
	return left < 0 ? 0 : left > INT_MAX ? INT_MAX : (int)left;
}

/* Handle the bytes so far. True if the greeting is over. */
static bool handshake_advance(struct greeting *greeting)
{
	char text[MSG_TEXT_MAX] = "bytes after HELLO, before WELCOME";
	uint32_t length;

	int rc = socket_parse_length(
		greeting->bytes, greeting->n_bytes, MSG_HELLO_MAX, &length);
	if (rc == 0)
		return false;
	if (rc == -EMSGSIZE)
		snprintf(text, sizeof(text), "a message of %u bytes, where HELLO has 1 to %u",
			length, MSG_HELLO_MAX);
	if (rc < 0)
		handshake_refuse(greeting, MIMEO_E_PROTOCOL, text);
	else
		return handshake_finish(greeting, length);
	return true;
}

/* Take what has arrived. True if the greeting is over. */
static bool handshake_read(struct greeting *greeting)
{
	for (;;) {
		ssize_t n = closer_receive(greeting->fd, greeting->bytes + greeting->n_bytes,
			sizeof(greeting->bytes) - greeting->n_bytes, NULL);

		if (n == -EAGAIN)
			return false;
		if (n == -EBADMSG) {
			handshake_refuse(greeting, MIMEO_E_PROTOCOL, "descriptors came with HELLO");
			return true;
		}
		if (n <= 0) {
			if (greeting->n_bytes > 0)
				serve_complain(greeting->serve,
					"pid %d, uid %u: left after %u byte%s",
					(int)greeting->peer.pid, (unsigned)greeting->peer.uid,
					greeting->n_bytes, greeting->n_bytes == 1 ? "" : "s");
			handshake_free(greeting);
			return true;
		}
		greeting->n_bytes += (uint32_t)n;
		assert(greeting->n_bytes <= sizeof(greeting->bytes));
		if (handshake_advance(greeting))
			return true;
	}
}

static void handshake_on_socket(void *userdata, struct loop_source *source, uint32_t events)
{
	handshake_read(userdata);
}

void handshake_expire(struct serve *serve, int64_t now_ms)
{
	struct greeting *greeting, *next;
	char text[MSG_TEXT_MAX];

	DL_FOREACH_SAFE (serve->greetings, greeting, next) {
		/* If the loop is late, the HELLO may have arrived unread. */
		if (now_ms < greeting->deadline_ms || handshake_read(greeting))
			continue;
		int status = MIMEO_E_PROTOCOL;
		snprintf(text, sizeof(text), "no HELLO within %u ms, only %u byte%s",
			serve->options.handshake_timeout_ms, greeting->n_bytes,
			greeting->n_bytes == 1 ? "" : "s");
		if (greeting->in_line)
			status = welcome_admit(serve, &greeting->peer, &greeting->hello, text);
		if (status == 0)
			handshake_admit(greeting);
		else
			handshake_refuse(greeting, status, text);
	}
}

/* ---- accept ---- */

/* Whether there are more greetings than may be, and which limit that is. */
static bool handshake_is_excess(const struct greeting *greeting, char text[static MSG_TEXT_MAX])
{
	const struct serve *serve = greeting->serve;
	uint32_t of_uid = GREETINGS_PER_UID(serve), most = serve->options.max_greetings;
	bool all = serve->n_greetings > most;
	const struct greeting *other;
	char limit[32];
	uint32_t n = 0;

	DL_FOREACH (serve->greetings, other)
		n += other->peer.uid == greeting->peer.uid;
	snprintf(limit, sizeof(limit), "%u at once", most);
	if (all)
		msg_quota_explain(&(struct msg_quota){GREETINGS_WHAT, "", 1, 0, "all users", limit}, text,
			MSG_TEXT_MAX);
	else
		quota_refuse_one(GREETINGS_WHAT, of_uid, greeting->peer.uid, text, MSG_TEXT_MAX);
	return all || n > of_uid;
}

/* Refuse a peer before its HELLO. Closes fd. */
static void handshake_turn_away(
	struct serve *serve, int fd, struct socket_peer *peer, int status, const char *text)
{
	serve_complain(serve, "pid %d, uid %u: refused: %s", (int)peer->pid, (unsigned)peer->uid,
		text);
	serve->n_refused++;
	serve->n_quota_sessions += status == MIMEO_E_QUOTA;
	welcome_refuse(serve, fd, status, text);
	cleanup_close(&peer->pidfd);
	closer_hang_up(serve->closer, fd, peer->uid);
}

/* Takes fd over. NULL: it was closed. */
static struct greeting *handshake_new(struct serve *serve, int fd)
{
	struct socket_peer peer;
	struct greeting *greeting;
	char text[MSG_TEXT_MAX];

	if (socket_peer(fd, &peer) < 0) {
		closer_hang_up(serve->closer, fd, (uid_t)-1);
		return NULL;
	}
	if (closer_is_full(serve->closer, peer.uid)) {
		quota_refuse_one("pending closes of descriptors", CLOSER_MAX_PER_UID, peer.uid, text, sizeof(text));
		handshake_turn_away(serve, fd, &peer, MIMEO_E_QUOTA, text);
		return NULL;
	}
	greeting = calloc(1, sizeof(*greeting));
	if (!greeting) {
		handshake_turn_away(serve, fd, &peer, MIMEO_E_NO_MEMORY, "no memory for another client");
		return NULL;
	}
	greeting->serve = serve;
	greeting->peer = peer;
	greeting->fd = fd;
	greeting->deadline_ms = serve_now_ms() + serve->options.handshake_timeout_ms;
	DL_APPEND(serve->greetings, greeting);
	serve->n_greetings++;
	return greeting;
}

/* Takes fd over. A HELLO that has already arrived is handled at once, however many connections are silent. */
static void handshake_begin(struct serve *serve, int fd)
{
	struct greeting *greeting = handshake_new(serve, fd);
	char text[MSG_TEXT_MAX];

	if (!greeting || handshake_read(greeting))
		return;
	if (handshake_is_excess(greeting, text)) {
		handshake_refuse(greeting, MIMEO_E_QUOTA, text);
		return;
	}
	if (loop_add(serve->loop, fd, EPOLLIN | EPOLLRDHUP, handshake_on_socket, greeting,
		    &greeting->source) < 0)
		handshake_free(greeting);
}

void handshake_accept(struct serve *serve)
{
	uint32_t n_turn = 0;
	int fd;

	while ((fd = accept_next(serve, serve->clients.fd, &n_turn)) >= 0)
		handshake_begin(serve, fd);
}

void handshake_free_all(struct serve *serve)
{
	struct greeting *greeting, *next;

	DL_FOREACH_SAFE (serve->greetings, greeting, next)
		handshake_free(greeting);
}
