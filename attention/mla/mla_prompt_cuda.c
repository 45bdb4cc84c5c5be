/* SPDX-License-Identifier: MIT */

/*
 * The host side of prompts that are not absorbed, on CUDA: which kernel serves a model, and its
 * launches. The tensor maps are of the workspace, which does not move, so they are made once.
 *
 * Few queries over many keys do not pay: a block of queries and a head is one block's work, and all
 * the keys are expanded. Microseconds of a layer with DeepSeek-V2-Lite's sizes on an H200, expanded
 * and absorbed: 32 tokens over 1024 keys 29 and 23, over 8192 170 and 59; 64 tokens alone 13 and
 * 21, over 1024 29 and 30, over 8192 167 and 100; 96 tokens over 2048 50 and 58, over 8192 168 and
 * 176; 512 tokens over 8192 165 and 664.
 */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "attention/mla/mla_prompt_cuda.h"

/* Pointers tell ops apart. */
static const char name_gather[] = "mla_prompt_gather";
static const char name_attend[] = "mla_prompt";
#ifdef MIMEO_PAGED_SM90
static const char name_sm90[] = "mla_prompt_sm90";
#endif

struct mla_prompt_state {
	struct device *device;
	bool tuned;
	struct attention_variant variant;
	struct cuda_tensor_map expanded, ropes;
	uint32_t *ticket;
};

/* ---- making ---- */

#ifdef MIMEO_PAGED_SM90
static int mla_prompt_cuda_ticket_new(struct mla_prompt_state *state, struct stream *stream)
{
	const struct device_ops *ops = state->device->ops;
	int rc = ops->mem_alloc(state->device, sizeof(*state->ticket), (void **)&state->ticket);

	if (rc)
		return rc;
	return ops->fill_async(stream, state->ticket, 0, sizeof(*state->ticket));
}

/* The kernel of 9.0a, if it serves the model. */
static int mla_prompt_cuda_tune(struct mla_prompt_state *state, struct stream *stream,
	const struct attention_config *c, const struct mla_prompt_sizes *sizes,
	const struct mla_prompt_workspace *work)
{
	const struct cuda_limits *limits = cuda_limits(stream);
	uint32_t cols = c->n_heads * (c->latent.nope + c->latent.v);
	int rc;

	if (limits->arch != 90 || !mla_prompt_sm90_variant(&c->latent,
					  limits->shared_bytes_optin, &state->variant))
		return 0;
	rc = variant_load(stream, name_sm90, &state->variant);
	if (rc)
		return rc;
	rc = cuda_tensor_map(stream, work->expanded, sizes->n_keys, cols, MLA_PROMPT_GRANULE,
		&state->expanded);
	if (rc)
		return rc;
	rc = cuda_tensor_map(stream, work->ropes, sizes->n_keys, c->latent.rope,
		MLA_PROMPT_GRANULE, &state->ropes);
	if (rc)
		return rc;
	rc = mla_prompt_cuda_ticket_new(state, stream);
	state->tuned = !rc;
	return rc;
}
#endif

static void mla_prompt_cuda_state_free(struct mla_prompt_state *state)
{
	if (!state)
		return;
	if (state->ticket)
		state->device->ops->mem_free(state->device, state->ticket);
	free(state);
}

static int mla_prompt_cuda_load(struct mla_prompt_state *state, struct stream *stream,
	const struct attention_config *config, const struct mla_prompt_sizes *sizes,
	const struct mla_prompt_workspace *work)
{
	int rc = cuda_launch_begin(stream, name_gather, mla_prompt_any_kernel);

	if (rc)
		return rc;
	rc = cuda_launch_begin(stream, name_attend, mla_prompt_any_kernel);
	if (rc)
		return rc;
#ifdef MIMEO_PAGED_SM90
	rc = mla_prompt_cuda_tune(state, stream, config, sizes, work);
	if (rc)
		return rc;
#endif
	return state->device->ops->stream_sync(stream);
}

