/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/attention/world.h"
#include "tests/device.h"

#define LAYER 1u
#define TOLERANCE 2e-6
/* Outputs are rounded to 8 bits, and so are the softmax's weights. */
#define TOLERANCE_CUDA 6e-3
#define RELATIVE_CUDA 6e-3

enum part { PART_Q, PART_K, PART_V };

/* ---- bfloat16 ---- */

static uint16_t to_bf16(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof(bits));
	if (isnan(x))
		return 0x7fff;
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float from_bf16(uint16_t x)
{
	uint32_t bits = (uint32_t)x << 16;
	float y;

	memcpy(&y, &bits, sizeof(y));
	return y;
}

/* In (-2, 2), by a hash. */
static float content(const struct world *w, uint32_t seed, enum part part, uint32_t position,
	uint32_t element)
{
	float value;

	uint64_t x = (uint64_t)seed << 40 ^ (uint64_t)part << 36 ^ (uint64_t)position << 16 ^
		     element;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	x ^= x >> 31;
	value = (float)(x >> 40) * 0x1p-22f - 2.0f;
	return w->is_cuda ? from_bf16(to_bf16(value)) : value;
}

uint32_t world_draw(struct world *w, uint32_t n)
{
	w->random = w->random * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(w->random >> 33) % n;
}

/* ---- making ---- */

/* The host's; of the cpu device that is the device's as well. */
static void *world_alloc(struct world *w, size_t n, size_t size)
{
	void *memory = NULL;

	if (w->is_cuda)
		memory = malloc(n * size);
	else
		assert_int_equal(w->device->ops->mem_alloc(w->device, n * size, &memory), 0);
	assert_non_null(memory);
	memset(memory, 0xff, n * size);
	return memory;
}

static void world_free(struct world *w, void *memory)
{
	if (w->is_cuda)
		free(memory);
	else
		w->device->ops->mem_free(w->device, memory);
}

static void *device_alloc(struct world *w, size_t bytes)
{
	void *memory = NULL;

	assert_int_equal(w->device->ops->mem_alloc(w->device, bytes, &memory), 0);
	return memory;
}

static size_t kv_elements(const struct world *w)
{
	const struct attention_config *c = &w->config;

	return (size_t)w->n_pages * 2 * c->page_tokens * c->n_kv_heads * c->head_dim;
}

static size_t q_elements(const struct world *w)
{
	return (size_t)WORLD_TOKENS * w->q_stride;
}

static size_t out_elements(const struct world *w)
{
	return (size_t)WORLD_TOKENS * w->width;
}

/* The device's copies. */
static void mirror_init(struct world *w)
{
	size_t most = kv_elements(w) > q_elements(w) ? kv_elements(w) : q_elements(w);


	w->at_device.query_start = device_alloc(w, (WORLD_ROWS + 1) * sizeof(int32_t));
	w->at_device.seq_lens = device_alloc(w, WORLD_ROWS * sizeof(int32_t));
	w->at_device.block_table =
		device_alloc(w, (size_t)WORLD_ROWS * w->config.max_pages * sizeof(int32_t));
	w->at_device.row_slot = device_alloc(w, WORLD_ROWS * sizeof(int32_t));
	w->at_device.slot_mask = device_alloc(w, WORLD_ROWS * sizeof(struct slot_mask));
	w->at_device.mask_words = device_alloc(w, WORLD_TOKENS * sizeof(uint64_t));
	w->kv_device = device_alloc(w, kv_elements(w) * 2);
	w->q_device = device_alloc(w, q_elements(w) * 2);
	w->out_device = device_alloc(w, out_elements(w) * 2);
	w->staging = malloc(most * 2);
	assert_non_null(w->staging);
}

static void mirror_deinit(struct world *w)
{
	const struct device_ops *ops = w->device->ops;

	free(w->staging);
	ops->mem_free(w->device, w->out_device);
	ops->mem_free(w->device, w->q_device);
	ops->mem_free(w->device, w->kv_device);
	ops->mem_free(w->device, w->at_device.mask_words);
	ops->mem_free(w->device, w->at_device.slot_mask);
	ops->mem_free(w->device, w->at_device.row_slot);
	ops->mem_free(w->device, w->at_device.block_table);
	ops->mem_free(w->device, w->at_device.seq_lens);
	ops->mem_free(w->device, w->at_device.query_start);
}

void world_init(struct world *w, const char *backend, const struct shape *shape)
{
	struct device *device = NULL;

	assert_int_equal(device_open("cpu", &(struct device_options){ 0 }, &device), 0);
	world_init_on(w, device, backend, shape);
	w->device_owned = true;
}

