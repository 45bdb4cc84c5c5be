/* SPDX-License-Identifier: MIT */
/* What changes logits, log-probabilities and results of all positions: how requests carry them, and how
 * events give them. The test plays the daemon. */
#include <math.h>
#include <string.h>

#include "tests/sdk/session.h"

enum { WORDS = FAKE_VOCAB / 32 };

static const int32_t prompt[] = {5, 6, 7};

static struct mimeo_generate small_generate(void)
{
	struct mimeo_generate generate = MIMEO_GENERATE_INIT;

	generate.tokens = prompt;
	generate.n_tokens = 3;
	generate.max_tokens = 4;
	return generate;
}

static struct ring_sqe submit_generate(
	struct session *s, const struct mimeo_generate *generate, struct msg_generate *ret)
{
	uint8_t header[MSG_HEADER_MAX];
	struct msg_detail detail;

	assert_int_equal(mimeo_request_prep_generate(mimeo_request_get(s->m), generate), 0);
	mimeo_submit(s->m);
	struct ring_sqe sqe = session_pop(s);
	memcpy(header, region_at(&s->fake.region, sqe.header_offset, sqe.header_length),
		sqe.header_length);
	assert_int_equal(msg_generate_decode(s->fake.codec, header, sqe.header_length, ret, &detail), 0);
	return sqe;
}

static uint8_t *output_of(struct session *s, const struct ring_sqe *sqe)
{
	return s->fake.region.arena + sqe->output_offset;
}

/* ---- what arrives ---- */

static void test_what_changes_logits_arrives_as_it_was_prepared(void **state)
{
	struct session *s = *state;
	const struct mimeo_bias bias[] = {{0, -100}, {3, 0.5f}, {255, -INFINITY}};
	const uint32_t allowed[WORDS] = {1, 2, 3, 4, 5, 6, 7, 8};
	struct mimeo_generate generate = small_generate();
	struct msg_generate msg;

	generate.repetition_penalty = 1.5f;
	generate.presence_penalty = -0.5f;
	generate.frequency_penalty = 2;
	generate.penalty_start = 77;
	generate.min_tokens = 4;
	generate.top_logprobs = 7;
	generate.flags = MIMEO_GENERATE_PROMPT_LOGPROBS;
	generate.bias = bias;
	generate.n_bias = 3;
	generate.allowed = allowed;
	generate.n_allowed = WORDS;
	struct ring_sqe sqe = submit_generate(s, &generate, &msg);
	assert_true(msg.repetition_penalty == 1.5f);
	assert_true(msg.presence_penalty == -0.5f);
	assert_true(msg.frequency_penalty == 2);
	assert_int_equal(msg.penalty_start, 77);
	assert_int_equal(msg.min_tokens, 4);
	assert_int_equal(msg.top_logprobs, 7);
	assert_int_equal(msg.n_bias, 3);
	assert_int_equal(msg.n_allowed, WORDS);
	assert_int_equal(sqe.payload_length, 12 + sizeof(bias) + sizeof(allowed));
	const uint8_t *payload = region_at(&s->fake.region, sqe.payload_offset, sqe.payload_length);
	assert_memory_equal(payload, prompt, 12);
	assert_memory_equal(payload + 12, bias, sizeof(bias));
	assert_memory_equal(payload + 12 + sizeof(bias), allowed, sizeof(allowed));
}

static void test_programs_older_than_what_changes_logits_change_none(void **state)
{
	struct session *s = *state;
	struct mimeo_generate generate = small_generate();
	struct msg_generate msg;

	generate.size = offsetof(struct mimeo_generate, repetition_penalty);
	generate.repetition_penalty = 77;
	generate.n_bias = 9;
	struct ring_sqe sqe = submit_generate(s, &generate, &msg);
	assert_true(msg.repetition_penalty == 0);
	assert_int_equal(msg.n_bias, 0);
	assert_int_equal(sqe.payload_length, 12);
}

