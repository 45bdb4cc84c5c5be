/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_ADDED_H
#define MIMEO_SDK_TEXT_ADDED_H

/*
 * Added tokens: they are recognised in the text before anything else is done to it, those with
 * `normalized` behind the normalizer. Special tokens are among them.
 */

#include "sdk/text/normalizer.h"
#include "sdk/text/span.h"
#include "sdk/text/spec.h"
#include "sdk/text/trie.h"
#include "sdk/text/vocabulary.h"

#define ADDED_TOKENS_MAX 100000u
#define ADDED_BYTES_MAX 512u /* of a token: the steps of a search per byte of text */

struct added_token {
	int32_t id;
	bool special, single_word, lstrip, rstrip, normalized;
	bool in_model; /* the model's vocabulary has it, too */
	/* What decoding gives in place of the content: its normalized form, or NULL. */
	char *decoded; /* [decoded_length] */
	uint32_t decoded_length;
};

struct added {
	struct vocabulary contents;
	struct added_token *tokens; /* [n] */
	uint32_t n;
	struct trie raw, normalized; /* values are indices of tokens */
};

/* From the list added_tokens of the root. `model` has the tokens that are not added, and decides
 * about ids. False after an error; added_deinit in either case. */
bool added_init(struct added *added, const struct spec *root, const struct vocabulary *model,
	const struct normalizer *normalizer);
void added_deinit(struct added *added);

/* The token of an id, or NULL. */
const struct added_token *added_token(const struct added *added, int32_t id);

/*
 * Cut a text at the added tokens of one of the two tries. `segment` gets, in order, each token
 * (token != NULL) and each part between tokens; a result other than 0 ends the call, which returns
 * it. literal: all of the text counts as foreign.
 */
int added_split(const struct added *added, const struct trie *trie, struct span text, bool literal,
	int (*segment)(void *data, struct span part, const struct added_token *token), void *data);

#endif
