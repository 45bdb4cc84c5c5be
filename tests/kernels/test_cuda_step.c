/* SPDX-License-Identifier: MIT */
#include "tests/kernels/cuda_ops_fixture.h"

/* Expansion of a step and sampling: on both devices to the last bit. */

/* ---- prepare ---- */

struct limits {
	uint32_t max_rows, max_tokens, max_slots, max_pages, page_tokens, vocab, n_pages;
};

enum { N_ARRAYS = 15, EMBEDDING_BYTES = 96 };

struct inputs {
	struct limits limits;
	struct both arrays[N_ARRAYS];
};

static const char *const array_names[N_ARRAYS] = {"input_ids", "positions", "slot_mapping",
	"query_start", "seq_lens", "block_table", "row_slot", "row_flags", "logit_index",
	"slot_last_token", "slot_sampling", "slot_block_table", "embedding_from", "slot_mask",
	"mask_words"};

static void inputs_init(struct inputs *in, const struct limits *l)
{
	const size_t words[N_ARRAYS] = {l->max_tokens, l->max_tokens, l->max_tokens,
		l->max_rows + 1, l->max_rows, l->max_rows * l->max_pages, l->max_rows, l->max_rows,
		l->max_rows, l->max_slots, l->max_slots * sizeof(struct slot_sampling) / 4,
		l->max_slots * l->max_pages, l->max_tokens * sizeof(void *) / 4,
		l->max_slots * sizeof(struct slot_mask) / 4, l->max_tokens * 2};

	in->limits = *l;
	for (size_t i = 0; i < N_ARRAYS; i++)
		in->arrays[i] = both_new(BYTES, words[i] * 4);
}

static struct step_inputs inputs_of(const struct inputs *in, int side)
{
	const struct limits *l = &in->limits;

	return (struct step_inputs){
		.max_rows = l->max_rows,
		.max_tokens = l->max_tokens,
		.max_slots = l->max_slots,
		.max_pages = l->max_pages,
		.page_tokens = l->page_tokens,
		.vocab_size = l->vocab,
		.embedding_bytes = EMBEDDING_BYTES,
		.input_ids = in->arrays[0].at[side],
		.positions = in->arrays[1].at[side],
		.slot_mapping = in->arrays[2].at[side],
		.query_start = in->arrays[3].at[side],
		.seq_lens = in->arrays[4].at[side],
		.block_table = in->arrays[5].at[side],
		.row_slot = in->arrays[6].at[side],
		.row_flags = in->arrays[7].at[side],
		.logit_index = in->arrays[8].at[side],
		.slot_last_token = in->arrays[9].at[side],
		.slot_sampling = in->arrays[10].at[side],
		.slot_block_table = in->arrays[11].at[side],
		.embedding_from = in->arrays[12].at[side],
		.slot_mask = in->arrays[13].at[side],
		.mask_words = in->arrays[14].at[side],
	};
}

/* The record and what it points to, in one record slot of each side. */
struct pinned_record {
	struct step_record record;
	struct step_row rows[1600];
	struct slot_init inits[700];
	int32_t ids[9000];
	uint32_t pages[16000];
	uint64_t words[4096];
};

struct step_size {
	uint32_t max_rows, max_row_tokens, max_inits;
};

/* Has the row's slot no other row and no init? */
static bool has_own_slot(const struct pinned_record *p, uint32_t r)
{
	for (uint32_t i = 0; i < p->record.n_rows; i++)
		if (i != r && p->rows[i].slot == p->rows[r].slot)
			return false;
	for (uint32_t i = 0; i < p->record.n_inits; i++)
		if (p->inits[i].slot == p->rows[r].slot)
			return false;
	return true;
}

/* Of every second row that may, and of empty ones: few pages, or more than the table has. */
static void random_changes(struct pinned_record *p, const struct limits *l)
{
	for (uint32_t r = 0; r < p->record.n_rows; r++) {
		struct step_row *row = &p->rows[r];

		if (random_below(&rng, 2) || (row->slot >= 0 && !has_own_slot(p, r)))
			continue;
		row->page_first = random_below(&rng, l->max_pages + 2);
		row->n_pages = random_below(&rng, 9)    ? random_below(&rng, 4)
			       : random_below(&rng, 2) ? random_below(&rng, l->max_pages + 3)
						       : UINT32_MAX;
		row->page_offset = random_below(&rng, COUNT_OF(p->pages) - l->max_pages);
	}
}

