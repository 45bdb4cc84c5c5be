/* SPDX-License-Identifier: MIT */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/conversion.h"
#include "daemon/model/error.h"
#include "daemon/model/reader.h"
#include "daemon/model/upload.h"

#define CHUNK_MAX (4u << 20)
#define CHUNK_MULTIPLE 4096u

static uint64_t upload_max(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static struct event *upload_event_of(const struct upload *upload, const void *data)
{
	size_t chunk =
		(size_t)((const char *)data - (const char *)upload->chunks) / upload->chunk_bytes;

	assert(chunk < UPLOAD_READS);
	return upload->copied[chunk];
}

/* The place in its head of a head's row. */
static size_t upload_turn_row(const struct plan_placement *p, size_t row)
{
	const size_t half = p->head_rows / 2, rotated = p->rotary_rows / 2;

	if (!p->rotary_rows)
		return row % 2 * half + row / 2;
	if (row >= rotated && row < 2 * rotated)
		return half + row - rotated;
	return row >= rotated && row < half + rotated ? row - rotated : row;
}

/* Whole heads of n elements from `first` on get their rows' order; what follows the heads keeps its. */
static void upload_turn_heads(
	const struct plan_placement *p, const uint8_t *data, uint64_t first, size_t n, uint8_t *ret)
{
	const size_t cols = p->tensor->n_dims == 2 ? p->tensor->shape[1] : 1;
	const size_t row_bytes = cols * dtype_bytes(p->dtype), rows = p->head_rows;

	assert(n % (rows * cols) == 0 && first % (rows * cols) == 0);
	for (size_t row = 0; row < n / cols; row++) {
		const size_t in_head = row % rows;
		const bool turns = (first / cols + row) / rows < p->n_heads;
		const size_t to = turns ? row - in_head + upload_turn_row(p, in_head) : row;

		memcpy(ret + to * row_bytes, data + row * row_bytes, row_bytes);
	}
}

/* The n elements from `first` on, whose conversion is in `converted` or, without one, in the chunk. */
static int upload_copy_now(struct upload *upload, const struct plan_placement *p, uint64_t first, size_t n,
	const void *data)
{
	size_t width = dtype_bytes(p->dtype);

	if (p->head_rows) {
		upload_turn_heads(p, data, first, n, upload->turned);
		data = upload->turned;
	}
	return upload->device->ops->copy(upload->device, p->target + first * width, data, n * width);
}

static int upload_copy(struct upload *upload, void *target, const void *data, size_t bytes)
{
	const struct device_ops *ops = upload->device->ops;
	int rc = ops->copy_async(upload->stream, target, data, bytes);

	return rc ? rc : ops->event_record(upload_event_of(upload, data), upload->stream);
}

/* Are its bytes copied as they are? */
static bool upload_is_kept(const struct plan_placement *p)
{
	return !p->source.format && !p->tensor->format && !p->head_rows && !p->rounds && !p->adds_one &&
	       p->dtype == p->tensor->dtype;
}

/* Bytes of a tensor without side tensors: 0, or READER_KEPT: the copy goes on while the next chunks
 * are read; release waits for it. */
static int upload_take_plain(
	struct upload *upload, uint32_t placement, uint64_t offset, const void *data, size_t bytes)
{
	const struct plan_placement *p = &upload->placements[placement];
	const struct safetensors_tensor *t = p->tensor;
	const bool converts = t->format || p->adds_one || p->dtype != t->dtype;
	uint64_t n = safetensors_elements(t, bytes), first = safetensors_elements(t, offset);
	int rc;

	if (upload_is_kept(p)) {
		rc = upload_copy(upload, p->target + offset, data, bytes);
		return rc ? upload_failed(upload, rc) : READER_KEPT;
	}
	assert(!converts || n * dtype_bytes(p->dtype) <= upload->converted_bytes);
	rc = converts ? conversion_run(&(struct conversion){.placement = p,
					       .path = upload->checkpoint->files[t->file].path,
					       .data = data, .first = first, .n = n, .ret = upload->converted},
				upload->workers, upload->error)
		      : 0;
	if (rc)
		return rc;
	rc = upload_copy_now(upload, p, first, n, converts ? upload->converted : data);
	return rc ? upload_failed(upload, rc) : 0;
}

static int upload_deliver(
	void *userdata, uint32_t segment, uint64_t offset, const void *data, size_t bytes)
{
	struct upload *upload = userdata;
	const struct plan_placement *p = &upload->placements[segment];
	int rc;

	assert(segment < upload->n_placements && offset + bytes <= p->tensor->bytes);
	rc = p->source.format ? upload_take_quantised(upload, segment, offset, data, bytes)
	     : p->rounds      ? upload_take_rounded(upload, segment, offset, data, bytes)
			      : upload_take_plain(upload, segment, offset, data, bytes);
	if (rc < 0)
		return rc;
	upload->done += bytes;
	if (upload->progress)
		upload->progress(upload->userdata, upload->done, upload->total);
	return rc;
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

static int upload_read(struct upload *upload, const char **ret_reader)
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

	rc = reader_run(upload->segments, upload->n_placements, &options, ret_reader, upload->error);
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
	for (uint32_t i = 0; i < 3; i++) {
		void *pinned = (void *[]){upload->chunks, upload->converted, upload->turned}[i];

		if (pinned)
			ops->host_free(upload->device, pinned);
	}
	for (uint32_t i = 0; upload->quantised && i < upload->n_placements; i++)
		upload_quantised_deinit(&upload->quantised[i]);
	free(upload->quantised);
	workers_free(upload->workers);
	free(upload->segments);
	free(upload->placements);
}

/* The placement's chunks have multiples of so many bytes (reader.h); 0: chunk_bytes. */
static uint64_t upload_multiple(const struct plan_placement *p)
{
	const struct safetensors_tensor *t = p->tensor;

	if (p->source.format)
		return quantised_is_gathered(&p->source)
			       ? 0
			       : quantised_row_bytes(&p->source) * plan_rows_together(p);
	if (p->rounds)
		return upload_row_bytes(p) * plan_rows_together(p);
	if (p->head_rows)
		return t->bytes / t->shape[0] * p->head_rows;
	return t->format ? t->format->bytes : 0;
}

/* Of the rows of a quantised matrix that are converted at once: those of a chunk; if it is transposed, about as many
 * elements as a chunk has bytes. */
static uint64_t upload_quantised_bytes(const struct upload *upload, const struct plan_placement *p)
{
	const uint64_t row = quantised_is_transposed(&p->source) ? p->source.cols : quantised_row_bytes(&p->source);

	return upload_max(upload->chunk_bytes / row, plan_rows_together(p)) * plan_row_bytes(p);
}

/* Bytes that a chunk of the placement has in the model's dtype; 0: it is copied as it is. */
static uint64_t upload_converted_bytes(const struct upload *upload, const struct plan_placement *p)
{
	const struct block_format *format = p->tensor->format;
	uint64_t n;

	if (upload_is_kept(p))
		return 0;
	if (p->source.format)
		return upload_quantised_bytes(upload, p);
	if (p->rounds)
		return upload->chunk_bytes / upload_row_bytes(p) * plan_row_bytes(p);
	n = upload->chunk_bytes / (format ? format->bytes : dtype_bytes(p->tensor->dtype));
	return (format ? n * format->elements : n) * dtype_bytes(p->dtype);
}

/* Chunks no larger than the largest tensor needs. */
static void upload_size_chunks(struct upload *upload)
{
	uint64_t largest = 0, multiple = 0;

	for (uint32_t i = 0; i < upload->n_placements; i++) {
		const struct plan_placement *p = &upload->placements[i];

		upload->total += p->tensor->bytes;
		if (p->source.format)
			upload->total += quantised_side_bytes(&p->source);
		largest = upload_max(largest, p->tensor->bytes);
		multiple = upload_max(multiple, upload_multiple(p));
	}
	largest = upload_max(largest > CHUNK_MAX ? CHUNK_MAX : largest, multiple) +
		CHUNK_MULTIPLE - 1;
	upload->chunk_bytes = largest - largest % CHUNK_MULTIPLE;
	for (uint32_t i = 0; i < upload->n_placements; i++)
		upload->converted_bytes = upload_max(
			upload->converted_bytes, upload_converted_bytes(upload, &upload->placements[i]));
}

static struct reader_segment upload_segment_of(
	const struct upload *upload, const struct plan_placement *p)
{
	const struct safetensors_file *file = &upload->checkpoint->files[p->tensor->file];

	return (struct reader_segment){
		.fd = file->fd,
		.path = file->path,
		.offset = p->tensor->offset,
		.bytes = p->tensor->bytes,
		.multiple = (uint32_t)upload_multiple(p),
	};
}

static bool upload_turns_heads(const struct upload *upload)
{
	for (uint32_t i = 0; i < upload->n_placements; i++) {
		if (upload->placements[i].head_rows)
			return true;
	}
	return false;
}

static int upload_take_segments(struct upload *upload)
{
	upload->segments = calloc(upload->n_placements, sizeof(*upload->segments));
	upload->quantised = calloc(upload->n_placements, sizeof(*upload->quantised));
	upload->workers = upload->converted_bytes ? workers_new() : NULL;
	if (!upload->segments || !upload->quantised || (upload->converted_bytes && !upload->workers))
		return model_fail(
			upload->error, -ENOMEM, "%s: no memory for reads", upload->directory);
	for (uint32_t i = 0; i < upload->n_placements; i++)
		upload->segments[i] = upload_segment_of(upload, &upload->placements[i]);
	return 0;
}

static int upload_take_pinned(struct upload *upload)
{
	const struct device_ops *ops = upload->device->ops;
	int rc = ops->host_alloc(upload->device, UPLOAD_READS * upload->chunk_bytes, &upload->chunks);

	if (!rc && upload->converted_bytes)
		rc = ops->host_alloc(upload->device, upload->converted_bytes, &upload->converted);
	if (!rc && upload_turns_heads(upload))
		rc = ops->host_alloc(upload->device, upload->converted_bytes, &upload->turned);
	return rc ? upload_device_failed(
			    upload->error, upload->directory, "no pinned memory for reads", rc)
		  : 0;
}

int upload_run(struct upload *upload, const struct safetensors *checkpoint, const char **ret_reader)
{
	int rc;

	upload->checkpoint = checkpoint;
	qsort(upload->placements, upload->n_placements, sizeof(*upload->placements),
		upload_in_file_order);
	upload_size_chunks(upload);
	rc = upload_take_pinned(upload);
	if (rc)
		return rc;
	rc = upload_take_segments(upload);
	if (rc)
		return rc;
	rc = upload_take_stream(upload);
	if (rc)
		return upload_device_failed(
			upload->error, upload->directory, "no stream for uploads", rc);
	return upload_read(upload, ret_reader);
}
