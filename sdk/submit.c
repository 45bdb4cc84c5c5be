/* SPDX-License-Identifier: MIT */

/*
 * Requests on their way out. A request's block in the arena holds, each part on a multiple of 64
 * bytes, its header, its payload, and the output area that the daemon fills:
 *
 *	| msgpack header | tokens (a step: rows, then tokens), a mask's words | struct msg_output |
 */

#include <errno.h>
#include <math.h>
#include <string.h>
#include <utlist.h>

#include "ipc/doorbell.h"
#include "sdk/client.h"

/* ---- get, put ---- */

struct mimeo_request *request_take(struct mimeo *m)
{
	struct mimeo_request *request = m->free;

	if (!request)
		return NULL;
	m->free = request->next;
	*request = (struct mimeo_request){
		.m = m,
		.state = REQUEST_HELD,
		.index = request->index,
		.sqe = {.request = request->index, .generation = request->sqe.generation + 1},
	};
	/* Zero stays no request's id. */
	if (request->sqe.generation == 0)
		request->sqe.generation = 1;
	return request;
}

void request_prepare(struct mimeo_request *request)
{
	request->state = REQUEST_PREPARED;
	DL_APPEND(request->m->prepared, request);
}

void request_release(struct mimeo_request *request)
{
	struct mimeo *m = request->m;

	if (request->state == REQUEST_PREPARED)
		DL_DELETE(m->prepared, request);
	if (request->state == REQUEST_COMMITTED)
		DL_DELETE(m->committed, request);
	if (request->state == REQUEST_COMMITTED || request->state == REQUEST_IN_FLIGHT)
		m->n_in_flight--;
	arena_give(&m->arena, request->block);
	request->block = (struct arena_block){0};
	request->state = REQUEST_FREE;
	request->next = m->free;
	m->free = request;
}

struct mimeo_request *mimeo_request_get(struct mimeo *m)
{
	if (!m->free)
		events_take_silent(m);
	return request_take(m);
}

static bool is_callers(const struct mimeo_request *request)
{
	return request && (request->state == REQUEST_HELD || request->state == REQUEST_PREPARED);
}

void mimeo_request_put(struct mimeo_request *request)
{
	if (is_callers(request))
		request_release(request);
}

void mimeo_request_set_data(struct mimeo_request *request, uint64_t user_data)
{
	if (is_callers(request))
		request->sqe.user_data = user_data;
}

uint64_t mimeo_request_id(const struct mimeo_request *request)
{
	return (uint64_t)request->sqe.generation << 32 | request->index;
}

/* ---- checks that need no daemon ---- */

static bool in_unit(float value)
{
	return value >= 0 && value <= 1;
}

static bool sampling_check(const struct mimeo_sampling *sampling)
{
	if (sampling->flags & ~(MIMEO_SAMPLING_SEEDED | MIMEO_SAMPLING_MODEL) ||
		sampling->reserved != 0)
		return false;
	if (sampling->flags & MIMEO_SAMPLING_MODEL)
		return true;
	return isfinite(sampling->temperature) && sampling->temperature >= 0 &&
	       in_unit(sampling->top_p) && in_unit(sampling->min_p);
}

/* Whether the buffer is open and large enough, the daemon says. */
static bool place_check(const struct mimeo_place *place, bool wanted)
{
	return place->reserved == 0 && place->offset % MIMEO_PLACE_ALIGN == 0 &&
	       (place->buffer == 0 ? place->offset == 0 : wanted);
}

/* Whether the model's attention has masks, and how many tokens a step may have, the daemon says. */
static bool mask_check(const struct mimeo_mask *mask, uint32_t last_kind)
{
	bool window = mask->kind == MIMEO_MASK_WINDOW, prefix = mask->kind == MIMEO_MASK_PREFIX;
	bool words = mask->kind == MIMEO_MASK_DOCUMENTS || mask->kind == MIMEO_MASK_TREE;

	return mask->kind <= last_kind && window == (mask->window != 0) &&
	       (window || mask->sinks == 0) && prefix == (mask->prefix != 0) &&
	       words == (mask->words != NULL);
}

