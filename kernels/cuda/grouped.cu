/* SPDX-License-Identifier: MIT */

/* The choice of grouped.cuh's kernel, and its launch. */

#include "kernels/cuda/grouped.cuh"
#include "kernels/cuda/grouped.h"

struct grouped_instance {
	void (*run)(grouped_args);
	bool gated;
	uint32_t n;
};

static const struct grouped_instance kernels[] = {
	{grouped<plain_rows<8, false>>, false, 8},
	{grouped<plain_rows<32, false>>, false, 32},
	{grouped<plain_rows<64, false>>, false, 64},
	{grouped<plain_rows<128, false>>, false, 128},
	{grouped<plain_rows<256, false>>, false, 256},
	{grouped<plain_rows<8, true>>, true, 8},
	{grouped<plain_rows<32, true>>, true, 32},
	{grouped<plain_rows<64, true>>, true, 64},
	{grouped<plain_rows<128, true>>, true, 128},
	{grouped<plain_rows<256, true>>, true, 256},
};

enum { N_KERNELS = sizeof(kernels) / sizeof(kernels[0]) };

static const uint32_t BLOCK_BYTES = 216 * 1024;

static bool grouped_able(struct stream *stream)
{
	const struct cuda_limits *limits = cuda_limits(stream);

	return limits->arch == 90 &&
	       limits->shared_bytes_optin >=
		       BLOCK_BYTES + sizeof(uint32_t) * 2 * EXPERTS_MAX + 1024;
}

int grouped_start(struct stream *stream)
{
	const void *all[N_KERNELS];
	int rc;

	if (!grouped_able(stream))
		return 0;
	for (uint32_t i = 0; i < N_KERNELS; i++)
		all[i] = (const void *)kernels[i].run;
	rc = cuda_launch_begin(stream, "grouped gemm", all[0]);
	if (rc)
		return rc;
	return cuda_allow_shared(stream, "grouped gemm's memory", all, N_KERNELS, BLOCK_BYTES);
}

static uint32_t grouped_y_cols(const struct op_expert_gemm *a, bool gated)
{
	return a->w.rows / a->n_experts / (gated ? 2 : 1);
}

bool grouped_can(struct stream *stream, const struct op_expert_gemm *a, bool gated)
{
	if (!grouped_able(stream) || a->n_experts > EXPERTS_MAX || a->w.dtype != DTYPE_BF16)
		return false;
	/* rows of W, x and y are whole 16 bytes */
	if (a->w.cols % 8 != 0 || grouped_y_cols(a, gated) % 8 != 0)
		return false;
	return aligned(a->x) && aligned(a->y) && aligned(a->w.data);
}

/* The smallest N that is enough for the pairs of most experts, estimated from the mean number, because
 * routing is somewhat uneven; an expert with more pairs has more tiles. */
static const struct grouped_instance *grouped_kernel_for(const struct op_expert_gemm *a, bool gated)
{
	const uint64_t n_pairs = (uint64_t)a->n_tokens * a->n_active;
	const uint64_t mean = (n_pairs + a->n_experts - 1) / a->n_experts;
	const uint64_t usual = mean < 64 ? mean * 2 : mean + mean / 4;
	const uint64_t most = usual < a->n_tokens ? usual : a->n_tokens;

	for (uint32_t i = 0; i < N_KERNELS; i++)
		if (kernels[i].gated == gated && (most <= kernels[i].n || kernels[i].n == 256))
			return &kernels[i];
	return NULL;
}

static int grouped_map_w(struct stream *stream, const struct op_expert_gemm *a, bool gated,
	uint32_t box_rows, struct cuda_tensor_map *ret)
{
	const uint64_t n = grouped_y_cols(a, gated), row = (uint64_t)a->w.cols * 2,
		       e = a->n_experts;
	const uint64_t plain_dims[] = {a->w.cols, n, e}, plain_strides[] = {row, n * row};
	const uint32_t plain_box[] = {COLS, box_rows, 1};
	const uint64_t dims[] = {a->w.cols, 8, 2, n / 8, e};
	const uint64_t strides[] = {row, n * row, 8 * row, 2 * n * row};
	const uint32_t box[] = {COLS, 8, 2, box_rows / 16, 1};

	return gated ? cuda_tensor_map_of(stream, a->w.data, 5, dims, strides, box, ret)
		     : cuda_tensor_map_of(
			       stream, a->w.data, 3, plain_dims, plain_strides, plain_box, ret);
}

int grouped_launch(struct stream *stream, const struct op_expert_gemm *a, bool gated)
{
	const struct grouped_instance *kernel = grouped_kernel_for(a, gated);
	struct grouped_args args = {};
	int rc;

	args.x = (const bf16 *)a->x;
	args.y = (bf16 *)a->y;
	args.expert_start = a->expert_start;
	args.pairs = a->pairs;
	args.n_experts = a->n_experts;
	args.x_div = a->x_div;
	args.k = a->w.cols;
	args.n = grouped_y_cols(a, gated);
	args.low = kernel->n <= 64;
	args.ring_bytes = (BLOCK_BYTES - GROUPS * OUT_BUFFERS * OUT_BYTES) / 1024 * 1024 - 1024;
	rc = grouped_map_w(stream, a, gated, TILE_ROWS, &args.w);
	if (rc)
		return rc;
	rc = grouped_map_w(stream, a, gated, LOW_ROWS, &args.w_low);
	if (rc)
		return rc;
	launch(stream, kernel->run, cuda_limits(stream)->n_sms, THREADS, BLOCK_BYTES, args);
	return 0;
}
