/* SPDX-License-Identifier: MIT */

/*
 * Regular expressions are those of the tokenizers that the names were given for (Hugging Face's meta-llama/Meta-Llama-3-8B,
 * Qwen/Qwen2-7B, HuggingFaceTB/SmolLM2-135M, openai/gpt-2's encoder.py); "default" is what llama.cpp does for it
 * (src/llama-vocab.cpp). Qwen2's tokenizer normalizes, which llama.cpp leaves out.
 */

#include "daemon/model/gguf_pretokenizer.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* In JSON, within a string literal. */
#define SPLIT(regex)                                                                    \
	"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex                           \
	"\"},\"behavior\":\"Isolated\",\"invert\":false}"
#define GPT2                                                                            \
	"'s|'t|'re|'ve|'m|'ll|'d| ?\\\\p{L}+| ?\\\\p{N}+| ?[^\\\\s\\\\p{L}\\\\p{N}]+"   \
	"|\\\\s+(?!\\\\S)"
#define LATER(digits)                                                                   \
	"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|" digits  \
	"| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)" \
	"|\\\\s+"
#define LLAMA3 "[" SPLIT(LATER("\\\\p{N}{1,3}")) "]"

static const struct gguf_pretokenizer known[] = {
	{"default", "null",
		"[" SPLIT("[\\\\p{P}\\\\$\\\\+<=>\\\\^~\\\\|]+") "," SPLIT(GPT2) "," SPLIT(
			"\\\\p{N}+") "," SPLIT("[0-9][0-9][0-9]") "]"},
	{"gpt-2", "null", "[" SPLIT(GPT2 "|\\\\s+") "]"},
	{"llama-bpe", "null", LLAMA3, true, true},
	{"llama3", "null", LLAMA3, true, true},
	{"llama-v3", "null", LLAMA3, true, true},
	{"qwen2", "{\"type\":\"NFC\"}", "[" SPLIT(LATER("\\\\p{N}")) "]"},
	{"smollm", "null",
		"[{\"type\":\"Digits\",\"individual_digits\":true}," SPLIT(GPT2 "|\\\\s+") "]"},
};

const struct gguf_pretokenizer *gguf_pretokenizer_find(const char *name)
{
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		if (!strcmp(name, known[i].name))
			return &known[i];
	}
	return NULL;
}

const char *gguf_pretokenizer_list(char *buffer, size_t size)
{
	size_t used = 0;

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		used += (size_t)snprintf(
			buffer + used, size - used, "%s%s", i ? ", " : "", known[i].name);
		assert(used < size);
	}
	return buffer;
}
