/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_CHARGE_H
#define MIMEO_DAEMON_ENGINE_CHARGE_H

/*
 * What requests that pin pages (pinned.h) ask of their user's quota. A request is charged once, when admission looks
 * at it first, and for all that it can take: no other request changes its sequences until it ends. False: it is to be
 * refused with QUOTA, and why.
 */

#include "daemon/engine/requests/engine_session.h"

/* Of a request without a limit of tokens, max_tokens is lowered to what the quota has pages for. */
bool charge_generate(struct request *request, const struct sequence *sequence, struct msg_detail *ret_refusal);
bool charge_step(struct request *request, struct msg_detail *ret_refusal);

#endif
