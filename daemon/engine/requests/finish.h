/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_FINISH_H
#define MIMEO_DAEMON_ENGINE_FINISH_H

/* How requests end. */

#include "daemon/engine/requests/engine_session.h"

/* End a request that is not FREE: stops its sequences and posts the final completion, or has it posted by
 * finish_ended_steps. detail: NULL for none. */
void finish_request(struct request *request, int status, unsigned finish,
	const struct msg_detail *detail);
/* End a request that is not FREE as cancelled. detail: NULL for its own client's cancel. */
void finish_cancel(struct request *request, const struct msg_detail *detail);
/* Post the final completions of ENDING requests whose last step has completed. */
void finish_ended_steps(struct accounting *accounting);
/* End the requests of all sessions. */
void finish_all(struct accounting *accounting, int status, const struct msg_detail *detail);
/* End the model's requests of all sessions: it is unloaded. */
void finish_model(struct accounting *accounting, const struct runner *runner);
/* End the requests and held entries that are past a deadline. True if any was. */
bool finish_overdue(struct accounting *accounting);
/* End the session's requests without completions, and release its sequences. */
void finish_session(struct engine_session *session);

#endif
