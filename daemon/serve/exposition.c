/* SPDX-License-Identifier: MIT */
#include "daemon/serve/exposition.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <mimeo/types.h>

#include "build-config.h"
#include "daemon/output/metrics.h"
#include "daemon/serve/buffers.h"
#include "daemon/serve/exposition_histograms.h"
#include "daemon/serve/exposition_process.h"
#include "daemon/serve/exposition_users.h"
#include "ipc/cleanup.h"

#define METRICS_TEXT_MAX (160u * METRICS_MAX) /* 32 models with the longest names */
#define LABELS(...) ((const struct metric_label[METRIC_LABELS_MAX]){__VA_ARGS__})

/* ---- the engine's ---- */

static void exposition_build(const struct serve *serve, struct metrics *metrics)
{
	metrics_add_labelled(metrics, METRIC_GAUGE, "mimeo_build_info",
		"1, with the daemon's version and its device as labels.",
		LABELS({"version", MIMEO_VERSION}, {"device", serve->options.device}), 1);
}

static const struct exposition_status {
	int status;
	const char *name;
} exposition_statuses[] = {
	{MIMEO_E_INVALID, "invalid"},
	{MIMEO_E_DEADLINE, "deadline"},
	{MIMEO_E_TOO_LONG, "too_long"},
	{MIMEO_E_NO_MEMORY, "no_memory"},
	{MIMEO_E_UNKNOWN_MODEL, "unknown_model"},
	{MIMEO_E_UNKNOWN_SEQUENCE, "unknown_sequence"},
	{MIMEO_E_UNSUPPORTED, "unsupported"},
	{MIMEO_E_UNKNOWN_BUFFER, "unknown_buffer"},
	{MIMEO_E_NOT_FINITE, "not_finite"},
	{MIMEO_E_NO_TOKEN, "no_token"},
	{MIMEO_E_GONE, "gone"},
	{MIMEO_E_QUOTA, "quota"},
	{MIMEO_E_DEVICE_LOST, "device_lost"},
	{MIMEO_E_DRAINING, "draining"},
};
enum { N_STATUSES = sizeof(exposition_statuses) / sizeof(exposition_statuses[0]) };

static bool exposition_has_status(int status)
{
	for (int i = 0; i < N_STATUSES; i++) {
		if (exposition_statuses[i].status == status)
			return true;
	}
	return false;
}

static void exposition_failed_with(const char *status, uint64_t n, struct metrics *metrics)
{
	metrics_add_labelled(metrics, METRIC_COUNTER, "mimeo_requests_failed_total",
		"Requests that ended with an error, by status.", LABELS({"status", status}), (double)n);
}

static void exposition_failed(const struct engine_stats *stats, struct metrics *metrics)
{
	uint64_t n_other = 0;

	for (int i = 0; i < N_STATUSES; i++)
		exposition_failed_with(exposition_statuses[i].name,
			atomic_load(&stats->n_failed_with[-exposition_statuses[i].status]), metrics);
	for (int i = 0; i < ENGINE_STATUSES; i++)
		n_other += exposition_has_status(-i) ? 0 : atomic_load(&stats->n_failed_with[i]);
	exposition_failed_with("other", n_other, metrics);
}

