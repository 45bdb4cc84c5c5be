/* SPDX-License-Identifier: MIT */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "attention/kv_pages.h"

/* Keys, and values if there are any. */
static uint64_t kv_cache_halves(const struct kv_config *config)
{
	return config->keys_only ? 1 : 2;
}

uint64_t kv_layer_page_bytes(const struct kv_config *config)
{
	return kv_cache_halves(config) * config->page_tokens * config->n_kv_heads * config->head_dim *
	       dtype_bytes(config->dtype);
}

uint64_t kv_page_bytes(const struct kv_config *config)
{
	return kv_layer_page_bytes(config) * config->n_layers;
}

/* ---- memory ---- */

static size_t kv_cache_round_up(size_t bytes, size_t unit)
{
	assert(unit > 0);
	return (bytes + unit - 1) / unit * unit;
}

/* A range of at least `bytes` that is a multiple of the granularity, which only reserve reports: a
 * range of another size is given back, and reserved a second time. */
static int kv_cache_reserve(struct kv_cache *cache, size_t bytes, void **ret)
{
	const struct device_ops *ops = cache->device->ops;
	size_t rounded;
	int rc = ops->reserve(cache->device, bytes, ret, &cache->granularity);

	if (rc)
		return rc;
	rounded = kv_cache_round_up(bytes, cache->granularity);
	if (rounded != bytes) {
		ops->release(cache->device, *ret, bytes);
		*ret = NULL;
		rc = ops->reserve(cache->device, rounded, ret, &cache->granularity);
		if (rc)
			return rc;
		assert(rounded % cache->granularity == 0);
	}
	cache->range_bytes = rounded;
	return 0;
}

static void kv_cache_unmap(struct kv_cache *cache, uint32_t n_layers, size_t from, size_t to)
{
	for (uint32_t layer = 0; from < to && layer < n_layers; layer++)
		cache->device->ops->unmap(cache->device, cache->layers[layer], from, to - from);
}

/* All layers or none. */
static int kv_cache_map_layers(struct kv_cache *cache, size_t bytes)
{
	const struct device_ops *ops = cache->device->ops;
	size_t from = cache->mapped_bytes, to = kv_cache_round_up(bytes, cache->granularity);

	if (to <= from)
		return 0;
	assert(to <= cache->range_bytes && from % cache->granularity == 0);
	for (uint32_t layer = 0; layer < cache->config.n_layers; layer++) {
		int rc = ops->map(cache->device, cache->layers[layer], from, to - from);

		if (rc) {
			kv_cache_unmap(cache, layer, from, to);
			return rc;
		}
	}
	cache->mapped_bytes = to;
	return 0;
}

int kv_cache_map(struct kv_cache *cache, uint32_t n_pages)
{
	uint32_t first = cache->n_pages;
	int rc;

	if (n_pages > cache->config.max_pages)
		return -EINVAL;
	if (n_pages <= first)
		return 0;
	rc = kv_cache_map_layers(cache, kv_layer_page_bytes(&cache->config) * n_pages);
	if (rc)
		return rc;
	for (uint32_t page = n_pages; page-- > (first ? first : 1);)
		cache->free_pages[cache->n_free++] = page;
	cache->n_pages = n_pages;
	assert(cache->n_free < cache->n_pages && cache->n_pages <= cache->config.max_pages);
	assert(cache->mapped_bytes >= kv_layer_page_bytes(&cache->config) * n_pages);
	return 0;
}

static int kv_cache_zero_null_page(struct kv_cache *cache)
{
	size_t bytes = kv_layer_page_bytes(&cache->config);
	void *zeros = calloc(1, bytes);
	int rc = 0;

	if (!zeros)
		return -ENOMEM;
	for (uint32_t layer = 0; !rc && layer < cache->config.n_layers; layer++)
		rc = cache->device->ops->copy(cache->device, cache->layers[layer], zeros, bytes);
	free(zeros);
	return rc;
}

