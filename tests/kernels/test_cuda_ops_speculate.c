/* SPDX-License-Identifier: MIT */
/*
 * Speculation's ops on both devices from the same random states: whole steps, one behind the other,
 * after each op of which all that it may write is compared to the last bit.
 */
#include "tests/kernels/cuda_ops_fixture.h"

struct limits {
	uint32_t max_rows, max_tokens, max_slots, max_pages, page_tokens, vocab, k, n_pages;
	uint32_t draft_vocab; /* less than vocab: with d2t */
	bool filters;         /* of top-k and top-p, else temperature and min-p alone */
};

enum array {
	INPUT_IDS, POSITIONS, SLOT_MAPPING, QUERY_START, SEQ_LENS, BLOCK_TABLE, ROW_SLOT,
	ROW_FLAGS, NEXT_IDS, LOGIT_INDEX, EMBEDDING_FROM, SLOT_LAST_TOKEN, SLOT_SAMPLING,
	SLOT_BLOCK_TABLE, SLOT_LENGTH, SLOT_N_DRAFTS, SLOT_DRAFTS, SLOT_DRAFT_LOGITS, SAMPLED,
	DRAFT_IDS, DRAFT_SLOT_MAPPING, LAST_INDEX, STEP, DECODE_IDS, DECODE_POSITIONS,
	DECODE_SLOT_MAPPING, DECODE_QUERY_START, DECODE_SEQ_LENS, HIDDEN_INDEX, LOGITS,
	DRAFT_LOGITS, D2T, N_ARRAYS,
};

static const char *const array_names[N_ARRAYS] = {"input_ids", "positions", "slot_mapping",
	"query_start", "seq_lens", "block_table", "row_slot", "row_flags", "next_ids",
	"logit_index", "embedding_from", "slot_last_token", "slot_sampling", "slot_block_table",
	"slot_length", "slot_n_drafts", "slot_drafts", "slot_draft_logits", "sampled",
	"draft input_ids", "draft slot_mapping", "last_index", "step", "decode_ids",
	"decode positions", "decode_slot_mapping", "decode query_start", "decode seq_lens",
	"hidden_index", "logits", "draft logits", "d2t"};

struct pinned_record {
	struct step_record record;
	struct step_row rows[1600];
	struct slot_init inits[400];
	int32_t ids[9000];
	uint32_t pages[16000];
};

struct world {
	struct limits l;
	struct both arrays[N_ARRAYS], pinned;
	struct pinned_record *record;
	float *floats; /* for the logits of all rows */
};

static void world_init(struct world *w, const struct limits *l)
{
	const size_t rows = l->max_rows, tokens = l->max_tokens, slots = l->max_slots;
	const size_t width = 1 + l->k;
	const size_t words[N_ARRAYS] = {tokens, tokens, tokens, rows + 1, rows,
		rows * l->max_pages, rows, rows, rows, rows * width, 2 * tokens, slots,
		slots * sizeof(struct slot_sampling) / 4, slots * l->max_pages, slots, slots,
		slots * l->k, slots * l->k * l->vocab, rows * width, tokens, tokens, rows, 1, rows,
		rows, rows, rows + 1, rows, rows, rows * width * l->vocab, rows * l->draft_vocab,
		l->draft_vocab};

	*w = (struct world){.l = *l, .pinned = both_new_pinned(sizeof(*w->record))};
	for (size_t i = 0; i < N_ARRAYS; i++)
		w->arrays[i] = both_new(BYTES, words[i] * 4);
	w->record = scratch(sizeof(*w->record));
	w->floats = scratch(rows * width * l->vocab * sizeof(float));
}

static struct step_inputs inputs_of(const struct world *w, int side)
{
	const struct limits *l = &w->l;
	const struct both *a = w->arrays;

