/* SPDX-License-Identifier: MIT */

/*
 * The hot path: nothing here allocates, locks or calls the system.
 *
 * A message moves one cache line, its entry. While the peer is awake, the tail's line stays with its
 * writer and the line of the peer's flag stays shared; the peer's head is read once for a run of entries
 * (see struct ring).
 */

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "ipc/ring.h"

_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "indices and stamps are shared by processes");

#define SQE_BYTES offsetof(struct ring_sqe, stamp)
#define CQE_BYTES offsetof(struct ring_cqe, stamp)

/* Odd, so that memory that was never written has no stamp; different in each lap of the ring, so that
 * an entry that is written and not published still has the stamp of the lap before. */
static uint32_t ring_stamp(uint32_t index)
{
	return index << 1 | 1;
}

/* Acquire pairs with the stores of publish: the rest of the entry comes first. */
static bool ring_is_stamped(const _Atomic uint32_t *stamp, uint32_t index)
{
	return atomic_load_explicit(stamp, memory_order_acquire) == ring_stamp(index);
}

/* Keeps the compiler from reading a copied entry again from the shared memory. */
static void ring_copied(void)
{
	atomic_signal_fence(memory_order_seq_cst);
}

static struct ring_sqe *ring_sqe_at(const struct ring *ring, uint32_t index)
{
	return &ring->sqes[index & (ring->entries - 1)];
}

static struct ring_cqe *ring_cqe_at(const struct ring *ring, uint32_t index)
{
	return &ring->cqes[index & (RING_CQ_ENTRIES(ring->entries) - 1)];
}

/* ---- daemon's side ---- */

bool ring_sq_pop(struct ring *ring, struct ring_sqe *ret)
{
	const struct ring_sqe *sqe = ring_sqe_at(ring, ring->sq_index);

	assert(ring->sq_index - ring->sq_published <= ring->entries);
	/* A client that renews stamps could otherwise keep the daemon here for ever. */
	if (ring->sq_index - ring->sq_published == ring->entries ||
		!ring_is_stamped(&sqe->stamp, ring->sq_index))
		return false;
	memcpy(ret, sqe, SQE_BYTES);
	ring_copied();
	atomic_init(&ret->stamp, ring->sq_index);
	ring->sq_index++;
	return true;
}

int ring_sq_check(const struct ring *ring)
{
	uint32_t tail = atomic_load_explicit(&ring->control->sq_tail, memory_order_acquire);
	uint32_t unreleased = ring->sq_index - ring->sq_published;

	if (ring->sq_index - tail <= ring->entries)
		return 0;
	if (tail - ring->sq_index > ring->entries - unreleased)
		return -EPROTO;
	return ring_is_stamped(&ring_sqe_at(ring, ring->sq_index)->stamp, ring->sq_index) ? 0 : -EPROTO;
}

void ring_sq_release(struct ring *ring)
{
	if (ring->sq_published == ring->sq_index)
		return;
	assert(ring->sq_index - ring->sq_published <= ring->entries);
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
	assert(ring->cq_index - head <= RING_CQ_ENTRIES(ring->entries));
	return (int)(RING_CQ_ENTRIES(ring->entries) - (ring->cq_index - head));
}

int ring_cq_fits(struct ring *ring, uint32_t n)
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
	assert(ring->cq_index - ring->cq_seen < RING_CQ_ENTRIES(ring->entries));
	memcpy(ring_cqe_at(ring, ring->cq_index), cqe, CQE_BYTES);
	ring->cq_index++;
}

bool ring_cq_publish(struct ring *ring)
{
	if (ring->cq_published == ring->cq_index)
		return false;
	assert(ring->cq_index - ring->cq_published <= RING_CQ_ENTRIES(ring->entries));
	for (uint32_t i = ring->cq_published; i != ring->cq_index; i++)
		atomic_store_explicit(&ring_cqe_at(ring, i)->stamp, ring_stamp(i), memory_order_release);
	ring->cq_published = ring->cq_index;
	atomic_exchange_explicit(&ring->control->cq_tail, ring->cq_index, memory_order_seq_cst);
	return atomic_load_explicit(&ring->control->client_need_wakeup, memory_order_seq_cst) != 0;
}

bool ring_daemon_sleep(struct ring *ring)
{
	atomic_store_explicit(&ring->control->daemon_need_wakeup, 1, memory_order_seq_cst);
	(void)atomic_load_explicit(&ring->control->sq_tail, memory_order_seq_cst);
	return ring_is_stamped(&ring_sqe_at(ring, ring->sq_index)->stamp, ring->sq_index);
}

