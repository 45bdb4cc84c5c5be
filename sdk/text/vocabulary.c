/* SPDX-License-Identifier: MIT */
#include "sdk/text/vocabulary.h"

#include <assert.h>
#include <stdlib.h>

#include "sdk/text/hash.h"

int vocabulary_init(struct vocabulary *vocabulary, uint32_t n)
{
	*vocabulary = (struct vocabulary){
		.capacity = n > 0 ? n : 1,
		.n_slots = hash_slots(n),
		.seed = hash_seed(),
	};
	vocabulary->entries = malloc(vocabulary->capacity * sizeof(*vocabulary->entries));
	vocabulary->slots = calloc(vocabulary->n_slots, sizeof(*vocabulary->slots));
	return vocabulary->entries && vocabulary->slots ? 0 : MIMEO_E_NO_MEMORY;
}

void vocabulary_deinit(struct vocabulary *vocabulary)
{
	bytes_deinit(&vocabulary->text);
	free(vocabulary->entries);
	free(vocabulary->by_id);
	free(vocabulary->slots);
	*vocabulary = (struct vocabulary){0};
}

static struct vocabulary_slot *vocabulary_probe(
	const struct vocabulary *vocabulary, const char *token, size_t length, uint32_t *ret_hash)
{
	uint64_t hash = hash_bytes(vocabulary->seed, token, length);
	size_t mask = vocabulary->n_slots - 1;

	*ret_hash = (uint32_t)(hash >> 32);
	for (size_t i = hash & mask;; i = (i + 1) & mask) {
		struct vocabulary_slot *slot = &vocabulary->slots[i];

		if (slot->entry == 0)
			return slot;
		if (slot->hash != *ret_hash)
			continue;
		const struct vocabulary_entry *entry = &vocabulary->entries[slot->entry - 1];
		if (entry->length == length &&
			memcmp(vocabulary->text.data + entry->start, token, length) == 0)
			return slot;
	}
}

static int vocabulary_grow_ids(struct vocabulary *vocabulary, uint32_t n_ids)
{
	uint32_t capacity = vocabulary->by_id_capacity;

	if (n_ids > capacity) {
		capacity = capacity * 2 > n_ids ? capacity * 2 : n_ids;
		uint32_t *by_id = realloc(vocabulary->by_id, capacity * sizeof(*by_id));
		if (!by_id)
			return MIMEO_E_NO_MEMORY;
		vocabulary->by_id = by_id;
		vocabulary->by_id_capacity = capacity;
	}
	while (vocabulary->n_ids < n_ids)
		vocabulary->by_id[vocabulary->n_ids++] = 0;
	return 0;
}

int vocabulary_add(struct vocabulary *vocabulary, const char *token, size_t length, int32_t id)
{
	uint32_t hash, start = (uint32_t)vocabulary->text.length;

	if (id < 0 || (uint32_t)id >= VOCABULARY_IDS_MAX || vocabulary->n == vocabulary->capacity)
		return MIMEO_E_INVALID;
	if ((uint32_t)id >= vocabulary->n_ids &&
		vocabulary_grow_ids(vocabulary, (uint32_t)id + 1) < 0)
		return MIMEO_E_NO_MEMORY;
	if (vocabulary->by_id[id] != 0)
		return MIMEO_E_INVALID;
	bytes_add(&vocabulary->text, token, length);
	if (vocabulary->text.rc < 0)
		return vocabulary->text.rc;
	vocabulary->entries[vocabulary->n] =
		(struct vocabulary_entry){.start = start, .length = (uint32_t)length, .id = id};
	vocabulary->n++;
	vocabulary->by_id[id] = vocabulary->n;
	struct vocabulary_slot *slot = vocabulary_probe(vocabulary, token, length, &hash);
	vocabulary->n_distinct += slot->entry == 0;
	*slot = (struct vocabulary_slot){.hash = hash, .entry = vocabulary->n};
	assert(vocabulary->n_distinct <= vocabulary->n_slots / 2 + 1);
	return 0;
}

int32_t vocabulary_find(const struct vocabulary *vocabulary, const char *token, size_t length)
{
	uint32_t hash;
	const struct vocabulary_slot *slot = vocabulary_probe(vocabulary, token, length, &hash);

	return slot->entry > 0 ? vocabulary->entries[slot->entry - 1].id : -1;
}

const char *vocabulary_token(const struct vocabulary *vocabulary, int32_t id, size_t *ret_length)
{
	if (id < 0 || (uint32_t)id >= vocabulary->n_ids || vocabulary->by_id[id] == 0)
		return NULL;
	const struct vocabulary_entry *entry = &vocabulary->entries[vocabulary->by_id[id] - 1];
	*ret_length = entry->length;
	/* A vocabulary may consist of the empty token. */
	return vocabulary->text.data ? vocabulary->text.data + entry->start : "";
}
