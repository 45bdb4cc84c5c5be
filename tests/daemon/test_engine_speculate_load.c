/* SPDX-License-Identifier: MIT */
/*
 * A model with a draft under load, and losing its device: verifications take many of a step's tokens,
 * and a prompt does not wait until other requests end; a device lost in any op of speculation ends every request.
 */
#include "tests/daemon/rig.h"

#include "kernels/cpu/internal.h"

/* ---- full steps ---- */

struct full_step {
	uint32_t n_drafts, max_batch_tokens, n_endless;
};

/* Decodes that take all tokens of a step: prompts come in between all the same. */
static void test_prompt_is_answered_beside_verifications_that_fill_steps(void **state)
{
	static const struct full_step steps[] = {{3, 60, 15}, {4, 20, 15}, {4, 5, 4}, {8, 9, 4}, {1, 16, 8}};

	for (uint32_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		const struct full_step *step = &steps[i];
		uint32_t n_ended = 0;
		struct rig_request request;
		struct rig rig;

		rig_open_client(&rig, &(struct rig_options){.mode = GRAPH_FULL_AND_PIECEWISE,
			.n_drafts = step->n_drafts, .max_batch_tokens = step->max_batch_tokens,
			.max_requests = step->n_endless + 1});
		for (uint32_t r = 1; r <= step->n_endless; r++)
			rig_submit(&rig.client, rig_endless(&rig.client, r, 0, 200));
		while (!rig.results[step->n_endless].n_generated)
			rig_poll(&rig.client, rig.results);
		request = rig_ask_text(&rig.client, 0, 0, "9+8=");
		rig_submit(&rig.client, request);
		rig_wait(&rig.client, rig.results, 0);
		rig_assert_text(&rig.client, &request, &rig.results[0], "17");
		for (uint32_t r = 1; r <= step->n_endless; r++)
			n_ended += rig.results[r].done;
		if (n_ended)
			fail_msg("%u drafts, %u tokens: %u of %u others had ended before",
				step->n_drafts, step->max_batch_tokens, n_ended, step->n_endless);
		for (uint32_t r = 1; r <= step->n_endless; r++)
			rig_wait(&rig.client, rig.results, r);
		rig_close(&rig);
	}
}

/* ---- a device to lose ---- */

static uint64_t runs_of(const struct rig *rig)
{
	return atomic_load(&((const struct cpu_device *)rig->device)->forced.n_runs);
}

static void open_to_lose(struct rig *rig, const char *op, uint64_t at, enum graph_mode mode)
{
	char fault[64];

	snprintf(fault, sizeof(fault), "op:%s:%llu", op, (unsigned long long)at);
	setenv(test_fault_variable(), fault, 1);
	rig_open_client(rig, &(struct rig_options){
		.mode = mode, .n_drafts = 4, .capture_sizes = (const uint32_t[]){5, 16, 64},
		.n_capture_sizes = 3});
	unsetenv(test_fault_variable());
}

/* How often set-up runs the op. */
static uint64_t runs_of_set_up(const char *op, enum graph_mode mode)
{
	struct rig rig;
	uint64_t n;

	open_to_lose(&rig, op, UINT32_MAX, mode);
	n = runs_of(&rig);
	rig_close(&rig);
	return n;
}

static void lose(const char *op, uint64_t at, enum graph_mode mode)
{
	struct rig_request requests[6];
	struct rig rig;
	char name[64];

	open_to_lose(&rig, op, at, mode);
	rig_ok(&rig.client, 0, RING_OP_OPEN, 1, 0);
	for (uint32_t i = 0; i < 6; i++) {
		requests[i] = rig_endless(&rig.client, i, i == 5, 400);
		rig_submit(&rig.client, requests[i]);
	}
	for (uint32_t i = 0; i < 6; i++) {
		rig_wait(&rig.client, rig.results, i);
		assert_int_equal(rig.results[i].status, MIMEO_E_DEVICE_LOST);
	}
	snprintf(name, sizeof(name), "%s launch", op);
	assert_non_null(strstr(rig_report(&rig, ENGINE_DEVICE_LOST).text, name));
	assert_int_equal(rig_do(&rig.client, rig_ask_text(&rig.client, 7, 0, "9+8=")).status,
		MIMEO_E_DEVICE_LOST);
	rig_close(&rig);
}

static void test_device_lost_in_an_op_of_speculation_ends_every_request(void **state)
{
	static const char *const ops[] = {"verify", "draft_begin", "draft_advance"};
	static const enum graph_mode modes[] = {GRAPH_NONE, GRAPH_FULL_AND_PIECEWISE};

	for (int o = 0; o < 3; o++) {
		for (int m = 0; m < 2; m++) {
			uint64_t first = runs_of_set_up(ops[o], modes[m]);

			for (uint64_t at = first + 1; at <= first + 9; at += 2)
				lose(ops[o], at, modes[m]);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_prompt_is_answered_beside_verifications_that_fill_steps),
		cmocka_unit_test(test_device_lost_in_an_op_of_speculation_ends_every_request),
	};

	static const struct test_cpu_only only[] = {
		{"test_device_lost_in_an_op", "each loss of a CUDA context takes a process of its own: engine_fault has those"},
	};

	return TEST_RUN_GROUP("engine speculation under load", tests, only, NULL, NULL);
}
