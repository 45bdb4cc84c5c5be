/* SPDX-License-Identifier: MIT */
/*
 * From a session's ring to a request. The shared memory is a stranger's: the entry is copied by
 * ring_sq_pop, the header into a buffer here, the payload to its place in the session's private
 * mirror of the arena; all checks and all later use are of the copies. Nothing in the arena is read
 * twice. Hot path: no allocation, no lock, no system call.
 */
#include "daemon/engine/requests/intake.h"

#include <string.h>

static const void *extent(const struct session *session, uint32_t offset, uint32_t length,
	uint32_t align, struct refusal *refusal)
{
	const void *at = offset % align ? NULL : region_at(&session->port->region, offset, length);

	if (!at)
		refuse(refusal, MIMEO_E_INVALID, refusal_detail(RING_DETAIL_EXTENT, offset, length,
			(int64_t)session->port->region.arena_bytes));
	return at;
}

/* The header, copied. */
static int copy_header(const struct session *session, const struct ring_sqe *sqe,
	uint8_t header[static MSG_HEADER_MAX], struct refusal *refusal)
{
	const void *at;

	if (sqe->header_length > MSG_HEADER_MAX)
		return refuse(refusal, MIMEO_E_INVALID, refusal_detail(RING_DETAIL_HEADER, MSG_HEADER_MAX, 0, 0));
	at = extent(session, sqe->header_offset, sqe->header_length, 1, refusal);
	if (!at)
		return refusal->status;
	memcpy(header, at, sqe->header_length);
	return 0;
}

/* The payload, copied; the answer is private memory. */
static const void *copy_payload(struct session *session, const struct ring_sqe *sqe,
	struct refusal *refusal)
{
	const void *at = extent(session, sqe->payload_offset, sqe->payload_length, 4, refusal);
	uint8_t *private;

	if (!at)
		return NULL;
	private = session->mirror + sqe->payload_offset;
	memcpy(private, at, sqe->payload_length);
	return private;
}

static int check_tokens(const struct runner *runner, const int32_t *tokens, uint32_t n,
	struct refusal *refusal)
{
	uint32_t vocab = runner->model->config.vocab_size;

	if (!n)
		return refuse(refusal, MIMEO_E_INVALID, refusal_detail(RING_DETAIL_EMPTY, 0, 0, 0));
	for (uint32_t i = 0; i < n; i++) {
		if ((uint32_t)tokens[i] >= vocab)
			return refuse(refusal, MIMEO_E_INVALID,
				refusal_detail(RING_DETAIL_TOKEN, i, tokens[i], vocab));
	}
	return 0;
}

static int find_runner(struct engine *engine, uint32_t model, struct request *request,
	struct refusal *refusal)
{
	if (model >= engine->n_runners)
		return refuse(refusal, MIMEO_E_UNKNOWN_MODEL,
			refusal_detail(RING_DETAIL_MODEL, model, engine->n_runners, 0));
	request->runner = &engine->runners[model];
	return 0;
}

static int set_output(struct request *request, const struct ring_sqe *sqe, uint64_t n_tokens,
	uint64_t n_logits, uint64_t n_hidden, struct refusal *refusal)
{
	const struct model_config *c = &request->runner->model->config;
	struct msg_output layout =
		msg_output_layout(n_tokens, n_logits, c->vocab_size, n_hidden, c->hidden_size);
	uint8_t *out;

	if (layout.bytes > sqe->output_length)
		return refuse(refusal, MIMEO_E_INVALID,
			refusal_detail(RING_DETAIL_OUTPUT, sqe->output_length, (int64_t)layout.bytes, 0));
	out = (uint8_t *)extent(request->session, sqe->output_offset, sqe->output_length, 64, refusal);
	if (!out)
		return refusal->status;
	request->out_tokens = (int32_t *)(out + layout.tokens);
	request->out_logits = (float *)(out + layout.logits);
	request->out_hidden = (float *)(out + layout.hidden);
	return 0;
}

static uint64_t words_bytes(const struct mimeo_mask *mask, uint64_t n_tokens)
{
	return msg_mask_has_words(mask) ? n_tokens * sizeof(uint64_t) : 0;
}

