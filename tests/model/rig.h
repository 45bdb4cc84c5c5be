/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_MODEL_RIG_H
#define MIMEO_TESTS_MODEL_RIG_H

/*
 * A model with all that a forward pass needs, on the device of MIMEO_DEVICE, and no engine: steps
 * are written by hand. Sequence s has slot s, and pages that are in no order.
 */

#include "daemon/graph/inputs.h"
#include "daemon/model/transformer.h"

#define RIG_ROWS 4u
#define RIG_TOKENS 64u
#define RIG_PAGE_TOKENS 8u
#define RIG_PAGES_A_ROW 32u
#define RIG_PAGES (1 + RIG_ROWS * RIG_PAGES_A_ROW)
#define RIG_LENGTH (RIG_PAGES_A_ROW * RIG_PAGE_TOKENS)

struct rig {
	struct device *device;
	struct device_info info;
	struct stream *stream;
	struct model *model;
	struct model_buffers buffers;
	struct inputs inputs;
	void *memory, **kv;
	const struct attention_backend *attention;
	struct attention_manager *manager;
	struct attention_metadata *metadata;
	uint32_t lengths[RIG_ROWS]; /* tokens in the cache, by sequence */
	float *logits;              /* [RIG_ROWS, vocab] of the last step */
	void *features;             /* NULL, or where steps leave them (struct model_pass) */
	bool last_alone;            /* steps compute n_last tokens to the end (struct model_pass) */
};

/* Fails the test if anything does. */
void rig_init(struct rig *rig, const char *directory, const char *attention);
void rig_deinit(struct rig *rig);
/* A model's attention in these sizes, and the limits of its inputs with max_drafts draft tokens. */
struct attention_config rig_attention(const struct rig *rig, const struct model_config *model);
struct inputs_limits rig_limits(const struct rig *rig, uint32_t max_drafts);
/* Forget all sequences. */
void rig_reset(struct rig *rig);

/* One row: append tokens to a sequence. */
struct rig_row {
	uint32_t sequence, n_tokens;
	const int32_t *tokens;
};
/* Run one pass; rig->logits has each row's last position. */
void rig_step(struct rig *rig, const struct rig_row *rows, uint32_t n_rows);
/* Of row r of the last step. */
const float *rig_logits(const struct rig *rig, uint32_t row);
int32_t rig_argmax(const struct rig *rig, uint32_t row);
int32_t rig_argmax_of(const float *logits, uint32_t n);

#endif
