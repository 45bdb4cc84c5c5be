/* SPDX-License-Identifier: MIT */
#include "ipc/text.h"

#include <assert.h>
#include <stdint.h>

/* The character in n bytes, or UINT32_MAX if they are not one. */
static uint32_t text_decode(const unsigned char *bytes, size_t n)
{
	static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
	uint32_t c = bytes[0] & (0x7fu >> n);

	for (size_t i = 1; i < n; i++) {
		if ((bytes[i] & 0xc0) != 0x80)
			return UINT32_MAX;
		c = c << 6 | (bytes[i] & 0x3fu);
	}
	if (c < smallest[n] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
		return UINT32_MAX;
	return c;
}

/* Characters that change the writing direction: marks, embeddings, overrides, isolates. */
static bool text_is_bidi(uint32_t c)
{
	return c == 0x061c || c == 0x200e || c == 0x200f || (c >= 0x202a && c <= 0x202e) ||
	       (c >= 0x2066 && c <= 0x2069);
}

size_t text_step(const char *text, size_t left)
{
	const unsigned char *bytes = (const unsigned char *)text;
	unsigned char first = bytes[0];

	if (first < 0x80)
		return first >= 0x20 && first != 0x7f;
	assert(left > 0);
	size_t n = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
	if (first < 0xc0 || first >= 0xf8 || n > left)
		return 0;
	uint32_t c = text_decode(bytes, n);
	if (c == UINT32_MAX || c < 0xa0 || c == 0x2028 || c == 0x2029 || text_is_bidi(c))
		return 0;
	return n;
}

bool text_is_clean(const char *text, size_t length)
{
	for (size_t at = 0; at < length;) {
		size_t step = text_step(text + at, length - at);

		if (step == 0)
			return false;
		assert(step <= length - at);
		at += step;
	}
	return true;
}
