/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "ipc/clock.h"
#include "tests/sdk/session.h"

static struct mimeo_generate small_generate(void)
{
	static const int32_t prompt[] = {5, 6, 7};
	struct mimeo_generate generate = MIMEO_GENERATE_INIT;

	generate.tokens = prompt;
	generate.n_tokens = 3;
	generate.max_tokens = 4;
	return generate;
}

static void decode_generate(struct session *s, const struct ring_sqe *sqe, struct msg_generate *ret)
{
	uint8_t header[MSG_HEADER_MAX];
	struct msg_detail detail;

	memcpy(header, region_at(&s->fake.region, sqe->header_offset, sqe->header_length),
		sqe->header_length);
	assert_int_equal(
		msg_generate_decode(s->fake.codec, header, sqe->header_length, ret, &detail), 0);
}

/* ---- what arrives ---- */

static void test_generate_arrives_as_it_was_prepared(void **state)
{
	struct session *s = *state;
	const int32_t stop[] = {70, 71};
	struct mimeo_generate generate = small_generate();
	struct msg_generate msg;

	generate.stop = stop;
	generate.n_stop = 2;
	generate.flags = MIMEO_GENERATE_IGNORE_EOS;
	generate.deadline_ms = 1500;
	generate.first_token_ms = 300;
	generate.request_class = MIMEO_CLASS_INTERACTIVE;
	generate.sampling.temperature = 0.75f;
	generate.sampling.top_k = 9;
	generate.sampling.seed = UINT64_MAX;
	generate.sampling.flags = MIMEO_SAMPLING_SEEDED;
	struct mimeo_request *request = mimeo_request_get(s->m);
	mimeo_request_set_data(request, 0x1122334455667788);
	assert_int_equal(mimeo_request_prep_generate(request, &generate), 0);
	uint64_t id = mimeo_request_id(request);
	assert_int_equal(mimeo_submit(s->m), 1);

	struct ring_sqe sqe = session_pop(s);
	assert_int_equal(sqe.op, RING_OP_GENERATE);
	assert_int_equal(sqe.user_data, 0x1122334455667788);
	assert_int_equal((uint64_t)sqe.generation << 32 | sqe.request, id);
	decode_generate(s, &sqe, &msg);
	assert_int_equal(msg.n_tokens, 3);
	assert_int_equal(msg.max_tokens, 4);
	assert_int_equal(msg.n_stop, 2);
	assert_int_equal(msg.stop[1], 71);
	assert_int_equal(msg.flags, MIMEO_GENERATE_IGNORE_EOS);
	assert_int_equal(msg.deadline_ms, 1500);
	assert_int_equal(msg.first_token_ms, 300);
	assert_int_equal(msg.request_class, MIMEO_CLASS_INTERACTIVE);
	assert_true(msg.sampling.temperature == 0.75f);
	assert_int_equal(msg.sampling.top_k, 9);
	assert_int_equal(msg.sampling.seed, UINT64_MAX);
	const int32_t *tokens = region_at(&s->fake.region, sqe.payload_offset, sqe.payload_length);
	assert_int_equal(sqe.payload_length, 12);
	assert_memory_equal(tokens, generate.tokens, 12);
}

/* Of the submission, and not of the preparation; without a deadline the clock is not read. */
static void test_request_with_a_deadline_carries_the_time_of_its_submission(void **state)
{
	struct session *s = *state;
	struct mimeo_generate generate = small_generate();
	uint64_t before, after;

	assert_int_equal(mimeo_request_prep_generate(mimeo_request_get(s->m), &generate), 0);
	generate.deadline_ms = 1500;
	assert_int_equal(mimeo_request_prep_generate(mimeo_request_get(s->m), &generate), 0);
	generate.deadline_ms = 0;
	generate.first_token_ms = 1;
	assert_int_equal(mimeo_request_prep_generate(mimeo_request_get(s->m), &generate), 0);
	before = clock_ns();
	assert_int_equal(mimeo_submit(s->m), 3);
	after = clock_ns();
	assert_int_equal(session_pop(s).submitted_ns, 0);
	for (int i = 0; i < 2; i++) {
		struct ring_sqe sqe = session_pop(s);

		assert_in_range(sqe.submitted_ns, before, after);
	}
}

