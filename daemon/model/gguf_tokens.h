/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_GGUF_TOKENS_H
#define MIMEO_DAEMON_MODEL_GGUF_TOKENS_H

/* The tokens of a GGUF file as those of a tokenizer.json: its vocabulary, and its added tokens. */

#include "daemon/model/gguf_vocabulary.h"

/* It is found in text before anything else is done: special and user-defined tokens. */
bool gguf_tokens_is_added(const struct gguf_token *token);
/* The first id of the added tokens behind all others, but for unused ones behind them; the number of tokens: there is no
 * such token. */
uint32_t gguf_tokens_first_added(const struct gguf_vocabulary *vocabulary);

/* An object of texts and ids. merges: the array of the file; NULL: merges name normal tokens only. NULL: no memory. */
json_t *gguf_tokens_vocab(
	const struct gguf_vocabulary *vocabulary, const struct gguf_array *merges);
/* The list added_tokens. NULL: no memory. */
json_t *gguf_tokens_added(const struct gguf_vocabulary *vocabulary);

#endif
