/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_KERNELS_DRAFT_FIXTURE_H
#define MIMEO_TESTS_KERNELS_DRAFT_FIXTURE_H

/* A rig of six rows and eight slots that draft three tokens, and steps of rows of every kind. */

#include "tests/kernels/speculate_fixture.h"

enum {
	MAX_ROWS = 6,
	MAX_TOKENS = 48,
	MAX_SLOTS = 8,
	MAX_PAGES = 6,
	PAGE_TOKENS = 4,
	VOCAB = 24,
	K = 3,
	N_PAGES = 64,
	CAPACITY = MAX_PAGES * PAGE_TOKENS,
};

static const struct step_inputs sizes = {
	.max_rows = MAX_ROWS,
	.max_tokens = MAX_TOKENS,
	.max_slots = MAX_SLOTS,
	.max_pages = MAX_PAGES,
	.page_tokens = PAGE_TOKENS,
	.vocab_size = VOCAB,
	.max_drafts = K,
};

static const struct slot_sampling greedy = {.top_p = 1};
static const struct slot_sampling warm = {.temperature = 1, .top_p = 0.9f, .top_k = 15, .seed = 7};

static inline void setup(struct rig *rig, const struct slot_sampling *sampling)
{
	rig_init(rig, &sizes, N_PAGES);
	rig_init_slots(rig, MAX_PAGES, K, sampling);
	for (int32_t s = 0; s < MAX_SLOTS; s++) {
		rig->in.slot_length[s] = s;
		rig->in.slot_last_token[s] = s + 1;
	}
	*rig->draft.step = 0;
}

static inline void random_logits(struct rig *rig)
{
	for (size_t i = 0; i < (size_t)MAX_ROWS * (1 + K) * VOCAB; i++)
		rig->logits[i] = 2 * random_float(&rng);
	for (size_t i = 0; i < (size_t)MAX_ROWS * VOCAB; i++)
		rig->draft_logits[i] = 2 * random_float(&rng);
}

/* Prepares `rows` with ids 0, 1, ... and verifies them. */
static inline void run_target(
	struct rig *rig, const struct step_row *rows, uint32_t n_rows, uint32_t padded_rows)
{
	int32_t ids[MAX_TOKENS];

	for (int32_t t = 0; t < MAX_TOKENS; t++)
		ids[t] = t % VOCAB;
	rig_prepare(rig, rows, n_rows, padded_rows, ids);
	rig_verify(rig, padded_rows);
}

#define VERIFY(s) {.slot = (s), .flags = ROW_VERIFY | ROW_SAMPLE, .n_tokens = 1 + K, .next_id = -1}
#define DECODE(s)                                                                                  \
	{.slot = (s), .flags = ROW_FROM_SLOT | ROW_SAMPLE, .n_tokens = 1, .next_id = -1}
#define CHUNK(s, n, from, next)                                                                    \
	{.slot = (s), .n_tokens = (n), .start = (from), .next_id = (next)}
#define PROMPT(s, n, from)                                                                         \
	{.slot = (s), .flags = ROW_SAMPLE, .n_tokens = (n), .start = (from), .next_id = -1}

/* A row to verify, a prompt's chunk, a prompt's end, a decode, an empty row, and a chunk whose next
 * id is unknown. */
static const struct step_row big_rows[MAX_ROWS] = {VERIFY(3), CHUNK(1, 5, 2, 19), PROMPT(5, 6, 4),
	DECODE(2), {.slot = -1, .n_tokens = 3, .next_id = 9}, CHUNK(7, 2, 0, -1)};
static const uint32_t big_first[MAX_ROWS + 1] = {0, 4, 9, 15, 16, 19, 21};

/* Row 0 accepts `held` drafts. */
static inline void begin_big(struct rig *rig, uint32_t held)
{
	static const struct step_row drafts_first[] = {VERIFY(3)};

	rig_prepare(rig, drafts_first, 0, 0, NULL);
	for (uint32_t i = 0; i <= K; i++) {
		logits_of(rig, 0, i)[10 + i] = 9;
		if (i < K)
			drafts_of(rig, 3)[i] = (int32_t)(10 + i + (i >= held));
	}
	run_target(rig, big_rows, MAX_ROWS, MAX_ROWS);
	rig_begin(rig, MAX_ROWS);
}

#endif
