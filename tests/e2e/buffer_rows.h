/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_E2E_BUFFER_ROWS_H
#define MIMEO_TESTS_E2E_BUFFER_ROWS_H

/* Three rows of tinycalc's, and what a step of them gives through the arena. */

#include "tests/e2e/buffers.h"
#include "tests/e2e/embedding_table.h"

#define N_ROWS 3u

static const int32_t tokens[] = {1, '9', '7', ' ', '+', ' ', '5', '\n', '3', '3', '1', '2', '0', 9};
static const uint32_t lengths[N_ROWS] = {5, 1, 8};

/* Fresh sequences with a row of the tokens each. */
static inline void make_rows(struct mimeo *m, struct mimeo_step_row rows[static N_ROWS])
{
	uint32_t at = 0;

	for (uint32_t i = 0; i < N_ROWS; i++) {
		rows[i] = (struct mimeo_step_row){sequence_of(m), lengths[i], tokens + at};
		at += lengths[i];
	}
}

static inline void close_rows(struct mimeo *m, const struct mimeo_step_row rows[static N_ROWS])
{
	for (uint32_t i = 0; i < N_ROWS; i++)
		assert_int_equal(mimeo_sequence_close(m, rows[i].sequence), 0);
	mimeo_submit(m);
}

struct results {
	float logits[N_ROWS * VOCAB], hidden[N_ROWS * HIDDEN];
};

/* What the step gives through the arena. */
static inline void results_make(struct mimeo *m, struct results *ret)
{
	struct mimeo_step step = MIMEO_STEP_INIT;
	struct mimeo_step_row rows[N_ROWS];

	make_rows(m, rows);
	step.outputs = MIMEO_STEP_LOGITS | MIMEO_STEP_HIDDEN;
	struct mimeo_event event = step_wait(m, &step, rows, N_ROWS);
	assert_int_equal(event.status, 0);
	memcpy(ret->logits, event.logits, sizeof(ret->logits));
	memcpy(ret->hidden, event.hidden, sizeof(ret->hidden));
	mimeo_event_seen(m, &event);
	close_rows(m, rows);
}

static inline void assert_zero(const uint8_t *bytes, size_t n)
{
	for (size_t i = 0; i < n; i++)
		assert_int_equal(bytes[i], 0);
}

#endif
