/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_EXAMPLES_MAKE_CHECKPOINT_WEIGHTS_H
#define MIMEO_EXAMPLES_MAKE_CHECKPOINT_WEIGHTS_H

/*
 * A model's tensors as bf16 safetensors, in shards with an index where they exceed the limit, written
 * in chunks by several threads.
 */

#include "examples/make-checkpoint/model.h"

#define THREADS_MAX 256u

struct weights_options {
	const char *directory;
	uint64_t seed, shard_bytes; /* the most tensor bytes of a file */
	uint32_t n_threads;         /* 1 to THREADS_MAX */
};

/* 0, or -1 with a sentence: what this call made is removed again, files that were there before stay. */
int weights_write(
	const struct model *model, const struct weights_options *options, uint32_t *ret_n_files);

/* Seconds of the monotonic clock. */
double weights_now(void);

#endif
