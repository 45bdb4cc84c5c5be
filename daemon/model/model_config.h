/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_MODEL_CONFIG_H
#define MIMEO_DAEMON_MODEL_MODEL_CONFIG_H

/*
 * The contents of config.json and generation_config.json, or of a GGUF file's metadata: a model's family, sizes and
 * rope, and values derived from them.
 */

#include <stdbool.h>
#include <stdint.h>

#include "attention/attention.h"
#include "attention/kv_cache.h"
#include "daemon/model/error.h"
#include "daemon/model/quantisation.h"

enum model_family {
	MODEL_LLAMA,
	MODEL_MISTRAL,
	MODEL_QWEN2,
	MODEL_QWEN3,
	MODEL_PHI3,
	MODEL_QWEN3_MOE,
	MODEL_GEMMA2,
	MODEL_GEMMA3,
	MODEL_DEEPSEEK_V2,
	MODEL_DEEPSEEK_V3,
	MODEL_EAGLE, /* draft models: daemon/model/draft.h */
	MODEL_EAGLE3,
	MODEL_MTP,
};
enum rope_type { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_FACTORS, ROPE_LONGROPE };

#define MODEL_EOS_MAX 8
#define MODEL_LAYERS_MAX 1000u
#define MODEL_HEAD_DIM_MAX 1024

#define MODEL_EXPERTS_MAX 1024

/* Experts of the layers that have them; the other layers' are dense. */
struct model_experts {
	uint32_t n;               /* 0: all layers are dense */
	uint32_t n_active, n_shared;
	uint32_t intermediate_size; /* of one */
	bool layers[MODEL_LAYERS_MAX]; /* those that have them */
	uint32_t n_groups, n_groups_active;
	enum moe_score score;
	bool group_top_two, choice_bias, normalise;
	bool normalise_ignored; /* the file sets it, and transformers' class ignores it */
	float scale;
};

/* Fields of draft models (daemon/model/draft.h). */
#define MODEL_FEATURES 3u
struct model_draft {
	uint32_t vocab_size; /* rows of its head; 0: not a draft model */
	bool names_layers;   /* EAGLE-3: `layers`, the target's whose inputs it reads, are given */
	uint32_t layers[MODEL_FEATURES];
};

struct model_rope {
	enum rope_type type;
	double theta, factor;
	double low_freq_factor, high_freq_factor; /* llama3 */
	double original_max_position_embeddings;  /* llama3, yarn, longrope */
	double beta_fast, beta_slow;              /* yarn */
	double attention_factor;                  /* yarn, longrope; < 0: not given */
	double mscale;                            /* yarn; < 0: not given */
	double mscale_all_dim; /* yarn; latent attention of any type; < 0: not given */
	bool truncate;         /* yarn */
	float factors[MODEL_HEAD_DIM_MAX / 2]; /* factors, longrope: by which each pair's wavelength is multiplied */
	float long_factors[MODEL_HEAD_DIM_MAX / 2]; /* longrope: likewise, of a table longer than the original length */
};