static struct device *device_of_its_own(void)
{
	struct device *device = NULL;

	assert_int_equal(device_open(test_device(), &(struct device_options){ 0 }, &device), 0);
	return device;
}

void world_init_on(struct world *w, struct device *device, const char *backend,
	const struct shape *shape)
{
	uint32_t max_pages = (shape->max_seq_len + shape->page_tokens - 1) / shape->page_tokens + 3;
	struct device_info info;

	*w = (struct world){ .random = shape->head_dim + shape->page_tokens * 131u };
	w->device_owned = !device;
	w->device = device ? device : device_of_its_own();
	assert_int_equal(w->device->ops->info(w->device, &info), 0);
	w->is_cuda = strcmp(info.kind, "cuda") == 0;
	w->config = (struct attention_config){
		.n_layers = WORLD_LAYERS,
		.n_heads = shape->n_heads,
		.n_kv_heads = shape->n_kv_heads,
		.head_dim = shape->head_dim,
		.scale = 1.0f / sqrtf((float)shape->head_dim),
		.windows = w->windows,
		.page_tokens = shape->page_tokens,
		.max_rows = WORLD_ROWS,
		.max_tokens = WORLD_TOKENS,
		.max_pages = max_pages,
		.max_seq_len = shape->max_seq_len,
		.max_decode_query = 4,
		.activation_dtype = w->is_cuda ? DTYPE_BF16 : DTYPE_F32,
		.kv_dtype = w->is_cuda ? DTYPE_BF16 : DTYPE_F32,
	};
	w->windows[LAYER] = shape->window;
	w->n_pages = w->config.n_kv_pages = WORLD_ROWS * max_pages + 1;
	w->width = shape->n_heads * shape->head_dim;
	w->q_stride = w->width + 2 * shape->n_kv_heads * shape->head_dim;
	assert_int_equal(w->device->ops->stream_new(w->device, &w->stream), 0);
	w->inputs = (struct step_inputs){
		.max_rows = WORLD_ROWS,
		.max_tokens = WORLD_TOKENS,
		.max_pages = max_pages,
		.page_tokens = shape->page_tokens,
		.query_start = world_alloc(w, WORLD_ROWS + 1, sizeof(int32_t)),
		.seq_lens = world_alloc(w, WORLD_ROWS, sizeof(int32_t)),
		.block_table = world_alloc(w, (size_t)WORLD_ROWS * max_pages, sizeof(int32_t)),
		.max_slots = WORLD_ROWS,
		.row_slot = world_alloc(w, WORLD_ROWS, sizeof(int32_t)),
		.slot_mask = world_alloc(w, WORLD_ROWS, sizeof(struct slot_mask)),
		.mask_words = world_alloc(w, WORLD_TOKENS, sizeof(uint64_t)),
	};
	w->kv = world_alloc(w, kv_elements(w), sizeof(float));
	w->q = world_alloc(w, q_elements(w), sizeof(float));
	w->out = world_alloc(w, out_elements(w), sizeof(float));
	w->at_device = w->inputs;
	w->kv_device = w->kv;
	w->q_device = w->q;
	w->out_device = w->out;
	if (w->is_cuda)
		mirror_init(w);
	w->backend = attention_find(backend);
	assert_int_equal(
		w->backend->manager_new(w->device, &w->config, &w->at_device, &w->manager), 0);
	assert_int_equal(w->backend->metadata_new(w->manager, &w->metadata), 0);
}

void world_deinit(struct world *w)
{
	const struct device_ops *ops = w->device->ops;

	world_sync(w); /* a build may have queued work */
	w->backend->metadata_free(w->metadata);
	w->backend->manager_free(w->manager);
	ops->stream_free(w->stream);
	if (w->is_cuda)
		mirror_deinit(w);
	world_free(w, w->out);
	world_free(w, w->q);
	world_free(w, w->kv);
	world_free(w, w->inputs.mask_words);
	world_free(w, w->inputs.slot_mask);
	world_free(w, w->inputs.row_slot);
	world_free(w, w->inputs.block_table);
	world_free(w, w->inputs.seq_lens);
	world_free(w, w->inputs.query_start);
	if (w->device_owned)
		ops->free(w->device);
}

/* ---- placing ---- */

static float *cached(struct world *w, int32_t page, uint32_t half, uint32_t offset)
{
	const struct attention_config *c = &w->config;

	return w->kv + (((size_t)page * 2 + half) * c->page_tokens + offset) *
			       (c->n_kv_heads * c->head_dim);
}