/* Space for as many tokens as the model's sequences have behind the prompt. */
static void test_generate_without_a_limit_has_space_for_the_longest_output(void **state)
{
	struct session *s = *state;
	struct mimeo_generate generate = small_generate();
	struct mimeo_request *request = mimeo_request_get(s->m);
	struct msg_generate msg;

	generate.max_tokens = 0;
	assert_int_equal(mimeo_request_prep_generate(request, &generate), 0);
	assert_int_equal(mimeo_submit(s->m), 1);
	struct ring_sqe sqe = session_pop(s);
	decode_generate(s, &sqe, &msg);
	assert_int_equal(msg.max_tokens, 0);
	assert_int_equal(sqe.output_length, msg_output_layout(FAKE_MAX_SEQ_LEN - 3, false, 0, 0, 0).bytes);
}

/* The words lie behind the tokens, all rows' behind all rows'. */
static void test_masks_arrive_as_they_were_prepared(void **state)
{
	struct session *s = *state;
	const uint64_t words[] = {7, UINT64_MAX, 9};
	const int32_t tokens[] = {3, 4, 30};
	struct mimeo_generate generate = small_generate();
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct msg_generate msg;
	uint32_t a, b;

	generate.mask = (struct mimeo_mask){.kind = MIMEO_MASK_WINDOW, .window = 9, .sinks = 2};
	assert_int_equal(mimeo_request_prep_generate(mimeo_request_get(s->m), &generate), 0);
	generate.mask = (struct mimeo_mask){.kind = MIMEO_MASK_DOCUMENTS, .words = words};
	assert_int_equal(mimeo_request_prep_generate(mimeo_request_get(s->m), &generate), 0);
	assert_int_equal(mimeo_sequence_open(s->m, 0, &a), 0);
	assert_int_equal(mimeo_sequence_open(s->m, 0, &b), 0);
	const struct mimeo_step_row rows[] = {{a, 2, tokens}, {b, 1, tokens + 2}};
	step.n_rows = 2;
	step.rows = rows;
	step.outputs = MIMEO_STEP_TOKENS;
	step.mask = (struct mimeo_mask){.kind = MIMEO_MASK_TREE, .words = words};
	assert_int_equal(mimeo_request_prep_step(mimeo_request_get(s->m), &step), 0);
	assert_int_equal(mimeo_submit(s->m), 5);
	struct ring_sqe sqe = session_pop(s);
	decode_generate(s, &sqe, &msg);
	assert_int_equal(msg.mask.kind, MIMEO_MASK_WINDOW);
	assert_int_equal(msg.mask.window, 9);
	assert_int_equal(msg.mask.sinks, 2);
	assert_int_equal(sqe.payload_length, 12);
	sqe = session_pop(s);
	decode_generate(s, &sqe, &msg);
	assert_int_equal(msg.mask.kind, MIMEO_MASK_DOCUMENTS);
	assert_int_equal(sqe.payload_length, 12 + 24);
	const uint8_t *payload =
		region_at(&s->fake.region, sqe.payload_offset, sqe.payload_length);
	assert_memory_equal(payload, generate.tokens, 12);
	assert_memory_equal(payload + 12, words, 24);
	for (int i = 0; i < 3; i++)
		sqe = session_pop(s);
	assert_int_equal(sqe.op, RING_OP_STEP);
	assert_int_equal(sqe.payload_length, 2 * sizeof(struct msg_row) + 12 + 24);
	payload = region_at(&s->fake.region, sqe.payload_offset, sqe.payload_length);
	assert_memory_equal(payload + 2 * sizeof(struct msg_row), tokens, 12);
	assert_memory_equal(payload + 2 * sizeof(struct msg_row) + 12, words, 24);
}

