/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_MODEL_DECODE_RIG_H
#define MIMEO_TESTS_MODEL_DECODE_RIG_H

/*
 * A model of random weights on a CUDA device, with one batch of decodes and two caches: for decode_step and
 * for the same decode op by op.
 */

#include <errno.h>

#include "daemon/model/transformer.h"
#include "kernels/convert.h"
#include "tests/device.h"
#include "tests/random.h"

#define ROWS 8u
#define PAGE 16u
#define MAX_PAGES_MAX 200u
#define LAYERS_MAX 32u

struct shape {
	uint32_t hidden, inner, n_heads, n_kv_heads, head_dim;
	bool biases, head_norms;
	uint32_t n_layers, vocab, max_pages;
};

/* What a test has on the device. */
struct rig {
	struct shape shape;
	struct device *device;
	struct stream *stream;
	struct model model;
	struct model_layer layers[LAYERS_MAX];
	uint32_t windows[LAYERS_MAX];
	struct step_inputs inputs;
	struct model_buffers buffers;
	struct attention_manager *manager;
	struct attention_metadata *metadata;
	void *kv[2][LAYERS_MAX]; /* op by op, and in one kernel */
	uint64_t kv_elements;
	int32_t lens[ROWS];
	int32_t table[ROWS][MAX_PAGES_MAX];
};

static void *allocations[256];
static uint32_t n_allocations;
static uint64_t rng = 11;

/* ---- memory ---- */

static inline void put(struct rig *rig, const void *to, const void *from, size_t bytes)
{
	assert_int_equal(rig->device->ops->copy(rig->device, (void *)(uintptr_t)to, from, bytes), 0);
}

static inline void *take(struct rig *rig, size_t bytes, const void *from)
{
	void *memory;

	assert_true(n_allocations < sizeof(allocations) / sizeof(allocations[0]));
	assert_int_equal(rig->device->ops->mem_alloc(rig->device, bytes, &memory), 0);
	allocations[n_allocations++] = memory;
	if (from)
		assert_int_equal(rig->device->ops->copy(rig->device, memory, from, bytes), 0);
	return memory;
}

static inline void *take_zeros(struct rig *rig, size_t bytes)
{
	void *zeros = calloc(1, bytes), *memory;

	assert_non_null(zeros);
	memory = take(rig, bytes, zeros);
	free(zeros);
	return memory;
}

static inline uint16_t *random_bf16(size_t n, float spread, float mean)
{
	uint16_t *v = malloc(n * sizeof(*v));

	assert_non_null(v);
	for (size_t i = 0; i < n; i++)
		v[i] = f32_to_bf16(mean + spread * random_float(&rng));
	return v;
}

#define RANDOM_MOST ((size_t)1 << 23)

/* n random elements on the device; of very many the first ones again and again. */
static inline void *take_random(struct rig *rig, size_t n, float spread, float mean)
{
	const size_t some = n < RANDOM_MOST ? n : RANDOM_MOST;
	uint16_t *v = random_bf16(some, spread, mean), *memory = take(rig, n * 2, NULL);

	put(rig, memory, v, some * 2);
	free(v);
	for (size_t i = some; i < n; i += some)
		put(rig, memory + i, memory, (n - i < some ? n - i : some) * 2);
	return memory;
}

/* All layers' of one kind, a layer behind the other. */
static inline void weights_new(struct rig *rig, size_t offset, uint32_t rows, uint32_t cols, float spread, float mean)
{
	const size_t n = (size_t)rows * cols;
	uint16_t *memory = take_random(rig, rig->shape.n_layers * n, spread, mean);

	for (uint32_t l = 0; l < rig->shape.n_layers; l++) {
		struct weight *w = (struct weight *)((char *)&rig->layers[l] + offset);

		*w = (struct weight){.data = memory + l * n, .dtype = DTYPE_BF16, .rows = rows, .cols = cols};
	}
}

static inline struct weight weight_new(struct rig *rig, uint32_t rows, uint32_t cols, float spread, float mean)
{
	return (struct weight){.dtype = DTYPE_BF16, .rows = rows, .cols = cols,
		.data = take_random(rig, (size_t)rows * cols, spread, mean)};
}

