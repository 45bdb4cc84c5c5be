/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_MLA_MLA_SM90_CODES_CUH
#define MIMEO_ATTENTION_MLA_MLA_SM90_CODES_CUH

/*
 * Stage 1 on 9.0a over keys that are codes of fp8, e4m3: what mla_split_sm90.cu does otherwise with them.
 *
 * A tile's rows of 576 bytes lie in shared memory as atoms of 64 bytes of each of 8 rows
 * (paged_sm90.cuh, "32 elements"). Both products take the keys from registers: ldmatrix reads the codes,
 * which become float16 there, exactly; queries and weights are float16, too. So shared memory has no
 * second form of a tile. Factors are no work here: that of keys is in the scale of scores, and what
 * divides the sums has it once more.
 *
 * ldmatrix moves two codes as one element of 16 bits (paged_codes.cuh). With i = lane % 4, g = lane / 4:
 *
 *   Scores: of each 16 columns a lane has 4 i to 4 i + 3 of keys g and g + 8. They stand for columns 2 i,
 *   2 i + 1, 2 i + 8 and 2 i + 9 of the operand, and query_store_codes puts the queries in this order.
 *
 *   Sums: transposed, of each 16 columns a lane has 2 g and 2 g + 1, of keys 2 i and 2 i + 1. They stand
 *   for rows g and g + 8 of the operand. A warp's rows of product b are the columns warp * 128 + b * 16
 *   to + 15.
 *
 * In both a batch of four products reads the atoms of one column of them, 64 bytes of each row. While a
 * batch multiplies, the next one's codes are read and widened.
 *
 * Measured on an H200, 16 heads, rows of 4k, us with codes and with bf16: 9.4 and 9.1 for 1 row, 18.6 and 19.6 for 8,
 * 42.5 and 47.1 for 32, 133 and 153 for 128: widening limits it, at 2.26 TB/s, and not memory.
 */

#include "attention/mla/mla_sm90_feed.cuh"
#include "attention/paged/paged_codes.cuh"

#define BATCH 4 /* products */

typedef atom<WIDTH / 2> code_atom;

static_assert(code_atom::chunks == BATCH && code_atom::n == WIDTH / 64, "a batch is an atom's columns");

/* c[64, 8 M] = a[64, 16] b[16, 8 M], plus what c was if `add`, of float16; a: of each warp's 16 rows an
 * operand of mma.m16n8k16, b: read along its rows. */
#define DEFINE_PRODUCT_OF_F16(m, cols, numbers, a_at, b_at, add_at, ...)                           \
	static __device__ __forceinline__ void product_of_f16(                                     \
		float (&c)[m][4], const uint32_t (&a)[4], uint64_t b, int add)                     \
	{                                                                                          \
		asm volatile(PRODUCT_OF("f16", cols, numbers, a_at, b_at, add_at, "0")             \
			     : __VA_ARGS__                                                         \
			     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));      \
	}

DEFINE_PRODUCT_OF_F16(2, "16", NUMBERS_8, "{%8, %9, %10, %11}", "%12", "%13", SUMS_8(c, 0))
DEFINE_PRODUCT_OF_F16(4, "32", NUMBERS_16, "{%16, %17, %18, %19}", "%20", "%21", SUMS_16(c, 0))

/* A lane's addresses for two ldmatrix of 16 keys, from `row` on, and 32 columns each. */
struct mla_codes_at {
	uint32_t address[2];
};

static __device__ __forceinline__ mla_codes_at codes_at(uint32_t stage, int row, int chunk)
{
	const int lane = threadIdx.x % 32;

	return {{stage + code_atom::place(row + lane % 16, chunk + lane / 16),
		stage + code_atom::place(row + lane % 16, chunk + 2 + lane / 16)}};
}

