/* SPDX-License-Identifier: MIT */

/*
 * A hostile client: a thread that keeps rewriting the region while the daemon's side reads it.
 *
 * The input is the peer's program, repeated until the daemon's side is done: each instruction is
 * one byte and its operands, zero beyond the input's end. The daemon's side does what an engine
 * does with an entry: pop, take bounds, copy out, decode, write a result, complete, sleep. The
 * region lies in a mapping of its own between inaccessible pages, so that an access
 * outside it is a crash.
 */

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ipc/msg.h"
#include "ipc/region.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CLAIM(condition)                                                                           \
	do {                                                                                       \
		if (!(condition))                                                                  \
			abort();                                                                   \
	} while (0)

#define ENTRIES 8u
#define GUARD (1u << 20)
#define TURNS 64
#define OUTPUT_MAX 4096u

static struct region region;
static struct msg_codec *codec;
static uint32_t epoch; /* programs start from other indices, across the wrap too */

/* ---- the peer ---- */

struct program {
	const uint8_t *bytes;
	size_t size;
	atomic_bool stop;
};

static uint32_t operand(const struct program *program, size_t *at, unsigned n)
{
	uint32_t value = 0;

	for (unsigned i = 0; i < n; i++, ++*at)
		value |= (uint32_t)(*at < program->size ? program->bytes[*at] : 0) << 8 * i;
	return value;
}

/* Deliberate data races with the daemon's side: not for a sanitizer to watch. */
__attribute__((no_sanitize("address", "thread"))) static void scribble(
	const struct program *program, size_t *at, uint8_t *target, size_t n)
{
	for (size_t i = 0; i < n; i++)
		((volatile uint8_t *)target)[i] = (uint8_t)operand(program, at, 1);
}

static void run_once(const struct program *program)
{
	struct ring_control *control = region.ring.control;

	for (size_t at = 0; at < program->size;) {
		uint32_t op = operand(program, &at, 1), where;

		switch (op % 8) {
		case 0: /* a plausible step of the tail */
			atomic_store(&control->sq_tail, epoch + operand(program, &at, 1) % 32);
			break;
		case 1:
			atomic_store(&control->sq_tail, operand(program, &at, 4));
			break;
		case 2:
			atomic_store(&control->cq_head, epoch + operand(program, &at, 1) % 32);
			break;
		case 3:
			atomic_store(&control->cq_head, operand(program, &at, 4));
			break;
		case 4:
			atomic_store(&control->client_need_wakeup, operand(program, &at, 1));
			break;
		case 5: /* an entry, and most often a stamp that fits one of the next indices */
			where = epoch + operand(program, &at, 1) % 32;
			scribble(program, &at, (uint8_t *)&region.ring.sqes[where % ENTRIES],
				sizeof(struct ring_sqe));
			if (operand(program, &at, 1) % 8)
				atomic_store(&region.ring.sqes[where % ENTRIES].stamp, where << 1 | 1);
			break;
		case 6: /* the arena */
			where = operand(program, &at, 1) * 16;
			scribble(program, &at, region.arena + where, operand(program, &at, 1));
			break;
		case 7: /* what the daemon wrote and must not read back */
			where = operand(program, &at, 2) % (4096 + ENTRIES * 196);
			scribble(program, &at, region.base + where, operand(program, &at, 1) % 64);
			break;
		}
	}
}

static void *peer(void *data)
{
	struct program *program = data;

	while (!atomic_load_explicit(&program->stop, memory_order_relaxed))
		run_once(program);
	return NULL;
}

/* ---- the daemon's side ---- */

/* An extent of the arena, copied out; NULL if it lies elsewhere or is longer than `most`. */
static const void *copy_out(uint32_t offset, uint32_t length, void *copy, uint32_t most)
{
	const uint8_t *source = region_at(&region, offset, length);

	if (!source || length > most)
		return NULL;
	CLAIM(source >= region.arena && source + length <= region.arena + region.arena_bytes);
	memcpy(copy, source, length);
	return copy;
}

