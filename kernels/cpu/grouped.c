/* SPDX-License-Identifier: MIT */

/*
 * Many small products in one op: one a head, or one an expert. Rows are gathered into chunks and
 * multiplied as panel.h says, so a row's bits depend neither on its neighbours nor on their number.
 */

#include <string.h>

#include "kernels/cpu/panel.h"
#include "kernels/packed.h"

/* One product: row i of x and of y as the op has them. */
struct grouped_product {
	const void *args;
	uint32_t group, n_rows;
	const float *(*x)(const void *args, uint32_t group, uint32_t i);
	float *(*y)(const void *args, uint32_t group, uint32_t i);
	const struct weight *w;
	uint32_t first; /* row of w where the product's begin */
	uint32_t in, out;
	bool transposed; /* w's rows run over `in`, not over `out` */
};

struct grouped_workspace {
	float *panel; /* [PANEL, in] */
	float *rows;  /* [CHUNK, in] */
	float *sums;  /* [CHUNK, PANEL] */
};

static size_t grouped_workspace_bytes(uint32_t in)
{
	return ((size_t)(PANEL + CHUNK) * in + CHUNK * PANEL) * sizeof(float);
}

static struct grouped_workspace grouped_workspace_carve(void *memory, uint32_t in)
{
	struct grouped_workspace ws = {.sums = memory};

	ws.panel = ws.sums + CHUNK * PANEL;
	ws.rows = ws.panel + (size_t)PANEL * in;
	return ws;
}

/* Outputs [col, col + n) as PANEL rows of float32; those past n are 0. */
static void grouped_load_panel(
	const struct grouped_product *p, uint32_t col, uint32_t n, float *panel)
{
	size_t in = p->in, cols = p->w->cols;
	float line[PANEL];

	memset(panel + n * in, 0, (PANEL - n) * in * sizeof(*panel));
	if (!p->transposed) {
		weight_to_f32(panel, p->w, (p->first + col) * cols, n * in);
		return;
	}
	for (size_t i = 0; i < in; i++) {
		weight_to_f32(line, p->w, (p->first + i) * cols + col, n);
		for (uint32_t c = 0; c < n; c++)
			panel[c * in + i] = line[c];
	}
}

static void grouped_multiply_chunk(const struct grouped_product *p, uint32_t row, uint32_t col,
	uint32_t n_cols, const struct grouped_workspace *ws)
{
	uint32_t n = p->n_rows - row < CHUNK ? p->n_rows - row : CHUNK;

	for (uint32_t r = 0; r < n; r++)
		memcpy(ws->rows + (size_t)r * p->in, p->x(p->args, p->group, row + r),
			p->in * sizeof(float));
	memset(ws->rows + (size_t)n * p->in, 0, (size_t)(CHUNK - n) * p->in * sizeof(float));
	panel_multiply(ws->rows, ws->panel, p->in, ws->sums);
	for (uint32_t r = 0; r < n; r++)
		memcpy(p->y(p->args, p->group, row + r) + col, ws->sums + (size_t)r * PANEL,
			n_cols * sizeof(float));
}

static void grouped_multiply(const struct grouped_product *p, const struct grouped_workspace *ws)
{
	for (uint32_t col = 0; col < p->out && p->n_rows; col += PANEL) {
		uint32_t n_cols = p->out - col < PANEL ? p->out - col : PANEL;

		grouped_load_panel(p, col, n_cols, ws->panel);
		for (uint32_t row = 0; row < p->n_rows; row += CHUNK)
			grouped_multiply_chunk(p, row, col, n_cols, ws);
	}
}

/* ---- a product a head ---- */

static const float *grouped_head_x(const void *args, uint32_t head, uint32_t i)
{
	const struct op_head_gemm *a = args;

	return (const float *)a->x + (size_t)i * a->x_stride + (size_t)head * a->x_head_stride;
}

