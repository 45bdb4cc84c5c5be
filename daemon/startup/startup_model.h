/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_STARTUP_MODEL_H
#define MIMEO_DAEMON_STARTUP_MODEL_H

/*
 * One model on its way from a folder to the engine: EXAMINED while nothing of it costs anything
 * (config, attention, graph mode, what its weights, a page and its activations take), CUT to the
 * sequences that the pages it was given hold, LOADED.
 */

#include "attention/attention.h"
#include "daemon/startup/budget.h"
#include "daemon/config/config.h"
#include "daemon/engine/engine.h"
#include "daemon/model/model.h"
#include "daemon/startup/startup_error.h"

struct startup_model {
	const struct config_model *options;
	struct model_config config;
	bool has_config;
	const struct attention_backend *attention;
	enum attention_support support;
	struct mode_resolution mode;
	uint32_t max_seq_len;
	struct model_config draft; /* if options->draft names one */
	bool has_draft;
	const struct attention_backend *draft_attention;
	enum attention_support draft_support;
	struct budget_model *memory; /* examined: what it takes; planned: what it gets */
};

/* model->options and ->memory are set. 0, or -errno with the error said; to be deinitialised even
 * then. `engine`: the options that all models share. */
int startup_model_examine(struct startup_model *model, const struct config *config,
	const struct device_info *info, const struct engine_options *engine,
	struct startup_error *error);
/* A sequence cannot be longer than all pages together, and clients are told so. */
void startup_model_cut(struct startup_model *model, uint32_t page_tokens);
/* Read the weights, and say how far that is; the model in *ret is the caller's. 0, or -errno with
 * the error said. */
int startup_model_load(const struct startup_model *model, struct device *device,
	struct engine_model_options *ret, struct startup_error *error);
/* Tokens that the model's draft makes a step; 0: it has none. */
uint32_t startup_model_drafts(const struct startup_model *model);
/* What the attention backends are asked about, of the model or of its draft. */
struct attention_config startup_model_attention(const struct startup_model *model,
	const struct model_config *of, const struct config *config, const struct device_info *info);

/* ---- startup_draft.c ---- */

/* The model's draft, once its target's config is read: whether the device can verify it, config, attention,
 * what its weights and its part of a page take, which is added to the model's. 0 if there is none. */
int startup_draft_examine(struct startup_model *model, const struct config *config,
	const struct device *device, const struct device_info *info, struct startup_error *error);
int startup_draft_load(const struct startup_model *model, struct engine_model_options *options,
	struct startup_error *error);

/* Zeroed is fine. */
void startup_model_deinit(struct startup_model *model);

#endif
