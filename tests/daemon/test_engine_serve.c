/* SPDX-License-Identifier: MIT */
#include "tests/daemon/rig.h"

#include <jansson.h>

static const struct rig_options full = {.mode = GRAPH_FULL_AND_PIECEWISE};
static const struct rig_options eager = {.mode = GRAPH_NONE};
static const struct rig_options naive = {.mode = GRAPH_NONE, .attention = "naive"};
static const struct rig_options flex = {.mode = GRAPH_FULL, .attention = "flex"};

/* ---- golden.json ---- */

static const char *shipped(const char *name)
{
	static char path[512];
	const char *source = getenv("MIMEO_SOURCE");

	snprintf(path, sizeof(path), "%s/examples/models/%s", source ? source : ".", name);
	return path;
}

static json_t *golden(const char *folder)
{
	char path[600];
	json_t *root;

	snprintf(path, sizeof(path), "%s/golden.json", folder);
	root = json_load_file(path, 0, NULL);
	assert_non_null(root);
	return root;
}

static uint32_t ints(json_t *array, int32_t *ret)
{
	uint32_t n = (uint32_t)json_array_size(array);

	for (uint32_t i = 0; i < n; i++)
		ret[i] = (int32_t)json_integer_value(json_array_get(array, i));
	return n;
}

static void assert_logits(const float *logits, json_t *expected)
{
	double largest = 0, worst = 0;

	for (size_t i = 0; i < 256; i++)
		largest = fmax(largest, fabs(json_number_value(json_array_get(expected, i))));
	for (size_t i = 0; i < 256; i++)
		worst = fmax(worst,
			fabs(logits[i] - json_number_value(json_array_get(expected, i))));
	if (!(worst <= test_logits_tolerance(true) * largest))
		fail_msg("logits differ by %g of %g", worst, largest);
}

static void assert_case(struct rig_client *client, json_t *item)
{
	int32_t prompt[512], greedy[512];
	uint32_t n = ints(json_object_get(item, "prompt"), prompt);
	uint32_t n_greedy = ints(json_object_get(item, "greedy"), greedy);
	struct msg_generate msg = rig_greedy(n, 200);
	struct msg_output layout = msg_output_layout(200, 1, 256, 0, 160);
	struct rig_request request;
	struct rig_result result;

	msg.flags = MIMEO_GENERATE_PROMPT_LOGITS;
	request = rig_generate(client, 0, prompt, n, &msg);
	result = rig_do(client, request);
	assert_int_equal(result.status, 0);
	assert_int_equal(result.finish, MIMEO_FINISH_STOP);
	assert_int_equal(result.n_generated, n_greedy);
	assert_memory_equal(rig_tokens(client, &request), greedy, n_greedy * sizeof(greedy[0]));
	assert_logits(rig_logits(client, &request, &layout), json_object_get(item, "logits_last"));
}

static void assert_golden(const struct rig_options *options)
{
	json_t *root = golden(options->model ? options->model : shipped("tinycalc")), *item;
	struct rig rig;
	size_t i;

	rig_open_client(&rig, options);
	json_array_foreach(json_object_get(root, "cases"), i, item)
		assert_case(&rig.client, item);
	rig_close(&rig);
	json_decref(root);
}

static void test_golden_logits_and_tokens_with_full_graphs(void **state)
{
	assert_golden(&full);
}

static void test_golden_logits_and_tokens_eager(void **state)
{
	assert_golden(&eager);
}

static void test_golden_logits_and_tokens_with_naive_attention(void **state)
{
	assert_golden(&naive);
}

static void test_golden_logits_and_tokens_with_flex_attention(void **state)
{
	assert_golden(&flex);
}

/* ---- latent attention and experts, in every mode ---- */

struct latent_case {
	const char *model, *attention;
	enum graph_mode mode;
};

static const struct latent_case latent_cases[] = {
	{"tinycalc-mla", "naive", GRAPH_NONE},
	{"tinycalc-mla", "naive", GRAPH_PIECEWISE},
	{"tinycalc-mla", "mla", GRAPH_NONE},
	{"tinycalc-mla", "mla", GRAPH_PIECEWISE},
	{"tinycalc-mla", "mla", GRAPH_FULL_DECODE_ONLY},
	{"tinycalc-mla", "mla", GRAPH_FULL_AND_PIECEWISE},
	{"tinycalc-mla", "mla_planned", GRAPH_NONE},
	{"tinycalc-mla", "mla_planned", GRAPH_PIECEWISE},
	{"tinycalc-mla", "mla_planned", GRAPH_FULL_DECODE_ONLY},
	{"tinycalc-mla", "mla_planned", GRAPH_FULL_AND_PIECEWISE},
	{"tinycalc-moe", "naive", GRAPH_NONE},
	{"tinycalc-moe", "mla", GRAPH_NONE},
	{"tinycalc-moe", "mla", GRAPH_PIECEWISE},
	{"tinycalc-moe", "mla", GRAPH_FULL_DECODE_ONLY},
	{"tinycalc-moe", "mla", GRAPH_FULL_AND_PIECEWISE},
	{"tinycalc-moe", "mla_planned", GRAPH_PIECEWISE},
	{"tinycalc-moe", "mla_planned", GRAPH_FULL_AND_PIECEWISE},
};