struct model_config {
	enum model_family family;
	char architecture[64];
	uint32_t hidden_size, intermediate_size, vocab_size;
	uint32_t n_layers, n_heads;
	uint32_t first_layer; /* its number in the names of tensors: of an MTP head its target's n_layers, else 0 */
	uint32_t n_kv_heads, head_dim; /* latent attention: 1, and latent.rope */
	uint32_t rotary_dim;            /* 0: rope rotates whole heads; else so many of a head's first elements */
	struct attention_latent latent; /* rank 0: the attention is not latent */
	uint32_t q_rank;                /* latent attention: 0, or the queries have a latent too */
	bool rope_interleaved;          /* latent attention: pairs (2i, 2i + 1) */
	struct model_experts experts;
	struct model_draft draft;
	char assumed[192];    /* sizes that are defaults: "kv_lora_rank 512, v_head_dim 128" */
	uint32_t max_seq_len; /* max_position_embeddings: rope factors are within it, not on top */
	float rms_norm_eps;
	bool tie_word_embeddings;
	bool qkv_bias, o_bias, mlp_bias, qk_norm;
	/* Gemma 2 and 3: all of them are 0 in other families */
	bool norms_add_one;        /* a norm multiplies by 1 + its weight */
	float embedding_scale;     /* of the embeddings of ids; 0: 1; a loaded model's is in bf16 if they are */
	float query_scalar;        /* scores are q.k query_scalar^-1/2; 0: head_dim */
	float score_cap, logit_cap; /* soft caps (op_soft_cap); 0: none */
	uint32_t *windows; /* [n_layers] sliding window, 0: none */
	struct model_rope rope;
	double local_theta; /* Gemma 3: layers with a window have this base, and no scaling; 0: the same rope */
	uint32_t n_eos;
	int32_t eos[MODEL_EOS_MAX];
	int32_t bos; /* -1: none */
	struct quantisation *quantisation; /* NULL: weights are not quantised */
	bool kv_fp8;   /* not the file's, the caller's: the cache is E4M3, with the layers' factors (kv_factors.h) */
	bool head_fp8; /* not the file's, the caller's: round the head to e4m3 (rounding.h) unless it is quantised */
	/* generation_config.json's defaults: greedy unless do_sample is true */
	struct slot_sampling sampling;
};

/* Of a directory or a GGUF file. EAGLE and EAGLE-3 are refused: draft_config_load reads those. */
int model_config_load(const char *path, struct model_config *ret, struct model_error *error);
void model_config_deinit(struct model_config *config);
bool model_layer_has_experts(const struct model_config *config, uint32_t layer);
static inline bool model_is_gemma(const struct model_config *config)
{
	return config->family == MODEL_GEMMA2 || config->family == MODEL_GEMMA3;
}
/* Rope tables that it has: with local_theta a second one, for layers with a window. */
static inline uint32_t model_n_rope_tables(const struct model_config *config)
{
	return config->local_theta != 0 ? 2 : 1;
}
/* Elements of a token's attention output, of all heads. */
static inline uint32_t model_attention_width(const struct model_config *config)
{
	return config->n_heads * (config->latent.rank ? config->latent.v : config->head_dim);
}

/* Rope tables [model_n_rope_tables, max_positions, head_dim]: cos for head_dim/2, then sin, attention factor applied.
 * With a rotary_dim pair i < rotary_dim/2 is elements i and rotary_dim/2 + i of a head, which plan.h moves to the
 * halves' beginnings; the other pairs are not rotated. */
void model_rope_fill(const struct model_config *config, uint32_t max_positions, float *ret);
/* Does a table of that length have longrope's long factors? Like a model, it has one kind for all positions. */
bool model_rope_is_long(const struct model_config *config, uint32_t max_positions);
/* yarn's g(m) = 0.1 m ln(factor) + 1, or 1 for factors up to 1. */
double model_yarn_magnitude(double factor, double mscale);

/* The model's attention and KV cache on that device, with decode queries of one token. The caller sets
 * what is 0: of attention page_tokens, max_rows, max_tokens, max_pages, max_seq_len, n_kv_pages; of
 * the cache max_pages. `windows` is the config's. */
struct attention_config model_attention(
	const struct model_config *config, const struct device_info *info);
struct kv_config model_kv(
	const struct model_config *config, const struct device_info *info, uint32_t page_tokens);
/* The layers that have pages of their own, for sequences of max_seq_len tokens; with a draft model, whose keys lie in
 * the pages of all layers, one set. */
void model_kv_sets(const struct model_config *config, uint32_t max_seq_len, uint32_t page_tokens, bool has_draft,
	struct kv_sets *ret);

/* The layers whose inputs are an EAGLE-3 draft model's features, in the order in which fc reads them,
 * for a target of 3 layers or more; with less than seven some are the same. */
void model_feature_layers(const struct model_config *target, uint32_t ret[MODEL_FEATURES]);

#endif
