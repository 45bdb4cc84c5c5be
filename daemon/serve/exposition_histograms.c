/* SPDX-License-Identifier: MIT */
#include "daemon/serve/exposition_histograms.h"

#include <assert.h>

static const struct exposition_histogram {
	const char *name, *help;
	bool counts; /* else times */
} exposition_distributions[N_ENGINE_DISTRIBUTIONS] = {
	[ENGINE_FIRST_TOKEN] = {"mimeo_first_token_seconds",
		"Time from the submission of a generate request to its first token."},
	[ENGINE_TOKEN] = {"mimeo_token_seconds",
		"Time between two tokens of a request; tokens that come together share it evenly."},
	[ENGINE_QUEUE] = {"mimeo_queue_seconds",
		"Time from the submission of a generate or step request to its start."},
	[ENGINE_REQUEST] = {"mimeo_request_seconds",
		"Time from the submission of a generate or step request to its end."},
	[ENGINE_STEP] = {"mimeo_step_seconds", "Device time of a step."},
	[ENGINE_ROWS] = {"mimeo_step_rows", "Rows of a step, without padding.", true},
	[ENGINE_STEP_SESSIONS] = {"mimeo_step_sessions", "Sessions that have rows in a step.", true},
};

/* Read while the engine counts: the count is of the buckets as they are read. */
static void exposition_histogram(const struct exposition_histogram *what, struct metric_label label,
	const struct histogram *histogram, struct metrics *metrics)
{
	const struct histogram_bound *table = what->counts ? histogram_counts : histogram_times;
	const char *bounds[HISTOGRAM_BOUNDS];
	uint64_t counts[HISTOGRAM_BOUNDS + 1];
	const unsigned n = what->counts ? HISTOGRAM_COUNT_BOUNDS : HISTOGRAM_BOUNDS;

	for (unsigned i = 0; i < n; i++)
		bounds[i] = table[i].le;
	for (unsigned i = 0; i <= n; i++)
		counts[i] = counter_read(&histogram->buckets[i]);
	metrics_add_histogram(metrics, what->name, what->help, label, &(struct metric_histogram){
		.bounds = bounds,
		.counts = counts,
		.n = n,
		.sum = (double)counter_read(&histogram->sum) * (what->counts ? 1 : 1e-9),
	});
}

void exposition_histograms(const struct engine_stats *stats, const struct engine_model_facts *models,
	uint32_t n_models, struct metrics *metrics)
{
	static const struct exposition_histogram wake = {"mimeo_wake_seconds",
		"Time from the end of a step to the engine's reading of it, of steps during which it slept."};

	exposition_histogram(&wake, (struct metric_label){NULL, NULL}, &stats->wake, metrics);
	for (unsigned i = 0; i < N_ENGINE_DISTRIBUTIONS; i++) {
		for (uint32_t model = 0; model < n_models; model++) {
			assert(models[model].distributions);
			exposition_histogram(&exposition_distributions[i],
				(struct metric_label){"model", models[model].name},
				&models[model].distributions[i], metrics);
		}
	}
}
