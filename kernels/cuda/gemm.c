/* SPDX-License-Identifier: MIT */

/*
 * Products: bf16 in, float32 sums, bf16 or float32 out. The number of rows decides which kernels
 * are candidates (gemm_plan.c):
 *
 *	up to 16   skinny.cu, cuBLASLt
 *	17 to 64   wide.cu (9.0 alone, in builds for 90a), skinny.cu up to 32 if x fits beside its ring,
 *	           broad.cu from 33 (9.0 alone), cuBLASLt
 *	more       broad.cu, cuBLASLt, which uses 32 MiB of the stream's scratch
 *	any, where the op is invariant: wide.cu, 64 rows a launch
 *
 * With packed weights: skinny.cu up to 16 rows, wide.cu from 9 on and where the op is invariant. More than 128
 * rows multiply a bf16 copy of the matrix in the stream's scratch, made for the product (widen.cu), unless
 * it is larger than WIDENED_BYTES_MAX.
 *
 * A gated_gemm of up to 64 rows (16 without wide.cu) is one launch of ours, not timed against
 * cuBLASLt's; of more rows the faster of broad.cu and cuBLASLt's gemm with a silu_mul. A result is
 * deterministic per shape class and process; unlike the cpu device's it may depend on the number of
 * rows.
 *
 * Measured on an H200, ms of a decode step (the graph alone, context 1024; mimeo-bench decode): 1B
 * at 1, 8, 32, 64, 128 rows 0.81, 0.90, 1.17, 1.58, 2.34 (1.04 at one row without overlap); 8B at
 * 1, 8, 32 rows 3.79, 4.28, 5.30.
 *
 * On an H100, us of a layer's norms and products in a graph, without broad.cu and with it: 1B at 64,
 * 96, 128, 192, 256 rows 62.5, 68.8, 69.5, 78.4, 79.8 and 60.1, 64.5, 66.5, 75.0, 78.3.
 *
 * Known gaps, on an H200: at each of a layer's four products memory is idle for 2 to 3 us, from the
 * last block's last bytes to the next kernel's first; above 64 rows qkv and o of 1B are cuBLASLt's
 * (H100), which do not overlap.
 */

#include "kernels/cuda/gemm.h"
#include "kernels/cuda/launchers.h"

#include <errno.h>
#include <stdlib.h>

/* Copies of packed weights: at most so many bytes, for more rows than these. */
#define WIDENED_BYTES_MAX ((size_t)256 << 20)
#define WIDENED_ROWS_MIN 128u
/* Each block of a product does the norm of at most so many rows. (Of 16 it takes longer than the launch that it saves.) */
#define NORMED_ROWS_MAX 8u

/* ---- the device's part ---- */

static int gemm_open(struct cuda_device *device, struct gemm *gemm)
{
	struct device *base = &device->base;
	int rc = gemm_condition(device, cublasLtCreate(&gemm->handle));

	for (struct gemm_mark *mark = gemm->marks[0]; mark < gemm->marks[GEMM_WAYS] && !rc; mark++) {
		rc = CUDA_TRY(base, cudaEventCreate(&mark->start));
		if (!rc)
			rc = CUDA_TRY(base, cudaEventCreate(&mark->end));
	}
	return rc;
}

static void gemm_destroy_marks(struct gemm *gemm)
{
	for (struct gemm_mark *mark = gemm->marks[0]; mark < gemm->marks[GEMM_WAYS]; mark++) {
		if (mark->start != NULL)
			cudaEventDestroy(mark->start);
		if (mark->end != NULL)
			cudaEventDestroy(mark->end);
		*mark = (struct gemm_mark){0};
	}
}

static int gemm_start(struct cuda_device *device)
{
	struct gemm *gemm = calloc(1, sizeof(*gemm));
	int rc;

	if (gemm == NULL)
		return -ENOMEM;
	rc = gemm_open(device, gemm);
	pthread_mutex_init(&gemm->lock, NULL);
	gemm->choice = device->gemm_choice;
	device->gemm = gemm;
	if (rc) {
		cuda_gemm_free(device);
		return rc;
	}
	gemm->flush_bytes = (size_t)device->limits.l2_bytes * GEMM_FLUSH_L2S;
	/* without it timings are those of a warm L2, which is acceptable, and products that add are not timed */
	if (CUDA_TRY(&device->base, cudaMalloc(&gemm->flush, gemm->flush_bytes)) != 0)
		gemm->flush = NULL;
	return cuda_lost(device);
}

