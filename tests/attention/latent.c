/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/attention/latent.h"
#include "tests/device_memory.h"

#define TOLERANCE 1e-5
/* bf16: the absorbed query, the weights, the average and the value are rounded, 2^-9 each; as a part
 * of the values' magnitude */
#define TOLERANCE_CUDA 1.5e-2

#define LATENT_WIDTH 640u /* of rows of the reference */

const char *const latent_backends[N_BACKENDS] = { "mla", "mla_planned", "naive" };

size_t latent_n_backends(void)
{
	return test_on_cuda() ? N_MLA : N_BACKENDS;
}

const struct latent_shape latent_ordinary = {
	.n_heads = 3, .rank = 20, .nope = 6, .rope = 4, .v = 7, .page_tokens = 4,
	.max_seq_len = 300,
};

const struct latent_shape latent_deepseek = {
	.n_heads = 3, .rank = 512, .nope = 8, .rope = 64, .v = 8, .page_tokens = 16,
	.max_seq_len = 300,
};

const struct latent_shape *const latent_shapes[2] = { &latent_ordinary, &latent_deepseek };

enum part { PART_Q, PART_KV, PART_W };

static uint16_t bf16_bits(float value)
{
	uint32_t word;

	if (isnan(value))
		return 0xffff;
	memcpy(&word, &value, sizeof(word));
	return (uint16_t)((word + 0x7fff + (word >> 16 & 1)) >> 16);
}

static float bf16_value(uint16_t bits)
{
	uint32_t word = (uint32_t)bits << 16;
	float value;

	memcpy(&value, &word, sizeof(value));
	return value;
}

/* In (-1, 1), by a hash. */
static float content(uint32_t seed, enum part part, uint32_t position, uint32_t element)
{
	uint64_t x = (uint64_t)seed << 44 ^ (uint64_t)part << 40 ^ (uint64_t)position << 20 ^
		     element;
	float value;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	x ^= x >> 31;
	value = (float)(x >> 40) * 0x1p-23f - 1.0f;
	return test_on_cuda() ? bf16_value(bf16_bits(value)) : value;
}

uint32_t latent_draw(struct latent_world *w, uint32_t n)
{
	w->random = w->random * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(w->random >> 33) % n;
}

/* ---- making ---- */

static void *take(struct latent_world *w, size_t bytes)
{
	void *memory = NULL;

	assert_int_equal(w->device->ops->mem_alloc(w->device, bytes, &memory), 0);
	test_fill(w->device, memory, 0xff, bytes);
	return memory;
}

static void *image(size_t n)
{
	void *memory = malloc(n * 4 + 1);

	assert_non_null(memory);
	memset(memory, 0xff, n * 4);
	return memory;
}

/* Floats go as what the device has of activations. */
static void upload(struct latent_world *w, void *to, const float *from, size_t n)
{
	uint16_t *halves;

	if (!test_on_cuda()) {
		test_copy(w->device, to, from, n * sizeof(*from));
		return;
	}
	halves = malloc(n * sizeof(*halves) + 1);
	assert_non_null(halves);
	for (size_t i = 0; i < n; i++)
		halves[i] = bf16_bits(from[i]);
	test_copy(w->device, to, halves, n * sizeof(*halves));
	free(halves);
}

static size_t act_bytes(void)
{
	return test_on_cuda() ? 2 : 4;
}

static size_t kv_elements(const struct latent_world *w)
{
	return (size_t)w->n_pages * w->config.page_tokens * w->config.head_dim;
}

static void take_inputs(struct latent_world *w)
{
	const struct attention_config *c = &w->config;
	size_t n_entries = (size_t)LATENT_ROWS * c->max_pages;

	w->inputs = (struct step_inputs){
		.max_rows = LATENT_ROWS,
		.max_tokens = LATENT_TOKENS,
		.max_pages = c->max_pages,
		.page_tokens = c->page_tokens,
		.query_start = take(w, (LATENT_ROWS + 1) * sizeof(int32_t)),
		.seq_lens = take(w, LATENT_ROWS * sizeof(int32_t)),
		.block_table = take(w, n_entries * sizeof(int32_t)),
	};
	w->tables = (struct step_inputs){
		.query_start = image(LATENT_ROWS + 1),
		.seq_lens = image(LATENT_ROWS),
		.block_table = image(n_entries),
	};
}

