/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_PAGED_PAGED_SM90_CUH
#define MIMEO_ATTENTION_PAGED_PAGED_SM90_CUH

/*
 * What 9.0a has beyond paged_mma.cuh: barriers in shared memory, the copy engine, and matrix
 * products of a whole warpgroup (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions").
 *
 * Every operand in shared memory is made of ATOMS: 64 elements, 128 bytes, of each of 8 rows, one
 * row behind the other, the 16-byte chunk c of row r at place c ^ r of its 128 bytes. So the copy
 * engine writes them (CU_TENSOR_MAP_SWIZZLE_128B) and so the products read them, free of bank
 * conflicts; an atom begins at a multiple of its size. Rows of head_dim elements are head_dim / 64
 * atoms behind each other in memory; the next 8 rows follow. A page is so one box of the copy
 * engine, whatever its size. Heads that are no multiple of 64 have atoms of 32 elements, 64 bytes,
 * chunk c of row r at place c ^ r / 2 (CU_TENSOR_MAP_SWIZZLE_64B). Queries and keys are read along
 * their rows (the product runs over the elements of a row), values across them (over the rows).
 */

#include "attention/paged/paged_mma.cuh"
#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/wgmma.cuh"

#define ATOM_ALIGN 1024u

template <int D> struct atom {
	static constexpr int cols = D % 64 ? 32 : 64;
	static constexpr int chunks = cols / 8; /* of 16 bytes, of a row */
	static constexpr uint32_t row_bytes = cols * 2, bytes = 8 * row_bytes;
	static constexpr uint32_t n = D / cols; /* of 8 rows */
	static constexpr uint64_t swizzle = cols == 64 ? 1 : 2; /* as descriptors have it */

	/* The offset of a chunk of a row of head_dim elements. */
	static __device__ __forceinline__ uint32_t place(int row, int chunk)
	{
		return (row / 8 * n + chunk / chunks) * bytes + row % 8 * row_bytes +
		       ((chunk ^ (cols == 64 ? row : row / 2)) % chunks) * 16;
	}
};

/* ---- barriers in shared memory ---- */

/* Makes barriers that one thread initialised visible to the copy engine; before a __syncthreads. */
static __device__ __forceinline__ void barrier_init_fence(void)
{
	asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* ---- the hardware's numbered barriers, for some warps of a block ---- */

static __device__ __forceinline__ void warps_sync(int number, int threads)
{
	asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

static __device__ __forceinline__ void warps_arrive(int number, int threads)
{
	asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/* ---- copies ---- */

/* A box of a tensor of four dimensions, the place given in the outer two. */
static __device__ __forceinline__ void copy_box(
	uint32_t dst, const void *map, uint32_t barrier, int32_t cols, int32_t rows)
{
	asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
		     "[%0], [%1, {%3, %3, %4, %5}], [%2];" ::"r"(dst), "l"(map), "r"(barrier),
		"r"(0), "r"(cols), "r"(rows)
		: "memory");
}

/* This thread's ordinary stores to shared memory come before what products read there. */
static __device__ __forceinline__ void stores_fence(void)
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- registers: of what the block was launched with, warpgroups give and take ---- */

template <int N> static __device__ __forceinline__ void registers_give(void)
{
	asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> static __device__ __forceinline__ void registers_take(void)
{
	asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* ---- products ---- */

/* Descriptor of rows of D elements. */
template <int D> static __device__ __forceinline__ uint64_t rows_at(uint32_t address)
{
	return atom<D>::swizzle << 62 | (uint64_t)(atom<D>::n * atom<D>::bytes >> 4) << 32 |
	       (uint64_t)(atom<D>::bytes >> 4) << 16 | address >> 4;
}

/* So many bytes further. */
static __device__ __forceinline__ uint64_t further(uint64_t descriptor, uint32_t bytes)
{
	return descriptor + (bytes >> 4);
}

/* c[64, N] = a[64, 16] b[16, N], plus what c was if `add`, of a in registers, with b read across
 * its rows; N / 8 of c's fragments from FIRST on. */
#define DEFINE_PRODUCT_ACROSS(name, cols, numbers, a_at, b_at, add_at, ...)                        \
	template <int FIRST, int M>                                                                \
	static __device__ __forceinline__ void name(                                               \
		float (&c)[M][4], const uint32_t (&a)[4], uint64_t b, int add)                     \
	{                                                                                          \
		asm volatile(PRODUCT(cols, numbers, a_at, b_at, add_at, "1")                       \
			     : __VA_ARGS__                                                         \
			     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));      \
	}

DEFINE_PRODUCT_ACROSS(product_across_8, "64", NUMBERS_32, "{%32, %33, %34, %35}", "%36", "%37",
	SUMS_32(c, FIRST))
DEFINE_PRODUCT_ACROSS(product_across_12, "96", NUMBERS_48, "{%48, %49, %50, %51}", "%52", "%53",
	SUMS_48(c, FIRST))
DEFINE_PRODUCT_ACROSS(product_across_16, "128", NUMBERS_64, "{%64, %65, %66, %67}", "%68", "%69",
	SUMS_64(c, FIRST))

#endif
