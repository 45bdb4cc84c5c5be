/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_KERNELS_SPECULATE_FIXTURE_H
#define MIMEO_TESTS_KERNELS_SPECULATE_FIXTURE_H

/*
 * What tests of speculation share: the persistent inputs and the draft's, each in a poisoned buffer
 * between canaries; steps of rows; and verification by the book. On the device of MIMEO_DEVICE.
 */

#include "tests/device.h"

#define OPS_DEVICE test_device()
#include "tests/kernels/cpu_ops_fixture.h"
#include "tests/kernels/distribution.h"

enum { RIG_BUFFERS = 48 };

struct rig {
	struct step_inputs in;
	struct draft_inputs draft;
	uint32_t n_pages;   /* there are */
	float *logits;      /* [max_rows, 1 + K, vocab] the target's, for the test to write */
	float *draft_logits; /* [max_rows, vocab] the draft's, likewise */
	int32_t *sampled;   /* [max_rows, 1 + K] */
	struct buffer buffers[RIG_BUFFERS];
	size_t n_buffers;
	size_t first; /* number of the test's buffers before the rig's */
};

static inline void *rig_take(struct rig *rig, size_t n, size_t size)
{
	struct buffer *b = &rig->buffers[rig->n_buffers++];

	assert_true(rig->n_buffers <= RIG_BUFFERS);
	*b = buffer_new(n * size);
	return b->data;
}

#define RIG_TAKE(rig, n, pointer) ((pointer) = rig_take((rig), (n), sizeof(*(pointer))))

static inline void rig_take_step(struct rig *rig)
{
	struct step_inputs *in = &rig->in;

	RIG_TAKE(rig, in->max_tokens, in->input_ids);
	RIG_TAKE(rig, in->max_tokens, in->embedding_from);
	RIG_TAKE(rig, in->max_tokens, in->positions);
	RIG_TAKE(rig, in->max_tokens, in->slot_mapping);
	RIG_TAKE(rig, in->max_rows + 1, in->query_start);
	RIG_TAKE(rig, in->max_rows, in->seq_lens);
	RIG_TAKE(rig, (size_t)in->max_rows * in->max_pages, in->block_table);
	RIG_TAKE(rig, in->max_rows, in->row_slot);
	RIG_TAKE(rig, in->max_rows, in->row_flags);
	RIG_TAKE(rig, (size_t)in->max_rows * (1 + in->max_drafts), in->logit_index);
	RIG_TAKE(rig, in->max_slots, in->slot_last_token);
	RIG_TAKE(rig, in->max_slots, in->slot_sampling);
	RIG_TAKE(rig, (size_t)in->max_slots * in->max_pages, in->slot_block_table);
}

static inline void rig_take_drafts(struct rig *rig)
{
	struct step_inputs *in = &rig->in;
	struct draft_inputs *d = &rig->draft;
	size_t n = (size_t)in->max_slots * in->max_drafts;

	RIG_TAKE(rig, in->max_rows, in->next_ids);
	RIG_TAKE(rig, in->max_slots, in->slot_length);
	RIG_TAKE(rig, in->max_slots, in->slot_n_drafts);
	RIG_TAKE(rig, n, in->slot_drafts);
	RIG_TAKE(rig, n * in->vocab_size, in->slot_draft_logits);
	RIG_TAKE(rig, in->max_tokens, d->input_ids);
	RIG_TAKE(rig, in->max_tokens, d->slot_mapping);
	RIG_TAKE(rig, in->max_rows, d->last_index);
	RIG_TAKE(rig, 1, d->step);
	RIG_TAKE(rig, in->max_rows, d->decode_ids);
	RIG_TAKE(rig, in->max_rows, d->positions);
	RIG_TAKE(rig, in->max_rows, d->decode_slot_mapping);
	RIG_TAKE(rig, in->max_rows + 1, d->query_start);
	RIG_TAKE(rig, in->max_rows, d->seq_lens);
	RIG_TAKE(rig, in->max_rows, d->hidden_index);
}

