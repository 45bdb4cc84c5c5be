/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_MODEL_DRAFT_RIG_H
#define MIMEO_TESTS_MODEL_DRAFT_RIG_H

/*
 * A rig (rig.h) with a draft model beside its target, without ops of speculation: tests write ids,
 * positions and lengths by hand, and the host reads all logits. Sequences and pages are the rig's.
 */

#include "daemon/model/draft.h"
#include "tests/model/rig.h"

struct draft_rig {
	struct rig rig; /* the target */
	struct model *draft;
	struct model_buffers buffers, wide; /* the draft's; the target's with RIG_TOKENS logits */
	struct step_inputs inputs;          /* the draft's */
	int32_t *hidden_index;              /* [RIG_TOKENS] device */
	void *memory, *kv;                  /* of one layer */
	void *states; /* [2 * RIG_TOKENS, hidden] act, device: for tests to put hidden states in */
	struct attention_manager *manager;
	struct attention_metadata *metadata, *graph_metadata;
	struct graph_exec *decode; /* NULL, or what passes replay */
	float *target_logits; /* [RIG_TOKENS, vocab] of the last target's step */
	float *logits;        /* [RIG_ROWS, draft's vocab] of the last draft's pass */
};

/* Fails the test if anything does. */
void draft_rig_init(struct draft_rig *rig, const char *target, const char *draft,
	const char *attention);
void draft_rig_deinit(struct draft_rig *rig);

/* The target over more tokens of a sequence, with the logits of all of them; features for an
 * EAGLE-3. */
void draft_rig_target(
	struct draft_rig *rig, uint32_t sequence, const int32_t *tokens, uint32_t n_tokens);
/* The hidden states of a draft pass behind the target's: features, or hidden states. */
struct draft_pass draft_rig_from_target(const struct draft_rig *rig, uint32_t n_tokens);
/* ... and behind a pass of its own. */
struct draft_pass draft_rig_from_draft(const struct draft_rig *rig, uint32_t n_tokens);

/* Tokens of a sequence at `start` and on, the target's one on; `last`: whose logits are wanted. */
struct draft_rig_row {
	uint32_t sequence, start, n_tokens;
	const int32_t *ids; /* [n_tokens] */
	uint32_t last;
};
/* One pass of the draft; rig->logits has a row each. `pass`: the four fields of hidden states, its
 * index on the host. */
void draft_rig_pass(struct draft_rig *rig, const struct draft_pass *pass,
	const struct draft_rig_row *rows, uint32_t n_rows);
/* Record a decode of one row from the draft's own states. From then on passes are such decodes, and
 * replays of this one graph. All of a decode's ops have run before. */
void draft_rig_capture(struct draft_rig *rig);
/* The rest of such a pass, for what queues one itself; inputs are those of the last. */
struct model_pass draft_rig_model_pass(struct draft_rig *rig, uint32_t n_tokens, uint32_t n_rows);
/* Of row r of the last pass: the arg-max, as the target's id. */
int32_t draft_rig_token(const struct draft_rig *rig, uint32_t row);
/* Copy rows of hidden states, [n, hidden] act, into rig->states from row `at` on. */
void draft_rig_keep(struct draft_rig *rig, const void *hidden, uint32_t n, uint32_t at);

#endif