static void test_limits_of_speculation_arrive_as_they_were_prepared(void **state)
{
	struct session *s = *state;
	static const uint32_t limits[] = {0, 1, MIMEO_DRAFT_MAX, MIMEO_DRAFT_NONE};
	enum { N = sizeof(limits) / sizeof(limits[0]) };
	struct mimeo_generate generate = small_generate();
	struct msg_generate msg;

	for (int i = 0; i < N; i++) {
		generate.draft_tokens = limits[i];
		assert_int_equal(mimeo_request_prep_generate(mimeo_request_get(s->m), &generate), 0);
	}
	assert_int_equal(mimeo_submit(s->m), N);
	for (int i = 0; i < N; i++) {
		struct ring_sqe sqe = session_pop(s);

		decode_generate(s, &sqe, &msg);
		assert_int_equal(msg.draft_tokens, limits[i]);
	}
}

/* Compiled before there were masks: the struct ends where they begin. */
static void test_requests_of_programs_older_than_masks_are_causal(void **state)
{
	struct session *s = *state;
	struct mimeo_generate generate = small_generate();
	struct msg_generate msg;

	generate.size = offsetof(struct mimeo_generate, mask);
	generate.mask.kind = 77;
	assert_int_equal(mimeo_request_prep_generate(mimeo_request_get(s->m), &generate), 0);
	assert_int_equal(mimeo_submit(s->m), 1);
	struct ring_sqe sqe = session_pop(s);
	decode_generate(s, &sqe, &msg);
	assert_int_equal(msg.mask.kind, MIMEO_MASK_DEFAULT);
}

static void test_step_gives_sampled_tokens_logits_and_hidden_of_each_row(void **state)
{
	struct session *s = *state;
	const int32_t tokens[] = {3, 4, 30};
	uint32_t a, b;

	assert_int_equal(mimeo_sequence_open(s->m, 0, &a), 0);
	assert_int_equal(mimeo_sequence_open(s->m, 0, &b), 0);
	const struct mimeo_step_row rows[] = {{a, 2, tokens}, {b, 1, tokens + 2}};
	struct mimeo_step step = MIMEO_STEP_INIT;
	step.n_rows = 2;
	step.rows = rows;
	step.outputs = MIMEO_STEP_TOKENS | MIMEO_STEP_LOGITS | MIMEO_STEP_HIDDEN;
	assert_int_equal(mimeo_request_prep_step(mimeo_request_get(s->m), &step), 0);
	assert_int_equal(mimeo_submit(s->m), 3);
	for (int i = 0; i < 3; i++) {
		struct ring_sqe sqe = session_pop(s);
		assert_true(fake_answer(&s->fake, &sqe));
	}

	assert_int_equal(session_wait(s), 1);
	assert_int_equal(s->event.kind, MIMEO_EVENT_FINAL);
	assert_int_equal(s->event.finish, MIMEO_FINISH_NONE);
	assert_int_equal(s->event.n_tokens, 2);
	assert_int_equal(s->event.tokens[0], 5);
	assert_int_equal(s->event.tokens[1], 31);
	assert_int_equal(s->event.n_rows, 2);
	assert_true(s->event.logits[FAKE_VOCAB + 7] == 1007.0f);
	assert_true(s->event.hidden[FAKE_HIDDEN + 2] == 1002.5f);
}

