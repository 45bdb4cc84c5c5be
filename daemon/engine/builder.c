/* SPDX-License-Identifier: MIT */
#include "daemon/engine/builder.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "ipc/clock.h"
#include "ipc/doorbell.h"

#define LOOK_NS 1000000 /* how often at the lane, while something waits for it */

struct jobs {
	struct builder_job *first, *last;
};

struct things {
	struct builder_thing *first, *last;
};

struct builder {
	struct device *device;
	const _Atomic uint32_t *n_in_lane;
	pthread_t thread;
	int fd;
	_Atomic uint64_t bytes;
	_Atomic uint32_t n_closing;
	pthread_mutex_t lock; /* of what follows */
	pthread_cond_t changed;
	struct jobs posted, done, starved; /* starved: wait for memory */
	struct builder_task *tasks_first, *tasks_last;
	bool (*relieve)(void *userdata);
	void *relieve_userdata;
	uint64_t relief_ns; /* the last; 0: there was none */
	struct things closing, waiting; /* waiting: for the lane */
	bool made;             /* the last thing done was a job: what closes goes before the next */
	bool stop;
};

static void jobs_push(struct jobs *jobs, struct builder_job *job)
{
	job->next = NULL;
	if (jobs->last)
		jobs->last->next = job;
	else
		jobs->first = job;
	jobs->last = job;
}

static struct builder_job *jobs_pop(struct jobs *jobs)
{
	struct builder_job *job = jobs->first;

	if (job)
		jobs->first = job->next;
	if (!jobs->first)
		jobs->last = NULL;
	return job;
}

static void things_push(struct things *things, struct builder_thing *thing)
{
	thing->next = NULL;
	if (things->last)
		things->last->next = thing;
	else
		things->first = thing;
	things->last = thing;
}

static struct builder_thing *things_pop(struct things *things)
{
	struct builder_thing *thing = things->first;

	if (thing)
		things->first = thing->next;
	if (!things->first)
		things->last = NULL;
	return thing;
}

/* ---- making ---- */

static int import_fd(struct device *device, struct builder_job *job)
{
	struct device_handle handle;
	int rc = device->ops->handle_of_fd(device, job->handle.fd, job->handle.size, &handle);

	return rc ? rc : device->ops->import(device, &handle, &job->thing->address);
}

/* A handle that says more than there is would have to be closed again at once, outside the queue, if
 * the device were asked to see to it. */
static int import_ipc(struct device *device, struct builder_job *job)
{
	struct device_handle handle = job->handle;
	int rc;

	handle.size = 1;
	rc = device->ops->import(device, &handle, &job->thing->address);
	if (rc)
		return rc;
	return device->ops->import_bytes(device, job->thing->address) < job->handle.size
		? DEVICE_E_INVALID : 0;
}

static int make(struct device *device, struct builder_job *job)
{
	struct builder_thing *thing = job->thing;

	switch (thing->kind) {
	case BUILDER_EXPORT:
		return device->ops->export_alloc(
			device, thing->bytes, &thing->address, &job->handle);
	case BUILDER_EXPORT_IPC:
		return device->ops->export_ipc_alloc(
			device, thing->bytes, &thing->address, &job->handle);
	case BUILDER_IMPORT:
		return import_fd(device, job);
	case BUILDER_IMPORT_IPC:
		return import_ipc(device, job);
	case BUILDER_FENCE:
		return device->ops->event_new_shared(device, &thing->event, &job->handle);
	}
	return -EINVAL;
}

/* ---- giving back ---- */

static bool waits_for_the_lane(const struct builder_thing *thing)
{
	return thing->kind == BUILDER_EXPORT_IPC || thing->kind == BUILDER_IMPORT_IPC;
}

static void give_back(struct builder *builder, struct builder_thing *thing)
{
	const struct device_ops *ops = builder->device->ops;

	switch (thing->kind) {
	case BUILDER_EXPORT:
		ops->export_free(builder->device, thing->address);
		break;
	case BUILDER_EXPORT_IPC:
		ops->export_ipc_free(builder->device, thing->address);
		break;
	case BUILDER_IMPORT:
	case BUILDER_IMPORT_IPC:
		ops->import_free(builder->device, thing->address);
		break;
	case BUILDER_FENCE:
		ops->event_free(thing->event);
		break;
	}
	atomic_fetch_sub(&builder->bytes, thing->bytes);
	atomic_fetch_sub(&builder->n_closing, 1);
	free(thing);
}