static void test_a_sequence_goes_on_without_a_token(void **state)
{
	struct session *s = *state;
	struct mimeo_generate generate = small_generate();
	struct msg_generate msg;
	uint32_t sequence;

	assert_int_equal(mimeo_sequence_open(s->m, 0, &sequence), 0);
	mimeo_submit(s->m);
	session_pop(s);
	generate.sequence = sequence;
	generate.tokens = NULL;
	generate.n_tokens = 0;
	struct ring_sqe sqe = submit_generate(s, &generate, &msg);
	assert_int_equal(msg.n_tokens, 0);
	assert_int_equal(msg.sequence, sequence);
	assert_int_equal(sqe.payload_length, 0);
}

/* ---- what comes ---- */

/* Entry k of token i. */
static struct mimeo_logprob entry_of(uint32_t i, uint32_t k)
{
	return (struct mimeo_logprob){(int32_t)(10 * i + k), -(float)(i + k) / 4};
}

static void write_entries(struct session *s, const struct ring_sqe *sqe, uint64_t at, uint32_t n, uint32_t width)
{
	struct mimeo_logprob *to = (struct mimeo_logprob *)(void *)(output_of(s, sqe) + at);

	assert_true(at + (uint64_t)n * width * sizeof(*to) <= sqe->output_length);
	for (uint32_t i = 0; i < n * width; i++)
		to[i] = entry_of(i / width, i % width);
}

static void check_entries(const struct mimeo_logprob *entries, uint32_t first, uint32_t n, uint32_t width)
{
	assert_non_null(entries);
	for (uint32_t i = 0; i < n * width; i++) {
		const struct mimeo_logprob want = entry_of(first + i / width, i % width);

		assert_memory_equal(&entries[i], &want, sizeof(want));
	}
}

static void test_log_probabilities_come_with_their_tokens(void **state)
{
	struct session *s = *state;
	struct mimeo_generate generate = small_generate();
	struct msg_output layout = msg_output_layout(4, 0, 0, 0, 0);
	struct msg_generate msg;

	generate.flags = MIMEO_GENERATE_LOGPROBS | MIMEO_GENERATE_PROMPT_LOGPROBS;
	generate.top_logprobs = 2;
	struct ring_sqe sqe = submit_generate(s, &generate, &msg);
	msg_output_add_logprobs(&layout, 4, 3, 2);
	assert_int_equal(sqe.output_length, layout.bytes);
	write_entries(s, &sqe, layout.logprobs, 4, 3);
	write_entries(s, &sqe, layout.prompt_logprobs, 3, 3);
	session_tokens(s, &sqe, 1);
	assert_int_equal(session_wait(s), 1);
	assert_int_equal(s->event.n_logprobs, 3);
	check_entries(s->event.logprobs, 0, 1, 3);
	assert_null(s->event.prompt_logprobs);
	session_seen(s);
	struct ring_cqe cqe = fake_final(&sqe);
	cqe.n_generated = 4;
	cqe.finish = MIMEO_FINISH_LENGTH;
	fake_push(&s->fake, &cqe);
	assert_int_equal(session_wait(s), 1);
	assert_int_equal(s->event.n_tokens, 3);
	check_entries(s->event.logprobs, 1, 3, 3);
	assert_int_equal(s->event.n_positions, 3);
	check_entries(s->event.prompt_logprobs, 0, 3, 3);
}

static void test_events_have_no_log_probabilities_that_were_not_requested(void **state)
{
	struct session *s = *state;
	struct mimeo_generate generate = small_generate();
	struct msg_generate msg;
	struct ring_sqe sqe = submit_generate(s, &generate, &msg);
	struct ring_cqe cqe = fake_final(&sqe);

	fake_write(&s->fake, &sqe, 4);
	cqe.n_generated = 4;
	cqe.finish = MIMEO_FINISH_LENGTH;
	fake_push(&s->fake, &cqe);
	assert_int_equal(session_wait(s), 1);
	assert_null(s->event.logprobs);
	assert_null(s->event.prompt_logprobs);
	session_seen(s);
	generate.flags = MIMEO_GENERATE_PROMPT_LOGPROBS; /* it ended before its prompt was computed */
	sqe = submit_generate(s, &generate, &msg);
	session_final(s, &sqe, MIMEO_E_CANCELLED);
	assert_int_equal(session_wait(s), 1);
	assert_null(s->event.prompt_logprobs);
}

