/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_INTERNAL_H
#define MIMEO_KERNELS_CUDA_INTERNAL_H

/*
 * The CUDA device's files and what they share.
 *
 *	device   opening, the table, the refusals of capture and lock
 *	fault    what an error code means, and the first fault that lost the device
 *	driver   libcuda's functions, looked up at run time: programs start without libcuda
 *	launch   ops onto streams: first use, workspaces; copies and fills
 *	memory   device and pinned memory
 *	range    address space and what is mapped into it
 *	share    export and import
 *	stream   streams and host functions
 *	event    events
 *	graph    recording and replay
 *	gemm     products, by cuBLASLt's kernels and by skinny's and wide's; its files are in gemm.h
 *	tensor_map  matrices as the copy engine of 9.0 sees them
 *
 * What may not be done while a thread captures is decided here, before CUDA sees the call: CUDA
 * refuses some of it, lets some pass, and invalidates the capture for part of what it refuses. A
 * spoilt stream takes no further work, and its recording is dropped at capture_end. For the same
 * reason an event that is recorded in a capture is only marked: a capture is of one stream, and
 * within its order the mark is enough.
 */

#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>

#include "kernels/captures.h"
#include "kernels/forced.h"
#include "kernels/loaded.h"
#include "kernels/lock.h"
#include "kernels/workspace.h"
#include "kernels/cuda/cuda.h"

/* libcuda's part. */
struct driver {
	__typeof__(&cuMemAddressReserve) address_reserve;
	__typeof__(&cuMemAddressFree) address_free;
	__typeof__(&cuMemGetAllocationGranularity) granularity;
	__typeof__(&cuMemCreate) create;
	__typeof__(&cuMemRelease) release;
	__typeof__(&cuMemMap) map;
	__typeof__(&cuMemUnmap) unmap;
	__typeof__(&cuMemSetAccess) set_access;
	__typeof__(&cuMemExportToShareableHandle) export_handle;
	__typeof__(&cuMemImportFromShareableHandle) import_handle;
	__typeof__(&cuMemGetAllocationPropertiesFromHandle) properties;
	__typeof__(&cuMemGetAddressRange) address_range;
	__typeof__(&cuFuncGetModule) function_module;
	__typeof__(&cuTensorMapEncodeTiled) tensor_map_tiled;
#if CUDA_VERSION >= 12040
	__typeof__(&cuModuleGetFunctionCount) module_count;
	__typeof__(&cuModuleEnumerateFunctions) module_functions;
	__typeof__(&cuFuncLoad) function_load;
#endif
};

struct graph {
	struct cuda_device *device;
	cudaGraph_t handle;
	const char **names; /* [n_nodes] the op that recorded the node */
	uint32_t n_nodes, capacity;
};

struct graph_exec {
	struct cuda_device *device;
	cudaGraphExec_t handle;
	uint32_t n_nodes;
	_Atomic uint64_t bytes;
};

struct stream {
	struct cuda_device *device;
	cudaStream_t handle;
	_Atomic(struct workspace *) workspaces, exchanges;
	bool dry; /* nothing runs on it */
	struct capture capture;
	struct graph *capture_graph;
	bool inputs_recorded; /* what is being captured writes the step's inputs */
};

#define EVENT_NEVER 0u
#define EVENT_RECORDED 1u /* larger marks: the number of the capture it was recorded in */
struct event {
	struct cuda_device *device;
	cudaEvent_t handle;
	bool shared;
	_Atomic uint64_t mark;
};

struct range;  /* range.c */
struct shared; /* share.c */
struct gemm;   /* gemm.h */

struct cuda_device {
	struct device base;
	int ordinal;
	uint8_t uuid[16];
	char name[64];
	struct cuda_limits limits;
	bool overlap; /* kernels may begin before those before them are done */
	struct driver driver;
	size_t granularity;   /* of mapping */
	cudaStream_t utility; /* blocking copies, zeroing, asking whether the device lives */
	struct lock locked;
	_Atomic int lost;        /* 0 or the sticky condition */
	_Atomic uint64_t ask_ns; /* when `status` is to ask CUDA again */
	struct captures captures;
	struct loaded loaded;
	pthread_mutex_t lock; /* of what follows */
	struct device_fault fault;
	char fault_call[96];
	struct gemm *gemm;
	enum cuda_gemm_choice gemm_choice;
	pthread_mutex_t memory_lock; /* of what follows */
	struct range *ranges;
	struct shared *shared;
#ifdef MIMEO_TEST_FAULTS
	struct forced forced; /* MIMEO_CUDA_FAULT, MIMEO_CUDA_HOLD */
#endif
};

