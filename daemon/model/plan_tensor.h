/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_PLAN_TENSOR_H
#define MIMEO_DAEMON_MODEL_PLAN_TENSOR_H

/* A needed tensor of the checkpoint, as it is or quantised, checked. */

#include "daemon/model/plan.h"

/* May the tensor be quantised? */
enum plan_kind {
	PLAN_LINEAR, /* it has to be what the configuration says of its module */
	PLAN_EITHER, /* formats leave it as it is in general, and need not say so */
	PLAN_PLAIN,
};

struct plan_want {
	const char *name;    /* of the tensor that is not quantised: "MODULE.weight" */
	uint32_t rows, cols; /* cols 0: a vector of `rows` elements */
	enum plan_kind kind;
};

/* Set the placement's tensor and its source. False: the plan has failed, now or before. */
bool plan_tensor_find(struct plan *plan, const struct plan_want *want, struct plan_placement *ret);

#endif
