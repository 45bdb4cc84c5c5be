/* SPDX-License-Identifier: MIT */

/*
 * Two kernels, grid: 8 blocks an update; block: 512 threads; shared memory: the update. `set_slots`
 * clears counts and copies parameters, bias and mask; `count_tokens` counts, behind all of that. Both
 * read over the bus: 4 bytes a token to count, 8 an entry of bias, a bit a token of the mask; a slot's
 * counts are 2 bytes a token to clear.
 *
 * Two counts are halves of one word, which atomics add to. A count stops at COUNT_MAX: who finds it
 * there takes his one back, and as many threads as a launch has for a slot cannot carry it on to the
 * bit of the prompt.
 */

#include "kernels/cuda/kernel.cuh"

enum { PARTS = 8, THREADS = 512 };
static_assert(COUNT_MAX + PARTS * THREADS < COUNT_PROMPT, "no carry");
static_assert(sizeof(struct slot_update) % 8 == 0 && alignof(struct slot_update) == 8,
	"is copied in words of 8 bytes");

/* The block's update, copied to shared memory; false: it is of no slot. */
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

/* Of the threads of all blocks of an update. */
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
	/* Two counts a word, 32 tokens a word of the mask. */
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
