/* SPDX-License-Identifier: MIT */

/* What tokens contain, attention by definition, in double, and batches that are drawn. */

#include "tests/attention/fixture.h"
#include "tests/e4m3.h"

/* Outputs are rounded to 8 bits, and so are the softmax's weights. */
#define TOLERANCE 2e-6
#define TOLERANCE_CUDA 6e-3
#define RELATIVE_CUDA 6e-3
/* Latent: as a part of the values' magnitude. On cuda the absorbed query, the weights, the average
 * and the value are rounded, 2^-9 each. */
#define LATENT_TOLERANCE 1e-5
#define LATENT_TOLERANCE_CUDA 1.5e-2
/* Distance of a sharp head from the reference, as a part of its norm. */
#define DISTANCE 2e-5
#define DISTANCE_CUDA 1.5e-2
/* Latent rows in fp8: a prompt widens them, times their factor, to bf16, which rounds the keys once more. */
#define DISTANCE_CUDA_CODES 2e-2

/* ---- contents ---- */

uint16_t bf16_from_float(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof(bits));
	if (isnan(x))
		return 0xffff;
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float bf16_to_float(uint16_t x)
{
	uint32_t bits = (uint32_t)x << 16;
	float y;

	memcpy(&y, &bits, sizeof(y));
	return y;
}

/* As a cache of fp8 keeps it. */
static float coded(const struct fixture *f, enum part part, float x)
{
	float factor = part == PART_K ? FIXTURE_FACTORS.key : FIXTURE_FACTORS.value;

	if (f->config.kv_dtype != DTYPE_E4M3 || (part != PART_K && part != PART_V))
		return x;
	return e4m3_to_float(e4m3_from_float(x / factor)) * factor;
}

static float rounded(const struct fixture *f, float x)
{
	return f->is_cuda ? bf16_to_float(bf16_from_float(x)) : x;
}

/* In (-1, 1), or (-2, 2) where attention is not latent, by a hash. */
float fixture_content(const struct fixture *f, uint32_t seed, enum part part, uint32_t position,
	uint32_t element)
{
	uint64_t x =
		(uint64_t)seed << 44 ^ (uint64_t)part << 40 ^ (uint64_t)position << 20 ^ element;
	float value = (float)(random_mix(x) >> 40) * 0x1p-23f - 1.0f;

	if (!f->config.latent.rank)
		value *= 2;
	if (part == PART_W && f->sharp != 0)
		value *= sqrtf(3.0f / (float)f->config.latent.rank);
	return coded(f, part, rounded(f, value));
}

/* ---- what is seen ---- */

