/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_BYTE_LEVEL_H
#define MIMEO_SDK_TEXT_BYTE_LEVEL_H

/*
 * GPT-2's alphabet (openai/gpt-2, encoder.py): each byte has a printable character, those of
 * Latin-1 that are printable their own, the others U+0100 ... in their order.
 */

#include <stdint.h>

#include "sdk/text/buffer.h"

#define BYTE_LEVEL_CHARACTERS 0x144u /* the characters are less */

uint32_t byte_level_character(uint8_t byte);
/* The byte of a character, or -1. */
int byte_level_byte(uint32_t character);
/* Add the characters of bytes[length]. */
void byte_level_add(struct bytes *out, const char *bytes, size_t length);

#endif