static void take_buffers(struct latent_world *w)
{
	w->kv = image(kv_elements(w));
	w->q = image((size_t)LATENT_TOKENS * w->q_width);
	w->out = image((size_t)LATENT_TOKENS * w->out_width);
	w->device_kv = take(w, kv_elements(w) * act_bytes());
	w->device_q = take(w, (size_t)LATENT_TOKENS * w->q_width * act_bytes());
	w->device_out = take(w, (size_t)LATENT_TOKENS * w->out_width * act_bytes());
}

static void take_weight(struct latent_world *w)
{
	const struct attention_latent *l = &w->config.latent;
	uint32_t rows = w->config.n_heads * (l->nope + l->v);
	void *data = take(w, (size_t)rows * l->rank * act_bytes());

	w->w = image((size_t)rows * l->rank);
	for (uint32_t r = 0; r < rows; r++)
		for (uint32_t i = 0; i < l->rank; i++)
			w->w[(size_t)r * l->rank + i] = content(0, PART_W, r, i);
	upload(w, data, w->w, (size_t)rows * l->rank);
	w->kv_b = (struct weight){
		.data = data,
		.dtype = test_on_cuda() ? DTYPE_BF16 : DTYPE_F32,
		.rows = rows,
		.cols = l->rank,
	};
}

void latent_init(struct latent_world *w, const char *backend, const struct latent_shape *s)
{
	*w = (struct latent_world){ .random = s->rank + s->page_tokens * 131u };
	w->config = (struct attention_config){
		.n_layers = LATENT_LAYERS,
		.n_heads = s->n_heads,
		.n_kv_heads = 1,
		.head_dim = s->rank + s->rope,
		.latent = { .rank = s->rank, .nope = s->nope, .rope = s->rope, .v = s->v },
		.scale = 1.0f / sqrtf((float)(s->nope + s->rope)),
		.page_tokens = s->page_tokens,
		.max_rows = LATENT_ROWS,
		.max_tokens = LATENT_TOKENS,
		.max_pages = (s->max_seq_len + s->page_tokens - 1) / s->page_tokens + 3,
		.max_seq_len = s->max_seq_len,
		.max_decode_query = 4,
		.activation_dtype = test_on_cuda() ? DTYPE_BF16 : DTYPE_F32,
		.kv_dtype = test_on_cuda() ? DTYPE_BF16 : DTYPE_F32,
	};
	w->n_pages = w->config.n_kv_pages = LATENT_ROWS * w->config.max_pages + 1;
	w->q_width = s->n_heads * (s->nope + s->rope);
	w->out_width = s->n_heads * s->v;
	w->device = test_device_open(0);
	assert_int_equal(w->device->ops->stream_new(w->device, &w->stream), 0);
	take_inputs(w);
	take_weight(w);
	take_buffers(w);
	w->backend = attention_find(backend);
	assert_non_null(w->backend);
	assert_int_equal(
		w->backend->manager_new(w->device, &w->config, &w->inputs, &w->manager), 0);
	assert_int_equal(w->backend->metadata_new(w->manager, &w->metadata), 0);
}

void latent_deinit(struct latent_world *w)
{
	const struct device_ops *ops = w->device->ops;

	w->backend->metadata_free(w->metadata);
	w->backend->manager_free(w->manager);
	ops->stream_free(w->stream);
	ops->mem_free(w->device, w->device_out);
	ops->mem_free(w->device, w->device_q);
	ops->mem_free(w->device, w->device_kv);
	ops->mem_free(w->device, (void *)(uintptr_t)w->kv_b.data);
	ops->mem_free(w->device, w->inputs.block_table);
	ops->mem_free(w->device, w->inputs.seq_lens);
	ops->mem_free(w->device, w->inputs.query_start);
	ops->free(w->device);
	free(w->tables.block_table);
	free(w->tables.seq_lens);
	free(w->tables.query_start);
	free(w->w);
	free(w->out);
	free(w->q);
	free(w->kv);
}

/* ---- placing ---- */

static void make_hostile(struct latent_world *w)
{
	static const int32_t garbage[] = { -1, INT32_MAX, INT32_MIN, 1 << 20 };
	const struct attention_config *c = &w->config;

	memset(w->kv, 0xff, kv_elements(w) * sizeof(float));
	memset(w->q, 0xff, (size_t)LATENT_TOKENS * w->q_width * sizeof(float));
	for (uint32_t i = 0; i < LATENT_ROWS * c->max_pages; i++)
		w->tables.block_table[i] = garbage[latent_draw(w, 4)];
}

