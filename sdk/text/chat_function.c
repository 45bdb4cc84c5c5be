/* SPDX-License-Identifier: MIT */
#include <string.h>
#include <time.h>

#include "sdk/text/chat_function.h"
#include "sdk/text/chat_print.h"

#define STRFTIME_MAX 4096 /* bytes of its result */

static struct chat_value function_raise_exception(const struct chat_call *call)
{
	const struct chat_string *text = chat_str(call->context, call->arguments[0]).string;

	chat_raise(call->context, text->bytes, text->length);
}

/* As Python's strftime without a time zone: %z and %Z are empty, %f are microseconds. */
static struct chat_value function_strftime_now(const struct chat_call *call)
{
	const struct chat_string *format = chat_argument_string(call, 0);
	struct chat_text *text = chat_text_new(call->context);
	char *result = chat_alloc(call->context, STRFTIME_MAX);
	struct timespec now;
	struct tm local;

	if (!format || memchr(format->bytes, 0, format->length))
		chat_fail(call->context, MIMEO_E_INVALID, "strftime_now: no format");
	for (size_t i = 0; i < format->length; i++) {
		char directive = format->bytes[i] == '%' && i + 1 < format->length
					 ? format->bytes[i + 1]
					 : 0;

		if (directive == 'f')
			chat_fail(call->context, MIMEO_E_UNSUPPORTED,
				"strftime_now: %%f is not supported");
		if (directive && directive != 'z' && directive != 'Z')
			chat_text_add(text, format->bytes + i, 2, false);
		else if (!directive)
			chat_text_add(text, format->bytes + i, 1, false);
		i += directive != 0;
	}
	chat_text_add(text, "", 1, false);
	clock_gettime(CLOCK_REALTIME, &now);
	if (!localtime_r(&now.tv_sec, &local) ||
		(!strftime(result, STRFTIME_MAX, text->bytes, &local) && text->length > 1))
		chat_fail(call->context, MIMEO_E_UNSUPPORTED,
			"strftime_now: a result of 0 or more than %d bytes", STRFTIME_MAX);
	return chat_string_wrap(call->context, result, strlen(result), NULL);
}

static struct chat_value function_range(const struct chat_call *call)
{
	struct chat_value range = chat_list_new(call->context, CHAT_RANGE);
	bool has_start = call->arguments[1].type != CHAT_MISSING;
	int64_t start = has_start ? chat_argument_integer(call, 0, 0) : 0;
	int64_t stop = chat_argument_integer(call, has_start, 0);
	int64_t step = chat_argument_integer(call, 2, 1);
	uint64_t distance, n;

	if (!step)
		chat_fail(call->context, MIMEO_E_INVALID, "range: the step is zero");
	if (step > 0 ? start >= stop : start <= stop)
		return range;
	distance = step > 0 ? (uint64_t)stop - (uint64_t)start : (uint64_t)start - (uint64_t)stop;
	n = (distance - 1) / (step > 0 ? (uint64_t)step : -(uint64_t)step) + 1;
	if (n > CHAT_RANGE_MAX)
		chat_fail(call->context, MIMEO_E_INVALID, "range: more than %d items",
			CHAT_RANGE_MAX);
	chat_charge(call->context, n);
	for (uint64_t i = 0; i < n; i++)
		chat_list_add(call->context, range.list,
			chat_int((int64_t)((uint64_t)start + i * (uint64_t)step)));
	return range;
}

/* A dict of a dict or of pairs, and of named arguments. */
static struct chat_value function_dict(const struct chat_call *call)
{
	struct chat_value result = chat_dict_new(call->context), item;
	struct chat_iterator iterator;

	if (call->positional->n > 1)
		chat_fail(call->context, MIMEO_E_INVALID, "%s() takes one argument without a name",
			call->builtin->name);
	if (call->positional->n)
		iterator = chat_iterate(call->context, call->positional->items[0]);
	while (call->positional->n && chat_next(call->context, &iterator, &item)) {
		struct chat_value source = call->positional->items[0];
		const struct chat_list *pair;

		chat_charge(call->context, 1);
		if (source.type == CHAT_DICT) {
			chat_dict_set(call->context, result.dict, item,
				*chat_dict_find(call->context, source.dict, item));
			continue;
		}
		pair = chat_collect(call->context, item);
		if (pair->n != 2)
			chat_fail(call->context, MIMEO_E_INVALID, "%s(): an item is not a pair",
				call->builtin->name);
		chat_dict_set(call->context, result.dict, pair->items[0], pair->items[1]);
	}
	for (size_t i = 0; i < call->keywords->n; i++)
		chat_dict_set(call->context, result.dict, call->keywords->pairs[i].key,
			call->keywords->pairs[i].value);
	return result;
}

static struct chat_value function_namespace(const struct chat_call *call)
{
	struct chat_value result = function_dict(call);

	result.type = CHAT_NAMESPACE;
	for (size_t i = 0; i < result.dict->n; i++) {
		struct chat_value name = result.dict->pairs[i].key;

		if (name.type == CHAT_STRING && name.string->length && name.string->bytes[0] == '_')
			chat_fail(call->context, MIMEO_E_INVALID,
				"a namespace cannot store names that begin with an underscore");
	}
	return result;
}

static const struct chat_builtin functions[] = {
	{"dict", function_dict, NULL, 0},
	{"namespace", function_namespace, NULL, 0},
	{"raise_exception", function_raise_exception, "message", 1},
	{"range", function_range, "start, stop, step", 1},
	{"strftime_now", function_strftime_now, "format", 1},
	/* Jinja has them, too */
	{"cycler"},
	{"joiner"},
	{"lipsum"},
};

const struct chat_builtin *chat_find_function(const struct chat_string *name)
{
	return chat_find_builtin(functions, sizeof(functions) / sizeof(functions[0]), name);
}
