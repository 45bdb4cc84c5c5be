/* SPDX-License-Identifier: MIT */
/*
 * From a client's entry to a request. The client can write the shared memory at any time: the entry was
 * copied by ring_sq_pop, the header is copied into a buffer here, the payload into the session's pool; all
 * checks and all later use are of the copies. Only the header of an entry that is held is copied twice.
 *
 * Hot path: no allocation, no lock, no system call.
 */
#include "daemon/engine/requests/intake.h"

#include <assert.h>
#include <string.h>

#include "daemon/engine/requests/adjust.h"
#include "daemon/engine/requests/completion.h"
#include "daemon/engine/requests/masks.h"
#include "daemon/engine/requests/place.h"

/* What a step can have of a model without a head. */
#define HIDDEN_OUTPUTS (MIMEO_STEP_HIDDEN | MIMEO_STEP_ALL_HIDDEN | MIMEO_STEP_MEAN_HIDDEN)

/* Returns the status. */
static int intake_refuse(struct refusal *refusal, int status, struct msg_detail detail)
{
	refusal->status = status;
	refusal->detail = detail;
	return status;
}

static const void *intake_extent(const struct engine_session *session, uint32_t offset, uint32_t length,
	uint32_t align, struct refusal *refusal)
{
	const void *at = offset % align ? NULL : region_at(&session->port->region, offset, length);

	if (!at)
		intake_refuse(refusal, MIMEO_E_INVALID, DETAIL(RING_DETAIL_EXTENT, offset, length,
			(int64_t)session->port->region.arena_bytes));
	return at;
}

/* The header, copied. */
static int intake_copy_header(struct engine_session *session, const struct ring_sqe *sqe,
	uint8_t header[static MSG_HEADER_MAX], struct refusal *refusal)
{
	const void *at;

	if (sqe->header_length > MSG_HEADER_MAX)
		return intake_refuse(refusal, MIMEO_E_INVALID, DETAIL(RING_DETAIL_HEADER, MSG_HEADER_MAX));
	at = intake_extent(session, sqe->header_offset, sqe->header_length, 1, refusal);
	if (!at)
		return refusal->status;
	memcpy(header, at, sqe->header_length);
	session->n_copied += sqe->header_length;
	return 0;
}

static int intake_refuse_payload(struct refusal *refusal, uint64_t given, uint64_t needed)
{
	return intake_refuse(refusal, MIMEO_E_INVALID,
		DETAIL(RING_DETAIL_PAYLOAD, (int64_t)given, (int64_t)needed));
}

/* The payload in the arena, for which the request has memory of its own. */
static const uint8_t *intake_payload(const struct request *request, const struct ring_sqe *sqe,
	struct refusal *refusal)
{
	const struct engine_session *session = request->session;
	const void *at = intake_extent(session, sqe->payload_offset, sqe->payload_length, 4, refusal);

	if (!at)
		return NULL;
	if (!request->payload.bytes) {
		intake_refuse(refusal, MIMEO_E_NO_MEMORY, (struct msg_detail){0});
		return NULL;
	}
	assert(request->payload.bytes >= sqe->payload_length);
	return at;
}

/* Copy a part of it to the request's own. Returns where that begins. */
static const void *intake_copy_payload(
	const struct request *request, const uint8_t *payload, uint32_t from, uint32_t bytes)
{
	struct engine_session *session = request->session;
	uint8_t *own = session->payloads.memory + request->payload.offset + from;

	assert((uint64_t)from + bytes <= request->payload.bytes);
	memcpy(own, payload + from, bytes);
	session->n_copied += bytes;
	return own;
}

static int intake_refuse_length(struct refusal *refusal, const struct runner *runner, uint32_t n_tokens)
{
	return intake_refuse(refusal, MIMEO_E_TOO_LONG,
		DETAIL(RING_DETAIL_LENGTH, n_tokens, runner->options.max_seq_len));
}

static int intake_check_tokens(const struct runner *runner, const int32_t *tokens, uint32_t n,
	struct refusal *refusal)
{
	uint32_t vocab = runner->model->config.vocab_size;

	if (!n)
		return intake_refuse(refusal, MIMEO_E_INVALID, DETAIL(RING_DETAIL_EMPTY));
	for (uint32_t i = 0; i < n; i++) {
		if ((uint32_t)tokens[i] >= vocab)
			return intake_refuse(refusal, MIMEO_E_INVALID,
				DETAIL(RING_DETAIL_TOKEN, i, tokens[i], vocab));
	}
	return 0;
}

