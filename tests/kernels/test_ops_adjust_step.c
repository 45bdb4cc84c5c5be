/* SPDX-License-Identifier: MIT */
/*
 * Adjustment of logits in steps of several slots: updates in one launch, rows with different flags, large
 * vocabularies, draws under a mask and replays of a graph. On the device of MIMEO_DEVICE.
 */
#include "tests/kernels/adjustment.h"
#include "tests/kernels/speculate_fixture.h"

enum { ROWS = 6, K = 2, SLOTS = 8, LENGTH = 9, VOCAB = 1003 };

static const struct slot_sampling greedy = {.top_p = 1};

/* Row r is of slot SLOTS - 1 - r. */
static int32_t slot_of(uint32_t r)
{
	return (int32_t)(SLOTS - 1 - r);
}

static void set_up(struct rig *rig, uint32_t vocab, uint32_t k)
{
	const struct step_inputs sizes = {
		.max_rows = ROWS,
		.max_tokens = ROWS * (1 + K),
		.max_slots = SLOTS,
		.max_pages = 1,
		.page_tokens = 64,
		.vocab_size = vocab,
		.max_drafts = k,
	};

	rig_init(rig, &sizes, 2 * SLOTS);
	rig_init_slots(rig, 1, k, &greedy);
	for (uint32_t r = 0; r < ROWS; r++) {
		rig->in.row_slot[r] = slot_of(r);
		rig->in.row_flags[r] = ROW_SAMPLE;
		rig->in.seq_lens[r] = LENGTH;
		rig->in.query_start[r] = (int32_t)(r * (1 + k));
	}
	rig->in.query_start[ROWS] = (int32_t)(ROWS * (1 + k));
	for (size_t i = 0; i < (size_t)ROWS * (1 + k) * vocab; i++)
		rig->logits[i] = 8 * random_float(&rng);
}

/* ---- updates ---- */

static void test_updates_of_one_launch_go_to_their_own_slots(void **state)
{
	enum { WORDS = TOKEN_WORDS(VOCAB) };
	struct slot_update updates[SLOTS];
	struct token_bias bias[SLOTS];
	uint32_t allowed[SLOTS][WORDS];
	int32_t tokens[SLOTS][3];
	struct rig rig;

	rng = 1;
	set_up(&rig, VOCAB, 0);
	for (int32_t s = 0; s < SLOTS; s++) {
		memset(allowed[s], 1 + s, sizeof(allowed[s]));
		bias[s] = (struct token_bias){s, (float)s + 0.5f};
		memcpy(tokens[s], (int32_t[]){VOCAB - 1 - s, 100 + s, 100 + s}, sizeof(tokens[s]));
		updates[SLOTS - 1 - s] = (struct slot_update){.slot = s,
			.flags = UPDATE_CLEAR | UPDATE_SET,
			.adjust = {.repetition = 1, .presence = (float)s, .n_bias = 1, .masked = 1},
			.bias = &bias[s],
			.allowed = allowed[s],
			.tokens = tokens[s],
			.n_tokens = 3,
			.n_prompt = 1};
	}
	rig_update_slots(&rig, updates, SLOTS);
	for (int32_t s = 0; s < SLOTS; s++) {
		const uint16_t *counts = counts_of(&rig, s);

		assert_memory_equal(&rig.in.slot_adjust[s], &updates[SLOTS - 1 - s].adjust,
			sizeof(struct slot_adjust));
		assert_memory_equal(rig.in.slot_bias + (size_t)s * SLOT_BIAS_MAX, &bias[s], sizeof(bias[s]));
		assert_memory_equal(rig.in.slot_allowed + (size_t)s * WORDS, allowed[s], sizeof(allowed[s]));
		for (int32_t id = 0; id < VOCAB; id++)
			assert_int_equal(counts[id],
				id == VOCAB - 1 - s ? COUNT_PROMPT : id == 100 + s ? 2 : 0);
	}
	rig_deinit(&rig);
}

/* ---- rows ---- */

