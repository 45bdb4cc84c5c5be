/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CHECKS_H
#define MIMEO_KERNELS_CHECKS_H

/*
 * Which arguments of an op are valid, on every device: NAME_fits(args) for each op of
 * kernels/ops.h. Launchers return -EINVAL for all others. Pointers into device memory are compared
 * with NULL only.
 */

#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* True if ops can convert the weight's dtype, and it has these dimensions, and both are above 0. */
bool weight_is(const struct weight *w, uint32_t rows, uint32_t cols);

/* Can a cache of fp8 have it? 2^-40 to 2^40: neither scores that it multiplies nor what codes stand for overflow. */
bool kv_factor_fits(float factor);
bool kv_factors_fit(const struct kv_factors *factors);

#define CHECKS_DECLARE(name) bool name##_fits(const struct op_##name *args);
KERNEL_OPS(CHECKS_DECLARE)
KERNEL_OPTIONAL_OPS(CHECKS_DECLARE)
#undef CHECKS_DECLARE

#ifdef __cplusplus
}
#endif

#endif
