/* SPDX-License-Identifier: MIT */
#include "sdk/text/chat_operator.h"
#include "sdk/text/chat_print.h"
#include "sdk/text/chat_test.h"
#include "sdk/text/chat_unicode.h"

/* The option is the operator. */
static struct chat_value test_compare(const struct chat_call *call)
{
	return chat_bool(
		chat_compare(call->context, call->builtin->option, call->self, call->arguments[0]));
}

/* The option is a set of types. */
#define OF(type) (1u << (type))

static struct chat_value test_type(const struct chat_call *call)
{
	return chat_bool(call->builtin->option & OF(call->self.type));
}

#define SEQUENCES                                                                                  \
	(OF(CHAT_UNDEFINED) | OF(CHAT_STRING) | OF(CHAT_LIST) | OF(CHAT_TUPLE) | OF(CHAT_RANGE) |  \
		OF(CHAT_DICT)) /* as in Jinja: what has a length and an operator [] */
#define ITERABLES                                                                                  \
	(SEQUENCES | OF(CHAT_KEYS) | OF(CHAT_VALUES) | OF(CHAT_ITEMS) | OF(CHAT_ITERATOR) |        \
		OF(CHAT_LOOP))
#define CALLABLES                                                                                  \
	(OF(CHAT_UNDEFINED) | OF(CHAT_LOOP) | OF(CHAT_MACRO) | OF(CHAT_FUNCTION) | OF(CHAT_METHOD))

static struct chat_value test_true(const struct chat_call *call)
{
	return chat_bool(
		call->self.type == CHAT_BOOL && call->self.boolean == call->builtin->option);
}

static struct chat_value test_escaped(const struct chat_call *call)
{
	return chat_bool(call->self.type == CHAT_STRING && call->self.is_markup);
}

/*
 * Python's `is`: for numbers and strings, whose identity is an accident there, equality within one
 * type.
 */
static struct chat_value test_sameas(const struct chat_call *call)
{
	struct chat_value a = call->self, b = call->arguments[0];

	if (a.type != b.type)
		return chat_bool(false);
	if (CHAT_IS_SEQUENCE(a) || a.type == CHAT_DICT)
		return chat_bool(a.list == b.list);
	return chat_bool(chat_equal(call->context, a, b));
}

static bool test_rest(const struct chat_call *call, int64_t divisor, int64_t rest)
{
	struct chat_value modulo =
		chat_arithmetic(call->context, CHAT_MODULO, call->self, chat_int(divisor));

	return chat_equal(call->context, modulo, chat_int(rest));
}

static struct chat_value test_odd(const struct chat_call *call)
{
	return chat_bool(test_rest(call, 2, call->builtin->option));
}

static struct chat_value test_divisibleby(const struct chat_call *call)
{
	return chat_bool(test_rest(call, chat_argument_integer(call, 0, 0), 0));
}

static struct chat_value test_case(const struct chat_call *call)
{
	const struct chat_string *string = chat_str(call->context, call->self).string;

	chat_charge_bytes(call->context, string->length);
	return chat_bool(chat_has_case(string, call->builtin->option));
}

static const struct chat_builtin tests[] = {
	{"defined", test_type, "", 0, ~OF(CHAT_UNDEFINED)},
	{"undefined", test_type, "", 0, OF(CHAT_UNDEFINED)},
	{"none", test_type, "", 0, OF(CHAT_NONE)},
	{"boolean", test_type, "", 0, OF(CHAT_BOOL)},
	{"integer", test_type, "", 0, OF(CHAT_INT)},
	{"float", test_type, "", 0, OF(CHAT_FLOAT)},
	{"number", test_type, "", 0, OF(CHAT_BOOL) | OF(CHAT_INT) | OF(CHAT_FLOAT)},
	{"string", test_type, "", 0, OF(CHAT_STRING)},
	{"mapping", test_type, "", 0, OF(CHAT_DICT)},
	{"sequence", test_type, "", 0, SEQUENCES},
	{"iterable", test_type, "", 0, ITERABLES},
	{"callable", test_type, "", 0, CALLABLES},
	{"true", test_true, "", 0, true},
	{"false", test_true, "", 0, false},
	{"escaped", test_escaped, "", 0},
	{"sameas", test_sameas, "other", 1},
	{"odd", test_odd, "", 0, 1},
	{"even", test_odd, "", 0, 0},
	{"divisibleby", test_divisibleby, "num", 1},
	{"lower", test_case, "", 0, false},
	{"upper", test_case, "", 0, true},
	{"in", test_compare, "seq", 1, CHAT_IN},
	{"eq", test_compare, "b", 1, CHAT_EQUAL},
	{"equalto", test_compare, "b", 1, CHAT_EQUAL},
	{"==", test_compare, "b", 1, CHAT_EQUAL},
	{"ne", test_compare, "b", 1, CHAT_NOT_EQUAL},
	{"!=", test_compare, "b", 1, CHAT_NOT_EQUAL},
	{"lt", test_compare, "b", 1, CHAT_LESS},
	{"lessthan", test_compare, "b", 1, CHAT_LESS},
	{"<", test_compare, "b", 1, CHAT_LESS},
	{"le", test_compare, "b", 1, CHAT_LESS_EQUAL},
	{"<=", test_compare, "b", 1, CHAT_LESS_EQUAL},
	{"gt", test_compare, "b", 1, CHAT_GREATER},
	{"greaterthan", test_compare, "b", 1, CHAT_GREATER},
	{">", test_compare, "b", 1, CHAT_GREATER},
	{"ge", test_compare, "b", 1, CHAT_GREATER_EQUAL},
	{">=", test_compare, "b", 1, CHAT_GREATER_EQUAL},
};

const struct chat_builtin *chat_find_test(const struct chat_string *name)
{
	return chat_find_builtin(tests, sizeof(tests) / sizeof(tests[0]), name);
}
