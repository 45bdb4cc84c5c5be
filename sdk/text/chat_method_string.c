/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "sdk/text/chat_format.h"
#include "sdk/text/chat_method.h"
#include "sdk/text/chat_operator.h"
#include "sdk/text/chat_print.h"
#include "sdk/text/chat_unicode.h"

static struct chat_value string_like(struct chat_value string, struct chat_value like)
{
	string.is_markup = like.is_markup;
	return string;
}

/* The argument must be there. */
static const struct chat_string *string_argument(const struct chat_call *call, size_t i)
{
	const struct chat_string *string = chat_argument_string(call, i);

	if (!string)
		chat_fail(call->context, MIMEO_E_INVALID, "an argument must be a string, not none");
	return string;
}

/* ---- strip ---- */

static bool string_has(const struct chat_string *set, int32_t character)
{
	size_t length;

	if (!set)
		return chat_is_space(character);
	for (size_t at = 0; at < set->length; at += length) {
		if (chat_string_at(set, at, &length) == character)
			return true;
	}
	return false;
}

struct chat_value chat_strip(struct chat_context *context, struct chat_value value,
	const struct chat_string *set, bool at_begin, bool at_end)
{
	const struct chat_string *string = value.string;
	size_t from = 0, to = string->length, length;
	size_t cost = 1 + (set ? set->length : 0);

	while (at_begin && from < to && string_has(set, chat_string_at(string, from, &length))) {
		from += length;
		chat_charge(context, cost);
	}
	while (at_end && to > from) {
		size_t last = to - 1;

		while ((string->bytes[last] & 0xc0) == 0x80)
			last--;
		if (!string_has(set, chat_string_at(string, last, &length)))
			break;
		to = last;
		chat_charge(context, cost);
	}
	return chat_string_part(context, value, from, to - from);
}

enum { AT_BEGIN = 1, AT_END = 2 };

static struct chat_value string_strip(const struct chat_call *call)
{
	return chat_strip(call->context, call->self, chat_argument_string(call, 0),
		call->builtin->option & AT_BEGIN, call->builtin->option & AT_END);
}

/* ---- replace, join, format ---- */

struct chat_value chat_replace(struct chat_context *context, const struct chat_string *string,
	const struct chat_string *old, const struct chat_string *new, int64_t count)
{
	struct chat_text *text = chat_text_new(context);
	size_t at = 0, found, length;

	while (count && (found = chat_string_find(context, string, old, at)) != SIZE_MAX) {
		chat_charge(context, 1);
		chat_text_add_part(text, string, at, found - at);
		chat_text_add_string(text, new);
		at = found + old->length;
		count--;
		if (old->length)
			continue;
		/* an empty string stands before each character and at the end */
		if (at == string->length)
			break;
		chat_string_at(string, at, &length);
		chat_text_add_part(text, string, at, length);
		at += length;
	}
	chat_text_add_part(text, string, at, string->length - at);
	return chat_text_string(text);
}

static struct chat_value string_replace(const struct chat_call *call)
{
	const struct chat_string *new =
		call->self.is_markup ? chat_escape(call->context,
					       chat_soft_str(call->context, call->arguments[1]))
					       .string
				     : string_argument(call, 1);

	return string_like(chat_replace(call->context, call->self.string, string_argument(call, 0),
				   new, chat_argument_integer(call, 2, -1)),
		call->self);
}

static struct chat_value string_join(const struct chat_call *call)
{
	struct chat_iterator iterator = chat_iterate(call->context, call->arguments[0]);
	struct chat_text *text = chat_text_new(call->context);
	struct chat_value item;

	for (size_t i = 0; chat_next(call->context, &iterator, &item); i++) {
		chat_charge(call->context, 1);
		if (item.type != CHAT_STRING)
			chat_fail(call->context, MIMEO_E_INVALID,
				"join: item %zu must be a string, not '%s'", i,
				chat_type_name(item));
		if (call->self.is_markup)
			item = chat_escape(call->context, item);
		if (i)
			chat_text_add_string(text, call->self.string);
		chat_text_add_string(text, item.string);
	}
	return string_like(chat_text_string(text), call->self);
}

