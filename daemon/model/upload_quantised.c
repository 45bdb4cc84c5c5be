/* SPDX-License-Identifier: MIT */

/* Quantised tensors on their way to the device. Side tensors are in memory from the first bytes of
 * their data to the last, transposed or reordered data is gathered meanwhile. Reads begin in the order of the
 * files, so that at most UPLOAD_READS tensors and one more are under way. */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/conversion.h"
#include "daemon/model/error.h"
#include "daemon/model/quantised_order.h"
#include "daemon/model/upload.h"
#include "ipc/cleanup.h"
#include "kernels/packed.h"

void upload_quantised_deinit(struct upload_quantised *quantised)
{
	quantised_sides_deinit(&quantised->sides);
	free(quantised->gathered);
	*quantised = (struct upload_quantised){0};
}

/* Convert rows [first, first + n) and copy them, as many at a time as `converted` holds. */
static int upload_convert_rows(struct upload *upload, const struct plan_placement *p,
	const struct quantised_sides *sides, const uint8_t *data, uint32_t first, uint32_t n)
{
	const struct quantised_source *source = &p->source;
	const size_t step = quantised_is_transposed(source) ? 0 : quantised_row_bytes(source);
	const size_t row_bytes = plan_row_bytes(p), together = plan_rows_together(p);
	const size_t most = upload->converted_bytes / row_bytes / together * together;
	uint32_t rows;
	int rc;

	assert(most > 0);
	for (uint32_t at = 0; at < n; at += rows) {
		rows = n - at < most ? n - at : (uint32_t)most;
		rc = conversion_run(&(struct conversion){.placement = p,
					    .sides = sides,
					    .path = source->path,
					    .data = data + at * step,
					    .first = (size_t)(first + at) * source->cols,
					    .n = (size_t)rows * source->cols,
					    .ret = upload->converted},
			upload->workers, upload->error);
		if (rc)
			return rc;
		rc = upload->device->ops->copy(upload->device, p->target + (first + at) * row_bytes,
			upload->converted, rows * row_bytes);
		if (rc)
			return upload_failed(upload, rc);
	}
	return 0;
}

static int upload_begin_packed(
	struct upload *upload, const struct plan_placement *p, const struct quantised_sides *sides)
{
	const size_t bytes = p->source.rows * sizeof(*p->factors);
	CLEANUP(cleanup_free) float *factors = NULL;
	int rc = 0;

	/* the plan found none */
	if (sides->groups)
		return model_fail(upload->error, -EINVAL, "%s: tensor \"%.128s\" has changed while it was read",
			p->source.path, p->source.sides[QUANTISED_GROUPS]->name);
	if (p->order)
		rc = upload->device->ops->copy(
			upload->device, p->order, sides->cols, p->source.cols * sizeof(*p->order));
	if (rc)
		return upload_failed(upload, rc);
	if (!p->factors)
		return 0;
	factors = malloc(bytes);
	if (!factors)
		return model_fail(upload->error, -ENOMEM, "%s: no memory for tensor \"%.128s\"",
			upload->directory, p->source.sides[QUANTISED_FACTORS]->name);
	quantised_row_factors(&p->source, sides, factors);
	rc = upload->device->ops->copy(upload->device, p->factors, factors, bytes);
	return rc ? upload_failed(upload, rc) : 0;
}

static int upload_begin_quantised(
	struct upload *upload, const struct plan_placement *p, struct upload_quantised *quantised)
{
	int rc = quantised_sides_read(
		&p->source, upload->checkpoint, &quantised->sides, upload->error);

	if (rc)
		return rc;
	upload->done += quantised_side_bytes(&p->source);
	rc = packed_is(p->dtype) ? upload_begin_packed(upload, p, &quantised->sides) : 0;
	if (rc || !quantised_is_gathered(&p->source))
		return rc;
	quantised->gathered = malloc(p->tensor->bytes);
	return quantised->gathered
		       ? 0
		       : model_fail(upload->error, -ENOMEM, "%s: no memory for tensor \"%.128s\"",
				 upload->directory, p->tensor->name);
}

/* What the threads share. */
struct upload_order_task {
	const struct quantised_source *source;
	const struct upload_quantised *quantised;
	void *ret;
};

static void upload_order_line(void *userdata, uint32_t line)
{
	const struct upload_order_task *task = userdata;

	quantised_order_line(task->source, &task->quantised->sides, task->quantised->gathered, line, task->ret);
}

/* Put data that is there into its order. */
static int upload_order(struct upload *upload, const struct plan_placement *p, struct upload_quantised *quantised)
{
	struct upload_order_task task = {&p->source, quantised, NULL};

	if (!quantised_is_ordered(&p->source))
		return 0;
	task.ret = malloc(p->tensor->bytes);
	if (!task.ret)
		return model_fail(upload->error, -ENOMEM, "%s: no memory for tensor \"%.128s\"", upload->directory,
			p->tensor->name);
	workers_run(upload->workers, upload_order_line, &task, quantised_n_lines(&p->source));
	free(quantised->gathered);
	quantised->gathered = task.ret;
	return 0;
}

/* All of the data is there. */
static int upload_take_gathered(
	struct upload *upload, const struct plan_placement *p, struct upload_quantised *quantised)
{
	int rc = upload_order(upload, p, quantised);

	return rc ? rc : upload_convert_rows(upload, p, &quantised->sides, quantised->gathered, 0, p->source.rows);
}

int upload_take_quantised(
	struct upload *upload, uint32_t placement, uint64_t offset, const void *data, size_t bytes)
{
	const struct plan_placement *p = &upload->placements[placement];
	struct upload_quantised *quantised = &upload->quantised[placement];
	int rc = quantised->done ? 0 : upload_begin_quantised(upload, p, quantised);
	bool is_last;

	if (rc)
		return rc;
	quantised->done += bytes;
	is_last = quantised->done == p->tensor->bytes;
	assert(quantised->done <= p->tensor->bytes);
	if (quantised->gathered) {
		memcpy(quantised->gathered + offset, data, bytes);
		rc = is_last ? upload_take_gathered(upload, p, quantised) : 0;
	} else {
		uint64_t row = quantised_row_bytes(&p->source);

		assert(offset % row == 0 && bytes % row == 0);
		rc = upload_convert_rows(upload, p, &quantised->sides, data, (uint32_t)(offset / row),
			(uint32_t)(bytes / row));
	}
	if (is_last)
		upload_quantised_deinit(quantised);
	return rc;
}
