/* SPDX-License-Identifier: MIT */
/*
 * A handler can write no log line, and the thread that it interrupts may hold anything: so it wakes
 * a thread that does nothing else.
 */
#include "daemon/startup/interrupt.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/output/log.h"
#include "daemon/startup/startup.h"

static sem_t wake;
static pthread_t watcher;
static atomic_int came; /* 0: none */

static void on_signal(int number)
{
	atomic_store(&came, number);
	sem_post(&wake);
}

static void *watch(void *unused)
{
	while (sem_wait(&wake) < 0)
		;
	if (atomic_load(&came) != 0) {
		if (isatty(STDERR_FILENO))
			fputs("\r\033[K", stderr); /* a line of progress */
		log_error("ended by SIG%s before serving", sigabbrev_np(atomic_load(&came)));
		_exit(MIMEOD_EXIT_ERROR);
	}
	return unused;
}

int interrupt_arm(void)
{
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
	sigset_t all, old;

	sem_init(&wake, 0, 0);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	int r = pthread_create(&watcher, NULL, watch, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r != 0)
		return -r;
	sigemptyset(&action.sa_mask);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	return 0;
}

void interrupt_disarm(void)
{
	sem_post(&wake);
	pthread_join(watcher, NULL);
}
