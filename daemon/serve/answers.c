/* SPDX-License-Identifier: MIT */
#include "daemon/serve/answers.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <utlist.h>

#include "build-config.h"
#include "daemon/config/mask_text.h"
#include "daemon/serve/buffers.h"
#include "daemon/serve/exposition_process.h"
#include "daemon/serve/models.h"

static const char *answers_state_name(const struct serve *serve)
{
	const struct engine_stats *stats = engine_stats(serve->options.engine);

	if (serve->state == SERVE_FAILED || atomic_load(&stats->device_condition) != 0)
		return "failed";
	if (serve->state == SERVE_DRAINING)
		return "draining";
	return serve->state == SERVE_SERVING ? "serving" : "starting";
}

/* Sums over all models. */
struct answers_totals {
	uint64_t pages, pages_free, weights_bytes, kv_bytes, pool_bytes, graph_bytes;
	uint32_t n_graphs, n_ready, n_slots;
	double capture_seconds;
};

static struct answers_totals answers_sum(const struct serve *serve)
{
	struct answers_totals totals = {0};

	for (uint32_t i = 0; i < engine_n_models(serve->options.engine); i++) {
		struct engine_model_facts facts;

		engine_model_facts(serve->options.engine, i, &facts);
		totals.pages += facts.pages_total;
		totals.pages_free += facts.pages_free;
		totals.weights_bytes += facts.weights_bytes;
		totals.kv_bytes += facts.kv_bytes;
		totals.pool_bytes += facts.pool_bytes;
		totals.graph_bytes += facts.graph_bytes;
		totals.n_slots += facts.max_rows;
		totals.n_graphs += facts.n_graphs;
		totals.n_ready += facts.n_ready;
		totals.capture_seconds += facts.capture_seconds;
	}
	return totals;
}

/* Memory of the whole device that is in use, by any process; 0 where the device is the host. */
static uint64_t answers_device_used(const struct engine *engine)
{
	struct device_info info;

	if (engine_device_info(engine, &info) != 0 || strcmp(info.kind, "cpu") == 0)
		return 0;
	return info.total_bytes - info.free_bytes;
}

void answers_status(struct serve *serve, struct reply *reply)
{
	const struct engine *engine = serve->options.engine;
	const struct engine_stats *stats = engine_stats(engine);
	struct answers_totals totals = answers_sum(serve);
	const char *reason = engine_loop_reason(engine);
	const struct builder *builder = serve->options.builder;
	uint64_t held = builder ? builder_bytes(builder) : 0;
	uint32_t n_closing, buffers = buffers_count_all(serve, &n_closing);
	char progress[SERVE_PROGRESS_MAX];

	REPLY_ROW(reply, CELL_TEXT("state", answers_state_name(serve)),
		CELL_TEXT("progress", models_progress(serve, progress)),
		CELL_COUNT("pid", (uint64_t)getpid()),
		CELL_NUMBER("uptime_s", (double)(serve_now_ms() - serve->started_ms) / 1e3),
		CELL_TEXT("version", MIMEO_VERSION),
		CELL_TEXT("socket", serve->socket),
		CELL_TEXT("device", serve->options.device),
		CELL_TEXT("loop", engine_loop_name(engine)),
		CELL_TEXT("loop_reason", reason ? reason : ""),
		CELL_COUNT("models", engine_n_models(engine)),
		CELL_COUNT("sessions", serve->n_sessions),
		CELL_COUNT("handshakes", serve->n_greetings),
		CELL_COUNT("operators", serve->n_operators),
		CELL_COUNT("sequences", atomic_load(&stats->n_sequences)),
		CELL_COUNT("running", atomic_load(&stats->n_running)),
		CELL_COUNT("waiting", atomic_load(&stats->n_waiting)),
		CELL_COUNT("requests", atomic_load(&stats->n_requests)),
		CELL_COUNT("tokens_in", atomic_load(&stats->n_tokens_in)),
		CELL_COUNT("tokens_out", atomic_load(&stats->n_tokens_out)),
		CELL_COUNT("steps", atomic_load(&stats->n_steps)),
		CELL_COUNT("rows", atomic_load(&stats->n_rows)),
		CELL_NUMBER("device_busy_s", (double)atomic_load(&stats->lane_ns) * 1e-9),
		CELL_COUNT("replays", atomic_load(&stats->n_replays)),
		CELL_COUNT("shared_replays", atomic_load(&stats->n_shared_replays)),
		CELL_COUNT("eager_mode", atomic_load(&stats->n_eager[EAGER_MODE])),
		CELL_COUNT("eager_mixed", atomic_load(&stats->n_eager[EAGER_MIXED])),
		CELL_COUNT("eager_too_wide", atomic_load(&stats->n_eager[EAGER_TOO_WIDE])),
		CELL_COUNT("eager_not_captured", atomic_load(&stats->n_eager[EAGER_NOT_CAPTURED])),
		CELL_COUNT("graphs", totals.n_graphs), CELL_COUNT("graphs_ready", totals.n_ready),
		CELL_COUNT("graph_orders", atomic_load(&stats->n_graph_orders)),
		CELL_COUNT("late_captures", atomic_load(&stats->n_late_captures)),
		CELL_NUMBER("late_gap_s", (double)atomic_load(&stats->late_gap_ns) * 1e-9),
		CELL_NUMBER("capture_seconds", totals.capture_seconds),
		CELL_COUNT("slots_free", atomic_load(&stats->n_slots_free)),
		CELL_COUNT("slots_total", totals.n_slots),
		CELL_COUNT("pages_free", totals.pages_free),
		CELL_COUNT("pages_total", totals.pages),
		CELL_COUNT("weights_bytes", totals.weights_bytes),
		CELL_COUNT("kv_bytes", totals.kv_bytes),
		CELL_COUNT("pool_bytes", totals.pool_bytes),
		CELL_COUNT("graph_bytes", totals.graph_bytes),
		CELL_COUNT("resident_bytes", exposition_process_resident_bytes()),
		CELL_COUNT("device_used_bytes", answers_device_used(engine)),
		CELL_COUNT("open_fds", exposition_process_open_fds()),
		CELL_COUNT("buffers", buffers), CELL_COUNT("buffer_bytes", held),
		CELL_COUNT("buffers_closing", n_closing));
}

