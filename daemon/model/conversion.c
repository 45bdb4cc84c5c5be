/* SPDX-License-Identifier: MIT */
#include "daemon/model/conversion.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/error.h"
#include "daemon/model/quantised_format.h"
#include "daemon/model/rounding.h"
#include "ipc/cleanup.h"
#include "kernels/convert.h"
#include "kernels/packed.h"

#define TILE 16384u /* elements: as float32 they fit the second-level cache */
#define PACKED_TILE_ROWS QUANTISED_TILE_ROWS

/* What the threads share. */
struct conversion_task {
	const struct conversion *conversion;
	_Atomic uint32_t failed; /* the first tile that did; UINT32_MAX: none */
};

/* Elements of a tile, but for the last one. */
static size_t conversion_tile(const struct plan_placement *p)
{
	const struct block_format *format = p->tensor->format;
	size_t unit = p->source.format || p->rounds ? plan_cols(p) : format ? format->elements : 1;

	if (packed_is(p->dtype))
		unit *= PACKED_TILE_ROWS;
	return unit < TILE ? TILE / unit * unit : unit;
}

/* Elements [at, at + n) of those that are converted. */
static int conversion_widen(
	const struct conversion *c, size_t at, size_t n, float *ret, struct model_error *error)
{
	const struct quantised_source *source = &c->placement->source;
	const struct safetensors_tensor *tensor = c->placement->tensor;
	const struct block_format *format = tensor->format;
	const struct weight plain = {.data = c->data, .dtype = tensor->dtype};

	if (source->format) {
		const size_t row = quantised_is_transposed(source) ? 0 : quantised_row_bytes(source);

		return quantised_widen(source, c->sides, c->data + at / source->cols * row,
			(uint32_t)((c->first + at) / source->cols), (uint32_t)(n / source->cols), ret, error);
	}
	if (!format)
		weight_to_f32(ret, &plain, at, n);
	else if (!format->to_f32(ret, c->data + at / format->elements * format->bytes, n / format->elements))
		return model_fail(error, -EINVAL, "%s: tensor \"%.128s\": the scale of a block is not finite", c->path,
			tensor->name);
	for (size_t i = 0; c->placement->adds_one && i < n; i++)
		ret[i] += 1;
	return 0;
}

/* Likewise, whole rows to units. */
static int conversion_pack(const struct conversion *c, size_t at, size_t n, struct model_error *error)
{
	const struct quantised_source *source = &c->placement->source;
	const struct quantised_packing packing = plan_packing(c->placement);
	const size_t row = at / source->cols;
	const size_t step = quantised_is_transposed(source) ? 0 : quantised_row_bytes(source);

	return quantised_pack(source, c->sides, &packing, c->data + row * step,
		(uint32_t)(c->first / source->cols + row), (uint32_t)(n / source->cols),
		(uint8_t *)c->ret + row * plan_row_bytes(c->placement), error);
}

/* ---- rounded rows ---- */

/* Of a row from `row` on of those converted, whose number in the matrix is `number`. */
static int conversion_fail_row(const struct conversion *c, const float *row, size_t number, struct model_error *error)
{
	size_t k = 0;

	while (isfinite(row[k]))
		k++;
	return model_fail(error, -EINVAL, "%s: tensor \"%.128s\": element [%zu, %zu] is %s", c->path,
		c->placement->tensor->name, number, k, isnan(row[k]) ? "NaN" : "infinite");
}

static int conversion_round_rows(const struct conversion *c, size_t first, size_t n, const float *rows,
	uint8_t *codes, struct model_error *error)
{
	const uint32_t cols = plan_cols(c->placement);

	for (size_t i = 0; i < n; i++)
		if (!rounding_row(rows + i * cols, cols, codes + i * cols, &c->ret_factors[first + i]))
			return conversion_fail_row(c, rows + i * cols, c->first / cols + first + i, error);
	return 0;
}