/* A row of so many tokens under the mask? */
static bool mask_row_check(const struct mimeo_mask *mask, uint32_t n_tokens)
{
	return mask->prefix <= n_tokens &&
	       (mask->kind != MIMEO_MASK_TREE || n_tokens <= MIMEO_TREE_MAX);
}

static uint64_t mask_bytes(const struct mimeo_mask *mask, uint64_t n_tokens)
{
	return mask->words ? n_tokens * sizeof(*mask->words) : 0;
}

static int generate_check(const struct mimeo *m, const struct mimeo_generate *generate)
{
	const uint32_t flags = MIMEO_GENERATE_IGNORE_EOS | MIMEO_GENERATE_PROMPT_LOGITS |
		MIMEO_GENERATE_FENCE;

	if (generate->model >= m->n_models)
		return MIMEO_E_UNKNOWN_MODEL;
	if (!generate->tokens || generate->n_tokens == 0 || generate->max_tokens == 0)
		return MIMEO_E_INVALID;
	if (generate->n_stop > MIMEO_STOP_MAX || (generate->n_stop > 0 && !generate->stop))
		return MIMEO_E_INVALID;
	for (uint32_t i = 0; i < generate->n_stop; i++) {
		if (generate->stop[i] < 0)
			return MIMEO_E_INVALID;
	}
	if ((generate->flags & ~flags) || !sampling_check(&generate->sampling) ||
		(generate->draft_tokens > MIMEO_DRAFT_MAX &&
			generate->draft_tokens != MIMEO_DRAFT_NONE))
		return MIMEO_E_INVALID;
	if (!place_check(&generate->logits, generate->flags & MIMEO_GENERATE_PROMPT_LOGITS) ||
		!mask_check(&generate->mask, MIMEO_MASK_DOCUMENTS) ||
		!mask_row_check(&generate->mask, generate->n_tokens))
		return MIMEO_E_INVALID;
	if ((uint64_t)generate->n_tokens + generate->max_tokens >
		m->models[generate->model].max_seq_len)
		return MIMEO_E_TOO_LONG;
	return generate->sequence == 0
		       ? 0 : sequence_check(m, generate->sequence, generate->model);
}

/* Two results of a step that would be written over each other. That they lie in one buffer can be
 * seen here; of two buffers of the same memory nobody knows. */
static bool results_overlap(const struct mimeo *m, const struct mimeo_step *step)
{
	const struct mimeo_model_info *model = &m->models[step->model];
	const struct mimeo_place *logits = &step->logits, *hidden = &step->hidden;
	uint64_t n_logits = (uint64_t)step->n_rows * model->vocab_size * sizeof(float);
	uint64_t n_hidden = (uint64_t)step->n_rows * model->hidden_size * sizeof(float);

	if (logits->buffer == 0 || logits->buffer != hidden->buffer)
		return false;
	return logits->offset < hidden->offset ? hidden->offset - logits->offset < n_logits
					       : logits->offset - hidden->offset < n_hidden;
}

