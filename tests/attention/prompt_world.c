/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "tests/attention/prompt_world.h"

#define SAMPLES 24u /* of a long row's tokens */

/* ---- contents ---- */

enum part { PART_Q, PART_KV, PART_W };

static float rounded(float x)
{
	uint32_t bits;

	if (!test_on_cuda())
		return x;
	memcpy(&bits, &x, sizeof(bits));
	bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
	memcpy(&x, &bits, sizeof(bits));
	return x;
}

/* In (-1, 1), by a hash, as the device keeps it. */
static float content(uint32_t seed, enum part part, uint32_t position, uint32_t element)
{
	uint64_t x = (uint64_t)seed << 44 ^ (uint64_t)part << 40 ^ (uint64_t)position << 20 ^
		     element;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	x ^= x >> 31;
	return rounded((float)(x >> 40) * 0x1p-23f - 1.0f);
}

static float weight_at(const struct prompt_world *w, uint32_t r, uint32_t i)
{
	return rounded(content(0, PART_W, r, i) * sqrtf(3.0f / (float)w->config.latent.rank));
}

/* Element i of an array of activations. */
static void put(const struct prompt_world *w, void *array, size_t i, float x)
{
	uint32_t bits;
	uint16_t half;

	memcpy(&bits, &x, sizeof(bits));
	half = (uint16_t)(bits >> 16);
	if (w->act == 2)
		memcpy((uint8_t *)array + 2 * i, &half, sizeof(half));
	else
		memcpy((uint8_t *)array + 4 * i, &x, sizeof(x));
}

float prompt_get(const struct prompt_world *w, const void *array, size_t i)
{
	uint32_t bits = 0;
	float x;

	memcpy((uint8_t *)&bits + (4 - w->act), (const uint8_t *)array + w->act * i, w->act);
	memcpy(&x, &bits, sizeof(x));
	return x;
}

/* ---- making ---- */

static void *take(struct prompt_world *w, size_t bytes)
{
	void *memory = NULL;

	assert_int_equal(w->device->ops->mem_alloc(w->device, bytes, &memory), 0);
	test_fill(w->device, memory, 0xff, bytes);
	return memory;
}

static void take_weight(struct prompt_world *w)
{
	const struct attention_latent *l = &w->config.latent;
	uint32_t n = w->config.n_heads * (l->nope + l->v);
	void *host = malloc((size_t)n * l->rank * w->act), *data;

	for (uint32_t r = 0; r < n; r++)
		for (uint32_t i = 0; i < l->rank; i++)
			put(w, host, (size_t)r * l->rank + i, weight_at(w, r, i));
	data = take(w, (size_t)n * l->rank * w->act);
	test_copy(w->device, data, host, (size_t)n * l->rank * w->act);
	w->kv_b = (struct weight){
		.data = data, .dtype = w->config.kv_dtype, .rows = n, .cols = l->rank };
	free(host);
}

/* The cache; a far one is mapped at its end alone, where pages are handed out. */
static void take_cache(struct prompt_world *w)
{
	const struct attention_config *c = &w->config;
	size_t page = (size_t)c->page_tokens * c->head_dim * w->act, mapped;
	uint32_t n_pages = PROMPT_ROWS * c->max_pages + 1;

	if (!w->shape->far) {
		w->config.n_kv_pages = n_pages;
		w->kv_bytes = n_pages * page;
		w->kv = take(w, w->kv_bytes);
		return;
	}
	w->config.n_kv_pages = (uint32_t)(((uint64_t)5 << 29) / (c->page_tokens * c->head_dim));
	w->kv_bytes = w->config.n_kv_pages * page;
	assert_int_equal(
		w->device->ops->reserve(w->device, w->kv_bytes, &w->kv, &w->granularity), 0);
	w->device->ops->release(w->device, w->kv, w->kv_bytes);
	w->kv_bytes = (w->kv_bytes + w->granularity - 1) / w->granularity * w->granularity;
	assert_int_equal(
		w->device->ops->reserve(w->device, w->kv_bytes, &w->kv, &w->granularity), 0);
	mapped = (n_pages * page + 2 * w->granularity) / w->granularity * w->granularity;
	assert_int_equal(w->device->ops->map(
		w->device, w->kv, w->kv_bytes - mapped, mapped), 0);
	test_fill(w->device, (uint8_t *)w->kv + w->kv_bytes - mapped, 0xff, mapped);
}