	return (struct step_inputs){
		.max_rows = l->max_rows,
		.max_tokens = l->max_tokens,
		.max_slots = l->max_slots,
		.max_pages = l->max_pages,
		.page_tokens = l->page_tokens,
		.vocab_size = l->vocab,
		.max_drafts = l->k,
		.embedding_bytes = 64,
		.input_ids = a[INPUT_IDS].at[side],
		.positions = a[POSITIONS].at[side],
		.slot_mapping = a[SLOT_MAPPING].at[side],
		.query_start = a[QUERY_START].at[side],
		.seq_lens = a[SEQ_LENS].at[side],
		.block_table = a[BLOCK_TABLE].at[side],
		.row_slot = a[ROW_SLOT].at[side],
		.row_flags = a[ROW_FLAGS].at[side],
		.next_ids = a[NEXT_IDS].at[side],
		.logit_index = a[LOGIT_INDEX].at[side],
		.embedding_from = a[EMBEDDING_FROM].at[side],
		.slot_last_token = a[SLOT_LAST_TOKEN].at[side],
		.slot_sampling = a[SLOT_SAMPLING].at[side],
		.slot_block_table = a[SLOT_BLOCK_TABLE].at[side],
		.slot_length = a[SLOT_LENGTH].at[side],
		.slot_n_drafts = a[SLOT_N_DRAFTS].at[side],
		.slot_drafts = a[SLOT_DRAFTS].at[side],
		.slot_draft_logits = a[SLOT_DRAFT_LOGITS].at[side],
	};
}

static struct draft_inputs draft_of(const struct world *w, int side)
{
	const struct both *a = w->arrays;

	return (struct draft_inputs){
		.input_ids = a[DRAFT_IDS].at[side],
		.slot_mapping = a[DRAFT_SLOT_MAPPING].at[side],
		.last_index = a[LAST_INDEX].at[side],
		.step = a[STEP].at[side],
		.decode_ids = a[DECODE_IDS].at[side],
		.positions = a[DECODE_POSITIONS].at[side],
		.decode_slot_mapping = a[DECODE_SLOT_MAPPING].at[side],
		.query_start = a[DECODE_QUERY_START].at[side],
		.seq_lens = a[DECODE_SEQ_LENS].at[side],
		.hidden_index = a[HIDDEN_INDEX].at[side],
	};
}

static void check_all(const struct world *w, const char *op)
{
	char what[64];

	for (size_t i = 0; i < N_ARRAYS; i++) {
		snprintf(what, sizeof(what), "%s: %s", op, array_names[i]);
		both_check_equal(&w->arrays[i], what);
	}
}

/* ---- random states ---- */

static struct slot_sampling random_sampling(bool filters)
{
	static const float temperatures[] = {0, 0, 0.7f, 1, 1, 2, -1, 1e-3f, INFINITY};
	static const float top_ps[] = {1, 1, 0.9f, 0.5f, 0.99f, 0};
	static const float min_ps[] = {0, 0, 0, 0.05f, 0.5f, 2};
	static const uint32_t top_ks[] = {0, 0, 1, 2, 12, 50, 3000};
	struct slot_sampling s = {
		.temperature = temperatures[random_below(&rng, COUNT_OF(temperatures))],
		.top_p = 1,
		.min_p = min_ps[random_below(&rng, COUNT_OF(min_ps))],
		.seed = (uint64_t)random_u32(&rng) << 32 | random_u32(&rng),
	};

	if (filters) {
		s.top_p = top_ps[random_below(&rng, COUNT_OF(top_ps))];
		s.top_k = top_ks[random_below(&rng, COUNT_OF(top_ks))];
	}
	return s;
}

static struct step_row random_row(const struct limits *l, uint32_t max_row_tokens)
{
	struct step_row row = {
		.slot = -1, .next_id = (int32_t)random_below(&rng, l->vocab + 2) - 1};

	switch (random_below(&rng, 4)) {
	case 0:
	case 1:
		row.flags = ROW_VERIFY | (random_below(&rng, 9) ? ROW_SAMPLE : 0);
		row.n_tokens = random_below(&rng, 9) ? 1 + l->k : random_below(&rng, 3 + l->k);
		break;
	case 2:
		row.flags = ROW_FROM_SLOT | (random_below(&rng, 3) ? ROW_SAMPLE : 0);
		row.n_tokens = random_below(&rng, 9) ? 1 : random_below(&rng, 3);
		break;
	default:
		row.flags = random_below(&rng, 2) ? ROW_SAMPLE : 0;
		row.n_tokens = random_below(&rng, max_row_tokens + 1);
	}
	row.start = random_below(&rng, l->max_pages * l->page_tokens + 2);
	return row;
}

/* Of a step's rows each has a slot of its own, but for a few that have none. */
static void random_rows(struct world *w, uint32_t n_rows, uint32_t max_row_tokens)
{
	const struct limits *l = &w->l;
	struct pinned_record *p = w->record;
	uint32_t first = random_below(&rng, l->max_slots);

	for (uint32_t r = 0; r < n_rows; r++) {
		p->rows[r] = random_row(l, max_row_tokens);
		if (r < l->max_slots && random_below(&rng, 8))
			p->rows[r].slot = (int32_t)((first + r) % l->max_slots);
		else if (random_below(&rng, 2))
			p->rows[r].slot = (int32_t)l->max_slots;
		p->record.n_tokens += p->rows[r].n_tokens;
	}
}

