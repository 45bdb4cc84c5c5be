/* SPDX-License-Identifier: MIT */

/*
 * Prompts of latent attention that are not absorbed, on the first CUDA device, at the sizes of
 * DeepSeek-V2-Lite and V2: microseconds of one layer, and of its parts. Time of gather and
 * attention is what another ten of them add, and that of the product what it takes by itself, in
 * one piece. Attention in TFLOP/s of what is visible, and its time by that of as large a matrix
 * product; last, how much more arithmetic the absorbed way has. Layers' caches together are larger
 * than the L2, pages scattered, contents random; medians.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "attention/mla/mla_prompt.h"

#define PRODUCT_FLOPS 790e12
#define REPEATS 9u
#define RUNS 8u
#define MORE 10u
#define PAGE 16u
#define RANK 512u
#define NOPE 128u
#define ROPE 64u
#define V 128u
#define RANDOM_BYTES (64u << 20)

struct job {
	uint32_t n_rows, n_query, seq_len, n_heads;
};

struct bench {
	const struct job *job;
	struct device *device;
	struct stream *stream;
	struct attention_config config;
	struct mla_prompt *prompt;
	uint32_t n_layers;
	uint64_t layer_bytes;
	void *kv, *q, *out;
	void *latents, *expanded; /* of the product by itself */
	int32_t *table;
	struct weight kv_b;
	struct mla_prompt_row *rows;
};

/* How often the parts are queued. */
static uint32_t n_gathers = 1, n_attends = 1;

static void must(int rc, const char *what)
{
	if (rc == 0)
		return;
	fprintf(stderr, "bench_mla_prompt_cuda: %s: %s\n", what, device_strerror(rc));
	exit(1);
}

static int gather(
	struct mla_prompt_state *state, struct stream *stream, const struct mla_prompt_args *a)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < n_gathers; i++)
		rc = mla_prompt_cuda_kernels.gather(state, stream, a);
	return rc;
}

static int attend(
	struct mla_prompt_state *state, struct stream *stream, const struct mla_prompt_args *a)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < n_attends; i++)
		rc = mla_prompt_cuda_kernels.attend(state, stream, a);
	return rc;
}

static double now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec * 1e-3;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* bfloat16 of random sign and mantissa, 2^(exponent - 127) and three powers above. */
static void *random_new(struct bench *b, uint64_t bytes, uint32_t exponent)
{
	const struct device_ops *ops = b->device->ops;
	uint64_t x = 88172645463325252u, first = bytes < RANDOM_BYTES ? bytes : RANDOM_BYTES;
	uint16_t *values = malloc(first);
	void *memory = NULL;

	must(ops->mem_alloc(b->device, bytes, &memory), "device memory");
	for (size_t i = 0; i < first / 2; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		values[i] = (uint16_t)((x & 0x807f) | (exponent + (x >> 20 & 3)) << 7);
	}
	for (uint64_t at = 0; at < bytes; at += first)
		must(ops->copy(b->device, (char *)memory + at, values,
			bytes - at < first ? bytes - at : first), "copy");
	free(values);
	return memory;
}

static void fill_table(struct bench *b)
{
	uint32_t n = b->job->n_rows * b->config.max_pages;
	int32_t *table = malloc(n * sizeof(*table));

	must(b->device->ops->mem_alloc(b->device, n * sizeof(*table), (void **)&b->table), "table");
	for (uint32_t i = 0; i < n; i++)
		table[i] = (int32_t)(i + 1);
	for (uint32_t i = n - 1; i > 0; i--) {
		uint32_t k = (uint32_t)rand() % (i + 1);
		int32_t page = table[i];

		table[i] = table[k];
		table[k] = page;
	}
	must(b->device->ops->copy(b->device, b->table, table, n * sizeof(*table)), "copy");
	free(table);
}

static void bench_init(struct bench *b, struct device *device, const struct job *j,
	const struct mla_prompt_kernels *kernels)
{
	uint32_t per_row = (j->seq_len + PAGE - 1) / PAGE, n_tokens = j->n_rows * j->n_query;
	uint64_t n_keys = (uint64_t)j->n_rows * j->seq_len;

	*b = (struct bench){ .job = j, .device = device };
	b->config = (struct attention_config){
		.n_layers = 1, .n_heads = j->n_heads, .n_kv_heads = 1, .head_dim = RANK + ROPE,
		.latent = { RANK, NOPE, ROPE, V }, .scale = 0.0722f, .page_tokens = PAGE,
		.max_rows = j->n_rows, .max_tokens = n_tokens, .max_pages = per_row,
		.max_seq_len = j->seq_len < 8192 ? 8192 : j->seq_len,
		.activation_dtype = DTYPE_BF16, .kv_dtype = DTYPE_BF16,
		.n_kv_pages = j->n_rows * per_row + 1,
	};
	b->layer_bytes = (uint64_t)b->config.n_kv_pages * PAGE * (RANK + ROPE) * 2;
	b->n_layers = (uint32_t)((256u << 20) / b->layer_bytes) + 2;
	b->kv = random_new(b, b->layer_bytes * b->n_layers, 124);
	b->q = random_new(b, (uint64_t)n_tokens * j->n_heads * (NOPE + ROPE) * 2, 124);
	b->out = random_new(b, (uint64_t)n_tokens * j->n_heads * V * 2, 124);
	b->kv_b = (struct weight){
		.dtype = DTYPE_BF16, .rows = j->n_heads * (NOPE + V), .cols = RANK,
		.data = random_new(b, (uint64_t)j->n_heads * (NOPE + V) * RANK * 2, 119) };
	b->latents = random_new(b, n_keys * RANK * 2, 124);
	b->expanded = random_new(b, n_keys * j->n_heads * (NOPE + V) * 2, 124);
	fill_table(b);
	b->rows = calloc(j->n_rows, sizeof(*b->rows));
	for (uint32_t r = 0; r < j->n_rows; r++)
		b->rows[r] = (struct mla_prompt_row){ r, r * j->n_query, j->n_query, j->seq_len };
	must(device->ops->stream_new(device, &b->stream), "stream");
	must(mla_prompt_new(device, &b->config, kernels, &b->prompt), "new");
	must(mla_prompt_load(b->prompt, b->stream, &b->kv_b), "load");
}

