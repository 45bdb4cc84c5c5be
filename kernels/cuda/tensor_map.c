/* SPDX-License-Identifier: MIT */
#include "kernels/cuda/internal.h"
#include "kernels/packed.h"

_Static_assert(sizeof(struct cuda_tensor_map) == sizeof(CUtensorMap), "an opaque CUtensorMap");

static int tensor_map_make(struct stream *stream, const void *memory, CUtensorMapDataType type,
	CUtensorMapSwizzle swizzle, uint32_t n_dims, const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
	struct cuda_tensor_map *ret)
{
	static const cuuint32_t steps[CUDA_TENSOR_DIMS_MAX] = {1, 1, 1, 1, 1};
	const struct driver *driver = &stream->device->driver;
	struct cuda_tensor_map map;
	int rc = CUDA_TRY_DRIVER(&stream->device->base,
		driver->tensor_map_tiled((CUtensorMap *)&map, type, n_dims, (void *)(uintptr_t)memory, dims, strides,
			box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
			CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));

	if (rc)
		return rc;
	*ret = map;
	return 0;
}

int cuda_tensor_map_of(struct stream *stream, const void *memory, uint32_t n_dims,
	const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
	struct cuda_tensor_map *ret)
{
	return tensor_map_make(stream, memory, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
		box[0] == 32 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B, n_dims, dims, strides, box,
		ret);
}

int cuda_tensor_map_words(struct stream *stream, const void *memory, uint32_t n_dims, const uint64_t *dims,
	const uint64_t *strides, const uint32_t *box, struct cuda_tensor_map *ret)
{
	return tensor_map_make(stream, memory, CU_TENSOR_MAP_DATA_TYPE_UINT64, CU_TENSOR_MAP_SWIZZLE_NONE, n_dims,
		dims, strides, box, ret);
}

int cuda_tensor_map_packed(struct stream *stream, const struct weight *w, uint32_t box_rows, uint32_t box_units,
	struct cuda_tensor_map *ret)
{
	const uint32_t unit_bytes = packed_unit_bytes(w->dtype, !w->factors), n_units = w->cols / PACKED_COLS;
	const uint64_t dims[] = {unit_bytes / sizeof(uint64_t), n_units, w->rows / PACKED_ROWS};
	const uint64_t strides[] = {unit_bytes, (uint64_t)n_units * unit_bytes};
	const uint32_t box[] = {unit_bytes / (uint32_t)sizeof(uint64_t), box_units, box_rows / PACKED_ROWS};

	return cuda_tensor_map_words(stream, w->data, 3, dims, strides, box, ret);
}

int cuda_tensor_map(struct stream *stream, const void *matrix, uint32_t rows, uint32_t cols,
	uint32_t box_rows, struct cuda_tensor_map *ret)
{
	const uint64_t dims[] = {cols, rows}, strides[] = {(uint64_t)cols * 2};
	const uint32_t box[] = {64, box_rows};

	return cuda_tensor_map_of(stream, matrix, 2, dims, strides, box, ret);
}

int cuda_tensor_map_atoms(struct stream *stream, const void *matrix, uint64_t rows, uint32_t cols,
	uint32_t box_rows, uint32_t box_cols, struct cuda_tensor_map *ret)
{
	const uint32_t atom = box_cols % 64 ? 32 : 64;
	const uint64_t row_bytes = (uint64_t)cols * 2, eights = rows / 8;
	const uint64_t dims[] = {
		atom, 8, cols / atom, eights && eights < INT32_MAX ? eights : INT32_MAX};
	const uint64_t strides[] = {row_bytes, atom * 2, 8 * row_bytes};
	const uint32_t box[] = {atom, 8, box_cols / atom, box_rows / 8};

	return cuda_tensor_map_of(stream, matrix, 4, dims, strides, box, ret);
}