/* A page that no row has yet: rows take every LATENT_ROWSth one, from the back. */
static void place_row(struct latent_world *w, uint32_t index, const struct latent_row *row)
{
	const struct attention_config *c = &w->config;
	int32_t *table = w->tables.block_table + index * c->max_pages;

	for (uint32_t p = 0; p < row->seq_len; p++) {
		float *cached;

		if (p % c->page_tokens == 0)
			table[p / c->page_tokens] = (int32_t)(w->n_pages - 1 -
				(p / c->page_tokens) * LATENT_ROWS - index);
		cached = w->kv + ((size_t)table[p / c->page_tokens] * c->page_tokens +
					 p % c->page_tokens) * c->head_dim;
		for (uint32_t e = 0; e < c->head_dim; e++)
			cached[e] = content(row->seed, PART_KV, p, e);
	}
}

static void place_queries(struct latent_world *w, const struct latent_row *row, uint32_t first)
{
	for (uint32_t j = 0; j < row->n_query; j++)
		for (uint32_t e = 0; e < w->q_width; e++)
			w->q[(size_t)(first + j) * w->q_width + e] =
				content(row->seed, PART_Q, row->seq_len - row->n_query + j, e);
}

void latent_place(struct latent_world *w, const struct latent_row *rows, uint32_t n_rows,
	uint32_t padded_rows, uint32_t padded_tokens)
{
	uint32_t n_tokens = 0, max_query = 0;

	make_hostile(w);
	for (uint32_t r = 0; r < n_rows; r++) {
		w->rows[r] = rows[r];
		w->query_lens[r] = rows[r].n_query;
		w->seq_lens[r] = rows[r].seq_len;
		w->tables.query_start[r] = (int32_t)n_tokens;
		w->tables.seq_lens[r] = (int32_t)rows[r].seq_len;
		place_row(w, r, &rows[r]);
		if (rows[r].seq_len)
			place_queries(w, &rows[r], n_tokens);
		n_tokens += rows[r].n_query;
		max_query = rows[r].n_query > max_query ? rows[r].n_query : max_query;
	}
	for (uint32_t r = n_rows; r < LATENT_ROWS; r++)
		w->tables.seq_lens[r] = 0;
	for (uint32_t r = n_rows; r <= LATENT_ROWS; r++)
		w->tables.query_start[r] = (int32_t)n_tokens;
	w->batch = (struct attention_batch){
		.n_rows = n_rows,
		.n_tokens = n_tokens,
		.padded_rows = padded_rows ? padded_rows : n_rows,
		.padded_tokens = padded_tokens ? padded_tokens : n_tokens,
		.max_query = max_query,
		.query_lens = w->query_lens,
		.seq_lens = w->seq_lens,
	};
	latent_upload(w);
}

/* ---- running ---- */

void latent_upload(struct latent_world *w)
{
	const struct step_inputs *from = &w->tables, *to = &w->inputs;

	assert_int_equal(w->device->ops->stream_sync(w->stream), 0);
	test_copy(w->device, to->query_start, from->query_start,
		(LATENT_ROWS + 1) * sizeof(*from->query_start));
	test_copy(w->device, to->seq_lens, from->seq_lens, LATENT_ROWS * sizeof(*from->seq_lens));
	test_copy(w->device, to->block_table, from->block_table,
		(size_t)LATENT_ROWS * w->config.max_pages * sizeof(*from->block_table));
	upload(w, w->device_kv, w->kv, kv_elements(w));
	upload(w, w->device_q, w->q,
		(size_t)LATENT_TOKENS * w->config.n_heads *
			(w->config.latent.nope + w->config.latent.rope));
}

void latent_fetch(struct latent_world *w)
{
	size_t n = (size_t)LATENT_TOKENS * w->out_width;
	void *copy;

	assert_int_equal(w->device->ops->stream_sync(w->stream), 0);
	copy = test_fetch(w->device, w->device_out, n * act_bytes());
	for (size_t i = 0; i < n; i++)
		w->out[i] = test_on_cuda() ? bf16_value(((uint16_t *)copy)[i])
					   : ((float *)copy)[i];
	free(copy);
}

int latent_build(struct latent_world *w, enum attention_phase phase)
{
	w->batch.phase = phase;
	return w->backend->build(w->metadata, &w->batch, w->stream);
}

int latent_enqueue(struct latent_world *w)
{
	return w->backend->run(w->metadata, w->stream, &(struct attention_args){
		.layer = 1,
		.q = w->device_q,
		.q_stride = w->q_width,
		.kv = w->device_kv,
		.out = w->device_out,
		.kv_b = &w->kv_b,
	});
}

