/* SPDX-License-Identifier: MIT */
#include <assert.h>
#include <string.h>

#include "sdk/text/chat_dict.h"
#include "sdk/text/chat_parser.h"
#include "sdk/text/chat_string.h"

static struct chat_node *parse_statements(struct parser *parser, const char *const *ends);

/*
 * The statements up to one of the tags `ends` (terminated by NULL), whose name is consumed;
 * *ret_end, unless NULL, is it. The current token is the end of the tag that opens the block.
 */
static struct chat_node *parse_block(
	struct parser *parser, const char *const *ends, const struct chat_token **ret_end)
{
	struct chat_node *list;

	parser_skip(parser, ":");
	if (parser->token->type != CHAT_TOKEN_BLOCK_END)
		parser_refuse_token(parser, "\"%}\"");
	parser_next(parser);
	chat_enter(parser->context);
	list = parse_statements(parser, ends);
	chat_leave(parser->context);
	if (parser->token->type == CHAT_TOKEN_END)
		parser_refuse_token(parser, ends[0]);
	if (ret_end)
		*ret_end = parser->token;
	parser_next(parser);
	return list;
}

/*
 * A block with variables of its own. Jinja decides anew there whether what it contains is
 * conditional.
 */
static struct chat_node *parse_scope(
	struct parser *parser, const char *const *ends, const struct chat_token **ret_end)
{
	bool was_conditional = parser->is_conditional;
	struct chat_node *list;

	parser->is_conditional = false;
	list = parse_block(parser, ends, ret_end);
	parser->is_conditional = was_conditional;
	return list;
}

/* ---- statements; the current token is behind the tag's name ---- */

static struct chat_node *parse_if(struct parser *parser)
{
	static const char *const ends[] = {"endif", "elif", "else", NULL};
	bool was_conditional = parser->is_conditional;
	struct chat_node *node = parser_node(parser, CHAT_NODE_IF);
	const struct chat_token *end;

	chat_enter(parser->context);
	parser->is_conditional = true;
	node->a = parse_tuple(parser, false, NULL);
	node->b = parse_block(parser, ends, &end);
	if (chat_token_is(end, "elif"))
		node->c = parse_if(parser);
	else if (chat_token_is(end, "else"))
		node->c = parse_block(parser, (const char *const[]){"endif", NULL}, NULL);
	parser->is_conditional = was_conditional;
	chat_leave(parser->context);
	return node;
}

static struct chat_node *parse_for(struct parser *parser)
{
	static const char *const ends[] = {"endfor", "else", NULL};
	bool was_conditional = parser->is_conditional;
	struct chat_node *node = parser_node(parser, CHAT_NODE_FOR);
	const struct chat_token *end;

	parser->n_loops++;
	node->a = parse_target(parser, false, "in");
	parser_expect(parser, "in");
	node->b = parse_tuple(parser, false, "recursive");
	parser->is_conditional = false;
	if (parser_skip(parser, "if"))
		node->e = parse_expression(parser);
	parser->is_conditional = was_conditional;
	node->flag = parser_skip(parser, "recursive");
	node->c = parse_scope(parser, ends, &end);
	parser->n_loops--;
	if (chat_token_is(end, "else"))
		node->d = parse_scope(parser, (const char *const[]){"endfor", NULL}, NULL);
	return node;
}

static struct chat_node *parse_set(struct parser *parser)
{
	struct chat_node *node = parser_node(parser, CHAT_NODE_SET);
	bool was_conditional = parser->is_conditional;

	node->a = parse_target(parser, true, NULL);
	if (parser_skip(parser, "=")) {
		node->b = parse_tuple(parser, true, NULL);
		return node;
	}
	node->kind = CHAT_NODE_SET_BLOCK;
	parser->is_conditional = false;
	if (parser_is(parser, "|"))
		node->c = parse_filters(parser, parser_node(parser, CHAT_NODE_CAPTURED), false);
	parser->is_conditional = was_conditional;
	node->b = parse_scope(parser, (const char *const[]){"endset", NULL}, NULL);
	return node;
}

/* "(name, name=default)": a list of PARAMETER. */
static struct chat_node *parse_parameters(struct parser *parser)
{
	struct chat_node *list = NULL, **last = &list;
	bool has_default = false, was_conditional = parser->is_conditional;

