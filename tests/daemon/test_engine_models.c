/* SPDX-License-Identifier: MIT */
/* Two models in one daemon. */
#include "tests/daemon/rig.h"

static struct rig_options with_pages(uint32_t kv_pages)
{
	return (struct rig_options){.mode = GRAPH_FULL_AND_PIECEWISE, .kv_pages = kv_pages};
}

static void test_two_models_answer_side_by_side_from_pages_of_their_own(void **state)
{
	struct rig *rig = *state;
	struct rig_request requests[16];
	struct engine_model_facts facts;
	int32_t tokens[64];

	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 1);
	requests[0] = rig_ask_text(&rig->client, 0, 1, "x");
	assert_int_equal(rig_do(&rig->client, requests[0]).status, MIMEO_E_INVALID);
	/* Model 0 has 4 requests, model 1 has 8: a page each, until their tokens come. */
	rig_gate_close(rig);
	for (uint32_t i = 0; i < 12; i++) {
		uint32_t n = rig_prompt(i % 2 ? "sort 52 17 33\n" : "347+586=", tokens);
		struct msg_generate msg = rig_greedy(n, 40);

		msg.model = i % 3 != 0;
		requests[i] = rig_generate(&rig->client, i, tokens, n, &msg);
		rig_submit(&rig->client, requests[i]);
		if (!i)
			rig_wait_steps(rig, 1);
	}
	RIG_AWAIT(engine_stats(rig->engine)->n_running == 12);
	assert_int_equal(rig_pages_free(rig, 0), 15 - 4);
	assert_int_equal(rig_pages_free(rig, 1), 15 - 8);
	rig_gate_open(rig);
	for (uint32_t i = 0; i < 12; i++) {
		rig_wait(&rig->client, rig->results, i);
		rig_assert_text(&rig->client, &requests[i], &rig->results[i], i % 2 ? "17 33 52" : "933");
	}
	engine_model_facts(rig->engine, 0, &facts);
	assert_int_equal(facts.n_tokens_out, 2 * 4 + 2 * 9);
	engine_model_facts(rig->engine, 1, &facts);
	assert_int_equal(facts.n_tokens_out, 4 * 4 + 4 * 9);
}

/* Each model numbers its steps: what a request's sequence has of the first model means nothing to the second. */
static void test_a_model_answers_where_the_other_had_the_same_request_index(void **state)
{
	struct rig *rig = *state;
	int32_t tokens[64];
	const uint32_t n = rig_prompt("347+586=", tokens);

	for (uint32_t i = 0; i < 4; i++) {
		struct msg_generate msg = rig_greedy(n, 40);
		struct rig_request request;
		struct rig_result result;

		msg.model = i % 2;
		request = rig_generate(&rig->client, 0, tokens, n, &msg);
		result = rig_must(&rig->client, request);
		rig_assert_text(&rig->client, &request, &result, "933");
	}
}

static void test_model_without_pages_does_not_hold_up_the_other(void **state)
{
	struct rig *rig = *state;
	struct rig_client *holder = rig_other(rig, 8);
	struct rig_client *client = rig_other(rig, 8);
	struct rig_result results[8] = {0};
	struct rig_request first;
	struct msg_generate msg;
	int32_t tokens[230];

	rig_gate_close(rig);
	rig_nonsense(tokens, 230, 1);
	rig_submit(holder, rig_ask(holder, 0, 0, tokens, 230, 10, MIMEO_GENERATE_IGNORE_EOS));
	rig_submit(client, rig_endless(client, 0, 0, 200));
	rig_wait_waiting(rig, 1);
	msg = rig_greedy(rig_prompt("9+8=", tokens), 20);
	msg.model = 1;
	first = rig_generate(client, 1, tokens, msg.n_tokens, &msg);
	rig_submit(client, first);
	RIG_AWAIT(engine_stats(rig->engine)->n_running >= 2);
	assert_int_equal(engine_stats(rig->engine)->n_waiting, 1);
	rig_gate_open(rig);
	rig_wait(client, results, 1);
	rig_assert_text(client, &first, &results[1], "17");
	rig_wait(client, results, 0);
	assert_int_equal(results[0].n_generated, 200);
}

/* The client has its half of the first model's slots, for which the other's requests wait, and none of the second's. */
static void test_slots_of_one_model_do_not_count_for_rows_of_the_other(void **state)
{
	enum { SLOTS = 8 };
	struct rig *rig = *state;
	struct rig_client *client = rig_other(rig, 32), *other = rig_other(rig, 32);
	struct msg_step msg = {.n_rows = SLOTS, .outputs = MIMEO_STEP_TOKENS, .model = 1};
	struct msg_row rows[SLOTS];
	int32_t tokens[SLOTS];
	struct rig_result results[RIG_ENTRIES] = {0};

	rig_nonsense(tokens, SLOTS, 1);
	for (uint32_t i = 0; i < SLOTS; i++) {
		rows[i] = (struct msg_row){i + 1, 1};
		rig_ok(client, i, RING_OP_OPEN, i + 1, 1);
	}
	rig_gate_close(rig);
	for (uint32_t i = 0; i < SLOTS / 2; i++)
		rig_submit(client, rig_endless(client, i, 0, 20));
	RIG_AWAIT(engine_stats(rig->engine)->n_running == SLOTS / 2);
	for (uint32_t i = 0; i < SLOTS; i++)
		rig_submit(other, rig_endless(other, i, 0, 20));
	RIG_AWAIT(engine_stats(rig->engine)->n_running == SLOTS);
	rig_submit(client, rig_step(client, 20, &msg, rows, tokens));
	RIG_AWAIT(engine_stats(rig->engine)->n_running == SLOTS + SLOTS / 2);
	rig_gate_open(rig);
	rig_wait(client, results, 20);
	assert_int_equal(results[20].status, 0);
	for (uint32_t i = 0; i < SLOTS / 2; i++)
		rig_wait(client, results, i);
	memset(results, 0, sizeof(results));
	for (uint32_t i = 0; i < SLOTS; i++)
		rig_wait(other, results, i);
}

