/* SPDX-License-Identifier: MIT */
#include "ipc/region.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/cleanup.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#define REGION_PAGE 4096u
#define REGION_SEALS (F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL)

_Static_assert(sizeof(struct ring_control) <= REGION_PAGE, "the control block fits its page");

struct region_layout {
	uint64_t sqe_offset, cqe_offset, cancel_offset, arena_offset, bytes;
};

static bool region_is_power_of_two(uint64_t value)
{
	return value != 0 && (value & (value - 1)) == 0;
}

/* Bounded by RING_ENTRIES_MAX and REGION_ARENA_MAX: no sum here can overflow. */
static int region_layout(struct region_layout *ret, uint32_t entries, uint64_t arena_bytes)
{
	if (!region_is_power_of_two(entries) || entries < RING_ENTRIES_MIN || entries > RING_ENTRIES_MAX)
		return -EINVAL;
	if (!region_is_power_of_two(arena_bytes) || arena_bytes < REGION_ARENA_MIN ||
		arena_bytes > REGION_ARENA_MAX)
		return -EINVAL;

	ret->sqe_offset = REGION_PAGE;
	ret->cqe_offset = ret->sqe_offset + (uint64_t)entries * sizeof(struct ring_sqe);
	ret->cancel_offset = ret->cqe_offset + (uint64_t)RING_CQ_ENTRIES(entries) * sizeof(struct ring_cqe);
	uint64_t end = ret->cancel_offset + (uint64_t)entries * sizeof(uint32_t);
	ret->arena_offset = (end + REGION_PAGE - 1) & ~(uint64_t)(REGION_PAGE - 1);
	ret->bytes = ret->arena_offset + arena_bytes;
	return 0;
}

uint64_t region_bytes(uint32_t entries, uint64_t arena_bytes)
{
	struct region_layout layout;

	return region_layout(&layout, entries, arena_bytes) < 0 ? 0 : layout.bytes;
}

static struct region region_view(
	int fd, void *base, const struct region_layout *layout, uint32_t entries, uint64_t arena_bytes)
{
	uint8_t *bytes = base;

	assert(region_is_power_of_two(entries) && region_is_power_of_two(arena_bytes));
	assert(layout->sqe_offset >= sizeof(struct ring_control));
	assert(layout->arena_offset + arena_bytes == layout->bytes);
	return (struct region){
		.fd = fd,
		.base = bytes,
		.bytes = layout->bytes,
		.arena = bytes + layout->arena_offset,
		.arena_bytes = arena_bytes,
		.ring =
			{
				.control = base,
				.sqes = (struct ring_sqe *)(void *)(bytes + layout->sqe_offset),
				.cqes = (struct ring_cqe *)(void *)(bytes + layout->cqe_offset),
				.cancels = (_Atomic uint32_t *)(void *)(bytes + layout->cancel_offset),
				.entries = entries,
			},
	};
}

/* Kernels before 6.3 don't know MFD_NOEXEC_SEAL. */
static int region_memfd(void)
{
	const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
	int fd = memfd_create("mimeo-region", flags | MFD_NOEXEC_SEAL);

	if (fd < 0 && errno == EINVAL)
		fd = memfd_create("mimeo-region", flags);
	return fd < 0 ? -errno : fd;
}

int region_create(struct region *ret, uint32_t entries, uint64_t arena_bytes)
{
	struct region_layout layout;
	int rc = region_layout(&layout, entries, arena_bytes);
	if (rc < 0)
		return rc;

	CLEANUP(cleanup_close) int fd = region_memfd();
	if (fd < 0)
		return fd;
	if (ftruncate(fd, (off_t)layout.bytes) < 0 || fcntl(fd, F_ADD_SEALS, REGION_SEALS) < 0)
		return -errno;
	void *base = mmap(NULL, layout.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED)
		return -errno;

	struct ring_control *control = base;
	control->magic = RING_MAGIC;
	control->version = RING_VERSION;
	control->entries = entries;
	control->region_bytes = layout.bytes;
	control->sqe_offset = layout.sqe_offset;
	control->cqe_offset = layout.cqe_offset;
	control->cancel_offset = layout.cancel_offset;
	control->arena_offset = layout.arena_offset;
	control->arena_bytes = arena_bytes;
	*ret = region_view(STEAL_FD(fd), base, &layout, entries, arena_bytes);
	return 0;
}

/* Line 0 as the daemon wrote it. */
struct region_head {
	uint64_t magic;
	uint32_t version, entries;
	uint64_t region_bytes, sqe_offset, cqe_offset, arena_offset, arena_bytes, cancel_offset;
};
_Static_assert(sizeof(struct region_head) == 64, "line 0");
_Static_assert(
	offsetof(struct region_head, cancel_offset) == offsetof(struct ring_control, cancel_offset), "line 0");

static int region_check_head(const struct region_head *head, size_t file_bytes, struct region_layout *ret)
{
	struct region_layout layout;

	if (head->magic != RING_MAGIC)
		return -EPROTO;
	if (head->version != RING_VERSION)
		return -EPROTONOSUPPORT;
	if (region_layout(&layout, head->entries, head->arena_bytes) < 0)
		return -EPROTO;
	if (head->region_bytes != layout.bytes || file_bytes != layout.bytes ||
		head->sqe_offset != layout.sqe_offset || head->cqe_offset != layout.cqe_offset ||
		head->cancel_offset != layout.cancel_offset || head->arena_offset != layout.arena_offset)
		return -EPROTO;
	*ret = layout;
	return 0;
}

/* Every byte of the page after line 0 is zero, except the index or flag at the start of lines 1 to 7. */
static bool region_is_padded(const uint8_t *page)
{
	for (size_t i = 64; i < REGION_PAGE; i++) {
		if (i < sizeof(struct ring_control) && i % 64 < sizeof(uint32_t))
			continue;
		if (page[i] != 0)
			return false;
	}
	return true;
}

int region_map(struct region *ret, int fd)
{
	struct region_layout layout;
	struct region_head head;
	struct stat st;

	int seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0 || (seals & REGION_SEALS) != REGION_SEALS || (seals & F_SEAL_WRITE))
		return -EPROTO;
	if (fstat(fd, &st) < 0)
		return -errno;
	if (st.st_size < (off_t)REGION_PAGE)
		return -EPROTO;

	/* Sealed against resizing: the peer cannot remove these bytes. */
	size_t bytes = (size_t)st.st_size;
	uint8_t *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED)
		return -errno;
	memcpy(&head, base, sizeof(head));
	atomic_signal_fence(memory_order_seq_cst);

	int rc = region_check_head(&head, bytes, &layout);
	if (rc < 0 || !region_is_padded(base)) {
		munmap(base, bytes);
		return rc < 0 ? rc : -EPROTO;
	}
	*ret = region_view(fd, base, &layout, head.entries, head.arena_bytes);
	return 0;
}

void region_deinit(struct region *region)
{
	if (!region || !region->base)
		return;
	munmap(region->base, region->bytes);
	close(region->fd);
	*region = (struct region){.fd = -1};
}

void *region_at(const struct region *region, uint32_t offset, uint32_t length)
{
	if (length > region->arena_bytes || offset > region->arena_bytes - length)
		return NULL;
	assert(region->base && (uint64_t)offset + length <= region->arena_bytes);
	return region->arena + offset;
}
