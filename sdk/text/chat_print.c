/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sdk/text/chat_dict.h"
#include "sdk/text/chat_print.h"
#include "sdk/text/chat_unicode.h"

/* ---- floats ---- */

/* Add one unit in the last place of "d.ddd...e+xx" to its digits. False: all digits are 9. */
static bool chat_float_bump(char *scientific)
{
	char *last = strchr(scientific, 'e') - 1;

	while (last > scientific && (*last == '9' || *last == '.')) {
		if (*last == '9')
			*last = '0';
		last--;
	}
	if (*last == '9')
		return false;
	(*last)++;
	return true;
}

/*
 * The shortest digits that read back as `real`, in scientific form. Below a power of two the
 * doubles are closer to each other than above: there the nearest decimal may not read back where
 * the next one does.
 */
static void chat_float_shortest(double real, char scientific[CHAT_FLOAT_MAX])
{
	for (int precision = 0; precision < 17; precision++) {
		snprintf(scientific, CHAT_FLOAT_MAX, "%.*e", precision, real);
		if (strtod(scientific, NULL) == real)
			return;
		if (chat_float_bump(scientific + (real < 0)) && strtod(scientific, NULL) == real)
			return;
	}
}

/* As Python's repr: plain digits for exponents -4 ... 15, and at least ".0" behind them. */
void chat_float_repr(double real, char text[CHAT_FLOAT_MAX])
{
	char scientific[CHAT_FLOAT_MAX], digits[CHAT_FLOAT_MAX];
	int exponent, n = 0, precision;

	if (!isfinite(real)) {
		strcpy(text, isnan(real) ? "nan" : real < 0 ? "-inf" : "inf");
		return;
	}
	chat_float_shortest(real, scientific);
	exponent = atoi(strchr(scientific, 'e') + 1);
	for (const char *c = scientific; *c != 'e'; c++) {
		if (*c != '.' && *c != '-')
			digits[n++] = *c;
	}
	if (exponent < -4 || exponent >= 16) {
		digits[n] = 0;
		snprintf(text, CHAT_FLOAT_MAX, "%s%c%s%.17se%c%02d", signbit(real) ? "-" : "",
			digits[0], n > 1 ? "." : "", digits + 1, exponent < 0 ? '-' : '+',
			abs(exponent));
		return;
	}
	precision = n - 1 - exponent;
	snprintf(text, CHAT_FLOAT_MAX, "%.*f", precision > 1 ? precision : 1, real);
}

/* ---- str and repr ---- */

static void chat_print_repr_string(struct chat_text *text, const struct chat_string *string)
{
	bool has_single = memchr(string->bytes, '\'', string->length);
	char quote = has_single && !memchr(string->bytes, '"', string->length) ? '"' : '\'';
	bool foreign = string->foreign && string->foreign[0];
	char escape[12];
	size_t length, start = 0;

	chat_text_add(text, &quote, 1, foreign);
	chat_charge_bytes(text->context, 4 * string->length);
	for (size_t at = 0; at < string->length; at += length) {
		int32_t c = chat_string_at(string, at, &length);

		if (c != quote && c != '\\' && (c < 0x7f ? c >= ' ' : chat_is_printable(c)))
			continue;
		chat_text_add_part(text, string, start, at - start);
		start = at + length;
		if (c == quote || c == '\\')
			snprintf(escape, sizeof(escape), "\\%c", (char)c);
		else if (c == '\n' || c == '\r' || c == '\t')
			snprintf(escape, sizeof(escape), "\\%c",
				c == '\n'   ? 'n'
				: c == '\r' ? 'r'
					    : 't');
		else
			snprintf(escape, sizeof(escape),
				c < 0x100     ? "\\x%02x"
				: c < 0x10000 ? "\\u%04x"
					      : "\\U%08x",
				(unsigned)c);
		chat_text_add_literal(text, escape, string->foreign && string->foreign[at]);
	}
	chat_text_add_part(text, string, start, string->length - start);
	chat_text_add(text, &quote, 1, foreign);
}

