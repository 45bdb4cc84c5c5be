/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_GGUF_PRETOKENIZER_H
#define MIMEO_DAEMON_MODEL_GGUF_PRETOKENIZER_H

#include <stdbool.h>
#include <stddef.h>

#define GGUF_PRETOKENIZERS_BYTES 128u /* of the list of names */

/* What a name in tokenizer.ggml.pre stands for. */
struct gguf_pretokenizer {
	const char *name;
	const char *normalizer, *steps; /* JSON: an object or null, a list without the last step, ByteLevel */
	bool ignore_merges, adds_bos;
};

/* NULL: not one that is read. */
const struct gguf_pretokenizer *gguf_pretokenizer_find(const char *name);
/* The names that are read, for a sentence. Returns buffer. */
const char *gguf_pretokenizer_list(char *buffer, size_t size);

#endif
