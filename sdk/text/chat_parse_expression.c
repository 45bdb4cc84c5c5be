/* SPDX-License-Identifier: MIT */
#include "sdk/text/chat_filter.h"
#include "sdk/text/chat_operator.h"
#include "sdk/text/chat_parser.h"
#include "sdk/text/chat_string.h"
#include "sdk/text/chat_test.h"

static struct chat_node *parse_unary(struct parser *parser, bool with_filters);

/* ---- arguments, filters, tests ---- */

/* "(...)": a list of arguments, positional ones first. */
static struct chat_node *parse_arguments(struct parser *parser)
{
	struct chat_node *list = NULL, **last = &list;
	bool has_keyword = false;

	parser_expect(parser, "(");
	while (!parser_is(parser, ")")) {
		struct chat_node *argument = NULL;

		if (list) {
			parser_expect(parser, ",");
			if (parser_is(parser, ")"))
				break;
		}
		if (parser_skip(parser, "*")) {
			argument = parser_node(parser, CHAT_NODE_EXPAND);
		} else if (parser_skip(parser, "**")) {
			argument = parser_node(parser, CHAT_NODE_EXPAND_DICT);
		} else if (parser->token->type == CHAT_TOKEN_NAME &&
			   chat_token_is(parser->token + 1, "=")) {
			argument = parser_node(parser, CHAT_NODE_KEYWORD);
			argument->value = parser_token_string(parser, parser->token);
			parser->token += 2;
		}
		if (argument) {
			has_keyword |= argument->kind != CHAT_NODE_EXPAND;
			argument->a = parse_expression(parser);
		} else if (has_keyword) {
			parser_refuse_token(parser, "an argument with a name");
		} else {
			argument = parse_expression(parser);
		}
		*last = argument;
		last = &argument->next;
	}
	parser_expect(parser, ")");
	return list;
}

static void parser_check_known(struct parser *parser, struct chat_node *node)
{
	if (node->builtin)
		return;
	node->flag = parser->is_conditional;
	node->e = parser->unknown;
	parser->unknown = node;
}

/* The name of a filter or a test, which may have points. */
static struct chat_value parse_dotted_name(struct parser *parser)
{
	struct chat_token name = *parser_expect_name(parser);

	while (parser_skip(parser, ".")) {
		const struct chat_token *part = parser_expect_name(parser);

		name.length = (size_t)(part->bytes - name.bytes) + part->length;
	}
	return parser_token_string(parser, &name);
}

struct chat_node *parse_filters(struct parser *parser, struct chat_node *input, bool is_inline)
{
	while (is_inline || parser_skip(parser, "|")) {
		struct chat_node *node = parser_node_of(parser, CHAT_NODE_FILTER, input, NULL);

		node->value = parse_dotted_name(parser);
		node->builtin = chat_find_filter(node->value.string);
		parser_check_known(parser, node);
		if (parser_is(parser, "("))
			node->b = parse_arguments(parser);
		input = node;
		is_inline = false;
	}
	return input;
}

static struct chat_node *parse_subscript(struct parser *parser, struct chat_node *object);

/* An argument of a test may stand without parentheses: "x is divisibleby 3". */
static bool parser_at_bare_argument(struct parser *parser)
{
	const struct chat_token *token = parser->token;

	if (token->type == CHAT_TOKEN_NAME)
		return !parser_is(parser, "else") && !parser_is(parser, "or") &&
		       !parser_is(parser, "and");
	return token->type == CHAT_TOKEN_CONSTANT || parser_is(parser, "[") ||
	       parser_is(parser, "{");
}

static struct chat_node *parse_primary(struct parser *parser);

static struct chat_node *parse_postfix(struct parser *parser, struct chat_node *node)
{
	for (;;) {
		if (parser_is(parser, ".") || parser_is(parser, "["))
			node = parse_subscript(parser, node);
		else if (parser_is(parser, "("))
			node = parser_node_of(
				parser, CHAT_NODE_CALL, node, parse_arguments(parser));
		else
			return node;
	}
}

/* Behind "is". */
static struct chat_node *parse_test(struct parser *parser, struct chat_node *input)
{
	bool is_negated = parser_skip(parser, "not");
	struct chat_node *node = parser_node_of(parser, CHAT_NODE_TEST, input, NULL);

	node->value = parse_dotted_name(parser);
	node->builtin = chat_find_test(node->value.string);
	parser_check_known(parser, node);
	if (parser_is(parser, "(")) {
		node->b = parse_arguments(parser);
	} else if (parser_at_bare_argument(parser)) {
		if (parser_is(parser, "is"))
			parser_refuse_token(parser, "no second test");
		node->b = parse_postfix(parser, parse_primary(parser));
	}
	return is_negated ? parser_node_of(parser, CHAT_NODE_NOT, node, NULL) : node;
}

