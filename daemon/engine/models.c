/* SPDX-License-Identifier: MIT */
/*
 * Models that come and go while the engine serves.
 *
 * A model is made by the loader's thread (engine_model_new), shown to new sessions by the loop thread (`served`), and
 * used by the engine's thread (`runners`) from a command of the mailbox on; a session that knows of it was attached by
 * a later command. It leaves the other way round: the loop thread shows it no more, the engine's thread ends its
 * requests, waits until no launched step and no capture names it, and hands it back.
 */
#include "daemon/engine/state.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "daemon/engine/requests/adjust.h"
#include "daemon/engine/requests/finish.h"

#define MODELS_FORGET_A_TURN 256u /* sequences, requests and pages, so that steps go on */

/* ---- the loader's thread ---- */

/* Graphs are captured on the dry stream and keep its workspaces; only the lane replays them. */
static int models_prepare(struct engine *engine, struct runner *runner, const struct engine_model_options *options,
	struct model_error *error)
{
	const struct device_ops *ops = engine->device->ops;
	const struct runners alone = {.all = {runner}, .n = 1};
	int rc = runner_init(runner, &engine->options, options, engine->dry, error);

	if (rc)
		return rc;
	rc = runner_warm_up(runner, error);
	if (rc)
		return rc;
	rc = runner_capture(runner, error);
	if (rc)
		return rc;
	rc = ops->stream_match(engine->lane.stream, engine->dry);
	if (rc)
		return runner_fail(error, runner, "workspaces", rc);
	return runner_map_all(&alone, error);
}

int engine_model_new(struct engine *engine, const struct engine_model_options *options, struct runner **ret,
	struct model_error *error)
{
	struct engine_model_options taken = *options;
	struct runner *runner = calloc(1, sizeof(*runner));
	int rc = runner ? 0 : -ENOMEM;

	if (!rc && !engine->dry)
		rc = engine->device->ops->stream_new_dry(engine->device, &engine->dry);
	if (rc) {
		snprintf(error->text, sizeof(error->text), "model %s: %s", options->name, device_strerror(rc));
		engine_model_options_deinit(&taken);
		free(runner);
		return rc;
	}
	rc = models_prepare(engine, runner, options, error);
	if (rc) {
		engine_model_free(runner);
		return rc;
	}
	*ret = runner;
	return 0;
}

void engine_model_free(struct runner *model)
{
	if (!model)
		return;
	runner_deinit(model);
	free(model);
}

/* ---- the loop thread ---- */

