/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_KV_SETS_H
#define MIMEO_ATTENTION_KV_SETS_H

/*
 * Which layers' keys and values lie in a page.
 *
 * Layers with a sliding window need the last tokens of a sequence alone. So that their memory can be given back, the
 * layers of a model are divided into SETS of n_layers each: those without a window first, then those with one. A page
 * holds page_tokens tokens of one set, and a sequence has pages of each set. All pages are of one size, and all sets
 * take them from one pool: no memory is divided in advance between long sequences and many. (vLLM's hybrid KV cache
 * manager divides layers in this way.) The last set of either kind may have fewer layers than its pages have room for.
 *
 * A model without windows that are shorter than its sequences has one set.
 */

#include <stdint.h>

#define KV_SETS_MAX 8u
#define KV_SETS_LAYERS_MAX 1024u
/* Tokens before a window that are kept, so that a sequence may be cut by so many and go on. */
#define KV_WINDOW_SLACK 64u

/* Units that hold n. */
static inline uint32_t kv_ceil_div(uint32_t n, uint32_t unit)
{
	return n / unit + (n % unit != 0);
}

struct kv_sets {
	uint32_t n;        /* 0 counts as 1: one set, of all layers */
	/* The first ones, whose pages are all kept: layers without a window, or with one about as long as the longest
	 * sequence. */
	uint32_t n_full;
	uint32_t n_layers; /* that a page has room for */
	uint32_t window;   /* the longest of the other sets' layers, itself included; 0: there are no other sets */
	uint8_t set[KV_SETS_LAYERS_MAX];    /* of each layer of the model ... */
	uint16_t place[KV_SETS_LAYERS_MAX]; /* ... and its place in the set's pages */
};

/* For layers with these windows (0: none; NULL: none has one) and sequences of max_seq_len tokens. */
void kv_sets_divide(const uint32_t *windows, uint32_t n_layers, uint32_t max_seq_len, uint32_t page_tokens,
	struct kv_sets *ret);

#endif
