/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "sdk/text/chat_dict.h"
#include "sdk/text/chat_format.h"
#include "sdk/text/chat_print.h"

#define PRECISION_MAX 100
#define WIDTH_MAX 100000
#define NUMBER_MAX                                                                                 \
	512 /* bytes: 309 digits of the largest double, and PRECISION_MAX behind the point */

struct format_spec {
	char align; /* '<', '>', '^', or '=': between sign and digits */
	char fill, sign;
	bool is_alternate;
	int width, precision; /* precision -1: not given */
	char type;            /* 0: not given */
};

struct format_reader {
	struct chat_context *context;
	const struct chat_string *format;
	size_t at;
	const struct chat_list *positional;
	size_t n_used;
};

/* The next byte, or 0 at the end. */
static char format_peek(const struct format_reader *reader)
{
	return reader->at < reader->format->length ? reader->format->bytes[reader->at] : 0;
}

static bool format_is_at(const struct format_reader *reader, const char *set)
{
	return reader->at < reader->format->length && format_peek(reader) &&
	       strchr(set, format_peek(reader));
}

static bool format_skip(struct format_reader *reader, char c)
{
	if (reader->at >= reader->format->length || format_peek(reader) != c)
		return false;
	reader->at++;
	return true;
}

static int format_read_number(struct format_reader *reader, int absent, int max)
{
	int number = 0;

	if (format_peek(reader) < '0' || format_peek(reader) > '9')
		return absent;
	while (format_peek(reader) >= '0' && format_peek(reader) <= '9') {
		number = 10 * number + (format_peek(reader) - '0');
		if (number > max)
			chat_fail(reader->context, MIMEO_E_UNSUPPORTED,
				"a format with a number above %d is not supported", max);
		reader->at++;
	}
	return number;
}

static struct chat_value format_next_value(struct format_reader *reader)
{
	if (reader->n_used == reader->positional->n)
		chat_fail(
			reader->context, MIMEO_E_INVALID, "not enough arguments for format string");
	return reader->positional->items[reader->n_used++];
}

static _Noreturn void format_refuse(
	struct chat_context *context, const struct format_spec *spec, struct chat_value value)
{
	chat_fail(context, MIMEO_E_UNSUPPORTED, "format '%c' of a '%s' is not supported",
		spec->type ? spec->type : 's', chat_type_name(value));
}

/* ---- one value ---- */

static void format_add_fill(struct chat_text *text, char fill, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		chat_text_add(text, &fill, 1, false);
}

/* `body`, of which the first n_sign bytes are a sign, in a field of spec->width characters. */
static void format_add_padded(struct chat_text *text, const struct format_spec *spec,
	struct chat_string *body, size_t n_sign)
{
	int64_t fill = spec->width - (int64_t)chat_string_count(text->context, body);
	int64_t left = spec->align == '>' ? fill : spec->align == '^' ? fill / 2 : 0;

	format_add_fill(text, spec->fill, left);
	chat_text_add_part(text, body, 0, n_sign);
	if (spec->align == '=')
		format_add_fill(text, spec->fill, fill);
	chat_text_add_part(text, body, n_sign, body->length - n_sign);
	if (spec->align == '<' || spec->align == '^')
		format_add_fill(text, spec->fill, fill - left);
}

static void format_add_string(
	struct chat_text *text, struct format_spec spec, struct chat_value string)
{
	size_t n = chat_string_count(text->context, string.string);

	if (spec.precision >= 0 && (size_t)spec.precision < n)
		string = chat_string_part(text->context, string, 0,
			chat_string_offset(text->context, string.string, (size_t)spec.precision));
	if (!spec.align || spec.align == '=')
		spec.align = '<';
	format_add_padded(text, &spec, string.string, 0);
}

static void format_add_number(
	struct chat_text *text, struct format_spec spec, struct chat_value value)
{
	char number[NUMBER_MAX], how[8];
	bool is_float = strchr("eEfFgG", spec.type);
	struct chat_value body;
	bool has_sign;

	snprintf(how, sizeof(how), "%%%s%s%s%c",
		spec.sign == '+'   ? "+"
		: spec.sign == ' ' ? " "
				   : "",
		spec.is_alternate ? "#" : "", is_float ? ".*" : "ll", spec.type);
	if (is_float)
		snprintf(number, sizeof(number), how, spec.precision < 0 ? 6 : spec.precision,
			value.type == CHAT_FLOAT
				? value.real
				: (double)chat_integer(text->context, value, "a number"));
	else if (value.type == CHAT_FLOAT || spec.precision >= 0)
		format_refuse(text->context, &spec, value);
	else
		snprintf(number, sizeof(number), how,
			(long long)chat_integer(text->context, value, "a number"));
	if (spec.type != 'd' && !is_float && number[0] == '-')
		format_refuse(text->context, &spec, value);
	body = chat_string_wrap(text->context, number, strlen(number), NULL);
	has_sign = number[0] == '-' || number[0] == '+' || number[0] == ' ';
	if (!spec.align)
		spec.align = '>';
	size_t start = text->length;
	format_add_padded(text, &spec, body.string, has_sign);
	memset(text->foreign + start, value.foreign, text->length - start);
}