/* Pages in a random order, none twice, never the null page. */
static void shuffle_pages(struct world *w, int32_t *pages)
{
	for (uint32_t i = 0; i < w->n_pages - 1; i++)
		pages[i] = (int32_t)i + 1;
	for (uint32_t i = w->n_pages - 2; i > 0; i--) {
		uint32_t j = world_draw(w, i + 1);
		int32_t page = pages[i];

		pages[i] = pages[j];
		pages[j] = page;
	}
}

/* One sequence's keys and values; takes its pages from the front of `pages`. */
static const int32_t *place_row(
	struct world *w, const struct row *row, int32_t *table, const int32_t *pages)
{
	const struct attention_config *c = &w->config;

	for (uint32_t p = 0; p < row->seq_len; p++) {
		if (p % c->page_tokens == 0)
			table[p / c->page_tokens] = *pages++;
		for (uint32_t e = 0; e < c->n_kv_heads * c->head_dim; e++) {
			int32_t page = table[p / c->page_tokens];

			cached(w, page, 0, p % c->page_tokens)[e] =
				content(w, row->seed, PART_K, p, e);
			cached(w, page, 1, p % c->page_tokens)[e] =
				content(w, row->seed, PART_V, p, e);
		}
	}
	return pages;
}

static void place_queries(struct world *w, const struct row *row, uint32_t first)
{
	for (uint32_t j = 0; j < row->n_query; j++)
		for (uint32_t e = 0; e < w->width; e++)
			w->q[(size_t)(first + j) * w->q_stride + e] =
				content(w, row->seed, PART_Q, row->seq_len - row->n_query + j, e);
}

static void place_mask(struct world *w, const struct row *row, uint32_t r, uint32_t first)
{
	uint32_t slot = WORLD_ROWS - 1 - r;

	w->inputs.row_slot[r] = (int32_t)slot;
	w->inputs.slot_mask[slot] = row->mask;
	for (uint32_t j = 0; j < row->n_query && row->seq_len; j++)
		w->inputs.mask_words[first + j] =
			row->words ? row->words[row->seq_len - row->n_query + j] : 0;
}

static void make_hostile(struct world *w)
{
	static const int32_t garbage[] = { -1, INT32_MAX, INT32_MIN, 1 << 20 };
	const struct attention_config *c = &w->config;
	size_t row = (size_t)c->n_kv_heads * c->head_dim;

	memset(w->kv, 0xff, w->n_pages * 2 * c->page_tokens * row * sizeof(float));
	memset(w->q, 0xff, (size_t)WORLD_TOKENS * w->q_stride * sizeof(float));
	memset(w->inputs.slot_mask, 0xff, WORLD_ROWS * sizeof(struct slot_mask));
	memset(w->inputs.mask_words, 0, WORLD_TOKENS * sizeof(uint64_t));
	for (uint32_t i = 0; i < WORLD_ROWS * c->max_pages; i++)
		w->inputs.block_table[i] = garbage[world_draw(w, 4)];
}

void world_place(struct world *w, const struct row *rows, uint32_t n_rows, uint32_t padded_rows,
	uint32_t padded_tokens)
{
	uint32_t max_pages = w->config.max_pages, n_tokens = 0, max_query = 0;
	int32_t *shuffled = calloc(w->n_pages, sizeof(*shuffled));
	const int32_t *pages = shuffled;

	assert_non_null(shuffled);
	make_hostile(w);
	shuffle_pages(w, shuffled);
	for (uint32_t r = 0; r < n_rows; r++) {
		w->rows[r] = rows[r];
		w->query_lens[r] = rows[r].n_query;
		w->seq_lens[r] = rows[r].seq_len;
		w->inputs.query_start[r] = (int32_t)n_tokens;
		w->inputs.seq_lens[r] = (int32_t)rows[r].seq_len;
		pages = place_row(w, &rows[r], w->inputs.block_table + r * max_pages, pages);
		place_mask(w, &rows[r], r, n_tokens);
		if (rows[r].seq_len)
			place_queries(w, &rows[r], n_tokens);
		n_tokens += rows[r].n_query;
		max_query = rows[r].n_query > max_query ? rows[r].n_query : max_query;
	}
	free(shuffled);
	for (uint32_t r = n_rows; r < WORLD_ROWS; r++) {
		w->inputs.seq_lens[r] = 0;
		w->inputs.row_slot[r] = -1;
	}
	for (uint32_t r = n_rows; r <= WORLD_ROWS; r++)
		w->inputs.query_start[r] = (int32_t)n_tokens;
	w->batch = (struct attention_batch){
		.n_rows = n_rows,
		.n_tokens = n_tokens,
		.padded_rows = padded_rows ? padded_rows : n_rows,
		.padded_tokens = padded_tokens ? padded_tokens : n_tokens,
		.max_query = max_query,
		.query_lens = w->query_lens,
		.seq_lens = w->seq_lens,
	};
}

