/* SPDX-License-Identifier: MIT */
#include "tests/e2e/questions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMPLAINTS_MAX 5
#define STEP_ROWS_MAX 64
#define EVENT_TIMEOUT_MS 60000

/* ---- making them ---- */

static uint32_t pick(uint64_t *state, uint32_t n)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)((*state >> 33) % n);
}

static uint32_t pick_digits(uint64_t *state)
{
	static const uint32_t limits[] = {10, 100, 1000};

	return pick(state, limits[pick(state, 3)]);
}

static void make_sum(uint64_t *state, char *prompt, char *answer)
{
	uint32_t a = pick_digits(state), b = pick_digits(state);

	sprintf(prompt, "%u+%u=", a, b);
	sprintf(answer, "%u", a + b);
}

static void make_count(uint64_t *state, char *prompt, char *answer)
{
	/* All below 10000: the model itself miscounts beyond. */
	uint32_t n = 1 + pick(state, 30), from = pick(state, 10000 - 30);

	sprintf(prompt, "count %u %u\n", from, n);
	for (uint32_t i = 0; i < n; i++)
		answer += sprintf(answer, i ? " %u" : "%u", from + i);
}

static int compare(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

static void make_sort(uint64_t *state, char *prompt, char *answer)
{
	uint32_t n = 1 + pick(state, 8);
	int numbers[8];

	prompt += sprintf(prompt, "sort");
	for (uint32_t i = 0; i < n; i++) {
		numbers[i] = (int)pick(state, 100);
		prompt += sprintf(prompt, " %d", numbers[i]);
	}
	sprintf(prompt, "\n");
	qsort(numbers, n, sizeof(numbers[0]), compare);
	for (uint32_t i = 0; i < n; i++)
		answer += sprintf(answer, i ? " %d" : "%d", numbers[i]);
}

static void make_reverse(uint64_t *state, char *prompt, char *answer)
{
	uint32_t n = 1 + pick(state, 12);

	strcpy(prompt, "rev ");
	answer[n] = '\0';
	for (uint32_t i = 0; i < n; i++) {
		char letter = (char)('a' + pick(state, 26));

		prompt[4 + i] = letter;
		answer[n - 1 - i] = letter;
	}
	strcpy(prompt + 4 + n, "\n");
}

void questions_make(struct question *questions, uint32_t n, uint64_t seed)
{
	static void (*const kinds[])(uint64_t * state, char *prompt, char *answer) = {
		make_sum, make_count, make_sort, make_reverse};
	uint64_t state = seed * 2654435761u + 1;

	for (uint32_t i = 0; i < n; i++) {
		char prompt[QUESTION_PROMPT_MAX] = "", answer[QUESTION_ANSWER_MAX] = "";

		kinds[i % 4](&state, prompt, answer);
		questions[i] = question_of(prompt, answer);
	}
}

struct question question_of(const char *prompt, const char *answer)
{
	struct question q = {.n_prompt = 1, .prompt = {1}};

	for (; *prompt; prompt++)
		q.prompt[q.n_prompt++] = (unsigned char)*prompt;
	for (; *answer; answer++)
		q.answer[q.n_answer++] = (unsigned char)*answer;
	q.answer[q.n_answer++] = 2;
	return q;
}

/* ---- asking ---- */

int question_prepare(struct mimeo *m, const struct question *question, uint64_t index)
{
	struct mimeo_generate generate = MIMEO_GENERATE_INIT;
	struct mimeo_request *request = mimeo_request_get(m);

	if (!request)
		return MIMEO_E_FULL;
	generate.tokens = question->prompt;
	generate.n_tokens = question->n_prompt;
	generate.max_tokens = QUESTION_ANSWER_MAX;
	mimeo_request_set_data(request, index);
	int rc = mimeo_request_prep_generate(request, &generate);
	if (rc < 0)
		mimeo_request_put(request);
	return rc;
}

void reply_take(struct reply *replies, const struct mimeo_event *event)
{
	struct reply *reply = &replies[event->user_data];

	for (uint32_t i = 0; i < event->n_tokens && reply->n_tokens < QUESTION_ANSWER_MAX; i++)
		reply->tokens[reply->n_tokens++] = event->tokens[i];
	if (event->kind != MIMEO_EVENT_FINAL)
		return;
	reply->n_finals++;
	reply->n_final_tokens = event->n_tokens;
	reply->status = event->status;
	reply->finish = event->finish;
}

int replies_collect(struct mimeo *m, struct reply *replies, uint32_t n)
{
	struct mimeo_event event;

	while (n > 0) {
		int rc = mimeo_event_wait(m, &event, EVENT_TIMEOUT_MS);
		if (rc <= 0)
			return rc < 0 ? rc : MIMEO_E_DEADLINE;
		reply_take(replies, &event);
		n -= event.kind == MIMEO_EVENT_FINAL;
		mimeo_event_seen(m, &event);
	}
	return 0;
}

int questions_ask(struct mimeo *m, const struct question *questions, uint32_t n, uint32_t window,
	struct reply *replies)
{
	uint32_t n_asked = 0, n_in_flight = 0;
	int rc = 0;

	memset(replies, 0, n * sizeof(*replies));
	while (rc == 0 && (n_asked < n || n_in_flight > 0)) {
		while (rc == 0 && n_asked < n && n_in_flight < window) {
			rc = question_prepare(m, &questions[n_asked], n_asked);
			n_asked++;
			n_in_flight++;
		}
		if (rc == 0)
			rc = mimeo_submit(m);
		if (rc >= 0)
			rc = replies_collect(m, replies, 1);
		n_in_flight--;
	}
	return rc;
}

bool reply_is_right(const struct question *question, const struct reply *reply)
{
	return reply->n_finals == 1 && reply->status == 0 && reply->finish == MIMEO_FINISH_STOP &&
	       reply->n_final_tokens >= 1 &&
	       reply->n_tokens == question->n_answer &&
	       memcmp(reply->tokens, question->answer, question->n_answer * sizeof(int32_t)) == 0;
}

static void show(const char *what, const int32_t *tokens, uint32_t n)
{
	fprintf(stderr, "%s", what);
	for (uint32_t i = 0; i < n; i++)
		fputc(tokens[i] >= ' ' && tokens[i] < 127 ? tokens[i] : '_', stderr);
}

uint32_t replies_wrong(const struct question *questions, const struct reply *replies, uint32_t n)
{
	uint32_t wrong = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (reply_is_right(&questions[i], &replies[i]))
			continue;
		if (wrong++ >= COMPLAINTS_MAX)
			continue;
		show("wrong: ", questions[i].prompt, questions[i].n_prompt);
		show(" -> ", replies[i].tokens, replies[i].n_tokens);
		show(" instead of ", questions[i].answer, questions[i].n_answer);
		fprintf(stderr, " (%u final events, %s)\n", replies[i].n_finals,
			mimeo_status_name(replies[i].status));
	}
	return wrong;
}

