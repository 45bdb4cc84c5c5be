/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_GRAPH_INPUTS_H
#define MIMEO_DAEMON_GRAPH_INPUTS_H

/*
 * Persistent inputs on the device, and the record slots through which the host feeds them.
 *
 * A step's record is written into a record slot; the prepare op expands it into the persistent inputs
 * and pads their tails. INPUTS_SLOTS steps may be in flight: a slot is rewritten only after its last
 * reader, the step's outbox write, has completed.
 */

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/graph/ladder.h"
#include "kernels/ops.h"

#define INPUTS_SLOTS 2
/* Of a step, for all slots that it updates: tokens to count, and entries of bias lists. */
#define INPUTS_UPDATE_TOKENS 16384u
#define INPUTS_UPDATE_BIASES (16 * SLOT_BIAS_MAX)

struct inputs_limits {
	uint32_t max_rows, max_tokens, max_slots, max_pages, page_tokens, vocab_size, hidden_size;
	uint32_t max_step_pages; /* block table entries that one step may set */
	uint32_t max_results;    /* rows a step whose logits or hidden state leave the device */
	uint32_t max_scores;     /* given tokens a step whose log-probabilities do */
	bool masks;              /* the attention reads masks */
	/* attention/kv_sets.h; n_sets 0: one, without a window */
	uint32_t n_sets, n_full_sets, window;
	/* K, draft tokens a step; 0: no speculation. With K, max_pages has to fit K tokens more than a
	 * sequence may have (kernels/step.h, struct step_inputs). */
	uint32_t max_drafts;
};

/* A record slot, in pinned memory. All arrays have worst-case size. */
struct inputs_slot {
	struct step_record *record;
	struct step_row *rows;    /* [max_rows] */
	int32_t *ids;             /* [max_tokens] */
	uint64_t *words;          /* [max_tokens] of masks; NULL without limits.masks */
	struct slot_init *inits;  /* [max_rows] */
	uint32_t *pages;          /* [max_step_pages] */
	uint32_t (*copies)[2];    /* [max_rows, n_sets] page pairs, src, dst */
	struct set_change *changes; /* [max_rows, n_sets]; NULL without limits.window */
	uint32_t n_pages, n_copies, n_changes, n_results;
	bool verifies;            /* one of its rows verifies draft tokens */
	bool adjusts;             /* one of its rows has logits adjusted, or log-probabilities */
	bool has_logprobs;        /* one has log-probabilities */
	struct slot_update *updates; /* [max_rows] */
	struct token_bias *biases;   /* [INPUTS_UPDATE_BIASES] of them */
	uint32_t *allowed;           /* [max_rows, TOKEN_WORDS] of them */
	int32_t *counted;            /* [INPUTS_UPDATE_TOKENS] of them */
	uint32_t n_updates, n_biases, n_allowed, n_counted;
	int32_t *sampled;         /* [max_rows, 1 + max_drafts], written by the outbox */
	struct token_logprob *logprobs; /* [max_rows, 1 + max_drafts, LOGPROBS_WIDTH] likewise */
	/* The last step whose results are available while its last part goes on, and since when. */
	uint64_t *results_flag, *results_ns;
	float *logits;            /* [max_results, vocab] */
	float *hidden;            /* [max_results, hidden] */
	int32_t *score_tokens;    /* [max_scores] */
	struct token_logprob *scores; /* [max_scores, LOGPROBS_WIDTH] */
	uint32_t n_scores, n_positions; /* engine/lane/positions.h */
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
	double *hidden_sums; /* [max_slots, hidden] device, for means */
	int32_t *sampled;  /* [max_rows, 1 + max_drafts] device */
	void *device_memory, *pinned_memory;
	uint64_t device_bytes, pinned_bytes;
	struct descriptor built;    /* what they were last written for ... */
	struct inputs_slot *source; /* ... and from */
	bool last_only;             /* of its record: one row of logits a row, not 1 + max_drafts */
	bool adjusts;               /* its logits go through `adjust` */
	struct inputs_slot slots[INPUTS_SLOTS];
};

/* Bytes of what adjusts logits, of all slots; for limits that inputs_measure accepts. */
static inline uint64_t inputs_adjustment(const struct inputs_limits *limits)
{
	return (uint64_t)limits->max_slots *
		(sizeof(struct slot_adjust) + COUNTS_STRIDE(limits->vocab_size) * sizeof(uint16_t) +
			SLOT_BIAS_MAX * sizeof(struct token_bias) +
			TOKEN_WORDS(limits->vocab_size) * sizeof(uint32_t));
}

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

/* Are the results available while the step's last part goes on? The slot stays in use. */
static inline bool inputs_slot_has_results(const struct inputs_slot *slot)
{
	return __atomic_load_n(slot->results_flag, __ATOMIC_ACQUIRE) >= slot->step;
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
/* Change entries [first, first + n_pages) of a slot's block table of a set other than the first. */
void inputs_add_change(struct inputs_slot *slot, int32_t persistent_slot, uint32_t set, uint32_t first,
	const uint32_t *pages, uint32_t n_pages);
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
/* Is there capacity for an update with so many entries of a bias list? */
bool inputs_can_update(const struct inputs_slot *slot, uint32_t n_biases);
/* Add an update of a persistent slot; what its bias and mask point to is copied. At most one a slot. */
void inputs_add_update(struct inputs_slot *slot, const struct slot_update *update);
/* Have the update that was added last count these tokens, n_prompt leading ones as the prompt's; as many as there is
 * capacity for: returns how many. */
uint32_t inputs_count_tokens(
	struct inputs_slot *slot, const int32_t *tokens, uint32_t n_tokens, uint32_t n_prompt);
/* Queue the step's updates, if there are any; before inputs_prepare. */
int inputs_update(struct inputs *inputs, struct inputs_slot *slot, struct stream *stream);
/* Queue the prepare op for a batch padded to padded_rows and the descriptor's tokens. A step in which
 * no row verifies has one row of logits a row, except under FULL graphs, which were captured with
 * 1 + max_drafts unless they are decodes of one token. -EINVAL: rows that verify under those. */
int inputs_prepare(struct inputs *inputs, struct inputs_slot *slot, struct stream *stream,
	const struct descriptor *descriptor, uint32_t padded_rows, uint32_t n_pages);

#endif