/* A presence penalty of the slot's own, for tokens of its own. */
static void penalise_slots(struct rig *rig)
{
	for (int32_t s = 0; s < SLOTS; s++) {
		int32_t tokens[20];

		for (int32_t i = 0; i < 20; i++)
			tokens[i] = 7 * s + 3 * i;
		rig_update(rig, &(struct slot_update){.slot = s,
			.flags = UPDATE_CLEAR | UPDATE_SET,
			.adjust = {.repetition = 1, .presence = (float)(1 + s),
				.min_position = LENGTH + 1, .n_ends = 1, .ends = {500 + s}},
			.tokens = tokens,
			.n_tokens = 20});
	}
}

static bool is_penalised(int32_t slot, int32_t id)
{
	return id >= 7 * slot && id < 7 * slot + 60 && (id - 7 * slot) % 3 == 0;
}

/* The logits of a row that stands at LENGTH, of the slot unless it is -1, against the raw ones. */
static void check_row(const float *have, const float *raw, int32_t slot)
{
	for (int32_t id = 0; id < VOCAB; id++) {
		float want = raw[id];

		if (slot >= 0 && is_penalised(slot, id))
			want = (float)((double)want - (1 + slot));
		if (slot >= 0 && id == 500 + slot)
			want = -INFINITY;
		assert_true(have[id] == want);
	}
}

static void test_rows_are_adjusted_by_their_own_slots(void **state)
{
	float *raw = scratch(ROWS * VOCAB * sizeof(float));
	struct rig rig;

	rng = 2;
	set_up(&rig, VOCAB, 0);
	penalise_slots(&rig);
	for (uint32_t r = 0; r < ROWS; r++)
		rig.in.row_flags[r] = ROW_SAMPLE | ROW_ADJUST;
	rig.in.row_flags[1] = ROW_SAMPLE;
	rig.in.row_flags[2] = ROW_ADJUST; /* not sampled */
	rig.in.row_slot[3] = -1;
	memcpy(raw, rig.logits, ROWS * VOCAB * sizeof(float));
	rig_adjust(&rig, ROWS - 1);
	for (uint32_t r = 0; r < ROWS; r++)
		check_row(logits_of(&rig, r, 0), raw + r * VOCAB, r == 0 || r == 4 ? slot_of(r) : -1);
	rig_deinit(&rig);
}

static void test_rows_of_last_tokens_alone_stand_at_the_ends_of_their_sequences(void **state)
{
	float *raw = scratch(ROWS * VOCAB * sizeof(float));
	struct rig rig;

	rng = 3;
	set_up(&rig, VOCAB, K);
	penalise_slots(&rig);
	for (uint32_t r = 0; r < ROWS; r++) {
		rig.in.row_flags[r] = ROW_SAMPLE | ROW_ADJUST | ROW_VERIFY; /* the last has no meaning */
		rig.in.slot_length[slot_of(r)] = 40;
		memset(drafts_of(&rig, slot_of(r)), 0, K * sizeof(int32_t));
	}
	memcpy(raw, rig.logits, ROWS * VOCAB * sizeof(float));
	RUN(adjust, (&(struct op_adjust){rig.logits, ROWS, VOCAB, true, rig.in}));
	for (uint32_t r = 0; r < ROWS; r++)
		check_row(rig.logits + r * VOCAB, raw + r * VOCAB, slot_of(r));
	rig_deinit(&rig);
}