static bool has_init(const struct pinned_record *p, int32_t slot)
{
	for (uint32_t i = 0; i < p->record.n_inits; i++)
		if (p->inits[i].slot == slot)
			return true;
	return false;
}

/* Of every second row, few pages or more than the table has. */
static void random_changes(struct pinned_record *p, const struct limits *l)
{
	for (uint32_t r = 0; r < p->record.n_rows; r++) {
		struct step_row *row = &p->rows[r];

		if (random_below(&rng, 2) || has_init(p, row->slot))
			continue;
		row->page_first = random_below(&rng, l->max_pages + 2);
		row->n_pages = random_below(&rng, 9) ? random_below(&rng, 4)
						     : random_below(&rng, l->max_pages + 3);
		row->page_offset = random_below(&rng, COUNT_OF(p->pages) - l->max_pages);
	}
}

/* Logits of last tokens alone. */
static void verify_nothing(struct pinned_record *p)
{
	p->record.last_only = true;
	for (uint32_t r = 0; r < p->record.n_rows; r++)
		p->rows[r].flags &= ~(uint32_t)ROW_VERIFY;
}

static void random_record(
	struct world *w, uint32_t n_rows, uint32_t max_row_tokens, uint32_t n_inits)
{
	const struct limits *l = &w->l;
	struct pinned_record *p = w->record;

	p->record = (struct step_record){.n_rows = n_rows, .n_inits = n_inits};
	random_rows(w, n_rows, max_row_tokens);
	if (random_below(&rng, 4) == 0)
		verify_nothing(p);
	for (size_t i = 0; i < COUNT_OF(p->pages); i++)
		p->pages[i] = random_below(&rng, l->n_pages + 2);
	for (size_t i = 0; i < COUNT_OF(p->ids); i++)
		p->ids[i] = (int32_t)random_below(&rng, l->vocab + 3) - 1;
	for (uint32_t i = 0; i < n_inits; i++)
		p->inits[i] = (struct slot_init){
			.slot = (int32_t)random_below(&rng, l->max_slots + 2) - 1,
			.n_pages = random_below(&rng, 4) ? l->max_pages
							 : random_below(&rng, l->max_pages),
			.page_offset = random_below(&rng, COUNT_OF(p->pages) - l->max_pages),
			.n_drafts = random_below(&rng, 4) ? l->k : random_below(&rng, l->k + 3),
			.sampling = random_sampling(l->filters),
		};
	random_changes(p, l);
	p->record.padded_rows = n_rows + random_below(&rng, l->max_rows - n_rows + 1);
	p->record.padded_tokens = p->record.n_tokens;
}

/* Few logits stand out, the same of the target's and the draft's, so that drafts hold. A few rows are not
 * finite. */
static void random_logits(struct world *w)
{
	const struct limits *l = &w->l;
	const size_t n = w->arrays[LOGITS].n / 4, n_draft = w->arrays[DRAFT_LOGITS].n / 4;

	for (size_t i = 0; i < n; i++)
		w->floats[i] = random_below(&rng, 4000) ? 2 * random_normal(&rng) : -INFINITY;
	for (size_t i = 0; i < n / l->vocab; i++) {
		float *row = w->floats + i * l->vocab;

		row[7 % l->vocab] = 2 + logf((float)l->vocab);
		row[3 % l->vocab] = row[7 % l->vocab] - (float)random_below(&rng, 3);
		for (uint32_t k = 0; k < l->vocab && !random_below(&rng, 40); k++)
			row[k] = k % 2 ? INFINITY : NAN;
		if (!random_below(&rng, 60))
			row[random_below(&rng, l->vocab)] = i % 2 ? INFINITY : NAN;
	}
	both_put(&w->arrays[LOGITS], w->floats);
	for (size_t i = 0; i < n_draft; i++)
		w->floats[i] = random_below(&rng, 4000) ? 2 * random_normal(&rng) : -INFINITY;
	for (size_t i = 0; i < n_draft / l->draft_vocab; i++) {
		float *row = w->floats + i * l->draft_vocab;

		row[7 % l->draft_vocab] = 2 + logf((float)l->vocab);
		row[3 % l->draft_vocab] = row[7 % l->draft_vocab] - (float)random_below(&rng, 3);
		for (uint32_t k = 0; k < l->draft_vocab && !random_below(&rng, 40); k++)
			row[k] = NAN;
	}
	both_put(&w->arrays[DRAFT_LOGITS], w->floats);
}