/* ---- the model ---- */

static inline uint32_t rig_pages(const struct rig *rig)
{
	return ROWS * rig->shape.max_pages + 1;
}

static inline uint32_t rig_width(const struct rig *rig)
{
	return rig->shape.n_heads * rig->shape.head_dim;
}

static inline uint32_t rig_qkv(const struct rig *rig)
{
	return rig_width(rig) + 2 * rig->shape.n_kv_heads * rig->shape.head_dim;
}

#define WEIGHTS(rig, name, ...) weights_new(rig, offsetof(struct model_layer, name), __VA_ARGS__)

static inline void rig_weights(struct rig *rig)
{
	const struct shape *s = &rig->shape;
	const float spread = 1.7f / sqrtf((float)s->hidden);

	WEIGHTS(rig, input_norm, 1, s->hidden, 0.2f, 1);
	WEIGHTS(rig, post_norm, 1, s->hidden, 0.2f, 1);
	WEIGHTS(rig, qkv, rig_qkv(rig), s->hidden, spread, 0);
	WEIGHTS(rig, o, s->hidden, rig_width(rig), spread, 0);
	WEIGHTS(rig, gate_up, 2 * s->inner, s->hidden, spread, 0);
	WEIGHTS(rig, down, s->hidden, s->inner, spread, 0);
	if (s->biases)
		WEIGHTS(rig, qkv_bias, 1, rig_qkv(rig), 0.5f, 0);
	if (s->head_norms) {
		WEIGHTS(rig, q_norm, 1, s->head_dim, 0.2f, 1);
		WEIGHTS(rig, k_norm, 1, s->head_dim, 0.2f, 1);
	}
	rig->model.embedding = weight_new(rig, rig->shape.vocab, s->hidden, 1, 0);
	rig->model.head = weight_new(rig, rig->shape.vocab, s->hidden, spread, 0);
	rig->model.final_norm = weight_new(rig, 1, s->hidden, 0.2f, 1);
}

static inline void rig_model(struct rig *rig)
{
	const struct shape *s = &rig->shape;
	struct model_config *c = &rig->model.config;
	float *table = malloc(rig->shape.max_pages * PAGE * s->head_dim * sizeof(*table));

	assert_non_null(table);
	*c = (struct model_config){.family = MODEL_LLAMA, .hidden_size = s->hidden, .intermediate_size = s->inner,
		.vocab_size = rig->shape.vocab, .n_layers = rig->shape.n_layers, .n_heads = s->n_heads, .n_kv_heads = s->n_kv_heads,
		.head_dim = s->head_dim, .max_seq_len = rig->shape.max_pages * PAGE, .rms_norm_eps = 1e-5f,
		.windows = rig->windows, .rope = {.type = ROPE_DEFAULT, .theta = 1e4, .factor = 1}};
	rig->model.device = rig->device;
	rig->model.max_positions = rig->shape.max_pages * PAGE;
	rig->model.activation_dtype = DTYPE_BF16;
	rig->model.layers = rig->layers;
	model_rope_fill(c, rig->shape.max_pages * PAGE, table);
	rig->model.cos_sin = take(rig, rig->shape.max_pages * PAGE * s->head_dim * sizeof(*table), table);
	free(table);
	rig_weights(rig);
}

static inline void rig_buffers(struct rig *rig)
{
	const struct shape *s = &rig->shape;

	rig->buffers = (struct model_buffers){
		.residual = take_zeros(rig, ROWS * s->hidden * 2),
		.normed = take_zeros(rig, ROWS * s->hidden * 2),
		.qkv = take_zeros(rig, ROWS * rig_qkv(rig) * 2),
		.attention = take_zeros(rig, ROWS * rig_width(rig) * 2),
		.gate_up = take_zeros(rig, ROWS * 2 * s->inner * 2),
		.activated = take_zeros(rig, ROWS * s->inner * 2),
		.last_hidden = take_zeros(rig, ROWS * s->hidden * 2),
		.logits = take_zeros(rig, ROWS * rig->shape.vocab * 4),
	};
}

/* ---- the batch ---- */

