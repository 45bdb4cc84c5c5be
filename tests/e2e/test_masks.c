/* SPDX-License-Identifier: MIT */
/* Masks of requests, through the library, against a dense reference. */
#include <stdio.h>

#include "tests/dense.h"
#include "tests/device.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/daemon.h"

#define N_PROMPT 48u
#define N_GENERATED 5u
#define MAX_BATCH "64"

static int start(void **state)
{
	static const char *const options[] = {"--attention", "flex", "--graph-mode", "full",
		"--max-batch-tokens", MAX_BATCH, NULL};

	return group_daemon_start_with(state, options);
}

/* ---- the reference ---- */

static bool sees(const void *mask, uint32_t q, uint32_t k)
{
	const struct mimeo_mask *m = mask;

	switch (m->kind) {
	case MIMEO_MASK_WINDOW:
		return k <= q && (k < m->sinks || q - k < m->window);
	case MIMEO_MASK_PREFIX:
		return k <= q || (q < m->prefix && k < m->prefix);
	default:
		return k <= q;
	}
}

static void nonsense(int32_t *tokens, uint32_t n, uint32_t seed)
{
	for (uint32_t i = 0; i < n; i++)
		tokens[i] = i ? (int32_t)(32 + (i * 11 + seed * 17) % 90) : 1;
}

/* The prompt's logits, and tokens that the reference would choose, where it is sure. */
static void check_final(const struct dense *dense, const struct mimeo_mask *mask, const int32_t *prompt,
	const struct mimeo_event *event, const int32_t *generated)
{
	int32_t tokens[N_PROMPT + N_GENERATED];
	double logits[DENSE_VOCAB];
	uint32_t n_sure = 0;

	memcpy(tokens, prompt, N_PROMPT * sizeof(*tokens));
	memcpy(tokens + N_PROMPT, generated, N_GENERATED * sizeof(*tokens));
	for (uint32_t i = 0; i < N_GENERATED; i++) {
		int32_t next;

		dense_logits(dense, tokens, NULL, N_PROMPT + i, sees, mask, logits);
		if (i == 0)
			dense_check(logits, event->logits, test_logits_tolerance(false));
		next = dense_next(logits, test_on_cuda() ? 1.0 : 1e-3);
		if (next >= 0)
			assert_int_equal(generated[i], next);
		n_sure += next >= 0;
	}
	assert_true(n_sure > 0);
}

static void prepare(struct mimeo *m, const struct mimeo_mask *mask, const int32_t *prompt, uint64_t data)
{
	struct mimeo_request *request = mimeo_request_get(m);
	struct mimeo_generate generate = generate_of(prompt, N_PROMPT, N_GENERATED);

	generate.flags = MIMEO_GENERATE_IGNORE_EOS | MIMEO_GENERATE_PROMPT_LOGITS;
	generate.mask = *mask;
	assert_non_null(request);
	mimeo_request_set_data(request, data);
	assert_int_equal(mimeo_request_prep_generate(request, &generate), 0);
}

/* All at once, so that requests of different masks share steps. */
static void test_masks_agree_with_a_dense_reference(void **state)
{
	static const struct mimeo_mask masks[] = {
		{.kind = MIMEO_MASK_PREFIX, .prefix = N_PROMPT},
		{.kind = MIMEO_MASK_DEFAULT},
		{.kind = MIMEO_MASK_WINDOW, .window = 8, .sinks = 2},
		{.kind = MIMEO_MASK_PREFIX, .prefix = 30},
	};
	enum { N = sizeof(masks) / sizeof(masks[0]) };
	struct mimeo *m = daemon_connect(*state, 0, 0);
	int32_t prompts[N][N_PROMPT], generated[N][N_GENERATED];
	uint32_t n_generated[N] = {0};
	struct dense dense;

	dense_open(&dense);
	for (uint32_t i = 0; i < N; i++) {
		nonsense(prompts[i], N_PROMPT, i);
		prepare(m, &masks[i], prompts[i], i);
	}
	assert_int_equal(mimeo_submit(m), N);
	for (uint32_t n_finals = 0; n_finals < N;) {
		struct mimeo_event event = wait_event(m);
		uint64_t i = event.user_data;

		assert_int_equal(event.status, 0);
		memcpy(generated[i] + n_generated[i], event.tokens,
			event.n_tokens * sizeof(int32_t));
		n_generated[i] += event.n_tokens;
		if (event.kind == MIMEO_EVENT_FINAL) {
			assert_int_equal(n_generated[i], N_GENERATED);
			check_final(&dense, &masks[i], prompts[i], &event, generated[i]);
			n_finals++;
		}
		mimeo_event_seen(m, &event);
	}
	dense_close(&dense);
	mimeo_close(m);
}

