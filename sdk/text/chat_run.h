/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_CHAT_RUN_H
#define MIMEO_SDK_TEXT_CHAT_RUN_H

/*
 * The state of one render, and the evaluation of nodes.
 *
 * Variables: a scope is a block with variables of its own (the template, each turn of a loop, a
 * macro's body, and so on). What is set in a scope ends with it; what is not set there is looked up
 * outward, along the scopes in which the code stands, and at last among the variables of the
 * render.
 */

#include "sdk/text/chat_node.h"
#include "sdk/text/chat_string.h"

struct chat_binding {
	struct chat_binding *next;
	uint32_t symbol;
	struct chat_value value;
};

struct chat_scope {
	struct chat_scope *parent;
	struct chat_binding *bindings; /* a value that is MISSING: not set */
};

struct chat_run {
	struct chat_context context;
	const struct chat_tree *tree;
	struct chat_value *variables; /* [tree->n_symbols] of the render, or undefined */
	struct chat_text *output;
	struct chat_value captured; /* the text of the innermost block that is filtered */
};

struct chat_macro {
	const struct chat_node *node; /* MACRO */
	struct chat_scope *scope;     /* in which it is defined */
	struct chat_value (*call)(struct chat_run *run, const struct chat_macro *macro,
		const struct chat_list *positional, const struct chat_dict *keywords);
};

struct chat_scope *chat_scope_new(struct chat_run *run, struct chat_scope *parent);
/* Nothing is set any more. The turns of a loop share a scope, also for the macros that refer to it.
 */
void chat_scope_empty(struct chat_run *run, struct chat_scope *scope);
/* The binding of a symbol in the scope itself, or NULL. */
struct chat_binding *chat_scope_find(
	struct chat_run *run, const struct chat_scope *scope, uint32_t symbol);
void chat_scope_set(
	struct chat_run *run, struct chat_scope *scope, uint32_t symbol, struct chat_value value);
struct chat_value chat_scope_get(
	struct chat_run *run, const struct chat_scope *scope, uint32_t symbol);

struct chat_value chat_evaluate(
	struct chat_run *run, struct chat_scope *scope, const struct chat_node *node);
/* A CALL; `caller` is the macro of a call block, or MISSING. */
struct chat_value chat_evaluate_call(struct chat_run *run, struct chat_scope *scope,
	const struct chat_node *node, struct chat_value caller);

/* Run the statements of the template. */
void chat_execute(struct chat_run *run);

#endif
