/* SPDX-License-Identifier: MIT */
#include "daemon/graph/inputs.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "kernels/arena.h"

#define TAKE(arena, n, pointer) ((pointer) = arena_take((arena), (n), sizeof(*(pointer))))

/*
 * slot_draft_logits, [max_slots, K, vocab_size] floats, are by far the largest part: 525 MB for 256
 * slots, 4 draft tokens and 128k ids. Rejection sampling needs the exact distribution q that a draft
 * token was drawn from, a step after it was drawn. Greedy slots do not need it, but any slot may
 * sample, and memory that a graph reads cannot be allocated later: so each slot has a place, counted
 * before weights are read, and max_requests and K bound it. Alternatives that were rejected:
 *
 *	bf16          draft tokens would have to be drawn from the rounded q, and acceptance would
 *	              be that of another distribution
 *	recompute     by the draft model's head, from hidden states that are kept: reads the whole
 *	              head once more a step, and needs as many rows for the result
 *	fewer places  than slots: whether a client has draft tokens would depend on other clients
 *	draft_vocab   columns in place of vocab_size: a quarter for most EAGLE-3 heads, nothing for
 *	              EAGLE; verify would have to know d2t
 */
static void inputs_carve_speculation(struct inputs *inputs, struct arena *arena)
{
	const struct inputs_limits *l = &inputs->limits;
	const size_t n_drafts = (size_t)l->max_slots * l->max_drafts;
	struct step_inputs *p = &inputs->persistent;
	struct draft_inputs *d = &inputs->draft;

	TAKE(arena, l->max_rows, p->next_ids);
	TAKE(arena, l->max_slots, p->slot_length);
	TAKE(arena, l->max_slots, p->slot_n_drafts);
	TAKE(arena, n_drafts, p->slot_drafts);
	p->slot_draft_logits =
		arena_take(arena, n_drafts, l->vocab_size * sizeof(*p->slot_draft_logits));
	TAKE(arena, l->max_tokens, d->input_ids);
	TAKE(arena, l->max_tokens, d->slot_mapping);
	TAKE(arena, l->max_rows, d->last_index);
	TAKE(arena, 1, d->step);
	TAKE(arena, l->max_rows, d->decode_ids);
	TAKE(arena, l->max_rows, d->positions);
	TAKE(arena, l->max_rows, d->decode_slot_mapping);
	TAKE(arena, l->max_rows + 1, d->query_start);
	TAKE(arena, l->max_rows, d->seq_lens);
	TAKE(arena, l->max_rows, d->hidden_index);
}

/*
 * A slot has 2 bytes and a bit for each id, and 8 KiB of bias: 278 KB of 128k ids, 71 MB for 256 slots. As with
 * the draft logits, any slot may need them, and memory that a graph reads cannot be allocated later.
 */
static void inputs_carve_adjustment(struct inputs *inputs, struct arena *arena)
{
	const struct inputs_limits *l = &inputs->limits;
	struct step_inputs *p = &inputs->persistent;

	TAKE(arena, l->max_slots, p->slot_adjust);
	TAKE(arena, (size_t)l->max_slots * COUNTS_STRIDE(l->vocab_size), p->slot_counts);
	TAKE(arena, (size_t)l->max_slots * SLOT_BIAS_MAX, p->slot_bias);
	TAKE(arena, (size_t)l->max_slots * TOKEN_WORDS(l->vocab_size), p->slot_allowed);
	TAKE(arena, (size_t)l->max_rows * (1 + l->max_drafts) * LOGPROBS_WIDTH, p->row_logprobs);
}

static size_t inputs_n_sets(const struct inputs_limits *l)
{
	return l->n_sets ? l->n_sets : 1;
}