enum { N_LATENT = sizeof(latent_cases) / sizeof(latent_cases[0]) };

static struct rig_options latent_options(const struct latent_case *which)
{
	return (struct rig_options){.model = shipped(which->model),
		.attention = which->attention,
		.mode = which->mode};
}

static void test_latent_golden_logits_and_tokens(void **state)
{
	const struct rig_options options = latent_options(*state);

	assert_golden(&options);
}

static void test_prompt_chunks_of_any_size_give_the_same_answer(void **state)
{
	for (uint32_t tokens = 1; tokens <= 23; tokens += 2) {
		struct rig_options options = full;
		struct rig rig;

		options.max_batch_tokens = tokens;
		options.max_requests = tokens < 4 ? tokens : 4;
		rig_open_client(&rig, &options);
		rig_assert_answer(&rig.client, 0, "sort 52 17 33 8 91\n", "8 17 33 52 91");
		rig_close(&rig);
	}
}

/* ---- how requests end ---- */

static void test_limit_ends_with_length_and_exactly_that_many_tokens(void **state)
{
	struct rig *rig = *state;
	int32_t tokens[64];
	uint32_t n = rig_prompt("count 4 30\n", tokens);

	for (uint32_t limit = 1; limit <= 5; limit++) {
		struct msg_generate msg = rig_greedy(n, limit);
		struct rig_request request = rig_generate(&rig->client, 0, tokens, n, &msg);
		struct rig_result result = rig_do(&rig->client, request);

		assert_int_equal(result.finish, MIMEO_FINISH_LENGTH);
		assert_int_equal(result.n_generated, limit);
		assert_memory_equal(rig_tokens(&rig->client, &request),
			((int32_t[]){'4', ' ', '5', ' ', '6'}), limit * 4);
	}
}

static void test_stop_id_ends_the_output_and_is_its_last_token(void **state)
{
	struct rig *rig = *state;
	int32_t tokens[64];
	uint32_t n = rig_prompt("count 4 30\n", tokens);
	struct msg_generate msg = rig_greedy(n, 100);
	struct rig_request request;
	struct rig_result result;

	msg.n_stop = 8;
	for (int i = 0; i < 8; i++)
		msg.stop[i] = 200 + i;
	msg.stop[7] = '7';
	request = rig_generate(&rig->client, 0, tokens, n, &msg);
	result = rig_do(&rig->client, request);
	assert_int_equal(result.finish, MIMEO_FINISH_STOP);
	assert_int_equal(result.n_generated, 7); /* "4 5 6 7" */
	assert_int_equal(rig_tokens(&rig->client, &request)[6], '7');
}

static void test_end_token_is_ignored_on_request(void **state)
{
	struct rig *rig = *state;
	int32_t tokens[64];
	uint32_t n = rig_prompt("1+2=", tokens);
	struct msg_generate msg = rig_greedy(n, 20);
	struct rig_request request;
	struct rig_result result;

	msg.flags = MIMEO_GENERATE_IGNORE_EOS;
	request = rig_generate(&rig->client, 0, tokens, n, &msg);
	result = rig_do(&rig->client, request);
	assert_int_equal(result.finish, MIMEO_FINISH_LENGTH);
	assert_int_equal(result.n_generated, 20);
	assert_int_equal(rig_tokens(&rig->client, &request)[1], 2);
}

