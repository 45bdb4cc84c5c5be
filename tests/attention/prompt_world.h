/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_ATTENTION_PROMPT_WORLD_H
#define MIMEO_TESTS_ATTENTION_PROMPT_WORLD_H

/*
 * A small world for prompts that are not absorbed, on the device of tests/device.h: what a token
 * has is a function of (its row's seed, position, element), rounded as the device keeps it;
 * whatever nobody may read is NaN, and table entries past the used pages are garbage. A dense
 * reference in double expands keys and values, and knows nothing of pages, pieces or chunks. Chunks
 * are as small as the kernels can stand, or as large as they come. The device is locked before the
 * first run.
 */

#include "attention/mla/mla_prompt.h"
#include "tests/device_memory.h"

#define PROMPT_ROWS 40u
#define PROMPT_TOKENS 6000u

struct prompt_shape {
	uint32_t n_heads, rank, nope, rope, v, page_tokens, max_seq_len;
	bool small; /* chunks */
	bool far;   /* pages beyond 2^31 elements */
};

struct prompt_row {
	uint32_t seed, n_query, seq_len;
	uint32_t gap; /* tokens of others before it */
};

struct prompt_world {
	struct device *device;
	struct stream *stream;
	const struct prompt_shape *shape;
	struct attention_config config;
	struct mla_prompt_kernels kernels;
	struct mla_prompt *prompt;
	uint32_t q_width, q_stride, out_width, n_tokens;
	size_t act, kv_bytes, granularity;
	void *kv, *q, *out;
	int32_t *block_table;
	struct weight kv_b;
	struct mla_prompt_row rows[PROMPT_ROWS];
	/* of one head, expanded: [max_seq_len, nope + rope], [max_seq_len, v] */
	double *keys, *values;
};

void prompt_init(struct prompt_world *w, const struct prompt_shape *shape);
void prompt_deinit(struct prompt_world *w);
void prompt_place(struct prompt_world *w, const struct prompt_row *rows, uint32_t n_rows);
/* The output of what was placed, on the host (malloc); NaN where nothing was written. */
void *prompt_run(struct prompt_world *w, uint32_t n_rows);
/* Element i of such an array. */
float prompt_get(const struct prompt_world *w, const void *array, size_t i);
/* Place, run, and look at the tokens that are most at risk. */
void prompt_check(struct prompt_world *w, const struct prompt_row *rows, uint32_t n_rows);

#endif
