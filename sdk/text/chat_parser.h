/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_CHAT_PARSER_H
#define MIMEO_SDK_TEXT_CHAT_PARSER_H

/*
 * The state of a parse, and the parser of expressions. A recursive descent in the order of Jinja's
 * own parser.
 */

#include "sdk/text/chat_lexer.h"
#include "sdk/text/chat_node.h"

struct parser {
	struct chat_context *context;
	struct chat_tree *tree;
	struct chat_dict *symbols;      /* name -> index */
	const struct chat_token *token; /* the current one; END stays */
	uint32_t macro_flags;           /* enum chat_macro_flag of the macro that is parsed */
	uint32_t n_loops;               /* around the current statement, within its macro */
	/*
	 * Jinja refuses a filter or a test that does not exist at once, but within a condition only
	 * when it is reached. `unknown` are these nodes, chained through `e`; `flag` is set in
	 * those that are conditional.
	 */
	bool is_conditional;
	struct chat_node *unknown;
};

_Noreturn void parser_refuse_token(struct parser *parser, const char *expected);
void parser_next(struct parser *parser);
bool parser_is(const struct parser *parser, const char *text);
bool parser_skip(struct parser *parser, const char *text);
void parser_expect(struct parser *parser, const char *text);
/* The current token, a name; it is consumed. */
const struct chat_token *parser_expect_name(struct parser *parser);

struct chat_node *parser_node(struct parser *parser, enum chat_node_kind kind);
struct chat_node *parser_node_of(
	struct parser *parser, enum chat_node_kind kind, struct chat_node *a, struct chat_node *b);
struct chat_value parser_token_string(struct parser *parser, const struct chat_token *token);
uint32_t parser_symbol(struct parser *parser, const struct chat_token *name);

struct chat_node *parse_expression(struct parser *parser);
/* Without a trailing "if ... else". */
struct chat_node *parse_or(struct parser *parser);
/* An expression, or a tuple of several without parentheses. `end` is a name behind it, or NULL. */
struct chat_node *parse_tuple(struct parser *parser, bool with_choice, const char *end);
/* A name, a tuple of targets, or with `with_attribute` an attribute of a namespace. */
struct chat_node *parse_target(struct parser *parser, bool with_attribute, const char *end);
/* "| filter | filter" behind `input`; with `is_inline` the first "|" is left out. */
struct chat_node *parse_filters(struct parser *parser, struct chat_node *input, bool is_inline);

#endif
