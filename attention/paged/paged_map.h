/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_PAGED_PAGED_MAP_H
#define MIMEO_ATTENTION_PAGED_PAGED_MAP_H

/*
 * A layer's cache as the copy engine of 9.0 sees it (CUtensorMap), innermost first: 64 elements (32
 * where head_dim is no multiple), 8 tokens, the head_dim / 64 such parts of each of n_kv_heads, all
 * else by 8 tokens. A box is one head of min(page_tokens, n_keys) tokens.
 */

#include "attention/paged/paged_cuda.h"

/* What makes tensor maps: a function of the driver. */
typedef void paged_encode_fn(void);

/* NULL: this driver has none. */
paged_encode_fn *paged_map_encode(void);
/* 0, or the condition. Nothing is asked of the device. */
int paged_map_make(struct device *device, paged_encode_fn *encode,
	const struct attention_config *config, const void *kv, uint32_t n_keys,
	struct paged_tensor_map *ret);

#endif
