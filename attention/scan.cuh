/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_SCAN_CUH
#define MIMEO_ATTENTION_SCAN_CUH

/* Scans and searches of the kernels that plan. */

#include <stdint.h>

/* Inclusive, over the lanes of a warp, by a function that is associative. */
template <typename T, typename Join>
static __device__ __forceinline__ T warp_scan(T x, int lane, Join join)
{
	for (int d = 1; d < 32; d *= 2) {
		T other = __shfl_up_sync(~0u, x, d);

		if (lane >= d)
			x = join(x, other);
	}
	return x;
}

/* The last of n places, in ascending order, that has begun; the first one always has. */
template <typename Begun>
static __device__ __forceinline__ int32_t last_begun(int32_t n, Begun begun)
{
	int32_t low = 0, high = n;

	while (high - low > 1) {
		int32_t middle = (low + high) / 2;

		if (begun(middle))
			low = middle;
		else
			high = middle;
	}
	return low;
}

#endif
