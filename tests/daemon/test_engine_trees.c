/* SPDX-License-Identifier: MIT */
/* Masks of steps: trees, what comes behind them, and rows that have a part each of one mask. */
#include "tests/daemon/masks.h"

static const struct rig_options flex = {.mode = GRAPH_FULL, .attention = "flex"};
static const struct mask causal = {.msg = {.kind = MIMEO_MASK_DEFAULT}};

/* Append tokens to sequence 1, under the mask; *ret_logits of the last. */
static void append(struct rig_client *client, const struct mask *m, const int32_t *tokens, uint32_t n,
	float ret_logits[static 256])
{
	struct msg_row row = {1, n};
	struct msg_step msg = {.n_rows = 1, .outputs = MIMEO_STEP_LOGITS, .mask = m->msg};
	struct msg_output layout = msg_output_layout(0, 1, 256, 0, 160);
	int32_t payload[3 * MASK_TOKENS_MAX];
	struct rig_request request;

	mask_payload(m, tokens, n, payload);
	request = rig_step(client, 0, &msg, &row, payload);
	rig_must(client, request);
	memcpy(ret_logits, rig_logits(client, &request, &layout), 256 * sizeof(float));
}

/*
 * A tree behind a history of 12 tokens, its nodes in the order of their parents; the bits of each token's
 * word are its ancestors, and some of tokens that come later, which do not count. The last node's logits
 * are those of its path, whose tokens stand one behind the other.
 */
static void test_tree_gives_its_last_node_the_logits_of_the_path(void **state)
{
	static const int parents[] = {-1, 0, 0, 1, 2, 2, 4, 3, 6};
	enum { HISTORY = 12, NODES = sizeof(parents) / sizeof(parents[0]) };
	struct mask tree = {.msg = {.kind = MIMEO_MASK_TREE}, .begin = HISTORY};
	int32_t tokens[HISTORY + NODES], path[HISTORY + NODES];
	uint32_t positions[HISTORY + NODES], n_path = HISTORY;
	float logits[256], expected[256];
	double reference[DENSE_VOCAB];
	struct dense dense;
	struct rig rig;

	rig_nonsense(tokens, HISTORY + NODES, 5);
	memcpy(path, tokens, HISTORY * sizeof(*tokens));
	for (uint32_t i = 0; i < HISTORY; i++)
		positions[i] = i;
	for (int i = 0; i < NODES; i++) {
		uint64_t above = parents[i] < 0 ? 0 : tree.words[HISTORY + parents[i]];

		tree.words[HISTORY + i] = above | (uint64_t)1 << i;
		positions[HISTORY + i] =
			HISTORY + (uint32_t)__builtin_popcountll(tree.words[HISTORY + i]) - 1;
		if (i == NODES - 1)
			for (int k = 0; k < NODES; k++)
				if (tree.words[HISTORY + i] >> k & 1)
					path[n_path++] = tokens[HISTORY + k];
	}
	assert_int_equal(n_path, HISTORY + 5);
	dense_open(&dense);
	dense_logits(&dense, tokens, positions, HISTORY + NODES, mask_sees, &tree, reference);
	for (int i = 0; i < NODES - 1; i++)
		tree.words[HISTORY + i] |= (uint64_t)0xff00 << i;
	rig_open_client(&rig, &flex);
	rig_ok(&rig.client, 0, RING_OP_OPEN, 1, 0);
	append(&rig.client, &causal, tokens, HISTORY, logits);
	append(&rig.client, &tree, tokens + HISTORY, NODES, logits);
	dense_check(reference, logits, MASK_TOLERANCE);
	/* back to the history, and the path alone */
	rig_ok(&rig.client, 0, RING_OP_TRUNCATE, 1, HISTORY);
	append(&rig.client, &causal, path + HISTORY, n_path - HISTORY, expected);
	for (int i = 0; i < 256; i++)
		reference[i] = (double)expected[i];
	dense_check(reference, logits, MASK_TOLERANCE);
	rig_ok(&rig.client, 0, RING_OP_CLOSE, 1, 0);
	rig_close(&rig);
	dense_close(&dense);
}

/* Nodes of a tree: a chain of three, which stands first, and two branches off it. */
static const uint64_t branched[] = {0, 1, 3, 1, 9};

enum { BRANCH_HISTORY = 12, BRANCH_NODES = 5, BRANCH_CHAIN = 3, BRANCH_LATER = 2,
	BRANCH_TOKENS = BRANCH_HISTORY + BRANCH_NODES + BRANCH_LATER };

static struct mask branched_tree(void)
{
	struct mask tree = {.msg = {.kind = MIMEO_MASK_TREE}, .begin = BRANCH_HISTORY};

	memcpy(tree.words + BRANCH_HISTORY, branched, sizeof(branched));
	return tree;
}

/* Sequence 1 of a client holds a history and the tree; tokens: of all that comes. */
static void begin(struct rig *rig, struct rig_client *client, int32_t tokens[static BRANCH_TOKENS])
{
	const struct mask tree = branched_tree();
	float logits[256];

	rig_nonsense(tokens, BRANCH_TOKENS, 5);
	rig_open(rig, &flex);
	rig_attach(rig, client, 8);
	rig_ok(client, 0, RING_OP_OPEN, 1, 0);
	append(client, &causal, tokens, BRANCH_HISTORY, logits);
	append(client, &tree, tokens + BRANCH_HISTORY, BRANCH_NODES, logits);
}