static inline void rig_inputs(struct rig *rig)
{
	rig->inputs = (struct step_inputs){
		.max_rows = ROWS, .max_tokens = ROWS, .max_slots = ROWS, .max_pages = rig->shape.max_pages,
		.page_tokens = PAGE, .vocab_size = rig->shape.vocab, .embedding_bytes = rig->shape.hidden * 2,
		.input_ids = take_zeros(rig, ROWS * 4),
		.embedding_from = take_zeros(rig, ROWS * sizeof(void *)),
		.positions = take_zeros(rig, ROWS * 4),
		.slot_mapping = take_zeros(rig, ROWS * 4),
		.query_start = take_zeros(rig, (ROWS + 1) * 4),
		.seq_lens = take_zeros(rig, ROWS * 4),
		.block_table = take_zeros(rig, ROWS * rig->shape.max_pages * 4),
		.row_slot = take_zeros(rig, ROWS * 4),
		.row_flags = take_zeros(rig, ROWS * 4),
		.logit_index = take_zeros(rig, ROWS * 4),
	};
	for (uint32_t r = 0; r < ROWS; r++)
		for (uint32_t p = 0; p < rig->shape.max_pages; p++)
			rig->table[r][p] = (int32_t)(1 + p * ROWS + (r + p) % ROWS);
}

/* Rows of those lengths, with this step's token; 0: an empty row. Row 1 has a given embedding. */
static inline void batch_put(struct rig *rig, uint32_t n_rows)
{
	const struct step_inputs *in = &rig->inputs;
	const uint8_t *given = (const uint8_t *)rig->model.embedding.data + 77 * rig->shape.hidden * 2;
	int32_t ids[ROWS] = {0}, positions[ROWS] = {0}, slots[ROWS], lens[ROWS] = {0}, starts[ROWS + 1] = {0};
	const uint32_t stride = rig->shape.max_pages;
	int32_t index[ROWS] = {0}, table[ROWS * MAX_PAGES_MAX] = {0};
	const void *from[ROWS] = {NULL, given};

	for (uint32_t r = 0; r < ROWS; r++) {
		const bool real = r < n_rows && rig->lens[r];

		lens[r] = real ? rig->lens[r] : 0;
		ids[r] = real ? (int32_t)random_below(&rng, rig->shape.vocab) : 0;
		positions[r] = real ? lens[r] - 1 : 0;
		slots[r] = real ? rig->table[r][positions[r] / PAGE] * (int32_t)PAGE + positions[r] % (int32_t)PAGE : -1;
		starts[r + 1] = (int32_t)(r + 1 < n_rows ? r + 1 : n_rows);
		index[r] = r < n_rows ? (int32_t)r : 0;
		if (real)
			memcpy(table + r * stride, rig->table[r], stride * sizeof(*table));
	}
	put(rig, in->input_ids, ids, sizeof(ids));
	put(rig, in->embedding_from, from, sizeof(from));
	put(rig, in->positions, positions, sizeof(positions));
	put(rig, in->slot_mapping, slots, sizeof(slots));
	put(rig, in->query_start, starts, sizeof(starts));
	put(rig, in->seq_lens, lens, sizeof(lens));
	put(rig, in->block_table, table, ROWS * stride * sizeof(*table));
	put(rig, in->logit_index, index, sizeof(index));
}

/* The same history in both caches: NaN where no token was written. */
static inline void caches_put(struct rig *rig)
{
	const uint32_t token = rig->shape.n_kv_heads * rig->shape.head_dim;

	for (uint32_t l = 0; l < rig->shape.n_layers; l++) {
		uint16_t *v = random_bf16(rig->kv_elements, 1, 0);

		for (uint32_t r = 0; r < ROWS; r++)
			for (uint32_t t = rig->lens[r] ? (uint32_t)rig->lens[r] - 1 : 0; t < rig->shape.max_pages * PAGE; t++)
				for (uint32_t k = 0; k < 2; k++)
					memset(v + (((size_t)rig->table[r][t / PAGE] * 2 + k) * PAGE + t % PAGE) * token,
						0xff, token * 2);
		put(rig, rig->kv[0][l], v, rig->kv_elements * 2);
		put(rig, rig->kv[1][l], v, rig->kv_elements * 2);
		free(v);
	}
}

