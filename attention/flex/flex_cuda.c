/* SPDX-License-Identifier: MIT */

/*
 * The host side of block masks on CUDA: the buffers that the kernels share besides the plans (schedules,
 * partials, counters; worst-case sizes, fixed addresses), and the choice of kernels for a model.
 *
 * A layer is one launch. Only the batch's padded number of tokens decides which kernel it is: if a row can be
 * longer than short_query, the one for split and long blocks, otherwise the one for split blocks. Both have
 * the same slots, so that a token's result does not depend on the choice. They read their work from the
 * schedule.
 */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "attention/flex/flex_cuda.h"
#include "attention/paged/paged_cuda.h"

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
	const struct attention_manager *manager;
	bool fast;
	struct attention_variant split, mixed;
	uint32_t n_slots, page_shift, n_sms, max_blocks;
	uint32_t short_query; /* the longest row whose blocks are split, in tokens */
	uint32_t n_blocks;    /* thread blocks of the kernel for 9.0a; 0: it is not used */
	void *memory; /* of all that follows */
	struct flex_schedule *schedules; /* [n_plans] */
	float *partials, *stats;
	float *long_partials, *long_stats;
	uint32_t *counters, *long_counters, *ticket;
	/* A graph has a plan of its own, so inputs and history may change while one runs. */
	bool plan_captured;
};

static uint32_t flex_cuda_group(const struct attention_config *config)
{
	return config->n_heads / config->n_kv_heads;
}

static void flex_cuda_geometry(
	const struct attention_config *config, uint32_t *ret_queries, uint32_t *ret_keys)
{
	uint32_t group = flex_cuda_group(config);

	*ret_queries = group < FLEX_PACKED ? FLEX_PACKED / group : 1;
	*ret_keys = FLEX_TILE;
}

/* ---- making ---- */

/* There are as many slots as thread blocks run at once. */
static int flex_cuda_count_slots(struct flex_state *state)
{
	int per_sm = 0;
	int rc = CUDA_TRY(state->manager->device, cudaOccupancyMaxActiveBlocksPerMultiprocessor(
		&per_sm, state->split.kernel, (int)state->split.threads,
		state->split.shared_bytes));

	state->n_slots = per_sm > 0 ? (uint32_t)per_sm * state->n_sms : 1;
	return rc;
}

/* Choose the kernel for 9.0a, if the device has this compute capability, and the cache is not fp8. */
static int flex_cuda_choose_mixed(struct flex_state *state, struct stream *stream)
{
#ifdef MIMEO_PAGED_SM90
	const struct attention_config *c = &state->manager->config;
	const struct cuda_limits *limits = cuda_limits(stream);
	int rc;

	if (limits->arch != 90 || attention_fp8(c) ||
		!flex_mixed_sm90_variant(c->head_dim, limits->shared_bytes_optin, &state->mixed))
		return 0;
	rc = variant_load(stream, name_mixed, &state->mixed);
	if (rc)
		return rc;
	state->n_blocks = state->n_sms;
	state->n_slots = state->mixed.slots * state->n_blocks;
	/* rows that fit one tile of 16 packed rows are limited by memory bandwidth */
	state->short_query = FLEX_PART / flex_cuda_group(c);
	if (state->short_query == 0)
		state->short_query = 1;
#endif
	return 0;
}

/* Load all kernels that this model may use; after set-up none may be loaded. */
static int flex_cuda_load(struct flex_state *state, struct stream *stream)
{
	const struct attention_config *c = &state->manager->config;
	const struct cuda_limits *limits = cuda_limits(stream);
	int rc = cuda_launch_begin(stream, name_run, flex_any_kernel);

	if (rc)
		return rc;
	rc = cuda_launch_begin(stream, name_plan, flex_plan_kernel);
	if (rc)
		return rc;
	state->n_sms = limits->n_sms;
	state->n_slots = 1;
	state->short_query = INT32_MAX;
	state->fast = !c->invariant && c->soft_cap == 0 && variant_takes_pages(c->page_tokens, MIN_FAST_PAGE) &&
		      flex_cuda_group(c) <= FLEX_PACKED &&
		      flex_split_variant(
			      c->head_dim, attention_fp8(c), limits->shared_bytes_optin, &state->split);
	if (!state->fast)
		return 0;
	state->page_shift = (uint32_t)__builtin_ctz(c->page_tokens);
	rc = variant_load(stream, name_split, &state->split);
	if (rc)
		return rc;
	rc = flex_cuda_count_slots(state);
	if (rc)
		return rc;
	return flex_cuda_choose_mixed(state, stream);
}

