/* SPDX-License-Identifier: MIT */
#include "daemon/http/connection.h"

#include <sys/socket.h>
#include <utlist.h>

static int64_t connection_limit_ms(const struct connections *connections, enum phase phase)
{
	const struct http_options *options = connections->http->options;

	switch (phase) {
	case PHASE_NEW:
	case PHASE_RECEIVING:
		return options->receive_s * INT64_C(1000);
	case PHASE_SENDING:
		return options->send_s * INT64_C(1000);
	case PHASE_IDLE:
		return options->idle_s * INT64_C(1000);
	case PHASE_WORKING:
	case N_PHASES:
		break;
	}
	return INT64_MAX / 2;
}

/* The limit of a phase is the same for all, so that each list is in the order of its deadlines. */
void connection_enter(struct connection *connection, enum phase phase)
{
	struct connections *owner = connection->owner;

	DL_DELETE(owner->phases[connection->phase], connection);
	connection->phase = phase;
	connection->deadline_ms = owner->now_ms + connection_limit_ms(owner, phase);
	owner->has_space |= phase == PHASE_IDLE;
	connection->n_read = connection->exchange ? connection->exchange->n_read : 0;
	DL_APPEND(owner->phases[phase], connection);
}

bool connection_is_read(const struct connection *connection)
{
	const struct exchange *exchange = connection->exchange;

	return connection->phase == PHASE_SENDING && exchange &&
		(exchange->suspended || exchange->n_read != connection->n_read);
}

void connection_cut(struct connection *connection)
{
	shutdown(connection->fd, SHUT_RDWR);
	if (connection->exchange)
		exchange_lose(connection->exchange);
	/* Its end may take a turn: in this phase no time limit cuts it again. */
	connection_enter(connection, PHASE_WORKING);
}
