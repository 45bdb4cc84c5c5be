/* SPDX-License-Identifier: MIT */
#include "daemon/engine/lane/lane.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "daemon/engine/requests/request.h"
#include "daemon/engine/requests/sequence.h"
#include "daemon/graph/forward.h"

_Static_assert(sizeof(struct mimeo_logprob) == sizeof(struct token_logprob) &&
	offsetof(struct mimeo_logprob, logprob) == offsetof(struct token_logprob, logprob), "one layout");

/* ---- what a step takes ---- */

/* Results of all positions that go through the outbox. */
static bool positions_leave(const struct request *r)
{
	return (r->all_logits && !r->logits.at) || (r->all_hidden && !r->hidden.at);
}

static uint32_t positions_smaller(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

uint32_t positions_capacity(const struct inputs_slot *slot, const struct sequence *s, uint32_t n, bool whole)
{
	const struct inputs_limits *l = slot->limits;
	const uint32_t begin = sequence_request_start(s);
	/* Tokens of earlier requests come before its own. */
	const uint32_t before = begin > s->n_computed ? begin - s->n_computed : 0;
	const uint32_t most = whole && !slot->n_positions ? l->max_tokens : POSITIONS_STEP;
	uint32_t left = slot->n_positions < most ? most - slot->n_positions : 0;

	if (!request_wants_positions(s->request) || s->n_computed >= s->target)
		return n;
	/* One more is for what is of the last position alone. */
	if (positions_leave(s->request))
		left = positions_smaller(
			left, slot->n_results < l->max_results ? l->max_results - slot->n_results - 1 : 0);
	return n <= before || n - before <= left ? n : before + left;
}

struct positions positions_begin(
	struct inputs_slot *slot, const struct sequence *s, uint32_t n_tokens, uint32_t first)
{
	const struct request *request = s->request;
	const uint32_t begin = sequence_request_start(s);
	const uint32_t start = s->n_computed > begin ? s->n_computed : begin;
	const uint32_t end = positions_smaller(s->n_computed + n_tokens, s->target);
	struct positions p = {0};

	if (!request_wants_positions(request) || end <= start)
		return p;
	p = (struct positions){
		.n = end - start,
		.token = first + (start - s->n_computed),
		.index = request->rows[s->row].first + (start - begin),
		.n_scores = request->want_scores ? positions_smaller(end, s->target - 1) - start : 0,
		.score = slot->n_scores,
		.result = slot->n_results,
	};
	memcpy(slot->score_tokens + p.score, s->tokens + start + 1, p.n_scores * sizeof(s->tokens[0]));
	slot->n_positions += p.n;
	slot->n_scores += p.n_scores;
	slot->n_results += positions_leave(request) ? p.n : 0;
	assert(slot->n_scores <= slot->limits->max_scores && slot->n_results <= slot->limits->max_results);
	return p;
}

/* ---- launching ---- */

/* n positions of a row, from its `at`-th on. */
struct part {
	struct lane *lane;
	struct inflight *inflight;
	const struct inflight_row *row;
	const struct request *request;
	uint32_t at, n;
};

static const struct kernel_ops *positions_kernels(const struct part *part)
{
	return part->lane->device->kernels;
}

/* Where hidden states of its first position lie. */
static const void *positions_hidden_of(const struct part *part)
{
	const struct runner *runner = part->inflight->runner;
	const size_t bytes = runner->model->config.hidden_size * dtype_bytes(runner->activation_dtype);

	return (const uint8_t *)runner->context.buffers.normed +
		(size_t)(part->row->positions.token + part->at) * bytes;
}

static int positions_copy_logits(const struct part *part)
{
	const struct positions *p = &part->row->positions;
	const struct runner *runner = part->inflight->runner;
	const size_t n = runner->model->config.vocab_size;
	float *to = part->request->logits.at
		? (float *)part->request->logits.at + (p->index + part->at) * n
		: part->inflight->slot->logits + (size_t)(p->result + part->at) * n;

	return part->lane->device->ops->copy_async(
		part->lane->stream, to, runner->context.buffers.logits, part->n * n * sizeof(float));
}

static int positions_score(const struct part *part)
{
	const struct positions *p = &part->row->positions;
	const struct inputs_slot *slot = part->inflight->slot;
	const uint32_t n = p->n_scores > part->at ? positions_smaller(p->n_scores - part->at, part->n) : 0;

	if (!n)
		return 0;
	return positions_kernels(part)->logprobs(part->lane->stream, &(struct op_logprobs){
		.logits = part->inflight->runner->context.buffers.logits,
		.tokens = slot->score_tokens + p->score + part->at,
		.out = slot->scores + (size_t)(p->score + part->at) * LOGPROBS_WIDTH,
		.n_rows = n,
		.vocab = part->inflight->runner->model->config.vocab_size,
		.n_top = part->request->n_top,
	});
}

static int positions_logits(const struct part *part)
{
	int rc;

	if (!part->request->all_logits && part->at >= part->row->positions.n_scores)
		return 0;
	rc = forward_logits_of(&part->inflight->runner->context, part->row->positions.token + part->at, part->n,
		part->lane->stream);
	if (rc)
		return rc;
	rc = part->request->all_logits ? positions_copy_logits(part) : 0;
	return rc ? rc : positions_score(part);
}

static int positions_hidden(const struct part *part)
{
	const struct positions *p = &part->row->positions;
	const struct runner *runner = part->inflight->runner;
	const size_t n = runner->model->config.hidden_size;
	float *to = part->request->hidden.at ? (float *)part->request->hidden.at + (p->index + part->at) * n
					     : runner->inputs.hidden_f32;
	int rc = positions_kernels(part)->to_f32(part->lane->stream, &(struct op_to_f32){
		.x = positions_hidden_of(part),
		.out = to,
		.n = part->n * n,
	});

	if (rc || part->request->hidden.at)
		return rc;
	return part->lane->device->ops->copy_async(part->lane->stream,
		part->inflight->slot->hidden + (size_t)(p->result + part->at) * n, to, part->n * n * sizeof(float));
}

/* The mean leaves with the row's last position. */
static int positions_mean(const struct part *part)
{
	const struct positions *p = &part->row->positions;
	const struct sequence *s = part->row->sequence;
	const struct request_row *own = &part->request->rows[s->row];
	const struct runner *runner = part->inflight->runner;
	const size_t n = runner->model->config.hidden_size;
	const uint32_t at = p->index + part->at - own->first;
	const bool last = at + part->n == own->n_tokens;
	float *to = part->request->hidden.at ? (float *)part->request->hidden.at + s->row * n
					     : runner->inputs.hidden_f32;
	int rc = positions_kernels(part)->mean_rows(part->lane->stream, &(struct op_mean_rows){
		.x = positions_hidden_of(part),
		.sum = runner->inputs.hidden_sums + (size_t)s->slot * n,
		.mean = to,
		.n_rows = part->n,
		.cols = (uint32_t)n,
		.first = at == 0,
		.total = last ? own->n_tokens : 0,
	});

	if (rc || !last || part->request->hidden.at)
		return rc;
	assert(part->row->result >= 0);
	return part->lane->device->ops->copy_async(part->lane->stream,
		part->inflight->slot->hidden + (size_t)part->row->result * n, to, n * sizeof(float));
}

static int positions_launch_part(const struct part *part)
{
	int rc = positions_logits(part);

	if (!rc && part->request->all_hidden)
		rc = positions_hidden(part);
	if (!rc && part->request->mean_hidden)
		rc = positions_mean(part);
	return rc;
}

static int positions_launch_row(struct lane *lane, struct inflight *inflight, const struct inflight_row *row)
{
	struct part part = {lane, inflight, row, row->sequence->request, 0, 0};
	int rc = 0;

	for (; !rc && part.at < row->positions.n; part.at += part.n) {
		part.n = positions_smaller(row->positions.n - part.at, inflight->slot->limits->max_rows);
		rc = positions_launch_part(&part);
	}
	counter_add(&inflight->runner->n_positions, row->positions.n);
	return rc;
}

int positions_launch(struct lane *lane, struct inflight *inflight)
{
	int rc = 0;

	for (uint32_t i = 0; i < inflight->n_rows && !rc; i++) {
		if (inflight->rows[i].positions.n)
			rc = positions_launch_row(lane, inflight, &inflight->rows[i]);
	}
	return rc;
}

/* ---- results ---- */

static void positions_take_scores(
	const struct inflight *inflight, const struct inflight_row *row, struct request *request)
{
	const struct positions *p = &row->positions;
	const struct request_row *own = &request->rows[row->sequence->row];
	const uint32_t width = 1 + request->n_top;

	assert(p->index - own->first + p->n_scores < own->n_tokens);
	/* The first token of a row has nothing before it that the request brought. */
	for (uint32_t k = 0; k < width && p->index == own->first; k++)
		request->out_scores[(size_t)own->first * width + k] = (struct mimeo_logprob){-1, NAN};
	for (uint32_t i = 0; i < p->n_scores; i++)
		memcpy(request->out_scores + (size_t)(p->index + i + 1) * width,
			inflight->slot->scores + (size_t)(p->score + i) * LOGPROBS_WIDTH,
			width * sizeof(*request->out_scores));
}

void positions_take(const struct inflight *inflight, const struct inflight_row *row, struct request *request)
{
	const struct model_config *c = &inflight->runner->model->config;
	const struct positions *p = &row->positions;

	if (!p->n)
		return;
	assert(p->index - request->rows[row->sequence->row].first + p->n <= request->rows[row->sequence->row].n_tokens);
	if (request->want_scores)
		positions_take_scores(inflight, row, request);
	if (request->all_logits && !request->logits.at)
		memcpy(request->out_logits + (size_t)p->index * c->vocab_size,
			inflight->slot->logits + (size_t)p->result * c->vocab_size,
			(size_t)p->n * c->vocab_size * sizeof(float));
	if (request->all_hidden && !request->hidden.at)
		memcpy(request->out_hidden + (size_t)p->index * c->hidden_size,
			inflight->slot->hidden + (size_t)p->result * c->hidden_size,
			(size_t)p->n * c->hidden_size * sizeof(float));
}
