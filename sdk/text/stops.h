/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_STOPS_H
#define MIMEO_SDK_TEXT_STOPS_H

/* Finds the first of several strings in a text that comes in parts (Knuth, Morris and Pratt 1977).
 */

#include <stddef.h>
#include <stdint.h>

#include <mimeo/text.h>

struct stop {
	char *bytes; /* [length] */
	uint32_t length;
	uint16_t overlap[MIMEO_TEXT_STOP_BYTES]; /* of the first i + 1 bytes: the longest end that
						    is a beginning */
	uint32_t matched;                        /* bytes that the text ends with */
};

struct stops {
	struct stop *stops; /* [n] */
	uint32_t n;
};

/* 0, INVALID (too many, empty or too long, or not UTF-8) or NO_MEMORY; stops_deinit in either case.
 */
int stops_init(struct stops *stops, const char *const *strings, uint32_t n);
void stops_deinit(struct stops *stops);

/* Go on with text[length]. The index of the string that is complete first, the longest one if there
 * are several, and *ret_end, where it ends in text; or -1. */
int stops_push(struct stops *stops, const char *text, size_t length, size_t *ret_end);
/* The length of the end of the text that may be the beginning of a string. */
size_t stops_held(const struct stops *stops);

#endif