/* ---- a device with little memory ---- */

#define LEFT_BYTES (24ull << 20)

static uint64_t left_bytes = LEFT_BYTES;
static const struct device_ops *real;
static struct device_ops scarce;
static uint64_t mapped_bytes;

static int scarce_info(struct device *device, struct device_info *ret)
{
	int rc = real->info(device, ret);

	ret->free_bytes = left_bytes - mapped_bytes;
	return rc;
}

static int scarce_map(struct device *device, void *range, size_t offset, size_t bytes)
{
	assert_true(bytes <= left_bytes - mapped_bytes);
	mapped_bytes += bytes;
	return real->map(device, range, offset, bytes);
}

static void make_scarce(struct device *device)
{
	real = device->ops;
	scarce = *real;
	scarce.info = scarce_info;
	scarce.map = scarce_map;
	device->ops = &scarce;
	mapped_bytes = 0;
}

/* F14: what graphs and all else have left is what the pages get, and not all of it. */
static void test_pages_are_as_many_as_fit_in_what_is_left_for_both_models(void **state)
{
	struct rig *rig = *state;
	struct engine_model_facts facts[2];

	for (uint32_t i = 0; i < 2; i++) {
		engine_model_facts(rig->engine, i, &facts[i]);
		assert_in_range(facts[i].pages_total, 100, 99999);
	}
	/* in equal parts, but for the granules that they are mapped in */
	assert_true(facts[0].pages_total < facts[1].pages_total * 3 / 2);
	assert_true(facts[1].pages_total < facts[0].pages_total * 3 / 2);
	assert_true(mapped_bytes > LEFT_BYTES / 2);
	assert_true(mapped_bytes < LEFT_BYTES - LEFT_BYTES / 40);
}

/* Pages that two models have then, the last of them or both with a draft. */
static void fit_with_drafts(bool last_only, uint32_t ret_pages[2])
{
	struct rig_options options = with_pages(100000);
	struct engine_model_facts facts;
	struct rig rig;

	options.n_models = 2;
	options.on_device = make_scarce;
	options.n_drafts = 4;
	options.draft_last_only = last_only;
	left_bytes = 4 * LEFT_BYTES;
	rig_open(&rig, &options);
	for (uint32_t i = 0; i < 2; i++) {
		engine_model_facts(rig.engine, i, &facts);
		assert_in_range(facts.pages_total, 100, 99999);
		ret_pages[i] = facts.pages_total;
	}
	assert_true(mapped_bytes > left_bytes / 2);
	assert_true(mapped_bytes < left_bytes - left_bytes / 40);
	left_bytes = LEFT_BYTES;
	rig_close(&rig);
}

/* F14: a page is as large as the draft's part of it makes it; and its graphs were captured before. */
static void test_pages_fit_with_their_drafts_parts(void **state)
{
	const uint32_t granule = test_on_cuda() ? 256 : 0; /* pages in 2 MiB */
	uint32_t both[2], last[2];

	fit_with_drafts(false, both);
	fit_with_drafts(true, last);
	/* in equal parts, but for granules and what is kept back */
	assert_in_range(both[1], both[0] * 9 / 10 - granule, both[0] * 11 / 10 + granule);
	assert_in_range(last[1], last[0] * 9 / 10 - granule, last[0] * 11 / 10 + granule);
	assert_true(last[0] > both[0]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIG_TEST(test_two_models_answer_side_by_side_from_pages_of_their_own,
			.mode = GRAPH_FULL_AND_PIECEWISE, .kv_pages = 15, .n_models = 2),
		RIG_TEST(test_a_model_answers_where_the_other_had_the_same_request_index,
			.mode = GRAPH_FULL_AND_PIECEWISE, .n_models = 2),
		RIG_ENGINE_TEST(test_model_without_pages_does_not_hold_up_the_other,
			.mode = GRAPH_FULL_AND_PIECEWISE, .kv_pages = 15, .n_models = 2),
		RIG_ENGINE_TEST(test_slots_of_one_model_do_not_count_for_rows_of_the_other,
			.mode = GRAPH_FULL_AND_PIECEWISE, .max_requests = 8, .n_models = 2),
		RIG_ENGINE_TEST(test_pages_are_as_many_as_fit_in_what_is_left_for_both_models,
			.mode = GRAPH_FULL_AND_PIECEWISE, .kv_pages = 100000, .n_models = 2, .on_device = make_scarce),
		cmocka_unit_test(test_pages_fit_with_their_drafts_parts),
	};
	static const struct test_cpu_only only[] = {
		{NULL, NULL},
	};

	return TEST_RUN_GROUP("engine models", tests, only, NULL, NULL);
}
