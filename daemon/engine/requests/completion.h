/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_COMPLETION_H
#define MIMEO_DAEMON_ENGINE_COMPLETION_H

/*
 * Completions. Every request in flight has one entry of the completion ring for its final completion.
 * Progress is posted only while more entries than that are free; tokens are in the output area before,
 * and the count in a later completion covers those whose completion was left out. So a slow reader loses
 * nothing and delays no other client. Nothing is posted to a session that failed or is detached.
 */

#include "daemon/engine/requests/engine_session.h"

/* The details of an error: [enum ring_detail, values]; the values are clipped to 32 bits. */
#define DETAIL(...) completion_detail((const int64_t[5]){__VA_ARGS__})
struct msg_detail completion_detail(const int64_t from[static 5]);
/* detail: NULL for none. */
void completion_final(const struct request *request, int status, unsigned finish,
	const struct msg_detail *detail);
/* For a submission that never became a request. */
void completion_refusal(struct engine_session *session, const struct ring_sqe *sqe, int status,
	const struct msg_detail *detail);
/* RING_CQE_TOKENS or RING_CQE_RECORDED. */
void completion_progress(const struct request *request, enum ring_cqe_kind kind);
/* Show clients what was posted; rings the doorbells of those that sleep. */
void completion_publish(struct accounting *accounting);

#endif
