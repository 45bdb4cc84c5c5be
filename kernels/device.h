/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_DEVICE_H
#define MIMEO_KERNELS_DEVICE_H

/*
 * The device interface: memory, streams, events, capture and graphs, behind one table of functions.
 * Two devices implement it: the CPU (the default and the reference) and CUDA.
 *
 * Work is put on streams and runs asynchronously in each stream's order. Between capture_begin and
 * capture_end a stream records and does not execute; the recording is instantiated and then
 * launched any number of times, with the addresses and scalars of capture time. `lock` ends set-up:
 * from then on mem_alloc, host_alloc, growth of workspaces and the first use of an op are refused
 * (DEVICE_E_LOCKED), except on a thread that sets up a further model (lift_lock).
 *
 * Returns: 0; a positive enum device_condition, whose value is that of CUDA's error; or -errno. A lost
 * device (DEVICE_E_LOST and the conditions from 700 to 799) is sticky: every later call gives the
 * same result. On the cpu device stream_sync and event_sync wait even then, so that what the work
 * uses may be freed after them.
 *
 * Threads: calls on different streams may come from different threads; work is put on one stream
 * by one thread at a time. A capture belongs to the thread that began it (CUDA's thread-local
 * mode): calls of other threads are not part of it and do not disturb it, unless they query or sync
 * the capturing stream or an event recorded in the capture.
 *
 * A thread that captures may not: allocate or free memory; sync or query any stream or event;
 * instantiate a graph; use an op for the first time; grow a workspace; copy with `copy`. On the
 * capturing stream it also may not: launch or upload a graph; queue a host function; wait on an event
 * recorded outside the capture (waiting on one that was never recorded does nothing). Each of these
 * is refused with its condition and spoils the thread's captures: later work on such a stream gives
 * DEVICE_E_CAPTURE_INVALIDATED, and so does capture_end. Allowed are launches on other streams,
 * new streams and events, and reserve, map, unmap, export and import. A capture is of one stream:
 * another stream that waits on an event recorded in it is refused and spoils it.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum device_condition {
	DEVICE_E_INVALID = 1,                /* an argument is out of range */
	DEVICE_E_MEMORY = 2,                 /* out of device memory */
	DEVICE_E_ILLEGAL_STATE = 401,        /* capture: end without begin, or begin twice */
	DEVICE_E_NOT_READY = 600,            /* a query: the work has not finished */
	DEVICE_E_ILLEGAL_ADDRESS = 700,      /* sticky */
	DEVICE_E_LAUNCH_FAILURE = 719,       /* sticky */
	DEVICE_E_UNSUPPORTED = 801,          /* the device cannot do it; not sticky */
	DEVICE_E_CAPTURE_UNSUPPORTED = 900,  /* not while the stream captures; spoils the capture */
	DEVICE_E_CAPTURE_INVALIDATED = 901,  /* the capture is spoilt */
	DEVICE_E_CAPTURE_UNMATCHED = 903,    /* ended on a stream that did not begin it */
	DEVICE_E_CAPTURE_ISOLATION = 905,    /* waiting on an event from outside the capture */
	DEVICE_E_CAPTURE_IMPLICIT = 906,     /* a blocking copy while capturing */
	DEVICE_E_CAPTURED_EVENT = 907,       /* query or sync of an event recorded in a capture */
	DEVICE_E_CAPTURE_WRONG_THREAD = 908, /* ended by another thread, without a graph */
	DEVICE_E_LOCKED = 10001,             /* allocation, growth or first use after lock */
	DEVICE_E_LOST = 10002,               /* sticky; forced by MIMEO_CPU_FAULT */
};

/* E4M3: of keys and values, and of packed weights (packed.h); U4: of packed weights alone. */
enum dtype { DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_I32, DTYPE_U8, DTYPE_E4M3, DTYPE_U4, DTYPE_U4_32 };

/* Of an element; not of packed weights. */
static inline size_t dtype_bytes(enum dtype dtype)
{
	if (dtype == DTYPE_U8 || dtype == DTYPE_E4M3)
		return 1;
	return dtype == DTYPE_F32 || dtype == DTYPE_I32 ? 4 : 2;
}

struct device;
struct stream;
struct event;
struct graph;      /* a recording */
struct graph_exec; /* an instantiated recording */

struct device_info {
	char name[64];      /* "cpu", "NVIDIA H200" */
	char kind[8];       /* "cpu" or "cuda" */
	uint8_t uuid[16];
	uint64_t total_bytes, free_bytes; /* device memory; cpu: what the machine has available */
	enum dtype activation_dtype, kv_dtype;
	uint64_t export_granularity; /* bytes that are exported are multiples of it */
	bool packs;     /* all products but head_gemm take packed weights (packed.h) */
	bool invariant; /* op_gemm.invariant is supported, for rows and columns of multiples of 8 */
	const char *advice; /* why it is slower than it could be, and what to do; or NULL. Static storage */
};

struct graph_info {
	uint32_t n_nodes;
	uint64_t bytes; /* memory that the executable holds */
};