void ring_daemon_awake(struct ring *ring)
{
	atomic_store_explicit(&ring->control->daemon_need_wakeup, 0, memory_order_relaxed);
}

bool ring_cancels_wait(const struct ring *ring)
{
	return atomic_load_explicit(&ring->control->n_cancels, memory_order_seq_cst) != ring->n_cancels;
}

void ring_cancels_begin(struct ring *ring)
{
	/* Acquire pairs with the exchange in ring_cancel: the word was written before. */
	ring->n_cancels = atomic_load_explicit(&ring->control->n_cancels, memory_order_acquire);
}

uint32_t ring_cancel_word(const struct ring *ring, uint32_t request)
{
	assert(request < ring->entries);
	return atomic_load_explicit(&ring->cancels[request], memory_order_relaxed);
}

/* ---- client's side ---- */

bool ring_cancel(struct ring *ring, uint32_t request, uint32_t generation)
{
	assert(request < ring->entries && generation != 0);
	atomic_store_explicit(&ring->cancels[request], generation, memory_order_relaxed);
	atomic_exchange_explicit(&ring->control->n_cancels, ++ring->n_cancels, memory_order_seq_cst);
	return atomic_load_explicit(&ring->control->daemon_need_wakeup, memory_order_seq_cst) != 0;
}

void ring_cancel_clear(struct ring *ring, uint32_t request)
{
	assert(request < ring->entries);
	atomic_store_explicit(&ring->cancels[request], 0, memory_order_relaxed);
}

int ring_sq_push(struct ring *ring, const struct ring_sqe *sqe)
{
	if (ring->sq_index - ring->sq_seen == ring->entries) {
		/* Acquire pairs with the store in ring_sq_release: the daemon has its copies. */
		uint32_t head = atomic_load_explicit(&ring->control->sq_head, memory_order_acquire);

		if (head - ring->sq_seen > ring->sq_published - ring->sq_seen)
			return -EPROTO;
		if (head == ring->sq_seen)
			return 0;
		ring->sq_seen = head;
	}
	assert(ring->sq_index - ring->sq_seen < ring->entries);
	memcpy(ring_sqe_at(ring, ring->sq_index), sqe, SQE_BYTES);
	ring->sq_index++;
	return 1;
}

bool ring_sq_publish(struct ring *ring, uint32_t *ret_count)
{
	*ret_count = ring->sq_index - ring->sq_published;
	if (*ret_count == 0)
		return false;
	assert(*ret_count <= ring->entries);
	for (uint32_t i = ring->sq_published; i != ring->sq_index; i++)
		atomic_store_explicit(&ring_sqe_at(ring, i)->stamp, ring_stamp(i), memory_order_release);
	ring->sq_published = ring->sq_index;
	atomic_exchange_explicit(&ring->control->sq_tail, ring->sq_index, memory_order_seq_cst);
	return atomic_load_explicit(&ring->control->daemon_need_wakeup, memory_order_seq_cst) != 0;
}

bool ring_cq_peek(const struct ring *ring, struct ring_cqe *ret)
{
	const struct ring_cqe *cqe = ring_cqe_at(ring, ring->cq_index);

	if (!ring_is_stamped(&cqe->stamp, ring->cq_index))
		return false;
	memcpy(ret, cqe, CQE_BYTES);
	ring_copied();
	atomic_init(&ret->stamp, 0);
	return true;
}

void ring_cq_advance(struct ring *ring)
{
	assert(ring->cq_published == ring->cq_index);
	ring->cq_index++;
	ring->cq_published = ring->cq_index;
	atomic_store_explicit(&ring->control->cq_head, ring->cq_index, memory_order_release);
}

int ring_cq_check(const struct ring *ring)
{
	uint32_t tail = atomic_load_explicit(&ring->control->cq_tail, memory_order_acquire);
	uint32_t most = RING_CQ_ENTRIES(ring->entries);

	if (ring->cq_index - tail <= most)
		return 0;
	if (tail - ring->cq_index > most)
		return -EPROTO;
	return ring_is_stamped(&ring_cqe_at(ring, ring->cq_index)->stamp, ring->cq_index) ? 0 : -EPROTO;
}

bool ring_client_sleep(struct ring *ring)
{
	atomic_store_explicit(&ring->control->client_need_wakeup, 1, memory_order_seq_cst);
	(void)atomic_load_explicit(&ring->control->cq_tail, memory_order_seq_cst);
	return ring_is_stamped(&ring_cqe_at(ring, ring->cq_index)->stamp, ring->cq_index);
}

void ring_client_awake(struct ring *ring)
{
	atomic_store_explicit(&ring->control->client_need_wakeup, 0, memory_order_relaxed);
}