static struct chat_value string_format(const struct chat_call *call)
{
	if (call->self.is_markup)
		chat_fail(call->context, MIMEO_E_UNSUPPORTED,
			"format() of safe text is not supported");
	return chat_format_braces(
		call->context, call->self.string, call->positional, call->keywords);
}

/* ---- split ---- */

static void string_add_part(
	const struct chat_call *call, struct chat_list *list, size_t from, size_t to)
{
	chat_charge(call->context, 1);
	chat_list_add(
		call->context, list, chat_string_part(call->context, call->self, from, to - from));
}

/* At runs of white space, which also go at both ends. */
static struct chat_value string_split_words(const struct chat_call *call, int64_t limit)
{
	const struct chat_string *string = call->self.string;
	struct chat_value list = chat_list_new(call->context, CHAT_LIST);
	size_t at = 0, start, length;

	chat_charge_bytes(call->context, 4 * string->length);
	for (;; limit--) {
		while (at < string->length && chat_is_space(chat_string_at(string, at, &length)))
			at += length;
		if (at == string->length)
			return list;
		start = at;
		if (!limit) {
			string_add_part(call, list.list, start, string->length);
			return list;
		}
		while (at < string->length && !chat_is_space(chat_string_at(string, at, &length)))
			at += length;
		string_add_part(call, list.list, start, at);
	}
}

static struct chat_value string_split(const struct chat_call *call)
{
	const struct chat_string *separator = chat_argument_string(call, 0);
	int64_t limit = chat_argument_integer(call, 1, -1);
	struct chat_value list;
	size_t at = 0, found;

	if (!separator)
		return string_split_words(call, limit);
	if (!separator->length)
		chat_fail(call->context, MIMEO_E_INVALID, "split: empty separator");
	list = chat_list_new(call->context, CHAT_LIST);
	while (limit-- && (found = chat_string_find(
				   call->context, call->self.string, separator, at)) != SIZE_MAX) {
		string_add_part(call, list.list, at, found);
		at = found + separator->length;
	}
	string_add_part(call, list.list, at, call->self.string->length);
	return list;
}

static struct chat_value string_rsplit(const struct chat_call *call)
{
	const struct chat_string *separator = chat_argument_string(call, 0);
	int64_t limit = chat_argument_integer(call, 1, -1);
	struct chat_value list, backward = chat_list_new(call->context, CHAT_LIST);
	size_t end = call->self.string->length, found;

	if (!separator && limit >= 0)
		chat_fail(call->context, MIMEO_E_UNSUPPORTED,
			"rsplit() with a limit and without a separator is not supported");
	if (!separator)
		return string_split_words(call, limit);
	if (!separator->length)
		chat_fail(call->context, MIMEO_E_INVALID, "rsplit: empty separator");
	while (limit-- && (found = chat_string_find_last(
				   call->context, call->self.string, separator, end)) != SIZE_MAX) {
		string_add_part(call, backward.list, found + separator->length, end);
		end = found;
	}
	string_add_part(call, backward.list, 0, end);
	list = chat_list_new(call->context, CHAT_LIST);
	for (size_t i = backward.list->n; i; i--)
		chat_list_add(call->context, list.list, backward.list->items[i - 1]);
	return list;
}

struct chat_value chat_split_lines(
	struct chat_context *context, struct chat_value value, bool keep_ends)
{
	const struct chat_string *string = value.string;
	struct chat_value list = chat_list_new(context, CHAT_LIST);
	size_t at = 0, start = 0, length;

	chat_charge_bytes(context, 4 * string->length);
	while (at < string->length) {
		size_t end = at;

		if (!chat_is_line_end(chat_string_at(string, at, &length))) {
			at += length;
			continue;
		}
		at += length;
		if (string->bytes[end] == '\r' && at < string->length && string->bytes[at] == '\n')
			at++;
		chat_list_add(context, list.list,
			chat_string_part(context, value, start, (keep_ends ? at : end) - start));
		start = at;
	}
	if (start < string->length)
		chat_list_add(context, list.list,
			chat_string_part(context, value, start, string->length - start));
	return list;
}

static struct chat_value string_splitlines(const struct chat_call *call)
{
	return chat_split_lines(call->context, call->self, chat_argument_bool(call, 0, false));
}

/* ---- search ---- */