/* The lowest ids are the target's own, a few of the others out of its range. */
static void put_d2t(struct world *w)
{
	const struct limits *l = &w->l;
	int32_t *d2t = scratch(l->draft_vocab * sizeof(*d2t));

	for (uint32_t i = 0; i < l->draft_vocab; i++)
		d2t[i] = i < 8 ? 0 : i % 50 ? (int32_t)(l->vocab - l->draft_vocab) : INT32_MIN;
	both_put(&w->arrays[D2T], d2t);
}

/* Any place for every slot; what no step has written yet is poison otherwise. */
static void put_lengths(struct world *w)
{
	const uint32_t n = w->l.max_slots, capacity = w->l.max_pages * w->l.page_tokens;
	int32_t *lengths = scratch(n * sizeof(*lengths));

	for (uint32_t s = 0; s < n; s++)
		lengths[s] = (int32_t)random_below(&rng, capacity + 2) - 1;
	both_put(&w->arrays[SLOT_LENGTH], lengths);
	both_put(&w->arrays[SLOT_LAST_TOKEN], lengths);
}

/* ---- steps ---- */

static void place_record(const struct world *w, int side)
{
	struct pinned_record *to = w->pinned.at[side];

	memcpy(to, w->record, sizeof(*to));
	to->record.rows = to->rows;
	to->record.ids = to->ids;
	to->record.inits = to->inits;
	to->record.pages = to->pages;
}

static void run_prepare(struct world *w, int side)
{
	struct op_prepare a = {.inputs = inputs_of(w, side), .n_pages = w->l.n_pages};

	place_record(w, side);
	a.record = &((struct pinned_record *)w->pinned.at[side])->record;
	RUN(side, prepare, &a);
}

static struct op_verify verify_of(const struct world *w, int side, uint32_t n_rows)
{
	return (struct op_verify){w->arrays[LOGITS].at[side], n_rows, w->l.vocab,
		inputs_of(w, side), w->arrays[SAMPLED].at[side], w->record->record.last_only};
}

static struct op_draft_begin begin_of(const struct world *w, int side, uint32_t n_rows)
{
	return (struct op_draft_begin){inputs_of(w, side), w->arrays[SAMPLED].at[side],
		draft_of(w, side), n_rows, w->l.max_tokens};
}

static struct op_draft_advance advance_of(const struct world *w, int side, uint32_t n_rows)
{
	return (struct op_draft_advance){w->arrays[DRAFT_LOGITS].at[side],
		w->l.draft_vocab < w->l.vocab ? w->arrays[D2T].at[side] : NULL, n_rows,
		w->l.draft_vocab, inputs_of(w, side), draft_of(w, side)};
}

/* Returns how many drafts held. */
static uint32_t count_held(const struct world *w, uint32_t n_rows)
{
	const int32_t *sampled = w->arrays[SAMPLED].at[CPU];
	uint32_t n = 0;

	for (uint32_t i = 0; i < n_rows * (1 + w->l.k); i++)
		n += i % (1 + w->l.k) && sampled[i] >= 0;
	return n;
}

static uint32_t run_step(struct world *w)
{
	const uint32_t n_rows = w->record->record.padded_rows;
	uint32_t n_held;

	for (int side = 0; side < N_SIDES; side++)
		run_prepare(w, side);
	check_all(w, "prepare");
	random_logits(w);
	for (int side = 0; side < N_SIDES; side++) {
		struct op_verify a = verify_of(w, side, n_rows);

		RUN(side, verify, &a);
	}
	check_all(w, "verify");
	n_held = count_held(w, n_rows);
	for (int side = 0; side < N_SIDES; side++) {
		struct op_draft_begin a = begin_of(w, side, n_rows);

		RUN(side, draft_begin, &a);
	}
	check_all(w, "draft_begin");
	for (uint32_t i = 0; i <= w->l.k; i++) {
		for (int side = 0; side < N_SIDES; side++) {
			struct op_draft_advance a = advance_of(w, side, n_rows);

			RUN(side, draft_advance, &a);
		}
		check_all(w, "draft_advance");
	}
	return n_held;
}

