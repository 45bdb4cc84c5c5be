/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_RUN_TEXT_H
#define MIMEO_DAEMON_RUN_TEXT_H

/*
 * Text of the model's tokens: by its tokenizer, whose files the daemon hands out; or, without one, a token a byte if the
 * vocabulary has 256 tokens. Other models without a tokenizer have ids only.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <mimeo/mimeo.h>
#include <mimeo/text.h>

struct run_text {
	struct mimeo_text *tokenizer; /* NULL: none */
	bool bytes;                   /* without one: a token is a byte */
	const struct mimeo_model_info *model;
};

struct run_ids {
	int32_t *at; /* [n], owned */
	uint32_t n;
};

/* These return RUN_OK, or another enum run_exit after one line on standard error. */

int run_text_open(struct run_text *ret, struct mimeo *m, uint32_t index);
void run_text_close(struct run_text *text);
/* The ids of a text, the begin token included. */
int run_text_encode(const struct run_text *text, const char *utf8, size_t length, struct run_ids *ret);
/* RUN_USAGE if the model has no tokenizer or no chat template that the library understands. */
int run_text_check_chat(const struct run_text *text);
/* Those of a chat, which is JSON (mimeo_text_chat). */
int run_text_encode_chat(const struct run_text *text, const char *json, size_t length, struct run_ids *ret);
/* All of standard input, without a newline at its end; terminated. Free it. */
int run_text_read_input(char **ret, size_t *ret_length);

#endif