/* Header and payload, copied and checked; the answer is the tokens, and behind them the mask's words. */
static const int32_t *read_generate(struct request *request, const struct ring_sqe *sqe,
	struct msg_generate *ret, struct refusal *refusal)
{
	struct session *session = request->session;
	struct engine *engine = session->engine;
	uint8_t header[MSG_HEADER_MAX];
	const int32_t *tokens;
	uint64_t bytes;

	if (copy_header(session, sqe, header, refusal))
		return NULL;
	refusal->status = msg_generate_decode(
		engine->codec, header, sqe->header_length, ret, &refusal->detail);
	if (refusal->status || find_runner(engine, ret->model, request, refusal))
		return NULL;
	tokens = copy_payload(session, sqe, refusal);
	if (!tokens)
		return NULL;
	bytes = (uint64_t)ret->n_tokens * sizeof(*tokens) + words_bytes(&ret->mask, ret->n_tokens);
	if (sqe->payload_length != bytes) {
		refuse(refusal, MIMEO_E_INVALID, refusal_detail(
			RING_DETAIL_PAYLOAD, sqe->payload_length, (int64_t)bytes, 0));
		return NULL;
	}
	return check_tokens(request->runner, tokens, ret->n_tokens, refusal) ? NULL : tokens;
}

/* When it ends. */
static int take_ends(struct request *request, const struct msg_generate *msg, struct refusal *refusal)
{
	if (!msg->max_tokens)
		return refuse(refusal, MIMEO_E_INVALID,
			refusal_detail(RING_DETAIL_RANGE, MSG_MAX_TOKENS, 0, 0));
	for (uint32_t i = 0; i < msg->n_stop; i++) {
		if ((uint32_t)msg->stop[i] >= request->runner->model->config.vocab_size)
			return refuse(refusal, MIMEO_E_INVALID,
				refusal_detail(RING_DETAIL_RANGE, MSG_STOP, 0, 0));
	}
	request->max_tokens = msg->max_tokens;
	request->n_stop = msg->n_stop;
	memcpy(request->stop, msg->stop, sizeof(request->stop));
	request->ignore_eos = msg->flags & MIMEO_GENERATE_IGNORE_EOS;
	return 0;
}

static int take_generate(struct request *request, const struct ring_sqe *sqe, struct refusal *refusal)
{
	struct msg_generate msg;
	const int32_t *tokens = read_generate(request, sqe, &msg, refusal);

	if (!tokens || take_ends(request, &msg, refusal))
		return refusal->status;
	request->want_logits = msg.flags & MIMEO_GENERATE_PROMPT_LOGITS;
	request->want_hidden = false;
	if (terms_place(request, &msg.logits, 1,
		    (uint64_t)request->runner->model->config.vocab_size * sizeof(float),
		    &request->logits, refusal) ||
		terms_fence(request, msg.flags & MIMEO_GENERATE_FENCE, refusal))
		return refusal->status;
	if (set_output(request, sqe, msg.max_tokens,
		    request->want_logits && !request->logits.at, 0, refusal))
		return refusal->status;
	request->sequence = msg.sequence;
	request->n_rows = request->n_rows_unlaunched = 1;
	request->rows[0] = (struct request_row){msg.sequence, msg.n_tokens, 0, tokens};
	if (msg_mask_has_words(&msg.mask))
		request->mask_words = (const uint8_t *)(tokens + msg.n_tokens);
	terms_drafts(request, msg.draft_tokens);
	terms_sampling(request, &msg.sampling);
	terms_deadline(request, msg.deadline_ms);
	return terms_mask(request, &msg.mask, refusal);
}

