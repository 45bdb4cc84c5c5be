/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sdk/text/chat_filter.h"
#include "sdk/text/chat_format.h"
#include "sdk/text/chat_method.h"
#include "sdk/text/chat_operator.h"
#include "sdk/text/chat_print.h"
#include "sdk/text/chat_unicode.h"

/* ---- text ---- */

static struct chat_value filter_string(const struct chat_call *call)
{
	return chat_soft_str(call->context, call->self);
}

static struct chat_value filter_safe(const struct chat_call *call)
{
	struct chat_value string = chat_str(call->context, call->self);

	string.is_markup = true;
	return string;
}

static struct chat_value filter_escape(const struct chat_call *call)
{
	return chat_escape(call->context, chat_soft_str(call->context, call->self));
}

/* The option is an enum chat_case. */
static struct chat_value filter_case(const struct chat_call *call)
{
	struct chat_value self = chat_soft_str(call->context, call->self);
	struct chat_value result =
		chat_change_case(call->context, self.string, call->builtin->option);

	result.is_markup = self.is_markup;
	return result;
}

static struct chat_value filter_trim(const struct chat_call *call)
{
	return chat_strip(call->context, chat_soft_str(call->context, call->self),
		chat_argument_string(call, 0), true, true);
}

static struct chat_value filter_replace(const struct chat_call *call)
{
	struct chat_value old = chat_str(call->context, call->arguments[0]);
	struct chat_value new = chat_str(call->context, call->arguments[1]);
	int64_t count =
		call->arguments[2].type == CHAT_NONE ? -1 : chat_argument_integer(call, 2, -1);

	return chat_replace(call->context, chat_str(call->context, call->self).string, old.string,
		new.string, count);
}

static struct chat_value filter_indent(const struct chat_call *call)
{
	struct chat_value newline = chat_string_literal(call->context, "\n"), lines, result;
	struct chat_text *indent = chat_text_new(call->context),
			 *text = chat_text_new(call->context);
	bool first = chat_argument_bool(call, 1, false), blank = chat_argument_bool(call, 2, false);

	if (call->arguments[0].type == CHAT_STRING)
		chat_text_add_string(indent, call->arguments[0].string);
	else
		for (int64_t i = chat_argument_integer(call, 0, 4); i > 0; i--)
			chat_text_add_literal(indent, " ", false);
	lines = chat_split_lines(call->context,
		chat_arithmetic(call->context, CHAT_ADD, call->self, newline), false);
	for (size_t i = 0; i < lines.list->n; i++) {
		const struct chat_string *line = lines.list->items[i].string;

		if (i)
			chat_text_add_literal(text, "\n", false);
		if (i ? blank || line->length : first)
			chat_text_add_string(text, chat_text_string(indent).string);
		chat_text_add_string(text, line);
	}
	result = chat_text_string(text);
	result.is_markup = call->self.type == CHAT_STRING && call->self.is_markup;
	return result;
}

static struct chat_value filter_format(const struct chat_call *call)
{
	struct chat_value values = {.type = CHAT_TUPLE};

	if (call->positional->n && call->keywords->n)
		chat_fail(call->context, MIMEO_E_INVALID,
			"format: positional and named arguments at the same time");
	if (call->keywords->n) {
		values.type = CHAT_DICT;
		values.dict = (struct chat_dict *)(uintptr_t)call->keywords;
	} else {
		values.list = (struct chat_list *)(uintptr_t)call->positional;
	}
	return chat_format_percent(call->context, chat_soft_str(call->context, call->self), values);
}

/* ---- tojson ---- */

static struct chat_value json_indent(const struct chat_call *call, struct chat_value indent)
{
	struct chat_text *text = chat_text_new(call->context);

	if (indent.type == CHAT_STRING)
		return indent;
	for (int64_t i = chat_integer(call->context, indent, "indent"); i > 0; i--)
		chat_text_add_literal(text, " ", false);
	return chat_text_string(text);
}

static struct chat_value filter_tojson(const struct chat_call *call)
{
	struct chat_value indent = call->arguments[1], separators = call->arguments[2];
	struct chat_text *text = chat_text_new(call->context);
	struct chat_json_style style = {
		.ensure_ascii = chat_argument_bool(call, 0, false),
		.is_indented = indent.type != CHAT_MISSING && indent.type != CHAT_NONE,
		.sort_keys = chat_argument_bool(call, 3, false),
		.key_separator = chat_string_literal(call->context, ": "),
	};

