/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_GRAPH_LADDER_H
#define MIMEO_DAEMON_GRAPH_LADDER_H

/*
 * The ladder of capture sizes, and the descriptors that it gives under a mode. Pure integers.
 *
 * A descriptor is the key of a graph. Capture, look-up and statistics use the same constructors, so
 * that a graph that was captured is found.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/graph/mode.h"
#include "kernels/rows_class.h"

#define LADDER_MAX 1024
#define LADDER_DEFAULT_MAX ROWS_CLASS_WIDE /* tokens of the default's largest graph, if no decode is wider */

struct ladder {
	uint32_t n;
	uint32_t sizes[LADDER_MAX]; /* tokens, ascending, distinct */
};

/* 1, 2, 4, every 8 to 248, every 16 to min(max_batch_tokens, max(LADDER_DEFAULT_MAX, max_requests * query)); that
 * maximum is always a member. */
void ladder_default(struct ladder *ret, uint32_t max_batch_tokens, uint32_t max_requests, uint32_t query);
/* A user's list, sorted and made distinct. -ERANGE with *ret_bad: a size outside
 * 1 ... max_batch_tokens; -E2BIG: more than LADDER_MAX sizes. */
int ladder_user(struct ladder *ret, const uint32_t *sizes, size_t n, uint32_t max_batch_tokens,
	uint32_t *ret_bad);

/* tokens, rounded down to a multiple of a quarter of the largest power of two that does not exceed it: 2048, 1792, 1536,
 * 1280, 1024, 896 ... They are the upper ends of the classes of rows for which products choose kernels (rows_class.h). */
uint32_t ladder_wide(uint32_t tokens);

struct descriptor {
	enum graph_mode mode; /* FULL or PIECEWISE; NONE: a batch that runs eager, not padded */
	uint32_t tokens;      /* Tp */
	uint32_t rows;        /* Rp; 0: any */
	uint32_t query_len;   /* uniform; 0: any */
};

/* FULL, for uniform decodes: the size rounded up to a multiple of query, at most max_requests rows. */
struct descriptor descriptor_decode(uint32_t size, uint32_t query, uint32_t max_requests);
/* FULL or PIECEWISE, for any batch: as many rows as so many tokens can have, or with PIECEWISE, whose
 * graphs know no rows, any. */
struct descriptor descriptor_mixed(enum graph_mode mode, uint32_t size, uint32_t max_requests);
/* The descriptor of a batch that runs eager, not padded. */
struct descriptor descriptor_eager(uint32_t rows, uint32_t tokens);
bool descriptor_equal(const struct descriptor *a, const struct descriptor *b);
/* "FULL 8x1", "FULL 64", "PIECEWISE 64", "NONE 64" */
void descriptor_format(const struct descriptor *d, char *buffer, size_t size);

/* Descriptors of a family, ascending and distinct; the number written to ret[LADDER_MAX]. */
uint32_t ladder_decode_family(const struct ladder *ladder, uint32_t query, uint32_t max_requests,
	struct descriptor *ret);
uint32_t ladder_mixed_family(const struct ladder *ladder, enum graph_mode mode,
	uint32_t max_requests, struct descriptor *ret);

/* The properties of a batch that decide which graph it replays. */
struct batch_shape {
	uint32_t rows, tokens;
	bool uniform;       /* all rows have the same query length ... */
	bool past_prompt;   /* ... and every request is past its prompt */
	uint32_t query_len; /* if uniform */
};

/* A decode: uniform queries, all past their prompts. Shape alone does not prove it: a prompt's chunk
 * has the same (vLLM #51865). */
static inline bool batch_is_decode(const struct batch_shape *shape)
{
	return shape->uniform && shape->past_prompt;
}

/* Index of the smallest descriptor of family[n] (ascending) that the batch fits, or -1. */
int descriptor_find(const struct descriptor *family, uint32_t n, const struct batch_shape *shape);

#endif
