/* SPDX-License-Identifier: MIT */
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
#include "ipc/clock.h"
#include "kernels/convert.h"

#define CHUNK_MAX (4u << 20)
#define CHUNK_MULTIPLE 4096u
#define READS_IN_FLIGHT 16 /* on an H200, 16 GB from the page cache: 8 load 23 GB/s, 16 load 45 */

/* ---- host side ---- */

static void host_free(struct model *model)
{
	if (!model)
		return;
	model_config_deinit(&model->config);
	free(model->layers);
	free(model);
}

static struct model *host_new(const struct model_config *config, uint32_t max_positions)
{
	struct model *model = calloc(1, sizeof(*model));

	if (!model)
		return NULL;
	model->config = *config;
	model->max_positions = max_positions;
	model->config.windows = calloc(config->n_layers, sizeof(*config->windows));
	model->layers = calloc(config->n_layers, sizeof(*model->layers));
	if (!model->config.windows || !model->layers) {
		host_free(model);
		return NULL;
	}
	memcpy(model->config.windows, config->windows, config->n_layers * sizeof(*config->windows));
	return model;
}

/* An opened checkpoint and a model planned over nothing: sizes are known, no memory is taken. */
static int open_and_count(const char *directory, const struct model_config *config,
	uint32_t max_positions, enum dtype activation_dtype, struct safetensors *ret_checkpoint,
	struct model **ret_model, uint64_t *ret_bytes, struct model_error *error)
{
	struct plan plan = {
		.directory = directory,
		.checkpoint = ret_checkpoint,
		.activation_dtype = activation_dtype,
		.error = error,
	};
	struct model *model = host_new(config, max_positions);
	int rc;

	if (!model)
		return model_fail(error, -ENOMEM, "%s: no memory for its layers", directory);
	rc = safetensors_open(directory, ret_checkpoint, error);
	if (!rc) {
		rc = plan_model(&plan, model);
		if (!rc)
			rc = d2t_read(ret_checkpoint, directory, config, NULL, error);
		if (rc)
			safetensors_deinit(ret_checkpoint);
	}
	if (rc) {
		host_free(model);
		return rc;
	}
	*ret_model = model;
	*ret_bytes = plan.arena.used;
	return 0;
}

int model_measure(const char *directory, const struct model_config *config, uint32_t max_positions,
	enum dtype activation_dtype, uint64_t *ret_bytes, struct model_error *error)
{
	struct safetensors checkpoint;
	struct model *model;
	int rc = open_and_count(directory, config, max_positions, activation_dtype, &checkpoint, &model,
		ret_bytes, error);

	if (rc)
		return rc;
	safetensors_deinit(&checkpoint);
	host_free(model);
	return 0;
}

/* ---- from files to the device ---- */

struct upload {
	struct device *device;
	const char *directory;
	struct plan_placement *placements; /* in the order of the files */
	uint32_t n_placements;
	struct stream *stream; /* of the copies */
	struct event *copied[READS_IN_FLIGHT]; /* by chunk */
	void *chunks; /* pinned, READS_IN_FLIGHT of them */
	size_t chunk_bytes;
	float *widened; /* a chunk as float32, or narrowed again */
	void (*progress)(void *userdata, uint64_t done, uint64_t total);
	void *userdata;
	uint64_t done, total;
	struct model_error *error;
};

static int device_failed(struct model_error *error, const char *directory, const char *what, int rc)
{
	return model_fail(error, rc == DEVICE_E_MEMORY ? -ENOMEM : rc < 0 ? rc : -EIO, "%s: %s: %s",
		directory, what, device_strerror(rc));
}

static int upload_failed(const struct upload *upload, int rc)
{
	return device_failed(upload->error, upload->directory, "weights cannot be uploaded", rc);
}

static struct event *event_of(const struct upload *upload, const void *data)
{
	return upload->copied[(size_t)((const char *)data - (const char *)upload->chunks) /
		upload->chunk_bytes];
}

/* As another dtype, in memory of the host's that is used again at once. */
static int copy_converted(struct upload *upload, const struct plan_placement *p, void *target,
	const void *data, size_t n)
{
	const struct weight source = {.data = data, .dtype = p->tensor->dtype};

	weight_to_f32(upload->widened, &source, 0, n);
	/* In place: an element of two bytes is written after the one of four was read. */
	if (p->dtype == DTYPE_BF16)
		f32_to_bf16_n(upload->widened, upload->widened, n);
	return upload->device->ops->copy(
		upload->device, target, upload->widened, n * dtype_bytes(p->dtype));
}

