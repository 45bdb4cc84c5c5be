/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_IPC_MSG_TABLE_H
#define MIMEO_IPC_MSG_TABLE_H

/*
 * Message headers by table, for msg*.c and tests. The table of a message is its format: one entry for
 * each field says where it lies in the message's struct, how it is encoded and which values are
 * accepted. Encoding and decoding follow it and apply the same ranges.
 */

#include <float.h>
#include <msgpack.h>
#include <string.h>

#include "ipc/msg.h"

enum msg_kind {
	MSG_KIND_U32,   /* uint32_t, min ... max */
	MSG_KIND_I32,   /* int32_t, min ... max */
	MSG_KIND_U64,   /* uint64_t, all values */
	MSG_KIND_FLAGS, /* uint32_t, bits of max */
	MSG_KIND_F32,   /* float, min ... max, finite; decoding accepts integers */
	MSG_KIND_IDS,   /* int32_t[capacity], each 0 ... INT32_MAX, and a uint32_t count */
	MSG_KIND_TEXT,  /* char[capacity] with terminator: UTF-8 without control characters */
	MSG_KIND_BYTES, /* uint8_t[capacity], all of them; all zero: left out */
	MSG_KIND_LIST,  /* struct[capacity] by table `element`, and a uint32_t count */
};

struct msg_table;

struct msg_entry {
	uint8_t field; /* enum msg_field */
	uint8_t kind;  /* enum msg_kind */
	uint16_t capacity;
	uint32_t offset;   /* in the message's struct */
	uint32_t n_offset; /* of the count */
	double min, max;   /* both are values of the kind */
	const struct msg_table *element;
};

#define MSG_TABLE_ENTRIES_MAX 32u

struct msg_table {
	size_t bytes; /* of the message's struct */
	unsigned n_entries;
	const struct msg_entry *entries;
	/* Checks what ranges of single fields do not cover: 0, or E_INVALID with the detail; or NULL. */
	int (*check)(const void *msg, struct msg_detail *ret_detail);
	/* For msg_codec_decode; 0 in tables of elements. */
	size_t limit;   /* bytes of an encoded message */
	int malformed;  /* the status of a message that is not a bounded map, */
	int refused;    /* or of one with a field that is refused */
	bool versioned; /* MSG_VERSION is checked first */
};

#define MSG_TABLE(type, list, check_function, ...)                                                 \
	{                                                                                          \
		.bytes = sizeof(type), .n_entries = sizeof(list) / sizeof((list)[0]),              \
		.entries = (list), .check = (check_function), __VA_ARGS__                          \
	}

/* Entries of each kind, of a message of that type. */
/* clang-format off */
#define MSG_ENTRY_U32(name, type, member, least, most)                                             \
	{.field = (name), .kind = MSG_KIND_U32, .offset = offsetof(type, member), .min = (least),  \
		.max = (most)}
#define MSG_ENTRY_I32(name, type, member, least, most)                                             \
	{.field = (name), .kind = MSG_KIND_I32, .offset = offsetof(type, member), .min = (least),  \
		.max = (most)}
#define MSG_ENTRY_U64(name, type, member)                                                          \
	{.field = (name), .kind = MSG_KIND_U64, .offset = offsetof(type, member)}
#define MSG_ENTRY_F32(name, type, member, most)                                                    \
	{.field = (name), .kind = MSG_KIND_F32, .offset = offsetof(type, member), .max = (most)}
#define MSG_ENTRY_F32_FROM(name, type, member, least, most)                                        \
	{.field = (name), .kind = MSG_KIND_F32, .offset = offsetof(type, member), .min = (least),  \
		.max = (most)}
#define MSG_ENTRY_FLAGS(name, type, member, bits)                                                  \
	{.field = (name), .kind = MSG_KIND_FLAGS, .offset = offsetof(type, member), .max = (bits)}
#define MSG_ENTRY_TEXT(name, type, member)                                                         \
	{.field = (name), .kind = MSG_KIND_TEXT, .offset = offsetof(type, member),                 \
		.capacity = sizeof(((type *)0)->member)}
#define MSG_ENTRY_BYTES(name, type, member)                                                        \
	{.field = (name), .kind = MSG_KIND_BYTES, .offset = offsetof(type, member),                \
		.capacity = sizeof(((type *)0)->member)}
