/* SPDX-License-Identifier: MIT */
#include "daemon/serve/life.h"

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

struct pulse {
	pthread_t thread;
	sem_t known, over;
	pid_t tid;
};

struct life {
	struct pulse pulses[MSG_LIFE_FDS];
	size_t n; /* pulses with a thread; all, once it is made */
};

static void await(sem_t *semaphore)
{
	while (sem_wait(semaphore) < 0)
		;
}

static void *pulse_main(void *userdata)
{
	struct pulse *pulse = userdata;

	pthread_setname_np(pthread_self(), LIFE_THREAD_NAME);
	pulse->tid = (pid_t)syscall(SYS_gettid);
	sem_post(&pulse->known);
	await(&pulse->over);
	return NULL;
}

/* Signals are others' to handle: no handler of theirs runs here. 0 or -errno. */
static int pulse_start(struct pulse *pulse)
{
	pthread_attr_t attributes;
	sigset_t blocked, before;

	int r = pthread_attr_init(&attributes);
	if (r != 0)
		return -r;
	sem_init(&pulse->known, 0, 0);
	sem_init(&pulse->over, 0, 0);
	pthread_attr_setstacksize(&attributes, STACK_BYTES);
	sigfillset(&blocked);
	pthread_sigmask(SIG_SETMASK, &blocked, &before);
	r = pthread_create(&pulse->thread, &attributes, pulse_main, pulse);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	if (r == 0)
		await(&pulse->known);
	return -r;
}

static void pulse_end(struct pulse *pulse)
{
	sem_post(&pulse->over);
	pthread_join(pulse->thread, NULL);
	sem_destroy(&pulse->over);
	sem_destroy(&pulse->known);
}

int life_new(struct life **ret)
{
	struct life *life = calloc(1, sizeof(*life));

	if (!life)
		return -ENOMEM;
	for (; life->n < MSG_LIFE_FDS; life->n++) {
		struct pulse *pulse = &life->pulses[life->n];
		int r = pulse_start(pulse);

		if (r < 0) {
			life_free(life);
			return r;
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
		pulse_end(&life->pulses[--life->n]);
	free(life);
}

size_t life_open(const struct life *life, int ret[static MSG_LIFE_FDS])
{
	static struct log_limit limit = LOG_LIMIT(1);
	int fds[MSG_LIFE_FDS];

	for (size_t n = 0; n < MSG_LIFE_FDS; n++) {
		fds[n] = (int)syscall(SYS_pidfd_open, life->pulses[n].tid, PIDFD_THREAD);
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
