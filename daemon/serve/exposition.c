/* SPDX-License-Identifier: MIT */
#include "daemon/serve/exposition.h"

#include <assert.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <mimeo/types.h>

#include "daemon/output/metrics.h"
#include "daemon/serve/buffers.h"
#include "ipc/cleanup.h"

uint32_t exposition_open_fds(void)
{
	DIR *directory = opendir("/proc/self/fd");
	uint32_t n = 0;

	if (!directory)
		return 0;
	for (struct dirent *entry; (entry = readdir(directory));)
		n += entry->d_name[0] != '.';
	closedir(directory);
	return n - 1; /* the directory's own */
}

uint64_t exposition_resident_bytes(void)
{
	FILE *file = fopen("/proc/self/statm", "re");
	unsigned long long pages = 0;

	if (!file)
		return 0;
	if (fscanf(file, "%*u %llu", &pages) != 1)
		pages = 0;
	fclose(file);
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

#define METRICS_TEXT_MAX (304u << 10) /* METRICS_MAX lines with the longest names of 32 models */
#define LABELS(...) ((const struct metric_label[METRIC_LABELS_MAX]){__VA_ARGS__})

/* ---- the engine's ---- */

static void exposition_steps(const struct engine_stats *stats, struct metrics *metrics)
{
#define COUNTER(name, help, member)                                                                \
	metrics_add(metrics, METRIC_COUNTER, "mimeo_" name "_total", help,                         \
		(double)atomic_load(&stats->member))
	COUNTER("steps", "Forward passes of models, without passes of draft models", n_steps);
	COUNTER("replays", "Graph replays", n_replays);
	COUNTER("shared_replays", "Graph replays with rows of several client processes",
		n_shared_replays);
	for (unsigned reason = EAGER_NO + 1; reason < N_EAGER_REASONS; reason++)
		metrics_add_labelled(metrics, METRIC_COUNTER, "mimeo_eager_steps_total",
			"Steps that ran without a graph, by reason",
			LABELS({"reason", eager_reason_name(reason)}),
			(double)atomic_load(&stats->n_eager[reason]));
	COUNTER("rows", "Rows of all steps, without padding", n_rows);
	COUNTER("padded_rows", "Token rows that graph replays computed as padding", n_padded_rows);
	COUNTER("discarded_rows", "Rows computed after their request had ended", n_discarded_rows);
	COUNTER("tokens_processed", "Input tokens processed", n_tokens_in);
	COUNTER("tokens_generated", "Tokens generated", n_tokens_out);
	COUNTER("requests", "Requests accepted", n_requests);
	COUNTER("requests_finished", "Requests that ended successfully", n_finished);
	COUNTER("requests_cancelled", "Requests that were cancelled", n_cancelled);
	COUNTER("requests_failed", "Requests that ended with an error", n_failed);
	COUNTER("requests_refused", "Requests that were refused when they were submitted", n_refused);
	COUNTER("engine_sleeps", "Times that the engine thread slept", n_sleeps);
	COUNTER("engine_work_nanoseconds",
		"Time of engine turns that launched a step or read its results, in nanoseconds",
		work_ns);
	COUNTER("lane_nanoseconds", "Device time of steps, in nanoseconds", lane_ns);
	COUNTER("lane_gaps", "Gaps between decode steps", n_gaps);
	COUNTER("lane_gap_nanoseconds", "Device idle time in gaps between decode steps, in nanoseconds",
		gap_ns);
	COUNTER("lane_long_gaps", "Gaps between decode steps longer than 10 microseconds", n_long_gaps);
	COUNTER("lane_long_gap_nanoseconds",
		"Device idle time in gaps between decode steps longer than 10 microseconds, in nanoseconds",
		long_gap_ns);
	COUNTER("late_captures", "Graphs captured while serving", n_late_captures);
	COUNTER("late_capture_nanoseconds",
		"Engine time spent capturing graphs while serving, in nanoseconds", late_capture_ns);
#undef COUNTER
}

static void exposition_gauges(const struct serve *serve, struct metrics *metrics)
{
	const struct engine_stats *stats = engine_stats(serve->options.engine);

#define GAUGE(name, help, value) metrics_add(metrics, METRIC_GAUGE, "mimeo_" name, help, (value))
	GAUGE("serving", "1 while the daemon accepts new sessions and requests, else 0",
		serve->state == SERVE_SERVING);
	GAUGE("draining", "1 while the daemon finishes the requests in flight before it exits, else 0",
		serve->state == SERVE_DRAINING);
	GAUGE("device_healthy", "1 unless the device is lost",
		atomic_load(&stats->device_condition) == 0);
	GAUGE("uptime_seconds", "Time since the daemon started, loading included, in seconds",
		(double)(serve_now_ms() - serve->started_ms) / 1e3);
	GAUGE("sessions", "Sessions attached", serve->n_sessions);
	GAUGE("sequences", "Sequences open", atomic_load(&stats->n_sequences));
	GAUGE("requests_running", "Requests that have a slot", atomic_load(&stats->n_running));
	GAUGE("requests_waiting", "Requests that wait for a slot", atomic_load(&stats->n_waiting));
	GAUGE("slots_free", "Free slots for running requests", atomic_load(&stats->n_slots_free));
	GAUGE("slots_total", "Slots for running requests", serve->options.max_requests);
	if (serve->options.builder) {
		uint32_t n_closing, n_buffers = buffers_count_all(serve, &n_closing);

		GAUGE("buffers", "Device buffers of all clients", n_buffers);
		GAUGE("buffer_bytes", "Memory of all clients' device buffers, in bytes",
			(double)builder_bytes(serve->options.builder));
		GAUGE("buffers_closing", "Closed device buffers and fences whose memory is still in use",
			n_closing);
	}
	GAUGE("descriptors_closing", "Pending closes of descriptors that clients sent",
		closer_n(serve->closer));
	GAUGE("open_fds", "Open file descriptors of the daemon", exposition_open_fds());
	GAUGE("resident_bytes", "Resident memory of the daemon's process, in bytes",
		(double)exposition_resident_bytes());
#undef GAUGE
	metrics_add(metrics, METRIC_COUNTER, "mimeo_sessions_total",
		"Sessions attached since the daemon started", (double)serve->n_sessions_total);
	metrics_add(metrics, METRIC_COUNTER, "mimeo_sessions_refused_total",
		"Connections that were refused", (double)serve->n_refused);
}

/* ---- each model's, with its draft model's ---- */

static uint64_t exposition_captures(const struct engine *engine, uint32_t model)
{
	struct engine_graph_facts facts;
	uint64_t n = 0;

	for (uint32_t i = 0; engine_graph_facts(engine, model, i, &facts); i++)
		n += facts.n_captures;
	return n;
}

static uint64_t exposition_eager_passes(const struct engine_model_facts *facts)
{
	uint64_t n = 0;

	for (unsigned reason = EAGER_NO + 1; reason < N_EAGER_REASONS; reason++)
		n += facts->n_prefill_eager[reason] + facts->n_decode_eager[reason];
	return n;
}

/* A sample for each model for which the condition is true: `m` are its facts, `i` its index. */
#define MODELS(type, suffix, help, condition, value)                                                 \
	for (uint32_t i = 0; i < n_models; i++) {                                                  \
		const struct engine_model_facts *m = &models[i];                                   \
		if (condition)                                                                     \
			metrics_add_labelled(metrics, type, "mimeo_" suffix, help,                   \
				LABELS({"model", m->name}), (double)(value));                      \
	}

static void exposition_models(const struct engine *engine, const struct engine_model_facts *models,
	uint32_t n_models, struct metrics *metrics)
{
#define GAUGE(name, help, value) MODELS(METRIC_GAUGE, name, help, true, value)
#define COUNTER(name, help, value) MODELS(METRIC_COUNTER, name, help, true, value)
	GAUGE("pages_free", "Free pages of the KV cache", m->pages_free)
	GAUGE("pages_total", "Pages of the KV cache", m->pages_total)
	GAUGE("pages_cached", "Free pages whose tokens the prefix cache has", m->pages_cached)
	COUNTER("cached_tokens_total", "Tokens that were not computed, as the prefix cache had them",
		m->n_cached_tokens)
	COUNTER("graph_captures_total", "Graph captures", exposition_captures(engine, i))
	GAUGE("graph_capture_seconds", "Time to capture the present graphs, in seconds",
		m->capture_seconds)
	GAUGE("graph_bytes", "Memory of graph executables, in bytes", m->graph_bytes)
	GAUGE("graphs", "Graphs captured", m->n_ready)
	GAUGE("kv_bytes", "Memory of the KV cache, in bytes", m->kv_bytes)
	GAUGE("pool_bytes", "Memory of activations and step inputs, in bytes", m->pool_bytes)
	GAUGE("weights_bytes", "Memory of the weights and rope tables, in bytes", m->weights_bytes)
	GAUGE("weights_read_bytes", "Bytes read from files to load the weights", m->weights_read_bytes)
	GAUGE("weights_load_seconds", "Time to read and upload the weights, in seconds",
		m->load_seconds)
	COUNTER("model_tokens_generated_total", "Tokens generated by a model", m->n_tokens_out)
	COUNTER("evicted_sequences_total",
		"Idle sequences whose pages others took; computed once more if named again", m->n_evicted)
	COUNTER("preempted_requests_total",
		"Times a generate request gave up its pages, to be computed once more", m->n_preempted)
	COUNTER("not_finite_rows_total",
		"Rows without a token because their logits held a NaN or an infinity", m->n_not_finite)
#undef GAUGE
#undef COUNTER
}

static void exposition_drafts(
	const struct engine_model_facts *models, uint32_t n_models, struct metrics *metrics)
{
#define COUNTER(name, help, value) MODELS(METRIC_COUNTER, name "_total", help, m->n_drafts, value)
	COUNTER("verified_rows", "Rows in which a model verified draft tokens", m->speculation.n_rows)
	COUNTER("verified_tokens",
		"Tokens that verifications of draft tokens gave, accepted ones and the token after them",
		m->speculation.n_tokens)
	COUNTER("draft_steps", "Steps that ran a draft model", m->speculation.n_draft_steps)
	COUNTER("draft_nanoseconds", "Device time of draft models, in nanoseconds",
		m->speculation.draft_ns)
	COUNTER("draft_eager_passes", "Passes of draft models that ran without a graph",
		exposition_eager_passes(m))
#undef COUNTER
}

static void exposition_undrafted(
	const struct engine_model_facts *models, uint32_t n_models, struct metrics *metrics)
{
	static const char *const reasons[N_UNDRAFTED] = {
		[UNDRAFTED_ASKED] = "asked",
		[UNDRAFTED_MASK] = "mask",
		[UNDRAFTED_SEQUENCE] = "sequence",
		[UNDRAFTED_STEP] = "step",
	};

	for (uint32_t model = 0; model < n_models; model++) {
		for (unsigned i = 0; i < N_UNDRAFTED && models[model].n_drafts; i++)
			metrics_add_labelled(metrics, METRIC_COUNTER, "mimeo_undrafted_rows_total",
				"Rows that decoded without draft tokens although the model has a draft "
				"model, by reason",
				LABELS({"model", models[model].name}, {"reason", reasons[i]}),
				(double)models[model].speculation.n_undrafted[i]);
	}
}

static void exposition_positions(const struct engine_model_facts *models, uint32_t n_models,
	struct metrics *metrics, bool accepted)
{
	static const char *const positions[ENGINE_DRAFTS_MAX] = {
		"1", "2", "3", "4", "5", "6", "7", "8"};

	for (uint32_t model = 0; model < n_models; model++) {
		const struct engine_speculation *s = &models[model].speculation;

		assert(models[model].n_drafts <= ENGINE_DRAFTS_MAX);
		for (uint32_t i = 0; i < models[model].n_drafts; i++)
			metrics_add_labelled(metrics, METRIC_COUNTER,
				accepted ? "mimeo_drafts_accepted_total"
					 : "mimeo_drafts_offered_total",
				accepted ? "Draft tokens accepted, together with all draft tokens "
					   "before them, by position"
					 : "Draft tokens that their request could take, by position",
				LABELS({"model", models[model].name}, {"position", positions[i]}),
				(double)(accepted ? s->n_accepted[i] : s->n_offered[i]));
	}
}

static void exposition_collect(const struct serve *serve, struct metrics *metrics)
{
	const struct engine *engine = serve->options.engine;
	uint32_t n_models = engine_n_models(engine);
	struct engine_model_facts models[ENGINE_MODELS_MAX];

	assert(n_models <= ENGINE_MODELS_MAX);
	for (uint32_t i = 0; i < n_models; i++)
		engine_model_facts(engine, i, &models[i]);
	exposition_steps(engine_stats(engine), metrics);
	exposition_gauges(serve, metrics);
	exposition_models(engine, models, n_models, metrics);
	exposition_drafts(models, n_models, metrics);
	exposition_undrafted(models, n_models, metrics);
	exposition_positions(models, n_models, metrics, false);
	exposition_positions(models, n_models, metrics, true);
}

static void exposition_row(const struct metric *metric, struct reply *reply)
{
	bool counts = metric->type == METRIC_COUNTER;
	const struct reply_cell cells[] = {
		CELL_TEXT("name", metric->name),
		CELL_TEXT("type", counts ? "counter" : "gauge"),
		CELL_TEXT("label", metric->labels[0].name),
		CELL_TEXT("label_value", metric->labels[0].value),
		CELL_TEXT("label_2", metric->labels[1].name),
		CELL_TEXT("label_2_value", metric->labels[1].value),
		{
			.key = "value",
			.kind = counts ? REPLY_COUNT : REPLY_NUMBER,
			.count = counts ? (uint64_t)metric->value : 0,
			.number = metric->value,
		},
	};

	reply_row(reply, cells, sizeof(cells) / sizeof(cells[0]));
}

void exposition_answer(struct serve *serve, struct reply *reply)
{
	CLEANUP(cleanup_free) struct metrics *metrics = calloc(1, sizeof(*metrics));
	CLEANUP(cleanup_free) char *text = malloc(METRICS_TEXT_MAX);

	if (!metrics || !text) {
		reply_say(reply, MIMEO_E_NO_MEMORY, "out of memory for the metrics");
		return;
	}
	exposition_collect(serve, metrics);
	if (metrics->n_dropped || metrics_render(metrics, text, METRICS_TEXT_MAX) < 0) {
		reply_say(reply, MIMEO_E_NO_MEMORY, "too many metrics for a reply");
		return;
	}
	reply_say(reply, 0, text);
	for (uint32_t i = 0; i < metrics->n_samples; i++)
		exposition_row(&metrics->samples[i], reply);
}
