/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_SAFETENSORS_H
#define MIMEO_DAEMON_MODEL_SAFETENSORS_H

/*
 * Safetensors files: u64 little-endian header length, a JSON header {name: {dtype, shape,
 * data_offsets}}, the data. A CHECKPOINT is a directory's model.safetensors, or else the shards
 * that its model.safetensors.index.json names. Opening reads and checks every header; no data is
 * touched.
 *
 * As the format demands, the tensors of a file cover its data without overlap, hole or remainder.
 * A dtype that this reader does not know is an error only where the tensor is needed.
 */

#include <stdbool.h>
#include <stdint.h>

#include "daemon/model/block_format.h"
#include "daemon/model/error.h"
#include "kernels/device.h"

#define SAFETENSORS_HEADER_MAX (100u << 20)
#define SAFETENSORS_DIMS_MAX 8
#define SAFETENSORS_FILES_MAX 512

struct safetensors_tensor {
	char *name;
	char dtype_name[16]; /* as written: "BF16" */
	bool usable;         /* dtype is one of F32, BF16, F16 */
	enum dtype dtype;    /* if usable; of packed elements, that to which they are widened */
	const struct block_format *format; /* of packed elements; else NULL */
	uint32_t n_dims;
	uint64_t shape[SAFETENSORS_DIMS_MAX];
	uint32_t file;   /* index into files */
	uint64_t offset; /* of its first byte, in the file */
	uint64_t bytes;
};

struct safetensors_file {
	char *path; /* for errors */
	int fd;
	uint64_t size;
};

struct safetensors {
	struct safetensors_file *files;
	uint32_t n_files;
	struct safetensors_tensor *tensors; /* sorted by name */
	uint32_t n_tensors;
	const char *dtypes; /* the usable ones, for errors */
	/* The file's name for the tensor that Hugging Face's files name so, perhaps in the buffer; NULL: the same. */
	const char *(*rename)(const char *name, char *buffer, size_t size);
	/* Of a model without what is around it: its tensors' names lack "model.", and the head may be missing. */
	bool is_inner;
	/* Heads of q and k have in rows 2i and 2i + 1 what Hugging Face's have in row i of either half. */
	bool has_pairs;
};

#define SAFETENSORS_NAME_MAX 128u /* of a buffer for `rename` */

int safetensors_open(const char *directory, struct safetensors *ret, struct model_error *error);
/* A zeroed one is allowed. */
void safetensors_deinit(struct safetensors *safetensors);
/* The elements in that many bytes of a usable tensor: whole ones, or whole blocks. */
uint64_t safetensors_elements(const struct safetensors_tensor *tensor, uint64_t bytes);
/* Its shape as text: "128, 64". */
#define SAFETENSORS_SHAPE_MAX (SAFETENSORS_DIMS_MAX * 22 + 1)
void safetensors_shape_text(const struct safetensors_tensor *tensor, char ret[SAFETENSORS_SHAPE_MAX]);
/* NULL: no tensor has that name, which is Hugging Face's. */
const struct safetensors_tensor *safetensors_find(const struct safetensors *safetensors,
	const char *name);

/* Parse a header (without its length) that describes data_bytes of data, which begin at data_start
 * of their file; tensors come sorted by name, file 0. Free with safetensors_tensors_free. */
int safetensors_parse(const char *path, const char *header, size_t header_bytes,
	uint64_t data_start, uint64_t data_bytes, struct safetensors_tensor **ret, uint32_t *ret_n,
	struct model_error *error);
void safetensors_tensors_free(struct safetensors_tensor *tensors, uint32_t n);

#endif
