/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_IPC_TEXT_H
#define MIMEO_IPC_TEXT_H

/*
 * Text of untrusted clients that operators read: UTF-8 that can neither forge a line nor control a
 * terminal.
 */

#include <stdbool.h>
#include <stddef.h>

/* Bytes of the character at text[0 ... left - 1], 1 to 4; or 0 if it must not be shown: malformed
 * (overlong, a surrogate, beyond U+10FFFF, cut off), a control character of either set, a line or
 * paragraph separator, or one that changes the writing direction. `left` is at least 1. */
size_t text_step(const char *text, size_t left);
/* Can all of it be printed? */
bool text_is_clean(const char *text, size_t length);

#endif