static int kv_cache_config_check(const struct kv_config *config, uint32_t n_first)
{
	uint64_t bytes;

	if (!config->n_layers || !config->n_kv_heads || !config->head_dim || !config->page_tokens)
		return -EINVAL;
	if (config->n_sets > KV_SETS_MAX || config->n_full_sets > config->n_sets ||
		(config->n_sets > config->n_full_sets && !config->window))
		return -EINVAL;
	if (config->max_pages > INT32_MAX || n_first >= config->max_pages)
		return -EINVAL;
	if (__builtin_mul_overflow(
		    kv_cache_halves(config) * config->page_tokens, config->n_kv_heads, &bytes) ||
		__builtin_mul_overflow(bytes, config->head_dim, &bytes) ||
		__builtin_mul_overflow(bytes, dtype_bytes(config->dtype), &bytes) ||
		__builtin_mul_overflow(bytes, config->max_pages, &bytes) ||
		__builtin_mul_overflow(bytes, config->n_layers, &bytes) || bytes > PTRDIFF_MAX)
		return -EINVAL;
	return 0;
}

static int kv_cache_fill(struct kv_cache *cache, uint32_t n_first)
{
	const struct kv_config *config = &cache->config;
	int rc;

	cache->layers = calloc(config->n_layers, sizeof(*cache->layers));
	cache->references = calloc(config->max_pages, sizeof(*cache->references));
	cache->free_pages = calloc(config->max_pages, sizeof(*cache->free_pages));
	if (!cache->layers || !cache->references || !cache->free_pages)
		return -ENOMEM;
	if (config->prefix_cache) {
		rc = prefix_cache_new(config->max_pages, config->page_tokens, config->prefix_hash,
			&cache->prefix);
		if (rc)
			return rc;
	}
	for (uint32_t layer = 0; layer < config->n_layers; layer++) {
		rc = kv_cache_reserve(cache, kv_layer_page_bytes(config) * config->max_pages,
			&cache->layers[layer]);
		if (rc)
			return rc;
	}
	rc = kv_cache_map(cache, n_first + 1);
	return rc ? rc : kv_cache_zero_null_page(cache);
}

int kv_cache_new(struct device *device, const struct kv_config *config, uint32_t n_first,
	struct kv_cache **ret)
{
	struct kv_cache *cache;
	int rc = kv_cache_config_check(config, n_first);

	if (rc)
		return rc;
	cache = calloc(1, sizeof(*cache));
	if (!cache)
		return -ENOMEM;
	cache->device = device;
	cache->config = *config;
	if (!config->n_sets)
		cache->config.n_sets = cache->config.n_full_sets = 1;
	rc = kv_cache_fill(cache, n_first);
	if (rc) {
		kv_cache_free(cache);
		return rc;
	}
	*ret = cache;
	return 0;
}

void kv_cache_free(struct kv_cache *cache)
{
	if (!cache)
		return;
	if (cache->layers) {
		kv_cache_unmap(cache, cache->config.n_layers, 0, cache->mapped_bytes);
		for (uint32_t layer = cache->config.n_layers; layer-- > 0;)
			if (cache->layers[layer])
				cache->device->ops->release(cache->device, cache->layers[layer],
					cache->range_bytes);
	}
	prefix_cache_free(cache->prefix);
	free(cache->free_pages);
	free(cache->references);
	free(cache->layers);
	free(cache);
}

void *kv_layer(const struct kv_cache *cache, uint32_t layer)
{
	assert(layer < cache->config.n_layers);
	return cache->layers[layer];
}

const struct kv_config *kv_cache_config(const struct kv_cache *cache)
{
	return &cache->config;
}

/* ---- pages ---- */

