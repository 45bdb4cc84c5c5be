/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_INTAKE_H
#define MIMEO_DAEMON_ENGINE_INTAKE_H

/*
 * What intake.c makes requests with: refusals, and the terms that generate and step requests share. All
 * that is read here is copied already, and decoded.
 */

#include "daemon/engine/state.h"

struct refusal {
	int status;
	struct msg_detail detail;
};

struct msg_detail refusal_detail(unsigned kind, int64_t a, int64_t b, int64_t c);
/* Returns the status. */
int refuse(struct refusal *refusal, int status, struct msg_detail detail);

/* Those that return a number return 0, or the status that they refuse with. */
void terms_sampling(struct request *request, const struct mimeo_sampling *sampling);
void terms_deadline(struct request *request, uint32_t deadline_ms);
/* How many drafts a step: the model's, or as many as the request wants if those are fewer. */
void terms_drafts(struct request *request, uint32_t wanted);
/* n rows of `bytes` each, of the request's so far. */
int terms_place(struct request *request, const struct mimeo_place *place, uint64_t n, uint64_t bytes,
	struct request_place *ret, struct refusal *refusal);
int terms_fence(struct request *request, bool wanted, struct refusal *refusal);
/* Rows and model are there. */
int terms_mask(struct request *request, const struct mimeo_mask *mask, struct refusal *refusal);

#endif
