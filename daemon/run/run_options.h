/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_RUN_OPTIONS_H
#define MIMEO_DAEMON_RUN_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <mimeo/mimeo.h>
#include <mimeo/text.h>

#include "daemon/config/mask_text.h"

enum run_exit {
	RUN_OK = 0,
	RUN_DAEMON = 1,  /* unreachable or gone; or output that cannot be written */
	RUN_USAGE = 2,   /* a wrong option */
	RUN_REFUSED = 3, /* the daemon did not do what was asked */
};

enum run_mode { RUN_MODE_GENERATE, RUN_MODE_CHAT, RUN_MODE_TOKENIZE, RUN_MODE_SCORE };

struct run_options {
	enum run_mode mode;
	const char *model, *socket, *logits; /* model NULL: the only one */
	const char *prompt;   /* NULL and no tokens: standard input */
	const char *system;   /* NULL: none */
	int32_t *tokens;      /* [n_tokens], owned */
	uint32_t n_tokens;
	uint32_t max_tokens;  /* 0: no limit */
	bool has_max_tokens;
	uint32_t draft_tokens; /* as of struct mimeo_generate */
	uint32_t timeout_ms, first_token_ms; /* 0: none */
	int32_t stop[MIMEO_STOP_MAX];
	uint32_t n_stop;
	const char *stop_texts[MIMEO_TEXT_STOP_MAX];
	uint32_t n_stop_texts;
	uint32_t request_class; /* enum mimeo_class */
	float repetition_penalty, presence_penalty, frequency_penalty;
	uint32_t top_logprobs;
	struct mimeo_sampling sampling;
	const char *mask_text; /* NULL: the model's */
	struct mask_text mask;
	bool ignore_eos, deterministic, ids, json_events, logprobs;
	bool done; /* --help or --version: nothing left to do */
};

/* RUN_OK, or RUN_USAGE after one line on standard error. */
int run_options_parse(struct run_options *ret, int argc, char **argv);
void run_options_deinit(struct run_options *options);

/* One line on standard error, "mimeo-run: ..." */
void run_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
