/* SPDX-License-Identifier: MIT */

/*
 * The products of a decode step on the first CUDA device: cuBLASLt's best kernel, the best of ours,
 * and the one that gemm takes, in microseconds and TB/s of weights, beside the time that a device
 * copy's bandwidth takes for those. Products are recorded into one graph over copies of the matrix
 * that together are several L2s; contents are random; medians of replays.
 *
 *	bench_gemm_cuda [rows]...
 */

#include "tests/kernels/bench_cuda.h"

#define WEIGHTS_BYTES ((size_t)320 << 20)

struct shape {
	const char *name;
	uint32_t n, k;
	enum dtype y_dtype;
};

static const struct shape shapes[] = {
	{"1B qkv", 3072, 2048, DTYPE_BF16}, {"1B o", 2048, 2048, DTYPE_BF16},
	{"1B gate_up", 16384, 2048, DTYPE_BF16}, {"1B down", 2048, 8192, DTYPE_BF16},
	{"1B head", 128256, 2048, DTYPE_F32}, {"8B qkv", 6144, 4096, DTYPE_BF16},
	{"8B o", 4096, 4096, DTYPE_BF16}, {"8B gate_up", 28672, 4096, DTYPE_BF16},
	{"8B down", 4096, 14336, DTYPE_BF16}, {"8B head", 128256, 4096, DTYPE_F32},
};

/* Behind cuda_gemm_choice's, the variants of ours one by one. */
enum { N_VARIANTS = 9, N_SIDES = CUDA_GEMM_OWN + 1 + N_VARIANTS };
enum { N_SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

static struct device *devices[N_SIDES];
static struct stream *streams[N_SIDES];

/* Of one product. */
static double time_products(enum cuda_gemm_choice side, const struct shape *s, uint32_t rows,
	const void *weights, const void *x, void *y)
{
	struct device *device = devices[side];
	const size_t bytes = (size_t)s->n * s->k * 2;
	const uint32_t n_copies = bytes < WEIGHTS_BYTES ? (uint32_t)(WEIGHTS_BYTES / bytes) : 1;
	const uint32_t n = n_copies < 4 ? 4 : n_copies;
	struct op_gemm a = {.x = x, .y = y, .y_dtype = s->y_dtype, .n_rows = rows};
	struct graph *graph;

	a.w = (struct weight){.data = weights, .dtype = DTYPE_BF16, .rows = s->n, .cols = s->k};
	must(device->kernels->gemm(streams[side], &a), "gemm"); /* chooses */
	must(device->ops->stream_sync(streams[side]), "sync");
	must(device->ops->capture_begin(streams[side]), "capture");
	for (uint32_t i = 0; i < n; i++) {
		a.w.data = (const char *)weights + i % n_copies * bytes;
		must(device->kernels->gemm(streams[side], &a), "gemm");
	}
	must(device->ops->capture_end(streams[side], &graph), "capture");
	return time_graph(device, streams[side], graph, 2) / n;
}

static void report(const struct shape *s, uint32_t rows, const void *weights, const void *x, void *y)
{
	const double bytes = (double)s->n * s->k * 2;
	const double floor = bytes / COPY_BYTES_PER_SECOND * 1e6;
	double us[N_SIDES];

	for (int side = 0; side < N_SIDES; side++)
		us[side] = time_products((enum cuda_gemm_choice)side, s, rows, weights, x, y);
	printf("%-12s %5u %9.2f %9.2f %9.2f %9.2f %7.2f %6.2f  ", s->name, rows, floor,
		us[CUDA_GEMM_LIBRARY], us[CUDA_GEMM_OWN], us[CUDA_GEMM_ANY],
		bytes / us[CUDA_GEMM_ANY] * 1e-6, us[CUDA_GEMM_LIBRARY] / us[CUDA_GEMM_ANY]);
	for (int i = 0; i < N_VARIANTS; i++)
		printf(" %8.2f", us[CUDA_GEMM_OWN + 1 + i]);
	printf("\n");
	fflush(stdout);
}

int main(int argc, char **argv)
{
	static const uint32_t usual[] = {1, 8, 32, 128};
	const size_t largest = (size_t)128256 * 4096 * 2, x_bytes = (size_t)1024 * 14336 * 2;
	struct device *device;
	void *weights, *x, *y;

	for (int side = 0; side < N_SIDES; side++) {
		must(device_open("cuda", NULL, &devices[side]), "cuda");
		cuda_gemm_choose(devices[side], (enum cuda_gemm_choice)side);
		must(devices[side]->ops->stream_new(devices[side], &streams[side]), "stream");
	}
	device = devices[0];
	weights = random_memory(device, largest, 6);
	x = random_memory(device, x_bytes, 3);
	y = random_memory(device, (size_t)1024 * 128256 * 4, 3);
	printf("%-12s %5s %9s %9s %9s %9s %7s %6s   variants\n", "product", "rows", "floor us", "cuBLASLt",
		"ours", "taken", "TB/s", "gain");
	for (int i = 0; i < (argc > 1 ? argc - 1 : 4); i++) {
		const uint32_t rows = argc > 1 ? (uint32_t)atoi(argv[i + 1]) : usual[i];

		for (size_t s = 0; rows >= 1 && rows <= 1024 && s < N_SHAPES; s++)
			report(&shapes[s], rows, weights, x, y);
	}
	device->ops->mem_free(device, y);
	device->ops->mem_free(device, x);
	device->ops->mem_free(device, weights);
	for (int side = 0; side < N_SIDES; side++) {
		devices[side]->ops->stream_free(streams[side]);
		devices[side]->ops->free(devices[side]);
	}
	return 0;
}
