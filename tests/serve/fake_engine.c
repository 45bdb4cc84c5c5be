/* SPDX-License-Identifier: MIT */
#include "fake_engine.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/engine/query.h"
#include "daemon/engine/request_log.h"
#include "daemon/engine/trace.h"
#include "ipc/doorbell.h"

#define REPORTS_MAX 1024

struct engine {
	pthread_mutex_t lock;
	int report_fd;
	struct engine_report reports[REPORTS_MAX];
	unsigned n_reports, n_taken;
	struct engine_port *last_port;
	unsigned n_ports;
	int attach_error;
	bool aborted;
	bool draining;
	struct engine_graphs_order order;
	unsigned n_orders, n_cancelled;
	struct engine_query *query; /* the last one, not answered or not taken */
	bool hold_queries, answered;
	uint32_t n_models, n_graphs, n_draft_graphs;
	bool has_verified_none;
	atomic_bool hangs;
	struct engine_stats stats;
	struct request_log request_log;
	struct trace trace;
	struct histogram distributions[N_ENGINE_DISTRIBUTIONS];
	struct model model;
	struct mode_resolution mode;
	struct mimeo_mask mask;
	char names[ENGINE_MODELS_MAX][64];
};

struct engine *fake_engine_new(uint32_t n_models, uint32_t n_graphs)
{
	struct engine *engine = calloc(1, sizeof(*engine));

	if (!engine)
		abort();
	pthread_mutex_init(&engine->lock, NULL);
	engine->report_fd = doorbell_new();
	engine->n_models = n_models;
	engine->n_graphs = n_graphs;
	engine->n_draft_graphs = FAKE_DRAFT_GRAPHS;
	engine->mode = (struct mode_resolution){
		.configured = GRAPH_FULL,
		.resolved = GRAPH_FULL_DECODE_ONLY,
		.reason = "lowered for the test",
	};
	engine->model.bytes = 3700000;
	engine->model.directory = "/models/tinycalc";
	engine->model.config = (struct model_config){
		.architecture = "LlamaForCausalLM",
		.vocab_size = 256,
		.hidden_size = 128,
		.n_layers = 4,
		.n_eos = 1,
		.eos = {2},
		.bos = 1,
	};
	engine->mask = (struct mimeo_mask){MIMEO_MASK_WINDOW, .window = 128, .sinks = 4};
	/* all but one as long as names may be */
	for (uint32_t i = 0; i < n_models; i++)
		snprintf(engine->names[i], sizeof(engine->names[i]),
			i == 0 ? "tinycalc"
			       : "model-%02u-with-a-name-that-has-as-many-bytes-as-names-may-have-x",
			i % 100); /* which gcc counts the digits of */
	atomic_store(&engine->stats.n_slots_free, 7);
	return engine;
}

void fake_engine_without_drafts(struct engine *engine)
{
	engine->n_draft_graphs = 0;
}

void fake_engine_as_configured(struct engine *engine)
{
	engine->mode = (struct mode_resolution){
		.configured = GRAPH_FULL_AND_PIECEWISE,
		.resolved = GRAPH_FULL_AND_PIECEWISE,
		.reason = "as configured",
	};
}

void fake_engine_before_verifications(struct engine *engine)
{
	engine->has_verified_none = true;
}

struct engine_stats *fake_engine_stats(struct engine *engine)
{
	return &engine->stats;
}

struct histogram *fake_engine_distribution(struct engine *engine, enum engine_distribution which)
{
	return &engine->distributions[which];
}

void fake_engine_set_files(struct engine *engine, struct mimeo_model_files *files)
{
	engine->model.files = files;
}

void engine_free(struct engine *engine)
{
	if (!engine)
		return;
	engine_query_free(engine->query);
	trace_deinit(&engine->trace);
	close(engine->report_fd);
	pthread_mutex_destroy(&engine->lock);
	free(engine);
}

void fake_engine_report(struct engine *engine, enum engine_report_kind kind,
	struct engine_port *port, const char *text)
{
	struct engine_report report = {.kind = kind, .port = port};

	snprintf(report.text, sizeof(report.text), "%s", text);
	pthread_mutex_lock(&engine->lock);
	engine->reports[engine->n_reports++ % REPORTS_MAX] = report;
	pthread_mutex_unlock(&engine->lock);
	doorbell_ring(engine->report_fd);
}

struct engine_port *fake_engine_port(struct engine *engine)
{
	pthread_mutex_lock(&engine->lock);
	struct engine_port *port = engine->last_port;
	pthread_mutex_unlock(&engine->lock);
	return port;
}

unsigned fake_engine_n_ports(struct engine *engine)
{
	pthread_mutex_lock(&engine->lock);
	unsigned n = engine->n_ports;
	pthread_mutex_unlock(&engine->lock);
	return n;
}