static void test_cancel_ends_a_running_request_and_only_that(void **state)
{
	struct rig *rig = *state;
	struct rig_request one, cancel;
	int32_t tokens[64];
	uint32_t n = rig_prompt("count 4 30\n", tokens);
	struct msg_generate msg = rig_greedy(n, 400);

	msg.flags = MIMEO_GENERATE_IGNORE_EOS;
	one = rig_generate(&rig->client, 0, tokens, n, &msg);
	rig_submit(&rig->client, one);
	msg.flags = 0;
	rig_submit(&rig->client, rig_generate(&rig->client, 1, tokens, n, &msg));
	cancel = rig_call(&rig->client, 2, RING_OP_CANCEL, 0, 0);
	cancel.sqe.generation2 = one.sqe.generation;
	rig_submit(&rig->client, cancel);
	for (uint32_t i = 0; i < 3; i++)
		rig_wait(&rig->client, rig->results, i);
	assert_int_equal(rig->results[0].status, MIMEO_E_CANCELLED);
	assert_int_equal(rig->results[0].finish, MIMEO_FINISH_CANCELLED);
	assert_true(rig->results[0].n_generated < 400);
	assert_int_equal(rig->results[1].status, 0);
	assert_int_equal(rig->results[1].finish, MIMEO_FINISH_STOP);
	assert_int_equal(rig->results[2].status, 0);
	cancel = rig_call(&rig->client, 2, RING_OP_CANCEL, 0, 0);
	cancel.sqe.generation2 = one.sqe.generation;
	assert_int_equal(rig_do(&rig->client, cancel).status, MIMEO_E_UNKNOWN_REQUEST);
}

static void test_deadline_ends_a_request_in_time(void **state)
{
	struct rig *rig = *state;
	struct rig_result result;
	int32_t tokens[64];
	uint32_t n = rig_prompt("count 4 30\n", tokens);
	struct msg_generate msg = rig_greedy(n, 490);

	msg.flags = MIMEO_GENERATE_IGNORE_EOS;
	msg.deadline_ms = 1;
	result = rig_do(&rig->client, rig_generate(&rig->client, 0, tokens, n, &msg));
	assert_int_equal(result.status, MIMEO_E_DEADLINE);
	assert_int_equal(result.finish, MIMEO_FINISH_ERROR);
	assert_true(result.n_generated < 490);
}

/* ---- beside other clients ---- */

static void check_beside_others(const struct rig_options *options)
{
	static const char *const prompts[] = {"347+586=", "count 97 4\n", "sort 52 17 33\n",
		"rev hello\n", "9+8=", "count 4 30\n", "rev mimeograph\n", "sort 9 8 7 6 5\n"};
	int32_t alone[8][256], tokens[64];
	uint32_t lengths[8];
	struct rig_result results[4][8];
	struct rig_request requests[4][8];
	struct rig rig;
	struct rig_client *clients = rig.others;

	rig_open(&rig, options);
	for (int c = 0; c < 4; c++)
		rig_other(&rig, 16);
	for (uint32_t i = 0; i < 8; i++) {
		uint32_t n = rig_prompt(prompts[i], tokens);
		struct msg_generate msg = rig_greedy(n, 200);
		struct rig_request request = rig_generate(&clients[0], 0, tokens, n, &msg);

		lengths[i] = rig_do(&clients[0], request).n_generated;
		memcpy(alone[i], rig_tokens(&clients[0], &request), lengths[i] * 4);
	}
	memset(results, 0, sizeof(results));
	for (uint32_t i = 0; i < 32; i++) {
		uint32_t c = i % 4, k = i / 4, n = rig_prompt(prompts[(k + c) % 8], tokens);
		struct msg_generate msg = rig_greedy(n, 200);

		requests[c][k] = rig_generate(&clients[c], k, tokens, n, &msg);
		rig_submit(&clients[c], requests[c][k]);
	}
	for (uint32_t c = 0; c < 4; c++) {
		for (uint32_t k = 0; k < 8; k++) {
			uint32_t which = (k + c) % 8;

			rig_wait(&clients[c], results[c], k);
			assert_int_equal(results[c][k].n_generated, lengths[which]);
			assert_memory_equal(rig_tokens(&clients[c], &requests[c][k]), alone[which],
				lengths[which] * 4);
		}
	}
	assert_int_equal(engine_stats(rig.engine)->n_shared_replays > 0,
		options->mode != GRAPH_NONE);
	rig_close(&rig);
}

static void test_answers_beside_other_clients_equal_those_alone(void **state)
{
	check_beside_others(&full);
}

static void test_latent_answers_beside_other_clients_equal_those_alone(void **state)
{
	const struct rig_options options = latent_options(*state);

	check_beside_others(&options);
}

