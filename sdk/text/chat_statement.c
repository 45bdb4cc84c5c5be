/* SPDX-License-Identifier: MIT */
#include <assert.h>

#include "sdk/text/chat_builtin.h"
#include "sdk/text/chat_loop.h"
#include "sdk/text/chat_print.h"
#include "sdk/text/chat_run.h"

/* How a list of statements ended. */
enum flow {
	FLOW_NEXT,
	FLOW_BREAK,
	FLOW_CONTINUE,
};

static enum flow statement_run(
	struct chat_run *run, struct chat_scope *scope, const struct chat_node *list);

/* The text of statements in a scope of their own; *ret_text only if they end without a jump. */
static enum flow statement_capture(struct chat_run *run, struct chat_scope *scope,
	const struct chat_node *list, struct chat_value *ret_text)
{
	struct chat_text *outer = run->output, *text = chat_text_new(&run->context);
	enum flow flow;

	run->output = text;
	flow = statement_run(run, scope, list);
	run->output = outer;
	if (flow == FLOW_NEXT)
		*ret_text = chat_text_string(text);
	return flow;
}

/* ---- assignment ---- */

static void statement_assign(struct chat_run *run, struct chat_scope *scope,
	const struct chat_node *target, struct chat_value value);

static void statement_set_attribute(struct chat_run *run, struct chat_scope *scope,
	const struct chat_node *target, struct chat_value value)
{
	struct chat_value object = chat_evaluate(run, scope, target->a);

	run->context.line = target->line;
	if (object.type != CHAT_NAMESPACE)
		chat_fail(&run->context, MIMEO_E_INVALID,
			"cannot assign attribute on non-namespace object");
	if (target->value.string->bytes[0] == '_')
		chat_fail(&run->context, MIMEO_E_INVALID,
			"a namespace cannot store names that begin with an underscore");
	chat_dict_set(&run->context, object.dict, target->value, value);
}

static void statement_unpack(struct chat_run *run, struct chat_scope *scope,
	const struct chat_node *target, struct chat_value value)
{
	const struct chat_list *items = chat_collect(&run->context, value);
	size_t n = 0;

	for (const struct chat_node *item = target->a; item; item = item->next)
		n++;
	if (items->n != n)
		chat_fail(&run->context, MIMEO_E_INVALID, "%zu values for %zu names", items->n, n);
	n = 0;
	for (const struct chat_node *item = target->a; item; item = item->next)
		statement_assign(run, scope, item, items->items[n++]);
}

static void statement_assign(struct chat_run *run, struct chat_scope *scope,
	const struct chat_node *target, struct chat_value value)
{
	run->context.line = target->line;
	if (target->kind == CHAT_NODE_NAME)
		chat_scope_set(run, scope, target->symbol, value);
	else if (target->kind == CHAT_NODE_ATTRIBUTE)
		statement_set_attribute(run, scope, target, value);
	else
		statement_unpack(run, scope, target, value);
}

/* The filters' value for the text of a block. */
static struct chat_value statement_filter(struct chat_run *run, struct chat_scope *scope,
	const struct chat_node *filters, struct chat_value text)
{
	struct chat_value outer = run->captured, value;

	run->captured = text;
	value = chat_evaluate(run, scope, filters);
	run->captured = outer;
	return value;
}

static enum flow statement_set_block(
	struct chat_run *run, struct chat_scope *scope, const struct chat_node *node)
{
	struct chat_scope *inner = chat_scope_new(run, scope);
	struct chat_value text;
	enum flow flow = statement_capture(run, inner, node->b, &text);

	if (flow != FLOW_NEXT)
		return flow;
	if (node->c)
		text = statement_filter(run, inner, node->c, text);
	statement_assign(run, scope, node->a, text);
	return FLOW_NEXT;
}

/* ---- loops ---- */

struct loop_owner {
	struct chat_run *run;
	struct chat_scope *scope; /* around the loop */
	struct chat_scope *test;  /* of the items that are tested */
	const struct chat_node *node;
};

static bool statement_accepts(struct chat_loop *loop, struct chat_value item)
{
	const struct loop_owner *owner = loop->owner;

	chat_scope_empty(owner->run, owner->test);
	statement_assign(owner->run, owner->test, owner->node->a, item);
	return chat_truth(chat_evaluate(owner->run, owner->test, owner->node->e));
}

static struct chat_value statement_recurse(struct chat_loop *loop, struct chat_value iterable);