static void inputs_carve_device(struct inputs *inputs, struct arena *arena)
{
	const struct inputs_limits *l = &inputs->limits;
	struct step_inputs *p = &inputs->persistent;

	TAKE(arena, l->max_tokens, p->input_ids);
	TAKE(arena, l->max_tokens, p->embedding_from);
	TAKE(arena, l->max_tokens, p->positions);
	TAKE(arena, inputs_n_sets(l) * l->max_tokens, p->slot_mapping);
	TAKE(arena, l->max_rows + 1, p->query_start);
	TAKE(arena, l->max_rows, p->seq_lens);
	TAKE(arena, inputs_n_sets(l) * l->max_rows * l->max_pages, p->block_table);
	TAKE(arena, l->max_rows, p->row_slot);
	TAKE(arena, l->max_rows, p->row_flags);
	TAKE(arena, (size_t)l->max_rows * (1 + l->max_drafts), p->logit_index);
	TAKE(arena, l->max_slots, p->slot_last_token);
	TAKE(arena, l->max_slots, p->slot_sampling);
	TAKE(arena, inputs_n_sets(l) * l->max_slots * l->max_pages, p->slot_block_table);
	if (l->masks) {
		TAKE(arena, l->max_slots, p->slot_mask);
		TAKE(arena, l->max_tokens, p->mask_words);
	}
	if (l->max_drafts)
		inputs_carve_speculation(inputs, arena);
	inputs_carve_adjustment(inputs, arena);
	TAKE(arena, (size_t)l->max_rows * l->hidden_size, inputs->hidden_f32);
	TAKE(arena, (size_t)l->max_slots * l->hidden_size, inputs->hidden_sums);
	TAKE(arena, (size_t)l->max_rows * (1 + l->max_drafts), inputs->sampled);
}

static void inputs_carve_updates(struct inputs *inputs, struct inputs_slot *slot, struct arena *arena)
{
	const struct inputs_limits *l = &inputs->limits;

	TAKE(arena, l->max_rows, slot->updates);
	TAKE(arena, INPUTS_UPDATE_BIASES, slot->biases);
	TAKE(arena, (size_t)l->max_rows * TOKEN_WORDS(l->vocab_size), slot->allowed);
	TAKE(arena, INPUTS_UPDATE_TOKENS, slot->counted);
}

static void inputs_carve_slot(struct inputs *inputs, struct inputs_slot *slot, struct arena *arena)
{
	const struct inputs_limits *l = &inputs->limits;

	TAKE(arena, 1, slot->record);
	TAKE(arena, l->max_rows, slot->rows);
	TAKE(arena, l->max_tokens, slot->ids);
	if (l->masks)
		TAKE(arena, l->max_tokens, slot->words);
	TAKE(arena, l->max_rows, slot->inits);
	TAKE(arena, l->max_step_pages, slot->pages);
	TAKE(arena, inputs_n_sets(l) * l->max_rows, slot->copies);
	if (l->window)
		TAKE(arena, inputs_n_sets(l) * l->max_rows, slot->changes);
	inputs_carve_updates(inputs, slot, arena);
	TAKE(arena, (size_t)l->max_rows * (1 + l->max_drafts), slot->sampled);
	TAKE(arena, (size_t)l->max_rows * (1 + l->max_drafts) * LOGPROBS_WIDTH, slot->logprobs);
	TAKE(arena, 1, slot->results_flag);
	TAKE(arena, 1, slot->results_ns);
	TAKE(arena, l->max_scores, slot->score_tokens);
	TAKE(arena, (size_t)l->max_scores * LOGPROBS_WIDTH, slot->scores);
	TAKE(arena, (size_t)l->max_results * l->vocab_size, slot->logits);
	TAKE(arena, (size_t)l->max_results * l->hidden_size, slot->hidden);
	TAKE(arena, 1, slot->flag);
	TAKE(arena, 1, slot->began);
	TAKE(arena, 1, slot->ended);
	if (l->max_drafts)
		TAKE(arena, 1, slot->draft_began);
}

static void inputs_carve_pinned(struct inputs *inputs, struct arena *arena)
{
	for (unsigned i = 0; i < INPUTS_SLOTS; i++)
		inputs_carve_slot(inputs, &inputs->slots[i], arena);
}

