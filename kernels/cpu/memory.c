/* SPDX-License-Identifier: MIT */
/*
 * Every piece of memory that the device gave out is a record in one list, found by its address and
 * kind. Device and pinned memory are ordinary allocations of exactly the size asked for, so that
 * AddressSanitizer sees the first byte beyond.
 */
#include "kernels/cpu/internal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#define MEMORY_ALIGN 256
#define MEMORY_POISON 0xff
#define RESERVE_GRANULARITY ((size_t)64 * 1024)
#define EXPORT_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

enum allocation_kind {
	ALLOCATION_MEMORY,
	ALLOCATION_HOST,
	ALLOCATION_RESERVED,
	ALLOCATION_EXPORTED,
	ALLOCATION_IMPORTED,
};

struct allocation {
	struct allocation *next;
	void *memory;
	size_t bytes;
	enum allocation_kind kind;
	uint8_t mapped[]; /* reserved: one byte a granule, 1: mapped */
};

/* 0 or -ENOMEM. */
static int memory_record_add(
	struct cpu_device *device, enum allocation_kind kind, void *memory, size_t bytes)
{
	const size_t granules = kind == ALLOCATION_RESERVED ? bytes / RESERVE_GRANULARITY : 0;
	struct allocation *record = calloc(1, sizeof(*record) + granules);

	if (record == NULL)
		return -ENOMEM;
	assert(memory != NULL && bytes > 0);
	record->kind = kind;
	record->memory = memory;
	record->bytes = bytes;
	pthread_mutex_lock(&device->lock);
	record->next = device->allocations;
	device->allocations = record;
	pthread_mutex_unlock(&device->lock);
	return 0;
}

/* With the lock held: the link to the record; to NULL if the device gave out no such memory. */
static struct allocation **memory_find(
	struct cpu_device *device, enum allocation_kind kind, const void *memory)
{
	struct allocation **link = &device->allocations;

	while (*link != NULL && ((*link)->memory != memory || (*link)->kind != kind))
		link = &(*link)->next;
	return link;
}

/* The record, off the list. */
static struct allocation *memory_record_take(
	struct cpu_device *device, enum allocation_kind kind, const void *memory)
{
	struct allocation **link, *record;

	pthread_mutex_lock(&device->lock);
	link = memory_find(device, kind, memory);
	record = *link;
	assert(record != NULL);
	*link = record->next;
	pthread_mutex_unlock(&device->lock);
	return record;
}

/* ---- device and pinned memory ---- */

/* Poisoning touches every page: a request for more memory than available must fail here and not end the
 * process. */
static int cpu_memory_alloc(
	struct cpu_device *device, enum allocation_kind kind, size_t bytes, void **ret)
{
	uint64_t total, available;
	void *memory;
	int rc = cpu_enter_growth(device);

	if (rc)
		return rc;
	if (bytes == 0)
		return DEVICE_E_INVALID;
	machine_memory(&total, &available);
	if (bytes > available || posix_memalign(&memory, MEMORY_ALIGN, bytes) != 0)
		return DEVICE_E_MEMORY;
	rc = memory_record_add(device, kind, memory, bytes);
	if (rc) {
		free(memory);
		return rc;
	}
	memset(memory, MEMORY_POISON, bytes);
	*ret = memory;
	return 0;
}

/* Freeing while capturing cannot be refused here, but it invalidates the capture. */
static void cpu_memory_free(struct cpu_device *device, enum allocation_kind kind, void *memory)
{
	struct allocation *record;

	if (memory == NULL)
		return;
	cpu_refuse_capture(device, DEVICE_E_CAPTURE_UNSUPPORTED);
	record = memory_record_take(device, kind, memory);
	free(record->memory);
	free(record);
}

int cpu_mem_alloc(struct device *device, size_t bytes, void **ret)
{
	return cpu_memory_alloc(cpu_device(device), ALLOCATION_MEMORY, bytes, ret);
}

void cpu_mem_free(struct device *device, void *memory)
{
	cpu_memory_free(cpu_device(device), ALLOCATION_MEMORY, memory);
}

int cpu_host_alloc(struct device *device, size_t bytes, void **ret)
{
	return cpu_memory_alloc(cpu_device(device), ALLOCATION_HOST, bytes, ret);
}

void cpu_host_free(struct device *device, void *memory)
{
	cpu_memory_free(cpu_device(device), ALLOCATION_HOST, memory);
}

/* ---- reserved ranges ---- */