static void chat_print_items(struct chat_text *text, struct chat_value value)
{
	static const char *const brackets[][2] = {
		[CHAT_LIST] = {"[", "]"},
		[CHAT_TUPLE] = {"(", ")"},
		[CHAT_KEYS] = {"dict_keys([", "])"},
		[CHAT_VALUES] = {"dict_values([", "])"},
		[CHAT_ITEMS] = {"dict_items([", "])"},
	};

	chat_text_add_literal(text, brackets[value.type][0], value.foreign);
	for (size_t i = 0; i < value.list->n; i++) {
		if (i)
			chat_text_add_literal(text, ", ", value.foreign);
		chat_print_repr(text, value.list->items[i]);
	}
	if (value.type == CHAT_TUPLE && value.list->n == 1)
		chat_text_add_literal(text, ",", value.foreign);
	chat_text_add_literal(text, brackets[value.type][1], value.foreign);
}

static void chat_print_pairs(struct chat_text *text, struct chat_value value)
{
	chat_text_add_literal(text, "{", value.foreign);
	for (size_t i = 0; i < value.dict->n; i++) {
		if (i)
			chat_text_add_literal(text, ", ", value.foreign);
		chat_print_repr(text, value.dict->pairs[i].key);
		chat_text_add_literal(text, ": ", value.foreign);
		chat_print_repr(text, value.dict->pairs[i].value);
	}
	chat_text_add_literal(text, "}", value.foreign);
}

static void chat_print_value(struct chat_text *text, struct chat_value value)
{
	char number[CHAT_FLOAT_MAX];

	switch (value.type) {
	case CHAT_UNDEFINED:
		chat_text_add_literal(text, "Undefined", false);
		break;
	case CHAT_NONE:
		chat_text_add_literal(text, "None", value.foreign);
		break;
	case CHAT_BOOL:
		chat_text_add_literal(text, value.boolean ? "True" : "False", value.foreign);
		break;
	case CHAT_INT:
		snprintf(number, sizeof(number), "%lld", (long long)value.integer);
		chat_text_add_literal(text, number, value.foreign);
		break;
	case CHAT_FLOAT:
		chat_float_repr(value.real, number);
		chat_text_add_literal(text, number, value.foreign);
		break;
	case CHAT_STRING:
		if (value.is_markup)
			chat_text_add_literal(text, "Markup(", false);
		chat_print_repr_string(text, value.string);
		if (value.is_markup)
			chat_text_add_literal(text, ")", false);
		break;
	case CHAT_LIST:
	case CHAT_TUPLE:
	case CHAT_KEYS:
	case CHAT_VALUES:
	case CHAT_ITEMS:
		chat_print_items(text, value);
		break;
	case CHAT_DICT:
		chat_print_pairs(text, value);
		break;
	case CHAT_NAMESPACE:
		chat_text_add_literal(text, "<Namespace ", false);
		chat_print_pairs(text, value);
		chat_text_add_literal(text, ">", false);
		break;
	default:
		chat_fail(text->context, MIMEO_E_UNSUPPORTED, "printing a %s is not supported",
			chat_type_name(value));
	}
}

void chat_print_repr(struct chat_text *text, struct chat_value value)
{
	chat_enter(text->context);
	chat_print_value(text, value);
	chat_leave(text->context);
}

void chat_print(struct chat_text *text, struct chat_value value)
{
	if (value.type == CHAT_STRING)
		chat_text_add_string(text, value.string);
	else if (value.type != CHAT_UNDEFINED)
		chat_print_repr(text, value);
}

struct chat_value chat_soft_str(struct chat_context *context, struct chat_value value)
{
	struct chat_text *text;

	if (value.type == CHAT_STRING)
		return value;
	text = chat_text_new(context);
	chat_print(text, value);
	return chat_text_string(text);
}

struct chat_value chat_str(struct chat_context *context, struct chat_value value)
{
	value = chat_soft_str(context, value);
	value.is_markup = false;
	return value;
}
