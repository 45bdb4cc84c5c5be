/* SPDX-License-Identifier: MIT */
/* The persistent inputs and their record slots, without an engine. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "daemon/graph/inputs.h"
#include "tests/device_memory.h"
#include "tests/ranges.h"

#define ROWS 8
#define TOKENS 16

static const struct inputs_limits limits = {
	.max_rows = ROWS,
	.max_tokens = TOKENS,
	.max_slots = ROWS,
	.max_pages = 4,
	.page_tokens = 4,
	.vocab_size = 100,
	.hidden_size = 8,
	.max_step_pages = 16,
	.max_results = 2,
	.masks = true,
};

struct fixture {
	struct device *device;
	struct stream *lane;
	struct inputs inputs;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool open;
};

static void open_gate(struct fixture *f)
{
	pthread_mutex_lock(&f->lock);
	f->open = true;
	pthread_cond_signal(&f->changed);
	pthread_mutex_unlock(&f->lock);
}

static void wait_at_gate(void *arg)
{
	struct fixture *f = arg;

	pthread_mutex_lock(&f->lock);
	while (!f->open)
		pthread_cond_wait(&f->changed, &f->lock);
	pthread_mutex_unlock(&f->lock);
}

static int32_t fetch(const struct fixture *f, const int32_t *at)
{
	return test_fetch_int(f->device, at);
}

static const uint8_t *fetch_from(const struct fixture *f, uint32_t token)
{
	const uint8_t *from;

	test_copy(f->device, &from, f->inputs.persistent.embedding_from + token, sizeof(from));
	return from;
}

/* One row of n tokens, all `id`, on a slot with pages of its own; its outbox behind it. */
static void launch(struct fixture *f, struct inputs_slot *slot, int32_t persistent, uint32_t n_tokens,
	uint32_t start, int32_t id, uint32_t padded_rows, uint32_t padded_tokens)
{
	const struct slot_sampling sampling = {.top_p = 1};
	const uint32_t pages[] = {(uint32_t)persistent * 4 + 1, (uint32_t)persistent * 4 + 2,
		(uint32_t)persistent * 4 + 3, (uint32_t)persistent * 4 + 4};
	const struct step_row row = {.slot = persistent, .n_tokens = n_tokens, .start = start};
	int32_t *ids;

	assert_true(inputs_can_init(&f->inputs, slot, 4));
	inputs_add_init(slot, persistent, &sampling, pages, 4);
	ids = inputs_add_row(slot, &row);
	for (uint32_t i = 0; i < n_tokens; i++)
		ids[i] = id;
	assert_int_equal(inputs_prepare(&f->inputs, slot, f->lane,
		&(struct descriptor){.mode = GRAPH_FULL, .tokens = padded_tokens}, padded_rows, 64), 0);
	assert_int_equal(f->device->kernels->outbox(f->lane, &(struct op_outbox){
		.sampled = f->inputs.sampled,
		.out = slot->sampled,
		.flag = slot->flag,
		.step = slot->step,
		.n_rows = 1,
	}), 0);
}

/* An op is loaded when it is first used, which on a GPU waits for all that the device has to do:
 * not behind a gate. */
static void load_ops(struct fixture *f)
{
	assert_int_equal(inputs_init(&f->inputs, f->device, &limits), 0);
	launch(f, inputs_begin(&f->inputs, 1), 0, 1, 0, 0, 1, 1);
	assert_int_equal(f->device->ops->stream_sync(f->lane), 0);
	inputs_deinit(&f->inputs);
}

