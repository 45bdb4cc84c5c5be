/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_UPLOAD_H
#define MIMEO_DAEMON_MODEL_UPLOAD_H

/*
 * Weights from files to the device: read in chunks, converted where the plan says so. A tensor is a
 * segment of the reading. Chunks are whole rows of a matrix that is quantised or rounded, of 8 at a time if it
 * is packed, unless it is gathered; whole blocks; or whole heads.
 */

#include "daemon/model/plan.h"
#include "daemon/model/workers.h"

#define UPLOAD_READS 16 /* in flight; on an H200, 16 GB from the page cache: 8 load 23 GB/s, 16 45 */

/* A quantised tensor that is being read. */
struct upload_quantised {
	uint64_t done; /* bytes of its data */
	struct quantised_sides sides;
	uint8_t *gathered; /* transposed or reordered data: all of it, as far as it has come */
};

struct upload {
	/* the caller's */
	struct device *device;
	const char *directory;
	struct plan_placement *placements; /* from malloc; upload_deinit frees them */
	uint32_t n_placements;
	void (*progress)(void *userdata, uint64_t done, uint64_t total); /* NULL: none */
	void *userdata;
	struct model_error *error;
	/* upload_run's */
	const struct safetensors *checkpoint;
	uint64_t done, total;               /* bytes of files */
	struct stream *stream;              /* of the copies */
	struct event *copied[UPLOAD_READS]; /* by chunk */
	void *chunks;                       /* pinned, UPLOAD_READS of them */
	size_t chunk_bytes;
	struct workers *workers;
	void *converted; /* pinned: elements in the model's dtype, or units; NULL: none are converted */
	size_t converted_bytes;
	void *turned; /* as large, pinned: heads in another order; NULL: none are */
	struct reader_segment *segments;    /* [n_placements] */
	struct upload_quantised *quantised; /* [n_placements] */
};

/* Fill the placements, which get the order of the files. *ret_reader: as reader_run's name. 0, or
 * -errno with a sentence; no copy is in progress on return. */
int upload_run(
	struct upload *upload, const struct safetensors *checkpoint, const char **ret_reader);
/* Frees the placements and what upload_run took. */
void upload_deinit(struct upload *upload);

/* upload_quantised.c: take bytes of a quantised placement's data, from `offset` on. 0, or -errno
 * with a sentence. */
int upload_take_quantised(
	struct upload *upload, uint32_t placement, uint64_t offset, const void *data, size_t bytes);
void upload_quantised_deinit(struct upload_quantised *quantised);

/* upload_rounded.c: likewise, whole rows of a placement that is rounded. */
int upload_take_rounded(
	struct upload *upload, uint32_t placement, uint64_t offset, const void *data, size_t bytes);
/* Bytes in the file of a row of a matrix that is not quantised; blocks do not cross rows. */
static inline uint64_t upload_row_bytes(const struct plan_placement *p)
{
	return p->tensor->bytes / p->tensor->shape[0];
}

/* The sentence, and the -errno, of a device's condition. */
int upload_device_failed(
	struct model_error *error, const char *directory, const char *what, int rc);
int upload_failed(const struct upload *upload, int rc);

#endif
