/* SPDX-License-Identifier: MIT */
#include "ipc/msg_table.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/text.h"
#include "ipc/wire_check.h"

/*
 * wire_check bounds the values of n bytes by n. Parsing puts one msgpack_object into the zone for
 * each value but the outermost (an entry of a map is two), and strings stay where they are; so the
 * zone's first chunk holds whatever a request's header can contain, and clearing the zone keeps
 * that chunk. Messages on the socket may need more chunks; clearing frees those.
 */
#define ZONE_BYTES (MSG_HEADER_MAX * sizeof(msgpack_object) + MSGPACK_ZONE_ALIGN)

_Static_assert(sizeof(msgpack_object_kv) == 2 * sizeof(msgpack_object), "see ZONE_BYTES");
_Static_assert(sizeof(msgpack_object) % MSGPACK_ZONE_ALIGN == 0, "no padding in the zone");

struct msg_codec {
	msgpack_zone zone;
	_Alignas(max_align_t) uint8_t message[]; /* [MESSAGE_BYTES] being decoded */
};

#define MESSAGE_BYTES sizeof(struct msg_welcome) /* the largest */

int msg_codec_new(struct msg_codec **ret)
{
	struct msg_codec *codec = malloc(sizeof(*codec) + MESSAGE_BYTES);

	if (!codec)
		return -ENOMEM;
	if (!msgpack_zone_init(&codec->zone, ZONE_BYTES)) {
		free(codec);
		return -ENOMEM;
	}
	*ret = codec;
	return 0;
}

void msg_codec_free(struct msg_codec *codec)
{
	if (!codec)
		return;
	msgpack_zone_destroy(&codec->zone);
	free(codec);
}

static int msg_table_refuse_header(struct msg_detail *ret_detail, size_t offset)
{
	*ret_detail =
		(struct msg_detail){.detail = RING_DETAIL_HEADER, .values = {(int32_t)offset}};
	return MIMEO_E_INVALID;
}

int msg_refuse_field(struct msg_detail *ret_detail, unsigned field)
{
	*ret_detail = (struct msg_detail){.detail = RING_DETAIL_RANGE, .values = {(int32_t)field}};
	return MIMEO_E_INVALID;
}

/* ---- checks of both directions ---- */

static bool msg_table_are_ids(const uint8_t *ids, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		if (msg_load_u32(ids + i * sizeof(int32_t)) > INT32_MAX)
			return false;
	}
	return true;
}

/* 0, or E_INVALID about the field or one inside it. */
static int msg_table_check_entry(
	const struct msg_entry *entry, const uint8_t *msg, struct msg_detail *ret_detail)
{
	const uint8_t *at = msg + entry->offset;
	uint32_t value = 0, n = 0;
	bool valid = true;

	if (entry->kind == MSG_KIND_IDS || entry->kind == MSG_KIND_LIST)
		n = msg_load_u32(msg + entry->n_offset);
	else if (entry->kind != MSG_KIND_TEXT && entry->kind != MSG_KIND_BYTES)
		value = msg_load_u32(at);
	switch ((enum msg_kind)entry->kind) {
	case MSG_KIND_U32:
		valid = value == 0 || msg_entry_accepts(entry, value);
		break;
	case MSG_KIND_I32:
		valid = value == 0 || msg_entry_accepts(entry, (int32_t)value);
		break;
	case MSG_KIND_FLAGS:
		valid = (value & ~(uint32_t)entry->max) == 0;
		break;
	case MSG_KIND_F32:
		valid = msg_entry_accepts(entry, msg_load_f32(at));
		break;
	case MSG_KIND_IDS:
		valid = n <= entry->capacity && msg_table_are_ids(at, n);
		break;
	case MSG_KIND_LIST:
		valid = n <= entry->capacity;
		for (uint32_t i = 0; valid && i < n; i++) {
			if (msg_table_check(entry->element, at + i * entry->element->bytes,
				    ret_detail) < 0)
				return MIMEO_E_INVALID;
		}
		break;
	case MSG_KIND_U64:
	case MSG_KIND_TEXT:
	case MSG_KIND_BYTES:
		break;
	}
	return valid ? 0 : msg_refuse_field(ret_detail, entry->field);
}

