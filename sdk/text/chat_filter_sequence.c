/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "sdk/text/chat_access.h"
#include "sdk/text/chat_filter.h"
#include "sdk/text/chat_operator.h"
#include "sdk/text/chat_print.h"
#include "sdk/text/chat_unicode.h"

/* ---- keys ---- */

/* "12" as an index, anything else as a name. */
static struct chat_value filter_key_part(
	struct chat_context *context, const char *bytes, size_t length)
{
	int64_t index = 0;

	for (size_t i = 0; i < length; i++) {
		if (bytes[i] < '0' || bytes[i] > '9' || i == 18)
			return chat_string_wrap(context, bytes, length, NULL);
		index = 10 * index + (bytes[i] - '0');
	}
	return length ? chat_int(index) : chat_string_wrap(context, bytes, length, NULL);
}

struct chat_value chat_filter_key(struct chat_context *context, struct chat_value item,
	struct chat_value attribute, struct chat_value absent)
{
	const char *at, *end;

	if (attribute.type == CHAT_MISSING || attribute.type == CHAT_NONE)
		return item;
	if (attribute.type != CHAT_STRING)
		return chat_get_item(context, item, attribute);
	at = attribute.string->bytes;
	end = at + attribute.string->length;
	for (;;) {
		const char *dot = memchr(at, '.', (size_t)(end - at));
		const char *stop = dot ? dot : end;

		item = chat_get_item(
			context, item, filter_key_part(context, at, (size_t)(stop - at)));
		if (item.type == CHAT_UNDEFINED && absent.type != CHAT_MISSING &&
			absent.type != CHAT_NONE)
			item = absent;
		if (!dot)
			return item;
		at = dot + 1;
	}
}

/* Strings are compared without regard to case unless it is asked for. */
static struct chat_value filter_fold(
	struct chat_context *context, struct chat_value key, bool case_sensitive)
{
	if (case_sensitive || key.type != CHAT_STRING)
		return key;
	return chat_change_case(context, key.string, CHAT_LOWER);
}

/* The keys of items[n] in memory of their own. */
static struct chat_value *filter_keys(const struct chat_call *call, const struct chat_list *items,
	struct chat_value attribute, struct chat_value absent, bool case_sensitive)
{
	struct chat_value *keys = chat_alloc(call->context, items->n * sizeof(*keys));

	for (size_t i = 0; i < items->n; i++)
		keys[i] = filter_fold(call->context,
			chat_filter_key(call->context, items->items[i], attribute, absent),
			case_sensitive);
	return keys;
}

static struct chat_value filter_list_of(struct chat_list *list, bool foreign)
{
	return (struct chat_value){.type = CHAT_LIST, .foreign = foreign, .list = list};
}

/* ---- one item ---- */

static struct chat_value filter_length(const struct chat_call *call)
{
	int64_t n = chat_length(call->context, call->self);

	if (n < 0)
		chat_fail(call->context, MIMEO_E_INVALID, "object of type '%s' has no len()",
			chat_type_name(call->self));
	return chat_int(n);
}

static struct chat_value filter_first(const struct chat_call *call)
{
	struct chat_iterator iterator = chat_iterate(call->context, call->self);
	struct chat_value item;

	if (chat_next(call->context, &iterator, &item))
		return item;
	return chat_undefined_hint(call->context, "No first item, sequence was empty.");
}

static void filter_check_reversible(const struct chat_call *call)
{
	if (call->self.type == CHAT_ITERATOR)
		chat_fail(call->context, MIMEO_E_INVALID, "'generator' object is not reversible");
}

static struct chat_value filter_last(const struct chat_call *call)
{
	const struct chat_list *items;

	filter_check_reversible(call);
	items = chat_collect(call->context, call->self);
	return items->n ? items->items[items->n - 1]
			: chat_undefined_hint(call->context, "No last item, sequence was empty.");
}

/* min and max; the option is the operator by which another item is better. */
static struct chat_value filter_best(const struct chat_call *call)
{
	const struct chat_list *items = chat_collect(call->context, call->self);
	struct chat_value missing = {.type = CHAT_MISSING};
	const struct chat_value *keys = filter_keys(
		call, items, call->arguments[1], missing, chat_argument_bool(call, 0, false));
	size_t best = 0;

