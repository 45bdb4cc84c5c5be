/* SPDX-License-Identifier: MIT */

/*
 * The host side of latent attention on CUDA: which kernel a launch is for. All of them are loaded when
 * a manager is made; a launch decides by what it is given alone, and keeps nothing.
 */

#include <errno.h>

#include "attention/mla/mla_cuda.h"

#define MIN_PAGE 8u

/* Pointers tell ops apart. */
static const char name_plan[] = "mla_plan";
static const char name_split[] = "mla_split";
static const char name_merge[] = "mla_merge";

#ifdef MIMEO_MLA_SM90
static const char name_sm90[] = "mla_split_sm90";

static bool able_sm90(struct stream *stream)
{
	const struct cuda_limits *limits = cuda_limits(stream);

	return limits->arch == 90 && limits->code_arch == 90;
}

static bool is_for_sm90(struct stream *stream, const struct mla_args *a)
{
	uintptr_t all = (uintptr_t)a->q | (uintptr_t)a->kv | (uintptr_t)a->work.latent;

	return able_sm90(stream) && a->rank == MLA_SM90_RANK && a->rope == MLA_SM90_ROPE &&
	       a->page_tokens >= MIN_PAGE && !(a->page_tokens & (a->page_tokens - 1)) &&
	       a->q_stride % 8 == 0 && a->nope % 8 == 0 && all % 16 == 0;
}
#else
static bool is_for_sm90(struct stream *stream, const struct mla_args *a)
{
	(void)stream;
	(void)a;
	return false;
}
#endif

static int load_on(struct stream *stream)
{
	int rc = cuda_launch_begin(stream, name_plan, mla_plan_kernel());

	if (rc == 0)
		rc = cuda_launch_begin(stream, name_split, mla_any_kernel());
	if (rc == 0)
		rc = cuda_launch_begin(stream, name_merge, mla_merge_kernel());
#ifdef MIMEO_MLA_SM90
	if (rc == 0 && able_sm90(stream)) {
		rc = cuda_launch_begin(stream, name_sm90, mla_sm90_kernel());
		if (rc == 0)
			rc = mla_sm90_load(stream);
	}
#endif
	return rc;
}

static int load(struct device *device)
{
	struct stream *stream;
	int rc = device->ops->stream_new(device, &stream);

	if (rc != 0)
		return rc;
	rc = load_on(stream);
	device->ops->stream_free(stream);
	return rc;
}

static int plan(struct stream *stream, const struct mla_args *a)
{
	int rc;

	if (!a->query_start || !a->seq_lens || !a->work.plan.tokens || !a->work.plan.slots)
		return -EINVAL;
	rc = cuda_launch_begin(stream, name_plan, mla_plan_kernel());
	if (rc != 0)
		return rc;
	mla_plan_launch(stream, a);
	return cuda_launch_end(stream, name_plan);
}

/* A plan is of a whole step that is one chunk, and for the kernel of 9.0. */
static bool goes_by_plan(struct stream *stream, const struct mla_args *a, bool planned)
{
	return planned && a->first_token == 0 && a->n_tokens == a->step_tokens &&
	       a->n_tokens <= MLA_CUDA_CHUNK && is_for_sm90(stream, a);
}

static struct mla_cuda_args args_of(struct stream *stream, const struct mla_args *a, bool planned)
{
	struct mla_cuda_args args = {
		.a = *a,
		.page_shift = (uint32_t)__builtin_ctz(a->page_tokens),
		.planned = goes_by_plan(stream, a, planned),
	};

	args.early = !args.planned && cuda_inputs_settled(stream);
	return args;
}

static int split(struct stream *stream, const struct mla_args *a, bool planned)
{
	struct mla_cuda_args args = args_of(stream, a, planned);
	int rc, ended;

	if (!a->query_start || !a->seq_lens || !a->block_table)
		return -EINVAL;
	rc = cuda_launch_begin(stream, name_split, mla_any_kernel());
	if (rc != 0 || a->n_tokens == 0)
		return rc;
#ifdef MIMEO_MLA_SM90
	if (is_for_sm90(stream, a))
		rc = mla_sm90_launch(stream, &args);
	else
#endif
		mla_any_launch(stream, &args);
	ended = cuda_launch_end(stream, name_split);
	return rc != 0 ? rc : ended;
}

static int merge(struct stream *stream, const struct mla_args *a, bool planned)
{
	struct mla_cuda_args args = args_of(stream, a, planned);
	int rc = cuda_launch_begin(stream, name_merge, mla_merge_kernel());

	if (rc != 0 || a->n_tokens == 0 || (a->sizes.n_splits == 1 && !args.planned))
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
	.load = load,
	.plan = plan,
	.split = split,
	.merge = merge,
};