int msg_table_check(const struct msg_table *table, const void *msg, struct msg_detail *ret_detail)
{
	*ret_detail = (struct msg_detail){0};
	for (unsigned i = 0; i < table->n_entries; i++) {
		int rc = msg_table_check_entry(&table->entries[i], msg, ret_detail);

		if (rc < 0)
			return rc;
	}
	return table->check ? table->check(msg, ret_detail) : 0;
}

/* ---- writing ---- */

struct msg_writer {
	uint8_t *bytes;
	size_t size, used;
};

static int msg_table_append(void *data, const char *bytes, size_t n)
{
	struct msg_writer *writer = data;

	assert(writer->used <= writer->size);
	if (n > writer->size - writer->used) {
		writer->size = writer->used; /* write nothing more behind the gap */
		return -ENOSPC;
	}
	memcpy(writer->bytes + writer->used, bytes, n);
	writer->used += n;
	return 0;
}

/* Bytes that a decoder would refuse become '?': no program name makes a session impossible. */
static int msg_table_put_text(msgpack_packer *packer, const char *text, size_t bytes)
{
	int rc = msgpack_pack_str(packer, bytes);

	for (size_t at = 0; rc == 0 && at < bytes;) {
		size_t step = text_step(text + at, bytes - at);

		rc = msgpack_pack_str_body(packer, step ? text + at : "?", step ? step : 1);
		at += step ? step : 1;
	}
	return rc;
}

/* n if one of the bytes is not zero, else 0. */
static uint64_t msg_table_any_byte(const uint8_t *bytes, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (bytes[i] != 0)
			return n;
	}
	return 0;
}

/* Elements, bytes or value of a field: 0 if it is to be left out. */
static uint64_t msg_table_weight(const struct msg_entry *entry, const uint8_t *msg)
{
	uint64_t wide;

	switch ((enum msg_kind)entry->kind) {
	case MSG_KIND_IDS:
	case MSG_KIND_LIST:
		return msg_load_u32(msg + entry->n_offset);
	case MSG_KIND_TEXT:
		return strnlen((const char *)msg + entry->offset, entry->capacity);
	case MSG_KIND_BYTES:
		return msg_table_any_byte(msg + entry->offset, entry->capacity);
	case MSG_KIND_U64:
		memcpy(&wide, msg + entry->offset, sizeof(wide));
		return wide;
	case MSG_KIND_U32:
	case MSG_KIND_I32:
	case MSG_KIND_FLAGS:
	case MSG_KIND_F32:
		break;
	}
	return msg_load_u32(msg + entry->offset);
}

static int msg_table_put_map(msgpack_packer *packer, const struct msg_table *table, const uint8_t *msg);

static int msg_table_put_list(
	msgpack_packer *packer, const struct msg_entry *entry, const uint8_t *at, uint64_t n)
{
	if (n > entry->capacity)
		return -EINVAL;

	int rc = msgpack_pack_array(packer, n);
	for (uint64_t i = 0; rc == 0 && i < n; i++) {
		if (entry->kind == MSG_KIND_IDS)
			rc = msgpack_pack_int32(packer, (int32_t)msg_load_u32(at + i * sizeof(int32_t)));
		else
			rc = msg_table_put_map(packer, entry->element, at + i * entry->element->bytes);
	}
	return rc;
}