/* The characters from argument 1 to argument 2, and the index of the first one. */
static const struct chat_string *string_range(const struct chat_call *call, int64_t *ret_start)
{
	struct chat_value none = {.type = CHAT_MISSING};
	struct chat_value before =
		chat_slice(call->context, call->self, none, call->arguments[1], none);

	*ret_start = call->arguments[1].type == CHAT_MISSING || call->arguments[1].type == CHAT_NONE
			     ? 0
			     : chat_length(call->context, before);
	return chat_slice(call->context, call->self, call->arguments[1], call->arguments[2], none)
		.string;
}

enum { LAST = 1, NEEDED = 2 };

/* The byte at which the first or the last occurrence begins, or SIZE_MAX. */
static size_t string_locate(const struct chat_call *call, const struct chat_string *string,
	const struct chat_string *needle)
{
	if (call->builtin->option & LAST)
		return chat_string_find_last(call->context, string, needle, string->length);
	return chat_string_find(call->context, string, needle, 0);
}

static struct chat_value string_find(const struct chat_call *call)
{
	int64_t start;
	const struct chat_string *string = string_range(call, &start);
	size_t found = string_locate(call, string, string_argument(call, 0));
	struct chat_string before = {
		.bytes = string->bytes, .length = found, .n_characters = SIZE_MAX};

	if (found != SIZE_MAX)
		return chat_int(start + (int64_t)chat_string_count(call->context, &before));
	if (call->builtin->option & NEEDED)
		chat_fail(call->context, MIMEO_E_INVALID, "substring not found");
	return chat_int(-1);
}

/*
 * (before, separator, behind); if it is not found, the string stands first, or last if searched
 * from the end.
 */
static struct chat_value string_partition(const struct chat_call *call)
{
	const struct chat_string *string = call->self.string, *separator = string_argument(call, 0);
	struct chat_value tuple = chat_list_new(call->context, CHAT_TUPLE);
	size_t found, behind;

	if (!separator->length)
		chat_fail(call->context, MIMEO_E_INVALID, "partition: empty separator");
	found = string_locate(call, string, separator);
	behind = found + separator->length;
	if (found == SIZE_MAX)
		found = behind = call->builtin->option & LAST ? 0 : string->length;
	string_add_part(call, tuple.list, 0, found);
	string_add_part(call, tuple.list, found, behind);
	string_add_part(call, tuple.list, behind, string->length);
	return tuple;
}

static struct chat_value string_count(const struct chat_call *call)
{
	int64_t start, n = 0;
	const struct chat_string *string = string_range(call, &start);
	const struct chat_string *needle = string_argument(call, 0);
	struct chat_string copy = *string;

	if (!needle->length)
		return chat_int((int64_t)chat_string_count(call->context, &copy) + 1);
	for (size_t at = 0; (at = chat_string_find(call->context, string, needle, at)) != SIZE_MAX;
		at += needle->length) {
		chat_charge(call->context, 1);
		n++;
	}
	return chat_int(n);
}

static bool string_has_affix(const struct chat_call *call, const struct chat_string *string,
	const struct chat_string *affix, bool at_end)
{
	chat_charge_bytes(call->context, affix->length);
	return affix->length <= string->length &&
	       !memcmp(string->bytes + (at_end ? string->length - affix->length : 0), affix->bytes,
		       affix->length);
}

/* startswith, endswith: with one string, or with any of a tuple. */
static struct chat_value string_startswith(const struct chat_call *call)
{
	bool at_end = call->builtin->option & AT_END;
	int64_t start;
	const struct chat_string *string = string_range(call, &start);
	const struct chat_list *tuple = call->arguments[0].list;

	if (call->arguments[0].type != CHAT_TUPLE)
		return chat_bool(string_has_affix(call, string, string_argument(call, 0), at_end));
	for (size_t i = 0; i < tuple->n; i++) {
		if (tuple->items[i].type != CHAT_STRING)
			chat_fail(call->context, MIMEO_E_INVALID,
				"a tuple for startswith() or endswith() must hold strings");
		if (string_has_affix(call, string, tuple->items[i].string, at_end))
			return chat_bool(true);
	}
	return chat_bool(false);
}