static void test_step_without_logits_gives_none(void **state)
{
	struct session *s = *state;
	const int32_t token = 3;
	uint32_t sequence;

	mimeo_sequence_open(s->m, 0, &sequence);
	const struct mimeo_step_row row = {sequence, 1, &token};
	struct mimeo_step step = MIMEO_STEP_INIT;
	step.n_rows = 1;
	step.rows = &row;
	step.outputs = MIMEO_STEP_HIDDEN;
	assert_int_equal(mimeo_request_prep_step(mimeo_request_get(s->m), &step), 0);
	mimeo_submit(s->m);
	for (int i = 0; i < 2; i++) {
		struct ring_sqe sqe = session_pop(s);
		assert_true(fake_answer(&s->fake, &sqe));
	}
	assert_int_equal(session_wait(s), 1);
	assert_null(s->event.logits);
	assert_null(s->event.tokens);
	assert_int_equal(s->event.n_tokens, 0);
	assert_true(s->event.hidden[1] == 1.5f);
}

static void test_nothing_is_published_before_submit(void **state)
{
	struct session *s = *state;
	struct ring_sqe sqe;

	session_generate(s, 1);
	assert_int_equal(fake_pop(&s->fake, &sqe), 0);
}

static void test_submission_keeps_the_order_of_preparation(void **state)
{
	struct session *s = *state;
	const uint16_t expected[] = {RING_OP_GENERATE, RING_OP_OPEN, RING_OP_CANCEL, RING_OP_CLOSE};
	uint32_t sequence;

	struct mimeo_request *late = mimeo_request_get(s->m);
	struct mimeo_request *first = session_generate(s, 1);
	mimeo_sequence_open(s->m, 0, &sequence);
	mimeo_request_prep_cancel(late, mimeo_request_id(first));
	mimeo_sequence_close(s->m, sequence);
	assert_int_equal(mimeo_submit(s->m), 4);
	for (int i = 0; i < 4; i++)
		assert_int_equal(session_pop(s).op, expected[i]);
}

static void test_submit_of_nothing_is_zero(void **state)
{
	struct session *s = *state;

	assert_int_equal(mimeo_submit(s->m), 0);
}

static void test_put_takes_a_prepared_request_back(void **state)
{
	struct session *s = *state;

	struct mimeo_request *request = session_generate(s, 1);
	session_generate(s, 2);
	mimeo_request_put(request);
	assert_int_equal(mimeo_submit(s->m), 1);
	assert_int_equal(session_pop(s).user_data, 102);
}

static void test_put_after_submit_is_ignored(void **state)
{
	struct session *s = *state;

	struct mimeo_request *request = session_generate(s, 1);
	mimeo_submit(s->m);
	mimeo_request_put(request);
	struct ring_sqe sqe = session_pop(s);
	assert_true(fake_answer(&s->fake, &sqe));
	assert_int_equal(session_wait(s), 1);
}

/* The daemon may share its submission head only after it has answered. */
static void test_submissions_wait_for_a_head_that_comes_after_its_completions(void **state)
{
	struct session *s = *state;
	struct ring_sqe sqe;

	for (uint32_t i = 1; i <= 8; i++)
		session_generate(s, i);
	assert_int_equal(mimeo_submit(s->m), 8);
	for (int i = 0; i < 8; i++) {
		assert_true(ring_sq_pop(&s->fake.region.ring, &sqe));
		assert_true(fake_answer(&s->fake, &sqe));
		assert_int_equal(session_wait(s), 1);
		session_seen(s);
	}
	session_generate(s, 9);
	assert_int_equal(mimeo_submit(s->m), 1);
	assert_int_equal(session_peek(s), 0);
	ring_sq_release(&s->fake.region.ring);
	assert_int_equal(session_peek(s), 0);
	assert_int_equal(session_pop(s).user_data, 109);
}

/* ---- credits and memory ---- */

static void test_get_gives_as_many_requests_as_entries(void **state)
{
	struct session *s = *state;
	struct mimeo_request *requests[8];

	for (int i = 0; i < 8; i++)
		assert_non_null(requests[i] = mimeo_request_get(s->m));
	assert_null(mimeo_request_get(s->m));
	mimeo_request_put(requests[3]);
	assert_non_null(mimeo_request_get(s->m));
}

