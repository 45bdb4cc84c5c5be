/* SPDX-License-Identifier: MIT */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/model/error.h"
#include "daemon/model/reader.h"
#include "daemon/model/upload.h"
#include "kernels/convert.h"

#define CHUNK_MAX (4u << 20)
#define CHUNK_MULTIPLE 4096u

int upload_device_failed(
	struct model_error *error, const char *directory, const char *what, int rc)
{
	return model_fail(error, rc == DEVICE_E_MEMORY ? -ENOMEM : rc < 0 ? rc : -EIO, "%s: %s: %s",
		directory, what, device_strerror(rc));
}

static int upload_failed(const struct upload *upload, int rc)
{
	return upload_device_failed(
		upload->error, upload->directory, "weights cannot be uploaded", rc);
}

static struct event *upload_event_of(const struct upload *upload, const void *data)
{
	size_t chunk = (size_t)((const char *)data - (const char *)upload->chunks) /
		upload->chunk_bytes;

	assert(chunk < UPLOAD_READS);
	return upload->copied[chunk];
}

/* As another dtype, in host memory that is used again at once. */
static int upload_copy_converted(struct upload *upload, const struct plan_placement *p,
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

static int upload_copy(struct upload *upload, void *target, const void *data, size_t bytes)
{
	const struct device_ops *ops = upload->device->ops;
	int rc = ops->copy_async(upload->stream, target, data, bytes);

	return rc ? rc : ops->event_record(upload_event_of(upload, data), upload->stream);
}

/* The copy goes on while the next chunks are read; release waits for it. */
static int upload_deliver(
	void *userdata, uint32_t segment, uint64_t offset, const void *data, size_t bytes)
{
	struct upload *upload = userdata;
	const struct plan_placement *p = &upload->placements[segment];
	size_t width = dtype_bytes(p->tensor->dtype), n = bytes / width, first = offset / width;
	uint8_t *target = p->target + first * dtype_bytes(p->dtype);
	bool kept = p->dtype == p->tensor->dtype;
	int rc;

	assert(segment < upload->n_placements && offset + bytes <= p->tensor->bytes);
	rc = kept ? upload_copy(upload, target, data, bytes)
		  : upload_copy_converted(upload, p, target, data, n);
	if (rc)
		return upload_failed(upload, rc);
	upload->done += bytes;
	if (upload->progress)
		upload->progress(upload->userdata, upload->done, upload->total);
	return kept ? READER_KEPT : 0;
}

static int upload_release(void *userdata, const void *data)
{
	const struct upload *upload = userdata;
	int rc = upload->device->ops->event_sync(upload_event_of(upload, data));

	return rc ? upload_failed(upload, rc) : 0;
}

static int upload_in_file_order(const void *a, const void *b)
{
	const struct safetensors_tensor *x = ((const struct plan_placement *)a)->tensor;
	const struct safetensors_tensor *y = ((const struct plan_placement *)b)->tensor;

	if (x->file != y->file)
		return x->file < y->file ? -1 : 1;
	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static int upload_read(struct upload *upload, const struct safetensors *checkpoint,
	const char **ret_reader)
{
	const struct reader_options options = {
		.memory = upload->chunks,
		.chunk_bytes = upload->chunk_bytes,
		.depth = UPLOAD_READS,
		.deliver = upload_deliver,
		.release = upload_release,
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
	return synced ? upload_failed(upload, synced) : 0;
}

static int upload_take_stream(struct upload *upload)
{
	const struct device_ops *ops = upload->device->ops;
	int rc = ops->stream_new(upload->device, &upload->stream);

	for (uint32_t i = 0; i < UPLOAD_READS && !rc; i++)
		rc = ops->event_new(upload->device, &upload->copied[i]);
	return rc;
}

void upload_deinit(struct upload *upload)
{
	const struct device_ops *ops = upload->device->ops;

	for (uint32_t i = 0; i < UPLOAD_READS; i++) {
		if (upload->copied[i])
			ops->event_free(upload->copied[i]);
	}
	if (upload->stream)
		ops->stream_free(upload->stream);
	if (upload->chunks)
		ops->host_free(upload->device, upload->chunks);
	free(upload->widened);
	free(upload->segments);
	free(upload->placements);
}

/* Chunks no larger than the largest tensor needs. */
static void upload_size_chunks(struct upload *upload)
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

int upload_run(struct upload *upload, const struct safetensors *checkpoint,
	const char **ret_reader)
{
	int rc;

	qsort(upload->placements, upload->n_placements, sizeof(*upload->placements),
		upload_in_file_order);
	upload_size_chunks(upload);
	rc = upload->device->ops->host_alloc(upload->device, UPLOAD_READS * upload->chunk_bytes,
		&upload->chunks);
	if (rc)
		return upload_device_failed(
			upload->error, upload->directory, "no pinned memory for reads", rc);
	upload->segments = calloc(upload->n_placements, sizeof(*upload->segments));
	upload->widened = malloc(2 * upload->chunk_bytes);
	if (!upload->segments || !upload->widened)
		return model_fail(
			upload->error, -ENOMEM, "%s: no memory for reads", upload->directory);
	rc = upload_take_stream(upload);
	if (rc)
		return upload_device_failed(
			upload->error, upload->directory, "no stream for uploads", rc);
	return upload_read(upload, checkpoint, ret_reader);
}
