/* SPDX-License-Identifier: MIT */

/*
 * Paged attention on the first CUDA device: decode in microseconds and TB/s of keys and values
 * against the time that a device copy's bandwidth takes for them, prefill in TFLOP/s of what is
 * visible against that of a large matrix product, and the planner; beside them what is aimed at.
 * Decode is recorded into one graph over layers whose caches together are much larger than the L2,
 * pages scattered, contents random; medians of replays. `decode` or `prefill` as an argument: that
 * part alone.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "attention/attention.h"

#define COPY_BYTES_PER_SECOND 4.28e12
#define PRODUCT_FLOPS 790e12
#define REPLAYS 9u
#define RANDOM_BYTES (64u << 20)

struct job {
	uint32_t n_rows, n_query, seq_len, n_heads, n_kv_heads, head_dim, page_tokens;
	double target; /* decode: us, prefill: TFLOP/s; 0: none */
};

struct bench {
	const struct job *job;
	struct device *device;
	struct stream *stream;
	const struct device_ops *ops;
	struct attention_config config;
	struct step_inputs inputs;
	struct attention_manager *manager;
	struct attention_metadata *metadata;
	uint32_t n_layers, n_runs;
	uint64_t layer_bytes;
	void *kv, *q, *out;
	uint32_t *lens; /* [2 n_rows] */
	struct attention_batch batch;
};