static inline void rig_take_adjustment(struct rig *rig)
{
	struct step_inputs *in = &rig->in;
	const size_t n = in->max_slots;

	RIG_TAKE(rig, n, in->slot_adjust);
	RIG_TAKE(rig, n * COUNTS_STRIDE(in->vocab_size), in->slot_counts);
	RIG_TAKE(rig, n * SLOT_BIAS_MAX, in->slot_bias);
	RIG_TAKE(rig, n * TOKEN_WORDS(in->vocab_size), in->slot_allowed);
	RIG_TAKE(rig, (size_t)in->max_rows * (1 + in->max_drafts) * LOGPROBS_WIDTH, in->row_logprobs);
}

/* `sizes`: the numbers of step_inputs. */
static inline void rig_init(struct rig *rig, const struct step_inputs *sizes, uint32_t n_pages)
{
	*rig = (struct rig){.in = *sizes, .n_pages = n_pages, .first = n_buffers};
	rig->in.embedding_bytes = 8;
	rig_take_step(rig);
	if (sizes->max_drafts)
		rig_take_drafts(rig);
	rig_take_adjustment(rig);
	RIG_TAKE(rig, (size_t)sizes->max_rows * (1 + sizes->max_drafts) * sizes->vocab_size,
		rig->logits);
	RIG_TAKE(rig, (size_t)sizes->max_rows * sizes->vocab_size, rig->draft_logits);
	RIG_TAKE(rig, (size_t)sizes->max_rows * (1 + sizes->max_drafts), rig->sampled);
}

static inline void rig_deinit(struct rig *rig)
{
	buffers_free_to(rig->first);
}

/* All that the ops write, one buffer behind the other. */
static inline size_t rig_bytes(const struct rig *rig)
{
	size_t bytes = 0;

	for (size_t i = 0; i < rig->n_buffers; i++)
		bytes += rig->buffers[i].bytes;
	return bytes;
}

static inline uint8_t *rig_save(const struct rig *rig)
{
	uint8_t *saved = malloc(rig_bytes(rig)), *to = saved;

	assert_non_null(saved);
	for (size_t i = 0; i < rig->n_buffers; to += rig->buffers[i++].bytes)
		memcpy(to, rig->buffers[i].data, rig->buffers[i].bytes);
	return saved;
}

static inline void rig_restore(struct rig *rig, const uint8_t *saved)
{
	for (size_t i = 0; i < rig->n_buffers; saved += rig->buffers[i++].bytes)
		memcpy(rig->buffers[i].data, saved, rig->buffers[i].bytes);
}

/* n bytes in a buffer of their own, for an op to read. */
static inline struct buffer pinned_copy(const void *data, size_t bytes)
{
	struct buffer b = buffer_new(bytes);

	if (bytes)
		memcpy(b.data, data, bytes);
	return b;
}

/* Prepares by a copy of the record, its rows, ids and inits, and their pages. */
static inline void rig_run_record(struct rig *rig, const struct step_record *record)
{
	uint32_t n_pages = 0, n_ids = record->ids ? record->n_tokens : 0;
	const size_t before = n_buffers;

	for (uint32_t i = 0; i < record->n_inits; i++) {
		uint32_t end = record->inits[i].page_offset + record->inits[i].n_pages;

		n_pages = end > n_pages ? end : n_pages;
	}
	for (uint32_t r = 0; r < record->n_rows; r++) {
		uint32_t end = record->rows[r].page_offset + record->rows[r].n_pages;

		n_pages = end > n_pages ? end : n_pages;
	}
	struct buffer parts[] = {pinned_copy(record, sizeof(*record)),
		pinned_copy(record->rows, record->n_rows * sizeof(*record->rows)),
		pinned_copy(record->ids, n_ids * sizeof(*record->ids)),
		pinned_copy(record->inits, record->n_inits * sizeof(*record->inits)),
		pinned_copy(record->pages, n_pages * sizeof(*record->pages))};
	struct step_record *own = parts[0].data;
	struct op_prepare a = {.record = own, .inputs = rig->in, .n_pages = rig->n_pages};

	own->rows = parts[1].data;
	own->ids = parts[2].data;
	own->inits = parts[3].data;
	own->pages = parts[4].data;
	RUN(prepare, &a);
	buffers_free_to(before);
}

/* ---- a slot's state ---- */

static inline int32_t *drafts_of(const struct rig *rig, int32_t slot)
{
	return rig->in.slot_drafts + (size_t)slot * rig->in.max_drafts;
}