bool fake_engine_is_aborted(struct engine *engine)
{
	pthread_mutex_lock(&engine->lock);
	bool aborted = engine->aborted;
	pthread_mutex_unlock(&engine->lock);
	return aborted;
}

void fake_engine_set_in_flight(struct engine *engine, uint32_t n)
{
	atomic_store(&engine->stats.n_running, n);
}

void fake_engine_set_device_condition(struct engine *engine, int condition)
{
	atomic_store(&engine->stats.device_condition, condition);
}

void fake_engine_refuse_attach(struct engine *engine, int error)
{
	pthread_mutex_lock(&engine->lock);
	engine->attach_error = error;
	pthread_mutex_unlock(&engine->lock);
}

/* ---- engine.h ---- */

int engine_post_attach(struct engine *engine, struct engine_port *port)
{
	pthread_mutex_lock(&engine->lock);
	int r = engine->attach_error;
	if (r == 0) {
		engine->last_port = port;
		engine->n_ports++;
	}
	pthread_mutex_unlock(&engine->lock);
	atomic_store(&port->n_tokens, 42);
	return r;
}

int engine_post_detach(struct engine *engine, struct engine_port *port)
{
	pthread_mutex_lock(&engine->lock);
	engine->n_ports--;
	pthread_mutex_unlock(&engine->lock);
	fake_engine_report(engine, ENGINE_DETACHED, port, "");
	return 0;
}

int engine_post_buffer_close(struct engine *engine, struct engine_port *port, uint32_t buffer)
{
	return -ENOTSUP; /* without a builder there are no buffers */
}

bool engine_buffer_take(
	struct engine *engine, struct engine_port **ret_port, uint32_t *ret_buffer)
{
	return false;
}

int engine_post_drain(struct engine *engine)
{
	engine->draining = true;
	if (atomic_load(&engine->stats.n_running) == 0)
		fake_engine_report(engine, ENGINE_DRAINED, NULL, "");
	return 0;
}

void fake_engine_hang(struct engine *engine)
{
	atomic_store(&engine->hangs, true);
}

int engine_post_ping(struct engine *engine)
{
	if (!atomic_load(&engine->hangs))
		atomic_fetch_add(&engine->stats.n_pings, 1);
	return 0;
}

int engine_post_weight(struct engine *engine, struct engine_port *port, uint32_t weight)
{
	port->weight = weight;
	return 0;
}

int engine_post_abort(struct engine *engine)
{
	pthread_mutex_lock(&engine->lock);
	engine->aborted = true;
	pthread_mutex_unlock(&engine->lock);
	atomic_store(&engine->stats.n_aborted, atomic_load(&engine->stats.n_running));
	atomic_store(&engine->stats.n_running, 0);
	if (engine->draining)
		fake_engine_report(engine, ENGINE_DRAINED, NULL, "");
	return 0;
}

int engine_post_graphs(struct engine *engine, const struct engine_graphs_order *order)
{
	pthread_mutex_lock(&engine->lock);
	engine->order = *order;
	engine->n_orders++;
	pthread_mutex_unlock(&engine->lock);
	return 0;
}

unsigned fake_engine_orders(struct engine *engine, struct engine_graphs_order *ret_last)
{
	pthread_mutex_lock(&engine->lock);
	unsigned n = engine->n_orders;
	*ret_last = engine->order;
	pthread_mutex_unlock(&engine->lock);
	return n;
}

/* ---- query.h ---- */

static const struct engine_request_facts fake_requests[] = {
	{.id = 7, .op = "generate", .class = "normal", .state = ENGINE_REQUEST_RUNNING, .session = 1, .uid = 0,
		.pid = 100, .name = "chat", .n_rows = 1, .n_tokens = 1200, .n_prompt = 1200, .n_cached = 1024,
		.n_generated = 31, .max_tokens = 256, .has_age = true, .age_ns = 1500000000, .wait_ns = 2000000},
	{.id = 9, .op = "step", .class = "interactive", .state = ENGINE_REQUEST_PREEMPTED, .session = 2,
		.uid = 4000000000, .pid = 101, .name = "agents", .n_rows = 3, .n_tokens = 12, .has_age = true, .age_ns = 900000000,
		.wait_ns = 100000000, .has_deadline = true, .deadline_ns = 250000000},
	{.id = 12, .op = "open", .class = "normal", .state = ENGINE_REQUEST_QUEUED, .model = ENGINE_ALL, .session = 2,
		.uid = 4000000000, .pid = 101, .name = "agents", .sequence = 3},
};

