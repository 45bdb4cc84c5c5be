/* SPDX-License-Identifier: MIT */
#include "ipc/wire_check.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "ipc/msg.h"

/* The head of a value, as its first bytes state it. */
struct wire_head {
	size_t bytes;    /* of the head itself, with the length field */
	uint64_t body;   /* bytes of a scalar, str or bin behind it */
	uint64_t values; /* of an array; twice the entries of a map */
	bool container;
};

/* How a type byte from 0xc0 to 0xdf is to be read. */
enum shape { FIXED, BODY, ARRAY, MAP, EXT, RESERVED };

/* clang-format off */
static const struct {
	uint8_t shape;
	uint8_t width; /* FIXED: bytes of the value; else of the length field */
} shapes[32] = {
	[0x00] = {FIXED, 0}, [0x01] = {RESERVED, 0}, [0x02] = {FIXED, 0}, [0x03] = {FIXED, 0},
	[0x04] = {BODY, 1},  [0x05] = {BODY, 2},     [0x06] = {BODY, 4},  [0x07] = {EXT, 0},
	[0x08] = {EXT, 0},   [0x09] = {EXT, 0},      [0x0a] = {FIXED, 4}, [0x0b] = {FIXED, 8},
	[0x0c] = {FIXED, 1}, [0x0d] = {FIXED, 2},    [0x0e] = {FIXED, 4}, [0x0f] = {FIXED, 8},
	[0x10] = {FIXED, 1}, [0x11] = {FIXED, 2},    [0x12] = {FIXED, 4}, [0x13] = {FIXED, 8},
	[0x14] = {EXT, 0},   [0x15] = {EXT, 0},      [0x16] = {EXT, 0},   [0x17] = {EXT, 0},
	[0x18] = {EXT, 0},   [0x19] = {BODY, 1},     [0x1a] = {BODY, 2},  [0x1b] = {BODY, 4},
	[0x1c] = {ARRAY, 2}, [0x1d] = {ARRAY, 4},    [0x1e] = {MAP, 2},   [0x1f] = {MAP, 4},
};
/* clang-format on */

static struct wire_head wire_check_container(size_t bytes, uint64_t values)
{
	return (struct wire_head){.bytes = bytes, .values = values, .container = true};
}

static enum wire_refusal wire_check_head(const uint8_t *p, size_t left, struct wire_head *ret)
{
	if (left == 0)
		return WIRE_SHORT;

	uint8_t type = p[0];
	if (type < 0x80 || type >= 0xe0) {
		*ret = (struct wire_head){.bytes = 1};
		return WIRE_OK;
	}
	if (type < 0xa0) {
		*ret = wire_check_container(1, type < 0x90 ? 2u * (type & 0x0f) : type & 0x0fu);
		return WIRE_OK;
	}
	if (type < 0xc0) {
		*ret = (struct wire_head){.bytes = 1, .body = type & 0x1f};
		return WIRE_OK;
	}

	uint8_t shape = shapes[type - 0xc0].shape;
	uint8_t width = shapes[type - 0xc0].width;
	if (shape == EXT)
		return WIRE_EXT;
	if (shape == RESERVED)
		return WIRE_RESERVED;
	if (shape == FIXED) {
		*ret = (struct wire_head){.bytes = 1, .body = width};
		return WIRE_OK;
	}

	if (left - 1 < width)
		return WIRE_SHORT;
	uint64_t length = 0;
	for (unsigned i = 1; i <= width; i++)
		length = length << 8 | p[i];
	if (shape == BODY)
		*ret = (struct wire_head){.bytes = 1u + width, .body = length};
	else
		*ret = wire_check_container(1u + width, shape == MAP ? 2 * length : length);
	return WIRE_OK;
}

enum wire_refusal wire_check(const void *data, size_t size, size_t *ret_offset)
{
	const uint8_t *bytes = data;
	uint64_t open[MSG_DEPTH_MAX]; /* values that each open container still lacks */
	unsigned depth = 0;
	uint64_t owed = 1; /* values to come, in all */
	size_t at = 0;
	enum wire_refusal refusal;

	if (size > MSG_SOCKET_MAX) {
		*ret_offset = MSG_SOCKET_MAX;
		return WIRE_TOO_LARGE;
	}
	do {
		struct wire_head head;

		*ret_offset = at;
		refusal = wire_check_head(bytes + at, size - at, &head);
		if (refusal)
			return refusal;
		size_t left = size - at - head.bytes;
		if (head.body > left)
			return WIRE_SHORT;
		at += head.bytes + (size_t)head.body;
		assert(owed > 0 && at <= size);
		owed--;
		if (head.container) {
			if (depth == MSG_DEPTH_MAX)
				return WIRE_DEPTH;
			owed += head.values;
			if (owed > left)
				return WIRE_COUNT;
			if (head.values > 0) {
				assert(depth < MSG_DEPTH_MAX);
				open[depth++] = head.values;
				continue;
			}
		}
		/* A value is complete, and with it every container whose last one it is. */
		while (depth > 0 && --open[depth - 1] == 0)
			depth--;
	} while (owed > 0);

	*ret_offset = at;
	return at == size ? WIRE_OK : WIRE_TRAILING;
}
