/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_E2E_QUESTIONS_H
#define MIMEO_TESTS_E2E_QUESTIONS_H

/*
 * Questions whose answers are known, for tinycalc: sums, counts, sorted numbers, reversed words;
 * and clients that ask them. Nothing here fails a test by itself, so that children can use it.
 */

#include <stdbool.h>
#include <stdint.h>

#include <mimeo/mimeo.h>

#define QUESTION_PROMPT_MAX 64
#define QUESTION_ANSWER_MAX 192

struct question {
	uint32_t n_prompt, n_answer; /* begin token, text; text, end token */
	int32_t prompt[QUESTION_PROMPT_MAX];
	int32_t answer[QUESTION_ANSWER_MAX];
};

/* Questions of the four kinds in turn. The same seed, the same questions. */
void questions_make(struct question *questions, uint32_t n, uint64_t seed);

/* One as text, without begin and end token. */
struct question question_of(const char *prompt, const char *answer);

struct reply {
	int32_t tokens[QUESTION_ANSWER_MAX];
	uint32_t n_tokens;
	uint32_t n_finals, n_final_tokens; /* final events, and the tokens of the last one */
	uint32_t finish;
	int32_t status;
};

/* A generate request for the question, prepared. 0, FULL or another status. user_data: index. */
int question_prepare(struct mimeo *m, const struct question *question, uint64_t index);
/* Enter what an event says of its question. */
void reply_take(struct reply *replies, const struct mimeo_event *event);
/* Wait for n final events and enter them. 0, or a status. */
int replies_collect(struct mimeo *m, struct reply *replies, uint32_t n);
/* Ask all, `window` at once. 0, or a status. */
int questions_ask(struct mimeo *m, const struct question *questions, uint32_t n, uint32_t window,
	struct reply *replies);
bool reply_is_right(const struct question *question, const struct reply *reply);
/* How many are not, and a line on standard error for the first few. */
uint32_t replies_wrong(const struct question *questions, const struct reply *replies, uint32_t n);

/* The same by step requests: the client's own greedy loop over n sequences at once. */
int questions_step(
	struct mimeo *m, const struct question *questions, uint32_t n, struct reply *replies);

/* Submit a generate request that runs to its token limit: ids ignored, prompt of one token. 0, or a
 * status. */
int endless_submit(struct mimeo *m, uint32_t max_tokens, uint64_t user_data, uint64_t *ret_id);

#endif