uint32_t kv_pages_within(const struct kv_cache *cache, uint64_t bytes)
{
	uint64_t layer = bytes / cache->config.n_layers / cache->granularity * cache->granularity;
	uint64_t n = (cache->mapped_bytes + layer) / kv_layer_page_bytes(&cache->config);

	assert(cache->granularity > 0);
	if (n > cache->config.max_pages)
		n = cache->config.max_pages;
	return n ? (uint32_t)n - 1 : 0;
}

uint32_t kv_pages_total(const struct kv_cache *cache)
{
	assert(cache->n_pages > 0 && cache->n_free < cache->n_pages);
	return cache->n_pages - 1;
}

uint32_t kv_prefix_pages_registered(const struct kv_cache *cache)
{
	return cache->prefix ? prefix_cache_n_registered(cache->prefix) : 0;
}

uint32_t kv_prefix_pages_unused(const struct kv_cache *cache)
{
	return cache->prefix ? prefix_cache_n_unused(cache->prefix) : 0;
}

uint32_t kv_pages_free(const struct kv_cache *cache)
{
	return cache->n_free + kv_prefix_pages_unused(cache);
}

uint32_t kv_references(const struct kv_cache *cache, uint32_t page)
{
	return page < cache->n_pages ? cache->references[page] : 0;
}

void kv_pages_assert_used(const struct kv_cache *cache, uint32_t page)
{
	assert(page > 0 && page < cache->n_pages);
	assert(cache->references[page] > 0);
}

bool kv_pages_registered(const struct kv_cache *cache, uint32_t page)
{
	return cache->prefix && prefix_cache_serial(cache->prefix, page) != 0;
}

uint32_t kv_pages_take(struct kv_cache *cache)
{
	uint32_t page;

	assert(kv_pages_free(cache) > 0);
	page = cache->n_free ? cache->free_pages[--cache->n_free]
			     : prefix_cache_evict(cache->prefix);
	assert(page > 0 && page < cache->n_pages);
	assert(cache->references[page] == 0 && !kv_pages_registered(cache, page));
	cache->references[page] = 1;
	return page;
}

static void kv_cache_free_page(struct kv_cache *cache, uint32_t page)
{
	assert(cache->references[page] == 0 && cache->n_free + 1 < cache->n_pages);
	cache->free_pages[cache->n_free++] = page;
}

void kv_release(struct kv_cache *cache, const uint32_t *pages, uint32_t n_pages)
{
	for (uint32_t i = n_pages; i-- > 0;) {
		uint32_t page = pages[i];

		kv_pages_assert_used(cache, page);
		if (--cache->references[page] > 0)
			continue;
		if (kv_pages_registered(cache, page))
			prefix_cache_rest(cache->prefix, page);
		else
			kv_cache_free_page(cache, page);
	}
}

void kv_check(const struct kv_cache *cache)
{
	uint32_t n_idle = 0;

	for (uint32_t i = 0; i < cache->n_free; i++) {
		uint32_t page = cache->free_pages[i];

		assert(page > 0 && page < cache->n_pages);
		assert(!cache->references[page] && !kv_pages_registered(cache, page));
	}
	for (uint32_t page = 1; page < cache->n_pages; page++) {
		n_idle += !cache->references[page];
		if (kv_pages_registered(cache, page))
			assert(prefix_cache_unused(cache->prefix, page) == !cache->references[page]);
	}
	assert(!cache->references[0] && n_idle == kv_pages_free(cache));
	if (cache->prefix)
		prefix_cache_check(cache->prefix, cache->n_pages);
}

uint32_t kv_prefix_drop(struct kv_cache *cache, uint32_t most)
{
	uint32_t n = 0;

	for (; n < most && kv_prefix_pages_unused(cache); n++)
		kv_cache_free_page(cache, prefix_cache_drop(cache->prefix));
	return n;
}

struct prefix_counts kv_prefix_counts(const struct kv_cache *cache)
{
	return cache->prefix ? prefix_cache_counts(cache->prefix) : (struct prefix_counts){0};
}