void answers_sessions(struct serve *serve, struct reply *reply)
{
	struct session *session;
	int64_t now = serve_now_ms();

	DL_FOREACH (serve->sessions, session) {
		struct engine_port *port = &session->port;
		uint64_t bytes;
		uint32_t n_buffers = buffers_count(session, &bytes);

		REPLY_ROW(reply, CELL_COUNT("id", port->session), CELL_COUNT("pid", (uint64_t)port->pid),
			CELL_COUNT("uid", port->uid), CELL_TEXT("name", port->name),
			CELL_TEXT("state", session->detaching ? "closing" : "open"),
			CELL_NUMBER("age_s", (double)(now - session->since_ms) / 1e3),
			CELL_COUNT("requests", atomic_load(&port->n_requests)),
			CELL_COUNT("in_flight", atomic_load(&port->n_in_flight)),
			CELL_COUNT("waiting", atomic_load(&port->n_waiting)),
			CELL_COUNT("sequences", atomic_load(&port->n_sequences)),
			CELL_COUNT("pages", atomic_load(&port->n_pages)),
			CELL_COUNT("prompt_tokens", atomic_load(&port->n_prompt_tokens)),
			CELL_COUNT("cached_tokens", atomic_load(&port->n_cached_tokens)),
			CELL_COUNT("tokens", atomic_load(&port->n_tokens)),
			CELL_COUNT("first_tokens", atomic_load(&port->n_firsts)),
			CELL_NUMBER("first_token_s", (double)atomic_load(&port->first_ns) * 1e-9),
			CELL_NUMBER("between_tokens_s", (double)atomic_load(&port->between_ns) * 1e-9),
			CELL_COUNT("arena_bytes", port->region.arena_bytes),
			CELL_COUNT("buffers", n_buffers), CELL_COUNT("buffer_bytes", bytes));
	}
}

static const char *answers_mask(const struct engine_model_facts *facts, char ret[MASK_TEXT_MAX])
{
	return mask_text(&(struct mask_text){facts->mask->window, facts->mask->sinks,
			facts->mask->prefix}, ret);
}

#define ACCEPTANCE_TEXT_MAX (ENGINE_DRAFTS_MAX * sizeof("0.00 "))

