/* SPDX-License-Identifier: MIT */
#include "tests/model/draft_rig.h"

#include "tests/device_memory.h"
#include "tests/model/fixture.h"

/* ---- memory ---- */

static size_t state_bytes(const struct draft_rig *d)
{
	return d->draft->config.hidden_size * dtype_bytes(d->rig.info.activation_dtype);
}

static void carve_inputs(struct draft_rig *d, struct arena *arena)
{
	struct step_inputs *in = &d->inputs;

	*in = d->rig.inputs.persistent;
	in->embedding_from = NULL;
	in->input_ids = arena_take(arena, RIG_TOKENS, sizeof(int32_t));
	in->positions = arena_take(arena, RIG_TOKENS, sizeof(int32_t));
	in->slot_mapping = arena_take(arena, RIG_TOKENS, sizeof(int32_t));
	in->query_start = arena_take(arena, RIG_ROWS + 1, sizeof(int32_t));
	in->seq_lens = arena_take(arena, RIG_ROWS, sizeof(int32_t));
	in->block_table = arena_take(arena, RIG_ROWS * RIG_PAGES_A_ROW, sizeof(int32_t));
	in->logit_index = arena_take(arena, RIG_ROWS, sizeof(int32_t));
	d->hidden_index = arena_take(arena, RIG_TOKENS, sizeof(int32_t));
}

static void carve(void *userdata, struct arena *arena)
{
	struct draft_rig *d = userdata;
	const struct kv_config kv = model_kv(&d->draft->config, &d->rig.info, RIG_PAGE_TOKENS);
	const struct model_config *target = &d->rig.model->config;

	carve_inputs(d, arena);
	d->kv = arena_take(arena, RIG_PAGES, kv_layer_page_bytes(&kv));
	d->states = arena_take(arena, 2 * RIG_TOKENS, state_bytes(d));
	d->wide = d->rig.buffers;
	d->wide.last_hidden = arena_take(arena, RIG_TOKENS, state_bytes(d));
	d->wide.logits = arena_take(arena, RIG_TOKENS, target->vocab_size * sizeof(float));
	model_buffers_carve(&d->draft->config, RIG_TOKENS, RIG_ROWS, d->rig.info.activation_dtype,
		arena, &d->buffers);
}

static void take_memory(struct draft_rig *d)
{
	MUST(arena_alloc(d->rig.device, carve, d, &d->memory, NULL));
	d->target_logits = calloc(
		(size_t)RIG_TOKENS * d->rig.model->config.vocab_size, sizeof(*d->target_logits));
	d->logits = calloc(
		(size_t)RIG_ROWS * d->draft->config.draft.vocab_size, sizeof(*d->logits));
	assert_non_null(d->target_logits);
	assert_non_null(d->logits);
}

/* The target's backend, with the draft's heads. */
static void take_attention(struct draft_rig *d)
{
	const struct attention_config config = rig_attention(&d->rig, &d->draft->config);
	const struct attention_backend *attention = d->rig.attention;
	char why[256] = "";

	if (attention->check(&config, why, sizeof(why)))
		fail_msg("%s", why);
	MUST(attention->manager_new(d->rig.device, &config, &d->inputs, &d->manager));
	MUST(attention->metadata_new(d->manager, &d->metadata));
}

void draft_rig_init(struct draft_rig *d, const char *target, const char *draft,
	const char *attention)
{
	struct model_config config;
	struct model_error error = {""};

	*d = (struct draft_rig){0};
	rig_init(&d->rig, target, attention);
	if (draft_config_load(draft, &config, &error) ||
		draft_load(draft, &config, d->rig.model, NULL, NULL, &d->draft, &error))
		fail_msg("%s", error.text);
	model_config_deinit(&config);
	take_memory(d);
	take_attention(d);
	d->rig.features = d->buffers.features;
}

void draft_rig_deinit(struct draft_rig *d)
{
	if (d->decode)
		d->rig.device->ops->graph_exec_free(d->decode);
	if (d->graph_metadata)
		d->rig.attention->metadata_free(d->graph_metadata);
	d->rig.attention->metadata_free(d->metadata);
	d->rig.attention->manager_free(d->manager);
	d->rig.device->ops->mem_free(d->rig.device, d->memory);
	free(d->logits);
	free(d->target_logits);
	model_free(d->draft);
	rig_deinit(&d->rig);
}

