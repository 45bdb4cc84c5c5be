/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CAPTURES_H
#define MIMEO_KERNELS_CAPTURES_H

/*
 * The streams of a device that capture, their threads, and whether their recordings are still valid: the same
 * for both devices. The device does the recording.
 *
 * An operation that is not allowed during a capture invalidates ("spoils") it: the stream takes no further
 * work, and the recording is discarded at the end. Any thread may spoil a capture; all else is for the thread
 * that uses the stream.
 */

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum capture_state { CAPTURE_NONE, CAPTURE_ACTIVE, CAPTURE_SPOILT };

/* A stream's; zeroed: it does not capture. */
struct capture {
	_Atomic int state;
	uint64_t owner, id;   /* the thread's number, and its own, which no other capture has */
	struct capture *next; /* in the device's list, under its lock */
};

/* A device's. */
struct captures {
	_Atomic uint32_t n;
	pthread_mutex_t lock; /* of what follows */
	struct capture *first;
	uint64_t last_id;
};

/* Ids begin behind `last_id`. */
void captures_init(struct captures *captures, uint64_t last_id);
void captures_deinit(struct captures *captures);

/* ---- one ---- */

static inline bool capture_is_on(const struct capture *capture)
{
	return atomic_load_explicit(&capture->state, memory_order_relaxed) != CAPTURE_NONE;
}

static inline bool capture_is_spoilt(const struct capture *capture)
{
	return atomic_load_explicit(&capture->state, memory_order_relaxed) == CAPTURE_SPOILT;
}

/* True if it was valid before. */
static inline bool capture_spoil(struct capture *capture)
{
	int active = CAPTURE_ACTIVE;

	return atomic_compare_exchange_strong(&capture->state, &active, CAPTURE_SPOILT);
}

/* For operations that a capture cannot record: 0 if the stream does not capture; otherwise spoils the capture
 * and returns `condition`. */
static inline int capture_refuse(struct capture *capture, int condition)
{
	if (!capture_is_on(capture))
		return 0;
	capture_spoil(capture);
	return condition;
}

/* ---- a device's ---- */

/* Begin a capture of the stream by this thread. */
void captures_begin(struct captures *captures, struct capture *capture);
/* End it. 0, DEVICE_E_CAPTURE_WRONG_THREAD, or DEVICE_E_CAPTURE_INVALIDATED: it was spoilt. */
int captures_end(struct captures *captures, struct capture *capture);

static inline bool captures_any(const struct captures *captures)
{
	return atomic_load(&captures->n) != 0;
}

/* A query or sync of an event recorded in the capture of that id: spoils it (CAPTURED_EVENT), or
 * DEVICE_E_INVALID if it is over or spoilt already. */
int captures_ask_event(struct captures *captures, uint64_t id);
/* A stream waits on such an event: 0 in the same capture; else both captures are spoilt
 * (CAPTURE_UNSUPPORTED), or DEVICE_E_INVALID as above. */
int captures_wait_event(struct captures *captures, uint64_t id, struct capture *waiting);
/* Spoil all captures of this thread; false if it has none. Fast while no thread captures. */
bool captures_spoil_own(struct captures *captures);

#endif
