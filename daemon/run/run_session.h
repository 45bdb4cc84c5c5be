/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_RUN_SESSION_H
#define MIMEO_DAEMON_RUN_SESSION_H

/* What the parts of mimeo-run share: the connection, the model and its text. */

#include "daemon/run/run_options.h"
#include "daemon/run/run_text.h"

struct run_session {
	const struct run_options *options;
	struct mimeo *m;
	uint32_t index; /* of the model */
	const struct mimeo_model_info *model;
	struct run_text text;
};

#endif