void latent_poison_out(struct latent_world *w)
{
	test_fill(w->device, w->device_out, 0xff,
		(size_t)LATENT_TOKENS * w->out_width * act_bytes());
}

void latent_run(struct latent_world *w)
{
	latent_upload(w);
	latent_poison_out(w);
	assert_int_equal(latent_build(w, ATTENTION_EAGER), 0);
	assert_int_equal(latent_enqueue(w), 0);
	latent_fetch(w);
}

/* ---- judging ---- */

float *latent_out(const struct latent_world *w, uint32_t row, uint32_t token)
{
	for (uint32_t r = 0; r < row; r++)
		token += w->query_lens[r];
	return w->out + (size_t)token * w->out_width;
}

/* Row r of W_UK (or W_UV) times a latent. */
static double expand(const struct latent_world *w, const float *latent, uint32_t r)
{
	uint32_t rank = w->config.latent.rank;
	double sum = 0;

	for (uint32_t i = 0; i < rank; i++)
		sum += (double)w->w[(size_t)r * rank + i] * (double)latent[i];
	return sum;
}

/* Of a query [nope, rope] with what is cached of a position. */
static double score(
	const struct latent_world *w, const float *query, const float *cached, uint32_t head)
{
	const struct attention_latent *l = &w->config.latent;
	double sum = 0;

	for (uint32_t i = 0; i < l->nope; i++)
		sum += (double)query[i] * expand(w, cached, head * (l->nope + l->v) + i);
	for (uint32_t i = 0; i < l->rope; i++)
		sum += (double)query[l->nope + i] * (double)cached[l->rank + i];
	return sum * (double)w->config.scale;
}

static void fill(float *to, uint32_t n, uint32_t seed, enum part part, uint32_t p, uint32_t first)
{
	assert_true(n <= LATENT_WIDTH);
	for (uint32_t i = 0; i < n; i++)
		to[i] = content(seed, part, p, first + i);
}

static void verify_head(const struct latent_world *w, const struct latent_row *row, uint32_t last,
	uint32_t head, const float *out)
{
	const struct attention_latent *l = &w->config.latent;
	uint32_t first_value = head * (l->nope + l->v) + l->nope;
	double sums[64] = { 0 }, total = 0, magnitude = 0;
	float query[LATENT_WIDTH], cached[LATENT_WIDTH];

	assert_true(l->v <= 64);
	fill(query, l->nope + l->rope, row->seed, PART_Q, last, head * (l->nope + l->rope));
	for (uint32_t p = 0; p <= last; p++) {
		double weight;

		fill(cached, l->rank + l->rope, row->seed, PART_KV, p, 0);
		weight = exp(score(w, query, cached, head));
		total += weight;
		for (uint32_t i = 0; i < l->v; i++) {
			double value = expand(w, cached, first_value + i);

			sums[i] += weight * value;
			magnitude += weight * fabs(value) / l->v;
		}
	}
	for (uint32_t i = 0; i < l->v; i++) {
		double size = magnitude / total;
		double limit = test_on_cuda() ? TOLERANCE_CUDA * size : TOLERANCE * fmax(1, size);

		if (!(fabs((double)out[i] - sums[i] / total) <= limit))
			fail_msg("position %u head %u element %u: %.9g, expected %.9g", last, head, i,
				(double)out[i], sums[i] / total);
	}
}

static void verify_zero(const struct latent_world *w, const float *out)
{
	for (uint32_t e = 0; e < w->out_width; e++)
		assert_true(out[e] == 0.0f);
}

void latent_verify(const struct latent_world *w)
{
	for (uint32_t r = 0; r < w->batch.n_rows; r++) {
		const struct latent_row *row = &w->rows[r];

		for (uint32_t j = 0; j < row->n_query; j++) {
			const float *out = latent_out(w, r, j);

			bool ahead = row->seq_len + j < row->n_query; /* of its sequence */

			if (!row->seq_len || ahead)
				verify_zero(w, out);
			for (uint32_t h = 0; row->seq_len && !ahead && h < w->config.n_heads; h++)
				verify_head(w, row, row->seq_len - row->n_query + j, h,
					out + (size_t)h * w->config.latent.v);
		}
	}
	for (uint32_t t = w->batch.n_tokens; t < w->batch.padded_tokens; t++)
		verify_zero(w, w->out + (size_t)t * w->out_width);
	for (size_t i = (size_t)w->batch.padded_tokens * w->out_width;
		i < (size_t)LATENT_TOKENS * w->out_width; i++)
		assert_true(isnan(w->out[i]));
}
