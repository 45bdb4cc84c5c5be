/* SPDX-License-Identifier: MIT */
#include <assert.h>

#include "sdk/text/chat_access.h"
#include "sdk/text/chat_builtin.h"
#include "sdk/text/chat_loop.h"
#include "sdk/text/chat_operator.h"
#include "sdk/text/chat_print.h"
#include "sdk/text/chat_run.h"

/* ---- variables ---- */

struct chat_scope *chat_scope_new(struct chat_run *run, struct chat_scope *parent)
{
	struct chat_scope *scope = CHAT_NEW(&run->context, struct chat_scope);

	scope->parent = parent;
	return scope;
}

void chat_scope_empty(struct chat_run *run, struct chat_scope *scope)
{
	uint64_t walked = 0;

	for (struct chat_binding *binding = scope->bindings; binding; binding = binding->next) {
		binding->value.type = CHAT_MISSING;
		walked++;
	}
	chat_charge(&run->context, walked / CHAT_STEP_BINDINGS);
}

struct chat_binding *chat_scope_find(
	struct chat_run *run, const struct chat_scope *scope, uint32_t symbol)
{
	struct chat_binding *binding = scope->bindings;
	uint64_t walked = 0;

	for (; binding && binding->symbol != symbol; binding = binding->next)
		walked++;
	chat_charge(&run->context, walked / CHAT_STEP_BINDINGS);
	return binding;
}

void chat_scope_set(
	struct chat_run *run, struct chat_scope *scope, uint32_t symbol, struct chat_value value)
{
	struct chat_binding *binding = chat_scope_find(run, scope, symbol);

	assert(value.type != CHAT_MISSING);
	if (!binding) {
		binding = CHAT_NEW(&run->context, struct chat_binding);
		binding->symbol = symbol;
		binding->next = scope->bindings;
		scope->bindings = binding;
	}
	binding->value = value;
}

struct chat_value chat_scope_get(
	struct chat_run *run, const struct chat_scope *scope, uint32_t symbol)
{
	for (uint64_t walked = 0; scope; scope = scope->parent) {
		const struct chat_binding *binding = chat_scope_find(run, scope, symbol);

		if (binding && binding->value.type != CHAT_MISSING)
			return binding->value;
		if (++walked % CHAT_STEP_BINDINGS == 0)
			chat_charge(&run->context, 1);
	}
	assert(symbol < run->tree->n_symbols);
	return run->variables[symbol];
}

/* ---- calls ---- */

struct arguments {
	struct chat_list positional;
	struct chat_dict keywords;
};

static void expression_add_keyword(struct chat_run *run, struct arguments *arguments,
	struct chat_value name, struct chat_value value)
{
	if (name.type != CHAT_STRING)
		chat_fail(
			&run->context, MIMEO_E_INVALID, "the name of an argument must be a string");
	if (chat_dict_find(&run->context, &arguments->keywords, name))
		chat_fail(&run->context, MIMEO_E_INVALID, "an argument is given twice");
	chat_dict_set(&run->context, &arguments->keywords, name, value);
}

static void expression_add_argument(struct chat_run *run, struct chat_scope *scope,
	struct arguments *arguments, const struct chat_node *node)
{
	struct chat_value value =
		chat_evaluate(run, scope, node->kind >= CHAT_NODE_KEYWORD ? node->a : node);
	struct chat_iterator iterator;
	struct chat_value item;

	if (node->kind == CHAT_NODE_KEYWORD) {
		expression_add_keyword(run, arguments, node->value, value);
	} else if (node->kind == CHAT_NODE_EXPAND) {
		iterator = chat_iterate(&run->context, value);
		while (chat_next(&run->context, &iterator, &item))
			chat_list_add(&run->context, &arguments->positional, item);
	} else if (node->kind == CHAT_NODE_EXPAND_DICT) {
		if (value.type != CHAT_DICT)
			chat_fail(&run->context, MIMEO_E_INVALID, "** of a '%s', not of a dict",
				chat_type_name(value));
		for (size_t i = 0; i < value.dict->n; i++)
			expression_add_keyword(run, arguments, value.dict->pairs[i].key,
				value.dict->pairs[i].value);
	} else {
		chat_list_add(&run->context, &arguments->positional, value);
	}
}

static void expression_arguments(struct chat_run *run, struct chat_scope *scope,
	const struct chat_node *list, struct arguments *ret_arguments)
{
	*ret_arguments = (struct arguments){0};
	for (; list; list = list->next)
		expression_add_argument(run, scope, ret_arguments, list);
}