	if (!items->n)
		return chat_undefined_hint(
			call->context, "No aggregated item, sequence was empty.");
	for (size_t i = 1; i < items->n; i++) {
		if (chat_compare(call->context, call->builtin->option, keys[i], keys[best]))
			best = i;
	}
	return items->items[best];
}

static struct chat_value filter_sum(const struct chat_call *call)
{
	const struct chat_list *items = chat_collect(call->context, call->self);
	struct chat_value missing = {.type = CHAT_MISSING}, sum = call->arguments[1];

	if (sum.type == CHAT_MISSING)
		sum = chat_int(0);
	if (sum.type == CHAT_STRING)
		chat_fail(call->context, MIMEO_E_INVALID, "sum() can't sum strings");
	for (size_t i = 0; i < items->n; i++)
		sum = chat_arithmetic(call->context, CHAT_ADD, sum,
			chat_filter_key(
				call->context, items->items[i], call->arguments[0], missing));
	return sum;
}

static struct chat_value filter_join(const struct chat_call *call)
{
	struct chat_iterator iterator = chat_iterate(call->context, call->self);
	struct chat_value missing = {.type = CHAT_MISSING}, item, separator = call->arguments[0];
	struct chat_text *text = chat_text_new(call->context);

	separator = separator.type == CHAT_MISSING ? chat_string_literal(call->context, "")
						   : chat_str(call->context, separator);
	for (size_t i = 0; chat_next(call->context, &iterator, &item); i++) {
		chat_charge(call->context, 1);
		if (i)
			chat_text_add_string(text, separator.string);
		chat_print(text, chat_filter_key(call->context, item, call->arguments[1], missing));
	}
	return chat_text_string(text);
}

/* ---- all items ---- */

static struct chat_value filter_list(const struct chat_call *call)
{
	return filter_list_of(chat_collect(call->context, call->self), call->self.foreign);
}

static struct chat_value filter_reverse(const struct chat_call *call)
{
	struct chat_value missing = {.type = CHAT_MISSING};
	struct chat_value result = {.type = CHAT_ITERATOR, .foreign = call->self.foreign};

	if (call->self.type == CHAT_STRING)
		return chat_slice(call->context, call->self, missing, missing, chat_int(-1));
	/* what is no sequence is made a list, which is not an iterator */
	if (call->self.type == CHAT_ITERATOR)
		result.type = CHAT_LIST;
	result.list = chat_collect(call->context, call->self);
	for (size_t i = 0, k = result.list->n; i + 1 < k; i++) {
		struct chat_value item = result.list->items[i];

		result.list->items[i] = result.list->items[--k];
		result.list->items[k] = item;
	}
	return result;
}

static const struct chat_dict *filter_mapping(const struct chat_call *call)
{
	if (call->self.type == CHAT_UNDEFINED)
		chat_fail_undefined(call->context, call->self);
	if (call->self.type != CHAT_DICT)
		chat_fail(call->context, MIMEO_E_INVALID, "%s: '%s' is not a mapping",
			call->builtin->name, chat_type_name(call->self));
	return call->self.dict;
}

static struct chat_value filter_pairs(const struct chat_call *call, enum chat_type type)
{
	struct chat_value result = chat_list_new(call->context, type);
	const struct chat_dict *dict = filter_mapping(call);

	chat_charge(call->context, dict->n);
	for (size_t i = 0; i < dict->n; i++) {
		struct chat_value pair =
			chat_pair_new(call->context, dict->pairs[i].key, dict->pairs[i].value);

		pair.foreign = call->self.foreign;
		chat_list_add(call->context, result.list, pair);
	}
	result.foreign = call->self.foreign;
	return result;
}

static struct chat_value filter_items(const struct chat_call *call)
{
	if (call->self.type == CHAT_UNDEFINED)
		return chat_list_new(call->context, CHAT_ITERATOR);
	return filter_pairs(call, CHAT_ITERATOR);
}

static struct chat_value filter_dictsort(const struct chat_call *call)
{
	const struct chat_string *by = chat_argument_string(call, 1);
	struct chat_value pairs = filter_pairs(call, CHAT_LIST), missing = {.type = CHAT_MISSING};

	if (by && !chat_string_is(by, "key") && !chat_string_is(by, "value"))
		chat_fail(call->context, MIMEO_E_INVALID,
			"You can only sort by either \"key\" or \"value\"");
	chat_sort(call->context,
		filter_keys(call, pairs.list, chat_int(by && chat_string_is(by, "value")), missing,
			chat_argument_bool(call, 0, false)),
		pairs.list->items, pairs.list->n, chat_argument_bool(call, 2, false));
	return pairs;
}

