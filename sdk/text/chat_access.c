/* SPDX-License-Identifier: MIT */
#include <assert.h>

#include "sdk/text/chat_access.h"
#include "sdk/text/chat_loop.h"
#include "sdk/text/chat_method.h"

static bool access_is_internal(const struct chat_string *name)
{
	return name->length >= 2 && name->bytes[0] == '_' && name->bytes[1] == '_';
}

/* What Python's getattr() finds, or MISSING. */
static struct chat_value access_attribute(
	struct chat_context *context, struct chat_value object, const struct chat_string *name)
{
	struct chat_value method = {.type = CHAT_METHOD};
	const struct chat_builtin *builtin = chat_find_method(object, name);
	const struct chat_value *found;

	if (builtin) {
		method.method = CHAT_NEW(context, struct chat_method);
		*method.method = (struct chat_method){object, builtin};
		return method;
	}
	if (access_is_internal(name) || chat_is_mutator(object, name))
		return chat_undefined_hint(
			context, "access to an attribute that the sandbox hides is unsafe");
	if (object.type == CHAT_LOOP)
		return chat_loop_attribute(context, object, name);
	if (object.type == CHAT_NAMESPACE) {
		found = chat_dict_find(context, object.dict,
			(struct chat_value){.type = CHAT_STRING,
				.string = (struct chat_string *)(uintptr_t)name});
		if (found)
			return *found;
	}
	if (object.type == CHAT_TUPLE && object.list->is_group && chat_string_is(name, "grouper"))
		return object.list->items[0];
	if (object.type == CHAT_TUPLE && object.list->is_group && chat_string_is(name, "list"))
		return object.list->items[1];
	return (struct chat_value){.type = CHAT_MISSING};
}

static struct chat_value access_index(
	struct chat_context *context, struct chat_value object, int64_t index)
{
	int64_t n = chat_length(context, object);
	size_t offset, length;

	if (index < 0)
		index += n;
	if (index < 0 || index >= n)
		return (struct chat_value){.type = CHAT_MISSING};
	if (object.type != CHAT_STRING)
		return object.list->items[index];
	offset = chat_string_offset(context, object.string, (size_t)index);
	chat_string_at(object.string, offset, &length);
	return chat_string_part(context, object, offset, length);
}

/* What Python's object[key] finds, or MISSING. */
static struct chat_value access_item(
	struct chat_context *context, struct chat_value object, struct chat_value key)
{
	const struct chat_value *found;

	switch (object.type) {
	case CHAT_DICT:
		if (!chat_is_hashable(context, key))
			break;
		found = chat_dict_find(context, object.dict, key);
		if (found)
			return *found;
		break;
	case CHAT_STRING:
	case CHAT_LIST:
	case CHAT_TUPLE:
	case CHAT_RANGE:
		if (key.type == CHAT_INT || key.type == CHAT_BOOL)
			return access_index(context, object, chat_integer(context, key, "index"));
		break;
	default:
		break;
	}
	return (struct chat_value){.type = CHAT_MISSING};
}

struct chat_value chat_get_attribute(
	struct chat_context *context, struct chat_value object, struct chat_value name)
{
	struct chat_value result;

	assert(name.type == CHAT_STRING);
	if (object.type == CHAT_UNDEFINED)
		chat_fail_undefined(context, object);
	result = access_attribute(context, object, name.string);
	if (result.type == CHAT_MISSING)
		result = access_item(context, object, name);
	return result.type == CHAT_MISSING ? chat_undefined_in(context, object, name) : result;
}

struct chat_value chat_get_item(
	struct chat_context *context, struct chat_value object, struct chat_value key)
{
	struct chat_value result;

	if (object.type == CHAT_UNDEFINED)
		chat_fail_undefined(context, object);
	result = access_item(context, object, key);
	if (result.type == CHAT_MISSING && key.type == CHAT_STRING)
		result = access_attribute(context, object, key.string);
	return result.type == CHAT_MISSING ? chat_undefined_in(context, object, key) : result;
}
