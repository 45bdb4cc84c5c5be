/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_GGUF_VOCABULARY_H
#define MIMEO_DAEMON_MODEL_GGUF_VOCABULARY_H

/*
 * The tokens of a GGUF file: tokenizer.ggml.tokens, .token_type and .scores. Converters have left special tokens without
 * their type: one that a field names, or whose text marks the end of an answer, is special whatever the file says.
 *
 * Of tokens with the same text the last one counts, as in llama.cpp: text becomes its id, and merges take its type and
 * score.
 */

#include "daemon/model/gguf.h"
#include "daemon/model/gguf_budget.h"

/* Several times what models have. A token takes about 200 bytes while the text is made, a merge as many. */
#define GGUF_TOKENS_MAX (1u << 21)
#define GGUF_MERGES_MAX (1u << 21)
#define GGUF_ADDED_MAX 100000u /* libmimeo-text's limit */

enum gguf_token_type {
	GGUF_TOKEN_NORMAL = 1,
	GGUF_TOKEN_UNKNOWN,
	GGUF_TOKEN_CONTROL,
	GGUF_TOKEN_USER_DEFINED,
	GGUF_TOKEN_UNUSED,
	GGUF_TOKEN_BYTE,
};

struct gguf_token {
	const char *text; /* within the header; UTF-8 without NUL, not terminated */
	size_t length;
	uint32_t type; /* GGUF_TOKEN_NORMAL if neither the file nor its text or a field says more */
	float score;   /* finite; 0 if the file does not say */
};

struct gguf_vocabulary {
	struct gguf_token *tokens; /* [n] by id */
	uint32_t n;
	bool has_scores;
};

/* *ret is used while the file is open, and released by gguf_vocabulary_deinit. 0, or -errno with a sentence. */
int gguf_vocabulary_init(
	const struct gguf *gguf, struct gguf_vocabulary *ret, struct model_error *error);
/* A zeroed one is allowed. */
void gguf_vocabulary_deinit(struct gguf_vocabulary *vocabulary);
/* It is the text of a token that ends an answer, in any model. */
bool gguf_is_end(const char *text, size_t length);

/*
 * The merges of SentencePiece BPE, which the file does not have: a token is made of any two tokens whose texts make its
 * text, and tokens of higher scores are made first. Pairs of the same score are in the order in which Hugging Face's
 * converter puts them. *ret is a list of [left, right], taken from the budget. 0, or -errno with a sentence; `path` is for
 * errors.
 */
int gguf_merges_of_scores(const struct gguf_vocabulary *vocabulary, const char *path,
	struct gguf_budget *budget, json_t **ret, struct model_error *error);

#endif