/* 0 and the tokens of all rows. */
static int step_check(const struct mimeo *m, const struct mimeo_step *step, uint64_t *ret_n_tokens)
{
	const uint32_t outputs = MIMEO_STEP_TOKENS | MIMEO_STEP_LOGITS | MIMEO_STEP_HIDDEN;
	uint64_t n_tokens = 0;

	if (step->model >= m->n_models)
		return MIMEO_E_UNKNOWN_MODEL;
	if (!step->rows || step->n_rows == 0 || step->outputs == 0 || (step->outputs & ~outputs) ||
		!sampling_check(&step->sampling) || step->reserved != 0 ||
		(step->flags & ~MIMEO_STEP_FENCE))
		return MIMEO_E_INVALID;
	if (!place_check(&step->logits, step->outputs & MIMEO_STEP_LOGITS) ||
		!place_check(&step->hidden, step->outputs & MIMEO_STEP_HIDDEN) ||
		!place_check(&step->embeddings, true) || results_overlap(m, step) ||
		!mask_check(&step->mask, MIMEO_MASK_TREE))
		return MIMEO_E_INVALID;
	for (uint32_t i = 0; i < step->n_rows; i++) {
		const struct mimeo_step_row *row = &step->rows[i];

		if (row->n_tokens == 0 || (!row->tokens && step->embeddings.buffer == 0) ||
			!mask_row_check(&step->mask, row->n_tokens))
			return MIMEO_E_INVALID;
		int r = sequence_check(m, row->sequence, step->model);
		if (r < 0)
			return r;
		if (row->n_tokens > m->models[step->model].max_seq_len)
			return MIMEO_E_TOO_LONG;
		n_tokens += row->n_tokens;
	}
	*ret_n_tokens = n_tokens;
	return 0;
}

/* ---- prepare ---- */

static uint64_t aligned(uint64_t bytes)
{
	return (bytes + 63) & ~(uint64_t)63;
}

/*
 * Take the request's block, write the header, and fill in entry and result pointers. The payload's
 * place comes in *ret_payload. 0, or FULL.
 */
