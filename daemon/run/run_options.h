/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_RUN_OPTIONS_H
#define MIMEO_DAEMON_RUN_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <mimeo/mimeo.h>

#include "daemon/config/mask_text.h"

enum run_exit {
	RUN_OK = 0,
	RUN_DAEMON = 1,  /* unreachable or gone; or output that cannot be written */
	RUN_USAGE = 2,   /* a wrong option */
	RUN_REFUSED = 3, /* the daemon did not do what was asked */
};

struct run_options {
	const char *model, *socket, *logits;
	const char *prompt;   /* NULL: tokens */
	int32_t *tokens;      /* [n_tokens], owned */
	uint32_t n_tokens;
	uint32_t max_tokens;  /* 0: no limit */
	bool has_max_tokens;
	uint32_t draft_tokens; /* as of struct mimeo_generate */
	uint32_t timeout_ms, first_token_ms; /* 0: none */
	int32_t stop[MIMEO_STOP_MAX];
	uint32_t n_stop;
	struct mimeo_sampling sampling;
	const char *mask_text; /* NULL: the model's */
	struct mask_text mask;
	bool ignore_eos, deterministic, ids;
	bool done; /* --help or --version: nothing left to do */
};

/* RUN_OK, or RUN_USAGE after one line on standard error. */
int run_options_parse(struct run_options *ret, int argc, char **argv);
void run_options_deinit(struct run_options *options);

/* One line on standard error, "mimeo-run: ..." */
void run_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
