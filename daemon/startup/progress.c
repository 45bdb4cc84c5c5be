/* SPDX-License-Identifier: MIT */
#include "daemon/startup/progress.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/output/log.h"
#include "ipc/clock.h"

#define FIRST_NS 1000000000ull /* shorter stages show nothing */
#define LOG_NS 5000000000ull
#define TEXT_NS 100000000ull

static pthread_mutex_t progress_lock = PTHREAD_MUTEX_INITIALIZER;
static char progress_latest[PROGRESS_TEXT_MAX] = "starting";

static void progress_set_text(const char *text)
{
	pthread_mutex_lock(&progress_lock);
	snprintf(progress_latest, sizeof(progress_latest), "%s", text);
	pthread_mutex_unlock(&progress_lock);
}

void progress_text(char ret[static PROGRESS_TEXT_MAX])
{
	pthread_mutex_lock(&progress_lock);
	memcpy(ret, progress_latest, PROGRESS_TEXT_MAX);
	pthread_mutex_unlock(&progress_lock);
}

void progress_begin(struct progress *progress, const char *stage)
{
	*progress = (struct progress){
		.next_ns = clock_ns(),
		.show_ns = clock_ns() + FIRST_NS,
		.terminal = isatty(STDERR_FILENO) && log_enabled(LOG_LEVEL_INFO),
	};
	progress_set_text(stage);
}

bool progress_due(struct progress *progress)
{
	uint64_t now = clock_ns();

	if (now < progress->next_ns)
		return false;
	progress->next_ns = now + TEXT_NS;
	return true;
}

void progress_show(struct progress *progress, const char *text)
{
	uint64_t now = clock_ns();

	progress_set_text(text);
	if (now < progress->show_ns)
		return;
	progress->show_ns = now + (progress->terminal ? TEXT_NS : LOG_NS);
	if (progress->terminal)
		fprintf(stderr, "\r%s\033[K", text);
	else
		log_info("%s", text);
}

void progress_end(const struct progress *progress)
{
	if (progress->terminal)
		fputs("\r\033[K", stderr);
}