static const struct engine_pages_facts fake_pages[] = {
	{.of = ENGINE_PAGES_MODEL, .n_sequences = 3, .n_pages = 100, .n_pinned = 4, .n_registered = 30, .n_free = 80,
		.n_unused = 20, .n_hits = 12, .n_evicted = 5},
	{.of = ENGINE_PAGES_USER, .uid = 4000000000, .n_sequences = 3, .n_pages = 20, .n_pinned = 4, .n_registered = 10,
		.n_left = 46},
	{.of = ENGINE_PAGES_SESSION, .uid = 4000000000, .session = 2, .name = "agents", .n_sequences = 3, .n_pages = 20,
		.n_pinned = 4, .n_registered = 10},
};

static void fake_answer_pages(struct engine_query *query)
{
	query->pages = malloc(sizeof(fake_pages));
	if (!query->pages)
		abort();
	memcpy(query->pages, fake_pages, sizeof(fake_pages));
	for (unsigned i = 1; i < sizeof(fake_pages) / sizeof(fake_pages[0]); i++)
		query->pages[i].uid = geteuid();
	query->n = sizeof(fake_pages) / sizeof(fake_pages[0]);
}

static void fake_answer(struct engine *engine, struct engine_query *query)
{
	query->requests = malloc(sizeof(fake_requests));
	if (!query->requests)
		abort();
	memcpy(query->requests, fake_requests, sizeof(fake_requests));
	if (query->kind == ENGINE_QUERY_PAGES)
		fake_answer_pages(query);
	if (query->kind == ENGINE_QUERY_DROP_PAGES)
		query->n = query->model == ENGINE_ALL ? 20 : 1;
	if (query->kind == ENGINE_QUERY_REQUESTS)
		query->n = sizeof(fake_requests) / sizeof(fake_requests[0]);
	if (query->kind == ENGINE_QUERY_CANCEL && query->id == 7)
		engine->n_cancelled++;
	else if (query->kind == ENGINE_QUERY_CANCEL)
		query->rc = query->id == 9 ? -EALREADY : -ENOENT;
	engine->answered = true;
	doorbell_ring(engine->report_fd);
}

int engine_post_query(struct engine *engine, struct engine_query *query)
{
	pthread_mutex_lock(&engine->lock);
	if (engine->query)
		abort();
	engine->query = query;
	if (!engine->hold_queries)
		fake_answer(engine, query);
	pthread_mutex_unlock(&engine->lock);
	return 0;
}

struct engine_query *engine_query_take(struct engine *engine)
{
	struct engine_query *query = NULL;

	pthread_mutex_lock(&engine->lock);
	if (engine->answered) {
		query = engine->query;
		engine->query = NULL;
	}
	engine->answered = false;
	pthread_mutex_unlock(&engine->lock);
	return query;
}

void engine_query_free(struct engine_query *query)
{
	if (!query)
		return;
	free(query->requests);
	free(query->pages);
	free(query);
}

void fake_engine_hold_queries(struct engine *engine, bool hold)
{
	pthread_mutex_lock(&engine->lock);
	engine->hold_queries = hold;
	if (!hold && engine->query && !engine->answered)
		fake_answer(engine, engine->query);
	pthread_mutex_unlock(&engine->lock);
}

unsigned fake_engine_n_cancelled(struct engine *engine)
{
	pthread_mutex_lock(&engine->lock);
	unsigned n = engine->n_cancelled;
	pthread_mutex_unlock(&engine->lock);
	return n;
}

/* ---- reports ---- */

int engine_report_fd(const struct engine *engine)
{
	return engine->report_fd;
}

bool engine_report_take(struct engine *engine, struct engine_report *ret)
{
	pthread_mutex_lock(&engine->lock);
	bool there = engine->n_taken != engine->n_reports;
	if (there)
		*ret = engine->reports[engine->n_taken++ % REPORTS_MAX];
	pthread_mutex_unlock(&engine->lock);
	return there;
}

const struct engine_stats *engine_stats(const struct engine *engine)
{
	return &engine->stats;
}

struct request_log *engine_request_log(struct engine *engine)
{
	return &engine->request_log;
}

/* Id 7 is of a model that is gone. */
const char *engine_model_name(const struct engine *engine, uint32_t id)
{
	return id == 7 ? "a\"b" : "tinycalc";
}

struct trace *engine_trace(struct engine *engine)
{
	return &engine->trace;
}

const char *engine_loop_name(const struct engine *engine)
{
	return "epoll";
}

const char *engine_loop_reason(const struct engine *engine)
{
	return "";
}

int engine_device_info(const struct engine *engine, struct device_info *ret)
{
	*ret = (struct device_info){.kind = "cpu"};
	return 0;
}

uint64_t engine_bytes_of_session(
	const struct engine *engine, uint32_t entries, uint64_t arena_bytes)
{
	return entries * UINT64_C(1024);
}