static void exposition_steps(const struct engine_stats *stats, struct metrics *metrics)
{
#define COUNTER(name, help, member)                                                                \
	metrics_add(metrics, METRIC_COUNTER, "mimeo_" name "_total", help,                         \
		(double)atomic_load(&stats->member))
#define SECONDS(name, help, member)                                                                \
	metrics_add(metrics, METRIC_SECONDS, "mimeo_" name "_seconds_total", help,                 \
		(double)atomic_load(&stats->member) * 1e-9)
	COUNTER("steps", "Forward passes of models, without passes of draft models.", n_steps);
	COUNTER("replays", "Graph replays.", n_replays);
	COUNTER("shared_replays", "Graph replays with rows of several client processes.",
		n_shared_replays);
	for (unsigned reason = EAGER_NO + 1; reason < N_EAGER_REASONS; reason++)
		metrics_add_labelled(metrics, METRIC_COUNTER, "mimeo_eager_steps_total",
			"Steps that ran without a graph, by reason.",
			LABELS({"reason", eager_reason_name(reason)}),
			(double)atomic_load(&stats->n_eager[reason]));
	COUNTER("rows", "Rows of all steps, without padding.", n_rows);
	COUNTER("padded_rows", "Token rows that graph replays computed as padding.", n_padded_rows);
	COUNTER("discarded_rows", "Rows computed after their request had ended.", n_discarded_rows);
	COUNTER("tokens_processed", "Input tokens processed.", n_tokens_in);
	COUNTER("tokens_generated", "Tokens generated.", n_tokens_out);
	COUNTER("requests", "Requests accepted.", n_requests);
	COUNTER("requests_finished", "Requests that ended successfully.", n_finished);
	COUNTER("requests_cancelled", "Requests that were cancelled.", n_cancelled);
	exposition_failed(stats, metrics);
	COUNTER("requests_refused", "Requests that were refused when they were submitted.", n_refused);
	COUNTER("ring_full",
		"Times that a session's completion ring had no space for another request.", n_ring_full);
	COUNTER("engine_sleeps", "Times that the engine thread slept.", n_sleeps);
	SECONDS("engine_work", "Time of engine turns that launched a step or read its results.", work_ns);
	SECONDS("lane", "Device time of steps.", lane_ns);
	COUNTER("lane_gaps", "Gaps between decode steps.", n_gaps);
	SECONDS("lane_gap", "Device idle time in gaps between decode steps.", gap_ns);
	COUNTER("lane_long_gaps", "Gaps between decode steps longer than 10 microseconds.", n_long_gaps);
	SECONDS("lane_long_gap",
		"Device idle time in gaps between decode steps longer than 10 microseconds.", long_gap_ns);
	COUNTER("late_captures", "Graphs captured while serving.", n_late_captures);
	SECONDS("late_capture", "Engine time spent capturing graphs while serving.", late_capture_ns);
#undef SECONDS
#undef COUNTER
}

static uint32_t exposition_slots(const struct engine *engine)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < engine_n_models(engine); i++) {
		struct engine_model_facts facts;

		engine_model_facts(engine, i, &facts);
		n += facts.max_rows;
	}
	return n;
}

#define QUOTA_NAME "mimeo_quota_refusals_total"
#define QUOTA_HELP "Connections, requests, and calls about buffers that were refused for a limit."