/* The acceptance rate of each draft token's position, "0.95 0.91", up to the last one offered. */
static const char *answers_acceptance(
	const struct engine_model_facts *facts, char ret[static ACCEPTANCE_TEXT_MAX])
{
	const struct engine_speculation *s = &facts->speculation;
	size_t used = 0;

	ret[0] = '\0';
	for (uint32_t i = 0; i < facts->n_drafts && i < ENGINE_DRAFTS_MAX && s->n_offered[i]; i++) {
		/* The engine continues counting while this reads. */
		double rate = fmin(1, (double)s->n_accepted[i] / (double)s->n_offered[i]);

		assert(used < ACCEPTANCE_TEXT_MAX);
		used += (size_t)snprintf(ret + used, ACCEPTANCE_TEXT_MAX - used, "%s%.2f",
			i ? " " : "", rate);
	}
	return ret;
}

static double answers_tokens_per_verification(const struct engine_speculation *s)
{
	return s->n_rows ? (double)s->n_tokens / (double)s->n_rows : 0;
}

/* The device time of a step's draft passes. */
static double answers_draft_seconds(const struct engine_speculation *s)
{
	return s->n_draft_steps ? (double)s->draft_ns * 1e-9 / (double)s->n_draft_steps : 0;
}

static uint64_t answers_n_eager(const struct engine_model_facts *facts)
{
	uint64_t n = 0;

	for (unsigned i = 0; i < N_EAGER_REASONS; i++)
		n += facts->n_eager[i];
	return n;
}

/* Of weights and activations; of quantised weights see "quantised". */
static const char *answers_dtype(const struct model *model)
{
	return model->activation_dtype == DTYPE_BF16 ? "bf16" : model->activation_dtype == DTYPE_F16 ? "f16" : "f32";
}

void answers_models(struct serve *serve, struct reply *reply)
{
	for (uint32_t i = 0; i < engine_n_models(serve->options.engine); i++) {
		struct engine_model_facts facts;
		char mask[MASK_TEXT_MAX], acceptance[ACCEPTANCE_TEXT_MAX];

		engine_model_facts(serve->options.engine, i, &facts);
		REPLY_ROW(reply, CELL_TEXT("name", facts.name),
			CELL_TEXT("architecture", facts.model->config.architecture),
			CELL_TEXT("path", facts.model->directory ? facts.model->directory : ""),
			CELL_TEXT("dtype", answers_dtype(facts.model)),
			CELL_TEXT("quantised", facts.model->quantised),
			CELL_COUNT("layers", facts.model->config.n_layers),
			CELL_COUNT("hidden_size", facts.model->config.hidden_size),
			CELL_COUNT("vocab_size", facts.model->config.vocab_size),
			CELL_COUNT("max_requests", facts.max_rows),
			CELL_COUNT("max_batch_tokens", facts.max_batch_tokens),
			CELL_COUNT("weights_bytes", facts.weights_bytes),
			CELL_TEXT("attention", facts.attention),
			CELL_TEXT("support", facts.support),
			CELL_TEXT("mask", answers_mask(&facts, mask)),
			CELL_TEXT("configured", graph_mode_name(facts.mode->configured)),
			CELL_TEXT("resolved", graph_mode_name(facts.mode->resolved)),
			CELL_TEXT("reason", facts.mode->reason),
			CELL_COUNT("max_seq_len", facts.max_seq_len),
			CELL_COUNT("page_tokens", facts.page_tokens),
			CELL_COUNT("pages_free", facts.pages_free),
			CELL_COUNT("pages_total", facts.pages_total),
			CELL_TEXT("kv_dtype", facts.kv_dtype),
			CELL_COUNT("kv_bytes", facts.kv_bytes),
			CELL_COUNT("graphs", facts.n_graphs),
			CELL_COUNT("graphs_ready", facts.n_ready),
			CELL_NUMBER("capture_seconds", facts.capture_seconds),
			CELL_COUNT("graph_bytes", facts.graph_bytes),
			CELL_COUNT("pool_bytes", facts.pool_bytes),
			CELL_NUMBER("load_seconds", facts.load_seconds),
			CELL_COUNT("steps", facts.n_steps),
			CELL_COUNT("rows", facts.n_rows),
			CELL_COUNT("eager_steps", answers_n_eager(&facts)),
			CELL_COUNT("tokens_out", facts.n_tokens_out),
			CELL_COUNT("first_tokens", facts.n_firsts),
			CELL_NUMBER("first_token_s", (double)facts.first_ns * 1e-9),
			CELL_NUMBER("between_tokens_s", (double)facts.between_ns * 1e-9),
			CELL_COUNT("cached_tokens", facts.n_cached_tokens),
			CELL_TEXT("draft", facts.draft ? facts.draft : ""),
			CELL_COUNT("draft_tokens", facts.n_drafts),
			CELL_NUMBER("tokens_per_verification",
				answers_tokens_per_verification(&facts.speculation)),
			CELL_TEXT("acceptance", answers_acceptance(&facts, acceptance)),
			CELL_COUNT("verified_rows", facts.speculation.n_rows),
			CELL_COUNT("verified_tokens", facts.speculation.n_tokens),
			CELL_NUMBER("draft_seconds", answers_draft_seconds(&facts.speculation)),
			CELL_COUNT("draft_steps", facts.speculation.n_draft_steps));
	}
}