/* The last fault: what, where. Static storage of the device. */
struct device_fault {
	int condition;
	const char *call; /* "rms_norm launch" */
	const char *file; /* may be NULL */
	int line;
};

#define DEVICE_HANDLE_BYTES 64
struct device_handle {
	uint8_t bytes[DEVICE_HANDLE_BYTES];
	int fd; /* -1 if the kind has none; owned by the receiver */
	uint64_t size;
};

struct device_ops {
	/* Call after all objects of the device have been freed. */
	void (*free)(struct device *device);
	int (*info)(struct device *device, struct device_info *ret);
	/* Ends set-up: see the head of this file. */
	int (*lock)(struct device *device);
	/* Set up a further model beside work that goes on: until the second call the lock does not hold for the
	 * calling thread. Its model's ops run on a stream of stream_new_dry, because kernels whose blocks wait for each
	 * other must not run on two streams at a time. */
	void (*lift_lock)(struct device *device, bool lifted);
	/* 0, or the sticky condition. */
	int (*status)(struct device *device);
	void (*last_fault)(struct device *device, struct device_fault *ret);

	/* Device memory, aligned to 256 bytes, contents undefined (the cpu device poisons it with
	 * 0xff bytes, a NaN in every float format). mem_free does not wait: the caller
	 * knows that no launched work uses the memory. */
	int (*mem_alloc)(struct device *device, size_t bytes, void **ret);
	void (*mem_free)(struct device *device, void *memory);
	/* Page-locked host memory that the device can read and write at the same address; contents
	 * undefined; the cpu device fills it with 0xff, too. */
	int (*host_alloc)(struct device *device, size_t bytes, void **ret);
	void (*host_free)(struct device *device, void *memory);

	/* Address space without memory, and memory mapped into it later; offsets and sizes are
	 * multiples of *ret_granularity. Mapping and unmapping are allowed after lock and do not
	 * wait. On the cpu device mapped memory reads as zeros, which cost nothing until
	 * touched, or as poison in builds with AddressSanitizer and under MIMEO_CPU_POISON=1. */
	int (*reserve)(struct device *device, size_t bytes, void **ret, size_t *ret_granularity);
	int (*map)(struct device *device, void *range, size_t offset, size_t bytes);
	int (*unmap)(struct device *device, void *range, size_t offset, size_t bytes);
	void (*release)(struct device *device, void *range, size_t bytes);

	int (*stream_new)(struct device *device, struct stream **ret);
	/* A stream on which ops, copies and fills do not run: they are checked, loaded and get their workspaces, and
	 * captures record them as on any other stream. For a warm-up beside a stream that is in use. */
	int (*stream_new_dry)(struct device *device, struct stream **ret);
	/* Grow the stream's workspaces to the sizes of `like`'s: what ran on that one then runs on this one after lock,
	 * too. By a thread for which the lock does not hold, also while another puts work on the stream. */
	int (*stream_match)(struct stream *stream, const struct stream *like);
	void (*stream_free)(struct stream *stream); /* waits for its work */
	int (*stream_sync)(struct stream *stream);
	int (*stream_query)(struct stream *stream); /* 0 idle, DEVICE_E_NOT_READY, or a fault */
	int (*stream_wait_event)(struct stream *stream, struct event *event);
	/* Call fn(arg) on a device-owned thread in the stream's order. It must not call the device.
	 * Refused while capturing. What was queued runs even when the device is lost. */
	int (*stream_host_func)(struct stream *stream, void (*fn)(void *arg), void *arg);

	int (*event_new)(struct device *device, struct event **ret);
	void (*event_free)(struct event *event);
	int (*event_record)(struct event *event, struct stream *stream);
	/* An event never recorded is done; one whose last record was in a capture that has ended is
	 * DEVICE_E_INVALID, here and in event_sync and stream_wait_event. */
	int (*event_query)(struct event *event);
	int (*event_sync)(struct event *event);
	/*
	 * An event that other processes may wait for; allowed after lock. *ret_handle names it in
	 * them: on the cpu device by a descriptor (the caller's) of a struct event_page, which they
	 * can only read; with CUDA by 64 bytes (fd -1) for cudaIpcOpenEventHandle. size is 0. All
	 * the calls above take it, but it cannot be recorded in a capture (CAPTURE_UNSUPPORTED,
	 * which spoils the capture), and only on one stream. Its owner frees it when the work
	 * recorded last is done.
	 *
	 * A wait is for the last recording before it, and a wait for an event never recorded ends at
	 * once: the owner has to report the recording to the other process first.
	 */
	int (*event_new_shared)(
		struct device *device, struct event **ret, struct device_handle *ret_handle);

	/* Copies and fills between any two of device, pinned and pageable host memory. copy_async
	 * from pageable memory is the caller's risk, as on CUDA. `copy` blocks; never on a lane. */
	int (*copy_async)(struct stream *stream, void *dst, const void *src, size_t bytes);
	int (*fill_async)(struct stream *stream, void *dst, uint8_t value, size_t bytes);
	int (*copy)(struct device *device, void *dst, const void *src, size_t bytes);