/* ---- step by step ---- */

/* Wait for the next final event, in which a step's tokens come. 0, or a status. */
static int step_wait(struct mimeo *m, int32_t *ret_tokens, uint32_t n)
{
	struct mimeo_event event;

	int rc = mimeo_event_wait(m, &event, EVENT_TIMEOUT_MS);
	if (rc <= 0)
		return rc < 0 ? rc : MIMEO_E_DEADLINE;
	rc = event.status;
	if (rc == 0 && (event.kind != MIMEO_EVENT_FINAL || event.n_tokens != n))
		rc = MIMEO_E_PROTOCOL;
	if (rc == 0)
		memcpy(ret_tokens, event.tokens, n * sizeof(*ret_tokens));
	mimeo_event_seen(m, &event);
	return rc;
}

static int step(struct mimeo *m, const struct mimeo_step_row *rows, uint32_t n, int32_t *ret_tokens)
{
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_request *request = mimeo_request_get(m);

	if (!request)
		return MIMEO_E_FULL;
	step.n_rows = n;
	step.rows = rows;
	step.outputs = MIMEO_STEP_TOKENS;
	int rc = mimeo_request_prep_step(request, &step);
	if (rc < 0) {
		mimeo_request_put(request);
		return rc;
	}
	rc = mimeo_submit(m);
	return rc < 0 ? rc : step_wait(m, ret_tokens, n);
}

int questions_step(
	struct mimeo *m, const struct question *questions, uint32_t n, struct reply *replies)
{
	struct mimeo_step_row rows[STEP_ROWS_MAX];
	uint32_t question_of[STEP_ROWS_MAX], n_rows = n;
	int32_t sampled[STEP_ROWS_MAX];
	int rc = 0;

	if (n > STEP_ROWS_MAX)
		return MIMEO_E_INVALID;
	memset(replies, 0, n * sizeof(*replies));
	for (uint32_t i = 0; i < n && rc == 0; i++) {
		rows[i] = (struct mimeo_step_row){
			.n_tokens = questions[i].n_prompt, .tokens = questions[i].prompt};
		question_of[i] = i;
		rc = mimeo_sequence_open(m, 0, &rows[i].sequence);
	}
	while (rc == 0 && n_rows > 0) {
		uint32_t kept = 0;

		rc = step(m, rows, n_rows, sampled);
		for (uint32_t i = 0; i < n_rows && rc == 0; i++) {
			struct reply *reply = &replies[question_of[i]];

			reply->tokens[reply->n_tokens++] = sampled[i];
			if (sampled[i] == 2 || reply->n_tokens == QUESTION_ANSWER_MAX) {
				reply->finish = MIMEO_FINISH_STOP;
				reply->n_finals = reply->n_final_tokens = 1;
				rc = mimeo_sequence_close(m, rows[i].sequence);
				continue;
			}
			rows[kept] = (struct mimeo_step_row){.sequence = rows[i].sequence,
				.n_tokens = 1,
				.tokens = &reply->tokens[reply->n_tokens - 1]};
			question_of[kept++] = question_of[i];
		}
		n_rows = kept;
	}
	if (rc == 0)
		rc = mimeo_submit(m);
	return rc < 0 ? rc : 0;
}

int endless_submit(struct mimeo *m, uint32_t max_tokens, uint64_t user_data, uint64_t *ret_id)
{
	static const int32_t begin[] = {1};
	struct mimeo_generate generate = MIMEO_GENERATE_INIT;
	struct mimeo_request *request = mimeo_request_get(m);

	if (!request)
		return MIMEO_E_FULL;
	generate.tokens = begin;
	generate.n_tokens = 1;
	generate.max_tokens = max_tokens;
	generate.flags = MIMEO_GENERATE_IGNORE_EOS;
	mimeo_request_set_data(request, user_data);
	int rc = mimeo_request_prep_generate(request, &generate);
	if (rc < 0) {
		mimeo_request_put(request);
		return rc;
	}
	if (ret_id)
		*ret_id = mimeo_request_id(request);
	rc = mimeo_submit(m);
	return rc < 0 ? rc : 0;
}