/* The copy goes on while the next chunks are read; release waits for it. */
static int deliver(
	void *userdata, uint32_t segment, uint64_t offset, const void *data, size_t bytes)
{
	struct upload *upload = userdata;
	const struct device_ops *ops = upload->device->ops;
	const struct plan_placement *p = &upload->placements[segment];
	size_t width = dtype_bytes(p->tensor->dtype), n = bytes / width, first = offset / width;
	uint8_t *target = p->target + first * dtype_bytes(p->dtype);
	bool kept = p->dtype == p->tensor->dtype;
	int rc;

	if (kept) {
		rc = ops->copy_async(upload->stream, target, data, bytes);
		if (!rc)
			rc = ops->event_record(event_of(upload, data), upload->stream);
	} else {
		rc = copy_converted(upload, p, target, data, n);
	}
	if (rc)
		return upload_failed(upload, rc);
	upload->done += bytes;
	if (upload->progress)
		upload->progress(upload->userdata, upload->done, upload->total);
	return kept ? READER_KEPT : 0;
}

static int release(void *userdata, const void *data)
{
	const struct upload *upload = userdata;
	int rc = upload->device->ops->event_sync(event_of(upload, data));

	return rc ? upload_failed(upload, rc) : 0;
}

static int in_file_order(const void *a, const void *b)
{
	const struct safetensors_tensor *x = ((const struct plan_placement *)a)->tensor;
	const struct safetensors_tensor *y = ((const struct plan_placement *)b)->tensor;

	if (x->file != y->file)
		return x->file < y->file ? -1 : 1;
	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static int read_all(struct upload *upload, const struct safetensors *checkpoint,
	struct reader_segment *segments, const char **ret_reader)
{
	struct reader_options options = {
		.memory = upload->chunks,
		.chunk_bytes = upload->chunk_bytes,
		.depth = READS_IN_FLIGHT,
		.deliver = deliver,
		.release = release,
		.userdata = upload,
	};
	int rc, end;

	for (uint32_t i = 0; i < upload->n_placements; i++) {
		const struct safetensors_tensor *t = upload->placements[i].tensor;

		segments[i] = (struct reader_segment){
			.fd = checkpoint->files[t->file].fd,
			.path = checkpoint->files[t->file].path,
			.offset = t->offset,
			.bytes = t->bytes,
		};
	}
	rc = reader_run(segments, upload->n_placements, &options, ret_reader, upload->error);
	/* The last copies, whatever came of the reading: they name memory that goes. */
	end = upload->device->ops->stream_sync(upload->stream);
	return rc || !end ? rc : upload_failed(upload, end);
}

static int take_stream(struct upload *upload)
{
	const struct device_ops *ops = upload->device->ops;
	int rc = ops->stream_new(upload->device, &upload->stream);

	for (uint32_t i = 0; i < READS_IN_FLIGHT && !rc; i++)
		rc = ops->event_new(upload->device, &upload->copied[i]);
	if (!rc)
		return 0;
	return device_failed(upload->error, upload->directory, "no stream for uploads", rc);
}

static void give_stream(struct upload *upload)
{
	const struct device_ops *ops = upload->device->ops;

	for (uint32_t i = 0; i < READS_IN_FLIGHT; i++) {
		if (upload->copied[i])
			ops->event_free(upload->copied[i]);
	}
	if (upload->stream)
		ops->stream_free(upload->stream);
}

/* Chunks no larger than the largest tensor needs. */
static void size_up(struct upload *upload)
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

static int upload_weights(struct upload *upload, const struct safetensors *checkpoint,
	const char **ret_reader)
{
	struct reader_segment *segments = NULL;
	int rc;

	qsort(upload->placements, upload->n_placements, sizeof(*upload->placements), in_file_order);
	size_up(upload);
	rc = upload->device->ops->host_alloc(upload->device, READS_IN_FLIGHT * upload->chunk_bytes,
		&upload->chunks);
	if (rc)
		return device_failed(
			upload->error, upload->directory, "no pinned memory for reads", rc);
	segments = calloc(upload->n_placements, sizeof(*segments));
	upload->widened = malloc(2 * upload->chunk_bytes);
	if (!segments || !upload->widened)
		rc = model_fail(
			upload->error, -ENOMEM, "%s: no memory for reads", upload->directory);
	else
		rc = take_stream(upload);
	if (!rc)
		rc = read_all(upload, checkpoint, segments, ret_reader);
	give_stream(upload);
	free(upload->widened);
	free(segments);
	upload->device->ops->host_free(upload->device, upload->chunks);
	return rc;
}

/* The rope table, which a thread computes while the weights are read. */
struct rope_table {
	const struct model *model;
	float *table;
	size_t bytes;
	pthread_t thread;
	bool has_thread;
};

static void *fill_rope(void *arg)
{
	const struct rope_table *rope = arg;

	model_rope_fill(&rope->model->config, rope->model->max_positions, rope->table);
	return NULL;
}

static int begin_rope(struct rope_table *rope, const struct model *model, const char *directory,
	struct model_error *error)
{
	size_t bytes = (size_t)model->max_positions * model->config.head_dim * sizeof(float);

	*rope = (struct rope_table){.model = model, .bytes = bytes};
	rope->table = malloc(bytes ? bytes : 1);
	if (!rope->table)
		return model_fail(error, -ENOMEM, "%s: no memory for a rope table of %zu bytes",
			directory, bytes);
	rope->has_thread = pthread_create(&rope->thread, NULL, fill_rope, rope) == 0;
	if (!rope->has_thread)
		fill_rope(rope);
	return 0;
}

/* Uploads the table if `rc`, what came of the weights, is 0. */
static int end_rope(
	struct rope_table *rope, int rc, const char *directory, struct model_error *error)
{
	struct device *device = rope->model->device;

	if (rope->has_thread)
		pthread_join(rope->thread, NULL);
	if (!rc) {
		rc = device->ops->copy(device, rope->model->cos_sin, rope->table, rope->bytes);
		if (rc)
			rc = device_failed(
				error, directory, "the rope table cannot be uploaded", rc);
	}
	free(rope->table);
	return rc;
}

/* A draft's, read once more: a file that has changed since it was checked is checked again. */
static int upload_d2t(const struct model *model, const struct safetensors *checkpoint,
	const char *directory, struct model_error *error)
{
	const struct device_ops *ops = model->device->ops;
	int32_t *table = NULL;
	int rc;

	if (!model->d2t)
		return 0;
	rc = d2t_read(checkpoint, directory, &model->config, &table, error);
	if (rc)
		return rc;
	rc = ops->copy(model->device, model->d2t, table,
		model->config.draft.vocab_size * sizeof(*table));
	free(table);
	return rc ? device_failed(error, directory, "d2t cannot be uploaded", rc) : 0;
}

/* ---- a model ---- */

/* The model has its memory; place and fill it. */
static int fill(struct model *model, const struct safetensors *checkpoint, struct upload *upload)
{
	struct rope_table rope;
	struct plan plan = {
		.directory = upload->directory,
		.checkpoint = checkpoint,
		.activation_dtype = model->activation_dtype,
		.arena = {.base = model->memory, .size = model->bytes},
		.placements = calloc(plan_placements_max(&model->config), sizeof(*plan.placements)),
		.error = upload->error,
	};
	int rc;

	if (!plan.placements)
		return model_fail(upload->error, -ENOMEM, "%s: no memory for its layers",
			upload->directory);
	rc = plan_model(&plan, model);
	upload->placements = plan.placements;
	upload->n_placements = plan.n_placements;
	if (!rc && plan_unused(&plan, &model->config, &model->unused))
		rc = model_fail(upload->error, -ENOMEM, "%s: no memory to look through its tensors",
			upload->directory);
	if (!rc)
		rc = begin_rope(&rope, model, upload->directory, upload->error);
	if (!rc)
		rc = end_rope(&rope, upload_weights(upload, checkpoint, &model->reader),
			upload->directory, upload->error);
	if (!rc)
		rc = upload_d2t(model, checkpoint, upload->directory, upload->error);
	model->file_bytes = upload->done;
	free(plan.placements);
	return rc;
}

static int take_memory(struct model *model, const char *directory, struct model_error *error)
{
	char what[96];
	int rc = model->device->ops->mem_alloc(model->device, model->bytes, &model->memory);

	if (!rc)
		return 0;
	snprintf(what, sizeof(what), "%" PRIu64 " bytes of device memory are not to be had",
		model->bytes);
	return device_failed(error, directory, what, rc);
}

static double seconds_now(void)
{
	return (double)clock_ns() * 1e-9;
}

/* Before anything is read or taken. */
static int check_ops(const struct device *device, const char *directory,
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
		"%s: architectures \"%s\" needs %s, which the %s device does not compute yet",
		directory, config->architecture, lacking, kind);
}

