/* SPDX-License-Identifier: MIT */
/* Whole steps of a target and its draft: behind others, beside others, padded and replayed. */
#include "tests/kernels/draft_fixture.h"

/* ---- behind a bigger step ---- */

/* F4. */
static void test_a_small_draft_after_a_big_one_finds_nothing_of_it(void **state)
{
	static const struct step_row small[] = {VERIFY(6)};

	rng = 22;
	for (uint32_t n_rows = 0; n_rows < 2; n_rows++)
		for (uint32_t padded = n_rows; padded < 4; padded++) {
			uint32_t t = n_rows * (1 + K);
			struct rig rig;

			setup(&rig, &greedy);
			random_logits(&rig);
			begin_big(&rig, 2);
			rig_advance(&rig, MAX_ROWS);
			run_target(&rig, small, n_rows, padded);
			rig_begin(&rig, padded);
			for (uint32_t r = n_rows; r < MAX_ROWS; r++)
				assert_int_equal(rig.draft.last_index[r], 0);
			for (; t < MAX_TOKENS; t++) {
				assert_int_equal(rig.draft.input_ids[t], 0);
				assert_int_equal(rig.draft.slot_mapping[t], -1);
			}
			rig_advance(&rig, padded);
			for (uint32_t r = n_rows; r < MAX_ROWS; r++) {
				assert_int_equal(rig.draft.decode_ids[r], 0);
				assert_int_equal(rig.draft.positions[r], 0);
				assert_int_equal(rig.draft.decode_slot_mapping[r], -1);
				assert_int_equal(rig.draft.seq_lens[r], 0);
				assert_int_equal(rig.draft.hidden_index[r], 0);
			}
			for (uint32_t r = 0; r <= MAX_ROWS; r++)
				assert_int_equal(
					rig.draft.query_start[r], r < padded ? r : padded);
			rig_deinit(&rig);
		}
}

/* F31. Behind a big step, rows past the real ones have all that it left but for prepare's tails. */
static void test_a_padded_row_with_a_stale_slot_writes_no_draft_state(void **state)
{
	static const struct step_row small[] = {VERIFY(6)};
	struct rig rig, before;

	rng = 23;
	setup(&rig, &warm);
	random_logits(&rig);
	begin_big(&rig, 1);
	for (uint32_t i = 0; i < K; i++)
		rig_advance(&rig, MAX_ROWS);
	rig_init(&before, &sizes, N_PAGES);
	for (size_t i = 0; i < rig.n_buffers; i++)
		memcpy(before.buffers[i].data, rig.buffers[i].data, rig.buffers[i].bytes);
	run_target(&rig, small, 1, MAX_ROWS);
	rig_begin(&rig, MAX_ROWS);
	for (uint32_t i = 0; i < K; i++)
		rig_advance(&rig, MAX_ROWS);
	for (int32_t s = 0; s < MAX_SLOTS; s++) {
		if (s == 6)
			continue;
		assert_int_equal(rig.in.slot_last_token[s], before.in.slot_last_token[s]);
		assert_int_equal(rig.in.slot_length[s], before.in.slot_length[s]);
		assert_memory_equal(
			drafts_of(&rig, s), drafts_of(&before, s), K * sizeof(int32_t));
		assert_memory_equal(draft_logits_of(&rig, s, 0), draft_logits_of(&before, s, 0),
			K * VOCAB * sizeof(float));
	}
	assert_in_range(drafts_of(&rig, 6)[K - 1], 0, VOCAB - 1);
	rig_deinit(&before);
	rig_deinit(&rig);
}

/* ---- beside others ---- */

/* The target's and the draft's logits of any step, by slot and length alone. */
static void step_logits(struct rig *rig, const struct step_row *rows, uint32_t n_rows)
{
	for (uint32_t r = 0; r < n_rows; r++) {
		int32_t slot = rows[r].slot;
		uint32_t at = slot < 0 ? 0 : (uint32_t)rig->in.slot_length[slot];

		for (uint32_t i = 0; i <= K; i++) {
			rng = (uint64_t)slot * 1000 + at + i;
			for (uint32_t id = 0; id < VOCAB; id++)
				logits_of(rig, r, i)[id] = 2 * random_float(&rng);
		}
		rng += 77;
		for (uint32_t id = 0; id < VOCAB; id++)
			rig->draft_logits[r * VOCAB + id] = 2 * random_float(&rng);
	}
}

static void run_step(struct rig *rig, const struct step_row *rows, uint32_t n_rows)
{
	step_logits(rig, rows, n_rows);
	run_target(rig, rows, n_rows, n_rows);
	rig_begin(rig, n_rows);
	for (uint32_t i = 0; i < K; i++)
		rig_advance(rig, n_rows);
}

/* Slots 0, 2 and 4 speculate, greedy or not, the others do not; in turn as rows to verify or
 * not. */