static void must(int rc, const char *what)
{
	if (rc == 0)
		return;
	fprintf(stderr, "bench_attention_cuda: %s: %s\n", what, device_strerror(rc));
	exit(1);
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

static void *alloc(struct bench *b, size_t bytes)
{
	void *memory = NULL;

	must(b->ops->mem_alloc(b->device, bytes, &memory), "device memory");
	return memory;
}

/* bfloat16 in (-2, 2): random sign and mantissa, exponents 2^-3 ... 2^0. */
static void fill_random(struct bench *b, void *memory, uint64_t bytes)
{
	uint16_t *values = malloc(RANDOM_BYTES);
	uint64_t x = 88172645463325252u, first = bytes < RANDOM_BYTES ? bytes : RANDOM_BYTES;

	if (!values)
		exit(1);
	for (size_t i = 0; i < first / 2; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		values[i] = (uint16_t)((x & 0x807f) | (124u + (x >> 20 & 3)) << 7);
	}
	must(b->ops->copy(b->device, memory, values, first), "copy");
	for (uint64_t at = first; at < bytes; at += first)
		must(b->ops->copy(b->device, (char *)memory + at, memory,
			bytes - at < first ? bytes - at : first), "copy");
	free(values);
}

static void fill_table(struct bench *b)
{
	const struct job *j = b->job;
	uint32_t per_row = b->config.max_pages, n = j->n_rows * per_row;
	int32_t *table = malloc(n * sizeof(*table)), *starts = malloc((j->n_rows + 1) * 4);

	if (!table || !starts)
		exit(1);
	for (uint32_t i = 0; i < n; i++)
		table[i] = (int32_t)(i + 1);
	for (uint32_t i = n - 1; i > 0; i--) {
		uint32_t k = (uint32_t)rand() % (i + 1);
		int32_t page = table[i];

		table[i] = table[k];
		table[k] = page;
	}
	must(b->ops->copy(b->device, b->inputs.block_table, table, n * sizeof(*table)), "copy");
	for (uint32_t r = 0; r <= j->n_rows; r++)
		starts[r] = (int32_t)(r * j->n_query);
	must(b->ops->copy(b->device, b->inputs.query_start, starts, (j->n_rows + 1) * 4), "copy");
	must(b->ops->copy(b->device, b->inputs.seq_lens, b->lens + j->n_rows, j->n_rows * 4),
		"copy");
	free(starts);
	free(table);
}

static void bench_init(struct bench *b, struct device *device, const struct job *j)
{
	uint32_t per_row = (j->seq_len + j->page_tokens - 1) / j->page_tokens;
	uint32_t n_pages = j->n_rows * per_row + 1, n_tokens = j->n_rows * j->n_query;
	uint64_t width = (uint64_t)j->n_heads * j->head_dim;

	*b = (struct bench){ .job = j, .device = device, .ops = device->ops };
	b->layer_bytes = (uint64_t)n_pages * 2 * j->page_tokens * j->n_kv_heads * j->head_dim * 2;
	b->n_layers = (uint32_t)((768u << 20) / b->layer_bytes);
	b->n_layers = b->n_layers < 2 ? 2 : b->n_layers > 64 ? 64 : b->n_layers;
	b->n_runs = b->n_layers > 16 ? b->n_layers : 16;
	if (j->n_query > 16)
		b->n_runs = j->n_rows * j->n_query * (uint64_t)j->seq_len > 8u << 20 ? 4 : 40;
	b->config = (struct attention_config){
		.n_layers = b->n_layers, .n_heads = j->n_heads, .n_kv_heads = j->n_kv_heads,
		.head_dim = j->head_dim, .scale = 0.1f, .page_tokens = j->page_tokens,
		.max_rows = j->n_rows, .max_tokens = n_tokens, .max_pages = per_row,
		.max_seq_len = j->seq_len, .max_decode_query = 1, .activation_dtype = DTYPE_BF16,
		.kv_dtype = DTYPE_BF16, .n_kv_pages = n_pages,
	};
	b->inputs = (struct step_inputs){
		.max_rows = j->n_rows, .max_tokens = n_tokens, .max_pages = per_row,
		.page_tokens = j->page_tokens,
		.query_start = alloc(b, (j->n_rows + 1) * 4), .seq_lens = alloc(b, j->n_rows * 4),
		.block_table = alloc(b, (size_t)j->n_rows * per_row * 4),
	};
	b->lens = malloc(2 * j->n_rows * sizeof(*b->lens));
	if (!b->lens)
		exit(1);
	for (uint32_t r = 0; r < j->n_rows; r++) {
		b->lens[r] = j->n_query;
		b->lens[j->n_rows + r] = j->seq_len;
	}
	b->kv = alloc(b, b->layer_bytes * b->n_layers);
	b->q = alloc(b, n_tokens * width * 2);
	b->out = alloc(b, n_tokens * width * 2);
	fill_random(b, b->kv, b->layer_bytes * b->n_layers);
	fill_random(b, b->q, n_tokens * width * 2);
	fill_table(b);
	b->batch = (struct attention_batch){
		.n_rows = j->n_rows, .n_tokens = n_tokens, .padded_rows = j->n_rows,
		.padded_tokens = n_tokens, .max_query = j->n_query, .query_lens = b->lens,
		.seq_lens = b->lens + j->n_rows,
	};
	must(b->ops->stream_new(device, &b->stream), "stream");
	must(attention_paged.manager_new(device, &b->config, &b->inputs, &b->manager), "manager");
	must(attention_paged.metadata_new(b->manager, &b->metadata), "metadata");
}

static void bench_deinit(struct bench *b)
{
	attention_paged.metadata_free(b->metadata);
	attention_paged.manager_free(b->manager);
	b->ops->stream_free(b->stream);
	b->ops->mem_free(b->device, b->out);
	b->ops->mem_free(b->device, b->q);
	b->ops->mem_free(b->device, b->kv);
	b->ops->mem_free(b->device, b->inputs.block_table);
	b->ops->mem_free(b->device, b->inputs.seq_lens);
	b->ops->mem_free(b->device, b->inputs.query_start);
	free(b->lens);
}

static void queue_runs(struct bench *b)
{
	for (uint32_t i = 0; i < b->n_runs; i++)
		must(attention_paged.run(b->metadata, b->stream, &(struct attention_args){
			.layer = i % b->n_layers,
			.q = b->q,
			.q_stride = b->job->n_heads * b->job->head_dim,
			.kv = (char *)b->kv + i % b->n_layers * b->layer_bytes,
			.out = b->out,
		}), "run");
}

/* Of one run, the median; a graph where the batch can be captured. */
static double time_runs(struct bench *b)
{
	bool recorded = b->job->n_query <= 16;
	struct graph *graph = NULL;
	struct graph_exec *exec = NULL;
	double us[REPLAYS];

	must(attention_paged.build(b->metadata, &b->batch, b->stream), "build");
	if (recorded) {
		must(b->ops->capture_begin(b->stream), "capture");
		queue_runs(b);
		must(b->ops->capture_end(b->stream, &graph), "capture");
		must(b->ops->graph_instantiate(b->device, graph, &exec), "instantiate");
	}
	for (uint32_t i = 0; i <= REPLAYS; i++) {
		double start;

		must(b->ops->stream_sync(b->stream), "sync");
		start = now_us();
		if (recorded)
			must(b->ops->graph_launch(exec, b->stream), "launch");
		else
			queue_runs(b);
		must(b->ops->stream_sync(b->stream), "sync");
		if (i > 0)
			us[i - 1] = (now_us() - start) / b->n_runs;
	}
	if (recorded) {
		b->ops->graph_exec_free(exec);
		b->ops->graph_free(graph);
	}
	qsort(us, REPLAYS, sizeof(*us), by_value);
	return us[REPLAYS / 2];
}

static double time_builds(struct bench *b)
{
	double start;

	must(b->ops->stream_sync(b->stream), "sync");
	start = now_us();
	for (uint32_t i = 0; i < 200; i++)
		must(attention_paged.build(b->metadata, &b->batch, b->stream), "build");
	must(b->ops->stream_sync(b->stream), "sync");
	return (now_us() - start) / 200;
}

static void print_target(double target)
{
	if (target > 0)
		printf(" %8.1f\n", target);
	else
		printf(" %8s\n", "-");
}

static void report_decode(struct bench *b)
{
	const struct job *j = b->job;
	double us = time_runs(b), plan = time_builds(b);
	double bytes = (double)j->n_rows * j->seq_len * j->n_kv_heads * j->head_dim * 4;
	double floor = bytes / COPY_BYTES_PER_SECOND * 1e6;

	printf("%6u %5u %5u %5u %7u %5u %9.2f %9.2f %7.2f %6.2f %8.2f", j->head_dim, j->n_heads,
		j->n_kv_heads, j->n_rows, j->seq_len, j->page_tokens, us, floor,
		bytes / us * 1e-6, us / floor, plan);
	print_target(j->target);
}

static void report_prefill(struct bench *b)
{
	const struct job *j = b->job;
	double us = time_runs(b), n = j->n_query;
	double pairs = j->n_rows * (n * (j->seq_len - n) + n * (n + 1) / 2);
	double flop = pairs * j->n_heads * j->head_dim * 4, floor = flop / PRODUCT_FLOPS * 1e6;

	printf("%6u %5u %5u %5u %7u %7u %5u %9.1f %9.1f %9.1f %6.2f", j->head_dim, j->n_heads,
		j->n_kv_heads, j->n_rows, j->n_query, j->seq_len, j->page_tokens, us, floor,
		flop / us * 1e-6, us / floor);
	print_target(j->target);
}

static void run_job(struct device *device, const struct job *job)
{
	struct bench b;

	bench_init(&b, device, job);
	if (job->n_query > 16)
		report_prefill(&b);
	else
		report_decode(&b);
	fflush(stdout);
	bench_deinit(&b);
}

/* The two figures of decode that are aimed at. */
static double decode_target(uint32_t n_rows, uint32_t length, uint32_t head_dim)
{
	if (n_rows == 1 && length == 1024 && head_dim == 128)
		return 7;
	if (n_rows >= 32 && length >= 4096)
		return (double)n_rows * length * 8 * head_dim * 4 / 3.9e12 * 1e6;
	return 0;
}

static void decodes(struct device *device)
{
	static const uint32_t dims[] = { 64, 128 }, rows[] = { 1, 8, 32, 128 };
	static const uint32_t lengths[] = { 1024, 4096 };
	static const struct job others[] = {
		{ 1, 1, 131072, 32, 8, 128, 16 }, { 8, 5, 4096, 32, 8, 128, 16 },
		{ 32, 1, 4096, 32, 8, 128, 64 }, { 32, 1, 4096, 16, 4, 256, 16 },
		{ 32, 1, 4096, 32, 32, 96, 16 },
	};

	printf("%6s %5s %5s %5s %7s %5s %9s %9s %7s %6s %8s %8s\n", "dim", "heads", "kv", "rows",
		"context", "page", "us", "floor us", "TB/s", "ratio", "plan us", "target");
	for (size_t d = 0; d < 2; d++)
		for (size_t r = 0; r < 4; r++)
			for (size_t l = 0; l < 2; l++)
				run_job(device, &(struct job){ rows[r], 1, lengths[l], 32, 8,
					dims[d], 16, decode_target(rows[r], lengths[l], dims[d]) });
	for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
		run_job(device, &others[i]);
}

static void prefills(struct device *device)
{
	static const struct job jobs[] = {
		{ 1, 1024, 1024, 32, 8, 128, 16 }, { 1, 2048, 2048, 32, 8, 128, 16 },
		{ 1, 8192, 8192, 32, 8, 128, 16, 500 }, { 1, 8192, 8192, 32, 8, 128, 64, 500 },
		{ 1, 16384, 16384, 32, 8, 128, 16 }, { 1, 512, 8704, 32, 8, 128, 16 },
		{ 4, 2048, 2048, 32, 8, 128, 16 }, { 1, 1024, 1024, 32, 8, 64, 16 },
		{ 1, 2048, 2048, 32, 8, 64, 16 }, { 1, 8192, 8192, 32, 8, 64, 16 },
		{ 1, 16384, 16384, 32, 8, 64, 16 }, { 1, 512, 8704, 32, 8, 64, 16 },
		{ 1, 8192, 8192, 32, 8, 96, 16 }, { 1, 4096, 4096, 16, 4, 256, 16 },
		{ 1, 8192, 8192, 16, 4, 256, 16 },
	};

	printf("%6s %5s %5s %5s %7s %7s %5s %9s %9s %9s %6s %8s\n", "dim", "heads", "kv", "rows",
		"query", "context", "page", "us", "floor us", "TFLOP/s", "ratio", "target");
	for (size_t i = 0; i < sizeof(jobs) / sizeof(*jobs); i++)
		run_job(device, &jobs[i]);
}

int main(int argc, char **argv)
{
	const char *part = argc > 1 ? argv[1] : "all";
	struct device_info info;
	struct device *device;

	must(device_open("cuda", NULL, &device), "cuda");
	must(device->ops->info(device, &info), "info");
	printf("%s\n", info.name);
	if (strcmp(part, "prefill") != 0)
		decodes(device);
	if (strcmp(part, "decode") != 0)
		prefills(device);
	device->ops->free(device);
	return 0;
}
