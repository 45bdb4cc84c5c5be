/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_CHAT_DICT_H
#define MIMEO_SDK_TEXT_CHAT_DICT_H

/* Dicts in the order of insertion, and the equality of values on which they and `==` depend. */

#include "sdk/text/chat_value.h"

struct chat_pair {
	struct chat_value key, value;
	uint64_t hash;
};

struct chat_dict {
	struct chat_pair *pairs; /* [n] */
	size_t n, capacity;
	uint32_t *index; /* [n_index] positions in `pairs` + 1 by hash, 0: free; NULL: few pairs */
	size_t n_index;  /* a power of two */
};

struct chat_value chat_dict_new(struct chat_context *context);
/* Whether it can be a key: lists and dicts cannot, and tuples that contain them. */
bool chat_is_hashable(struct chat_context *context, struct chat_value value);
/* NULL: there is no such key. One that cannot be a key is a TypeError. */
struct chat_value *chat_dict_find(
	struct chat_context *context, const struct chat_dict *dict, struct chat_value key);
struct chat_value *chat_dict_find_name(
	struct chat_context *context, const struct chat_dict *dict, const char *name);
void chat_dict_set(struct chat_context *context, struct chat_dict *dict, struct chat_value key,
	struct chat_value value);

/* `==`. */
bool chat_equal(struct chat_context *context, struct chat_value a, struct chat_value b);
/* < 0, 0, > 0: the order of two numbers; NaN is in no order: 2. */
int chat_number_order(struct chat_value a, struct chat_value b);

#endif
