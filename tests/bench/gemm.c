/* SPDX-License-Identifier: MIT */
/*
 * The matrix products of a model's step, through the device's op table: each shape for each batch,
 * in a graph over copies of the weight that together exceed any cache, random contents. On a CUDA
 * device --sides measures whose kernels gemm may choose among, and --packed measures packed weights
 * (kernels/packed.h) beside plain ones. The floor is the larger of two
 * times: its bytes at a device copy's bandwidth, its operations at the rate of a large product.
 */
#include "tests/bench/internals.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/model/error.h"
#include "daemon/model/model.h"
#include "tests/bench/cost.h"
#ifdef MIMEO_HAVE_CUDA
#include "kernels/cuda/cuda.h"
#endif

#define SHAPES 5u
#define COLD_BYTES (512ull << 20) /* more than an L2 holds */
#define COLD_BYTES_HOST (1ull << 20)
#define LAUNCHES_MIN 8u
#define COPIES_MAX 64u

struct matrix {
	const char *name;
	uint32_t outputs, inputs;
	bool f32;   /* its output */
	bool gated; /* gate and up in one op that gives silu(gate) * up, half as wide */
};

static int gemm_matrices(const char *dir, struct matrix ret[SHAPES], struct model_error *error)
{
	struct model_config c;
	int rc = model_config_load(dir, &c, error);

	if (rc)
		return rc;
	uint32_t q = c.n_heads * c.head_dim, kv = c.n_kv_heads * c.head_dim, latent = c.latent.rank;
	const struct matrix all[SHAPES] = {
		{"qkv", q + 2 * kv, c.hidden_size, false},
		{"o", c.hidden_size, q, false},
		{"gate_up", 2 * c.intermediate_size, c.hidden_size, .gated = true},
		{"down", c.hidden_size, c.intermediate_size, false},
		{"head", c.vocab_size, c.hidden_size, true},
	};
	memcpy(ret, all, sizeof(all));
	model_config_deinit(&c);
	if (latent)
		return model_fail(error, -ENOTSUP,
			"%s: its attention is latent, and the products measured here are those of "
			"models with q, k and v", dir);
	return 0;
}

/* One shape and batch: n launches over n_copies of the weight. */
struct gemm_run {
	struct probe *probe;
	struct op_gemm gemm;
	void *scratch; /* of the gated op; NULL: a plain one */
	char *weights;
	uint64_t weight_bytes;
	uint32_t n_copies, n;
};

static int gemm_queue_all(void *arg)
{
	struct gemm_run *p = arg;
	const struct kernel_ops *kernels = p->probe->device->kernels;
	struct op_gated_gemm gated = {
		.x = p->gemm.x,
		.gate_up = p->scratch,
		.y = p->gemm.y,
		.n_rows = p->gemm.n_rows,
	};
	int rc = 0;

	for (uint32_t i = 0; i < p->n && !rc; i++) {
		p->gemm.w.data = p->weights + i % p->n_copies * p->weight_bytes;
		gated.w = p->gemm.w;
		rc = p->scratch ? kernels->gated_gemm(p->probe->stream, &gated)
				: kernels->gemm(p->probe->stream, &p->gemm);
	}
	return rc;
}

static int gemm_measure(struct probe *probe, const struct matrix *matrix, uint32_t form, uint32_t n_rows,
	struct cost *ret)
{
	enum dtype act = probe->info.activation_dtype, out = matrix->f32 ? DTYPE_F32 : act;
	enum dtype dtype = form ? cost_forms[form].dtype : act;
	uint64_t weight_bytes = cost_weight_bytes(matrix->outputs, matrix->inputs, dtype);
	uint64_t x_bytes = (uint64_t)n_rows * matrix->inputs * dtype_bytes(act);
	uint64_t y_bytes = (uint64_t)n_rows * matrix->outputs * dtype_bytes(out);
	uint64_t n_copies = (probe->is_host ? COLD_BYTES_HOST : COLD_BYTES) / weight_bytes + 2;
	uint32_t mark = probe->n_held;
	struct gemm_run p = {
		.probe = probe,
		.gemm = {.w = {NULL, dtype, matrix->outputs, matrix->inputs}, .y_dtype = out,
			.n_rows = n_rows},
		.weight_bytes = (weight_bytes + 255) / 256 * 256,
		.n_copies = n_copies < COPIES_MAX ? (uint32_t)n_copies : COPIES_MAX,
	};
	const struct cost_memory memory[] = {
		{&p.weights, p.weight_bytes * p.n_copies, act},
		{&p.gemm.x, x_bytes, act},
		{&p.gemm.y, y_bytes, out},
		{&p.scratch, y_bytes, act},
	};