static void inputs_set_limits(struct inputs *inputs, enum dtype activation)
{
	const struct inputs_limits *l = &inputs->limits;
	struct step_inputs *p = &inputs->persistent;

	p->max_rows = l->max_rows;
	p->max_tokens = l->max_tokens;
	p->max_slots = l->max_slots;
	p->max_pages = l->max_pages;
	p->page_tokens = l->page_tokens;
	p->n_sets = (uint32_t)inputs_n_sets(l);
	p->vocab_size = l->vocab_size;
	p->max_drafts = l->max_drafts;
	p->embedding_bytes = l->hidden_size * (uint32_t)dtype_bytes(activation);
}

int inputs_measure(const struct inputs_limits *limits, uint64_t *ret_device, uint64_t *ret_pinned)
{
	struct inputs inputs = {.limits = *limits};
	struct arena device = {0}, pinned = {0};

	inputs_carve_device(&inputs, &device);
	inputs_carve_pinned(&inputs, &pinned);
	if (device.failed || pinned.failed)
		return -EOVERFLOW;
	*ret_device = device.used;
	*ret_pinned = pinned.used;
	return 0;
}

int inputs_init(struct inputs *inputs, struct device *device, const struct inputs_limits *limits)
{
	struct arena arena, pinned;
	struct device_info info;
	int rc;

	*inputs = (struct inputs){.device = device, .limits = *limits};
	rc = device->ops->info(device, &info);
	if (rc)
		return rc;
	inputs_set_limits(inputs, info.activation_dtype);
	rc = inputs_measure(limits, &inputs->device_bytes, &inputs->pinned_bytes);
	if (rc)
		return rc;
	rc = device->ops->mem_alloc(device, inputs->device_bytes, &inputs->device_memory);
	if (rc)
		return rc;
	rc = device->ops->host_alloc(device, inputs->pinned_bytes, &inputs->pinned_memory);
	if (rc) {
		inputs_deinit(inputs);
		return rc;
	}
	arena = (struct arena){.base = inputs->device_memory, .size = inputs->device_bytes};
	pinned = (struct arena){.base = inputs->pinned_memory, .size = inputs->pinned_bytes};
	inputs_carve_device(inputs, &arena);
	inputs_carve_pinned(inputs, &pinned);
	assert(!arena.failed && arena.used == inputs->device_bytes);
	assert(!pinned.failed && pinned.used == inputs->pinned_bytes);
	for (unsigned i = 0; i < INPUTS_SLOTS; i++) {
		inputs->slots[i].limits = &inputs->limits;
		*inputs->slots[i].flag = 0;
		*inputs->slots[i].results_flag = 0;
	}
	return 0;
}

void inputs_deinit(struct inputs *inputs)
{
	if (!inputs || !inputs->device)
		return;
	inputs->device->ops->host_free(inputs->device, inputs->pinned_memory);
	inputs->device->ops->mem_free(inputs->device, inputs->device_memory);
	*inputs = (struct inputs){0};
}

struct inputs_slot *inputs_begin(struct inputs *inputs, uint64_t step)
{
	struct inputs_slot *slot = &inputs->slots[step % INPUTS_SLOTS];

	if (!inputs_slot_done(slot))
		return NULL;
	slot->step = step;
	*slot->record = (struct step_record){
		.rows = slot->rows,
		.ids = slot->ids,
		.inits = slot->inits,
		.pages = slot->pages,
	};
	slot->n_pages = slot->n_copies = slot->n_changes = slot->n_results = slot->n_scores = slot->n_positions = 0;
	slot->n_updates = slot->n_biases = slot->n_allowed = slot->n_counted = 0;
	slot->verifies = slot->adjusts = slot->has_logprobs = false;
	return slot;
}

