/* SPDX-License-Identifier: MIT */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/checkpoint.h"
#include "daemon/model/d2t.h"
#include "daemon/model/error.h"
#include "daemon/model/kv_factors.h"
#include "daemon/model/upload.h"
#include "ipc/cleanup.h"
#include "ipc/clock.h"
#include "kernels/packed.h"

/* ---- host side ---- */

void model_free(struct model *model)
{
	if (!model)
		return;
	if (model->memory)
		model->device->ops->mem_free(model->device, model->memory);
	text_files_free(model->files);
	model_config_deinit(&model->config);
	free(model->layers);
	free(model->directory);
	free(model);
}

DEFINE_CLEANUP(model, struct model, model_free)

static struct model *model_load_new(const struct model_config *config, uint32_t max_positions)
{
	CLEANUP(cleanup_model) struct model *model = calloc(1, sizeof(*model));

	if (!model)
		return NULL;
	model->config = *config;
	model->max_positions = max_positions;
	model->config.quantisation = NULL; /* what the weights are no longer */
	model->config.windows = calloc(config->n_layers, sizeof(*config->windows));
	model->layers = calloc(config->n_layers, sizeof(*model->layers));
	if (!model->config.windows || !model->layers)
		return NULL;
	memcpy(model->config.windows, config->windows, config->n_layers * sizeof(*config->windows));
	return STEAL(model);
}

/* A model planned over nothing: sizes are known, no memory is taken. */
static int model_load_count(const char *directory, const struct model_config *config,
	uint32_t max_positions, const struct device_info *info, const struct safetensors *checkpoint,
	struct model **ret, int32_t **ret_d2t, struct model_error *error)
{
	CLEANUP(cleanup_model) struct model *model = model_load_new(config, max_positions);
	struct plan plan = {
		.directory = directory,
		.checkpoint = checkpoint,
		.activation_dtype = info->activation_dtype,
		.packs = info->packs,
		.quantisation = config->quantisation,
		.error = error,
	};
	int rc;

	if (!model)
		return model_fail(error, -ENOMEM, "%s: no memory for its layers", directory);
	rc = plan_model(&plan, model);
	if (rc)
		return rc;
	rc = kv_factors_read(checkpoint, directory, config->quantisation, model, error);
	if (rc)
		return rc;
	rc = d2t_read(checkpoint, directory, config, ret_d2t, error);
	if (rc)
		return rc;
	model->activation_dtype = info->activation_dtype;
	model->packs = info->packs;
	model->bytes = plan.arena.used;
	*ret = STEAL(model);
	return 0;
}

int model_measure(const char *directory, const struct model_config *config, uint32_t max_positions,
	const struct device_info *info, uint64_t *ret_bytes, struct model_error *error)
{
	CLEANUP(safetensors_deinit) struct safetensors checkpoint = {0};
	CLEANUP(cleanup_model) struct model *model = NULL;
	int rc = checkpoint_open(directory, &checkpoint, error);

	if (rc)
		return rc;
	rc = model_load_count(directory, config, max_positions, info, &checkpoint, &model, NULL, error);
	if (rc)
		return rc;
	*ret_bytes = model->bytes;
	return 0;
}

/* The rope table, which a thread computes while the weights are read. */
struct model_load_rope {
	const struct model *model;
	float *table;
	size_t bytes;
	pthread_t thread;
	bool has_thread;
};

static void *model_load_fill_rope(void *arg)
{
	const struct model_load_rope *rope = arg;

	model_rope_fill(&rope->model->config, rope->model->max_positions, rope->table);
	return NULL;
}

static int model_load_begin_rope(struct model_load_rope *rope, const struct model *model,
	const char *directory, struct model_error *error)
{
	size_t bytes = (size_t)model_n_rope_tables(&model->config) * model->max_positions *
		model->config.head_dim * sizeof(float);

	*rope = (struct model_load_rope){.model = model, .bytes = bytes};
	rope->table = malloc(bytes ? bytes : 1);
	if (!rope->table)
		return model_fail(error, -ENOMEM, "%s: no memory for a rope table of %zu bytes",
			directory, bytes);
	rope->has_thread = pthread_create(&rope->thread, NULL, model_load_fill_rope, rope) == 0;
	if (!rope->has_thread)
		model_load_fill_rope(rope);
	return 0;
}

