/* SPDX-License-Identifier: MIT */
#include "tests/daemon/dry.h"

#include <assert.h>

#include "attention/kv_cache.h"
#include "daemon/engine/check.h"

#define PAGE_TOKENS 16u   /* the rig's */
#define WHOLE_HISTORY 16u /* of so many rows one is compared token by token, the others page by page */

_Atomic uint64_t dry_now_ns = 1000000000;
static struct dry *dry_current;
static struct kernel_ops kernels;

/* ---- tokens ---- */

static uint64_t mix(uint64_t hash, int32_t id)
{
	hash = (hash ^ (uint32_t)id) * UINT64_C(0x9e3779b97f4a7c15);
	return hash ^ hash >> 29;
}

uint64_t dry_hash(uint64_t hash, const int32_t *ids, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		hash = mix(hash, ids[i]);
	return hash;
}

/* The end token, 2, in one of 64. */
int32_t dry_sample(uint64_t hash)
{
	return hash >> 58 == 0 ? 2 : 3 + (int32_t)((hash >> 20) % 250);
}

uint64_t dry_follow(uint64_t hash, const int32_t *tokens, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(tokens[i], dry_sample(hash));
		hash = mix(hash, tokens[i]);
	}
	return hash;
}

/* ---- steps ---- */

static struct dry_place *place_of(const struct dry *dry, int32_t slot, uint32_t position)
{
	const uint32_t page = dry->tables[(uint32_t)slot * dry->max_pages + position / PAGE_TOKENS];

	assert(position / PAGE_TOKENS < dry->max_pages);
	assert(page >= 1 && page <= kv_pages_total(dry->rig.runner->kv));
	return &dry->places[page * PAGE_TOKENS + position % PAGE_TOKENS];
}

static void write_table(struct dry *dry, int32_t slot, uint32_t first, uint32_t n, const uint32_t *pages)
{
	assert(first + n <= dry->max_pages);
	memcpy(dry->tables + (uint32_t)slot * dry->max_pages + first, pages, n * sizeof(*pages));
}

/* The pages ahead of the row are one history. */
static uint64_t check_history(const struct dry *dry, const struct step_row *row, bool whole)
{
	uint64_t hash = DRY_SEED;

	for (uint32_t i = 0; i < row->start; i++) {
		const struct dry_place *place = place_of(dry, row->slot, i);

		assert(place->before == hash);
		if (!whole && i % PAGE_TOKENS == 0 && i + PAGE_TOKENS <= row->start) {
			i += PAGE_TOKENS - 1;
			hash = place_of(dry, row->slot, i)->hash;
			continue;
		}
		hash = mix(hash, place->id);
		assert(place->hash == hash);
	}
	return hash;
}

static int32_t run_row(struct dry *dry, const struct step_row *row, const int32_t *ids)
{
	uint64_t hash = check_history(dry, row, dry->n_rows++ % WHOLE_HISTORY == 0);

	for (uint32_t i = 0; i < row->n_tokens; i++) {
		struct dry_place *place = place_of(dry, row->slot, row->start + i);
		const int32_t id = row->flags & ROW_FROM_SLOT ? dry->last[row->slot] : ids[i];

		*place = (struct dry_place){.before = hash, .hash = mix(hash, id), .id = id};
		hash = place->hash;
	}
	if (row->flags & ROW_SAMPLE)
		dry->last[row->slot] = dry_sample(hash);
	return row->flags & ROW_SAMPLE ? dry->last[row->slot] : -1;
}

int __wrap_executor_run(struct executor *executor, const struct graph_entry *entry, struct inputs_slot *slot,
	const uint32_t *query_lens, const uint32_t *seq_lens, struct stream *stream);
int __wrap_executor_run(struct executor *executor, const struct graph_entry *entry, struct inputs_slot *slot,
	const uint32_t *query_lens, const uint32_t *seq_lens, struct stream *stream)
{
	const struct step_record *record = slot->record;
	struct dry *dry = dry_current;
	const int32_t *ids = record->ids;
	const struct inflight *inflight;

	if (!dry) /* warm-up */
		return 0;
	inflight = &dry->engine->lane.inflight[(dry->engine->lane.first + dry->engine->lane.n_inflight - 1) %
		LANE_STEPS];
	assert(record->n_rows == inflight->n_rows && record->n_rows <= dry->engine->options.max_requests);
	assert(record->n_tokens <= dry->engine->options.max_batch_tokens);
	for (uint32_t i = 0; i < record->n_inits; i++)
		write_table(dry, record->inits[i].slot, 0, record->inits[i].n_pages,
			record->pages + record->inits[i].page_offset);
	for (uint32_t i = 0; i < record->n_rows; i++) {
		const struct step_row *row = &record->rows[i];

		write_table(dry, row->slot, row->page_first, row->n_pages, record->pages + row->page_offset);
		slot->sampled[i] = run_row(dry, row, ids);
		ids += row->n_tokens;
		if (dry->on_row)
			dry->on_row(dry, inflight->rows[i].sequence, row);
	}
	return 0;
}

static int copy_pages(struct stream *stream, const struct op_copy_pages *args)
{
	struct dry *dry = dry_current;

	if (args->kv != dry->rig.runner->context.kv_layers[0])
		return 0;
	for (uint32_t i = 0; i < args->n_pairs; i++)
		memcpy(dry->places + args->pairs[2 * i + 1] * PAGE_TOKENS,
			dry->places + args->pairs[2 * i] * PAGE_TOKENS, PAGE_TOKENS * sizeof(*dry->places));
	return 0;
}

