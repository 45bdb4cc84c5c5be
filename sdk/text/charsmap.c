/* SPDX-License-Identifier: MIT */
#include "sdk/text/charsmap.h"

#include <assert.h>
#include <endian.h>
#include <stdlib.h>

#include <utf8proc.h>

#include "sdk/text/utf8.h"

/* ---- reading ---- */

static int charsmap_base64_value(char c)
{
	if (c >= 'A' && c <= 'Z')
		return c - 'A';
	if (c >= 'a' && c <= 'z')
		return c - 'a' + 26;
	if (c >= '0' && c <= '9')
		return c - '0' + 52;
	return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* 0, INVALID, or NO_MEMORY. */
static int charsmap_decode_base64(const char *text, size_t length, struct bytes *out)
{
	uint32_t bits = 0;
	unsigned n_bits = 0;

	while (length > 0 && text[length - 1] == '=')
		length--;
	if (bytes_reserve(out, length / 4 * 3 + 3) < 0)
		return out->rc;
	for (size_t i = 0; i < length; i++) {
		int value = charsmap_base64_value(text[i]);

		if (value < 0)
			return MIMEO_E_INVALID;
		bits = bits << 6 | (uint32_t)value;
		n_bits += 6;
		if (n_bits >= 8) {
			n_bits -= 8;
			out->data[out->length++] = (char)(bits >> n_bits);
		}
	}
	return 0;
}

/* The size of the trie, the trie, the strings. */
static int charsmap_take(struct charsmap *map, const struct bytes *blob, const char **ret_reason)
{
	uint32_t size;

	if (blob->length < sizeof(size)) {
		*ret_reason = "it is too short";
		return MIMEO_E_INVALID;
	}
	memcpy(&size, blob->data, sizeof(size));
	size = le32toh(size);
	if (size > blob->length - sizeof(size) || size < sizeof(uint32_t) ||
		size % sizeof(uint32_t)) {
		*ret_reason = "the size of its trie is wrong";
		return MIMEO_E_INVALID;
	}
	map->n_units = size / sizeof(uint32_t);
	map->units = malloc(size);
	map->strings_length = (uint32_t)(blob->length - sizeof(size) - size) + 1;
	map->strings = calloc(1, map->strings_length);
	if (!map->units || !map->strings)
		return MIMEO_E_NO_MEMORY;
	memcpy(map->units, blob->data + sizeof(size), size);
	for (uint32_t i = 0; i < map->n_units; i++)
		map->units[i] = le32toh(map->units[i]);
	memcpy(map->strings, blob->data + sizeof(size) + size, map->strings_length - 1);
	if (utf8_valid(map->strings, map->strings_length - 1) < map->strings_length - 1) {
		*ret_reason = "its strings are not UTF-8";
		return MIMEO_E_INVALID;
	}
	return 0;
}

int charsmap_init(struct charsmap *map, const char *base64, size_t length, const char **ret_reason)
{
	struct bytes blob = {0};

	*map = (struct charsmap){0};
	*ret_reason = "it is not base64";
	if (length > CHARSMAP_BYTES_MAX) {
		*ret_reason = "it is too long";
		return MIMEO_E_INVALID;
	}
	int rc = charsmap_decode_base64(base64, length, &blob);
	if (rc == 0)
		rc = charsmap_take(map, &blob, ret_reason);
	bytes_deinit(&blob);
	return rc;
}

void charsmap_deinit(struct charsmap *map)
{
	free(map->units);
	free(map->strings);
	*map = (struct charsmap){0};
}

/* ---- searching ---- */

/* The fields of a unit, as of Darts-clone. */
static bool charsmap_has_leaf(uint32_t unit)
{
	return unit >> 8 & 1;
}

static uint32_t charsmap_label(uint32_t unit)
{
	return unit & (1u << 31 | 0xff);
}

static uint32_t charsmap_offset(uint32_t unit)
{
	return unit >> 10 << ((unit & 1u << 9) >> 6);
}

static uint32_t charsmap_value(uint32_t unit)
{
	return unit & ~(1u << 31);
}

const char *charsmap_find(
	const struct charsmap *map, const char *text, size_t length, size_t *ret_length)
{
	uint32_t at = charsmap_offset(map->units[0]);

	for (size_t i = 0; i < length && text[i] != '\0'; i++) {
		at ^= (unsigned char)text[i];
		if (at >= map->n_units || charsmap_label(map->units[at]) != (unsigned char)text[i])
			return NULL;
		uint32_t unit = map->units[at];
		at ^= charsmap_offset(unit);
		if (!charsmap_has_leaf(unit))
			continue;
		if (at >= map->n_units)
			return NULL;
		uint32_t start = charsmap_value(map->units[at]);
		/* The string may begin within a character only if the file is damaged. */
		if (start >= map->strings_length || utf8_is_continuation(map->strings[start]))
			return NULL;
		*ret_length = strlen(map->strings + start);
		return map->strings + start;
	}
	return NULL;
}

size_t charsmap_cluster(const char *text, size_t length)
{
	utf8proc_int32_t state = 0;
	unsigned size;
	uint32_t before;
	size_t at = 0;

	assert(length > 0);
	do {
		before = utf8_decode(text + at, &size);
		at += size;
		/* Two ASCII characters are one cluster only if they are CR LF; the table is not needed for them. */
		if (at < length && before < 0x80 && (unsigned char)text[at] < 0x80 && state == 0) {
			if (before != '\r' || text[at] != '\n')
				break;
		}
	} while (at < length && !utf8proc_grapheme_break_stateful((utf8proc_int32_t)before,
					(utf8proc_int32_t)utf8_decode(text + at, &size), &state));
	return at;
}
