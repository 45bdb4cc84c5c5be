/* SPDX-License-Identifier: MIT */

/* The filters that call other filters or tests, and the search in all tables. */

#include "sdk/text/chat_access.h"
#include "sdk/text/chat_filter.h"
#include "sdk/text/chat_test.h"

/* The arguments from `from` on. */
static struct chat_list filter_rest(const struct chat_call *call, size_t from)
{
	struct chat_list rest = {.n = call->positional->n - from};

	if (rest.n)
		rest.items = call->positional->items + from;
	return rest;
}

static _Noreturn void filter_refuse_name(
	const struct chat_call *call, const char *what, struct chat_value name)
{
	if (name.type != CHAT_STRING)
		chat_fail(call->context, MIMEO_E_INVALID, "%s: the name of a %s must be a string",
			call->builtin->name, what);
	chat_fail(call->context, MIMEO_E_UNSUPPORTED, "%s \"%.*s\" is not supported", what,
		(int)(name.string->length < 40 ? name.string->length : 40), name.string->bytes);
}

/*
 * An iterator whose items come from another one through a filter or a test. Nothing is computed
 * before it is read.
 */
struct filter_closure {
	struct chat_iterator input;
	struct chat_value attribute, absent; /* of chat_filter_key */
	const struct chat_builtin *builtin;  /* the filter or test that is called, or NULL */
	struct chat_list positional;         /* its arguments */
	struct chat_dict keywords;
	bool is_rejecting;
};

static struct chat_value filter_apply(
	struct chat_context *context, const struct filter_closure *closure, struct chat_value item)
{
	struct chat_value key = chat_filter_key(context, item, closure->attribute, closure->absent);

	if (!closure->builtin)
		return key;
	return chat_call_builtin(
		context, closure->builtin, key, &closure->positional, &closure->keywords);
}

static bool filter_fetch_mapped(
	struct chat_context *context, void *pointer, struct chat_value *ret_item)
{
	struct filter_closure *closure = pointer;
	struct chat_value item;

	if (!chat_next(context, &closure->input, &item))
		return false;
	*ret_item = filter_apply(context, closure, item);
	return true;
}

static bool filter_fetch_selected(
	struct chat_context *context, void *pointer, struct chat_value *ret_item)
{
	struct filter_closure *closure = pointer;
	struct chat_value item;

	while (chat_next(context, &closure->input, &item)) {
		chat_charge(context, 1);
		if (chat_truth(filter_apply(context, closure, item)) != closure->is_rejecting) {
			*ret_item = item;
			return true;
		}
	}
	return false;
}

/* `n_used` positional arguments are not the builtin's. */
static struct chat_value filter_iterator(const struct chat_call *call, size_t n_used,
	bool (*fetch)(struct chat_context *, void *, struct chat_value *),
	struct filter_closure **ret_closure)
{
	struct filter_closure *closure = CHAT_NEW(call->context, struct filter_closure);
	struct chat_value result = chat_list_new(call->context, CHAT_ITERATOR);

	closure->input.source = chat_list_new(call->context, CHAT_LIST);
	if (chat_truth(call->self))
		closure->input = chat_iterate(call->context, call->self);
	closure->positional = filter_rest(call, n_used);
	closure->keywords = *call->keywords;
	result.foreign = call->self.foreign;
	result.list->fetch = fetch;
	result.list->closure = closure;
	*ret_closure = closure;
	return result;
}

/* map(attribute=..., default=...), or map(filter, arguments ...). */
static struct chat_value filter_map(const struct chat_call *call)
{
	const struct chat_value *attribute =
		chat_dict_find_name(call->context, call->keywords, "attribute");
	const struct chat_value *absent =
		chat_dict_find_name(call->context, call->keywords, "default");
	struct filter_closure *closure;
	struct chat_value result;

	if (!call->positional->n && !attribute)
		chat_fail(call->context, MIMEO_E_INVALID, "map requires a filter argument");
	result = filter_iterator(call, call->positional->n > 0, filter_fetch_mapped, &closure);
	if (call->positional->n) {
		struct chat_value name = call->positional->items[0];

		if (name.type == CHAT_STRING)
			closure->builtin = chat_find_filter(name.string);
		if (!closure->builtin)
			filter_refuse_name(call, "filter", name);
		return result;
	}
	if (call->keywords->n > (absent ? 2 : 1))
		chat_fail(call->context, MIMEO_E_INVALID, "map: unexpected argument");
	closure->attribute = *attribute;
	if (absent)
		closure->absent = *absent;
	return result;
}

enum { REJECT = 1, BY_ATTRIBUTE = 2 };

/* select(test, arguments ...), and with an attribute in front selectattr; without a test by truth.
 */
static struct chat_value filter_select(const struct chat_call *call)
{
	bool by_attribute = call->builtin->option & BY_ATTRIBUTE;
	bool by_test = call->positional->n > by_attribute;
	struct filter_closure *closure;
	struct chat_value result;

	if (by_attribute && !call->positional->n)
		chat_fail(call->context, MIMEO_E_INVALID, "Missing parameter for attribute name");
	result = filter_iterator(call, by_attribute + by_test, filter_fetch_selected, &closure);
	closure->is_rejecting = call->builtin->option & REJECT;
	if (by_attribute)
		closure->attribute = call->positional->items[0];
	if (by_test) {
		struct chat_value name = call->positional->items[by_attribute];

		if (name.type == CHAT_STRING)
			closure->builtin = chat_find_test(name.string);
		if (!closure->builtin)
			filter_refuse_name(call, "test", name);
	}
	return result;
}

static struct chat_value filter_attr(const struct chat_call *call)
{
	const struct chat_string *name = chat_argument_string(call, 0);
	struct chat_value result;

	if (!name || call->self.type == CHAT_UNDEFINED)
		chat_fail(call->context, MIMEO_E_INVALID, "attr: no object, or no name");
	/* a dict's keys are no attributes */
	result = call->self.type == CHAT_DICT
			 ? chat_undefined_in(call->context, call->self, call->arguments[0])
			 : chat_get_attribute(call->context, call->self, call->arguments[0]);
	return result;
}

static const struct chat_builtin filters[] = {
	{"attr", filter_attr, "name", 1},
	{"map", filter_map, NULL, 0},
	{"reject", filter_select, NULL, 0, REJECT},
	{"rejectattr", filter_select, NULL, 0, REJECT | BY_ATTRIBUTE},
	{"select", filter_select, NULL, 0},
	{"selectattr", filter_select, NULL, 0, BY_ATTRIBUTE},
};

const struct chat_builtin *chat_find_filter(const struct chat_string *name)
{
	const struct chat_builtin *found =
		chat_find_builtin(chat_text_filters, chat_n_text_filters, name);

	if (!found)
		found = chat_find_builtin(chat_sequence_filters, chat_n_sequence_filters, name);
	if (!found)
		found = chat_find_builtin(filters, sizeof(filters) / sizeof(filters[0]), name);
	return found;
}