static enum flow statement_loop(struct chat_run *run, struct chat_scope *scope,
	const struct chat_node *node, struct chat_value iterable, uint32_t depth)
{
	struct chat_loop *loop = CHAT_NEW(&run->context, struct chat_loop);
	struct loop_owner *owner = CHAT_NEW(&run->context, struct loop_owner);
	struct chat_scope *turn = chat_scope_new(run, scope);
	struct chat_value item, variable = {.type = CHAT_LOOP, .loop = loop};
	bool completed = false; /* a turn without a jump, which is what Jinja's else goes by */

	*owner = (struct loop_owner){run, scope, chat_scope_new(run, scope), node};
	loop->iterator = chat_iterate(&run->context, iterable);
	loop->accepts = node->e ? statement_accepts : NULL;
	loop->recurse = node->flag ? statement_recurse : NULL;
	loop->owner = owner;
	loop->index = -1;
	loop->n = -1;
	loop->depth = depth;
	while (chat_loop_next(&run->context, loop, &item)) {
		enum flow flow;

		chat_scope_empty(run, turn);
		chat_scope_set(run, turn, CHAT_SYMBOL_LOOP, variable);
		statement_assign(run, turn, node->a, item);
		flow = statement_run(run, turn, node->c);
		if (flow == FLOW_BREAK)
			break;
		completed |= flow == FLOW_NEXT;
	}
	chat_scope_empty(run, turn);
	return completed ? FLOW_NEXT : statement_run(run, chat_scope_new(run, scope), node->d);
}

static struct chat_value statement_recurse(struct chat_loop *loop, struct chat_value iterable)
{
	const struct loop_owner *owner = loop->owner;
	struct chat_text *outer = owner->run->output, *text = chat_text_new(&owner->run->context);

	chat_enter(&owner->run->context);
	owner->run->output = text;
	statement_loop(owner->run, owner->scope, owner->node, iterable, loop->depth + 1);
	owner->run->output = outer;
	chat_leave(&owner->run->context);
	return chat_text_string(text);
}

/* ---- macros ---- */

/* The arguments of a macro become variables; *positional and *keywords are what is left. */
static void macro_bind(struct chat_run *run, const struct chat_macro *macro,
	struct chat_scope *scope, struct chat_list *positional, struct chat_dict *keywords)
{
	const struct chat_node *parameter = macro->node->a;
	struct chat_dict rest = {0};

	for (; parameter && positional->n; parameter = parameter->next) {
		chat_scope_set(run, scope, parameter->symbol, positional->items[0]);
		positional->items++;
		positional->n--;
	}
	for (size_t i = 0; i < keywords->n; i++) {
		const struct chat_node *named = parameter;

		while (named && !chat_equal(&run->context, named->value, keywords->pairs[i].key))
			named = named->next;
		if (named)
			chat_scope_set(run, scope, named->symbol, keywords->pairs[i].value);
		else
			chat_dict_set(&run->context, &rest, keywords->pairs[i].key,
				keywords->pairs[i].value);
	}
	*keywords = rest;
}

/* A parameter without an argument has its default, which may use the parameters before it. */
static void macro_set_defaults(
	struct chat_run *run, const struct chat_macro *macro, struct chat_scope *scope)
{
	for (const struct chat_node *parameter = macro->node->a; parameter;
		parameter = parameter->next) {
		if (!chat_scope_find(run, scope, parameter->symbol))
			chat_scope_set(run, scope, parameter->symbol,
				parameter->a
					? chat_evaluate(run, scope, parameter->a)
					: chat_undefined_name(&run->context, parameter->value));
	}
}

/*
 * The variables `varargs`, `kwargs` and `caller` of a macro that uses them; other arguments must
 * not be left.
 */
static void macro_set_rest(struct chat_run *run, const struct chat_macro *macro,
	struct chat_scope *scope, struct chat_list *positional, struct chat_dict *keywords)
{
	struct chat_value name = run->tree->symbols[CHAT_SYMBOL_CALLER];
	struct chat_value varargs = {.type = CHAT_TUPLE, .list = positional};
	struct chat_value kwargs = chat_dict_new(&run->context);
	struct chat_value caller = chat_undefined_name(&run->context, name);
	uint32_t flags = macro->node->flag;

	for (size_t i = 0; i < keywords->n; i++) {
		if (flags & CHAT_MACRO_CALLER &&
			chat_equal(&run->context, keywords->pairs[i].key, name))
			caller = keywords->pairs[i].value;
		else
			chat_dict_set(&run->context, kwargs.dict, keywords->pairs[i].key,
				keywords->pairs[i].value);
	}
	if ((positional->n && !(flags & CHAT_MACRO_VARARGS)) ||
		(kwargs.dict->n && !(flags & CHAT_MACRO_KWARGS)))
		chat_fail(&run->context, MIMEO_E_INVALID,
			"a macro is called with %zu arguments that it does not take",
			positional->n + kwargs.dict->n);
	if (flags & CHAT_MACRO_CALLER)
		chat_scope_set(run, scope, CHAT_SYMBOL_CALLER, caller);
	if (flags & CHAT_MACRO_KWARGS)
		chat_scope_set(run, scope, CHAT_SYMBOL_KWARGS, kwargs);
	if (flags & CHAT_MACRO_VARARGS)
		chat_scope_set(run, scope, CHAT_SYMBOL_VARARGS, varargs);
}

