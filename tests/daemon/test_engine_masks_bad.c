/* SPDX-License-Identifier: MIT */
/* Malformed masks: each is refused by what is wrong, and other clients go on. */
#include "tests/daemon/rig.h"

#define INVALID(...) {MIMEO_E_INVALID, __VA_ARGS__}
#define REFUSE(...) ((struct rig_expected)INVALID(__VA_ARGS__))

static void test_malformed_masks_are_refused_by_what_is_wrong(void **state)
{
	struct rig *rig = *state;
	static const struct {
		struct mimeo_mask mask;
		struct rig_expected expected;
	} cases[] = {
		{{.kind = 4}, INVALID(RING_DETAIL_RANGE, MSG_MASK)}, /* a tree: steps only */
		{{.kind = UINT32_MAX}, INVALID(RING_DETAIL_RANGE, MSG_MASK)},
		{{.kind = 1}, INVALID(RING_DETAIL_RANGE, MSG_MASK_WINDOW, 0, 1)},
		{{.window = 4}, INVALID(RING_DETAIL_RANGE, MSG_MASK_WINDOW, 4, 0)},
		{{.kind = 2, .prefix = 3, .sinks = 4}, INVALID(RING_DETAIL_RANGE, MSG_MASK_SINKS, 4, 2)},
		{{.kind = 2}, INVALID(RING_DETAIL_RANGE, MSG_MASK_PREFIX, 0, 2)},
		{{.kind = 1, .window = 4, .prefix = 1}, INVALID(RING_DETAIL_RANGE, MSG_MASK_PREFIX, 1, 1)},
		{{.kind = 2, .prefix = 11}, INVALID(RING_DETAIL_MASK_TOKENS, 0, 11, 10, 2)},
		{{.kind = 2, .prefix = 65},
			{MIMEO_E_TOO_LONG, RING_DETAIL_MASK_TOKENS, 0, 65, 64, 2}},
		{{.kind = 3}, INVALID(RING_DETAIL_PAYLOAD, 40, 120)},
	};
	int32_t tokens[10];

	rig_nonsense(tokens, 10, 1);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct msg_generate msg = rig_greedy(10, 4);
		struct rig_request request;

		msg.mask = cases[i].mask;
		request = rig_generate(&rig->client, 0, tokens, 10, &msg);
		rig_expect(&rig->client, &request, cases[i].expected);
	}
	rig_assert_answer(&rig->client, 1, "9+8=", "17");
}

static void test_prompts_that_a_step_cannot_hold_are_refused_by_a_model_of_prefixes(void **state)
{
	struct rig *rig = *state;
	struct msg_generate msg = rig_greedy(65, 4);
	int32_t tokens[65];
	struct rig_request request;

	rig_nonsense(tokens, 65, 1);
	request = rig_generate(&rig->client, 0, tokens, 65, &msg);
	rig_expect(&rig->client, &request, (struct rig_expected){MIMEO_E_TOO_LONG,
		RING_DETAIL_MASK_TOKENS, 0, 65, 64, MIMEO_MASK_PREFIX});
	msg.n_tokens = 64;
	rig_must(&rig->client, rig_generate(&rig->client, 0, tokens, 64, &msg));
}

static void test_malformed_masks_of_steps_are_refused_by_what_is_wrong(void **state)
{
	struct rig *rig = *state;
	struct msg_row rows[] = {{1, 3}, {2, 65}};
	struct msg_step msg = {.n_rows = 2, .outputs = MIMEO_STEP_LOGITS};
	int32_t payload[3 * 68];
	struct rig_request request;

	rig_nonsense(payload, 68, 1);
	memset(payload + 68, 0, 2 * 68 * sizeof(payload[0]));
	rig_ok(&rig->client, 0, RING_OP_OPEN, 1, 0);
	rig_ok(&rig->client, 0, RING_OP_OPEN, 2, 0);
	msg.mask = (struct mimeo_mask){.kind = 5};
	request = rig_step(&rig->client, 0, &msg, rows, payload);
	rig_expect(&rig->client, &request, REFUSE(RING_DETAIL_RANGE, MSG_MASK));
	msg.mask = (struct mimeo_mask){.kind = MIMEO_MASK_TREE};
	request = rig_step(&rig->client, 0, &msg, rows, payload);
	rig_expect(&rig->client, &request, REFUSE(RING_DETAIL_MASK_TOKENS, 1, 65, 64, MIMEO_MASK_TREE));
	request.sqe.payload_length -= 4;
	rig_expect(&rig->client, &request, REFUSE(RING_DETAIL_PAYLOAD, 828, 832));
	msg.mask = (struct mimeo_mask){.kind = MIMEO_MASK_PREFIX, .prefix = 4};
	request = rig_step(&rig->client, 0, &msg, rows, payload);
	rig_expect(&rig->client, &request, REFUSE(RING_DETAIL_MASK_TOKENS, 0, 4, 3, MIMEO_MASK_PREFIX));
	rows[1].n_tokens = 64;
	msg.mask = (struct mimeo_mask){.kind = MIMEO_MASK_TREE};
	rig_must(&rig->client, rig_step(&rig->client, 0, &msg, rows, payload));
	rig_ok(&rig->client, 0, RING_OP_CLOSE, 1, 0);
	rig_ok(&rig->client, 0, RING_OP_CLOSE, 2, 0);
}

static void test_masks_are_refused_where_attention_has_none(void **state)
{
	static const char *const backends[] = {"paged", "naive"};
	static const struct mimeo_mask masks[] = {
		{.kind = MIMEO_MASK_WINDOW, .window = 9},
		{.kind = MIMEO_MASK_PREFIX, .prefix = 8},
		{.kind = MIMEO_MASK_DOCUMENTS},
	};
	int32_t payload[30];

	rig_nonsense(payload, 10, 1);
	memset(payload + 10, 0, 20 * sizeof(payload[0]));
	for (size_t b = 0; b < (test_on_cuda() ? 1 : 2); b++) { /* naive is for the cpu device */
		struct rig_options options = {.mode = GRAPH_NONE, .attention = backends[b]};
		struct rig rig;

		rig_open_client(&rig, &options);
		for (size_t i = 0; i < sizeof(masks) / sizeof(masks[0]); i++) {
			struct msg_generate msg = rig_greedy(10, 4);
			struct rig_request request;
			int32_t name[3] = {0};

			memcpy(name, backends[b], strlen(backends[b]));
			msg.mask = masks[i];
			request = rig_generate(&rig.client, 0, payload,
				msg_mask_has_words(&msg.mask) ? 30 : 10, &msg);
			rig_expect(&rig.client, &request, (struct rig_expected){MIMEO_E_UNSUPPORTED,
				RING_DETAIL_MASK, (int32_t)masks[i].kind, name[0], name[1], name[2]});
		}
		rig_assert_answer(&rig.client, 1, "9+8=", "17");
		rig_close(&rig);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIG_TEST(test_malformed_masks_are_refused_by_what_is_wrong,
			.mode = GRAPH_FULL, .attention = "flex"),
		RIG_TEST(test_prompts_that_a_step_cannot_hold_are_refused_by_a_model_of_prefixes,
			.mode = GRAPH_FULL, .attention = "flex",
			.mask = {.kind = MIMEO_MASK_PREFIX, .prefix = UINT32_MAX}),
		RIG_TEST(test_malformed_masks_of_steps_are_refused_by_what_is_wrong,
			.mode = GRAPH_FULL, .attention = "flex"),
		cmocka_unit_test(test_masks_are_refused_where_attention_has_none),
	};

	return cmocka_run_group_tests_name("engine: refused masks", tests, NULL, NULL);
}