int cpu_reserve(struct device *base, size_t bytes, void **ret, size_t *ret_granularity)
{
	struct cpu_device *device = cpu_device(base);
	size_t rounded;
	void *range;
	int rc = cpu_status(device);

	if (rc)
		return rc;
	if (bytes == 0 || __builtin_add_overflow(bytes, RESERVE_GRANULARITY - 1, &rounded))
		return DEVICE_E_INVALID;
	rounded -= rounded % RESERVE_GRANULARITY;
	range = mmap(NULL, rounded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (range == MAP_FAILED)
		return DEVICE_E_MEMORY;
	rc = memory_record_add(device, ALLOCATION_RESERVED, range, rounded);
	if (rc) {
		munmap(range, rounded);
		return rc;
	}
	*ret = range;
	*ret_granularity = RESERVE_GRANULARITY;
	return 0;
}

/* With the lock held: the range's record if [offset, offset + bytes) lies in it on granules that
 * are all mapped, or all not. */
static struct allocation *memory_find_granules(
	struct cpu_device *device, const void *range, size_t offset, size_t bytes, bool mapped)
{
	struct allocation *record = *memory_find(device, ALLOCATION_RESERVED, range);
	size_t end;

	if (record == NULL || bytes == 0 || offset % RESERVE_GRANULARITY != 0 ||
		bytes % RESERVE_GRANULARITY != 0 || __builtin_add_overflow(offset, bytes, &end) ||
		end > record->bytes)
		return NULL;
	for (size_t i = offset / RESERVE_GRANULARITY; i < end / RESERVE_GRANULARITY; i++) {
		if ((record->mapped[i] != 0) != mapped)
			return NULL;
	}
	return record;
}

static void memory_mark_granules(
	struct allocation *record, size_t offset, size_t bytes, bool mapped)
{
	assert(bytes > 0 && offset + bytes <= record->bytes);
	memset(record->mapped + offset / RESERVE_GRANULARITY, mapped, bytes / RESERVE_GRANULARITY);
}

/* With the lock held. */
static int memory_map_granules(
	struct cpu_device *device, uint8_t *range, size_t offset, size_t bytes, uint64_t available)
{
	struct allocation *record = memory_find_granules(device, range, offset, bytes, false);

	if (record == NULL)
		return DEVICE_E_INVALID;
	if (bytes > available || mprotect(range + offset, bytes, PROT_READ | PROT_WRITE) != 0)
		return DEVICE_E_MEMORY;
	memory_mark_granules(record, offset, bytes, true);
	return 0;
}

int cpu_map(struct device *base, void *range, size_t offset, size_t bytes)
{
	struct cpu_device *device = cpu_device(base);
	uint64_t total, available;
	int rc = cpu_status(device);

	if (rc)
		return rc;
	machine_memory(&total, &available);
	pthread_mutex_lock(&device->lock);
	rc = memory_map_granules(device, range, offset, bytes, available);
	pthread_mutex_unlock(&device->lock);
	if (rc)
		return rc;
	if (device->poison_mapped)
		memset((uint8_t *)range + offset, MEMORY_POISON, bytes);
	return 0;
}

/* With the lock held. A fresh PROT_NONE mapping in its place gives the memory back. */
static int memory_unmap_granules(
	struct cpu_device *device, uint8_t *range, size_t offset, size_t bytes)
{
	struct allocation *record = memory_find_granules(device, range, offset, bytes, true);

	if (record == NULL)
		return DEVICE_E_INVALID;
	if (mmap(range + offset, bytes, PROT_NONE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
		return -errno;
	memory_mark_granules(record, offset, bytes, false);
	return 0;
}

int cpu_unmap(struct device *base, void *range, size_t offset, size_t bytes)
{
	struct cpu_device *device = cpu_device(base);
	int rc = cpu_status(device);

	if (rc)
		return rc;
	pthread_mutex_lock(&device->lock);
	rc = memory_unmap_granules(device, range, offset, bytes);
	pthread_mutex_unlock(&device->lock);
	return rc;
}

static void memory_unmap(struct cpu_device *device, enum allocation_kind kind, void *memory)
{
	struct allocation *record;

	if (memory == NULL)
		return;
	record = memory_record_take(device, kind, memory);
	munmap(record->memory, record->bytes);
	free(record);
}

void cpu_release(struct device *base, void *range, size_t bytes)
{
	memory_unmap(cpu_device(base), ALLOCATION_RESERVED, range);
}

/* ---- memory of several processes: sealed memfds ---- */

static const uint8_t handle_magic[16] = "mimeo cpu memfd";

int cpu_memfd(const char *name, size_t bytes, int seals)
{
	int rc, fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);

	if (fd < 0 && errno == EINVAL) /* kernels before 6.3 */
		fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)bytes) != 0 || fcntl(fd, F_ADD_SEALS, seals) != 0) {
		rc = -errno;
		close(fd);
		return rc;
	}
	return fd;
}