static struct chat_value macro_call(struct chat_run *run, const struct chat_macro *macro,
	const struct chat_list *positional, const struct chat_dict *keywords)
{
	struct chat_scope *scope = chat_scope_new(run, macro->scope);
	struct chat_list *rest = CHAT_NEW(&run->context, struct chat_list);
	struct chat_dict named = *keywords;
	struct chat_value text;
	enum flow flow;

	*rest = *positional;
	macro_bind(run, macro, scope, rest, &named);
	macro_set_rest(run, macro, scope, rest, &named);
	macro_set_defaults(run, macro, scope);
	flow = statement_capture(run, scope, macro->node->b, &text);
	assert(flow == FLOW_NEXT);
	return text;
}

static struct chat_value macro_new(
	struct chat_run *run, struct chat_scope *scope, const struct chat_node *node)
{
	struct chat_value value = {
		.type = CHAT_MACRO, .macro = CHAT_NEW(&run->context, struct chat_macro)};

	*value.macro = (struct chat_macro){node, scope, macro_call};
	return value;
}

/* ---- statements ---- */

static enum flow statement_filter_block(
	struct chat_run *run, struct chat_scope *scope, const struct chat_node *node)
{
	struct chat_scope *inner = chat_scope_new(run, scope);
	struct chat_value text;
	enum flow flow = statement_capture(run, inner, node->b, &text);

	if (flow != FLOW_NEXT)
		return flow;
	chat_print(run->output, statement_filter(run, inner, node->a, text));
	return FLOW_NEXT;
}

static enum flow statement_with(
	struct chat_run *run, struct chat_scope *scope, const struct chat_node *node)
{
	struct chat_scope *inner = chat_scope_new(run, scope);

	for (const struct chat_node *set = node->a; set; set = set->next)
		statement_assign(run, inner, set->a, chat_evaluate(run, scope, set->b));
	return statement_run(run, inner, node->b);
}

static enum flow statement_run_one(
	struct chat_run *run, struct chat_scope *scope, const struct chat_node *node)
{
	switch (node->kind) {
	case CHAT_NODE_DATA:
		chat_text_add_string(run->output, node->value.string);
		return FLOW_NEXT;
	case CHAT_NODE_PRINT:
		chat_print(run->output, chat_evaluate(run, scope, node->a));
		return FLOW_NEXT;
	case CHAT_NODE_IF:
		return statement_run(run, scope,
			chat_truth(chat_evaluate(run, scope, node->a)) ? node->b : node->c);
	case CHAT_NODE_FOR:
		return statement_loop(run, scope, node, chat_evaluate(run, scope, node->b), 0);
	case CHAT_NODE_SET:
		statement_assign(run, scope, node->a, chat_evaluate(run, scope, node->b));
		return FLOW_NEXT;
	case CHAT_NODE_SET_BLOCK:
		return statement_set_block(run, scope, node);
	case CHAT_NODE_MACRO:
		chat_scope_set(run, scope, node->symbol, macro_new(run, scope, node));
		return FLOW_NEXT;
	case CHAT_NODE_CALL_BLOCK:
		chat_print(run->output,
			chat_evaluate_call(run, scope, node->a, macro_new(run, scope, node->b)));
		return FLOW_NEXT;
	case CHAT_NODE_FILTER_BLOCK:
		return statement_filter_block(run, scope, node);
	case CHAT_NODE_WITH:
		return statement_with(run, scope, node);
	case CHAT_NODE_SCOPE:
		return statement_run(run, chat_scope_new(run, scope), node->b);
	case CHAT_NODE_BREAK:
		return FLOW_BREAK;
	case CHAT_NODE_CONTINUE:
		return FLOW_CONTINUE;
	default:
		assert(!"a statement");
		return FLOW_NEXT;
	}
}

static enum flow statement_run(
	struct chat_run *run, struct chat_scope *scope, const struct chat_node *list)
{
	enum flow flow = FLOW_NEXT;

	chat_enter(&run->context);
	for (; list && flow == FLOW_NEXT; list = list->next) {
		run->context.line = list->line;
		chat_charge(&run->context, 1);
		flow = statement_run_one(run, scope, list);
	}
	chat_leave(&run->context);
	return flow;
}

void chat_execute(struct chat_run *run)
{
	enum flow flow = statement_run(run, chat_scope_new(run, NULL), run->tree->body);

	assert(flow == FLOW_NEXT);
}