static struct chat_value string_removeprefix(const struct chat_call *call)
{
	bool at_end = call->builtin->option & AT_END;
	const struct chat_string *affix = string_argument(call, 0);
	size_t n = string_has_affix(call, call->self.string, affix, at_end) ? affix->length : 0;

	return chat_string_part(
		call->context, call->self, at_end ? 0 : n, call->self.string->length - n);
}

/* ---- case and classes ---- */

/* The option is an enum chat_case. */
static struct chat_value string_change_case(const struct chat_call *call)
{
	return string_like(
		chat_change_case(call->context, call->self.string, call->builtin->option),
		call->self);
}

static struct chat_value string_has_case(const struct chat_call *call)
{
	chat_charge_bytes(call->context, call->self.string->length);
	return chat_bool(chat_has_case(call->self.string, call->builtin->option));
}

enum { ALPHA = 1, DIGIT = 2, SPACE = 4, NUMERIC = 8 };

/* Whether there are characters and all are of the classes in the option. */
static struct chat_value string_is(const struct chat_call *call)
{
	const struct chat_string *string = call->self.string;
	uint32_t classes = call->builtin->option;
	size_t length;

	chat_charge_bytes(call->context, string->length);
	for (size_t at = 0; at < string->length; at += length) {
		int32_t c = chat_string_at(string, at, &length);

		if (!(classes & ALPHA && chat_is_alpha(c)) &&
			!(classes & DIGIT && chat_is_digit(c)) &&
			!(classes & NUMERIC && chat_is_numeric(c)) &&
			!(classes & SPACE && chat_is_space(c)))
			return chat_bool(false);
	}
	return chat_bool(string->length);
}

const struct chat_builtin chat_string_methods[] = {
	{"capitalize", string_change_case, "", 0, CHAT_CAPITALIZE},
	{"count", string_count, "sub, start, end", 1},
	{"endswith", string_startswith, "suffix, start, end", 1, AT_END},
	{"find", string_find, "sub, start, end", 1},
	{"format", string_format, NULL, 0},
	{"index", string_find, "sub, start, end", 1, NEEDED},
	{"isalnum", string_is, "", 0, ALPHA | NUMERIC},
	{"isalpha", string_is, "", 0, ALPHA},
	{"isdecimal", string_is, "", 0, DIGIT},
	{"isdigit", string_is, "", 0, DIGIT},
	{"isnumeric", string_is, "", 0, NUMERIC},
	{"islower", string_has_case, "", 0, false},
	{"isspace", string_is, "", 0, SPACE},
	{"isupper", string_has_case, "", 0, true},
	{"join", string_join, "iterable", 1},
	{"lower", string_change_case, "", 0, CHAT_LOWER},
	{"lstrip", string_strip, "chars", 0, AT_BEGIN},
	{"partition", string_partition, "sep", 1},
	{"removeprefix", string_removeprefix, "prefix", 1},
	{"removesuffix", string_removeprefix, "suffix", 1, AT_END},
	{"replace", string_replace, "old, new, count", 2},
	{"rfind", string_find, "sub, start, end", 1, LAST},
	{"rindex", string_find, "sub, start, end", 1, LAST | NEEDED},
	{"rpartition", string_partition, "sep", 1, LAST},
	{"rsplit", string_rsplit, "sep, maxsplit", 0},
	{"rstrip", string_strip, "chars", 0, AT_END},
	{"split", string_split, "sep, maxsplit", 0},
	{"splitlines", string_splitlines, "keepends", 0},
	{"startswith", string_startswith, "prefix, start, end", 1},
	{"strip", string_strip, "chars", 0, AT_BEGIN | AT_END},
	{"title", string_change_case, "", 0, CHAT_TITLE},
	{"upper", string_change_case, "", 0, CHAT_UPPER},
	/* they exist, which "is defined" tells, but are not supported */
	{"casefold"},
	{"center"},
	{"encode"},
	{"expandtabs"},
	{"format_map"},
	{"isascii"},
	{"isidentifier"},
	{"isprintable"},
	{"istitle"},
	{"ljust"},
	{"maketrans"},
	{"rjust"},
	{"swapcase"},
	{"translate"},
	{"zfill"},
};
const size_t chat_n_string_methods = sizeof(chat_string_methods) / sizeof(chat_string_methods[0]);
