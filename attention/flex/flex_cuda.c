/* SPDX-License-Identifier: MIT */

/*
 * The host side of block masks on CUDA: the buffers that its kernels share beside the plans
 * (schedules, partials, counters; worst-case sizes, fixed addresses), and which kernels serve a
 * model. Head and page sizes that the fast ones are not made for, and operands that are not aligned,
 * go to the slow one.
 *
 * A layer is one launch. A batch's padded tokens alone say of which kernel: the one for both sorts
 * of blocks where a row might be longer than short_query, otherwise the split one. Both have the same
 * slots, so that a token's result does not depend on which of them it was. What there is to do they
 * read from the schedule.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "attention/flex/flex_cuda.h"
#include "attention/paged/paged_map.h"
#include "kernels/arena.h"

#define MIN_FAST_PAGE 16u

_Static_assert(sizeof(struct flex_work) == 64 && sizeof(struct flex_slot) == 96 &&
		       sizeof(struct flex_piece) == 32,
	"the schedule is read in pieces of 16 bytes");

/* Pointers tell ops apart. */
static const char name_plan[] = "flex_plan";
static const char name_run[] = "flex_attention";
static const char name_split[] = "flex_split";
static const char name_mixed[] = "flex_mixed_sm90";

struct flex_state {
	struct device *device;
	const struct gqa_model *model;
	bool fast;
	struct flex_variant split, mixed;
	paged_encode_fn *encode; /* of tensor maps; NULL: all blocks are split */
	uint32_t n_slots, page_shift, n_sms, max_blocks, n_plans;
	uint32_t short_query; /* tokens of a row whose blocks are split */
	uint32_t n_blocks;    /* of the kernel of 9.0a; 0: there is none */
	void *memory; /* of all that follows */
	size_t bytes;
	struct flex_schedule *schedules; /* [n_plans] */
	float *partials, *stats;
	float *long_partials, *long_stats;
	uint32_t *counters, *long_counters, *ticket;
	/* A graph has a plan of its own, so inputs and history may change while one runs. */
	bool plan_captured;
};

static uint32_t group_of(const struct attention_config *config)
{
	return config->n_heads / config->n_kv_heads;
}

static void geometry(
	const struct attention_config *config, uint32_t *ret_queries, uint32_t *ret_keys)
{
	uint32_t group = group_of(config);

	*ret_queries = group < FLEX_PACKED ? FLEX_PACKED / group : 1;
	*ret_keys = FLEX_TILE;
}

/* ---- making ---- */

static int allow_shared(struct flex_state *state, const struct flex_variant *variant)
{
	return CUDA_TRY(state->device, cudaFuncSetAttribute(variant->kernel,
		cudaFuncAttributeMaxDynamicSharedMemorySize, (int)variant->shared_bytes));
}

/* The line is cut into as many pieces as blocks run at once. */
static int slots_count(struct flex_state *state)
{
	int per_sm = 0;
	int rc = CUDA_TRY(state->device, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm,
		state->split.kernel, (int)state->split.threads, state->split.shared_bytes));

	state->n_slots = per_sm > 0 ? (uint32_t)per_sm * state->n_sms : 1;
	return rc;
}

/* The kernel of 9.0a, if this is its device and the driver makes tensor maps. */
static int mixed_choose(struct flex_state *state, struct stream *stream)
{
#ifdef MIMEO_PAGED_SM90
	const struct cuda_limits *limits = cuda_limits(stream);
	int rc;

	if (limits->arch != 90 || !flex_mixed_sm90_variant(state->model->config.head_dim,
					  limits->shared_bytes_optin, &state->mixed))
		return 0;
	rc = cuda_launch_begin(stream, name_mixed, state->mixed.kernel);
	if (rc == 0)
		rc = allow_shared(state, &state->mixed);
	if (rc == 0)
		state->encode = paged_map_encode();
	if (rc != 0 || !state->encode)
		return rc;
	state->n_blocks = state->n_sms;
	state->n_slots = state->mixed.slots * state->n_blocks;
	/* what fills one tile of 16 packed rows is read as fast as memory goes */
	state->short_query = FLEX_PART / group_of(&state->model->config);
	if (state->short_query == 0)
		state->short_query = 1;
	return 0;
#else
	(void)state;
	(void)stream;
	return 0;
#endif
}