static void exposition_gauges(const struct serve *serve, struct metrics *metrics)
{
	const struct engine_stats *stats = engine_stats(serve->options.engine);
	uint32_t n_closing, n_buffers = buffers_count_all(serve, &n_closing);

#define GAUGE(name, help, value) metrics_add(metrics, METRIC_GAUGE, "mimeo_" name, help, (value))
	GAUGE("serving", "1 while the daemon accepts new sessions and requests, else 0.",
		serve->state == SERVE_SERVING);
	GAUGE("draining", "1 while the daemon finishes the requests in flight before it exits, else 0.",
		serve->state == SERVE_DRAINING);
	GAUGE("device_healthy", "1 unless the device is lost.",
		atomic_load(&stats->device_condition) == 0);
	GAUGE("sessions", "Sessions attached.", serve->n_sessions);
	GAUGE("sequences", "Sequences open.", atomic_load(&stats->n_sequences));
	GAUGE("requests_running", "Requests that have a slot.", atomic_load(&stats->n_running));
	GAUGE("requests_waiting", "Requests that wait for a slot.", atomic_load(&stats->n_waiting));
	GAUGE("slots", "Slots for running requests.", exposition_slots(serve->options.engine));
	GAUGE("slots_free", "Free slots for running requests.", atomic_load(&stats->n_slots_free));
	GAUGE("buffers", "Device buffers of all clients.", n_buffers);
	GAUGE("buffer_bytes", "Memory of all clients' device buffers.",
		serve->options.builder ? (double)builder_bytes(serve->options.builder) : 0);
	GAUGE("buffers_closing", "Closed device buffers and fences whose memory is still in use.", n_closing);
	GAUGE("descriptors_closing", "Pending closes of descriptors that clients sent.",
		closer_n(serve->closer));
#undef GAUGE
	metrics_add(metrics, METRIC_COUNTER, "mimeo_sessions_total",
		"Sessions attached since the daemon started.", (double)serve->n_sessions_total);
	metrics_add(metrics, METRIC_COUNTER, "mimeo_sessions_refused_total",
		"Connections that were refused.", (double)serve->n_refused);
	metrics_add(metrics, METRIC_COUNTER, "mimeo_sessions_reclaimed_total",
		"Sessions that ended with requests in flight or open sequences, which the daemon released.",
		(double)serve->n_reclaimed);
	metrics_add_labelled(metrics, METRIC_COUNTER, QUOTA_NAME, QUOTA_HELP, LABELS({"of", "session"}),
		(double)serve->n_quota_sessions);
	metrics_add_labelled(metrics, METRIC_COUNTER, QUOTA_NAME, QUOTA_HELP, LABELS({"of", "buffer"}),
		(double)serve->n_quota_buffers);
	metrics_add_labelled(metrics, METRIC_COUNTER, QUOTA_NAME, QUOTA_HELP, LABELS({"of", "request"}),
		(double)atomic_load(&stats->n_failed_with[-MIMEO_E_QUOTA]));
	metrics_add(metrics, METRIC_COUNTER, "mimeo_device_faults_total",
		"Times that the device was lost; the daemon ends after one.",
		atomic_load(&stats->device_condition) != 0);
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
	GAUGE("pages_free", "Free pages of the KV cache.", m->pages_free)
	GAUGE("pages", "Pages of the KV cache.", m->pages_total)
	GAUGE("pages_cached", "Free pages whose tokens the prefix cache has.", m->pages_cached)
	COUNTER("prompt_tokens_total", "Prompt tokens of requests, cached ones included.", m->n_prompt_tokens)
	COUNTER("prefix_hits_total", "Rows that began with tokens of the prefix cache.", m->n_prefix_hits)
	COUNTER("cached_tokens_total", "Tokens that were not computed, as the prefix cache had them.",
		m->n_cached_tokens)
	COUNTER("graph_captures_total", "Graph captures.", exposition_captures(engine, i))
	GAUGE("graph_capture_seconds", "Time to capture the present graphs.",
		m->capture_seconds)
	GAUGE("graph_bytes", "Memory of graph executables.", m->graph_bytes)
	GAUGE("graphs", "Graphs captured.", m->n_ready)
	GAUGE("kv_bytes", "Memory of the KV cache.", m->kv_bytes)
	GAUGE("pool_bytes", "Memory of activations and step inputs.", m->pool_bytes)
	GAUGE("weights_bytes", "Memory of the weights and rope tables.", m->weights_bytes)
	GAUGE("weights_read_bytes", "Bytes read from files to load the weights.", m->weights_read_bytes)
	GAUGE("weights_load_seconds", "Time to read and upload the weights.",
		m->load_seconds)
	COUNTER("model_tokens_generated_total", "Tokens generated by a model.", m->n_tokens_out)
	COUNTER("evicted_sequences_total",
		"Idle sequences whose pages others took; computed once more if named again.", m->n_evicted)
	COUNTER("preempted_requests_total",
		"Times a generate request gave up its pages, to be computed once more.", m->n_preempted)
	COUNTER("not_finite_rows_total",
		"Rows without a token because their logits held a NaN or an infinity.", m->n_not_finite)
#undef GAUGE
#undef COUNTER
}

