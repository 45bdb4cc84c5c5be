/* SPDX-License-Identifier: MIT */
#include "tests/model/rig.h"

#include "tests/device_memory.h"
#include "tests/model/fixture.h"

static void carve_inputs(struct rig *rig, struct arena *arena)
{
	struct step_inputs *in = &rig->inputs;

	*in = (struct step_inputs){
		.max_rows = RIG_ROWS,
		.max_tokens = RIG_TOKENS,
		.max_slots = RIG_ROWS,
		.max_pages = RIG_PAGES_A_ROW,
		.page_tokens = RIG_PAGE_TOKENS,
		.vocab_size = rig->model->config.vocab_size,
		.embedding_bytes = rig->model->config.hidden_size *
			(uint32_t)dtype_bytes(rig->info.activation_dtype),
		.input_ids = arena_take(arena, RIG_TOKENS, sizeof(int32_t)),
		.embedding_from = arena_take(arena, RIG_TOKENS, sizeof(void *)),
		.positions = arena_take(arena, RIG_TOKENS, sizeof(int32_t)),
		.slot_mapping = arena_take(arena, RIG_TOKENS, sizeof(int32_t)),
		.query_start = arena_take(arena, RIG_ROWS + 1, sizeof(int32_t)),
		.seq_lens = arena_take(arena, RIG_ROWS, sizeof(int32_t)),
		.block_table = arena_take(arena, RIG_ROWS * RIG_PAGES_A_ROW, sizeof(int32_t)),
		.row_slot = arena_take(arena, RIG_ROWS, sizeof(int32_t)),
		.row_flags = arena_take(arena, RIG_ROWS, sizeof(int32_t)),
		.logit_index = arena_take(arena, RIG_ROWS, sizeof(int32_t)),
		.slot_last_token = arena_take(arena, RIG_ROWS, sizeof(int32_t)),
		.slot_sampling = arena_take(arena, RIG_ROWS, sizeof(struct slot_sampling)),
		.slot_block_table = arena_take(arena, RIG_ROWS * RIG_PAGES_A_ROW, sizeof(int32_t)),
	};
}

static void carve(void *userdata, struct arena *arena)
{
	struct rig *rig = userdata;
	const struct model_config *c = &rig->model->config;
	const struct kv_config kv = model_kv(c, &rig->info, RIG_PAGE_TOKENS);

	carve_inputs(rig, arena);
	for (uint32_t i = 0; i < c->n_layers; i++)
		rig->kv[i] = arena_take(arena, RIG_PAGES, kv_layer_page_bytes(&kv));
	model_buffers_carve(
		c, RIG_TOKENS, RIG_ROWS, rig->info.activation_dtype, arena, &rig->buffers);
}

static void take_memory(struct rig *rig)
{
	void *pinned;

	rig->kv = calloc(rig->model->config.n_layers, sizeof(*rig->kv));
	rig->logits =
		calloc((size_t)RIG_ROWS * rig->model->config.vocab_size, sizeof(*rig->logits));
	assert_non_null(rig->kv);
	assert_non_null(rig->logits);
	MUST(arena_alloc(rig->device, carve, rig, &rig->memory, NULL));
	MUST(rig->device->ops->host_alloc(rig->device, sizeof(*rig->pinned), &pinned));
	rig->pinned = pinned;
}

struct attention_config rig_attention(const struct rig *rig)
{
	struct attention_config config = model_attention(&rig->model->config, &rig->info);

	config.page_tokens = RIG_PAGE_TOKENS;
	config.max_rows = RIG_ROWS;
	config.max_tokens = RIG_TOKENS;
	config.max_pages = RIG_PAGES_A_ROW;
	config.max_seq_len = RIG_LENGTH;
	return config;
}

static void choose_attention(struct rig *rig, const char *name)
{
	const struct attention_config config = rig_attention(rig);
	enum attention_support support;
	char why[256] = "";

	if (attention_choose(name, &config, &rig->attention, &support, why, sizeof(why)))
		fail_msg("%s", why);
	MUST(rig->attention->manager_new(rig->device, &config, &rig->inputs, &rig->manager));
	MUST(rig->attention->metadata_new(rig->manager, &rig->metadata));
}

void rig_init(struct rig *rig, const char *directory, const char *attention)
{
	struct model_config config;
	struct model_error error = {""};

	*rig = (struct rig){0};
	rig->device = test_device_open(50);
	rig->info = test_device_info(rig->device);
	if (model_config_load(directory, &config, &error) ||
		model_load(rig->device, directory, &config, RIG_LENGTH, NULL, NULL, &rig->model,
			&error))
		fail_msg("%s", error.text);
	model_config_deinit(&config);
	take_memory(rig);
	choose_attention(rig, attention);
	MUST(rig->device->ops->stream_new(rig->device, &rig->stream));
}

