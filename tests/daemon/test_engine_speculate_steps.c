/* SPDX-License-Identifier: MIT */
/*
 * Steps of a model with a draft as they are launched: what rows they carry, what results leave from their
 * rows, that the engine does not wait for one before it launches the next, and no client for the drafts behind
 * its tokens. Every launch of `prepare` is recorded, and a test may hold the lane ahead of one.
 */
#include "tests/daemon/rig.h"

enum { K = 4, VOCAB = 256, HIDDEN = 160, STEPS_MAX = 4096 };

/* ---- launches, by the engine's thread ---- */

struct launched {
	uint32_t n_rows, n_verify;
};

static struct {
	const struct kernel_ops *real;
	struct kernel_ops kernels;
	struct device *device;
	struct launched steps[STEPS_MAX];
	_Atomic uint32_t n;       /* launched since the engine was made */
	_Atomic uint32_t hold_at; /* the step ahead of which the lane waits, from 1; 0: none */
	_Atomic bool open;
	_Atomic bool hold_draft; /* the lane waits ahead of the next draft's part, too */
	_Atomic bool draft_open;
} watch;

/* On the lane. */
static void wait_until_open(void *arg)
{
	const _Atomic bool *open = arg;

	while (!*open)
		rig_pause();
}

static int prepare(struct stream *stream, const struct op_prepare *args)
{
	const struct step_record *record = args->record;
	struct launched step = {.n_rows = record->n_rows};
	uint32_t n = watch.n;

	for (uint32_t i = 0; i < record->n_rows; i++)
		step.n_verify += (record->rows[i].flags & ROW_VERIFY) != 0;
	if (n + 1 == watch.hold_at)
		assert_int_equal(watch.device->ops->stream_host_func(
			stream, wait_until_open, &watch.open), 0);
	if (n < STEPS_MAX)
		watch.steps[n] = step;
	watch.n = n + 1;
	return watch.real->prepare(stream, args);
}

static int draft_begin(struct stream *stream, const struct op_draft_begin *args)
{
	if (watch.hold_draft)
		assert_int_equal(watch.device->ops->stream_host_func(
			stream, wait_until_open, &watch.draft_open), 0);
	watch.hold_draft = false;
	return watch.real->draft_begin(stream, args);
}

static void watch_device(struct device *device)
{
	watch.device = device;
	watch.real = device->kernels;
	watch.kernels = *watch.real;
	watch.kernels.prepare = prepare;
	watch.kernels.draft_begin = draft_begin;
	device->kernels = &watch.kernels;
}

/* ---- rigs ---- */

static void open_world_of(struct rig *rig, const struct rig_options *o, bool with_draft)
{
	struct rig_options options = *o;

	options.on_device = watch_device;
	options.n_drafts = with_draft ? K : 0;
	watch.hold_at = 0;
	watch.hold_draft = false;
	rig_open_client(rig, &options);
	watch.n = 0;
}

static void open_world(struct rig *rig, enum graph_mode mode, bool with_draft)
{
	open_world_of(rig, &(struct rig_options){.mode = mode}, with_draft);
}

static void hold(uint32_t step)
{
	watch.open = false;
	watch.hold_at = step;
}

static void hold_draft(void)
{
	watch.draft_open = false;
	watch.hold_draft = true;
}

/* Nothing is in flight. */
static void settle(const struct rig *rig)
{
	RIG_AWAIT(engine_stats(rig->engine)->n_slots_free == rig->options.max_requests);
}

static void run(struct rig *rig, const struct rig_request *request)
{
	rig->results[request->index] = (struct rig_result){0};
	rig_submit(&rig->client, *request);
	rig_wait(&rig->client, rig->results, request->index);
	assert_int_equal(rig->results[request->index].status, 0);
}

static struct rig_request ask(struct rig *rig, uint32_t index, uint32_t sequence, const char *text,
	uint32_t max_tokens, uint32_t draft_tokens)
{
	struct msg_generate msg = {.sequence = sequence, .max_tokens = max_tokens,
		.flags = MIMEO_GENERATE_IGNORE_EOS, .draft_tokens = draft_tokens};
	int32_t tokens[64];

	msg.n_tokens = rig_prompt(text, tokens);
	return rig_generate(&rig->client, index, tokens, msg.n_tokens, &msg);
}

/* ---- results of any row ---- */

static const char *const prompts[] = {"12+34=", "count 3 9\n", "9*7="};
static const char *const step_texts[] = {"sort 5 2", "3+"};
enum { N_PROMPTS = 3, N_STEPS = 2 };