/* ---- primaries ---- */

/* Items up to the bracket `close`, which is consumed; of a dict alternately keys and values. */
static struct chat_node *parse_items(struct parser *parser, const char *close, bool is_dict)
{
	struct chat_node *list = NULL, **last = &list;

	while (!parser_is(parser, close)) {
		if (list) {
			parser_expect(parser, ",");
			if (parser_is(parser, close))
				break;
		}
		*last = parse_expression(parser);
		last = &(*last)->next;
		if (is_dict) {
			parser_expect(parser, ":");
			*last = parse_expression(parser);
			last = &(*last)->next;
		}
	}
	parser_expect(parser, close);
	return list;
}

static struct chat_node *parse_name(struct parser *parser)
{
	static const struct {
		const char *name;
		struct chat_value value;
	} constants[] = {
		{"true", {.type = CHAT_BOOL, .boolean = true}},
		{"True", {.type = CHAT_BOOL, .boolean = true}},
		{"false", {.type = CHAT_BOOL}},
		{"False", {.type = CHAT_BOOL}},
		{"none", {.type = CHAT_NONE}},
		{"None", {.type = CHAT_NONE}},
	};
	struct chat_node *node = parser_node(parser, CHAT_NODE_NAME);

	for (size_t i = 0; i < sizeof(constants) / sizeof(constants[0]); i++) {
		if (parser_skip(parser, constants[i].name)) {
			node->kind = CHAT_NODE_CONSTANT;
			node->value = constants[i].value;
			return node;
		}
	}
	node->symbol = parser_symbol(parser, parser_expect_name(parser));
	if (node->symbol == CHAT_SYMBOL_CALLER)
		parser->macro_flags |= CHAT_MACRO_CALLER;
	if (node->symbol == CHAT_SYMBOL_KWARGS)
		parser->macro_flags |= CHAT_MACRO_KWARGS;
	if (node->symbol == CHAT_SYMBOL_VARARGS)
		parser->macro_flags |= CHAT_MACRO_VARARGS;
	return node;
}

/* Strings side by side are one. */
static struct chat_node *parse_constant(struct parser *parser)
{
	struct chat_node *node = parser_node(parser, CHAT_NODE_CONSTANT);

	node->value = parser->token->value;
	parser_next(parser);
	while (node->value.type == CHAT_STRING && parser->token->type == CHAT_TOKEN_CONSTANT &&
		parser->token->value.type == CHAT_STRING) {
		node->value = chat_string_concat(
			parser->context, node->value.string, parser->token->value.string);
		parser_next(parser);
	}
	if (node->value.type == CHAT_STRING)
		chat_string_freeze(parser->context, node->value.string);
	return node;
}

/* "(...)": an expression or a tuple, which may be empty. */
static struct chat_node *parse_parentheses(struct parser *parser)
{
	struct chat_node *node;

	parser_expect(parser, "(");
	if (parser_is(parser, ")"))
		node = parser_node(parser, CHAT_NODE_TUPLE);
	else
		node = parse_tuple(parser, true, NULL);
	parser_expect(parser, ")");
	return node;
}

static struct chat_node *parse_primary(struct parser *parser)
{
	struct chat_node *node;

	if (parser->token->type == CHAT_TOKEN_NAME)
		return parse_name(parser);
	if (parser->token->type == CHAT_TOKEN_CONSTANT)
		return parse_constant(parser);
	if (parser_is(parser, "("))
		return parse_parentheses(parser);
	node = parser_node(parser, CHAT_NODE_LIST);
	if (parser_skip(parser, "[")) {
		node->a = parse_items(parser, "]", false);
	} else if (parser_skip(parser, "{")) {
		node->kind = CHAT_NODE_DICT;
		node->a = parse_items(parser, "}", true);
	} else {
		parser_refuse_token(parser, "an expression");
	}
	return node;
}

/* What stands in brackets: an index, or start:stop:step. */
static struct chat_node *parse_index(struct parser *parser, struct chat_node *object)
{
	struct chat_node *node = parser_node_of(parser, CHAT_NODE_ITEM, object, NULL);

	if (!parser_is(parser, ":"))
		node->b = parse_expression(parser);
	if (!parser_skip(parser, ":"))
		return node;
	node->kind = CHAT_NODE_SLICE;
	if (!parser_is(parser, ":") && !parser_is(parser, "]") && !parser_is(parser, ","))
		node->c = parse_expression(parser);
	if (parser_skip(parser, ":") && !parser_is(parser, "]") && !parser_is(parser, ","))
		node->d = parse_expression(parser);
	return node;
}

static struct chat_node *parse_subscript(struct parser *parser, struct chat_node *object)
{
	struct chat_node *node;