static int place(struct mimeo_request *request, const void *header, size_t header_bytes,
	uint64_t payload_bytes, const struct msg_output *output, uint8_t **ret_payload)
{
	struct mimeo *m = request->m;
	uint64_t payload_at = aligned(header_bytes);
	uint64_t output_at = payload_at + aligned(payload_bytes);

	if (payload_bytes > m->region.arena_bytes || output->bytes > m->region.arena_bytes)
		return MIMEO_E_FULL;
	if (!arena_take(&m->arena, output_at + output->bytes, &request->block))
		return MIMEO_E_FULL;

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

int mimeo_request_prep_generate(
	struct mimeo_request *request, const struct mimeo_generate *given)
{
	struct mimeo_generate generate;
	uint8_t header[MSG_HEADER_MAX], *payload;

	if (!request || request->state != REQUEST_HELD || !given ||
		!config_copy(&generate, sizeof(generate), given,
			offsetof(struct mimeo_generate, logits)))
		return MIMEO_E_INVALID;
	const struct mimeo *m = request->m;
	int r = generate_check(m, &generate);
	if (r < 0)
		return r;

	struct msg_generate msg = {
		.model = generate.model,
		.sequence = generate.sequence,
		.n_tokens = generate.n_tokens,
		.max_tokens = generate.max_tokens,
		.sampling = generate.sampling,
		.n_stop = generate.n_stop,
		.flags = generate.flags,
		.deadline_ms = generate.deadline_ms,
		.logits = generate.logits,
		.mask = generate.mask,
		.draft_tokens = generate.draft_tokens,
	};
	for (uint32_t i = 0; i < generate.n_stop; i++)
		msg.stop[i] = generate.stop[i];
	int n = msg_generate_encode(&msg, header, sizeof(header));
	if (n < 0)
		return MIMEO_E_INVALID;

	bool logits = (generate.flags & MIMEO_GENERATE_PROMPT_LOGITS) &&
		generate.logits.buffer == 0;
	struct msg_output output = msg_output_layout(
		generate.max_tokens, logits, m->models[generate.model].vocab_size, 0, 0);
	uint64_t bytes = (uint64_t)generate.n_tokens * sizeof(int32_t);
	uint64_t words = mask_bytes(&generate.mask, generate.n_tokens);
	r = place(request, header, (size_t)n, bytes + words, &output, &payload);
	if (r < 0)
		return r;
	memcpy(payload, generate.tokens, bytes);
	if (words > 0)
		memcpy(payload + bytes, generate.mask.words, words);
	request->sqe.op = RING_OP_GENERATE;
	request->sqe.sequence = generate.sequence;
	request->capacity = generate.max_tokens;
	request->fenced = generate.flags & MIMEO_GENERATE_FENCE;
	request->n_rows = logits;
	request->hidden = NULL;
	if (!logits)
		request->logits = NULL;
	request_prepare(request);
	return 0;
}

static void step_payload(uint8_t *payload, const struct mimeo_step *step)
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

int mimeo_request_prep_step(struct mimeo_request *request, const struct mimeo_step *given)
{
	struct mimeo_step step;
	uint8_t header[MSG_HEADER_MAX], *payload;
	uint64_t n_tokens;

	if (!request || request->state != REQUEST_HELD || !given ||
		!config_copy(&step, sizeof(step), given, offsetof(struct mimeo_step, logits)))
		return MIMEO_E_INVALID;
	const struct mimeo *m = request->m;
	int r = step_check(m, &step, &n_tokens);
	if (r < 0)
		return r;

	struct msg_step msg = {
		.model = step.model,
		.n_rows = step.n_rows,
		.outputs = step.outputs,
		.deadline_ms = step.deadline_ms,
		.sampling = step.sampling,
		.logits = step.logits,
		.hidden = step.hidden,
		.embeddings = step.embeddings,
		.flags = step.flags,
		.mask = step.mask,
	};
	int n = msg_step_encode(&msg, header, sizeof(header));
	if (n < 0)
		return MIMEO_E_INVALID;

	uint32_t n_sampled = step.outputs & MIMEO_STEP_TOKENS ? step.n_rows : 0;
	uint32_t n_logits = (step.outputs & MIMEO_STEP_LOGITS) && step.logits.buffer == 0
		? step.n_rows : 0;
	uint32_t n_hidden = (step.outputs & MIMEO_STEP_HIDDEN) && step.hidden.buffer == 0
		? step.n_rows : 0;
	const struct mimeo_model_info *model = &m->models[step.model];
	struct msg_output output = msg_output_layout(
		n_sampled, n_logits, model->vocab_size, n_hidden, model->hidden_size);
	uint64_t bytes = step.n_rows * sizeof(struct msg_row) + n_tokens * sizeof(int32_t);
	uint64_t words = mask_bytes(&step.mask, n_tokens);
	r = place(request, header, (size_t)n, bytes + words, &output, &payload);
	if (r < 0)
		return r;
	step_payload(payload, &step);
	if (words > 0)
		memcpy(payload + bytes, step.mask.words, words);
	request->sqe.op = RING_OP_STEP;
	request->capacity = n_sampled;
	request->n_rows = step.n_rows;
	request->fenced = step.flags & MIMEO_STEP_FENCE;
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

	if (!request || request->state != REQUEST_HELD || request_id >> 32 == 0 ||
		index >= request->m->region.ring.entries ||
		request_id == mimeo_request_id(request))
		return MIMEO_E_INVALID;
	request->sqe.op = RING_OP_CANCEL;
	request->sqe.argument = index;
	request->sqe.generation2 = (uint32_t)(request_id >> 32);
	request_prepare(request);
	return 0;
}

/* ---- submit ---- */

int submit_flush(struct mimeo *m)
{
	struct ring *ring = &m->region.ring;
	uint32_t n;

	while (m->committed) {
		struct mimeo_request *request = m->committed;
		int r = ring_sq_push(ring, &request->sqe);

		if (r < 0)
			return r;
		if (r == 0)
			break;
		DL_DELETE(m->committed, request);
		request->state = REQUEST_IN_FLIGHT;
	}
	if (ring_sq_publish(ring, &n))
		doorbell_ring(m->sq_bell);
	return 0;
}

int mimeo_submit(struct mimeo *m)
{
	struct mimeo_request *request;
	int n = 0;

	if (m->gone)
		return MIMEO_E_GONE;
	DL_FOREACH (m->prepared, request) {
		request->state = REQUEST_COMMITTED;
		n++;
	}
	m->n_in_flight += (uint32_t)n;
	DL_CONCAT(m->committed, m->prepared);
	m->prepared = NULL;
	/* A daemon that broke the ring is found gone by the next look for events. */
	(void)submit_flush(m);
	return n;
}