static void test_seeded_sampling_does_not_depend_on_who_shares_the_step(void **state)
{
	struct rig *rig = *state;
	struct rig_request requests[6];
	int32_t tokens[64], first[40];
	uint32_t n = rig_prompt("rev", tokens);
	struct msg_generate msg = rig_greedy(n, 40);

	msg.flags = MIMEO_GENERATE_IGNORE_EOS;
	msg.sampling = (struct mimeo_sampling){
		.temperature = 1.5f, .top_p = 1, .seed = 42, .flags = MIMEO_SAMPLING_SEEDED};
	requests[0] = rig_generate(&rig->client, 0, tokens, n, &msg);
	assert_int_equal(rig_do(&rig->client, requests[0]).n_generated, 40);
	memcpy(first, rig_tokens(&rig->client, &requests[0]), sizeof(first));
	for (uint32_t i = 0; i < 6; i++) {
		msg.sampling.seed = i % 2 ? 42 : 43 + i;
		requests[i] = rig_generate(&rig->client, i, tokens, n, &msg);
		rig_submit(&rig->client, requests[i]);
	}
	for (uint32_t i = 0; i < 6; i++) {
		rig_wait(&rig->client, rig->results, i);
		assert_int_equal(
			memcmp(rig_tokens(&rig->client, &requests[i]), first, sizeof(first)) == 0, i % 2);
	}
}

/* Of 20 tokens: absorbed, expanded, or expanded but for the last ones. */
static void test_latent_prompt_chunks_of_either_way_give_the_same_answer(void **state)
{
	static const uint32_t budgets[] = {7, 16, 17, 19, 64};
	static const char *const backends[] = {"mla", "mla_planned"};

	for (uint32_t i = 0; i < 10; i++) {
		const struct latent_case which = {
			"tinycalc-mla", backends[i % 2], GRAPH_FULL_AND_PIECEWISE};
		struct rig_options options = latent_options(&which);
		struct rig rig;

		options.max_batch_tokens = budgets[i / 2];
		options.max_requests = 4;
		rig_open_client(&rig, &options);
		rig_assert_answer(&rig.client, 0, "sort 52 17 33 8 91\n", "8 17 33 52 91");
		rig_close(&rig);
	}
}

/* Two tests a case, which are named for it. */
static void add_latent(struct CMUnitTest *tests, char (*names)[160])
{
	const struct CMUnitTest each[] = {
		cmocka_unit_test(test_latent_golden_logits_and_tokens),
		cmocka_unit_test(test_latent_answers_beside_other_clients_equal_those_alone),
	};

	for (size_t i = 0; i < 2 * N_LATENT; i++) {
		const struct latent_case *which = &latent_cases[i / 2];

		tests[i] = each[i % 2];
		snprintf(names[i], sizeof(names[i]), "%s_of_%s_with_%s_attention_%s", tests[i].name,
			which->model, which->attention, graph_mode_name(which->mode));
		tests[i].name = names[i];
		tests[i].initial_state = (void *)(uintptr_t)which;
	}
}

int main(void)
{
	static char names[2 * N_LATENT][160];
	const struct CMUnitTest fixed[] = {
		cmocka_unit_test(test_golden_logits_and_tokens_with_full_graphs),
		cmocka_unit_test(test_golden_logits_and_tokens_eager),
		cmocka_unit_test(test_golden_logits_and_tokens_with_naive_attention),
		cmocka_unit_test(test_golden_logits_and_tokens_with_flex_attention),
		cmocka_unit_test(test_prompt_chunks_of_any_size_give_the_same_answer),
		RIG_FULL_TEST(test_limit_ends_with_length_and_exactly_that_many_tokens),
		RIG_FULL_TEST(test_stop_id_ends_the_output_and_is_its_last_token),
		RIG_FULL_TEST(test_end_token_is_ignored_on_request),
		RIG_FULL_TEST(test_cancel_ends_a_running_request_and_only_that),
		RIG_FULL_TEST(test_deadline_ends_a_request_in_time),
		cmocka_unit_test(test_answers_beside_other_clients_equal_those_alone),
		RIG_FULL_TEST(test_seeded_sampling_does_not_depend_on_who_shares_the_step),
		cmocka_unit_test(test_latent_prompt_chunks_of_either_way_give_the_same_answer),
	};
	enum { N_FIXED = sizeof(fixed) / sizeof(fixed[0]) };
	static struct CMUnitTest tests[N_FIXED + 2 * N_LATENT];

	static const struct test_cpu_only only[] = {
		{"with_naive_attention", "the naive backend is for the cpu device"},
		{"test_seeded_sampling_does_not_depend_on_who_shares_the_step",
			"logits depend on the number of rows, and so do draws at temperature 1.5"},
	};

	memcpy(tests, fixed, sizeof(fixed));
	add_latent(tests + N_FIXED, names);
	return TEST_RUN_GROUP("engine serve", tests, only, NULL, NULL);
}