static void exposition_drafts(
	const struct engine_model_facts *models, uint32_t n_models, struct metrics *metrics)
{
#define COUNTER(name, help, value) MODELS(METRIC_COUNTER, name "_total", help, m->n_drafts, value)
	COUNTER("verified_rows", "Rows in which a model verified draft tokens.", m->speculation.n_rows)
	COUNTER("verified_tokens",
		"Tokens that verifications of draft tokens gave, accepted ones and the token after them.",
		m->speculation.n_tokens)
	COUNTER("draft_steps", "Steps that ran a draft model.", m->speculation.n_draft_steps)
	MODELS(METRIC_SECONDS, "draft_seconds_total", "Device time of draft models.", m->n_drafts,
		(double)m->speculation.draft_ns * 1e-9)
	COUNTER("draft_eager_passes", "Passes of draft models that ran without a graph.",
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
				"model, by reason.",
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
					   "before them, by position."
					 : "Draft tokens that their request could take, by position.",
				LABELS({"model", models[model].name}, {"position", positions[i]}),
				(double)(accepted ? s->n_accepted[i] : s->n_offered[i]));
	}
}

static void exposition_collect(const struct serve *serve, struct exposition_names *names, struct metrics *metrics)
{
	const struct engine *engine = serve->options.engine;
	uint32_t n_models = engine_n_models(engine);
	struct engine_model_facts models[ENGINE_MODELS_MAX];

	assert(n_models <= ENGINE_MODELS_MAX);
	for (uint32_t i = 0; i < n_models; i++)
		engine_model_facts(engine, i, &models[i]);
	exposition_build(serve, metrics);
	exposition_process(metrics);
	exposition_steps(engine_stats(engine), metrics);
	exposition_gauges(serve, metrics);
	exposition_users(serve, names, metrics);
	exposition_histograms(engine_stats(engine), models, n_models, metrics);
	exposition_models(engine, models, n_models, metrics);
	exposition_drafts(models, n_models, metrics);
	exposition_undrafted(models, n_models, metrics);
	exposition_positions(models, n_models, metrics, false);
	exposition_positions(models, n_models, metrics, true);
}

static void exposition_row(const struct metric *metric, struct reply *reply)
{
	bool counts = metric_is_whole(metric);
	char name[96];

	snprintf(name, sizeof(name), "%s%s", metric->name, metric->suffix);
	const struct reply_cell cells[] = {
		CELL_TEXT("name", name),
		CELL_TEXT("type", metric_type_name(metric->type)),
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

/* The metrics and their text; *metrics may be freed before it. 0, -ENOMEM or -ENOSPC. */
static int exposition_render(struct serve *serve, struct metrics **ret, struct exposition_names *names, char **ret_text)
{
	CLEANUP(cleanup_free) struct metrics *metrics = calloc(1, sizeof(*metrics));
	CLEANUP(cleanup_free) char *text = malloc(METRICS_TEXT_MAX);

	if (!metrics || !text)
		return -ENOMEM;
	exposition_collect(serve, names, metrics);
	int rc = metrics->n_dropped ? -ENOSPC : metrics_render(metrics, text, METRICS_TEXT_MAX);
	if (rc < 0)
		return rc;
	*ret = STEAL(metrics);
	*ret_text = STEAL(text);
	return 0;
}

int exposition_text(struct serve *serve, char **ret)
{
	CLEANUP(cleanup_free) struct metrics *metrics = NULL;
	struct exposition_names names;

	return exposition_render(serve, &metrics, &names, ret);
}

void exposition_answer(struct serve *serve, struct reply *reply)
{
	CLEANUP(cleanup_free) struct metrics *metrics = NULL;
	CLEANUP(cleanup_free) char *text = NULL;
	struct exposition_names names;

	int rc = exposition_render(serve, &metrics, &names, &text);
	if (rc < 0) {
		reply_say(reply, MIMEO_E_NO_MEMORY,
			rc == -ENOMEM ? "out of memory for the metrics" : "too many metrics for a reply");
		return;
	}
	reply_say(reply, 0, text);
	for (uint32_t i = 0; i < metrics->n_samples; i++)
		exposition_row(&metrics->samples[i], reply);
}
