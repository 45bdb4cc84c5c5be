/* SPDX-License-Identifier: MIT */
#include "daemon/serve/life.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/output/log.h"

#define STACK_BYTES (256u << 10)

#ifndef PIDFD_THREAD
#define PIDFD_THREAD O_EXCL /* Linux 6.9 */
#endif

struct life_thread {
	pthread_t thread;
	sem_t known, over;
	pid_t tid;
};

struct life {
	struct life_thread threads[MSG_LIFE_FDS];
	size_t n; /* threads started: all of them, once life_new has returned */
};

static void life_await(sem_t *semaphore)
{
	while (sem_wait(semaphore) < 0)
		;
}

static void *life_main(void *userdata)
{
	struct life_thread *thread = userdata;

	pthread_setname_np(pthread_self(), LIFE_THREAD_NAME);
	thread->tid = (pid_t)syscall(SYS_gettid);
	sem_post(&thread->known);
	life_await(&thread->over);
	return NULL;
}

/* Starts the thread with all signals blocked: other threads handle them. 0 or -errno. */
static int life_start(struct life_thread *thread)
{
	pthread_attr_t attributes;
	sigset_t blocked, before;

	int rc = pthread_attr_init(&attributes);
	if (rc != 0)
		return -rc;
	sem_init(&thread->known, 0, 0);
	sem_init(&thread->over, 0, 0);
	pthread_attr_setstacksize(&attributes, STACK_BYTES);
	sigfillset(&blocked);
	pthread_sigmask(SIG_SETMASK, &blocked, &before);
	rc = pthread_create(&thread->thread, &attributes, life_main, thread);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	if (rc == 0)
		life_await(&thread->known);
	return -rc;
}

static void life_end(struct life_thread *thread)
{
	sem_post(&thread->over);
	pthread_join(thread->thread, NULL);
	sem_destroy(&thread->over);
	sem_destroy(&thread->known);
}

int life_new(struct life **ret)
{
	struct life *life = calloc(1, sizeof(*life));

	if (!life)
		return -ENOMEM;
	for (; life->n < MSG_LIFE_FDS; life->n++) {
		struct life_thread *thread = &life->threads[life->n];
		int rc = life_start(thread);

		if (rc < 0) {
			life_free(life);
			return rc;
		}
	}
	*ret = life;
	return 0;
}

void life_free(struct life *life)
{
	if (!life)
		return;
	while (life->n > 0)
		life_end(&life->threads[--life->n]);
	free(life);
}

size_t life_open(const struct life *life, int ret[static MSG_LIFE_FDS])
{
	static struct log_limit limit = LOG_LIMIT(1);
	int fds[MSG_LIFE_FDS];

	assert(life->n == MSG_LIFE_FDS);
	for (size_t n = 0; n < MSG_LIFE_FDS; n++) {
		fds[n] = (int)syscall(SYS_pidfd_open, life->threads[n].tid, PIDFD_THREAD);
		if (fds[n] >= 0)
			continue;
		log_limited(&limit, LOG_LEVEL_DEBUG,
			"no pidfd of a thread: %s: a client learns late of a kill", strerror(errno));
		while (n > 0)
			close(fds[--n]);
		return 0;
	}
	memcpy(ret, fds, sizeof(fds));
	return MSG_LIFE_FDS;
}