	int (*capture_begin)(struct stream *stream);
	/* *ret_graph is written on success only; a spoilt capture ends with its condition. */
	int (*capture_end)(struct stream *stream, struct graph **ret_graph);
	bool (*capturing)(struct stream *stream);
	int (*graph_instantiate)(
		struct device *device, struct graph *graph, struct graph_exec **ret);
	int (*graph_upload)(struct graph_exec *exec, struct stream *stream);
	int (*graph_launch)(struct graph_exec *exec, struct stream *stream);
	int (*graph_info)(struct graph_exec *exec, struct graph_info *ret);
	/* For tests: names of the recorded nodes in order; NULL past the end. */
	const char *(*graph_node_name)(struct graph *graph, uint32_t index);
	void (*graph_free)(struct graph *graph);
	void (*graph_exec_free)(struct graph_exec *exec); /* when no launch of it is pending */

	/* Memory that other processes may map: allocate and export one (zeroed), import another's;
	 * allowed after lock. The handle's fd is the caller's in both: export_alloc hands it over,
	 * import leaves it open. DEVICE_E_INVALID: a handle of no such memory. */
	int (*export_alloc)(
		struct device *device, size_t bytes, void **ret, struct device_handle *ret_handle);
	void (*export_free)(struct device *device, void *memory);
	int (*import)(struct device *device, const struct device_handle *handle, void **ret);
	void (*import_free)(struct device *device, void *memory);
	/* Bytes from imported memory's start to the end of what the handle names; 0: not imported. */
	uint64_t (*import_bytes)(struct device *device, const void *memory);
	/* The handle, for `import`, of at least `bytes` of an untrusted descriptor, which stays the
	 * caller's. DEVICE_E_INVALID: it has fewer, as far as this can be known before import. */
	int (*handle_of_fd)(struct device *device, int fd, uint64_t bytes, struct device_handle *ret);
	/* Memory named by 64 bytes and no descriptor (CUDA IPC): a block of its own in multiples of
	 * 2 MiB, zeroed, because such a handle opens the whole block. DEVICE_E_UNSUPPORTED: the
	 * device has no such handles. Allowed after lock, but allocating may, and export_ipc_free
	 * and import_free of such memory do, WAIT FOR ALL THE DEVICE'S WORK and block launches of
	 * other threads meanwhile: their caller chooses the time. */
	int (*export_ipc_alloc)(
		struct device *device, size_t bytes, void **ret, struct device_handle *ret_handle);
	void (*export_ipc_free)(struct device *device, void *memory);
};

/* A cpu device's shared event as another process sees it: `recorded` and `completed` count its
 * recordings and those that the stream has reached; both wrap. `completed` is a futex. Written and
 * read atomically. */
struct event_page {
	uint32_t recorded, completed;
};

/* The entries but those of the device itself (free, info, lock, lift_lock, status, last_fault), by name. */
#define DEVICE_OPS(OP)                                                                             \
	OP(mem_alloc) OP(mem_free) OP(host_alloc) OP(host_free) OP(reserve) OP(map) OP(unmap)      \
	OP(release) OP(stream_new) OP(stream_new_dry) OP(stream_match) OP(stream_free)             \
	OP(stream_sync) OP(stream_query)                                                           \
	OP(stream_wait_event) OP(stream_host_func) OP(event_new) OP(event_free)                    \
	OP(event_record) OP(event_query) OP(event_sync) OP(event_new_shared) OP(copy_async)        \
	OP(fill_async) OP(copy) OP(capture_begin) OP(capture_end) OP(capturing)                    \
	OP(graph_instantiate) OP(graph_upload) OP(graph_launch) OP(graph_info)                     \
	OP(graph_node_name) OP(graph_free) OP(graph_exec_free) OP(export_alloc) OP(export_free)    \
	OP(import) OP(import_free) OP(import_bytes) OP(handle_of_fd) OP(export_ipc_alloc)          \
	OP(export_ipc_free)

struct kernel_ops;

struct device {
	const struct device_ops *ops;
	const struct kernel_ops *kernels; /* kernels/ops.h */
};

/* "cudaErrorStreamCaptureUnsupported" and the like for a condition; strerror's words for -errno. */
const char *device_strerror(int rc);
/* True for conditions after which the device is unusable. */
static inline bool device_is_lost(int rc)
{
	return rc == DEVICE_E_LOST || (rc >= 700 && rc < 800);
}

struct device_options {
	/* cpu: how long a stream's worker spins for work, and stream_sync and event_sync for its
	 * end, before they sleep, in microseconds; UINT32_MAX: for ever. */
	uint32_t spin_us;
};

/* `name`: "cpu", "cuda", "cuda:N" or "auto" (cuda where there is one, else cpu). -ENODEV: no such
 * device; -ENOTSUP: built without it. Options NULL: all zero. */
int device_open(const char *name, const struct device_options *options, struct device **ret);

#endif
