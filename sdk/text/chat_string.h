/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_CHAT_STRING_H
#define MIMEO_SDK_TEXT_CHAT_STRING_H

/*
 * Strings and the text under construction that they come from.
 *
 * A string that was just built by + can be appended to in place as long as nobody else has done so:
 * a loop that builds its result by `x = x + y` copies each byte a few times, not once for each
 * turn.
 */

#include "sdk/text/chat_value.h"

/* Text under construction; it becomes a string by chat_text_string. */
struct chat_text {
	struct chat_context *context;
	char *bytes;      /* [capacity] */
	uint8_t *foreign; /* [capacity] */
	size_t length, capacity;
};

struct chat_text *chat_text_new(struct chat_context *context);
void chat_text_add(struct chat_text *text, const char *bytes, size_t length, bool foreign);
void chat_text_add_literal(struct chat_text *text, const char *terminated, bool foreign);
void chat_text_add_character(struct chat_text *text, int32_t character, bool foreign);
void chat_text_add_string(struct chat_text *text, const struct chat_string *string);
/* The bytes offset ... offset + length - 1 of a string. */
void chat_text_add_part(
	struct chat_text *text, const struct chat_string *string, size_t offset, size_t length);
struct chat_value chat_text_string(struct chat_text *text);

/* `bytes` are not copied: they have to live as long as the context. */
struct chat_value chat_string_wrap(
	struct chat_context *context, const char *bytes, size_t length, const uint8_t *foreign);
struct chat_value chat_string_literal(struct chat_context *context, const char *terminated);
/* The bytes offset ... offset + length - 1, shared with `base`. Markup stays markup. */
struct chat_value chat_string_part(
	struct chat_context *context, struct chat_value base, size_t offset, size_t length);
/* Plain strings; Markup is chat_escape's business. */
struct chat_value chat_string_concat(
	struct chat_context *context, const struct chat_string *a, const struct chat_string *b);

/*
 * Make a string read-only, so that several threads can use it: nothing is computed or appended
 * later.
 */
void chat_string_freeze(struct chat_context *context, struct chat_string *string);

/* Never 0. */
uint64_t chat_hash_bytes(const void *data, size_t n);
uint64_t chat_string_hash(struct chat_context *context, struct chat_string *string);
/* Number of characters, and the byte at which character `index` begins (0 ... number). */
size_t chat_string_count(struct chat_context *context, struct chat_string *string);
size_t chat_string_offset(struct chat_context *context, struct chat_string *string, size_t index);
/* Decode the character at byte `offset` < length. */
int32_t chat_string_at(const struct chat_string *string, size_t offset, size_t *ret_length);

/* Whether any byte is foreign. */
bool chat_string_is_foreign(const struct chat_string *string);
bool chat_string_is(const struct chat_string *string, const char *terminated);
int chat_string_compare(
	struct chat_context *context, const struct chat_string *a, const struct chat_string *b);
/*
 * The first byte >= `from` at which `needle` stands, or SIZE_MAX. The last one that ends at or
 * before `end`.
 */
size_t chat_string_find(struct chat_context *context, const struct chat_string *string,
	const struct chat_string *needle, size_t from);
size_t chat_string_find_last(struct chat_context *context, const struct chat_string *string,
	const struct chat_string *needle, size_t end);

/* HTML-escape & < > ' " and mark the result; Markup is returned as it is. */
struct chat_value chat_escape(struct chat_context *context, struct chat_value string);

#endif
