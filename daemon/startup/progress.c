/* SPDX-License-Identifier: MIT */
#include "daemon/startup/progress.h"

#include <stdio.h>
#include <unistd.h>

#include "daemon/output/log.h"
#include "ipc/clock.h"

#define FIRST_NS 1000000000ull /* shorter stages show nothing */
#define LOG_NS 5000000000ull
#define TERMINAL_NS 100000000ull

void progress_begin(struct progress *progress)
{
	*progress = (struct progress){
		.next_ns = clock_ns() + FIRST_NS,
		.terminal = isatty(STDERR_FILENO) && log_enabled(LOG_LEVEL_INFO),
	};
}

bool progress_due(struct progress *progress)
{
	uint64_t now = clock_ns();

	if (now < progress->next_ns)
		return false;
	progress->next_ns = now + (progress->terminal ? TERMINAL_NS : LOG_NS);
	return true;
}

void progress_show(const struct progress *progress, const char *text)
{
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