/* ---- the thread ---- */

/* With the lock held. */
static void retry_starved(struct builder *builder)
{
	struct builder_job *job;

	while ((job = jobs_pop(&builder->starved)))
		jobs_push(&builder->posted, job);
}

static bool is_due(const struct builder *builder)
{
	const struct builder_thing *oldest = builder->waiting.first;

	if (!oldest)
		return false;
	return builder->stop || !builder->n_in_lane || atomic_load(builder->n_in_lane) == 0 ||
		clock_ns() - oldest->since_ns >= BUILDER_CLOSE_LIMIT_MS * UINT64_C(1000000);
}

/* Wait for news; while something waits for the lane, not for long. */
static void wait_for_news(struct builder *builder)
{
	struct timespec until;

	if (!builder->waiting.first) {
		pthread_cond_wait(&builder->changed, &builder->lock);
		return;
	}
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += LOOK_NS;
	if (until.tv_nsec >= 1000000000) {
		until.tv_sec++;
		until.tv_nsec -= 1000000000;
	}
	pthread_cond_timedwait(&builder->changed, &builder->lock, &until);
}

/* The next to be given back now, or NULL. */
static struct builder_thing *next_closing(struct builder *builder)
{
	struct builder_thing *thing;

	while ((thing = things_pop(&builder->closing)) && waits_for_the_lane(thing))
		things_push(&builder->waiting, thing);
	return thing ? thing : is_due(builder) ? things_pop(&builder->waiting) : NULL;
}

/* With the lock held, which is let go meanwhile: run a task. */
static bool work_task(struct builder *builder)
{
	struct builder_task *task = builder->tasks_first;

	if (!task)
		return false;
	builder->tasks_first = task->next;
	if (!task->next)
		builder->tasks_last = NULL;
	pthread_mutex_unlock(&builder->lock);
	task->run(task);
	pthread_mutex_lock(&builder->lock);
	return true;
}

/* The device had no memory for it: may it wait for what others give back? With the lock held. */
static bool may_wait(struct builder *builder, struct builder_job *job)
{
	uint64_t now = clock_ns();

	if (job->rc != DEVICE_E_MEMORY || job->thing->address || job->again || !builder->relieve)
		return false;
	if (!builder->starved.first && builder->relief_ns && now - builder->relief_ns < BUILDER_RELIEF_MS * UINT64_C(1000000))
		return false;
	if (!builder->starved.first)
		builder->relief_ns = now;
	job->again = true;
	return true;
}

/* With the lock held: the job is done, or waits for memory, which is asked for without the lock. */
static void put_job(struct builder *builder, struct builder_job *job)
{
	bool others_wait = builder->starved.first;

	if (!builder->stop && may_wait(builder, job)) {
		jobs_push(&builder->starved, job);
		if (others_wait)
			return;
		pthread_mutex_unlock(&builder->lock);
		bool asked = builder->relieve(builder->relieve_userdata);
		pthread_mutex_lock(&builder->lock);
		if (!asked)
			retry_starved(builder);
		return;
	}
	jobs_push(&builder->done, job);
	doorbell_ring(builder->fd);
}

/* With the lock held, which is let go meanwhile: do one thing that can be done now. Making and giving
 * back take turns where both have something to do: neither client waits for another's endless calls. */
static bool work(struct builder *builder)
{
	if (work_task(builder))
		return true;

	struct builder_thing *thing = builder->made ? next_closing(builder) : NULL;
	struct builder_job *job = thing ? NULL : jobs_pop(&builder->posted);

	if (!job && !thing)
		thing = next_closing(builder);
	if (!job && !thing)
		return false;
	builder->made = job;
	pthread_mutex_unlock(&builder->lock);
	if (job)
		job->rc = make(builder->device, job);
	else
		give_back(builder, thing);
	pthread_mutex_lock(&builder->lock);
	if (job)
		put_job(builder, job);
	return true;
}

static void *builder_main(void *arg)
{
	struct builder *builder = arg;

	pthread_mutex_lock(&builder->lock);
	while (work(builder) || !builder->stop) {
		if (!builder->posted.first && !builder->closing.first && !builder->tasks_first &&
			!builder->stop && !is_due(builder))
			wait_for_news(builder);
	}
	pthread_mutex_unlock(&builder->lock);
	return NULL;
}