struct chat_value chat_evaluate_call(struct chat_run *run, struct chat_scope *scope,
	const struct chat_node *node, struct chat_value caller)
{
	struct chat_value callee = chat_evaluate(run, scope, node->a);
	struct arguments arguments;

	expression_arguments(run, scope, node->b, &arguments);
	if (caller.type != CHAT_MISSING)
		expression_add_keyword(
			run, &arguments, run->tree->symbols[CHAT_SYMBOL_CALLER], caller);
	run->context.line = node->line;
	switch (callee.type) {
	case CHAT_FUNCTION:
		return chat_call_builtin(&run->context, callee.function, callee,
			&arguments.positional, &arguments.keywords);
	case CHAT_METHOD:
		return chat_call_builtin(&run->context, callee.method->builtin,
			callee.method->object, &arguments.positional, &arguments.keywords);
	case CHAT_MACRO:
		return callee.macro->call(
			run, callee.macro, &arguments.positional, &arguments.keywords);
	case CHAT_LOOP:
		if (callee.loop->recurse && arguments.positional.n == 1 && !arguments.keywords.n)
			return callee.loop->recurse(callee.loop, arguments.positional.items[0]);
		chat_fail(&run->context, MIMEO_E_INVALID,
			"loop() takes one argument, and its loop must be recursive");
	case CHAT_UNDEFINED:
		chat_fail_undefined(&run->context, callee);
	default:
		chat_fail(&run->context, MIMEO_E_INVALID, "'%s' object is not callable",
			chat_type_name(callee));
	}
}

static struct chat_value expression_filter(
	struct chat_run *run, struct chat_scope *scope, const struct chat_node *node)
{
	struct chat_value input = chat_evaluate(run, scope, node->a);
	struct arguments arguments;

	expression_arguments(run, scope, node->b, &arguments);
	run->context.line = node->line;
	if (!node->builtin)
		chat_fail(&run->context, MIMEO_E_UNSUPPORTED, "%s \"%.*s\" is not supported",
			node->kind == CHAT_NODE_FILTER ? "filter" : "test",
			(int)(node->value.string->length < 40 ? node->value.string->length : 40),
			node->value.string->bytes);
	return chat_call_builtin(
		&run->context, node->builtin, input, &arguments.positional, &arguments.keywords);
}

/* ---- literals ---- */

static struct chat_value expression_list(struct chat_run *run, struct chat_scope *scope,
	const struct chat_node *node, enum chat_type type)
{
	struct chat_value list = chat_list_new(&run->context, type);

	for (const struct chat_node *item = node->a; item; item = item->next)
		chat_list_add(&run->context, list.list, chat_evaluate(run, scope, item));
	return list;
}

static struct chat_value expression_dict(
	struct chat_run *run, struct chat_scope *scope, const struct chat_node *node)
{
	struct chat_value dict = chat_dict_new(&run->context);

	for (const struct chat_node *key = node->a; key; key = key->next->next) {
		struct chat_value name = chat_evaluate(run, scope, key);

		chat_dict_set(&run->context, dict.dict, name, chat_evaluate(run, scope, key->next));
	}
	return dict;
}

/* ---- operators ---- */

static struct chat_value expression_binary(
	struct chat_run *run, struct chat_scope *scope, const struct chat_node *node)
{
	struct chat_value a = chat_evaluate(run, scope, node->a);
	struct chat_value b = chat_evaluate(run, scope, node->b);

	run->context.line = node->line;
	return chat_arithmetic(&run->context, node->flag, a, b);
}

/* a < b < c is a < b and b < c. */
static struct chat_value expression_compare(
	struct chat_run *run, struct chat_scope *scope, const struct chat_node *node)
{
	struct chat_value left = chat_evaluate(run, scope, node->a);

	for (const struct chat_node *operand = node->b; operand; operand = operand->next) {
		struct chat_value right = chat_evaluate(run, scope, operand->a);

		run->context.line = operand->line;
		if (!chat_compare(&run->context, operand->flag, left, right))
			return chat_bool(false);
		left = right;
	}
	return chat_bool(true);
}

static struct chat_value expression_concat(
	struct chat_run *run, struct chat_scope *scope, const struct chat_node *node)
{
	struct chat_value result = chat_str(&run->context, chat_evaluate(run, scope, node->a));

	for (const struct chat_node *item = node->a->next; item; item = item->next) {
		struct chat_value next = chat_str(&run->context, chat_evaluate(run, scope, item));

		result = chat_string_concat(&run->context, result.string, next.string);
	}
	return result;
}

