/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_IPC_REGION_H
#define MIMEO_IPC_REGION_H

/*
 * A session's shared region: a memfd made and sealed (GROW | SHRINK | SEAL) by the daemon, so that
 * no client can shrink it while the daemon reads it, which would raise SIGBUS. It has no name in a file
 * system.
 */

#include "ipc/ring.h"

#define REGION_ARENA_MIN (64ull << 10)
#define REGION_ARENA_MAX (1ull << 30)

struct region {
	int fd; /* owned */
	uint8_t *base;
	size_t bytes;
	uint8_t *arena;
	uint64_t arena_bytes; /* a power of two; private copy */
	struct ring ring;
};

/* Bytes of such a region; 0 if the sizes are invalid. */
uint64_t region_bytes(uint32_t entries, uint64_t arena_bytes);
/* Make, size, seal and map a region. entries: a power of two, RING_ENTRIES_MIN ... MAX;
 * arena_bytes: a power of two, REGION_ARENA_MIN ... MAX; else -EINVAL. On success the caller owns
 * *ret. */
int region_create(struct region *ret, uint32_t entries, uint64_t arena_bytes);
/* Map a region that a daemon made. Takes `fd` over on success. -EPROTO if its seals, size, magic,
 * version (-EPROTONOSUPPORT), offsets or padding are not those of ring.h. */
int region_map(struct region *ret, int fd);
/* Unmap and close. Zeroed or NULL is fine. */
void region_deinit(struct region *region);

/* The arena bytes [offset, offset + length), or NULL if they are not in it. length 0: the
 * address of offset, which must be in the arena or at its end. */
void *region_at(const struct region *region, uint32_t offset, uint32_t length);

#endif
