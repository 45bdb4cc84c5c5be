/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_EXAMPLES_MAKE_CHECKPOINT_WEIGHTS_H
#define MIMEO_EXAMPLES_MAKE_CHECKPOINT_WEIGHTS_H

/*
 * A model's tensors as bf16 safetensors, in shards with an index where they exceed the limit.
 * Threads take chunks in turn from all shards, since a file system lets one write at a time into a
 * file.
 */

#include "examples/make-checkpoint/model.h"

#define THREADS_MAX 256u

struct weights_options {
	const char *directory;
	uint64_t seed, shard_bytes; /* the most tensor bytes of a file */
	uint32_t n_threads;         /* 1 to THREADS_MAX */
};

/* 0, or -1 with a sentence: what this call made is gone again, files that were there before are
 * not ours. Shows its progress if standard error is a terminal. */
int weights_write(
	const struct model *model, const struct weights_options *options, uint32_t *ret_n_files);

/* Seconds of the monotonic clock. */
double weights_now(void);

#endif
