/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_CHAT_LOOP_H
#define MIMEO_SDK_TEXT_CHAT_LOOP_H

/*
 * The progress of a for loop, which is its `loop` variable. Items are fetched, and filtered, only
 * when they are needed.
 */

#include "sdk/text/chat_builtin.h"

struct chat_loop {
	struct chat_iterator iterator;
	/* The test of "for x in y if test", or NULL. */
	bool (*accepts)(struct chat_loop *loop, struct chat_value item);
	/* loop(iterable) of a recursive loop, or NULL. */
	struct chat_value (*recurse)(struct chat_loop *loop, struct chat_value iterable);
	void *owner; /* for these two */

	int64_t index; /* of the current item; -1 before the first one */
	int64_t n;     /* of all items; -1: not counted yet */
	uint32_t depth;
	struct chat_value previous, current; /* MISSING: there is none */
	struct chat_value next;              /* MISSING: not fetched yet */
	bool is_exhausted;
	struct chat_value last_changed; /* MISSING, or the arguments of changed() */
};

/* False: there is no further item. */
bool chat_loop_next(
	struct chat_context *context, struct chat_loop *loop, struct chat_value *ret_item);
/* MISSING: it has no such attribute. */
struct chat_value chat_loop_attribute(
	struct chat_context *context, struct chat_value loop, const struct chat_string *name);

#endif
