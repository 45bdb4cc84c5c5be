/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_KERNELS_STEP_EMULATION_H
#define MIMEO_TESTS_KERNELS_STEP_EMULATION_H

/*
 * What kernels/cuda/step_ptx.cuh has, on a CPU: each thread is a fiber, which gives way where a thread
 * would wait. A wrong index, a barrier that is entered too often, a wait that never ends are errors
 * here; memory's order and speed are the device's alone.
 */

#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <vector>

/* A jump between stacks is not what this would take it for. */
#ifdef _FORTIFY_SOURCE
#error "to be built with -U_FORTIFY_SOURCE"
#endif

#define STEP_INLINE static inline
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)

struct uint4 {
	uint32_t x, y, z, w;
};
struct float2 {
	float x, y;
};
struct float4 {
	float x, y, z, w;
};

static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
	return uint4{x, y, z, w};
}

static inline float2 make_float2(float x, float y)
{
	return float2{x, y};
}

/* ---- fibers ---- */

struct emulated_barrier {
	uint32_t expected, pending;
	int64_t bytes;
	uint32_t phase;
};

struct emulated_warp {
	uint32_t arrived, generation;
	uint32_t words[2][32][6];
};

struct emulated_block {
	std::vector<uint8_t> memory;
	std::vector<emulated_barrier> barriers;
	emulated_warp warps[16];
	uint32_t meeting[4], generation[4];
};

struct emulated_thread {
	ucontext_t context; /* to begin; from then on jumps, which make no system call */
	jmp_buf jump;
	std::vector<char> stack;
	emulated_block *block;
	uint32_t index, block_index;
	bool begun, done;
	uint32_t where; /* its last wait */
};

struct emulated_dim {
	uint32_t x;
};

static emulated_thread *emulated_now;
static ucontext_t emulated_scheduler;
static jmp_buf emulated_back;
static uint32_t emulated_grid, emulated_threads;
static uint64_t emulated_rounds;

#define threadIdx (emulated_dim{emulated_now->index})
#define blockIdx (emulated_dim{emulated_now->block_index})
#define gridDim (emulated_dim{emulated_grid})

[[noreturn]] static inline void emulated_failure(const char *what, uint32_t value)
{
	printf("Bail out! %s %u: block %u, thread %u, round %llu\n", what, value, emulated_now->block_index,
		emulated_now->index, (unsigned long long)emulated_rounds);
	fflush(stdout);
	abort();
}

__attribute__((noinline)) static void emulated_yield(void)
{
	if (_setjmp(emulated_now->jump) == 0)
		_longjmp(emulated_back, 1);
}

/* Until it yields. */
__attribute__((noinline)) static void emulated_resume(emulated_thread *t)
{
	emulated_now = t;
	if (_setjmp(emulated_back) != 0)
		return;
	if (t->begun)
		_longjmp(t->jump, 1);
	t->begun = true;
	swapcontext(&emulated_scheduler, &t->context);
}

static inline uint8_t *emulated_shared(uint32_t address, uint32_t bytes, uint32_t align)
{
	std::vector<uint8_t> &memory = emulated_now->block->memory;

	if (address + bytes > memory.size() || address % align)
		emulated_failure("shared memory", address);
	return memory.data() + address;
}

static inline void emulated_align(const void *p, uint32_t align)
{
	if ((uintptr_t)p % align)
		emulated_failure("alignment", (uint32_t)((uintptr_t)p % align));
}

template <class T> static inline T emulated_load(const void *p, uint32_t align)
{
	T v;

	emulated_align(p, align);
	memcpy(&v, p, sizeof(v));
	return v;
}

/* ---- barriers ---- */

static inline emulated_barrier *emulated_barrier_at(uint32_t address)
{
	std::vector<emulated_barrier> &all = emulated_now->block->barriers;

	if (address % 8 || address / 8 >= all.size())
		emulated_failure("barrier", address);
	return &all[address / 8];
}

static inline void emulated_settle(emulated_barrier *b)
{
	if (b->pending == 0 && b->bytes == 0) {
		b->phase ^= 1;
		b->pending = b->expected;
	}
}

static inline uint32_t step_shared_base(const void *)
{
	return 0;
}

