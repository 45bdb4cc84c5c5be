/* SPDX-License-Identifier: MIT */

/*
 * A random walk of sequences that grow, fork, shrink and end, beside a model that remembers every
 * token: a sequence must read through its table what it wrote, also after its pages were shared.
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

#define PAGE_TOKENS 4u
#define N_PAGES 40u /* without the null page */
#define WALKERS 6u
#define WALK_CAPACITY 12u
#define WALK_TOKENS (WALK_CAPACITY * PAGE_TOKENS)
#define HELD_MAX 4096u

struct walk {
	struct device *device;
	struct kv_cache *cache;
	struct kv_table tables[WALKERS];
	uint32_t tokens[WALKERS][WALK_TOKENS]; /* what each sequence should read */
	uint32_t n_tokens[WALKERS];
	uint32_t memory[N_PAGES + 1][PAGE_TOKENS]; /* the device's pages */
	uint32_t held[HELD_MAX], n_held;
	uint32_t last_token;
	uint64_t random;
	uint32_t n_copies, n_refusals;
};

static uint32_t draw(struct walk *w, uint32_t n)
{
	return random_below(&w->random, n);
}

static void walk_extend(struct walk *w, uint32_t s)
{
	struct kv_table *table = &w->tables[s];
	uint32_t copies[WALK_CAPACITY][2], n_copies = 0, n = w->n_tokens[s], n_new = draw(w, 11);
	uint32_t needed = kv_pages_needed(w->cache, table, n, n_new);
	uint32_t n_free = kv_pages_free(w->cache), n_pages = table->n_pages;
	bool fits = needed <= n_free && n + n_new <= WALK_TOKENS;
	int rc = kv_extend(w->cache, table, n, n_new, copies, &n_copies);

	assert_int_equal(rc, fits ? 0 : -ENOSPC);
	if (!fits) {
		assert_int_equal(kv_pages_free(w->cache), n_free);
		assert_int_equal(table->n_pages, n_pages);
		w->n_refusals++;
		return;
	}
	assert_int_equal(kv_pages_free(w->cache), n_free - needed);
	for (uint32_t i = 0; i < n_copies; i++) {
		memcpy(w->memory[copies[i][1]], w->memory[copies[i][0]], sizeof(w->memory[0]));
		w->held[w->n_held++] = copies[i][0];
	}
	w->n_copies += n_copies;
	for (uint32_t i = n; i < n + n_new; i++) {
		w->tokens[s][i] = ++w->last_token;
		w->memory[table->pages[i / PAGE_TOKENS]][i % PAGE_TOKENS] = w->last_token;
	}
	w->n_tokens[s] += n_new;
}

static void walk_truncate(struct walk *w, uint32_t s, uint32_t n_tokens)
{
	w->n_held += kv_truncate(w->cache, &w->tables[s], n_tokens, w->held + w->n_held);
	w->n_tokens[s] = n_tokens;
}

static void walk_fork(struct walk *w, uint32_t s)
{
	uint32_t child = draw(w, WALKERS), n = draw(w, w->n_tokens[s] + 1);

	if (child == s)
		return;
	walk_truncate(w, child, 0);
	assert_int_equal(kv_fork(w->cache, &w->tables[s], n, &w->tables[child]), 0);
	memcpy(w->tokens[child], w->tokens[s], n * sizeof(uint32_t));
	w->n_tokens[child] = n;
}

static void walk_step(struct walk *w)
{
	uint32_t s = draw(w, WALKERS), choice = draw(w, 16);

	if (choice < 8)
		walk_extend(w, s);
	else if (choice < 11)
		walk_fork(w, s);
	else if (choice < 13)
		walk_truncate(w, s, draw(w, w->n_tokens[s] + 1));
	else if (choice < 14)
		walk_truncate(w, s, 0);
	else {
		kv_release(w->cache, w->held, w->n_held);
		w->n_held = 0;
	}
}

static void walk_verify(const struct walk *w)
{
	const struct kv_table *tables[WALKERS];

	for (uint32_t s = 0; s < WALKERS; s++) {
		tables[s] = &w->tables[s];
		for (uint32_t i = 0; i < w->n_tokens[s]; i++)
			assert_int_equal(w->memory[w->tables[s].pages[i / PAGE_TOKENS]]
						  [i % PAGE_TOKENS],
				w->tokens[s][i]);
	}
	assert_true(kv_users_match(w->cache, tables, WALKERS, w->held, w->n_held));
}

static int walk_begin(void **state)
{
	static const struct kv_config config = {
		.n_layers = 1, .n_kv_heads = 1, .head_dim = 8, .page_tokens = PAGE_TOKENS,
		.max_pages = N_PAGES + 1, .dtype = DTYPE_F32,
	};
	struct walk *w = calloc(1, sizeof(*w));

	assert_non_null(w);
	*state = w;
	w->device = test_device_open(0);
	assert_int_equal(kv_cache_new(w->device, &config, N_PAGES, &w->cache), 0);
	for (uint32_t s = 0; s < WALKERS; s++)
		assert_int_equal(kv_table_init(&w->tables[s], WALK_CAPACITY), 0);
	w->random = 20;
	return 0;
}

static int walk_end(void **state)
{
	struct walk *w = *state;

	for (uint32_t s = 0; s < WALKERS; s++)
		kv_table_deinit(&w->tables[s]);
	kv_cache_free(w->cache);
	w->device->ops->free(w->device);
	free(w);
	return 0;
}

static void test_random_walk_keeps_every_token_and_leaks_nothing(void **state)
{
	struct walk *w = *state;

	for (int i = 0; i < 20000; i++) {
		walk_step(w);
		walk_verify(w);
		assert_true(w->n_held + WALK_CAPACITY < HELD_MAX);
	}
	assert_true(w->n_copies > 100 && w->n_refusals > 100);
	for (uint32_t s = 0; s < WALKERS; s++)
		walk_truncate(w, s, 0);
	walk_verify(w);
	kv_release(w->cache, w->held, w->n_held);
	w->n_held = 0;
	walk_verify(w);
	assert_int_equal(kv_pages_free(w->cache), N_PAGES);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			test_random_walk_keeps_every_token_and_leaks_nothing, walk_begin, walk_end),
	};

	return cmocka_run_group_tests_name("kv cache walk", tests, NULL, NULL);
}
