/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_PLAN_H
#define MIMEO_DAEMON_MODEL_PLAN_H

/*
 * Which tensor of a checkpoint goes where in a model's one block of memory. The same code counts
 * (arena base NULL) and places, and checks each tensor's presence, shape and dtype.
 */

#include "daemon/model/model.h"
#include "daemon/model/quantised.h"
#include "daemon/model/safetensors.h"
#include "kernels/arena.h"

/* A tensor and its place in memory. */
struct plan_placement {
	const struct safetensors_tensor *tensor; /* or the source's data */
	struct quantised_source source;          /* format NULL: it is not quantised */
	uint8_t *target;
	enum dtype dtype;   /* in memory; E4M3, U4 and U4_32: packed (kernels/packed.h) */
	float *factors;     /* [rows] device, of a matrix packed without groups; else NULL */
	/* Of heads whose rows get another order, which begin the tensor: 0, or rows of one, and their number. The
	 * order: rotary_rows 0: the rows are pairs (safetensors.h); else rope rotates so many of a head's first rows,
	 * and each of their halves becomes the beginning of one of the head's. */
	uint32_t head_rows, n_heads, rotary_rows;
	uint32_t *order;    /* [cols] device, which gets the order of a reordered matrix's columns; or NULL */
	bool adds_one;      /* to each element, in float32; a vector */
	bool rounds;        /* a matrix, not quantised in the file, that is rounded to e4m3 at load (rounding.h) */
};

struct plan {
	const char *directory; /* for errors */
	/* The device's. With float32, weights keep the checkpoint's dtype (float32 if they are quantised
	 * or fused parts differ); else all that are not packed get the activations' dtype, which the device's GEMM
	 * needs. */
	enum dtype activation_dtype;
	bool packs; /* the device's: quantised weights that only products take stay packed if they can */
	const struct safetensors *checkpoint;
	const struct quantisation *quantisation; /* NULL: nothing is */
	struct arena arena;
	struct plan_placement *placements; /* [plan_placements_max], or NULL: none wanted */
	uint32_t n_placements;
	struct model_error *error;
	/* plan_model's: */
	const char *assumed; /* as in struct model_config */
	uint32_t max_placements;
	const struct model_config *config;
	uint32_t rotary_dim;
	int rc; /* 0, or the first failure */
};

/* Of one that is packed and placed. */
static inline struct quantised_packing plan_packing(const struct plan_placement *p)
{
	return (struct quantised_packing){.dtype = p->dtype, .grouped = !p->factors};
}

/* Of a matrix. */
static inline uint32_t plan_cols(const struct plan_placement *p)
{
	return p->source.format ? p->source.cols : (uint32_t)p->tensor->shape[1];
}

/* Bytes in memory of the row of a matrix that is quantised or rounded: packed, of an eighth of the units of 8 rows. */
size_t plan_row_bytes(const struct plan_placement *p);
/* Rows of it that are converted together, at the least. */
uint32_t plan_rows_together(const struct plan_placement *p);

/* The name of a tensor of a layer, "self_attn.q_proj.weight" and the like; NUL-terminated, perhaps cut. */
#define PLAN_NAME_MAX 96
void plan_layer_name(const struct model_config *config, uint32_t layer, const char *part, char ret[PLAN_NAME_MAX]);

/* Upper bound of placements. */
uint32_t plan_placements_max(const struct model_config *config);
/* Set the model's weights and cos_sin; config, max_positions and layers are already set. Of a draft
 * model also d2t, whose contents are d2t.h's; weights that it takes from its target stay as they
 * are. 0, or -errno with a sentence. */
int plan_model(struct plan *plan, struct model *model);
/* The checkpoint's tensors that a plan with placements has not placed. 0, or -ENOMEM. */
int plan_unused(const struct plan *plan, const struct model_config *config, struct model_unused *ret);

#endif