/* ---- running ---- */

static void put(struct world *w, void *dst, const void *src, size_t bytes)
{
	assert_int_equal(w->device->ops->copy(w->device, dst, src, bytes), 0);
}

void world_put(struct world *w, void *dst, const float *src, size_t n)
{
	if (!w->is_cuda) {
		memcpy(dst, src, n * sizeof(float));
		return;
	}
	for (size_t i = 0; i < n; i++)
		w->staging[i] = to_bf16(src[i]);
	put(w, dst, w->staging, n * 2);
}

static void mirror_put(struct world *w)
{
	const struct step_inputs *from = &w->inputs, *to = &w->at_device;

	if (!w->kv_far)
		world_put(w, w->kv_device, w->kv, kv_elements(w));
	world_put(w, w->q_device, w->q, q_elements(w));
	put(w, to->query_start, from->query_start, (WORLD_ROWS + 1) * sizeof(int32_t));
	put(w, to->seq_lens, from->seq_lens, WORLD_ROWS * sizeof(int32_t));
	put(w, to->block_table, from->block_table,
		(size_t)WORLD_ROWS * w->config.max_pages * sizeof(int32_t));
	put(w, to->row_slot, from->row_slot, WORLD_ROWS * sizeof(int32_t));
	put(w, to->slot_mask, from->slot_mask, WORLD_ROWS * sizeof(struct slot_mask));
	put(w, to->mask_words, from->mask_words, WORLD_TOKENS * sizeof(uint64_t));
}

int world_build(struct world *w, enum attention_phase phase)
{
	w->batch.phase = phase;
	if (w->is_cuda)
		mirror_put(w);
	return w->backend->build(w->metadata, &w->batch, w->stream);
}

int world_enqueue(struct world *w, uint32_t layer)
{
	return w->backend->run(w->metadata, w->stream, &(struct attention_args){
		.layer = layer,
		.q = w->q_device,
		.q_stride = w->q_stride,
		.kv = w->kv_far ? w->kv_far : w->kv_device,
		.out = w->out_device,
	});
}

void world_poison_out(struct world *w)
{
	memset(w->out, 0xff, out_elements(w) * sizeof(float));
	if (w->is_cuda)
		assert_int_equal(w->device->ops->fill_async(w->stream, w->out_device, 0xff,
			out_elements(w) * 2), 0);
}

void world_sync(struct world *w)
{
	assert_int_equal(w->device->ops->stream_sync(w->stream), 0);
	if (!w->is_cuda)
		return;
	put(w, w->staging, w->out_device, out_elements(w) * 2);
	for (size_t i = 0; i < out_elements(w); i++)
		w->out[i] = from_bf16(w->staging[i]);
}

void world_run(struct world *w)
{
	world_poison_out(w);
	assert_int_equal(world_build(w, ATTENTION_EAGER), 0);
	assert_int_equal(world_enqueue(w, LAYER), 0);
	world_sync(w);
}

/* ---- judging ---- */

const float *world_out(const struct world *w, uint32_t row, uint32_t token)
{
	for (uint32_t r = 0; r < row; r++)
		token += w->query_lens[r];
	return w->out + (size_t)token * w->width;
}

/* Masks, by their definition in kernels/ops.h: does the token at q see the one at k? */
static bool sees(const struct world *w, const struct row *row, uint32_t q, uint32_t k)
{
	const struct slot_mask *m = &row->mask;
	uint64_t word = row->words ? row->words[q] : 0;
	uint32_t window = w->windows[LAYER];

	if (q == k)
		return true;
	if (window && k + window <= q)
		return false;
	switch (m->kind) {
	case MASK_WINDOW:
		return k < q && (k < m->end || k + m->window > q);
	case MASK_PREFIX:
		return k < q || (q >= m->begin && k < m->end && q < m->end);
	case MASK_DOCUMENTS:
		return k < q && k >= word;
	case MASK_TREE:
		if (q < m->begin)
			return k < q;
		return k < m->begin || (k - m->begin < 64 && (word >> (k - m->begin) & 1));
	default:
		return k < q;
	}
}