/* n rows of codes to units. */
static void conversion_pack_codes(const struct plan_placement *p, size_t n, const uint8_t *codes, uint8_t *ret)
{
	const uint32_t cols = plan_cols(p), unit_bytes = packed_unit_bytes(p->dtype, false);

	assert(p->dtype == DTYPE_E4M3 && n % PACKED_ROWS == 0);
	for (size_t row = 0; row < n; row += PACKED_ROWS)
		for (uint32_t col = 0; col < cols; col += PACKED_COLS, ret += unit_bytes)
			packed_unit(ret, p->dtype, codes + row * cols + col, cols, NULL, NULL);
}

/* Likewise, whole rows to what their codes stand for, in the model's dtype, or to units. */
static int conversion_round(const struct conversion *c, size_t at, size_t n, struct model_error *error)
{
	const struct plan_placement *p = c->placement;
	const uint32_t cols = plan_cols(p);
	const size_t first = at / cols, n_rows = n / cols;
	CLEANUP(cleanup_free) float *rows = malloc(n * sizeof(*rows));
	CLEANUP(cleanup_free) uint8_t *codes = malloc(n);
	uint8_t *to = (uint8_t *)c->ret + first * plan_row_bytes(p);
	int rc;

	if (!rows || !codes)
		return model_fail(error, -ENOMEM, "%s: no memory for tensor \"%.128s\"", c->path, p->tensor->name);
	rc = conversion_widen(c, at, n, rows, error);
	if (!rc)
		rc = conversion_round_rows(c, first, n_rows, rows, codes, error);
	if (rc)
		return rc;
	if (packed_is(p->dtype)) {
		conversion_pack_codes(p, n_rows, codes, to);
		return 0;
	}
	for (size_t i = 0; i < n_rows; i++)
		rounding_widen(rows + i * cols, codes + i * cols, cols, c->ret_factors[first + i]);
	if (p->dtype == DTYPE_F32)
		memcpy(to, rows, n * sizeof(*rows));
	else
		f32_to_bf16_n(to, rows, n);
	return 0;
}

/* ---- tiles ---- */

static int conversion_do_tile(const struct conversion *c, uint32_t i, struct model_error *error)
{
	const size_t tile = conversion_tile(c->placement), at = i * tile, n = c->n - at < tile ? c->n - at : tile;
	CLEANUP(cleanup_free) float *widened = NULL;
	int rc;

	if (c->placement->rounds)
		return conversion_round(c, at, n, error);
	if (packed_is(c->placement->dtype))
		return conversion_pack(c, at, n, error);
	if (c->placement->dtype == DTYPE_F32)
		return conversion_widen(c, at, n, (float *)c->ret + at, error);
	assert(c->placement->dtype == DTYPE_BF16);
	widened = malloc(n * sizeof(*widened));
	if (!widened)
		return model_fail(error, -ENOMEM, "%s: no memory for tensor \"%.128s\"", c->path,
			c->placement->tensor->name);
	rc = conversion_widen(c, at, n, widened, error);
	if (!rc)
		f32_to_bf16_n((uint16_t *)c->ret + at, widened, n);
	return rc;
}

static void conversion_try_tile(void *userdata, uint32_t i)
{
	struct conversion_task *task = userdata;
	struct model_error unread;
	uint32_t failed;

	if (!conversion_do_tile(task->conversion, i, &unread))
		return;
	failed = task->failed;
	while (i < failed && !atomic_compare_exchange_weak(&task->failed, &failed, i))
		;
}

int conversion_run(const struct conversion *conversion, struct workers *workers, struct model_error *error)
{
	struct conversion_task task = {.conversion = conversion, .failed = UINT32_MAX};
	const size_t tile = conversion_tile(conversion->placement);

	workers_run(workers, conversion_try_tile, &task, (uint32_t)((conversion->n + tile - 1) / tile));
	/* Once more, for the sentence. */
	return task.failed == UINT32_MAX ? 0 : conversion_do_tile(conversion, task.failed, error);
}
