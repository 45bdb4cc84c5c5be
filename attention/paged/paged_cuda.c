/* SPDX-License-Identifier: MIT */

/*
 * The host side of paged attention on CUDA: the buffers that its kernels share (plans, partials,
 * counters; worst-case sizes, fixed addresses), and which kernels serve a model. Head and page
 * sizes that the fast ones are not made for, and operands that are not aligned, go to the slow one.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "attention/paged/paged_cuda.h"
#include "attention/paged/paged_map.h"

#define MIN_FAST_PAGE 16u
#define LARGE_WAVES 3u /* so many blocks a multiprocessor are worth the larger ones */

_Static_assert(sizeof(struct plan_row) == 32 && sizeof(struct plan_slot) == 64 &&
		       sizeof(struct plan_head) == 16, "the plan is read in pieces of 16 bytes");

/* Pointers tell ops apart. */
static const char name_plan[] = "paged_plan";
static const char name_run[] = "paged_attention";
static const char name_prefill[] = "paged_prefill";
static const char name_prefill_sm90[] = "paged_prefill_sm90";
static const char name_any[] = "paged_any";

struct paged_state {
	struct device *device;
	const struct gqa_model *model;
	bool fast;
	struct paged_variant decode, prefill;
	struct paged_variant prefill_large; /* for prompts that fill the device several times */
	paged_encode_fn *encode; /* of tensor maps; NULL: prefill is not the one of 9.0a */
	uint32_t n_slots, page_shift, n_sms;
	uint32_t n_windows, *windows; /* [n_layers] distinct ones first */
	void *plans;                  /* [n_windows] plan_bytes each */
	uint64_t plan_bytes;
	float *partials, *stats;
	uint32_t *counters; /* and, behind them, the ticket */
	/* A graph has a plan of its own, so inputs and history may change while one runs. */
	bool plan_captured;
};

static uint32_t log2_of(uint32_t power_of_two)
{
	return (uint32_t)__builtin_ctz(power_of_two);
}

static struct plan_view plan_at(const struct paged_state *state, uint32_t index)
{
	uint32_t max_rows = state->model->config.max_rows;
	char *base = (char *)state->plans + index * state->plan_bytes;
	struct plan_view view = { .head = (struct plan_head *)base };

	view.slots = (struct plan_slot *)(view.head + 1);
	view.rows = (struct plan_row *)(view.slots + state->n_slots);
	view.longs = view.rows + max_rows;
	view.zeros = (int32_t (*)[2])(view.longs + max_rows);
	return view;
}

static uint64_t plan_size(const struct paged_state *state)
{
	uint64_t max_rows = state->model->config.max_rows;
	uint64_t bytes = sizeof(struct plan_head) + state->n_slots * sizeof(struct plan_slot) +
			 2 * max_rows * sizeof(struct plan_row) +
			 (max_rows + 1) * 2 * sizeof(int32_t);

	return (bytes + 255) / 256 * 256;
}

/* ---- making ---- */

static int windows_find(struct paged_state *state)
{
	const struct attention_config *c = &state->model->config;

	state->windows = calloc(c->n_layers, sizeof(*state->windows));
	if (!state->windows)
		return -ENOMEM;
	for (uint32_t l = 0; l < c->n_layers; l++) {
		uint32_t i = 0;

		while (i < state->n_windows && state->windows[i] != state->model->windows[l])
			i++;
		if (i == state->n_windows)
			state->windows[state->n_windows++] = state->model->windows[l];
	}
	return 0;
}

static int allow_shared(struct paged_state *state, const struct paged_variant *variant)
{
	return CUDA_TRY(state->device, cudaFuncSetAttribute(variant->kernel,
		cudaFuncAttributeMaxDynamicSharedMemorySize, (int)variant->shared_bytes));
}

/* The line of tiles is cut into as many pieces as blocks of one kv head run at once. */
static int slots_count(struct paged_state *state, uint32_t n_sms)
{
	uint32_t n_kv_heads = state->model->config.n_kv_heads;
	int per_sm = 0, rc;

	rc = CUDA_TRY(state->device, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm,
		state->decode.kernel, 128, state->decode.shared_bytes));
	if (rc != 0)
		return rc;
	state->n_slots = (uint32_t)per_sm * n_sms / n_kv_heads;
	if (state->n_slots == 0)
		state->n_slots = 1;
	return 0;
}