static int outbox(struct stream *stream, const struct op_outbox *args)
{
	struct dry *dry = dry_current;

	const struct inflight *inflight = &dry->engine->lane.inflight[(dry->engine->lane.first +
		dry->engine->lane.n_inflight - 1) % LANE_STEPS];

	assert(dry->n_pending < LANE_STEPS);
	dry->pending[dry->n_pending].flag = args->flag;
	dry->pending[dry->n_pending].began = inflight->slot->began;
	dry->pending[dry->n_pending].ended = inflight->slot->ended;
	dry->pending[dry->n_pending].ns = dry->step_ns + dry->token_ns * inflight->slot->record->n_tokens;
	dry->pending[dry->n_pending++].step = args->step;
	return 0;
}

bool dry_end_step(struct dry *dry)
{
	if (!dry->n_pending)
		return false;
	if (dry->step_ns) {
		*dry->pending[0].began = dry_now_ns;
		*dry->pending[0].ended = dry_now_ns += dry->pending[0].ns;
	}
	__atomic_store_n(dry->pending[0].flag, dry->pending[0].step, __ATOMIC_RELEASE);
	dry->pending[0] = dry->pending[1];
	dry->n_pending--;
	return true;
}

/* ---- turns ---- */

int __wrap_clock_gettime(clockid_t clock, struct timespec *ret);
int __wrap_clock_gettime(clockid_t clock, struct timespec *ret)
{
	const uint64_t now = ++dry_now_ns;

	*ret = (struct timespec){.tv_sec = (time_t)(now / 1000000000), .tv_nsec = (long)(now % 1000000000)};
	return 0;
}

int __wrap_engine_start(struct engine *engine, struct builder *builder);
int __wrap_engine_start(struct engine *engine, struct builder *builder)
{
	engine->lane.late.builder = builder;
	/* No bells behind steps: nobody sleeps. */
	engine->lane.idle.sleepy = false;
	return 0;
}

void __real_engine_check(struct engine *engine);
void __wrap_engine_check(struct engine *engine);
void __wrap_engine_check(struct engine *engine)
{
	const struct dry *dry = dry_current;
	const struct runner *runner = engine->runners.all[0];
	uint32_t n = runner->slots.n_free + runner->slots.n_running;

	for (const struct sequence *s = runner->slots.releasing; s; s = s->next)
		n++;
	assert(n == engine->options.max_requests);
	assert(kv_pages_free(runner->kv) <= kv_pages_total(runner->kv));
	if (dry->check_every <= 1 || dry->n_turns % dry->check_every == 0)
		__real_engine_check(engine);
}

uint32_t dry_turns(struct dry *dry)
{
	uint32_t n = 0;

	for (;; n++) {
		dry->n_turns++;
		if (!engine_turn(dry->engine))
			return n;
		assert_true(n < 10000);
	}
}

void dry_steps(struct dry *dry, uint32_t n)
{
	while (n--) {
		dry_turns(dry);
		dry_end_step(dry);
	}
	dry_turns(dry);
}

void dry_settle(struct dry *dry)
{
	do {
		dry_turns(dry);
	} while (dry_end_step(dry));
}

/* ---- life ---- */

void dry_open(struct dry *dry, const struct rig_options *options)
{
	struct rig_options o = *options;
	uint32_t n_pages;

	setenv("MIMEO_DEVICE", "cpu", 1);
	*dry = (struct dry){0};
	dry_current = NULL;
	o.mode = GRAPH_NONE;
	o.spin_us = ENGINE_SPIN_FOREVER;
	rig_open(&dry->rig, &o);
	kernels = *dry->rig.device->kernels;
	kernels.outbox = outbox;
	kernels.copy_pages = copy_pages;
	dry->rig.device->kernels = &kernels;
	dry->engine = dry->rig.engine;
	n_pages = kv_pages_total(dry->rig.runner->kv) + 1;
	dry->max_pages = dry->rig.runner->max_pages;
	dry->places = calloc((size_t)n_pages * PAGE_TOKENS, sizeof(*dry->places));
	dry->tables = calloc((size_t)dry->rig.options.max_requests * dry->max_pages, sizeof(*dry->tables));
	dry->last = calloc(dry->rig.options.max_requests, sizeof(*dry->last));
	assert_true(dry->places && dry->tables && dry->last);
	dry_current = dry;
}

void dry_close(struct dry *dry)
{
	dry_settle(dry);
	rig_close(&dry->rig);
	dry_current = NULL;
	free(dry->places);
	free(dry->tables);
	free(dry->last);
}

void dry_attach(struct dry *dry, struct rig_client *ret, uint32_t entries, uid_t uid, uint32_t weight)
{
	rig_attach_as(&dry->rig, ret, entries, uid, weight);
	engine_turn(dry->engine);
	assert_non_null(ret->port->engine_private);
}

void dry_detach(struct dry *dry, struct rig_client *client)
{
	assert_int_equal(engine_post_detach(dry->engine, client->port), 0);
	do {
		dry_turns(dry);
	} while (dry_end_step(dry));
	rig_detached(client);
}
