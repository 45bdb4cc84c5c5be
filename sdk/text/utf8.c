/* SPDX-License-Identifier: MIT */
#include "sdk/text/utf8.h"

#include <assert.h>

/* Bytes that a character with this first byte has, 0 if no character begins so. */
static int utf8_expected(unsigned char first)
{
	if (first < 0x80)
		return 1;
	if (first < 0xc2)
		return 0;
	return first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
}

/* Whether a character may go on with this byte behind the first one (Unicode 15.0, table 3-7). */
static bool utf8_second_fits(unsigned char first, unsigned char second)
{
	unsigned char least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
	unsigned char most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;

	return second >= least && second <= most;
}

int utf8_look(const char *text, size_t length, bool *ret_incomplete)
{
	const unsigned char *at = (const unsigned char *)text;
	int n = 1;

	assert(length > 0);
	int expected = utf8_expected(at[0]);
	*ret_incomplete = false;
	if (expected == 0)
		return -1;
	while (n < expected && (size_t)n < length) {
		if (n == 1 ? !utf8_second_fits(at[0], at[1]) : (at[n] & 0xc0) != 0x80)
			return -n;
		n++;
	}
	if (n == expected)
		return n;
	*ret_incomplete = true;
	return -n;
}

size_t utf8_valid(const char *text, size_t length)
{
	size_t at = 0;
	bool incomplete;

	while (at < length) {
		uint64_t eight;

		if (length - at >= sizeof(eight)) {
			memcpy(&eight, text + at, sizeof(eight));
			if ((eight & 0x8080808080808080u) == 0) {
				at += sizeof(eight);
				continue;
			}
		}
		int n = utf8_look(text + at, length - at, &incomplete);
		if (n < 0)
			return at;
		at += (size_t)n;
	}
	return at;
}

void utf8_repair(const char *text, size_t length, const uint8_t *flags, struct bytes *out,
	struct bytes *flags_out)
{
	size_t at = 0;
	bool incomplete;

	while (at < length) {
		size_t n = utf8_valid(text + at, length - at);

		bytes_add(out, text + at, n);
		if (flags)
			bytes_add(flags_out, (const char *)flags + at, n);
		at += n;
		if (at == length)
			break;
		int bad = utf8_look(text + at, length - at, &incomplete);
		assert(bad < 0);
		bytes_add(out, UTF8_REPLACEMENT, sizeof(UTF8_REPLACEMENT) - 1);
		if (flags)
			bytes_fill(flags_out, (char)flags[at], sizeof(UTF8_REPLACEMENT) - 1);
		at += (size_t)-bad;
	}
}