void rig_deinit(struct rig *rig)
{
	rig->device->ops->stream_free(rig->stream);
	rig->attention->metadata_free(rig->metadata);
	rig->attention->manager_free(rig->manager);
	rig->device->ops->host_free(rig->device, rig->pinned);
	rig->device->ops->mem_free(rig->device, rig->memory);
	free(rig->logits);
	free(rig->kv);
	model_free(rig->model);
	rig->device->ops->free(rig->device);
}

void rig_reset(struct rig *rig)
{
	memset(rig->lengths, 0, sizeof(rig->lengths));
}

static void add_row(struct rig *rig, const struct rig_row *row)
{
	struct rig_pinned *p = rig->pinned;
	struct step_record *record = &p->record;
	uint32_t s = row->sequence, n_pages = record->n_inits * RIG_PAGES_A_ROW;

	assert_true(record->n_tokens + row->n_tokens <= RIG_TOKENS);
	assert_true(rig->lengths[s] + row->n_tokens <= RIG_LENGTH);
	if (!rig->lengths[s]) {
		p->inits[record->n_inits++] = (struct slot_init){
			.slot = (int32_t)s, .n_pages = RIG_PAGES_A_ROW, .page_offset = n_pages};
		for (uint32_t i = 0; i < RIG_PAGES_A_ROW; i++)
			p->pages[n_pages + i] = 1 + (i * 5 + 3) % RIG_PAGES_A_ROW * RIG_ROWS + s;
	}
	p->rows[record->n_rows++] = (struct step_row){
		.slot = (int32_t)s, .n_tokens = row->n_tokens, .start = rig->lengths[s]};
	memcpy(p->ids + record->n_tokens, row->tokens, row->n_tokens * sizeof(*p->ids));
	record->n_tokens += row->n_tokens;
	rig->lengths[s] += row->n_tokens;
}

static void build(struct rig *rig, const struct rig_row *rows, uint32_t n_rows)
{
	uint32_t query_lens[RIG_ROWS], seq_lens[RIG_ROWS], max_query = 0;
	struct attention_batch batch = {
		.phase = ATTENTION_EAGER,
		.n_rows = n_rows,
		.n_tokens = rig->pinned->record.n_tokens,
		.padded_rows = n_rows,
		.padded_tokens = rig->pinned->record.n_tokens,
		.query_lens = query_lens,
		.seq_lens = seq_lens,
	};

	for (uint32_t r = 0; r < n_rows; r++) {
		query_lens[r] = rows[r].n_tokens;
		seq_lens[r] = rig->lengths[rows[r].sequence];
		max_query = query_lens[r] > max_query ? query_lens[r] : max_query;
	}
	batch.max_query = max_query;
	MUST(rig->attention->build(rig->metadata, &batch, rig->stream));
}

void rig_step(struct rig *rig, const struct rig_row *rows, uint32_t n_rows)
{
	struct rig_pinned *p = rig->pinned;
	struct model_pass pass = {
		.inputs = &rig->inputs,
		.buffers = &rig->buffers,
		.n_rows = n_rows,
		.attention = rig->attention,
		.metadata = rig->metadata,
		.kv_layers = rig->kv,
		.page_tokens = RIG_PAGE_TOKENS,
		.features = rig->features,
	};

	p->record = (struct step_record){
		.rows = p->rows, .ids = p->ids, .inits = p->inits, .pages = p->pages};
	for (uint32_t r = 0; r < n_rows; r++)
		add_row(rig, &rows[r]);
	p->record.padded_rows = n_rows;
	p->record.padded_tokens = pass.n_tokens = p->record.n_tokens;
	MUST(rig->device->kernels->prepare(rig->stream,
		&(struct op_prepare){
			.record = &p->record, .inputs = rig->inputs, .n_pages = RIG_PAGES}));
	build(rig, rows, n_rows);
	MUST(model_forward(rig->model, rig->stream, &pass));
	MUST(model_logits(rig->model, rig->stream, &pass));
	MUST(rig->device->ops->stream_sync(rig->stream));
	MUST(rig->device->ops->copy(rig->device, rig->logits, rig->buffers.logits,
		(size_t)n_rows * rig->model->config.vocab_size * sizeof(float)));
}

const float *rig_logits(const struct rig *rig, uint32_t row)
{
	return rig->logits + (size_t)row * rig->model->config.vocab_size;
}

int32_t rig_argmax(const struct rig *rig, uint32_t row)
{
	const float *logits = rig_logits(rig, row);
	int32_t best = 0;

	for (uint32_t i = 1; i < rig->model->config.vocab_size; i++) {
		if (logits[i] > logits[best])
			best = (int32_t)i;
	}
	return best;
}
