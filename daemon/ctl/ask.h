/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_CTL_ASK_H
#define MIMEO_DAEMON_CTL_ASK_H

/* The operators' side of daemon/serve/admin_wire.h: send a request, receive the reply, read its rows. */

#include <msgpack.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/cleanup.h"

#define ASK_TIMEOUT_MS 10000u
#define ASK_MESSAGES_MAX 256u /* of one reply */

struct answer {
	int status;
	char *text; /* of all messages, one behind the other; never NULL */
	size_t n_text;
	size_t n_rows;
	const msgpack_object **rows; /* [n_rows] maps, in the messages' memory */
	msgpack_unpacked *messages;
	size_t n_messages;
};

/* A request; without the keys that are NULL, or the numbers that it has not. */
struct ask {
	const char *op, *model, *graph, *setting, *path, *settings;
	uint64_t session, request;
	bool has_session, has_request;
	bool patient; /* the reply comes when the order is carried out, which may take any time: the caller waits */
};

/* Blocking. 0 or -errno. */
int ask_send(int fd, const struct ask *ask);
/* The whole reply; the answer is the caller's, until answer_free. 0, -EPROTO if it is not a reply,
 * or -errno (-ECONNRESET: the daemon is gone). */
int ask_receive(int fd, struct answer **ret);
/* Send and receive. A request that cannot be sent because the daemon has hung up may have a reply. */
int ask_once(int fd, const struct ask *ask, struct answer **ret);
void answer_free(struct answer *answer);
DEFINE_CLEANUP(answer, struct answer, answer_free)

/* The value of a row's key, or NULL. */
const msgpack_object *answer_cell(const struct answer *answer, size_t row, const char *key);
/* The same as a number, `otherwise` if it is none; or as text, "" if it is none, cut to size. */
uint64_t answer_count(const struct answer *answer, size_t row, const char *key, uint64_t otherwise);
const char *answer_text(
	const struct answer *answer, size_t row, const char *key, char *buffer, size_t size);

#endif