static int memory_map_shared(
	struct cpu_device *device, enum allocation_kind kind, int fd, size_t bytes, void **ret)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	int rc;

	if (memory == MAP_FAILED)
		return errno == ENOMEM ? DEVICE_E_MEMORY : DEVICE_E_INVALID;
	rc = memory_record_add(device, kind, memory, bytes);
	if (rc) {
		munmap(memory, bytes);
		return rc;
	}
	*ret = memory;
	return 0;
}

void cpu_handle_fill(struct device_handle *handle, int fd, uint64_t size)
{
	*handle = (struct device_handle){.fd = fd, .size = size};
	memcpy(handle->bytes, handle_magic, sizeof(handle_magic));
}

/* True for an untrusted descriptor of at least so many bytes of memory whose size can no longer change. Seals
 * come first: only memory has them, and reading them calls no file system. Huge pages are refused: their
 * owner can punch a hole, and an access gets SIGBUS if no huge page is free. */
static bool memory_is_sealed(int fd, uint64_t bytes)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct statfs files;
	struct stat status;

	return seals >= 0 && (seals & EXPORT_SEALS) == EXPORT_SEALS && fstatfs(fd, &files) == 0 &&
		files.f_type != HUGETLBFS_MAGIC && fstat(fd, &status) == 0 && status.st_size > 0 && (uint64_t)status.st_size >= bytes;
}

int cpu_handle_of_fd(struct device *base, int fd, uint64_t bytes, struct device_handle *ret)
{
	int rc = cpu_status(cpu_device(base));

	if (rc)
		return rc;
	if (bytes == 0 || !memory_is_sealed(fd, bytes))
		return DEVICE_E_INVALID;
	cpu_handle_fill(ret, fd, bytes);
	return 0;
}

/* Everything here has a descriptor. */
int cpu_export_ipc_alloc(
	struct device *base, size_t bytes, void **ret, struct device_handle *ret_handle)
{
	int rc = cpu_status(cpu_device(base));

	return rc ? rc : DEVICE_E_UNSUPPORTED;
}

void cpu_export_ipc_free(struct device *base, void *memory)
{
	assert(memory == NULL);
}

int cpu_export_alloc(
	struct device *base, size_t bytes, void **ret, struct device_handle *ret_handle)
{
	struct cpu_device *device = cpu_device(base);
	int fd, rc = cpu_status(device);

	if (rc)
		return rc;
	if (bytes == 0 || bytes > INT64_MAX)
		return DEVICE_E_INVALID;
	fd = cpu_memfd("mimeo-buffer", bytes, EXPORT_SEALS);
	if (fd < 0)
		return fd == -EFBIG || fd == -ENOMEM ? DEVICE_E_MEMORY : fd;
	rc = memory_map_shared(device, ALLOCATION_EXPORTED, fd, bytes, ret);
	if (rc) {
		close(fd);
		return rc;
	}
	cpu_handle_fill(ret_handle, fd, bytes);
	return 0;
}

void cpu_export_free(struct device *device, void *memory)
{
	memory_unmap(cpu_device(device), ALLOCATION_EXPORTED, memory);
}

/* Maps what the handle says and no more of the file, however large that is. */
int cpu_import(struct device *base, const struct device_handle *handle, void **ret)
{
	struct cpu_device *device = cpu_device(base);
	int rc = cpu_status(device);

	if (rc)
		return rc;
	if (memcmp(handle->bytes, handle_magic, sizeof(handle_magic)) != 0 || handle->size == 0 ||
		!memory_is_sealed(handle->fd, handle->size))
		return DEVICE_E_INVALID;
	return memory_map_shared(device, ALLOCATION_IMPORTED, handle->fd, handle->size, ret);
}

void cpu_import_free(struct device *device, void *memory)
{
	memory_unmap(cpu_device(device), ALLOCATION_IMPORTED, memory);
}

uint64_t cpu_import_bytes(struct device *base, const void *memory)
{
	struct cpu_device *device = cpu_device(base);
	const struct allocation *record;
	uint64_t bytes;

	pthread_mutex_lock(&device->lock);
	record = *memory_find(device, ALLOCATION_IMPORTED, memory);
	bytes = record != NULL ? record->bytes : 0;
	pthread_mutex_unlock(&device->lock);
	return bytes;
}