/* The second of two documents is answered as if it came alone, begin token and all. */
static void test_packed_question_is_answered_as_if_alone(void **state)
{
	const struct question other = question_of("count 97 4\n", "97 98 99 100"),
			      asked = question_of("sort 52 17 33\n", "17 33 52");
	struct mimeo *m = daemon_connect(*state, 0, 0);
	struct mimeo_generate generate = MIMEO_GENERATE_INIT;
	int32_t tokens[2 * QUESTION_PROMPT_MAX];
	uint64_t words[2 * QUESTION_PROMPT_MAX];
	struct reply reply = {0};

	generate.n_tokens = other.n_prompt + asked.n_prompt;
	memcpy(tokens, other.prompt, other.n_prompt * sizeof(int32_t));
	memcpy(tokens + other.n_prompt, asked.prompt, asked.n_prompt * sizeof(int32_t));
	for (uint32_t i = 0; i < generate.n_tokens; i++)
		words[i] = i < other.n_prompt;
	generate.tokens = tokens;
	generate.max_tokens = 40;
	generate.mask = (struct mimeo_mask){.kind = MIMEO_MASK_DOCUMENTS, .words = words};
	submit_generate(m, &generate);
	assert_int_equal(replies_collect(m, &reply, 1), 0);
	assert_true(reply_is_right(&asked, &reply));
	mimeo_close(m);
}

static void test_prefix_longer_than_a_step_is_refused_with_the_limit(void **state)
{
	struct mimeo *m = daemon_connect(*state, 0, 0);
	int32_t tokens[65];
	struct mimeo_generate generate = generate_of(tokens, 65, 1);
	struct mimeo_event event;

	nonsense(tokens, 65, 1);
	generate.mask = (struct mimeo_mask){.kind = MIMEO_MASK_PREFIX, .prefix = 65};
	submit_generate(m, &generate);
	event = wait_final(m);
	assert_int_equal(event.status, MIMEO_E_TOO_LONG);
	assert_message_has(&event, "has to fit one step, and the daemon's max_batch_tokens is " MAX_BATCH);
	generate.mask.prefix = 64;
	submit_generate(m, &generate);
	assert_int_equal(wait_final(m).status, 0);
	mimeo_close(m);
}

static void test_daemon_with_other_attention_refuses_masks(void **state)
{
	const struct question asked = question_of("9+8=", "17");
	const struct mimeo_mask mask = {.kind = MIMEO_MASK_WINDOW, .window = 9};
	struct mimeo_event event;
	struct daemon plain;
	struct reply reply;
	int32_t prompt[N_PROMPT];
	struct mimeo *m;

	nonsense(prompt, N_PROMPT, 0);
	daemon_init(&plain);
	daemon_start(&plain);
	m = daemon_connect(&plain, 0, 0);
	prepare(m, &mask, prompt, 0);
	assert_int_equal(mimeo_submit(m), 1);
	event = wait_final(m);
	assert_int_equal(event.status, MIMEO_E_UNSUPPORTED);
	assert_message_has(&event, "mask window: the model's attention backend (");
	assert_message_has(&event, "--attention flex");
	assert_int_equal(mimeo_model_get(m, 0)->masks, 0);
	assert_int_equal(questions_ask(m, &asked, 1, 1, &reply), 0);
	assert_true(reply_is_right(&asked, &reply));
	mimeo_close(m);
	daemon_deinit(&plain);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		GROUP_TEST(test_masks_agree_with_a_dense_reference),
		GROUP_TEST(test_packed_question_is_answered_as_if_alone),
		GROUP_TEST(test_prefix_longer_than_a_step_is_refused_with_the_limit),
		GROUP_TEST(test_daemon_with_other_attention_refuses_masks),
	};

	watchdog(WATCHDOG_SECONDS);
	return cmocka_run_group_tests_name("masks", tests, start, group_daemon_end);
}