static void random_record(
	struct pinned_record *p, const struct limits *l, const struct step_size *s)
{
	uint32_t n_tokens = 0;

	for (size_t i = 0; i < COUNT_OF(p->pages); i++)
		p->pages[i] = random_below(&rng, l->n_pages + 3);
	for (size_t i = 0; i < COUNT_OF(p->ids); i++)
		p->ids[i] = random_below(&rng, 9) ? (int32_t)random_below(&rng, l->vocab)
						  : (int32_t)random_u32(&rng);
	for (size_t i = 0; i < COUNT_OF(p->words); i++)
		p->words[i] = random_below(&rng, 9)
				      ? (uint64_t)random_u32(&rng) << 32 | random_u32(&rng)
				      : 0;
	p->record = (struct step_record){.n_rows = random_below(&rng, s->max_rows + 1),
		.n_inits = random_below(&rng, s->max_inits + 1)};
	for (uint32_t r = 0; r < p->record.n_rows; r++) {
		p->rows[r] = (struct step_row){
			.slot = (int32_t)random_below(&rng, l->max_slots + 2) - 1,
			.flags = random_u32(&rng) & (ROW_FROM_SLOT | ROW_SAMPLE | ROW_TREE),
			.n_tokens = random_below(&rng, s->max_row_tokens + 1),
			.start = random_below(&rng, l->max_pages * l->page_tokens + 2),
			/* Only the address matters. */
			.embeddings = random_below(&rng, 2) ? (void *)((uintptr_t)1 << 40 |
								       random_below(&rng, 1 << 20))
							    : NULL,
			.n_ids = random_below(&rng, 4) * random_below(&rng, s->max_row_tokens + 1),
			.tree = random_below(&rng, l->max_pages * l->page_tokens + 2),
			.words = random_below(&rng, 2) ? p->words + random_below(&rng, 64) : NULL,
		};
		n_tokens += p->rows[r].n_tokens;
	}
	for (uint32_t i = 0; i < p->record.n_inits; i++)
		p->inits[i] = (struct slot_init){
			.slot = (int32_t)random_below(&rng, l->max_slots + 2) - 1,
			.n_pages = random_below(&rng, l->max_pages + 3),
			.page_offset = random_below(&rng, COUNT_OF(p->pages) - l->max_pages - 3),
			.sampling = {.temperature = random_float(&rng), .top_k = random_u32(&rng)},
			.mask = {random_below(&rng, MASK_KINDS), random_u32(&rng), random_u32(&rng),
				random_u32(&rng)},
		};
	random_changes(p, l);
	p->record.n_tokens = n_tokens - (n_tokens && !random_below(&rng, 5) ? 1 : 0);
	p->record.padded_rows = p->record.n_rows + random_below(&rng, 5);
	p->record.padded_tokens = p->record.n_tokens;
}

static void place_record(const struct pinned_record *p, struct pinned_record *to)
{
	memcpy(to, p, sizeof(*to));
	to->record.rows = to->rows;
	to->record.ids = to->ids;
	to->record.inits = to->inits;
	to->record.pages = to->pages;
	for (uint32_t r = 0; r < p->record.n_rows; r++)
		if (p->rows[r].words)
			to->rows[r].words = to->words + (p->rows[r].words - p->words);
}

static void check_steps(const struct limits *l, const struct step_size *sizes, size_t n)
{
	const struct mark mark = mark_here();
	struct both pinned = both_new_pinned(sizeof(struct pinned_record));
	struct pinned_record *p = scratch(sizeof(*p));
	struct inputs in;
	uint32_t *words;

	inputs_init(&in, l);
	words = scratch(in.arrays[11].n);
	for (size_t i = 0; i < in.arrays[11].n / 4; i++)
		words[i] = random_u32(&rng) % (l->n_pages + 2);
	both_put(&in.arrays[11], words); /* pages and last tokens that earlier steps left */
	both_put(&in.arrays[9], words);
	for (size_t i = 0; i < n; i++) {
		random_record(p, l, &sizes[i]);
		for (int side = 0; side < N_SIDES; side++) {
			struct op_prepare a = {
				.inputs = inputs_of(&in, side), .n_pages = l->n_pages};

			place_record(p, pinned.at[side]);
			a.record = &((struct pinned_record *)pinned.at[side])->record;
			RUN(side, prepare, &a);
		}
		for (size_t k = 0; k < N_ARRAYS; k++)
			both_check_equal(&in.arrays[k], array_names[k]);
	}
	release_to(mark);
}