	p.n = p.n_copies < LAUNCHES_MIN ? LAUNCHES_MIN : p.n_copies;
	ret->bytes = (double)(weight_bytes + x_bytes + (matrix->gated ? y_bytes / 2 : y_bytes));
	ret->flop = 2.0 * n_rows * matrix->outputs * matrix->inputs;
	int rc = cost_take(probe, memory, 3u + matrix->gated);
	if (!rc)
		rc = probe_time(probe, true, gemm_queue_all, &p, p.n, &ret->seconds);
	probe_release(probe, mark);
	return rc;
}

/* Whose kernels gemm chooses among: 0 all, 1 the library's, 2 ours, 3 and on one of ours. Before
 * the device's first product. */
static int gemm_choose(struct probe *probe, uint32_t side, struct model_error *error)
{
	if (side == 0)
		return 0;
#ifdef MIMEO_HAVE_CUDA
	if (!probe->is_host) {
		cuda_gemm_choose(probe->device, (enum cuda_gemm_choice)side);
		return 0;
	}
#endif
	return model_fail(error, -ENOTSUP, "--sides: %s has one kernel for products", probe->info.name);
}

static int gemm_form(const struct bench_options *options, struct probe *probe, uint32_t side, uint32_t form,
	const struct matrix matrices[SHAPES], const struct rates *rates, struct results *results)
{
	for (uint32_t i = 0; i < SHAPES * options->batches.n; i++) {
		const struct matrix *matrix = &matrices[i / options->batches.n];
		uint32_t n_rows = options->batches.at[i % options->batches.n];
		struct cost cost;
		int rc = gemm_measure(probe, matrix, form, n_rows, &cost);

		if (rc)
			return rc;
		results_row(results);
		results_text(results, "matrix", "MATRIX", matrix->name);
		results_text(results, "weights", "WEIGHTS", cost_forms[form].name);
		results_count(results, "rows", "ROWS", n_rows);
		results_count(results, "outputs", "OUT", matrix->outputs);
		results_count(results, "inputs", "IN", matrix->inputs);
		results_count(results, "side", "SIDE", side);
		cost_values(results, rates, &cost);
	}
	return 0;
}

static int gemm_side(const struct bench_options *options, uint32_t side,
	const struct matrix matrices[SHAPES], struct results *results, struct model_error *error)
{
	CLEANUP(probe_close) struct probe probe = {0};
	struct rates rates;
	int rc = probe_open(&probe, options->device, error->text, sizeof(error->text));

	if (rc)
		return rc;
	rc = gemm_choose(&probe, side, error);
	if (rc)
		return rc;
	rc = cost_rates(&probe, results, &rates);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < options->packed.n && !rc; i++)
		rc = gemm_form(options, &probe, side, options->packed.at[i], matrices, &rates, results);
	return rc;
}

int bench_gemm(const struct bench_options *options, struct results *results)
{
	struct model_error error = {""};
	struct matrix matrices[SHAPES];
	int rc = gemm_matrices(options->model_dir, matrices, &error);

	for (uint32_t i = 0; i < options->sides.n && !rc; i++)
		rc = gemm_side(options, options->sides.at[i], matrices, results, &error);
	return bench_fail_device(rc, "gemm", error.text);
}
