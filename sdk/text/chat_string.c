/* SPDX-License-Identifier: MIT */
#include <assert.h>
#include <string.h>

#include <mimeo/text.h>
#include <utf8proc.h>

#include "sdk/text/chat_string.h"

#define TEXT_CAPACITY_MIN 64

/* ---- text ---- */

struct chat_text *chat_text_new(struct chat_context *context)
{
	struct chat_text *text = CHAT_NEW(context, struct chat_text);

	text->context = context;
	return text;
}

static void chat_text_reserve(struct chat_text *text, size_t n)
{
	struct chat_text old = *text;

	if (n > MIMEO_TEXT_MAX - text->length)
		chat_fail(
			text->context, MIMEO_E_TOO_LONG, "a text exceeds %u bytes", MIMEO_TEXT_MAX);
	if (n <= text->capacity - text->length)
		return;
	text->capacity = text->length + n < TEXT_CAPACITY_MIN ? TEXT_CAPACITY_MIN
							      : (text->length + n) / 2 * 3;
	text->bytes = chat_alloc(text->context, text->capacity);
	text->foreign = chat_alloc(text->context, text->capacity);
	chat_charge_bytes(text->context, 2 * old.length);
	if (old.length) {
		memcpy(text->bytes, old.bytes, old.length);
		memcpy(text->foreign, old.foreign, old.length);
	}
}

void chat_text_add(struct chat_text *text, const char *bytes, size_t length, bool foreign)
{
	chat_text_reserve(text, length);
	chat_charge_bytes(text->context, length);
	if (!length)
		return;
	memcpy(text->bytes + text->length, bytes, length);
	memset(text->foreign + text->length, foreign, length);
	text->length += length;
}

void chat_text_add_literal(struct chat_text *text, const char *terminated, bool foreign)
{
	chat_text_add(text, terminated, strlen(terminated), foreign);
}

void chat_text_add_character(struct chat_text *text, int32_t character, bool foreign)
{
	char bytes[4];

	chat_text_add(text, bytes,
		(size_t)utf8proc_encode_char(character, (utf8proc_uint8_t *)bytes), foreign);
}

void chat_text_add_part(
	struct chat_text *text, const struct chat_string *string, size_t offset, size_t length)
{
	size_t at = text->length;

	assert(offset <= string->length && length <= string->length - offset);
	chat_text_add(text, string->bytes + offset, length, false);
	if (string->foreign && length)
		memcpy(text->foreign + at, string->foreign + offset, length);
}

void chat_text_add_string(struct chat_text *text, const struct chat_string *string)
{
	chat_text_add_part(text, string, 0, string->length);
}

struct chat_value chat_text_string(struct chat_text *text)
{
	struct chat_value result =
		chat_string_wrap(text->context, text->bytes, text->length, text->foreign);

	result.string->text = text;
	return result;
}

/* ---- strings ---- */

struct chat_value chat_string_wrap(
	struct chat_context *context, const char *bytes, size_t length, const uint8_t *foreign)
{
	struct chat_string *string = CHAT_NEW(context, struct chat_string);

	string->bytes = length ? bytes : "";
	string->foreign = length ? foreign : NULL;
	string->length = length;
	string->n_characters = length < 2 ? length : SIZE_MAX;
	return (struct chat_value){.type = CHAT_STRING, .string = string};
}

struct chat_value chat_string_literal(struct chat_context *context, const char *terminated)
{
	return chat_string_wrap(context, terminated, strlen(terminated), NULL);
}

struct chat_value chat_string_part(
	struct chat_context *context, struct chat_value base, size_t offset, size_t length)
{
	const struct chat_string *string = base.string;
	struct chat_value part;

	assert(base.type == CHAT_STRING);
	assert(offset <= string->length && length <= string->length - offset);
	if (length == string->length)
		return base;
	part = chat_string_wrap(context, string->bytes + offset, length,
		string->foreign ? string->foreign + offset : NULL);
	part.is_markup = base.is_markup;
	if (string->n_characters == string->length)
		part.string->n_characters = length;
	part.string->text = length ? string->text : NULL;
	return part;
}

struct chat_value chat_string_concat(
	struct chat_context *context, const struct chat_string *a, const struct chat_string *b)
{
	struct chat_text *text = a->text;
	struct chat_value result;

	if (!a->length)
		return (struct chat_value){
			.type = CHAT_STRING, .string = (struct chat_string *)(uintptr_t)b};
	if (text && a->bytes + a->length == text->bytes + text->length &&
		b->length <= text->capacity - text->length) {
		chat_text_add_string(text, b);
	} else {
		text = chat_text_new(context);
		chat_text_reserve(text, a->length + b->length);
		chat_text_add_string(text, a);
		chat_text_add_string(text, b);
	}
	result = chat_string_wrap(context, text->bytes + text->length - a->length - b->length,
		a->length + b->length, text->foreign + text->length - a->length - b->length);
	result.string->text = text;
	return result;
}