static void test_prepare_equals_the_oracle_on_small_steps(void **state)
{
	static const struct limits limits = {7, 40, 9, 6, 4, 100, 64};
	struct step_size sizes[60];

	for (size_t i = 0; i < COUNT_OF(sizes); i++)
		sizes[i] = (struct step_size){i % 9, 1 + i % 20, i % 5 ? 0 : 12};
	check_steps(&limits, sizes, COUNT_OF(sizes));
}

/* Several tiles of rows and inits, long rows, then small steps that must leave nothing behind. */
static void test_prepare_equals_the_oracle_on_large_steps(void **state)
{
	static const struct limits limits = {1500, 8192, 600, 300, 16, 128256, 5000};
	static const struct step_size sizes[] = {{1500, 8, 700}, {3, 1, 0}, {1500, 5, 300},
		{2, 4000, 2}, {0, 0, 0}, {600, 12, 700}, {128, 1, 9}, {128, 1, 0}};

	check_steps(&limits, sizes, COUNT_OF(sizes));
}

static void test_prepare_equals_the_oracle_on_long_rows(void **state)
{
	static const struct limits limits = {16, 4096, 16, 900, 4, 32000, 40000};
	static const struct step_size sizes[] = {{16, 1, 16}, {16, 300, 3}, {4, 1000, 0}};

	check_steps(&limits, sizes, COUNT_OF(sizes));
}

/* A slot for each row, so that about half of all rows change pages, in each of several tiles. */
static void test_prepare_equals_the_oracle_where_many_rows_change_pages(void **state)
{
	static const struct limits limits = {1500, 8192, 30000, 40, 16, 128256, 5000};
	static const struct step_size sizes[] = {{1500, 8, 0}, {1500, 5, 300}, {1500, 1, 0},
		{600, 12, 9}, {128, 1, 9}, {128, 1, 0}, {1, 1, 0}};

	check_steps(&limits, sizes, COUNT_OF(sizes));
}

/* rope_and_cache reads positions early in a graph, but not in one that writes them. The table's
 * cosine of a position is the position, so that a head of ones becomes it. */
static void check_recorded_prepare(int side, struct pinned_record *p)
{
	const struct mark mark = mark_here();
	enum { HEAD = 16, POSITIONS = 8, N = 3 * HEAD };
	static const struct limits limits = {4, 8, 4, 4, 4, 100, 16};
	const struct device_ops *ops = devices[side]->ops;
	const struct kernel_ops *kernels = devices[side]->kernels;
	struct both qkv = both_new(ACT, N), kv = both_new(ACT, 16 * 2 * 4 * HEAD), table;
	float ones[N], angles[POSITIONS * HEAD] = {0}, *got;
	struct graph_exec *exec;
	struct graph *graph;
	struct inputs in;

	inputs_init(&in, &limits);
	for (size_t i = 0; i < N; i++)
		ones[i] = 1;
	for (size_t i = 0; i < COUNT_OF(angles); i++)
		angles[i] = i % HEAD < HEAD / 2 ? (float)(i / HEAD) : 0;
	table = both_of(angles, sizeof(angles));
	const struct op_prepare prepare = {
		.record = &p->record, .inputs = inputs_of(&in, side), .n_pages = limits.n_pages};
	const struct op_rope_and_cache rope = {.qkv = qkv.at[side], .kv = kv.at[side],
		.positions = prepare.inputs.positions, .slot_mapping = prepare.inputs.slot_mapping,
		.cos_sin = table.at[side], .max_positions = POSITIONS, .n_tokens = 1, .n_heads = 1,
		.n_kv_heads = 1, .head_dim = HEAD, .page_tokens = limits.page_tokens};

	RUN(side, prepare, &prepare);
	RUN(side, rope_and_cache, &rope);
	assert_int_equal(ops->capture_begin(streams[side]), 0);
	assert_int_equal(kernels->prepare(streams[side], &prepare), 0);
	assert_int_equal(kernels->rope_and_cache(streams[side], &rope), 0);
	assert_int_equal(ops->capture_end(streams[side], &graph), 0);
	assert_int_equal(ops->graph_instantiate(devices[side], graph, &exec), 0);
	for (uint32_t i = 0; i < 40; i++) {
		both_put(&qkv, ones);
		p->rows[0].start = i * 3 % POSITIONS;
		assert_int_equal(ops->graph_launch(exec, streams[side]), 0);
		assert_int_equal(ops->stream_sync(streams[side]), 0);
		got = both_floats(&qkv, side);
		for (size_t k = 0; k < HEAD; k++)
			assert_int_equal((int)got[k], i * 3 % POSITIONS);
	}
	ops->graph_exec_free(exec);
	ops->graph_free(graph);
	release_to(mark);
}

