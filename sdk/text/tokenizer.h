/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_TOKENIZER_H
#define MIMEO_SDK_TEXT_TOKENIZER_H

/*
 * A tokenizer.json of Hugging Face's `tokenizers`. It does not change after tokenizer_new, and any
 * number of threads may use it.
 *
 * Functions return 0 or a negative enum mimeo_status; those with a message write one sentence to
 * message[size].
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sdk/text/decoder.h"

#define TOKENIZER_FILE_MAX ((size_t)128 << 20)

struct tokenizer;

/* From the bytes of a tokenizer.json. */
int tokenizer_new(struct tokenizer **ret_tokenizer, const char *json, size_t length, char *message,
	size_t size);
void tokenizer_free(struct tokenizer *tokenizer);

int32_t tokenizer_id(const struct tokenizer *tokenizer, const char *token);
uint32_t tokenizer_vocab_size(const struct tokenizer *tokenizer);

/*
 * Encode text[length]. `flags`: MIMEO_TEXT_SPECIAL, MIMEO_TEXT_LITERAL. `foreign` is NULL, or
 * [length]: a special token is recognised only where no byte of it has foreign[i] != 0. *ret_ids
 * [*ret_n] is released by free().
 */
int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t length,
	const uint8_t *foreign, uint32_t flags, int32_t **ret_ids, size_t *ret_n);
/* `flags`: MIMEO_TEXT_SKIP_SPECIAL. */
int tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t n,
	uint32_t flags, char **ret_text, size_t *ret_length);

/* For a decoding in steps: the decoder, and what it is given for an id. NULL: nothing. */
const struct decoder *tokenizer_decoder(const struct tokenizer *tokenizer);
const char *tokenizer_decoded(
	const struct tokenizer *tokenizer, int32_t id, bool skip_special, size_t *ret_length);

#endif