/* With BRANCH_LATER tokens more the last of the n has the reference's logits. */
static void end(struct rig *rig, struct rig_client *client, const int32_t *tokens,
	const uint32_t *positions, uint32_t n, const struct mask *seen)
{
	double reference[DENSE_VOCAB];
	struct dense dense;
	float logits[256];

	append(client, &causal, tokens + n - BRANCH_LATER, BRANCH_LATER, logits);
	dense_open(&dense);
	dense_logits(&dense, tokens, positions, n, mask_sees, seen, reference);
	dense_check(reference, logits, MASK_TOLERANCE);
	dense_close(&dense);
	rig_ok(client, 0, RING_OP_CLOSE, 1, 0);
	rig_detach(client);
	rig_close(rig);
}

/* What follows a tree stands behind the last of its tokens in the sequence, however deep that is, and
 * sees all of them, those of other branches too. */
static void test_tokens_behind_a_tree_are_behind_all_of_it_and_see_all_of_it(void **state)
{
	struct mask seen = branched_tree();
	uint32_t positions[BRANCH_TOKENS];
	int32_t tokens[BRANCH_TOKENS];
	struct rig_client client;
	struct rig rig;

	for (uint32_t i = 0; i < BRANCH_TOKENS; i++)
		positions[i] = i;
	for (uint32_t i = 0; i < BRANCH_NODES; i++)
		positions[BRANCH_HISTORY + i] =
			BRANCH_HISTORY + (uint32_t)__builtin_popcountll(branched[i]);
	for (uint32_t i = BRANCH_TOKENS - BRANCH_LATER; i < BRANCH_TOKENS; i++)
		seen.words[i] = UINT64_MAX;
	begin(&rig, &client, tokens);
	end(&rig, &client, tokens, positions, BRANCH_TOKENS, &seen);
}

/* The chain that stands first is what it had been alone, once the rest is cut off. */
static void test_tree_cut_to_the_chain_that_stands_first_leaves_that_chain(void **state)
{
	const uint32_t n_kept = BRANCH_HISTORY + BRANCH_CHAIN;
	int32_t tokens[BRANCH_TOKENS];
	struct rig_client client;
	struct rig rig;

	begin(&rig, &client, tokens);
	rig_ok(&client, 0, RING_OP_TRUNCATE, 1, n_kept);
	end(&rig, &client, tokens, NULL, n_kept + BRANCH_LATER, &causal);
}

/* Each row of a step has words and a prefix of its own; documents do not see what the sequence had. */
static void test_each_row_of_a_step_has_its_part_of_the_mask(void **state)
{
	static const uint32_t kinds[] = {MIMEO_MASK_DOCUMENTS, MIMEO_MASK_PREFIX};
	enum { ROWS = 3, N = 20, HISTORY = 4 };
	struct dense dense;
	struct rig rig;

	dense_open(&dense);
	rig_open_client(&rig, &flex);
	for (size_t k = 0; k < 2; k++) {
		struct msg_step msg = {.n_rows = ROWS, .outputs = MIMEO_STEP_LOGITS};
		struct msg_output layout = msg_output_layout(0, ROWS, 256, 0, 160);
		int32_t tokens[ROWS][HISTORY + N], payload[3 * ROWS * N];
		struct mask m[ROWS] = {0};
		struct msg_row rows[ROWS];
		struct rig_request request;
		float logits[256];

		msg.mask = (struct mimeo_mask){.kind = kinds[k], .prefix = k ? N - 2 : 0};
		for (uint32_t i = 0; i < ROWS; i++) {
			rows[i] = (struct msg_row){i + 1, N};
			rig_nonsense(tokens[i], HISTORY + N, i + 20);
			m[i].msg = msg.mask;
			m[i].begin = HISTORY;
			for (uint32_t p = HISTORY; p < HISTORY + N; p++)
				m[i].words[p] = i ? (p + i) / 8 : 5; /* row 0: one alone */
			rig_ok(&rig.client, 0, RING_OP_OPEN, i + 1, 0);
			rig_must(&rig.client, rig_step(&rig.client, 0,
				&(struct msg_step){.n_rows = 1, .outputs = MIMEO_STEP_LOGITS},
				&(struct msg_row){i + 1, HISTORY}, tokens[i]));
			memcpy(payload + i * N, tokens[i] + HISTORY, N * sizeof(payload[0]));
			memcpy(payload + ROWS * N + i * 2 * N, m[i].words + HISTORY,
				N * sizeof(m[i].words[0]));
		}
		request = rig_step(&rig.client, 0, &msg, rows, payload);
		rig_must(&rig.client, request);
		for (uint32_t i = 0; i < ROWS; i++) {
			double expected[DENSE_VOCAB];

			dense_logits(&dense, tokens[i], NULL, HISTORY + N, mask_sees, &m[i], expected);
			memcpy(logits, rig_logits(&rig.client, &request, &layout) + i * 256,
				sizeof(logits));
			dense_check(expected, logits, MASK_TOLERANCE);
			rig_ok(&rig.client, 0, RING_OP_CLOSE, i + 1, 0);
		}
	}
	rig_close(&rig);
	dense_close(&dense);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tree_gives_its_last_node_the_logits_of_the_path),
		cmocka_unit_test(test_tokens_behind_a_tree_are_behind_all_of_it_and_see_all_of_it),
		cmocka_unit_test(test_tree_cut_to_the_chain_that_stands_first_leaves_that_chain),
		cmocka_unit_test(test_each_row_of_a_step_has_its_part_of_the_mask),
	};

	return cmocka_run_group_tests_name("engine: masks of steps", tests, NULL, NULL);
}
