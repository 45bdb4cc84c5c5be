/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_CUDA_H
#define MIMEO_KERNELS_CUDA_CUDA_H

/*
 * What an op needs of the CUDA device. Its launcher checks shapes, then
 *
 *	rc = cuda_launch_begin(stream, "rms_norm", (const void *)some_kernel_of_this_file);
 *	if (rc)
 *		return rc;
 *	launch(stream, kernel, grid, block, shared_bytes, ...);
 *	return cuda_launch_end(stream, "rms_norm");
 *
 * with one name for what may be several kernels: it is the op's name in graph_node_name, for each
 * node that the op recorded, and in faults. Names are string literals. `launch` is of overlap.cuh
 * and goes through cuda_launch.
 *
 * OVERLAP. A kernel that was launched through cuda_launch may BEGIN while the kernels before it in
 * its stream still run (programmatic dependent launch, on 9.0 and newer; eager and in graphs
 * alike). Its blocks come when all blocks of the kernel before it have called overlap_trigger or
 * exited, and they fit on a multiprocessor. The rule for kernels:
 *
 *  1. Every thread of every block calls overlap_wait, on every path, also where there is nothing to
 *     do. Before it a thread reads only what no launch that may be under way writes: arguments,
 *     weights, the rope table; it may prefetch these. It writes no global memory.
 *  2. overlap_trigger may stand anywhere, also before the wait: it promises nothing. The earlier
 *     it is called, the earlier the next kernel fetches its weights; the first statement is right
 *     unless blocks that start early would take the place of this kernel's own.
 *
 * Why that is enough: the wait returns when the kernel before has completed and what it wrote is
 * visible. That one could not complete before its own wait had returned, so everything before it
 * is complete as well: what a kernel reads, overwrites or keeps as scratch after its wait is
 * settled, however early it began. Launches that don't go through cuda_launch (cuBLASLt's, copies,
 * fills), events and host functions wait for all before them to complete, and a kernel behind a
 * copy or a fill begins when that is done.
 */

#include <cuda_runtime_api.h>

#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

cudaStream_t cuda_stream(struct stream *stream);

/*
 * May this op be put on the stream now? 0; the sticky condition; DEVICE_E_CAPTURE_INVALIDATED in an
 * invalidated capture. The first begin of a name on a device loads every kernel of the source file that
 * defines `kernel` (NULL: nothing to load), so that none of its variants is loaded lazily later; it is
 * refused while a stream of this thread captures (DEVICE_E_CAPTURE_UNSUPPORTED, which invalidates the
 * capture) and after lock (DEVICE_E_LOCKED). Once loaded it costs one hash probe.
 */
int cuda_launch_begin(struct stream *stream, const char *name, const void *kernel);
/* The result of the launches since begin; a fault is recorded as the device's. */
int cuda_launch_end(struct stream *stream, const char *name);

/*
 * For kernels that need more than 48 KiB of shared memory: between begin and the first launch. `name`
 * differs from the op's; it is done once per name and device, and refused as the first begin is. Names are
 * compared by address.
 */
int cuda_allow_shared(struct stream *stream, const char *name, const void *const *kernels,
	uint32_t n, uint32_t shared_bytes);

/*
 * Every launch goes through here, between begin and end, which reports its result. `params` are the
 * addresses of the kernel's arguments, which are copied; the kernel obeys the rule of OVERLAP.
 * More than 48 KiB of shared memory need cuda_allow_shared before.
 */
void cuda_launch(struct stream *stream, const void *kernel, struct dim3 grid, struct dim3 block,
	size_t shared_bytes, void **params);
/* The same in clusters of so many neighbouring blocks, which the grid is a multiple of; 9.0 on. */
void cuda_launch_clusters(struct stream *stream, const void *kernel, uint32_t grid, uint32_t block,
	uint32_t cluster, size_t shared_bytes, void **params);
/* How many such clusters run at once, by a kernel of one block a multiprocessor; 0: not known. A GPC may have
 * multiprocessors left over. */
uint32_t cuda_clusters_at_once(struct stream *stream, const void *kernel, uint32_t cluster, uint32_t block,
	size_t shared_bytes);

/* A matrix as the copy engine (TMA) of 9.0 sees it (CUtensorMap), for a kernel's arguments. */
struct cuda_tensor_map {
	uint64_t opaque[16];
} __attribute__((aligned(64)));
/*
 * Of bf16, rows contiguous, cols a multiple of 8, aligned to 16 bytes; boxes of box_rows (256 at
 * most) by 64 columns, in shared memory with CU_TENSOR_MAP_SWIZZLE_128B, zeros beyond the matrix. Makes no
 * call to the device.
 */
int cuda_tensor_map(struct stream *stream, const void *matrix, uint32_t rows, uint32_t cols,
	uint32_t box_rows, struct cuda_tensor_map *ret);
/* Of packed weights: boxes of box_rows by box_units units, which lie in shared memory row by row of units. */
int cuda_tensor_map_packed(struct stream *stream, const struct weight *w, uint32_t box_rows, uint32_t box_units,
	struct cuda_tensor_map *ret);
