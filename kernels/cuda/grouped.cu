/* SPDX-License-Identifier: MIT */

/* The choice of grouped.cuh's kernel, and its launch. */

#include "kernels/cuda/grouped.h"
#include "kernels/cuda/grouped_packed.cuh"

struct grouped_instance {
	void (*run)(grouped_args);
	enum packed_kind kind; /* of W */
	bool gated;
	uint32_t n;
};

#define PLAIN(N, GATED)                                                                            \
	{                                                                                          \
		grouped<plain_rows<N, GATED>>, PACKED_NOT, GATED, N                                \
	}
#define PACKED(KIND, N, GATED)                                                                     \
	{                                                                                          \
		grouped<packed_units<KIND, N, GATED>>, KIND, GATED, N                              \
	}
#define PACKED_KERNELS(KIND, GATED)                                                                \
	PACKED(KIND, 8, GATED), PACKED(KIND, 32, GATED), PACKED(KIND, 64, GATED), PACKED(KIND, 128, GATED)

/* Of a kind by rising n. */
static const struct grouped_instance kernels[] = {
	PLAIN(8, false), PLAIN(32, false), PLAIN(64, false), PLAIN(128, false), PLAIN(256, false),
	PLAIN(8, true), PLAIN(32, true), PLAIN(64, true), PLAIN(128, true), PLAIN(256, true),
	PACKED_KERNELS(PACKED_E4M3_GROUPS, false), PACKED_KERNELS(PACKED_E4M3_GROUPS, true),
	PACKED_KERNELS(PACKED_U4, false), PACKED_KERNELS(PACKED_U4, true),
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
	if (!grouped_able(stream) || a->n_experts > EXPERTS_MAX)
		return false;
	if (a->w.dtype != DTYPE_BF16 && !packed_is(a->w.dtype))
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
	const struct grouped_instance *found = NULL;

	for (uint32_t i = 0; i < N_KERNELS && (!found || found->n < most); i++)
		if (kernels[i].gated == gated && kernels[i].kind == packed_kind_of(&a->w))
			found = &kernels[i];
	return found;
}

/* W's map: of its numbers, or of its units' words of 8 bytes, where 8 rows are one of the map's. */
static int grouped_map_w(struct stream *stream, const struct op_expert_gemm *a, bool gated,
	uint32_t box_rows, struct cuda_tensor_map *ret)
{
	const bool packed = packed_is(a->w.dtype);
	const uint32_t unit = packed ? packed_unit_bytes(a->w.dtype, true) : 0, rows = packed ? PACKED_ROWS : 1u;
	const uint64_t cols = packed ? a->w.cols / PACKED_COLS * (unit / 8) : a->w.cols;
	const uint32_t box_cols = packed ? unit / 8 : (uint32_t)COLS;
	const uint64_t n = grouped_y_cols(a, gated), row = cols * (packed ? 8 : 2), e = a->n_experts;
	const uint64_t plain_dims[] = {cols, n / rows, e}, plain_strides[] = {row, n / rows * row};
	const uint32_t plain_box[] = {box_cols, box_rows / rows, 1};
	const uint64_t dims[] = {cols, 8 / rows, 2, n / 8, e};
	const uint64_t strides[] = {row, n / rows * row, 8 / rows * row, 2 * (n / rows) * row};
	const uint32_t box[] = {box_cols, 8 / rows, 2, box_rows / 16, 1};

	return (packed ? cuda_tensor_map_words : cuda_tensor_map_of)(stream, a->w.data, gated ? 5 : 3,
		gated ? dims : plain_dims, gated ? strides : plain_strides, gated ? box : plain_box, ret);
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