static void test_rows_that_speculate_are_alone_among_rows_that_do_not(void **state)
{
	struct rig together, alone;

	setup(&together, &warm);
	setup(&alone, &warm);
	for (int32_t s = 0; s < MAX_SLOTS; s++) {
		struct slot_sampling own = s % 3 ? warm : greedy;

		own.seed = (uint64_t)s;
		together.in.slot_sampling[s] = alone.in.slot_sampling[s] = own;
		together.in.slot_n_drafts[s] = alone.in.slot_n_drafts[s] = s % 2 ? 0 : K;
	}
	for (int step = 0; step < 3; step++) {
		struct step_row rows[MAX_ROWS];

		for (int32_t s = 0; s < MAX_ROWS; s++) {
			static const struct step_row verify = VERIFY(0), decode = DECODE(0);

			rows[s] = s % 2 == 0 || step == 1 ? verify : decode;
			rows[s].slot = s;
			run_step(&alone, &rows[s], 1);
		}
		run_step(&together, rows, MAX_ROWS);
		assert_memory_equal(together.in.slot_length, alone.in.slot_length,
			MAX_SLOTS * sizeof(int32_t));
		assert_memory_equal(together.in.slot_last_token, alone.in.slot_last_token,
			MAX_SLOTS * sizeof(int32_t));
		assert_memory_equal(together.in.slot_drafts, alone.in.slot_drafts,
			MAX_SLOTS * K * sizeof(int32_t));
		assert_memory_equal(together.in.slot_draft_logits, alone.in.slot_draft_logits,
			MAX_SLOTS * K * VOCAB * sizeof(float));
	}
	rig_deinit(&alone);
	rig_deinit(&together);
}

/* ---- replayed ---- */

static void queue_loop(struct rig *rig, uint32_t n_rows)
{
	struct op_verify verify = verify_args(rig, n_rows);
	struct op_draft_begin begin = begin_args(rig, n_rows);
	struct op_draft_advance advance = advance_args(rig, n_rows);

	assert_int_equal(device->kernels->verify(stream, &verify), 0);
	assert_int_equal(device->kernels->draft_begin(stream, &begin), 0);
	for (uint32_t i = 0; i < K; i++)
		assert_int_equal(device->kernels->draft_advance(stream, &advance), 0);
}

static struct graph_exec *capture_loop(struct rig *rig, uint32_t n_rows)
{
	struct graph_exec *exec;
	struct graph *graph;

	queue_loop(rig, n_rows); /* loads the ops */
	assert_int_equal(device->ops->stream_sync(stream), 0);
	assert_int_equal(device->ops->capture_begin(stream), 0);
	queue_loop(rig, n_rows);
	assert_int_equal(device->ops->capture_end(stream, &graph), 0);
	assert_string_equal(device->ops->graph_node_name(graph, 0), "verify");
	assert_string_equal(device->ops->graph_node_name(graph, 1), "draft_begin");
	assert_string_equal(device->ops->graph_node_name(graph, K + 1), "draft_advance");
	/* draft_advance is two nodes on the cuda device. */
	assert_null(device->ops->graph_node_name(graph, 2 + (test_on_cuda() ? 2 : 1) * K));
	assert_int_equal(device->ops->graph_instantiate(device, graph, &exec), 0);
	device->ops->graph_free(graph);
	return exec;
}

static struct step_row random_row(int32_t slot)
{
	static const struct step_row verify = VERIFY(0), decode = DECODE(0);
	struct step_row row = random_below(&rng, 3) ? verify : decode;
	uint32_t n = 1 + random_below(&rng, 6);

	if (!random_below(&rng, 4))
		row = (struct step_row)PROMPT(0, n, random_below(&rng, CAPACITY - n));
	row.slot = slot;
	return row;
}

/* Captured at a step of padding alone; replayed at steps of all kinds and lengths. */
static void test_a_replay_of_the_loop_equals_eager(void **state)
{
	static const struct step_row empty[] = {{.slot = -1, .n_tokens = MAX_TOKENS}};
	struct graph_exec *exec;
	struct rig rig;

	setup(&rig, &warm);
	rng = 31;
	random_logits(&rig);
	rig_prepare(&rig, empty, 1, MAX_ROWS, (int32_t[MAX_TOKENS]){0});
	exec = capture_loop(&rig, MAX_ROWS);
	for (int step = 0; step < 200; step++) {
		uint32_t n_rows = random_below(&rng, MAX_ROWS + 1);
		struct step_row rows[MAX_ROWS];
		uint8_t *before, *eager, *replayed;

		for (uint32_t r = 0; r < n_rows; r++)
			rows[r] = random_row((int32_t)(r + random_below(&rng, 2)) % MAX_SLOTS);
		for (uint32_t r = 1; r < n_rows; r++)
			if (rows[r].slot == rows[r - 1].slot)
				rows[r].slot = -1;
		random_logits(&rig);
		rig_prepare(&rig, rows, n_rows, MAX_ROWS, (int32_t[MAX_TOKENS]){1, 2, 3});
		before = rig_save(&rig);
		queue_loop(&rig, MAX_ROWS);
		assert_int_equal(device->ops->stream_sync(stream), 0);
		eager = rig_save(&rig);
		rig_restore(&rig, before);
		assert_int_equal(device->ops->graph_launch(exec, stream), 0);
		assert_int_equal(device->ops->stream_sync(stream), 0);
		replayed = rig_save(&rig);
		assert_memory_equal(replayed, eager, rig_bytes(&rig));
		free(replayed);
		free(eager);
		free(before);
	}
	device->ops->graph_exec_free(exec);
	rig_deinit(&rig);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(test_a_small_draft_after_a_big_one_finds_nothing_of_it),
	cmocka_unit_test(test_a_padded_row_with_a_stale_slot_writes_no_draft_state),
	cmocka_unit_test(test_rows_that_speculate_are_alone_among_rows_that_do_not),
	cmocka_unit_test(test_a_replay_of_the_loop_equals_eager),
};

OPS_TEST_MAIN("cpu ops: steps with drafts", tests)
