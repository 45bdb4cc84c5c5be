/* SPDX-License-Identifier: MIT */

/*
 * A random walk of sequences over few different tokens, which take each other's pages all the time,
 * beside a model. In the model's device memory each token of a page is the whole sequence up to it:
 * a page that is right for a token only by its own ids, not by those before it, is found out. The
 * model of the index is a search of all pages, with times instead of a list.
 */

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/attention/kv_users.h"
#include "tests/device_memory.h"
#include "tests/random.h"

#define PAGE_TOKENS 2u
#define N_PAGES 20u /* without the null page */
#define WALKERS 5u
#define CAPACITY 6u
#define MAX_TOKENS (CAPACITY * PAGE_TOKENS)
#define HELD_MAX 256u
#define N_STEPS 100000

/* A sequence's tokens up to one of them: what its keys and values depend on. */
struct history {
	uint64_t salt;
	uint32_t n;
	int32_t ids[MAX_TOKENS]; /* zero behind n */
};

struct page {
	struct history memory[PAGE_TOKENS];
	uint32_t users;
	uint64_t serial; /* 0: not registered */
	uint64_t parent, salt;
	int32_t ids[PAGE_TOKENS];
	uint64_t released; /* when it lost its last user */
};

struct walker {
	struct kv_table table;
	struct history tokens;
	uint64_t serials[CAPACITY];
	uint32_t n_chained;
};

struct walk {
	struct device *device;
	struct kv_cache *cache;
	struct walker walkers[WALKERS];
	struct page pages[N_PAGES + 1];
	uint32_t held[HELD_MAX], n_held; /* to be released */
	uint64_t random, now, last_serial;
	struct prefix_counts counts;
	uint32_t n_copies, n_refusals, n_rewritten, n_equal;
};