static void model_load_join_rope(struct model_load_rope *rope)
{
	if (rope->has_thread)
		pthread_join(rope->thread, NULL);
	rope->has_thread = false;
}

static void model_load_rope_deinit(struct model_load_rope *rope)
{
	model_load_join_rope(rope);
	free(rope->table);
}

/* ---- a model ---- */

/* The types of blocks that the placements have. */
static void model_load_describe_blocks(const struct plan *plan, char ret[QUANTISATION_TEXT_MAX])
{
	size_t length = 0;

	*ret = 0;
	for (uint32_t i = 0; i < plan->n_placements; i++) {
		const struct safetensors_tensor *t = plan->placements[i].tensor;

		if (t->format && !strstr(ret, t->dtype_name) &&
			length + strlen(t->dtype_name) + 3 < QUANTISATION_TEXT_MAX)
			length += (size_t)snprintf(ret + length, QUANTISATION_TEXT_MAX - length, "%s%s",
				length ? ", " : "", t->dtype_name);
	}
}

static void model_load_describe(const struct plan *plan, struct model *model)
{
	const char *wide = model->activation_dtype == DTYPE_F32 ? "f32" : "bf16";
	char text[QUANTISATION_TEXT_MAX];
	uint32_t n = 0, n_packed = 0;
	size_t length;

	if (plan->quantisation)
		quantisation_describe(plan->quantisation, text);
	else
		model_load_describe_blocks(plan, text);
	for (uint32_t i = 0; i < plan->n_placements; i++) {
		const struct plan_placement *p = &plan->placements[i];

		n += p->source.format != NULL;
		n_packed += p->source.format && packed_is(p->dtype);
		model->head_rounded |= p->rounds;
	}
	if (*text && !n_packed)
		snprintf(model->quantised, sizeof(model->quantised), "%s, widened to %s at load", text, wide);
	else if (*text && n_packed == n)
		snprintf(model->quantised, sizeof(model->quantised), "%s, kept packed", text);
	else if (*text)
		snprintf(model->quantised, sizeof(model->quantised),
			"%s, %u of %u matrices kept packed, others widened to %s at load", text, n_packed, n, wide);
	length = strlen(model->quantised);
	if (model->head_rounded)
		snprintf(model->quantised + length, sizeof(model->quantised) - length, "%shead fp8, %s%s%s",
			length ? "; " : "", packed_is(model->head.dtype) ? "kept packed" : "widened to ",
			packed_is(model->head.dtype) ? "" : wide, packed_is(model->head.dtype) ? "" : " at load");
}

static int model_load_place(struct model *model, const struct safetensors *checkpoint,
	const struct quantisation *quantisation, struct upload *upload)
{
	struct plan plan = {
		.directory = upload->directory,
		.checkpoint = checkpoint,
		.activation_dtype = model->activation_dtype,
		.packs = model->packs,
		.quantisation = quantisation,
		.arena = {.base = model->memory, .size = model->bytes},
		.error = upload->error,
	};
	int rc;

	upload->placements =
		calloc(plan_placements_max(&model->config), sizeof(*upload->placements));
	if (!upload->placements)
		return model_fail(upload->error, -ENOMEM, "%s: no memory for its layers",
			upload->directory);
	plan.placements = upload->placements;
	rc = plan_model(&plan, model);
	if (rc)
		return rc;
	upload->n_placements = plan.n_placements;
	model_load_describe(&plan, model);
	rc = plan_unused(&plan, &model->config, &model->unused);
	return rc ? model_fail(upload->error, rc, "%s: no memory to look through its tensors",
			    upload->directory)
		  : 0;
}

