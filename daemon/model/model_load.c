/* SPDX-License-Identifier: MIT */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/d2t.h"
#include "daemon/model/error.h"
#include "daemon/model/plan.h"
#include "daemon/model/reader.h"
#include "ipc/cleanup.h"
#include "ipc/clock.h"
#include "kernels/convert.h"

#define CHUNK_MAX (4u << 20)
#define CHUNK_MULTIPLE 4096u
#define READS_IN_FLIGHT 16 /* on an H200, 16 GB from the page cache: 8 load 23 GB/s, 16 load 45 */

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
	model->config.windows = calloc(config->n_layers, sizeof(*config->windows));
	model->layers = calloc(config->n_layers, sizeof(*model->layers));
	if (!model->config.windows || !model->layers)
		return NULL;
	memcpy(model->config.windows, config->windows, config->n_layers * sizeof(*config->windows));
	return STEAL(model);
}

/* A model planned over nothing: sizes are known, no memory is taken. */
static int model_load_count(const char *directory, const struct model_config *config,
	uint32_t max_positions, enum dtype activation_dtype, const struct safetensors *checkpoint,
	struct model **ret, int32_t **ret_d2t, struct model_error *error)
{
	CLEANUP(cleanup_model) struct model *model = model_load_new(config, max_positions);
	struct plan plan = {
		.directory = directory,
		.checkpoint = checkpoint,
		.activation_dtype = activation_dtype,
		.error = error,
	};
	int rc;

	if (!model)
		return model_fail(error, -ENOMEM, "%s: no memory for its layers", directory);
	rc = plan_model(&plan, model);
	if (rc)
		return rc;
	rc = d2t_read(checkpoint, directory, config, ret_d2t, error);
	if (rc)
		return rc;
	model->activation_dtype = activation_dtype;
	model->bytes = plan.arena.used;
	*ret = STEAL(model);
	return 0;
}

int model_measure(const char *directory, const struct model_config *config, uint32_t max_positions,
	enum dtype activation_dtype, uint64_t *ret_bytes, struct model_error *error)
{
	CLEANUP(safetensors_deinit) struct safetensors checkpoint = {0};
	CLEANUP(cleanup_model) struct model *model = NULL;
	int rc = safetensors_open(directory, &checkpoint, error);

	if (rc)
		return rc;
	rc = model_load_count(directory, config, max_positions, activation_dtype, &checkpoint,
		&model, NULL, error);
	if (rc)
		return rc;
	*ret_bytes = model->bytes;
	return 0;
}

/* ---- from files to the device ---- */

struct model_upload {
	struct device *device;
	const char *directory;
	struct plan_placement *placements; /* in the order of the files */
	uint32_t n_placements;
	struct stream *stream; /* of the copies */
	struct event *copied[READS_IN_FLIGHT]; /* by chunk */
	void *chunks; /* pinned, READS_IN_FLIGHT of them */
	size_t chunk_bytes;
	float *widened; /* a chunk as float32, or narrowed again */
	int32_t *d2t;   /* d2t.h; NULL: there is none */
	struct reader_segment *segments; /* [n_placements] */
	void (*progress)(void *userdata, uint64_t done, uint64_t total);
	void *userdata;
	uint64_t done, total;
	struct model_error *error;
};

static int model_load_device_failed(
	struct model_error *error, const char *directory, const char *what, int rc)
{
	return model_fail(error, rc == DEVICE_E_MEMORY ? -ENOMEM : rc < 0 ? rc : -EIO, "%s: %s: %s",
		directory, what, device_strerror(rc));
}

static int model_load_upload_failed(const struct model_upload *upload, int rc)
{
	return model_load_device_failed(
		upload->error, upload->directory, "weights cannot be uploaded", rc);
}

static struct event *model_load_event_of(const struct model_upload *upload, const void *data)
{
	size_t chunk = (size_t)((const char *)data - (const char *)upload->chunks) /
		upload->chunk_bytes;

	assert(chunk < READS_IN_FLIGHT);
	return upload->copied[chunk];
}

