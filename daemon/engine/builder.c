/* SPDX-License-Identifier: MIT */
#include "daemon/engine/builder.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include <utlist.h>

#include "ipc/clock.h"
#include "ipc/doorbell.h"

#define LOOK_NS 1000000 /* interval of checks of the lane, while an item waits for it */

struct builder {
	struct device *device;
	const _Atomic uint32_t *n_in_lane;
	pthread_t thread;
	int fd;
	_Atomic uint64_t bytes;
	_Atomic uint32_t n_closing;
	pthread_mutex_t lock; /* of what follows */
	pthread_cond_t changed;
	struct builder_job *posted, *done, *starved; /* starved: wait for memory */
	struct builder_task *tasks;
	bool (*relieve)(void *userdata);
	void *relieve_userdata;
	uint64_t relief_ns; /* the last; 0: there was none */
	struct builder_thing *closing, *waiting, *closed; /* waiting: for the lane */
	bool made;             /* the last thing done was a job: what closes goes before the next */
	bool stop;
};

static struct builder_job *builder_pop_job(struct builder_job **jobs)
{
	struct builder_job *job = *jobs;

	if (job)
		DL_DELETE(*jobs, job);
	return job;
}

static struct builder_thing *builder_pop_thing(struct builder_thing **things)
{
	struct builder_thing *thing = *things;

	if (thing)
		DL_DELETE(*things, thing);
	return thing;
}

/* ---- making ---- */

static int builder_import_fd(struct device *device, struct builder_job *job)
{
	struct device_handle handle;
	int rc = device->ops->handle_of_fd(device, job->handle.fd, job->handle.size, &handle);

	return rc ? rc : device->ops->import(device, &handle, &job->thing->address);
}

/* Checked here: if the device found that the handle exceeds its memory, the mapping would have to be closed
 * at once, outside the queue. */
static int builder_import_ipc(struct device *device, struct builder_job *job)
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

static int builder_make(struct device *device, struct builder_job *job)
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
		return builder_import_fd(device, job);
	case BUILDER_IMPORT_IPC:
		return builder_import_ipc(device, job);
	case BUILDER_FENCE:
		return device->ops->event_new_shared(device, &thing->event, &job->handle);
	}
	return -EINVAL;
}

/* ---- closing ---- */

static bool builder_waits_for_lane(const struct builder_thing *thing)
{
	return thing->kind == BUILDER_EXPORT_IPC || thing->kind == BUILDER_IMPORT_IPC;
}

static void builder_give_back(struct builder *builder, struct builder_thing *thing)
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
	assert(builder_bytes(builder) >= thing->bytes && builder_n_closing(builder) > 0);
	atomic_fetch_sub(&builder->bytes, thing->bytes);
	atomic_fetch_sub(&builder->n_closing, 1);
}

/* ---- the thread ---- */

/* With the lock held. */
static void builder_retry_starved(struct builder *builder)
{
	struct builder_job *job;

	while ((job = builder_pop_job(&builder->starved)))
		DL_APPEND(builder->posted, job);
}

static bool builder_is_due(const struct builder *builder)
{
	const struct builder_thing *oldest = builder->waiting;

	if (!oldest)
		return false;
	return builder->stop || !builder->n_in_lane || atomic_load(builder->n_in_lane) == 0 ||
		clock_ns() - oldest->since_ns >= BUILDER_CLOSE_LIMIT_MS * UINT64_C(1000000);
}

