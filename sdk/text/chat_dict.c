/* SPDX-License-Identifier: MIT */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "sdk/text/chat_dict.h"
#include "sdk/text/chat_string.h"

#define INDEX_MIN_PAIRS 8

struct chat_value chat_dict_new(struct chat_context *context)
{
	return (struct chat_value){.type = CHAT_DICT, .dict = CHAT_NEW(context, struct chat_dict)};
}

/* ---- equality ---- */

/* long double holds every int64_t and every double. */
static long double chat_number_value(struct chat_value value)
{
	if (value.type == CHAT_FLOAT)
		return value.real;
	return value.type == CHAT_INT ? (long double)value.integer : (long double)value.boolean;
}

int chat_number_order(struct chat_value a, struct chat_value b)
{
	long double x = chat_number_value(a), y = chat_number_value(b);

	return isnan(x) || isnan(y) ? 2 : (x > y) - (x < y);
}

static bool chat_dict_equal(
	struct chat_context *context, const struct chat_dict *a, const struct chat_dict *b)
{
	if (a->n != b->n)
		return false;
	for (size_t i = 0; i < a->n; i++) {
		const struct chat_value *other = chat_dict_find(context, b, a->pairs[i].key);

		if (!other || !chat_equal(context, a->pairs[i].value, *other))
			return false;
	}
	return true;
}

static bool chat_list_equal(
	struct chat_context *context, const struct chat_list *a, const struct chat_list *b)
{
	if (a->n != b->n)
		return false;
	for (size_t i = 0; i < a->n; i++) {
		if (!chat_equal(context, a->items[i], b->items[i]))
			return false;
	}
	return true;
}

static bool chat_equal_values(
	struct chat_context *context, struct chat_value a, struct chat_value b)
{
	if (CHAT_IS_NUMBER(a) && CHAT_IS_NUMBER(b))
		return chat_number_order(a, b) == 0;
	if (a.type != b.type)
		return false;
	switch (a.type) {
	case CHAT_UNDEFINED:
	case CHAT_NONE:
		return true;
	case CHAT_STRING:
		return a.string->length == b.string->length &&
		       !chat_string_compare(context, a.string, b.string);
	case CHAT_LIST:
	case CHAT_TUPLE:
	case CHAT_RANGE:
	case CHAT_KEYS:
	case CHAT_ITEMS:
		return chat_list_equal(context, a.list, b.list);
	case CHAT_DICT:
		return chat_dict_equal(context, a.dict, b.dict);
	default:
		return a.list == b.list;
	}
}

bool chat_equal(struct chat_context *context, struct chat_value a, struct chat_value b)
{
	bool result;

	chat_enter(context);
	result = chat_equal_values(context, a, b);
	chat_leave(context);
	return result;
}

/* ---- look-up ---- */

bool chat_is_hashable(struct chat_context *context, struct chat_value value)
{
	bool result = true;

	if (value.type != CHAT_TUPLE)
		return value.type != CHAT_LIST && value.type != CHAT_DICT &&
		       value.type != CHAT_KEYS && value.type != CHAT_ITEMS;
	chat_enter(context);
	for (size_t i = 0; i < value.list->n && result; i++)
		result = chat_is_hashable(context, value.list->items[i]);
	chat_leave(context);
	return result;
}

static uint64_t chat_hash(struct chat_context *context, struct chat_value value)
{
	long double number;
	uint64_t hash = 17;

	switch (value.type) {
	case CHAT_STRING:
		return chat_string_hash(context, value.string);
	case CHAT_BOOL:
	case CHAT_INT:
	case CHAT_FLOAT:
		number = chat_number_value(value);
		hash = (uint64_t)(fabsl(number) < 0x1p63L ? (int64_t)number : 1);
		return chat_hash_bytes(&hash, sizeof(hash));
	case CHAT_TUPLE:
		chat_enter(context);
		for (size_t i = 0; i < value.list->n; i++)
			hash = 31 * hash + chat_hash(context, value.list->items[i]);
		chat_leave(context);
		return hash;
	default:
		if (!chat_is_hashable(context, value))
			chat_fail(context, MIMEO_E_INVALID, "a %s cannot be the key of a dict",
				chat_type_name(value));
		return value.type;
	}
}

/* The position of the key, or n; *ret_slot: its place in the index, or the free one for it. */
static size_t chat_dict_locate(struct chat_context *context, const struct chat_dict *dict,
	struct chat_value key, uint64_t hash, size_t *ret_slot)
{
	size_t slot = 0;

	if (!dict->index) {
		for (size_t i = 0; i < dict->n; i++) {
			if (dict->pairs[i].hash == hash &&
				chat_equal(context, dict->pairs[i].key, key))
				return i;
		}
		return dict->n;
	}
	for (slot = hash & (dict->n_index - 1); dict->index[slot];
		slot = (slot + 1) & (dict->n_index - 1)) {
		const struct chat_pair *pair = &dict->pairs[dict->index[slot] - 1];

		chat_charge(context, 1);
		if (pair->hash == hash && chat_equal(context, pair->key, key))
			break;
	}
	*ret_slot = slot;
	return dict->index[slot] ? dict->index[slot] - 1 : dict->n;
}

struct chat_value *chat_dict_find(
	struct chat_context *context, const struct chat_dict *dict, struct chat_value key)
{
	size_t slot, at = chat_dict_locate(context, dict, key, chat_hash(context, key), &slot);

	return at < dict->n ? &dict->pairs[at].value : NULL;
}

struct chat_value *chat_dict_find_name(
	struct chat_context *context, const struct chat_dict *dict, const char *name)
{
	return chat_dict_find(context, dict, chat_string_literal(context, name));
}

static void chat_dict_reindex(struct chat_context *context, struct chat_dict *dict)
{
	size_t mask;

	dict->n_index = 4 * dict->capacity;
	mask = dict->n_index - 1;
	assert(!(dict->n_index & mask) && dict->n < UINT32_MAX);
	dict->index = chat_alloc(context, dict->n_index * sizeof(*dict->index));
	for (size_t i = 0; i < dict->n; i++) {
		size_t slot = dict->pairs[i].hash & mask;

		while (dict->index[slot])
			slot = (slot + 1) & mask;
		dict->index[slot] = (uint32_t)i + 1;
	}
}

void chat_dict_set(struct chat_context *context, struct chat_dict *dict, struct chat_value key,
	struct chat_value value)
{
	uint64_t hash = chat_hash(context, key);
	size_t slot = 0, at = chat_dict_locate(context, dict, key, hash, &slot);

	if (at < dict->n) {
		dict->pairs[at].value = value;
		return;
	}
	if (dict->n == dict->capacity) {
		dict->pairs =
			chat_grow(context, dict->pairs, &dict->capacity, sizeof(*dict->pairs));
		if (dict->n >= INDEX_MIN_PAIRS)
			chat_dict_reindex(context, dict);
		chat_dict_locate(context, dict, key, hash, &slot);
	}
	dict->pairs[dict->n] = (struct chat_pair){key, value, hash};
	dict->n++;
	if (dict->index)
		dict->index[slot] = (uint32_t)dict->n;
}
