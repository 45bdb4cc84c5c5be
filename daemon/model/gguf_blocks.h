/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_GGUF_BLOCKS_H
#define MIMEO_DAEMON_MODEL_GGUF_BLOCKS_H

/*
 * GGUF's tensor types. A row of a quantised tensor is a run of blocks, each with its own scales; what a block means
 * in float32 is defined by ggml's reference code, whose order of operations is kept, so that results are the same
 * to the bit. Products that a minimum is added to are exact (at most 22 bits), so that it does not matter whether a CPU
 * fuses the two.
 */

#include <stdbool.h>
#include <stdint.h>

#include "daemon/model/block_format.h"
#include "kernels/device.h"

struct gguf_type {
	uint32_t number;
	const char *name;
	uint32_t elements, bytes; /* of a block */
	bool usable;
	enum dtype dtype; /* if usable: of plain elements, or what `format` widens to */
	const struct block_format *format; /* NULL: plain elements, or not usable */
};

/* NULL: a number that no type has. */
const struct gguf_type *gguf_type_find(uint32_t number);

#endif
