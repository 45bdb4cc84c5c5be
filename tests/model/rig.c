/* SPDX-License-Identifier: MIT */
#include "tests/model/rig.h"

#include "tests/device_memory.h"
#include "tests/model/fixture.h"

struct inputs_limits rig_limits(const struct rig *rig, uint32_t max_drafts)
{
	return (struct inputs_limits){
		.max_rows = RIG_ROWS,
		.max_tokens = RIG_TOKENS,
		.max_slots = RIG_ROWS,
		.max_pages = RIG_PAGES_A_ROW,
		.page_tokens = RIG_PAGE_TOKENS,
		.vocab_size = rig->model->config.vocab_size,
		.hidden_size = rig->model->config.hidden_size,
		.max_step_pages = RIG_PAGES +
			RIG_ROWS * (2 + (2 * max_drafts + RIG_PAGE_TOKENS - 1) / RIG_PAGE_TOKENS),
		.max_results = 1,
		.max_drafts = max_drafts,
	};
}

static void carve(void *userdata, struct arena *arena)
{
	struct rig *rig = userdata;
	const struct model_config *c = &rig->model->config;
	const struct kv_config kv = model_kv(c, &rig->info, RIG_PAGE_TOKENS);

	for (uint32_t i = 0; i < c->n_layers; i++)
		rig->kv[i] = arena_take(arena, RIG_PAGES, kv_layer_page_bytes(&kv));
	model_buffers_carve(
		c, RIG_TOKENS, RIG_ROWS, rig->info.activation_dtype, arena, &rig->buffers);
}

static void take_memory(struct rig *rig)
{
	const struct inputs_limits limits = rig_limits(rig, 0);

	rig->kv = calloc(rig->model->config.n_layers, sizeof(*rig->kv));
	rig->logits =
		calloc((size_t)RIG_ROWS * rig->model->config.vocab_size, sizeof(*rig->logits));
	assert_non_null(rig->kv);
	assert_non_null(rig->logits);
	MUST(arena_alloc(rig->device, carve, rig, &rig->memory, NULL));
	MUST(inputs_init(&rig->inputs, rig->device, &limits));
}

struct attention_config rig_attention(const struct rig *rig, const struct model_config *model)
{
	struct attention_config config = model_attention(model, &rig->info);

	config.page_tokens = RIG_PAGE_TOKENS;
	config.max_rows = RIG_ROWS;
	config.max_tokens = RIG_TOKENS;
	config.max_pages = RIG_PAGES_A_ROW;
	config.max_seq_len = RIG_LENGTH;
	return config;
}

static void choose_attention(struct rig *rig, const char *name)
{
	const struct attention_config config = rig_attention(rig, &rig->model->config);
	enum attention_support support;
	char why[256] = "";

	if (attention_choose(name, &config, &rig->attention, &support, why, sizeof(why)))
		fail_msg("%s", why);
	MUST(rig->attention->manager_new(rig->device, &config, &rig->inputs.persistent, &rig->manager));
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
	inputs_deinit(&rig->inputs);
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

static void add_row(struct rig *rig, struct inputs_slot *slot, const struct rig_row *row)
{
	const struct slot_sampling greedy = {.top_p = 1};
	uint32_t s = row->sequence, pages[RIG_PAGES_A_ROW];
	int32_t *ids;

	assert_true(slot->record->n_tokens + row->n_tokens <= RIG_TOKENS);
	assert_true(rig->lengths[s] + row->n_tokens <= RIG_LENGTH);
	for (uint32_t i = 0; i < RIG_PAGES_A_ROW; i++)
		pages[i] = 1 + (i * 5 + 3) % RIG_PAGES_A_ROW * RIG_ROWS + s;
	if (!rig->lengths[s])
		inputs_add_init(slot, (int32_t)s, &greedy, pages, RIG_PAGES_A_ROW);
	ids = inputs_add_row(slot, &(struct step_row){.slot = (int32_t)s,
		.n_tokens = row->n_tokens, .start = rig->lengths[s]});
	memcpy(ids, row->tokens, row->n_tokens * sizeof(*ids));
	rig->lengths[s] += row->n_tokens;
}

static void build(
	struct rig *rig, const struct rig_row *rows, uint32_t n_rows, uint32_t n_tokens)
{
	uint32_t query_lens[RIG_ROWS], seq_lens[RIG_ROWS], max_query = 0;
	struct attention_batch batch = {
		.phase = ATTENTION_EAGER,
		.n_rows = n_rows,
		.n_tokens = n_tokens,
		.padded_rows = n_rows,
		.padded_tokens = n_tokens,
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
	struct inputs_slot *slot = inputs_begin(&rig->inputs, 0);
	struct model_pass pass = {
		.inputs = &rig->inputs.persistent,
		.buffers = &rig->buffers,
		.n_rows = n_rows,
		.attention = rig->attention,
		.metadata = rig->metadata,
		.kv_layers = rig->kv,
		.page_tokens = RIG_PAGE_TOKENS,
		.features = rig->features,
	};

	assert_non_null(slot);
	for (uint32_t r = 0; r < n_rows; r++)
		add_row(rig, slot, &rows[r]);
	pass.n_tokens = slot->record->n_tokens;
	pass.n_last = rig->last_alone ? n_rows : 0;
	MUST(inputs_prepare(&rig->inputs, slot, rig->stream,
		&(struct descriptor){.tokens = pass.n_tokens}, n_rows, RIG_PAGES));
	build(rig, rows, n_rows, pass.n_tokens);
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

int32_t rig_argmax_of(const float *logits, uint32_t n)
{
	int32_t best = 0;

	for (uint32_t i = 1; i < n; i++) {
		if (logits[i] > logits[best])
			best = (int32_t)i;
	}
	return best;
}

int32_t rig_argmax(const struct rig *rig, uint32_t row)
{
	return rig_argmax_of(rig_logits(rig, row), rig->model->config.vocab_size);
}
