/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_KERNELS_CUDA_STEP_PTX_CUH
#define MIMEO_KERNELS_CUDA_STEP_PTX_CUH

/*
 * The instructions of 9.0a that a whole step is made of, under names that say what they do. The
 * test of the schedule has the same names on a CPU and includes them first (cpu_step_schedule); everything
 * else of the step is compiled from the same files for both.
 */

#include <stdint.h>

#ifndef MIMEO_STEP_EMULATION

#include <cuda_bf16.h>

#define STEP_INLINE __device__ static __forceinline__

/* ---- barriers in shared memory ---- */

STEP_INLINE uint32_t step_shared_base(const void *memory)
{
	return (uint32_t)__cvta_generic_to_shared(memory);
}

STEP_INLINE void step_barrier_init(uint32_t barrier, uint32_t count)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count)
		     : "memory");
}

/* What the inits wrote is seen by the copy engine. */
STEP_INLINE void step_barriers_ready(void)
{
	asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

STEP_INLINE void step_arrive(uint32_t barrier)
{
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

STEP_INLINE void step_expect(uint32_t barrier, uint32_t bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
		"r"(bytes)
		: "memory");
}

STEP_INLINE bool step_has_ended(uint32_t barrier, uint32_t parity)
{
	uint32_t done;

	asm volatile("{\n\t.reg .pred p;\n\t"
		     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
		     "selp.u32 %0, 1, 0, p;\n\t}"
		     : "=r"(done)
		     : "r"(barrier), "r"(parity)
		     : "memory");
	return done;
}

/* ---- the copy engine ---- */

STEP_INLINE uint64_t step_evict_first(void)
{
	uint64_t policy;

	asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
	return policy;
}

STEP_INLINE void step_prefetch_map(const void *map)
{
	asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

STEP_INLINE void step_box_4(uint32_t to, const void *map, uint32_t barrier, uint64_t policy,
	uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3)
{
	asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
		     ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
		     "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(policy)
		     : "memory");
}

/* What this thread wrote to shared memory is written before what the copy engine writes later. */
STEP_INLINE void step_fence_copies(void)
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- shared memory ---- */

STEP_INLINE uint4 step_lds_16(uint32_t address)
{
	uint4 v;

	asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
		     : "r"(address)
		     : "memory");
	return v;
}

STEP_INLINE float4 step_lds_16f(uint32_t address)
{
	float4 v;

	asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
		     : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
		     : "r"(address)
		     : "memory");
	return v;
}

STEP_INLINE float2 step_lds_8f(uint32_t address)
{
	float2 v;

	asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
		     : "=f"(v.x), "=f"(v.y)
		     : "r"(address)
		     : "memory");
	return v;
}

STEP_INLINE uint32_t step_lds_4(uint32_t address)
{
	uint32_t v;

	asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
	return v;
}

STEP_INLINE void step_sts_4(uint32_t address, uint32_t v)
{
	asm volatile("st.volatile.shared.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}

STEP_INLINE void step_sts_16(uint32_t address, uint4 v)
{
	asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x),
		"r"(v.y), "r"(v.z), "r"(v.w)
		: "memory");
}

STEP_INLINE void step_sts_8f(uint32_t address, float x, float y)
{
	asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}

STEP_INLINE void step_sts_4f(uint32_t address, float v)
{
	asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory");
}

/* Four 8x8 matrices, transposed; lane l has the address of row l % 8 of matrix l / 8. */
STEP_INLINE void step_load_transposed(uint32_t (&r)[4], uint32_t address)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
		     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
		     : "r"(address)
		     : "memory");
}

/* ---- words between blocks: from and to the L2 ---- */

STEP_INLINE uint4 step_ldx_16(const uint32_t *p)
{
	uint4 v;

	asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
		     : "l"(p)
		     : "memory");
	return v;
}

STEP_INLINE uint32_t step_ldx_4(const uint32_t *p)
{
	uint32_t v;

	asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}

STEP_INLINE void step_stx_4(uint32_t *p, uint32_t v)
{
	asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

STEP_INLINE void step_stx_16(uint32_t *p, uint32_t v)
{
	asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %1, %1, %1};" ::"l"(p), "r"(v)
		     : "memory");
}

/* What was there before. */
STEP_INLINE uint32_t step_add(uint32_t *p, uint32_t v)
{
	uint32_t old;

	asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
		     : "=r"(old)
		     : "l"(p), "r"(v)
		     : "memory");
	return old;
}

STEP_INLINE uint4 step_ldc_16(const void *p)
{
	return __ldg((const uint4 *)p);
}

STEP_INLINE float4 step_ldc_16f(const float *p)
{
	return __ldg((const float4 *)p);
}

/* ---- a warp, a block ---- */

STEP_INLINE float step_xor(float v, int mask)
{
	return __shfl_xor_sync(~0u, v, mask);
}

STEP_INLINE uint32_t step_of_lane(uint32_t v, uint32_t lane)
{
	return __shfl_sync(~0u, v, lane);
}

STEP_INLINE bool step_all_lanes(bool v)
{
	return __all_sync(~0u, v);
}

STEP_INLINE void step_meet_warp(void)
{
	__syncwarp();
}

template <uint32_t ID, uint32_t THREADS> STEP_INLINE void step_meet(void)
{
	asm volatile("bar.sync %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}

STEP_INLINE void step_meet_block(void)
{
	__syncthreads();
}

/* The launch's registers shared out anew: 2 x 128 x 208 + 128 x 88 of 384 x 168. */
STEP_INLINE void step_more_registers(void)
{
	asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
}

STEP_INLINE void step_less_registers(void)
{
	asm volatile("setmaxnreg.dec.sync.aligned.u32 88;");
}

STEP_INLINE void step_next_may_come(void)
{
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

STEP_INLINE void step_before_is_done(void)
{
	asm volatile("griddepcontrol.wait;" ::: "memory");
}

/* Boxes that this thread asks for later have what the kernels before wrote. */
STEP_INLINE void step_boxes_see_memory(void)
{
	asm volatile("fence.proxy.async.global;" ::: "memory");
}

/* ---- arithmetic ---- */

STEP_INLINE uint32_t step_pack(float low, float high)
{
	uint32_t word;

	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
	return word;
}

STEP_INLINE float step_float(uint32_t v)
{
	return __uint_as_float(v);
}

STEP_INLINE uint32_t step_bits(float v)
{
	return __float_as_uint(v);
}

STEP_INLINE float step_exp2(float v)
{
	float r;

	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
	return r;
}

STEP_INLINE float step_log2(float v)
{
	float r;

	asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
	return r;
}

STEP_INLINE float step_rsqrt(float v)
{
	return rsqrtf(v);
}

/* c[16, 8] += a[16, 16] b[16, 8] */
STEP_INLINE void step_mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
	uint32_t b0, uint32_t b1)
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
	    "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
	    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
	    : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* An 8x8 matrix of pairs, a row in four lanes, transposed. */
STEP_INLINE uint32_t step_transpose(uint32_t v)
{
	uint32_t r;

	asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
	return r;
}

/* ---- tests ---- */

STEP_INLINE uint64_t step_now_ns(void)
{
	uint64_t ns;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
	return ns;
}

STEP_INLINE void step_relax(uint32_t where)
{
}

STEP_INLINE void step_trap(uint32_t where)
{
	__trap();
}

#endif

#endif