static void flex_cuda_carve(void *userdata, struct arena *arena)
{
	struct flex_state *state = userdata;
	size_t n_rows = (size_t)state->n_slots * 2 * FLEX_PART, n = state->max_blocks;
	size_t n_pieces = (size_t)state->n_blocks * FLEX_PIECES_OF_BLOCK;
	size_t n_long_rows = n_pieces * FLEX_PACKED;
	uint32_t head_dim = state->manager->config.head_dim;

	for (uint32_t i = 0; i < state->manager->n_plans; i++)
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

static void flex_cuda_state_free(struct flex_state *state)
{
	if (!state)
		return;
	if (state->memory)
		state->manager->device->ops->mem_free(state->manager->device, state->memory);
	free(state->schedules);
	free(state);
}

static int flex_cuda_state_fill(struct flex_state *state)
{
	struct device *device = state->manager->device;
	struct stream *stream;
	int rc = device->ops->stream_new(device, &stream);

	if (rc)
		return rc;
	rc = flex_cuda_load(state, stream);
	device->ops->stream_free(stream);
	if (rc)
		return rc;
	state->schedules = calloc(state->manager->n_plans, sizeof(*state->schedules));
	if (!state->schedules)
		return -ENOMEM;
	assert(state->n_slots > 0 && state->short_query > 0);
	return attention_alloc_zeroed(device, flex_cuda_carve, state, &state->memory);
}

static int flex_cuda_state_new(const struct attention_manager *manager,
	const struct flex_inputs *in, struct flex_state **ret)
{
	struct flex_state *state = calloc(1, sizeof(*state));
	int rc;

	if (!state)
		return -ENOMEM;
	state->manager = manager;
	state->max_blocks = in->max_blocks;
	rc = flex_cuda_state_fill(state);
	if (rc) {
		flex_cuda_state_free(state);
		return rc;
	}
	*ret = state;
	return 0;
}

/* ---- running ---- */

static int flex_cuda_plan(
	struct flex_state *state, struct stream *stream, const struct flex_plan_args *a)
{
	const struct attention_config *c = &state->manager->config;
	const struct flex_cuda_plan_args args = {
		.a = *a,
		.to = state->schedules[a->index],
		.n_slots = state->n_slots,
		.n_kv_heads = c->n_kv_heads,
		.group = flex_cuda_group(c),
		.short_query = state->short_query,
		.n_blocks = state->n_blocks,
	};
	int rc;

	assert(a->index < state->manager->n_plans && a->in.max_blocks <= state->max_blocks);
	rc = cuda_launch_begin(stream, name_plan, flex_plan_kernel);
	if (rc)
		return rc;
	state->plan_captured |= state->manager->device->ops->capturing(stream);
	flex_plan_launch(stream, &args);
	return cuda_launch_end(stream, name_plan);
}

static int flex_cuda_run_fast(
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
		/* a graph starts after everything before it has completed, including its plan and inputs */
		.early = cuda_inputs_settled(stream) && !state->plan_captured,
	};

#ifdef MIMEO_PAGED_SM90
	if (state->n_blocks && a->n_tokens > state->short_query) {
		struct cuda_tensor_map map;
		int rc = paged_tensor_map(
			stream, &state->manager->config, a->kv, FLEX_TILE, &map);

		if (rc)
			return rc;
		flex_mixed_sm90_launch(stream, &state->mixed, &args, &map);
		return 0;
	}
#endif
	flex_split_launch(stream, &state->split, &args);
	return 0;
}

static int flex_cuda_run(
	struct flex_state *state, struct stream *stream, const struct flex_args *a)
{
	struct flex_args own = *a;
	int rc = cuda_launch_begin(stream, name_run, flex_any_kernel), ended;

	if (rc || a->n_tokens == 0)
		return rc;
	attention_fold_factors(a->fp8, &own.scale, &own.factors);
	assert(a->index < state->manager->n_plans && a->n_blocks <= a->in.max_blocks);
	if (state->fast && variant_takes_operands(a->q, a->kv, a->out, a->q_stride))
		rc = flex_cuda_run_fast(state, stream, &own);
	else
		flex_any_launch(stream, &own);
	ended = cuda_launch_end(stream, name_run);
	return rc ? rc : ended;
}

const struct flex_kernels flex_cuda_kernels = {
	.dtype = DTYPE_BF16,
	.geometry = flex_cuda_geometry,
	.state_new = flex_cuda_state_new,
	.state_free = flex_cuda_state_free,
	.plan = flex_cuda_plan,
	.run = flex_cuda_run,
};