static void take_kernels(struct prompt_world *w)
{
	w->kernels = *mla_prompt_kernels_for(test_on_cuda() ? "cuda" : "cpu");
	if (!w->shape->small)
		return;
	w->kernels.max_keys = w->kernels.granule > 1 ? 2 * w->kernels.granule : 64;
	w->kernels.sums_bytes = 1; /* 256 queries */
}

void prompt_init(struct prompt_world *w, const struct prompt_shape *s)
{
	*w = (struct prompt_world){ .shape = s, .device = test_device_open(0) };
	w->act = test_on_cuda() ? 2 : 4;
	w->config = (struct attention_config){
		.n_layers = 1, .n_heads = s->n_heads, .n_kv_heads = 1,
		.head_dim = s->rank + s->rope,
		.latent = { .rank = s->rank, .nope = s->nope, .rope = s->rope, .v = s->v },
		/* so that few keys decide, and a wrong one shows */
		.scale = 8.0f / sqrtf((float)(s->nope + s->rope)),
		.page_tokens = s->page_tokens, .max_rows = PROMPT_ROWS, .max_tokens = PROMPT_TOKENS,
		.max_pages = (s->max_seq_len + s->page_tokens - 1) / s->page_tokens + 3,
		.max_seq_len = s->max_seq_len, .max_decode_query = 1,
		.activation_dtype = test_on_cuda() ? DTYPE_BF16 : DTYPE_F32,
		.kv_dtype = test_on_cuda() ? DTYPE_BF16 : DTYPE_F32,
	};
	w->q_width = s->n_heads * (s->nope + s->rope);
	w->q_stride = w->q_width + 8;
	w->out_width = s->n_heads * s->v;
	assert_int_equal(w->device->ops->stream_new(w->device, &w->stream), 0);
	take_kernels(w);
	take_weight(w);
	take_cache(w);
	w->q = take(w, (size_t)PROMPT_TOKENS * w->q_stride * w->act);
	w->out = take(w, (size_t)PROMPT_TOKENS * w->out_width * w->act);
	w->block_table = take(w, (size_t)PROMPT_ROWS * w->config.max_pages * sizeof(int32_t));
	w->keys = calloc((size_t)s->max_seq_len * (s->nope + s->rope), sizeof(double));
	w->values = calloc((size_t)s->max_seq_len * s->v, sizeof(double));
	assert_true(w->keys && w->values);
	assert_int_equal(mla_prompt_new(w->device, &w->config, &w->kernels, &w->prompt), 0);
	assert_int_equal(mla_prompt_load(w->prompt, w->stream, &w->kv_b), 0);
	assert_int_equal(w->device->ops->stream_sync(w->stream), 0);
	assert_int_equal(w->device->ops->lock(w->device), 0);
}

void prompt_deinit(struct prompt_world *w)
{
	const struct device_ops *ops = w->device->ops;

	mla_prompt_free(w->prompt);
	ops->stream_free(w->stream);
	free(w->values);
	free(w->keys);
	ops->mem_free(w->device, w->block_table);
	ops->mem_free(w->device, w->out);
	ops->mem_free(w->device, w->q);
	if (w->shape->far)
		ops->release(w->device, w->kv, w->kv_bytes);
	else
		ops->mem_free(w->device, w->kv);
	ops->mem_free(w->device, (void *)(uintptr_t)w->kv_b.data);
	ops->free(w->device);
}

/* ---- placing ---- */

/* A row's pages, from the cache's end, those of rows in turn; tokens past its last one are NaN. */
static void place_pages(
	struct prompt_world *w, uint32_t index, const struct prompt_row *row, int32_t *table)
{
	const struct attention_config *c = &w->config;
	size_t page_bytes = (size_t)c->page_tokens * c->head_dim * w->act;
	void *host = malloc(page_bytes);