static void test_rope_behind_a_recorded_prepare_uses_its_positions(void **state)
{
	struct both pinned = both_new_pinned(sizeof(struct pinned_record));
	struct pinned_record *record = scratch(sizeof(*record));

	record->record = (struct step_record){
		.n_rows = 1, .n_tokens = 1, .padded_rows = 1, .padded_tokens = 1, .n_inits = 1};
	record->rows[0].n_tokens = 1;
	for (int side = 0; side < N_SIDES; side++) {
		place_record(record, pinned.at[side]);
		check_recorded_prepare(side, pinned.at[side]);
	}
}

/* ---- sample ---- */

enum { SAMPLE_ROWS = 48, SAMPLE_SLOTS = 64 };

enum shape { NORMAL, WIDE, TIED, FLAT, HOLED, NONE_FINITE, N_SHAPES };

static const float not_finite[] = {NAN, -NAN, INFINITY};

static float random_logit(enum shape shape)
{
	switch (shape) {
	case NORMAL:
		return random_normal(&rng) * 3;
	case WIDE:
		return random_normal(&rng) * 1e4f;
	case TIED:
		return roundf(random_normal(&rng) * 2);
	case FLAT:
		return random_below(&rng, 2) ? 0.0f : -0.0f;
	case HOLED:
		switch (random_below(&rng, 8)) {
		case 0:
		case 1:
		case 2:
			return -INFINITY;
		case 3:
			return -3e38f;
		}
		return random_normal(&rng);
	default:
		return -INFINITY;
	}
}

static struct slot_sampling random_sampling(void)
{
	static const float temperatures[] = {0, -1, 1e-45f, 1e-3f, 0.7f, 1, 1, 1, 2, 100, INFINITY};
	static const float top_ps[] = {1, 1, 1, 0.9f, 0.5f, 0.99f, 0.999f, 0, -1, NAN};
	static const float min_ps[] = {0, 0, 0, 0.05f, 0.5f, 2, NAN};
	static const uint32_t top_ks[] = {0, 0, 0, 1, 2, 40, 50, 1000, 5000, 50000, UINT32_MAX};

	return (struct slot_sampling){
		.temperature = temperatures[random_below(&rng, COUNT_OF(temperatures))],
		.top_p = top_ps[random_below(&rng, COUNT_OF(top_ps))],
		.min_p = min_ps[random_below(&rng, COUNT_OF(min_ps))],
		.top_k = top_ks[random_below(&rng, COUNT_OF(top_ks))],
		.seed = (uint64_t)random_u32(&rng) << 32 | random_u32(&rng),
	};
}

struct sample_case {
	struct slot_sampling sampling[SAMPLE_SLOTS];
	int32_t row_slot[SAMPLE_ROWS], row_flags[SAMPLE_ROWS], seq_lens[SAMPLE_ROWS];
	int32_t last_token[SAMPLE_SLOTS];
};

