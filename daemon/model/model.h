/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_MODEL_H
#define MIMEO_DAEMON_MODEL_MODEL_H

/*
 * A model: a Hugging Face directory, read in three moves, each of which can fail before the next one
 * costs anything: CONFIG (config.json, generation_config.json: the family, its sizes, its rope),
 * TENSORS (safetensors headers: every needed tensor is present with its shape, nothing overlaps or
 * leaves its file), WEIGHTS (memory taken, bytes read and uploaded). Then it runs FORWARD passes.
 *
 * Errors are one sentence in a struct model_error that names file and field.
 */

#include <stdbool.h>
#include <stdint.h>

#include "attention/attention.h"
#include "attention/kv_cache.h"
#include "kernels/arena.h"
#include "kernels/ops.h"

struct model_error {
	char text[512]; /* "/models/x/config.json: rope_scaling.rope_type \"dynamic\" is not ..." */
};

enum model_family {
	MODEL_LLAMA,
	MODEL_MISTRAL,
	MODEL_QWEN2,
	MODEL_QWEN3,
	MODEL_DEEPSEEK_V2,
	MODEL_DEEPSEEK_V3,
	MODEL_EAGLE, /* draft models: daemon/model/draft.h */
	MODEL_EAGLE3,
};
enum rope_type { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN };

#define MODEL_EOS_MAX 8
#define MODEL_HEAD_DIM_MAX 1024

#define MODEL_EXPERTS_MAX 1024

/* Experts of the layers that have them; the other layers' are dense. */
struct model_experts {
	uint32_t n;               /* 0: all layers are dense */
	uint32_t n_active, n_shared;
	uint32_t intermediate_size; /* of one */
	uint32_t first_layer, layer_step; /* layer l has them if l >= first_layer and step divides l */
	uint32_t n_groups, n_groups_active;
	enum moe_score score;
	bool group_top_two, choice_bias, normalise;
	bool normalise_ignored; /* the file sets it, and transformers' class ignores it */
	float scale;
};

/* What a draft model adds (daemon/model/draft.h). */
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
	double original_max_position_embeddings;  /* llama3, yarn */
	double beta_fast, beta_slow;              /* yarn */
	double attention_factor;                  /* yarn; < 0: not given */
	double mscale;                            /* yarn; < 0: not given */
	double mscale_all_dim; /* yarn; latent attention of any type; < 0: not given */
	bool truncate;         /* yarn */
};

struct model_config {
	enum model_family family;
	char architecture[64];
	uint32_t hidden_size, intermediate_size, vocab_size;
	uint32_t n_layers, n_heads;
	uint32_t n_kv_heads, head_dim; /* latent attention: 1, and latent.rope */
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
	uint32_t *windows; /* [n_layers] sliding window, 0: none */
	struct model_rope rope;
	uint32_t n_eos;
	int32_t eos[MODEL_EOS_MAX];
	int32_t bos; /* -1: none */
	/* generation_config.json's defaults: greedy unless do_sample is true */
	struct slot_sampling sampling;
};

/* Draft models are refused: draft_config_load reads those. */
int model_config_load(const char *directory, struct model_config *ret, struct model_error *error);
void model_config_deinit(struct model_config *config);
bool model_layer_has_experts(const struct model_config *config, uint32_t layer);
/* Elements of a token's attention output, of all heads. */
static inline uint32_t model_attention_width(const struct model_config *config)
{
	return config->n_heads * (config->latent.rank ? config->latent.v : config->head_dim);
}

/* Rope table [max_positions, head_dim]: cos for head_dim/2, then sin, attention factor applied. */
void model_rope_fill(const struct model_config *config, uint32_t max_positions, float *ret);
/* yarn's g(m) = 0.1 m ln(factor) + 1, or 1 for factors up to 1. */
double model_yarn_magnitude(double factor, double mscale);

struct model_layer {
	struct weight input_norm, post_norm; /* [1, hidden]; EAGLE has no input_norm */
	struct weight hidden_norm; /* [1, hidden] EAGLE-3, whose qkv has 2 hidden columns */
	struct weight qkv, qkv_bias;         /* q, k, v rows one after another */
	struct weight q_norm, k_norm;        /* data NULL: none */
	struct weight o, o_bias;
	struct weight gate_up, gate_up_bias; /* gate rows, then up rows; with experts the shared ones' */
	struct weight down, down_bias;
	/* latent attention, in place of qkv */
	struct weight q_a, q_a_bias, q_a_norm; /* data NULL: q is of the hidden state itself */
	struct weight q;                       /* [n_heads * (nope + rope), q_rank or hidden] */
	struct weight kv_a, kv_a_bias;         /* [rank + rope, hidden] */
	struct weight kv_a_norm;               /* [1, rank] */
	struct weight kv_b;                    /* [n_heads * (nope + v), rank] */
	/* experts; data NULL: a dense layer */
	struct weight router;                     /* [n, hidden] */
	struct weight router_bias;                /* [1, n] float32; for choosing */
	struct weight expert_gate_up, expert_down; /* one expert below another */
};

/* Tensors of its files that a model does not use: often a sign of a wrong config.json. */
struct model_unused {
	uint32_t n;            /* without those below */
	char first[96];        /* the name of one of these, cut */
	uint32_t n_buffers;    /* rotary frequencies, which config.json determines */
	uint32_t n_prediction; /* of layers behind the last that predict further tokens */
};

