/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MASK_TEXT_H
#define MIMEO_DAEMON_MASK_TEXT_H

/*
 * A mask as people write it, operators of mimeod for requests that bring none, users of mimeo-run for
 * theirs: "causal", "window:N" (the last N tokens), "window:N+S" (and the first S of the sequence),
 * "prefix" (all tokens of a request see one another). Masks with a word for each token are programs'
 * alone. Nothing here is of the wire: programs that see the public header only use it too.
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

/* False, and *ret as it was, if the text is none. */
bool mask_text_parse(const char *text, struct mask_text *ret);
/* The other way round. Returns ret. */
const char *mask_text(const struct mask_text *mask, char ret[MASK_TEXT_MAX]);

#endif
