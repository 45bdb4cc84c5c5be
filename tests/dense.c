/* SPDX-License-Identifier: MIT */
#include "tests/dense.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

enum { HIDDEN = 160, HEADS = 4, KV_HEADS = 2, DIM = 64, INNER = 448 };

#define EPS 1e-5
#define THETA 10000.0

/* ---- the file ---- */

struct file {
	uint8_t *bytes;
	uint64_t header_bytes;
	json_t *header;
};

static void file_open(struct file *file)
{
	const char *source = getenv("MIMEO_SOURCE");
	char path[512];
	FILE *stream;
	long size;

	snprintf(path, sizeof(path), "%s/examples/models/tinycalc/model.safetensors",
		source ? source : ".");
	stream = fopen(path, "rb");
	assert_non_null(stream);
	assert_int_equal(fseek(stream, 0, SEEK_END), 0);
	size = ftell(stream);
	assert_true(size > 8);
	rewind(stream);
	file->bytes = malloc((size_t)size);
	assert_non_null(file->bytes);
	assert_int_equal(fread(file->bytes, 1, (size_t)size, stream), size);
	fclose(stream);
	memcpy(&file->header_bytes, file->bytes, sizeof(file->header_bytes));
	file->header = json_loadb((char *)file->bytes + 8, file->header_bytes, 0, NULL);
	assert_non_null(file->header);
}

/* n elements of bf16, as float32. layer < 0: none in the name. */
static float *tensor(const struct file *file, int layer, const char *name, size_t n)
{
	float *ret = malloc(n * sizeof(*ret));
	char full[128];
	json_t *entry;
	const uint8_t *from;

	if (layer < 0)
		snprintf(full, sizeof(full), "%s.weight", name);
	else
		snprintf(full, sizeof(full), "model.layers.%d.%s.weight", layer, name);
	entry = json_object_get(file->header, full);
	assert_non_null(ret);
	assert_non_null(entry);
	assert_string_equal(json_string_value(json_object_get(entry, "dtype")), "BF16");
	entry = json_object_get(entry, "data_offsets");
	from = file->bytes + 8 + file->header_bytes +
		json_integer_value(json_array_get(entry, 0));
	assert_int_equal(json_integer_value(json_array_get(entry, 1)) -
		json_integer_value(json_array_get(entry, 0)), n * 2);
	for (size_t i = 0; i < n; i++) {
		uint32_t bits = (uint32_t)from[2 * i] << 16 | (uint32_t)from[2 * i + 1] << 24;

		memcpy(&ret[i], &bits, sizeof(bits));
	}
	return ret;
}

void dense_open(struct dense *dense)
{
	struct file file;

	file_open(&file);
	dense->embedding = tensor(&file, -1, "model.embed_tokens", DENSE_VOCAB * HIDDEN);
	dense->norm = tensor(&file, -1, "model.norm", HIDDEN);
	dense->head = tensor(&file, -1, "lm_head", DENSE_VOCAB * HIDDEN);
	for (int i = 0; i < DENSE_LAYERS; i++)
		dense->layers[i] = (struct dense_layer){
			.input_norm = tensor(&file, i, "input_layernorm", HIDDEN),
			.post_norm = tensor(&file, i, "post_attention_layernorm", HIDDEN),
			.q = tensor(&file, i, "self_attn.q_proj", HEADS * DIM * HIDDEN),
			.k = tensor(&file, i, "self_attn.k_proj", KV_HEADS * DIM * HIDDEN),
			.v = tensor(&file, i, "self_attn.v_proj", KV_HEADS * DIM * HIDDEN),
			.o = tensor(&file, i, "self_attn.o_proj", HIDDEN * HEADS * DIM),
			.gate = tensor(&file, i, "mlp.gate_proj", INNER * HIDDEN),
			.up = tensor(&file, i, "mlp.up_proj", INNER * HIDDEN),
			.down = tensor(&file, i, "mlp.down_proj", HIDDEN * INNER),
		};
	json_decref(file.header);
	free(file.bytes);
}

void dense_close(struct dense *dense)
{
	for (int i = 0; i < DENSE_LAYERS; i++) {
		struct dense_layer *l = &dense->layers[i];
		float *all[] = {l->input_norm, l->post_norm, l->q, l->k, l->v, l->o, l->gate, l->up,
			l->down};

		for (size_t j = 0; j < sizeof(all) / sizeof(all[0]); j++)
			free(all[j]);
	}
	free(dense->embedding);
	free(dense->norm);
	free(dense->head);
}

/* ---- the model ---- */

/* y = W x, W [rows, cols] */
static void multiply(const float *w, const double *x, uint32_t rows, uint32_t cols, double *y)
{
	for (uint32_t r = 0; r < rows; r++) {
		y[r] = 0;
		for (uint32_t c = 0; c < cols; c++)
			y[r] += (double)w[(size_t)r * cols + c] * x[c];
	}
}

static void normalise(const float *weight, const double *x, double *y)
{
	double sum = 0;

	for (int i = 0; i < HIDDEN; i++)
		sum += x[i] * x[i];
	for (int i = 0; i < HIDDEN; i++)
		y[i] = x[i] / sqrt(sum / HIDDEN + EPS) * (double)weight[i];
}

