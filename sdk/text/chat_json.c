/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>

#include "sdk/text/chat_dict.h"
#include "sdk/text/chat_operator.h"
#include "sdk/text/chat_print.h"

struct chat_json {
	struct chat_text *text;
	const struct chat_json_style *style;
	size_t level;
};

static void chat_json_add_value(struct chat_json *json, struct chat_value value);

static void chat_json_add_escape(struct chat_json *json, int32_t c, bool foreign)
{
	static const char letters[] = "\"\"\\\\\nn\rr\tt\bb\ff";
	char escape[16];

	for (const char *pair = letters; *pair; pair += 2) {
		if (c == pair[0]) {
			snprintf(escape, sizeof(escape), "\\%c", pair[1]);
			chat_text_add_literal(json->text, escape, foreign);
			return;
		}
	}
	if (c < 0x10000)
		snprintf(escape, sizeof(escape), "\\u%04x", (unsigned)c);
	else
		snprintf(escape, sizeof(escape), "\\u%04x\\u%04x",
			0xd800u + ((unsigned)(c - 0x10000) >> 10),
			0xdc00u + ((unsigned)(c - 0x10000) & 0x3ff));
	chat_text_add_literal(json->text, escape, foreign);
}

static void chat_json_add_string(struct chat_json *json, const struct chat_string *string)
{
	bool foreign = string->foreign && string->foreign[0];
	size_t length, start = 0;

	chat_text_add_literal(json->text, "\"", foreign);
	chat_charge_bytes(json->text->context, 2 * string->length);
	for (size_t at = 0; at < string->length; at += length) {
		int32_t c = chat_string_at(string, at, &length);

		if (c >= ' ' && c != '"' && c != '\\' && (c < 0x7f || !json->style->ensure_ascii))
			continue;
		chat_text_add_part(json->text, string, start, at - start);
		chat_json_add_escape(json, c, string->foreign && string->foreign[at]);
		start = at + length;
	}
	chat_text_add_part(json->text, string, start, string->length - start);
	chat_text_add_literal(json->text, "\"", foreign);
}

static const char *chat_json_number(struct chat_value value, char number[CHAT_FLOAT_MAX])
{
	if (value.type == CHAT_NONE)
		return "null";
	if (value.type == CHAT_BOOL)
		return value.boolean ? "true" : "false";
	if (value.type == CHAT_INT)
		snprintf(number, CHAT_FLOAT_MAX, "%lld", (long long)value.integer);
	else if (isfinite(value.real))
		chat_float_repr(value.real, number);
	else
		return isnan(value.real) ? "NaN" : value.real < 0 ? "-Infinity" : "Infinity";
	return number;
}

/* Punctuation is foreign if it is that of a foreign value. */
static void chat_json_add_punctuation(
	struct chat_json *json, const struct chat_string *string, bool foreign)
{
	if (foreign)
		chat_text_add(json->text, string->bytes, string->length, true);
	else
		chat_text_add_string(json->text, string);
}

static void chat_json_add_line(struct chat_json *json, bool foreign)
{
	if (!json->style->is_indented)
		return;
	chat_text_add_literal(json->text, "\n", foreign);
	for (size_t i = 0; i < json->level; i++)
		chat_json_add_punctuation(json, json->style->indent.string, foreign);
}

static void chat_json_add_separator(struct chat_json *json, size_t i, bool foreign)
{
	if (i)
		chat_json_add_punctuation(json, json->style->item_separator.string, foreign);
	chat_json_add_line(json, foreign);
}

static void chat_json_add_list(struct chat_json *json, struct chat_value value)
{
	chat_text_add_literal(json->text, "[", value.foreign);
	json->level++;
	for (size_t i = 0; i < value.list->n; i++) {
		chat_json_add_separator(json, i, value.foreign);
		chat_json_add_value(json, value.list->items[i]);
	}
	json->level--;
	if (value.list->n)
		chat_json_add_line(json, value.foreign);
	chat_text_add_literal(json->text, "]", value.foreign);
}

static void chat_json_add_key(struct chat_json *json, struct chat_value key)
{
	char number[CHAT_FLOAT_MAX];

	if (key.type == CHAT_STRING) {
		chat_json_add_string(json, key.string);
		return;
	}
	if (key.type != CHAT_NONE && !CHAT_IS_NUMBER(key))
		chat_fail(json->text->context, MIMEO_E_INVALID,
			"tojson: a key must be a string, a number or none, not '%s'",
			chat_type_name(key));
	chat_text_add_literal(json->text, "\"", key.foreign);
	chat_text_add_literal(json->text, chat_json_number(key, number), key.foreign);
	chat_text_add_literal(json->text, "\"", key.foreign);
}

static void chat_json_add_dict(struct chat_json *json, struct chat_value value)
{
	struct chat_context *context = json->text->context;
	struct chat_list *keys = chat_collect(context, value);

	if (json->style->sort_keys)
		chat_sort(context, keys->items, keys->items, keys->n, false);
	chat_text_add_literal(json->text, "{", value.foreign);
	json->level++;
	for (size_t i = 0; i < keys->n; i++) {
		chat_json_add_separator(json, i, value.foreign);
		chat_json_add_key(json, keys->items[i]);
		chat_json_add_punctuation(json, json->style->key_separator.string, value.foreign);
		chat_json_add_value(json, *chat_dict_find(context, value.dict, keys->items[i]));
	}
	json->level--;
	if (keys->n)
		chat_json_add_line(json, value.foreign);
	chat_text_add_literal(json->text, "}", value.foreign);
}

static void chat_json_add_value(struct chat_json *json, struct chat_value value)
{
	char number[CHAT_FLOAT_MAX];

	chat_enter(json->text->context);
	switch (value.type) {
	case CHAT_NONE:
	case CHAT_BOOL:
	case CHAT_INT:
	case CHAT_FLOAT:
		chat_text_add_literal(json->text, chat_json_number(value, number), value.foreign);
		break;
	case CHAT_STRING:
		chat_json_add_string(json, value.string);
		break;
	case CHAT_LIST:
	case CHAT_TUPLE:
		chat_json_add_list(json, value);
		break;
	case CHAT_DICT:
		chat_json_add_dict(json, value);
		break;
	default:
		chat_fail(json->text->context, MIMEO_E_INVALID,
			"Object of type %s is not JSON serializable", chat_type_name(value));
	}
	chat_leave(json->text->context);
}

void chat_print_json(
	struct chat_text *text, struct chat_value value, const struct chat_json_style *style)
{
	struct chat_json json = {.text = text, .style = style};

	chat_json_add_value(&json, value);
}
