/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_IPC_HANDLE_H
#define MIMEO_IPC_HANDLE_H

/*
 * A handle of a device buffer: opaque bytes that one process's device exports and another's
 * imports. Nothing here knows a device; kernels/device.h makes and opens what these carry.
 *
 * Drawn as it travels (little endian, 104 bytes):
 *
 *	 0  kind           uint32
 *	 4  zero           uint32
 *	 8  device uuid    16 bytes
 *	24  size           uint64, bytes of the buffer
 *	32  offset         uint64, where it starts in the exported allocation
 *	40  opaque         64 bytes
 *
 * A file descriptor, where the kind has one, travels beside it in SCM_RIGHTS.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HANDLE_WIRE_BYTES 104u
#define HANDLE_UUID_BYTES 16u
#define HANDLE_OPAQUE_BYTES 64u

enum handle_kind {
	HANDLE_MEMFD = 1,    /* fd of host memory, on the cpu device; uuid and opaque are zero */
	HANDLE_VMM_FD = 2,   /* fd of a device's virtual-memory allocation; opaque is zero */
	HANDLE_CUDA_IPC = 3, /* no fd; opaque is the driver's memory handle */
};

struct handle {
	uint32_t kind; /* enum handle_kind */
	uint8_t uuid[HANDLE_UUID_BYTES];
	uint64_t size, offset;
	uint8_t opaque[HANDLE_OPAQUE_BYTES];
};

enum handle_refusal {
	HANDLE_OK = 0,
	HANDLE_LENGTH,  /* not HANDLE_WIRE_BYTES bytes */
	HANDLE_KIND,    /* no kind of enum handle_kind */
	HANDLE_PADDING, /* bytes that must be zero are not */
	HANDLE_SIZE,    /* size is 0, or offset + size exceeds INT64_MAX */
	HANDLE_UUID,    /* a memfd with a device's uuid, or a device's handle without */
	HANDLE_OPAQUE,  /* opaque bytes where the kind has none, or none where it has some */
};

/* HANDLE_OK, or what is wrong. That the device, the allocation and its size are real is for the
 * importing device to say. */
enum handle_refusal handle_check(const struct handle *handle);
/* "an unknown kind of handle" and so on. Static storage. */
const char *handle_refusal_text(enum handle_refusal refusal);
/* Whether one file descriptor belongs to it. */
bool handle_has_fd(const struct handle *handle);

void handle_encode(const struct handle *handle, uint8_t ret[static HANDLE_WIRE_BYTES]);
/* Reads and checks; *ret is written only on HANDLE_OK. `data` must be private memory. */
enum handle_refusal handle_decode(const void *data, size_t size, struct handle *ret);

#endif
