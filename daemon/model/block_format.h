/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_BLOCK_FORMAT_H
#define MIMEO_DAEMON_MODEL_BLOCK_FORMAT_H

/* Elements that are stored in blocks and widened when a model is loaded. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct block_format {
	uint32_t elements, bytes; /* of a block */
	/* n_blocks blocks. False: a scale is NaN or infinite; dst is undefined then. */
	bool (*to_f32)(float *restrict dst, const uint8_t *restrict src, size_t n_blocks);
};

#endif