static int mla_prompt_cuda_state_new(struct device *device, const struct attention_config *config,
	const struct mla_prompt_sizes *sizes, const struct mla_prompt_workspace *work,
	struct mla_prompt_state **ret)
{
	const struct attention_latent *l = &config->latent;
	struct mla_prompt_state *state;
	struct stream *stream;
	int rc;

	if ((uint64_t)l->nope + l->rope > MLA_PROMPT_ANY_DIM || l->v > MLA_PROMPT_ANY_DIM)
		return -ENOTSUP;
	state = calloc(1, sizeof(*state));
	if (!state)
		return -ENOMEM;
	state->device = device;
	rc = device->ops->stream_new(device, &stream);
	if (rc) {
		free(state);
		return rc;
	}
	rc = mla_prompt_cuda_load(state, stream, config, sizes, work);
	device->ops->stream_free(stream);
	if (rc) {
		mla_prompt_cuda_state_free(state);
		return rc;
	}
	*ret = state;
	return 0;
}

/* ---- running ---- */

static int mla_prompt_cuda_gather(
	struct mla_prompt_state *state, struct stream *stream, const struct mla_prompt_args *a)
{
	int rc = cuda_launch_begin(stream, name_gather, mla_prompt_any_kernel);
	const struct mla_prompt_piece *last;

	if (rc || !a->n_pieces)
		return rc;
	assert(a->n_pieces <= MLA_PROMPT_PIECES);
	last = &a->pieces[a->n_pieces - 1];
	assert(last->key_row % MLA_PROMPT_GRANULE == 0);
	mla_prompt_gather_launch(stream, a, last->key_row +
		(last->n_keys + MLA_PROMPT_GRANULE - 1) / MLA_PROMPT_GRANULE * MLA_PROMPT_GRANULE);
	return cuda_launch_end(stream, name_gather);
}

#ifdef MIMEO_PAGED_SM90
static bool mla_prompt_cuda_is_aligned(const struct mla_prompt_args *a)
{
	return (uintptr_t)a->l.q % 16 == 0 && (uintptr_t)a->l.out % 16 == 0 && a->l.q_stride % 8 == 0;
}

static void mla_prompt_cuda_attend_tuned(const struct mla_prompt_state *state,
	struct stream *stream, const struct mla_prompt_args *a)
{
	struct mla_prompt_cuda_args args = { .a = *a, .ticket = state->ticket };
	uint32_t rows = state->variant.rows;

	for (uint32_t i = 0; i < a->n_pieces; i++)
		args.n_items += (a->pieces[i].n_query + rows - 1) / rows * a->l.n_heads;
	mla_prompt_sm90_launch(
		stream, &state->variant, &args, &state->expanded, &state->ropes);
}
#endif

static int mla_prompt_cuda_attend(
	struct mla_prompt_state *state, struct stream *stream, const struct mla_prompt_args *a)
{
	const char *name = name_attend;
	int rc;

#ifdef MIMEO_PAGED_SM90
	if (state->tuned && mla_prompt_cuda_is_aligned(a))
		name = name_sm90;
#endif
	rc = cuda_launch_begin(stream, name,
		name == name_attend ? mla_prompt_any_kernel : state->variant.kernel);
	if (rc || !a->n_pieces)
		return rc;
#ifdef MIMEO_PAGED_SM90
	if (name == name_sm90)
		mla_prompt_cuda_attend_tuned(state, stream, a);
	else
#endif
		mla_prompt_any_launch(stream, a);
	return cuda_launch_end(stream, name);
}

const struct mla_prompt_kernels mla_prompt_cuda_kernels = {
	.dtype = DTYPE_BF16,
	.granule = MLA_PROMPT_GRANULE,
	.max_keys = 8192,
	.expanded_bytes = (uint64_t)256 << 20,
	.sums_bytes = (uint64_t)256 << 20,
	.many_queries = 96,
	.few_keys = 1024,
	.state_new = mla_prompt_cuda_state_new,
	.state_free = mla_prompt_cuda_state_free,
	.gather = mla_prompt_cuda_gather,
	.attend = mla_prompt_cuda_attend,
};