static int intake_find_model(uint32_t model, struct request *request, struct refusal *refusal)
{
	struct msg_detail detail;

	request->runner = engine_session_model(request->session, model, &detail);
	return request->runner ? 0 : intake_refuse(refusal, MIMEO_E_UNKNOWN_MODEL, detail);
}

/* What the request's results take: rows of each kind. */
struct results {
	uint64_t tokens, logits, hidden, logprobs, scores;
};

static int intake_set_output(struct request *request, const struct ring_sqe *sqe, const struct results *n,
	struct refusal *refusal)
{
	const struct model_config *c = &request->runner->model->config;
	struct msg_output layout =
		msg_output_layout(n->tokens, n->logits, c->vocab_size, n->hidden, c->hidden_size);
	uint8_t *out;

	msg_output_add_logprobs(&layout, n->logprobs, n->scores, request->n_top);
	if (layout.bytes > sqe->output_length)
		return intake_refuse(refusal, MIMEO_E_INVALID,
			DETAIL(RING_DETAIL_OUTPUT, sqe->output_length, (int64_t)layout.bytes));
	out = (uint8_t *)intake_extent(request->session, sqe->output_offset, sqe->output_length, 64, refusal);
	if (!out)
		return refusal->status;
	request->out_tokens = (int32_t *)(out + layout.tokens);
	request->out_logits = (float *)(out + layout.logits);
	request->out_hidden = (float *)(out + layout.hidden);
	request->out_logprobs = (struct mimeo_logprob *)(out + layout.logprobs);
	request->out_scores = (struct mimeo_logprob *)(out + layout.prompt_logprobs);
	return 0;
}

static uint64_t intake_words_bytes(const struct mimeo_mask *mask, uint64_t n_tokens)
{
	return msg_mask_has_words(mask) ? n_tokens * sizeof(uint64_t) : 0;
}

/* Header and payload, copied and checked; the answer is the tokens, and behind them the mask's words and what
 * adjust_take takes. */
static const int32_t *intake_read_generate(struct request *request, const struct ring_sqe *sqe,
	struct msg_generate *ret, struct refusal *refusal)
{
	struct engine_session *session = request->session;
	struct accounting *accounting = session->accounting;
	uint8_t header[MSG_HEADER_MAX];
	const uint8_t *payload;
	const int32_t *tokens;
	uint64_t bytes;

	if (intake_copy_header(session, sqe, header, refusal))
		return NULL;
	refusal->status = msg_generate_decode(
		accounting->codec, header, sqe->header_length, ret, &refusal->detail);
	if (refusal->status || intake_find_model(ret->model, request, refusal))
		return NULL;
	payload = intake_payload(request, sqe, refusal);
	if (!payload)
		return NULL;
	bytes = (uint64_t)ret->n_tokens * sizeof(*tokens) + intake_words_bytes(&ret->mask, ret->n_tokens) +
		adjust_payload_bytes(ret);
	if (sqe->payload_length != bytes) {
		intake_refuse_payload(refusal, sqe->payload_length, bytes);
		return NULL;
	}
	if (ret->n_tokens > request->runner->options.max_seq_len) {
		intake_refuse_length(refusal, request->runner, ret->n_tokens);
		return NULL;
	}
	tokens = intake_copy_payload(request, payload, 0, sqe->payload_length);
	/* No tokens: it goes on with what its sequence has. */
	return ret->n_tokens && intake_check_tokens(request->runner, tokens, ret->n_tokens, refusal) ? NULL : tokens;
}

/* ---- request parameters: each returns 0, or the status that it refuses with ---- */