static void check_large(uint32_t vocab)
{
	struct token_bias biases[] = {{0, 3}, {(int32_t)vocab - 2, -4}};
	const struct slot_adjust adjust = {.repetition = 1.25f, .frequency = 0.5f, .n_bias = 2, .masked = 1};
	float *raw = scratch(vocab * sizeof(*raw)), *bias = scratch(vocab * sizeof(*bias)),
	      *want = scratch(vocab * sizeof(*want));
	bool *banned = scratch(vocab * sizeof(*banned));
	uint32_t *allowed = scratch(TOKEN_WORDS(vocab) * sizeof(*allowed)),
		 *outputs = scratch(vocab * sizeof(*outputs));
	int32_t *tokens = scratch(vocab / 2 * sizeof(*tokens));
	const struct book_state book = {&adjust, bias, banned, NULL, outputs, LENGTH};
	struct rig rig;

	set_up(&rig, vocab, 0);
	for (size_t i = 0; i < COUNT_OF(biases); i++)
		bias[biases[i].token] = biases[i].bias;
	for (uint32_t i = 0; i < vocab / 2; i++) {
		tokens[i] = i ? (int32_t)random_below(&rng, vocab) : (int32_t)vocab - 1;
		outputs[tokens[i]]++;
	}
	for (uint32_t id = 0; id < vocab; id++) {
		banned[id] = id < vocab - 8 && random_below(&rng, 4) == 0;
		allowed[id / 32] |= (uint32_t)!banned[id] << id % 32;
	}
	rig_update(&rig, &(struct slot_update){slot_of(1), UPDATE_CLEAR | UPDATE_SET, adjust, biases, allowed,
		tokens, vocab / 2, 0});
	memcpy(raw, logits_of(&rig, 1, 0), vocab * sizeof(*raw));
	for (uint32_t id = 0; id < vocab; id++)
		want[id] = (float)book_adjusted(&book, raw[id], id);
	rig.in.row_flags[1] |= ROW_ADJUST;
	rig_adjust(&rig, 2);
	assert_floats_close(logits_of(&rig, 1, 0), want, vocab, 3e-7, 3e-6);
	rig_deinit(&rig);
}

static void test_large_vocabularies_are_adjusted_to_their_ends(void **state)
{
	rng = 4;
	check_large(50257); /* rows of any alignment */
	check_large(262144);
}

/* ---- draws ---- */

static const struct slot_sampling ways[] = {
	{.top_p = 1},
	{.temperature = 3, .top_p = 1},
	{.temperature = 3, .top_p = 1, .top_k = 50},
	{.temperature = 3, .top_p = 0.9f},
	{.temperature = 3, .top_p = 1, .min_p = 0.01f},
};

static bool is_allowed(int32_t slot, int32_t id)
{
	return id >= 100 * slot && id < 100 * slot + 5;
}

static void allow_few(struct rig *rig)
{
	for (int32_t s = 0; s < SLOTS; s++) {
		uint32_t allowed[TOKEN_WORDS(VOCAB)] = {0};

		for (int32_t id = 0; id < VOCAB; id++)
			allowed[id / 32] |= (uint32_t)is_allowed(s, id) << id % 32;
		rig_update(rig, &(struct slot_update){.slot = s,
			.flags = UPDATE_CLEAR | UPDATE_SET,
			.adjust = {.repetition = 1, .masked = 1},
			.allowed = allowed});
	}
}

/* The logits of allowed tokens are far below the others. */
static void disfavour_allowed(struct rig *rig)
{
	for (uint32_t r = 0; r < ROWS; r++)
		for (uint32_t i = 0; i <= rig->in.max_drafts; i++)
			for (int32_t id = 0; id < VOCAB; id++)
				if (is_allowed(slot_of(r), id))
					logits_of(rig, r, i)[id] -= 60;
}

static void test_no_token_that_the_mask_bans_is_sampled(void **state)
{
	rng = 5;
	for (size_t w = 0; w < COUNT_OF(ways); w++) {
		struct rig rig;

		set_up(&rig, VOCAB, 0);
		allow_few(&rig);
		disfavour_allowed(&rig);
		for (uint32_t r = 0; r < ROWS; r++)
			rig.in.row_flags[r] |= ROW_ADJUST;
		rig_adjust(&rig, ROWS);
		for (uint64_t seed = 0; seed < 20; seed++) {
			struct op_sample a = {rig.logits, ROWS, VOCAB, SAMPLE_TARGET, rig.in, rig.sampled};

			for (int32_t s = 0; s < SLOTS; s++) {
				rig.in.slot_sampling[s] = ways[w];
				rig.in.slot_sampling[s].seed = seed;
			}
			RUN(sample, &a);
			for (uint32_t r = 0; r < ROWS; r++)
				assert_true(is_allowed(slot_of(r), rig.sampled[r]));
		}
		rig_deinit(&rig);
	}
}

