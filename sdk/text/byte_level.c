/* SPDX-License-Identifier: MIT */
#include "sdk/text/byte_level.h"

#include "sdk/text/utf8.h"

/* Bytes without a printable character of their own: 0 ... ' ', 0x7f ... 0xa0, 0xad. */
#define BYTE_LEVEL_LOW (' ' + 1u)
#define BYTE_LEVEL_HIGH (0xa0u - 0x7fu + 1u)

uint32_t byte_level_character(uint8_t byte)
{
	if (byte < BYTE_LEVEL_LOW)
		return 0x100u + byte;
	if (byte >= 0x7f && byte <= 0xa0)
		return 0x100u + BYTE_LEVEL_LOW + (byte - 0x7fu);
	return byte == 0xad ? 0x100u + BYTE_LEVEL_LOW + BYTE_LEVEL_HIGH : byte;
}

int byte_level_byte(uint32_t character)
{
	if (character < 0x100)
		return byte_level_character((uint8_t)character) == character ? (int)character : -1;
	uint32_t index = character - 0x100;
	if (index < BYTE_LEVEL_LOW)
		return (int)index;
	index -= BYTE_LEVEL_LOW;
	if (index < BYTE_LEVEL_HIGH)
		return (int)(index + 0x7f);
	return index == BYTE_LEVEL_HIGH ? 0xad : -1;
}

void byte_level_add(struct bytes *out, const char *bytes, size_t length)
{
	if (length > BUFFER_BYTES_MAX || bytes_reserve(out, 2 * length) < 0)
		return;
	for (size_t i = 0; i < length; i++)
		out->length += utf8_encode(
			out->data + out->length, byte_level_character((uint8_t)bytes[i]));
}