/* The model has its memory; place and fill it. */
static int model_load_fill(
	struct model *model, const struct safetensors *checkpoint,
	const struct quantisation *quantisation, const int32_t *d2t, struct upload *upload)
{
	CLEANUP(model_load_rope_deinit) struct model_load_rope rope = {0};
	struct device *device = model->device;
	int rc = model_load_place(model, checkpoint, quantisation, upload);

	if (rc)
		return rc;
	rc = model_load_begin_rope(&rope, model, upload->directory, upload->error);
	if (rc)
		return rc;
	rc = upload_run(upload, checkpoint, &model->reader);
	if (rc)
		return rc;
	model->file_bytes = upload->done;
	model_load_join_rope(&rope);
	rc = device->ops->copy(device, model->cos_sin, rope.table, rope.bytes);
	if (rc)
		return upload_device_failed(upload->error, upload->directory,
			"the rope table cannot be uploaded", rc);
	if (!model->d2t)
		return 0;
	rc = device->ops->copy(
		device, model->d2t, d2t, model->config.draft.vocab_size * sizeof(*d2t));
	return rc ? upload_device_failed(
			    upload->error, upload->directory, "d2t cannot be uploaded", rc)
		  : 0;
}

static int model_load_take_memory(
	struct model *model, const char *directory, struct model_error *error)
{
	char what[96];
	int rc = model->device->ops->mem_alloc(model->device, model->bytes, &model->memory);

	if (!rc)
		return 0;
	snprintf(what, sizeof(what), "%" PRIu64 " bytes of device memory are not available",
		model->bytes);
	return upload_device_failed(error, directory, what, rc);
}

/* Before anything is read or taken. */
static int model_load_check_ops(const struct device *device, const char *directory,
	const struct model_config *config, const char *kind, struct model_error *error)
{
	const struct kernel_ops *ops = device->kernels;
	const char *lacking = NULL;

	if (config->latent.rank && !(ops->mla_rope_and_cache && ops->head_gemm))
		lacking = "latent attention";
	else if (config->experts.n && !(ops->moe_route && ops->moe_group && ops->expert_gemm &&
				ops->expert_gated_gemm && ops->moe_combine))
		lacking = "experts";
	if (!lacking)
		return 0;
	return model_fail(error, -ENOTSUP,
		"%s: architectures \"%s\" needs %s, which the %s device does not compute",
		directory, config->architecture, lacking, kind);
}

int model_load(struct device *device, const char *directory, const struct model_config *config,
	uint32_t max_positions, void (*progress)(void *userdata, uint64_t done, uint64_t total),
	void *userdata, struct model **ret, struct model_error *error)
{
	CLEANUP(safetensors_deinit) struct safetensors checkpoint = {0};
	CLEANUP(cleanup_model) struct model *model = NULL;
	CLEANUP(cleanup_free) int32_t *d2t = NULL; /* d2t.h; NULL: there is none */
	CLEANUP(upload_deinit) struct upload upload = {
		.device = device,
		.directory = directory,
		.progress = progress,
		.userdata = userdata,
		.error = error,
	};
	uint64_t start_ns = clock_ns();
	struct device_info info;
	int rc;

	if (!max_positions)
		return model_fail(error, -EINVAL, "%s: the maximum length is 0 tokens", directory);
	rc = device->ops->info(device, &info);
	if (rc)
		return upload_device_failed(error, directory, "the device does not answer", rc);
	rc = model_load_check_ops(device, directory, config, info.kind, error);
	if (rc)
		return rc;
	rc = checkpoint_open(directory, &checkpoint, error);
	if (rc)
		return rc;
	rc = model_load_count(directory, config, max_positions, &info, &checkpoint, &model, &d2t, error);
	if (rc)
		return rc;
	model->device = device;
	model->directory = strdup(directory);
	if (!model->directory)
		return model_fail(error, -ENOMEM, "%s: out of memory", directory);
	model->deterministic = strcmp(info.kind, "cpu") == 0;
	rc = model_load_take_memory(model, directory, error);
	if (rc)
		return rc;
	rc = model_load_fill(model, &checkpoint, config->quantisation, d2t, &upload);
	if (rc)
		return rc;
	model->load_seconds = (double)(clock_ns() - start_ns) * 1e-9;
	*ret = STEAL(model);
	return 0;
}