/* The first draft of each row is allowed and the second one is not; the draft model gave each for certain. */
static void draft_one_allowed(struct rig *rig)
{
	for (uint32_t r = 0; r < ROWS; r++) {
		const int32_t slot = slot_of(r);
		const int32_t drafts[K] = {100 * slot + 2, VOCAB - 1};

		rig->in.slot_length[slot] = LENGTH;
		memcpy(drafts_of(rig, slot), drafts, sizeof(drafts));
		for (uint32_t i = 0; i < K; i++)
			for (int32_t id = 0; id < VOCAB; id++)
				draft_logits_of(rig, slot, i)[id] = id == drafts[i] ? 0 : -INFINITY;
	}
}

static void test_no_draft_that_the_mask_bans_is_accepted(void **state)
{
	uint32_t n_accepted = 0;

	rng = 6;
	for (size_t w = 0; w < COUNT_OF(ways); w++) {
		for (uint64_t seed = 0; seed < 10; seed++) {
			struct rig rig;

			set_up(&rig, VOCAB, K);
			allow_few(&rig);
			disfavour_allowed(&rig);
			draft_one_allowed(&rig);
			for (uint32_t r = 0; r < ROWS; r++) {
				rig.in.row_flags[r] |= ROW_VERIFY | ROW_ADJUST | ROW_COUNT;
				rig.in.slot_sampling[slot_of(r)] = ways[w];
				rig.in.slot_sampling[slot_of(r)].seed = seed;
			}
			rig_adjust(&rig, ROWS);
			rig_verify(&rig, ROWS);
			for (uint32_t r = 0; r < ROWS; r++) {
				const int32_t *tokens = sampled_of(&rig, r);

				assert_true(is_allowed(slot_of(r), tokens[0]));
				assert_true(tokens[1] < 0 || is_allowed(slot_of(r), tokens[1]));
				assert_int_equal(tokens[2], -1);
				n_accepted += tokens[1] >= 0;
			}
			rig_deinit(&rig);
		}
	}
	assert_true(n_accepted > 0);
}

/* ---- replays ---- */

static void queue_step(struct rig *rig)
{
	const struct op_adjust adjust = {rig->logits, ROWS, VOCAB, false, rig->in};
	const struct op_sample sample = {rig->logits, ROWS, VOCAB, SAMPLE_TARGET, rig->in, rig->sampled};
	const struct op_verify verify = verify_args(rig, ROWS);

	assert_int_equal(device->kernels->adjust(stream, &adjust), 0);
	if (rig->in.max_drafts)
		assert_int_equal(device->kernels->verify(stream, &verify), 0);
	else
		assert_int_equal(device->kernels->sample(stream, &sample), 0);
}

static struct graph_exec *record_step(struct rig *rig)
{
	struct graph_exec *exec;
	struct graph *graph;

	queue_step(rig); /* loads the kernels, which a capture may not */
	assert_int_equal(device->ops->stream_sync(stream), 0);
	assert_int_equal(device->ops->capture_begin(stream), 0);
	queue_step(rig);
	assert_int_equal(device->ops->capture_end(stream, &graph), 0);
	assert_int_equal(device->ops->graph_instantiate(device, graph, &exec), 0);
	device->ops->graph_free(graph);
	return exec;
}

