/* SPDX-License-Identifier: MIT */
#include "tests/daemon/rig.h"

#include "daemon/model/draft.h"

#include <inttypes.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

#include "ipc/doorbell.h"
#include "tests/device_memory.h"

double rig_now(void)
{
	return (double)clock_ns() * 1e-9;
}

void rig_pause(void)
{
	nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

const char *rig_source(const char *below)
{
	static char paths[4][512];
	static unsigned turn;
	const char *source = getenv("MIMEO_SOURCE");
	char *path = paths[turn++ % 4];

	snprintf(path, sizeof(paths[0]), "%s/%s", source ? source : ".", below);
	return path;
}

const char *rig_draft(void)
{
	return rig_source("examples/models/tinycalc-eagle");
}

static uint32_t or_default(uint32_t value, uint32_t fallback)
{
	return value ? value : fallback;
}

/* ---- engine ---- */

/* All layers but the first are a group of their own. */
static void split_attention(struct attention_layers *layers, const char *name, const struct attention_config *config)
{
	struct attention_group *behind = &layers->groups[1];
	char why[256];

	assert_true(layers->n_groups == 1 && layers->n_layers > 1);
	*behind = (struct attention_group){.first = 1, .n_layers = layers->n_layers - 1};
	assert_int_equal(attention_choose(name, config, &behind->backend, &behind->support, why, sizeof(why)), 0);
	layers->groups[0].n_layers = 1;
	layers->n_groups = 2;
	for (uint32_t i = 1; i < layers->n_layers; i++) {
		layers->group[i] = 1;
		layers->index[i] = (uint16_t)(i - 1);
	}
}

static void choose_attention(struct rig *rig, struct engine_model_options *m,
	const struct model_config *config, uint32_t max_requests, uint32_t max_batch_tokens)
{
	const struct rig_options *o = &rig->options;
	const struct device_info info = test_device_info(rig->device);
	struct mode_request request = {.configured = o->mode, .decode_query = 1 + o->n_drafts};
	struct attention_config attention = model_attention(config, &info);
	char why[256];

	attention.page_tokens = 16;
	attention.max_rows = max_requests;
	attention.max_tokens = max_batch_tokens;
	attention.max_pages = (m->max_seq_len + 15) / 16;
	attention.max_seq_len = m->max_seq_len;
	attention.max_decode_query = 1 + o->n_drafts;
	assert_int_equal(attention_layers_choose(o->attention ? o->attention : "paged", &attention,
				 &m->attention, why, sizeof(why)), 0);
	for (uint32_t g = 0; o->paged && g < m->attention.n_groups; g++)
		if (m->attention.groups[g].backend == attention_find("paged"))
			m->attention.groups[g].backend = o->paged;
	if (o->attention_behind)
		split_attention(&m->attention, o->attention_behind, &attention);
	attention_layers_join(&m->attention);
	request.support = m->attention.support;
	request.backend = m->attention.blamed;
	request.piecewise_available = !o->no_pieces;
	assert_int_equal(mode_resolve(&request, &m->mode), 0);
}

static void load_draft(struct rig *rig, struct engine_model_options *m, const struct rig_options *o)
{
	const char *folder = o->draft ? o->draft : rig_draft();
	struct model_error error = {0};
	struct model_config config;

	assert_int_equal(draft_config_load(folder, &config, &error), 0);
	config.kv_fp8 = o->kv_fp8;
	if (draft_load(folder, &config, m->model, NULL, NULL, &m->draft, &error))
		fail_msg("%s", error.text);
	model_config_deinit(&config);
	m->n_drafts = o->n_drafts;
	m->draft_attention = o->paged ? o->paged : attention_find("paged");
	if (m->draft->config.latent.rank)
		m->draft_attention = m->attention.groups[0].backend;
	m->draft_support = o->draft_support ? *o->draft_support : ATTENTION_UNIFORM_BATCH;
}

static void load_model(struct rig *rig, const char *folder, struct engine_options *options,
	uint32_t index, const struct rig_options *o)
{
	struct engine_model_options *m = &options->models[index];
	struct model_error error = {0};
	struct model_config config;

	assert_int_equal(model_config_load(folder, &config, &error), 0);
	config.kv_fp8 = o->kv_fp8;
	for (uint32_t i = 0; o->window && i < config.n_layers; i++)
		config.windows[i] = o->full_every && i % o->full_every == 0 ? 0 : o->window;
	if (config.max_seq_len < o->max_seq_len)
		config.max_seq_len = o->max_seq_len;
	snprintf(m->name, sizeof(m->name), "tinycalc-%u", index);
	m->max_seq_len = or_default(o->max_seq_len, 512);
	m->kv_pages = or_default(o->kv_pages, 512);
	m->mask = o->mask;
	model_kv_sets(&config, m->max_seq_len, 16, o->n_drafts > 0 || o->one_set, &m->sets);
	choose_attention(rig, m, &config, options->max_requests, options->max_batch_tokens);
	if (model_load(rig->device, folder, &config, m->max_seq_len, NULL, NULL, &m->model, &error))
		fail_msg("%s", error.text);
	model_config_deinit(&config);
	m->model->deterministic |= o->deterministic;
	if (o->n_drafts && (!o->draft_last_only || index + 1 == options->n_models))
		load_draft(rig, m, o);
}

struct runner *rig_make_model(struct rig *rig)
{
	static unsigned n;
	const char *folder = rig->options.model ? rig->options.model : rig_source("examples/models/tinycalc");
	struct engine_options options = rig->engine->options;
	struct model_error error = {0};
	struct runner *runner;

	options.n_models = 1;
	options.models[0] = (struct engine_model_options){0};
	rig->device->ops->lift_lock(rig->device, true);
	load_model(rig, folder, &options, 0, &rig->options);
	snprintf(options.models[0].name, sizeof(options.models[0].name), "loaded-%u", n++);
	if (engine_model_new(rig->engine, &options.models[0], &runner, &error))
		fail_msg("%s", error.text);
	rig->device->ops->lift_lock(rig->device, false);
	return runner;
}

uint32_t rig_load(struct rig *rig)
{
	struct engine_model_facts facts;

	assert_int_equal(engine_post_load(rig->engine, rig_make_model(rig)), 0);
	rig->options.n_models++;
	engine_model_facts(rig->engine, engine_n_models(rig->engine) - 1, &facts);
	return facts.id;
}

void rig_unload(struct rig *rig, uint32_t id)
{
	struct runner *model;

	assert_int_equal(engine_post_unload(rig->engine, id), 0);
	rig->options.n_models--;
	RIG_AWAIT((model = engine_model_take(rig->engine)));
	assert_int_equal(model->id, id);
	engine_model_free(model);
}

void rig_open(struct rig *rig, const struct rig_options *o)
{
	struct engine_options options = {
		.n_models = or_default(o->n_models, 1),
		.max_requests = or_default(o->max_requests, 16),
		.max_batch_tokens = or_default(o->max_batch_tokens, 64),
		.page_tokens = 16,
		.max_sequences = 32,
		.capture_sizes = o->capture_sizes,
		.n_capture_sizes = o->n_capture_sizes,
		.lazy_capture = o->lazy_capture,
		.prefix_sharing = o->prefix_sharing,
		.token_us = o->token_us,
		.spin_us = o->spin_us,
	};
	const char *folder = o->model ? o->model : rig_source("examples/models/tinycalc");
	struct model_error error = {0};

	*rig = (struct rig){.options = *o};
	rig->options.max_requests = options.max_requests;
	rig->options.n_models = options.n_models;
	pthread_mutex_init(&rig->gate.lock, NULL);
	pthread_cond_init(&rig->gate.changed, NULL);
	rig->device = test_device_open(0);
	if (o->on_device)
		o->on_device(rig->device);
	options.device = rig->device;
	for (uint32_t i = 0; i < options.n_models; i++)
		load_model(rig, folder, &options, i, o);
	if (engine_new(&options, &rig->engine, &error))
		fail_msg("%s", error.text);
#ifdef MIMEO_TEST_FAULTS
	if (o->preempt_every)
		rig->engine->lane.preempt_every = o->preempt_every;
#endif
	assert_int_equal(builder_new(rig->device, &rig->engine->stats.n_in_lane, &rig->builder), 0);
	assert_int_equal(engine_start(rig->engine, rig->builder), 0);
	rig->runner = rig->engine->runners.all[0];
	rig->speculator = &rig->runner->speculator;
}

void rig_open_client(struct rig *rig, const struct rig_options *o)
{
	rig_open(rig, o);
	rig_attach(rig, &rig->client, or_default(o->entries, RIG_ENTRIES));
}

void rig_close(struct rig *rig)
{
	if (rig->client.port)
		rig_detach(&rig->client);
	for (int i = 0; i < 4; i++) {
		if (rig->others[i].port)
			rig_detach(&rig->others[i]);
	}
	rig_assert_all_free(rig);
	assert_int_equal(rig->n_ports, 0);
	engine_stop(rig->engine);
	builder_free(rig->builder);
	engine_free(rig->engine);
	rig->device->ops->free(rig->device);
	pthread_cond_destroy(&rig->gate.changed);
	pthread_mutex_destroy(&rig->gate.lock);
}

/* ---- fixtures ---- */

static struct rig fixture;

int rig_setup_engine(void **state)
{
	rig_open(&fixture, *state);
	*state = &fixture;
	return 0;
}

int rig_setup(void **state)
{
	rig_open_client(&fixture, *state);
	*state = &fixture;
	return 0;
}

int rig_teardown(void **state)
{
	rig_gate_open(*state);
	rig_close(*state);
	return 0;
}

/* ---- the lane ---- */

static void wait_at_gate(void *arg)
{
	struct rig_gate *gate = arg;

	pthread_mutex_lock(&gate->lock);
	gate->reached = true;
	pthread_cond_broadcast(&gate->changed);
	while (!gate->open)
		pthread_cond_wait(&gate->changed, &gate->lock);
	pthread_mutex_unlock(&gate->lock);
}

void rig_gate_close(struct rig *rig)
{
	struct rig_gate *gate = &rig->gate;

	/* The lane is the engine's; it has nothing to do with it as long as all slots are free. */
	RIG_AWAIT(engine_stats(rig->engine)->n_slots_free ==
		rig->options.n_models * rig->options.max_requests);
	gate->open = gate->reached = false;
	assert_int_equal(rig->device->ops->stream_host_func(rig->engine->lane.stream, wait_at_gate, gate), 0);
	pthread_mutex_lock(&gate->lock);
	while (!gate->reached)
		pthread_cond_wait(&gate->changed, &gate->lock);
	pthread_mutex_unlock(&gate->lock);
}

void rig_gate_open(struct rig *rig)
{
	pthread_mutex_lock(&rig->gate.lock);
	rig->gate.open = true;
	pthread_cond_broadcast(&rig->gate.changed);
	pthread_mutex_unlock(&rig->gate.lock);
}

void rig_wait_steps(struct rig *rig, uint64_t n)
{
	RIG_AWAIT(engine_stats(rig->engine)->n_steps >= n);
}

void rig_wait_waiting(struct rig *rig, uint32_t n)
{
	const struct engine_stats *stats = engine_stats(rig->engine);

	/* Between intake and admission of a turn the counter has those, too, that start in that turn. */
	RIG_AWAIT(stats->n_waiting == n && rig->engine->lane.idle.sleeping && stats->n_waiting == n);
}

struct engine_model_facts rig_facts(const struct rig *rig)
{
	struct engine_model_facts facts;

	engine_model_facts(rig->engine, 0, &facts);
	return facts;
}

uint32_t rig_pages_free(struct rig *rig, uint32_t model)
{
	struct engine_model_facts facts;

	engine_model_facts(rig->engine, model, &facts);
	return facts.pages_free;
}

static uint32_t pages_missing(struct rig *rig)
{
	struct engine_model_facts facts;
	uint32_t n = 0;

	for (uint32_t i = 0; i < rig->options.n_models; i++) {
		engine_model_facts(rig->engine, i, &facts);
		n += facts.pages_total - facts.pages_free;
	}
	return n;
}

void rig_assert_all_free(struct rig *rig)
{
	const struct engine_stats *stats = engine_stats(rig->engine);
	const uint32_t slots = rig->options.n_models * rig->options.max_requests;
	double end = rig_now() + RIG_TIMEOUT_S;

	while (pages_missing(rig) || stats->n_running || stats->n_sequences || stats->n_waiting ||
		stats->n_slots_free != slots) {
		if (rig_now() > end)
			fail_msg("%u pages are missing, slots %u of %u, running %u, sequences %u, waiting %u",
				pages_missing(rig), stats->n_slots_free, slots, stats->n_running,
				stats->n_sequences, stats->n_waiting);
		rig_pause();
	}
}

static void keep(struct rig *rig, const struct engine_report *report)
{
	assert_true(rig->n_reports < 64);
	rig->reports[rig->n_reports++] = *report;
}

static bool take_kept(struct rig *rig, enum engine_report_kind kind, struct engine_report *ret)
{
	for (uint32_t i = 0; i < rig->n_reports; i++) {
		if (rig->reports[i].kind != kind)
			continue;
		*ret = rig->reports[i];
		rig->reports[i] = rig->reports[--rig->n_reports];
		return true;
	}
	return false;
}

struct engine_report rig_report(struct rig *rig, enum engine_report_kind kind)
{
	struct pollfd poll_fd = {.fd = engine_report_fd(rig->engine), .events = POLLIN};
	double end = rig_now() + RIG_TIMEOUT_S;
	struct engine_report report;

	while (!take_kept(rig, kind, &report)) {
		if (rig_now() > end)
			fail_msg("no report of kind %d came", kind);
		poll(&poll_fd, 1, 1000);
		doorbell_clear(poll_fd.fd);
		while (engine_report_take(rig->engine, &report))
			keep(rig, &report);
	}
	return report;
}

/* ---- clients ---- */

void rig_attach(struct rig *rig, struct rig_client *ret, uint32_t entries)
{
	rig_attach_as(rig, ret, entries, 0, 0);
}

void rig_attach_as(struct rig *rig, struct rig_client *ret, uint32_t entries, uid_t uid, uint32_t weight)
{
	static uint32_t sessions;
	struct engine_port *port = calloc(1, sizeof(*port));

	assert_non_null(port);
	*ret = (struct rig_client){.rig = rig, .port = port};
	assert_int_equal(region_create(&port->region, entries, 1u << 20), 0);
	port->sq_bell = doorbell_new();
	port->cq_bell = doorbell_new();
	port->session = ++sessions;
	/* Each client counts as a process of its own. */
	port->pid = (pid_t)port->session;
	port->uid = uid;
	port->weight = weight;
	assert_int_equal(region_map(&ret->region, dup(port->region.fd)), 0);
	assert_int_equal(engine_post_attach(rig->engine, port), 0);
	rig->n_ports++;
}

struct rig_client *rig_other(struct rig *rig, uint32_t entries)
{
	struct rig_client *other = rig->others;

	while (other->port)
		other++;
	assert_true(other < rig->others + 4);
	rig_attach(rig, other, entries);
	return other;
}

void rig_detach(struct rig_client *client)
{
	assert_int_equal(engine_post_detach(client->rig->engine, client->port), 0);
	rig_detached(client);
}

void rig_detached(struct rig_client *client)
{
	struct engine_report report;

	do {
		report = rig_report(client->rig, ENGINE_DETACHED);
		if (report.port != client->port)
			keep(client->rig, &report);
	} while (report.port != client->port);
	region_deinit(&client->region);
	region_deinit(&client->port->region);
	close(client->port->sq_bell);
	close(client->port->cq_bell);
	free(client->port);
	client->port = NULL;
	client->rig->n_ports--;
}
