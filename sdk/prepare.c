/* SPDX-License-Identifier: MIT */

/*
 * Prepare calls. A request's block in the arena has, each part on a multiple of 64 bytes, its header,
 * its payload, and the output area that the daemon fills:
 *
 *	| msgpack header | payload (ipc/msg.h): tokens, and what else has many numbers | struct msg_output |
 */

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "sdk/event.h"
#include "sdk/prepare.h"
#include "sdk/versioned.h"

struct mimeo_request *mimeo_request_get(struct mimeo *m)
{
	if (!m->free)
		events_take_silent(m);
	return request_take(m);
}

const char *mimeo_request_message(const struct mimeo_request *request)
{
	return request && request->m->refused == request ? request->m->request_message : "";
}

int prepare_refuse(struct mimeo_request *request, int status, const char *format, ...)
{
	struct mimeo *m = request->m;
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(m->request_message, sizeof(m->request_message), format, arguments);
	va_end(arguments);
	m->refused = request;
	return status;
}

int prepare_begin(struct mimeo_request *request)
{
	if (!request)
		return MIMEO_E_INVALID;
	request->m->refused = NULL;
	if (request->state != REQUEST_HELD)
		return prepare_refuse(request, MIMEO_E_INVALID,
			"the request is not free to be prepared: it was prepared, submitted or put back");
	return 0;
}

int prepare_read(struct mimeo_request *request, void *known, size_t known_size,
	const void *given, size_t least, const char *init)
{
	size_t size;

	if (!given)
		return prepare_refuse(request, MIMEO_E_INVALID, "no parameters were given");
	if (versioned_read(known, known_size, given, least))
		return 0;
	memcpy(&size, given, sizeof(size));
	if (size > known_size)
		return prepare_refuse(request, MIMEO_E_INVALID,
			"size is %zu, and fields beyond the %zu bytes that this library knows are set",
			size, known_size);
	return prepare_refuse(request, MIMEO_E_INVALID,
		"size is %zu and must be at least %zu: initialise the struct with %s", size, least,
		init);
}

/* ---- checks that need no daemon ---- */

int prepare_check_model(struct mimeo_request *request, uint32_t model)
{
	const struct mimeo *m = request->m;

	if (model < m->n_models)
		return 0;
	return prepare_refuse(request, MIMEO_E_UNKNOWN_MODEL,
		"no model has index %u: the daemon serves %u", model, m->n_models);
}

int prepare_check_reserved(struct mimeo_request *request, const char *name, uint32_t reserved)
{
	if (reserved == 0)
		return 0;
	return prepare_refuse(request, MIMEO_E_INVALID, "%s is %u and must be 0", name, reserved);
}

int prepare_check_place(
	struct mimeo_request *request, const char *name, const struct mimeo_place *place)
{
	if (place->reserved != 0)
		return prepare_refuse(request, MIMEO_E_INVALID, "%s.reserved is %u and must be 0",
			name, place->reserved);
	if (place->offset % MIMEO_PLACE_ALIGN != 0)
		return prepare_refuse(request, MIMEO_E_INVALID,
			"%s.offset is %llu and must be a multiple of %d", name,
			(unsigned long long)place->offset, MIMEO_PLACE_ALIGN);
	if (place->buffer == 0 && place->offset != 0)
		return prepare_refuse(request, MIMEO_E_INVALID,
			"%s.offset is %llu, but %s.buffer is 0", name,
			(unsigned long long)place->offset, name);
	return 0;
}

int prepare_check_words(struct mimeo_request *request, const struct mimeo_mask *mask)
{
	if (msg_mask_has_words(mask) == (mask->words != NULL))
		return 0;
	return prepare_refuse(request, MIMEO_E_INVALID,
		mask->words ? "mask.words is set, and a mask of kind %s has none"
			    : "mask.words is NULL, and a mask of kind %s needs them",
		msg_mask_name(mask->kind));
}