static struct chat_value expression_slice(
	struct chat_run *run, struct chat_scope *scope, const struct chat_node *node)
{
	const struct chat_node *const bounds[] = {node->b, node->c, node->d};
	struct chat_value object = chat_evaluate(run, scope, node->a), values[3] = {0};

	for (size_t i = 0; i < 3; i++) {
		if (bounds[i])
			values[i] = chat_evaluate(run, scope, bounds[i]);
	}
	run->context.line = node->line;
	return chat_slice(&run->context, object, values[0], values[1], values[2]);
}

static struct chat_value expression_item(
	struct chat_run *run, struct chat_scope *scope, const struct chat_node *node)
{
	struct chat_value object = chat_evaluate(run, scope, node->a);
	struct chat_value key =
		node->kind == CHAT_NODE_ITEM ? chat_evaluate(run, scope, node->b) : node->value;

	run->context.line = node->line;
	return node->kind == CHAT_NODE_ITEM ? chat_get_item(&run->context, object, key)
					    : chat_get_attribute(&run->context, object, key);
}

static struct chat_value expression_choice(
	struct chat_run *run, struct chat_scope *scope, const struct chat_node *node)
{
	if (chat_truth(chat_evaluate(run, scope, node->a)))
		return chat_evaluate(run, scope, node->b);
	if (node->c)
		return chat_evaluate(run, scope, node->c);
	return chat_undefined_hint(&run->context,
		"the inline if-expression evaluated to false and no else section was defined.");
}

static struct chat_value expression_sign(
	struct chat_run *run, struct chat_scope *scope, const struct chat_node *node)
{
	struct chat_value value = chat_evaluate(run, scope, node->a);

	run->context.line = node->line;
	return node->kind == CHAT_NODE_NEGATE
		       ? chat_negate(&run->context, value)
		       : chat_arithmetic(&run->context, CHAT_ADD, chat_int(0), value);
}

static struct chat_value expression_evaluate(
	struct chat_run *run, struct chat_scope *scope, const struct chat_node *node)
{
	struct chat_value left;

	switch (node->kind) {
	case CHAT_NODE_CONSTANT:
		return node->value;
	case CHAT_NODE_CAPTURED:
		return run->captured;
	case CHAT_NODE_NAME:
		return chat_scope_get(run, scope, node->symbol);
	case CHAT_NODE_TUPLE:
		return expression_list(run, scope, node, CHAT_TUPLE);
	case CHAT_NODE_LIST:
		return expression_list(run, scope, node, CHAT_LIST);
	case CHAT_NODE_DICT:
		return expression_dict(run, scope, node);
	case CHAT_NODE_ATTRIBUTE:
	case CHAT_NODE_ITEM:
		return expression_item(run, scope, node);
	case CHAT_NODE_SLICE:
		return expression_slice(run, scope, node);
	case CHAT_NODE_CALL:
		return chat_evaluate_call(
			run, scope, node, (struct chat_value){.type = CHAT_MISSING});
	case CHAT_NODE_FILTER:
	case CHAT_NODE_TEST:
		return expression_filter(run, scope, node);
	case CHAT_NODE_NEGATE:
	case CHAT_NODE_PLUS:
		return expression_sign(run, scope, node);
	case CHAT_NODE_NOT:
		return chat_bool(!chat_truth(chat_evaluate(run, scope, node->a)));
	case CHAT_NODE_AND:
		left = chat_evaluate(run, scope, node->a);
		return chat_truth(left) ? chat_evaluate(run, scope, node->b) : left;
	case CHAT_NODE_OR:
		left = chat_evaluate(run, scope, node->a);
		return chat_truth(left) ? left : chat_evaluate(run, scope, node->b);
	case CHAT_NODE_BINARY:
		return expression_binary(run, scope, node);
	case CHAT_NODE_COMPARE:
		return expression_compare(run, scope, node);
	case CHAT_NODE_CONCAT:
		return expression_concat(run, scope, node);
	case CHAT_NODE_CHOICE:
		return expression_choice(run, scope, node);
	default:
		assert(!"an expression");
		return chat_none();
	}
}

struct chat_value chat_evaluate(
	struct chat_run *run, struct chat_scope *scope, const struct chat_node *node)
{
	struct chat_value value;

	chat_enter(&run->context);
	run->context.line = node->line;
	value = expression_evaluate(run, scope, node);
	chat_leave(&run->context);
	assert(value.type != CHAT_MISSING);
	return value;
}