	if (parser_skip(parser, "[")) {
		node = parse_index(parser, object);
		parser_expect(parser, "]");
		return node;
	}
	parser_expect(parser, ".");
	node = parser_node_of(parser, CHAT_NODE_ATTRIBUTE, object, NULL);
	if (parser->token->type == CHAT_TOKEN_CONSTANT && parser->token->value.type == CHAT_INT) {
		node->kind = CHAT_NODE_ITEM;
		node->b = parse_constant(parser);
		return node;
	}
	node->value = parser_token_string(parser, parser_expect_name(parser));
	return node;
}

/* ---- operators, from the tightest to the loosest ---- */

static struct chat_node *parse_operand(struct parser *parser, bool with_filters)
{
	struct chat_node *node;

	if (parser_is(parser, "-") || parser_is(parser, "+")) {
		node = parser_node(
			parser, parser_is(parser, "-") ? CHAT_NODE_NEGATE : CHAT_NODE_PLUS);
		parser_next(parser);
		node->a = parse_unary(parser, false);
	} else {
		node = parse_primary(parser);
	}
	node = parse_postfix(parser, node);
	while (with_filters) {
		if (parser_is(parser, "|"))
			node = parse_filters(parser, node, false);
		else if (parser_skip(parser, "is"))
			node = parse_test(parser, node);
		else if (parser_is(parser, "("))
			node = parser_node_of(
				parser, CHAT_NODE_CALL, node, parse_arguments(parser));
		else
			break;
	}
	return node;
}

static struct chat_node *parse_unary(struct parser *parser, bool with_filters)
{
	struct chat_node *node;

	chat_enter(parser->context);
	node = parse_operand(parser, with_filters);
	chat_leave(parser->context);
	return node;
}

struct binary {
	const char *text;
	enum chat_operator op;
};

static const struct binary *parser_find_binary(
	const struct parser *parser, const struct binary *operators)
{
	while (operators->text && !parser_is(parser, operators->text))
		operators++;
	return operators->text ? operators : NULL;
}

/* A chain of operators of one rank, to the left. */
static struct chat_node *parse_binary(struct parser *parser, const struct binary *operators,
	struct chat_node *(*parse_side)(struct parser *))
{
	struct chat_node *left = parse_side(parser);
	const struct binary *binary;

	while ((binary = parser_find_binary(parser, operators))) {
		struct chat_node *node = parser_node_of(parser, CHAT_NODE_BINARY, left, NULL);

		parser_next(parser);
		node->flag = binary->op;
		node->b = parse_side(parser);
		left = node;
	}
	return left;
}

static struct chat_node *parse_unary_filtered(struct parser *parser)
{
	return parse_unary(parser, true);
}

static struct chat_node *parse_power(struct parser *parser)
{
	static const struct binary operators[] = {{"**", CHAT_POWER}, {NULL, 0}};

	return parse_binary(parser, operators, parse_unary_filtered);
}

static struct chat_node *parse_product(struct parser *parser)
{
	static const struct binary operators[] = {{"*", CHAT_MULTIPLY}, {"/", CHAT_DIVIDE},
		{"//", CHAT_FLOOR_DIVIDE}, {"%", CHAT_MODULO}, {NULL, 0}};

	return parse_binary(parser, operators, parse_power);
}

static struct chat_node *parse_concat(struct parser *parser)
{
	struct chat_node *node = parse_product(parser), *last = node;

	if (!parser_is(parser, "~"))
		return node;
	node = parser_node_of(parser, CHAT_NODE_CONCAT, node, NULL);
	while (parser_skip(parser, "~"))
		last = last->next = parse_product(parser);
	return node;
}

static struct chat_node *parse_sum(struct parser *parser)
{
	static const struct binary operators[] = {{"+", CHAT_ADD}, {"-", CHAT_SUBTRACT}, {NULL, 0}};

	return parse_binary(parser, operators, parse_concat);
}

static bool parser_skip_comparison(struct parser *parser, enum chat_operator *ret_op)
{
	static const struct binary comparisons[] = {{"==", CHAT_EQUAL}, {"!=", CHAT_NOT_EQUAL},
		{"<", CHAT_LESS}, {"<=", CHAT_LESS_EQUAL}, {">", CHAT_GREATER},
		{">=", CHAT_GREATER_EQUAL}, {"in", CHAT_IN}};

	for (size_t i = 0; i < sizeof(comparisons) / sizeof(comparisons[0]); i++) {
		if (parser_skip(parser, comparisons[i].text)) {
			*ret_op = comparisons[i].op;
			return true;
		}
	}
	if (!parser_is(parser, "not") || !chat_token_is(parser->token + 1, "in"))
		return false;
	parser->token += 2;
	*ret_op = CHAT_NOT_IN;
	return true;
}

static struct chat_node *parse_comparison(struct parser *parser)
{
	struct chat_node *node = parse_sum(parser), **last;
	enum chat_operator op;

