/* SPDX-License-Identifier: MIT */
#include <assert.h>

#include "sdk/text/chat_dict.h"
#include "sdk/text/chat_string.h"

const char *chat_type_name(struct chat_value value)
{
	static const char *const names[] = {
		[CHAT_UNDEFINED] = "Undefined",
		[CHAT_NONE] = "NoneType",
		[CHAT_BOOL] = "bool",
		[CHAT_INT] = "int",
		[CHAT_FLOAT] = "float",
		[CHAT_STRING] = "str",
		[CHAT_LIST] = "list",
		[CHAT_TUPLE] = "tuple",
		[CHAT_RANGE] = "range",
		[CHAT_KEYS] = "dict_keys",
		[CHAT_VALUES] = "dict_values",
		[CHAT_ITEMS] = "dict_items",
		[CHAT_ITERATOR] = "generator",
		[CHAT_DICT] = "dict",
		[CHAT_NAMESPACE] = "TemplateNamespace",
		[CHAT_LOOP] = "LoopContext",
		[CHAT_MACRO] = "Macro",
		[CHAT_FUNCTION] = "function",
		[CHAT_METHOD] = "method",
	};

	assert(value.type > CHAT_MISSING && value.type <= CHAT_METHOD);
	return names[value.type];
}

/* ---- undefined ---- */

static struct chat_value chat_undefined_new(
	struct chat_context *context, struct chat_undefined reason)
{
	struct chat_value value = {
		.type = CHAT_UNDEFINED, .undefined = CHAT_NEW(context, struct chat_undefined)};

	*value.undefined = reason;
	return value;
}

struct chat_value chat_undefined_name(struct chat_context *context, struct chat_value name)
{
	return chat_undefined_new(context, (struct chat_undefined){.name = name});
}

struct chat_value chat_undefined_in(
	struct chat_context *context, struct chat_value object, struct chat_value name)
{
	return chat_undefined_new(
		context, (struct chat_undefined){.object = chat_type_name(object), .name = name});
}

struct chat_value chat_undefined_hint(struct chat_context *context, const char *hint)
{
	return chat_undefined_new(context, (struct chat_undefined){.hint = hint});
}

void chat_fail_undefined(struct chat_context *context, struct chat_value value)
{
	const struct chat_undefined *undefined = value.undefined;

	assert(value.type == CHAT_UNDEFINED);
	if (undefined->hint)
		chat_fail(context, MIMEO_E_INVALID, "%s", undefined->hint);
	if (undefined->name.type == CHAT_INT)
		chat_fail(context, MIMEO_E_INVALID, "%s object has no element %lld",
			undefined->object, (long long)undefined->name.integer);
	if (undefined->name.type != CHAT_STRING)
		chat_fail(context, MIMEO_E_INVALID, "%s object has no such element",
			undefined->object);
	chat_fail(context, MIMEO_E_INVALID, "%s%s'%.*s'%s",
		undefined->object ? undefined->object : "",
		undefined->object ? " object has no attribute " : "",
		(int)(undefined->name.string->length < 100 ? undefined->name.string->length : 100),
		undefined->name.string->bytes, undefined->object ? "" : " is undefined");
}

/* ---- lists ---- */

struct chat_value chat_list_new(struct chat_context *context, enum chat_type type)
{
	struct chat_value value = {.type = type, .list = CHAT_NEW(context, struct chat_list)};

	assert(CHAT_IS_SEQUENCE(value));
	return value;
}

void chat_list_add(struct chat_context *context, struct chat_list *list, struct chat_value item)
{
	assert(item.type != CHAT_MISSING);
	if (list->n == list->capacity)
		list->items =
			chat_grow(context, list->items, &list->capacity, sizeof(*list->items));
	list->items[list->n++] = item;
}

struct chat_value chat_pair_new(
	struct chat_context *context, struct chat_value first, struct chat_value second)
{
	struct chat_value pair = chat_list_new(context, CHAT_TUPLE);