/* Load silu_mul now: the first gated_gemm of many rows may come after lock, when no kernel may be loaded. */
static int gemm_load_silu_mul(struct stream *stream)
{
	void *const unused = stream;
	const struct op_silu_mul none = {.gate_up = unused, .out = unused, .cols = 8};

	return cuda_silu_mul(stream, &none);
}

static int gemm_load(struct stream *stream)
{
	int rc = cuda_enter_growth(stream->device);

	if (rc)
		return rc;
	rc = skinny_start(stream);
	if (rc)
		return rc;
#ifdef MIMEO_CUDA_SM90A
	rc = wide_start(stream);
	if (rc)
		return rc;
	rc = broad_start(stream);
	if (rc)
		return rc;
	rc = widen_start(stream);
	if (rc)
		return rc;
#endif
	rc = gemm_load_silu_mul(stream);
	return rc ? rc : gemm_start(stream->device);
}

/* Once for the device, before lock. */
static int gemm_ready(struct stream *stream)
{
	static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
	int rc;

	pthread_mutex_lock(&starting);
	rc = stream->device->gemm == NULL ? gemm_load(stream) : 0;
	pthread_mutex_unlock(&starting);
	return rc;
}

void cuda_gemm_choose(struct device *device, enum cuda_gemm_choice choice)
{
	cuda_device(device)->gemm_choice = choice;
}

void cuda_gemm_lock(struct cuda_device *device)
{
	struct gemm *gemm = device->gemm;

	if (gemm == NULL)
		return;
	pthread_mutex_lock(&gemm->lock);
	if (gemm->flush != NULL)
		CUDA_TRY(&device->base, cudaFree(gemm->flush));
	gemm->flush = NULL;
	pthread_mutex_unlock(&gemm->lock);
}

void cuda_gemm_free(struct cuda_device *device)
{
	struct gemm *gemm = device->gemm;

	if (gemm == NULL)
		return;
	device->gemm = NULL;
	if (gemm->flush != NULL)
		cudaFree(gemm->flush);
	gemm_destroy_marks(gemm);
	if (gemm->handle != NULL)
		cublasLtDestroy(gemm->handle);
	pthread_mutex_destroy(&gemm->lock);
	free(gemm);
}

/* ---- launcher ---- */

static int gemm_check(const struct op_gemm *a)
{
	if (!gemm_fits(a) || (a->y_dtype != DTYPE_BF16 && (a->y_dtype != DTYPE_F32 || a->add)))
		return -EINVAL;
	/* cuBLASLt adds a bias of the output's type */
	if ((a->w.dtype != DTYPE_BF16 && !packed_is(a->w.dtype)) || (a->bias.data && a->bias.dtype != a->y_dtype))
		return -ENOTSUP;
	return 0;
}

static int gemm_run_plan(struct gemm_product *p, const struct gemm_key *key)
{
	struct gemm_way way;
	int rc = gemm_plan_get(p, key, &way);

	return rc ? rc : gemm_product_run(p, &way);
}

static int gemm_run_planned(struct gemm_product *p)
{
	const struct gemm_key key = gemm_key_of(p);
	struct gemm_way way;
	int n, rc = gemm_product_init(p);

	if (rc)
		return rc;
	rc = gemm_run_plan(p, &key);
	if (key.invariant || key.packed || (rc != -ENOTSUP && rc != DEVICE_E_INVALID))
		return rc;
	/* a kernel of the class need not support this number of rows */
	rc = gemm_library_ways(p, key.alignment, 1, &way, &n);
	return rc ? rc : gemm_product_run(p, &way);
}

/* ---- packed weights ---- */

static size_t gemm_widened_bytes(const struct weight *w)
{
	const size_t bytes = (size_t)w->rows * w->cols * sizeof(uint16_t);

	return packed_is(w->dtype) && bytes <= WIDENED_BYTES_MAX ? bytes : 0;
}

static bool gemm_widens(const struct op_gemm *a)
{
	return gemm_widened_bytes(&a->w) && !a->invariant && a->n_rows > WIDENED_ROWS_MIN;
}