int32_t *inputs_add_row(struct inputs_slot *slot, const struct step_row *row)
{
	int32_t *ids = slot->ids + slot->record->n_tokens;

	assert(slot->record->n_rows < slot->limits->max_rows);
	assert(row->n_tokens <= slot->limits->max_tokens - slot->record->n_tokens);
	slot->rows[slot->record->n_rows++] = *row;
	slot->record->n_tokens += row->n_tokens;
	slot->verifies |= (row->flags & ROW_VERIFY) != 0;
	slot->adjusts |= (row->flags & (ROW_ADJUST | ROW_LOGPROBS)) != 0;
	slot->has_logprobs |= (row->flags & ROW_LOGPROBS) != 0;
	return ids;
}

uint64_t *inputs_next_words(const struct inputs_slot *slot)
{
	assert(slot->words);
	return slot->words + slot->record->n_tokens;
}

bool inputs_can_add_pages(const struct inputs_slot *slot, uint32_t n_pages)
{
	assert(slot->n_pages <= slot->limits->max_step_pages);
	return n_pages <= slot->limits->max_step_pages - slot->n_pages;
}

uint32_t inputs_add_pages(struct inputs_slot *slot, const uint32_t *pages, uint32_t n_pages)
{
	const uint32_t offset = slot->n_pages;

	assert(inputs_can_add_pages(slot, n_pages));
	memcpy(slot->pages + offset, pages, n_pages * sizeof(pages[0]));
	slot->n_pages += n_pages;
	return offset;
}

void inputs_add_change(struct inputs_slot *slot, int32_t persistent_slot, uint32_t set, uint32_t first,
	const uint32_t *pages, uint32_t n_pages)
{
	assert(slot->changes && slot->n_changes < slot->limits->max_rows * slot->limits->n_sets);
	assert(persistent_slot >= 0 && set && set < slot->limits->n_sets);
	slot->changes[slot->n_changes++] = (struct set_change){
		.slot = persistent_slot,
		.set = set,
		.first = first,
		.n_pages = n_pages,
		.page_offset = inputs_add_pages(slot, pages, n_pages),
	};
}

bool inputs_can_init(const struct inputs *inputs, const struct inputs_slot *slot, uint32_t n_pages)
{
	return slot->record->n_inits < inputs->limits.max_rows &&
		inputs_can_add_pages(slot, n_pages);
}

void inputs_add_init(struct inputs_slot *slot, int32_t persistent_slot,
	const struct slot_sampling *sampling, const uint32_t *pages, uint32_t n_pages)
{
	assert(slot->record->n_inits < slot->limits->max_rows);
	assert(persistent_slot >= 0 && (uint32_t)persistent_slot < slot->limits->max_slots);
	slot->inits[slot->record->n_inits++] = (struct slot_init){
		.slot = persistent_slot,
		.n_pages = n_pages,
		.page_offset = inputs_add_pages(slot, pages, n_pages),
		.sampling = *sampling,
	};
}

void inputs_set_mask(struct inputs_slot *slot, const struct slot_mask *mask)
{
	assert(slot->record->n_inits);
	slot->inits[slot->record->n_inits - 1].mask = *mask;
}

void inputs_set_drafts(struct inputs_slot *slot, uint32_t n_drafts)
{
	assert(slot->record->n_inits && n_drafts <= slot->limits->max_drafts);
	slot->inits[slot->record->n_inits - 1].n_drafts = n_drafts;
}

bool inputs_can_update(const struct inputs_slot *slot, uint32_t n_biases)
{
	assert(n_biases <= SLOT_BIAS_MAX && slot->n_biases <= INPUTS_UPDATE_BIASES);
	return slot->n_updates < slot->limits->max_rows && n_biases <= INPUTS_UPDATE_BIASES - slot->n_biases;
}

