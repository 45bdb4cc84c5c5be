/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_GRAPH_INPUTS_H
#define MIMEO_DAEMON_GRAPH_INPUTS_H

/*
 * Persistent inputs on the device, and the pinned slots through which the host feeds them.
 *
 * A step writes its record into a pinned slot; the prepare op expands it into the persistent inputs
 * and pads their tails. INPUTS_SLOTS steps may be in flight: a slot is rewritten only after its last
 * reader, the step's outbox write, has completed.
 */

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/graph/ladder.h"
#include "kernels/ops.h"

#define INPUTS_SLOTS 2

struct inputs_limits {
	uint32_t max_rows, max_tokens, max_slots, max_pages, page_tokens, vocab_size, hidden_size;
	uint32_t max_step_pages; /* block table entries that one step may set */
	uint32_t max_results;    /* rows a step whose logits or hidden state leave the device */
	bool masks;              /* the attention reads masks */
	/* K, draft tokens a step; 0: no speculation. With K, max_pages has to fit K tokens more than a
	 * sequence may have (kernels/step.h, struct step_inputs). */
	uint32_t max_drafts;
};

/* One pinned slot. All arrays have worst-case size. */
struct inputs_slot {
	struct step_record *record;
	struct step_row *rows;    /* [max_rows] */
	int32_t *ids;             /* [max_tokens] */
	uint64_t *words;          /* [max_tokens] of masks; NULL without limits.masks */
	struct slot_init *inits;  /* [max_rows] */
	uint32_t *pages;          /* [max_step_pages] */
	uint32_t (*copies)[2];    /* [max_rows] page pairs, src, dst */
	uint32_t n_pages, n_copies, n_results;
	bool verifies;            /* one of its rows verifies draft tokens */
	int32_t *sampled;         /* [max_rows, 1 + max_drafts], written by the outbox */
	/* The last step whose results are available while its draft's part goes on, and since when.
	 * NULL without speculation. */
	uint64_t *results_flag, *results_ns;
	float *logits;            /* [max_results, vocab] */
	float *hidden;            /* [max_results, hidden] */
	uint64_t *flag;           /* the last completed step that used this slot */
	uint64_t *began, *ended;  /* that step's, on the device's clock, ns */
	uint64_t *draft_began;    /* when its draft's part began, if it had one */
	uint64_t step;            /* the step that uses it now; 0: none */
	const struct inputs_limits *limits;
};

struct inputs {
	struct device *device;
	struct inputs_limits limits;
	struct step_inputs persistent;
	struct draft_inputs draft; /* the draft model's; max_drafts 0: all NULL */
	float *hidden_f32; /* [max_rows, hidden] device, for results */
	int32_t *sampled;  /* [max_rows, 1 + max_drafts] device */
	void *device_memory, *pinned_memory;
	uint64_t device_bytes, pinned_bytes;
	struct descriptor built;    /* what they were last written for ... */
	struct inputs_slot *source; /* ... and from */
	bool last_only;             /* of its record: one row of logits a row, not 1 + max_drafts */
	struct inputs_slot slots[INPUTS_SLOTS];
};

/* Bytes of slot_draft_logits; for limits that inputs_measure accepts. */
static inline uint64_t inputs_draft_logits(const struct inputs_limits *limits)
{
	return (uint64_t)limits->max_slots * limits->max_drafts * limits->vocab_size *
	       sizeof(float);
}

/* Bytes of either memory that inputs_init takes; nothing is allocated. -EOVERFLOW. */
int inputs_measure(const struct inputs_limits *limits, uint64_t *ret_device, uint64_t *ret_pinned);
int inputs_init(struct inputs *inputs, struct device *device, const struct inputs_limits *limits);
void inputs_deinit(struct inputs *inputs);

static inline bool inputs_slot_done(const struct inputs_slot *slot)
{
	return __atomic_load_n(slot->flag, __ATOMIC_ACQUIRE) >= slot->step;
}

/* Are the results available while the step's draft part goes on? The slot stays in use. */
static inline bool inputs_slot_has_results(const struct inputs_slot *slot)
{
	return slot->results_flag &&
		__atomic_load_n(slot->results_flag, __ATOMIC_ACQUIRE) >= slot->step;
}

/* The slot of a step, emptied; NULL while its last reader is pending. `step` counts from 1. */
struct inputs_slot *inputs_begin(struct inputs *inputs, uint64_t step);
/* Append a row of n_tokens within max_rows and max_tokens; the caller writes its ids to the returned
 * place. */
int32_t *inputs_add_row(struct inputs_slot *slot, const struct step_row *row);
/* Is there capacity for n_pages more block table entries in this step? */
bool inputs_can_add_pages(const struct inputs_slot *slot, uint32_t n_pages);
/* Copy entries for a row of the step; returns the row's page_offset. */
uint32_t inputs_add_pages(struct inputs_slot *slot, const uint32_t *pages, uint32_t n_pages);
/* Where the mask words of the row that is appended next go, one a token; limits.masks. */
uint64_t *inputs_next_words(const struct inputs_slot *slot);
/* Is there capacity for a slot's initialisation with n_pages pages? */
bool inputs_can_init(const struct inputs *inputs, const struct inputs_slot *slot, uint32_t n_pages);
void inputs_add_init(struct inputs_slot *slot, int32_t persistent_slot,
	const struct slot_sampling *sampling, const uint32_t *pages, uint32_t n_pages);
/* Set the mask of the slot whose initialisation was added last (default: causal). */
void inputs_set_mask(struct inputs_slot *slot, const struct slot_mask *mask);
/* Set how many draft tokens the steps of that slot may have (default: none). */
void inputs_set_drafts(struct inputs_slot *slot, uint32_t n_drafts);
/* Queue the prepare op for a batch padded to padded_rows and the descriptor's tokens. A step in which
 * no row verifies has one row of logits a row, except under FULL graphs, which were captured with
 * 1 + max_drafts unless they are decodes of one token. -EINVAL: rows that verify under those. */
int inputs_prepare(struct inputs *inputs, struct inputs_slot *slot, struct stream *stream,
	const struct descriptor *descriptor, uint32_t padded_rows, uint32_t n_pages);

#endif