struct model {
	struct model_config config;
	struct device *device;
	uint32_t max_positions; /* rows of the rope table */
	enum dtype activation_dtype; /* the device's */
	struct weight embedding, final_norm, head; /* head may be the embedding */
	float *cos_sin;          /* device */
	struct model_layer *layers;
	/* draft models, whose embedding and head may be the target's; EAGLE has no final_norm */
	struct weight fc, fc_bias; /* [hidden, 2 hidden], EAGLE-3 [hidden, 3 hidden] */
	int32_t *d2t;              /* [draft.vocab_size] device; NULL: its ids are the target's */
	void *memory;            /* one device block for all of them */
	uint64_t bytes;          /* of that block */
	uint64_t weights_bytes;  /* likewise, without the rope table */
	double load_seconds;
	uint64_t file_bytes;     /* read from files */
	const char *reader;      /* "io_uring", "io_uring without workers" or "pread" (reader.h) */
	struct model_unused unused;
};

/* Bytes of device memory that the weights and the rope table will take on a device of that activation
 * dtype, from config and safetensors headers alone; checks every tensor. */
int model_measure(const char *directory, const struct model_config *config, uint32_t max_positions,
	enum dtype activation_dtype, uint64_t *ret_bytes, struct model_error *error);
/* Read the weights (reader.h), fuse q, k, v and gate, up, and upload them. progress, unless NULL, is
 * called now and then with the bytes done and in all. Makes a deep copy of config. The device is not
 * locked yet. 0, or -errno with a sentence. */
int model_load(struct device *device, const char *directory, const struct model_config *config,
	uint32_t max_positions, void (*progress)(void *userdata, uint64_t done, uint64_t total),
	void *userdata, struct model **ret, struct model_error *error);
void model_free(struct model *model);

/* The model's attention and KV cache on that device, with decode queries of one token. The caller sets
 * what is 0: of attention page_tokens, max_rows, max_tokens, max_pages, max_seq_len, n_kv_pages; of
 * the cache max_pages. `windows` is the config's. */
struct attention_config model_attention(
	const struct model_config *config, const struct device_info *info);
struct kv_config model_kv(
	const struct model_config *config, const struct device_info *info, uint32_t page_tokens);

/* ---- forward ---- */

/* Activations at fixed addresses, worst-case sizes: carved once (kernels/arena.h), used by every
 * pass on the lane, eager or captured; aliased between passes, never inside one. A draft model has
 * its own: its pass reads the target's. */
struct model_buffers {
	void *residual;     /* [max_tokens, hidden] act */
	void *normed;       /* [max_tokens, hidden] act */
	void *qkv;          /* [max_tokens, (n_heads + 2 n_kv_heads) * head_dim] act */
	void *attention;    /* [max_tokens, n_heads * head_dim] act */
	void *projected;    /* [max_tokens, hidden] act */
	void *gate_up;      /* [max_tokens, 2 intermediate] act */
	void *activated;    /* [max_tokens, intermediate] act */
	void *last_hidden;  /* [max_rows, hidden] act, after the final norm */
	float *logits;      /* [max_rows, vocab], or draft.vocab_size */
	/* latent attention: qkv is q, [max_tokens, n_heads * (nope + rope)]; attention is
	 * [max_tokens, n_heads * v] */
	void *q_a;          /* [max_tokens, q_rank] act, NULL if q has none */
	void *kv_a;         /* [max_tokens, rank + rope] act */
	/* experts, by pair of token and choice (kernels/ops.h) */
	float *router;           /* [max_tokens, n] */
	int32_t *experts;        /* [max_tokens, n_active] */
	float *expert_weights;   /* [max_tokens, n_active] */
	int32_t *expert_start;   /* [n + 1] */
	int32_t *pairs;          /* [max_tokens * n_active] */
	void *expert_gate_up;    /* [max_tokens * n_active, 2 intermediate] act */
	void *expert_activated;  /* [max_tokens * n_active, intermediate] act */
	void *expert_out;        /* [max_tokens * n_active, hidden] act */
	/* draft models */
	void *fused;    /* [max_tokens, 2 hidden] act: embedding and hidden state side by side */
	void *features; /* [max_tokens, 3 hidden] act EAGLE-3: for the target's pass to write */
};
/* max_rows: of logits; 1 + K a row where steps verify draft tokens. */
void model_buffers_carve(const struct model_config *config, uint32_t max_tokens, uint32_t max_rows,
	enum dtype activation_dtype, struct arena *arena, struct model_buffers *ret);

struct model_pass {
	const struct step_inputs *inputs;
	const struct model_buffers *buffers;
	uint32_t n_tokens, n_rows; /* what to launch: padded under FULL, real when eager */
	bool last_only; /* of the step's record (kernels/ops.h): one row of logits a row */
	const struct attention_backend *attention;
	struct attention_metadata *metadata; /* built for this batch */
	void *const *kv_layers;              /* [n_layers] */
	uint32_t page_tokens;
	/* NULL, or a replacement of attention->run, layer by layer. */
	int (*attend)(void *userdata, const struct attention_args *args);
	void *attend_userdata;
	/* NULL, or [n_tokens, 3 hidden] act := the residual at the inputs of the layers of
	 * model_feature_layers, for an EAGLE-3 draft model. */
	void *features;
};

/* The layers whose inputs are an EAGLE-3 draft model's features, in the order in which fc reads them,
 * for a target of 3 layers or more; with less than seven some are the same. */
void model_feature_layers(const struct model_config *target, uint32_t ret[MODEL_FEATURES]);

/* Queue (or record) the pass from ids and given embeddings to each token's normed hidden state. No
 * allocation. 0, or the status of the op that failed. */
int model_forward(const struct model *model, struct stream *stream, const struct model_pass *args);
/* From there to the logits of each row's last token; with max_drafts K, unless last_only, of the
 * 1 + K tokens a row that logit_index names. */
int model_logits(const struct model *model, struct stream *stream, const struct model_pass *args);

#endif
