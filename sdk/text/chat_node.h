/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_CHAT_NODE_H
#define MIMEO_SDK_TEXT_CHAT_NODE_H

/*
 * A parsed template. Statements and expressions are nodes of one type; what a node's members hold
 * depends on its kind. "List" is a chain of nodes through `next`. Where a member may be absent it
 * is NULL, or MISSING for a value.
 *
 * Names are numbered: `symbol` is a variable's index in chat_tree.symbols.
 */

#include "sdk/text/chat_value.h"

enum chat_node_kind {
	/* statements */
	CHAT_NODE_DATA,  /* value: text */
	CHAT_NODE_PRINT, /* a */
	CHAT_NODE_IF,    /* a: test, b: list of then, c: list of else */
	CHAT_NODE_FOR, /* a: target, b: iterable, c: list, d: list of else, e: test; flag: recursive
			*/
	CHAT_NODE_SET, /* a: target, b */
	CHAT_NODE_SET_BLOCK,  /* a: target, b: list, c: filters of a CAPTURED, or NULL */
	CHAT_NODE_MACRO,      /* symbol, value: its name, a: list of PARAMETER, b: list; flag: enum
				 chat_macro_flag */
	CHAT_NODE_CALL_BLOCK, /* a: CALL, b: MACRO without a symbol, which is the caller */
	CHAT_NODE_FILTER_BLOCK, /* a: filters of a CAPTURED, b: list */
	CHAT_NODE_WITH,         /* a: list of SET, b: list */
	CHAT_NODE_SCOPE,        /* b: list ({% generation %}) */
	CHAT_NODE_BREAK,
	CHAT_NODE_CONTINUE,
	/* expressions */
	CHAT_NODE_CONSTANT,  /* value */
	CHAT_NODE_CAPTURED,  /* the text of the block that is filtered */
	CHAT_NODE_NAME,      /* symbol; also a target */
	CHAT_NODE_TUPLE,     /* a: list; also a target */
	CHAT_NODE_LIST,      /* a: list */
	CHAT_NODE_DICT,      /* a: list of key, value, key, value ... */
	CHAT_NODE_ATTRIBUTE, /* a, value: name; also a target, of a namespace */
	CHAT_NODE_ITEM,      /* a, b: index */
	CHAT_NODE_SLICE,     /* a, b: start, c: stop, d: step */
	CHAT_NODE_CALL,      /* a, b: list of arguments */
	CHAT_NODE_FILTER,    /* a, b: list of arguments, value: name, builtin: NULL if unknown */
	CHAT_NODE_TEST,      /* the same */
	CHAT_NODE_NEGATE,    /* a */
	CHAT_NODE_PLUS,      /* a */
	CHAT_NODE_NOT,       /* a */
	CHAT_NODE_AND,       /* a, b */
	CHAT_NODE_OR,        /* a, b */
	CHAT_NODE_BINARY,    /* a, b; flag: enum chat_operator */
	CHAT_NODE_COMPARE,   /* a, b: list of OPERAND */
	CHAT_NODE_CONCAT,    /* a: list */
	CHAT_NODE_CHOICE,    /* a: test, b: then, c: else or NULL */
	/* parts of others */
	CHAT_NODE_PARAMETER,   /* symbol, value: name, a: default or NULL */
	CHAT_NODE_OPERAND,     /* a; flag: enum chat_operator */
	CHAT_NODE_KEYWORD,     /* an argument name=a; value: name */
	CHAT_NODE_EXPAND,      /* arguments *a */
	CHAT_NODE_EXPAND_DICT, /* arguments **a */
};

enum chat_macro_flag {
	CHAT_MACRO_CALLER = 1, /* its body uses the variable `caller` */
	CHAT_MACRO_KWARGS = 2,
	CHAT_MACRO_VARARGS = 4,
};

struct chat_node {
	enum chat_node_kind kind;
	uint32_t line;
	uint32_t symbol;
	uint32_t flag;
	struct chat_node *next;
	struct chat_node *a, *b, *c, *d, *e;
	struct chat_value value;
	const struct chat_builtin *builtin;
};

/* The variables that the language itself sets. */
enum chat_symbol {
	CHAT_SYMBOL_LOOP,
	CHAT_SYMBOL_CALLER,
	CHAT_SYMBOL_KWARGS,
	CHAT_SYMBOL_VARARGS,
	CHAT_SYMBOLS_FIXED,
};

struct chat_tree {
	struct chat_node *body;     /* list */
	struct chat_value *symbols; /* [n_symbols] names */
	size_t n_symbols, capacity;
};

/* Parse a source of valid UTF-8; everything is allocated in the context. */
struct chat_tree *chat_parse(struct chat_context *context, const char *source, size_t length);

#endif