static int msg_table_put_value(
	msgpack_packer *packer, const struct msg_entry *entry, const uint8_t *msg, uint64_t n)
{
	const uint8_t *at = msg + entry->offset;

	switch ((enum msg_kind)entry->kind) {
	case MSG_KIND_U32:
	case MSG_KIND_FLAGS:
	case MSG_KIND_U64:
		return msgpack_pack_uint64(packer, n);
	case MSG_KIND_I32:
		return msgpack_pack_int32(packer, (int32_t)(uint32_t)n);
	case MSG_KIND_F32:
		return msgpack_pack_float(packer, msg_load_f32(at));
	case MSG_KIND_TEXT:
		return msg_table_put_text(packer, (const char *)at, n);
	case MSG_KIND_BYTES:
		return msgpack_pack_bin_with_body(packer, at, n);
	case MSG_KIND_IDS:
	case MSG_KIND_LIST:
		return msg_table_put_list(packer, entry, at, n);
	}
	return -EINVAL;
}

static int msg_table_put_map(msgpack_packer *packer, const struct msg_table *table, const uint8_t *msg)
{
	size_t n_present = 0;

	assert(table->n_entries <= MSG_TABLE_ENTRIES_MAX);
	for (unsigned i = 0; i < table->n_entries; i++)
		n_present += msg_table_weight(&table->entries[i], msg) != 0;

	int rc = msgpack_pack_map(packer, n_present);
	for (unsigned i = 0; rc == 0 && i < table->n_entries; i++) {
		const struct msg_entry *entry = &table->entries[i];
		uint64_t n = msg_table_weight(entry, msg);

		if (n == 0)
			continue;
		rc = msgpack_pack_uint8(packer, entry->field);
		if (rc == 0)
			rc = msg_table_put_value(packer, entry, msg, n);
	}
	return rc;
}

int msg_table_write(const struct msg_table *table, const void *msg, void *buffer, size_t size)
{
	struct msg_writer writer = {.bytes = buffer, .size = size};
	msgpack_packer packer;

	msgpack_packer_init(&packer, &writer, msg_table_append);
	int rc = msg_table_put_map(&packer, table, msg);
	if (rc < 0)
		return rc;
	assert(writer.used <= size);
	return (int)writer.used;
}

int msg_table_encode(const struct msg_table *table, const void *msg, void *buffer, size_t size)
{
	struct msg_detail detail;

	if (msg_table_check(table, msg, &detail) < 0)
		return -EINVAL;
	return msg_table_write(table, msg, buffer, size);
}

/* ---- reading ---- */

static bool msg_table_take_number(const msgpack_object *object, double *ret)
{
	switch (object->type) {
	case MSGPACK_OBJECT_POSITIVE_INTEGER:
		*ret = (double)object->via.u64;
		return true;
	case MSGPACK_OBJECT_NEGATIVE_INTEGER:
		*ret = (double)object->via.i64;
		return true;
	case MSGPACK_OBJECT_FLOAT32:
	case MSGPACK_OBJECT_FLOAT64:
		*ret = object->via.f64;
		return isfinite(*ret);
	default:
		return false;
	}
}

static bool msg_table_take_integer(const msgpack_object *object, double min, double max, int64_t *ret)
{
	double value; /* no range exceeds 32 bits: a value that this rounds is far outside */

	if (object->type != MSGPACK_OBJECT_POSITIVE_INTEGER &&
		object->type != MSGPACK_OBJECT_NEGATIVE_INTEGER)
		return false;
	if (!msg_table_take_number(object, &value) || value < min || value > max)
		return false;
	*ret = object->via.i64;
	return true;
}

static void msg_table_store_u32(uint8_t *at, uint32_t value)
{
	memcpy(at, &value, sizeof(value));
}