/* ---- life ---- */

static int start(struct builder *builder)
{
	pthread_condattr_t attributes;
	sigset_t all, old;

	pthread_mutex_init(&builder->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&builder->changed, &attributes);
	pthread_condattr_destroy(&attributes);
	/* Signals are the loop thread's. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	int r = pthread_create(&builder->thread, NULL, builder_main, builder);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r == 0)
		pthread_setname_np(builder->thread, "mimeo-builder");
	return -r;
}

int builder_new(struct device *device, const _Atomic uint32_t *n_in_lane, struct builder **ret)
{
	struct builder *builder = calloc(1, sizeof(*builder));
	int r;

	if (!builder)
		return -ENOMEM;
	builder->device = device;
	builder->n_in_lane = n_in_lane;
	builder->fd = doorbell_new();
	r = builder->fd < 0 ? builder->fd : start(builder);
	if (r < 0) {
		if (builder->fd >= 0)
			close(builder->fd);
		free(builder);
		return r;
	}
	*ret = builder;
	return 0;
}

void builder_free(struct builder *builder)
{
	struct builder_job *job;

	if (!builder)
		return;
	pthread_mutex_lock(&builder->lock);
	builder->stop = true;
	retry_starved(builder);
	pthread_cond_signal(&builder->changed);
	pthread_mutex_unlock(&builder->lock);
	pthread_join(builder->thread, NULL);
	while ((job = jobs_pop(&builder->done))) {
		if (job->rc == 0 || job->thing->address) {
			if (job->thing->kind != BUILDER_IMPORT && job->handle.fd >= 0)
				close(job->handle.fd);
			atomic_fetch_add(&builder->n_closing, 1);
			give_back(builder, job->thing);
		} else {
			free(job->thing);
		}
		free(job);
	}
	close(builder->fd);
	pthread_cond_destroy(&builder->changed);
	pthread_mutex_destroy(&builder->lock);
	free(builder);
}

/* ---- from any thread ---- */

void builder_post_task(struct builder *builder, struct builder_task *task)
{
	task->next = NULL;
	pthread_mutex_lock(&builder->lock);
	if (builder->tasks_last)
		builder->tasks_last->next = task;
	else
		builder->tasks_first = task;
	builder->tasks_last = task;
	pthread_cond_signal(&builder->changed);
	pthread_mutex_unlock(&builder->lock);
}

void builder_relieved(struct builder *builder)
{
	pthread_mutex_lock(&builder->lock);
	retry_starved(builder);
	pthread_cond_signal(&builder->changed);
	pthread_mutex_unlock(&builder->lock);
}

/* ---- the loop thread's side ---- */

void builder_on_pressure(struct builder *builder, bool (*relieve)(void *userdata), void *userdata)
{
	pthread_mutex_lock(&builder->lock);
	builder->relieve = relieve;
	builder->relieve_userdata = userdata;
	pthread_mutex_unlock(&builder->lock);
}

void builder_post(struct builder *builder, struct builder_job *job)
{
	atomic_fetch_add(&builder->bytes, job->thing->bytes);
	pthread_mutex_lock(&builder->lock);
	jobs_push(&builder->posted, job);
	pthread_cond_signal(&builder->changed);
	pthread_mutex_unlock(&builder->lock);
}

int builder_fd(const struct builder *builder)
{
	return builder->fd;
}

struct builder_job *builder_take(struct builder *builder)
{
	pthread_mutex_lock(&builder->lock);
	struct builder_job *job = jobs_pop(&builder->done);
	pthread_mutex_unlock(&builder->lock);

	if (job && job->rc != 0 && !job->thing->address)
		atomic_fetch_sub(&builder->bytes, job->thing->bytes);
	return job;
}

void builder_close(struct builder *builder, struct builder_thing *thing)
{
	thing->since_ns = clock_ns();
	atomic_fetch_add(&builder->n_closing, 1);
	pthread_mutex_lock(&builder->lock);
	things_push(&builder->closing, thing);
	pthread_cond_signal(&builder->changed);
	pthread_mutex_unlock(&builder->lock);
}

uint64_t builder_bytes(const struct builder *builder)
{
	return atomic_load(&builder->bytes);
}

uint32_t builder_n_closing(const struct builder *builder)
{
	return atomic_load(&builder->n_closing);
}
