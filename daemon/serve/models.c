/* SPDX-License-Identifier: MIT */
#include "daemon/serve/models.h"

#include <assert.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <mimeo/types.h>

#include "ipc/cleanup.h"
#include "ipc/doorbell.h"

#define MODELS_TEXT_MAX 640

enum models_state { MODELS_IDLE, MODELS_LOADING, MODELS_LEAVING, MODELS_FREEING };

struct models {
	struct serve *serve;
	struct serve_loader loader; /* the loader may outlive `serve` */
	enum models_state state;   /* of the only order; the loop thread's */
	char name[64];             /* the order's model */
	struct models_waiter waiter; /* `reply` NULL: nobody waits any more */
	struct loop_source *source;
	int fd; /* rung when the loader is done */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	/* With the lock held; `work`, while the loader has something to do, hands the rest to it. */
	bool work, done, stop;
	void *job;            /* to load */
	struct runner *model; /* to free; or loaded */
	int rc;
	int status; /* the loop thread's: why the model was not taken, with `text` */
	char text[MODELS_TEXT_MAX];
};

/* ---- the loader's thread ---- */

static void models_work(struct models *models)
{
	const struct serve_loader *loader = &models->loader;

	models->rc = 0;
	if (models->model) {
		engine_model_free(STEAL(models->model));
		malloc_trim(0); /* on the cpu device it was the heap's */
	} else {
		models->rc = loader->run(loader->userdata, STEAL(models->job), &models->model, models->text,
			sizeof(models->text));
	}
}

static void *models_main(void *arg)
{
	struct models *models = arg;

	pthread_mutex_lock(&models->lock);
	while (models->work || !models->stop) {
		if (!models->work) {
			pthread_cond_wait(&models->changed, &models->lock);
			continue;
		}
		pthread_mutex_unlock(&models->lock);
		models_work(models);
		pthread_mutex_lock(&models->lock);
		models->work = false;
		models->done = true;
		doorbell_ring(models->fd);
	}
	pthread_mutex_unlock(&models->lock);
	return NULL;
}

/* What the loader has to do was written before. */
static void models_start(struct models *models)
{
	pthread_mutex_lock(&models->lock);
	assert(!models->work && !models->done);
	models->work = true;
	pthread_cond_signal(&models->changed);
	pthread_mutex_unlock(&models->lock);
}

/* ---- the end of an order ---- */

static void models_reply(struct models *models, int status, const char *text)
{
	const struct models_waiter waiter = models->waiter;

	models->state = MODELS_IDLE;
	models->waiter = (struct models_waiter){0};
	if (waiter.reply)
		waiter.reply(waiter.userdata, status, text);
}

static void models_loaded(struct models *models)
{
	char text[128];

	if (models->rc < 0) {
		log_error("model %s: not loaded: %s", models->name, models->text);
		models_reply(models, models->rc == -ENOMEM ? MIMEO_E_NO_MEMORY : MIMEO_E_INVALID, models->text);
		return;
	}
	int rc = engine_post_load(models->serve->options.engine, models->model);
	if (rc < 0) {
		/* The loader frees it, and the reply is given then. */
		snprintf(models->text, sizeof(models->text), "%s",
			rc == -ENOSPC ? "as many models as possible are served" : "out of host memory");
		models->status = rc == -ENOSPC ? MIMEO_E_QUOTA : MIMEO_E_NO_MEMORY;
		models->state = MODELS_FREEING;
		models_start(models);
		return;
	}
	models->model = NULL;
	log_info("model %s: loaded by an operator", models->name);
	snprintf(text, sizeof(text), "model %s is served", models->name);
	models_reply(models, 0, text);
}

static void models_freed(struct models *models)
{
	char text[128];

	if (models->text[0]) {
		models_reply(models, models->status, models->text);
		return;
	}
	log_info("model %s: unloaded by an operator", models->name);
	snprintf(text, sizeof(text), "model %s is unloaded", models->name);
	models_reply(models, 0, text);
}

static void models_on_loader(void *userdata, struct loop_source *source, uint32_t events)
{
	struct models *models = userdata;
	bool done;

	pthread_mutex_lock(&models->lock);
	done = models->done;
	models->done = false;
	pthread_mutex_unlock(&models->lock);
	if (!done)
		return;
	assert(models->state == MODELS_LOADING || models->state == MODELS_FREEING);
	if (models->state == MODELS_LOADING)
		models_loaded(models);
	else
		models_freed(models);
}

void models_take(struct serve *serve)
{
	struct models *models = serve->models;
	struct runner *model;

	while ((model = engine_model_take(serve->options.engine))) {
		assert(models && models->state == MODELS_LEAVING);
		models->state = MODELS_FREEING;
		models->model = model;
		models_start(models);
	}
}

/* ---- life ---- */