static void test_ids_are_never_used_twice(void **state)
{
	struct session *s = *state;
	uint64_t ids[20];

	for (int i = 0; i < 20; i++) {
		struct mimeo_request *request = mimeo_request_get(s->m);

		ids[i] = mimeo_request_id(request);
		for (int k = 0; k < i; k++)
			assert_int_not_equal(ids[i], ids[k]);
		mimeo_request_put(request);
	}
}

static void test_full_arena_refuses_until_a_final_event_is_seen(void **state)
{
	struct session *s = *state;
	const int32_t token = 3;
	struct mimeo_step_row rows[10];
	struct mimeo_step step = MIMEO_STEP_INIT;
	uint32_t id;

	/* Ten rows of 1000 logits take 40000 bytes: one block, the whole arena of 64 KiB. */
	assert_int_equal(mimeo_sequence_open(s->m, 1, &id), 0);
	for (int i = 0; i < 10; i++)
		rows[i] = (struct mimeo_step_row){id, 1, &token};
	step.model = 1;
	step.n_rows = 10;
	step.rows = rows;
	step.outputs = MIMEO_STEP_LOGITS;
	assert_int_equal(mimeo_request_prep_step(mimeo_request_get(s->m), &step), 0);
	struct mimeo_request *second = mimeo_request_get(s->m);
	assert_int_equal(mimeo_request_prep_step(second, &step), MIMEO_E_FULL);
	assert_non_null(strstr(mimeo_request_message(second), "the arena of 65536 bytes"));
	mimeo_submit(s->m);
	for (int i = 0; i < 2; i++) {
		struct ring_sqe sqe = session_pop(s);
		assert_true(fake_answer(&s->fake, &sqe));
	}
	assert_int_equal(session_wait(s), 1);
	assert_int_equal(mimeo_request_prep_step(second, &step), MIMEO_E_FULL);
	session_seen(s);
	assert_int_equal(mimeo_request_prep_step(second, &step), 0);
}

/* ---- what is refused at once ---- */

/* The message contains that text; "" if the call was accepted. */
static void assert_says(const struct mimeo_request *request, int status, const char *text)
{
	const char *message = mimeo_request_message(request);

	if (status == 0)
		assert_string_equal(message, "");
	else if (!message[0] || !strstr(message, text))
		fail_msg("not \"%s\" but \"%s\"", text, message);
}

