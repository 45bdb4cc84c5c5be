/* SPDX-License-Identifier: MIT */
#include "tests/e2e/calls.h"

#include "tests/e2e/process.h"

struct mimeo_event wait_event(struct mimeo *m)
{
	struct mimeo_event event;

	assert_int_equal(mimeo_event_wait(m, &event, (int)PATIENCE_MS), 1);
	return event;
}

struct mimeo_event take_event(struct mimeo *m)
{
	struct mimeo_event event = wait_event(m);

	mimeo_event_seen(m, &event);
	return event;
}

struct mimeo_event wait_final(struct mimeo *m)
{
	struct mimeo_event event;

	do {
		event = take_event(m);
	} while (event.kind == MIMEO_EVENT_TOKENS);
	return event;
}

struct mimeo_generate generate_of(const int32_t *tokens, uint32_t n_tokens, uint32_t max_tokens)
{
	struct mimeo_generate generate = MIMEO_GENERATE_INIT;

	generate.tokens = tokens;
	generate.n_tokens = n_tokens;
	generate.max_tokens = max_tokens;
	return generate;
}

void submit_cancel(struct mimeo *m, uint64_t id, uint64_t user_data)
{
	struct mimeo_request *request = mimeo_request_get(m);

	assert_non_null(request);
	mimeo_request_set_data(request, user_data);
	assert_int_equal(mimeo_request_prep_cancel(request, id), 0);
	assert_true(mimeo_submit(m) >= 1);
}

void submit_generate(struct mimeo *m, const struct mimeo_generate *generate)
{
	struct mimeo_request *request = mimeo_request_get(m);

	assert_non_null(request);
	assert_int_equal(mimeo_request_prep_generate(request, generate), 0);
	assert_true(mimeo_submit(m) >= 1);
}

struct mimeo_event answer_to(
	struct mimeo *m, const int32_t *tokens, uint32_t n_tokens, uint32_t max_tokens)
{
	const struct mimeo_generate generate = generate_of(tokens, n_tokens, max_tokens);

	submit_generate(m, &generate);
	return wait_final(m);
}

void assert_serves(struct mimeo *m, uint64_t seed)
{
	struct question question;
	struct reply reply;

	questions_make(&question, 1, seed);
	assert_int_equal(questions_ask(m, &question, 1, 1, &reply), 0);
	assert_int_equal(replies_wrong(&question, &reply, 1), 0);
}

uint32_t sequence_of(struct mimeo *m)
{
	uint32_t sequence;

	assert_int_equal(mimeo_sequence_open(m, 0, &sequence), 0);
	return sequence;
}

int step(struct mimeo *m, uint32_t sequence, const int32_t *tokens, uint32_t n, int32_t *ret_token)
{
	struct mimeo_step_row row = {.sequence = sequence, .n_tokens = n, .tokens = tokens};
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_request *request = mimeo_request_get(m);

	assert_non_null(request);
	step.n_rows = 1;
	step.rows = &row;
	step.outputs = MIMEO_STEP_TOKENS;
	int rc = mimeo_request_prep_step(request, &step);
	if (rc < 0) {
		mimeo_request_put(request);
		return rc;
	}
	assert_true(mimeo_submit(m) >= 1);
	struct mimeo_event event = wait_event(m);
	assert_int_equal(event.kind, MIMEO_EVENT_FINAL);
	if (event.status == 0 && ret_token)
		*ret_token = event.tokens[0];
	mimeo_event_seen(m, &event);
	return event.status;
}

void assert_steps_answer(struct mimeo *m, uint32_t sequence, const int32_t *tokens, uint32_t n,
	const struct question *question)
{
	int32_t token = 0;

	for (uint32_t i = 0; i < question->n_answer; i++) {
		assert_int_equal(i ? step(m, sequence, &token, 1, &token)
				   : step(m, sequence, tokens, n, &token),
			0);
		assert_int_equal(token, question->answer[i]);
	}
}

void assert_message_has(const struct mimeo_event *event, const char *text)
{
	char message[256];

	mimeo_event_message(event, message, sizeof(message));
	if (!strstr(message, text))
		fail_msg("\"%s\" does not name \"%s\"", message, text);
}