	chat_list_add(context, pair.list, first);
	chat_list_add(context, pair.list, second);
	return pair;
}

/* ---- truth, length, iteration ---- */

bool chat_truth(struct chat_value value)
{
	switch (value.type) {
	case CHAT_UNDEFINED:
	case CHAT_NONE:
		return false;
	case CHAT_BOOL:
		return value.boolean;
	case CHAT_INT:
		return value.integer != 0;
	case CHAT_FLOAT:
		return value.real != 0;
	case CHAT_STRING:
		return value.string->length != 0;
	case CHAT_DICT:
		return value.dict->n != 0;
	case CHAT_LIST:
	case CHAT_TUPLE:
	case CHAT_RANGE:
	case CHAT_KEYS:
	case CHAT_VALUES:
	case CHAT_ITEMS:
		return value.list->n != 0;
	default:
		return true;
	}
}

int64_t chat_length(struct chat_context *context, struct chat_value value)
{
	switch (value.type) {
	case CHAT_UNDEFINED:
		return 0;
	case CHAT_STRING:
		return (int64_t)chat_string_count(context, value.string);
	case CHAT_DICT:
		return (int64_t)value.dict->n;
	default:
		return CHAT_IS_SEQUENCE(value) && value.type != CHAT_ITERATOR
			       ? (int64_t)value.list->n
			       : -1;
	}
}

bool chat_is_iterable(struct chat_value value)
{
	return value.type == CHAT_UNDEFINED || value.type == CHAT_STRING ||
	       value.type == CHAT_DICT || CHAT_IS_SEQUENCE(value);
}

struct chat_iterator chat_iterate(struct chat_context *context, struct chat_value value)
{
	if (!chat_is_iterable(value))
		chat_fail(context, MIMEO_E_INVALID, "'%s' object is not iterable",
			chat_type_name(value));
	return (struct chat_iterator){.source = value};
}

bool chat_next(
	struct chat_context *context, struct chat_iterator *iterator, struct chat_value *ret_item)
{
	struct chat_value source = iterator->source;
	size_t *at = source.type == CHAT_ITERATOR ? &source.list->n_read : &iterator->at;
	size_t length;

	if (source.type == CHAT_UNDEFINED)
		return false;
	if (source.type == CHAT_ITERATOR && source.list->fetch) {
		bool found;

		chat_enter(context);
		found = source.list->fetch(context, source.list->closure, ret_item);
		chat_leave(context);
		return found;
	}
	if (source.type == CHAT_STRING) {
		if (*at == source.string->length)
			return false;
		chat_string_at(source.string, *at, &length);
		*ret_item = chat_string_part(context, source, *at, length);
		*at += length;
		return true;
	}
	if (source.type == CHAT_DICT) {
		if (*at == source.dict->n)
			return false;
		*ret_item = source.dict->pairs[(*at)++].key;
		return true;
	}
	if (*at == source.list->n)
		return false;
	*ret_item = source.list->items[(*at)++];
	return true;
}

struct chat_list *chat_collect(struct chat_context *context, struct chat_value value)
{
	struct chat_iterator iterator = chat_iterate(context, value);
	struct chat_list *list = CHAT_NEW(context, struct chat_list);
	struct chat_value item;

	while (chat_next(context, &iterator, &item)) {
		chat_charge(context, 1);
		chat_list_add(context, list, item);
	}
	return list;
}

int64_t chat_integer(struct chat_context *context, struct chat_value value, const char *what)
{
	if (value.type == CHAT_UNDEFINED)
		chat_fail_undefined(context, value);
	if (value.type != CHAT_INT && value.type != CHAT_BOOL)
		chat_fail(context, MIMEO_E_INVALID, "%s must be an integer, not '%s'", what,
			chat_type_name(value));
	return value.type == CHAT_INT ? value.integer : value.boolean;
}