static int setup(void **state)
{
	static struct fixture f;

	f = (struct fixture){.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
	f.device = test_device_open(0);
	assert_int_equal(f.device->ops->stream_new(f.device, &f.lane), 0);
	load_ops(&f);
	assert_int_equal(inputs_init(&f.inputs, f.device, &limits), 0);
	*state = &f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	open_gate(f);
	assert_int_equal(f->device->ops->stream_sync(f->lane), 0);
	inputs_deinit(&f->inputs);
	f->device->ops->stream_free(f->lane);
	f->device->ops->free(f->device);
	return 0;
}

static void test_pinned_slot_is_not_rewritten_while_its_last_reader_is_pending(void **state)
{
	struct fixture *f = *state;
	struct inputs_slot *first, *second;
	struct step_record before;

	assert_int_equal(f->device->ops->stream_host_func(f->lane, wait_at_gate, f), 0);
	first = inputs_begin(&f->inputs, 1);
	assert_non_null(first);
	launch(f, first, 0, 3, 0, 11, 1, 3);
	second = inputs_begin(&f->inputs, 2);
	assert_non_null(second);
	assert_ptr_not_equal(first, second);
	launch(f, second, 1, 2, 0, 22, 1, 2);
	before = *first->record;
	assert_null(inputs_begin(&f->inputs, 3));
	assert_null(inputs_begin(&f->inputs, 4));
	assert_memory_equal(first->record, &before, sizeof(before));
	assert_int_equal(first->step, 1);
	assert_false(inputs_slot_done(first));
	open_gate(f);
	assert_int_equal(f->device->ops->stream_sync(f->lane), 0);
	assert_true(inputs_slot_done(first));
	/* The second step ran on what was written for it. */
	assert_int_equal(fetch(f, f->inputs.persistent.input_ids + 1), 22);
	assert_int_equal(fetch(f, f->inputs.persistent.query_start + 1), 2);
	assert_ptr_equal(inputs_begin(&f->inputs, 3), first);
	assert_int_equal(first->record->n_rows, 0);
	assert_int_equal(first->record->n_inits, 0);
	assert_false(inputs_slot_done(first));
}

static void test_small_step_after_a_large_one_sees_nothing_of_it(void **state)
{
	struct fixture *f = *state;
	const struct step_inputs *in = &f->inputs.persistent;
	const struct slot_sampling sampling = {.top_p = 1};
	static const uint8_t given[64];
	struct inputs_slot *slot = inputs_begin(&f->inputs, 1);

	for (uint32_t i = 0; i < ROWS; i++) {
		const uint32_t page = i + 1;
		const struct step_row row = {.slot = (int32_t)i, .n_tokens = 2, .flags = ROW_SAMPLE,
			.embeddings = given};
		int32_t *ids;

		inputs_add_init(slot, (int32_t)i, &sampling, &page, 1);
		ids = inputs_add_row(slot, &row);
		ids[0] = ids[1] = 50;
	}
	assert_int_equal(inputs_prepare(&f->inputs, slot, f->lane,
		&(struct descriptor){.mode = GRAPH_FULL, .tokens = TOKENS}, ROWS, 64), 0);
	slot->step = 0;
	slot = inputs_begin(&f->inputs, 2);
	launch(f, slot, 3, 1, 5, 33, 4, 4);
	assert_int_equal(f->device->ops->stream_sync(f->lane), 0);
	assert_int_equal(fetch(f, in->slot_mapping), 14 * 4 + 1);
	assert_int_equal(fetch(f, in->positions), 5);
	assert_int_equal(fetch(f, in->seq_lens), 6);
	for (uint32_t t = 1; t < TOKENS; t++) {
		assert_int_equal(fetch(f, in->slot_mapping + t), -1);
		assert_in_range(fetch(f, in->input_ids + t), 0, 99);
		assert_null(fetch_from(f, t));
	}
	for (uint32_t r = 1; r < ROWS; r++) {
		assert_int_equal(fetch(f, in->seq_lens + r), 0);
		assert_int_equal(fetch(f, in->row_slot + r), -1);
		assert_int_equal(fetch(f, in->row_flags + r), 0);
		assert_int_equal(fetch(f, in->logit_index + r), 0);
		assert_int_equal(fetch(f, in->query_start + r), 1);
	}
	assert_int_equal(fetch(f, in->query_start + ROWS), 1);
	for (uint32_t i = 4; i < 16; i++)
		assert_int_equal(fetch(f, in->block_table + i), 0); /* the padded rows' */
}

static void test_embeddings_of_a_row_lie_a_hidden_state_apart(void **state)
{
	struct fixture *f = *state;
	static const uint8_t given[256]; /* never read */
	struct inputs_slot *slot = inputs_begin(&f->inputs, 1);
	const struct step_row row = {.slot = 0, .n_tokens = 4, .embeddings = given, .n_ids = 1};
	const size_t bytes = limits.hidden_size *
		dtype_bytes(test_device_info(f->device).activation_dtype);

	memset(inputs_add_row(slot, &row), 0, row.n_tokens * sizeof(int32_t));
	launch(f, slot, 1, 2, 0, 7, 2, 6);
	assert_int_equal(f->device->ops->stream_sync(f->lane), 0);
	assert_null(fetch_from(f, 0));
	for (uint32_t t = 1; t < 4; t++)
		assert_ptr_equal(fetch_from(f, t), given + (t - 1) * bytes);
	for (uint32_t t = 4; t < TOKENS; t++)
		assert_null(fetch_from(f, t));
}

static uint64_t fetch_word(const struct fixture *f, uint32_t token)
{
	uint64_t word;

	test_copy(f->device, &word, f->inputs.persistent.mask_words + token, sizeof(word));
	return word;
}

static void test_masks_and_words_arrive_and_are_gone_with_their_step(void **state)
{
	struct fixture *f = *state;
	const struct slot_mask given = {.kind = MASK_PREFIX, .begin = 3, .end = 7};
	const struct slot_sampling sampling = {.top_p = 1};
	const uint32_t page = 9;
	struct inputs_slot *slot = inputs_begin(&f->inputs, 1);
	struct step_row row = {.slot = 5, .n_tokens = 4};
	struct slot_mask masks[ROWS];

	launch(f, slot, 1, 2, 0, 7, 1, 2);
	inputs_add_init(slot, 5, &sampling, &page, 1);
	inputs_set_mask(slot, &given);
	row.words = inputs_next_words(slot);
	for (uint32_t i = 0; i < 4; i++)
		inputs_next_words(slot)[i] = 100 + i;
	memset(inputs_add_row(slot, &row), 0, 4 * sizeof(int32_t));
	assert_int_equal(inputs_prepare(&f->inputs, slot, f->lane,
		&(struct descriptor){.mode = GRAPH_FULL, .tokens = TOKENS}, ROWS, 64), 0);
	assert_int_equal(f->device->ops->stream_sync(f->lane), 0);
	test_copy(f->device, masks, f->inputs.persistent.slot_mask, sizeof(masks));
	assert_memory_equal(&masks[5], &given, sizeof(given));
	assert_int_equal(masks[1].kind, MASK_CAUSAL);
	for (uint32_t t = 0; t < TOKENS; t++)
		assert_true(fetch_word(f, t) == (t >= 2 && t < 6 ? 98 + t : 0));
	slot->step = 0;
	launch(f, inputs_begin(&f->inputs, 2), 3, 3, 0, 33, 1, 3);
	assert_int_equal(f->device->ops->stream_sync(f->lane), 0);
	for (uint32_t t = 0; t < TOKENS; t++)
		assert_true(fetch_word(f, t) == 0);
}

static void test_inputs_without_masks_have_no_place_for_them(void **state)
{
	struct fixture *f = *state;
	struct inputs_limits without = limits;
	struct inputs inputs;

	without.masks = false;
	assert_int_equal(inputs_init(&inputs, f->device, &without), 0);
	assert_null(inputs.persistent.slot_mask);
	assert_null(inputs.persistent.mask_words);
	assert_null(inputs.slots[0].words);
	assert_true(inputs.device_bytes < f->inputs.device_bytes);
	assert_true(inputs.pinned_bytes < f->inputs.pinned_bytes);
	inputs_deinit(&inputs);
}

#define RANGES_MAX 64

static uint32_t device_ranges(const struct inputs *inputs, struct range ret[static RANGES_MAX])
{
	const struct inputs_limits *l = &inputs->limits;
	const struct step_inputs *p = &inputs->persistent;
	const struct draft_inputs *d = &inputs->draft;
	const size_t rows = l->max_rows, tokens = l->max_tokens, slots = l->max_slots;
	const size_t k = l->max_drafts;
	const struct range all[] = {
		RANGE(p->input_ids, tokens), RANGE(p->embedding_from, tokens),
		RANGE(p->positions, tokens), RANGE(p->slot_mapping, tokens),
		RANGE(p->query_start, rows + 1), RANGE(p->seq_lens, rows),
		RANGE(p->block_table, rows * l->max_pages), RANGE(p->row_slot, rows),
		RANGE(p->row_flags, rows), RANGE(p->logit_index, rows * (1 + k)),
		RANGE(p->slot_last_token, slots), RANGE(p->slot_sampling, slots),
		RANGE(p->slot_block_table, slots * l->max_pages), RANGE(p->slot_mask, slots),
		RANGE(p->mask_words, tokens), RANGE(p->next_ids, rows),
		RANGE(p->slot_length, slots), RANGE(p->slot_n_drafts, slots),
		RANGE(p->slot_drafts, slots * k),
		RANGE(p->slot_draft_logits, slots * k * l->vocab_size),
		RANGE(d->input_ids, tokens), RANGE(d->slot_mapping, tokens),
		RANGE(d->last_index, rows), RANGE(d->step, 1), RANGE(d->decode_ids, rows),
		RANGE(d->positions, rows), RANGE(d->decode_slot_mapping, rows),
		RANGE(d->query_start, rows + 1), RANGE(d->seq_lens, rows),
		RANGE(d->hidden_index, rows), RANGE(inputs->hidden_f32, rows * l->hidden_size),
		RANGE(inputs->sampled, rows * (1 + k)),
	};

	memcpy(ret, all, sizeof(all));
	return sizeof(all) / sizeof(all[0]);
}

static uint32_t slot_ranges(const struct inputs *inputs, const struct inputs_slot *s,
	struct range ret[static RANGES_MAX])
{
	const struct inputs_limits *l = &inputs->limits;
	const struct range all[] = {
		RANGE(s->record, 1), RANGE(s->rows, l->max_rows), RANGE(s->ids, l->max_tokens),
		RANGE(s->words, l->max_tokens), RANGE(s->inits, l->max_rows),
		RANGE(s->pages, l->max_step_pages), RANGE(s->copies, l->max_rows),
		RANGE(s->sampled, l->max_rows * (1 + l->max_drafts)), RANGE(s->results_flag, 1),
		RANGE(s->results_ns, 1), RANGE(s->logits, l->max_results * l->vocab_size),
		RANGE(s->hidden, l->max_results * l->hidden_size), RANGE(s->flag, 1),
		RANGE(s->began, 1), RANGE(s->ended, 1), RANGE(s->draft_began, 1),
	};

	memcpy(ret, all, sizeof(all));
	return sizeof(all) / sizeof(all[0]);
}

/* Also where numbers end at what buffers are aligned to: 64 of 4 bytes. */
static void test_buffers_have_their_sizes_and_share_nothing(void **state)
{
	static const uint32_t numbers[] = {ROWS, 63, 64, 128};
	struct fixture *f = *state;

	for (int i = 0; i < 4; i++) {
		struct inputs_limits with = limits;
		struct range ranges[INPUTS_SLOTS * RANGES_MAX];
		struct inputs inputs;
		uint32_t n = 0;

		with.max_rows = with.max_slots = with.max_tokens = numbers[i];
		with.max_drafts = 3;
		assert_int_equal(inputs_init(&inputs, f->device, &with), 0);
		assert_int_equal(inputs.persistent.max_drafts, 3);
		assert_ranges_disjoint(ranges, device_ranges(&inputs, ranges),
			inputs.device_memory, inputs.device_bytes);
		for (unsigned k = 0; k < INPUTS_SLOTS; k++) {
			n += slot_ranges(&inputs, &inputs.slots[k], ranges + n);
			assert_int_equal(*inputs.slots[k].flag, 0);
			assert_int_equal(*inputs.slots[k].results_flag, 0);
		}
		assert_ranges_disjoint(ranges, n, inputs.pinned_memory, inputs.pinned_bytes);
		inputs_deinit(&inputs);
	}
}

static void test_inputs_without_drafts_have_no_place_for_them(void **state)
{
	struct fixture *f = *state;
	struct inputs_limits with = limits;
	uint64_t device, pinned;

	with.max_drafts = 12;
	assert_int_equal(f->inputs.persistent.max_drafts, 0);
	assert_null(f->inputs.persistent.next_ids);
	assert_null(f->inputs.persistent.slot_length);
	assert_null(f->inputs.persistent.slot_drafts);
	assert_null(f->inputs.persistent.slot_draft_logits);
	assert_null(f->inputs.draft.input_ids);
	assert_null(f->inputs.draft.hidden_index);
	assert_int_equal(inputs_measure(&with, &device, &pinned), 0);
	assert_true(device > f->inputs.device_bytes + (size_t)ROWS * 12 * limits.vocab_size * 4);
	assert_true(pinned > f->inputs.pinned_bytes);
	with.max_slots = 1u << 20;
	with.max_drafts = 1u << 16;
	with.vocab_size = 1u << 31;
	assert_int_equal(inputs_measure(&with, &device, &pinned), -EOVERFLOW);
}

static void test_an_initialisation_says_how_many_drafts_or_none(void **state)
{
	struct fixture *f = *state;
	struct inputs_limits with = limits;
	const struct slot_sampling sampling = {.top_p = 1};
	const uint32_t page = 9;
	struct inputs_slot *slot;
	int32_t n_drafts[ROWS];
	struct inputs inputs;

	with.max_drafts = 3;
	assert_int_equal(inputs_init(&inputs, f->device, &with), 0);
	slot = inputs_begin(&inputs, 1);
	for (int32_t s = 0; s < ROWS; s++) {
		inputs_add_init(slot, s, &sampling, &page, 1);
		if (s % 2)
			inputs_set_drafts(slot, s < 3 ? (uint32_t)s : 3);
	}
	assert_int_equal(inputs_prepare(&inputs, slot, f->lane,
		&(struct descriptor){.mode = GRAPH_FULL, .tokens = TOKENS}, ROWS, 64), 0);
	assert_int_equal(f->device->ops->stream_sync(f->lane), 0);
	test_copy(f->device, n_drafts, inputs.persistent.slot_n_drafts, sizeof(n_drafts));
	for (int32_t s = 0; s < ROWS; s++)
		assert_int_equal(n_drafts[s], s % 2 == 0 ? 0 : s < 3 ? s : 3);
	inputs_deinit(&inputs);
}

static void test_capacity_for_initialisations_is_limited_by_rows_and_by_pages(void **state)
{
	struct fixture *f = *state;
	struct inputs_slot *slot = inputs_begin(&f->inputs, 1);
	const struct slot_sampling sampling = {.top_p = 1};
	const uint32_t pages[16] = {0};

	assert_true(inputs_can_init(&f->inputs, slot, 16));
	assert_false(inputs_can_init(&f->inputs, slot, 17));
	inputs_add_init(slot, 0, &sampling, pages, 13);
	assert_true(inputs_can_init(&f->inputs, slot, 3));
	assert_false(inputs_can_init(&f->inputs, slot, 4));
	for (int i = 1; i < ROWS; i++) {
		assert_true(inputs_can_init(&f->inputs, slot, 0));
		inputs_add_init(slot, i, &sampling, pages, 0);
	}
	assert_false(inputs_can_init(&f->inputs, slot, 0));
	slot->step = 0;
}

static void test_capacity_for_pages_is_one_for_initialisations_and_rows(void **state)
{
	struct fixture *f = *state;
	struct inputs_slot *slot = inputs_begin(&f->inputs, 1);
	const struct slot_sampling sampling = {.top_p = 1};
	const uint32_t pages[16] = {7, 8, 9};

	assert_true(inputs_can_add_pages(slot, 16));
	assert_false(inputs_can_add_pages(slot, 17));
	inputs_add_init(slot, 0, &sampling, pages, 5);
	assert_int_equal(inputs_add_pages(slot, pages + 1, 2), 5);
	assert_int_equal(inputs_add_pages(slot, pages, 0), 7);
	assert_int_equal(inputs_add_pages(slot, pages, 1), 7);
	assert_int_equal(slot->record->pages[5], 8);
	assert_int_equal(slot->record->pages[6], 9);
	assert_int_equal(slot->record->pages[7], 7);
	assert_true(inputs_can_add_pages(slot, 8));
	assert_false(inputs_can_add_pages(slot, 9));
	assert_true(inputs_can_init(&f->inputs, slot, 8));
	assert_false(inputs_can_init(&f->inputs, slot, 9));
	slot->step = 0;
	slot = inputs_begin(&f->inputs, 1);
	assert_true(inputs_can_add_pages(slot, 16));
	slot->step = 0;
}

/* ---- pages that rows change ---- */

#define MANY 1300 /* more than any device takes at once */
#define PAGES 4

/* The steps of one run: a row of each slot, in an order of their own. */
struct many {
	struct inputs inputs;
	uint64_t step;
	uint32_t pages[MANY][PAGES]; /* the slots' block tables as they have to be */
};

static int32_t slot_of_row(uint32_t r)
{
	return (int32_t)(r * 7 % MANY);
}

/* The third page is new, or the first or second another, or there is no change. */
static uint32_t change_of_slot(int32_t s, uint32_t *ret_n)
{
	*ret_n = s % 4 == 3 ? 0 : s % 4 == 1 ? 2 : 1;
	return s % 4 == 0 ? 2 : s % 4 == 1 ? 1 : 0;
}

static void change_row(struct many *m, struct inputs_slot *slot, struct step_row *row)
{
	uint32_t pages[PAGES], n, first = change_of_slot(row->slot, &n);

	for (uint32_t i = 0; i < n; i++)
		pages[i] = m->pages[row->slot][first + i] =
			MANY * PAGES + 1 + (uint32_t)row->slot * PAGES + i;
	assert_true(inputs_can_add_pages(slot, n));
	row->page_first = first;
	row->n_pages = n;
	row->page_offset = inputs_add_pages(slot, pages, n);
}

/* Each row's page and place, and all slots' tables. */
static void check_many(const struct fixture *f, const struct many *m, uint32_t start)
{
	static int32_t table[MANY][PAGES], slots[MANY][PAGES], mapping[MANY];
	const struct step_inputs *in = &m->inputs.persistent;

	test_copy(f->device, table, in->block_table, sizeof(table));
	test_copy(f->device, slots, in->slot_block_table, sizeof(slots));
	test_copy(f->device, mapping, in->slot_mapping, sizeof(mapping));
	assert_memory_equal(slots, m->pages, sizeof(slots));
	for (uint32_t r = 0; r < MANY; r++) {
		const uint32_t *pages = m->pages[slot_of_row(r)];

		assert_memory_equal(table[r], pages, (start / 4 + 1) * sizeof(pages[0]));
		assert_int_equal(mapping[r], pages[start / 4] * 4 + start % 4);
	}
}

/* A step of a token a row at `start`, with initialisations or with changes. */
static void run_many(struct fixture *f, struct many *m, uint32_t start, bool init, bool change)
{
	const struct slot_sampling sampling = {.top_p = 1};
	struct inputs_slot *slot = inputs_begin(&m->inputs, ++m->step);

	assert_non_null(slot);
	for (uint32_t r = 0; r < MANY; r++) {
		struct step_row row = {.slot = slot_of_row(r), .n_tokens = 1, .start = start};

		if (init)
			inputs_add_init(slot, row.slot, &sampling, m->pages[row.slot], 2);
		if (change)
			change_row(m, slot, &row);
		*inputs_add_row(slot, &row) = 3;
	}
	assert_int_equal(inputs_prepare(&m->inputs, slot, f->lane,
		&(struct descriptor){.mode = GRAPH_FULL, .tokens = MANY}, MANY, 4 * MANY * PAGES), 0);
	assert_int_equal(f->device->ops->stream_sync(f->lane), 0);
	slot->step = 0;
	check_many(f, m, start);
}

static void check_changes_of_many_rows(struct fixture *f, uint32_t max_drafts)
{
	static struct many m;

	m = (struct many){0};
	for (uint32_t s = 0; s < MANY; s++)
		for (uint32_t p = 0; p < 2; p++)
			m.pages[s][p] = 1 + s * PAGES + p;
	assert_int_equal(inputs_init(&m.inputs, f->device, &(struct inputs_limits){
		.max_rows = MANY,
		.max_tokens = MANY,
		.max_slots = MANY,
		.max_pages = PAGES,
		.page_tokens = 4,
		.vocab_size = 100,
		.hidden_size = 8,
		.max_step_pages = 2 * MANY,
		.max_results = 1,
		.max_drafts = max_drafts,
	}), 0);
	run_many(f, &m, 7, true, false);
	run_many(f, &m, 8, false, true);
	run_many(f, &m, 9, false, false);
	run_many(f, &m, 2, false, false);
	inputs_deinit(&m.inputs);
}

static void test_changed_pages_are_their_slots_in_the_step_and_later(void **state)
{
	check_changes_of_many_rows(*state, 0);
}

static void test_changed_pages_are_their_slots_also_with_drafts(void **state)
{
	check_changes_of_many_rows(*state, 3);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_pinned_slot_is_not_rewritten_while_its_last_reader_is_pending),
		TEST(test_small_step_after_a_large_one_sees_nothing_of_it),
		TEST(test_embeddings_of_a_row_lie_a_hidden_state_apart),
		TEST(test_masks_and_words_arrive_and_are_gone_with_their_step),
		TEST(test_inputs_without_masks_have_no_place_for_them),
		TEST(test_buffers_have_their_sizes_and_share_nothing),
		TEST(test_inputs_without_drafts_have_no_place_for_them),
		TEST(test_an_initialisation_says_how_many_drafts_or_none),
		TEST(test_capacity_for_initialisations_is_limited_by_rows_and_by_pages),
		TEST(test_capacity_for_pages_is_one_for_initialisations_and_rows),
		TEST(test_changed_pages_are_their_slots_in_the_step_and_later),
		TEST(test_changed_pages_are_their_slots_also_with_drafts),
	};

	return cmocka_run_group_tests_name("inputs", tests, NULL, NULL);
}