/* The keys are tuples of the attributes in "a,b". */
static struct chat_value filter_sort(const struct chat_call *call)
{
	struct chat_list *items = chat_collect(call->context, call->self);
	struct chat_value *keys = chat_alloc(call->context, items->n * sizeof(*keys));
	struct chat_value attribute = call->arguments[2], missing = {.type = CHAT_MISSING};
	bool case_sensitive = chat_argument_bool(call, 1, false);

	for (size_t i = 0; i < items->n; i++) {
		size_t start = 0, end;

		keys[i] = chat_list_new(call->context, CHAT_TUPLE);
		do {
			struct chat_value part = attribute;

			if (attribute.type == CHAT_STRING) {
				const struct chat_string *names = attribute.string;
				const char *comma =
					memchr(names->bytes + start, ',', names->length - start);

				end = comma ? (size_t)(comma - names->bytes) : names->length;
				part = chat_string_part(
					call->context, attribute, start, end - start);
				start = end + 1;
			}
			chat_list_add(call->context, keys[i].list,
				filter_fold(call->context,
					chat_filter_key(
						call->context, items->items[i], part, missing),
					case_sensitive));
		} while (attribute.type == CHAT_STRING && start <= attribute.string->length);
	}
	chat_sort(call->context, keys, items->items, items->n, chat_argument_bool(call, 0, false));
	return filter_list_of(items, call->self.foreign);
}

static struct chat_value filter_unique(const struct chat_call *call)
{
	const struct chat_list *items = chat_collect(call->context, call->self);
	struct chat_value result = chat_list_new(call->context, CHAT_ITERATOR);
	struct chat_dict *seen = chat_dict_new(call->context).dict;
	struct chat_value missing = {.type = CHAT_MISSING};
	const struct chat_value *keys = filter_keys(
		call, items, call->arguments[1], missing, chat_argument_bool(call, 0, false));

	result.foreign = call->self.foreign;
	for (size_t i = 0; i < items->n; i++) {
		if (chat_dict_find(call->context, seen, keys[i]))
			continue;
		chat_dict_set(call->context, seen, keys[i], chat_none());
		chat_list_add(call->context, result.list, items->items[i]);
	}
	return result;
}

static struct chat_value filter_groupby(const struct chat_call *call)
{
	struct chat_list *items = chat_collect(call->context, call->self);
	struct chat_value result = chat_list_new(call->context, CHAT_LIST), group = {0};
	struct chat_value *keys = filter_keys(call, items, call->arguments[0], call->arguments[1],
		chat_argument_bool(call, 2, false));

	chat_sort(call->context, keys, items->items, items->n, false);
	for (size_t i = 0; i < items->n; i++) {
		if (!i || !chat_equal(call->context, keys[i - 1], keys[i])) {
			group = chat_pair_new(call->context,
				chat_filter_key(call->context, items->items[i], call->arguments[0],
					call->arguments[1]),
				chat_list_new(call->context, CHAT_LIST));
			group.list->is_group = true;
			chat_list_add(call->context, result.list, group);
		}
		chat_list_add(call->context, group.list->items[1].list, items->items[i]);
	}
	return result;
}

const struct chat_builtin chat_sequence_filters[] = {
	{"count", filter_length, "", 0},
	{"dictsort", filter_dictsort, "case_sensitive, by, reverse", 0},
	{"first", filter_first, "", 0},
	{"groupby", filter_groupby, "attribute, default, case_sensitive", 1},
	{"items", filter_items, "", 0},
	{"join", filter_join, "d, attribute", 0},
	{"last", filter_last, "", 0},
	{"length", filter_length, "", 0},
	{"list", filter_list, "", 0},
	{"max", filter_best, "case_sensitive, attribute", 0, CHAT_GREATER},
	{"min", filter_best, "case_sensitive, attribute", 0, CHAT_LESS},
	{"reverse", filter_reverse, "", 0},
	{"sort", filter_sort, "reverse, case_sensitive, attribute", 0},
	{"sum", filter_sum, "attribute, start", 0},
	{"unique", filter_unique, "case_sensitive, attribute", 0},
};
const size_t chat_n_sequence_filters =
	sizeof(chat_sequence_filters) / sizeof(chat_sequence_filters[0]);