static void test_generate_refuses_values_that_the_daemon_refuses(void **state)
{
	struct session *s = *state;
	const int32_t bad_stop = -1, many[FAKE_MAX_SEQ_LEN] = {0};
	const uint64_t words[3] = {0};

	struct mimeo_request *request = mimeo_request_get(s->m);
#define REFUSES(status, says, change)                                                                \
	do {                                                                                       \
		struct mimeo_generate generate = small_generate();                                 \
		change;                                                                            \
		assert_int_equal(mimeo_request_prep_generate(request, &generate), status);         \
		assert_says(request, status, says);                                                \
	} while (0)
	REFUSES(MIMEO_E_INVALID, "initialise the struct with MIMEO_GENERATE_INIT", generate.size = 8);
	REFUSES(MIMEO_E_INVALID, "tokens is NULL", generate.tokens = NULL);
	REFUSES(MIMEO_E_INVALID, "the request has no tokens", generate.n_tokens = 0);
	REFUSES(MIMEO_E_INVALID, "stop is NULL", generate.n_stop = 1);
	REFUSES(MIMEO_E_INVALID, "n_stop is 9: at most 8", generate.n_stop = MIMEO_STOP_MAX + 1; generate.stop = &bad_stop);
	REFUSES(MIMEO_E_INVALID, "stop id 0 is -1, outside the vocabulary of 256", generate.n_stop = 1; generate.stop = &bad_stop);
	REFUSES(MIMEO_E_INVALID, "flag 0x40 is unknown", generate.flags = 64);
	REFUSES(MIMEO_E_INVALID, "not requested", generate.logits.buffer = 1); /* and none are asked for */
	REFUSES(MIMEO_E_INVALID, "logits.offset is 64, but logits.buffer is 0", generate.logits.offset = 64);
	REFUSES(MIMEO_E_INVALID, "logits.reserved is 1", generate.logits.reserved = 1);
	REFUSES(MIMEO_E_INVALID, "logits.offset is 32 and must be a multiple of 64", generate.flags = MIMEO_GENERATE_PROMPT_LOGITS;
		generate.logits.buffer = 1; generate.logits.offset = 32);
	REFUSES(MIMEO_E_INVALID, "request_class is 3: it must be from 0 to 2", generate.request_class = 3);
	REFUSES(MIMEO_E_INVALID, "draft_tokens is 9", generate.draft_tokens = MIMEO_DRAFT_MAX + 1);
	REFUSES(MIMEO_E_INVALID, "draft_tokens is 4294967294", generate.draft_tokens = MIMEO_DRAFT_NONE - 1);
	REFUSES(MIMEO_E_INVALID, "temperature is -1", generate.sampling.temperature = -1);
	REFUSES(MIMEO_E_INVALID, "temperature is nan", generate.sampling.temperature = NAN);
	REFUSES(MIMEO_E_INVALID, "temperature is inf", generate.sampling.temperature = INFINITY);
	REFUSES(MIMEO_E_INVALID, "top_p is 1.5: it must be from 0 to 1", generate.sampling.top_p = 1.5f);
	REFUSES(MIMEO_E_INVALID, "top_p is nan", generate.sampling.top_p = NAN);
	REFUSES(MIMEO_E_INVALID, "min_p is -0.5", generate.sampling.min_p = -0.5f);
	REFUSES(MIMEO_E_INVALID, "flag 0x4 is unknown", generate.sampling.flags = 4);
	REFUSES(MIMEO_E_INVALID, "sampling.reserved is 4", generate.sampling.reserved = 4);
	REFUSES(MIMEO_E_INVALID, "mask is 4: it must be from 0 to 3", generate.mask.kind = MIMEO_MASK_TREE; generate.mask.words = words);
	REFUSES(MIMEO_E_INVALID, "mask_window is 0", generate.mask.kind = MIMEO_MASK_WINDOW);
	REFUSES(MIMEO_E_INVALID, "mask_window is 3", generate.mask.window = 3);
	REFUSES(MIMEO_E_INVALID, "mask.prefix is 4, and the row has 3 tokens", generate.mask.kind = MIMEO_MASK_PREFIX; generate.mask.prefix = 4);
	REFUSES(MIMEO_E_INVALID, "mask_sinks is 1", generate.mask.kind = MIMEO_MASK_PREFIX; generate.mask.prefix = 2;
		generate.mask.sinks = 1);
	REFUSES(MIMEO_E_INVALID, "mask.words is NULL", generate.mask.kind = MIMEO_MASK_DOCUMENTS);
	REFUSES(MIMEO_E_INVALID, "mask.words is set", generate.mask.words = words);
	REFUSES(MIMEO_E_UNKNOWN_MODEL, "no model has index 2: the daemon serves 2", generate.model = 2);
	REFUSES(MIMEO_E_UNKNOWN_SEQUENCE, "sequence 1 is not open", generate.sequence = 1);
	REFUSES(MIMEO_E_UNKNOWN_SEQUENCE, "sequence 4294967295 is not open", generate.sequence = UINT32_MAX);
	REFUSES(MIMEO_E_TOO_LONG, "3 tokens and max_tokens ", generate.max_tokens = FAKE_MAX_SEQ_LEN);
	REFUSES(MIMEO_E_TOO_LONG, "at most ", generate.max_tokens = UINT32_MAX);
	REFUSES(MIMEO_E_TOO_LONG, "tokens and max_tokens 0", generate.max_tokens = 0;
		generate.tokens = many; generate.n_tokens = FAKE_MAX_SEQ_LEN);
	REFUSES(0, "", generate.max_tokens = FAKE_MAX_SEQ_LEN - 3);
	REFUSES(MIMEO_E_INVALID, "was prepared", (void)0); /* prepared already */
#undef REFUSES
}

