/* SPDX-License-Identifier: MIT */
/*
 * The terms of a request, as decoded: sampling, deadline, drafts, places in device buffers, fence, mask.
 * Hot path: no allocation, no lock, no system call.
 */
#include "daemon/engine/requests/intake.h"

#include <string.h>

#include "ipc/clock.h"

struct msg_detail refusal_detail(unsigned kind, int64_t a, int64_t b, int64_t c)
{
	int64_t v[3] = {a, b, c};
	struct msg_detail d = {.detail = kind};

	for (int i = 0; i < 3; i++)
		d.values[i] = v[i] > INT32_MAX ? INT32_MAX : v[i] < INT32_MIN ? INT32_MIN : (int32_t)v[i];
	return d;
}

int refuse(struct refusal *refusal, int status, struct msg_detail detail)
{
	refusal->status = status;
	refusal->detail = detail;
	return status;
}

static uint64_t next_seed(struct engine *engine)
{
	/* SplitMix64 (Steele, Lea, Flood 2014): seeds for requests that bring none. */
	uint64_t z = engine->seed_state += 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

void terms_sampling(struct request *request, const struct mimeo_sampling *m)
{
	struct engine *engine = request->session->engine;

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
	request->sampling.seed = m->flags & MIMEO_SAMPLING_SEEDED ? m->seed : next_seed(engine);
}

void terms_deadline(struct request *request, uint32_t deadline_ms)
{
	request->deadline_ns = 0;
	if (!deadline_ms)
		return;
	request->deadline_ns = clock_ns() + (uint64_t)deadline_ms * 1000000;
}

void terms_drafts(struct request *request, uint32_t wanted)
{
	uint32_t n = request->runner->options.n_drafts;

	_Static_assert(MIMEO_DRAFT_MAX == SPECULATE_MAX, "drafts");
	if (wanted == MIMEO_DRAFT_NONE)
		n = 0;
	request->n_drafts = wanted && wanted < n ? wanted : n;
}

int terms_place(struct request *request, const struct mimeo_place *place, uint64_t n,
	uint64_t bytes, struct request_place *ret, struct refusal *refusal)
{
	uint64_t total;

	if (__builtin_mul_overflow(n, bytes, &total))
		total = UINT64_MAX;
	refusal->status = request_place_take(request, place, total, ret, &refusal->detail);
	return refusal->status;
}

int terms_fence(struct request *request, bool wanted, struct refusal *refusal)
{
	const struct engine_port *port = request->session->port;

	if (!wanted)
		return 0;
	if (port->fences)
		request->fence = atomic_load_explicit(
			&port->fences[request->index], memory_order_acquire);
	return request->fence ? 0 : refuse(refusal, MIMEO_E_INVALID,
		refusal_detail(RING_DETAIL_FENCE, request->index, 0, 0));
}

/* ---- masks ---- */

/* More of the row's tokens under its mask than there can be: TOO_LONG where a daemon with another limit
 * would take them. */
static int refuse_tokens(struct refusal *refusal, int status, const struct mimeo_mask *mask, uint32_t row,
	uint32_t n_tokens, uint32_t most)
{
	struct msg_detail d = refusal_detail(RING_DETAIL_MASK_TOKENS, row, n_tokens, most);

	d.values[3] = (int32_t)mask->kind;
	return refuse(refusal, status, d);
}

/* The model's attention has no masks: which one it is. */
static int refuse_mask(struct refusal *refusal, const struct mimeo_mask *mask, const char *attention)
{
	struct msg_detail d = refusal_detail(RING_DETAIL_MASK, mask->kind, 0, 0);
	size_t length = strlen(attention), room = sizeof(d.values) - sizeof(d.values[0]);

	memcpy(&d.values[1], attention, length < room ? length : room);
	return refuse(refusal, MIMEO_E_UNSUPPORTED, d);
}

/* The model's, for a request that brings none: a prefix is all that each row has. */
static int take_default_mask(struct request *request, struct refusal *refusal)
{
	uint32_t most = request->session->engine->options.max_batch_tokens;

	request->mask = request->runner->options.mask;
	for (uint32_t i = 0; request->mask.prefix && i < request->n_rows; i++) {
		if (request->rows[i].n_tokens > most)
			return refuse_tokens(refusal, MIMEO_E_TOO_LONG, &request->mask, i,
				request->rows[i].n_tokens, most);
	}
	return 0;
}

int terms_mask(struct request *request, const struct mimeo_mask *mask, struct refusal *refusal)
{
	const struct attention_backend *attention = request->runner->options.attention;
	uint32_t most = request->session->engine->options.max_batch_tokens;

	_Static_assert((int)MIMEO_MASK_DEFAULT == MASK_CAUSAL &&
		(int)MIMEO_MASK_WINDOW == MASK_WINDOW &&
		(int)MIMEO_MASK_PREFIX == MASK_PREFIX &&
		(int)MIMEO_MASK_DOCUMENTS == MASK_DOCUMENTS &&
		(int)MIMEO_MASK_TREE == MASK_TREE && MIMEO_TREE_MAX == MASK_TREE_MAX, "masks");
	if (mask->kind == MIMEO_MASK_DEFAULT)
		return take_default_mask(request, refusal);
	request->mask = *mask;
	if (!attention->masks)
		return refuse_mask(refusal, mask, attention->name);
	if (mask->prefix > most)
		return refuse_tokens(refusal, MIMEO_E_TOO_LONG, mask, 0, mask->prefix, most);
	for (uint32_t i = 0; i < request->n_rows; i++) {
		uint32_t n = request->rows[i].n_tokens;

		if (mask->prefix > n)
			return refuse_tokens(refusal, MIMEO_E_INVALID, mask, i, mask->prefix, n);
		if (mask->kind == MIMEO_MASK_TREE && n > MIMEO_TREE_MAX)
			return refuse_tokens(refusal, MIMEO_E_INVALID, mask, i, n, MIMEO_TREE_MAX);
	}
	return 0;
}