struct outcome {
	float prompts[N_PROMPTS][VOCAB];
	int32_t tokens[N_STEPS];
	float logits[N_STEPS][VOCAB], hidden[N_STEPS][HIDDEN];
};

static struct rig_request ask_logits(struct rig *rig, uint32_t i)
{
	struct msg_generate msg = {.max_tokens = 4,
		.flags = MIMEO_GENERATE_IGNORE_EOS | MIMEO_GENERATE_PROMPT_LOGITS};
	int32_t tokens[64];

	msg.n_tokens = rig_prompt(prompts[i], tokens);
	return rig_generate(&rig->client, 1 + i, tokens, msg.n_tokens, &msg);
}

/* On sequences 1 and 2. */
static struct rig_request ask_step(struct rig *rig)
{
	const struct msg_step msg = {.n_rows = N_STEPS,
		.outputs = MIMEO_STEP_TOKENS | MIMEO_STEP_LOGITS | MIMEO_STEP_HIDDEN};
	struct msg_row rows[N_STEPS];
	int32_t tokens[128];
	uint32_t n = 0;

	for (uint32_t i = 0; i < N_STEPS; i++) {
		rows[i] = (struct msg_row){1 + i, rig_prompt(step_texts[i], tokens + n)};
		n += rows[i].n_tokens;
	}
	return rig_step(&rig->client, 1 + N_PROMPTS, &msg, rows, tokens);
}

/* All at once, behind two steps of a request that drafts. */
static void run_behind(struct rig *rig, const struct rig_request *requests)
{
	struct rig_request endless = rig_endless(&rig->client, 0, 0, 60);

	hold(watch.n + 1);
	rig_submit(&rig->client, endless);
	RIG_AWAIT(watch.n == watch.hold_at + 1);
	for (uint32_t i = 0; i <= N_PROMPTS; i++)
		rig_submit(&rig->client, requests[i]);
	RIG_AWAIT(engine_stats(rig->engine)->n_running == 1 + N_PROMPTS + N_STEPS);
	watch.open = true;
	for (uint32_t i = 0; i <= 1 + N_PROMPTS; i++) {
		rig_wait(&rig->client, rig->results, i);
		assert_int_equal(rig->results[i].status, 0);
	}
	/* the one step behind those two has the others' rows, behind one that verifies */
	assert_int_equal(watch.steps[watch.hold_at + 1].n_rows, 1 + N_PROMPTS + N_STEPS);
	assert_int_equal(watch.steps[watch.hold_at + 1].n_verify, 1);
}

static void run_results(struct rig *rig, bool behind, struct outcome *ret)
{
	const struct msg_output of_prompt = msg_output_layout(4, 1, VOCAB, 0, HIDDEN);
	const struct msg_output of_step =
		msg_output_layout(N_STEPS, N_STEPS, VOCAB, N_STEPS, HIDDEN);
	struct rig_request requests[1 + N_PROMPTS];
	const uint8_t *out;

	for (uint32_t i = 0; i < N_STEPS; i++)
		rig_ok(&rig->client, 0, RING_OP_OPEN, 1 + i, 0);
	for (uint32_t i = 0; i < N_PROMPTS; i++)
		requests[i] = ask_logits(rig, i);
	requests[N_PROMPTS] = ask_step(rig);
	memset(rig->results, 0, sizeof(rig->results));
	if (behind)
		run_behind(rig, requests);
	for (uint32_t i = 0; i <= N_PROMPTS && !behind; i++)
		run(rig, &requests[i]);
	for (uint32_t i = 0; i < N_PROMPTS; i++)
		memcpy(ret->prompts[i], rig_logits(&rig->client, &requests[i], &of_prompt),
			sizeof(ret->prompts[i]));
	out = rig->client.region.arena + requests[N_PROMPTS].sqe.output_offset;
	memcpy(ret->tokens, out + of_step.tokens, sizeof(ret->tokens));
	memcpy(ret->logits, out + of_step.logits, sizeof(ret->logits));
	memcpy(ret->hidden, out + of_step.hidden, sizeof(ret->hidden));
	for (uint32_t i = 0; i < N_STEPS; i++)
		rig_ok(&rig->client, 0, RING_OP_CLOSE, 1 + i, 0);
}

#define SAME(have, want) test_same_logits((have), (want), sizeof(want) / sizeof((want)[0]), false)