static void random_update(struct rig *rig, int32_t slot)
{
	const struct token_bias bias[] = {{2, 9}, {VOCAB - 3, -INFINITY}};
	uint32_t allowed[TOKEN_WORDS(VOCAB)];
	int32_t tokens[30];

	for (size_t i = 0; i < COUNT_OF(allowed); i++)
		allowed[i] = (uint32_t)random_below(&rng, 1u << 30);
	for (size_t i = 0; i < COUNT_OF(tokens); i++)
		tokens[i] = (int32_t)random_below(&rng, VOCAB);
	rig_update(rig, &(struct slot_update){.slot = slot,
		.flags = UPDATE_CLEAR | UPDATE_SET,
		.adjust = {.repetition = 1.5f, .presence = (float)random_below(&rng, 3),
			.n_bias = (uint32_t)random_below(&rng, 3), .masked = (uint32_t)random_below(&rng, 2),
			.n_top = (uint32_t)random_below(&rng, 21)},
		.bias = bias,
		.allowed = allowed,
		.tokens = tokens,
		.n_tokens = COUNT_OF(tokens),
		.n_prompt = 10});
}

static void random_step(struct rig *rig)
{
	static const uint32_t flags[] = {ROW_ADJUST, ROW_COUNT, ROW_LOGPROBS, ROW_VERIFY};
	const uint32_t first = (uint32_t)random_below(&rng, SLOTS);

	for (uint32_t r = 0; r < ROWS; r++) {
		const int32_t slot = (int32_t)((first + r) % SLOTS);

		rig->in.row_slot[r] = random_below(&rng, 5) ? slot : -1;
		rig->in.row_flags[r] = random_below(&rng, 5) ? ROW_SAMPLE : 0;
		for (size_t i = 0; i < COUNT_OF(flags); i++)
			rig->in.row_flags[r] |= random_below(&rng, 2) ? (int32_t)flags[i] : 0;
	}
	for (int32_t s = 0; s < SLOTS; s++) {
		random_update(rig, s);
		for (uint32_t i = 0; i < rig->in.max_drafts; i++)
			drafts_of(rig, s)[i] = (int32_t)random_below(&rng, VOCAB + 1) - 1;
		if (rig->in.max_drafts)
			rig->in.slot_length[s] = LENGTH;
	}
	for (size_t i = 0; i < (size_t)ROWS * (1 + rig->in.max_drafts) * VOCAB; i++)
		rig->logits[i] = 8 * random_float(&rng);
}

/* Flags, slots and updates differ from step to step, and all that the ops write is compared. */
static void check_replays(uint32_t k)
{
	struct graph_exec *exec;
	struct rig rig;

	set_up(&rig, VOCAB, k);
	penalise_slots(&rig);
	exec = record_step(&rig);
	for (int step = 0; step < 20; step++) {
		uint8_t *before, *want;

		random_step(&rig);
		before = rig_save(&rig);
		queue_step(&rig);
		assert_int_equal(device->ops->stream_sync(stream), 0);
		want = rig_save(&rig);
		rig_restore(&rig, before);
		assert_int_equal(device->ops->graph_launch(exec, stream), 0);
		assert_int_equal(device->ops->stream_sync(stream), 0);
		for (size_t i = 0, at = 0; i < rig.n_buffers; at += rig.buffers[i++].bytes)
			assert_memory_equal(rig.buffers[i].data, want + at, rig.buffers[i].bytes);
		free(before);
		free(want);
	}
	device->ops->graph_exec_free(exec);
	rig_deinit(&rig);
}

static void test_replays_follow_the_flags_and_updates_of_their_steps(void **state)
{
	rng = 7;
	check_replays(0);
	check_replays(K);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(test_updates_of_one_launch_go_to_their_own_slots),
	cmocka_unit_test(test_rows_are_adjusted_by_their_own_slots),
	cmocka_unit_test(test_rows_of_last_tokens_alone_stand_at_the_ends_of_their_sequences),
	cmocka_unit_test(test_large_vocabularies_are_adjusted_to_their_ends),
	cmocka_unit_test(test_no_token_that_the_mask_bans_is_sampled),
	cmocka_unit_test(test_no_draft_that_the_mask_bans_is_accepted),
	cmocka_unit_test(test_replays_follow_the_flags_and_updates_of_their_steps),
};

OPS_TEST_MAIN("ops: adjustment of logits in steps", tests)