/* Masks, by their definition in kernels/step.h: does the token at q see the one at k? */
static bool sees(const struct fixture *f, const struct row *row, uint32_t q, uint32_t k)
{
	const struct slot_mask *m = &row->mask;
	uint64_t word = row->words ? row->words[q] : 0;
	uint32_t window = f->windows[FIXTURE_LAYER];

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

/* ---- one head of one row ---- */

struct head {
	const struct fixture *f;
	const struct row *row;
	uint32_t index, key_dim, value_dim;
	double *keys, *values; /* [seq_len, key_dim], [seq_len, value_dim] */
	double *q, *expected;
};

/* Row r of W times a latent. */
static double expand(const struct head *h, const float *latent, uint32_t r)
{
	uint32_t rank = h->f->config.latent.rank;
	double sum = 0;

	for (uint32_t i = 0; i < rank; i++)
		sum += (double)h->f->w[(size_t)r * rank + i] * (double)latent[i];
	/* where keys are expanded, they are stored; where they are absorbed, they never exist */
	return h->f->sharp != 0 ? (double)rounded(h->f, (float)sum) : sum;
}

static void fill_latent(struct head *h)
{
	const struct attention_latent *l = &h->f->config.latent;
	uint32_t first = h->index * (l->nope + l->v);
	float *cached = calloc(l->rank + l->rope, sizeof(float));

	assert_non_null(cached);
	for (uint32_t p = 0; p < h->row->seq_len; p++) {
		double *key = h->keys + (size_t)p * h->key_dim;

		for (uint32_t i = 0; i < l->rank + l->rope; i++)
			cached[i] = fixture_content(h->f, h->row->seed, PART_K, p, i);
		for (uint32_t i = 0; i < l->nope; i++)
			key[i] = expand(h, cached, first + i);
		for (uint32_t i = 0; i < l->rope; i++)
			key[l->nope + i] = (double)cached[l->rank + i];
		for (uint32_t i = 0; i < l->v; i++)
			h->values[(size_t)p * l->v + i] = expand(h, cached, first + l->nope + i);
	}
	free(cached);
}

static void fill_gqa(struct head *h)
{
	const struct attention_config *c = &h->f->config;
	uint32_t dim = c->head_dim, first = h->index / (c->n_heads / c->n_kv_heads) * dim;

	for (uint32_t p = 0; p < h->row->seq_len; p++)
		for (uint32_t e = 0; e < dim; e++) {
			h->keys[p * dim + e] = (double)fixture_content(
				h->f, h->row->seed, PART_K, p, first + e);
			h->values[p * dim + e] = (double)fixture_content(
				h->f, h->row->seed, PART_V, p, first + e);
		}
}

static void head_init(
	struct head *h, const struct fixture *f, const struct row *row, uint32_t index)
{
	const struct attention_latent *l = &f->config.latent;

	*h = (struct head){ .f = f, .row = row, .index = index };
	h->key_dim = l->rank ? l->nope + l->rope : f->config.head_dim;
	h->value_dim = l->rank ? l->v : f->config.head_dim;
	h->keys = calloc((size_t)row->seq_len * h->key_dim + 1, sizeof(double));
	h->values = calloc((size_t)row->seq_len * h->value_dim + 1, sizeof(double));
	h->q = calloc(h->key_dim, sizeof(double));
	h->expected = calloc(h->value_dim, sizeof(double));
	assert_true(h->keys && h->values && h->q && h->expected);
	if (l->rank)
		fill_latent(h);
	else
		fill_gqa(h);
}

static void head_deinit(struct head *h)
{
	free(h->keys);
	free(h->values);
	free(h->q);
	free(h->expected);
}

/* The softmax over the keys that the token at `position` sees. Weights are relative to the highest
 * score so far: scores may be beyond exp. Returns the average magnitude of the weighted values. */
static double attend(struct head *h, uint32_t position)
{
	const double cap = (double)h->f->config.soft_cap;
	double total = 0, highest = -INFINITY, magnitude = 0;

	for (uint32_t i = 0; i < h->key_dim; i++)
		h->q[i] = (double)fixture_content(
			h->f, h->row->seed, PART_Q, position, h->index * h->key_dim + i);
	memset(h->expected, 0, h->value_dim * sizeof(double));
	for (uint32_t p = 0; p < h->row->seq_len; p++) {
		const double *key = h->keys + (size_t)p * h->key_dim;
		const double *value = h->values + (size_t)p * h->value_dim;
		double score = 0, before, weight;

		if (!sees(h->f, h->row, position, p))
			continue;
		for (uint32_t i = 0; i < h->key_dim; i++)
			score += h->q[i] * key[i];
		score *= (double)h->f->config.scale;
		if (cap != 0)
			score = cap * tanh(score / cap);
		before = score > highest ? exp(highest - score) : 1;
		highest = fmax(score, highest);
		weight = exp(score - highest);
		total = total * before + weight;
		magnitude *= before;
		for (uint32_t i = 0; i < h->value_dim; i++) {
			h->expected[i] = h->expected[i] * before + weight * value[i];
			magnitude += weight * fabs(value[i]) / h->value_dim;
		}
	}
	for (uint32_t i = 0; i < h->value_dim; i++)
		h->expected[i] /= total;
	return magnitude / total;
}

/* ---- judging ---- */

static double tolerance(const struct fixture *f, double expected, double magnitude)
{
	if (f->config.latent.rank)
		return f->is_cuda ? LATENT_TOLERANCE_CUDA * magnitude
				  : LATENT_TOLERANCE * fmax(1, magnitude);
	return f->is_cuda ? TOLERANCE_CUDA + RELATIVE_CUDA * fabs(expected) : TOLERANCE;
}

static double most_distance(const struct fixture *f)
{
	if (!f->is_cuda)
		return DISTANCE;
	return f->config.latent.rank && f->config.kv_dtype == DTYPE_E4M3 ? DISTANCE_CUDA_CODES : DISTANCE_CUDA;
}

static void verify_token(struct head *h, uint32_t position, const float *out)
{
	const struct fixture *f = h->f;
	double magnitude = attend(h, position), error = 0, norm = 0;

	for (uint32_t i = 0; i < h->value_dim; i++) {
		double want = h->expected[i], off = (double)out[i] - want;

		error += off * off;
		norm += want * want;
		if (f->sharp != 0 || fabs(off) <= tolerance(f, want, magnitude))
			continue;
		fail_msg("head_dim %u heads %u/%u page %u window %u mask %u, %u of %u tokens, "
			 "position %u head %u element %u: %.9g, expected %.9g",
			f->config.head_dim, f->config.n_heads, f->config.n_kv_heads,
			f->config.page_tokens, f->windows[FIXTURE_LAYER], h->row->mask.kind,
			h->row->n_query, h->row->seq_len, position, h->index, i, (double)out[i],
			want);
	}
	if (f->sharp != 0 && !(sqrt(error / norm) <= most_distance(f)))
		fail_msg("%u tokens of %u, position %u, head %u: %g off", h->row->n_query,
			h->row->seq_len, position, h->index, sqrt(error / norm));
}

/* Of a long row the ends, tokens beside edges of blocks and chunks, and some between. */
static bool is_sampled(const struct fixture *f, const struct row *row, uint32_t j)
{
	uint32_t position = row->seq_len - row->n_query + j;

	if (!f->samples || row->n_query <= 3 * f->samples)
		return true;
	return j < 2 || j + 2 >= row->n_query || j % (row->n_query / f->samples + 1) == 0 ||
	       (j + 1) % 512 < 2 || (position + 1) % 1024 < 2;
}

static void verify_row(const struct fixture *f, const struct row *row, uint32_t first)
{
	/* tokens ahead of their sequence have no position, and see nothing */
	uint32_t ahead = row->n_query > row->seq_len ? row->n_query - row->seq_len : 0;

	if (!row->seq_len)
		ahead = row->n_query;
	fixture_assert_zero(f, first, first + ahead);
	fixture_assert_numbers(f, first + ahead, first + row->n_query);
	for (uint32_t i = 0; i < f->config.n_heads && ahead < row->n_query; i++) {
		struct head h;

		head_init(&h, f, row, i);
		for (uint32_t j = ahead; j < row->n_query; j++)
			if (is_sampled(f, row, j))
				verify_token(&h, row->seq_len - row->n_query + j,
					f->out + (size_t)(first + j) * f->width + i * h.value_dim);
		head_deinit(&h);
	}
}

void fixture_verify(const struct fixture *f)
{
	uint32_t token = 0;

	for (uint32_t r = 0; r < f->batch.n_rows; r++) {
		verify_row(f, &f->rows[r], token);
		token += f->rows[r].n_query;
	}
	fixture_assert_zero(f, token, f->batch.padded_tokens);
	for (size_t i = (size_t)f->batch.padded_tokens * f->width;
		i < (size_t)FIXTURE_TOKENS * f->width; i++)
		assert_true(isnan(f->out[i]));
}

/* ---- batches that are drawn ---- */

static uint32_t draw_length(uint64_t *dice, const struct shape *shape)
{
	uint32_t unit = random_below(dice, 2) ? shape->page_tokens : 32u << random_below(dice, 2);
	uint32_t length = (1 + random_below(dice, 4)) * unit + random_below(dice, 3) - 1;

	switch (random_below(dice, 4)) {
	case 0:
		length = shape->max_seq_len;
		break;
	case 1:
		length = 1 + random_below(dice, shape->max_seq_len);
	}
	return length < 1 ? 1 : length < shape->max_seq_len ? length : shape->max_seq_len;
}

uint32_t fixture_draw_rows(uint64_t *dice, const struct shape *shape, uint32_t n_rows,
	uint32_t most, struct row *rows)
{
	uint32_t n_tokens = 0;

	for (uint32_t r = 0; r < n_rows; r++) {
		uint32_t seq_len = random_below(dice, 4) ? draw_length(dice, shape) : 0;
		uint32_t n = random_below(dice, 2) ? 1 : random_below(dice, most + 1);

		if (seq_len && n > seq_len)
			n = seq_len;
		if (n_tokens + n > FIXTURE_TOKENS - 20)
			n = 0;
		n_tokens += n;
		rows[r] = (struct row){
			.seed = 1 + random_below(dice, 1000), .seq_len = seq_len, .n_query = n };
	}
	return n_tokens;
}

void fixture_check_drawn(struct device *device, const char *backend, uint64_t *dice, int n_shapes,
	struct shape (*draw)(uint64_t *dice), uint32_t most_rows, uint32_t most)
{
	for (int i = 0; i < n_shapes; i++) {
		struct shape shape = draw(dice);
		struct fixture f;

		fixture_init(&f, device, backend, &shape);
		for (int batch = 0; batch < 2; batch++) {
			struct row rows[FIXTURE_ROWS];
			uint32_t n_rows = random_below(dice, most_rows + 1);
			uint32_t n_tokens = fixture_draw_rows(dice, &shape, n_rows, most, rows);

			fixture_check(&f, rows, n_rows, n_rows + random_below(dice, 3),
				n_tokens + random_below(dice, 20));
		}
		fixture_deinit(&f);
	}
}