#define CUDA_TENSOR_DIMS_MAX 5
/* The same for more than two dimensions. The first is contiguous, with 64 columns per box (or 32, with
 * CU_TENSOR_MAP_SWIZZLE_64B); strides in bytes, multiples of 16, from the second dimension on. */
int cuda_tensor_map_of(struct stream *stream, const void *memory, uint32_t n_dims,
	const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
	struct cuda_tensor_map *ret);
/* The same of words of 8 bytes, which lie in shared memory as they do in the matrix. */
int cuda_tensor_map_words(struct stream *stream, const void *memory, uint32_t n_dims, const uint64_t *dims,
	const uint64_t *strides, const uint32_t *box, struct cuda_tensor_map *ret);
/*
 * The same in four dimensions, for boxes of box_cols columns in shared memory as atoms of 8 rows by
 * 64 columns (32 where box_cols is no multiple of 64), those of the same 8 rows one after the other: {64
 * columns, 8 rows, cols / 64, rows / 8}. A box is {64, 8, box_cols / 64, box_rows / 8}. cols a multiple of
 * box_cols, box_rows and rows of 8; rows 0: not known.
 */
int cuda_tensor_map_atoms(struct stream *stream, const void *matrix, uint64_t rows, uint32_t cols,
	uint32_t box_rows, uint32_t box_cols, struct cuda_tensor_map *ret);

/*
 * The step's inputs (struct step_inputs) are written by `prepare` and a draft's (draft_inputs) by
 * `draft_begin` and `draft_advance`, which call cuda_inputs_written. Settled: no launch that may
 * overlap the next one writes them, so that it may read them before overlap_wait. This holds in a
 * capture that has none of the three so far: a graph starts after all earlier work has completed, and a
 * kernel after a recorded copy or fill when that has completed. Arrays of slots are excepted: sample and
 * verify write them.
 */
void cuda_inputs_written(struct stream *stream);
bool cuda_inputs_settled(struct stream *stream);

/*
 * The stream's scratch memory, at least `bytes`, aligned to 256: for one op at a time: the next op of the
 * stream overwrites it. Growing is refused as the first begin is; memory that recorded nodes may name stays
 * until the stream is freed. Call it between cuda_launch_begin and the first launch, with a size that does
 * not depend on the number of rows.
 */
int cuda_workspace(struct stream *stream, size_t bytes, void **ret);

/*
 * The stream's memory for words between the blocks of a kernel, at least `bytes`, aligned to 256: 256 bytes
 * of 0, then all 0xff when it is new. What an op leaves there is there for the next op of any size, so ops divide
 * it by *ret_bytes, what it has. Growing is refused as the first begin is; memory that recorded nodes may name
 * stays until the stream is freed.
 */
int cuda_exchange(struct stream *stream, size_t bytes, void **ret, size_t *ret_bytes);

struct cuda_limits {
	uint32_t n_sms;
	uint32_t arch;               /* 90 for 9.0 */
	uint32_t code_arch;          /* of the code in this build that runs on it; lower if that is compiled from PTX */
	uint32_t shared_bytes_optin; /* per block, for kernels that ask for more than 48 KiB */
	uint32_t l2_bytes;
};
const struct cuda_limits *cuda_limits(struct stream *stream);

/*
 * Wraps every other runtime call. 0, or the condition, which is recorded as the device's last fault if it is
 * sticky. `device` is a struct device, or NULL before it exists. For driver calls: CUDA_TRY_DRIVER.
 */
#define CUDA_TRY(device, call) cuda_check((device), (call), #call, __FILE__, __LINE__)
int cuda_check(
	struct device *device, cudaError_t error, const char *call, const char *file, int line);
/* An enum device_condition, or the code as it is. */
int cuda_condition(cudaError_t error);
/* CUDA's name for a condition without a name in kernels/device.h; NULL: CUDA has none either. */
const char *cuda_error_name(int condition);
struct device *cuda_stream_device(struct stream *stream);

/* The op table of this device (kernels/cuda/ops.c). */
extern const struct kernel_ops cuda_kernel_ops;
/* For measuring: restrict the kernels among which gemm chooses; CUDA_GEMM_OWN + 1 + i: only our i-th variant
 * for a shape. Set it before gemm's first use on the device. */
enum cuda_gemm_choice { CUDA_GEMM_ANY, CUDA_GEMM_LIBRARY, CUDA_GEMM_OWN };
void cuda_gemm_choose(struct device *device, enum cuda_gemm_choice choice);

/*
 * -ENODEV: no driver, or no such device; -EINVAL: `name` is not "cuda" or "cuda:N". -ENOTSUP: no
 * device code in this build for it.
 */
int cuda_device_new(const char *name, const struct device_options *options, struct device **ret);

#ifdef MIMEO_TEST_FAULTS
/* How many launches MIMEO_CUDA_FAULT has counted. */
uint64_t cuda_forced_fault_count(struct device *device);
#endif

#ifdef __cplusplus
}
#endif

#endif