	parser->is_conditional = false;
	parser_expect(parser, "(");
	while (!parser_is(parser, ")")) {
		struct chat_node *node;
		const struct chat_token *name;

		if (list)
			parser_expect(parser, ",");
		node = parser_node(parser, CHAT_NODE_PARAMETER);
		name = parser_expect_name(parser);
		node->symbol = parser_symbol(parser, name);
		node->value = parser_token_string(parser, name);
		if (parser_skip(parser, "="))
			node->a = parse_expression(parser);
		else if (has_default)
			parser_refuse_token(parser, "a default of the parameter");
		has_default |= node->a != NULL;
		*last = node;
		last = &node->next;
	}
	parser_expect(parser, ")");
	parser->is_conditional = was_conditional;
	return list;
}

/*
 * The body of a macro. Loops around the macro cannot be left from within; what it uses of `caller`,
 * `kwargs` and `varargs`, the macro around it uses, too.
 */
static void parse_macro_body(struct parser *parser, struct chat_node *macro, const char *end)
{
	uint32_t outer_flags = parser->macro_flags, outer_loops = parser->n_loops;

	parser->macro_flags = 0;
	parser->n_loops = 0;
	macro->b = parse_scope(parser, (const char *const[]){end, NULL}, NULL);
	macro->flag = parser->macro_flags;
	parser->macro_flags |= outer_flags;
	parser->n_loops = outer_loops;
}

static struct chat_node *parse_macro(struct parser *parser)
{
	struct chat_node *node = parser_node(parser, CHAT_NODE_MACRO);
	const struct chat_token *name = parser_expect_name(parser);

	node->symbol = parser_symbol(parser, name);
	node->value = parser_token_string(parser, name);
	node->a = parse_parameters(parser);
	parse_macro_body(parser, node, "endmacro");
	return node;
}

static struct chat_node *parse_call(struct parser *parser)
{
	struct chat_node *node = parser_node(parser, CHAT_NODE_CALL_BLOCK);
	struct chat_node *caller = parser_node(parser, CHAT_NODE_MACRO);

	if (parser_is(parser, "("))
		caller->a = parse_parameters(parser);
	node->a = parse_expression(parser);
	if (node->a->kind != CHAT_NODE_CALL)
		parser_refuse_token(parser, "a call");
	node->b = caller;
	parse_macro_body(parser, caller, "endcall");
	return node;
}

static struct chat_node *parse_generation(struct parser *parser)
{
	struct chat_node *node = parser_node(parser, CHAT_NODE_SCOPE);

	parse_macro_body(parser, node, "endgeneration");
	return node;
}

static struct chat_node *parse_filter_block(struct parser *parser)
{
	struct chat_node *node = parser_node(parser, CHAT_NODE_FILTER_BLOCK);
	bool was_conditional = parser->is_conditional;

	parser->is_conditional = false;
	node->a = parse_filters(parser, parser_node(parser, CHAT_NODE_CAPTURED), true);
	parser->is_conditional = was_conditional;
	node->b = parse_scope(parser, (const char *const[]){"endfilter", NULL}, NULL);
	return node;
}

static struct chat_node *parse_with(struct parser *parser)
{
	struct chat_node *node = parser_node(parser, CHAT_NODE_WITH), **last = &node->a;

	while (parser->token->type != CHAT_TOKEN_BLOCK_END) {
		if (node->a)
			parser_expect(parser, ",");
		*last = parser_node(parser, CHAT_NODE_SET);
		(*last)->a = parse_target(parser, false, NULL);
		parser_expect(parser, "=");
		(*last)->b = parse_expression(parser);
		last = &(*last)->next;
	}
	node->b = parse_scope(parser, (const char *const[]){"endwith", NULL}, NULL);
	return node;
}

static struct chat_node *parse_print(struct parser *parser)
{
	struct chat_node *list = NULL, **last = &list;

	do {
		*last = parser_node(parser, CHAT_NODE_PRINT);
		(*last)->a = parse_expression(parser);
		last = &(*last)->next;
	} while (parser_skip(parser, ","));
	return list;
}

static struct chat_node *parse_jump(struct parser *parser)
{
	const struct chat_token *name = parser->token - 1;
	struct chat_node *node = parser_node(
		parser, chat_token_is(name, "break") ? CHAT_NODE_BREAK : CHAT_NODE_CONTINUE);

