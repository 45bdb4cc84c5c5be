/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_HF_CONFIG_H
#define MIMEO_DAEMON_MODEL_HF_CONFIG_H

/* The parsers behind model_config_load and draft_config_load, from memory; `file` is for errors. */

#include "daemon/model/field.h"
#include "daemon/model/model.h"

/* config.json. On success the caller owns ret (model_config_deinit). */
int hf_config_parse(const char *file, const char *text, size_t bytes, struct model_config *ret,
	struct model_error *error);
/* A draft's. */
int hf_draft_parse(const char *file, const char *text, size_t bytes, struct model_config *ret,
	struct model_error *error);
/* generation_config.json, laid over a parsed config, which is unchanged on failure. */
int hf_generation_parse(const char *file, const char *text, size_t bytes,
	struct model_config *config, struct model_error *error);
/* The rope settings of config.json's root object; max_seq_len and head_dim are already there. */
int hf_rope_parse(const struct field_object *root, struct model_config *config);
/* What DeepSeek's families have beside the fields of all: latent attention, experts, biases. head_dim
 * and n_kv_heads come of it; n_layers, n_heads and hidden_size are already there. */
int hf_deepseek_parse(const struct field_object *root, struct model_config *config);
/* What a draft has beside them; the sizes are already there. */
int hf_eagle_parse(const struct field_object *root, struct model_config *config);

/* Sizes that no model has. */
#define HF_WIDTH_MAX (1u << 20)
#define HF_HEADS_MAX 4096u

#endif
