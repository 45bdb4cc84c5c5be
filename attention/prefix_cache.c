/* SPDX-License-Identifier: MIT */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <utlist.h>
#include <xxhash.h>

#include "attention/prefix_cache.h"

struct prefix_node {
	uint64_t serial; /* 0: not registered; the other fields mean nothing then */
	uint64_t parent, salt, hash;
	struct prefix_node *next_in_bucket;
	struct prefix_node *prev, *next; /* of unused pages */
	bool unused;
};

struct prefix_cache {
	uint32_t max_pages, page_tokens;
	prefix_hash *hash;
	uint64_t secret; /* mixed with salts, so that clients cannot choose prompts that share a bucket */
	struct prefix_node *nodes;    /* [max_pages] */
	int32_t *ids;                 /* [max_pages, page_tokens] */
	struct prefix_node **buckets; /* [n_buckets] a power of two */
	uint64_t n_buckets;
	struct prefix_node *unused; /* the one used least recently first */
	uint32_t n_unused, n_registered;
	uint64_t last_serial;
	struct prefix_counts counts;
};

static uint64_t prefix_cache_xxh3(
	uint64_t parent, uint64_t salt, const int32_t *ids, uint32_t page_tokens)
{
	const uint64_t before[2] = {parent, salt};

	return XXH3_64bits_withSeed(
		ids, page_tokens * sizeof(*ids), XXH3_64bits(before, sizeof(before)));
}

/* ---- memory ---- */

int prefix_cache_new(uint32_t max_pages, uint32_t page_tokens, prefix_hash *hash,
	struct prefix_cache **ret)
{
	struct prefix_cache *prefix = calloc(1, sizeof(*prefix));

	assert(page_tokens > 0);
	if (!prefix)
		return -ENOMEM;
	prefix->max_pages = max_pages;
	prefix->page_tokens = page_tokens;
	prefix->hash = hash ? hash : prefix_cache_xxh3;
	if (getrandom(&prefix->secret, sizeof(prefix->secret), 0) != sizeof(prefix->secret)) {
		free(prefix);
		return -EIO;
	}
	for (prefix->n_buckets = 1; prefix->n_buckets < max_pages;)
		prefix->n_buckets *= 2;
	prefix->nodes = calloc(max_pages, sizeof(*prefix->nodes));
	prefix->ids = calloc(max_pages, page_tokens * sizeof(*prefix->ids));
	prefix->buckets = calloc(prefix->n_buckets, sizeof(struct prefix_node *));
	if (!prefix->nodes || !prefix->ids || !prefix->buckets) {
		prefix_cache_free(prefix);
		return -ENOMEM;
	}
	*ret = prefix;
	return 0;
}

void prefix_cache_free(struct prefix_cache *prefix)
{
	if (!prefix)
		return;
	free(prefix->buckets);
	free(prefix->ids);
	free(prefix->nodes);
	free(prefix);
}

/* ---- nodes ---- */

static struct prefix_node *prefix_cache_node(const struct prefix_cache *prefix, uint32_t page)
{
	assert(page > 0 && page < prefix->max_pages);
	return &prefix->nodes[page];
}

static struct prefix_node *prefix_cache_registered(
	const struct prefix_cache *prefix, uint32_t page)
{
	struct prefix_node *node = prefix_cache_node(prefix, page);

	assert(node->serial > 0 && node->serial <= prefix->last_serial);
	return node;
}

static uint32_t prefix_cache_page(
	const struct prefix_cache *prefix, const struct prefix_node *node)
{
	return (uint32_t)(node - prefix->nodes);
}

static int32_t *prefix_cache_ids(const struct prefix_cache *prefix, uint32_t page)
{
	return prefix->ids + (size_t)page * prefix->page_tokens;
}

static struct prefix_node **prefix_cache_bucket(const struct prefix_cache *prefix, uint64_t hash)
{
	return &prefix->buckets[hash & (prefix->n_buckets - 1)];
}

static void prefix_cache_unlink(struct prefix_cache *prefix, struct prefix_node *node)
{
	struct prefix_node **bucket = prefix_cache_bucket(prefix, node->hash);

	assert(node->serial && !node->unused && prefix->n_registered > 0);
	LL_DELETE2(*bucket, node, next_in_bucket);
	node->serial = 0;
	prefix->n_registered--;
}

static void prefix_cache_use(struct prefix_cache *prefix, struct prefix_node *node)
{
	assert(node->unused && prefix->n_unused > 0);
	DL_DELETE(prefix->unused, node);
	node->unused = false;
	prefix->n_unused--;
}

/* ---- the index ---- */

