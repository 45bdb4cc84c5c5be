/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_STARTUP_MODEL_H
#define MIMEO_DAEMON_STARTUP_MODEL_H

/*
 * One model, from its directory to the engine: EXAMINED before weights are read (config, attention,
 * graph mode, sizes of weights and pages), its draft model too (startup_draft.h), MEASURED (what the
 * engine will allocate), LIMITED to the sequences that its pages hold, LOADED.
 */

#include "attention/kv_sets.h"
#include "attention/layers.h"
#include "daemon/startup/budget.h"
#include "daemon/config/config.h"
#include "daemon/engine/engine.h"
#include "daemon/model/model.h"
#include "daemon/startup/startup_error.h"

struct startup_model {
	const struct config_model *options;
	struct model_config config;
	bool has_config;
	struct attention_layers attention;
	struct mode_resolution mode;
	uint32_t max_seq_len;
	struct kv_sets sets; /* of its layers, for that length before it is cut to the cache's */
	struct model_config draft; /* if options->draft names one */
	bool has_draft;
	const struct attention_backend *draft_attention;
	enum attention_support draft_support;
	struct budget_model *memory; /* bytes that it needs; after budget_plan the pages that it gets */
};

/* Functions that return int: 0, or -errno with *error filled in. */

/* model->options and ->memory are set by the caller, who deinitialises the model even on failure. */
int startup_model_examine(struct startup_model *model, const struct config *config,
	const struct device_info *info, struct startup_error *error);
/* engine: the options that all models share. After the draft model was examined. */
int startup_model_measure(struct startup_model *model, const struct device_info *info,
	const struct engine_options *engine, struct startup_error *error);
/* A sequence cannot be longer than the tokens of all pages: lower max_seq_len. -ENOMEM: they hold no token. */
int startup_model_limit(struct startup_model *model, const struct config *config, struct startup_error *error);
/* Read the weights and report progress. The model in *ret is the caller's. */
int startup_model_load(const struct startup_model *model, struct device *device,
	struct engine_model_options *ret, struct startup_error *error);
/* Log how a loaded model's keys and values are stored, if in fp8. part: "", or "draft: ". */
void startup_model_log_kv(const char *name, const char *part, const struct model *model);
/* Draft tokens per row and step; 0: no draft model. */
uint32_t startup_model_drafts(const struct startup_model *model);
/* The requirements that an attention backend must meet; of: the model's config or its draft model's. */
struct attention_config startup_model_attention(const struct startup_model *model,
	const struct model_config *of, const struct config *config, const struct device_info *info);

/* Also for a zeroed model. */
void startup_model_deinit(struct startup_model *model);

#endif