/* Load all kernels that may serve this model, now: what comes later may not load any. */
static int kernels_choose(struct flex_state *state, struct stream *stream)
{
	const struct attention_config *c = &state->model->config;
	const struct cuda_limits *limits = cuda_limits(stream);
	int rc = cuda_launch_begin(stream, name_run, flex_any_kernel());

	if (rc == 0)
		rc = cuda_launch_begin(stream, name_plan, flex_plan_kernel());
	state->n_sms = limits->n_sms;
	state->fast = c->page_tokens >= MIN_FAST_PAGE && !(c->page_tokens & (c->page_tokens - 1)) &&
		      group_of(c) <= FLEX_PACKED &&
		      flex_split_variant(c->head_dim, limits->shared_bytes_optin, &state->split);
	state->n_slots = 1;
	state->short_query = INT32_MAX;
	if (rc != 0 || !state->fast)
		return rc;
	state->page_shift = (uint32_t)__builtin_ctz(c->page_tokens);
	rc = cuda_launch_begin(stream, name_split, state->split.kernel);
	if (rc == 0)
		rc = allow_shared(state, &state->split);
	if (rc == 0)
		rc = slots_count(state);
	return rc != 0 ? rc : mixed_choose(state, stream);
}

static void carve(void *userdata, struct arena *arena)
{
	struct flex_state *state = userdata;
	size_t n_rows = (size_t)state->n_slots * 2 * FLEX_PART, n = state->max_blocks;
	size_t n_pieces = (size_t)state->n_blocks * FLEX_PIECES_OF_BLOCK;
	size_t n_long_rows = n_pieces * FLEX_PACKED;
	uint32_t head_dim = state->model->config.head_dim;

	for (uint32_t i = 0; i < state->n_plans; i++)
		state->schedules[i] = (struct flex_schedule){
			.head = arena_take(arena, 1, sizeof(struct flex_head)),
			.slots = arena_take(arena, state->n_slots, sizeof(struct flex_slot)),
			.works = arena_take(arena, n, sizeof(struct flex_work)),
			.splits = arena_take(arena, n, sizeof(struct flex_work)),
			.longs = arena_take(arena, n, sizeof(struct flex_work)),
			.pieces = arena_take(arena, n_pieces, sizeof(struct flex_piece)),
			.zeros = arena_take(arena, n + 1, sizeof(int32_t[2])),
			.done = arena_take(arena, 1, sizeof(uint32_t)),
		};
	state->partials = arena_take(arena, n_rows * head_dim, sizeof(float));
	state->stats = arena_take(arena, n_rows * 2, sizeof(float));
	state->counters = arena_take(arena, state->n_slots, sizeof(uint32_t));
	state->long_partials = arena_take(arena, n_long_rows * head_dim, sizeof(float));
	state->long_stats = arena_take(arena, n_long_rows * 2, sizeof(float));
	state->long_counters = arena_take(arena, n_pieces * 2, sizeof(uint32_t));
	state->ticket = arena_take(arena, 1, sizeof(uint32_t));
}

/* Zeros: counters begin so, and a run without a build finds no work rather than garbage. */
static int buffers_new(struct flex_state *state, struct stream *stream)
{
	const struct device_ops *ops = state->device->ops;
	int rc;

	state->schedules = calloc(state->n_plans, sizeof(*state->schedules));
	if (!state->schedules)
		return -ENOMEM;
	rc = arena_alloc(state->device, carve, state, &state->memory, &state->bytes);
	if (rc != 0)
		return rc;
	rc = ops->fill_async(stream, state->memory, 0, state->bytes);
	return rc != 0 ? rc : ops->stream_sync(stream);
}