/* So many slots: as poison is no sampling. */
static void set_up_slots(struct world *w, uint32_t from, uint32_t n)
{
	random_record(w, 0, 0, n);
	for (uint32_t i = 0; i < n; i++)
		w->record->inits[i].slot = (int32_t)(from + i);
	w->record->record.padded_rows = w->l.max_rows;
	for (int side = 0; side < N_SIDES; side++)
		run_prepare(w, side);
}

/* compute-sanitizer takes a hundred times as long. */
static uint32_t rounds(uint32_t n)
{
	return getenv("MIMEO_TEST_SHORT") ? (n + 9) / 10 : n;
}

/* Steps of a world whose slots are set up but for their places; drafts of one are verified by
 * another. */
static void check_steps(
	const struct limits *l, uint32_t n_steps, uint32_t max_row_tokens, bool drafts_hold)
{
	struct world w;
	uint32_t n_held = 0;

	world_init(&w, l);
	put_d2t(&w);
	put_lengths(&w);
	for (uint32_t from = 0; from < l->max_slots; from += 300)
		set_up_slots(&w, from, l->max_slots - from < 300 ? l->max_slots - from : 300);
	for (uint32_t i = 0; i < n_steps; i++) {
		random_record(&w,
			random_below(&rng, 4) ? l->max_rows : random_below(&rng, l->max_rows + 1),
			max_row_tokens, i % 3 ? 0 : random_below(&rng, 12));
		n_held += run_step(&w);
	}
	assert_true(!drafts_hold || n_held > 0 || rounds(100) < 100);
}

static void test_steps_equal_the_oracles_with_a_small_vocabulary(void **state)
{
	static const struct limits limits[] = {
		{7, 60, 9, 6, 4, 24, 3, 80, 24, false},
		{7, 60, 9, 6, 4, 24, 1, 80, 20, false},
		{30, 300, 40, 9, 16, 300, 4, 500, 300, true},
		{30, 300, 40, 9, 16, 300, 7, 500, 130, true},
	};

	for (size_t i = 0; i < COUNT_OF(limits); i++)
		check_steps(&limits[i], rounds(60), 11, true);
}

/* More rows than prepare has in a tile, and than there are multiprocessors. */
static void test_steps_equal_the_oracles_with_many_rows(void **state)
{
	static const struct limits limits = {1100, 8000, 1300, 40, 16, 50, 3, 9000, 50, true};

	check_steps(&limits, rounds(8), 12, true);
}

/* Of teams of 8, 4, 2 and 1 blocks. */
static void test_steps_equal_the_oracles_with_a_large_vocabulary(void **state)
{
	static const struct limits limits[] = {
		{3, 40, 5, 6, 16, 128256, 4, 80, 32000, false},
		{3, 40, 5, 6, 16, 128256, 2, 80, 128256, true},
		{30, 200, 33, 6, 16, 32003, 2, 500, 32003, false},
		{60, 400, 66, 6, 16, 16387, 2, 800, 9000, true},
		{150, 900, 160, 6, 16, 8200, 2, 2000, 8200, false},
	};

	for (size_t i = 0; i < COUNT_OF(limits); i++)
		check_steps(&limits[i], rounds(4), 8, false);
}

/* ---- one team's size and another's ---- */

static void test_verification_of_a_row_does_not_depend_on_the_batch(void **state)
{
	static const struct limits l = {20, 120, 20, 6, 16, 40001, 3, 300, 40001, false};
	const size_t width = 1 + l.k;
	struct both saved[N_ARRAYS];
	int32_t want[20 * 4], got[4];
	struct world w;

	world_init(&w, &l);
	put_lengths(&w);
	set_up_slots(&w, 0, l.max_slots);
	for (int step = 0; step < 4; step++) {
		const struct mark mark = mark_here();
		struct op_verify a;
		uint32_t n = l.max_rows;

		do {
			random_record(&w, n, 4, 0);
		} while (w.record->record.last_only);
		a = verify_of(&w, CUDA, n);
		w.record->record.padded_rows = n;
		if (step < 3) {
			run_step(&w);
			continue;
		}
		for (int side = 0; side < N_SIDES; side++)
			run_prepare(&w, side);
		random_logits(&w);
		for (size_t i = 0; i < N_ARRAYS; i++) {
			saved[i] = both_new(BYTES, w.arrays[i].n);
			both_copy(CUDA, saved[i].at[CUDA], w.arrays[i].at[CUDA], w.arrays[i].n);
		}
		RUN(CUDA, verify, &a);
		both_copy(CUDA, want, w.arrays[SAMPLED].at[CUDA], sizeof(want));
		for (uint32_t r = 0; r < n; r++) { /* alone, with row r's data as the first's */
			for (size_t i = 0; i < N_ARRAYS; i++)
				both_copy(CUDA, w.arrays[i].at[CUDA], saved[i].at[CUDA],
					w.arrays[i].n);
			a.n_rows = 1;
			a.logits = (float *)w.arrays[LOGITS].at[CUDA] + r * width * l.vocab;
			a.inputs = inputs_of(&w, CUDA);
			a.inputs.row_slot += r;
			a.inputs.row_flags += r;
			a.inputs.query_start += r;
			a.inputs.seq_lens += r;
			RUN(CUDA, verify, &a);
			both_copy(CUDA, got, w.arrays[SAMPLED].at[CUDA], sizeof(got));
			assert_memory_equal(got, want + r * width, sizeof(got));
		}
		release_to(mark);
	}
}