static uint32_t draw(struct walk *w, uint32_t n)
{
	return random_below(&w->random, n);
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* ---- the model ---- */

static uint32_t model_find(
	const struct walk *w, uint64_t parent, uint64_t salt, const int32_t *ids)
{
	for (uint32_t i = 1; i <= N_PAGES; i++) {
		const struct page *page = &w->pages[i];

		if (page->serial && page->parent == parent && page->salt == salt &&
			memcmp(page->ids, ids, sizeof(page->ids)) == 0)
			return i;
	}
	return 0;
}

/* Pages without users, registered or not. */
static uint32_t model_idle(const struct walk *w, bool registered)
{
	uint32_t n = 0;

	for (uint32_t i = 1; i <= N_PAGES; i++)
		n += !w->pages[i].users && !w->pages[i].serial == !registered;
	return n;
}

/* The cache gave this page: was it right to? */
static void model_given(struct walk *w, uint32_t given)
{
	struct page *page = &w->pages[given];

	assert_int_equal(page->users, 0);
	if (page->serial) {
		assert_int_equal(model_idle(w, false), 0);
		for (uint32_t i = 1; i <= N_PAGES; i++)
			assert_true(w->pages[i].users || w->pages[i].released >= page->released);
		page->serial = 0;
		w->counts.evicted++;
	}
	page->users = 1;
	memset(page->memory, 0xff, sizeof(page->memory));
}

static void model_release(struct walk *w, const uint32_t *pages, uint32_t n)
{
	while (n-- > 0) {
		assert_true(w->pages[pages[n]].users > 0);
		if (--w->pages[pages[n]].users == 0)
			w->pages[pages[n]].released = ++w->now;
	}
}

/* ---- steps ---- */

static void walk_take(struct walk *w, struct walker *walker)
{
	struct history *tokens = &walker->tokens;
	uint32_t n_ids = draw(w, MAX_TOKENS + 1), n = 0, page;
	int32_t ids[MAX_TOKENS];
	uint64_t parent = 0;

	if (walker->table.n_pages)
		return;
	for (uint32_t i = 0; i < n_ids; i++)
		ids[i] = (int32_t)draw(w, 2);
	*tokens = (struct history){.salt = draw(w, 2)};
	assert_int_equal(walker->n_chained, 0);
	for (; n < n_ids / PAGE_TOKENS; n++) {
		page = model_find(w, parent, tokens->salt, ids + n * PAGE_TOKENS);
		if (!page)
			break;
		parent = walker->serials[n] = w->pages[page].serial;
		w->pages[page].users++;
		w->counts.hits++;
	}
	assert_int_equal(
		kv_prefix_take(w->cache, &walker->table, tokens->salt, ids, n_ids), n);
	walker->n_chained = n;
	tokens->n = n * PAGE_TOKENS;
	memcpy(tokens->ids, ids, tokens->n * sizeof(*ids));
}

static void walk_write(struct walk *w, struct walker *walker, uint32_t n_new)
{
	struct history *tokens = &walker->tokens;

	for (uint32_t i = 0; i < n_new; i++) {
		tokens->ids[tokens->n++] = (int32_t)draw(w, 2);
		w->pages[walker->table.pages[(tokens->n - 1) / PAGE_TOKENS]]
			.memory[(tokens->n - 1) % PAGE_TOKENS] = *tokens;
	}
}

static void walk_extend(struct walk *w, struct walker *walker)
{
	struct kv_table *table = &walker->table;
	uint32_t copies[CAPACITY][2], n_copies = 0, n = walker->tokens.n, n_new = 1 + draw(w, 6);
	uint32_t before = table->n_pages, needed = kv_pages_needed(w->cache, table, n, n_new);
	uint32_t first = n / PAGE_TOKENS, old[CAPACITY];
	bool fits = n + n_new <= MAX_TOKENS &&
		    needed <= model_idle(w, false) + model_idle(w, true);

	memcpy(old, table->pages, before * sizeof(*old));
	assert_int_equal(
		kv_extend(w->cache, table, n, n_new, copies, &n_copies), fits ? 0 : -ENOSPC);
	if (!fits) {
		w->n_refusals++;
		return;
	}
	for (uint32_t i = first, c = 0; i < table->n_pages; i++) {
		struct page *page = &w->pages[table->pages[i]];

		if (i >= before) {
			model_given(w, table->pages[i]);
		} else if (w->pages[old[i]].users > 1) {
			assert_true(c < n_copies && copies[c][0] == old[i]);
			assert_int_equal(copies[c++][1], table->pages[i]);
			model_given(w, table->pages[i]);
			memcpy(page->memory, w->pages[old[i]].memory, sizeof(page->memory));
			w->held[w->n_held++] = old[i];
			w->n_copies++;
		} else {
			assert_int_equal(table->pages[i], old[i]);
			w->n_rewritten += page->serial != 0;
			page->serial = 0;
		}
	}
	walker->n_chained = smaller(walker->n_chained, first);
	walk_write(w, walker, n_new);
}

static void walk_add(struct walk *w, struct walker *walker)
{
	const struct history *tokens = &walker->tokens;
	uint32_t n_tokens = draw(w, 4) ? tokens->n : draw(w, tokens->n + 1);

	kv_prefix_add(w->cache, &walker->table, tokens->salt, tokens->ids, n_tokens);
	for (uint32_t n = walker->n_chained; n < n_tokens / PAGE_TOKENS; n++) {
		struct page *page = &w->pages[walker->table.pages[n]];
		uint64_t parent = n ? walker->serials[n - 1] : 0;
		const int32_t *ids = tokens->ids + n * PAGE_TOKENS;
		uint32_t equal = model_find(w, parent, tokens->salt, ids);

		if (!page->serial && !equal) {
			page->serial = ++w->last_serial;
			page->parent = parent;
			page->salt = tokens->salt;
			memcpy(page->ids, ids, sizeof(page->ids));
			w->counts.registered++;
		} else if (!page->serial) {
			page = &w->pages[equal];
			w->n_equal++;
		}
		walker->serials[n] = page->serial;
		walker->n_chained = n + 1;
	}
}

static void walk_truncate(struct walk *w, struct walker *walker, uint32_t n)
{
	struct history *tokens = &walker->tokens;

	w->n_held += kv_truncate(w->cache, &walker->table, n, w->held + w->n_held);
	walker->n_chained = smaller(walker->n_chained, n / PAGE_TOKENS);
	memset(tokens->ids + n, 0, (tokens->n - n) * sizeof(*tokens->ids));
	tokens->n = n;
}

static void walk_clear(struct walk *w, struct walker *walker)
{
	model_release(w, walker->table.pages, walker->table.n_pages);
	kv_clear(w->cache, &walker->table);
	walker->n_chained = 0;
	walker->tokens = (struct history){0};
}

static void walk_fork(struct walk *w, struct walker *parent)
{
	struct walker *child = &w->walkers[draw(w, WALKERS)];
	uint32_t n = draw(w, parent->tokens.n + 1);

	if (child == parent)
		return;
	walk_clear(w, child);
	assert_int_equal(kv_fork(w->cache, &parent->table, n, &child->table), 0);
	for (uint32_t i = 0; i < child->table.n_pages; i++)
		w->pages[child->table.pages[i]].users++;
	child->tokens.salt = parent->tokens.salt;
	child->tokens.n = n;
	memcpy(child->tokens.ids, parent->tokens.ids, n * sizeof(*child->tokens.ids));
	child->n_chained = smaller(parent->n_chained, n / PAGE_TOKENS);
	memcpy(child->serials, parent->serials, sizeof(child->serials));
}

static void walk_release(struct walk *w)
{
	kv_release(w->cache, w->held, w->n_held);
	model_release(w, w->held, w->n_held);
	w->n_held = 0;
}

static void walk_drop(struct walk *w)
{
	kv_prefix_drop(w->cache, UINT32_MAX);
	for (uint32_t i = 1; i <= N_PAGES; i++) {
		if (!w->pages[i].users)
			w->pages[i].serial = 0;
	}
}

static void walk_step(struct walk *w)
{
	struct walker *walker = &w->walkers[draw(w, WALKERS)];
	uint32_t choice = draw(w, 100);

	if (choice < 20)
		walk_take(w, walker);
	else if (choice < 50)
		walk_extend(w, walker);
	else if (choice < 70)
		walk_add(w, walker);
	else if (choice < 75)
		walk_fork(w, walker);
	else if (choice < 80)
		walk_truncate(w, walker, draw(w, walker->tokens.n + 1));
	else if (choice < 84)
		walk_clear(w, walker);
	else if (choice < 89) {
		walk_clear(w, walker);
		walk_take(w, walker);
	}
	else if (choice < 99 || draw(w, 5) || w->n_held > HELD_MAX / 2)
		walk_release(w);
	else
		walk_drop(w);
}

/* ---- what has to hold ---- */

static void walk_verify_tokens(const struct walk *w, const struct walker *walker)
{
	struct history upto = {.salt = walker->tokens.salt};

	while (upto.n < walker->tokens.n) {
		uint32_t i = upto.n++, page = walker->table.pages[i / PAGE_TOKENS];

		upto.ids[i] = walker->tokens.ids[i];
		assert_memory_equal(
			&w->pages[page].memory[i % PAGE_TOKENS], &upto, sizeof(upto));
	}
}

static void walk_verify(const struct walk *w)
{
	const struct kv_table *tables[WALKERS];
	struct prefix_counts counts = kv_prefix_counts(w->cache);

	for (uint32_t i = 0; i < WALKERS; i++) {
		const struct walker *walker = &w->walkers[i];

		tables[i] = &walker->table;
		walk_verify_tokens(w, walker);
		assert_int_equal(walker->table.n_chained, walker->n_chained);
		assert_memory_equal(walker->table.serials, walker->serials,
			walker->n_chained * sizeof(*walker->serials));
	}
	kv_check(w->cache);
	assert_true(kv_users_match(w->cache, tables, WALKERS, w->held, w->n_held));
	assert_int_equal(kv_prefix_pages_unused(w->cache), model_idle(w, true));
	assert_int_equal(
		kv_pages_free(w->cache), model_idle(w, true) + model_idle(w, false));
	assert_memory_equal(&counts, &w->counts, sizeof(counts));
}

static void walk(prefix_hash *hash)
{
	const struct kv_config config = {
		.n_layers = 1, .n_kv_heads = 1, .head_dim = 8, .page_tokens = PAGE_TOKENS,
		.max_pages = N_PAGES + 1, .dtype = DTYPE_F32,
		.prefix_cache = true, .prefix_hash = hash,
	};
	struct walk *w = calloc(1, sizeof(*w));

	assert_non_null(w);
	w->device = test_device_open(0);
	assert_int_equal(kv_cache_new(w->device, &config, N_PAGES, &w->cache), 0);
	for (uint32_t i = 0; i < WALKERS; i++)
		assert_int_equal(kv_table_init(&w->walkers[i].table, CAPACITY), 0);
	w->random = 20;
	for (int i = 0; i < N_STEPS; i++) {
		walk_step(w);
		walk_verify(w);
		assert_true(w->n_held + 2 * CAPACITY < HELD_MAX);
	}
	print_message("# %lu hits, %lu registered, %lu evicted, %u copied, %u rewritten, %u equal, %u refused\n",
		w->counts.hits, w->counts.registered, w->counts.evicted, w->n_copies,
		w->n_rewritten, w->n_equal, w->n_refusals);
	assert_true(w->counts.hits > 1000 && w->counts.evicted > 1000 && w->n_copies > 100);
	assert_true(w->n_rewritten > 100 && w->n_equal > 100 && w->n_refusals > 100);
	walk_release(w);
	for (uint32_t i = 0; i < WALKERS; i++) {
		walk_clear(w, &w->walkers[i]);
		walk_verify(w);
		kv_table_deinit(&w->walkers[i].table);
	}
	assert_int_equal(kv_pages_free(w->cache), N_PAGES);
	kv_cache_free(w->cache);
	w->device->ops->free(w->device);
	free(w);
}

static uint64_t two_hashes(uint64_t parent, uint64_t salt, const int32_t *ids, uint32_t n)
{
	return (uint64_t)ids[0] & 1;
}

static void test_random_walk_takes_only_pages_of_its_tokens(void **state)
{
	walk(NULL);
}

static void test_random_walk_tells_keys_of_one_hash_apart(void **state)
{
	walk(two_hashes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random_walk_takes_only_pages_of_its_tokens),
		cmocka_unit_test(test_random_walk_tells_keys_of_one_hash_apart),
	};

	return cmocka_run_group_tests_name("prefix walk", tests, NULL, NULL);
}