static int take_rows(struct request *request, const struct ring_sqe *sqe, uint32_t n_rows,
	const struct mimeo_mask *mask, struct refusal *refusal)
{
	const uint8_t *payload = copy_payload(request->session, sqe, refusal);
	const uint64_t start = (uint64_t)n_rows * sizeof(struct msg_row);
	uint64_t at = start;

	if (!payload)
		return refusal->status;
	if (at > sqe->payload_length)
		return refuse(refusal, MIMEO_E_INVALID,
			refusal_detail(RING_DETAIL_PAYLOAD, sqe->payload_length, (int64_t)at, 0));
	for (uint32_t i = 0; i < n_rows; i++) {
		struct msg_row row;

		memcpy(&row, payload + i * sizeof(row), sizeof(row));
		request->rows[i] = (struct request_row){
			row.sequence, row.n_tokens, (uint32_t)((at - start) / sizeof(int32_t)),
			(const int32_t *)(payload + at)};
		at += (uint64_t)row.n_tokens * sizeof(int32_t);
		if (at > sqe->payload_length)
			return refuse(refusal, MIMEO_E_INVALID,
				refusal_detail(RING_DETAIL_PAYLOAD, sqe->payload_length, (int64_t)at, 0));
		if (check_tokens(request->runner, request->rows[i].tokens, row.n_tokens, refusal))
			return refusal->status;
	}
	if (msg_mask_has_words(mask))
		request->mask_words = payload + at;
	at += words_bytes(mask, (at - start) / sizeof(int32_t));
	if (at != sqe->payload_length)
		return refuse(refusal, MIMEO_E_INVALID,
			refusal_detail(RING_DETAIL_PAYLOAD, sqe->payload_length, (int64_t)at, 0));
	return 0;
}

/* Where a step's results go and its embeddings come from, in device buffers. */
static int take_step_places(struct request *request, const struct msg_step *msg,
	struct refusal *refusal)
{
	const struct model_config *c = &request->runner->model->config;
	const struct request_row *last = &request->rows[msg->n_rows - 1];

	if (terms_place(request, &msg->logits, msg->n_rows, (uint64_t)c->vocab_size * sizeof(float),
		    &request->logits, refusal) ||
		terms_place(request, &msg->hidden, msg->n_rows,
			(uint64_t)c->hidden_size * sizeof(float), &request->hidden, refusal) ||
		terms_place(request, &msg->embeddings, (uint64_t)last->first + last->n_tokens,
			(uint64_t)c->hidden_size * dtype_bytes(request->runner->activation_dtype),
			&request->embeddings, refusal))
		return refusal->status;
	return terms_fence(request, msg->flags & MIMEO_STEP_FENCE, refusal);
}

static int take_step(struct request *request, const struct ring_sqe *sqe, struct refusal *refusal)
{
	struct session *session = request->session;
	struct engine *engine = session->engine;
	uint8_t header[MSG_HEADER_MAX];
	struct msg_step msg;
	int rc;

	if (copy_header(session, sqe, header, refusal))
		return refusal->status;
	rc = msg_step_decode(engine->codec, header, sqe->header_length, &msg, &refusal->detail);
	if (rc)
		return refusal->status = rc;
	if (find_runner(engine, msg.model, request, refusal))
		return refusal->status;
	if (!msg.n_rows)
		return refuse(refusal, MIMEO_E_INVALID, refusal_detail(RING_DETAIL_EMPTY, 0, 0, 0));
	if (msg.n_rows > engine->options.max_requests)
		return refuse(refusal, MIMEO_E_INVALID, refusal_detail(RING_DETAIL_REQUESTS, msg.n_rows,
			engine->options.max_requests, 0));
	if (take_rows(request, sqe, msg.n_rows, &msg.mask, refusal))
		return refusal->status;
	request->want_tokens = msg.outputs & MIMEO_STEP_TOKENS;
	request->want_logits = msg.outputs & MIMEO_STEP_LOGITS;
	request->want_hidden = msg.outputs & MIMEO_STEP_HIDDEN;
	if (take_step_places(request, &msg, refusal))
		return refusal->status;
	if (set_output(request, sqe, request->want_tokens ? msg.n_rows : 0,
		request->want_logits && !request->logits.at ? msg.n_rows : 0,
		request->want_hidden && !request->hidden.at ? msg.n_rows : 0, refusal))
		return refusal->status;
	request->n_rows = request->n_rows_left = request->n_rows_unlaunched = msg.n_rows;
	terms_sampling(request, &msg.sampling);
	terms_deadline(request, msg.deadline_ms);
	return terms_mask(request, &msg.mask, refusal);
}

/* Cancelling takes effect at once, ahead of what waits. */
static int take_cancel(struct session *session, const struct ring_sqe *sqe)
{
	struct request *target;

	if (sqe->argument >= session->n_requests)
		return MIMEO_E_UNKNOWN_REQUEST;
	target = &session->requests[sqe->argument];
	if (target->state == REQUEST_FREE || target->generation != sqe->generation2)
		return MIMEO_E_UNKNOWN_REQUEST;
	request_finish(target, MIMEO_E_CANCELLED,
		target->op == RING_OP_GENERATE ? MIMEO_FINISH_CANCELLED : MIMEO_FINISH_NONE, NULL);
	return 0;
}

