/* SPDX-License-Identifier: MIT */
#include "attention/kv_sets.h"

#include <assert.h>

/* Is the window so short that pages leave it? */
static int kv_sets_is_short(uint32_t window, uint32_t max_seq_len, uint32_t page_tokens)
{
	return window && (uint64_t)window + KV_WINDOW_SLACK + 2 * (uint64_t)page_tokens < max_seq_len;
}

/* The smallest number of layers a page, so that few pages have room for layers that there are not, with which there are
 * not too many sets. */
static uint32_t kv_sets_room(uint32_t n_full, uint32_t n_short)
{
	uint32_t room = n_full && n_full < n_short ? n_full : n_short;

	while (kv_ceil_div(n_full, room) + kv_ceil_div(n_short, room) > KV_SETS_MAX)
		room++;
	return room;
}

void kv_sets_divide(const uint32_t *windows, uint32_t n_layers, uint32_t max_seq_len, uint32_t page_tokens,
	struct kv_sets *ret)
{
	struct kv_sets sets = {.n = 1, .n_full = 1, .n_layers = n_layers};
	uint32_t n_short = 0, n[2] = {0};

	assert(n_layers && n_layers <= KV_SETS_LAYERS_MAX);
	for (uint32_t i = 0; windows && i < n_layers; i++) {
		if (!kv_sets_is_short(windows[i], max_seq_len, page_tokens))
			continue;
		n_short++;
		sets.window = windows[i] > sets.window ? windows[i] : sets.window;
	}
	if (n_short) {
		sets.n_layers = kv_sets_room(n_layers - n_short, n_short);
		sets.n_full = kv_ceil_div(n_layers - n_short, sets.n_layers);
		sets.n = sets.n_full + kv_ceil_div(n_short, sets.n_layers);
	}
	for (uint32_t i = 0; i < n_layers; i++) {
		const int is_short = windows && kv_sets_is_short(windows[i], max_seq_len, page_tokens);
		const uint32_t at = n[is_short]++;

		sets.set[i] = (uint8_t)((is_short ? sets.n_full : 0) + at / sets.n_layers);
		sets.place[i] = (uint16_t)(at % sets.n_layers);
	}
	assert(sets.n <= KV_SETS_MAX);
	*ret = sets;
}