static uint64_t intake_seed(struct accounting *accounting)
{
	/* SplitMix64 (Steele, Lea, Flood 2014): seeds for requests that bring none. */
	uint64_t z = accounting->seed_state += 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static void intake_sampling(struct request *request, const struct mimeo_sampling *m)
{
	struct accounting *accounting = request->session->accounting;

	if (m->flags & MIMEO_SAMPLING_MODEL) {
		request->sampling = request->runner->model->config.sampling;
	} else {
		request->sampling = (struct slot_sampling){
			.temperature = m->temperature,
			.top_p = m->top_p > 0 ? m->top_p : 1,
			.min_p = m->min_p,
			.top_k = m->top_k,
		};
	}
	request->sampling.seed = m->flags & MIMEO_SAMPLING_SEEDED ? m->seed : intake_seed(accounting);
}

static void intake_drafts(struct request *request, uint32_t wanted, bool deterministic)
{
	uint32_t n = request->runner->options.n_drafts;

	_Static_assert(MIMEO_DRAFT_MAX == SPECULATE_MAX, "drafts");
	/* The token sampled after a draft token depends on the step in which that was drawn, and a preemption
	 * changes the step. */
	if (wanted == MIMEO_DRAFT_NONE || (deterministic && request->sampling.temperature > 0))
		n = 0;
	request->n_drafts = wanted && wanted < n ? wanted : n;
}

static int intake_place(struct request *request, const struct mimeo_place *place, uint64_t n,
	uint64_t bytes, struct request_place *ret, struct refusal *refusal)
{
	uint64_t total;

	if (__builtin_mul_overflow(n, bytes, &total))
		total = UINT64_MAX;
	refusal->status = place_take(request, place, total, ret, &refusal->detail);
	return refusal->status;
}

static int intake_fence(struct request *request, bool wanted, struct refusal *refusal)
{
	const struct engine_port *port = request->session->port;

	if (!wanted)
		return 0;
	if (port->fences)
		request->fence = atomic_load_explicit(
			&port->fences[request->index], memory_order_acquire);
	return request->fence ? 0 : intake_refuse(refusal, MIMEO_E_INVALID,
		DETAIL(RING_DETAIL_FENCE, request->index));
}

static int intake_deterministic(const struct request *request, bool wanted, struct refusal *refusal)
{
	if (!wanted || request->runner->model->deterministic)
		return 0;
	return intake_refuse(refusal, MIMEO_E_UNSUPPORTED, DETAIL(RING_DETAIL_DETERMINISTIC, 0));
}

static int intake_head(const struct request *request, bool wanted, struct refusal *refusal)
{
	if (!wanted || request->runner->model->has_head)
		return 0;
	return intake_refuse(refusal, MIMEO_E_UNSUPPORTED, DETAIL(RING_DETAIL_HEAD, 0));
}

/* ---- generate and step ---- */

/* When it ends. */
static int intake_ends(struct request *request, const struct msg_generate *msg, struct refusal *refusal)
{
	for (uint32_t i = 0; i < msg->n_stop; i++) {
		if ((uint32_t)msg->stop[i] >= request->runner->model->config.vocab_size)
			return intake_refuse(refusal, MIMEO_E_INVALID,
				DETAIL(RING_DETAIL_RANGE, MSG_STOP));
	}
	request->no_limit = msg->max_tokens == 0;
	request->max_tokens = msg->max_tokens;
	if (request->no_limit && msg->n_tokens < request->runner->options.max_seq_len)
		request->max_tokens = request->runner->options.max_seq_len - msg->n_tokens;
	request->n_stop = msg->n_stop;
	memcpy(request->stop, msg->stop, sizeof(request->stop));
	request->ignore_eos = msg->flags & MIMEO_GENERATE_IGNORE_EOS;
	return 0;
}

static int intake_generate_output(struct request *request, const struct ring_sqe *sqe,
	const struct msg_generate *msg, struct refusal *refusal)
{
	const struct results n = {
		.tokens = request->max_tokens,
		.logits = request->want_logits && !request->logits.at,
		.logprobs = request->want_logprobs ? request->max_tokens : 0,
		.scores = request->want_scores ? msg->n_tokens : 0,
	};

	return intake_set_output(request, sqe, &n, refusal);
}

/* `behind`: what comes in its payload behind the mask's words. */
static int intake_adjust(struct request *request, const struct msg_generate *msg, const uint8_t *behind,
	struct refusal *refusal)
{
	request->n_top = msg->top_logprobs;
	request->want_logprobs = msg->flags & MIMEO_GENERATE_LOGPROBS;
	request->want_scores = msg->flags & MIMEO_GENERATE_PROMPT_LOGPROBS;
	return refusal->status = adjust_take(request, msg, behind, &refusal->detail);
}

static int intake_generate(struct request *request, const struct ring_sqe *sqe, struct refusal *refusal)
{
	struct msg_generate msg;
	const int32_t *tokens = intake_read_generate(request, sqe, &msg, refusal);
	const uint8_t *words;

	if (!tokens || intake_head(request, true, refusal) || intake_ends(request, &msg, refusal) ||
		intake_deterministic(request, msg.flags & MIMEO_GENERATE_DETERMINISTIC, refusal))
		return refusal->status;
	words = (const uint8_t *)(tokens + msg.n_tokens);
	if (intake_adjust(request, &msg, words + intake_words_bytes(&msg.mask, msg.n_tokens), refusal))
		return refusal->status;
	request->want_logits = msg.flags & MIMEO_GENERATE_PROMPT_LOGITS;
	if (intake_place(request, &msg.logits, 1,
		    (uint64_t)request->runner->model->config.vocab_size * sizeof(float),
		    &request->logits, refusal) ||
		intake_fence(request, msg.flags & MIMEO_GENERATE_FENCE, refusal))
		return refusal->status;
	if (intake_generate_output(request, sqe, &msg, refusal))
		return refusal->status;
	request->sequence = msg.sequence;
	request->class = msg.request_class;
	request->n_rows = request->n_rows_unlaunched = 1;
	request->rows[0] = (struct request_row){msg.sequence, msg.n_tokens, 0, tokens};
	if (msg_mask_has_words(&msg.mask))
		request->mask_words = words;
	intake_sampling(request, &msg.sampling);
	intake_drafts(request, msg.draft_tokens, msg.flags & MIMEO_GENERATE_DETERMINISTIC);
	deadline_begin(request->session, DEADLINE_REQUEST(request->index), sqe->submitted_ns, msg.deadline_ms,
		msg.first_token_ms);
	return refusal->status = masks_take(request, &msg.mask, &refusal->detail);
}

/* The rows that the payload begins with; its tokens are to be copied behind them. */
static int intake_read_rows(struct request *request, const struct ring_sqe *sqe, uint32_t n_rows,
	const struct mimeo_mask *mask, const uint8_t *payload, struct refusal *refusal)
{
	const uint32_t start = n_rows * (uint32_t)sizeof(struct msg_row);
	const uint8_t *own;
	uint64_t at = start;

	if (start > sqe->payload_length)
		return intake_refuse_payload(refusal, sqe->payload_length, start);
	own = intake_copy_payload(request, payload, 0, start);
	for (uint32_t i = 0; i < n_rows; i++) {
		struct msg_row row;

		memcpy(&row, own + i * sizeof(row), sizeof(row));
		request->rows[i] = (struct request_row){
			row.sequence, row.n_tokens, (uint32_t)((at - start) / sizeof(int32_t)),
			(const int32_t *)(own + at)};
		at += (uint64_t)row.n_tokens * sizeof(int32_t);
		if (at > sqe->payload_length)
			return intake_refuse_payload(refusal, sqe->payload_length, at);
		if (row.n_tokens > request->runner->options.max_seq_len)
			return intake_refuse_length(refusal, request->runner, row.n_tokens);
	}
	if (msg_mask_has_words(mask))
		request->mask_words = own + at;
	at += intake_words_bytes(mask, (at - start) / sizeof(int32_t));
	return at == sqe->payload_length ? 0 : intake_refuse_payload(refusal, sqe->payload_length, at);
}

static int intake_rows(struct request *request, const struct ring_sqe *sqe, uint32_t n_rows,
	const struct mimeo_mask *mask, struct refusal *refusal)
{
	const uint32_t start = n_rows * (uint32_t)sizeof(struct msg_row);
	const uint8_t *payload = intake_payload(request, sqe, refusal);

	if (!payload || intake_read_rows(request, sqe, n_rows, mask, payload, refusal))
		return refusal->status;
	intake_copy_payload(request, payload, start, sqe->payload_length - start);
	for (uint32_t i = 0; i < n_rows; i++) {
		const struct request_row *row = &request->rows[i];

		if (intake_check_tokens(request->runner, row->tokens, row->n_tokens, refusal))
			return refusal->status;
	}
	return 0;
}

static void intake_outputs(struct request *request, const struct msg_step *msg)
{
	request->want_tokens = msg->outputs & MIMEO_STEP_TOKENS;
	request->want_logits = msg->outputs & MIMEO_STEP_LOGITS;
	request->want_hidden = msg->outputs & MIMEO_STEP_HIDDEN;
	request->want_scores = msg->outputs & MIMEO_STEP_LOGPROBS;
	request->all_logits = msg->outputs & MIMEO_STEP_ALL_LOGITS;
	request->all_hidden = msg->outputs & MIMEO_STEP_ALL_HIDDEN;
	request->mean_hidden = msg->outputs & MIMEO_STEP_MEAN_HIDDEN;
	request->n_top = msg->top_logprobs;
}

/* Tokens of all rows. */
static uint64_t intake_positions(const struct request *request, uint32_t n_rows)
{
	const struct request_row *last = &request->rows[n_rows - 1];

	return (uint64_t)last->first + last->n_tokens;
}

static struct results intake_step_results(const struct request *request, const struct msg_step *msg)
{
	const uint64_t n = intake_positions(request, msg->n_rows);

	return (struct results){
		.tokens = request->want_tokens ? msg->n_rows : 0,
		.logits = request->all_logits ? n : request->want_logits ? msg->n_rows : 0,
		.hidden = request->all_hidden ? n : request->want_hidden || request->mean_hidden ? msg->n_rows : 0,
		.scores = request->want_scores ? n : 0,
	};
}

/* Where a step's results go and its embeddings come from, in device buffers. */
static int intake_step_places(struct request *request, const struct msg_step *msg, struct results *n,
	struct refusal *refusal)
{
	const struct model_config *c = &request->runner->model->config;

	if (intake_place(request, &msg->logits, n->logits, (uint64_t)c->vocab_size * sizeof(float),
		    &request->logits, refusal) ||
		intake_place(request, &msg->hidden, n->hidden,
			(uint64_t)c->hidden_size * sizeof(float), &request->hidden, refusal) ||
		intake_place(request, &msg->embeddings, intake_positions(request, msg->n_rows),
			(uint64_t)c->hidden_size * dtype_bytes(request->runner->activation_dtype),
			&request->embeddings, refusal))
		return refusal->status;
	n->logits = request->logits.at ? 0 : n->logits;
	n->hidden = request->hidden.at ? 0 : n->hidden;
	return intake_fence(request, msg->flags & MIMEO_STEP_FENCE, refusal);
}

static int intake_step(struct request *request, const struct ring_sqe *sqe, struct refusal *refusal)
{
	struct engine_session *session = request->session;
	struct accounting *accounting = session->accounting;
	uint8_t header[MSG_HEADER_MAX];
	struct results results;
	struct msg_step msg;
	int rc;

	if (intake_copy_header(session, sqe, header, refusal))
		return refusal->status;
	rc = msg_step_decode(accounting->codec, header, sqe->header_length, &msg, &refusal->detail);
	if (rc)
		return refusal->status = rc;
	if (intake_find_model(msg.model, request, refusal) ||
		intake_head(request, msg.outputs & ~HIDDEN_OUTPUTS, refusal) ||
		intake_deterministic(request, msg.flags & MIMEO_STEP_DETERMINISTIC, refusal))
		return refusal->status;
	if (!msg.n_rows)
		return intake_refuse(refusal, MIMEO_E_INVALID, DETAIL(RING_DETAIL_EMPTY));
	if (msg.n_rows > accounting->options->max_requests)
		return intake_refuse(refusal, MIMEO_E_INVALID, DETAIL(RING_DETAIL_REQUESTS, msg.n_rows,
			accounting->options->max_requests));
	if (intake_rows(request, sqe, msg.n_rows, &msg.mask, refusal))
		return refusal->status;
	request->class = msg.request_class;
	intake_outputs(request, &msg);
	results = intake_step_results(request, &msg);
	if (intake_step_places(request, &msg, &results, refusal) ||
		intake_set_output(request, sqe, &results, refusal))
		return refusal->status;
	request->n_rows = request->n_rows_left = request->n_rows_unlaunched = msg.n_rows;
	intake_sampling(request, &msg.sampling);
	deadline_begin(session, DEADLINE_REQUEST(request->index), sqe->submitted_ns, msg.deadline_ms, 0);
	return refusal->status = masks_take(request, &msg.mask, &refusal->detail);
}

static bool intake_is_new_work(unsigned op)
{
	return op == RING_OP_GENERATE || op == RING_OP_STEP || op == RING_OP_OPEN || op == RING_OP_FORK;
}

/* Take space in the pool for the payload. False: the entry has to wait for space. */
static bool intake_take_payload(struct engine_session *session, const struct ring_sqe *sqe, struct request *request)
{
	if (sqe->op != RING_OP_GENERATE && sqe->op != RING_OP_STEP)
		return true;
	if (payload_take(&session->payloads, &request->payload, sqe->payload_length))
		return true;
	return !session->n_busy && !session->accounting->admit && !session->accounting->grown;
}

/* A payload that is too long to be copied: a prompt longer than any sequence, or a step's rows. */
static int intake_check_payload(const struct engine_session *session, const struct ring_sqe *sqe,
	struct refusal *refusal)
{
	const uint64_t longest = (uint64_t)session->limits.max_seq_len * (sizeof(int32_t) + sizeof(uint64_t)) +
		session->limits.adjust_bytes;
	uint64_t most = longest;

	/* No model was served when the session was made: that is what its requests are refused for. */
	if (!session->limits.max_seq_len)
		return 0;
	if (sqe->op == RING_OP_STEP && most < PAYLOAD_BYTES_MAX)
		most = PAYLOAD_BYTES_MAX;
	if (sqe->payload_length <= most)
		most = session->payloads.bytes;
	if (sqe->payload_length <= most || (sqe->op != RING_OP_GENERATE && sqe->op != RING_OP_STEP))
		return 0;
	return intake_refuse(refusal, MIMEO_E_TOO_LONG, sqe->op == RING_OP_GENERATE ?
		DETAIL(RING_DETAIL_LENGTH, sqe->payload_length / 4, session->limits.max_seq_len) :
		DETAIL(RING_DETAIL_PAYLOAD_MOST, sqe->payload_length, (int64_t)most));
}

int intake_request(struct engine_session *session, const struct ring_sqe *sqe, struct refusal *refusal)
{
	struct accounting *accounting = session->accounting;
	struct request *request = &session->requests[sqe->request];
	const struct held_entry *held = &session->entries[sqe->request];
	int rc = 0;

	if (accounting->lost)
		return refusal->status = MIMEO_E_DEVICE_LOST;
	if (accounting->draining && intake_is_new_work(sqe->op))
		return refusal->status = MIMEO_E_DRAINING;
	if (intake_check_payload(session, sqe, refusal))
		return refusal->status;
	if (!intake_take_payload(session, sqe, request))
		return 1;
	*request = (struct request){
		.session = session,
		.index = sqe->request,
		.rows = request->rows,
		.payload = request->payload,
		.generation = sqe->generation,
		.user_data = sqe->user_data,
		.op = sqe->op,
		.entry = sqe->stamp,
		.order = held->held ? held->order : ++accounting->n_submitted,
		.sequence = sqe->sequence,
		.argument = sqe->argument,
	};
	if (sqe->op == RING_OP_GENERATE)
		rc = intake_generate(request, sqe, refusal);
	else if (sqe->op == RING_OP_STEP)
		rc = intake_step(request, sqe, refusal);
	if (rc) {
		place_drop_all(request);
		payload_release(&session->payloads, &request->payload);
		deadline_drop(session, &request->deadlines);
		return rc;
	}
	if (!session->n_in_flight++)
		share_begin(accounting, session);
	share_submit(session);
	accounting->n_requests++;
	counter_add(&accounting->stats->n_requests, 1);
	atomic_fetch_add_explicit(&session->port->n_requests, 1, memory_order_relaxed);
	engine_session_wait_push(session, request);
	return 0;
}

void intake_deadlines(struct engine_session *session, const struct ring_sqe *sqe)
{
	struct accounting *accounting = session->accounting;
	uint8_t header[MSG_HEADER_MAX];
	struct msg_generate generate = {0};
	struct msg_step step = {0};
	struct refusal refusal;

	if ((sqe->op != RING_OP_GENERATE && sqe->op != RING_OP_STEP) ||
		intake_copy_header(session, sqe, header, &refusal))
		return;
	if (sqe->op == RING_OP_GENERATE)
		msg_generate_decode(accounting->codec, header, sqe->header_length, &generate, &refusal.detail);
	else
		msg_step_decode(accounting->codec, header, sqe->header_length, &step, &refusal.detail);
	deadline_begin(session, DEADLINE_HELD(sqe->request), sqe->submitted_ns,
		sqe->op == RING_OP_GENERATE ? generate.deadline_ms : step.deadline_ms, generate.first_token_ms);
}
