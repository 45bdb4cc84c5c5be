/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_MODEL_H
#define MIMEO_DAEMON_MODEL_MODEL_H

/*
 * A model: a Hugging Face directory, read in three moves, each of which can fail before the next one
 * costs anything: CONFIG (model_config.h), TENSORS (safetensors headers: every needed tensor is
 * present with its shape, nothing overlaps or leaves its file), WEIGHTS (memory taken, bytes read and
 * uploaded). Then it runs FORWARD passes (transformer.h).
 */

#include "daemon/model/model_config.h"
#include "daemon/model/text_files.h"
#include "kernels/ops.h"

struct model_layer {
	struct weight input_norm, post_norm; /* [1, hidden]; EAGLE has no input_norm */
	struct weight pre_feed_norm, post_feed_norm; /* [1, hidden] Gemma, whose post_norm is of attention's output */
	struct weight hidden_norm; /* [1, hidden] EAGLE-3, whose qkv has 2 hidden columns; an MTP head's hnorm */
	struct weight embedding_norm; /* [1, hidden] an MTP head's enorm */
	/* [hidden] device: the order of the columns of qkv and of gate_up (op_rms_norm); NULL: that of the hidden state */
	const uint32_t *input_order, *post_order;
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
	struct kv_factors kv_factors;          /* of config.kv_fp8 */
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
	uint32_t n_prediction; /* of layers behind the last that predict further tokens (MTP heads) ... */
	uint32_t n_heads;      /* ... and how many of these layers */
};

struct model {
	struct model_config config;
	struct device *device;
	uint32_t max_positions; /* rows of the rope table */
	/* A token's results depend on its own sequence alone, bitwise (the ops' `invariant`). The loader sets it,
	 * before the first pass; on the cpu device it is so in any case. */
	bool deterministic;
	enum dtype activation_dtype; /* the device's */
	bool packs;                  /* the device's: linear weights may be packed (kernels/packed.h) */
	struct weight embedding, final_norm, head; /* head may be the embedding */
	bool has_head; /* false: its files have none, as those that make embeddings of texts; `head` is the embedding,
	                  so that steps run, and what it gives means nothing */
	float *cos_sin;          /* device; model_rope_fill */
	struct model_layer *layers;
	/* draft models, whose embedding and head may be the target's; EAGLE has no final_norm */
	struct weight fc, fc_bias; /* [hidden, 2 hidden], EAGLE-3 [hidden, 3 hidden]; an MTP head's eh_proj */
	int32_t *d2t;              /* [draft.vocab_size] device; NULL: its ids are the target's */
	void *memory;            /* one device block for all of them */
	/* "fp8 in blocks of 128 x 128, widened to f32 at load", or ", kept packed", or ", 7 of 8 matrices kept
	 * packed, others widened to bf16 at load"; "": its files are not quantised. Of a GGUF file the types of
	 * its tensors: "Q4_K, Q6_K, widened to bf16 at load". With a head that was rounded, alone or behind "; ":
	 * "head fp8, kept packed", or "head fp8, widened to f32 at load" */
	char quantised[QUANTISATION_TEXT_MAX + 144];
	uint32_t n_kv_factors;   /* layers whose factors of keys and values are the files' */
	bool head_rounded;       /* to e4m3, as config.head_fp8 asks */
	uint64_t bytes;          /* of that block */
	uint64_t weights_bytes;  /* likewise, without the rope table */
	char *directory; /* or GGUF file, as given to model_load */
	double load_seconds;
	uint64_t file_bytes;     /* read from files */
	const char *reader;      /* "io_uring", "io_uring without workers" or "pread" (reader.h) */
	struct model_unused unused;
	struct mimeo_model_files *files; /* for clients; set by who loads the model; NULL: none */
};

/* Below, `directory` may be a GGUF file. */

/* Bytes of device memory that the weights and the rope table will take on a device of that kind (its
 * activation_dtype and packs), from config and headers of files, and the groups of columns that a quantised
 * checkpoint stores; checks every tensor. */
int model_measure(const char *directory, const struct model_config *config, uint32_t max_positions,
	const struct device_info *info, uint64_t *ret_bytes, struct model_error *error);
/* Read the weights (reader.h), fuse q, k, v and gate, up, and upload them. progress, unless NULL, is
 * called now and then with the bytes done and in all. Makes a deep copy of config. The device is not
 * locked yet. 0, or -errno with a sentence. */
int model_load(struct device *device, const char *directory, const struct model_config *config,
	uint32_t max_positions, void (*progress)(void *userdata, uint64_t done, uint64_t total),
	void *userdata, struct model **ret, struct model_error *error);
void model_free(struct model *model);

#endif