static inline void step_barrier_init(uint32_t barrier, uint32_t count)
{
	*emulated_barrier_at(barrier) = emulated_barrier{count, count, 0, 0};
}

static inline void step_barriers_ready(void)
{
}

static inline void step_arrive(uint32_t barrier)
{
	emulated_barrier *b = emulated_barrier_at(barrier);

	if (b->pending == 0)
		emulated_failure("arrivals", barrier);
	b->pending--;
	emulated_settle(b);
}

static inline void step_expect(uint32_t barrier, uint32_t bytes)
{
	emulated_barrier_at(barrier)->bytes += bytes;
	step_arrive(barrier);
}

static inline bool step_has_ended(uint32_t barrier, uint32_t parity)
{
	return emulated_barrier_at(barrier)->phase != (parity & 1);
}

/* ---- the copy engine ---- */

/* In step_map.opaque: base, dims[4], strides[3] of bytes, box[4]. */
static inline uint64_t step_evict_first(void)
{
	return 0;
}

static inline void step_prefetch_map(const void *)
{
}

static inline void step_box_4(uint32_t to, const void *map, uint32_t barrier, uint64_t, uint32_t c0, uint32_t c1,
	uint32_t c2, uint32_t c3)
{
	const uint64_t *m = (const uint64_t *)map, *dims = m + 1, *strides = m + 5, *box = m + 8;
	const uint64_t c[4] = {c0, c1, c2, c3}, bytes = box[0] * box[1] * box[2] * box[3] * 2;
	emulated_barrier *b = emulated_barrier_at(barrier);
	uint64_t line = to / 128;

	emulated_shared(to, (uint32_t)bytes, 1024);
	for (uint64_t i3 = 0; i3 < box[3]; i3++)
		for (uint64_t i2 = 0; i2 < box[2]; i2++)
			for (uint64_t i1 = 0; i1 < box[1]; i1++, line++) {
				const bool inside = c[1] + i1 < dims[1] && c[2] + i2 < dims[2] && c[3] + i3 < dims[3];
				const uint8_t *from = (const uint8_t *)m[0] + (c[1] + i1) * strides[0] +
						      (c[2] + i2) * strides[1] + (c[3] + i3) * strides[2];

				for (uint32_t chunk = 0; chunk < 8; chunk++) {
					uint8_t *at = emulated_shared((uint32_t)(line * 128) +
							(chunk ^ (uint32_t)line % 8) * 16, 16, 16);

					if (inside)
						memcpy(at, from + chunk * 16, 16);
					else
						memset(at, 0, 16);
				}
			}
	b->bytes -= (int64_t)bytes;
	emulated_settle(b);
}

static inline void step_fence_copies(void)
{
}

static inline void step_boxes_see_memory(void)
{
}

/* ---- shared memory ---- */

static inline uint4 step_lds_16(uint32_t address)
{
	return emulated_load<uint4>(emulated_shared(address, 16, 16), 1);
}

static inline float4 step_lds_16f(uint32_t address)
{
	return emulated_load<float4>(emulated_shared(address, 16, 16), 1);
}

static inline float2 step_lds_8f(uint32_t address)
{
	return emulated_load<float2>(emulated_shared(address, 8, 8), 1);
}

static inline uint32_t step_lds_4(uint32_t address)
{
	return emulated_load<uint32_t>(emulated_shared(address, 4, 4), 1);
}

static inline void step_sts_4(uint32_t address, uint32_t v)
{
	memcpy(emulated_shared(address, 4, 4), &v, 4);
}

static inline void step_sts_16(uint32_t address, uint4 v)
{
	memcpy(emulated_shared(address, 16, 16), &v, 16);
}

static inline void step_sts_8f(uint32_t address, float x, float y)
{
	const float v[2] = {x, y};

	memcpy(emulated_shared(address, 8, 8), v, 8);
}

static inline void step_sts_4f(uint32_t address, float v)
{
	memcpy(emulated_shared(address, 4, 4), &v, 4);
}

/* ---- words between blocks ---- */

static inline uint4 step_ldx_16(const uint32_t *p)
{
	return emulated_load<uint4>(p, 16);
}

static inline uint32_t step_ldx_4(const uint32_t *p)
{
	return emulated_load<uint32_t>(p, 4);
}

