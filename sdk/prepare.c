/* SPDX-License-Identifier: MIT */

/*
 * Prepare calls. A request's block in the arena has, each part on a multiple of 64 bytes, its header,
 * its payload, and the output area that the daemon fills:
 *
 *	| msgpack header | tokens (a step: rows, then tokens), a mask's words | struct msg_output |
 */

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "sdk/client.h"
#include "sdk/event.h"
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

/* Refuse a prepare call: keep the sentence for mimeo_request_message. */
__attribute__((format(printf, 3, 4))) static int prepare_refuse(
	struct mimeo_request *request, int status, const char *format, ...)
{
	struct mimeo *m = request->m;
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(m->request_message, sizeof(m->request_message), format, arguments);
	va_end(arguments);
	m->refused = request;
	return status;
}

static int prepare_begin(struct mimeo_request *request)
{
	if (!request)
		return MIMEO_E_INVALID;
	request->m->refused = NULL;
	if (request->state != REQUEST_HELD)
		return prepare_refuse(request, MIMEO_E_INVALID,
			"the request is not free to be prepared: it was prepared, submitted or put back");
	return 0;
}

/* Copy the caller's struct, `init` being the macro that initialises it. */
static int prepare_read(struct mimeo_request *request, void *known, size_t known_size,
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

static int prepare_check_model(struct mimeo_request *request, uint32_t model)
{
	const struct mimeo *m = request->m;

	if (model < m->n_models)
		return 0;
	return prepare_refuse(request, MIMEO_E_UNKNOWN_MODEL,
		"no model has index %u: the daemon serves %u", model, m->n_models);
}

static int prepare_check_reserved(struct mimeo_request *request, const char *name, uint32_t reserved)
{
	if (reserved == 0)
		return 0;
	return prepare_refuse(request, MIMEO_E_INVALID, "%s is %u and must be 0", name, reserved);
}

/* The daemon checks whether the buffer is open and large enough. */
static int prepare_check_place(
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

static int prepare_check_words(struct mimeo_request *request, const struct mimeo_mask *mask)
{
	if (msg_mask_has_words(mask) == (mask->words != NULL))
		return 0;
	return prepare_refuse(request, MIMEO_E_INVALID,
		mask->words ? "mask.words is set, and a mask of kind %s has none"
			    : "mask.words is NULL, and a mask of kind %s needs them",
		msg_mask_name(mask->kind));
}

static int prepare_check_mask_row(struct mimeo_request *request, const struct mimeo_mask *mask,
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

static int prepare_check_sequence(struct mimeo_request *request, uint32_t sequence, uint32_t model)
{
	int rc = sequence_id_check(request->m, sequence, model);

	if (rc == MIMEO_E_UNKNOWN_SEQUENCE)
		return prepare_refuse(request, rc, "sequence %u is not open", sequence);
	if (rc < 0)
		return prepare_refuse(request, rc, "sequence %u is not of model %u", sequence, model);
	return 0;
}

static int prepare_check_stop(struct mimeo_request *request, const struct mimeo_generate *generate)
{
	uint32_t vocab = request->m->models[generate->model].vocab_size;

	if (generate->n_stop > MIMEO_STOP_MAX)
		return prepare_refuse(request, MIMEO_E_INVALID,
			"n_stop is %u: at most %d stop ids are possible", generate->n_stop,
			MIMEO_STOP_MAX);
	if (generate->n_stop > 0 && !generate->stop)
		return prepare_refuse(request, MIMEO_E_INVALID, "stop is NULL, and n_stop is %u",
			generate->n_stop);
	for (uint32_t i = 0; i < generate->n_stop; i++) {
		if ((uint32_t)generate->stop[i] >= vocab)
			return prepare_refuse(request, MIMEO_E_INVALID,
				"stop id %u is %d, outside the vocabulary of %u", i,
				generate->stop[i], vocab);
	}
	return 0;
}

/* The tokens that it may generate: without a limit as many as its sequence, were it empty, has space for. */
static uint32_t prepare_max_tokens(const struct mimeo_request *request, const struct mimeo_generate *generate)
{
	return generate->max_tokens ? generate->max_tokens
				    : request->m->models[generate->model].max_seq_len - generate->n_tokens;
}

/* What the header does not say of a generate request. */
static int prepare_check_generate(
	struct mimeo_request *request, const struct mimeo_generate *generate)
{
	uint32_t most = request->m->models[generate->model].max_seq_len;
	int rc;

	if ((rc = prepare_check_reserved(request, "sampling.reserved", generate->sampling.reserved)) < 0)
		return rc;
	if ((rc = prepare_check_place(request, "logits", &generate->logits)) < 0)
		return rc;
	if ((rc = prepare_check_words(request, &generate->mask)) < 0)
		return rc;
	if ((rc = prepare_check_mask_row(request, &generate->mask, 0, generate->n_tokens)) < 0)
		return rc;
	if ((uint64_t)generate->n_tokens + (generate->max_tokens ? generate->max_tokens : 1) > most)
		return prepare_refuse(request, MIMEO_E_TOO_LONG,
			"%u token%s and max_tokens %u: the model's sequences have at most %u",
			generate->n_tokens, generate->n_tokens == 1 ? "" : "s",
			generate->max_tokens, most);
	return generate->sequence == 0
		       ? 0 : prepare_check_sequence(request, generate->sequence, generate->model);
}

/* Two results of a step would be written over each other. Only places in one buffer are compared: two
 * buffers of the same memory cannot be recognised here. */
static bool prepare_results_overlap(
	const struct mimeo_model_info *model, const struct mimeo_step *step)
{
	const struct mimeo_place *logits = &step->logits, *hidden = &step->hidden;
	uint64_t n_logits = (uint64_t)step->n_rows * model->vocab_size * sizeof(float);
	uint64_t n_hidden = (uint64_t)step->n_rows * model->hidden_size * sizeof(float);

	if (logits->buffer == 0 || logits->buffer != hidden->buffer)
		return false;
	return logits->offset < hidden->offset ? hidden->offset - logits->offset < n_logits
					       : logits->offset - hidden->offset < n_hidden;
}

static int prepare_check_row(
	struct mimeo_request *request, const struct mimeo_step *step, uint32_t index)
{
	const struct mimeo_step_row *row = &step->rows[index];
	uint32_t most = request->m->models[step->model].max_seq_len;

	if (row->n_tokens == 0)
		return prepare_refuse(request, MIMEO_E_INVALID, "row %u has no tokens", index);
	if (!row->tokens && step->embeddings.buffer == 0)
		return prepare_refuse(request, MIMEO_E_INVALID,
			"row %u: tokens is NULL, and the step has no embeddings", index);
	int rc = prepare_check_mask_row(request, &step->mask, index, row->n_tokens);
	if (rc < 0)
		return rc;
	rc = prepare_check_sequence(request, row->sequence, step->model);
	if (rc < 0)
		return rc;
	if (row->n_tokens > most)
		return prepare_refuse(request, MIMEO_E_TOO_LONG,
			"row %u has %u tokens: the model's sequences have at most %u", index,
			row->n_tokens, most);
	return 0;
}

/* What the header does not say of a step; and the tokens of all rows. */
static int prepare_check_step(
	struct mimeo_request *request, const struct mimeo_step *step, uint64_t *ret_n_tokens)
{
	int rc;

	*ret_n_tokens = 0;
	if ((rc = prepare_check_reserved(request, "sampling.reserved", step->sampling.reserved)) < 0)
		return rc;
	if ((rc = prepare_check_place(request, "logits", &step->logits)) < 0)
		return rc;
	if ((rc = prepare_check_place(request, "hidden", &step->hidden)) < 0)
		return rc;
	if ((rc = prepare_check_place(request, "embeddings", &step->embeddings)) < 0)
		return rc;
	if ((rc = prepare_check_words(request, &step->mask)) < 0)
		return rc;
	if (prepare_results_overlap(&request->m->models[step->model], step))
		return prepare_refuse(request, MIMEO_E_INVALID,
			"logits and hidden overlap in buffer %u", step->logits.buffer);
	for (uint32_t i = 0; i < step->n_rows; i++) {
		if ((rc = prepare_check_row(request, step, i)) < 0)
			return rc;
		*ret_n_tokens += step->rows[i].n_tokens;
	}
	return 0;
}

/* ---- prepare ---- */

static uint64_t prepare_align(uint64_t bytes)
{
	return (bytes + 63) & ~(uint64_t)63;
}

/*
 * Take the request's block, write the header, and fill in entry and result pointers; *ret_payload is
 * where to write the payload. 0, or FULL.
 */
static int prepare_place(struct mimeo_request *request, const void *header, size_t header_bytes,
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
	*ret_payload = base + payload_at;
	return 0;
}

static uint64_t prepare_words_bytes(const struct mimeo_mask *mask, uint64_t n_tokens)
{
	return mask->words ? n_tokens * sizeof(*mask->words) : 0;
}

/* The header's bytes, or INVALID: a value that the daemon would refuse. */
static int prepare_generate_header(struct mimeo_request *request,
	const struct mimeo_generate *generate, uint8_t header[static MSG_HEADER_MAX])
{
	struct msg_generate msg = {
		.model = generate->model,
		.sequence = generate->sequence,
		.n_tokens = generate->n_tokens,
		.max_tokens = generate->max_tokens,
		.sampling = generate->sampling,
		.n_stop = generate->n_stop,
		.flags = generate->flags,
		.deadline_ms = generate->deadline_ms,
		.logits = generate->logits,
		.mask = generate->mask,
		.draft_tokens = generate->draft_tokens,
		.first_token_ms = generate->first_token_ms,
		.request_class = generate->request_class,
	};
	char text[MSG_TEXT_MAX];
	struct msg_detail detail;

	assert(generate->n_stop <= MIMEO_STOP_MAX);
	for (uint32_t i = 0; i < generate->n_stop; i++)
		msg.stop[i] = generate->stop[i];
	int n = msg_generate_encode(&msg, header, MSG_HEADER_MAX);
	if (n > 0)
		return n;
	assert(n == -EINVAL);
	msg_generate_explain(&msg, &detail, text);
	return prepare_refuse(request, MIMEO_E_INVALID, "%s", text);
}

int mimeo_request_prep_generate(
	struct mimeo_request *request, const struct mimeo_generate *given)
{
	uint8_t header[MSG_HEADER_MAX], *payload;
	struct mimeo_generate generate;

	int rc = prepare_begin(request);
	if (rc < 0)
		return rc;
	rc = prepare_read(request, &generate, sizeof(generate), given,
		offsetof(struct mimeo_generate, logits), "MIMEO_GENERATE_INIT");
	if (rc < 0)
		return rc;
	rc = prepare_check_model(request, generate.model);
	if (rc < 0)
		return rc;
	if (!generate.tokens || generate.n_tokens == 0)
		return prepare_refuse(request, MIMEO_E_INVALID, generate.tokens
				? "the request has no tokens: n_tokens is 0" : "tokens is NULL");
	rc = prepare_check_stop(request, &generate);
	if (rc < 0)
		return rc;
	int n = prepare_generate_header(request, &generate, header);
	if (n < 0)
		return n;
	rc = prepare_check_generate(request, &generate);
	if (rc < 0)
		return rc;

	bool logits = (generate.flags & MIMEO_GENERATE_PROMPT_LOGITS) &&
		generate.logits.buffer == 0;
	struct msg_output output = msg_output_layout(prepare_max_tokens(request, &generate), logits,
		request->m->models[generate.model].vocab_size, 0, 0);
	uint64_t bytes = (uint64_t)generate.n_tokens * sizeof(int32_t);
	uint64_t words = prepare_words_bytes(&generate.mask, generate.n_tokens);
	rc = prepare_place(request, header, (size_t)n, bytes + words, &output, &payload);
	if (rc < 0)
		return rc;
	memcpy(payload, generate.tokens, bytes);
	if (words > 0)
		memcpy(payload + bytes, generate.mask.words, words);
	request->sqe.op = RING_OP_GENERATE;
	request->sqe.sequence = generate.sequence;
	request->capacity = prepare_max_tokens(request, &generate);
	request->fenced = generate.flags & MIMEO_GENERATE_FENCE;
	request->timed = generate.deadline_ms || generate.first_token_ms;
	request->n_rows = logits;
	request->hidden = NULL;
	if (!logits)
		request->logits = NULL;
	request_prepare(request);
	return 0;
}

static void prepare_step_payload(uint8_t *payload, const struct mimeo_step *step)
{
	uint8_t *tokens = payload + step->n_rows * sizeof(struct msg_row);

	for (uint32_t i = 0; i < step->n_rows; i++) {
		const struct mimeo_step_row *from = &step->rows[i];
		struct msg_row row = {.sequence = from->sequence, .n_tokens = from->n_tokens};
		size_t bytes = from->n_tokens * sizeof(int32_t);

		memcpy(payload + i * sizeof(row), &row, sizeof(row));
		if (from->tokens && step->embeddings.buffer == 0)
			memcpy(tokens, from->tokens, bytes);
		else
			memset(tokens, 0, bytes);
		tokens += bytes;
	}
}

/* As prepare_generate_header. */
static int prepare_step_header(struct mimeo_request *request, const struct mimeo_step *step,
	uint8_t header[static MSG_HEADER_MAX])
{
	const struct msg_step msg = {
		.model = step->model,
		.n_rows = step->n_rows,
		.outputs = step->outputs,
		.deadline_ms = step->deadline_ms,
		.sampling = step->sampling,
		.logits = step->logits,
		.hidden = step->hidden,
		.embeddings = step->embeddings,
		.flags = step->flags,
		.mask = step->mask,
	};
	char text[MSG_TEXT_MAX];
	struct msg_detail detail;

	int n = msg_step_encode(&msg, header, MSG_HEADER_MAX);
	if (n > 0)
		return n;
	assert(n == -EINVAL);
	msg_step_explain(&msg, &detail, text);
	return prepare_refuse(request, MIMEO_E_INVALID, "%s", text);
}

int mimeo_request_prep_step(struct mimeo_request *request, const struct mimeo_step *given)
{
	uint8_t header[MSG_HEADER_MAX], *payload;
	struct mimeo_step step;
	uint64_t n_tokens;

	int rc = prepare_begin(request);
	if (rc < 0)
		return rc;
	rc = prepare_read(request, &step, sizeof(step), given, offsetof(struct mimeo_step, logits),
		"MIMEO_STEP_INIT");
	if (rc < 0)
		return rc;
	rc = prepare_check_model(request, step.model);
	if (rc < 0)
		return rc;
	if (!step.rows || step.n_rows == 0)
		return prepare_refuse(request, MIMEO_E_INVALID,
			step.rows ? "the step has no rows: n_rows is 0" : "rows is NULL");
	int n = prepare_step_header(request, &step, header);
	if (n < 0)
		return n;
	rc = prepare_check_step(request, &step, &n_tokens);
	if (rc < 0)
		return rc;

	const struct mimeo_model_info *model = &request->m->models[step.model];
	uint32_t n_sampled = step.outputs & MIMEO_STEP_TOKENS ? step.n_rows : 0;
	uint32_t n_logits = (step.outputs & MIMEO_STEP_LOGITS) && step.logits.buffer == 0
		? step.n_rows : 0;
	uint32_t n_hidden = (step.outputs & MIMEO_STEP_HIDDEN) && step.hidden.buffer == 0
		? step.n_rows : 0;
	struct msg_output output = msg_output_layout(
		n_sampled, n_logits, model->vocab_size, n_hidden, model->hidden_size);
	uint64_t bytes = step.n_rows * sizeof(struct msg_row) + n_tokens * sizeof(int32_t);
	uint64_t words = prepare_words_bytes(&step.mask, n_tokens);
	rc = prepare_place(request, header, (size_t)n, bytes + words, &output, &payload);
	if (rc < 0)
		return rc;
	prepare_step_payload(payload, &step);
	if (words > 0)
		memcpy(payload + bytes, step.mask.words, words);
	request->sqe.op = RING_OP_STEP;
	request->capacity = n_sampled;
	request->n_rows = step.n_rows;
	request->fenced = step.flags & MIMEO_STEP_FENCE;
	request->timed = step.deadline_ms;
	if (n_logits == 0)
		request->logits = NULL;
	if (n_hidden == 0)
		request->hidden = NULL;
	request_prepare(request);
	return 0;
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
