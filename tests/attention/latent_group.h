/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_ATTENTION_LATENT_GROUP_H
#define MIMEO_TESTS_ATTENTION_LATENT_GROUP_H

/* The backends and shapes of the programs that test latent attention, on the device of
 * MIMEO_DEVICE. */

#include <errno.h>

#include "attention/mla/mla.h"
#include "tests/attention/fixture.h"

/* The first N_MLA are those that graphs may hold; the last has kernels for the cpu device alone. */
#define N_BACKENDS 3u
#define N_MLA 2u
static const char *const latent_backends[N_BACKENDS] = { "mla", "mla_planned", "naive" };

static inline size_t latent_n_backends(void)
{
	return test_on_cuda() ? N_MLA : N_BACKENDS;
}

/* Splits of 64 keys, five of them. */
static const struct shape latent_ordinary = {
	.n_heads = 3, .latent = { .rank = 20, .nope = 6, .rope = 4, .v = 7 }, .page_tokens = 4,
	.max_seq_len = 300,
};
/* DeepSeek's rank and rope, for which a device may have kernels of their own. */
static const struct shape latent_deepseek = {
	.n_heads = 3, .latent = { .rank = 512, .nope = 8, .rope = 64, .v = 8 }, .page_tokens = 16,
	.max_seq_len = 300,
};
static const struct shape *const latent_shapes[] = { &latent_ordinary, &latent_deepseek };

#endif