static void test_results_of_any_row_beside_a_verification_are_its_own(void **state)
{
	static const enum graph_mode modes[] = {GRAPH_NONE, GRAPH_FULL_AND_PIECEWISE};
	static struct outcome expected, got;
	struct rig rig;

	open_world(&rig, GRAPH_NONE, false);
	run_results(&rig, false, &expected);
	rig_close(&rig);
	for (int m = 0; m < 2; m++) {
		open_world(&rig, modes[m], true);
		run_results(&rig, true, &got);
		for (uint32_t i = 0; i < N_PROMPTS; i++) {
			if (!SAME(got.prompts[i], expected.prompts[i]))
				fail_msg("logits of prompt %u are another's", i);
		}
		assert_memory_equal(got.tokens, expected.tokens, sizeof(got.tokens));
		for (uint32_t i = 0; i < N_STEPS; i++) {
			if (!SAME(got.logits[i], expected.logits[i]))
				fail_msg("logits of the step's row %u are another's", i);
			if (!SAME(got.hidden[i], expected.hidden[i]))
				fail_msg("hidden states of the step's row %u are another's", i);
		}
		rig_close(&rig);
	}
}

/* ---- ahead of what is read ---- */

/* While the lane is held ahead of a step, that one and the next are launched. */
static void assert_two_ahead(uint32_t step, uint32_t n_verify)
{
	struct rig rig;

	open_world(&rig, GRAPH_FULL_AND_PIECEWISE, true);
	hold(step);
	rig_submit(&rig.client, rig_endless(&rig.client, 0, 0, 60));
	RIG_AWAIT(watch.n == step + 1);
	RIG_AWAIT(engine_stats(rig.engine)->n_in_lane == LANE_STEPS);
	assert_int_equal(watch.n, step + 1);
	assert_int_equal(watch.steps[step - 1].n_verify + watch.steps[step].n_verify, n_verify);
	watch.open = true;
	rig_wait(&rig.client, rig.results, 0);
	assert_int_equal(rig.results[0].n_generated, 60);
	rig_close(&rig);
}

static void test_verification_is_launched_before_the_prompt_is_read(void **state)
{
	assert_two_ahead(1, 1);
}

static void test_verification_is_launched_before_the_one_before_is_read(void **state)
{
	assert_two_ahead(3, 2);
	assert_two_ahead(4, 2);
}

/* Whether the engine knows when to look, or is woken. */
static void test_tokens_do_not_wait_for_the_drafts_of_the_next(void **state)
{
	for (uint32_t i = 0; i < 4; i++) {
		struct rig_options options = {.mode = i % 2 ? GRAPH_NONE : GRAPH_FULL_AND_PIECEWISE,
			.spin_us = i < 2 ? 0 : 50};
		struct rig_request request;
		struct rig rig;

		open_world_of(&rig, &options, true);
		/* graphs' times are known then */
		request = rig_endless(&rig.client, 0, 0, 60);
		run(&rig, &request);
		settle(&rig);
		hold_draft();
		rig.results[0] = (struct rig_result){0};
		rig_submit(&rig.client, rig_endless(&rig.client, 0, 0, 60));
		RIG_AWAIT(rig_poll(&rig.client, rig.results));
		assert_int_equal(rig.results[0].n_generated, 1); /* the prompt's */
		assert_true(engine_stats(rig.engine)->n_in_lane > 0);
		watch.draft_open = true;
		rig_wait(&rig.client, rig.results, 0);
		assert_int_equal(rig.results[0].n_generated, 60);
		rig_close(&rig);
	}
}

/* Nor do ends: of a request of one token, in a step with another that drafts. */
static void test_requests_end_before_the_drafts_beside_them(void **state)
{
	struct rig *rig = *state;
	struct rig_request endless, request;

	rig_ok(&rig->client, 2, RING_OP_OPEN, 1, 0);
	hold(watch.n + 1);
	endless = rig_endless(&rig->client, 0, 0, 60);
	request = ask(rig, 1, 1, "1+", 1, 0);
	rig_submit(&rig->client, endless);
	RIG_AWAIT(watch.n == watch.hold_at + 1);
	rig_submit(&rig->client, request);
	RIG_AWAIT(engine_stats(rig->engine)->n_running == 2);
	/* the third step has both, and it is its draft's part that is held */
	hold_draft();
	watch.open = true;
	rig_wait(&rig->client, rig->results, 1);
	assert_int_equal(rig->results[1].n_generated, 1);
	assert_false(watch.hold_draft);
	watch.draft_open = true;
	rig_wait(&rig->client, rig->results, 0);
	/* its pages and its slot are back when the step is */
	settle(rig);
	rig_ok(&rig->client, 2, RING_OP_CLOSE, 1, 0);
}