/* ---- the target ---- */

void draft_rig_target(
	struct draft_rig *d, uint32_t sequence, const int32_t *tokens, uint32_t n_tokens)
{
	struct step_inputs in_order = d->rig.inputs.persistent;
	const struct model_pass all = {.inputs = &in_order, .buffers = &d->wide,
		.n_tokens = n_tokens, .n_rows = 1};

	rig_step(&d->rig, &(struct rig_row){sequence, n_tokens, tokens}, 1);
	/* as a row whose other tokens are drafts */
	in_order.logit_index = NULL;
	in_order.max_drafts = n_tokens - 1;
	MUST(model_logits(d->rig.model, d->rig.stream, &all));
	MUST(d->rig.device->ops->stream_sync(d->rig.stream));
	MUST(d->rig.device->ops->copy(d->rig.device, d->target_logits, d->wide.logits,
		(size_t)n_tokens * d->rig.model->config.vocab_size * sizeof(float)));
}

struct draft_pass draft_rig_from_target(const struct draft_rig *d, uint32_t n_tokens)
{
	return (struct draft_pass){
		.hidden = d->buffers.features ? d->buffers.features : d->rig.buffers.normed,
		.n_hidden = n_tokens,
		.from_target = true,
	};
}

struct draft_pass draft_rig_from_draft(const struct draft_rig *d, uint32_t n_tokens)
{
	return (struct draft_pass){.hidden = draft_hidden(d->draft, &d->buffers), .n_hidden = n_tokens};
}

void draft_rig_keep(struct draft_rig *d, const void *hidden, uint32_t n, uint32_t at)
{
	assert_true(at + n <= 2 * RIG_TOKENS);
	MUST(d->rig.device->ops->copy(d->rig.device, (uint8_t *)d->states + at * state_bytes(d),
		hidden, n * state_bytes(d)));
}

/* ---- the draft ---- */

/* A pass's inputs as the host writes them. */
struct written {
	int32_t ids[RIG_TOKENS], positions[RIG_TOKENS], slots[RIG_TOKENS];
	int32_t query_start[RIG_ROWS + 1], seq_lens[RIG_ROWS], last[RIG_ROWS];
	int32_t pages[RIG_ROWS][RIG_PAGES_A_ROW]; /* by row */
	uint32_t query_lens[RIG_ROWS], lengths[RIG_ROWS], max_query, n_tokens;
};

static void write_row(
	const struct draft_rig *d, struct written *w, uint32_t r, const struct draft_rig_row *row)
{
	uint32_t first = w->n_tokens;

	assert_true(row->start + row->n_tokens <= RIG_LENGTH);
	assert_true(first + row->n_tokens <= RIG_TOKENS && row->last < row->n_tokens);
	MUST(d->rig.device->ops->copy(d->rig.device, w->pages[r],
		d->rig.inputs.persistent.slot_block_table + row->sequence * RIG_PAGES_A_ROW,
		sizeof(w->pages[r])));
	for (uint32_t i = 0; i < row->n_tokens; i++) {
		uint32_t position = row->start + i;

		w->ids[first + i] = row->ids[i];
		w->positions[first + i] = (int32_t)position;
		w->slots[first + i] = w->pages[r][position / RIG_PAGE_TOKENS] *
				(int32_t)RIG_PAGE_TOKENS +
			(int32_t)(position % RIG_PAGE_TOKENS);
	}
	w->last[r] = (int32_t)(first + row->last);
	w->n_tokens = first + row->n_tokens;
	w->query_start[r + 1] = (int32_t)w->n_tokens;
	w->query_lens[r] = row->n_tokens;
	w->lengths[r] = row->start + row->n_tokens;
	w->seq_lens[r] = (int32_t)w->lengths[r];
	w->max_query = row->n_tokens > w->max_query ? row->n_tokens : w->max_query;
}

static void upload(struct draft_rig *d, const struct written *w)
{
	struct device *device = d->rig.device;
	const struct step_inputs *in = &d->inputs;

	MUST(device->ops->copy(device, in->input_ids, w->ids, sizeof(w->ids)));
	MUST(device->ops->copy(device, in->positions, w->positions, sizeof(w->positions)));
	MUST(device->ops->copy(device, in->slot_mapping, w->slots, sizeof(w->slots)));
	MUST(device->ops->copy(device, in->query_start, w->query_start, sizeof(w->query_start)));
	MUST(device->ops->copy(device, in->seq_lens, w->seq_lens, sizeof(w->seq_lens)));
	MUST(device->ops->copy(device, in->block_table, w->pages, sizeof(w->pages)));
	MUST(device->ops->copy(device, in->logit_index, w->last, sizeof(w->last)));
}