/* By a bf16 copy. Kernels read weights before earlier ones have ended (cuda.h), but not behind a fill. */
static int gemm_run_widened(struct gemm_product *p)
{
#ifdef MIMEO_CUDA_SM90A
	struct device *base = &p->stream->device->base;
	struct op_gemm a = *p->args;
	struct gemm_product widened = *p;
	int rc;

	a.w = (struct weight){.data = (uint8_t *)p->workspace + GEMM_WORKSPACE_BYTES,
		.dtype = DTYPE_BF16, .rows = a.w.rows, .cols = a.w.cols};
	widened.args = &a;
	widen_launch(p->stream, &p->args->w, (void *)(uintptr_t)a.w.data);
	rc = cuda_launch_end(p->stream, "gemm");
	if (!rc && !cuda_runs_dry(p->stream))
		rc = CUDA_TRY(base, cudaMemsetAsync(p->workspace, 0, sizeof(uint32_t), p->stream->handle));
	return rc ? rc : gemm_run_planned(&widened);
#else
	(void)p;
	return -ENOTSUP;
#endif
}

/* ---- the ops ---- */

static int gemm_begin(struct stream *stream, const struct op_gemm *a, void **ret_workspace)
{
	int rc = gemm_check(a);

	if (rc)
		return rc;
	rc = cuda_launch_begin(stream, "gemm", skinny_kernel());
	if (rc)
		return rc;
	rc = gemm_ready(stream);
	/* the copy's part whatever the number of rows is: after lock it could not grow */
	return rc ? rc : cuda_workspace(stream, GEMM_WORKSPACE_BYTES + gemm_widened_bytes(&a->w), ret_workspace);
}

static int gemm_queue(struct gemm_product *product)
{
	struct stream *stream = product->stream;
	int rc = 0;

	if (product->args->n_rows != 0)
		rc = gemm_widens(product->args) ? gemm_run_widened(product) : gemm_run_planned(product);

	if (rc) {
		if (capture_is_on(&stream->capture))
			capture_spoil(&stream->capture);
		return rc;
	}
	return cuda_launch_end(stream, "gemm");
}

int cuda_gemm(struct stream *stream, const struct op_gemm *a)
{
	struct gemm_product product = {.args = a, .stream = stream};
	int rc = gemm_begin(stream, a, &product.workspace);

	return rc ? rc : gemm_queue(&product);
}

/* By the way of the product alone, if that can do the norm. */
static int gemm_run_normed(struct gemm_product *p, const struct op_norm_gemm *a)
{
	const struct gemm_key key = gemm_key_of(p);
	struct gemm_way way;
	int rc = gemm_product_init(p);

	if (rc)
		return rc;
	rc = gemm_plan_get(p, &key, &way);
	if (rc)
		return rc;
	return way.kind == WAY_SKINNY ? skinny_launch_normed(p->stream, p->args, &a->norm, a->eps, way.variant) : -ENOTSUP;
}

int cuda_norm_gemm(struct stream *stream, const struct op_norm_gemm *a)
{
	const struct op_gemm gemm = {.x = a->x, .w = a->w, .bias = a->bias, .y = a->y,
		.y_dtype = DTYPE_BF16, .n_rows = a->n_rows};
	const struct op_silu_mul silu_mul = {.gate_up = a->gate_up, .out = a->y,
		.n_rows = a->n_rows, .cols = a->w.rows / 2};
	struct gemm_product product = {.args = &gemm, .silu_mul = a->gate_up ? &silu_mul : NULL, .stream = stream};
	int rc;

	if (!norm_gemm_fits(a))
		return -EINVAL;
	if (a->n_rows == 0 || a->n_rows > NORMED_ROWS_MAX)
		return -ENOTSUP;
	rc = gemm_begin(stream, &gemm, &product.workspace);
	if (rc)
		return rc;
	rc = gemm_run_normed(&product, a);
	if (rc && rc != -ENOTSUP && capture_is_on(&stream->capture))
		capture_spoil(&stream->capture);
	return rc ? rc : cuda_launch_end(stream, "gemm");
}

int cuda_gated_gemm(struct stream *stream, const struct op_gated_gemm *a)
{
	const struct op_gemm gemm = {.x = a->x, .w = a->w, .bias = a->bias, .y = a->y,
		.y_dtype = DTYPE_BF16, .n_rows = a->n_rows, .invariant = a->invariant};
	const struct op_silu_mul silu_mul = {.gate_up = a->gate_up, .out = a->y,
		.n_rows = a->n_rows, .cols = a->w.rows / 2};
	struct gemm_product product = {.args = &gemm, .silu_mul = &silu_mul, .stream = stream};
	int rc;

	if (!gated_gemm_fits(a))
		return -EINVAL;
	rc = gemm_begin(stream, &gemm, &product.workspace);
	return rc ? rc : gemm_queue(&product);
}
