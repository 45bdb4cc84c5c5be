/* SPDX-License-Identifier: MIT */
/* Pictures for pipes and files; on a terminal the live view. */
#include "daemon/ctl/top.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "build-config.h"
#include "daemon/ctl/verbs.h"

/* All tables; rows of each kind that are there. */
static int top_print(const struct top_rows *rows, const struct top_options *options, bool first)
{
	if (options->form == TABLE_AS_JSON)
		return top_rows_print_json(rows, stdout);
	for (int kind = 0; kind < N_TOP_KINDS; kind++) {
		bool any = false;

		for (size_t i = 0; i < rows->n; i++)
			any |= rows->rows[i].kind == (enum top_kind)kind;
		if (!any)
			continue;
		if ((kind > 0 || !first) && fputc('\n', stdout) == EOF)
			return -EIO;
		int rc = top_rows_print(rows, (enum top_kind)kind, stdout, options->form);
		if (rc < 0)
			return rc;
	}
	return 0;
}

static int top_print_next(int fd, struct top_reading *before, const struct top_options *options, bool first)
{
	CLEANUP(top_reading_deinit) struct top_reading now = {0};
	CLEANUP(top_rows_deinit) struct top_rows rows = {0};

	int rc = top_read(fd, &now);
	if (rc == 0)
		rc = top_rows_make(&rows, before, &now);
	if (rc < 0)
		return rc;
	top_rows_sort(&rows, options->order);
	rc = top_print(&rows, options, first);
	const struct top_reading old = *before;
	*before = now;
	now = old;
	return rc;
}

static int top_batch(int fd, const struct top_options *options)
{
	CLEANUP(top_reading_deinit) struct top_reading before = {0};

	int rc = top_read(fd, &before);
	for (uint64_t n = 0; rc == 0 && (options->n_pictures == 0 || n < options->n_pictures); n++) {
		poll(NULL, 0, (int)(options->delay_s * 1000));
		rc = top_print_next(fd, &before, options, n == 0);
	}
	return rc;
}

int top_run(int fd, const struct top_options *options)
{
	const bool terminal = !options->batch && options->form != TABLE_AS_JSON && options->n_pictures == 0 &&
		isatty(STDOUT_FILENO) && isatty(STDIN_FILENO);
	int rc = -ENOSYS;

#if HAVE_NCURSES
	if (terminal)
		rc = top_screen(fd, options);
#endif
	if (!terminal || rc == -ENOSYS)
		rc = top_batch(fd, options);
	if (rc == 0)
		return EXIT_DONE;
	fprintf(stderr, "mimeoctl: %s\n",
		rc == -EOPNOTSUPP ? "the daemon is older than this mimeoctl, and does not list what top shows: restart it"
		: rc == -EPROTO ? "the daemon does not serve: see mimeoctl status"
		: rc == -ECONNRESET || rc == -EPIPE ? "the daemon, or the reader of this, has gone" : strerror(-rc));
	return EXIT_ERROR;
}
