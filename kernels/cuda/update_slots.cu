/* SPDX-License-Identifier: MIT */

/*
 * Two kernels. Grid: 8 blocks for each update; block: 512 threads; shared memory: the update. `set_slots` clears
 * counts and copies parameters, biases and the mask; then `count_tokens` counts. Both read over the bus: 4 bytes
 * for each token to count, 8 for each bias, and the mask's bit of each token. Clearing writes 2 bytes for each
 * token of the vocabulary. 8 blocks, so that 4096 threads read side by side; increments
 * of more than 32 blocks could carry (below).
 *
 * A word has two counts, which are incremented by atomics. A count stops at COUNT_MAX: a thread that finds it
 * there subtracts its increment again. The increments that all threads of an update may have in flight do not
 * reach COUNT_PROMPT.
 */

#include "kernels/cuda/kernel.cuh"

enum { PARTS = 8, THREADS = 512 };
static_assert(COUNT_MAX + PARTS * THREADS < COUNT_PROMPT, "no carry");
static_assert(sizeof(struct slot_update) % 8 == 0 && alignof(struct slot_update) == 8,
	"is copied in words of 8 bytes");

/* Copy the block's update to shared memory. False: there is none, or its slot does not exist. */
__device__ static bool load_update(const struct op_update_slots &a, struct slot_update &u)
{
	const uint64_t *from = (const uint64_t *)(a.updates + blockIdx.y);

	if (blockIdx.y >= a.n)
		return false;
	for (uint32_t i = threadIdx.x; i < sizeof(u) / 8; i += THREADS)
		((uint64_t *)&u)[i] = from[i];
	__syncthreads();
	return u.slot >= 0 && (uint32_t)u.slot < a.inputs.max_slots;
}

/* The number of this thread among those of all blocks of the update. */
__device__ static uint32_t part_thread(void)
{
	return blockIdx.x * THREADS + threadIdx.x;
}

static __global__ void __launch_bounds__(THREADS) set_slots(const struct op_update_slots a)
{
	__shared__ struct slot_update u;
	const struct step_inputs &in = a.inputs;
	const uint32_t n_words = TOKEN_WORDS(in.vocab_size);

	overlap_begin();
	if (!load_update(a, u))
		return;
	/* A word of counts has 2 tokens, and one of the mask 32. */
	for (uint32_t i = part_thread(); (u.flags & UPDATE_CLEAR) && i < 16 * n_words;
		i += PARTS * THREADS)
		((uint32_t *)in.slot_counts)[(size_t)u.slot * 16 * n_words + i] = 0;
	if (!(u.flags & UPDATE_SET))
		return;
	for (uint32_t i = part_thread(); i < min(u.adjust.n_bias, SLOT_BIAS_MAX);
		i += PARTS * THREADS)
		in.slot_bias[(size_t)u.slot * SLOT_BIAS_MAX + i] = u.bias[i];
	for (uint32_t i = part_thread(); u.adjust.masked && i < n_words; i += PARTS * THREADS)
		in.slot_allowed[(size_t)u.slot * n_words + i] = u.allowed[i];
	if (part_thread() == 0)
		in.slot_adjust[u.slot] = u.adjust;
}

static __global__ void __launch_bounds__(THREADS) count_tokens(const struct op_update_slots a)
{
	__shared__ struct slot_update u;
	const struct step_inputs &in = a.inputs;

	overlap_begin();
	if (!load_update(a, u))
		return;
	uint32_t *words = (uint32_t *)in.slot_counts +
			  (size_t)u.slot * COUNTS_STRIDE(in.vocab_size) / 2;
	for (uint32_t i = part_thread(); i < u.n_tokens; i += PARTS * THREADS) {
		const uint32_t token = clamp_index(u.tokens[i], in.vocab_size);
		const uint32_t shift = token % 2 * 16;

		if (i < u.n_prompt) {
			atomicOr(&words[token / 2], COUNT_PROMPT << shift);
			continue;
		}
		const uint32_t before = atomicAdd(&words[token / 2], 1u << shift) >> shift;
		if ((before & (COUNT_PROMPT - 1)) >= COUNT_MAX)
			atomicSub(&words[token / 2], 1u << shift);
	}
}

static int update_slots_launch(struct stream *stream, const struct op_update_slots *a)
{
	const dim3 grid(PARTS, a->n ? a->n : 1);

	launch(stream, set_slots, grid, THREADS, 0, *a);
	launch(stream, count_tokens, grid, THREADS, 0, *a);
	return 0;
}

CUDA_OP(update_slots, set_slots)
