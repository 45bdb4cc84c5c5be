/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_STEP_PIECES_CUH
#define MIMEO_KERNELS_CUDA_STEP_PIECES_CUH

/* x of o: the pieces that attention left, of each row in as many columns as there are free. */

#include "kernels/cuda/step_x.cuh"

/* ---- pieces of attention ---- */

/* Of each stage's head, the log-sum-exps of this column's pieces. */
template <int N> struct step_lse {
	uint32_t v[N][STEP_PIECES_SERIAL];
};

template <int N, int DIM>
STEP_INLINE void step_lse_load(const step_args &a, const step_worker &k, step_lse<N> &l,
	const uint32_t *lse, uint32_t first, uint32_t n, bool again)
{
	const uint32_t *p = lse + (k.r8 / a.rows * k.division.serial * a.rows + k.r8 % a.rows) * a.n_heads;

#pragma unroll
	for (int s = 0; s < N; s++)
#pragma unroll
		for (int i = 0; i < STEP_PIECES_SERIAL; i++) {
			const uint32_t *word = p + i * a.rows * a.n_heads +
					       ((first + s) * STEP_COLS + k.warp * 64) / DIM;
			const bool there = (uint32_t)s < n && (uint32_t)i < k.division.serial;

			if (again)
				l.v[s][i] = there && l.v[s][i] == STEP_EMPTY ? step_get(word, 20) : l.v[s][i];
			else
				l.v[s][i] = there ? step_ldx_4(word) : step_bits(-INFINITY);
		}
}

/* They become the pieces' weights. */
template <int N>
STEP_INLINE void step_lse_weigh(const step_args &a, const uint32_t (&l)[STEP_PIECES_SERIAL],
	float (&w)[STEP_PIECES_SERIAL])
{
	float top = fmaxf(step_float(l[0]), step_float(l[1])), total = 0;

	for (uint32_t o = 4 * a.rows; o < 32; o *= 2)
		top = fmaxf(top, step_xor(top, o));
#pragma unroll
	for (int i = 0; i < STEP_PIECES_SERIAL; i++) {
		const float v = step_float(l[i]);

		w[i] = v == -INFINITY ? 0.0f : step_exp2(v - top);
		total += w[i];
	}
	for (uint32_t o = 4 * a.rows; o < 32; o *= 2)
		total += step_xor(total, o);
	total = total > 0 ? 1.0f / total : 0.0f;
	w[0] *= total;
	w[1] *= total;
}

/* As step_gate, of a lane of each column, for its pieces' first words: pieces end at other times, and lanes that
 * look for all of a late one's words keep memory from those who still read history. */
STEP_INLINE void step_gate_pieces(const step_worker &k, const uint32_t *p, const uint32_t *p2, bool there)
{
	uint32_t n = 0;
	uint64_t since = 0;

	if (step_all_lanes(there))
		return;
	if (k.q == 0)
		while ((step_ldx_4(p) == STEP_EMPTY) | (step_ldx_4(p2) == STEP_EMPTY))
			step_spin(n, since, 21);
	step_meet_warp();
}

/* x of o: stages [first, first + n) of the attention's output, this column's pieces of it. */
template <int N, int DIM>
STEP_INLINE void step_x_merge(const step_args &a, const step_worker &k, step_x<N> &x, const uint32_t *region,
	const step_region &r, uint32_t first, uint32_t n)
{
	const uint32_t width = a.n_heads * DIM / 2, row = k.r8 % a.rows;
	const uint32_t *p = region + r.pieces + (k.r8 / a.rows * k.division.serial * a.rows + row) * width +
			    first * 256 + k.warp * 32;
	const uint32_t *p2 = p + (k.division.serial > 1 ? a.rows * width : 0);
	const uint32_t mine = step_my_stages(k, a.n_heads * DIM, first, n);
	step_lse<N> lse;
	step_raw<N, false> u, v;

	step_raw_load(k, u, p, mine);
	step_raw_load(k, v, p2, k.division.serial > 1 ? mine : 0);
	step_lse_load<N, DIM>(a, k, lse, region + r.lse, first, mine, false);
	if (mine)
		step_gate_pieces(k, p, p2, step_raw_is_whole(u) && step_raw_is_whole(v));
	step_raw_ensure(a, k, u, p, 22);
	step_raw_ensure(a, k, v, p2, 23);
	step_lse_load<N, DIM>(a, k, lse, region + r.lse, first, mine, true);
	step_meet_warp();
#pragma unroll
	for (int s = 0; s < N; s++) {
		float w[STEP_PIECES_SERIAL];

		step_lse_weigh<N>(a, lse.v[s], w);
#pragma unroll
		for (int h = 0; h < 2; h++)
#pragma unroll
			for (int j = 0; j < 4; j++) {
				const uint32_t b = step_word(u.v[2 * s + h], j), c = step_word(v.v[2 * s + h], j);

				step_set_word(x.v[s][h], j,
					step_pack(w[0] * step_low(b) + w[1] * step_low(c),
						w[0] * step_high(b) + w[1] * step_high(c)));
			}
	}
}

#endif
