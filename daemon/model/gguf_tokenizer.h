/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_GGUF_TOKENIZER_H
#define MIMEO_DAEMON_MODEL_GGUF_TOKENIZER_H

/*
 * A GGUF file's tokenizer in the form that clients read: a tokenizer.json, and a tokenizer_config.json with the chat
 * template. tokenizer.ggml.model is gpt2 (byte-level BPE, whose pre-tokenizer has a name, tokenizer.ggml.pre) or llama
 * (SentencePiece BPE with scores).
 *
 * A file of GGUF_HEADER_MAX can have far longer texts. Bytes are counted before they are made, and the first one above a
 * limit ends the work.
 */

#include "daemon/model/gguf.h"

struct gguf_text {
	char *tokenizer, *config; /* terminated; NULL: the file has no tokenizer */
};

struct gguf_text_limits {
	size_t tokenizer, config; /* bytes */
};

/* 0, or -errno with a sentence, which names field and value: -ENOTSUP for a tokenizer that is not read, -EFBIG for a text
 * above its limit. ret is the caller's (gguf_text_deinit). */
int gguf_text_load(const char *path, struct gguf_text_limits limits, struct gguf_text *ret,
	struct model_error *error);
/* The same of an open file. */
int gguf_text_make(const struct gguf *gguf, struct gguf_text_limits limits, struct gguf_text *ret,
	struct model_error *error);
/* A zeroed one is allowed. */
void gguf_text_deinit(struct gguf_text *text);

#endif
