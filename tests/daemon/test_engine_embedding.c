/* SPDX-License-Identifier: MIT */
/*
 * A checkpoint that is made for embeddings of texts: names of tensors without "model.", perhaps no head. Its hidden
 * states are those of transformers; without a head requests get nothing else.
 */
#include "tests/daemon/rig.h"

#include <jansson.h>

#include "tests/device.h"
#include "tests/model/reference.h"

enum { VOCAB = 199, HIDDEN = 48, PROMPT = 28 };

static struct rig own;

static int setup(void **state)
{
	rig_open_client(&own, &(struct rig_options){.mode = GRAPH_FULL_AND_PIECEWISE, .max_seq_len = 256,
		.model = rig_source("tests/data/checkpoints/qwen3-embedding")});
	rig_ok(&own.client, 0, RING_OP_OPEN, 1, 0);
	return 0;
}

static int setup_without_head(void **state)
{
	setup(state);
	own.engine->runners.all[0]->model->has_head = false;
	return 0;
}

static int teardown(void **state)
{
	rig_ok(&own.client, 0, RING_OP_CLOSE, 1, 0);
	rig_close(&own);
	return 0;
}

static struct rig_request step_of(uint32_t outputs, const int32_t *tokens, uint32_t n)
{
	const struct msg_step msg = {.n_rows = 1, .outputs = outputs};

	return rig_step(&own.client, 0, &msg, &(struct msg_row){1, n}, tokens);
}

/* The prompt's hidden state or mean, against the reference's field. */
static void check_hidden(uint32_t outputs, const char *field)
{
	const struct msg_output layout = msg_output_layout(0, 0, VOCAB, 1, HIDDEN);
	char path[512];
	int32_t prompt[PROMPT];
	const json_t *reference;
	struct rig_request request;
	json_t *root;

	source_path("tests/data/checkpoints/qwen3-embedding/reference.json", path);
	root = load_reference(path);
	reference = json_array_get(json_object_get(root, "cases"), 0);
	assert_int_equal(integers(json_object_get(reference, "prompt"), prompt, PROMPT), PROMPT);
	request = step_of(outputs, prompt, PROMPT);
	rig_must(&own.client, request);
	assert_logits(rig_output(&own.client, &request, layout.hidden), HIDDEN, json_object_get(reference, field),
		test_logits_tolerance(false), field);
	json_decref(root);
}

static void test_hidden_state_is_the_references(void **state)
{
	check_hidden(MIMEO_STEP_HIDDEN, "hidden_last");
}

static void test_mean_of_hidden_states_is_the_references(void **state)
{
	check_hidden(MIMEO_STEP_MEAN_HIDDEN, "hidden_mean");
}

static void test_model_without_a_head_refuses_all_that_its_head_would_give(void **state)
{
	static const uint32_t outputs[] = {MIMEO_STEP_TOKENS, MIMEO_STEP_LOGITS, MIMEO_STEP_LOGPROBS,
		MIMEO_STEP_ALL_LOGITS, MIMEO_STEP_TOKENS | MIMEO_STEP_HIDDEN};
	const struct rig_expected refused = {MIMEO_E_UNSUPPORTED, RING_DETAIL_HEAD, 0, 0, 0, 0};
	const int32_t tokens[] = {3, 4};
	struct rig_request request = rig_ask(&own.client, 0, 0, tokens, 2, 5, 0);

	rig_expect(&own.client, &request, refused);
	for (size_t i = 0; i < ARRAY_SIZE(outputs); i++) {
		request = step_of(outputs[i], tokens, 2);
		rig_expect(&own.client, &request, refused);
	}
}

static void test_model_without_a_head_gives_hidden_states_and_keeps_sequences(void **state)
{
	const int32_t tokens[] = {3, 4};

	rig_must(&own.client, step_of(MIMEO_STEP_ALL_HIDDEN, tokens, 2));
	rig_ok(&own.client, 0, RING_OP_TRUNCATE, 1, 0);
	check_hidden(MIMEO_STEP_MEAN_HIDDEN, "hidden_mean");
	rig_must(&own.client, step_of(MIMEO_STEP_ALL_HIDDEN, tokens, 2));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_hidden_state_is_the_references, setup, teardown),
		cmocka_unit_test_setup_teardown(test_mean_of_hidden_states_is_the_references, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_model_without_a_head_refuses_all_that_its_head_would_give, setup_without_head, teardown),
		cmocka_unit_test_setup_teardown(test_model_without_a_head_gives_hidden_states_and_keeps_sequences,
			setup_without_head, teardown),
	};

	return cmocka_run_group_tests_name("engine embedding", tests, NULL, NULL);
}
