/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_INTAKE_H
#define MIMEO_DAEMON_ENGINE_INTAKE_H

#include "daemon/engine/requests/engine_session.h"

struct refusal {
	int status;
	struct msg_detail detail;
};

/* Make a request of an entry whose index is free, and queue it. 0; 1: the entry has to wait for space in the
 * payload pool; otherwise *refusal says why there is no request. */
int intake_request(struct engine_session *session, const struct ring_sqe *sqe, struct refusal *refusal);
/* Begin the deadlines that the header of a held entry asks for; none if it is malformed. Intake reads the
 * header once more: a client that changes it meanwhile moves its own deadlines alone. */
void intake_deadlines(struct engine_session *session, const struct ring_sqe *sqe);

#endif