/* Operands of 16 keys each a warp, and 16 columns. */
static __device__ __forceinline__ void keys_widen(
	uint32_t (&a)[BATCH][4], const mla_codes_at &at, uint32_t offset)
{
#pragma unroll
	for (int j = 0; j < BATCH / 2; j++) {
		uint32_t codes[4];

		load_4(codes, at.address[j] + offset);
#pragma unroll
		for (int w = 0; w < 4; w++) {
			a[j * 2 + w / 2][w % 2] = e4m3_to_f16(codes[w]);
			a[j * 2 + w / 2][w % 2 + 2] = e4m3_to_f16(codes[w] >> 16);
		}
	}
}

/* Operands of 16 columns each a warp, and 16 keys. */
static __device__ __forceinline__ void values_widen(
	uint32_t (&a)[BATCH][4], const mla_codes_at &at, uint32_t offset)
{
#pragma unroll
	for (int j = 0; j < BATCH / 2; j++) {
		uint32_t codes[4];

		load_4_transposed(codes, at.address[j] + offset);
#pragma unroll
		for (int w = 0; w < 4; w++) {
			const uint32_t apart = __byte_perm(codes[w], 0, 0x3120);

			a[j * 2 + w / 2][w % 2 * 2] = e4m3_to_f16(apart);
			a[j * 2 + w / 2][w % 2 * 2 + 1] = e4m3_to_f16(apart >> 16);
		}
	}
}

/* Eight columns of a query, to their places among the 16 that they are part of. */
static __device__ __forceinline__ void query_store_codes(
	uint32_t to, uint32_t head, uint32_t chunk, const uint4 &x)
{
	const uint32_t half = chunk % 2 * 8;

	asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(
			     to + atom<WIDTH>::place(head, chunk & ~1u) + half),
		"r"(f16_of_bf16(x.x)), "r"(f16_of_bf16(x.z))
		: "memory");
	asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(
			     to + atom<WIDTH>::place(head, chunk | 1u) + half),
		"r"(f16_of_bf16(x.y)), "r"(f16_of_bf16(x.w))
		: "memory");
}

/* Keys x queries. */
template <int M>
static __device__ __forceinline__ void codes_score(uint32_t stage, uint32_t query, float (&s)[M][4])
{
	const uint64_t queries = rows_at<WIDTH>(query);
	const mla_codes_at at = codes_at(stage, threadIdx.x / 32 * 16, 0);
	uint32_t a[2][BATCH][4];

#pragma unroll
	for (int b = 0; b < (int)code_atom::n; b++) {
		if (b >= 2) {
			products_wait<1>();
			settle(a[b % 2]);
		}
		keys_widen(a[b % 2], at, b * code_atom::bytes);
		settle(a[b % 2]);
		products_fence();
#pragma unroll
		for (int j = 0; j < BATCH; j++)
			product_of_f16(s, a[b % 2][j], further(queries, b * 1024 + j * 32), b + j != 0);
		products_commit();
	}
	products_wait<0>();
	settle(a[0]);
	settle(a[1]);
	settle(s);
}

/* Values x weights, onto the sums. */
template <int M>
static __device__ __forceinline__ void codes_add(uint32_t stage, uint32_t weights, float (&acc)[8][M][4])
{
	const uint64_t by = rows_at<64>(weights);
	const mla_codes_at at = codes_at(stage, 0, threadIdx.x / 32 * 8);
	uint32_t a[2][BATCH][4];

#pragma unroll
	for (int b = 0; b < 8; b++) {
		const int k = b / 2, half = b % 2;

		if (b >= 2) {
			products_wait<1>();
			settle(a[half]);
		}
		values_widen(a[half], at, (k * 2 * code_atom::n + half) * code_atom::bytes);
		settle(a[half]);
		products_fence();
#pragma unroll
		for (int j = 0; j < BATCH; j++)
			product_of_f16(acc[half * BATCH + j], a[half][j], further(by, k * 32), 1);
		products_commit();
	}
	products_wait<0>();
	settle(a[0]);
	settle(a[1]);
#pragma unroll
	for (int i = 0; i < 8; i++)
		settle(acc[i]);
}

#endif
