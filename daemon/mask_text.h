/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MASK_TEXT_H
#define MIMEO_DAEMON_MASK_TEXT_H

/*
 * The mask of a model's requests that bring none, as operators write it: "causal", "window:N" (the last
 * N tokens), "window:N+S" (and the first S of the sequence), "prefix" (all tokens of a request see one
 * another). Masks with a word for each token are the clients' alone.
 */

#include <stdbool.h>
#include <stddef.h>

#include "ipc/msg.h"

#define MASK_TEXT_MAX 32 /* bytes, with terminator */
#define MASK_TEXT_ACCEPTED "causal, window:N, window:N+SINKS (1 to 4294967295 each) or prefix"

/* False, and *ret as it was, if the text is none. The prefix is UINT32_MAX: as much as there is. */
bool mask_text_parse(const char *text, struct msg_mask *ret);
/* The other way round. Returns ret. */
const char *mask_text(const struct msg_mask *mask, char ret[MASK_TEXT_MAX]);

#endif