static inline void step_stx_4(uint32_t *p, uint32_t v)
{
	emulated_align(p, 4);
	*p = v;
}

static inline void step_stx_16(uint32_t *p, uint32_t v)
{
	emulated_align(p, 16);
	p[0] = p[1] = p[2] = p[3] = v;
}

static inline uint32_t step_add(uint32_t *p, uint32_t v)
{
	const uint32_t old = *p;

	*p += v;
	return old;
}

static inline uint4 step_ldc_16(const void *p)
{
	return emulated_load<uint4>(p, 16);
}

static inline float4 step_ldc_16f(const float *p)
{
	return emulated_load<float4>(p, 16);
}

/* ---- a warp, a block ---- */

/* All lanes meet, with up to six words each; the words of all. */
static inline uint32_t (*emulated_meet(const uint32_t *mine, int n))[6]
{
	emulated_warp *w = &emulated_now->block->warps[emulated_now->index / 32];
	const uint32_t generation = w->generation;

	for (int i = 0; i < n; i++)
		w->words[generation & 1][emulated_now->index % 32][i] = mine[i];
	if (++w->arrived == 32) {
		w->arrived = 0;
		w->generation++;
	} else {
		while (w->generation == generation)
			emulated_yield();
	}
	return w->words[generation & 1];
}

static inline float step_float(uint32_t v)
{
	float f;

	memcpy(&f, &v, 4);
	return f;
}

static inline uint32_t step_bits(float v)
{
	uint32_t u;

	memcpy(&u, &v, 4);
	return u;
}

static inline float step_xor(float v, int mask)
{
	const uint32_t word = step_bits(v);

	return step_float(emulated_meet(&word, 1)[(emulated_now->index % 32) ^ mask][0]);
}

static inline uint32_t step_of_lane(uint32_t v, uint32_t lane)
{
	return emulated_meet(&v, 1)[lane][0];
}

static inline bool step_all_lanes(bool v)
{
	const uint32_t word = v, (*all)[6] = emulated_meet(&word, 1);

	for (uint32_t lane = 0; lane < 32; lane++)
		v = v && all[lane][0];
	return v;
}

static inline void step_meet_warp(void)
{
	emulated_meet(NULL, 0);
}

static inline void emulated_meet_threads(uint32_t id, uint32_t threads)
{
	emulated_block *b = emulated_now->block;
	const uint32_t generation = b->generation[id];

	if (++b->meeting[id] == threads) {
		b->meeting[id] = 0;
		b->generation[id]++;
	} else {
		while (b->generation[id] == generation)
			emulated_yield();
	}
}

template <uint32_t ID, uint32_t THREADS> static inline void step_meet(void)
{
	emulated_meet_threads(ID, THREADS);
}

static inline void step_meet_block(void)
{
	emulated_meet_threads(0, emulated_threads);
}

static inline void step_more_registers(void)
{
}

static inline void step_less_registers(void)
{
}

static inline void step_next_may_come(void)
{
}

static inline void step_before_is_done(void)
{
}

/* ---- arithmetic ---- */

static inline uint32_t emulated_bf16(float f)
{
	const uint32_t u = step_bits(f);

	return isnan(f) ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}

static inline uint32_t step_pack(float low, float high)
{
	return emulated_bf16(low) | emulated_bf16(high) << 16;
}

static inline float step_exp2(float v)
{
	return exp2f(v);
}

static inline float step_log2(float v)
{
	return log2f(v);
}

static inline float step_rsqrt(float v)
{
	return 1 / sqrtf(v);
}

static inline float emulated_half(uint32_t word, uint32_t upper)
{
	return step_float(upper ? word & 0xffff0000u : word << 16);
}

static inline void step_mma(
	float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
	const uint32_t mine[6] = {a0, a1, a2, a3, b0, b1}, lane = emulated_now->index % 32;
	uint32_t(*all)[6] = emulated_meet(mine, 6);

	for (uint32_t e = 0; e < 4; e++) {
		const uint32_t column = lane % 4 * 2 + e % 2;
		float sum = 0;

		for (uint32_t t = 0; t < 4; t++)
			for (uint32_t i = 0; i < 4; i++) {
				const uint32_t a = all[lane / 4 * 4 + t][e / 2 + i / 2 * 2];
				const uint32_t b = all[column * 4 + t][4 + i / 2];

				sum += emulated_half(a, i % 2) * emulated_half(b, i % 2);
			}
		c[e] += sum;
	}
}

