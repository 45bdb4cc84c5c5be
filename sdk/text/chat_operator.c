/* SPDX-License-Identifier: MIT */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "sdk/text/chat_dict.h"
#include "sdk/text/chat_format.h"
#include "sdk/text/chat_operator.h"
#include "sdk/text/chat_string.h"

static const char *const operator_names[] = {
	"+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};

static _Noreturn void chat_refuse_operands(struct chat_context *context, enum chat_operator op,
	struct chat_value a, struct chat_value b)
{
	if (a.type == CHAT_UNDEFINED)
		chat_fail_undefined(context, a);
	if (b.type == CHAT_UNDEFINED)
		chat_fail_undefined(context, b);
	chat_fail(context, MIMEO_E_INVALID, "unsupported operand types for %s: '%s' and '%s'",
		operator_names[op], chat_type_name(a), chat_type_name(b));
}

static _Noreturn void chat_refuse_overflow(struct chat_context *context)
{
	chat_fail(context, MIMEO_E_UNSUPPORTED, "an integer exceeds 64 bits");
}

/* ---- numbers ---- */

static double chat_real(struct chat_value value)
{
	return value.type == CHAT_FLOAT ? value.real
	       : value.type == CHAT_INT ? (double)value.integer
					: value.boolean;
}

/* The quotient or the rest of floor division; the rest has the sign of b. */
static double chat_floor_divide(enum chat_operator op, double a, double b)
{
	double rest = fmod(a, b), quotient = (a - rest) / b, floored;

	if (rest != 0 && (rest < 0) != (b < 0)) {
		rest += b;
		quotient -= 1;
	} else if (rest == 0) {
		rest = copysign(0, b);
	}
	if (op == CHAT_MODULO)
		return rest;
	if (quotient == 0)
		return copysign(0, a / b);
	floored = floor(quotient);
	return quotient - floored > 0.5 ? floored + 1 : floored;
}

static struct chat_value chat_float_arithmetic(
	struct chat_context *context, enum chat_operator op, double a, double b)
{
	double power;

	if (op >= CHAT_DIVIDE && op <= CHAT_MODULO && b == 0)
		chat_fail(context, MIMEO_E_INVALID, "division by zero");
	switch (op) {
	case CHAT_ADD:
		return chat_float(a + b);
	case CHAT_SUBTRACT:
		return chat_float(a - b);
	case CHAT_MULTIPLY:
		return chat_float(a * b);
	case CHAT_DIVIDE:
		return chat_float(a / b);
	case CHAT_POWER:
		if (a == 0 && b < 0)
			chat_fail(context, MIMEO_E_INVALID, "0.0 to a negative power");
		if (a < 0 && b != floor(b))
			chat_fail(
				context, MIMEO_E_UNSUPPORTED, "complex numbers are not supported");
		power = pow(a, b);
		if (isinf(power) && isfinite(a) && isfinite(b))
			chat_fail(context, MIMEO_E_INVALID, "the result of ** is too large");
		return chat_float(power);
	default:
		return chat_float(chat_floor_divide(op, a, b));
	}
}

static int64_t chat_power(struct chat_context *context, int64_t base, int64_t exponent)
{
	int64_t result = 1;

	assert(exponent >= 0);
	while (exponent) {
		if (exponent & 1 && __builtin_mul_overflow(result, base, &result))
			chat_refuse_overflow(context);
		exponent >>= 1;
		if (exponent && __builtin_mul_overflow(base, base, &base))
			chat_refuse_overflow(context);
	}
	return result;
}

static struct chat_value chat_integer_arithmetic(
	struct chat_context *context, enum chat_operator op, int64_t a, int64_t b)
{
	int64_t result = 0;
	bool overflow = false;

	switch (op) {
	case CHAT_ADD:
		overflow = __builtin_add_overflow(a, b, &result);
		break;
	case CHAT_SUBTRACT:
		overflow = __builtin_sub_overflow(a, b, &result);
		break;
	case CHAT_MULTIPLY:
		overflow = __builtin_mul_overflow(a, b, &result);
		break;
	case CHAT_POWER:
		if (b < 0)
			return chat_float_arithmetic(context, op, (double)a, (double)b);
		result = chat_power(context, a, b);
		break;
	case CHAT_DIVIDE:
		return chat_float_arithmetic(context, op, (double)a, (double)b);
	default: /* floor, not truncation */
		if (!b)
			chat_fail(context, MIMEO_E_INVALID, "division by zero");
		if (b == -1) {
			overflow = op == CHAT_FLOOR_DIVIDE && a == INT64_MIN;
			result = op == CHAT_MODULO || overflow ? 0 : -a;
			break;
		}
		result = op == CHAT_MODULO ? a % b : a / b;
		if (a % b && (a % b < 0) != (b < 0))
			result += op == CHAT_MODULO ? b : -1;
	}
	if (overflow)
		chat_refuse_overflow(context);
	return chat_int(result);
}

struct chat_value chat_negate(struct chat_context *context, struct chat_value value)
{
	struct chat_value result;

	if (value.type == CHAT_UNDEFINED)
		chat_fail_undefined(context, value);
	if (!CHAT_IS_NUMBER(value))
		chat_fail(context, MIMEO_E_INVALID, "unsupported operand type for -: '%s'",
			chat_type_name(value));
	result = value.type == CHAT_FLOAT ? chat_float(-value.real)
					  : chat_integer_arithmetic(context, CHAT_SUBTRACT, 0,
						    chat_integer(context, value, "-"));
	result.foreign = value.foreign;
	return result;
}

/* ---- strings and lists ---- */

static struct chat_value chat_add_strings(
	struct chat_context *context, struct chat_value a, struct chat_value b)
{
	struct chat_value result;
	bool is_markup = a.is_markup || b.is_markup;

	if (is_markup) {
		a = chat_escape(context, a);
		b = chat_escape(context, b);
	}
	result = chat_string_concat(context, a.string, b.string);
	result.is_markup = is_markup;
	return result;
}

static struct chat_value chat_add_lists(
	struct chat_context *context, struct chat_value a, struct chat_value b)
{
	struct chat_value result = chat_list_new(context, a.type);

	chat_charge(context, a.list->n + b.list->n);
	for (size_t i = 0; i < a.list->n; i++)
		chat_list_add(context, result.list, a.list->items[i]);
	for (size_t i = 0; i < b.list->n; i++)
		chat_list_add(context, result.list, b.list->items[i]);
	result.foreign = a.foreign || b.foreign;
	return result;
}

static struct chat_value chat_repeat(
	struct chat_context *context, struct chat_value value, int64_t times)
{
	struct chat_value result;
	struct chat_text *text;

	if (value.type == CHAT_STRING) {
		text = chat_text_new(context);
		for (int64_t i = 0; i < times && value.string->length; i++) {
			chat_charge(context, 1);
			chat_text_add_string(text, value.string);
		}
		result = chat_text_string(text);
		result.is_markup = value.is_markup;
		return result;
	}
	result = chat_list_new(context, value.type);
	for (int64_t i = 0; i < times && value.list->n; i++) {
		chat_charge(context, value.list->n);
		for (size_t k = 0; k < value.list->n; k++)
			chat_list_add(context, result.list, value.list->items[k]);
	}
	result.foreign = value.foreign;
	return result;
}

static bool chat_can_repeat(struct chat_value value, struct chat_value times)
{
	return (value.type == CHAT_STRING || value.type == CHAT_LIST || value.type == CHAT_TUPLE) &&
	       (times.type == CHAT_INT || times.type == CHAT_BOOL);
}

struct chat_value chat_arithmetic(struct chat_context *context, enum chat_operator op,
	struct chat_value a, struct chat_value b)
{
	struct chat_value result;

	assert(op <= CHAT_POWER);
	if (CHAT_IS_NUMBER(a) && CHAT_IS_NUMBER(b)) {
		result = a.type == CHAT_FLOAT || b.type == CHAT_FLOAT
				 ? chat_float_arithmetic(context, op, chat_real(a), chat_real(b))
				 : chat_integer_arithmetic(context, op,
					   chat_integer(context, a, "operand"),
					   chat_integer(context, b, "operand"));
		result.foreign = a.foreign || b.foreign;
		return result;
	}
	if (op == CHAT_ADD && a.type == CHAT_STRING && b.type == CHAT_STRING)
		return chat_add_strings(context, a, b);
	if (op == CHAT_ADD && a.type == b.type && (a.type == CHAT_LIST || a.type == CHAT_TUPLE))
		return chat_add_lists(context, a, b);
	if (op == CHAT_MULTIPLY && chat_can_repeat(a, b))
		return chat_repeat(context, a, chat_integer(context, b, "operand"));
	if (op == CHAT_MULTIPLY && chat_can_repeat(b, a))
		return chat_repeat(context, b, chat_integer(context, a, "operand"));
	if (op == CHAT_MODULO && a.type == CHAT_STRING)
		return chat_format_percent(context, a, b);
	chat_refuse_operands(context, op, a, b);
}

/* ---- comparisons ---- */

/* < 0, 0, > 0; 2: in no order. `op` is the one that is asked for. */
static int chat_order(struct chat_context *context, enum chat_operator op, struct chat_value a,
	struct chat_value b)
{
	size_t i = 0;
	int order;

	if (CHAT_IS_NUMBER(a) && CHAT_IS_NUMBER(b))
		return chat_number_order(a, b);
	if (a.type == CHAT_STRING && b.type == CHAT_STRING) {
		order = chat_string_compare(context, a.string, b.string);
		return (order > 0) - (order < 0);
	}
	if (a.type != b.type || (a.type != CHAT_LIST && a.type != CHAT_TUPLE))
		chat_refuse_operands(context, op, a, b);
	while (i < a.list->n && i < b.list->n &&
		chat_equal(context, a.list->items[i], b.list->items[i]))
		i++;
	if (i == a.list->n || i == b.list->n)
		return (a.list->n > b.list->n) - (a.list->n < b.list->n);
	chat_enter(context);
	order = chat_order(context, op, a.list->items[i], b.list->items[i]);
	chat_leave(context);
	return order;
}

static bool chat_contains(
	struct chat_context *context, struct chat_value container, struct chat_value item)
{
	struct chat_iterator iterator;
	struct chat_value other;

	if (container.type == CHAT_STRING) {
		if (item.type != CHAT_STRING)
			chat_fail(context, MIMEO_E_INVALID,
				"'in <string>' requires string as left operand, not %s",
				chat_type_name(item));
		return chat_string_find(context, container.string, item.string, 0) != SIZE_MAX;
	}
	if (container.type == CHAT_DICT)
		return chat_dict_find(context, container.dict, item);
	iterator = chat_iterate(context, container);
	while (chat_next(context, &iterator, &other)) {
		if (chat_equal(context, item, other))
			return true;
	}
	return false;
}

bool chat_compare(struct chat_context *context, enum chat_operator op, struct chat_value a,
	struct chat_value b)
{
	int order;

	switch (op) {
	case CHAT_EQUAL:
		return chat_equal(context, a, b);
	case CHAT_NOT_EQUAL:
		return !chat_equal(context, a, b);
	case CHAT_IN:
		return chat_contains(context, b, a);
	case CHAT_NOT_IN:
		return !chat_contains(context, b, a);
	default:
		order = chat_order(context, op, a, b);
	}
	if (order == 2)
		return false;
	return op == CHAT_LESS         ? order < 0
	       : op == CHAT_LESS_EQUAL ? order <= 0
	       : op == CHAT_GREATER    ? order > 0
				       : order >= 0;
}

/* ---- sorting ---- */

struct chat_sorter {
	struct chat_context *context;
	struct chat_value *keys, *items;     /* [n] */
	struct chat_value *keys_2, *items_2; /* [n] */
	bool reverse;
};

/* Merge sort of from ... to - 1. Equal keys keep their order, in reverse, too. */
static void chat_sorter_run(struct chat_sorter *sorter, size_t from, size_t to)
{
	size_t middle = from + (to - from) / 2, a = from, b = middle, n = (to - from);

	if (n < 2)
		return;
	chat_sorter_run(sorter, from, middle);
	chat_sorter_run(sorter, middle, to);
	for (size_t i = from; i < to; i++) {
		bool take_b =
			b < to &&
			(a == middle ||
				(sorter->reverse ? chat_compare(sorter->context, CHAT_LESS,
							   sorter->keys[a], sorter->keys[b])
						 : chat_compare(sorter->context, CHAT_LESS,
							   sorter->keys[b], sorter->keys[a])));
		size_t from_index = take_b ? b++ : a++;

		chat_charge(sorter->context, 1);
		sorter->keys_2[i] = sorter->keys[from_index];
		sorter->items_2[i] = sorter->items[from_index];
	}
	memcpy(sorter->keys + from, sorter->keys_2 + from, n * sizeof(*sorter->keys));
	memcpy(sorter->items + from, sorter->items_2 + from, n * sizeof(*sorter->items));
}

void chat_sort(struct chat_context *context, struct chat_value *keys, struct chat_value *items,
	size_t n, bool reverse)
{
	struct chat_sorter sorter = {
		.context = context,
		.keys = keys,
		.items = items,
		.keys_2 = chat_alloc(context, n * sizeof(*keys)),
		.items_2 = chat_alloc(context, n * sizeof(*items)),
		.reverse = reverse,
	};

	chat_sorter_run(&sorter, 0, n);
}

/* ---- slices ---- */

/* A bound within 0 ... length (step > 0) or -1 ... length - 1 (step < 0). */
static int64_t chat_slice_bound(struct chat_context *context, struct chat_value bound,
	int64_t length, int64_t absent, bool backward)
{
	int64_t index;

	if (bound.type == CHAT_MISSING || bound.type == CHAT_NONE)
		return absent;
	index = chat_integer(context, bound, "a bound of a slice");
	if (index < 0) {
		index += length;
		return index < 0 ? backward ? -1 : 0 : index;
	}
	return index >= length ? backward ? length - 1 : length : index;
}

/* Characters start, start + step ... of a string. */
static struct chat_value chat_slice_string(struct chat_context *context, struct chat_value value,
	int64_t start, int64_t n, int64_t step)
{
	struct chat_string *string = value.string;
	struct chat_text *text;
	struct chat_value result;

	if (!n)
		return chat_string_part(context, value, 0, 0);
	if (step == 1) {
		size_t from = chat_string_offset(context, string, (size_t)start);
		size_t to = chat_string_offset(context, string, (size_t)(start + n));

		return chat_string_part(context, value, from, to - from);
	}
	text = chat_text_new(context);
	for (int64_t i = 0; i < n; i++) {
		size_t from = chat_string_offset(context, string, (size_t)(start + i * step));
		size_t length;

		chat_charge(context, 1);
		chat_string_at(string, from, &length);
		chat_text_add_part(text, string, from, length);
	}
	result = chat_text_string(text);
	result.is_markup = value.is_markup;
	return result;
}

struct chat_value chat_slice(struct chat_context *context, struct chat_value value,
	struct chat_value start, struct chat_value stop, struct chat_value step)
{
	int64_t length, from, to, by = 1, n;
	struct chat_value result;

	if (value.type == CHAT_UNDEFINED)
		chat_fail_undefined(context, value);
	if (value.type != CHAT_STRING && value.type != CHAT_LIST && value.type != CHAT_TUPLE &&
		value.type != CHAT_RANGE)
		chat_fail(context, MIMEO_E_INVALID, "'%s' object has no slices",
			chat_type_name(value));
	length = chat_length(context, value);
	if (step.type != CHAT_MISSING && step.type != CHAT_NONE)
		by = chat_integer(context, step, "the step of a slice");
	if (!by)
		chat_fail(context, MIMEO_E_INVALID, "the step of a slice is zero");
	from = chat_slice_bound(context, start, length, by > 0 ? 0 : length - 1, by < 0);
	to = chat_slice_bound(context, stop, length, by > 0 ? length : -1, by < 0);
	if (by > 0)
		n = to > from ? (to - from - 1) / by + 1 : 0;
	else
		n = from > to ? (from - to - 1) / -(by < -length ? -length - 1 : by) + 1 : 0;
	assert(n >= 0 && n <= length);
	if (value.type == CHAT_STRING)
		return chat_slice_string(context, value, from, n, by);
	result = chat_list_new(context, value.type);
	chat_charge(context, (uint64_t)n);
	for (int64_t i = 0; i < n; i++)
		chat_list_add(context, result.list, value.list->items[from + i * by]);
	result.foreign = value.foreign;
	return result;
}