int model_load(struct device *device, const char *directory, const struct model_config *config,
	uint32_t max_positions, void (*progress)(void *userdata, uint64_t done, uint64_t total),
	void *userdata, struct model **ret, struct model_error *error)
{
	struct upload upload = {
		.device = device,
		.directory = directory,
		.progress = progress,
		.userdata = userdata,
		.error = error,
	};
	struct safetensors checkpoint;
	struct device_info info;
	struct model *model;
	uint64_t bytes;
	double start = seconds_now();
	int rc;

	if (!max_positions)
		return model_fail(error, -EINVAL, "%s: room for 0 positions is none", directory);
	rc = device->ops->info(device, &info);
	if (rc)
		return device_failed(error, directory, "the device does not answer", rc);
	rc = check_ops(device, directory, config, info.kind, error);
	if (rc)
		return rc;
	rc = open_and_count(directory, config, max_positions, info.activation_dtype, &checkpoint, &model,
		&bytes, error);
	if (rc)
		return rc;
	model->device = device;
	model->activation_dtype = info.activation_dtype;
	model->bytes = bytes;
	rc = take_memory(model, directory, error);
	if (!rc)
		rc = fill(model, &checkpoint, &upload);
	safetensors_deinit(&checkpoint);
	model->load_seconds = seconds_now() - start;
	if (rc)
		model_free(model);
	else
		*ret = model;
	return rc;
}

void model_free(struct model *model)
{
	if (!model)
		return;
	if (model->memory)
		model->device->ops->mem_free(model->device, model->memory);
	host_free(model);
}
