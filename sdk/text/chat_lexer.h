/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_CHAT_LEXER_H
#define MIMEO_SDK_TEXT_CHAT_LEXER_H

/*
 * A template's source as tokens, by the rules of Jinja's lexer with trim_blocks and lstrip_blocks:
 * text between tags without the white space that "{%-" and "-%}", the newline behind a block, and
 * the indentation before one remove. Comments and raw blocks are resolved here.
 */

#include "sdk/text/chat_value.h"

enum chat_token_type {
	CHAT_TOKEN_END,
	CHAT_TOKEN_DATA, /* text of the template */
	CHAT_TOKEN_PRINT_BEGIN,
	CHAT_TOKEN_PRINT_END,
	CHAT_TOKEN_BLOCK_BEGIN,
	CHAT_TOKEN_BLOCK_END,
	CHAT_TOKEN_NAME,
	CHAT_TOKEN_CONSTANT, /* a string or a number */
	CHAT_TOKEN_OPERATOR,
};

struct chat_token {
	enum chat_token_type type;
	uint32_t line;
	const char *bytes; /* [length] of the source */
	size_t length;
	struct chat_value value; /* of CONSTANT; of DATA a string */
};

/* Tokens [n] in the context's memory, the last one END. `source` has to live as long. */
struct chat_token *chat_tokenize(struct chat_context *context, const char *source, size_t length);

/* Whether it is the name or the operator `text`. */
bool chat_token_is(const struct chat_token *token, const char *text);

#endif