static void test_step_refuses_values_that_the_daemon_refuses(void **state)
{
	struct session *s = *state;
	const int32_t token = 3;
	const uint64_t words[1] = {0};
	uint32_t sequence, other;

	mimeo_sequence_open(s->m, 0, &sequence);
	mimeo_sequence_open(s->m, 1, &other);
	struct mimeo_request *request = mimeo_request_get(s->m);
#define REFUSES(status, says, change)                                                                \
	do {                                                                                       \
		struct mimeo_step_row row = {sequence, 1, &token};                                 \
		struct mimeo_step step = MIMEO_STEP_INIT;                                          \
		step.n_rows = 1;                                                                   \
		step.rows = &row;                                                                  \
		step.outputs = MIMEO_STEP_TOKENS;                                                  \
		change;                                                                            \
		assert_int_equal(mimeo_request_prep_step(request, &step), status);                 \
		assert_says(request, status, says);                                                \
	} while (0)
	REFUSES(MIMEO_E_INVALID, "size is 0 and must be at least", step.size = 0);
	REFUSES(MIMEO_E_INVALID, "the step has no rows", step.n_rows = 0);
	REFUSES(MIMEO_E_INVALID, "rows is NULL", step.rows = NULL);
	REFUSES(MIMEO_E_INVALID, "at least one output", step.outputs = 0);
	REFUSES(MIMEO_E_INVALID, "flag 0x80 is unknown", step.outputs = 128);
	REFUSES(MIMEO_E_INVALID, "row 0 has no tokens", row.n_tokens = 0);
	REFUSES(MIMEO_E_INVALID, "row 0: tokens is NULL", row.tokens = NULL);
	REFUSES(MIMEO_E_INVALID, " is not of model 0", row.sequence = other);
	REFUSES(MIMEO_E_INVALID, "top_p is 2", step.sampling.top_p = 2);
	REFUSES(MIMEO_E_INVALID, "mask is 5", step.mask.kind = 5);
	REFUSES(MIMEO_E_INVALID, "mask.words is NULL", step.mask.kind = MIMEO_MASK_TREE);
	REFUSES(MIMEO_E_INVALID, "row 0: its 65 tokens", step.mask.kind = MIMEO_MASK_TREE; step.mask.words = words;
		row.n_tokens = MIMEO_TREE_MAX + 1);
	REFUSES(MIMEO_E_INVALID, "mask.prefix is 2, and the row has 1 token", step.mask.kind = MIMEO_MASK_PREFIX; step.mask.prefix = 2);
	REFUSES(MIMEO_E_UNKNOWN_SEQUENCE, "sequence 0 is not open", row.sequence = 0);
	REFUSES(MIMEO_E_UNKNOWN_SEQUENCE, "sequence 7 is not open", row.sequence = 7);
	REFUSES(MIMEO_E_UNKNOWN_MODEL, "no model has index 5", step.model = 5);
	REFUSES(MIMEO_E_TOO_LONG, "row 0 has ", row.n_tokens = FAKE_MAX_SEQ_LEN + 1);
	REFUSES(0, "", (void)0);
#undef REFUSES
}

