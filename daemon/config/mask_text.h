/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MASK_TEXT_H
#define MIMEO_DAEMON_MASK_TEXT_H

/*
 * The text form of a mask, for mimeod's default mask and for mimeo-run --mask: "causal", "window:N" (the last
 * N tokens), "window:N+S" (and the first S of the sequence), "prefix" (all tokens of a request see one
 * another). Masks with a word for each token have no text form. Only the public header is used here, so that
 * clients can use this too.
 */

#include <stdbool.h>
#include <stdint.h>

#define MASK_TEXT_MAX 32 /* bytes, with terminator */
#define MASK_TEXT_ACCEPTED                                                                         \
	"causal, window:N (N at least 1), window:N+SINKS or prefix"

/* With neither window nor prefix: causal. */
struct mask_text {
	uint32_t window, sinks; /* window 0: none, and no sinks */
	uint32_t prefix;        /* UINT32_MAX, as much as there is; 0: none */
};

/* False, and *ret unchanged, if the text is not a mask. */
bool mask_text_parse(const char *text, struct mask_text *ret);
/* Writes the text of a mask. Returns ret. */
const char *mask_text(const struct mask_text *mask, char ret[MASK_TEXT_MAX]);

#endif
