/* SPDX-License-Identifier: MIT */

/*
 * The host side of latent attention on CUDA: which kernel serves a launch. All of them are loaded
 * when a manager is made; a launch chooses by its arguments alone, and there is no state.
 */

#include <assert.h>

#include "attention/mla/mla_cuda.h"
#include "attention/variant.h"

#define MIN_PAGE 8u

/* Pointers tell ops apart. */
static const char name_plan[] = "mla_plan";
static const char name_split[] = "mla_split";
static const char name_merge[] = "mla_merge";

#ifdef MIMEO_MLA_SM90
static const char name_sm90[] = "mla_split_sm90";

static bool mla_cuda_has_sm90(struct stream *stream)
{
	const struct cuda_limits *limits = cuda_limits(stream);

	return limits->arch == 90 && limits->code_arch == 90;
}

static bool mla_cuda_takes_sm90(struct stream *stream, const struct mla_args *a)
{
	return mla_cuda_has_sm90(stream) && a->rank == MLA_SM90_RANK && a->rope == MLA_SM90_ROPE &&
	       variant_takes_pages(a->page_tokens, MIN_PAGE) && a->nope % 8 == 0 &&
	       variant_takes_operands(a->q, a->kv, a->work.latent, a->q_stride);
}
#else
static bool mla_cuda_takes_sm90(struct stream *stream, const struct mla_args *a)
{
	return false;
}
#endif

static int mla_cuda_load_on(struct stream *stream)
{
	int rc = cuda_launch_begin(stream, name_plan, mla_plan_kernel);

	if (rc)
		return rc;
	rc = cuda_launch_begin(stream, name_split, mla_any_kernel);
	if (rc)
		return rc;
	rc = cuda_launch_begin(stream, name_merge, mla_merge_kernel);
	if (rc)
		return rc;
#ifdef MIMEO_MLA_SM90
	if (!mla_cuda_has_sm90(stream))
		return 0;
	rc = cuda_launch_begin(stream, name_sm90, mla_sm90_kernel);
	if (rc)
		return rc;
	return mla_sm90_load(stream);
#else
	return 0;
#endif
}

static int mla_cuda_load(struct device *device)
{
	struct stream *stream;
	int rc = device->ops->stream_new(device, &stream);

	if (rc)
		return rc;
	rc = mla_cuda_load_on(stream);
	device->ops->stream_free(stream);
	return rc;
}

static int mla_cuda_plan(struct stream *stream, const struct mla_args *a)
{
	int rc;

	assert(a->query_start && a->seq_lens && a->work.plan.tokens && a->work.plan.slots);
	rc = cuda_launch_begin(stream, name_plan, mla_plan_kernel);
	if (rc)
		return rc;
	mla_plan_launch(stream, a);
	return cuda_launch_end(stream, name_plan);
}

/* A plan is of a whole step that is one chunk, and for the kernel of 9.0. */
static bool mla_cuda_goes_by_plan(struct stream *stream, const struct mla_args *a, bool planned)
{
	return planned && a->first_token == 0 && a->n_tokens == a->step_tokens &&
	       a->n_tokens <= MLA_CUDA_CHUNK && mla_cuda_takes_sm90(stream, a);
}

static struct mla_cuda_args mla_cuda_args_of(
	struct stream *stream, const struct mla_args *a, bool planned)
{
	struct mla_cuda_args args = {
		.a = *a,
		.page_shift = (uint32_t)__builtin_ctz(a->page_tokens),
		.planned = mla_cuda_goes_by_plan(stream, a, planned),
	};

	args.a.factors.value = a->factors.key; /* a latent is the values' source, too */
	attention_fold_factors(a->fp8, &args.a.scale, &args.a.factors);
	args.early = !args.planned && cuda_inputs_settled(stream);
	return args;
}

static int mla_cuda_split(struct stream *stream, const struct mla_args *a, bool planned)
{
	struct mla_cuda_args args = mla_cuda_args_of(stream, a, planned);
	int rc, ended;

	assert(a->query_start && a->seq_lens && a->block_table);
	assert(a->n_tokens <= a->sizes.chunk_tokens && a->sizes.n_splits > 0);
	rc = cuda_launch_begin(stream, name_split, mla_any_kernel);
	if (rc || a->n_tokens == 0)
		return rc;
#ifdef MIMEO_MLA_SM90
	if (mla_cuda_takes_sm90(stream, a))
		rc = mla_sm90_launch(stream, &args);
	else
#endif
		mla_any_launch(stream, &args);
	ended = cuda_launch_end(stream, name_split);
	return rc ? rc : ended;
}

static int mla_cuda_merge(struct stream *stream, const struct mla_args *a, bool planned)
{
	struct mla_cuda_args args = mla_cuda_args_of(stream, a, planned);
	int rc = cuda_launch_begin(stream, name_merge, mla_merge_kernel);

	if (rc || a->n_tokens == 0 || (a->sizes.n_splits == 1 && !args.planned))
		return rc;
	mla_merge_launch(stream, &args);
	return cuda_launch_end(stream, name_merge);
}

const struct mla_kernels mla_cuda_kernels = {
	.dtype = DTYPE_BF16,
	.max_splits = MLA_CUDA_SPLITS,
	.chunk_tokens = MLA_CUDA_CHUNK,
	.n_blocks = MLA_CUDA_BLOCKS,
	.block_heads = MLA_CUDA_HEADS,
	.load = mla_cuda_load,
	.plan = mla_cuda_plan,
	.split = mla_cuda_split,
	.merge = mla_cuda_merge,
};