void chat_string_freeze(struct chat_context *context, struct chat_string *string)
{
	chat_string_count(context, string);
	chat_string_hash(context, string);
	string->text = NULL;
}

uint64_t chat_hash_bytes(const void *data, size_t n)
{
	const unsigned char *bytes = data;
	uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */

	for (size_t i = 0; i < n; i++)
		hash = (hash ^ bytes[i]) * 0x100000001b3u;
	return (hash ^ hash >> 32) | 1;
}

uint64_t chat_string_hash(struct chat_context *context, struct chat_string *string)
{
	if (!string->hash) {
		chat_charge_bytes(context, string->length);
		string->hash = chat_hash_bytes(string->bytes, string->length);
	}
	return string->hash;
}

size_t chat_string_count(struct chat_context *context, struct chat_string *string)
{
	size_t n = 0;

	if (string->n_characters != SIZE_MAX)
		return string->n_characters;
	chat_charge_bytes(context, string->length);
	for (size_t i = 0; i < string->length; i++)
		n += ((unsigned char)string->bytes[i] & 0xc0) != 0x80;
	string->n_characters = n;
	return n;
}

size_t chat_string_offset(struct chat_context *context, struct chat_string *string, size_t index)
{
	size_t n = chat_string_count(context, string);
	size_t offset = 0;

	assert(index <= n);
	if (n == string->length || !index)
		return index;
	if (index == n)
		return string->length;
	for (size_t i = 0; i < index; i++) {
		do
			offset++;
		while (((unsigned char)string->bytes[offset] & 0xc0) == 0x80);
	}
	chat_charge_bytes(context, offset);
	return offset;
}

int32_t chat_string_at(const struct chat_string *string, size_t offset, size_t *ret_length)
{
	utf8proc_int32_t character;
	utf8proc_ssize_t n;

	assert(offset < string->length);
	n = utf8proc_iterate((const utf8proc_uint8_t *)string->bytes + offset,
		(utf8proc_ssize_t)(string->length - offset), &character);
	assert(n > 0);
	*ret_length = (size_t)n;
	return character;
}

bool chat_string_is_foreign(const struct chat_string *string)
{
	return string->foreign && memchr(string->foreign, 1, string->length);
}

bool chat_string_is(const struct chat_string *string, const char *terminated)
{
	return string->length == strlen(terminated) &&
	       !memcmp(string->bytes, terminated, string->length);
}

/* The order of code points, which is that of UTF-8's bytes. */
int chat_string_compare(
	struct chat_context *context, const struct chat_string *a, const struct chat_string *b)
{
	size_t n = a->length < b->length ? a->length : b->length;
	int order = memcmp(a->bytes, b->bytes, n);

	chat_charge_bytes(context, n);
	return order ? order : (a->length > b->length) - (a->length < b->length);
}

size_t chat_string_find(struct chat_context *context, const struct chat_string *string,
	const struct chat_string *needle, size_t from)
{
	const char *found;

	if (from > string->length || needle->length > string->length - from)
		return SIZE_MAX;
	found = memmem(string->bytes + from, string->length - from, needle->bytes, needle->length);
	chat_charge_bytes(context, found ? (size_t)(found - string->bytes) - from + needle->length
					 : string->length - from);
	return found ? (size_t)(found - string->bytes) : SIZE_MAX;
}

size_t chat_string_find_last(struct chat_context *context, const struct chat_string *string,
	const struct chat_string *needle, size_t end)
{
	assert(end <= string->length);
	if (needle->length > end)
		return SIZE_MAX;
	for (size_t at = end - needle->length;; at--) {
		chat_charge_bytes(context, needle->length + CHAT_STEP_BYTES / 2);
		if (!memcmp(string->bytes + at, needle->bytes, needle->length))
			return at;
		if (!at)
			return SIZE_MAX;
	}
}

struct chat_value chat_escape(struct chat_context *context, struct chat_value string)
{
	static const char specials[] = "&<>'\"";
	static const char *const escapes[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
	const struct chat_string *source = string.string;
	struct chat_text *text;
	struct chat_value result;
	size_t start = 0;

	assert(string.type == CHAT_STRING);
	if (string.is_markup)
		return string;
	text = chat_text_new(context);
	for (size_t i = 0; i < source->length; i++) {
		const char *special = memchr(specials, source->bytes[i], sizeof(specials) - 1);

		if (!special)
			continue;
		chat_text_add_part(text, source, start, i - start);
		chat_text_add_literal(
			text, escapes[special - specials], source->foreign && source->foreign[i]);
		start = i + 1;
	}
	chat_text_add_part(text, source, start, source->length - start);
	result = chat_text_string(text);
	result.is_markup = true;
	return result;
}
