/* SPDX-License-Identifier: MIT */
/*
 * A model with a draft computes only the logits of its steps that are read: of all tokens of rows in steps
 * that verify, and of last tokens alone in those that do not. Every launch of the head is recorded.
 */
#include "tests/daemon/rig.h"

enum { K = 4, STEPS_MAX = 512 };

struct launched {
	uint32_t n_rows, n_verify;
	uint32_t n_logits; /* rows of logits; 0: in a graph */
};

static struct {
	const struct kernel_ops *real;
	struct kernel_ops kernels;
	struct launched steps[STEPS_MAX];
	uint32_t n;        /* launched since the engine was made */
	uint32_t n_logits; /* of the head that was queued or recorded last */
	uint32_t n_last_only, n_heads; /* since the device was made: of as many rows as logits, and all */
} watch; /* the engine's thread's; read while it has nothing to do */

static int prepare(struct stream *stream, const struct op_prepare *args)
{
	const struct step_record *record = args->record;

	if (watch.n < STEPS_MAX) {
		struct launched *step = &watch.steps[watch.n++];

		*step = (struct launched){.n_rows = record->n_rows};
		for (uint32_t i = 0; i < record->n_rows; i++)
			step->n_verify += (record->rows[i].flags & ROW_VERIFY) != 0;
	}
	return watch.real->prepare(stream, args);
}

static int gather_rows(struct stream *stream, const struct op_gather_rows *args)
{
	watch.n_logits = args->n_rows;
	return watch.real->gather_rows(stream, args);
}

/* Behind the target's head. */
static int verify(struct stream *stream, const struct op_verify *args)
{
	if (watch.n)
		watch.steps[watch.n - 1].n_logits = watch.n_logits;
	watch.n_heads++;
	watch.n_last_only += watch.n_logits == args->n_rows;
	return watch.real->verify(stream, args);
}

static void watch_device(struct device *device)
{
	watch.real = device->kernels;
	watch.kernels = *watch.real;
	watch.kernels.prepare = prepare;
	watch.kernels.gather_rows = gather_rows;
	watch.kernels.verify = verify;
	watch.n_heads = watch.n_last_only = 0;
	device->kernels = &watch.kernels;
}

static int setup(void **state)
{
	rig_setup(state);
	watch.n = 0;
	return 0;
}

/* A request of 40 tokens, and all its steps. */
static void run(struct rig *rig, uint32_t draft_tokens)
{
	struct msg_generate msg = {.max_tokens = 40,
		.flags = MIMEO_GENERATE_IGNORE_EOS, .draft_tokens = draft_tokens};
	int32_t tokens[64];

	msg.n_tokens = rig_prompt("count 4 30\n", tokens);
	assert_int_equal(
		rig_do(&rig->client, rig_generate(&rig->client, 0, tokens, msg.n_tokens, &msg)).n_generated, 40);
	rig_assert_all_free(rig);
	assert_in_range(watch.n, 1, STEPS_MAX - 1);
}

/* Of each step as many as it needs; at least so many steps verify, or none. */
static void assert_logits(uint32_t n_verify_least)
{
	uint32_t n_verify = 0;

	for (uint32_t i = 0; i < watch.n; i++) {
		const struct launched *step = &watch.steps[i];

		assert_int_equal(
			step->n_logits, step->n_rows * (step->n_verify ? 1 + K : 1));
		n_verify += step->n_verify > 0;
	}
	assert_true(n_verify_least ? n_verify >= n_verify_least : !n_verify);
}

static void test_step_has_the_logits_that_it_verifies_and_no_others(void **state)
{
	struct rig *rig = *state;

	run(rig, MIMEO_DRAFT_NONE);
	assert_in_range(watch.n, 40, 42);
	assert_logits(0);
	run(rig, 0);
	assert_logits(8);
}

static void test_graphs_of_decodes_of_one_token_have_logits_of_one_token(void **state)
{
	struct rig *rig = *state;
	const struct graph_set *graphs;
	uint32_t n_single = 0;

	graphs = &rig->engine->runners.all[0]->graphs;
	for (uint32_t i = 0; i < graphs->n; i++)
		n_single += graphs->descriptors[i].query_len == 1;
	assert_true(n_single > 0);
	/* each warmed up and captured; of all else there are as many as of any step */
	assert_int_equal(watch.n_last_only, 2 * n_single);
	assert_true(watch.n_heads > watch.n_last_only);
}

static void test_prompts_in_pieces_have_logits_of_one_token(void **state)
{
	struct rig *rig = *state;

	run(rig, 0);
	assert_int_equal(watch.steps[0].n_verify, 0);
	assert_logits(8);
}

#define TEST(test, graphs)                                                                         \
	{#test, test, setup, rig_teardown, &(struct rig_options){.mode = graphs,                  \
		.on_device = watch_device, .n_drafts = K}}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_step_has_the_logits_that_it_verifies_and_no_others, GRAPH_NONE),
		TEST(test_graphs_of_decodes_of_one_token_have_logits_of_one_token, GRAPH_FULL_AND_PIECEWISE),
		TEST(test_prompts_in_pieces_have_logits_of_one_token, GRAPH_PIECEWISE),
	};

	return cmocka_run_group_tests_name("engine speculation's logits", tests, NULL, NULL);
}
