/* SPDX-License-Identifier: MIT */

/*
 * GEMM: bf16 in, float32 sums, bf16 or float32 out, by kernels of our own for few rows (skinny.cu)
 * and some more (wide.cu), and by cuBLASLt, which takes 32 MiB of the stream's scratch.
 */

#include "kernels/cuda/gemm.h"
#include "kernels/cuda/launchers.h"

#include <errno.h>
#include <stdlib.h>

/* ---- the device's part ---- */

static int gemm_start(struct cuda_device *device)
{
	struct device *base = &device->base;
	struct gemm *gemm = calloc(1, sizeof(*gemm));
	int rc;

	if (gemm == NULL)
		return -ENOMEM;
	rc = gemm_condition(device, cublasLtCreate(&gemm->handle));
	if (rc == 0)
		rc = CUDA_TRY(base, cudaEventCreate(&gemm->start));
	if (rc == 0)
		rc = CUDA_TRY(base, cudaEventCreate(&gemm->end));
	pthread_mutex_init(&gemm->lock, NULL);
	gemm->choice = device->gemm_choice;
	device->gemm = gemm;
	if (rc != 0) {
		cuda_gemm_free(device);
		return rc;
	}
	gemm->flush_bytes = (size_t)device->limits.l2_bytes * GEMM_FLUSH_L2S;
	/* without it timings are of a warm L2, which is no reason to fail */
	if (CUDA_TRY(base, cudaMalloc(&gemm->flush, gemm->flush_bytes)) != 0)
		gemm->flush = NULL;
	return cuda_lost(device);
}

/* The first gated_gemm of many rows may come after lock, which is too late for a first use. */
static int load_silu_mul(struct stream *stream)
{
	void *const unused = stream;
	const struct op_silu_mul none = {.gate_up = unused, .out = unused, .cols = 8};

	return cuda_silu_mul(stream, &none);
}

/* Once for the device, before lock: cuda_launch_begin has seen to it. */
static int gemm_ready(struct stream *stream)
{
	struct cuda_device *device = stream->device;
	static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
	int rc = 0;

	pthread_mutex_lock(&starting);
	if (device->gemm == NULL)
		rc = cuda_enter_growth(device);
	if (rc == 0 && device->gemm == NULL)
		rc = skinny_start(stream);
#ifdef MIMEO_CUDA_SM90A
	if (rc == 0 && device->gemm == NULL)
		rc = wide_start(stream);
#endif
	if (rc == 0 && device->gemm == NULL)
		rc = load_silu_mul(stream);
	if (rc == 0 && device->gemm == NULL)
		rc = gemm_start(device);
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
	if (gemm->end != NULL)
		cudaEventDestroy(gemm->end);
	if (gemm->start != NULL)
		cudaEventDestroy(gemm->start);
	if (gemm->handle != NULL)
		cublasLtDestroy(gemm->handle);
	pthread_mutex_destroy(&gemm->lock);
	free(gemm);
}

/* ---- launcher ---- */

static int check(const struct op_gemm *a)
{
	if (!a->x || !a->y || !a->w.data || !a->w.rows || !a->w.cols)
		return -EINVAL;
	if (a->w.rows > INT32_MAX || a->w.cols > INT32_MAX || a->n_rows > INT32_MAX)
		return -EINVAL;
	if (a->y_dtype != DTYPE_BF16 && a->y_dtype != DTYPE_F32)
		return -EINVAL;
	if (a->bias.data && (a->bias.rows != 1 || a->bias.cols != a->w.rows))
		return -EINVAL;
	/* cuBLASLt adds a bias of the output's type */
	if (a->w.dtype != DTYPE_BF16 || (a->bias.data && a->bias.dtype != a->y_dtype))
		return -ENOTSUP;
	return 0;
}

static int run(struct gemm_product *p)
{
	const struct gemm_key key = gemm_key_of(p);
	struct gemm_way way;
	int n, rc = gemm_product_init(p);

	if (rc == 0)
		rc = gemm_plan_get(p, &key, &way);
	if (rc == 0)
		rc = gemm_product_run(p, &way);
	if (p->gated || (rc != -ENOTSUP && rc != DEVICE_E_INVALID))
		return rc;
	/* a kernel need not stand every number of rows of its class */
	rc = gemm_library_ways(p, key.alignment, 1, &way, &n);
	return rc != 0 ? rc : gemm_product_run(p, &way);
}

static int begin(struct stream *stream, const struct op_gemm *a, void **ret_workspace)
{
	int rc = check(a);

	if (rc == 0)
		rc = cuda_launch_begin(stream, "gemm", skinny_kernel());
	if (rc == 0)
		rc = gemm_ready(stream);
	return rc != 0 ? rc : cuda_workspace(stream, GEMM_WORKSPACE_BYTES, ret_workspace);
}

static int queue(struct gemm_product *product)
{
	struct stream *stream = product->stream;
	int rc = 0;

	if (product->args->n_rows != 0)
		rc = run(product);
	if (rc != 0 && stream_capturing(stream))
		stream_spoil(stream);
	return rc != 0 ? rc : cuda_launch_end(stream, "gemm");
}

int cuda_gemm(struct stream *stream, const struct op_gemm *a)
{
	struct gemm_product product = {.args = a, .stream = stream};
	int rc = begin(stream, a, &product.workspace);

	return rc != 0 ? rc : queue(&product);
}

static bool gated_in_one(struct stream *stream, const struct op_gemm *a)
{
	uint8_t skinny[SKINNY_VARIANTS_MAX];

#ifdef MIMEO_CUDA_SM90A
	if (wide_can(stream, a, true))
		return true;
#endif
	return skinny_variants(stream, a, true, skinny) > 0;
}

/* By our kernels as one launch; what they don't take, as two. */
int cuda_gated_gemm(struct stream *stream, const struct op_gated_gemm *a)
{
	struct op_gemm gemm = {.x = a->x, .w = a->w, .bias = a->bias, .y = a->y,
		.y_dtype = DTYPE_BF16, .n_rows = a->n_rows};
	const struct op_silu_mul silu_mul = {.gate_up = a->gate_up, .out = a->y,
		.n_rows = a->n_rows, .cols = a->w.rows / 2};
	struct gemm_product product = {.args = &gemm, .gated = true, .stream = stream};
	int rc;

	if (!a->gate_up || !a->y || a->w.rows % 2 != 0)
		return -EINVAL;
	rc = begin(stream, &gemm, &product.workspace);
	if (rc != 0)
		return rc;
	if (stream->device->gemm->choice != CUDA_GEMM_LIBRARY &&
		gated_in_one(stream, &gemm))
		return queue(&product);
	gemm.y = a->gate_up;
	product.gated = false;
	rc = queue(&product);
	return rc != 0 ? rc : cuda_silu_mul(stream, &silu_mul);
}
