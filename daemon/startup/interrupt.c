/* SPDX-License-Identifier: MIT */
/*
 * A signal handler must not log, and the thread that it interrupts may hold any lock. So it wakes a
 * thread that only waits for it.
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
#include "daemon/startup/loading.h"
#include "daemon/startup/startup.h"

static sem_t interrupt_wake;
static pthread_t interrupt_thread;
static atomic_int interrupt_signal; /* 0: none */

static void interrupt_on_signal(int number)
{
	atomic_store(&interrupt_signal, number);
	sem_post(&interrupt_wake);
}

static void *interrupt_watch(void *unused)
{
	while (sem_wait(&interrupt_wake) < 0)
		;
	if (atomic_load(&interrupt_signal) != 0) {
		if (isatty(STDERR_FILENO))
			fputs("\r\033[K", stderr); /* clear the progress line */
		loading_abandon();
		log_error("ended by SIG%s before serving", sigabbrev_np(atomic_load(&interrupt_signal)));
		_exit(MIMEOD_EXIT_ERROR);
	}
	return unused;
}

int interrupt_arm(void)
{
	struct sigaction action = {.sa_handler = interrupt_on_signal, .sa_flags = SA_RESTART};
	sigset_t all, old;

	sem_init(&interrupt_wake, 0, 0);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	int rc = pthread_create(&interrupt_thread, NULL, interrupt_watch, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc != 0)
		return -rc;
	sigemptyset(&action.sa_mask);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	return 0;
}

void interrupt_disarm(void)
{
	sem_post(&interrupt_wake);
	pthread_join(interrupt_thread, NULL);
}
