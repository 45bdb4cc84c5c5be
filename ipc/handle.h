/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_IPC_HANDLE_H
#define MIMEO_IPC_HANDLE_H

/*
 * The wire format of struct mimeo_handle: memory that one process's device exports and another's imports.
 * kernels/device.h makes and opens it; nothing here knows a device. Little endian, 104 bytes:
 *
 *	 0  kind           uint32
 *	 4  zero           uint32
 *	 8  device uuid    16 bytes
 *	24  bytes          uint64, of the buffer
 *	32  offset         uint64, where it starts in the exported allocation
 *	40  opaque         64 bytes
 *
 * A file descriptor, if the kind has one, is sent with it in SCM_RIGHTS.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <mimeo/types.h>

#define HANDLE_WIRE_BYTES 104u

enum handle_refusal {
	HANDLE_OK = 0,
	HANDLE_LENGTH,  /* not HANDLE_WIRE_BYTES bytes */
	HANDLE_KIND,    /* no kind, or DEFAULT */
	HANDLE_PADDING, /* bytes that must be zero are not */
	HANDLE_SIZE,    /* bytes is 0, or offset + bytes exceeds INT64_MAX */
	HANDLE_UUID,    /* a memfd with a device's uuid, or a device's handle without */
	HANDLE_OPAQUE,  /* opaque bytes where the kind has none, or none where it has some */
};

/* HANDLE_OK, or what is wrong. Whether device, allocation and size exist, the importing device checks. */
enum handle_refusal handle_check(const struct mimeo_handle *handle);
/* "an unknown kind of handle" and so on. Static storage. */
const char *handle_refusal_text(enum handle_refusal refusal);
/* Does a file descriptor belong to the handle? */
bool handle_has_fd(const struct mimeo_handle *handle);

void handle_encode(const struct mimeo_handle *handle, uint8_t ret[static HANDLE_WIRE_BYTES]);
/* Reads and checks; *ret, which has no descriptor, is written only on HANDLE_OK. `data` must be private
 * memory. */
enum handle_refusal handle_decode(const void *data, size_t size, struct mimeo_handle *ret);

#endif
