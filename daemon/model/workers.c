/* SPDX-License-Identifier: MIT */
#include "daemon/model/workers.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>

struct workers {
	pthread_mutex_t lock;
	pthread_cond_t begun, ended;
	pthread_t threads[WORKERS_MAX - 1];
	uint32_t n_threads; /* beside the caller */
	/* the task's */
	void (*each)(void *userdata, uint32_t i);
	void *userdata;
	uint32_t n, next, n_done;
	bool stopping;
};

/* Take parts until none is left. With the lock, which is released for each call. */
static void workers_take(struct workers *workers)
{
	while (workers->next < workers->n) {
		const uint32_t i = workers->next++;

		pthread_mutex_unlock(&workers->lock);
		workers->each(workers->userdata, i);
		pthread_mutex_lock(&workers->lock);
		if (++workers->n_done == workers->n)
			pthread_cond_signal(&workers->ended);
	}
}

static void *workers_main(void *arg)
{
	struct workers *workers = arg;

	pthread_mutex_lock(&workers->lock);
	while (!workers->stopping) {
		workers_take(workers);
		if (!workers->stopping)
			pthread_cond_wait(&workers->begun, &workers->lock);
	}
	pthread_mutex_unlock(&workers->lock);
	return NULL;
}

static uint32_t workers_wanted(void)
{
	cpu_set_t cpus;
	uint32_t n = sched_getaffinity(0, sizeof(cpus), &cpus) == 0 ? (uint32_t)CPU_COUNT(&cpus) : 1;

	return n < WORKERS_MAX ? n : WORKERS_MAX;
}

struct workers *workers_new(void)
{
	struct workers *workers = calloc(1, sizeof(*workers));
	const uint32_t wanted = workers_wanted();
	sigset_t all, before;

	if (!workers)
		return NULL;
	pthread_mutex_init(&workers->lock, NULL);
	pthread_cond_init(&workers->begun, NULL);
	pthread_cond_init(&workers->ended, NULL);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (workers->n_threads + 1 < wanted &&
		!pthread_create(&workers->threads[workers->n_threads], NULL, workers_main, workers))
		workers->n_threads++;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return workers;
}

void workers_free(struct workers *workers)
{
	if (!workers)
		return;
	pthread_mutex_lock(&workers->lock);
	assert(workers->n_done == workers->n);
	workers->stopping = true;
	pthread_cond_broadcast(&workers->begun);
	pthread_mutex_unlock(&workers->lock);
	for (uint32_t i = 0; i < workers->n_threads; i++)
		pthread_join(workers->threads[i], NULL);
	pthread_cond_destroy(&workers->ended);
	pthread_cond_destroy(&workers->begun);
	pthread_mutex_destroy(&workers->lock);
	free(workers);
}

uint32_t workers_n(const struct workers *workers)
{
	return workers->n_threads + 1;
}

void workers_run(struct workers *workers, void (*each)(void *userdata, uint32_t i), void *userdata, uint32_t n)
{
	pthread_mutex_lock(&workers->lock);
	assert(workers->n_done == workers->n);
	workers->each = each;
	workers->userdata = userdata;
	workers->n = n;
	workers->next = workers->n_done = 0;
	if (n > 1)
		pthread_cond_broadcast(&workers->begun);
	workers_take(workers);
	while (workers->n_done < n)
		pthread_cond_wait(&workers->ended, &workers->lock);
	pthread_mutex_unlock(&workers->lock);
}
