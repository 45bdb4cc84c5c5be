/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_SERVE_EXPOSITION_HISTOGRAMS_H
#define MIMEO_DAEMON_SERVE_EXPOSITION_HISTOGRAMS_H

/* The histograms of the engine and of each model. */

#include "daemon/engine/engine.h"
#include "daemon/output/metrics.h"

void exposition_histograms(const struct engine_stats *stats, const struct engine_model_facts *models,
	uint32_t n_models, struct metrics *metrics);

#endif
