/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_ADJUST_H
#define MIMEO_DAEMON_ENGINE_ADJUST_H

/* What a generate request says about its logits: penalties, bias, token mask, ends that come too early; and
 * how many likeliest tokens it wants. Hot path: no allocation, no lock, no system call. */

#include "daemon/engine/requests/request.h"

/* Bytes of bias and token mask in the request's payload. */
static inline uint64_t adjust_payload_bytes(const struct msg_generate *msg)
{
	return (uint64_t)msg->n_bias * sizeof(struct mimeo_bias) + (uint64_t)msg->n_allowed * sizeof(uint32_t);
}

/* The most that these can be. */
static inline uint32_t adjust_payload_most(uint32_t vocab_size)
{
	return MIMEO_BIAS_MAX * (uint32_t)sizeof(struct mimeo_bias) +
		msg_allowed_words(vocab_size) * (uint32_t)sizeof(uint32_t);
}

/* Check them and set request.adjust. `payload`: the request's own copy, which the request goes on to use. Model
 * and stop ids are set. 0, or a status and why in *ret_detail. */
int adjust_take(struct request *request, const struct msg_generate *msg, const uint8_t *payload,
	struct msg_detail *ret_detail);

#endif
