/* SPDX-License-Identifier: MIT */
#include "kernels/captures.h"

#include <assert.h>

#include "kernels/device.h"

/* A number of this thread that no other thread of the process ever has. */
static uint64_t captures_thread_id(void)
{
	static _Atomic uint64_t last;
	static _Thread_local uint64_t id;

	if (id == 0)
		id = atomic_fetch_add(&last, 1) + 1;
	return id;
}

void captures_init(struct captures *captures, uint64_t last_id)
{
	*captures = (struct captures){.last_id = last_id};
	pthread_mutex_init(&captures->lock, NULL);
}

void captures_deinit(struct captures *captures)
{
	assert(captures->first == NULL && !captures_any(captures));
	pthread_mutex_destroy(&captures->lock);
}

void captures_begin(struct captures *captures, struct capture *capture)
{
	assert(!capture_is_on(capture));
	capture->owner = captures_thread_id();
	atomic_fetch_add(&captures->n, 1);
	pthread_mutex_lock(&captures->lock);
	capture->id = ++captures->last_id;
	capture->next = captures->first;
	captures->first = capture;
	atomic_store(&capture->state, CAPTURE_ACTIVE);
	pthread_mutex_unlock(&captures->lock);
}

int captures_end(struct captures *captures, struct capture *capture)
{
	struct capture **link = &captures->first;
	uint32_t n;
	int state;

	pthread_mutex_lock(&captures->lock);
	while (*link != NULL && *link != capture)
		link = &(*link)->next;
	assert(*link == capture);
	*link = capture->next;
	capture->next = NULL;
	state = atomic_exchange(&capture->state, CAPTURE_NONE);
	pthread_mutex_unlock(&captures->lock);
	assert(state != CAPTURE_NONE);
	n = atomic_fetch_sub(&captures->n, 1);
	assert(n > 0);
	if (capture->owner != captures_thread_id())
		return DEVICE_E_CAPTURE_WRONG_THREAD;
	return state == CAPTURE_ACTIVE ? 0 : DEVICE_E_CAPTURE_INVALIDATED;
}

/* False if it has ended or is already spoilt. */
static bool captures_spoil(struct captures *captures, uint64_t id)
{
	bool sound = false;

	pthread_mutex_lock(&captures->lock);
	for (struct capture *capture = captures->first; capture != NULL; capture = capture->next) {
		assert(capture_is_on(capture) && capture->id <= captures->last_id);
		if (capture->id == id)
			sound = capture_spoil(capture);
	}
	pthread_mutex_unlock(&captures->lock);
	return sound;
}

int captures_ask_event(struct captures *captures, uint64_t id)
{
	return captures_spoil(captures, id) ? DEVICE_E_CAPTURED_EVENT : DEVICE_E_INVALID;
}

int captures_wait_event(struct captures *captures, uint64_t id, struct capture *waiting)
{
	if (capture_is_on(waiting) && waiting->id == id)
		return 0;
	if (!captures_spoil(captures, id))
		return DEVICE_E_INVALID;
	capture_spoil(waiting);
	return DEVICE_E_CAPTURE_UNSUPPORTED;
}

bool captures_spoil_own(struct captures *captures)
{
	const uint64_t self = captures_thread_id();
	bool found = false;

	/* A thread that captures sees its own increment; it need not see others'. */
	if (atomic_load_explicit(&captures->n, memory_order_relaxed) == 0)
		return false;
	pthread_mutex_lock(&captures->lock);
	for (struct capture *capture = captures->first; capture != NULL; capture = capture->next) {
		if (capture->owner != self)
			continue;
		capture_spoil(capture);
		found = true;
	}
	pthread_mutex_unlock(&captures->lock);
	return found;
}
