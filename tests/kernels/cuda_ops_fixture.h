/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_KERNELS_CUDA_OPS_FIXTURE_H
#define MIMEO_TESTS_KERNELS_CUDA_OPS_FIXTURE_H

/*
 * The cpu device as the oracle of the CUDA device: each buffer exists on both, poisoned (0xff, a
 * NaN) and between canaries, each op runs on both with the same arguments, and what it left is
 * compared. Activations are float32 on one and bf16 on the other, so inputs are numbers that bf16
 * has.
 */

#include "kernels/convert.h"
#include "tests/kernels/ops_fixture.h"

#define CANARY_BYTES 256

enum side { CPU, CUDA, N_SIDES };

static struct device *devices[N_SIDES];
static struct stream *streams[N_SIDES];

/* An op on one side, to its end. */
#define RUN(side, op, args)                                                                        \
	do {                                                                                       \
		assert_int_equal(devices[side]->kernels->op(streams[side], (args)), 0);            \
		assert_int_equal(devices[side]->ops->stream_sync(streams[side]), 0);               \
	} while (0)

/* ---- buffers ---- */

enum kind { ACT, BYTES };

struct both {
	enum kind kind;
	bool pinned;
	size_t n, shift;
	uint8_t *base[N_SIDES];
	void *at[N_SIDES];
};

static struct both *boths; /* of the test */
static size_t n_boths;

static inline size_t both_bytes(const struct both *b, int side)
{
	return b->kind == BYTES ? b->n : b->n * (side == CPU ? 4 : 2);
}

static inline void both_copy(int side, void *dst, const void *src, size_t bytes)
{
	assert_int_equal(devices[side]->ops->copy(devices[side], dst, src, bytes), 0);
}

/* n elements (ACT) or bytes; `shift` elements off the allocation's alignment. */
static inline struct both both_new_at(enum kind kind, size_t n, size_t shift, bool pinned)
{
	struct both b = {.kind = kind, .n = n, .shift = shift, .pinned = pinned};

	for (int side = 0; side < N_SIDES; side++) {
		const struct device_ops *ops = devices[side]->ops;
		size_t element = kind == BYTES ? 1 : side == CPU ? 4 : 2;
		size_t bytes = both_bytes(&b, side),
		       whole = bytes + shift * element + 2 * CANARY_BYTES;
		uint8_t *image = malloc(whole);
		void *memory;

		assert_non_null(image);
		assert_int_equal(
			(pinned ? ops->host_alloc : ops->mem_alloc)(devices[side], whole, &memory),
			0);
		b.base[side] = memory;
		b.at[side] = b.base[side] + CANARY_BYTES + shift * element;
		memset(image, 0xa5, whole);
		memset(image + CANARY_BYTES + shift * element, 0xff, bytes);
		both_copy(side, memory, image, whole);
		free(image);
	}
	boths = realloc(boths, (n_boths + 1) * sizeof(*boths));
	assert_non_null(boths);
	boths[n_boths++] = b;
	return b;
}

static inline struct both both_new(enum kind kind, size_t n)
{
	return both_new_at(kind, n, 0, false);
}

static inline struct both both_new_pinned(size_t n)
{
	return both_new_at(BYTES, n, 0, true);
}

static inline void both_free(const struct both *b)
{
	for (int side = 0; side < N_SIDES; side++) {
		const struct device_ops *ops = devices[side]->ops;
		size_t bytes = both_bytes(b, side);
		size_t before = (size_t)((uint8_t *)b->at[side] - b->base[side]);
		uint8_t *image = malloc(before + bytes + CANARY_BYTES);

		assert_non_null(image);
		both_copy(side, image, b->base[side], before + bytes + CANARY_BYTES);
		for (size_t i = 0; i < before + CANARY_BYTES; i++)
			if (image[i < before ? i : i + bytes] != 0xa5)
				fail_msg("%s wrote outside its buffer: byte %zd",
					side ? "cuda" : "cpu",
					(ssize_t)(i < before ? i : i + bytes) - (ssize_t)before);
		free(image);
		(b->pinned ? ops->host_free : ops->mem_free)(devices[side], b->base[side]);
	}
}

/* How much the test has allocated so far. */
struct mark {
	size_t n_boths;
	const struct scratch *scratches;
};

static inline struct mark mark_here(void)
{
	return (struct mark){.n_boths = n_boths, .scratches = scratches};
}

/* Checks the canaries of all that was allocated since the mark and frees it. */
static inline void release_to(struct mark mark)
{
	while (n_boths > mark.n_boths)
		both_free(&boths[--n_boths]);
	scratch_release(mark.scratches);
}

/* `data`: the bytes, or floats which are rounded to bf16 on both sides. */
static inline void both_put(struct both *b, const void *data)
{
	float *rounded = scratch(b->n * 4);
	uint16_t *halves = scratch(b->n * 2);

	if (b->kind == BYTES) {
		for (int side = 0; side < N_SIDES; side++)
			both_copy(side, b->at[side], data, b->n);
		return;
	}
	for (size_t i = 0; i < b->n; i++) {
		halves[i] = f32_to_bf16(((const float *)data)[i]);
		rounded[i] = bf16_to_f32(halves[i]);
	}
	both_copy(CPU, b->at[CPU], rounded, b->n * 4);
	both_copy(CUDA, b->at[CUDA], halves, b->n * 2);
}

static inline struct both both_of(const void *data, size_t bytes)
{
	struct both b = both_new(BYTES, bytes);

	both_put(&b, data);
	return b;
}

