/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_DAEMON_MANUAL_H
#define MIMEO_TESTS_DAEMON_MANUAL_H

/*
 * The lane driven by hand: an engine's own executor, graphs, inputs and KV cache, while the engine
 * has nothing to do. Sequence i has slot i and pages of its own; which token stands at a position,
 * slot and position decide.
 */

#include "tests/daemon/rig.h"

#define MANUAL_ROWS 16u
#define MANUAL_PAGES 4u   /* of a slot */
#define MANUAL_TOKENS 64u /* of a slot: the longest sequence, too */
#define MANUAL_VOCAB 256u

struct manual {
	struct rig rig;
	struct runner *runner;
	struct stream *lane;
	struct graph_set queries; /* decodes of several tokens; empty before manual_capture_queries */
	size_t layer_bytes;       /* mapped, null page counted in */
	uint8_t *cache;           /* [n_layers, layer_bytes] as manual_poison left it */
};

/* Positions start ... start + n_tokens - 1 of a slot's sequence. */
struct manual_row {
	int32_t slot;
	uint32_t n_tokens, start;
};

/* An engine with those options, but for pages and the longest sequence. */
void manual_open(struct manual *manual, const struct rig_options *options);
void manual_close(struct manual *manual);
/* Fixtures: *state is the options, then such an engine. */
int manual_setup(void **state);
int manual_teardown(void **state);
#define MANUAL_TEST(test, ...)                                                                     \
	{#test, test, manual_setup, manual_teardown, &(struct rig_options){__VA_ARGS__}}
/* Graphs for decodes of `query` tokens, of these ladder sizes. */
void manual_capture_queries(
	struct manual *manual, uint32_t query, const uint32_t *sizes, uint32_t n_sizes);

/* One step, to its end: under that graph, or eager if NULL. The executor's answer. */
int manual_try(struct manual *manual, const struct manual_row *rows, uint32_t n,
	const struct graph_entry *entry);
/* Must succeed. Logits of the rows go to ret [n, MANUAL_VOCAB], if not NULL. */
void manual_run(struct manual *manual, const struct manual_row *rows, uint32_t n,
	const struct graph_entry *entry, float *ret);
/* The graph that such a batch takes, past its prompt or not; must be there. */
struct graph_entry *manual_graph(
	struct manual *manual, const struct manual_row *rows, uint32_t n, bool past_prompt);
/* The first `length` positions of each of the slots 0 ... n - 1, eagerly. */
void manual_prefill(struct manual *manual, uint32_t n, uint32_t length);

/* Make all memory of the KV cache that holds no history of the rows NaN, the null page too. */
void manual_poison(struct manual *manual, const struct manual_row *rows, uint32_t n);
/* Since manual_poison the rows' tokens were written, and nothing else. */
void manual_assert_written(
	struct manual *manual, const struct manual_row *rows, uint32_t n, const char *what);
/* Fill device memory. */
void manual_fill(struct manual *manual, void *memory, uint8_t value, size_t bytes);
/* Logits of n rows: equal on the cpu device, close on others. */
void manual_assert_logits(const float *logits, const float *expected, uint32_t n, const char *what);

#endif
