/* SPDX-License-Identifier: MIT */

/*
 * Block masks over the paged cache for blocks of few queries, by lists.
 *
 * Grid: n_slots. Block: four warps; two blocks per multiprocessor (one for heads of 256), all resident at once.
 * Shared memory: 2.5 KB more than in paged_decode.cu. A block processes its slot of the line, list after list.
 * Of each 64 keys the four warps take 16 each and exchange nothing until the list or the slot ends, so that no
 * barrier interrupts the loads. The structure, the bytes in flight and the loads before overlap_wait are those
 * of paged_decode.cu, with which it shares all code that does not depend on the mask. In addition, kv heads and
 * groups of 16 packed rows are on the line: in paged_decode.cu the host decides both, because the grid follows
 * the batch's longest query; here the division must be right for any batch.
 *
 * Each row of scores has its view in shared memory. It is not read for blocks of keys that all rows see as a
 * whole; for the others, 16 bits tell which scores become -inf.
 *
 * Bytes: keys and values of the listed blocks once for each 16 packed rows (from the second on from the L2);
 * for a list that is divided, 4 head_dim per packed row and piece, written and read.
 *
 * A token's result depends on its own row's list. The rest of the batch affects it only through the division
 * of the line, which changes the order of float32 sums and the maximum that weights are relative to. The same
 * batch gives the same bits.
 */

#include "attention/flex/flex_split.cuh"

template <int D, int STAGES, bool CODES>
static __global__ void __launch_bounds__(WARPS * 32, D <= 128 ? 2 : 1)
	split_kernel(const __grid_constant__ flex_cuda_args p)
{
	extern __shared__ __align__(16) uint8_t memory[];
	__shared__ split_team own;

	overlap_trigger();
	slot_attend<D, STAGES, CODES>(p, blockIdx.x, memory, &own);
}

/* ---- the launcher ---- */

#define CHOICE_AS(D, STAGES, CODES)                                                                \
	{ D, 4096, { (const void *)split_kernel<D, STAGES, CODES>,                                 \
			   WARPS * warp_ring<D, STAGES, CODES>::bytes, WARPS * 32, 0, 0, 1 } }
#define CHOICE(D, STAGES) CHOICE_AS(D, STAGES, false)
#define CHOICE_OF_CODES(D, STAGES) CHOICE_AS(D, STAGES, true)

bool flex_split_variant(
	uint32_t head_dim, bool codes, uint32_t shared_bytes_optin, struct attention_variant *ret)
{
	static const variant_choice choices[] = {
		CHOICE(64, 6), CHOICE(64, 3), CHOICE(96, 4), CHOICE(96, 3), CHOICE(128, 3),
		CHOICE(128, 2), CHOICE(256, 3),
	};
	static const variant_choice choices_of_codes[] = {
		CHOICE_OF_CODES(64, 8), CHOICE_OF_CODES(96, 6), CHOICE_OF_CODES(128, 5),
		CHOICE_OF_CODES(256, 4), CHOICE_OF_CODES(256, 2),
	};

	return codes ? variant_choose(choices_of_codes, head_dim, 0, shared_bytes_optin, ret)
		     : variant_choose(choices, head_dim, 0, shared_bytes_optin, ret);
}

void flex_split_launch(struct stream *stream, const struct attention_variant *variant,
	const struct flex_cuda_args *args)
{
	void *params[] = { (void *)args };

	cuda_launch(stream, variant->kernel, dim3(args->n_slots), dim3(variant->threads),
		variant->shared_bytes, params);
}