/* Steps that ran without a graph, a row for each reason that occurred. */
static void answers_eager(const char *model, const char *owner, const uint64_t n_eager[N_EAGER_REASONS],
	struct reply *reply)
{
	for (unsigned reason = EAGER_NO + 1; reason < N_EAGER_REASONS; reason++) {
		if (!n_eager[reason])
			continue;
		REPLY_ROW(reply, CELL_TEXT("model", model), CELL_TEXT("owner", owner),
			CELL_TEXT("graph", "none"), CELL_TEXT("mode", graph_mode_name(GRAPH_NONE)),
			CELL_TEXT("state", eager_reason_name((enum eager_reason)reason)),
			CELL_COUNT("eager_steps", n_eager[reason]));
	}
}

/* The reply's text: each model's graph mode and the reason for it. */
static void answers_say_modes(const struct serve *serve, struct reply *reply)
{
	char text[ENGINE_MODELS_MAX * 384];
	size_t used = 0;

	for (uint32_t i = 0; i < engine_n_models(serve->options.engine); i++) {
		struct engine_model_facts facts;

		engine_model_facts(serve->options.engine, i, &facts);
		assert(used < sizeof(text));
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s: graph mode %s, ",
			i ? "\n" : "", facts.name, graph_mode_name(facts.mode->resolved));
		if (facts.mode->configured != facts.mode->resolved)
			used += (size_t)snprintf(text + used, sizeof(text) - used, "configured %s: ",
				graph_mode_name(facts.mode->configured));
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s", facts.mode->reason);
	}
	reply_say(reply, 0, text);
}

static void answers_graph(const char *model, const struct engine_graph_facts *facts, struct reply *reply)
{
	const struct reply_cell cells[] = {
		CELL_TEXT("model", model),
		CELL_TEXT("owner", facts->owner),
		CELL_TEXT("graph", facts->name),
		CELL_TEXT("mode", facts->mode),
		CELL_TEXT("state", facts->state),
		CELL_COUNT("tokens", facts->tokens),
		CELL_COUNT("rows", facts->rows),
		CELL_COUNT("query_len", facts->query_len),
		CELL_COUNT("captures", facts->n_captures),
		CELL_COUNT("drops", facts->n_drops),
		CELL_COUNT("segments", facts->n_segments),
		CELL_COUNT("nodes", facts->n_nodes),
		CELL_COUNT("bytes", facts->bytes),
		CELL_NUMBER("seconds", facts->seconds),
		CELL_COUNT("replays", facts->n_replays),
		CELL_COUNT("padded_rows", facts->n_padded_rows),
		CELL_COUNT("shared_replays", facts->n_shared_replays), /* not of draft models */
	};

	reply_row(reply, cells, sizeof(cells) / sizeof(cells[0]) - facts->of_draft);
}

void answers_graphs(struct serve *serve, struct reply *reply)
{
	answers_say_modes(serve, reply);
	for (uint32_t i = 0; i < engine_n_models(serve->options.engine); i++) {
		struct engine_model_facts model;
		struct engine_graph_facts facts;

		engine_model_facts(serve->options.engine, i, &model);
		for (uint32_t j = 0; engine_graph_facts(serve->options.engine, i, j, &facts); j++)
			answers_graph(model.name, &facts, reply);
		answers_eager(model.name, "target", model.n_eager, reply);
		answers_eager(model.name, "draft prefill", model.n_prefill_eager, reply);
		answers_eager(model.name, "draft decode", model.n_decode_eager, reply);
	}
}
