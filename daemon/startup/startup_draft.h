/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_STARTUP_STARTUP_DRAFT_H
#define MIMEO_DAEMON_STARTUP_STARTUP_DRAFT_H

/* The draft model of one model. Both functions do nothing for a model without one; they return 0, or
 * -errno with *error filled in. */

#include "daemon/startup/startup_model.h"

/* Checks device, mask, config and attention of the draft model, and adds its weights and its part of a
 * page to the model's memory. The model has been examined. */
int startup_draft_examine(struct startup_model *model, const struct config *config,
	const struct device *device, const struct device_info *info, struct startup_error *error);
/* Reads the draft model's weights; options: those of the loaded model, which own them. */
int startup_draft_load(const struct startup_model *model, struct engine_model_options *options,
	struct startup_error *error);

#endif
