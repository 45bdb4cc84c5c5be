/* SPDX-License-Identifier: MIT */

/*
 * The host side of paged attention on CUDA: the buffers that its kernels share (plans, partials,
 * counters; worst-case sizes, fixed addresses), and which kernels serve a model.
 */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "attention/paged/paged_cuda.h"

#define MIN_FAST_PAGE 16u
#define LARGE_WAVES 3u /* so many blocks a multiprocessor are worth the larger ones */

_Static_assert(sizeof(struct paged_row) == 32 && sizeof(struct paged_slot) == 64 &&
		       sizeof(struct paged_plan_head) == 16,
	"the plan is read in pieces of 16 bytes");

/* Pointers tell ops apart. */
static const char name_plan[] = "paged_plan";
static const char name_run[] = "paged_attention";
static const char name_prefill[] = "paged_prefill";
static const char name_prefill_sm90[] = "paged_prefill_sm90";
static const char name_any[] = "paged_any";

struct paged_state {
	const struct attention_manager *manager;
	bool fast, sm90; /* prefill is the kernel of 9.0a */
	struct attention_variant decode, prefill;
	struct attention_variant prefill_large; /* for prompts that fill the device several times */
	uint32_t n_slots, page_shift, n_sms;
	void *memory; /* of all that follows */
	void *plans;  /* [n_plans] plan_bytes each */
	uint64_t plan_bytes;
	float *partials, *stats;
	uint32_t *counters, *ticket;
	/* A graph has a plan of its own, so inputs and history may change while one runs. */
	bool plan_captured;
};

/* ---- memory ---- */

static struct paged_plan paged_cuda_plan_at(const struct paged_state *state, uint32_t index)
{
	uint32_t max_rows = state->manager->config.max_rows;
	char *base = (char *)state->plans + index * state->plan_bytes;
	struct paged_plan view = {.head = (struct paged_plan_head *)base};

	assert(index < state->manager->n_plans);
	view.slots = (struct paged_slot *)(view.head + 1);
	view.rows = (struct paged_row *)(view.slots + state->n_slots);
	view.longs = view.rows + max_rows;
	view.zeros = (int32_t (*)[2])(view.longs + max_rows);
	assert((char *)(view.zeros + max_rows + 1) <= base + state->plan_bytes);
	return view;
}

static void paged_cuda_carve(void *userdata, struct arena *arena)
{
	struct paged_state *state = userdata;
	const struct attention_config *c = &state->manager->config;
	size_t n_rows = (size_t)state->n_slots * 2 * c->n_heads * PAGED_M_BLOCK;
	size_t max_rows = c->max_rows;

	state->plan_bytes =
		sizeof(struct paged_plan_head) + state->n_slots * sizeof(struct paged_slot) +
		2 * max_rows * sizeof(struct paged_row) + (max_rows + 1) * sizeof(int32_t[2]);
	state->plan_bytes = (state->plan_bytes + 255) / 256 * 256;
	state->plans = arena_take(arena, state->manager->n_plans, state->plan_bytes);
	state->partials = arena_take(arena, n_rows * c->head_dim, sizeof(float));
	state->stats = arena_take(arena, n_rows * 2, sizeof(float));
	state->counters = arena_take(arena, max_rows * c->n_heads, sizeof(uint32_t));
	state->ticket = arena_take(arena, 1, sizeof(uint32_t));
}

/* ---- making ---- */

/* The line of tiles is cut into as many pieces as blocks of one kv head run at once. */
static int paged_cuda_count_slots(struct paged_state *state)
{
	int per_sm = 0, rc;

	rc = CUDA_TRY(state->manager->device, cudaOccupancyMaxActiveBlocksPerMultiprocessor(
		&per_sm, state->decode.kernel, (int)state->decode.threads,
		state->decode.shared_bytes));
	if (rc)
		return rc;
	state->n_slots = (uint32_t)per_sm * state->n_sms / state->manager->config.n_kv_heads;
	if (state->n_slots == 0)
		state->n_slots = 1;
	return 0;
}

