/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_UTF8_H
#define MIMEO_SDK_TEXT_UTF8_H

/* UTF-8 as the Unicode standard defines it: no surrogates, no overlong forms. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sdk/text/buffer.h"

#define UTF8_MAX 4                      /* bytes of a character */
#define UTF8_REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

/* The length of the valid characters at the start of text[length]. */
size_t utf8_valid(const char *text, size_t length);
/*
 * The length of the character at text[length], which is not empty, or minus the bytes that U+FFFD
 * replaces: the longest beginning of a character, or one byte. *ret_incomplete: the text ends
 * within what may become a character.
 */
int utf8_look(const char *text, size_t length, bool *ret_incomplete);
/* Add text[length] with U+FFFD in place of what is not valid. `flags` is NULL or [length], one for
 * each byte: those of the result are added to flags_out. */
void utf8_repair(const char *text, size_t length, const uint8_t *flags, struct bytes *out,
	struct bytes *flags_out);

/* Of valid text: bytes of the character whose first byte this is. */
static inline unsigned utf8_size(char first)
{
	unsigned char byte = (unsigned char)first;

	return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

static inline bool utf8_is_continuation(char byte)
{
	return ((unsigned char)byte & 0xc0) == 0x80;
}

/* Of valid text: the character at text, and its size. */
static inline uint32_t utf8_decode(const char *text, unsigned *ret_size)
{
	const unsigned char *at = (const unsigned char *)text;

	if (at[0] < 0x80) {
		*ret_size = 1;
		return at[0];
	}
	if (at[0] < 0xe0) {
		*ret_size = 2;
		return (at[0] & 0x1fu) << 6 | (at[1] & 0x3fu);
	}
	if (at[0] < 0xf0) {
		*ret_size = 3;
		return (at[0] & 0x0fu) << 12 | (at[1] & 0x3fu) << 6 | (at[2] & 0x3fu);
	}
	*ret_size = 4;
	return (at[0] & 0x07u) << 18 | (at[1] & 0x3fu) << 12 | (at[2] & 0x3fu) << 6 |
	       (at[3] & 0x3fu);
}

/* Write a character, not a surrogate, to text[UTF8_MAX]; returns its size. */
static inline unsigned utf8_encode(char *text, uint32_t character)
{
	unsigned char *at = (unsigned char *)text;

	if (character < 0x80) {
		at[0] = (unsigned char)character;
		return 1;
	}
	if (character < 0x800) {
		at[0] = (unsigned char)(0xc0 | character >> 6);
		at[1] = (unsigned char)(0x80 | (character & 0x3f));
		return 2;
	}
	if (character < 0x10000) {
		at[0] = (unsigned char)(0xe0 | character >> 12);
		at[1] = (unsigned char)(0x80 | (character >> 6 & 0x3f));
		at[2] = (unsigned char)(0x80 | (character & 0x3f));
		return 3;
	}
	at[0] = (unsigned char)(0xf0 | character >> 18);
	at[1] = (unsigned char)(0x80 | (character >> 12 & 0x3f));
	at[2] = (unsigned char)(0x80 | (character >> 6 & 0x3f));
	at[3] = (unsigned char)(0x80 | (character & 0x3f));
	return 4;
}

static inline void utf8_add(struct bytes *out, uint32_t character)
{
	if (bytes_reserve(out, UTF8_MAX) < 0)
		return;
	out->length += utf8_encode(out->data + out->length, character);
}

#endif
