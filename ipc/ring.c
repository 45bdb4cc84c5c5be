/* SPDX-License-Identifier: MIT */

/*
 * The hot path: nothing here allocates, locks, loops or calls the system.
 *
 * What a message costs in cache-line traffic: its entry, the line of the index that publishes it,
 * and the peer's flag line, which stays shared while the peer is awake. The peer's index on the
 * other side of the ring is looked at once per run of entries (see struct ring).
 */

#include <errno.h>

#include "ipc/ring.h"

/* Keeps the compiler from reading a copied entry a second time out of the shared memory. */
static void copied(void)
{
	atomic_signal_fence(memory_order_seq_cst);
}

/* The entry to be written next was last read by the peer: have its line to ourselves by the time it is
 * needed. x86-64 without the instruction takes it for a no-op. */
static void take_line(const void *line)
{
#if defined(__x86_64__)
	__asm__ volatile("prefetchw %0" : : "m"(*(const char *)line));
#else
	__builtin_prefetch(line, 1);
#endif
}

/* ---- daemon's side ---- */

int ring_sq_pop(struct ring *ring, struct ring_sqe *ret)
{
	if (ring->sq_seen == ring->sq_index) {
		/* Acquire pairs with the exchange in ring_sq_publish: the entries come first. */
		uint32_t tail = atomic_load_explicit(&ring->control->sq_tail, memory_order_acquire);
		uint32_t unreleased = ring->sq_index - ring->sq_published;

		/* A tail that went back is a jump of nearly 2^32. */
		if (tail - ring->sq_index > ring->entries - unreleased)
			return -EPROTO;
		if (tail == ring->sq_index)
			return 0;
		ring->sq_seen = tail;
	}

	*ret = ring->sqes[ring->sq_index & (ring->entries - 1)];
	copied();
	ring->sq_index++;
	return 1;
}

void ring_sq_release(struct ring *ring)
{
	if (ring->sq_published == ring->sq_index)
		return;
	ring->sq_published = ring->sq_index;
	atomic_store_explicit(&ring->control->sq_head, ring->sq_index, memory_order_release);
}

int ring_cq_space(struct ring *ring)
{
	/* Acquire pairs with the store in ring_cq_advance: the client has read what we overwrite.
	 */
	uint32_t head = atomic_load_explicit(&ring->control->cq_head, memory_order_acquire);

	if (head - ring->cq_seen > ring->cq_published - ring->cq_seen)
		return -EPROTO;
	ring->cq_seen = head;
	return (int)(RING_CQ_ENTRIES(ring->entries) - (ring->cq_index - head));
}

int ring_cq_room(struct ring *ring, uint32_t n)
{
	if (RING_CQ_ENTRIES(ring->entries) - (ring->cq_index - ring->cq_seen) >= n)
		return 1;

	int space = ring_cq_space(ring);
	if (space < 0)
		return space;
	return (uint32_t)space >= n;
}

void ring_cq_push(struct ring *ring, const struct ring_cqe *cqe)
{
	ring->cqes[ring->cq_index & (RING_CQ_ENTRIES(ring->entries) - 1)] = *cqe;
	ring->cq_index++;
}

bool ring_cq_publish(struct ring *ring)
{
	if (ring->cq_published == ring->cq_index)
		return false;
	ring->cq_published = ring->cq_index;
	/* Orders the store of the tail before the load of the flag; ring_client_sleep stores the
	 * flag before it loads the tail. */
	atomic_exchange_explicit(&ring->control->cq_tail, ring->cq_index, memory_order_seq_cst);
	bool asleep =
		atomic_load_explicit(&ring->control->client_need_wakeup, memory_order_seq_cst) != 0;

	take_line(&ring->cqes[ring->cq_index & (RING_CQ_ENTRIES(ring->entries) - 1)]);
	return asleep;
}

bool ring_daemon_sleep(struct ring *ring)
{
	atomic_store_explicit(&ring->control->daemon_need_wakeup, 1, memory_order_seq_cst);
	return atomic_load_explicit(&ring->control->sq_tail, memory_order_seq_cst) !=
	       ring->sq_index;
}

void ring_daemon_awake(struct ring *ring)
{
	atomic_store_explicit(&ring->control->daemon_need_wakeup, 0, memory_order_relaxed);
}

/* ---- client's side ---- */

struct ring_sqe *ring_sq_next(struct ring *ring)
{
	if (ring->sq_index - ring->sq_seen == ring->entries) {
		/* Acquire pairs with the store in ring_sq_release: the daemon has its copies. */
		uint32_t head = atomic_load_explicit(&ring->control->sq_head, memory_order_acquire);

		if (head - ring->sq_seen > ring->sq_published - ring->sq_seen)
			return NULL;
		if (head == ring->sq_seen)
			return NULL;
		ring->sq_seen = head;
	}
	return &ring->sqes[ring->sq_index & (ring->entries - 1)];
}

void ring_sq_push(struct ring *ring)
{
	ring->sq_index++;
}

bool ring_sq_publish(struct ring *ring, uint32_t *ret_count)
{
	*ret_count = ring->sq_index - ring->sq_published;
	if (*ret_count == 0)
		return false;
	ring->sq_published = ring->sq_index;
	/* Orders the store of the tail before the load of the flag; ring_daemon_sleep stores the
	 * flag before it loads the tail. */
	atomic_exchange_explicit(&ring->control->sq_tail, ring->sq_index, memory_order_seq_cst);
	bool asleep =
		atomic_load_explicit(&ring->control->daemon_need_wakeup, memory_order_seq_cst) != 0;

	take_line(&ring->sqes[ring->sq_index & (ring->entries - 1)]);
	return asleep;
}

int ring_cq_peek(struct ring *ring, struct ring_cqe *ret)
{
	if (ring->cq_seen == ring->cq_index) {
		/* Acquire pairs with the exchange in ring_cq_publish. */
		uint32_t tail = atomic_load_explicit(&ring->control->cq_tail, memory_order_acquire);

		if (tail - ring->cq_index > RING_CQ_ENTRIES(ring->entries))
			return -EPROTO;
		if (tail == ring->cq_index)
			return 0;
		ring->cq_seen = tail;
	}

	*ret = ring->cqes[ring->cq_index & (RING_CQ_ENTRIES(ring->entries) - 1)];
	copied();
	return 1;
}

void ring_cq_advance(struct ring *ring)
{
	ring->cq_index++;
	ring->cq_published = ring->cq_index;
	atomic_store_explicit(&ring->control->cq_head, ring->cq_index, memory_order_release);
}

bool ring_client_sleep(struct ring *ring)
{
	atomic_store_explicit(&ring->control->client_need_wakeup, 1, memory_order_seq_cst);
	return atomic_load_explicit(&ring->control->cq_tail, memory_order_seq_cst) !=
	       ring->cq_index;
}

void ring_client_awake(struct ring *ring)
{
	atomic_store_explicit(&ring->control->client_need_wakeup, 0, memory_order_relaxed);
}
