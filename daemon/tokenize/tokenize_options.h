/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_TOKENIZE_OPTIONS_H
#define MIMEO_DAEMON_TOKENIZE_OPTIONS_H

#include <stdbool.h>

enum tokenize_exit {
	TOKENIZE_OK = 0,
	TOKENIZE_FAILED = 1, /* a file, the text or the output */
	TOKENIZE_USAGE = 2,  /* a wrong option */
};

struct tokenize_options {
	const char *tokenizer; /* a folder or a tokenizer.json */
	const char *chat;      /* a JSON file, or "-"; NULL: text */
	bool decode, render, special, literal, skip_special, null;
	bool done; /* --help or --version: nothing left to do */
};

/* TOKENIZE_OK, or TOKENIZE_USAGE after one line on standard error. */
int tokenize_options_parse(struct tokenize_options *ret, int argc, char **argv);

/* One line on standard error, "mimeo-tokenize: ..." */
void tokenize_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