/* ---- % ---- */

static struct format_spec format_read_percent(struct format_reader *reader)
{
	struct format_spec spec = {.fill = ' ', .precision = -1};
	bool zero = false;

	for (;; reader->at++) {
		char flag = format_peek(reader);

		if (flag == '-')
			spec.align = '<';
		else if (flag == '+' || (flag == ' ' && spec.sign != '+'))
			spec.sign = flag;
		else if (flag == '0')
			zero = true;
		else if (flag == '#')
			spec.is_alternate = true;
		else if (flag != ' ')
			break;
	}
	spec.width = format_read_number(reader, 0, WIDTH_MAX);
	if (format_skip(reader, '.'))
		spec.precision = format_read_number(reader, 0, PRECISION_MAX);
	spec.type = format_peek(reader);
	reader->at++;
	if (zero && !spec.align && spec.type != 's' && spec.type != 'r') {
		spec.align = '=';
		spec.fill = '0';
	}
	return spec;
}

static void format_add_percent(
	struct chat_text *text, struct format_spec spec, struct chat_value value)
{
	struct chat_text *repr;

	if (!spec.align)
		spec.align = '>';
	switch (spec.type) {
	case 's':
		format_add_string(text, spec, chat_str(text->context, value));
		break;
	case 'r':
		repr = chat_text_new(text->context);
		chat_print_repr(repr, value);
		format_add_string(text, spec, chat_text_string(repr));
		break;
	case 'd':
	case 'i':
	case 'u':
		spec.type = 'd';
		if (value.type == CHAT_FLOAT && fabs(value.real) < 0x1p63)
			value = (struct chat_value){.type = CHAT_INT,
				.foreign = value.foreign,
				.integer = (int64_t)value.real};
		__attribute__((fallthrough));
	case 'x':
	case 'X':
	case 'o':
	case 'e':
	case 'E':
	case 'f':
	case 'F':
	case 'g':
	case 'G':
		if (value.type == CHAT_UNDEFINED)
			chat_fail_undefined(text->context, value);
		if (!CHAT_IS_NUMBER(value))
			chat_fail(text->context, MIMEO_E_INVALID,
				"%%%c format: a number is required, not %s", spec.type,
				chat_type_name(value));
		format_add_number(text, spec, value);
		break;
	default:
		chat_fail(text->context, MIMEO_E_UNSUPPORTED, "format \"%%%c\" is not supported",
			spec.type >= ' ' && spec.type < 0x7f ? spec.type : '?');
	}
}

/* The value of "%(name)s": from the name on. */
static struct chat_value format_named_value(struct format_reader *reader, struct chat_value values)
{
	size_t start = reader->at;
	const struct chat_value *value;

	while (reader->at < reader->format->length && format_peek(reader) != ')')
		reader->at++;
	if (values.type != CHAT_DICT)
		chat_fail(reader->context, MIMEO_E_INVALID, "format requires a mapping");
	value = chat_dict_find(reader->context, values.dict,
		chat_string_wrap(
			reader->context, reader->format->bytes + start, reader->at - start, NULL));
	if (!value || !format_skip(reader, ')'))
		chat_fail(reader->context, MIMEO_E_INVALID, "a format names no key of its dict");
	return *value;
}

struct chat_value chat_format_percent(
	struct chat_context *context, struct chat_value format, struct chat_value values)
{
	struct chat_list single = {.items = &values, .n = 1};
	struct format_reader reader = {.context = context,
		.format = format.string,
		.positional = values.type == CHAT_TUPLE ? values.list : &single};
	struct chat_text *text = chat_text_new(context);
	struct chat_value value = {.type = CHAT_MISSING};

	if (format.is_markup)
		chat_fail(context, MIMEO_E_UNSUPPORTED, "%% of safe text is not supported");
	while (reader.at < format.string->length) {
		size_t start = reader.at;
		bool is_named;

		while (reader.at < format.string->length && format_peek(&reader) != '%')
			reader.at++;
		chat_text_add_part(text, format.string, start, reader.at - start);
		if (!format_skip(&reader, '%'))
			break;
		if (format_skip(&reader, '%')) {
			chat_text_add_part(text, format.string, reader.at - 1, 1);
			continue;
		}
		is_named = format_skip(&reader, '(');
		if (is_named)
			value = format_named_value(&reader, values);
		struct format_spec spec = format_read_percent(&reader);
		format_add_percent(text, spec, is_named ? value : format_next_value(&reader));
	}
	/* Python takes for a mapping what has an operator [] */
	if (reader.n_used < reader.positional->n && values.type != CHAT_DICT &&
		values.type != CHAT_LIST && values.type != CHAT_RANGE &&
		values.type != CHAT_UNDEFINED)
		chat_fail(context, MIMEO_E_INVALID,
			"not all arguments converted during string formatting");
	return chat_text_string(text);
}

/* ---- {} ---- */

