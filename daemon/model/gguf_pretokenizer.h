/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_GGUF_PRETOKENIZER_H
#define MIMEO_DAEMON_MODEL_GGUF_PRETOKENIZER_H

#include <stdbool.h>

/* What a name in tokenizer.ggml.pre stands for. */
struct gguf_pretokenizer {
	const char *name;
	const char *normalizer, *steps; /* JSON: an object or null, a list without the last step, ByteLevel */
	bool ignore_merges, adds_bos;
};

#define GGUF_PRETOKENIZERS "default, gpt-2, llama-bpe, llama3, llama-v3, qwen2, smollm"

/* NULL: not one that is read. */
const struct gguf_pretokenizer *gguf_pretokenizer_find(const char *name);

#endif