static inline float *draft_logits_of(const struct rig *rig, int32_t slot, uint32_t i)
{
	return rig->in.slot_draft_logits +
	       ((size_t)slot * rig->in.max_drafts + i) * rig->in.vocab_size;
}

static inline float *logits_of(const struct rig *rig, uint32_t row, uint32_t i)
{
	return rig->logits + ((size_t)row * (1 + rig->in.max_drafts) + i) * rig->in.vocab_size;
}

static inline const int32_t *sampled_of(const struct rig *rig, uint32_t row)
{
	return rig->sampled + (size_t)row * (1 + rig->in.max_drafts);
}

/* Sets up all slots, slot s with pages s * max_pages + 1, ..., so many. */
static inline void rig_init_slots(
	struct rig *rig, uint32_t n_pages, uint32_t n_drafts, const struct slot_sampling *sampling)
{
	const uint32_t n = rig->in.max_slots;
	struct slot_init *inits = calloc(n, sizeof(*inits));
	uint32_t *pages = calloc((size_t)n * rig->in.max_pages, sizeof(*pages));
	struct step_record record = {.n_inits = n, .inits = inits, .pages = pages};

	assert_true(inits && pages && n * rig->in.max_pages < rig->n_pages);
	for (uint32_t s = 0; s < n; s++) {
		inits[s] = (struct slot_init){
			.slot = (int32_t)s,
			.n_pages = n_pages,
			.page_offset = s * rig->in.max_pages,
			.n_drafts = n_drafts,
			.sampling = *sampling,
		};
		for (uint32_t p = 0; p < rig->in.max_pages; p++)
			pages[s * rig->in.max_pages + p] = s * rig->in.max_pages + 1 + p;
	}
	rig_run_record(rig, &record);
	free(pages);
	free(inits);
}

/* As rig_init_slots gave it; -1 past its pages. */
static inline int32_t cache_slot_of(const struct rig *rig, int32_t slot, uint64_t position)
{
	uint32_t page = (uint32_t)(position / rig->in.page_tokens);
	uint32_t of_slot = page < rig->in.max_pages
		? (uint32_t)rig->in.slot_block_table[(size_t)slot * rig->in.max_pages + page]
		: 0;

	return of_slot ? (int32_t)(of_slot * rig->in.page_tokens + position % rig->in.page_tokens)
		       : -1;
}

/* ---- steps ---- */

static inline struct step_record record_of(
	const struct step_row *rows, uint32_t n_rows, uint32_t padded_rows, const int32_t *ids)
{
	struct step_record record = {
		.n_rows = n_rows, .padded_rows = padded_rows, .rows = rows, .ids = ids};

	for (uint32_t r = 0; r < n_rows; r++)
		record.n_tokens += rows[r].n_tokens;
	record.padded_tokens = record.n_tokens;
	return record;
}

static inline void rig_prepare(struct rig *rig, const struct step_row *rows, uint32_t n_rows,
	uint32_t padded_rows, const int32_t *ids)
{
	struct step_record record = record_of(rows, n_rows, padded_rows, ids);

	rig_run_record(rig, &record);
}

static inline struct op_verify verify_args(const struct rig *rig, uint32_t n_rows)
{
	return (struct op_verify){rig->logits, n_rows, rig->in.vocab_size, rig->in, rig->sampled};
}

static inline struct op_draft_begin begin_args(const struct rig *rig, uint32_t n_rows)
{
	return (struct op_draft_begin){
		rig->in, rig->sampled, rig->draft, n_rows, rig->in.max_tokens};
}

static inline struct op_draft_advance advance_args(const struct rig *rig, uint32_t n_rows)
{
	return (struct op_draft_advance){
		rig->draft_logits, NULL, n_rows, rig->in.vocab_size, rig->in, rig->draft};
}

static inline void rig_verify(struct rig *rig, uint32_t n_rows)
{
	struct op_verify a = verify_args(rig, n_rows);

	RUN(verify, &a);
}

static inline void rig_begin(struct rig *rig, uint32_t n_rows)
{
	struct op_draft_begin a = begin_args(rig, n_rows);

	RUN(draft_begin, &a);
}

static inline void rig_advance(struct rig *rig, uint32_t n_rows)
{
	struct op_draft_advance a = advance_args(rig, n_rows);

	RUN(draft_advance, &a);
}

/* ---- adjustment of logits ---- */

