/* SPDX-License-Identifier: MIT */

/* The filters that call other filters or tests, and the search in all tables. */

#include "sdk/text/chat_access.h"
#include "sdk/text/chat_filter.h"
#include "sdk/text/chat_test.h"

/* The arguments from `from` on. */
static struct chat_list filter_rest(const struct chat_call *call, size_t from)
{
	return (struct chat_list){
		.items = call->positional->items + from, .n = call->positional->n - from};
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

/* map(attribute=..., default=...), or map(filter, arguments ...). */
static struct chat_value filter_map(const struct chat_call *call)
{
	struct chat_value result = chat_list_new(call->context, CHAT_ITERATOR), item;
	struct chat_value attribute = {.type = CHAT_MISSING}, absent = attribute;
	const struct chat_builtin *filter = NULL;
	const struct chat_value *found;
	struct chat_iterator iterator;
	struct chat_list rest = {0};

	result.foreign = call->self.foreign;
	if (!chat_truth(call->self))
		return result;
	found = chat_dict_find_name(call->context, call->keywords, "attribute");
	if (!call->positional->n && found) {
		attribute = *found;
		found = chat_dict_find_name(call->context, call->keywords, "default");
		if (found)
			absent = *found;
		if (call->keywords->n > (found ? 2 : 1))
			chat_fail(call->context, MIMEO_E_INVALID, "map: unexpected argument");
	} else if (!call->positional->n) {
		chat_fail(call->context, MIMEO_E_INVALID, "map requires a filter argument");
	} else {
		struct chat_value name = call->positional->items[0];

		if (name.type == CHAT_STRING)
			filter = chat_find_filter(name.string);
		if (!filter)
			filter_refuse_name(call, "filter", name);
		rest = filter_rest(call, 1);
	}
	iterator = chat_iterate(call->context, call->self);
	while (chat_next(call->context, &iterator, &item)) {
		item = filter ? chat_call_builtin(
					call->context, filter, item, &rest, call->keywords)
			      : chat_filter_key(call->context, item, attribute, absent);
		chat_list_add(call->context, result.list, item);
	}
	return result;
}

enum { REJECT = 1, BY_ATTRIBUTE = 2 };

/* select(test, arguments ...), and with an attribute in front selectattr; without a test by truth.
 */
static struct chat_value filter_select(const struct chat_call *call)
{
	bool by_attribute = call->builtin->option & BY_ATTRIBUTE;
	struct chat_value result = chat_list_new(call->context, CHAT_ITERATOR), item, key;
	struct chat_value attribute = {.type = CHAT_MISSING}, missing = attribute;
	const struct chat_builtin *test = NULL;
	struct chat_iterator iterator;
	struct chat_list rest = {0};

	result.foreign = call->self.foreign;
	if (!chat_truth(call->self))
		return result;
	if (by_attribute && !call->positional->n)
		chat_fail(call->context, MIMEO_E_INVALID, "Missing parameter for attribute name");
	if (by_attribute)
		attribute = call->positional->items[0];
	if (call->positional->n > by_attribute) {
		struct chat_value name = call->positional->items[by_attribute];

		if (name.type == CHAT_STRING)
			test = chat_find_test(name.string);
		if (!test)
			filter_refuse_name(call, "test", name);
		rest = filter_rest(call, by_attribute + 1u);
	}
	iterator = chat_iterate(call->context, call->self);
	while (chat_next(call->context, &iterator, &item)) {
		key = chat_filter_key(call->context, item, attribute, missing);
		if (test)
			key = chat_call_builtin(call->context, test, key, &rest, call->keywords);
		chat_charge(call->context, 1);
		if (chat_truth(key) != (call->builtin->option & REJECT))
			chat_list_add(call->context, result.list, item);
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
