/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_EXAMPLES_MAKE_CHECKPOINT_MODEL_H
#define MIMEO_EXAMPLES_MAKE_CHECKPOINT_MODEL_H

/*
 * What there is to make: a family, the numbers of a shape, and what follows from both, which is the
 * list of tensors and config.json.
 *
 * Each matrix is normal with variance 1 / columns, those that write the residual smaller by the
 * root of twice the layers (as GPT-2 does), norms are 1 +- 0.1, biases +- 0.1: activations and
 * logits keep the size of one at any depth.
 *
 * A deepseek_v3 has an MTP head. A draft (eagle, eagle3) is made for the target that the same
 * numbers make: it has one layer whatever they say. An eagle3's vocabulary is every so manieth id of the target's.
 */

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define LAYERS_MAX 1000u

enum family {
	LLAMA,
	MISTRAL,
	QWEN2,
	QWEN3,
	PHI3,
	QWEN3_MOE,
	GEMMA2,
	GEMMA3,
	DEEPSEEK_V2,
	DEEPSEEK_V3,
	EAGLE, /* drafts */
	EAGLE3,
	N_FAMILIES
};

enum number {
	HIDDEN,
	LAYERS,
	HEADS,
	KV_HEADS,
	HEAD_DIM,
	INNER,
	VOCAB,
	MAX_LENGTH,
	TIED,
	WINDOW,
	DRAFT_VOCAB,
	/* all that follow are not every family's (model_may_have): latent attention, then experts */
	RANK,
	Q_RANK, /* 0: queries have no latent */
	NOPE,
	ROPE,
	VALUE,
	EXPERTS, /* of a layer */
	ACTIVE,
	SHARED,
	EXPERT_INNER,
	GROUPS,
	GROUPS_ACTIVE,
	DENSE, /* layers without experts, the first ones */
	N_NUMBERS
};

struct shape {
	const char *name;
	enum family family;             /* where none is named */
	uint32_t n[N_NUMBERS];          /* WINDOW 0: none; DRAFT_VOCAB 0: as VOCAB */
	double rope_theta, rope_factor; /* factor 0: plain */
};

enum contents {
	NORMAL, /* bf16, of that mean and deviation */
	D2T,    /* i64: what added to an id of the draft's makes the target's */
	T2D,    /* bool: whether the target's id is one of the draft's */
};

struct tensor {
	char name[80];
	uint64_t rows, cols; /* rows 0: a vector */
	enum contents contents;
	double deviation, mean;
};

struct model {
	enum family family;
	struct shape shape;
	struct tensor *tensors; /* in the order of the files */
	uint32_t n_tensors;
	uint64_t bytes; /* of all tensors */
	uint32_t target_layers; /* of a draft: the layers of the model that the same sizes make */
};

#define EAGLE3_LAYERS_MIN 3u /* of a model that an EAGLE-3 can draft for */

/* By name. 0, or -1 with a sentence. */
int model_take_family(struct model *model, const char *name);
int model_take_shape(struct model *model, const char *name);
bool model_is_deepseek(const struct model *model);
/* Whether the number, RANK or later, has a meaning for the family; the families for which it has one, as text. */
bool model_may_have(const struct model *model, enum number number);
const char *model_families_with(enum number number);
/* What the numbers have to do with each other, and rope scaling, which is Llama's. 0, or -1 with a
 * sentence. */
int model_check(struct model *model);
/* The class by its name in transformers. */
const char *model_architecture(const struct model *model);
/* Fill in the tensors: 0, or -1 with a sentence. */
int model_list(struct model *model);
void model_deinit(struct model *model);
/* config.json; arg: a struct model */
void model_print_config(const void *arg, FILE *file);

/* The target's id of a draft's: ascending, no two the same. */
static inline uint64_t model_target_id(const struct model *model, uint64_t draft_id)
{
	return draft_id * model->shape.n[VOCAB] / model->shape.n[DRAFT_VOCAB];
}

static inline uint64_t tensor_elements(const struct tensor *tensor)
{
	return (tensor->rows ? tensor->rows : 1) * tensor->cols;
}

static inline uint64_t tensor_width(const struct tensor *tensor)
{
	return tensor->contents == D2T ? 8 : tensor->contents == T2D ? 1 : 2;
}

static inline uint64_t tensor_bytes(const struct tensor *tensor)
{
	return tensor_width(tensor) * tensor_elements(tensor);
}

#endif