uint32_t engine_n_models(const struct engine *engine)
{
	return engine->n_models;
}

/* It loads and unloads nothing. */
bool engine_has_room(const struct engine *engine)
{
	return engine->n_models < ENGINE_MODELS_MAX;
}

struct runner *engine_model_take(struct engine *engine)
{
	return NULL;
}

void engine_model_free(struct runner *model)
{
	assert(!model);
}

int engine_post_load(struct engine *engine, struct runner *model)
{
	return -ENOSPC;
}

int engine_post_unload(struct engine *engine, uint32_t id)
{
	return -ENOENT;
}

uint32_t engine_find_model(const struct engine *engine, uint32_t id)
{
	return id < engine->n_models ? id : engine->n_models;
}

/* Drafts as long as can be, and numbers too. */
static void facts_fill(struct engine_model_facts *facts)
{
	const uint64_t large = (UINT64_C(1) << 53) - 1; /* that a metric has exactly */

	facts->n_drafts = ENGINE_DRAFTS_MAX;
	facts->weights_bytes = facts->weights_read_bytes = facts->kv_bytes = large;
	facts->pool_bytes = facts->graph_bytes = facts->n_tokens_out = large;
	facts->n_not_finite = facts->n_evicted = facts->n_preempted = large;
	facts->speculation.n_rows = facts->speculation.n_tokens = large;
	facts->speculation.n_draft_steps = facts->speculation.draft_ns = large;
	for (unsigned i = 0; i < ENGINE_DRAFTS_MAX; i++)
		facts->speculation.n_offered[i] = facts->speculation.n_accepted[i] = large;
	for (unsigned i = 0; i < N_UNDRAFTED; i++)
		facts->speculation.n_undrafted[i] = large;
}

static void facts_clear(struct engine_model_facts *facts)
{
	facts->draft = NULL;
	facts->n_drafts = 0;
	memset(facts->n_prefill_eager, 0, sizeof(facts->n_prefill_eager));
	memset(facts->n_decode_eager, 0, sizeof(facts->n_decode_eager));
	facts->speculation = (struct engine_speculation){0};
}

void engine_model_facts(const struct engine *engine, uint32_t model, struct engine_model_facts *ret)
{
	*ret = (struct engine_model_facts){
		.id = model,
		.name = engine->names[model],
		.model = &engine->model,
		.attention = "flex",
		.support = "UNIFORM_BATCH",
		.kv_dtype = "fp8",
		.mode = &engine->mode,
		.mask = &engine->mask,
		.max_seq_len = 512,
		.masks = true,
		.distributions = engine->distributions,
		.max_batch_tokens = 2048,
		.max_rows = 48,
		.page_tokens = 16,
		.pages_total = 100,
		.pages_free = 90,
		.weights_bytes = 4600000, /* 900000 of them the draft's */
		.weights_read_bytes = 4500000,
		.load_seconds = 0.5,
		.kv_bytes = 1 << 20,
		.capture_seconds = 0.25,
		.n_graphs = engine->n_graphs + engine->n_draft_graphs,
		.n_prefill_eager = {[EAGER_MIXED] = 6},
		.n_decode_eager = {[EAGER_MIXED] = 10, [EAGER_TOO_WIDE] = 3},
		.draft = "LlamaForCausalLMEagle",
		.n_drafts = 3,
		.speculation = {.n_rows = 200,
			.n_tokens = 550,
			.n_offered = {200, 160, 100},
			.n_accepted = {190, 120, 25},
			.n_undrafted = {[UNDRAFTED_ASKED] = 7, [UNDRAFTED_SEQUENCE] = 9},
			.n_draft_steps = 80,
			.draft_ns = 20000000},
	};
	if (engine->n_models == ENGINE_MODELS_MAX)
		facts_fill(ret);
	if (!engine->n_draft_graphs)
		facts_clear(ret);
	if (engine->has_verified_none)
		ret->speculation = (struct engine_speculation){0};
}

bool engine_graph_facts(
	const struct engine *engine, uint32_t model, uint32_t index, struct engine_graph_facts *ret)
{
	const bool of_draft = index >= engine->n_graphs;

	if (index >= engine->n_graphs + engine->n_draft_graphs)
		return false;
	*ret = (struct engine_graph_facts){
		.owner = !of_draft ? "target"
			: index == engine->n_graphs ? "draft prefill" : "draft decode",
		.of_draft = of_draft,
		.mode = "FULL",
		.tokens = index + 1,
		.rows = index + 1,
		.query_len = 1,
		.n_captures = 1,
		.n_nodes = 60,
		.bytes = 5000,
		.seconds = 0.001,
		.n_replays = 10,
		.state = "ready",
	};
	snprintf(ret->name, sizeof(ret->name), "FULL %ux1", index + 1);
	return true;
}