/* As another dtype, in host memory that is used again at once. */
static int model_load_copy_converted(struct model_upload *upload, const struct plan_placement *p,
	void *target, const void *data, size_t n)
{
	const struct weight source = {.data = data, .dtype = p->tensor->dtype};

	assert(n * sizeof(float) <= 2 * upload->chunk_bytes);
	weight_to_f32(upload->widened, &source, 0, n);
	/* In place: an element of two bytes is written after the one of four was read. */
	if (p->dtype == DTYPE_BF16)
		f32_to_bf16_n(upload->widened, upload->widened, n);
	return upload->device->ops->copy(
		upload->device, target, upload->widened, n * dtype_bytes(p->dtype));
}

static int model_load_copy(struct model_upload *upload, void *target, const void *data, size_t bytes)
{
	const struct device_ops *ops = upload->device->ops;
	int rc = ops->copy_async(upload->stream, target, data, bytes);

	return rc ? rc : ops->event_record(model_load_event_of(upload, data), upload->stream);
}

/* The copy goes on while the next chunks are read; release waits for it. */
static int model_load_deliver(
	void *userdata, uint32_t segment, uint64_t offset, const void *data, size_t bytes)
{
	struct model_upload *upload = userdata;
	const struct plan_placement *p = &upload->placements[segment];
	size_t width = dtype_bytes(p->tensor->dtype), n = bytes / width, first = offset / width;
	uint8_t *target = p->target + first * dtype_bytes(p->dtype);
	bool kept = p->dtype == p->tensor->dtype;
	int rc;

	assert(segment < upload->n_placements && offset + bytes <= p->tensor->bytes);
	rc = kept ? model_load_copy(upload, target, data, bytes)
		  : model_load_copy_converted(upload, p, target, data, n);
	if (rc)
		return model_load_upload_failed(upload, rc);
	upload->done += bytes;
	if (upload->progress)
		upload->progress(upload->userdata, upload->done, upload->total);
	return kept ? READER_KEPT : 0;
}

static int model_load_release(void *userdata, const void *data)
{
	const struct model_upload *upload = userdata;
	int rc = upload->device->ops->event_sync(model_load_event_of(upload, data));

	return rc ? model_load_upload_failed(upload, rc) : 0;
}