static bool msg_table_take_scalar(
	const struct msg_entry *entry, const msgpack_object *object, uint8_t *at)
{
	int64_t integer;
	double number;
	float single;

	switch ((enum msg_kind)entry->kind) {
	case MSG_KIND_U32:
	case MSG_KIND_I32:
		if (!msg_table_take_integer(object, entry->min, entry->max, &integer))
			return false;
		msg_table_store_u32(at, (uint32_t)integer);
		return true;
	case MSG_KIND_FLAGS:
		if (!msg_table_take_integer(object, 0, UINT32_MAX, &integer) ||
			((uint32_t)integer & ~(uint32_t)entry->max) != 0)
			return false;
		msg_table_store_u32(at, (uint32_t)integer);
		return true;
	case MSG_KIND_U64:
		if (object->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
			return false;
		memcpy(at, &object->via.u64, sizeof(uint64_t));
		return true;
	case MSG_KIND_F32:
		if (!msg_table_take_number(object, &number) || !msg_entry_accepts(entry, number))
			return false;
		single = (float)number;
		memcpy(at, &single, sizeof(single));
		return true;
	default:
		return false;
	}
}

static bool msg_table_take_text(
	const struct msg_entry *entry, const msgpack_object *object, uint8_t *at)
{
	if (object->type != MSGPACK_OBJECT_STR || object->via.str.size >= entry->capacity ||
		!text_is_clean(object->via.str.ptr, object->via.str.size))
		return false;
	if (object->via.str.size > 0)
		memcpy(at, object->via.str.ptr, object->via.str.size);
	return true;
}

static bool msg_table_take_bytes(
	const struct msg_entry *entry, const msgpack_object *object, uint8_t *at)
{
	if (object->type != MSGPACK_OBJECT_BIN || object->via.bin.size != entry->capacity)
		return false;
	memcpy(at, object->via.bin.ptr, entry->capacity);
	return true;
}

static int msg_table_decode(const struct msg_table *table, const msgpack_object *object, void *ret_msg,
	struct msg_detail *ret_detail);

/* 0, or E_INVALID about the field or one inside it. */
static int msg_table_take_list(const struct msg_entry *entry, const msgpack_object *object,
	uint8_t *msg, struct msg_detail *ret_detail)
{
	const msgpack_object_array *array = &object->via.array;
	uint8_t *at = msg + entry->offset;

	if (object->type != MSGPACK_OBJECT_ARRAY || array->size > entry->capacity)
		return msg_refuse_field(ret_detail, entry->field);
	for (uint32_t i = 0; i < array->size; i++) {
		int64_t id;

		if (entry->kind == MSG_KIND_IDS) {
			if (!msg_table_take_integer(&array->ptr[i], 0, INT32_MAX, &id))
				return msg_refuse_field(ret_detail, entry->field);
			msg_table_store_u32(at + i * sizeof(int32_t), (uint32_t)id);
			continue;
		}
		if (array->ptr[i].type != MSGPACK_OBJECT_MAP)
			return msg_refuse_field(ret_detail, entry->field);
		int rc = msg_table_decode(
			entry->element, &array->ptr[i], at + i * entry->element->bytes, ret_detail);
		if (rc < 0)
			return rc;
	}
	msg_table_store_u32(msg + entry->n_offset, array->size);
	return 0;
}

static int msg_table_take_value(const struct msg_entry *entry, const msgpack_object *object,
	uint8_t *msg, struct msg_detail *ret_detail)
{
	bool taken;

	if (entry->kind == MSG_KIND_IDS || entry->kind == MSG_KIND_LIST)
		return msg_table_take_list(entry, object, msg, ret_detail);
	if (entry->kind == MSG_KIND_BYTES)
		taken = msg_table_take_bytes(entry, object, msg + entry->offset);
	else if (entry->kind == MSG_KIND_TEXT)
		taken = msg_table_take_text(entry, object, msg + entry->offset);
	else
		taken = msg_table_take_scalar(entry, object, msg + entry->offset);
	return taken ? 0 : msg_refuse_field(ret_detail, entry->field);
}

/* Fill the message's struct, zeroed first, from a parsed map, and check it. 0, or E_INVALID with the
 * detail, and *ret_msg is incomplete. */
static int msg_table_decode(const struct msg_table *table, const msgpack_object *object, void *ret_msg,
	struct msg_detail *ret_detail)
{
	uint32_t seen = 0;

	assert(table->n_entries <= MSG_TABLE_ENTRIES_MAX && object->type == MSGPACK_OBJECT_MAP);
	memset(ret_msg, 0, table->bytes);
	for (uint32_t i = 0; i < object->via.map.size; i++) {
		const msgpack_object_kv *kv = &object->via.map.ptr[i];
		unsigned k = 0;
		int64_t field;

		if (!msg_table_take_integer(&kv->key, 0, UINT8_MAX, &field))
			return msg_refuse_field(ret_detail, 0);
		while (k < table->n_entries && table->entries[k].field != field)
			k++;
		if (k == table->n_entries || (seen & (1u << k)))
			return msg_refuse_field(ret_detail, (unsigned)field);
		seen |= 1u << k;

		int rc = msg_table_take_value(&table->entries[k], &kv->val, ret_msg, ret_detail);
		if (rc < 0)
			return rc;
	}
	return table->check ? table->check(ret_msg, ret_detail) : 0;
}

/* Before all other checks: another version may have fields that this one lacks. */
static int msg_table_check_version(const msgpack_object *object, struct msg_detail *ret_detail)
{
	uint64_t version = 0;

	for (uint32_t i = 0; i < object->via.map.size; i++) {
		const msgpack_object_kv *kv = &object->via.map.ptr[i];

		if (kv->key.type == MSGPACK_OBJECT_POSITIVE_INTEGER &&
			kv->key.via.u64 == MSG_VERSION &&
			kv->val.type == MSGPACK_OBJECT_POSITIVE_INTEGER)
			version = kv->val.via.u64;
	}
	if (version == MSG_PROTOCOL_VERSION)
		return 0;
	*ret_detail = (struct msg_detail){
		.detail = RING_DETAIL_RANGE,
		.values = {MSG_VERSION, version > INT32_MAX ? INT32_MAX : (int32_t)version},
	};
	return MIMEO_E_VERSION;
}

/* Check and parse data[size] into the codec's zone. 0, or E_INVALID. */
static int msg_table_parse(struct msg_codec *codec, const void *data, size_t size, size_t limit,
	msgpack_object *ret, struct msg_detail *ret_detail)
{
	size_t offset = 0;

	*ret_detail = (struct msg_detail){0};
	if (size > limit)
		return msg_table_refuse_header(ret_detail, limit);
	if (wire_check(data, size, &offset) != WIRE_OK)
		return msg_table_refuse_header(ret_detail, offset);
	offset = 0;
	if (msgpack_unpack(data, size, &offset, &codec->zone, ret) != MSGPACK_UNPACK_SUCCESS)
		return msg_table_refuse_header(ret_detail, offset);
	if (ret->type != MSGPACK_OBJECT_MAP)
		return msg_table_refuse_header(ret_detail, 0);
	return 0;
}

static int msg_table_decode_bytes(struct msg_codec *codec, const struct msg_table *table,
	const void *data, size_t size, struct msg_detail *ret_detail)
{
	msgpack_object object;

	if (msg_table_parse(codec, data, size, table->limit, &object, ret_detail) < 0)
		return table->malformed;
	if (table->versioned && msg_table_check_version(&object, ret_detail) < 0)
		return MIMEO_E_VERSION;
	if (msg_table_decode(table, &object, codec->message, ret_detail) < 0)
		return table->refused;
	return 0;
}

int msg_codec_decode(struct msg_codec *codec, const struct msg_table *table, const void *data,
	size_t size, void *ret_msg, struct msg_detail *ret_detail)
{
	assert(table->bytes <= MESSAGE_BYTES && table->limit > 0);
	assert(table->malformed < 0 && table->refused < 0);
	int rc = msg_table_decode_bytes(codec, table, data, size, ret_detail);

	msgpack_zone_clear(&codec->zone);
	if (rc == 0)
		memcpy(ret_msg, codec->message, table->bytes);
	return rc;
}