/* Each row has a slot of its own, a few have none or don't sample. */
static void random_case(struct sample_case *c)
{
	for (int32_t s = 0; s < SAMPLE_SLOTS; s++) {
		c->sampling[s] = random_sampling();
		c->last_token[s] = -9;
	}
	for (int32_t r = 0; r < SAMPLE_ROWS; r++) {
		c->row_slot[r] =
			random_below(&rng, 12) ? (r * 29 + 5) % SAMPLE_SLOTS : -1 - (r & 1);
		c->row_flags[r] = random_below(&rng, 12) ? ROW_SAMPLE | (r & 1) : ROW_FROM_SLOT;
		c->seq_lens[r] = (int32_t)random_below(&rng, 100000);
	}
	c->row_slot[3] = SAMPLE_SLOTS;
}

static void random_logits(float *logits, uint32_t n_rows, uint32_t vocab)
{
	for (uint32_t r = 0; r < n_rows; r++) {
		enum shape shape = random_below(&rng, N_SHAPES);

		for (uint32_t i = 0; i < vocab; i++)
			logits[(size_t)r * vocab + i] = random_logit(shape);
		if (!random_below(&rng, 6))
			logits[(size_t)r * vocab + random_below(&rng, vocab)] =
				not_finite[random_below(&rng, COUNT_OF(not_finite))];
	}
}

/* n_rows rows on both sides. */
static void check_sample(
	const struct sample_case *c, const struct both *logits, uint32_t n_rows, uint32_t vocab)
{
	const struct mark mark = mark_here();
	struct both sampling = both_of(c->sampling, sizeof(c->sampling));
	struct both row_slot = both_of(c->row_slot, sizeof(c->row_slot));
	struct both row_flags = both_of(c->row_flags, sizeof(c->row_flags));
	struct both seq_lens = both_of(c->seq_lens, sizeof(c->seq_lens));
	struct both last = both_of(c->last_token, sizeof(c->last_token));
	struct both sampled = both_new(BYTES, n_rows * 4);

	for (int side = 0; side < N_SIDES; side++) {
		struct op_sample a = {
			.logits = logits->at[side],
			.n_rows = n_rows,
			.vocab = vocab,
			.purpose = n_rows % 4,
			.sampled = sampled.at[side],
			.inputs = {.max_rows = SAMPLE_ROWS,
				.max_slots = SAMPLE_SLOTS,
				.row_slot = row_slot.at[side],
				.row_flags = row_flags.at[side],
				.seq_lens = seq_lens.at[side],
				.slot_sampling = sampling.at[side],
				.slot_last_token = last.at[side]},
		};

		RUN(side, sample, &a);
	}
	both_check_equal(&sampled, "sampled");
	both_check_equal(&last, "slot_last_token");
	release_to(mark);
}

static void check_sample_vocab(uint32_t vocab, uint32_t n_rows, int n_cases)
{
	const struct mark mark = mark_here();
	float *values = scratch((size_t)n_rows * vocab * sizeof(*values));
	struct sample_case c;
	struct both logits;

	random_logits(values, n_rows, vocab);
	logits = both_of(values, (size_t)n_rows * vocab * sizeof(*values));
	while (n_cases--) {
		random_case(&c);
		check_sample(&c, &logits, n_rows, vocab);
	}
	release_to(mark);
}

static void test_sample_draws_the_oracles_tokens_from_small_vocabularies(void **state)
{
	static const uint32_t vocabs[] = {1, 2, 3, 12, 31, 32, 33, 1000, 1025, 4096};

	for (size_t i = 0; i < COUNT_OF(vocabs); i++)
		check_sample_vocab(vocabs[i], SAMPLE_ROWS, 8);
}

static void test_sample_draws_the_oracles_tokens_from_large_vocabularies(void **state)
{
	check_sample_vocab(4099, SAMPLE_ROWS, 6);
	check_sample_vocab(32000, 17, 6);
	check_sample_vocab(128256, 1, 30);
	check_sample_vocab(128256, 24, 3);
	check_sample_vocab(151936, 5, 6);
}