	if (!parser_skip_comparison(parser, &op))
		return node;
	node = parser_node_of(parser, CHAT_NODE_COMPARE, node, NULL);
	last = &node->b;
	do {
		*last = parser_node_of(parser, CHAT_NODE_OPERAND, parse_sum(parser), NULL);
		(*last)->flag = op;
		last = &(*last)->next;
	} while (parser_skip_comparison(parser, &op));
	return node;
}

static struct chat_node *parse_not(struct parser *parser)
{
	uint32_t n = 0;
	struct chat_node *node;

	while (parser_skip(parser, "not"))
		n++;
	node = parse_comparison(parser);
	/* two make a bool, more change nothing */
	for (uint32_t i = 0; n && i < 2 - n % 2; i++)
		node = parser_node_of(parser, CHAT_NODE_NOT, node, NULL);
	return node;
}

static struct chat_node *parse_and(struct parser *parser)
{
	struct chat_node *left = parse_not(parser);

	while (parser_skip(parser, "and"))
		left = parser_node_of(parser, CHAT_NODE_AND, left, parse_not(parser));
	return left;
}

struct chat_node *parse_or(struct parser *parser)
{
	struct chat_node *left = parse_and(parser);

	while (parser_skip(parser, "or"))
		left = parser_node_of(parser, CHAT_NODE_OR, left, parse_and(parser));
	return left;
}

struct chat_node *parse_expression(struct parser *parser)
{
	const struct chat_node *known = parser->unknown;
	bool was_conditional = parser->is_conditional;
	struct chat_node *then, *choice;

	chat_enter(parser->context);
	then = parse_or(parser);
	while (parser_skip(parser, "if")) {
		choice = parser_node(parser, CHAT_NODE_CHOICE);
		for (struct chat_node *node = parser->unknown; node != known; node = node->e)
			node->flag = true;
		/* What follows is conditional from the start. */
		known = parser->unknown;
		parser->is_conditional = true;
		choice->a = parse_or(parser);
		choice->b = then;
		if (parser_skip(parser, "else"))
			choice->c = parse_expression(parser);
		parser->is_conditional = was_conditional;
		then = choice;
	}
	chat_leave(parser->context);
	return then;
}

/* ---- tuples and targets ---- */

static bool parser_at_tuple_end(const struct parser *parser, const char *end)
{
	return parser->token->type == CHAT_TOKEN_PRINT_END ||
	       parser->token->type == CHAT_TOKEN_BLOCK_END || parser_is(parser, ")") ||
	       (end && parser_is(parser, end));
}

struct chat_node *parse_tuple(struct parser *parser, bool with_choice, const char *end)
{
	struct chat_node *node = with_choice ? parse_expression(parser) : parse_or(parser);
	struct chat_node *last = node;

	if (!parser_is(parser, ","))
		return node;
	node = parser_node_of(parser, CHAT_NODE_TUPLE, node, NULL);
	while (parser_skip(parser, ",") && !parser_at_tuple_end(parser, end))
		last = last->next = with_choice ? parse_expression(parser) : parse_or(parser);
	return node;
}

static struct chat_node *parse_target_item(struct parser *parser, bool with_attribute)
{
	struct chat_node *node;

	chat_enter(parser->context);
	if (parser_skip(parser, "(")) {
		node = parse_target(parser, false, NULL);
		parser_expect(parser, ")");
		chat_leave(parser->context);
		return node;
	}
	if (parser->token->type != CHAT_TOKEN_NAME)
		parser_refuse_token(parser, "a name to assign to");
	node = parse_name(parser);
	if (node->kind == CHAT_NODE_CONSTANT)
		chat_fail(parser->context, MIMEO_E_UNSUPPORTED, "a constant is assigned to");
	if (with_attribute && parser_skip(parser, ".")) {
		node = parser_node_of(parser, CHAT_NODE_ATTRIBUTE, node, NULL);
		node->value = parser_token_string(parser, parser_expect_name(parser));
	} else if (node->symbol == CHAT_SYMBOL_LOOP && parser->n_loops) {
		chat_fail(parser->context, MIMEO_E_UNSUPPORTED,
			"\"loop\" is assigned to within a loop");
	}
	chat_leave(parser->context);
	return node;
}

struct chat_node *parse_target(struct parser *parser, bool with_attribute, const char *end)
{
	struct chat_node *node = parse_target_item(parser, with_attribute), *last = node;

	if (!parser_is(parser, ","))
		return node;
	node = parser_node_of(parser, CHAT_NODE_TUPLE, node, NULL);
	while (parser_skip(parser, ",") && !parser_at_tuple_end(parser, end) &&
		!parser_is(parser, "="))
		last = last->next = parse_target_item(parser, with_attribute);
	return node;
}
