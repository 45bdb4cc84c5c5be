/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_IPC_MSG_TABLE_H
#define MIMEO_IPC_MSG_TABLE_H

/*
 * Headers by table (private to msg*.c): one entry a field says where it lies in the message's
 * struct, how it travels and what range it has. The table is the format: both directions follow it,
 * a key that it lacks is refused, and a field that is zero or empty is left out.
 */

#include <msgpack.h>

#include "ipc/msg.h"

enum msg_kind {
	MSG_KIND_U32,   /* uint32_t, min ... max */
	MSG_KIND_I32,   /* int32_t, min ... max */
	MSG_KIND_U64,   /* uint64_t, all of them */
	MSG_KIND_FLAGS, /* uint32_t, bits of max */
	MSG_KIND_F32,   /* float, min ... max, finite; integers are taken too */
	MSG_KIND_IDS,   /* int32_t[capacity], each 0 ... INT32_MAX, and a uint32_t count */
	MSG_KIND_TEXT,  /* char[capacity] with terminator: UTF-8 without control characters */
	MSG_KIND_BYTES, /* uint8_t[capacity], all of them; all zero: left out */
	MSG_KIND_LIST,  /* struct[capacity] after table `element`, and a uint32_t count */
};

struct msg_table;

struct msg_entry {
	uint8_t field; /* enum msg_field */
	uint8_t kind;  /* enum msg_kind */
	uint16_t capacity;
	uint32_t offset;   /* in the message's struct */
	uint32_t n_offset; /* of the count */
	double min, max;   /* either exactly a value of the kind */
	const struct msg_table *element;
};

struct msg_table {
	size_t bytes;       /* of the message's struct */
	unsigned n_entries; /* at most 32 */
	const struct msg_entry *entries;
};

#define MSG_TABLE(type, list)                                                                      \
	{                                                                                          \
		.bytes = sizeof(type), .n_entries = sizeof(list) / sizeof((list)[0]),              \
		.entries = (list)                                                                  \
	}

/* The sampling fields of a message that has a struct mimeo_sampling at `base`. */
/* clang-format off */
#define MSG_SAMPLING_ENTRIES(base)                                                                 \
	{.field = MSG_TEMPERATURE, .kind = MSG_KIND_F32, .max = FLT_MAX,                           \
		.offset = (base) + offsetof(struct mimeo_sampling, temperature)},                    \
	{.field = MSG_TOP_K, .kind = MSG_KIND_U32, .max = UINT32_MAX,                              \
		.offset = (base) + offsetof(struct mimeo_sampling, top_k)},                          \
	{.field = MSG_TOP_P, .kind = MSG_KIND_F32, .max = 1,                                       \
		.offset = (base) + offsetof(struct mimeo_sampling, top_p)},                          \
	{.field = MSG_MIN_P, .kind = MSG_KIND_F32, .max = 1,                                       \
		.offset = (base) + offsetof(struct mimeo_sampling, min_p)},                          \
	{.field = MSG_SEED, .kind = MSG_KIND_U64,                                                  \
		.offset = (base) + offsetof(struct mimeo_sampling, seed)},                           \
	{.field = MSG_SAMPLING_FLAGS, .kind = MSG_KIND_FLAGS,                                      \
		.max = MIMEO_SAMPLING_SEEDED | MIMEO_SAMPLING_MODEL,                                   \
		.offset = (base) + offsetof(struct mimeo_sampling, flags)}

/* The mask's fields of a message that has a struct mimeo_mask at `base`, of kinds up to `last`. */
#define MSG_MASK_ENTRIES(base, last)                                                               \
	{.field = MSG_MASK, .kind = MSG_KIND_U32, .max = (last),                                   \
		.offset = (base) + offsetof(struct mimeo_mask, kind)},                               \
	{.field = MSG_MASK_WINDOW, .kind = MSG_KIND_U32, .max = UINT32_MAX,                        \
		.offset = (base) + offsetof(struct mimeo_mask, window)},                             \
	{.field = MSG_MASK_SINKS, .kind = MSG_KIND_U32, .max = UINT32_MAX,                         \
		.offset = (base) + offsetof(struct mimeo_mask, sinks)},                              \
	{.field = MSG_MASK_PREFIX, .kind = MSG_KIND_U32, .max = UINT32_MAX,                        \
		.offset = (base) + offsetof(struct mimeo_mask, prefix)}
/* clang-format on */

/* Bytes written, -ENOSPC, or -EINVAL if a count exceeds its capacity. */
int msg_table_encode(const struct msg_table *table, const void *msg, void *buffer, size_t size);

/* Check and parse data[size], at most `limit` bytes, into the codec's zone. 0, or E_INVALID. */
int msg_codec_parse(struct msg_codec *codec, const void *data, size_t size, size_t limit,
	msgpack_object *ret, struct msg_detail *ret_detail);
/* Forget what was parsed. */
void msg_codec_reset(struct msg_codec *codec);

/* Fill the message's struct, zeroed first, from a parsed map. 0, or E_INVALID with the field, and
 * *ret_msg half done. */
int msg_table_decode(const struct msg_table *table, const msgpack_object *object, void *ret_msg,
	struct msg_detail *ret_detail);

/* E_INVALID, for a field's value. */
int msg_refuse_field(struct msg_detail *ret_detail, unsigned field);

/* A number that the kind lacks, or one that it has no use for: 0, or E_INVALID. */
int msg_mask_check(const struct mimeo_mask *mask, struct msg_detail *ret_detail);

#endif