/* A row's contents, once for all its tokens and heads. */
struct dense {
	double *keys, *values; /* [seq_len, n_kv_heads * head_dim] */
};

static void dense_init(struct dense *d, const struct world *w, const struct row *row)
{
	size_t width = (size_t)w->config.n_kv_heads * w->config.head_dim;

	d->keys = calloc(row->seq_len * width + 1, sizeof(double));
	d->values = calloc(row->seq_len * width + 1, sizeof(double));
	assert_non_null(d->keys);
	assert_non_null(d->values);
	for (uint32_t p = 0; p < row->seq_len; p++)
		for (uint32_t e = 0; e < width; e++) {
			d->keys[p * width + e] = (double)content(w, row->seed, PART_K, p, e);
			d->values[p * width + e] = (double)content(w, row->seed, PART_V, p, e);
		}
}

static void dense_deinit(struct dense *d)
{
	free(d->keys);
	free(d->values);
}

static double score_of(const double *q, const double *key, const struct attention_config *c)
{
	double score = 0;

	for (uint32_t e = 0; e < c->head_dim; e++)
		score += q[e] * key[e];
	return score * (double)c->scale;
}

/* softmax over what is seen by definition, everything in double; into expected[]. Weights are relative to
 * the highest score so far: scores may be beyond exp. */
static void reference(const struct world *w, const struct row *row, const struct dense *d,
	uint32_t last, uint32_t head, double *expected)
{
	const struct attention_config *c = &w->config;
	uint32_t dim = c->head_dim, width = c->n_kv_heads * dim;
	uint32_t kv_first = head / (c->n_heads / c->n_kv_heads) * dim;
	double total = 0, highest = -INFINITY, q[256];

	memset(expected, 0, dim * sizeof(*expected));
	for (uint32_t e = 0; e < dim; e++)
		q[e] = (double)content(w, row->seed, PART_Q, last, head * dim + e);
	for (uint32_t p = 0; p < row->seq_len; p++) {
		const double *key = d->keys + (size_t)p * width + kv_first;
		const double *value = d->values + (size_t)p * width + kv_first;
		double score = score_of(q, key, c), before, weight;

		if (!sees(w, row, last, p))
			continue;
		before = score > highest ? exp(highest - score) : 1;
		highest = fmax(score, highest);
		weight = exp(score - highest);
		total = total * before + weight;
		for (uint32_t e = 0; e < dim; e++)
			expected[e] = expected[e] * before + weight * value[e];
	}
	for (uint32_t e = 0; e < dim; e++)
		expected[e] /= total;
}

static void verify_token(const struct world *w, const struct row *row, const struct dense *dense,
	uint32_t last, const float *out)
{
	double expected[256];

	for (uint32_t h = 0; h < w->config.n_heads; h++) {
		reference(w, row, dense, last, h, expected);
		for (uint32_t d = 0; d < w->config.head_dim; d++) {
			double got = (double)out[h * w->config.head_dim + d];
			double most = w->is_cuda ? TOLERANCE_CUDA + RELATIVE_CUDA * fabs(expected[d])
						 : TOLERANCE;

			if (!(fabs(got - expected[d]) <= most))
				fail_msg("head_dim %u page %u mask %u length %u of %u, position "
					 "%u head %u element %u: %.9g, expected %.9g",
					w->config.head_dim, w->config.page_tokens, row->mask.kind,
					row->n_query, row->seq_len, last, h, d, got, expected[d]);
		}
	}
}

static void verify_zero(const struct world *w, const float *out)
{
	for (uint32_t e = 0; e < w->width; e++)
		assert_true(out[e] == 0.0f);
}

void world_verify(const struct world *w)
{
	for (uint32_t r = 0; r < w->batch.n_rows; r++) {
		const struct row *row = &w->rows[r];
		struct dense dense;

		dense_init(&dense, w, row);
		for (uint32_t j = 0; j < row->n_query; j++) {
			if (row->seq_len == 0)
				verify_zero(w, world_out(w, r, j));
			else
				verify_token(w, row, &dense, row->seq_len - row->n_query + j,
					world_out(w, r, j));
		}
		dense_deinit(&dense);
	}
	for (uint32_t t = w->batch.n_tokens; t < w->batch.padded_tokens; t++)
		verify_zero(w, w->out + (size_t)t * w->width);
	for (size_t i = (size_t)w->batch.padded_tokens * w->width;
		i < (size_t)WORLD_TOKENS * w->width; i++)
		assert_true(isnan(w->out[i]));
}
