/* SPDX-License-Identifier: MIT */
/*
 * A range is reserved address space and a list of pieces, one for each call of map: a piece is one physical
 * allocation, which the driver can only unmap as a whole. Therefore unmap accepts a run of whole pieces, and
 * returns DEVICE_E_INVALID for a part of one.
 */
#include "kernels/cuda/internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

struct piece {
	struct piece *next;
	size_t offset, bytes;
};

struct range {
	struct range *next;
	CUdeviceptr address;
	size_t bytes;
	struct piece *pieces;
};

CUmemAllocationProp cuda_range_properties(const struct cuda_device *device, bool shareable)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = shareable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
						  : CU_MEM_HANDLE_TYPE_NONE,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->ordinal},
	};
}

int cuda_range_attach(struct cuda_device *device, CUdeviceptr address, size_t bytes,
	CUmemGenericAllocationHandle physical)
{
	const CUmemAccessDesc access = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->ordinal},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	struct device *base = &device->base;
	int rc = CUDA_TRY_DRIVER(base, device->driver.map(address, bytes, 0, physical, 0));

	if (rc)
		return rc;
	rc = CUDA_TRY_DRIVER(base, device->driver.set_access(address, bytes, &access, 1));
	if (rc)
		CUDA_TRY_DRIVER(base, device->driver.unmap(address, bytes));
	return rc;
}

int cuda_reserve(struct device *base, size_t bytes, void **ret, size_t *ret_granularity)
{
	struct cuda_device *device = cuda_device(base);
	struct range *range;
	size_t rounded;
	int rc = cuda_status(device);

	if (rc)
		return rc;
	if (bytes == 0 || __builtin_add_overflow(bytes, device->granularity - 1, &rounded))
		return DEVICE_E_INVALID;
	range = calloc(1, sizeof(*range));
	if (range == NULL)
		return -ENOMEM;
	range->bytes = rounded - rounded % device->granularity;
	rc = CUDA_TRY_DRIVER(
		base, device->driver.address_reserve(&range->address, range->bytes, 0, 0, 0));
	if (rc) {
		free(range);
		return rc;
	}
	pthread_mutex_lock(&device->memory_lock);
	assert(range->address != 0 && range->bytes % device->granularity == 0);
	range->next = device->ranges;
	device->ranges = range;
	pthread_mutex_unlock(&device->memory_lock);
	*ret = (void *)(uintptr_t)range->address;
	*ret_granularity = device->granularity;
	return 0;
}

/* With the lock held: the range at that address, if [offset, offset + bytes) lies within it and consists of
 * granules. */
static struct range *range_find(
	struct cuda_device *device, const void *address, size_t offset, size_t bytes)
{
	struct range *range = device->ranges;
	size_t end;

	while (range != NULL && range->address != (CUdeviceptr)(uintptr_t)address)
		range = range->next;
	if (range == NULL || bytes == 0 || offset % device->granularity != 0 ||
		bytes % device->granularity != 0 || __builtin_add_overflow(offset, bytes, &end) ||
		end > range->bytes)
		return NULL;
	return range;
}

/* How many bytes of [offset, offset + bytes) are mapped; *ret_whole: by pieces that are completely inside. */
static size_t range_mapped_within(
	const struct range *range, size_t offset, size_t bytes, bool *ret_whole)
{
	size_t sum = 0, end = offset + bytes;

	*ret_whole = true;
	for (const struct piece *piece = range->pieces; piece != NULL; piece = piece->next) {
		size_t piece_end = piece->offset + piece->bytes;
		size_t from = piece->offset > offset ? piece->offset : offset;
		size_t to = piece_end < end ? piece_end : end;

		assert(piece->bytes > 0 && piece_end <= range->bytes);
		if (from >= to)
			continue;
		sum += to - from;
		if (to - from != piece->bytes)
			*ret_whole = false;
	}
	return sum;
}