static bool is_new_work(unsigned op)
{
	return op == RING_OP_GENERATE || op == RING_OP_STEP || op == RING_OP_OPEN || op == RING_OP_FORK;
}

/* 0: the request waits. Otherwise *refusal says why there is none. */
static int take_request(struct session *session, const struct ring_sqe *sqe, struct refusal *refusal)
{
	struct engine *engine = session->engine;
	struct request *request = &session->requests[sqe->request];
	int rc = 0;

	if (engine->lost)
		return refusal->status = MIMEO_E_DEVICE_LOST;
	if (engine->draining && is_new_work(sqe->op))
		return refusal->status = MIMEO_E_DRAINING;
	request->generation = sqe->generation;
	request->user_data = sqe->user_data;
	request->op = sqe->op;
	request->sequence = sqe->sequence;
	request->argument = sqe->argument;
	request->runner = NULL;
	request->n_prompt = request->n_generated = 0;
	request->n_rows = 0;
	request->deadline_ns = 0;
	request->n_drafts = 0;
	request->mask = (struct mimeo_mask){0};
	request->mask_words = NULL;
	request->want_tokens = request->want_logits = request->want_hidden = false;
	request->logits = request->hidden = request->embeddings = (struct request_place){0};
	request->fence = NULL;
	request->n_places = 0;
	request->last_launch = 0;
	if (sqe->op == RING_OP_GENERATE)
		rc = take_generate(request, sqe, refusal);
	else if (sqe->op == RING_OP_STEP)
		rc = take_step(request, sqe, refusal);
	if (rc) {
		request_places_drop(request);
		return rc;
	}
	if (request->deadline_ns) {
		if (!engine->n_deadlines++ || request->deadline_ns < engine->next_deadline_ns)
			engine->next_deadline_ns = request->deadline_ns;
	}
	session->n_in_flight++;
	engine->n_requests++;
	count(&engine->stats.n_requests, 1);
	atomic_fetch_add_explicit(&session->port->n_requests, 1, memory_order_relaxed);
	engine_session_wait_push(session, request);
	return 0;
}

static void take(struct session *session, const struct ring_sqe *sqe)
{
	struct refusal refusal = {0};

	if (sqe->request >= session->n_requests ||
		session->requests[sqe->request].state != REQUEST_FREE) {
		engine_session_fail(session, "submission ring: a request index that is out of range or in flight");
		return;
	}
	switch (sqe->op) {
	case RING_OP_NOP:
		break;
	case RING_OP_CANCEL:
		refusal.status = take_cancel(session, sqe);
		break;
	case RING_OP_GENERATE:
	case RING_OP_STEP:
	case RING_OP_OPEN:
	case RING_OP_FORK:
	case RING_OP_TRUNCATE:
	case RING_OP_CLOSE:
		if (!take_request(session, sqe, &refusal))
			return;
		break;
	default:
		refuse(&refusal, MIMEO_E_INVALID, refusal_detail(RING_DETAIL_OP, sqe->op, 0, 0));
	}
	post_refusal(session, sqe, refusal.status, &refusal.detail);
}

bool intake(struct session *session)
{
	struct ring *ring = &session->port->region.ring;
	struct ring_sqe sqe;
	uint32_t n;

	if (session->failed || session->detached)
		return false;
	session->stuffed = false;
	/* One ringful a turn: a client that submits without end does not hold up the others. An entry
	 * is taken when its final completion has room, beside those of the requests in flight. */
	for (n = 0; n < session->n_requests; n++) {
		int room = ring_cq_room(ring, session->n_in_flight + 1);

		session->stuffed = room == 0;
		if (room < 0)
			engine_session_fail(session, "completion ring: the head is not where it can be");
		if (room != 1 || !ring_sq_pop(ring, &sqe))
			break;
		take(session, &sqe);
		if (session->failed)
			return true;
	}
	if (n)
		ring_sq_release(ring);
	return n > 0;
}