static bool format_is_align(const struct format_reader *reader, size_t at)
{
	return at < reader->format->length && reader->format->bytes[at] &&
	       strchr("<>^=", reader->format->bytes[at]);
}

static struct format_spec format_read_spec(struct format_reader *reader)
{
	struct format_spec spec = {.fill = ' ', .precision = -1};

	if (format_is_align(reader, reader->at + 1) && !(format_peek(reader) & 0x80)) {
		spec.fill = format_peek(reader);
		reader->at++;
	}
	if (format_is_align(reader, reader->at)) {
		spec.align = format_peek(reader);
		reader->at++;
	}
	if (format_peek(reader) == '+' || format_peek(reader) == ' ')
		spec.sign = reader->format->bytes[reader->at++];
	else
		format_skip(reader, '-');
	spec.is_alternate = format_skip(reader, '#');
	if (format_skip(reader, '0') && !spec.align) {
		spec.align = '=';
		spec.fill = '0';
	}
	spec.width = format_read_number(reader, 0, WIDTH_MAX);
	if (format_skip(reader, '.'))
		spec.precision = format_read_number(reader, 0, PRECISION_MAX);
	if (reader->at < reader->format->length && format_peek(reader) != '}')
		spec.type = reader->format->bytes[reader->at++];
	return spec;
}

static void format_add_braces(
	struct chat_text *text, struct format_spec spec, struct chat_value value)
{
	if (CHAT_IS_NUMBER(value) && spec.type && strchr("dxXoeEfFgG", spec.type)) {
		format_add_number(text, spec, value);
		return;
	}
	if (value.type == CHAT_INT && !spec.type) {
		spec.type = 'd';
		format_add_number(text, spec, value);
		return;
	}
	if (value.type != CHAT_STRING || (spec.type && spec.type != 's') || spec.sign ||
		spec.is_alternate)
		format_refuse(text->context, &spec, value);
	format_add_string(text, spec, value);
}

static struct chat_value format_find_field(
	struct format_reader *reader, const struct chat_dict *keywords)
{
	size_t start = reader->at;
	const struct chat_value *value;
	int index;

	if (format_is_at(reader, "}:!"))
		return format_next_value(reader);
	index = format_read_number(reader, -1, WIDTH_MAX);
	if (index >= 0 && (size_t)index >= reader->positional->n)
		chat_fail(reader->context, MIMEO_E_INVALID,
			"replacement index %d out of range for positional arguments", index);
	if (index >= 0)
		return reader->positional->items[index];
	while (reader->at < reader->format->length && !format_is_at(reader, "}:!.["))
		reader->at++;
	value = chat_dict_find(reader->context, keywords,
		chat_string_wrap(
			reader->context, reader->format->bytes + start, reader->at - start, NULL));
	if (!value)
		chat_fail(reader->context, MIMEO_E_INVALID, "format() has no argument \"%.*s\"",
			(int)(reader->at - start), reader->format->bytes + start);
	return *value;
}

static void format_add_field(
	struct chat_text *text, struct format_reader *reader, const struct chat_dict *keywords)
{
	struct chat_value value = format_find_field(reader, keywords);
	struct format_spec spec = {.fill = ' ', .precision = -1};
	bool has_spec;

	if (format_skip(reader, '!')) {
		char conversion = format_peek(reader);
		struct chat_text *repr = chat_text_new(text->context);

		if (conversion == 'r')
			chat_print_repr(repr, value);
		else if (conversion == 's')
			chat_print(repr, value);
		else
			chat_fail(text->context, MIMEO_E_UNSUPPORTED,
				"a conversion of format() is not supported");
		reader->at++;
		value = chat_text_string(repr);
	}
	has_spec = format_skip(reader, ':') && format_peek(reader) != '}';
	if (has_spec)
		spec = format_read_spec(reader);
	if (!format_skip(reader, '}'))
		chat_fail(text->context, MIMEO_E_UNSUPPORTED,
			"a field of format() is not supported: it has more than a name and a "
			"format");
	if (has_spec)
		format_add_braces(text, spec, value);
	else
		chat_print(text, value);
}

struct chat_value chat_format_braces(struct chat_context *context, const struct chat_string *format,
	const struct chat_list *positional, const struct chat_dict *keywords)
{
	struct format_reader reader = {
		.context = context, .format = format, .positional = positional};
	struct chat_text *text = chat_text_new(context);

	while (reader.at < format->length) {
		size_t start = reader.at;

		while (reader.at < format->length && !format_is_at(&reader, "{}"))
			reader.at++;
		chat_text_add_part(text, format, start, reader.at - start);
		if (reader.at == format->length)
			break;
		if (reader.at + 1 < format->length &&
			format->bytes[reader.at] == format->bytes[reader.at + 1]) {
			chat_text_add_part(text, format, reader.at, 1);
			reader.at += 2;
		} else if (format_skip(&reader, '{')) {
			format_add_field(text, &reader, keywords);
		} else {
			chat_fail(context, MIMEO_E_INVALID, "single '}' in format string");
		}
	}
	return chat_text_string(text);
}