/* The kernels of 9.0a, if this is their device, and the cache is not fp8. */
static void paged_cuda_choose_sm90(struct paged_state *state, struct stream *stream)
{
#ifdef MIMEO_PAGED_SM90
	const struct cuda_limits *limits = cuda_limits(stream);
	uint32_t dim = state->manager->config.head_dim, shared = limits->shared_bytes_optin;
	struct attention_variant variant;

	if (limits->arch != 90 || attention_fp8(&state->manager->config) ||
		!paged_prefill_sm90_variant(dim, 0, shared, &variant))
		return;
	state->sm90 = true;
	state->prefill = state->prefill_large = variant;
	paged_prefill_sm90_variant(dim, variant.rows + 1, shared, &state->prefill_large);
#endif
}

static bool paged_cuda_choose(struct paged_state *state, struct stream *stream)
{
	const struct attention_config *c = &state->manager->config;
	uint32_t shared = cuda_limits(stream)->shared_bytes_optin;
	bool codes = attention_fp8(c);

	if (c->invariant || c->soft_cap != 0 || !variant_takes_pages(c->page_tokens, MIN_FAST_PAGE) ||
		!paged_decode_variant(c->head_dim, codes, shared, &state->decode) ||
		!paged_prefill_variant(c->head_dim, codes, shared, &state->prefill))
		return false;
	state->prefill_large = state->prefill;
	paged_cuda_choose_sm90(state, stream);
	return true;
}

/* Load all kernels that may serve this model, now: what comes later may not load any. */
static int paged_cuda_load(struct paged_state *state, struct stream *stream)
{
	const char *prefill;
	int rc = cuda_launch_begin(stream, name_any, paged_any_kernel);

	if (rc)
		return rc;
	state->fast = paged_cuda_choose(state, stream);
	if (!state->fast) {
		state->decode.kernel = NULL;
		return cuda_launch_begin(stream, name_run, NULL);
	}
	state->page_shift = (uint32_t)__builtin_ctz(state->manager->config.page_tokens);
	state->n_sms = cuda_limits(stream)->n_sms;
	prefill = state->sm90 ? name_prefill_sm90 : name_prefill;
	rc = cuda_launch_begin(stream, name_plan, paged_plan_kernel);
	if (rc)
		return rc;
	rc = variant_load(stream, name_run, &state->decode);
	if (rc)
		return rc;
	rc = variant_load(stream, prefill, &state->prefill);
	if (rc)
		return rc;
	rc = variant_load(stream, prefill, &state->prefill_large);
	if (rc)
		return rc;
	return paged_cuda_count_slots(state);
}

static void paged_cuda_state_free(struct paged_state *state)
{
	if (!state)
		return;
	if (state->memory)
		state->manager->device->ops->mem_free(state->manager->device, state->memory);
	free(state);
}

static int paged_cuda_state_new(
	const struct attention_manager *manager, struct paged_state **ret)
{
	const struct device_ops *ops = manager->device->ops;
	struct paged_state *state;
	struct stream *stream;
	int rc;

	if (manager->config.head_dim > PAGED_ANY_HEAD_DIM)
		return -ENOTSUP;
	state = calloc(1, sizeof(*state));
	if (!state)
		return -ENOMEM;
	state->manager = manager;
	rc = ops->stream_new(manager->device, &stream);
	if (rc) {
		free(state);
		return rc;
	}
	rc = paged_cuda_load(state, stream);
	ops->stream_free(stream);
	if (!rc && state->fast)
		rc = attention_alloc_zeroed(
			manager->device, paged_cuda_carve, state, &state->memory);
	if (rc) {
		paged_cuda_state_free(state);
		return rc;
	}
	*ret = state;
	return 0;
}

/* ---- running ---- */

/* The plan and the runs of a step agree on it: both know the padded number of tokens. */
static const struct attention_variant *paged_cuda_prefill_for(
	const struct paged_state *state, uint32_t n_tokens)
{
	const struct attention_variant *large = &state->prefill_large;
	uint64_t n_items = (uint64_t)n_tokens * state->manager->config.n_heads / large->rows;

	return n_items >= LARGE_WAVES * state->n_sms ? large : &state->prefill;
}

