/* SPDX-License-Identifier: MIT */
/* Names of fields and masks, and sentences about refused values. */
#include "ipc/msg_table.h"

#include <stdio.h>

const char *msg_field_name(unsigned field)
{
	switch ((enum msg_field)field) {
#define MSG_FIELD_NAME(constant, key, name)                                                        \
	case MSG_##constant:                                                                       \
		return name;
		MSG_FIELDS(MSG_FIELD_NAME)
#undef MSG_FIELD_NAME
	}
	return "?";
}

const char *msg_mask_name(unsigned kind)
{
	static const char *const names[] = {
		[MIMEO_MASK_DEFAULT] = "default",
		[MIMEO_MASK_WINDOW] = "window",
		[MIMEO_MASK_PREFIX] = "prefix",
		[MIMEO_MASK_DOCUMENTS] = "documents",
		[MIMEO_MASK_TREE] = "tree",
	};

	return kind < sizeof(names) / sizeof(names[0]) ? names[kind] : "?";
}

static bool msg_explain_is_mask_number(int32_t field)
{
	return field == MSG_MASK_WINDOW || field == MSG_MASK_SINKS || field == MSG_MASK_PREFIX;
}

int msg_range_explain(const int32_t values[static 3], char *buffer, size_t size)
{
	const char *name = msg_field_name((unsigned)values[0]);

	if (!msg_explain_is_mask_number(values[0]))
		return snprintf(buffer, size, "%s is out of range", name);
	if (values[1] == 0)
		return snprintf(buffer, size, "%s is 0, and a mask of kind %s needs 1 or more", name,
			msg_mask_name((unsigned)values[2]));
	return snprintf(buffer, size, "%s is %u, and a mask of kind %s has none", name,
		(unsigned)values[1], msg_mask_name((unsigned)values[2]));
}

/* Why a value in its range is refused. */
static const char *msg_explain_reason(unsigned field)
{
	switch (field) {
	case MSG_OUTPUTS:
		return "at least one output is required, one kind of logits and of hidden states at most, and no "
		       "log-probabilities of embeddings or of a tree";
	case MSG_MIN_TOKENS:
		return "it must not be more than max_tokens";
	case MSG_TOP_LOGPROBS:
		return "log-probabilities are not requested";
	case MSG_LOGITS_BUFFER:
	case MSG_HIDDEN_BUFFER:
		return "a place for results that are not requested";
	case MSG_DRAFT_TOKENS:
		return "it must be at most 8 (MIMEO_DRAFT_MAX), or MIMEO_DRAFT_NONE";
	default:
		return "other fields do not allow it";
	}
}

static void msg_explain_ids(
	const struct msg_entry *entry, const uint8_t *msg, char ret_text[static MSG_TEXT_MAX])
{
	const char *name = msg_field_name(entry->field);
	uint32_t n = msg_load_u32(msg + entry->n_offset), i = 0;

	if (n > entry->capacity) {
		snprintf(ret_text, MSG_TEXT_MAX, "%s has %u ids: at most %u are possible", name, n,
			entry->capacity);
		return;
	}
	while (i + 1 < n && msg_load_u32(msg + entry->offset + i * sizeof(int32_t)) <= INT32_MAX)
		i++;
	snprintf(ret_text, MSG_TEXT_MAX, "%s %u is %d: ids are not negative", name, i,
		(int32_t)msg_load_u32(msg + entry->offset + i * sizeof(int32_t)));
}

void msg_table_explain(const struct msg_table *table, const void *msg,
	const struct msg_detail *detail, char ret_text[static MSG_TEXT_MAX])
{
	const unsigned field = (unsigned)detail->values[0];
	const char *name = msg_field_name(field);
	const struct msg_entry *entry = NULL;

	for (unsigned i = 0; i < table->n_entries && !entry; i++) {
		if (table->entries[i].field == field)
			entry = &table->entries[i];
	}
	if (!entry || detail->detail != RING_DETAIL_RANGE || msg_explain_is_mask_number(detail->values[0])) {
		msg_range_explain(detail->values, ret_text, MSG_TEXT_MAX);
		return;
	}

	const uint8_t *at = (const uint8_t *)msg + entry->offset;
	uint32_t value = msg_load_u32(at);
	if (entry->kind == MSG_KIND_IDS)
		msg_explain_ids(entry, msg, ret_text);
	else if (field == MSG_REPETITION_PENALTY)
		snprintf(ret_text, MSG_TEXT_MAX, "%s is %g: it must be 0, which is off, or from 0.01 to %g", name,
			(double)msg_load_f32(at), entry->max);
	else if (entry->kind == MSG_KIND_F32 && entry->max < FLT_MAX)
		snprintf(ret_text, MSG_TEXT_MAX, "%s is %g: it must be from %g to %g", name,
			(double)msg_load_f32(at), entry->min, entry->max);
	else if (entry->kind == MSG_KIND_F32)
		snprintf(ret_text, MSG_TEXT_MAX, "%s is %g: it must be finite and %g or more", name,
			(double)msg_load_f32(at), entry->min);
	else if (entry->kind == MSG_KIND_FLAGS && (value & ~(uint32_t)entry->max) != 0)
		snprintf(ret_text, MSG_TEXT_MAX, "%s is 0x%x: flag 0x%x is unknown", name, value,
			value & ~(uint32_t)entry->max);
	else if (entry->kind == MSG_KIND_U32 && !msg_entry_accepts(entry, value) && entry->max >= UINT32_MAX)
		snprintf(ret_text, MSG_TEXT_MAX, "%s is %u: it must be at least %.0f", name, value, entry->min);
	else if (entry->kind == MSG_KIND_U32 && !msg_entry_accepts(entry, value))
		snprintf(ret_text, MSG_TEXT_MAX, "%s is %u: it must be from %.0f to %.0f", name, value,
			entry->min, entry->max);
	else
		snprintf(ret_text, MSG_TEXT_MAX, "%s is %u: %s", name, value, msg_explain_reason(field));
}