	style.item_separator = chat_string_literal(call->context, style.is_indented ? "," : ", ");
	if (style.is_indented)
		style.indent = json_indent(call, indent);
	if (separators.type != CHAT_MISSING && separators.type != CHAT_NONE) {
		const struct chat_list *pair = chat_collect(call->context, separators);

		if (pair->n != 2 || pair->items[0].type != CHAT_STRING ||
			pair->items[1].type != CHAT_STRING)
			chat_fail(call->context, MIMEO_E_INVALID,
				"tojson: separators must be two strings");
		style.item_separator = pair->items[0];
		style.key_separator = pair->items[1];
	}
	chat_print_json(text, call->self, &style);
	return chat_text_string(text);
}

/* ---- numbers ---- */

/*
 * A string as Python's int() or float() reads it: white space around it, single underscores between
 * digits. False: it is no number. The result is terminated.
 */
static bool number_text(struct chat_context *context, struct chat_value string, char text[64])
{
	const struct chat_string *stripped = chat_strip(context, string, NULL, true, true).string;
	size_t n = 0;

	if (!stripped->length || stripped->length > 63)
		return false;
	for (size_t i = 0; i < stripped->length; i++) {
		char c = stripped->bytes[i];

		if (c == '_' && i && i + 1 < stripped->length && stripped->bytes[i - 1] != '_')
			continue;
		if (!memchr("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+-.", c,
			    65))
			return false;
		text[n++] = c;
	}
	text[n] = 0;
	return true;
}

static bool number_read_integer(const struct chat_call *call, int base, int64_t *ret_integer)
{
	char text[64], *end;

	if (!number_text(call->context, call->self, text) || strchr(text, '.'))
		return false;
	errno = 0;
	*ret_integer = strtoll(text, &end, base);
	if (end == text || *end)
		return false;
	if (errno == ERANGE)
		chat_fail(call->context, MIMEO_E_UNSUPPORTED, "an integer exceeds 64 bits");
	return true;
}

static bool number_read_float(const struct chat_call *call, double *ret_real)
{
	char text[64], *end;

	if (!number_text(call->context, call->self, text) || strpbrk(text, "xXpP("))
		return false;
	*ret_real = strtod(text, &end);
	return end != text && !*end;
}

/* The number or the string that is converted; false: it is neither. */
static bool number_is_convertible(const struct chat_call *call)
{
	if (call->self.type == CHAT_UNDEFINED)
		chat_fail_undefined(call->context, call->self);
	if (call->self.type == CHAT_STRING)
		chat_charge_bytes(call->context, call->self.string->length);
	return CHAT_IS_NUMBER(call->self) || call->self.type == CHAT_STRING;
}

static struct chat_value filter_int(const struct chat_call *call)
{
	struct chat_value absent = call->arguments[0], result = chat_int(0);
	double real = call->self.real;

	if (absent.type == CHAT_MISSING)
		absent = chat_int(0);
	if (!number_is_convertible(call))
		return absent;
	result.foreign = call->self.type == CHAT_STRING ? chat_string_is_foreign(call->self.string)
							: call->self.foreign;
	if (call->self.type == CHAT_INT || call->self.type == CHAT_BOOL) {
		result.integer = chat_integer(call->context, call->self, "int");
		return result;
	}
	if (call->self.type == CHAT_STRING) {
		int64_t base = chat_argument_integer(call, 1, 10);

		if (base < 2 || base > 36)
			chat_fail(call->context, MIMEO_E_UNSUPPORTED,
				"int: base %lld is not supported", (long long)base);
		if (number_read_integer(call, (int)base, &result.integer))
			return result;
		if (!number_read_float(call, &real))
			return absent;
	}
	if (!isfinite(real))
		return absent;
	if (!(fabs(real) < 0x1p63))
		chat_fail(call->context, MIMEO_E_UNSUPPORTED, "an integer exceeds 64 bits");
	result.integer = (int64_t)real;
	return result;
}

static struct chat_value filter_float(const struct chat_call *call)
{
	struct chat_value absent = call->arguments[0], result = chat_float(0);

