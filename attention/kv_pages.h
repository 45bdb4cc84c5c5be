/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_ATTENTION_KV_PAGES_H
#define MIMEO_ATTENTION_KV_PAGES_H

/* The cache's pages, for kv_cache.c, which counts them, and kv_table.c, whose tables name them. */

#include "attention/kv_cache.h"

struct kv_cache {
	struct device *device;
	struct kv_config config;
	void **layers;        /* [n_layers] reserved ranges */
	size_t range_bytes;   /* of each */
	size_t mapped_bytes;  /* from the front of each */
	size_t granularity;   /* of mapping */
	uint32_t n_pages;     /* that exist, the null page counted in */
	uint32_t n_free;
	uint32_t *references; /* [max_pages] */
	uint32_t *free_pages; /* [max_pages] a stack; the page freed last is given first */
	struct prefix_cache *prefix; /* or NULL */
};

/* Assert that the page is in use, so never the null page. */
void kv_pages_assert_used(const struct kv_cache *cache, uint32_t page);
bool kv_pages_registered(const struct kv_cache *cache, uint32_t page);
/* A free page, else the one that has been unused for longest. */
uint32_t kv_pages_take(struct kv_cache *cache);

#endif