static struct ring_sqe submit_step(struct session *s, uint32_t outputs, uint32_t top_logprobs)
{
	const int32_t tokens[] = {3, 4, 30};
	struct mimeo_step step = MIMEO_STEP_INIT;
	uint32_t a, b;

	assert_int_equal(mimeo_sequence_open(s->m, 0, &a), 0);
	assert_int_equal(mimeo_sequence_open(s->m, 0, &b), 0);
	const struct mimeo_step_row rows[] = {{a, 2, tokens}, {b, 1, tokens + 2}};
	step.n_rows = 2;
	step.rows = rows;
	step.outputs = outputs;
	step.top_logprobs = top_logprobs;
	assert_int_equal(mimeo_request_prep_step(mimeo_request_get(s->m), &step), 0);
	mimeo_submit(s->m);
	session_pop(s);
	session_pop(s);
	return session_pop(s);
}

static void test_a_step_gives_results_of_all_positions(void **state)
{
	struct session *s = *state;
	struct ring_sqe sqe =
		submit_step(s, MIMEO_STEP_ALL_LOGITS | MIMEO_STEP_ALL_HIDDEN | MIMEO_STEP_LOGPROBS, 1);
	struct msg_output layout = msg_output_layout(0, 3, FAKE_VOCAB, 3, FAKE_HIDDEN);

	msg_output_add_logprobs(&layout, 0, 3, 1);
	assert_int_equal(sqe.output_length, layout.bytes);
	for (uint32_t i = 0; i < 3; i++) {
		((float *)(void *)(output_of(s, &sqe) + layout.logits))[i * FAKE_VOCAB] = (float)i;
		((float *)(void *)(output_of(s, &sqe) + layout.hidden))[i * FAKE_HIDDEN] = 10 * (float)i;
	}
	write_entries(s, &sqe, layout.prompt_logprobs, 3, 2);
	session_final(s, &sqe, 0);
	assert_int_equal(session_wait(s), 1);
	assert_int_equal(s->event.n_rows, 2);
	assert_int_equal(s->event.n_positions, 3);
	assert_int_equal(s->event.n_logprobs, 2);
	assert_true(s->event.logits[2 * FAKE_VOCAB] == 2);
	assert_true(s->event.hidden[2 * FAKE_HIDDEN] == 20);
	check_entries(s->event.prompt_logprobs, 0, 3, 2);
	assert_null(s->event.logprobs);
}

static void test_a_mean_has_space_for_each_row(void **state)
{
	struct session *s = *state;
	struct ring_sqe sqe = submit_step(s, MIMEO_STEP_MEAN_HIDDEN, 0);

	assert_int_equal(sqe.output_length, msg_output_layout(0, 0, 0, 2, FAKE_HIDDEN).bytes);
	session_final(s, &sqe, 0);
	assert_int_equal(session_wait(s), 1);
	assert_non_null(s->event.hidden);
	assert_null(s->event.logits);
	assert_null(s->event.prompt_logprobs);
}

/* ---- refusals ---- */

static void assert_says(const struct mimeo_request *request, const char *text)
{
	if (!strstr(mimeo_request_message(request), text))
		fail_msg("not \"%s\" but \"%s\"", text, mimeo_request_message(request));
}

