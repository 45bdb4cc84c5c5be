/* SPDX-License-Identifier: MIT */

/* Rows that are rounded to e4m3 on their way to the device. */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/model/conversion.h"
#include "daemon/model/error.h"
#include "daemon/model/upload.h"
#include "ipc/cleanup.h"

static int upload_copy_rounded(
	struct upload *upload, const struct plan_placement *p, uint64_t first, uint64_t n, const float *factors)
{
	const struct device_ops *ops = upload->device->ops;
	const size_t row = plan_row_bytes(p);
	int rc = ops->copy(upload->device, p->target + first * row, upload->converted, n * row);

	if (!rc && p->factors)
		rc = ops->copy(upload->device, p->factors + first, factors, n * sizeof(*factors));
	return rc ? upload_failed(upload, rc) : 0;
}

int upload_take_rounded(struct upload *upload, uint32_t placement, uint64_t offset, const void *data, size_t bytes)
{
	const struct plan_placement *p = &upload->placements[placement];
	const uint64_t row = upload_row_bytes(p), first = offset / row, n = bytes / row, cols = plan_cols(p);
	const char *path = upload->checkpoint->files[p->tensor->file].path;
	CLEANUP(cleanup_free) float *factors = malloc(n * sizeof(*factors));
	int rc;

	assert(offset % row == 0 && bytes % row == 0 && n * plan_row_bytes(p) <= upload->converted_bytes);
	if (!factors)
		return model_fail(upload->error, -ENOMEM, "%s: no memory for tensor \"%.128s\"", path, p->tensor->name);
	rc = conversion_run(&(struct conversion){.placement = p,
				    .path = path,
				    .data = data,
				    .first = first * cols,
				    .n = n * cols,
				    .ret = upload->converted,
				    .ret_factors = factors},
		upload->workers, upload->error);
	return rc ? rc : upload_copy_rounded(upload, p, first, n, factors);
}
