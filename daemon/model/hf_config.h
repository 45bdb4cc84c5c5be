/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_HF_CONFIG_H
#define MIMEO_DAEMON_MODEL_HF_CONFIG_H

/* The parsers behind model_config_load and draft_config_load, from memory; `path` is for errors. */

#include "daemon/model/field.h"
#include "daemon/model/model_config.h"

/* config.json, of a draft model if `draft`. On success the caller owns ret (model_config_deinit). */
int hf_config_parse(const char *path, const char *text, size_t bytes, bool draft,
	struct model_config *ret, struct model_error *error);
/* generation_config.json, laid over a parsed config, which is unchanged on failure. */
int hf_generation_parse(const char *path, const char *text, size_t bytes,
	struct model_config *config, struct model_error *error);

/* Parts of config.json's root object. Errors are the file's (field.h). */

/* Rope settings; max_seq_len is already set. */
void hf_rope_parse(const struct field_object *root, struct model_config *config);
/* Latent attention and experts of DeepSeek's families, and with them head_dim and n_kv_heads;
 * n_layers, n_heads and hidden_size are already set. */
void hf_deepseek_parse(const struct field_object *root, struct model_config *config);
/* Experts of Qwen3-MoE; n_layers is already set. */
void hf_qwen3_moe_parse(const struct field_object *root, struct model_config *config);
/* The fields that Gemma 2 and 3 add; hidden_size is already set. */
void hf_gemma2_parse(const struct field_object *root, struct model_config *config);
void hf_gemma3_parse(const struct field_object *root, struct model_config *config);
/* Does the layer slide, where layer_types is absent? */
bool hf_gemma3_layer_slides(const struct field_object *root, uint32_t layer);
/* Gemma 3's rope settings of layers without a window, and those of the newer spelling alone; sets local_theta. */
struct field_object hf_gemma3_rope(
	const struct field_object *root, struct field_object *ret_newer, struct model_config *config);
/* Of a DeepSeek V3's MTP head: makes its one layer the configuration's; n_layers and vocab_size are already set. */
void hf_mtp_parse(const struct field_object *root, struct model_config *config);
/* The fields that only EAGLE and EAGLE-3 have; the sizes are already set. */
void hf_eagle_parse(const struct field_object *root, struct model_config *config);

/* Sizes that no model has. */
#define HF_WIDTH_MAX (1u << 20)
#define HF_HEADS_MAX 4096u
#define HF_VOCAB_MAX (1u << 24)
#define HF_LENGTH_MAX (1u << 28)

#endif
