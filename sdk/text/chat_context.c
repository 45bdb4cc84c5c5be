/* SPDX-License-Identifier: MIT */
#include <assert.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sdk/text/chat_context.h"
#include "sdk/text/fault.h"

#define CHUNK_BYTES (64u << 10)
#define CHUNK_ALIGN 16u

struct chat_chunk {
	struct chat_chunk *next;
	size_t used, capacity;
	_Alignas(CHUNK_ALIGN) char bytes[];
};

void chat_context_init(struct chat_context *context, char *message, size_t size)
{
	*context = (struct chat_context){
		.memory_left = CHAT_MEMORY_MAX,
		.steps_left = CHAT_STEPS_MAX,
		.line = 1,
		.message = message,
		.size = size,
	};
	if (size)
		message[0] = 0;
}

void chat_context_deinit(struct chat_context *context)
{
	struct chat_chunk *next;

	for (struct chat_chunk *chunk = context->chunks; chunk; chunk = next) {
		next = chunk->next;
		free(chunk);
	}
	context->chunks = NULL;
}

/* ---- errors ---- */

static void chat_message_format(char *message, size_t size, const char *format, va_list arguments)
{
	if (!size)
		return;
	fault_clean(message, (size_t)vsnprintf(message, size, format, arguments) >= size);
}

void chat_message(char *message, size_t size, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	chat_message_format(message, size, format, arguments);
	va_end(arguments);
}

void chat_fail(struct chat_context *context, int status, const char *format, ...)
{
	char prefix[24];
	size_t length = (size_t)snprintf(prefix, sizeof(prefix), "line %u: ", context->line);
	va_list arguments;

	assert(status < 0);
	context->status = status;
	va_start(arguments, format);
	chat_message(context->message, context->size, "%s", prefix);
	if (context->size > length)
		chat_message_format(
			context->message + length, context->size - length, format, arguments);
	va_end(arguments);
	longjmp(context->unwind, 1);
}

void chat_raise(struct chat_context *context, const char *text, size_t length)
{
	context->status = MIMEO_E_INVALID;
	chat_message(context->message, context->size, "%.*s",
		(int)(length < 65536 ? length : 65536), text);
	longjmp(context->unwind, 1);
}

/* ---- limits ---- */

void chat_charge(struct chat_context *context, uint64_t steps)
{
	if (steps > context->steps_left)
		chat_fail(context, MIMEO_E_TOO_LONG, "the template takes more than %llu steps",
			CHAT_STEPS_MAX);
	context->steps_left -= steps;
}

void chat_charge_bytes(struct chat_context *context, size_t n)
{
	chat_charge(context, n / CHAT_STEP_BYTES);
}

void chat_enter(struct chat_context *context)
{
	if (context->depth >= CHAT_DEPTH_MAX)
		chat_fail(context, MIMEO_E_TOO_LONG,
			"more than %d nested constructs, calls or values", CHAT_DEPTH_MAX);
	context->depth++;
	chat_charge(context, 1);
}

void chat_leave(struct chat_context *context)
{
	assert(context->depth);
	context->depth--;
}

/* ---- memory ---- */

/* A chunk for one large allocation goes behind the first one, whose free bytes stay in use. */
static struct chat_chunk *chat_context_add_chunk(struct chat_context *context, size_t size)
{
	size_t capacity = size > CHUNK_BYTES ? size : CHUNK_BYTES;
	struct chat_chunk *chunk, **link = &context->chunks;

	if (capacity > context->memory_left)
		chat_fail(context, MIMEO_E_TOO_LONG,
			"the template takes more than %llu MiB of memory", CHAT_MEMORY_MAX >> 20);
	chunk = calloc(1, sizeof(*chunk) + capacity);
	if (!chunk)
		chat_fail(context, MIMEO_E_NO_MEMORY, "no memory for %zu bytes", capacity);
	chunk->capacity = capacity;
	if (size > CHUNK_BYTES && context->chunks)
		link = &context->chunks->next;
	chunk->next = *link;
	*link = chunk;
	context->memory_left -= capacity;
	return chunk;
}

void *chat_alloc(struct chat_context *context, size_t size)
{
	struct chat_chunk *chunk = context->chunks;
	void *result;

	if (size > CHAT_MEMORY_MAX)
		size = CHAT_MEMORY_MAX + 1;
	size = (size + CHUNK_ALIGN - 1) / CHUNK_ALIGN * CHUNK_ALIGN;
	if (!chunk || size > chunk->capacity - chunk->used)
		chunk = chat_context_add_chunk(context, size);
	result = chunk->bytes + chunk->used;
	chunk->used += size;
	return result;
}

void *chat_grow(struct chat_context *context, const void *items, size_t *capacity, size_t size)
{
	size_t grown = *capacity ? 2 * *capacity : 8;
	void *result;

	result = chat_alloc(context, grown * size);
	if (*capacity)
		memcpy(result, items, *capacity * size);
	chat_charge_bytes(context, *capacity * size);
	*capacity = grown;
	return result;
}