#define MSG_ENTRY_IDS(name, type, member, n_member)                                                \
	{.field = (name), .kind = MSG_KIND_IDS, .offset = offsetof(type, member),                  \
		.n_offset = offsetof(type, n_member), .capacity = MIMEO_STOP_MAX}

/* The fields of a struct mimeo_sampling, mimeo_place or mimeo_mask that is a member of the message. */
#define MSG_ENTRIES_SAMPLING(type, member)                                                         \
	MSG_ENTRY_F32(MSG_TEMPERATURE, type, member.temperature, FLT_MAX),                         \
	MSG_ENTRY_U32(MSG_TOP_K, type, member.top_k, 0, UINT32_MAX),                               \
	MSG_ENTRY_F32(MSG_TOP_P, type, member.top_p, 1),                                           \
	MSG_ENTRY_F32(MSG_MIN_P, type, member.min_p, 1),                                           \
	MSG_ENTRY_U64(MSG_SEED, type, member.seed),                                                \
	MSG_ENTRY_FLAGS(MSG_SAMPLING_FLAGS, type, member.flags,                                    \
		MIMEO_SAMPLING_SEEDED | MIMEO_SAMPLING_MODEL)
#define MSG_ENTRIES_PLACE(buffer_name, offset_name, type, member)                                  \
	MSG_ENTRY_U32(buffer_name, type, member.buffer, 0, UINT32_MAX),                            \
	MSG_ENTRY_U64(offset_name, type, member.offset)
#define MSG_ENTRIES_MASK(type, member, last_kind)                                                  \
	MSG_ENTRY_U32(MSG_MASK, type, member.kind, 0, last_kind),                                  \
	MSG_ENTRY_U32(MSG_MASK_WINDOW, type, member.window, 0, UINT32_MAX),                        \
	MSG_ENTRY_U32(MSG_MASK_SINKS, type, member.sinks, 0, UINT32_MAX),                          \
	MSG_ENTRY_U32(MSG_MASK_PREFIX, type, member.prefix, 0, UINT32_MAX)
/* clang-format on */

static inline uint32_t msg_load_u32(const void *at)
{
	uint32_t value;

	memcpy(&value, at, sizeof(value));
	return value;
}

static inline float msg_load_f32(const void *at)
{
	float value;

	memcpy(&value, at, sizeof(value));
	return value;
}

/* Whether a number is in the field's range. False for NaN. No range of integers exceeds 32 bits, so a
 * double holds each value. */
static inline bool msg_entry_accepts(const struct msg_entry *entry, double value)
{
	return value >= entry->min && value <= entry->max;
}

extern const struct msg_table msg_generate_table, msg_step_table, msg_hello_table, msg_welcome_table,
	msg_call_table, msg_reply_table;

/* 0, or E_INVALID with the detail. Zero fields are absent: only `check` can require them. */
int msg_table_check(const struct msg_table *table, const void *msg, struct msg_detail *ret_detail);
/* One sentence about a field that msg_table_check refused. */
void msg_table_explain(const struct msg_table *table, const void *msg,
	const struct msg_detail *detail, char ret_text[static MSG_TEXT_MAX]);
/* Check and write: bytes, -ENOSPC, or -EINVAL. */
int msg_table_encode(const struct msg_table *table, const void *msg, void *buffer, size_t size);
/* Write without the check, for tests of decoders: bytes, -ENOSPC, or -EINVAL if a count exceeds its
 * capacity. */
int msg_table_write(const struct msg_table *table, const void *msg, void *buffer, size_t size);

/* Decode data[size] into the message's struct, written only on success. 0, or a status of the table with
 * the detail. */
int msg_codec_decode(struct msg_codec *codec, const struct msg_table *table, const void *data,
	size_t size, void *ret_msg, struct msg_detail *ret_detail);

/* E_INVALID, with a field as the detail. */
int msg_refuse_field(struct msg_detail *ret_detail, unsigned field);
/* Numbers that the kind of mask requires or excludes: 0, or E_INVALID. */
int msg_mask_check(const struct mimeo_mask *mask, struct msg_detail *ret_detail);

#endif
