/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_DECODER_TEXT_H
#define MIMEO_SDK_TEXT_DECODER_TEXT_H

/* Replacing strings, for decoders. */

#include "sdk/text/buffer.h"
#include "sdk/text/pattern.h"

/* Add text[length] to `out` up to the last match of `from`, with `to` in place of each match.
 * Returns where the rest begins, which is not added. */
size_t decoder_text_replace(const char *text, size_t length, const char *from, size_t n_from,
	const char *to, size_t n_to, struct bytes *out);
/* Replace in `text`, with scratch. */
void decoder_text_change(struct bytes *text, struct bytes *scratch, const char *from, size_t n_from,
	const char *to, size_t n_to);
/* The longest end of text[length] that is the beginning, but not the whole, of `string` [n]. */
size_t decoder_text_overlap(const char *text, size_t length, const char *string, size_t n);
/* As decoder_text_replace for the matches of a pattern, and with the rest. 0, or a failure of the
 * matches. */
int decoder_text_replace_pattern(const struct pattern *pattern, struct matcher *matcher,
	const char *text, size_t length, const char *to, size_t n_to, struct bytes *out);
/* What `cleanup` means: no spaces before punctuation and contractions. */
void decoder_text_clean(struct bytes *text, struct bytes *scratch);

#endif
