/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_MANAGER_H
#define MIMEO_ATTENTION_MANAGER_H

/*
 * Shared by the backends: checks of a configuration, the first part of every manager and metadata object, and
 * checks of a batch and of a layer's arguments.
 *
 * A backend's own manager has a struct attention_manager as its first member, its own metadata a
 * struct attention_metadata; attention_manager_new and attention_metadata_new take the size of the
 * whole.
 */

#include "attention/attention.h"
#include "kernels/arena.h"

/* The table of kernels `name`_cpu_kernels or `name`_cuda_kernels for a kind of device (struct
 * device_info), or NULL. */
#ifdef MIMEO_HAVE_CUDA
#define ATTENTION_KERNELS(name, kind)                                                             \
	(strcmp(kind, "cpu") == 0    ? &name##_cpu_kernels                                        \
		: strcmp(kind, "cuda") == 0 ? &name##_cuda_kernels                                \
					    : NULL)
#else
#define ATTENTION_KERNELS(name, kind) (strcmp(kind, "cpu") == 0 ? &name##_cpu_kernels : NULL)
#endif

/* ---- configuration: 0, or -ENOTSUP and one sentence in why[size] ---- */

/* Attention whose cache holds keys and values. */
int attention_check_gqa(const struct attention_config *config, char *why, size_t size);
static inline bool attention_fp8(const struct attention_config *config)
{
	return config->kv_dtype == DTYPE_E4M3;
}
/* Latent attention. */
int attention_check_latent(const struct attention_config *config, char *why, size_t size);

/* ---- factors of keys and values in fp8 ---- */

/* For kernels whose scores and sums are of codes: *scale takes the keys' factor, and the values' one is for the whole
 * sum, so that no element costs a product. Without fp8 that is 1. */
static inline void attention_fold_factors(bool fp8, float *scale, struct kv_factors *factors)
{
	if (fp8)
		*scale *= factors->key;
	else
		factors->value = 1;
}

/* ---- managers ---- */

struct attention_manager {
	struct device *device;
	char kind[8]; /* of the device (struct device_info) */
	struct attention_config config; /* windows: the manager's own copy */
	struct step_inputs inputs;
	uint32_t *windows; /* [n_layers] */
	/* The distinct windows of the layers. What a backend computes once a step depends on the
	 * window, so it has one plan for each. */
	uint32_t *plan_windows; /* [n_plans] */
	uint32_t n_plans;
};

/* A backend's: `size` bytes, zeroed behind the common part, then filled by `fill`. -ENOTSUP if the
 * configuration does not pass the backend's check; -ENOMEM; -EINVAL if the inputs are smaller than
 * the configuration says; what fill fails with, the manager being freed by the backend. */
int attention_manager_new(const struct attention_backend *backend, size_t size,
	struct device *device, const struct attention_config *config,
	const struct step_inputs *inputs, int (*fill)(struct attention_manager *manager),
	struct attention_manager **ret);
/* The common part and the object. */
void attention_manager_free(struct attention_manager *manager);
/* The index in plan_windows of a window that a layer has. */
uint32_t attention_plan_index(const struct attention_manager *manager, uint32_t window);
/* Tokens that the pages of one row hold, at most INT32_MAX. */
uint32_t attention_capacity(const struct attention_config *config);

/* ---- device memory ---- */

/* arena_alloc, then zeros: kernels that run without a plan find no work in them. Waits. */
int attention_alloc_zeroed(struct device *device,
	void (*carve)(void *userdata, struct arena *arena), void *userdata, void **ret);

/* ---- metadata ---- */

struct attention_metadata {
	struct attention_manager *manager;
	bool built;
	bool capturable; /* the batch is one that the backend's level allows in a graph */
	uint32_t padded_rows, padded_tokens;
};

/* `size` bytes, zeroed behind the common part. -ENOMEM. */
int attention_metadata_new(
	struct attention_manager *manager, size_t size, struct attention_metadata **ret);
static inline const int32_t *attention_block_table(
	const struct attention_manager *manager, const struct attention_args *args)
{
	return args->block_table ? args->block_table : manager->inputs.block_table;
}

/* For backends whose metadata owns nothing. */
void attention_metadata_free(struct attention_metadata *metadata);
/* Begin a build: forget the batch before, check this one and keep its padded counts. `level` and
 * `max_query` are the backend's. The backend sets `built` when it has done its part. -EINVAL if a
 * count is out of range or the lengths contradict it. */
int attention_metadata_begin(struct attention_metadata *metadata,
	const struct attention_batch *batch, enum attention_support level, uint32_t max_query);
/* Before a run: -EINVAL if nothing was built, if the layer does not exist or an operand has another
 * shape; -ENOTSUP if the stream captures a batch beyond the backend's level. */
int attention_run_check(const struct attention_metadata *metadata, struct stream *stream,
	const struct attention_args *args);

#endif
