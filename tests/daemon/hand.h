/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_DAEMON_HAND_H
#define MIMEO_TESTS_DAEMON_HAND_H

/*
 * The lane driven by hand: an engine's own executor, graphs, inputs and KV cache, while the engine
 * has nothing to do. Sequence i has slot i and pages of its own; which token stands at a position,
 * slot and position decide.
 */

#include "tests/daemon/rig.h"

#define HAND_ROWS 16u
#define HAND_PAGES 4u   /* of a slot */
#define HAND_TOKENS 64u /* of a slot: the longest sequence, too */
#define HAND_VOCAB 256u

struct hand {
	struct rig rig;
	struct runner *runner;
	struct stream *lane;
	struct graph_set queries; /* decodes of several tokens; empty before hand_capture_queries */
	size_t layer_bytes;       /* mapped, null page counted in */
	uint8_t *cache;           /* [n_layers, layer_bytes] as hand_poison left it */
};

/* Positions start ... start + n_tokens - 1 of a slot's sequence. */
struct hand_row {
	int32_t slot;
	uint32_t n_tokens, start;
};

/* An engine with those options, but for pages and the longest sequence. */
void hand_open(struct hand *hand, const struct rig_options *options);
void hand_close(struct hand *hand);
/* Graphs for decodes of `query` tokens, of these ladder sizes. */
void hand_capture_queries(
	struct hand *hand, uint32_t query, const uint32_t *sizes, uint32_t n_sizes);

/* One step, to its end: under that graph, or eager if NULL. The executor's answer. */
int hand_try(struct hand *hand, const struct hand_row *rows, uint32_t n,
	const struct graph_entry *entry);
/* Must succeed. Logits of the rows go to ret [n, HAND_VOCAB], if not NULL. */
void hand_run(struct hand *hand, const struct hand_row *rows, uint32_t n,
	const struct graph_entry *entry, float *ret);
/* The graph that such a batch takes, past its prompt or not; must be there. */
struct graph_entry *hand_graph(
	struct hand *hand, const struct hand_row *rows, uint32_t n, bool past_prompt);
/* The first `length` positions of each of the slots 0 ... n - 1, eagerly. */
void hand_prefill(struct hand *hand, uint32_t n, uint32_t length);

/* Make all memory of the KV cache that holds no history of the rows NaN, the null page too. */
void hand_poison(struct hand *hand, const struct hand_row *rows, uint32_t n);
/* Since hand_poison the rows' tokens were written, and nothing else. */
void hand_assert_written(
	struct hand *hand, const struct hand_row *rows, uint32_t n, const char *what);
/* Fill device memory. */
void hand_fill(struct hand *hand, void *memory, uint8_t value, size_t bytes);
/* Logits of n rows: equal on the cpu device, close on others. */
void hand_assert_logits(const float *logits, const float *expected, uint32_t n, const char *what);

#endif
