/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_CUDA_H
#define MIMEO_KERNELS_CUDA_CUDA_H

/*
 * What an op needs of the CUDA device. Its launcher checks shapes, then
 *
 *	rc = cuda_launch_begin(stream, "rms_norm", (const void *)some_kernel_of_this_file);
 *	if (rc != 0)
 *		return rc;
 *	kernel<<<grid, block, shared, cuda_stream(stream)>>>(...);
 *	return cuda_launch_end(stream, "rms_norm");
 *
 * with one name for what may be several kernels: it is the op's name in graph_node_name, for each
 * node that the op recorded, and in faults. Names are string literals.
 */

#include <cuda_runtime_api.h>

#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

cudaStream_t cuda_stream(struct stream *stream);

/*
 * May this op be put on the stream now? 0; the sticky condition; DEVICE_E_CAPTURE_INVALIDATED on a
 * spoilt capture. The first begin of a name on a device loads every kernel of the source file that
 * `kernel` is in (NULL: nothing to load), so that none of its variants is loaded lazily later; it
 * is refused while a stream of this thread captures (DEVICE_E_CAPTURE_UNSUPPORTED, spoiling the
 * capture) and after lock (DEVICE_E_LOCKED). One hash probe once loaded.
 */
int cuda_launch_begin(struct stream *stream, const char *name, const void *kernel);
/* What the launches since begin came to; a fault is recorded as the device's. */
int cuda_launch_end(struct stream *stream, const char *name);

/*
 * The stream's scratch memory, at least `bytes`, aligned to 256: one op's at a time, contents lost
 * with the next op of the stream. Grows under the same two refusals; memory that recorded nodes may
 * name stays until the stream is freed. Ask between cuda_launch_begin and the first launch, and for
 * a size that does not depend on the number of rows.
 */
int cuda_workspace(struct stream *stream, size_t bytes, void **ret);

struct cuda_limits {
	uint32_t n_sms;
	uint32_t arch;               /* 90 for 9.0 */
	uint32_t shared_bytes_optin; /* per block, for kernels that ask for more than 48 KiB */
	uint32_t l2_bytes;
};
const struct cuda_limits *cuda_limits(struct stream *stream);

/*
 * The door for every other runtime call: 0, or the condition; recorded as the device's last fault
 * if it is sticky. `device` is a struct device or NULL where there is none yet. Of a driver call:
 * CUDA_TRY_DRIVER.
 */
#define CUDA_TRY(device, call) cuda_check((device), (call), #call, __FILE__, __LINE__)
int cuda_check(
	struct device *device, cudaError_t error, const char *call, const char *file, int line);
/* An enum device_condition, or the code as it is. */
int cuda_condition(cudaError_t error);
/* CUDA's own name for a condition that kernels/device.h has none for; NULL: CUDA has none. */
const char *cuda_error_name(int condition);
struct device *cuda_stream_device(struct stream *stream);

/* The op table of this device (kernels/cuda/ops.c); gemm is of gemm.cu. */
extern const struct kernel_ops cuda_kernel_ops;
int cuda_gemm(struct stream *stream, const struct op_gemm *args);

/*
 * -ENODEV: no driver, or no such device; -EINVAL: `name` is not "cuda" or "cuda:N". -ENOTSUP: no
 * device code in this build for it.
 */
int cuda_device_new(const char *name, const struct device_options *options, struct device **ret);

#ifdef __cplusplus
}
#endif

#endif