	for (uint32_t p = 0; p < row->seq_len; p += c->page_tokens) {
		uint32_t page = c->n_kv_pages - 1 - p / c->page_tokens * PROMPT_ROWS - index;

		table[index * c->max_pages + p / c->page_tokens] = (int32_t)page;
		memset(host, 0xff, page_bytes);
		for (uint32_t t = 0; t < c->page_tokens && p + t < row->seq_len; t++)
			for (uint32_t e = 0; e < c->head_dim; e++)
				put(w, host, (size_t)t * c->head_dim + e,
					content(row->seed, PART_KV, p + t, e));
		test_copy(w->device, (uint8_t *)w->kv + page * page_bytes, host, page_bytes);
	}
	free(host);
}

void prompt_place(struct prompt_world *w, const struct prompt_row *rows, uint32_t n_rows)
{
	static const int32_t garbage[] = { -1, INT32_MAX, INT32_MIN, 1 << 28 };
	size_t n_entries = (size_t)PROMPT_ROWS * w->config.max_pages;
	size_t q_bytes = (size_t)PROMPT_TOKENS * w->q_stride * w->act;
	int32_t *table = malloc(n_entries * sizeof(*table));
	void *q = malloc(q_bytes);

	for (size_t i = 0; i < n_entries; i++)
		table[i] = garbage[i % 4];
	memset(q, 0xff, q_bytes);
	w->n_tokens = 0;
	for (uint32_t r = 0; r < n_rows; r++) {
		uint32_t first = w->n_tokens + rows[r].gap;

		w->rows[r] = (struct mla_prompt_row){ .row = r, .first_token = first,
			.n_query = rows[r].n_query, .seq_len = rows[r].seq_len };
		place_pages(w, r, &rows[r], table);
		for (uint32_t j = 0; j < rows[r].n_query; j++)
			for (uint32_t e = 0; e < w->q_width; e++)
				put(w, q, (size_t)(first + j) * w->q_stride + e,
					content(rows[r].seed, PART_Q,
						rows[r].seq_len - rows[r].n_query + j, e));
		w->n_tokens = first + rows[r].n_query;
	}
	assert_true(w->n_tokens <= PROMPT_TOKENS);
	test_copy(w->device, w->q, q, q_bytes);
	test_copy(w->device, w->block_table, table, n_entries * sizeof(*table));
	free(q);
	free(table);
}

/* The output, on the host. */
void *prompt_run(struct prompt_world *w, uint32_t n_rows)
{
	size_t bytes = (size_t)PROMPT_TOKENS * w->out_width * w->act;
	const struct attention_args args = { .q = w->q, .q_stride = w->q_stride, .kv = w->kv,
		.out = w->out, .kv_b = &w->kv_b };

	test_fill(w->device, w->out, 0xff, bytes);
	assert_int_equal(mla_prompt_run(
		w->prompt, w->stream, &args, w->block_table, w->rows, n_rows), 0);
	assert_int_equal(w->device->ops->stream_sync(w->stream), 0);
	return test_fetch(w->device, w->out, bytes);
}

/* ---- judging ---- */

/* A head's keys and values of a row, rounded as the device keeps them. */
static void expand_head(struct prompt_world *w, const struct prompt_row *row, uint32_t head)
{
	const struct attention_latent *l = &w->config.latent;
	uint32_t first = head * (l->nope + l->v), width = l->nope + l->rope;
	float *latent = malloc(l->rank * sizeof(float));
	float *weights = malloc((size_t)(l->nope + l->v) * l->rank * sizeof(float));

	for (uint32_t r = 0; r < l->nope + l->v; r++)
		for (uint32_t i = 0; i < l->rank; i++)
			weights[r * l->rank + i] = weight_at(w, first + r, i);
	for (uint32_t p = 0; p < row->seq_len; p++) {
		for (uint32_t i = 0; i < l->rank; i++)
			latent[i] = content(row->seed, PART_KV, p, i);
		for (uint32_t r = 0; r < l->nope + l->v; r++) {
			double sum = 0;

			for (uint32_t i = 0; i < l->rank; i++)
				sum += (double)weights[r * l->rank + i] * (double)latent[i];
			if (test_on_cuda())
				sum = (double)rounded((float)sum);
			if (r < l->nope)
				w->keys[(size_t)p * width + r] = sum;
			else
				w->values[(size_t)p * l->v + r - l->nope] = sum;
		}
		for (uint32_t i = 0; i < l->rope; i++)
			w->keys[(size_t)p * width + l->nope + i] =
				(double)content(row->seed, PART_KV, p, l->rank + i);
	}
	free(weights);
	free(latent);
}

