/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_CHAT_CONTEXT_H
#define MIMEO_SDK_TEXT_CHAT_CONTEXT_H

/*
 * The resources of one parse or one render of a chat template: memory, steps and depth, and
 * the error that ends it.
 *
 * All memory comes from the context and is released with it. So an error needs no clean-up on
 * its way: it unwinds by longjmp to the function that owns the context, from any depth:
 *
 *	chat_context_init(&context, message, size);
 *	if (!setjmp(context.unwind))
 *		...
 *	status = context.status;
 *	chat_context_deinit(&context);
 */

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>

#include <mimeo/types.h>

#define CHAT_SOURCE_MAX (1u << 20)   /* bytes of a template */
#define CHAT_MEMORY_MAX (1ull << 30) /* bytes that a parse or a render allocates */
/* Nodes that a render evaluates, and what is charged for its data. Fuzzing sets fewer. */
#ifndef CHAT_STEPS_MAX
#define CHAT_STEPS_MAX (1ull << 26)
#endif
#define CHAT_STEP_BYTES 16    /* bytes copied, compared or searched that count as one step */
#define CHAT_STEP_BINDINGS 8  /* variables or scopes walked that count as one step */
#define CHAT_DEPTH_MAX 800    /* nested constructs, calls and values */
#define CHAT_RANGE_MAX 100000 /* items of a range(), as in Jinja's sandbox */

struct chat_chunk;

struct chat_context {
	struct chat_chunk *chunks;
	uint64_t memory_left;
	uint64_t steps_left;
	uint32_t depth;
	uint32_t line; /* of the construct that is parsed or evaluated: errors name it */

	int status;
	char *message; /* [size] */
	size_t size;
	jmp_buf unwind;
};

void chat_context_init(struct chat_context *context, char *message, size_t size);
void chat_context_deinit(struct chat_context *context);

/* Zeroed memory that lives as long as the context. Never NULL. */
void *chat_alloc(struct chat_context *context, size_t size);
#define CHAT_NEW(context, type) ((type *)chat_alloc(context, sizeof(type)))
/* An array that grows: [capacity] items of `size` bytes move to a larger one. */
void *chat_grow(struct chat_context *context, const void *items, size_t *capacity, size_t size);

void chat_charge(struct chat_context *context, uint64_t steps);
void chat_charge_bytes(struct chat_context *context, size_t n);
void chat_enter(struct chat_context *context);
void chat_leave(struct chat_context *context);

/* Unwind with a negative enum mimeo_status and "line L: ...". */
_Noreturn void chat_fail(struct chat_context *context, int status, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* The template's own error: its text is the whole message. */
_Noreturn void chat_raise(struct chat_context *context, const char *text, size_t length);

/* Write a message and cut it between characters if it is too long. */
void chat_message(char *message, size_t size, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
