/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_CTL_TOP_H
#define MIMEO_DAEMON_CTL_TOP_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/ctl/top_rows.h"

struct top_options {
	bool batch;           /* print one picture behind the other */
	uint64_t n_pictures;  /* 0: until it is stopped */
	double delay_s;       /* between two */
	enum top_field order;
	enum table_form form;
};

#define TOP_OPTIONS_INIT {.delay_s = 1, .order = TOP_F_TOKENS_S}

/* Pictures of the daemon on that connection. The exit status of `mimeoctl top`. */
int top_run(int fd, const struct top_options *options);
/* The live view on the terminal, until the user quits. 0 or -errno. */
int top_screen(int fd, const struct top_options *options);

#endif
