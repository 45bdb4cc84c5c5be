/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/attention/twin.h"

/* Outputs are rounded to 8 bits, and so are the softmax's weights. */
#define ABSOLUTE 6e-3
#define RELATIVE 6e-3

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

/* ---- making ---- */

static void *device_alloc(struct twin *t, size_t bytes)
{
	void *memory = NULL;

	assert_int_equal(t->device->ops->mem_alloc(t->device, bytes, &memory), 0);
	return memory;
}

void twin_init(struct twin *t, struct device *device, const struct shape *shape)
{
	size_t out_elements, q_elements, most;

	*t = (struct twin){ .device = device };
	world_init(&t->w, "paged", shape);
	t->config = t->w.config;
	t->config.activation_dtype = t->config.kv_dtype = DTYPE_BF16;
	t->inputs = t->w.inputs;
	t->inputs.query_start = device_alloc(t, (WORLD_ROWS + 1) * sizeof(int32_t));
	t->inputs.seq_lens = device_alloc(t, WORLD_ROWS * sizeof(int32_t));
	t->inputs.block_table =
		device_alloc(t, (size_t)WORLD_ROWS * t->config.max_pages * sizeof(int32_t));
	t->kv_elements = (size_t)t->w.n_pages * 2 * shape->page_tokens * shape->n_kv_heads *
			 shape->head_dim;
	q_elements = (size_t)WORLD_TOKENS * t->w.q_stride;
	out_elements = (size_t)WORLD_TOKENS * t->w.width;
	t->kv = device_alloc(t, t->kv_elements * 2);
	t->q = device_alloc(t, q_elements * 2);
	t->out = device_alloc(t, out_elements * 2);
	most = t->kv_elements > q_elements ? t->kv_elements : q_elements;
	t->staging = malloc(most * 2);
	t->got = malloc(out_elements * 2);
	assert_non_null(t->staging);
	assert_non_null(t->got);
	assert_int_equal(device->ops->stream_new(device, &t->stream), 0);
	assert_int_equal(
		attention_paged.manager_new(device, &t->config, &t->inputs, &t->manager), 0);
	assert_int_equal(attention_paged.metadata_new(t->manager, &t->metadata), 0);
}

void twin_deinit(struct twin *t)
{
	const struct device_ops *ops = t->device->ops;

	attention_paged.metadata_free(t->metadata);
	attention_paged.manager_free(t->manager);
	ops->stream_free(t->stream);
	free(t->got);
	free(t->staging);
	ops->mem_free(t->device, t->out);
	ops->mem_free(t->device, t->q);
	ops->mem_free(t->device, t->kv);
	ops->mem_free(t->device, t->inputs.block_table);
	ops->mem_free(t->device, t->inputs.seq_lens);
	ops->mem_free(t->device, t->inputs.query_start);
	world_deinit(&t->w);
}

/* ---- placing ---- */

static void upload(struct twin *t, void *dst, const void *src, size_t bytes)
{
	assert_int_equal(t->device->ops->copy(t->device, dst, src, bytes), 0);
}

/* Rounded in the world, too. */
static void upload_rounded(struct twin *t, void *dst, float *src, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		t->staging[i] = to_bf16(src[i]);
		src[i] = from_bf16(t->staging[i]);
	}
	upload(t, dst, t->staging, n * 2);
}

void twin_upload(struct twin *t)
{
	const struct step_inputs *from = &t->w.inputs;

	upload_rounded(t, t->kv, t->w.kv, t->kv_elements);
	upload_rounded(t, t->q, t->w.q, (size_t)WORLD_TOKENS * t->w.q_stride);
	upload(t, t->inputs.query_start, from->query_start, (WORLD_ROWS + 1) * sizeof(int32_t));
	upload(t, t->inputs.seq_lens, from->seq_lens, WORLD_ROWS * sizeof(int32_t));
	upload(t, t->inputs.block_table, from->block_table,
		(size_t)WORLD_ROWS * t->config.max_pages * sizeof(int32_t));
}

void twin_place(struct twin *t, const struct row *rows, uint32_t n_rows, uint32_t padded_rows,
	uint32_t padded_tokens)
{
	world_place(&t->w, rows, n_rows, padded_rows, padded_tokens);
	twin_upload(t);
}

/* ---- running ---- */

int twin_build(struct twin *t, enum attention_phase phase)
{
	t->w.batch.phase = phase;
	return attention_paged.build(t->metadata, &t->w.batch, t->stream);
}

int twin_enqueue(struct twin *t, uint32_t layer)
{
	return attention_paged.run(t->metadata, t->stream, &(struct attention_args){
		.layer = layer,
		.q = t->q,
		.q_stride = t->w.q_stride,
		.kv = t->kv,
		.out = t->out,
	});
}

static size_t out_bytes(const struct twin *t)
{
	return (size_t)WORLD_TOKENS * t->w.width * 2;
}

void twin_poison_out(struct twin *t)
{
	assert_int_equal(t->device->ops->fill_async(t->stream, t->out, 0xff, out_bytes(t)), 0);
}

void twin_fetch(struct twin *t)
{
	assert_int_equal(t->device->ops->stream_sync(t->stream), 0);
	assert_int_equal(t->device->ops->copy(t->device, t->got, t->out, out_bytes(t)), 0);
}

void twin_run(struct twin *t)
{
	twin_poison_out(t);
	assert_int_equal(twin_build(t, ATTENTION_EAGER), 0);
	assert_int_equal(twin_enqueue(t, 1), 0);
	twin_fetch(t);
}

/* ---- judging ---- */

void twin_verify(struct twin *t)
{
	const struct world *w = &t->w;
	const struct attention_config *c = &w->config;

	world_run(&t->w);
	for (uint32_t i = 0; i < WORLD_TOKENS; i++)
		for (uint32_t e = 0; e < w->width; e++) {
			uint16_t bits = t->got[(size_t)i * w->width + e];
			double want = (double)w->out[(size_t)i * w->width + e];
			double got = (double)from_bf16(bits);

			if (i >= w->batch.padded_tokens ? bits == 0xffff
				: i >= w->batch.n_tokens ? bits == 0
				: fabs(got - want) <= ABSOLUTE + RELATIVE * fabs(want))
				continue;
			fail_msg("head_dim %u heads %u/%u page %u window %u, token %u of %u(%u) "
				 "head %u element %u: %g, expected %g",
				c->head_dim, c->n_heads, c->n_kv_heads, c->page_tokens,
				w->windows[1], i, w->batch.n_tokens, w->batch.padded_tokens,
				e / c->head_dim, e % c->head_dim, got, want);
		}
}
