/* SPDX-License-Identifier: MIT */
#include "daemon/engine/requests/names.h"

#include <stddef.h>

#include <mimeo/types.h>

#include "ipc/ring.h"

const char *request_op_name(unsigned op)
{
	static const char *const names[] = {
		[RING_OP_GENERATE] = "generate",
		[RING_OP_STEP] = "step",
		[RING_OP_OPEN] = "open",
		[RING_OP_FORK] = "fork",
		[RING_OP_TRUNCATE] = "truncate",
		[RING_OP_CLOSE] = "close",
		[RING_OP_LENGTH] = "length",
	};

	return op < sizeof(names) / sizeof(names[0]) && names[op] ? names[op] : "unknown";
}

const char *request_class_name(uint32_t class)
{
	return class == MIMEO_CLASS_INTERACTIVE ? "interactive" : class == MIMEO_CLASS_BATCH ? "batch" : "normal";
}