static void test_values_that_no_daemon_takes_are_refused(void **state)
{
	struct session *s = *state;
	static const struct mimeo_bias fine[] = {{1, 2}}, twice[] = {{4, 1}, {4, 1}}, large[] = {{0, 101}},
		outside[] = {{256, 1}}, nan[] = {{0, NAN}};
	static const uint32_t words[WORDS + 1] = {1};
	struct mimeo_request *request = mimeo_request_get(s->m);

#define REFUSES(says, change)                                                                       \
	do {                                                                                       \
		struct mimeo_generate generate = small_generate();                                 \
		change;                                                                            \
		assert_int_equal(mimeo_request_prep_generate(request, &generate), MIMEO_E_INVALID); \
		assert_says(request, says);                                                        \
	} while (0)
	REFUSES("repetition_penalty is -1", generate.repetition_penalty = -1);
	REFUSES("repetition_penalty is 0.001", generate.repetition_penalty = 0.001f);
	REFUSES("repetition_penalty is nan", generate.repetition_penalty = NAN);
	REFUSES("presence_penalty is 2.5: it must be from -2 to 2", generate.presence_penalty = 2.5f);
	REFUSES("frequency_penalty is -3", generate.frequency_penalty = -3);
	REFUSES("min_tokens is 5: it must not be more than max_tokens", generate.min_tokens = 5);
	REFUSES("top_logprobs is 3: log-probabilities are not requested", generate.top_logprobs = 3);
	REFUSES("top_logprobs is 21: it must be from 0 to 20", generate.top_logprobs = 21;
		generate.flags = MIMEO_GENERATE_LOGPROBS);
	REFUSES("are set together", generate.n_bias = 1);
	REFUSES("are set together", generate.bias = fine);
	REFUSES("are set together", generate.n_allowed = WORDS);
	REFUSES("are set together", generate.allowed = words);
	REFUSES("n_bias is 1025", generate.bias = fine; generate.n_bias = 1025);
	REFUSES("bias 1 is 1, of token 4: ", generate.bias = twice; generate.n_bias = 2);
	REFUSES("bias 0 is 101, of token 0: it must be from -100 to 100", generate.bias = large; generate.n_bias = 1);
	REFUSES("below the vocabulary of 256", generate.bias = outside; generate.n_bias = 1);
	REFUSES("bias 0 is nan", generate.bias = nan; generate.n_bias = 1);
	REFUSES("n_allowed is 9: the vocabulary of 256 needs 8 words", generate.allowed = words; generate.n_allowed = 9);
	REFUSES("n_tokens is 0, and sequence, too", generate.n_tokens = 0);
#undef REFUSES
}

static void assert_message(uint32_t detail, const int32_t values[4], const char *expected)
{
	struct mimeo_event event = {.status = MIMEO_E_INVALID, .detail = detail};
	char text[256];

	memcpy(event.detail_values, values, sizeof(event.detail_values));
	mimeo_event_message(&event, text, sizeof(text));
	assert_string_equal(text, expected);
}

static void test_messages_name_what_the_daemon_refused(void **state)
{
	assert_message(RING_DETAIL_BIAS, (int32_t[4]){1, 300, 256},
		"bias 1, of token 300: it must be from -100 to 100, or -infinity, and tokens ascend below the "
		"vocabulary of 256");
	assert_message(RING_DETAIL_ALLOWED, (int32_t[4]){7, 8}, "allowed has 7 words, and the vocabulary needs 8");
	assert_message(RING_DETAIL_NO_TOKEN, (int32_t[4]){0},
		"allowed, bias and min_tokens ban every token of the vocabulary");
	assert_message(RING_DETAIL_POSITIONS, (int32_t[4]){0, 520, 511},
		"row 0: results of its 520 tokens that see one another, which one step computes, are more than the 511 "
		"that go into an event: name a device buffer for them");
	assert_message(RING_DETAIL_CONTINUE, (int32_t[4]){3, 0},
		"n_tokens is 0, and sequence 3 has no tokens to go on with");
	assert_message(RING_DETAIL_CONTINUE, (int32_t[4]){3, 1},
		"n_tokens is 0, and the last token of sequence 3 cannot be computed once more: it came as an "
		"embedding or under a mask of its request");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		session_test(test_what_changes_logits_arrives_as_it_was_prepared),
		session_test(test_programs_older_than_what_changes_logits_change_none),
		session_test(test_a_sequence_goes_on_without_a_token),
		session_test(test_log_probabilities_come_with_their_tokens),
		session_test(test_events_have_no_log_probabilities_that_were_not_requested),
		session_test(test_a_step_gives_results_of_all_positions),
		session_test(test_a_mean_has_space_for_each_row),
		session_test(test_values_that_no_daemon_takes_are_refused),
		cmocka_unit_test(test_messages_name_what_the_daemon_refused),
	};

	return cmocka_run_group_tests_name("sdk: adjustment and log-probabilities", tests, NULL, NULL);
}