void inputs_add_update(struct inputs_slot *slot, const struct slot_update *update)
{
	const uint32_t n_biases = update->flags & UPDATE_SET ? update->adjust.n_bias : 0;
	const uint32_t words = TOKEN_WORDS(slot->limits->vocab_size);
	struct slot_update *own = &slot->updates[slot->n_updates];

	assert(inputs_can_update(slot, n_biases) && !update->n_tokens);
	assert(update->slot >= 0 && (uint32_t)update->slot < slot->limits->max_slots);
	*own = *update;
	slot->n_updates++;
	own->bias = slot->biases + slot->n_biases;
	if (n_biases)
		memcpy(slot->biases + slot->n_biases, update->bias, n_biases * sizeof(*update->bias));
	slot->n_biases += n_biases;
	own->tokens = slot->counted + slot->n_counted;
	if (!(update->flags & UPDATE_SET) || !update->adjust.masked)
		return;
	own->allowed = slot->allowed + (size_t)slot->n_allowed++ * words;
	memcpy(slot->allowed + (own->allowed - slot->allowed), update->allowed, words * sizeof(*update->allowed));
}

uint32_t inputs_count_tokens(struct inputs_slot *slot, const int32_t *tokens, uint32_t n_tokens, uint32_t n_prompt)
{
	const uint32_t capacity = INPUTS_UPDATE_TOKENS - slot->n_counted, n = n_tokens < capacity ? n_tokens : capacity;
	struct slot_update *update = &slot->updates[slot->n_updates - 1];

	assert(slot->n_updates > 0 && !update->n_tokens && slot->n_counted <= INPUTS_UPDATE_TOKENS);
	memcpy(slot->counted + slot->n_counted, tokens, n * sizeof(*tokens));
	slot->n_counted += n;
	update->n_tokens = n;
	update->n_prompt = n_prompt < n ? n_prompt : n;
	return n;
}

int inputs_update(struct inputs *inputs, struct inputs_slot *slot, struct stream *stream)
{
	if (!slot->n_updates)
		return 0;
	return inputs->device->kernels->update_slots(stream, &(struct op_update_slots){
		.updates = slot->updates,
		.n = slot->n_updates,
		.inputs = inputs->persistent,
	});
}

/* Warm-up and capture (step 0) have as many rows of logits as any step may. */
static bool inputs_last_only(const struct inputs_slot *slot, const struct descriptor *descriptor)
{
	if (descriptor->mode == GRAPH_FULL)
		return descriptor->query_len == 1;
	return slot->step && !slot->verifies;
}

static int inputs_set_tables(
	struct inputs *inputs, const struct inputs_slot *slot, struct stream *stream, uint32_t n_pages)
{
	return inputs->device->kernels->set_tables(stream, &(struct op_set_tables){
		.inputs = inputs->persistent,
		.changes = slot->changes,
		.pages = slot->pages,
		.n_changes = slot->n_changes,
		.n_rows = slot->record->padded_rows,
		.n_pages = n_pages,
		.n_full_sets = inputs->limits.n_full_sets,
		.window = inputs->limits.window,
	});
}

int inputs_prepare(struct inputs *inputs, struct inputs_slot *slot, struct stream *stream,
	const struct descriptor *descriptor, uint32_t padded_rows, uint32_t n_pages)
{
	struct op_prepare args = {.inputs = inputs->persistent, .n_pages = n_pages};
	int rc;

	assert(padded_rows <= inputs->limits.max_rows);
	assert(descriptor->tokens <= inputs->limits.max_tokens);
	inputs->built = *descriptor;
	inputs->source = slot;
	inputs->last_only = inputs_last_only(slot, descriptor);
	inputs->adjusts = !slot->step || slot->adjusts;
	if (inputs->last_only && slot->verifies)
		return -EINVAL;
	slot->record->last_only = inputs->last_only;
	slot->record->padded_rows = padded_rows;
	slot->record->padded_tokens = descriptor->tokens;
	args.record = slot->record;
	args.began = slot->began;
	rc = inputs->device->kernels->prepare(stream, &args);
	return rc || !inputs->limits.window ? rc : inputs_set_tables(inputs, slot, stream, n_pages);
}
