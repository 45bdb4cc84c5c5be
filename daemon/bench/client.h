/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_CLIENT_H
#define MIMEO_DAEMON_BENCH_CLIENT_H

/*
 * What the benches' clients do alike, through the public library. Failures are told on standard
 * error; every wait has an end.
 */

#include <mimeo/mimeo.h>
#include <stdint.h>

#define CLIENT_PROMPT_TOKENS 16u
#define CLIENT_PAGE_TOKENS 16u /* of a private daemon */

/* Pages that such a sequence needs. */
static inline uint32_t client_pages(uint32_t n_prompt, uint32_t n_tokens)
{
	return (n_prompt + n_tokens + CLIENT_PAGE_TOKENS - 1) / CLIENT_PAGE_TOKENS + 1;
}

/* 0 or a status. */
int client_connect(struct mimeo **ret, const char *socket, uint32_t spin_us);
/* Submit a generate request of the fixed prompt, cut at n_prompt tokens, for exactly n_tokens
 * tokens, or as many as the model can hold. model_name NULL: the first model. */
int client_generate(
	struct mimeo *m, const char *model_name, uint32_t n_prompt, uint32_t n_tokens);
/* The same of a text, a token a byte behind the model's begin token, cut at n_prompt, for a model of
 * 256 bytes; text NULL: the fixed prompt. */
int client_generate_text(struct mimeo *m, const char *model_name, const char *text,
	uint32_t n_prompt, uint32_t n_tokens);
/* The next event: 0, or a status if none comes or it carries an error. */
int client_next(struct mimeo *m, struct mimeo_event *ret);

/* A null request: it goes through library, ring and engine and comes back, and does nothing. */
int client_null(struct mimeo *m);

#endif
