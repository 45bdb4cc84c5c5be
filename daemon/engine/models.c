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

/* ---- the loader's thread ---- */

/* Nothing of it runs on the device until a step of its own does; captures run on the dry stream, too, whose
 * workspaces only steps on the lane use. */
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

bool models_have_room(const struct engine *engine)
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

static void models_forget_in(struct engine_session *session, const struct runner *runner)
{
	for (uint32_t i = 0; i < engine_session_n_sequences(session); i++) {
		if (session->sequences[i].runner == runner)
			sequence_orphan(&session->sequences[i]);
	}
	for (uint32_t i = 0; i < session->n_requests; i++) {
		if (session->requests[i].runner != runner)
			continue;
		assert(session->requests[i].state == REQUEST_FREE);
		session->requests[i].runner = NULL;
	}
}

static void models_take_out(struct engine *engine, uint32_t at)
{
	struct accounting *accounting = &engine->accounting;
	struct runner *runner = engine->runners.all[at];

	for (uint32_t i = 0; i < accounting->n_sessions; i++)
		models_forget_in(accounting->sessions[i], runner);
	models_remove(&engine->runners, at);
	models_changed(engine);
	atomic_fetch_sub(&engine->n_leaving, 1);
	reports_post_model(&engine->reports, runner);
}

void models_hand_back(struct engine *engine)
{
	if (!atomic_load_explicit(&engine->n_leaving, memory_order_relaxed))
		return;
	for (uint32_t i = 0; i < engine->runners.n;) {
		if (engine->runners.all[i]->leaving && models_is_unused(engine, engine->runners.all[i]))
			models_take_out(engine, i);
		else
			i++;
	}
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
