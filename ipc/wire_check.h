/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_IPC_WIRE_CHECK_H
#define MIMEO_IPC_WIRE_CHECK_H

/*
 * A linear walk over untrusted msgpack before msgpack-c parses it.
 *
 * msgpack-c reserves memory for whatever count an array or map claims: five bytes can ask for 96
 * GB. Accepted bytes hold exactly one value, and at every array and map the values still
 * missing, in it and in all containers around it, are no more than the bytes that remain.
 * Hence parsing n accepted bytes makes at most n values, MSG_DEPTH_MAX containers deep.
 */

#include <stddef.h>

enum wire_refusal {
	WIRE_OK = 0,
	WIRE_TOO_LARGE, /* more than MSG_SOCKET_MAX bytes */
	WIRE_SHORT,     /* a value or a claimed length reaches beyond the end */
	WIRE_COUNT,     /* an array or map claims more than the bytes that remain could hold */
	WIRE_DEPTH,     /* containers nested deeper than MSG_DEPTH_MAX */
	WIRE_EXT,       /* an extension type */
	WIRE_RESERVED,  /* the byte 0xc1 */
	WIRE_TRAILING,  /* bytes after the value */
};

/* WIRE_OK, or why `data` is refused and, in *ret_offset, where: the first byte of the offending
 * value. Linear in `size`, with a constant stack; reads each byte at most once. */
enum wire_refusal wire_check(const void *data, size_t size, size_t *ret_offset);

#endif