/* ---- which rows verify ---- */

/* The sequence had drafts in a request before, and has none now. */
static void test_steps_of_a_sequence_that_drafted_verify_nothing(void **state)
{
	struct rig *rig = *state;
	const struct msg_row row = {1, 1};
	const struct msg_step msg = {.n_rows = 1, .outputs = MIMEO_STEP_TOKENS};
	struct rig_request request;
	uint32_t first, n_verify = 0;

	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	request = ask(rig, 0, 1, "count 4 30\n", 20, 0);
	run(rig, &request);
	settle(rig);
	for (uint32_t i = 0; i < watch.n; i++)
		n_verify += watch.steps[i].n_verify;
	assert_true(n_verify > 0);
	first = watch.n;
	request = ask(rig, 1, 0, "count 4 30\n", 200, MIMEO_DRAFT_NONE);
	rig_submit(&rig->client, request);
	RIG_AWAIT(watch.n > first + 2);
	for (uint32_t i = 0; i < 20; i++) {
		request = rig_step(&rig->client, 2, &msg, &row, &(int32_t){'a'});
		run(rig, &request);
	}
	rig_wait(&rig->client, rig->results, 1);
	assert_int_equal(rig->results[1].n_generated, 200);
	for (uint32_t i = first; i < watch.n; i++)
		assert_int_equal(watch.steps[i].n_verify, 0);
	rig_ok(&rig->client, 0, RING_OP_CLOSE, 1, 0);
}

/* Rows of request 0 on sequence 1 that verified. */
static uint32_t verified_by(struct rig *rig, const char *text, uint32_t max_tokens, uint32_t draft_tokens)
{
	const struct rig_request request = ask(rig, 0, 1, text, max_tokens, draft_tokens);
	uint32_t first, n = 0;

	settle(rig);
	first = watch.n;
	run(rig, &request);
	settle(rig);
	for (uint32_t i = first; i < watch.n; i++)
		n += watch.steps[i].n_verify;
	return n;
}

/* Of a history that was cut and grew again without the draft, it has seen the part before the cut alone,
 * however long it had been. */
static void test_history_that_grew_again_without_its_draft_has_no_drafts(void **state)
{
	struct rig *rig = *state;

	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	assert_true(verified_by(rig, "count 4 30\n", 80, 0) > 0);
	rig_ok(&rig->client, 0, RING_OP_TRUNCATE, 1, 10);
	assert_int_equal(verified_by(rig, "5+5=", 12, MIMEO_DRAFT_NONE), 0);
	assert_int_equal(verified_by(rig, "5+6=", 12, 0), 0);
	rig_ok(&rig->client, 0, RING_OP_TRUNCATE, 1, 10);
	assert_true(verified_by(rig, "5+6=", 12, 0) > 0);
	rig_ok(&rig->client, 0, RING_OP_CLOSE, 1, 0);
}

static void test_tokens_of_a_step_come_in_one_event(void **state)
{
	struct rig *rig = *state;
	struct rig_request request;

	request = ask(rig, 0, 0, "count 4 30\n", 60, 0);
	run(rig, &request);
	settle(rig);
	assert_int_equal(rig->results[0].n_generated, 60);
	assert_in_range(rig->results[0].n_events, 60 / (1 + K), watch.n);
	assert_true(watch.n < 30);
}

static int setup(void **state)
{
	static struct rig rig;

	open_world(&rig, GRAPH_FULL_AND_PIECEWISE, true);
	*state = &rig;
	return 0;
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, setup, rig_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_results_of_any_row_beside_a_verification_are_its_own),
		cmocka_unit_test(test_verification_is_launched_before_the_prompt_is_read),
		cmocka_unit_test(test_verification_is_launched_before_the_one_before_is_read),
		cmocka_unit_test(test_tokens_do_not_wait_for_the_drafts_of_the_next),
		TEST(test_requests_end_before_the_drafts_beside_them),
		TEST(test_steps_of_a_sequence_that_drafted_verify_nothing),
		TEST(test_history_that_grew_again_without_its_draft_has_no_drafts),
		TEST(test_tokens_of_a_step_come_in_one_event),
	};

	return cmocka_run_group_tests_name("engine speculation's steps", tests, NULL, NULL);
}