static inline uint32_t step_transpose(uint32_t v)
{
	const uint32_t lane = emulated_now->index % 32, row = lane / 4, q = lane % 4;
	uint32_t(*all)[6] = emulated_meet(&v, 1);
	const uint32_t a = all[2 * q * 4 + row / 2][0], b = all[(2 * q + 1) * 4 + row / 2][0];

	return row % 2 ? a >> 16 | (b & 0xffff0000u) : (a & 0xffff) | b << 16;
}

static inline void step_load_transposed(uint32_t (&r)[4], uint32_t address)
{
	const uint32_t lane = emulated_now->index % 32;
	uint32_t(*all)[6] = emulated_meet(&address, 1);

	for (uint32_t m = 0; m < 4; m++) {
		uint16_t low, high;

		memcpy(&low, emulated_shared(all[m * 8 + lane % 4 * 2][0], 16, 16) + lane / 4 * 2, 2);
		memcpy(&high, emulated_shared(all[m * 8 + lane % 4 * 2 + 1][0], 16, 16) + lane / 4 * 2, 2);
		r[m] = low | (uint32_t)high << 16;
	}
	step_meet_warp();
}

/* ---- tests ---- */

static inline uint64_t step_now_ns(void)
{
	return emulated_rounds;
}

static inline void step_relax(uint32_t where)
{
	emulated_now->where = where;
	emulated_yield();
}

static inline void step_trap(uint32_t where)
{
	emulated_failure("a wait did not end", where);
}

/* ---- a launch ---- */

template <class Args> struct emulated_launch {
	static void (*kernel)(const Args);
	static const Args *args;

	static void enter(void)
	{
		kernel(*args);
		emulated_now->done = true;
		emulated_yield();
	}
};
template <class Args> void (*emulated_launch<Args>::kernel)(const Args);
template <class Args> const Args *emulated_launch<Args>::args;

/* All blocks at once. A launch of too many rounds does not end. */
template <class Args>
static void emulated_run(void (*kernel)(const Args), const Args &args, uint32_t grid, uint32_t threads,
	uint32_t shared_bytes, uint64_t most_rounds)
{
	std::vector<emulated_block> blocks(grid);
	std::vector<emulated_thread> all((size_t)grid * threads);
	uint32_t left = grid * threads;

	emulated_launch<Args>::kernel = kernel;
	emulated_launch<Args>::args = &args;
	emulated_grid = grid;
	emulated_threads = threads;
	for (emulated_block &b : blocks) {
		b.memory.assign(shared_bytes, 0xff);
		b.barriers.assign(shared_bytes / 8 + 1, emulated_barrier{});
		memset(b.warps, 0, sizeof(b.warps));
		memset(b.meeting, 0, sizeof(b.meeting));
		memset(b.generation, 0, sizeof(b.generation));
	}
	for (uint32_t i = 0; i < all.size(); i++) {
		emulated_thread &t = all[i];

		t.block = &blocks[i / threads];
		t.block_index = i / threads;
		t.index = i % threads;
		t.begun = t.done = false;
		t.where = 0;
		t.stack.resize(1 << 16);
		getcontext(&t.context);
		t.context.uc_stack.ss_sp = t.stack.data();
		t.context.uc_stack.ss_size = t.stack.size();
		t.context.uc_link = NULL;
		makecontext(&t.context, emulated_launch<Args>::enter, 0);
	}
	for (emulated_rounds = 0; left; emulated_rounds++) {
		if (emulated_rounds > most_rounds + 1)
			emulated_failure("no end", 0);
		left = 0;
		for (emulated_thread &t : all) {
			if (t.done)
				continue;
			emulated_resume(&t);
			left += !t.done;
			if (emulated_rounds > most_rounds && t.index % 32 == 0)
				printf("# block %u, warp %u waits at %u\n", t.block_index, t.index / 32, t.where);
		}
	}
}

#endif
