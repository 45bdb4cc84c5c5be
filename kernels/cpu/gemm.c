/* SPDX-License-Identifier: MIT */

/* The product of one weight and all rows; panel.h says how its rows keep their bits in any
 * batch. */

#include <pthread.h>
#include <string.h>

#include "kernels/cpu/panel.h"
#include "kernels/packed.h"

struct gemm_workspace {
	float *panel; /* [PANEL, k] */
	float *tail;  /* [CHUNK, k], the last rows of x if they don't fill a chunk */
	float *sums;  /* [CHUNK, PANEL] */
	float *bias;  /* [PANEL] */
};

static size_t gemm_workspace_floats(uint32_t k)
{
	return (size_t)(PANEL + CHUNK) * k + CHUNK * PANEL + PANEL;
}

static struct gemm_workspace gemm_workspace_carve(void *memory, uint32_t k)
{
	struct gemm_workspace ws = {.sums = memory};

	ws.bias = ws.sums + CHUNK * PANEL;
	ws.panel = ws.bias + PANEL;
	ws.tail = ws.panel + (size_t)PANEL * k;
	return ws;
}

/* `n` rows of W from `first` as PANEL rows of float32. */
static const float *gemm_load_panel(
	const struct weight *w, uint32_t first, uint32_t n, float *storage)
{
	size_t k = w->cols;

	if (w->dtype == DTYPE_F32 && n == PANEL)
		return (const float *)w->data + first * k;
	weight_to_f32(storage, w, first * k, n * k);
	memset(storage + n * k, 0, (PANEL - n) * k * sizeof(*storage));
	return storage;
}

static void gemm_store(const struct op_gemm *a, uint32_t first_row, uint32_t n_rows,
	uint32_t first_col, uint32_t n_cols, const struct gemm_workspace *ws)
{
	for (uint32_t r = 0; r < n_rows; r++) {
		float *y = (float *)a->y + (size_t)(first_row + r) * a->w.rows + first_col;
		const float *sums = ws->sums + (size_t)r * PANEL;

		for (uint32_t c = 0; c < n_cols; c++) {
			const float sum = sums[c] + (a->bias.data ? ws->bias[c] : 0);

			y[c] = a->add ? y[c] + sum : sum;
		}
	}
}

static void gemm_run(const void *args, void *workspace)
{
	const struct op_gemm *a = args;
	uint32_t k = a->w.cols, n_tail = a->n_rows % CHUNK;
	struct gemm_workspace ws = gemm_workspace_carve(workspace, k);
	const float *x = a->x;

	if (n_tail) {
		memcpy(ws.tail, x + (size_t)(a->n_rows - n_tail) * k, sizeof(float) * n_tail * k);
		memset(ws.tail + (size_t)n_tail * k, 0, sizeof(float) * (CHUNK - n_tail) * k);
	}
	for (uint32_t col = 0; col < a->w.rows && a->n_rows; col += PANEL) {
		uint32_t n_cols = a->w.rows - col < PANEL ? a->w.rows - col : PANEL;
		const float *panel = gemm_load_panel(&a->w, col, n_cols, ws.panel);
		uint32_t row = 0;

		if (a->bias.data)
			weight_to_f32(ws.bias, &a->bias, col, n_cols);
		for (; row + CHUNK <= a->n_rows; row += CHUNK) {
			panel_multiply(x + (size_t)row * k, panel, k, ws.sums);
			gemm_store(a, row, CHUNK, col, n_cols, &ws);
		}
		if (n_tail) {
			panel_multiply(ws.tail, panel, k, ws.sums);
			gemm_store(a, row, n_tail, col, n_cols, &ws);
		}
	}
}

/* A stream is one thread; OpenBLAS's own would also split a row's sums by the number of CPUs. */
static void gemm_blas_init(void)
{
	openblas_set_num_threads(1);
}

void panel_blas_init(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, gemm_blas_init);
}

#define ADVICE(core)                                                                               \
	"OpenBLAS does not know this CPU and computes without AVX: set OPENBLAS_CORETYPE=" core " in "  \
	"the environment, or install a newer OpenBLAS"

const char *panel_blas_advice(void)
{
#ifdef __x86_64__
	/* What an OpenBLAS takes that does not know the CPU. */
	if (strcmp(openblas_get_corename(), "Prescott") != 0)
		return NULL;
	if (__builtin_cpu_supports("avx512vl"))
		return ADVICE("SkylakeX");
	if (__builtin_cpu_supports("avx2"))
		return ADVICE("Haswell");
#endif
	return NULL;
}

int cpu_gemm(struct stream *stream, const struct op_gemm *a)
{
	static const struct cpu_op op = {.name = "gemm", .run = gemm_run};

	if (!gemm_fits(a) || packed_is(a->w.dtype) || a->y_dtype != DTYPE_F32)
		return -EINVAL;
	panel_blas_init();
	return cpu_launch(stream, &op, a, sizeof(*a),
		gemm_workspace_floats(a->w.cols) * sizeof(float));
}

int cpu_gated_gemm(struct stream *stream, const struct op_gated_gemm *a)
{
	const struct op_gemm gemm = {.x = a->x, .w = a->w, .bias = a->bias, .y = a->gate_up,
		.y_dtype = DTYPE_F32, .n_rows = a->n_rows};
	const struct op_silu_mul silu_mul = {.gate_up = a->gate_up, .out = a->y,
		.n_rows = a->n_rows, .cols = a->w.rows / 2};
	int rc;

	if (!gated_gemm_fits(a) || packed_is(a->w.dtype))
		return -EINVAL;
	rc = cpu_gemm(stream, &gemm);
	return rc ? rc : cpu_silu_mul(stream, &silu_mul);
}