static int range_map_piece(
	struct cuda_device *device, struct range *range, size_t offset, size_t bytes)
{
	const CUmemAllocationProp properties = cuda_range_properties(device, false);
	struct device *base = &device->base;
	struct piece *piece = malloc(sizeof(*piece));
	CUmemGenericAllocationHandle physical;
	int rc;

	assert(bytes > 0 && offset <= range->bytes && bytes <= range->bytes - offset);
	if (piece == NULL)
		return -ENOMEM;
	*piece = (struct piece){.next = range->pieces, .offset = offset, .bytes = bytes};
	rc = CUDA_TRY_DRIVER(base, device->driver.create(&physical, bytes, &properties, 0));
	if (rc) {
		free(piece);
		return rc;
	}
	rc = cuda_range_attach(device, range->address + offset, bytes, physical);
	CUDA_TRY_DRIVER(base, device->driver.release(physical)); /* the mapping keeps it */
	if (rc) {
		free(piece);
		return rc;
	}
	range->pieces = piece;
	return 0;
}

int cuda_map(struct device *base, void *address, size_t offset, size_t bytes)
{
	struct cuda_device *device = cuda_device(base);
	struct range *range;
	bool whole;
	int rc = cuda_status(device);

	if (rc)
		return rc;
	CUDA_RELAXED(device);
	pthread_mutex_lock(&device->memory_lock);
	range = range_find(device, address, offset, bytes);
	if (range == NULL || range_mapped_within(range, offset, bytes, &whole) != 0)
		rc = DEVICE_E_INVALID;
	else
		rc = range_map_piece(device, range, offset, bytes);
	pthread_mutex_unlock(&device->memory_lock);
	return rc;
}

/* Unmap the pieces within; after a failure those before it are unmapped. */
static int range_unmap_pieces(
	struct cuda_device *device, struct range *range, size_t offset, size_t end)
{
	struct piece **link = &range->pieces;

	while (*link != NULL) {
		struct piece *piece = *link;
		int rc;

		if (piece->offset < offset || piece->offset >= end) {
			link = &piece->next;
			continue;
		}
		assert(piece->offset + piece->bytes <= end); /* whole pieces only */
		rc = CUDA_TRY_DRIVER(&device->base,
			device->driver.unmap(range->address + piece->offset, piece->bytes));
		if (rc)
			return rc;
		*link = piece->next;
		free(piece);
	}
	return 0;
}

int cuda_unmap(struct device *base, void *address, size_t offset, size_t bytes)
{
	struct cuda_device *device = cuda_device(base);
	struct range *range;
	bool whole;
	int rc = cuda_status(device);

	if (rc)
		return rc;
	CUDA_RELAXED(device);
	pthread_mutex_lock(&device->memory_lock);
	range = range_find(device, address, offset, bytes);
	if (range == NULL || range_mapped_within(range, offset, bytes, &whole) != bytes || !whole)
		rc = DEVICE_E_INVALID;
	else
		rc = range_unmap_pieces(device, range, offset, offset + bytes);
	pthread_mutex_unlock(&device->memory_lock);
	return rc;
}

/* Memory that a lost device does not release is released with the process. */
void cuda_release(struct device *base, void *address, size_t bytes)
{
	struct cuda_device *device = cuda_device(base);
	struct range **link = &device->ranges, *range;
	struct piece *piece;

	if (address == NULL)
		return;
	cuda_status(device);
	CUDA_RELAXED(device);
	pthread_mutex_lock(&device->memory_lock);
	while (*link != NULL && (*link)->address != (CUdeviceptr)(uintptr_t)address)
		link = &(*link)->next;
	range = *link;
	assert(range != NULL);
	*link = range->next;
	range_unmap_pieces(device, range, 0, range->bytes);
	CUDA_TRY_DRIVER(base, device->driver.address_free(range->address, range->bytes));
	while ((piece = range->pieces) != NULL) {
		range->pieces = piece->next;
		free(piece);
	}
	free(range);
	pthread_mutex_unlock(&device->memory_lock);
}
