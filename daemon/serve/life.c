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

#include "daemon/log.h"

#define STACK_BYTES (256u << 10)

#ifndef PIDFD_THREAD
#define PIDFD_THREAD O_EXCL /* Linux 6.9 */
#endif

struct pulse {
	pthread_t thread;
	sem_t known, over;
	int pidfd; /* or -errno */
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
	pid_t self = (pid_t)syscall(SYS_gettid);

	pulse->pidfd = (int)syscall(SYS_pidfd_open, self, PIDFD_THREAD);
	if (pulse->pidfd < 0)
		pulse->pidfd = -errno;
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
	if (pulse->pidfd >= 0)
		close(pulse->pidfd);
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
		if (pulse->pidfd < 0)
			log_debug("no pidfd of a thread: %s: clients learn late of a kill",
				strerror(-pulse->pidfd));
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

size_t life_fds(const struct life *life, int ret[static MSG_LIFE_FDS])
{
	int fds[MSG_LIFE_FDS];

	for (size_t i = 0; i < MSG_LIFE_FDS; i++) {
		if (life->pulses[i].pidfd < 0)
			return 0;
		fds[i] = life->pulses[i].pidfd;
	}
	memcpy(ret, fds, sizeof(fds));
	return MSG_LIFE_FDS;
}
