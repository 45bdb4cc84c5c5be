/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_CHAT_OPERATOR_H
#define MIMEO_SDK_TEXT_CHAT_OPERATOR_H

/*
 * The operators of expressions, with Python's types and results. What Python refuses with a
 * TypeError is INVALID.
 */

#include "sdk/text/chat_value.h"

enum chat_operator {
	CHAT_ADD,
	CHAT_SUBTRACT,
	CHAT_MULTIPLY,
	CHAT_DIVIDE,
	CHAT_FLOOR_DIVIDE,
	CHAT_MODULO,
	CHAT_POWER,
	CHAT_EQUAL,
	CHAT_NOT_EQUAL,
	CHAT_LESS,
	CHAT_LESS_EQUAL,
	CHAT_GREATER,
	CHAT_GREATER_EQUAL,
	CHAT_IN,
	CHAT_NOT_IN,
};

/* CHAT_ADD ... CHAT_POWER. */
struct chat_value chat_arithmetic(struct chat_context *context, enum chat_operator op,
	struct chat_value a, struct chat_value b);
/* CHAT_EQUAL ... CHAT_NOT_IN. */
bool chat_compare(struct chat_context *context, enum chat_operator op, struct chat_value a,
	struct chat_value b);
struct chat_value chat_negate(struct chat_context *context, struct chat_value value);

/* Sort items[n] by keys[n], which are sorted along, as sorted() does: stable, also in reverse. */
void chat_sort(struct chat_context *context, struct chat_value *keys, struct chat_value *items,
	size_t n, bool reverse);

/* value[start:stop:step]; each bound is none, missing or an integer. */
struct chat_value chat_slice(struct chat_context *context, struct chat_value value,
	struct chat_value start, struct chat_value stop, struct chat_value step);

#endif