static int paged_cuda_plan(
	struct paged_state *state, struct stream *stream, uint32_t n_rows, uint32_t n_tokens)
{
	const struct attention_manager *manager = state->manager;
	const struct attention_config *c = &manager->config;
	struct paged_plan_args args = {
		.query_start = manager->inputs.query_start,
		.seq_lens = manager->inputs.seq_lens,
		.plan_bytes = state->plan_bytes,
		.n_rows = n_rows,
		.n_tokens = n_tokens,
		.n_slots = state->n_slots,
		.capacity = attention_capacity(c),
		.group = c->n_heads / c->n_kv_heads,
	};
	int rc;

	if (!state->fast)
		return 0;
	assert(n_rows <= c->max_rows && n_tokens <= c->max_tokens);
	args.block_rows = paged_cuda_prefill_for(state, n_tokens)->rows;
	state->plan_captured |= manager->device->ops->capturing(stream);
	rc = cuda_launch_begin(stream, name_plan, paged_plan_kernel);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < manager->n_plans; i += args.n_windows) {
		args.plan = paged_cuda_plan_at(state, i);
		args.n_windows = manager->n_plans - i;
		if (args.n_windows > PAGED_PLAN_WINDOWS)
			args.n_windows = PAGED_PLAN_WINDOWS;
		memcpy(args.windows, manager->plan_windows + i,
			args.n_windows * sizeof(*args.windows));
		paged_plan_launch(stream, &args);
		rc = cuda_launch_end(stream, name_plan);
		if (rc)
			return rc;
	}
	return 0;
}

static int paged_cuda_prefill(const struct paged_state *state, struct stream *stream,
	const struct paged_cuda_args *args)
{
#ifdef MIMEO_PAGED_SM90
	struct cuda_tensor_map map;
	int rc;

	if (state->sm90) {
		rc = paged_tensor_map(stream, &state->manager->config, args->a.kv,
			state->prefill.keys, &map);
		if (rc)
			return rc;
		paged_prefill_sm90_launch(
			stream, paged_cuda_prefill_for(state, args->a.n_tokens), args, &map);
		return 0;
	}
#endif
	paged_prefill_launch(stream, &state->prefill, args);
	return 0;
}

static int paged_cuda_run_fast(
	const struct paged_state *state, struct stream *stream, const struct paged_args *a)
{
	struct paged_cuda_args args = {
		.a = *a,
		.plan = paged_cuda_plan_at(
			state, attention_plan_index(state->manager, a->window)),
		.partials = state->partials,
		.stats = state->stats,
		.counters = state->counters,
		.ticket = state->ticket,
		.n_slots = state->n_slots,
		.page_shift = state->page_shift,
		.n_sms = state->n_sms,
		/* a graph begins when all before it is done, its plan and inputs among that */
		.early = cuda_inputs_settled(stream) && !state->plan_captured,
		.alone = a->n_long && a->max_query == 0,
	};

	assert(a->n_rows <= state->manager->config.max_rows);
	if (!args.alone)
		paged_decode_launch(stream, &state->decode, &args);
	return a->n_long ? paged_cuda_prefill(state, stream, &args) : 0;
}

static int paged_cuda_run(
	struct paged_state *state, struct stream *stream, const struct paged_args *a)
{
	struct paged_args own = *a;
	int rc = cuda_launch_begin(stream, name_run, state->decode.kernel), ended;

	if (rc || a->n_tokens == 0)
		return rc;
	attention_fold_factors(a->fp8, &own.scale, &own.factors);
	assert(a->fp8 == attention_fp8(&state->manager->config));
	if (state->fast && variant_takes_operands(a->q, a->kv, a->out, a->q_stride))
		rc = paged_cuda_run_fast(state, stream, &own);
	else
		paged_any_launch(stream, &own);
	ended = cuda_launch_end(stream, name_run);
	return rc ? rc : ended;
}

const struct paged_kernels paged_cuda_kernels = {
	.dtype = DTYPE_BF16,
	.state_new = paged_cuda_state_new,
	.state_free = paged_cuda_state_free,
	.plan = paged_cuda_plan,
	.run = paged_cuda_run,
};