	if (!parser->n_loops)
		chat_fail(parser->context, MIMEO_E_UNSUPPORTED, "\"%.*s\" outside a loop",
			(int)name->length, name->bytes);
	return node;
}

/* Behind "{%". */
static struct chat_node *parse_statement(struct parser *parser)
{
	static const struct {
		const char *name;
		struct chat_node *(*parse)(struct parser *);
	} tags[] = {{"if", parse_if}, {"for", parse_for}, {"set", parse_set},
		{"macro", parse_macro}, {"call", parse_call}, {"filter", parse_filter_block},
		{"with", parse_with}, {"generation", parse_generation}, {"print", parse_print},
		{"break", parse_jump}, {"continue", parse_jump}};
	struct chat_node *node;

	parser->context->line = parser->token->line;
	for (size_t i = 0; i < sizeof(tags) / sizeof(tags[0]); i++) {
		if (!parser_skip(parser, tags[i].name))
			continue;
		node = tags[i].parse(parser);
		if (parser->token->type != CHAT_TOKEN_BLOCK_END)
			parser_refuse_token(parser, "\"%}\"");
		parser_next(parser);
		return node;
	}
	chat_fail(parser->context, MIMEO_E_UNSUPPORTED, "tag \"%.*s\" is not supported here",
		(int)(parser->token->length < 40 ? parser->token->length : 40),
		parser->token->bytes);
}

static bool parser_at_end(const struct parser *parser, const char *const *ends)
{
	for (; ends && *ends; ends++) {
		if (chat_token_is(parser->token + 1, *ends))
			return true;
	}
	return false;
}

static struct chat_node *parse_statements(struct parser *parser, const char *const *ends)
{
	struct chat_node *list = NULL, **last = &list;

	while (parser->token->type != CHAT_TOKEN_END) {
		if (parser->token->type == CHAT_TOKEN_DATA) {
			*last = parser_node(parser, CHAT_NODE_DATA);
			(*last)->value = parser->token->value;
			parser_next(parser);
		} else if (parser->token->type == CHAT_TOKEN_PRINT_BEGIN) {
			parser_next(parser);
			*last = parser_node(parser, CHAT_NODE_PRINT);
			(*last)->a = parse_tuple(parser, true, NULL);
			if (parser->token->type != CHAT_TOKEN_PRINT_END)
				parser_refuse_token(parser, "\"}}\"");
			parser_next(parser);
		} else {
			bool is_end = parser_at_end(parser, ends);

			assert(parser->token->type == CHAT_TOKEN_BLOCK_BEGIN);
			parser_next(parser);
			if (is_end)
				break;
			*last = parse_statement(parser);
		}
		while (*last)
			last = &(*last)->next;
	}
	return list;
}

/* Refuse the first filter or test that does not exist and is not conditional. */
static void parser_check_unknown(struct parser *parser)
{
	const struct chat_node *first = NULL;

	for (const struct chat_node *node = parser->unknown; node; node = node->e) {
		if (!node->flag)
			first = node;
	}
	if (!first)
		return;
	parser->context->line = first->line;
	chat_fail(parser->context, MIMEO_E_UNSUPPORTED, "%s \"%.*s\" is not supported",
		first->kind == CHAT_NODE_FILTER ? "filter" : "test",
		(int)(first->value.string->length < 40 ? first->value.string->length : 40),
		first->value.string->bytes);
}

struct chat_tree *chat_parse(struct chat_context *context, const char *source, size_t length)
{
	static const char *const fixed[] = {"loop", "caller", "kwargs", "varargs"};
	struct parser *parser = CHAT_NEW(context, struct parser);

	parser->context = context;
	parser->tree = CHAT_NEW(context, struct chat_tree);
	parser->symbols = chat_dict_new(context).dict;
	for (uint32_t i = 0; i < CHAT_SYMBOLS_FIXED; i++) {
		const struct chat_token name = {.bytes = fixed[i], .length = strlen(fixed[i])};

		parser_symbol(parser, &name);
	}
	context->line = 1;
	parser->token = chat_tokenize(context, source, length);
	parser->tree->body = parse_statements(parser, NULL);
	parser_check_unknown(parser);
	return parser->tree;
}