static int model_load_in_file_order(const void *a, const void *b)
{
	const struct safetensors_tensor *x = ((const struct plan_placement *)a)->tensor;
	const struct safetensors_tensor *y = ((const struct plan_placement *)b)->tensor;

	if (x->file != y->file)
		return x->file < y->file ? -1 : 1;
	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static int model_load_read(struct model_upload *upload, const struct safetensors *checkpoint,
	const char **ret_reader)
{
	const struct reader_options options = {
		.memory = upload->chunks,
		.chunk_bytes = upload->chunk_bytes,
		.depth = READS_IN_FLIGHT,
		.deliver = model_load_deliver,
		.release = model_load_release,
		.userdata = upload,
	};
	int rc, synced;

	for (uint32_t i = 0; i < upload->n_placements; i++) {
		const struct safetensors_tensor *t = upload->placements[i].tensor;

		upload->segments[i] = (struct reader_segment){
			.fd = checkpoint->files[t->file].fd,
			.path = checkpoint->files[t->file].path,
			.offset = t->offset,
			.bytes = t->bytes,
		};
	}
	rc = reader_run(
		upload->segments, upload->n_placements, &options, ret_reader, upload->error);
	/* The last copies, even of a failed reading: they use memory that is about to be freed. */
	synced = upload->device->ops->stream_sync(upload->stream);
	if (rc)
		return rc;
	assert(synced || upload->done == upload->total);
	return synced ? model_load_upload_failed(upload, synced) : 0;
}

static int model_load_take_stream(struct model_upload *upload)
{
	const struct device_ops *ops = upload->device->ops;
	int rc = ops->stream_new(upload->device, &upload->stream);

	for (uint32_t i = 0; i < READS_IN_FLIGHT && !rc; i++)
		rc = ops->event_new(upload->device, &upload->copied[i]);
	return rc;
}

static void model_load_upload_deinit(struct model_upload *upload)
{
	const struct device_ops *ops = upload->device->ops;

	for (uint32_t i = 0; i < READS_IN_FLIGHT; i++) {
		if (upload->copied[i])
			ops->event_free(upload->copied[i]);
	}
	if (upload->stream)
		ops->stream_free(upload->stream);
	if (upload->chunks)
		ops->host_free(upload->device, upload->chunks);
	free(upload->d2t);
	free(upload->widened);
	free(upload->segments);
	free(upload->placements);
}

/* Chunks no larger than the largest tensor needs. */
static void model_load_size_chunks(struct model_upload *upload)
{
	uint64_t largest = 0;

	for (uint32_t i = 0; i < upload->n_placements; i++) {
		uint64_t bytes = upload->placements[i].tensor->bytes;

		upload->total += bytes;
		largest = bytes > largest ? bytes : largest;
	}
	largest = largest > CHUNK_MAX ? CHUNK_MAX : largest + CHUNK_MULTIPLE - 1;
	upload->chunk_bytes = largest - largest % CHUNK_MULTIPLE;
}

static int model_load_weights(struct model_upload *upload, const struct safetensors *checkpoint,
	const char **ret_reader)
{
	int rc;

	qsort(upload->placements, upload->n_placements, sizeof(*upload->placements),
		model_load_in_file_order);
	model_load_size_chunks(upload);
	rc = upload->device->ops->host_alloc(upload->device, READS_IN_FLIGHT * upload->chunk_bytes,
		&upload->chunks);
	if (rc)
		return model_load_device_failed(
			upload->error, upload->directory, "no pinned memory for reads", rc);
	upload->segments = calloc(upload->n_placements, sizeof(*upload->segments));
	upload->widened = malloc(2 * upload->chunk_bytes);
	if (!upload->segments || !upload->widened)
		return model_fail(
			upload->error, -ENOMEM, "%s: no memory for reads", upload->directory);
	rc = model_load_take_stream(upload);
	if (rc)
		return model_load_device_failed(
			upload->error, upload->directory, "no stream for uploads", rc);
	return model_load_read(upload, checkpoint, ret_reader);
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
	size_t bytes = (size_t)model->max_positions * model->config.head_dim * sizeof(float);

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

static int model_load_place(
	struct model *model, const struct safetensors *checkpoint, struct model_upload *upload)
{
	struct plan plan = {
		.directory = upload->directory,
		.checkpoint = checkpoint,
		.activation_dtype = model->activation_dtype,
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
	rc = plan_unused(&plan, &model->config, &model->unused);
	return rc ? model_fail(upload->error, rc, "%s: no memory to look through its tensors",
			    upload->directory)
		  : 0;
}

/* The model has its memory; place and fill it. */
static int model_load_fill(
	struct model *model, const struct safetensors *checkpoint, struct model_upload *upload)
{
	CLEANUP(model_load_rope_deinit) struct model_load_rope rope = {0};
	struct device *device = model->device;
	int rc = model_load_place(model, checkpoint, upload);

	if (rc)
		return rc;
	rc = model_load_begin_rope(&rope, model, upload->directory, upload->error);
	if (rc)
		return rc;
	rc = model_load_weights(upload, checkpoint, &model->reader);
	if (rc)
		return rc;
	model->file_bytes = upload->done;
	model_load_join_rope(&rope);
	rc = device->ops->copy(device, model->cos_sin, rope.table, rope.bytes);
	if (rc)
		return model_load_device_failed(upload->error, upload->directory,
			"the rope table cannot be uploaded", rc);
	if (!model->d2t)
		return 0;
	rc = device->ops->copy(device, model->d2t, upload->d2t,
		model->config.draft.vocab_size * sizeof(*upload->d2t));
	return rc ? model_load_device_failed(
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
	return model_load_device_failed(error, directory, what, rc);
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
	CLEANUP(model_load_upload_deinit) struct model_upload upload = {
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
		return model_load_device_failed(error, directory, "the device does not answer", rc);
	rc = model_load_check_ops(device, directory, config, info.kind, error);
	if (rc)
		return rc;
	rc = safetensors_open(directory, &checkpoint, error);
	if (rc)
		return rc;
	rc = model_load_count(directory, config, max_positions, info.activation_dtype, &checkpoint,
		&model, &upload.d2t, error);
	if (rc)
		return rc;
	model->device = device;
	model->deterministic = strcmp(info.kind, "cpu") == 0;
	rc = model_load_take_memory(model, directory, error);
	if (rc)
		return rc;
	rc = model_load_fill(model, &checkpoint, &upload);
	if (rc)
		return rc;
	model->load_seconds = (double)(clock_ns() - start_ns) * 1e-9;
	*ret = STEAL(model);
	return 0;
}
