/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_CONVERSION_H
#define MIMEO_DAEMON_MODEL_CONVERSION_H

/* Elements of a tensor, from the file's format to the model's dtype or to packed units, in tiles that threads share. A
 * tile is whole rows of a matrix that is quantised or rounded, or whole blocks. */

#include "daemon/model/plan.h"
#include "daemon/model/workers.h"

struct conversion {
	const struct plan_placement *placement;
	const struct quantised_sides *sides; /* of a quantised matrix */
	const char *path;                    /* of the file, for errors */
	const uint8_t *data; /* elements [first, first + n); of a matrix whose data is transposed, all of it */
	size_t first, n;
	void *ret; /* [n] of the placement's dtype, float32 or bf16; or the units of those rows */
	float *ret_factors; /* of a matrix that is rounded: those of its rows */
};

/* 0, or -errno with a sentence: a weight or a scale is not a number, a weight to be rounded is infinite, or no
 * memory. */
int conversion_run(const struct conversion *conversion, struct workers *workers, struct model_error *error);

#endif