#ifdef MIMEO_PAGED_SM90
/* The kernels of 9.0a, if this is their device and the driver makes tensor maps. */
static void prefill_choose_sm90(struct paged_state *state, struct stream *stream)
{
	const struct cuda_limits *limits = cuda_limits(stream);
	uint32_t head_dim = state->model->config.head_dim, shared = limits->shared_bytes_optin;
	struct paged_variant variant;

	if (limits->arch != 90 || !paged_prefill_sm90_variant(head_dim, 0, shared, &variant))
		return;
	state->encode = paged_map_encode();
	if (!state->encode)
		return;
	state->prefill = state->prefill_large = variant;
	paged_prefill_sm90_variant(head_dim, variant.rows + 1, shared, &state->prefill_large);
}
#endif

/* Load all kernels that may serve this model, now: what comes later may not load any. */
static int kernels_choose(struct paged_state *state, struct stream *stream)
{
	const struct attention_config *c = &state->model->config;
	uint32_t shared = cuda_limits(stream)->shared_bytes_optin;
	int rc = cuda_launch_begin(stream, name_any, paged_any_kernel());

	state->fast = c->page_tokens >= MIN_FAST_PAGE && !(c->page_tokens & (c->page_tokens - 1)) &&
		      paged_decode_variant(c->head_dim, shared, &state->decode) &&
		      paged_prefill_variant(c->head_dim, shared, &state->prefill);
	state->prefill_large = state->prefill;
	if (!state->fast)
		state->decode.kernel = NULL;
#ifdef MIMEO_PAGED_SM90
	if (state->fast)
		prefill_choose_sm90(state, stream);
#endif
	if (rc == 0)
		rc = cuda_launch_begin(stream, name_run, state->decode.kernel);
	if (rc != 0 || !state->fast)
		return rc;
	state->page_shift = log2_of(c->page_tokens);
	state->n_sms = cuda_limits(stream)->n_sms;
	rc = cuda_launch_begin(stream, name_plan, paged_plan_kernel());
	if (rc == 0)
		rc = cuda_launch_begin(stream, state->encode ? name_prefill_sm90 : name_prefill,
			state->prefill.kernel);
	if (rc == 0)
		rc = allow_shared(state, &state->decode);
	if (rc == 0)
		rc = allow_shared(state, &state->prefill);
	if (rc == 0)
		rc = allow_shared(state, &state->prefill_large);
	return rc != 0 ? rc : slots_count(state, cuda_limits(stream)->n_sms);
}

static int buffers_new(struct paged_state *state, struct stream *stream)
{
	const struct device_ops *ops = state->device->ops;
	const struct attention_config *c = &state->model->config;
	size_t n_partial_rows = (size_t)state->n_slots * 2 * c->n_heads * PAGED_M_BLOCK;
	size_t counter_bytes = ((size_t)c->max_rows * c->n_heads + 1) * sizeof(*state->counters);
	int rc;

	state->plan_bytes = plan_size(state);
	rc = ops->mem_alloc(state->device, state->n_windows * state->plan_bytes, &state->plans);
	if (rc == 0)
		rc = ops->mem_alloc(state->device, n_partial_rows * c->head_dim * sizeof(float),
			(void **)&state->partials);
	if (rc == 0)
		rc = ops->mem_alloc(state->device, n_partial_rows * 2 * sizeof(float),
			(void **)&state->stats);
	if (rc == 0)
		rc = ops->mem_alloc(state->device, counter_bytes, (void **)&state->counters);
	if (rc == 0)
		rc = ops->fill_async(stream, state->counters, 0, counter_bytes);
	/* a run without a build finds no work rather than garbage */
	if (rc == 0)
		rc = ops->fill_async(
			stream, state->plans, 0, state->n_windows * state->plan_bytes);
	return rc != 0 ? rc : ops->stream_sync(stream);
}

static void state_free(struct paged_state *state)
{
	if (!state)
		return;
	if (state->counters)
		state->device->ops->mem_free(state->device, state->counters);
	if (state->stats)
		state->device->ops->mem_free(state->device, state->stats);
	if (state->partials)
		state->device->ops->mem_free(state->device, state->partials);
	if (state->plans)
		state->device->ops->mem_free(state->device, state->plans);
	free(state->windows);
	free(state);
}

static int state_new(
	struct device *device, const struct gqa_model *model, struct paged_state **ret)
{
	struct paged_state *state;
	struct stream *stream;
	int rc;

	if (model->config.head_dim > PAGED_ANY_HEAD_DIM)
		return -ENOTSUP;
	state = calloc(1, sizeof(*state));
	if (!state)
		return -ENOMEM;
	state->device = device;
	state->model = model;
	rc = device->ops->stream_new(device, &stream);
	if (rc != 0) {
		free(state);
		return rc;
	}
	rc = windows_find(state);
	if (rc == 0)
		rc = kernels_choose(state, stream);
	if (rc == 0 && state->fast)
		rc = buffers_new(state, stream);
	device->ops->stream_free(stream);
	if (rc != 0) {
		state_free(state);
		return rc;
	}
	*ret = state;
	return 0;
}