static inline struct cuda_device *cuda_device(struct device *device)
{
	return (struct cuda_device *)device;
}

/* The functions of the device's table, with the types that struct device_ops gives them. */
#define CUDA_DECLARE(name) __typeof__(*((struct device_ops *)0)->name) cuda_##name;
DEVICE_OPS(CUDA_DECLARE)
#undef CUDA_DECLARE

/* Is what is put on the stream checked and not run? */
static inline bool cuda_runs_dry(const struct stream *stream)
{
	return stream->dry && !capture_is_on(&stream->capture);
}

/* ---- device.c ---- */

static inline int cuda_lost(struct cuda_device *device)
{
	return atomic_load_explicit(&device->lost, memory_order_acquire);
}

/* 0 or the sticky condition; makes the device the calling thread's. */
int cuda_status(struct cuda_device *device);
/* For what a thread may not do while it captures: spoils its captures and returns `condition`. */
int cuda_refuse_capture(struct cuda_device *device, int condition);
/* Both: the first line of most calls. */
int cuda_enter(struct cuda_device *device);
/* cuda_enter for what is also refused after lock. */
int cuda_enter_growth(struct cuda_device *device);
/*
 * Until the end of the enclosing block the thread is in CUDA's relaxed capture mode: for calls
 * which the device interface allows while the thread captures and CUDA's thread-local mode does
 * not.
 */
struct cuda_relaxed {
	struct cuda_device *device;
	enum cudaStreamCaptureMode mode; /* the one before */
};
struct cuda_relaxed cuda_relax(struct cuda_device *device);
void cuda_relax_end(const struct cuda_relaxed *relaxed);
#define CUDA_RELAXED(device)                                                                       \
	const struct cuda_relaxed relaxed __attribute__((cleanup(cuda_relax_end), unused)) =       \
		cuda_relax(device)

/* ---- fault.c ---- */

void cuda_fault(
	struct cuda_device *device, int condition, const char *call, const char *file, int line);
void cuda_last_fault(struct device *device, struct device_fault *ret);
/* Of the driver's functions, whose codes are the runtime's. */
#define CUDA_TRY_DRIVER(device, call) CUDA_TRY((device), (cudaError_t)(call))

/*
 * In builds with -Dtest_faults=true: what MIMEO_CUDA_FAULT says, "launch:N" or "op:NAME:N", is read
 * when the device is opened; before the Nth launch of anything, or of the op of that name, that is
 * executed and not recorded, an illegal access goes onto its stream. A replayed graph is one
 * launch, of the name "graph". From then on the device is lost as by any fault. MIMEO_CUDA_HOLD,
 * "NAME:PATH", has the stream wait before every such launch of that op while the file exists.
 */
#ifdef MIMEO_TEST_FAULTS
int cuda_forced_fault_open(struct cuda_device *device);
int cuda_forced_fault(struct stream *stream, const char *name);
#else
static inline int cuda_forced_fault_open(struct cuda_device *device)
{
	(void)device;
	return 0;
}

static inline int cuda_forced_fault(struct stream *stream, const char *name)
{
	(void)stream;
	(void)name;
	return 0;
}
#endif

/* ---- driver.c ---- */

int cuda_driver_load(struct driver *driver);

/* ---- range.c ---- */

/* Properties of this device's memory; `shareable`: that a file descriptor may name it. */
CUmemAllocationProp cuda_range_properties(const struct cuda_device *device, bool shareable);
/* Map physical memory at an address of ours for reading and writing. */
int cuda_range_attach(struct cuda_device *device, CUdeviceptr address, size_t bytes,
	CUmemGenericAllocationHandle physical);

/* ---- stream.c ---- */

/* The first check of a call that puts work on the stream. */
static inline int cuda_stream_enter(struct stream *stream)
{
	int rc = cuda_status(stream->device);

	if (rc)
		return rc;
	return capture_is_spoilt(&stream->capture) ? DEVICE_E_CAPTURE_INVALIDATED : 0;
}

/* The same for work that a capture cannot record; spoils it. */
int cuda_enter_eager(struct stream *stream);

/* ---- graph.c ---- */

/* The nodes recorded since the last mark are of the op `name`. */
int cuda_graph_mark(struct stream *stream, const char *name);
/* End the stream's capture and drop its recording. */
void cuda_capture_drop(struct stream *stream);

/* ---- gemm.c ---- */

/* Give back what only timing needed. */
void cuda_gemm_lock(struct cuda_device *device);
void cuda_gemm_free(struct cuda_device *device);

#endif