static uint32_t models_larger(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

void engine_set_limits(struct engine *engine)
{
	struct accounting_limits limits = {.models_end = engine->next_id};

	for (uint32_t i = 0; i < engine->served.n; i++) {
		const struct runner *runner = engine->served.all[i];

		limits.max_seq_len = models_larger(limits.max_seq_len, runner->options.max_seq_len);
		limits.max_pages = models_larger(limits.max_pages, runner->max_pages);
		limits.max_sets = models_larger(limits.max_sets, runner->options.sets.n);
		limits.adjust_bytes = models_larger(
			limits.adjust_bytes, adjust_payload_most(runner->model->config.vocab_size));
	}
	engine->accounting.limits = limits;
}

bool engine_has_room(const struct engine *engine)
{
	/* Those that have not left yet keep their places. */
	return engine->served.n + atomic_load(&engine->n_leaving) < ENGINE_MODELS_MAX;
}

int models_name(struct engine *engine, const char *name)
{
	char(*names)[sizeof(engine->names[0])] = reallocarray(engine->names, engine->next_id + 1, sizeof(names[0]));

	if (!names)
		return -ENOMEM;
	engine->names = names;
	snprintf(names[engine->next_id], sizeof(names[0]), "%s", name);
	return 0;
}

const char *engine_model_name(const struct engine *engine, uint32_t id)
{
	assert(id < engine->next_id);
	return engine->names[id];
}

void models_show(struct engine *engine, struct runner *runner)
{
	assert(runner->id == engine->next_id && engine->served.n < ENGINE_MODELS_MAX);
	engine->next_id++;
	engine->served.all[engine->served.n++] = runner;
	engine_set_limits(engine);
}

struct runner *engine_model_take(struct engine *engine)
{
	return reports_take_model(&engine->reports);
}

static void models_remove(struct runners *runners, uint32_t at)
{
	assert(at < runners->n);
	runners->n--;
	memmove(&runners->all[at], &runners->all[at + 1], (runners->n - at) * sizeof(runners->all[0]));
}

void models_hide(struct engine *engine, uint32_t id)
{
	models_remove(&engine->served, engine_find_model(engine, id));
	engine_set_limits(engine);
}

/* ---- the engine's thread ---- */

static uint32_t models_free_place(const struct runners *runners)
{
	uint32_t place = 0;

	for (uint32_t i = 0; i < runners->n; i++) {
		if (runners->all[i]->place != place)
			continue;
		place++;
		i = UINT32_MAX; /* begins again */
	}
	return place;
}

/* What the lane remembers of the models as a whole. */
static void models_changed(struct engine *engine)
{
	engine->lane.runner_turn = 0;
	engine->lane.idle.hold_until_ns = 0;
	engine->accounting.admit = true;
}

void models_join(struct engine *engine, struct runner *runner)
{
	struct runners *runners = &engine->runners;

	assert(runners->n < ENGINE_MODELS_MAX);
	runner->lane = engine->lane.stream;
	runner->place = models_free_place(runners);
	assert(runner->place < ENGINE_MODELS_MAX);
	engine->lane.schedules[runner->place] = (struct schedule){0};
	runners->all[runners->n++] = runner;
	models_changed(engine);
}

void models_leave(struct engine *engine, uint32_t id)
{
	struct runner *runner = runners_find(&engine->runners, id);

	assert(runner && !runner->leaving);
	runner->leaving = true;
	finish_model(&engine->accounting, runner);
	late_forget(&engine->lane, runner);
}

/* No launched step, no capture, and no request that waits for one names it. */
static bool models_is_unused(const struct engine *engine, const struct runner *runner)
{
	const struct slots *slots = &runner->slots;
	const struct request *request;

	DL_FOREACH (engine->accounting.ending, request) {
		if (request->runner == runner)
			return false;
	}
	return runner->launched == runner->completed && !slots->n_running && !slots->releasing && !slots->n_copies &&
		late_is_done_with(runner);
}

/* Returns how much work it was. */
static uint32_t models_forget_sequence(struct sequence *sequence, const struct runner *runner)
{
	const uint32_t n_pages = sequence->table.n_pages;

	if (sequence->runner != runner)
		return 1;
	sequence_orphan(sequence);
	return 1 + n_pages;
}

static uint32_t models_forget_request(struct request *request, const struct runner *runner)
{
	if (request->runner == runner) {
		assert(request->state == REQUEST_FREE);
		request->runner = NULL;
	}
	return 1;
}

/* False: there are more. */
static bool models_forget_in(struct engine_session *session, const struct runner *runner, uint32_t *most)
{
	const uint32_t n_sequences = engine_session_n_sequences(session), end = n_sequences + session->n_requests;

	if (session->limits.models_end <= runner->id)
		return true; /* the session is older than the model */
	while (session->n_forgotten < end && *most > 0) {
		const uint32_t i = session->n_forgotten++;
		const uint32_t work = i < n_sequences
			? models_forget_sequence(&session->sequences[i], runner)
			: models_forget_request(&session->requests[i - n_sequences], runner);

		*most -= work < *most ? work : *most;
	}
	return session->n_forgotten == end;
}

/* A part of the sessions' sequences and requests in each turn. False: there are more. */
static bool models_forget(struct engine *engine, const struct runner *runner)
{
	const struct accounting *accounting = &engine->accounting;
	uint32_t most = MODELS_FORGET_A_TURN;

	for (uint32_t i = 0; i < accounting->n_sessions && engine->forgotten != runner; i++)
		accounting->sessions[i]->n_forgotten = 0;
	engine->forgotten = runner;
	for (uint32_t i = 0; i < accounting->n_sessions; i++) {
		if (!models_forget_in(accounting->sessions[i], runner, &most))
			return false;
	}
	engine->forgotten = NULL;
	return true;
}

static void models_take_out(struct engine *engine, uint32_t at)
{
	struct runner *runner = engine->runners.all[at];

	models_remove(&engine->runners, at);
	models_changed(engine);
	atomic_fetch_sub(&engine->n_leaving, 1);
	reports_post_model(&engine->reports, runner);
}

bool models_hand_back(struct engine *engine)
{
	if (!atomic_load_explicit(&engine->n_leaving, memory_order_relaxed))
		return false;
	for (uint32_t i = 0; i < engine->runners.n; i++) {
		const struct runner *runner = engine->runners.all[i];

		if (!runner->leaving || !models_is_unused(engine, runner))
			continue;
		if (models_forget(engine, runner))
			models_take_out(engine, i);
		return true;
	}
	return false;
}

/* ---- the end ---- */

void engine_free_models(struct engine *engine)
{
	struct runner *model;

	while ((model = engine_model_take(engine)))
		engine_model_free(model);
	while (engine->runners.n)
		engine_model_free(engine->runners.all[--engine->runners.n]);
	if (engine->dry)
		engine->device->ops->stream_free(engine->dry);
}