static int32_t serve(const struct ring_sqe *sqe)
{
	uint8_t header[MSG_HEADER_MAX];
	static uint8_t payload[1u << 16];
	struct msg_generate generate;
	struct msg_detail detail;
	struct msg_step step;
	int r = -1;

	if (!copy_out(sqe->header_offset, sqe->header_length, header, sizeof(header)) ||
		!copy_out(sqe->payload_offset, sqe->payload_length, payload, sizeof(payload)))
		return -1;
	if (sqe->op % 2) {
		r = msg_generate_decode(codec, header, sqe->header_length, &generate, &detail);
		/* Without tokens it goes on with a sequence. */
		CLAIM(r < 0 || ((generate.n_tokens > 0 || generate.sequence > 0) && generate.n_stop <= MIMEO_STOP_MAX));
	} else {
		r = msg_step_decode(codec, header, sqe->header_length, &step, &detail);
		CLAIM(r < 0 || (step.n_rows > 0 && step.outputs != 0));
	}
	void *output = region_at(&region, sqe->output_offset, sqe->output_length);
	if (output)
		memset(output, 0xa5,
			sqe->output_length < OUTPUT_MAX ? sqe->output_length : OUTPUT_MAX);
	return r;
}

static void daemon_turns(struct ring *ring)
{
	for (int turn = 0; turn < TURNS; turn++) {
		struct ring_sqe sqe;

		if (ring_cancels_wait(ring))
			ring_cancels_begin(ring);
		(void)ring_cancel_word(ring, (uint32_t)turn % ENTRIES);
		if (!ring_sq_pop(ring, &sqe)) {
			int r = ring_sq_check(ring);

			CLAIM(r == 0 || r == -EPROTO);
			ring_daemon_sleep(ring);
			ring_daemon_awake(ring);
			continue;
		}
		struct ring_cqe cqe = {.user_data = sqe.user_data, .status = serve(&sqe)};
		ring_sq_release(ring);

		int space = ring_cq_space(ring);
		CLAIM(space == -EPROTO || (space >= 0 && space <= (int)RING_CQ_ENTRIES(ring->entries)));
		if (space < 0)
			return;
		int room = ring_cq_fits(ring, 1);
		if (room < 0)
			return;
		CLAIM(space == 0 || room == 1);
		if (room) {
			ring_cq_push(ring, &cqe);
			ring_cq_publish(ring);
		}
	}
}

/* ---- */

static void guard_pages(void)
{
	size_t bytes = region.bytes + 2 * GUARD;
	uint8_t *room = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CLAIM(room != MAP_FAILED);
	uint8_t *base = mremap(region.base, region.bytes, region.bytes,
		MREMAP_MAYMOVE | MREMAP_FIXED, room + GUARD);
	CLAIM(base == room + GUARD);
	region.arena = base + (region.arena - region.base);
	region.ring.sqes = (void *)(base + ((uint8_t *)region.ring.sqes - region.base));
	region.ring.cqes = (void *)(base + ((uint8_t *)region.ring.cqes - region.base));
	region.ring.cancels = (void *)(base + ((uint8_t *)region.ring.cancels - region.base));
	region.ring.control = (void *)base;
	region.base = base;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	CLAIM(region_create(&region, ENTRIES, REGION_ARENA_MIN) == 0);
	CLAIM(msg_codec_new(&codec) == 0);
	guard_pages();
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 2)
		return 0;
	struct program program = {.bytes = data + 1, .size = size - 1};
	struct ring ring = region.ring;
	pthread_t thread;

	memset(region.base, 0, (size_t)(region.arena - region.base));
	epoch = (uint32_t)(int8_t)data[0];
	ring.sq_index = ring.sq_published = ring.sq_seen = epoch;
	ring.cq_index = ring.cq_published = ring.cq_seen = epoch;
	atomic_store(&ring.control->sq_tail, epoch);
	atomic_store(&ring.control->cq_head, epoch);

	/* Once before, so that most of what an input reaches does not depend on timing. */
	run_once(&program);
	CLAIM(pthread_create(&thread, NULL, peer, &program) == 0);
	daemon_turns(&ring);
	atomic_store(&program.stop, true);
	pthread_join(thread, NULL);
	return 0;
}