/* ---- set-up ---- */

static inline void rig_attention(struct rig *rig)
{
	const struct shape *s = &rig->shape;
	const struct attention_config config = {.n_layers = rig->shape.n_layers, .n_heads = s->n_heads,
		.n_kv_heads = s->n_kv_heads, .head_dim = s->head_dim, .scale = 1 / sqrtf((float)s->head_dim),
		.windows = rig->windows, .page_tokens = PAGE, .max_rows = ROWS, .max_tokens = ROWS,
		.max_pages = rig->shape.max_pages, .max_seq_len = rig->shape.max_pages * PAGE, .max_decode_query = 1,
		.activation_dtype = DTYPE_BF16, .kv_dtype = DTYPE_BF16, .n_kv_pages = rig_pages(rig)};

	rig->kv_elements = (uint64_t)rig_pages(rig) * 2 * PAGE * s->n_kv_heads * s->head_dim;
	for (uint32_t i = 0; i < 2; i++)
		for (uint32_t l = 0; l < rig->shape.n_layers; l++)
			rig->kv[i][l] = take_zeros(rig, rig->kv_elements * 2);
	assert_int_equal(attention_paged.manager_new(rig->device, &config, &rig->inputs, &rig->manager), 0);
	assert_int_equal(attention_paged.metadata_new(rig->manager, &rig->metadata), 0);
}

static inline void rig_open(struct rig *rig, const struct shape *shape)
{
	*rig = (struct rig){.shape = *shape};
	assert_int_equal(device_open("cuda", NULL, &rig->device), 0);
	assert_int_equal(rig->device->ops->stream_new(rig->device, &rig->stream), 0);
	rig_model(rig);
	rig_buffers(rig);
	rig_inputs(rig);
	rig_attention(rig);
}

static inline void rig_close(struct rig *rig)
{
	attention_paged.metadata_free(rig->metadata);
	attention_paged.manager_free(rig->manager);
	rig->device->ops->stream_free(rig->stream);
	while (n_allocations)
		rig->device->ops->mem_free(rig->device, allocations[--n_allocations]);
	rig->device->ops->free(rig->device);
}

/* ---- both ways ---- */

static inline struct model_pass pass_of(struct rig *rig, uint32_t n_rows, uint32_t which)
{
	return (struct model_pass){.inputs = &rig->inputs, .buffers = &rig->buffers, .n_tokens = n_rows,
		.n_rows = n_rows, .attention = &attention_paged, .metadata = rig->metadata,
		.kv_layers = rig->kv[which], .page_tokens = PAGE, .n_pages = rig_pages(rig)};
}

static inline void run_op_by_op(struct rig *rig, uint32_t n_rows)
{
	const struct model_pass pass = pass_of(rig, n_rows, 0);
	uint32_t ones[ROWS], lens[ROWS];

	for (uint32_t r = 0; r < ROWS; r++)
		ones[r] = 1, lens[r] = rig->lens[r] ? (uint32_t)rig->lens[r] : 1;
	assert_int_equal(attention_paged.build(rig->metadata, &(struct attention_batch){.phase = ATTENTION_EAGER,
		.n_rows = n_rows, .n_tokens = n_rows, .padded_rows = n_rows, .padded_tokens = n_rows,
		.max_query = 1, .query_lens = ones, .seq_lens = lens}, rig->stream), 0);
	assert_int_equal(model_forward(&rig->model, rig->stream, &pass), 0);
	assert_int_equal(model_logits(&rig->model, rig->stream, &pass), 0);
	assert_int_equal(rig->device->ops->stream_sync(rig->stream), 0);
}

static inline int queue_decode(struct rig *rig, uint32_t n_rows)
{
	const struct model_pass pass = pass_of(rig, n_rows, 1);
	struct decode_layer layers[LAYERS_MAX];
	struct op_decode_step op;

	model_decode_op(&rig->model, &pass, layers, &op);
	op.always = true;
	return rig->device->kernels->decode_step(rig->stream, &op);
}

#endif