static void state_free(struct flex_state *state)
{
	if (!state)
		return;
	if (state->memory)
		state->device->ops->mem_free(state->device, state->memory);
	free(state->schedules);
	free(state);
}

static int state_new(struct device *device, const struct gqa_model *model,
	const struct flex_inputs *in, uint32_t n_plans, struct flex_state **ret)
{
	struct flex_state *state = calloc(1, sizeof(*state));
	struct stream *stream;
	int rc;

	if (!state)
		return -ENOMEM;
	state->device = device;
	state->model = model;
	state->max_blocks = in->max_blocks;
	state->n_plans = n_plans;
	rc = device->ops->stream_new(device, &stream);
	if (rc != 0) {
		free(state);
		return rc;
	}
	rc = kernels_choose(state, stream);
	if (rc == 0)
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

static int plan(
	struct flex_state *state, struct stream *stream, const struct flex_plan_args *a)
{
	const struct attention_config *c = &state->model->config;
	const struct flex_cuda_plan_args args = {
		.a = *a,
		.to = state->schedules[a->index],
		.n_slots = state->n_slots,
		.n_kv_heads = c->n_kv_heads,
		.group = group_of(c),
		.short_query = state->short_query,
		.n_blocks = state->n_blocks,
	};
	int rc;

	if (a->in.max_blocks > state->max_blocks)
		return -EINVAL;
	rc = cuda_launch_begin(stream, name_plan, flex_plan_kernel());
	if (rc != 0)
		return rc;
	state->plan_captured |= state->device->ops->capturing(stream);
	flex_plan_launch(stream, &args);
	return cuda_launch_end(stream, name_plan);
}

static bool aligned(const struct flex_args *a)
{
	uintptr_t all = (uintptr_t)a->q | (uintptr_t)a->kv | (uintptr_t)a->out;

	return all % 16 == 0 && a->q_stride % 8 == 0;
}

static int run_fast(
	const struct flex_state *state, struct stream *stream, const struct flex_args *a)
{
	const struct flex_cuda_args args = {
		.a = *a,
		.from = state->schedules[a->index],
		.partials = state->partials,
		.stats = state->stats,
		.counters = state->counters,
		.long_partials = state->long_partials,
		.long_stats = state->long_stats,
		.long_counters = state->long_counters,
		.ticket = state->ticket,
		.n_slots = state->n_slots,
		.page_shift = state->page_shift,
		/* a graph begins when all before it is done, its plan and inputs among that */
		.early = state->device->ops->capturing(stream) && !state->plan_captured,
	};

#ifdef MIMEO_PAGED_SM90
	if (state->n_blocks && a->n_tokens > state->short_query) {
		struct paged_tensor_map map;
		int rc = paged_map_make(state->device, state->encode, &state->model->config,
			a->kv, FLEX_TILE, &map);

		if (rc == 0)
			flex_mixed_sm90_launch(stream, &state->mixed, &args, &map);
		return rc;
	}
#endif
	flex_split_launch(stream, &state->split, &args);
	return 0;
}

static int run(struct flex_state *state, struct stream *stream, const struct flex_args *a)
{
	int rc = cuda_launch_begin(stream, name_run, flex_any_kernel()), ended;

	if (rc != 0 || a->n_tokens == 0)
		return rc;
	if (a->n_blocks > a->in.max_blocks)
		return -EINVAL;
	if (state->fast && aligned(a))
		rc = run_fast(state, stream, a);
	else
		flex_any_launch(stream, a);
	ended = cuda_launch_end(stream, name_run);
	return rc != 0 ? rc : ended;
}

const struct flex_kernels flex_cuda_kernels = {
	.dtype = DTYPE_BF16,
	.geometry = geometry,
	.state_new = state_new,
	.state_free = state_free,
	.plan = plan,
	.run = run,
};