static inline struct both random_act_at(size_t n, float scale, size_t shift)
{
	struct both b = both_new_at(ACT, n, shift, false);
	float *values = scratch(n * sizeof(*values));

	for (size_t i = 0; i < n; i++)
		values[i] = scale * random_float(&rng);
	both_put(&b, values);
	return b;
}

static inline struct both random_act(size_t n)
{
	return random_act_at(n, 2, 0);
}

/* The weight's data is to be set to .at[side]. */
static inline struct both random_weight(
	struct weight *w, enum dtype dtype, uint32_t rows, uint32_t cols)
{
	size_t n = (size_t)rows * cols;
	void *data = scratch(n * dtype_bytes(dtype));

	*w = (struct weight){.dtype = dtype, .rows = rows, .cols = cols};
	for (size_t i = 0; i < n; i++)
		random_weight_value(data, dtype, i);
	return both_of(data, n * dtype_bytes(dtype));
}

/* n random floats, as float32 on both sides. */
static inline struct both random_both_floats(size_t n)
{
	float *values = scratch(n * sizeof(*values));

	random_fill_floats(&rng, values, n);
	return both_of(values, n * sizeof(*values));
}

/* What the side holds, as floats, in scratch memory. */
static inline float *both_floats(const struct both *b, int side)
{
	float *values = scratch(b->n * 4);
	uint16_t *halves = scratch(b->n * 2);

	if (side == CPU)
		both_copy(side, values, b->at[side], b->n * 4);
	else
		both_copy(side, halves, b->at[side], b->n * 2);
	for (size_t i = 0; side == CUDA && i < b->n; i++)
		values[i] = bf16_to_f32(halves[i]);
	return values;
}

/* Codes of e4m3: the same, poison too, or of neighbours, between which two computations may decide otherwise. */
static inline void both_check_codes(const struct both *b)
{
	uint8_t *codes[N_SIDES];

	assert_int_equal(b->kind, BYTES);
	for (int side = 0; side < N_SIDES; side++) {
		codes[side] = scratch(b->n);
		both_copy(side, codes[side], b->at[side], b->n);
	}
	for (size_t i = 0; i < b->n; i++) {
		const int cpu = codes[CPU][i], cuda = codes[CUDA][i];
		const int number = cpu & 0x80 ? 0x80 - cpu : cpu, other = cuda & 0x80 ? 0x80 - cuda : cuda;

		if (cpu != cuda && (abs(number - other) > 1 || (cpu & 0x7f) == 0x7f || (cuda & 0x7f) == 0x7f))
			fail_msg("code %zu of %zu: cpu 0x%02x, cuda 0x%02x", i, b->n, cpu, cuda);
	}
}

/* Every element within relative * |cpu's| + absolute, or a NaN on both sides. */
#define both_check_close(b, relative, absolute)                                                    \
	assert_floats_close(                                                                       \
		both_floats((b), CUDA), both_floats((b), CPU), (b)->n, (relative), (absolute))

static inline void both_check_equal(const struct both *b, const char *what)
{
	uint8_t *want = scratch(b->n + 4), *got = scratch(b->n + 4);

	assert_true(b->kind == BYTES);
	both_copy(CPU, want, b->at[CPU], b->n);
	both_copy(CUDA, got, b->at[CUDA], b->n);
	for (size_t i = 0; i < b->n; i += 4) {
		int32_t w, g;

		memcpy(&w, want + i, 4);
		memcpy(&g, got + i, 4);
		if (w != g)
			fail_msg("%s: word %zu: cuda %d, cpu %d", what, i / 4, g, w);
	}
}

/* ---- the program ---- */

static inline void devices_close(void)
{
	for (int side = 0; side < N_SIDES; side++) {
		if (devices[side] == NULL)
			continue;
		devices[side]->ops->stream_free(streams[side]);
		devices[side]->ops->free(devices[side]);
	}
}

/* 0; or 77 where there is no CUDA device, having said so in TAP; or 1. */
static inline int devices_open(void)
{
	const char *seed = getenv("MIMEO_TEST_SEED");
	int rc = device_open("cuda", NULL, &devices[CUDA]);

	if (rc == -ENODEV || rc == -ENOTSUP) {
		printf("1..0 # SKIP no CUDA device: %s\n", device_strerror(rc));
		return 77;
	}
	if (rc || device_open("cpu", NULL, &devices[CPU]) != 0 ||
		devices[CPU]->ops->stream_new(devices[CPU], &streams[CPU]) != 0 ||
		devices[CUDA]->ops->stream_new(devices[CUDA], &streams[CUDA]) != 0) {
		printf("Bail out! the devices don't open; cuda: %s\n", device_strerror(rc));
		return 1;
	}
	rng = seed != NULL ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL);
	printf("# MIMEO_TEST_SEED=%llu\n", (unsigned long long)rng);
	return 0;
}

static inline int test_release(void **state)
{
	release_to((struct mark){0});
	free(boths);
	boths = NULL;
	return 0;
}

/* The devices are open for the length of the group. */
#define CUDA_TEST_MAIN(name, tests)                                                                \
	int main(void)                                                                             \
	{                                                                                          \
		int rc = devices_open();                                                           \
		if (!rc)                                                                           \
			rc = ops_run_group(                                                        \
				name, tests, COUNT_OF(tests), NULL, NULL, test_release);           \
		devices_close();                                                                   \
		return rc == 77 ? 0 : rc;                                                          \
	}

#endif