	if (absent.type == CHAT_MISSING)
		absent = chat_float(0);
	if (!number_is_convertible(call))
		return absent;
	result.foreign = call->self.foreign;
	if (call->self.type == CHAT_FLOAT) {
		result = call->self;
	} else if (call->self.type == CHAT_STRING) {
		result.foreign = chat_string_is_foreign(call->self.string);
		if (!number_read_float(call, &result.real))
			return absent;
	} else {
		result.real = (double)chat_integer(call->context, call->self, "float");
	}
	return result;
}

static struct chat_value filter_abs(const struct chat_call *call)
{
	if (!CHAT_IS_NUMBER(call->self))
		chat_fail(call->context, MIMEO_E_INVALID, "bad operand type for abs(): '%s'",
			chat_type_name(call->self));
	if (chat_compare(call->context, CHAT_LESS, call->self, chat_int(0)))
		return chat_negate(call->context, call->self);
	return chat_arithmetic(call->context, CHAT_ADD, call->self, chat_int(0));
}

/* round() of Python goes by the decimal value, ties to even: so does printf. */
static struct chat_value filter_round(const struct chat_call *call)
{
	static const char *const methods[] = {"common", "ceil", "floor"};
	const struct chat_string *method = chat_argument_string(call, 1);
	int64_t precision = chat_argument_integer(call, 0, 0);
	struct chat_value self = call->self;
	int which = 0;
	char text[400];
	double power;

	if (self.type == CHAT_UNDEFINED)
		chat_fail_undefined(call->context, self);
	while (method && which < 3 && !chat_string_is(method, methods[which]))
		which++;
	if (which == 3 || !CHAT_IS_NUMBER(self))
		chat_fail(call->context, MIMEO_E_INVALID, "round: no number, or no such method");
	if (precision < 0 || precision > 30)
		chat_fail(call->context, MIMEO_E_UNSUPPORTED,
			"round: precision %lld is not supported", (long long)precision);
	if (which == 0 && self.type != CHAT_FLOAT)
		return chat_arithmetic(call->context, CHAT_ADD, self, chat_int(0));
	if (self.type != CHAT_FLOAT)
		self = (struct chat_value){.type = CHAT_FLOAT,
			.foreign = self.foreign,
			.real = (double)chat_integer(call->context, self, "round")};
	if (which == 0) {
		snprintf(text, sizeof(text), "%.*f", (int)precision, self.real);
		self.real = isfinite(self.real) ? strtod(text, NULL) : self.real;
		return self;
	}
	power = pow(10, (double)precision);
	self.real = (which == 1 ? ceil(self.real * power) : floor(self.real * power)) / power;
	return self;
}

/* ---- any value ---- */

static struct chat_value filter_default(const struct chat_call *call)
{
	if (call->self.type != CHAT_UNDEFINED &&
		(!chat_argument_bool(call, 1, false) || chat_truth(call->self)))
		return call->self;
	return call->arguments[0].type == CHAT_MISSING ? chat_string_literal(call->context, "")
						       : call->arguments[0];
}

const struct chat_builtin chat_text_filters[] = {
	{"abs", filter_abs, "", 0},
	{"capitalize", filter_case, "", 0, CHAT_CAPITALIZE},
	{"d", filter_default, "default_value, boolean", 0},
	{"default", filter_default, "default_value, boolean", 0},
	{"e", filter_escape, "", 0},
	{"escape", filter_escape, "", 0},
	{"float", filter_float, "default", 0},
	{"format", filter_format, NULL, 0},
	{"indent", filter_indent, "width, first, blank", 0},
	{"int", filter_int, "default, base", 0},
	{"lower", filter_case, "", 0, CHAT_LOWER},
	{"replace", filter_replace, "old, new, count", 2},
	{"round", filter_round, "precision, method", 0},
	{"safe", filter_safe, "", 0},
	{"string", filter_string, "", 0},
	{"title", filter_case, "", 0, CHAT_WORDS},
	{"tojson", filter_tojson, "ensure_ascii, indent, separators, sort_keys", 0},
	{"trim", filter_trim, "chars", 0},
	{"upper", filter_case, "", 0, CHAT_UPPER},
};
const size_t chat_n_text_filters = sizeof(chat_text_filters) / sizeof(chat_text_filters[0]);