static void rotate(double *heads, uint32_t n_heads, uint32_t position)
{
	for (uint32_t h = 0; h < n_heads; h++, heads += DIM) {
		for (int i = 0; i < DIM / 2; i++) {
			double angle = position * pow(THETA, -2.0 * i / DIM);
			double a = heads[i], b = heads[i + DIM / 2];

			heads[i] = a * cos(angle) - b * sin(angle);
			heads[i + DIM / 2] = b * cos(angle) + a * sin(angle);
		}
	}
}

struct state {
	double x[DENSE_TOKENS_MAX][HIDDEN];
	double q[DENSE_TOKENS_MAX][HEADS * DIM];
	double k[DENSE_TOKENS_MAX][KV_HEADS * DIM], v[DENSE_TOKENS_MAX][KV_HEADS * DIM];
};

static void attend(const struct state *s, uint32_t n, uint32_t q, dense_sees *sees,
	const void *mask, double out[HEADS * DIM])
{
	memset(out, 0, HEADS * DIM * sizeof(*out));
	for (int h = 0; h < HEADS; h++) {
		int kv = h / (HEADS / KV_HEADS) * DIM;
		double total = 0;

		for (uint32_t k = 0; k < n; k++) {
			double score = 0, weight;

			if (!sees(mask, q, k))
				continue;
			for (int d = 0; d < DIM; d++)
				score += s->q[q][h * DIM + d] * s->k[k][kv + d];
			weight = exp(score / sqrt(DIM));
			total += weight;
			for (int d = 0; d < DIM; d++)
				out[h * DIM + d] += weight * s->v[k][kv + d];
		}
		for (int d = 0; d < DIM; d++)
			out[h * DIM + d] /= total;
	}
}

static void mlp(const struct dense_layer *l, double x[HIDDEN])
{
	double normed[HIDDEN], gate[INNER], up[INNER], down[HIDDEN];

	normalise(l->post_norm, x, normed);
	multiply(l->gate, normed, INNER, HIDDEN, gate);
	multiply(l->up, normed, INNER, HIDDEN, up);
	for (int i = 0; i < INNER; i++)
		gate[i] *= up[i] / (1 + exp(-gate[i]));
	multiply(l->down, gate, HIDDEN, INNER, down);
	for (int i = 0; i < HIDDEN; i++)
		x[i] += down[i];
}

static void run_layer(const struct dense_layer *l, struct state *s, const uint32_t *positions,
	uint32_t n, dense_sees *sees, const void *mask)
{
	double normed[HIDDEN], seen[HEADS * DIM], projected[HIDDEN];

	for (uint32_t t = 0; t < n; t++) {
		normalise(l->input_norm, s->x[t], normed);
		multiply(l->q, normed, HEADS * DIM, HIDDEN, s->q[t]);
		multiply(l->k, normed, KV_HEADS * DIM, HIDDEN, s->k[t]);
		multiply(l->v, normed, KV_HEADS * DIM, HIDDEN, s->v[t]);
		rotate(s->q[t], HEADS, positions ? positions[t] : t);
		rotate(s->k[t], KV_HEADS, positions ? positions[t] : t);
	}
	for (uint32_t t = 0; t < n; t++) {
		attend(s, n, t, sees, mask, seen);
		multiply(l->o, seen, HIDDEN, HEADS * DIM, projected);
		for (int i = 0; i < HIDDEN; i++)
			s->x[t][i] += projected[i];
	}
	for (uint32_t t = 0; t < n; t++)
		mlp(l, s->x[t]);
}

void dense_logits(const struct dense *dense, const int32_t *tokens, const uint32_t *positions,
	uint32_t n, dense_sees *sees, const void *mask, double ret[static DENSE_VOCAB])
{
	struct state *s = malloc(sizeof(*s));
	double normed[HIDDEN];

	assert_non_null(s);
	assert_in_range(n, 1, DENSE_TOKENS_MAX);
	for (uint32_t t = 0; t < n; t++)
		for (int i = 0; i < HIDDEN; i++)
			s->x[t][i] = (double)dense->embedding[tokens[t] * HIDDEN + i];
	for (int i = 0; i < DENSE_LAYERS; i++)
		run_layer(&dense->layers[i], s, positions, n, sees, mask);
	normalise(dense->norm, s->x[n - 1], normed);
	multiply(dense->head, normed, DENSE_VOCAB, HIDDEN, ret);
	free(s);
}

void dense_check(const double expected[static DENSE_VOCAB], const float *logits, double tolerance)
{
	double largest = 0, worst = 0;

	for (int i = 0; i < DENSE_VOCAB; i++) {
		largest = fmax(largest, fabs(expected[i]));
		worst = fmax(worst, fabs((double)logits[i] - expected[i]));
	}
	if (!(worst <= tolerance * largest))
		fail_msg("logits differ by %g of %g", worst, largest);
}

int32_t dense_next(const double logits[static DENSE_VOCAB], double margin)
{
	int32_t best = 0, second = -1;

	for (int32_t i = 1; i < DENSE_VOCAB; i++) {
		if (logits[i] > logits[best]) {
			second = best;
			best = i;
		} else if (second < 0 || logits[i] > logits[second]) {
			second = i;
		}
	}
	return logits[best] - logits[second] > margin ? best : -1;
}