static void bench_deinit(struct bench *b)
{
	const struct device_ops *ops = b->device->ops;

	mla_prompt_free(b->prompt);
	ops->stream_free(b->stream);
	free(b->rows);
	ops->mem_free(b->device, b->table);
	ops->mem_free(b->device, b->expanded);
	ops->mem_free(b->device, b->latents);
	ops->mem_free(b->device, (void *)(uintptr_t)b->kv_b.data);
	ops->mem_free(b->device, b->out);
	ops->mem_free(b->device, b->q);
	ops->mem_free(b->device, b->kv);
}

static void queue_layer(struct bench *b, uint32_t i)
{
	must(mla_prompt_run(b->prompt, b->stream, &(struct attention_args){
		.q = b->q,
		.q_stride = b->job->n_heads * (NOPE + ROPE),
		.kv = (char *)b->kv + i % b->n_layers * b->layer_bytes,
		.out = b->out,
		.kv_b = &b->kv_b,
	}, b->table, b->rows, b->job->n_rows), "run");
}

static void queue_product(struct bench *b, uint32_t i)
{
	(void)i;
	must(b->device->kernels->gemm(b->stream, &(struct op_gemm){
		.x = b->latents,
		.w = b->kv_b,
		.y = b->expanded,
		.y_dtype = DTYPE_BF16,
		.n_rows = b->job->n_rows * b->job->seq_len,
	}), "gemm");
}

/* The median of one, in microseconds. */
static double time_one(struct bench *b, void (*queue)(struct bench *b, uint32_t i))
{
	double us[REPEATS];

	for (uint32_t i = 0; i <= REPEATS; i++) {
		double start;

		must(b->device->ops->stream_sync(b->stream), "sync");
		start = now_us();
		for (uint32_t r = 0; r < RUNS; r++)
			queue(b, i * RUNS + r);
		must(b->device->ops->stream_sync(b->stream), "sync");
		if (i > 0)
			us[i - 1] = (now_us() - start) / RUNS;
	}
	qsort(us, REPEATS, sizeof(*us), by_value);
	return us[REPEATS / 2];
}

/* With so many of each part. */
static double time_layer(struct bench *b, uint32_t gathers, uint32_t attends)
{
	n_gathers = gathers;
	n_attends = attends;
	return time_one(b, queue_layer);
}

static void report(struct bench *b)
{
	const struct job *j = b->job;
	double all = time_layer(b, 1, 1);
	double gathered = (time_layer(b, 1 + MORE, 1) - all) / MORE;
	double attended = (time_layer(b, 1, 1 + MORE) - all) / MORE;
	double expanded = time_one(b, queue_product);
	double n = j->n_query, pairs = j->n_rows * (n * (j->seq_len - n) + n * (n + 1) / 2);
	double flop = pairs * j->n_heads * 2 * (NOPE + ROPE + V);
	double expand = (double)j->n_rows * j->seq_len * j->n_heads * (NOPE + V) * RANK * 2;
	double absorbed = pairs * j->n_heads * 2 * (RANK + ROPE + RANK);

	printf("%6u %5u %7u %7u %9.1f %8.1f %8.1f %9.1f %9.1f %6.2f %8.2f\n", j->n_heads,
		j->n_rows, j->n_query, j->seq_len, all, gathered, expanded,
		attended, flop / attended * 1e-6, attended / (flop / PRODUCT_FLOPS * 1e6),
		absorbed / (flop + expand));
	fflush(stdout);
}

int main(void)
{
	static const struct job jobs[] = {
		{ 1, 512, 512, 16 }, { 1, 1024, 1024, 16 }, { 1, 2048, 2048, 16 },
		{ 1, 4096, 4096, 16 }, { 1, 8192, 8192, 16 }, { 1, 16384, 16384, 16 },
		{ 1, 512, 8192, 16 }, { 1, 2048, 32768, 16 }, { 1, 64, 8192, 16 },
		{ 32, 64, 64, 16 }, { 8, 512, 512, 16 }, { 1, 2048, 2048, 128 },
		{ 1, 4096, 8192, 128 },
	};
	struct mla_prompt_kernels kernels = mla_prompt_cuda_kernels;
	struct device_info info;
	struct device *device;

	kernels.gather = gather;
	kernels.attend = attend;
	must(device_open("cuda", NULL, &device), "cuda");
	must(device->ops->info(device, &info), "info");
	printf("%s\n%6s %5s %7s %7s %9s %8s %8s %9s %9s %6s %8s\n", info.name, "heads", "rows",
		"query", "context", "layer us", "gather", "expand", "attend", "TFLOP/s", "ratio",
		"absorbed");
	for (size_t i = 0; i < sizeof(jobs) / sizeof(*jobs); i++) {
		struct bench b;

		bench_init(&b, device, &jobs[i], &kernels);
		report(&b);
		bench_deinit(&b);
	}
	device->ops->free(device);
	return 0;
}