static float *grouped_head_y(const void *args, uint32_t head, uint32_t i)
{
	const struct op_head_gemm *a = args;

	return (float *)a->y + (size_t)i * a->y_stride + (size_t)head * a->y_head_stride;
}

static uint32_t grouped_head_in(const struct op_head_gemm *a)
{
	return a->transposed ? a->head_n : a->w.cols;
}

static void head_gemm_run(const void *args, void *workspace)
{
	const struct op_head_gemm *a = args;
	uint32_t in = grouped_head_in(a);
	const struct grouped_workspace ws = grouped_workspace_carve(workspace, in);

	panel_blas_init();
	for (uint32_t h = 0; h < a->n_heads; h++)
		grouped_multiply(&(struct grouped_product){
			.args = a,
			.group = h,
			.n_rows = a->n_rows,
			.x = grouped_head_x,
			.y = grouped_head_y,
			.w = &a->w,
			.first = h * a->head_rows + a->head_first,
			.in = in,
			.out = a->transposed ? a->w.cols : a->head_n,
			.transposed = a->transposed,
		}, &ws);
}

CPU_OP(head_gemm, grouped_workspace_bytes(grouped_head_in(a)))

/* ---- a product an expert ---- */

static const float *grouped_expert_x(const void *args, uint32_t expert, uint32_t i)
{
	const struct op_expert_gemm *a = args;
	uint32_t pair = (uint32_t)a->pairs[(uint32_t)a->expert_start[expert] + i];

	return (const float *)a->x + (size_t)(pair / a->x_div) * a->w.cols;
}

static float *grouped_expert_y(const void *args, uint32_t expert, uint32_t i)
{
	const struct op_expert_gemm *a = args;
	uint32_t pair = (uint32_t)a->pairs[(uint32_t)a->expert_start[expert] + i];

	return (float *)a->y + (size_t)pair * (a->w.rows / a->n_experts);
}

static void expert_gemm_run(const void *args, void *workspace)
{
	const struct op_expert_gemm *a = args;
	const struct grouped_workspace ws = grouped_workspace_carve(workspace, a->w.cols);
	uint32_t out = a->w.rows / a->n_experts;

	panel_blas_init();
	for (uint32_t e = 0; e < a->n_experts; e++)
		grouped_multiply(&(struct grouped_product){
			.args = a,
			.group = e,
			.n_rows = (uint32_t)(a->expert_start[e + 1] - a->expert_start[e]),
			.x = grouped_expert_x,
			.y = grouped_expert_y,
			.w = &a->w,
			.first = e * out,
			.in = a->w.cols,
			.out = out,
		}, &ws);
}

int cpu_expert_gemm(struct stream *stream, const struct op_expert_gemm *a)
{
	static const struct cpu_op op = {.name = "expert_gemm", .run = expert_gemm_run};

	if (!expert_gemm_fits(a) || packed_is(a->w.dtype))
		return -EINVAL;
	return cpu_launch(stream, &op, a, sizeof(*a), grouped_workspace_bytes(a->w.cols));
}

int cpu_expert_gated_gemm(struct stream *stream, const struct op_expert_gated_gemm *a)
{
	const struct op_expert_gemm gemm = {.x = a->x, .x_div = a->n_active, .w = a->w,
		.expert_start = a->expert_start, .pairs = a->pairs, .y = a->gate_up,
		.n_tokens = a->n_tokens, .n_active = a->n_active, .n_experts = a->n_experts};
	struct op_silu_mul silu_mul = {.gate_up = a->gate_up, .out = a->y,
		.n_rows = a->n_tokens * a->n_active};
	int rc;

	if (!expert_gated_gemm_fits(a))
		return -EINVAL;
	silu_mul.cols = a->w.rows / a->n_experts / 2;
	rc = cpu_expert_gemm(stream, &gemm);
	return rc ? rc : cpu_silu_mul(stream, &silu_mul);
}
