/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_CHAT_VALUE_H
#define MIMEO_SDK_TEXT_CHAT_VALUE_H

/*
 * The values of a template: those of Python that Jinja shows. They live in a context and do not
 * change, namespaces excepted. So a slice of a string shares its bytes, and a value is copied by
 * assignment.
 *
 * Text remembers where it came from: for each byte of a string, whether it is foreign (the user's).
 * A number, a list or a dict is foreign as a whole, and so is what is printed of it.
 */

#include <stdbool.h>

#include "sdk/text/chat_context.h"

enum chat_type {
	CHAT_MISSING, /* an argument that was not given; never a variable's value */
	CHAT_UNDEFINED,
	CHAT_NONE,
	CHAT_BOOL,
	CHAT_INT, /* 64 bits: what exceeds them is refused */
	CHAT_FLOAT,
	CHAT_STRING,
	CHAT_LIST,
	CHAT_TUPLE,
	CHAT_RANGE,
	CHAT_KEYS, /* of a dict; a list with the behaviour of Python's view, like the next two */
	CHAT_VALUES,
	CHAT_ITEMS,
	CHAT_ITERATOR, /* what filters return that are generators in Jinja: it is read once */
	CHAT_DICT,
	CHAT_NAMESPACE, /* a dict that `set` changes */
	CHAT_LOOP,      /* the loop variable of a for loop */
	CHAT_MACRO,
	CHAT_FUNCTION, /* a global function */
	CHAT_METHOD,   /* a method with its object */
};

struct chat_value {
	uint8_t type;   /* enum chat_type */
	bool foreign;   /* of all but strings */
	bool is_markup; /* of a string: Jinja's Markup, which escapes what is appended to it */
	union {
		bool boolean;
		int64_t integer;
		double real;
		struct chat_string *string;
		struct chat_list *list; /* LIST ... ITERATOR */
		struct chat_dict *dict; /* DICT, NAMESPACE */
		struct chat_undefined *undefined;
		struct chat_loop *loop;
		struct chat_macro *macro;
		const struct chat_builtin *function;
		struct chat_method *method;
	};
};

struct chat_string {
	const char *bytes;      /* [length] valid UTF-8 */
	const uint8_t *foreign; /* [length]; NULL: no byte is */
	size_t length;
	size_t n_characters;    /* SIZE_MAX: not counted yet */
	uint64_t hash;          /* 0: not computed yet */
	struct chat_text *text; /* what `bytes` belongs to, if it can be appended to */
};

struct chat_list {
	struct chat_value *items; /* [n] */
	size_t n, capacity;
	bool is_group; /* a TUPLE of groupby, with the attributes "grouper" and "list" */
	/* of an ITERATOR */
	size_t n_read;
	bool (*fetch)(struct chat_context *context, void *closure,
		struct chat_value
			*ret_item); /* computes the next item; NULL: take it from `items` */
	void *closure;
};

/* Why a value is undefined: there is no variable `name`, or no `name` in an object. */
struct chat_undefined {
	const char *object; /* name of the object's type, or NULL */
	struct chat_value name;
	const char *hint; /* the whole reason instead, or NULL */
};

struct chat_method {
	struct chat_value object;
	const struct chat_builtin *builtin;
};

#define CHAT_IS_SEQUENCE(value) ((value).type >= CHAT_LIST && (value).type <= CHAT_ITERATOR)
#define CHAT_IS_NUMBER(value) ((value).type >= CHAT_BOOL && (value).type <= CHAT_FLOAT)

/* ---- constructors ---- */

static inline struct chat_value chat_none(void)
{
	return (struct chat_value){.type = CHAT_NONE};
}

static inline struct chat_value chat_bool(bool boolean)
{
	return (struct chat_value){.type = CHAT_BOOL, .boolean = boolean};
}

static inline struct chat_value chat_int(int64_t integer)
{
	return (struct chat_value){.type = CHAT_INT, .integer = integer};
}

static inline struct chat_value chat_float(double real)
{
	return (struct chat_value){.type = CHAT_FLOAT, .real = real};
}

/* A variable, or an attribute or item of `object`, that does not exist. */
struct chat_value chat_undefined_name(struct chat_context *context, struct chat_value name);
struct chat_value chat_undefined_in(
	struct chat_context *context, struct chat_value object, struct chat_value name);
struct chat_value chat_undefined_hint(struct chat_context *context, const char *hint);
_Noreturn void chat_fail_undefined(struct chat_context *context, struct chat_value value);

struct chat_value chat_list_new(struct chat_context *context, enum chat_type type);
void chat_list_add(struct chat_context *context, struct chat_list *list, struct chat_value item);
struct chat_value chat_pair_new(
	struct chat_context *context, struct chat_value first, struct chat_value second);

/* ---- what Python asks of every value ---- */

/* Its name in Python, as in "int" or "dict". */
const char *chat_type_name(struct chat_value value);
bool chat_truth(struct chat_value value);
/* len(); -1: it has none. */
int64_t chat_length(struct chat_context *context, struct chat_value value);

struct chat_iterator {
	struct chat_value source;
	size_t at; /* byte of a string, item of anything else */
};
bool chat_is_iterable(struct chat_value value);
struct chat_iterator chat_iterate(struct chat_context *context, struct chat_value value);
bool chat_next(
	struct chat_context *context, struct chat_iterator *iterator, struct chat_value *ret_item);
/* list(): a list of the items. */
struct chat_list *chat_collect(struct chat_context *context, struct chat_value value);

/* The integer that a bool or an int stands for; anything else is a TypeError of `what`. */
int64_t chat_integer(struct chat_context *context, struct chat_value value, const char *what);

#endif
