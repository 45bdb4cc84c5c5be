/* SPDX-License-Identifier: MIT */
#include "tests/bench/cost.h"

#include "kernels/packed.h"

#define PRODUCT_SIZE 8192u
#define PRODUCT_SIZE_HOST 384u
#define FLOOR                                                                                      \
	"what has to be read and written once at the bandwidth of a device copy, or the "          \
	"operations at the rate of a large product, whichever takes longer"

int cost_take(struct probe *probe, const struct cost_memory *memory, uint32_t n)
{
	int rc = 0;

	for (uint32_t i = 0; i < n && !rc; i++)
		rc = probe_take(probe, memory[i].bytes, memory[i].dtype, memory[i].ret);
	return rc;
}

struct multiplying {
	const struct kernel_ops *kernels;
	struct stream *stream;
	struct op_gemm gemm;
};

static int cost_queue_product(void *arg)
{
	const struct multiplying *multiplying = arg;

	return multiplying->kernels->gemm(multiplying->stream, &multiplying->gemm);
}

int cost_rates(struct probe *probe, struct results *results, struct rates *ret)
{
	uint32_t size = probe->is_host ? PRODUCT_SIZE_HOST : PRODUCT_SIZE, mark = probe->n_held;
	enum dtype dtype = probe->info.activation_dtype;
	uint64_t bytes = (uint64_t)size * size * dtype_bytes(dtype);
	char *memory;
	double seconds;

	results_machine(results, probe->info.name, NULL, NULL);
	int rc = probe_copy_rate(probe);
	if (rc)
		return rc;
	ret->copy = probe->copy_rate;
	rc = probe_take(probe, 3 * bytes, dtype, &memory);
	if (rc)
		return rc;
	struct multiplying multiplying = {
		.kernels = probe->device->kernels,
		.stream = probe->stream,
		.gemm = {.x = memory,
			.w = {memory + bytes, dtype, size, size},
			.y = memory + 2 * bytes,
			.y_dtype = dtype,
			.n_rows = size},
	};
	rc = probe_time(probe, false, cost_queue_product, &multiplying, 1, &seconds);
	probe_release(probe, mark);
	ret->product = rc ? 0 : 2.0 * size * size * size / seconds;
	return rc;
}

void cost_values(struct results *results, const struct rates *rates, const struct cost *cost)
{
	double floor = fmax(cost->bytes / rates->copy, cost->flop / rates->product);

	results_seconds(results, "seconds", "TIME", cost->seconds);
	results_number(results, "tb_per_s", "TB/S", cost->bytes / cost->seconds * 1e-12);
	results_number(results, "tflop_per_s", "TFLOP/S", cost->flop / cost->seconds * 1e-12);
	results_seconds(results, "floor_s", "FLOOR", floor);
	results_number(results, "ratio", "RATIO", cost->seconds / floor);
	results_value(results, "bytes", NULL, TABLE_COUNT, cost->bytes);
	results_number(results, "copy_bytes_per_s", NULL, rates->copy);
	results_number(results, "product_flop_per_s", NULL, rates->product);
	results_floor(results, FLOOR);
}

/* ---- weights ---- */

const struct cost_form cost_forms[] = {{"plain", DTYPE_BF16}, {"e4m3", DTYPE_E4M3}, {"u4", DTYPE_U4}};

uint64_t cost_weight_bytes(uint32_t rows, uint32_t cols, enum dtype dtype)
{
	return packed_is(dtype) ? packed_bytes(rows, cols, dtype, true) : (uint64_t)rows * cols * dtype_bytes(dtype);
}
