/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_ENGINE_BUILDER_H
#define MIMEO_DAEMON_ENGINE_BUILDER_H

/*
 * The builder: a thread for calls that may take milliseconds and must delay neither the loop nor the
 * lane. It makes and frees memory and events that other processes share.
 *
 * Closing: no launched step names what comes to builder_close, so a mapping of a descriptor is closed at
 * once. Freeing memory of the CUDA IPC kinds waits for the device to drain and blocks launches from other
 * threads: such memory waits until the engine has nothing in its lane, BUILDER_CLOSE_LIMIT_MS at most. So
 * a lane that is never empty is delayed once for all that is due, and the memory of dead clients is freed
 * in bounded time.
 *
 * Called by the loop's thread, except where it says otherwise. Neither posting nor closing fails or
 * blocks: jobs and things contain their list entries. Finished jobs ring an eventfd.
 */

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/device.h"

#define BUILDER_CLOSE_LIMIT_MS 1000u
#define BUILDER_RELIEF_MS 1000u

enum builder_kind {
	BUILDER_EXPORT,     /* our memory, by descriptor */
	BUILDER_EXPORT_IPC, /* our memory, by CUDA IPC */
	BUILDER_IMPORT,     /* another's, by descriptor */
	BUILDER_IMPORT_IPC, /* another's, by CUDA IPC */
	BUILDER_FENCE,      /* an event that others wait for */
};

/* One thing made: memory or an event. Allocated by the caller (malloc), who frees it, too. */
struct builder_thing {
	enum builder_kind kind;
	void *address; /* NULL: was never made */
	struct event *event;
	uint64_t bytes; /* as counted in builder_bytes */
	uint64_t since_ns; /* the builder's */
	uint32_t uid; /* the caller's: who is charged for it */
	struct builder_thing *prev, *next;
};

struct builder_job {
	struct builder_thing *thing; /* kind and bytes given; address or event made */
	/* Imports: given (with an fd only fd and size are read); handle.fd stays open and the caller's.
	 * Exports, fences: filled in here; the caller owns the fd. */
	struct device_handle handle;
	int rc; /* 0, or the device's answer: what was made nevertheless is to be closed */
	void *userdata;
	bool again; /* the builder's: it was tried before */
	struct builder_job *prev, *next;
};

/* A piece of work that another thread hands over, whole: it stays that thread's. */
struct builder_task {
	void (*run)(struct builder_task *task); /* on the builder's thread */
	struct builder_task *prev, *next;       /* the builder's */
};

struct builder;

/* `n_in_lane`: steps in the engine's lane; NULL: there is none. 0 or -errno. */
int builder_new(struct device *device, const _Atomic uint32_t *n_in_lane, struct builder **ret);
/* Completes what is queued, without waiting for the lane, and ends the thread. Jobs not taken are dropped
 * with what they made. After the engine's last step, before the device is freed. */
void builder_free(struct builder *builder);

/* If the device has no memory for a job, `relieve` is called on the builder's thread, at most once in
 * BUILDER_RELIEF_MS; if it returns true, the job waits for builder_relieved and is tried again. Call this
 * before the first job. */
void builder_on_pressure(
	struct builder *builder, bool (*relieve)(void *userdata), void *userdata);
/* From any thread. */
void builder_relieved(struct builder *builder);
/* From any thread; tasks run in order, ahead of jobs and closings. */
void builder_post_task(struct builder *builder, struct builder_task *task);

/* Counts thing->bytes from now on. */
void builder_post(struct builder *builder, struct builder_job *job);
/* Readable (edge) when jobs are done, or things are closed. */
int builder_fd(const struct builder *builder);
/* Take one that is done, or NULL. If it failed without an address, its bytes are no longer counted and
 * the caller frees the thing; if it failed with one, call builder_close. */
struct builder_job *builder_take(struct builder *builder);
/* Give back what the thing names. */
void builder_close(struct builder *builder, struct builder_thing *thing);
/* Take one that was closed, or NULL: its bytes are no longer counted. builder_free frees those not taken. */
struct builder_thing *builder_take_closed(struct builder *builder);
/* Bytes of what is being made, exists, or is still to be freed; and things in the queue. From any
 * thread. */
uint64_t builder_bytes(const struct builder *builder);
uint32_t builder_n_closing(const struct builder *builder);

#endif