static int models_run(struct models *models)
{
	sigset_t all, old;

	/* Signals are the loop thread's. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	int rc = -pthread_create(&models->thread, NULL, models_main, models);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc == 0)
		pthread_setname_np(models->thread, "mimeo-loader");
	return rc;
}

/* Not before the first order: most daemons get none. */
static int models_new(struct serve *serve)
{
	struct models *models = calloc(1, sizeof(*models));

	if (!models)
		return -ENOMEM;
	models->serve = serve;
	models->loader = serve->options.loader;
	pthread_mutex_init(&models->lock, NULL);
	pthread_cond_init(&models->changed, NULL);
	models->fd = doorbell_new();
	int rc = models->fd < 0 ? models->fd
		: loop_add(serve->loop, models->fd, EPOLLIN, models_on_loader, models, &models->source);
	if (rc == 0)
		rc = models_run(models);
	if (rc == 0) {
		serve->models = models;
		return 0;
	}
	models_free(models);
	return rc;
}

bool models_is_working(const struct serve *serve)
{
	struct models *models = serve->models;
	bool working;

	if (!models)
		return false;
	pthread_mutex_lock(&models->lock);
	working = models->work;
	pthread_mutex_unlock(&models->lock);
	return working;
}

void models_free(struct models *models)
{
	if (!models)
		return;
	loop_remove(models->serve->loop, models->source);
	if (models_is_working(models->serve))
		return; /* what the loader's thread uses stays */
	if (models->thread) {
		pthread_mutex_lock(&models->lock);
		models->stop = true;
		pthread_cond_signal(&models->changed);
		pthread_mutex_unlock(&models->lock);
		pthread_join(models->thread, NULL);
	}
	engine_model_free(models->model);
	if (models->fd >= 0)
		close(models->fd);
	pthread_cond_destroy(&models->changed);
	pthread_mutex_destroy(&models->lock);
	free(models);
}

/* ---- orders ---- */

static bool models_is_served(const struct engine *engine, const char *name, uint32_t *ret_id)
{
	for (uint32_t i = 0; i < engine_n_models(engine); i++) {
		struct engine_model_facts facts;

		engine_model_facts(engine, i, &facts);
		if (strcmp(facts.name, name) != 0)
			continue;
		*ret_id = facts.id;
		return true;
	}
	return false;
}

static bool models_begin_load(struct models *models, const struct admin_request *request, struct reply *reply)
{
	const struct serve_loader *loader = &models->serve->options.loader;
	uint32_t id;

	if (models_is_served(models->serve->options.engine, request->model, &id)) {
		reply_sayf(reply, MIMEO_E_INVALID, "a model called %s is served: unload it, or choose another name",
			request->model);
		return false;
	}
	if (!loader->begin) {
		reply_say(reply, MIMEO_E_UNSUPPORTED, "this daemon loads no models while it serves");
		return false;
	}
	if (!engine_has_room(models->serve->options.engine)) {
		reply_sayf(reply, MIMEO_E_QUOTA, "%u models are served, and there cannot be more: unload one",
			ENGINE_MODELS_MAX);
		return false;
	}
	int rc = loader->begin(loader->userdata, request->model, request->path[0] ? request->path : NULL,
		request->settings, &models->job, models->text, sizeof(models->text));
	if (rc < 0) {
		reply_say(reply, rc == -ENOMEM ? MIMEO_E_NO_MEMORY : MIMEO_E_INVALID, models->text);
		return false;
	}
	log_info("model %s: an operator loads it", request->model);
	models->state = MODELS_LOADING;
	models_start(models);
	return true;
}

static bool models_begin_unload(struct models *models, const struct admin_request *request, struct reply *reply)
{
	struct engine *engine = models->serve->options.engine;
	uint32_t id;

	if (!models_is_served(engine, request->model, &id)) {
		reply_sayf(reply, MIMEO_E_INVALID, "no model is called %s: see mimeoctl models", request->model);
		return false;
	}
	if (engine_post_unload(engine, id) < 0) {
		reply_say(reply, MIMEO_E_NO_MEMORY, "out of host memory");
		return false;
	}
	log_info("model %s: an operator unloads it", request->model);
	models->state = MODELS_LEAVING;
	return true;
}

bool models_begin(struct serve *serve, const struct admin_request *request, const struct models_waiter *waiter,
	struct reply *reply)
{
	if (serve->state != SERVE_SERVING) {
		reply_say(reply, MIMEO_E_DRAINING, "the daemon is shutting down");
		return false;
	}
	if (!serve->models && models_new(serve) < 0) {
		reply_say(reply, MIMEO_E_NO_MEMORY, "the loader's thread does not start: out of memory");
		return false;
	}
	struct models *models = serve->models;
	if (models->state != MODELS_IDLE) {
		reply_sayf(reply, MIMEO_E_FULL, "model %s is being %s: try again when that is done", models->name,
			models->state == MODELS_LOADING ? "loaded" : "unloaded");
		return false;
	}
	snprintf(models->name, sizeof(models->name), "%s", request->model);
	models->text[0] = '\0';
	if (!(strcmp(request->op, "load") == 0 ? models_begin_load(models, request, reply)
					       : models_begin_unload(models, request, reply)))
		return false;
	models->waiter = *waiter;
	return true;
}

const char *models_progress(const struct serve *serve, char text[static SERVE_PROGRESS_MAX])
{
	const struct models *models = serve->models;

	text[0] = '\0';
	if (models && models->state == MODELS_LOADING && serve->options.loader.progress)
		serve->options.loader.progress(text);
	else if (models && models->state != MODELS_IDLE)
		snprintf(text, SERVE_PROGRESS_MAX, "model %s: unloading", models->name);
	return text;
}

void models_forget(struct serve *serve, const void *userdata)
{
	if (serve->models && serve->models->waiter.userdata == userdata)
		serve->models->waiter = (struct models_waiter){0};
}
