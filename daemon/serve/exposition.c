/* SPDX-License-Identifier: MIT */
#include "daemon/serve/exposition.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <mimeo/types.h>

#include "daemon/output/metrics.h"
#include "daemon/serve/buffers.h"

uint32_t exposition_open_fds(void)
{
	DIR *folder = opendir("/proc/self/fd");
	uint32_t n = 0;

	if (!folder)
		return 0;
	for (struct dirent *entry; (entry = readdir(folder));)
		n += entry->d_name[0] != '.';
	closedir(folder);
	return n - 1; /* the folder's own */
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

#define METRICS_TEXT_MAX (256u << 10) /* METRICS_MAX lines, of 32 models' longest names */
#define LABELS(...) ((const struct metric_label[METRIC_LABELS_MAX]){__VA_ARGS__})

/* ---- the engine's ---- */

static void collect_steps(const struct engine_stats *stats, struct metrics *metrics)
{
	static const char eager[] = "mimeo_eager_steps_total";
	static const char eager_help[] = "Steps that no graph served, by reason";

#define COUNTER(name, help, member)                                                                \
	metrics_add(metrics, METRIC_COUNTER, "mimeo_" name "_total", help,                         \
		(double)atomic_load(&stats->member))
	COUNTER("steps", "Forward passes of models, without those of drafts", n_steps);
	COUNTER("replays", "Graph replays", n_replays);
	COUNTER("shared_replays", "Graph replays that carried rows of several processes",
		n_shared_replays);
	for (unsigned reason = EAGER_NO + 1; reason < N_EAGER_REASONS; reason++)
		metrics_add_labelled(metrics, METRIC_COUNTER, eager, eager_help,
			LABELS({"reason", eager_reason_name(reason)}),
			(double)atomic_load(&stats->n_eager[reason]));
	COUNTER("rows", "Rows of all steps, without padding", n_rows);
	COUNTER("padded_rows", "Token rows that replays computed for padding", n_padded_rows);
	COUNTER("discarded_rows", "Rows computed after their request had ended", n_discarded_rows);
	COUNTER("tokens_processed", "Tokens taken in", n_tokens_in);
	COUNTER("tokens_generated", "Tokens generated", n_tokens_out);
	COUNTER("requests", "Requests taken in", n_requests);
	COUNTER("requests_finished", "Requests that ended well", n_finished);
	COUNTER("requests_cancelled", "Requests that were cancelled", n_cancelled);
	COUNTER("requests_failed", "Requests that ended with an error", n_failed);
	COUNTER("requests_refused", "Requests that were refused on sight", n_refused);
	COUNTER("engine_sleeps", "Times the engine thread slept", n_sleeps);
	COUNTER("engine_work_nanoseconds",
		"Time of the engine thread's turns that launched a step or read one", work_ns);
	COUNTER("lane_nanoseconds", "Time of steps on the device", lane_ns);
	COUNTER("lane_gaps", "Steps that generate on from the step before", n_gaps);
	COUNTER("lane_gap_nanoseconds", "Time that the device was idle ahead of those", gap_ns);
	COUNTER("lane_long_gaps", "Those with more than 10 microseconds of it", n_long_gaps);
	COUNTER("lane_long_gap_nanoseconds", "Idle time ahead of those", long_gap_ns);
	COUNTER("late_captures", "Graphs captured while serving", n_late_captures);
	COUNTER("late_capture_nanoseconds", "Time of their turns on the engine", late_capture_ns);
#undef COUNTER
}

static void collect_gauges(const struct serve *serve, struct metrics *metrics)
{
	const struct engine_stats *stats = engine_stats(serve->options.engine);

#define GAUGE(name, help, value) metrics_add(metrics, METRIC_GAUGE, "mimeo_" name, help, (value))
	GAUGE("serving", "1 while new sessions and requests are taken",
		serve->state == SERVE_SERVING);
	GAUGE("draining", "1 while what runs is finished", serve->state == SERVE_DRAINING);
	GAUGE("device_healthy", "1 unless the device is lost",
		atomic_load(&stats->device_condition) == 0);
	GAUGE("uptime_seconds", "Since the daemon serves",
		(double)(serve_now_ms() - serve->started_ms) / 1e3);
	GAUGE("sessions", "Sessions attached", serve->n_sessions);
	GAUGE("sequences", "Sequences open", atomic_load(&stats->n_sequences));
	GAUGE("requests_running", "Requests that have a slot", atomic_load(&stats->n_running));
	GAUGE("requests_waiting", "Requests that wait for one", atomic_load(&stats->n_waiting));
	GAUGE("slots_free", "Slots for running requests that are free",
		atomic_load(&stats->n_slots_free));
	GAUGE("slots_total", "Slots for running requests", serve->options.max_requests);
	if (serve->options.builder) {
		uint32_t n_closing, n_buffers = serve_buffers(serve, &n_closing);

		GAUGE("buffers", "Device buffers of all clients", n_buffers);
		GAUGE("buffer_bytes", "Memory of all clients' device buffers",
			(double)builder_bytes(serve->options.builder));
		GAUGE("buffers_closing", "Device buffers and fences to be given back",
			n_closing);
	}
	GAUGE("descriptors_closing", "Closes of what clients sent, or of sockets in which it lies, that have "
		"not ended", closer_n(serve->closer));
	GAUGE("open_fds", "File descriptors open", exposition_open_fds());
	GAUGE("resident_bytes", "Memory of the daemon's process", (double)exposition_resident_bytes());
#undef GAUGE
	metrics_add(metrics, METRIC_COUNTER, "mimeo_sessions_total", "Sessions ever attached",
		(double)serve->n_sessions_total);
	metrics_add(metrics, METRIC_COUNTER, "mimeo_sessions_refused_total",
		"Connections that were refused", (double)serve->n_refused);
}

/* ---- each model's, with its draft's ---- */

static double graph_captures(const struct engine *engine, uint32_t model)
{
	struct engine_graph_facts facts;
	double n = 0;

	for (uint32_t i = 0; engine_graph_facts(engine, model, i, &facts); i++)
		n += facts.n_captures;
	return n;
}

static double model_value(const struct engine *engine, uint32_t model, unsigned which)
{
	struct engine_model_facts facts;

	engine_model_facts(engine, model, &facts);
	switch (which) {
	case 0:
		return facts.pages_free;
	case 1:
		return facts.pages_total;
	case 2:
		return graph_captures(engine, model);
	case 3:
		return facts.capture_seconds;
	case 4:
		return (double)facts.graph_bytes;
	case 5:
		return facts.n_ready;
	case 6:
		return (double)facts.kv_bytes;
	case 7:
		return (double)facts.pool_bytes;
	case 8:
		return (double)facts.weights_bytes;
	case 9:
		return (double)facts.weights_read_bytes;
	case 10:
		return facts.load_seconds;
	default:
		return (double)facts.n_tokens_out;
	}
}

static void collect_models(const struct engine *engine, struct metrics *metrics)
{
	static const struct {
		const char *name, *help;
		enum metric_type type;
	} kinds[] = {
		{"mimeo_pages_free", "KV cache pages that are free", METRIC_GAUGE},
		{"mimeo_pages_total", "KV cache pages", METRIC_GAUGE},
		{"mimeo_graph_captures_total", "Graph captures", METRIC_COUNTER},
		{"mimeo_graph_capture_seconds", "What capturing the graphs that are there took", METRIC_GAUGE},
		{"mimeo_graph_bytes", "Memory that graph executables hold", METRIC_GAUGE},
		{"mimeo_graphs", "Graphs captured", METRIC_GAUGE},
		{"mimeo_kv_bytes", "Memory of the KV cache", METRIC_GAUGE},
		{"mimeo_pool_bytes", "Memory of activations and inputs", METRIC_GAUGE},
		{"mimeo_weights_bytes", "Memory of the weights", METRIC_GAUGE},
		{"mimeo_weights_read_bytes", "Read from files for the weights", METRIC_GAUGE},
		{"mimeo_weights_load_seconds", "Time that reading and uploading them took",
			METRIC_GAUGE},
		{"mimeo_model_tokens_generated_total", "Tokens generated by a model",
			METRIC_COUNTER},
	};

	for (unsigned which = 0; which < sizeof(kinds) / sizeof(kinds[0]); which++) {
		for (uint32_t model = 0; model < engine_n_models(engine); model++) {
			struct engine_model_facts facts;

			engine_model_facts(engine, model, &facts);
			metrics_add_labelled(metrics, kinds[which].type, kinds[which].name,
				kinds[which].help, LABELS({"model", facts.name}),
				model_value(engine, model, which));
		}
	}
}

/* ---- speculation ---- */

static double eager_passes(const struct engine_model_facts *facts)
{
	uint64_t n = 0;

	for (unsigned reason = EAGER_NO + 1; reason < N_EAGER_REASONS; reason++)
		n += facts->n_prefill_eager[reason] + facts->n_decode_eager[reason];
	return (double)n;
}

static double speculation_value(const struct engine_model_facts *facts, unsigned which)
{
	const struct engine_speculation *s = &facts->speculation;

	switch (which) {
	case 0:
		return (double)s->n_rows;
	case 1:
		return (double)s->n_tokens;
	case 2:
		return (double)s->n_draft_steps;
	case 3:
		return (double)s->draft_ns;
	default:
		return eager_passes(facts);
	}
}

/* Of each model with a draft. */
static void collect_drafts(const struct engine *engine, struct metrics *metrics)
{
	static const struct {
		const char *name, *help;
	} kinds[] = {
		{"mimeo_verified_rows_total", "Rows that verified drafts"},
		{"mimeo_verified_tokens_total", "Tokens that those rows gave"},
		{"mimeo_draft_steps_total", "Steps in which a draft ran"},
		{"mimeo_draft_nanoseconds_total", "Time of drafts on the device in those steps"},
		{"mimeo_draft_eager_passes_total", "Passes of drafts that no graph served"},
	};

	for (unsigned which = 0; which < sizeof(kinds) / sizeof(kinds[0]); which++) {
		for (uint32_t model = 0; model < engine_n_models(engine); model++) {
			struct engine_model_facts facts;

			engine_model_facts(engine, model, &facts);
			if (facts.n_drafts)
				metrics_add_labelled(metrics, METRIC_COUNTER, kinds[which].name,
					kinds[which].help, LABELS({"model", facts.name}),
					speculation_value(&facts, which));
		}
	}
}

/* Of each model with a draft, by why. */
static void collect_undrafted(const struct engine *engine, struct metrics *metrics)
{
	static const char *const reasons[N_UNDRAFTED] = {
		[UNDRAFTED_ASKED] = "asked",
		[UNDRAFTED_MASK] = "mask",
		[UNDRAFTED_SEQUENCE] = "sequence",
		[UNDRAFTED_STEP] = "step",
	};

	for (uint32_t model = 0; model < engine_n_models(engine); model++) {
		struct engine_model_facts facts;

		engine_model_facts(engine, model, &facts);
		for (unsigned i = 0; i < N_UNDRAFTED && facts.n_drafts; i++)
			metrics_add_labelled(metrics, METRIC_COUNTER, "mimeo_undrafted_rows_total",
				"Rows launched to decode a token without guesses where the model has a draft, "
				"by reason",
				LABELS({"model", facts.name}, {"reason", reasons[i]}),
				(double)facts.speculation.n_undrafted[i]);
	}
}

/* Of each model with a draft, by the draft's place behind the verified token. */
static void collect_positions(const struct engine *engine, struct metrics *metrics, bool accepted)
{
	static const char *const positions[ENGINE_DRAFTS_MAX] = {
		"1", "2", "3", "4", "5", "6", "7", "8"};

	for (uint32_t model = 0; model < engine_n_models(engine); model++) {
		struct engine_model_facts facts;

		engine_model_facts(engine, model, &facts);
		for (uint32_t i = 0; i < facts.n_drafts && i < ENGINE_DRAFTS_MAX; i++)
			metrics_add_labelled(metrics, METRIC_COUNTER,
				accepted ? "mimeo_drafts_accepted_total"
					 : "mimeo_drafts_offered_total",
				accepted ? "Those of them that held, and all before them"
					 : "Drafts that their requests had room for, by position",
				LABELS({"model", facts.name}, {"position", positions[i]}),
				(double)(accepted ? facts.speculation.n_accepted[i]
						  : facts.speculation.n_offered[i]));
	}
}

static void exposition_collect(const struct serve *serve, struct metrics *metrics)
{
	collect_steps(engine_stats(serve->options.engine), metrics);
	collect_gauges(serve, metrics);
	collect_models(serve->options.engine, metrics);
	collect_drafts(serve->options.engine, metrics);
	collect_undrafted(serve->options.engine, metrics);
	collect_positions(serve->options.engine, metrics, false);
	collect_positions(serve->options.engine, metrics, true);
}

void exposition_answer(struct serve *serve, struct reply *reply)
{
	struct metrics *metrics = calloc(1, sizeof(*metrics));
	char *text = malloc(METRICS_TEXT_MAX);

	if (!metrics || !text) {
		reply_say(reply, MIMEO_E_NO_MEMORY, "no memory for the metrics");
		goto out;
	}
	exposition_collect(serve, metrics);
	if (metrics->n_dropped || metrics_render(metrics, text, METRICS_TEXT_MAX) < 0) {
		reply_say(reply, MIMEO_E_NO_MEMORY, "there are more metrics than have room");
		goto out;
	}
	reply_say(reply, 0, text);
	for (uint32_t i = 0; i < metrics->n_samples; i++) {
		const struct metric *metric = &metrics->samples[i];

		bool counts = metric->type == METRIC_COUNTER;
		const struct reply_cell value = {
			.key = "value",
			.kind = counts ? REPLY_COUNT : REPLY_NUMBER,
			.count = counts ? (uint64_t)metric->value : 0,
			.number = metric->value,
		};

		reply_row(reply,
			(const struct reply_cell[]){
				CELL_TEXT("name", metric->name),
				CELL_TEXT("type", counts ? "counter" : "gauge"),
				CELL_TEXT("label", metric->labels[0].name),
				CELL_TEXT("label_value", metric->labels[0].value),
				CELL_TEXT("label_2", metric->labels[1].name),
				CELL_TEXT("label_2_value", metric->labels[1].value),
				value,
			},
			7);
	}
out:
	free(text);
	free(metrics);
}
