/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_WGMMA_CUH
#define MIMEO_KERNELS_CUDA_WGMMA_CUH

/*
 * What every kernel with products of a warpgroup needs around them (9.0a; PTX ISA, "Asynchronous
 * Warpgroup Level Matrix Instructions"): their order, and their registers as operands of asm.
 */

/* Before the first product that uses registers which were written. */
static __device__ __forceinline__ void products_fence(void)
{
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void products_commit(void)
{
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Wait until at most N groups of products are pending. */
template <int N> static __device__ __forceinline__ void products_wait(void)
{
	asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Keeps the compiler from moving reads of products' registers before this point. */
template <int N> static __device__ __forceinline__ void settle(float (&x)[N][4])
{
#pragma unroll
	for (int i = 0; i < N; i++)
#pragma unroll
		for (int j = 0; j < 4; j++)
			asm volatile("" : "+f"(x[i][j])::"memory");
}

/* The same of an operand's registers: before the fence it has them written, and behind the wait it keeps them
 * until then, because products read them while the thread goes on. */
template <int N> static __device__ __forceinline__ void settle(uint32_t (&x)[N][4])
{
#pragma unroll
	for (int i = 0; i < N; i++)
#pragma unroll
		for (int j = 0; j < 4; j++)
			asm volatile("" : "+r"(x[i][j])::"memory");
}

/* ---- lists of operands: the registers of n sums a thread ---- */

#define SUMS_4(x, i) "+f"(x[i][0]), "+f"(x[i][1]), "+f"(x[i][2]), "+f"(x[i][3])
#define SUMS_8(x, i) SUMS_4(x, i), SUMS_4(x, i + 1)
#define SUMS_16(x, i) SUMS_8(x, i), SUMS_8(x, i + 2)
#define SUMS_32(x, i) SUMS_16(x, i), SUMS_16(x, i + 4)
#define SUMS_48(x, i) SUMS_32(x, i), SUMS_16(x, i + 8)
#define SUMS_64(x, i) SUMS_32(x, i), SUMS_32(x, i + 8)
#define NUMBERS_4 "%0, %1, %2, %3"
#define NUMBERS_8 NUMBERS_4 ", %4, %5, %6, %7"
#define NUMBERS_16 NUMBERS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define NUMBERS_32                                                                                 \
	NUMBERS_16                                                                                 \
	", %16, %17, %18, %19, %20, %21, %22, %23"                                                 \
	", %24, %25, %26, %27, %28, %29, %30, %31"
#define NUMBERS_48                                                                                 \
	NUMBERS_32                                                                                 \
	", %32, %33, %34, %35, %36, %37, %38, %39"                                                 \
	", %40, %41, %42, %43, %44, %45, %46, %47"
#define NUMBERS_64                                                                                 \
	NUMBERS_48                                                                                 \
	", %48, %49, %50, %51, %52, %53, %54, %55"                                                 \
	", %56, %57, %58, %59, %60, %61, %62, %63"
#define NUMBERS_80                                                                                 \
	NUMBERS_64                                                                                 \
	", %64, %65, %66, %67, %68, %69, %70, %71"                                                 \
	", %72, %73, %74, %75, %76, %77, %78, %79"
#define NUMBERS_96                                                                                 \
	NUMBERS_80                                                                                 \
	", %80, %81, %82, %83, %84, %85, %86, %87"                                                 \
	", %88, %89, %90, %91, %92, %93, %94, %95"
#define NUMBERS_112                                                                                \
	NUMBERS_96                                                                                 \
	", %96, %97, %98, %99, %100, %101, %102, %103"                                             \
	", %104, %105, %106, %107, %108, %109, %110, %111"
#define NUMBERS_128                                                                                \
	NUMBERS_112                                                                                \
	", %112, %113, %114, %115, %116, %117, %118, %119"                                         \
	", %120, %121, %122, %123, %124, %125, %126, %127"

/* ---- products ---- */

/* Of 64 x 16 and 16 x `cols`, both of `type`, with the numbers of its sums, its operands' and that of
 * `add`; `ways`: how the operands in shared memory are read, 0 along their rows, 1 across. */
#define PRODUCT_OF(type, cols, numbers, a_at, b_at, add_at, ways)                                  \
	"{\n\t.reg .pred p;\n\tsetp.ne.b32 p, " add_at ", 0;\n\t"                                  \
	"wgmma.mma_async.sync.aligned.m64n" cols "k16.f32." type "." type " {" numbers "}, " a_at  \
	", " b_at ", p, 1, 1, " ways ";\n\t}"
#define PRODUCT(cols, numbers, a_at, b_at, add_at, ways)                                           \
	PRODUCT_OF("bf16", cols, numbers, a_at, b_at, add_at, ways)

#define DEFINE_PRODUCT(name, ways, m, cols, numbers, a_at, b_at, add_at, ...)                      \
	static __device__ __forceinline__ void name(                                               \
		float (&c)[m][4], uint64_t a, uint64_t b, int add = 1)                             \
	{                                                                                          \
		asm volatile(PRODUCT(cols, numbers, a_at, b_at, add_at, ways)                      \
			     : __VA_ARGS__                                                         \
			     : "l"(a), "l"(b), "r"(add));                                          \
	}

/* c[64, 8 M] = a[64, 16] b[16, 8 M], plus what c was if `add`; c: M fragments, of 16 rows a warp. a
 * and b are descriptors, read along their rows. */
DEFINE_PRODUCT(product, "0, 0", 1, "8", NUMBERS_4, "%4", "%5", "%6", SUMS_4(c, 0))
DEFINE_PRODUCT(product, "0, 0", 2, "16", NUMBERS_8, "%8", "%9", "%10", SUMS_8(c, 0))
DEFINE_PRODUCT(product, "0, 0", 4, "32", NUMBERS_16, "%16", "%17", "%18", SUMS_16(c, 0))
DEFINE_PRODUCT(product, "0, 0", 8, "64", NUMBERS_32, "%32", "%33", "%34", SUMS_32(c, 0))
DEFINE_PRODUCT(product, "0, 0", 12, "96", NUMBERS_48, "%48", "%49", "%50", SUMS_48(c, 0))
DEFINE_PRODUCT(product, "0, 0", 16, "128", NUMBERS_64, "%64", "%65", "%66", SUMS_64(c, 0))
DEFINE_PRODUCT(product, "0, 0", 20, "160", NUMBERS_80, "%80", "%81", "%82", SUMS_64(c, 0),
	SUMS_16(c, 16))
DEFINE_PRODUCT(product, "0, 0", 24, "192", NUMBERS_96, "%96", "%97", "%98", SUMS_64(c, 0),
	SUMS_32(c, 16))
DEFINE_PRODUCT(product, "0, 0", 28, "224", NUMBERS_112, "%112", "%113", "%114", SUMS_64(c, 0),
	SUMS_48(c, 16))
DEFINE_PRODUCT(product, "0, 0", 32, "256", NUMBERS_128, "%128", "%129", "%130", SUMS_64(c, 0),
	SUMS_64(c, 16))

/* The same with a in registers: of each warp's 16 rows an operand of mma.m16n8k16 (PTX ISA, "Register
 * Fragments for wgmma"). */
#define DEFINE_PRODUCT_OF_WORDS(m, cols, numbers, a_at, b_at, add_at, ...)                         \
	static __device__ __forceinline__ void product_of_words(                                   \
		float (&c)[m][4], const uint32_t (&a)[4], uint64_t b, int add)                     \
	{                                                                                          \
		asm volatile(PRODUCT(cols, numbers, a_at, b_at, add_at, "0")                       \
			     : __VA_ARGS__                                                         \
			     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));      \
	}

DEFINE_PRODUCT_OF_WORDS(4, "32", NUMBERS_16, "{%16, %17, %18, %19}", "%20", "%21", SUMS_16(c, 0))
DEFINE_PRODUCT_OF_WORDS(8, "64", NUMBERS_32, "{%32, %33, %34, %35}", "%36", "%37", SUMS_32(c, 0))
DEFINE_PRODUCT_OF_WORDS(12, "96", NUMBERS_48, "{%48, %49, %50, %51}", "%52", "%53", SUMS_48(c, 0))
DEFINE_PRODUCT_OF_WORDS(16, "128", NUMBERS_64, "{%64, %65, %66, %67}", "%68", "%69", SUMS_64(c, 0))

/* The same as product with a read across its rows. */
DEFINE_PRODUCT(product_across, "1, 0", 2, "16", NUMBERS_8, "%8", "%9", "%10", SUMS_8(c, 0))
DEFINE_PRODUCT(product_across, "1, 0", 4, "32", NUMBERS_16, "%16", "%17", "%18", SUMS_16(c, 0))

#endif
