/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_BENCH_BENCH_CLIENT_H
#define MIMEO_DAEMON_BENCH_BENCH_CLIENT_H

/*
 * One client of a daemon through the public library. Failures are reported on standard error; every
 * wait has an end.
 */

#include <mimeo/mimeo.h>
#include <stdint.h>

#define CLIENT_PROMPT_TOKENS 16u
#define CLIENT_PAGE_TOKENS 16u /* of a private daemon */

/* Pages of a sequence with so many tokens. */
static inline uint32_t client_pages(uint32_t n_prompt, uint32_t n_tokens)
{
	return (n_prompt + n_tokens + CLIENT_PAGE_TOKENS - 1) / CLIENT_PAGE_TOKENS + 1;
}

/* 0 or a status. */
int client_connect(struct mimeo **ret, const char *socket, uint32_t spin_us);

struct client_prompt {
	const char *model; /* NULL: the first */
	const char *text;  /* one token per byte after the model's begin token, cut to n_prompt; NULL: n_prompt tokens */
	uint32_t n_prompt, n_tokens; /* tokens of the prompt, tokens to generate */
	uint64_t seed;     /* of the prompt's tokens; 0: a fixed prompt */
	uint32_t n_prefix; /* first tokens, which do not depend on the seed */
	uint64_t user_data;
};
/* Submit a generate request for exactly n_tokens tokens, or as many as the model can hold. 0 or a
 * status. */
int client_generate(struct mimeo *m, const struct client_prompt *prompt);
/* Submit a step of n tokens on a new sequence, for their log-probabilities. 0 or a status. */
int client_score(struct mimeo *m, uint32_t model, const int32_t *tokens, uint32_t n);
/* The status of an event, reported if it is an error. */
int client_event(const struct mimeo_event *event);
/* Wait for the next event: 0, or a status if none comes or it carries an error. */
int client_next(struct mimeo *m, struct mimeo_event *ret);
/* Submit a null request, which only passes through library, ring and engine. */
int client_null(struct mimeo *m);

#endif
