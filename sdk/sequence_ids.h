/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_SEQUENCE_IDS_H
#define MIMEO_SDK_SEQUENCE_IDS_H

/* The session's sequence ids: which are open, and which calls in flight name them. */

#include <stdbool.h>
#include <stdint.h>

#include "ipc/ring.h"

struct mimeo;

enum sequence_id_state {
	SEQUENCE_ID_FREE,
	SEQUENCE_ID_OPEN,
	SEQUENCE_ID_ENDED, /* closed or refused; free once no call in flight names it */
};

struct sequence_id {
	enum sequence_id_state state;
	uint32_t model;
	uint32_t n_calls; /* in flight or prepared, naming it */
	uint32_t next;    /* in the list of free ids */
};

/* All ids free, the lowest to be taken first. 0, or NO_MEMORY. */
int sequence_ids_init(struct mimeo *m, uint32_t max_sequences);
bool sequence_id_is_open(const struct mimeo *m, uint32_t id);
/* Is the sequence open and of that model? 0, UNKNOWN_SEQUENCE or INVALID. */
int sequence_id_check(const struct mimeo *m, uint32_t id, uint32_t model);
/* A free id, which there must be, opened. */
uint32_t sequence_id_take(struct mimeo *m, uint32_t model);
/* One more call names the id. */
void sequence_id_named(struct mimeo *m, uint32_t id);
/* The caller closed the sequence. */
void sequence_id_close(struct mimeo *m, uint32_t id);
/* A sequence call has ended with that status. Returns the id that its event names. */
uint32_t sequence_id_completed(struct mimeo *m, const struct ring_sqe *sqe, int32_t status);

#endif