int prepare_check_mask_row(struct mimeo_request *request, const struct mimeo_mask *mask,
	uint32_t row, uint32_t n_tokens)
{
	if (mask->prefix > n_tokens)
		return prepare_refuse(request, MIMEO_E_INVALID,
			"row %u: mask.prefix is %u, and the row has %u token%s", row, mask->prefix,
			n_tokens, n_tokens == 1 ? "" : "s");
	if (mask->kind == MIMEO_MASK_TREE && n_tokens > MIMEO_TREE_MAX)
		return prepare_refuse(request, MIMEO_E_INVALID,
			"row %u: its %u tokens are more than the %d of a tree (MIMEO_TREE_MAX)", row,
			n_tokens, MIMEO_TREE_MAX);
	return 0;
}

int prepare_check_sequence(struct mimeo_request *request, uint32_t sequence, uint32_t model)
{
	int rc = sequence_id_check(request->m, sequence, model);

	if (rc == MIMEO_E_UNKNOWN_SEQUENCE)
		return prepare_refuse(request, rc, "sequence %u is not open", sequence);
	if (rc < 0)
		return prepare_refuse(request, rc, "sequence %u is not of model %u", sequence, model);
	return 0;
}

/* ---- prepare ---- */

static uint64_t prepare_align(uint64_t bytes)
{
	return (bytes + 63) & ~(uint64_t)63;
}

int prepare_place(struct mimeo_request *request, const void *header, size_t header_bytes,
	uint64_t payload_bytes, const struct msg_output *output, uint8_t **ret_payload)
{
	struct mimeo *m = request->m;
	uint64_t payload_at = prepare_align(header_bytes);
	uint64_t output_at = payload_at + prepare_align(payload_bytes);

	if (payload_bytes > m->region.arena_bytes || output->bytes > m->region.arena_bytes ||
		!buddy_take(&m->arena, output_at + output->bytes, &request->block))
		return prepare_refuse(request, MIMEO_E_FULL,
			"the arena of %llu bytes has no free block for %llu bytes of tokens and %llu of results",
			(unsigned long long)m->region.arena_bytes, (unsigned long long)payload_bytes,
			(unsigned long long)output->bytes);
	assert(output_at + output->bytes <= request->block.bytes);
	assert((uint64_t)request->block.offset + request->block.bytes <= m->region.arena_bytes);

	uint8_t *base = m->region.arena + request->block.offset;
	const uint8_t *results = base + output_at;
	memcpy(base, header, header_bytes);
	request->sqe.header_offset = request->block.offset;
	request->sqe.header_length = (uint32_t)header_bytes;
	request->sqe.payload_offset = request->block.offset + (uint32_t)payload_at;
	request->sqe.payload_length = (uint32_t)payload_bytes;
	request->sqe.output_offset = request->block.offset + (uint32_t)output_at;
	request->sqe.output_length = (uint32_t)output->bytes;
	request->tokens = (const int32_t *)(const void *)(results + output->tokens);
	request->logits = (const float *)(const void *)(results + output->logits);
	request->hidden = (const float *)(const void *)(results + output->hidden);
	request->logprobs = (const struct mimeo_logprob *)(const void *)(results + output->logprobs);
	request->prompt_logprobs = (const struct mimeo_logprob *)(const void *)(results + output->prompt_logprobs);
	*ret_payload = base + payload_at;
	return 0;
}

uint64_t prepare_words_bytes(const struct mimeo_mask *mask, uint64_t n_tokens)
{
	return mask->words ? n_tokens * sizeof(*mask->words) : 0;
}

int mimeo_request_prep_cancel(struct mimeo_request *request, uint64_t request_id)
{
	uint32_t index = (uint32_t)request_id;

	int rc = prepare_begin(request);
	if (rc < 0)
		return rc;
	if (request_id == mimeo_request_id(request))
		return prepare_refuse(
			request, MIMEO_E_INVALID, "a cancel request cannot cancel itself");
	if (request_id >> 32 == 0 || index >= request->m->region.ring.entries)
		return prepare_refuse(request, MIMEO_E_INVALID,
			"no request of this connection ever had the id %llu",
			(unsigned long long)request_id);
	request->sqe.op = RING_OP_CANCEL;
	request->sqe.argument = index;
	request->sqe.generation2 = (uint32_t)(request_id >> 32);
	request_prepare(request);
	return 0;
}