static void test_message_is_that_of_the_last_prepare_call(void **state)
{
	struct session *s = *state;
	const int32_t out[] = {1, 999};
	struct mimeo_generate generate = small_generate(), zeroed;

	struct mimeo_request *first = mimeo_request_get(s->m), *second = mimeo_request_get(s->m);
	assert_string_equal(mimeo_request_message(NULL), "");
	assert_string_equal(mimeo_request_message(first), "");
	assert_int_equal(mimeo_request_prep_generate(NULL, &generate), MIMEO_E_INVALID);
	assert_int_equal(mimeo_request_prep_generate(first, NULL), MIMEO_E_INVALID);
	assert_says(first, MIMEO_E_INVALID, "no parameters were given");
	assert_string_equal(mimeo_request_message(second), "");
	memset(&zeroed, 0, sizeof(zeroed));
	assert_int_equal(mimeo_request_prep_generate(second, &zeroed), MIMEO_E_INVALID);
	assert_says(second, MIMEO_E_INVALID, "size is 0 and must be at least");
	assert_string_equal(mimeo_request_message(first), "");
	generate.stop = out;
	generate.n_stop = 2;
	assert_int_equal(mimeo_request_prep_generate(first, &generate), MIMEO_E_INVALID);
	assert_says(first, MIMEO_E_INVALID, "stop id 1 is 999, outside the vocabulary of 256");
	generate.n_stop = 1;
	assert_int_equal(mimeo_request_prep_generate(first, &generate), 0);
	assert_string_equal(mimeo_request_message(first), "");
}

static void test_cancel_refuses_ids_that_no_request_has(void **state)
{
	struct session *s = *state;

	struct mimeo_request *request = mimeo_request_get(s->m);
	assert_int_equal(mimeo_request_prep_cancel(request, 0), MIMEO_E_INVALID);
	assert_says(request, MIMEO_E_INVALID, "ever had the id 0");
	assert_int_equal(mimeo_request_prep_cancel(request, 1ull << 32 | 8), MIMEO_E_INVALID);
	assert_int_equal(mimeo_request_prep_cancel(request, mimeo_request_id(request)),
		MIMEO_E_INVALID);
	assert_says(request, MIMEO_E_INVALID, "cannot cancel itself");
}

static void test_cancel_names_index_and_generation(void **state)
{
	struct session *s = *state;

	struct mimeo_request *request = session_generate(s, 1);
	uint64_t id = mimeo_request_id(request);
	assert_int_equal(mimeo_request_prep_cancel(mimeo_request_get(s->m), id), 0);
	mimeo_submit(s->m);
	struct ring_sqe generate = session_pop(s), cancel = session_pop(s);
	assert_int_equal(cancel.argument, generate.request);
	assert_int_equal(cancel.generation2, generate.generation);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		session_test(test_generate_arrives_as_it_was_prepared),
		session_test(test_request_with_a_deadline_carries_the_time_of_its_submission),
		session_test(test_generate_without_a_limit_has_space_for_the_longest_output),
		session_test(test_masks_arrive_as_they_were_prepared),
		session_test(test_limits_of_speculation_arrive_as_they_were_prepared),
		session_test(test_requests_of_programs_older_than_masks_are_causal),
		session_test(test_step_gives_sampled_tokens_logits_and_hidden_of_each_row),
		session_test(test_step_without_logits_gives_none),
		session_test(test_nothing_is_published_before_submit),
		session_test(test_submission_keeps_the_order_of_preparation),
		session_test(test_submit_of_nothing_is_zero),
		session_test(test_put_takes_a_prepared_request_back),
		session_test(test_put_after_submit_is_ignored),
		session_test(test_submissions_wait_for_a_head_that_comes_after_its_completions),
		session_test(test_get_gives_as_many_requests_as_entries),
		session_test(test_ids_are_never_used_twice),
		session_test(test_full_arena_refuses_until_a_final_event_is_seen),
		session_test(test_generate_refuses_values_that_the_daemon_refuses),
		session_test(test_step_refuses_values_that_the_daemon_refuses),
		session_test(test_message_is_that_of_the_last_prepare_call),
		session_test(test_cancel_refuses_ids_that_no_request_has),
		session_test(test_cancel_names_index_and_generation),
	};

	return cmocka_run_group_tests_name("sdk", tests, NULL, NULL);
}