/* How far a head's output is from the reference, as a part of its norm. */
static double distance(struct prompt_world *w, const struct prompt_row *row, uint32_t position,
	uint32_t head, const void *out, size_t at)
{
	uint32_t v = w->config.latent.v, width = w->config.latent.nope + w->config.latent.rope;
	double *sums = calloc(v, sizeof(double)), *q = calloc(width, sizeof(double));
	double total = 0, error = 0, norm = 0;

	for (uint32_t i = 0; i < width; i++)
		q[i] = (double)content(row->seed, PART_Q, position, head * width + i);
	for (uint32_t p = 0; p <= position; p++) {
		double weight = 0;

		for (uint32_t i = 0; i < width; i++)
			weight += q[i] * w->keys[(size_t)p * width + i];
		weight = exp(weight * (double)w->config.scale);
		total += weight;
		for (uint32_t i = 0; i < v; i++)
			sums[i] += weight * w->values[(size_t)p * v + i];
	}
	for (uint32_t i = 0; i < v; i++) {
		double off = (double)prompt_get(w, out, at + i) - sums[i] / total;

		error += off * off;
		norm += sums[i] / total * (sums[i] / total);
	}
	free(q);
	free(sums);
	return sqrt(error / norm);
}

/* Tokens that are looked at: all of a short row; of a long one the ends, those beside edges of
 * blocks and chunks, and some between. */
static bool looked_at(const struct prompt_row *row, uint32_t j)
{
	uint32_t position = row->seq_len - row->n_query + j, step = row->n_query / SAMPLES + 1;

	return row->n_query <= 3 * SAMPLES || j < 2 || j + 2 >= row->n_query ||
	       j % step == 0 || (j + 1) % 512 < 2 || (position + 1) % 1024 < 2;
}

/* A head of a row. */
static void verify_head(struct prompt_world *w, const struct prompt_row *row, uint32_t first_token,
	uint32_t head, const void *out)
{
	const double tolerance = test_on_cuda() ? 1.5e-2 : 2e-5;
	uint32_t v = w->config.latent.v, before = row->seq_len - row->n_query;

	expand_head(w, row, head);
	for (uint32_t j = 0; j < row->n_query; j++) {
		size_t at = (size_t)(first_token + j) * w->out_width + head * v;
		double off = 0;

		if (looked_at(row, j))
			off = distance(w, row, before + j, head, out, at);
		if (!(off <= tolerance) || isnan(prompt_get(w, out, at)))
			fail_msg("%u tokens behind %u, token %u, head %u: %g", row->n_query,
				before, j, head, off);
	}
}

static void verify_untouched(
	const struct prompt_world *w, uint32_t first_token, uint32_t end, const void *out)
{
	for (size_t i = (size_t)first_token * w->out_width; i < (size_t)end * w->out_width; i++)
		assert_true(isnan(prompt_get(w, out, i)));
}

static void verify(
	struct prompt_world *w, const struct prompt_row *rows, uint32_t n_rows, const void *out)
{
	uint32_t token = 0;

	for (uint32_t r = 0; r < n_rows; r++) {
		verify_untouched(w, token, token + rows[r].gap, out);
		token += rows[r].gap;
		for (uint32_t h = 0; h < w->config.n_heads; h++)
			verify_head(w, &rows[r], token, h, out);
		token += rows[r].n_query;
	}
	verify_untouched(w, token, PROMPT_TOKENS, out);
}

void prompt_check(struct prompt_world *w, const struct prompt_row *rows, uint32_t n_rows)
{
	void *out;

	prompt_place(w, rows, n_rows);
	out = prompt_run(w, n_rows);
	verify(w, rows, n_rows, out);
	free(out);
}
