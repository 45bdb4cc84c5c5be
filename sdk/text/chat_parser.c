/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "sdk/text/chat_dict.h"
#include "sdk/text/chat_parser.h"
#include "sdk/text/chat_string.h"

void parser_refuse_token(struct parser *parser, const char *expected)
{
	const struct chat_token *token = parser->token;

	parser->context->line = token->line;
	if (token->type == CHAT_TOKEN_END)
		chat_fail(parser->context, MIMEO_E_UNSUPPORTED,
			"the template ends where %s is expected", expected);
	chat_fail(parser->context, MIMEO_E_UNSUPPORTED, "\"%.*s\" where %s is expected",
		(int)(token->length < 40 ? token->length : 40), token->bytes, expected);
}

bool parser_is(const struct parser *parser, const char *text)
{
	return chat_token_is(parser->token, text);
}

void parser_next(struct parser *parser)
{
	if (parser->token->type != CHAT_TOKEN_END)
		parser->token++;
}

bool parser_skip(struct parser *parser, const char *text)
{
	if (!parser_is(parser, text))
		return false;
	parser_next(parser);
	return true;
}

void parser_expect(struct parser *parser, const char *text)
{
	char quoted[16] = "\"";

	if (parser_skip(parser, text))
		return;
	strncat(quoted, text, sizeof(quoted) - 3);
	parser_refuse_token(parser, strcat(quoted, "\""));
}

const struct chat_token *parser_expect_name(struct parser *parser)
{
	if (parser->token->type != CHAT_TOKEN_NAME)
		parser_refuse_token(parser, "a name");
	parser_next(parser);
	return parser->token - 1;
}

struct chat_node *parser_node(struct parser *parser, enum chat_node_kind kind)
{
	struct chat_node *node = CHAT_NEW(parser->context, struct chat_node);

	node->kind = kind;
	node->line = parser->token->line;
	return node;
}

struct chat_node *parser_node_of(
	struct parser *parser, enum chat_node_kind kind, struct chat_node *a, struct chat_node *b)
{
	struct chat_node *node = parser_node(parser, kind);

	node->a = a;
	node->b = b;
	return node;
}

struct chat_value parser_token_string(struct parser *parser, const struct chat_token *token)
{
	struct chat_value string =
		chat_string_wrap(parser->context, token->bytes, token->length, NULL);

	chat_string_freeze(parser->context, string.string);
	return string;
}

uint32_t parser_symbol(struct parser *parser, const struct chat_token *name)
{
	struct chat_tree *tree = parser->tree;
	struct chat_value string = parser_token_string(parser, name);
	const struct chat_value *found = chat_dict_find(parser->context, parser->symbols, string);

	if (found)
		return (uint32_t)found->integer;
	if (tree->n_symbols == tree->capacity)
		tree->symbols = chat_grow(
			parser->context, tree->symbols, &tree->capacity, sizeof(*tree->symbols));
	chat_dict_set(parser->context, parser->symbols, string, chat_int((int64_t)tree->n_symbols));
	tree->symbols[tree->n_symbols] = string;
	return (uint32_t)tree->n_symbols++;
}