struct prefix_key prefix_cache_key(
	const struct prefix_cache *prefix, uint64_t parent, uint64_t salt, const int32_t *ids)
{
	assert(parent <= prefix->last_serial);
	return (struct prefix_key){
		.parent = parent,
		.salt = salt,
		.ids = ids,
		.hash = prefix->hash(parent, salt ^ prefix->secret, ids, prefix->page_tokens),
	};
}

uint32_t prefix_cache_find(const struct prefix_cache *prefix, const struct prefix_key *key)
{
	const struct prefix_node *node;

	for (node = *prefix_cache_bucket(prefix, key->hash); node; node = node->next_in_bucket) {
		uint32_t page = prefix_cache_page(prefix, node);

		if (node->hash == key->hash && node->parent == key->parent &&
			node->salt == key->salt && prefix_cache_holds(prefix, page, key->ids))
			return page;
	}
	return 0;
}

uint64_t prefix_cache_serial(const struct prefix_cache *prefix, uint32_t page)
{
	return prefix_cache_node(prefix, page)->serial;
}

bool prefix_cache_holds(const struct prefix_cache *prefix, uint32_t page, const int32_t *ids)
{
	prefix_cache_registered(prefix, page);
	return memcmp(prefix_cache_ids(prefix, page), ids, prefix->page_tokens * sizeof(*ids)) == 0;
}

uint64_t prefix_cache_add(struct prefix_cache *prefix, uint32_t page, const struct prefix_key *key)
{
	struct prefix_node *node = prefix_cache_node(prefix, page);
	struct prefix_node **bucket = prefix_cache_bucket(prefix, key->hash);

	assert(!node->serial && !prefix_cache_find(prefix, key));
	*node = (struct prefix_node){
		.serial = ++prefix->last_serial,
		.parent = key->parent,
		.salt = key->salt,
		.hash = key->hash,
	};
	memcpy(prefix_cache_ids(prefix, page), key->ids, prefix->page_tokens * sizeof(*key->ids));
	LL_PREPEND2(*bucket, node, next_in_bucket);
	prefix->n_registered++;
	prefix->counts.registered++;
	return node->serial;
}

void prefix_cache_remove(struct prefix_cache *prefix, uint32_t page)
{
	prefix_cache_unlink(prefix, prefix_cache_registered(prefix, page));
}

/* ---- unused pages ---- */

void prefix_cache_rest(struct prefix_cache *prefix, uint32_t page)
{
	struct prefix_node *node = prefix_cache_registered(prefix, page);

	assert(!node->unused && prefix->n_unused < prefix->n_registered);
	DL_APPEND(prefix->unused, node);
	node->unused = true;
	prefix->n_unused++;
}

void prefix_cache_hit(struct prefix_cache *prefix, uint32_t page)
{
	struct prefix_node *node = prefix_cache_registered(prefix, page);

	if (node->unused)
		prefix_cache_use(prefix, node);
	prefix->counts.hits++;
}

uint32_t prefix_cache_drop(struct prefix_cache *prefix)
{
	struct prefix_node *node = prefix->unused;

	assert(node);
	prefix_cache_use(prefix, node);
	prefix_cache_unlink(prefix, node);
	return prefix_cache_page(prefix, node);
}

uint32_t prefix_cache_evict(struct prefix_cache *prefix)
{
	prefix->counts.evicted++;
	return prefix_cache_drop(prefix);
}

uint32_t prefix_cache_n_registered(const struct prefix_cache *prefix)
{
	return prefix->n_registered;
}

uint32_t prefix_cache_n_unused(const struct prefix_cache *prefix)
{
	return prefix->n_unused;
}

struct prefix_counts prefix_cache_counts(const struct prefix_cache *prefix)
{
	return prefix->counts;
}

/* ---- checks ---- */

bool prefix_cache_unused(const struct prefix_cache *prefix, uint32_t page)
{
	const struct prefix_node *node = prefix_cache_node(prefix, page);

	return node->serial && node->unused;
}

void prefix_cache_check(const struct prefix_cache *prefix, uint32_t n_pages)
{
	uint32_t n_registered = 0, n_flags = 0, n_listed = 0;
	const struct prefix_node *node, *other;

	assert(n_pages <= prefix->max_pages && !prefix->nodes[0].serial);
	for (uint32_t page = 1; page < n_pages; page++) {
		uint32_t n_found = 0;

		if (!prefix_cache_serial(prefix, page))
			continue;
		node = prefix_cache_registered(prefix, page);
		LL_FOREACH2 (*prefix_cache_bucket(prefix, node->hash), other, next_in_bucket)
			n_found += other == node;
		assert(n_found == 1);
		n_registered++;
		n_flags += node->unused;
	}
	DL_FOREACH (prefix->unused, node) {
		assert(node->serial && node->unused && n_listed < n_flags);
		n_listed++;
	}
	assert(n_registered == prefix->n_registered);
	assert(n_listed == n_flags && n_listed == prefix->n_unused);
}