/* ---- what a replay does ---- */

static void queue_step(const struct world *w, uint32_t n_rows)
{
	const struct op_verify verify = verify_of(w, CUDA, n_rows);
	const struct op_draft_begin begin = begin_of(w, CUDA, n_rows);
	const struct op_draft_advance advance = advance_of(w, CUDA, n_rows);
	const struct kernel_ops *kernels = devices[CUDA]->kernels;
	struct op_prepare prepare = {.inputs = inputs_of(w, CUDA), .n_pages = w->l.n_pages,
		.record = &((struct pinned_record *)w->pinned.at[CUDA])->record};

	assert_int_equal(kernels->prepare(streams[CUDA], &prepare), 0);
	assert_int_equal(kernels->verify(streams[CUDA], &verify), 0);
	assert_int_equal(kernels->draft_begin(streams[CUDA], &begin), 0);
	for (uint32_t i = 0; i < w->l.k; i++)
		assert_int_equal(kernels->draft_advance(streams[CUDA], &advance), 0);
}

static void run_cpu(struct world *w, uint32_t n_rows)
{
	const struct op_verify verify = verify_of(w, CPU, n_rows);
	const struct op_draft_begin begin = begin_of(w, CPU, n_rows);
	const struct op_draft_advance advance = advance_of(w, CPU, n_rows);

	run_prepare(w, CPU);
	RUN(CPU, verify, &verify);
	RUN(CPU, draft_begin, &begin);
	for (uint32_t i = 0; i < w->l.k; i++)
		RUN(CPU, draft_advance, &advance);
}

/* All ops in one graph, without a wait between them: the oracle goes op by op. */
static void test_replays_of_a_step_equal_the_oracles_steps(void **state)
{
	static const struct limits l = {24, 200, 30, 6, 16, 3000, 4, 300, 2000, true};
	const struct device_ops *ops = devices[CUDA]->ops;
	struct graph_exec *exec;
	struct graph *graph;
	struct world w;

	world_init(&w, &l);
	put_d2t(&w);
	put_lengths(&w);
	set_up_slots(&w, 0, l.max_slots);
	run_step(&w); /* loads the ops */
	w.record->record.last_only = false;
	assert_int_equal(ops->capture_begin(streams[CUDA]), 0);
	queue_step(&w, l.max_rows);
	assert_int_equal(ops->capture_end(streams[CUDA], &graph), 0);
	assert_int_equal(ops->graph_instantiate(devices[CUDA], graph, &exec), 0);
	for (uint32_t step = 0; step < rounds(60); step++) {
		random_record(&w, random_below(&rng, l.max_rows + 1), 8, random_below(&rng, 4));
		w.record->record.padded_rows = l.max_rows;
		w.record->record.last_only = false; /* as captured */
		random_logits(&w);
		place_record(&w, CUDA);
		assert_int_equal(ops->graph_launch(exec, streams[CUDA]), 0);
		run_cpu(&w, l.max_rows);
		assert_int_equal(ops->stream_sync(streams[CUDA]), 0);
		check_all(&w, "replay");
	}
	ops->graph_exec_free(exec);
	ops->graph_free(graph);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(test_steps_equal_the_oracles_with_a_small_vocabulary),
	cmocka_unit_test(test_steps_equal_the_oracles_with_many_rows),
	cmocka_unit_test(test_steps_equal_the_oracles_with_a_large_vocabulary),
	cmocka_unit_test(test_verification_of_a_row_does_not_depend_on_the_batch),
	cmocka_unit_test(test_replays_of_a_step_equal_the_oracles_steps),
};

CUDA_TEST_MAIN("cuda_ops_speculate", tests)