/* What the device gives for these rows, each with such a place; each row's token, or -1. */
static void sample_rows(const float *values, uint32_t n_rows, uint32_t vocab,
	const struct slot_sampling *s, int32_t *ret_sampled, int32_t *ret_last)
{
	const struct mark mark = mark_here();
	const size_t bytes = n_rows * sizeof(int32_t);
	struct slot_sampling *sampling = scratch(n_rows * sizeof(*sampling));
	int32_t *numbers = scratch(bytes), *flags = scratch(bytes);

	for (uint32_t r = 0; r < n_rows; r++) {
		sampling[r] = *s;
		numbers[r] = (int32_t)r;
		flags[r] = ROW_SAMPLE;
	}
	struct both logits = both_of(values, (size_t)n_rows * vocab * sizeof(*values));
	struct both slots = both_of(numbers, bytes), row_flags = both_of(flags, bytes);
	struct both samplings = both_of(sampling, n_rows * sizeof(*sampling));
	struct both sampled = both_new(BYTES, bytes), last = both_new(BYTES, bytes);
	struct op_sample a = {
		.logits = logits.at[CUDA],
		.n_rows = n_rows,
		.vocab = vocab,
		.sampled = sampled.at[CUDA],
		.inputs = {.max_rows = n_rows,
			.max_slots = n_rows,
			.row_slot = slots.at[CUDA],
			.row_flags = row_flags.at[CUDA],
			.seq_lens = slots.at[CUDA],
			.slot_sampling = samplings.at[CUDA],
			.slot_last_token = last.at[CUDA]},
	};

	RUN(CUDA, sample, &a);
	both_copy(CUDA, ret_sampled, sampled.at[CUDA], bytes);
	both_copy(CUDA, ret_last, last.at[CUDA], bytes);
	release_to(mark);
}

/* Every second row has a NaN or an infinity at one place: the first, the last, one between. */
static void check_not_finite(uint32_t vocab, const struct slot_sampling *s)
{
	enum { N = 1 + 2 * 3 * 5 };
	const struct mark mark = mark_here();
	const uint32_t places[] = {0, 1, vocab / 2, vocab - 2, vocab - 1};
	float *values = scratch((size_t)N * vocab * sizeof(*values));
	int32_t want[N], want_last[N], got[N], last[N];

	random_fill_floats(&rng, values, (size_t)N * vocab);
	sample_rows(values, N, vocab, s, want, want_last);
	for (uint32_t i = 0; i < N / 2; i++)
		values[(size_t)(1 + 2 * i) * vocab + places[i % 5]] = not_finite[i / 5];
	sample_rows(values, N, vocab, s, got, last);
	for (uint32_t r = 0; r < N; r++) {
		assert_int_equal(got[r], r % 2 ? -1 : want[r]);
		assert_int_equal(last[r], r % 2 ? 0 : want[r]);
		assert_in_range(want[r], 0, vocab - 1);
	}
	release_to(mark);
}

static void test_sample_gives_no_token_for_a_row_with_a_nan_or_infinity_anywhere(void **state)
{
	static const uint32_t vocabs[] = {5, 1000, 8192, 32003, 128256};
	static const struct slot_sampling ways[] = {
		{.top_p = 1},
		{.temperature = 1, .top_p = 1},
		{.temperature = 1, .top_p = 0.9f, .top_k = 50},
	};

	for (size_t i = 0; i < COUNT_OF(vocabs) * COUNT_OF(ways); i++)
		check_not_finite(vocabs[i / COUNT_OF(ways)], &ways[i % COUNT_OF(ways)]);
}

static void test_sample_of_no_rows_writes_nothing(void **state)
{
	check_sample_vocab(100, 0, 1);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(test_prepare_equals_the_oracle_on_small_steps),
	cmocka_unit_test(test_prepare_equals_the_oracle_on_large_steps),
	cmocka_unit_test(test_prepare_equals_the_oracle_on_long_rows),
	cmocka_unit_test(test_prepare_equals_the_oracle_where_many_rows_change_pages),
	cmocka_unit_test(test_rope_behind_a_recorded_prepare_uses_its_positions),
	cmocka_unit_test(test_sample_draws_the_oracles_tokens_from_small_vocabularies),
	cmocka_unit_test(test_sample_draws_the_oracles_tokens_from_large_vocabularies),
	cmocka_unit_test(test_sample_gives_no_token_for_a_row_with_a_nan_or_infinity_anywhere),
	cmocka_unit_test(test_sample_of_no_rows_writes_nothing),
};

CUDA_TEST_MAIN("cuda_step", tests)