/* Copy what the update points to into buffers that the device can read. */
static inline void rig_pin_update(const struct rig *rig, struct slot_update *own)
{
	const bool sets = own->flags & UPDATE_SET;
	const uint32_t words = sets && own->adjust.masked ? TOKEN_WORDS(rig->in.vocab_size) : 0;

	own->bias = pinned_copy(own->bias, sets ? own->adjust.n_bias * sizeof(*own->bias) : 0).data;
	own->allowed = pinned_copy(own->allowed, words * sizeof(*own->allowed)).data;
	own->tokens = pinned_copy(own->tokens, own->n_tokens * sizeof(*own->tokens)).data;
}

/* Apply n updates in one launch. */
static inline void rig_update_slots(struct rig *rig, const struct slot_update *updates, uint32_t n)
{
	const size_t before = n_buffers;
	struct slot_update *own = pinned_copy(updates, n * sizeof(*updates)).data;
	const struct op_update_slots a = {own, n, rig->in};

	for (uint32_t i = 0; i < n; i++)
		rig_pin_update(rig, &own[i]);
	RUN(update_slots, &a);
	buffers_free_to(before);
}

static inline void rig_update(struct rig *rig, const struct slot_update *update)
{
	rig_update_slots(rig, update, 1);
}

static inline void rig_adjust(struct rig *rig, uint32_t n_rows)
{
	struct op_adjust a = {rig->logits, n_rows, rig->in.vocab_size, false, rig->in};

	RUN(adjust, &a);
}

static inline uint16_t *counts_of(const struct rig *rig, int32_t slot)
{
	return rig->in.slot_counts + (size_t)slot * COUNTS_STRIDE(rig->in.vocab_size);
}

static inline const struct token_logprob *logprobs_of(const struct rig *rig, uint32_t row, uint32_t i)
{
	return rig->in.row_logprobs + ((size_t)row * (1 + rig->in.max_drafts) + i) * LOGPROBS_WIDTH;
}

/* An adjustment that changes nothing. */
static const struct slot_adjust no_adjustment = {.repetition = 1};

/* ---- verification by the book ---- */

/* The token behind token i of a row that is sampled, at that position; whether it is the draft. */
static inline int32_t book_token(const float *logits, int32_t draft, const float *draft_logits,
	uint32_t vocab, const struct slot_sampling *s, uint32_t position, bool residual_is_p,
	bool *ret_held)
{
	double p[SMALL_VOCAB_MAX], q[SMALL_VOCAB_MAX], u;

	*ret_held = false;
	filtered_distribution(logits, vocab, s, p);
	if (draft < 0)
		return weighted_draw(p, vocab, s->seed, position, SAMPLE_TARGET);
	filtered_distribution(draft_logits, vocab, s, q);
	u = plain_uniform(s->seed, position, SAMPLE_ACCEPT, (uint32_t)draft);
	if (u * q[draft] < p[draft]) {
		*ret_held = true;
		return draft;
	}
	for (uint32_t i = 0; i < vocab && !residual_is_p; i++)
		p[i] = p[i] > q[i] ? p[i] - q[i] : 0;
	return weighted_draw(p, vocab, s->seed, position, SAMPLE_RESIDUAL);
}

/*
 * What verify does to row r, whose slot says `position` to be that of the token behind its first,
 * with `drafts` and their logits as they are: `sampled` [1 + K]; returns how many tokens. With
 * residual_is_p it is wrong: what takes a rejected draft's place is drawn from p.
 */
static inline uint32_t book_verify(const struct rig *rig, uint32_t r, int32_t slot,
	uint32_t position, const int32_t *drafts, bool residual_is_p, int32_t *sampled)
{
	const uint32_t k = rig->in.max_drafts;
	uint32_t n = 0;
	bool held = true;

	for (uint32_t i = 0; i <= k; i++)
		sampled[i] = -1;
	while (held) {
		int32_t draft = n < k ? drafts[n] : -1;
		const float *draft_logits = n < k ? draft_logits_of(rig, slot, n) : NULL;

		sampled[n] = book_token(logits_of(rig, r, n), draft, draft_logits,
			rig->in.vocab_size, &rig->in.slot_sampling[slot], position + n,
			residual_is_p, &held);
		n++;
	}
	return n;
}

#endif