/* ---- running ---- */

/* The plan and the runs of a step agree on it, for both know the padded number of tokens. */
static const struct paged_variant *prefill_for(
	const struct paged_state *state, uint32_t n_tokens)
{
	const struct paged_variant *large = &state->prefill_large;
	uint64_t n_items = (uint64_t)n_tokens * state->model->config.n_heads / large->rows;

	return n_items >= LARGE_WAVES * state->n_sms ? large : &state->prefill;
}

static int plan(
	struct paged_state *state, struct stream *stream, uint32_t n_rows, uint32_t n_tokens)
{
	const struct attention_config *c = &state->model->config;
	uint64_t capacity = (uint64_t)c->max_pages * c->page_tokens;
	struct plan_args args = {
		.query_start = state->model->inputs.query_start,
		.seq_lens = state->model->inputs.seq_lens,
		.plan_bytes = state->plan_bytes,
		.n_rows = n_rows,
		.n_tokens = n_tokens,
		.n_slots = state->n_slots,
		.group = c->n_heads / c->n_kv_heads,
		.capacity = capacity < INT32_MAX ? (uint32_t)capacity : INT32_MAX,
	};
	int rc;

	if (!state->fast)
		return 0;
	args.block_rows = prefill_for(state, n_tokens)->rows;
	state->plan_captured |= state->device->ops->capturing(stream);
	rc = cuda_launch_begin(stream, name_plan, paged_plan_kernel());
	for (uint32_t i = 0; rc == 0 && i < state->n_windows; i += args.n_windows) {
		args.plan = plan_at(state, i);
		args.n_windows = state->n_windows - i;
		if (args.n_windows > PAGED_PLAN_WINDOWS)
			args.n_windows = PAGED_PLAN_WINDOWS;
		memcpy(args.windows, state->windows + i, args.n_windows * sizeof(*args.windows));
		paged_plan_launch(stream, &args);
		rc = cuda_launch_end(stream, name_plan);
	}
	return rc;
}

static bool aligned(const struct paged_args *a)
{
	uintptr_t all = (uintptr_t)a->q | (uintptr_t)a->kv | (uintptr_t)a->out;

	return all % 16 == 0 && a->q_stride % 8 == 0;
}

static int prefill(const struct paged_state *state, struct stream *stream,
	const struct paged_cuda_args *args)
{
#ifdef MIMEO_PAGED_SM90
	struct paged_tensor_map map;
	int rc;

	if (state->encode) {
		rc = paged_map_make(state->device, state->encode, &state->model->config,
			args->a.kv, state->prefill.keys, &map);
		if (rc == 0)
			paged_prefill_sm90_launch(
				stream, prefill_for(state, args->a.n_tokens), args, &map);
		return rc;
	}
#endif
	paged_prefill_launch(stream, &state->prefill, args);
	return 0;
}

static int run_fast(
	const struct paged_state *state, struct stream *stream, const struct paged_args *a)
{
	const struct attention_config *c = &state->model->config;
	struct paged_cuda_args args = {
		.a = *a,
		.partials = state->partials,
		.stats = state->stats,
		.counters = state->counters,
		.ticket = state->counters + (size_t)c->max_rows * c->n_heads,
		.n_slots = state->n_slots,
		.page_shift = state->page_shift,
		.n_sms = state->n_sms,
		/* a graph begins when all before it is done, its plan and inputs among that */
		.early = cuda_inputs_settled(stream) && !state->plan_captured,
	};
	uint32_t i = 0;

	while (state->windows[i] != a->window)
		i++;
	args.plan = plan_at(state, i);
	args.alone = a->n_long && a->max_query == 0;
	if (!args.alone)
		paged_decode_launch(stream, &state->decode, &args);
	return a->n_long ? prefill(state, stream, &args) : 0;
}

static int run(struct paged_state *state, struct stream *stream, const struct paged_args *a)
{
	int rc = cuda_launch_begin(stream, name_run, state->decode.kernel), ended;

	if (rc != 0 || a->n_tokens == 0)
		return rc;
	if (state->fast && aligned(a))
		rc = run_fast(state, stream, a);
	else
		paged_any_launch(stream, a);
	ended = cuda_launch_end(stream, name_run);
	return rc != 0 ? rc : ended;
}

const struct paged_kernels paged_cuda_kernels = {
	.dtype = DTYPE_BF16,
	.state_new = state_new,
	.state_free = state_free,
	.plan = plan,
	.run = run,
};