/* While something waits for the lane, LOOK_NS at most. */
static void builder_wait(struct builder *builder)
{
	struct timespec until;

	if (!builder->waiting) {
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

/* The next to be closed now, or NULL. */
static struct builder_thing *builder_next_closing(struct builder *builder)
{
	struct builder_thing *thing;

	while ((thing = builder_pop_thing(&builder->closing)) && builder_waits_for_lane(thing))
		DL_APPEND(builder->waiting, thing);
	if (thing)
		return thing;
	return builder_is_due(builder) ? builder_pop_thing(&builder->waiting) : NULL;
}

/* With the lock held, which is dropped meanwhile. */
static bool builder_run_task(struct builder *builder)
{
	struct builder_task *task = builder->tasks;

	if (!task)
		return false;
	DL_DELETE(builder->tasks, task);
	pthread_mutex_unlock(&builder->lock);
	task->run(task);
	pthread_mutex_lock(&builder->lock);
	return true;
}

/* With the lock held. True if the device had no memory for the job and dropping idle graphs may free some. */
static bool builder_may_wait(struct builder *builder, struct builder_job *job)
{
	uint64_t now = clock_ns();

	if (job->rc != DEVICE_E_MEMORY || job->thing->address || job->again || !builder->relieve)
		return false;
	if (!builder->starved && builder->relief_ns &&
		now - builder->relief_ns < BUILDER_RELIEF_MS * UINT64_C(1000000))
		return false;
	if (!builder->starved)
		builder->relief_ns = now;
	job->again = true;
	return true;
}

/* With the lock held, which is dropped meanwhile: have idle graphs dropped for the job. */
static void builder_starve(struct builder *builder, struct builder_job *job)
{
	bool asked = builder->starved;

	assert(job->again && !builder->stop);
	DL_APPEND(builder->starved, job);
	if (asked)
		return;
	pthread_mutex_unlock(&builder->lock);
	asked = builder->relieve(builder->relieve_userdata);
	pthread_mutex_lock(&builder->lock);
	if (!asked)
		builder_retry_starved(builder);
}

/* With the lock held, which is dropped meanwhile. */
static void builder_run_job(struct builder *builder, struct builder_job *job)
{
	pthread_mutex_unlock(&builder->lock);
	job->rc = builder_make(builder->device, job);
	pthread_mutex_lock(&builder->lock);
	if (!builder->stop && builder_may_wait(builder, job)) {
		builder_starve(builder, job);
		return;
	}
	DL_APPEND(builder->done, job);
	doorbell_ring(builder->fd);
}

/* With the lock held, which is dropped meanwhile: one piece of work. Jobs and closings take turns, so that
 * neither waits for the other's without end. False: there is none. */
static bool builder_work(struct builder *builder)
{
	struct builder_thing *thing;
	struct builder_job *job;

	if (builder_run_task(builder))
		return true;
	thing = builder->made || !builder->posted ? builder_next_closing(builder) : NULL;
	builder->made = !thing && builder->posted;
	if (thing) {
		pthread_mutex_unlock(&builder->lock);
		builder_give_back(builder, thing);
		pthread_mutex_lock(&builder->lock);
		DL_APPEND(builder->closed, thing);
		doorbell_ring(builder->fd);
		return true;
	}
	job = builder_pop_job(&builder->posted);
	if (job)
		builder_run_job(builder, job);
	return job;
}

static void *builder_main(void *arg)
{
	struct builder *builder = arg;

	pthread_mutex_lock(&builder->lock);
	while (builder_work(builder) || !builder->stop) {
		if (!builder->posted && !builder->closing && !builder->tasks && !builder->stop &&
			!builder_is_due(builder))
			builder_wait(builder);
	}
	pthread_mutex_unlock(&builder->lock);
	return NULL;
}

/* ---- life ---- */

static int builder_start(struct builder *builder)
{
	pthread_condattr_t attributes;
	sigset_t all, old;
	int rc;

	pthread_mutex_init(&builder->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&builder->changed, &attributes);
	pthread_condattr_destroy(&attributes);
	/* Signals are the loop thread's. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&builder->thread, NULL, builder_main, builder);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc)
		return -rc;
	pthread_setname_np(builder->thread, "mimeo-builder");
	return 0;
}

int builder_new(struct device *device, const _Atomic uint32_t *n_in_lane, struct builder **ret)
{
	struct builder *builder = calloc(1, sizeof(*builder));
	int rc;

	if (!builder)
		return -ENOMEM;
	builder->device = device;
	builder->n_in_lane = n_in_lane;
	builder->fd = doorbell_new();
	rc = builder->fd < 0 ? builder->fd : builder_start(builder);
	if (rc) {
		if (builder->fd >= 0)
			close(builder->fd);
		free(builder);
		return rc;
	}
	*ret = builder;
	return 0;
}

void builder_free(struct builder *builder)
{
	struct builder_thing *thing;
	struct builder_job *job;

	if (!builder)
		return;
	pthread_mutex_lock(&builder->lock);
	builder->stop = true;
	builder_retry_starved(builder);
	pthread_cond_signal(&builder->changed);
	pthread_mutex_unlock(&builder->lock);
	pthread_join(builder->thread, NULL);
	while ((job = builder_pop_job(&builder->done))) {
		if (!job->rc || job->thing->address) {
			if (job->thing->kind != BUILDER_IMPORT && job->handle.fd >= 0)
				close(job->handle.fd);
			atomic_fetch_add(&builder->n_closing, 1);
			builder_give_back(builder, job->thing);
		}
		free(job->thing);
		free(job);
	}
	while ((thing = builder_pop_thing(&builder->closed)))
		free(thing);
	close(builder->fd);
	assert(!builder->posted && !builder->starved && !builder->closing && !builder->waiting);
	assert(!builder->tasks);
	pthread_cond_destroy(&builder->changed);
	pthread_mutex_destroy(&builder->lock);
	free(builder);
}

/* ---- from any thread ---- */

void builder_post_task(struct builder *builder, struct builder_task *task)
{
	pthread_mutex_lock(&builder->lock);
	DL_APPEND(builder->tasks, task);
	pthread_cond_signal(&builder->changed);
	pthread_mutex_unlock(&builder->lock);
}

void builder_relieved(struct builder *builder)
{
	pthread_mutex_lock(&builder->lock);
	builder_retry_starved(builder);
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
	DL_APPEND(builder->posted, job);
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
	struct builder_job *job = builder_pop_job(&builder->done);
	pthread_mutex_unlock(&builder->lock);

	if (job && job->rc && !job->thing->address)
		atomic_fetch_sub(&builder->bytes, job->thing->bytes);
	return job;
}

void builder_close(struct builder *builder, struct builder_thing *thing)
{
	thing->since_ns = clock_ns();
	atomic_fetch_add(&builder->n_closing, 1);
	pthread_mutex_lock(&builder->lock);
	DL_APPEND(builder->closing, thing);
	pthread_cond_signal(&builder->changed);
	pthread_mutex_unlock(&builder->lock);
}

struct builder_thing *builder_take_closed(struct builder *builder)
{
	pthread_mutex_lock(&builder->lock);
	struct builder_thing *thing = builder_pop_thing(&builder->closed);
	pthread_mutex_unlock(&builder->lock);

	return thing;
}

uint64_t builder_bytes(const struct builder *builder)
{
	return atomic_load(&builder->bytes);
}

uint32_t builder_n_closing(const struct builder *builder)
{
	return atomic_load(&builder->n_closing);
}
