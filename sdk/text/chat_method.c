/* SPDX-License-Identifier: MIT */
#include "sdk/text/chat_method.h"

/* ---- dict ---- */

static struct chat_value dict_get(const struct chat_call *call)
{
	const struct chat_value *value =
		chat_dict_find(call->context, call->self.dict, call->arguments[0]);

	if (value)
		return *value;
	return call->arguments[1].type == CHAT_MISSING ? chat_none() : call->arguments[1];
}

/* The option is the type of the view. */
static struct chat_value dict_view(const struct chat_call *call)
{
	enum chat_type type = call->builtin->option;
	const struct chat_dict *dict = call->self.dict;
	struct chat_value view = chat_list_new(call->context, type);

	chat_charge(call->context, dict->n);
	view.foreign = call->self.foreign;
	for (size_t i = 0; i < dict->n; i++) {
		const struct chat_pair *pair = &dict->pairs[i];
		struct chat_value item = type == CHAT_KEYS ? pair->key : pair->value;

		if (type == CHAT_ITEMS) {
			item = chat_pair_new(call->context, pair->key, pair->value);
			item.foreign = call->self.foreign;
		}
		chat_list_add(call->context, view.list, item);
	}
	return view;
}

/* Values do not change, so a copy need not be one. */
static struct chat_value method_copy(const struct chat_call *call)
{
	return call->self;
}

/* ---- list and tuple ---- */

static struct chat_value list_count(const struct chat_call *call)
{
	int64_t n = 0;

	for (size_t i = 0; i < call->self.list->n; i++)
		n += chat_equal(call->context, call->self.list->items[i], call->arguments[0]);
	return chat_int(n);
}

static struct chat_value list_index(const struct chat_call *call)
{
	for (size_t i = 0; i < call->self.list->n; i++) {
		if (chat_equal(call->context, call->self.list->items[i], call->arguments[0]))
			return chat_int((int64_t)i);
	}
	chat_fail(call->context, MIMEO_E_INVALID, "index(): the value is not in the list");
}

/* ---- tables ---- */

static const struct chat_builtin dict_methods[] = {
	{"get", dict_get, "key, default", 1},
	{"items", dict_view, "", 0, CHAT_ITEMS},
	{"keys", dict_view, "", 0, CHAT_KEYS},
	{"values", dict_view, "", 0, CHAT_VALUES},
	{"copy", method_copy, "", 0},
	{"fromkeys"},
};

static const struct chat_builtin list_methods[] = {
	{"count", list_count, "value", 1},
	{"index", list_index, "value", 1},
	{"copy", method_copy, "", 0},
};

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

const struct chat_builtin *chat_find_method(
	struct chat_value object, const struct chat_string *name)
{
	switch (object.type) {
	case CHAT_STRING:
		return chat_find_builtin(chat_string_methods, chat_n_string_methods, name);
	case CHAT_DICT:
		return chat_find_builtin(dict_methods, LENGTH(dict_methods), name);
	case CHAT_LIST:
		return chat_find_builtin(list_methods, LENGTH(list_methods), name);
	case CHAT_TUPLE: /* which has no copy(), like a range */
	case CHAT_RANGE:
		return chat_find_builtin(list_methods, LENGTH(list_methods) - 1, name);
	default:
		return NULL;
	}
}

static bool method_is_one_of(const struct chat_string *name, const char *const *names)
{
	for (; *names; names++) {
		if (chat_string_is(name, *names))
			return true;
	}
	return false;
}

bool chat_is_mutator(struct chat_value object, const struct chat_string *name)
{
	static const char *const of_dict[] = {
		"clear", "pop", "popitem", "setdefault", "update", NULL};
	static const char *const of_list[] = {
		"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove", NULL};

	return (object.type == CHAT_DICT && method_is_one_of(name, of_dict)) ||
	       (object.type == CHAT_LIST && method_is_one_of(name, of_list));
}
