/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_E2E_CALLS_H
#define MIMEO_TESTS_E2E_CALLS_H

/* A client's calls, each waited for; what must not happen fails the running test (cmocka). */

#include "tests/e2e/daemon.h"
#include "tests/e2e/questions.h"

struct mimeo_event wait_event(struct mimeo *m);
/* The next event, marked as seen: what it points to is dead. */
struct mimeo_event take_event(struct mimeo *m);
/* The same, of the next final or sequence event. */
struct mimeo_event wait_final(struct mimeo *m);
/* A generate request with these tokens and nothing else. */
struct mimeo_generate generate_of(const int32_t *tokens, uint32_t n_tokens, uint32_t max_tokens);
/* Cancel that request; the cancel's own final event brings user_data. */
void submit_cancel(struct mimeo *m, uint64_t id, uint64_t user_data);
void submit_generate(struct mimeo *m, const struct mimeo_generate *generate);
/* What the daemon says to the prompt in the end. */
struct mimeo_event answer_to(
	struct mimeo *m, const int32_t *tokens, uint32_t n_tokens, uint32_t max_tokens);
/* A question, drawn by the seed, is answered right. */
void assert_serves(struct mimeo *m, uint64_t seed);
/* A fresh sequence of the first model. */
uint32_t sequence_of(struct mimeo *m);
/* One step of one row: its status, and the token sampled (may be NULL). */
int step(struct mimeo *m, uint32_t sequence, const int32_t *tokens, uint32_t n, int32_t *ret_token);
/* Append the tokens to the sequence, and step on until the question's answer is complete. */
void assert_steps_answer(struct mimeo *m, uint32_t sequence, const int32_t *tokens, uint32_t n,
	const struct question *question);
/* The event's message has the text in it. */
void assert_message_has(const struct mimeo_event *event, const char *text);

#endif