static void build(struct draft_rig *d, const struct written *w, uint32_t n_rows,
	enum attention_phase phase)
{
	struct attention_metadata *metadata =
		phase == ATTENTION_EAGER ? d->metadata : d->graph_metadata;

	MUST(d->rig.attention->build(metadata,
		&(struct attention_batch){
			.phase = phase,
			.n_rows = n_rows,
			.n_tokens = w->n_tokens,
			.padded_rows = n_rows,
			.padded_tokens = w->n_tokens,
			.max_query = w->max_query,
			.query_lens = w->query_lens,
			.seq_lens = w->lengths,
		},
		d->rig.stream));
}

struct model_pass draft_rig_model_pass(struct draft_rig *d, uint32_t n_tokens, uint32_t n_rows)
{
	return (struct model_pass){
		.inputs = &d->inputs,
		.buffers = &d->buffers,
		.n_tokens = n_tokens,
		.n_rows = n_rows,
		.attention = d->rig.attention,
		.metadata = d->metadata,
		.kv_layers = &d->kv,
		.page_tokens = RIG_PAGE_TOKENS,
	};
}

void draft_rig_pass(struct draft_rig *d, const struct draft_pass *hidden,
	const struct draft_rig_row *rows, uint32_t n_rows)
{
	struct device *device = d->rig.device;
	struct draft_pass pass = *hidden;
	struct written w = {0};

	for (uint32_t r = 0; r < n_rows; r++)
		write_row(d, &w, r, &rows[r]);
	upload(d, &w);
	if (hidden->index) {
		MUST(device->ops->copy(device, d->hidden_index, hidden->index,
			w.n_tokens * sizeof(*d->hidden_index)));
		pass.index = d->hidden_index;
	}
	build(d, &w, n_rows, d->decode ? ATTENTION_REPLAY : ATTENTION_EAGER);
	pass.model = draft_rig_model_pass(d, w.n_tokens, n_rows);
	if (!d->decode) {
		MUST(draft_forward(d->draft, d->rig.stream, &pass));
		MUST(draft_logits(d->draft, d->rig.stream, &pass));
	} else {
		assert_true(n_rows == 1 && w.n_tokens == 1 && hidden->index);
		MUST(device->ops->graph_launch(d->decode, d->rig.stream));
	}
	MUST(device->ops->stream_sync(d->rig.stream));
	MUST(device->ops->copy(device, d->logits, d->buffers.logits,
		(size_t)n_rows * d->draft->config.draft.vocab_size * sizeof(float)));
}

void draft_rig_capture(struct draft_rig *d)
{
	const struct device_ops *ops = d->rig.device->ops;
	const struct written longest = {.n_tokens = 1, .max_query = 1, .query_lens = {1},
		.lengths = {RIG_LENGTH}};
	struct draft_pass pass = draft_rig_from_draft(d, RIG_TOKENS);
	struct graph *graph;

	MUST(d->rig.attention->metadata_new(d->manager, &d->graph_metadata));
	build(d, &longest, 1, ATTENTION_CAPTURE);
	MUST(ops->stream_sync(d->rig.stream));
	pass.index = d->hidden_index;
	pass.model = draft_rig_model_pass(d, 1, 1);
	pass.model.metadata = d->graph_metadata;
	MUST(ops->capture_begin(d->rig.stream));
	MUST(draft_forward(d->draft, d->rig.stream, &pass));
	MUST(draft_logits(d->draft, d->rig.stream, &pass));
	MUST(ops->capture_end(d->rig.stream, &graph));
	MUST(ops->graph_instantiate(d->rig.device, graph, &d->decode));
	ops->graph_free(graph);
}

int32_t draft_rig_token(const struct draft_rig *d, uint32_t row)
{
	uint32_t n = d->draft->config.draft.vocab_size;
	int32_t id = rig_argmax_of(d->logits + (size_t)row * n, n), more = 0;

	if (d->draft->d2t)
		MUST(d->rig.device->ops->copy(
			d->rig.device, &more, d->draft->d2t + id, sizeof(more)));
	return id + more;
}
