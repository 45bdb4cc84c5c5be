/* SPDX-License-Identifier: MIT */

/*
 * Block masks on the host. Each token is computed alone, over the key blocks of its plan's list in
 * order. If a block is not seen as a whole, the keys that the token sees are copied first, so that the
 * softmax has the same keys in the same tiles as with an explicit mask. Under a causal mask the result is the
 * paged backend's to the last bit, whatever the rest of the batch is.
 */

#include <assert.h>
#include <string.h>

#include "attention/flex/flex.h"
#include "attention/flex/mask.h"
#include "attention/gqa_cpu.h"
#include "kernels/cpu/cpu.h"

_Static_assert(sizeof(struct flex_args) <= CPU_ARGS_MAX, "flex_args outgrows a queue node");
_Static_assert(sizeof(struct flex_plan_args) <= CPU_ARGS_MAX, "flex_plan_args does");

#define FLEX_QUERIES 16u
#define FLEX_KEYS GQA_TILE /* a block of keys is a tile of the softmax */

static const struct slot_mask *flex_cpu_mask(const struct flex_inputs *in, int32_t row)
{
	static const struct slot_mask causal = { .kind = MASK_CAUSAL };
	int32_t slot;

	if (!in->slot_mask || row < 0)
		return &causal;
	slot = in->row_slot[row];
	return slot >= 0 && (uint32_t)slot < in->max_slots ? &in->slot_mask[slot] : &causal;
}

/* The view of token i of the block; its position must not be negative. */
static struct mask_view flex_cpu_view(
	const struct flex_inputs *in, const struct flex_block *block, int32_t i, uint32_t window)
{
	uint64_t word = in->slot_mask ? in->mask_words[block->first + i] : 0;

	return mask_view_of(flex_cpu_mask(in, block->row), word, (uint32_t)(block->position + i),
		(uint32_t)block->seq_len, window);
}

/* ---- the plan ---- */

struct flex_cpu_planner {
	const struct flex_plan_args *args;
	uint32_t n_blocks; /* written so far */
};

static int32_t *flex_cpu_list(
	const struct flex_inputs *in, const struct flex_plan *plan, uint32_t block)
{
	assert(block < in->max_blocks);
	return plan->indices + (size_t)block * ((size_t)in->max_keys + 1);
}

/* Write the list of the key blocks that at least one of the views sees. */
static void flex_cpu_write_list(const struct flex_plan_args *a, uint32_t block, uint32_t seq_len,
	const struct mask_union *views)
{
	int32_t *list = flex_cpu_list(&a->in, &a->plan, block);
	uint32_t n = 0;

	for (uint32_t k = 0; k < a->in.max_keys && k * FLEX_KEYS < seq_len; k++) {
		uint32_t from = k * FLEX_KEYS, end = mask_min(from + FLEX_KEYS, seq_len);
		enum mask_block seen = mask_union_block(views, from, end);

		if (seen != MASK_BLOCK_NONE)
			list[n++] = FLEX_ENTRY(k, seen == MASK_BLOCK_ALL);
	}
	assert(n <= a->in.max_keys);
	list[n] = -1;
	a->plan.counts[block] = (int32_t)n;
}

static void flex_cpu_write_block(struct flex_cpu_planner *p, const struct flex_block *block)
{
	const struct flex_plan_args *a = p->args;
	struct mask_union views = mask_union_none();
	uint32_t seq_len = 0; /* 0: no token of the block sees anything */

	assert(block->n_tokens >= 0 && (uint32_t)block->n_tokens <= FLEX_QUERIES);
	if (p->n_blocks == a->in.max_blocks)
		return;
	for (int32_t i = 0; i < block->n_tokens; i++) {
		struct mask_view view;
		struct mask_union one;

		if (block->position + i < 0)
			continue;
		view = flex_cpu_view(&a->in, block, i, a->window);
		one = mask_union_of(&view);
		mask_union_add(&views, &one);
		seq_len = (uint32_t)block->seq_len;
	}
	a->plan.blocks[p->n_blocks] = *block;
	flex_cpu_write_list(a, p->n_blocks++, seq_len, &views);
}

/* Divide the tokens [begin, end) of a row, or of the padding, into blocks. */
static void flex_cpu_write_blocks(
	struct flex_cpu_planner *p, int32_t row, uint32_t begin, uint32_t end, uint32_t seq_len)
{
	for (uint32_t t = begin; t < end; t += FLEX_QUERIES)
		flex_cpu_write_block(p, &(struct flex_block){
			.row = row,
			.first = (int32_t)t,
			.n_tokens = (int32_t)mask_min(end - t, FLEX_QUERIES),
			.position = (int32_t)seq_len - (int32_t)(end - t),
			.seq_len = (int32_t)seq_len,
			.history = (int32_t)seq_len - (int32_t)(end - begin),
		});
}

static void flex_cpu_make_plan(const void *args, void *workspace)
{
	const struct flex_plan_args *a = args;
	struct flex_cpu_planner p = { .args = a };
	uint32_t begin = 0;

	for (uint32_t r = 0; r < a->n_rows; r++) {
		uint32_t end = attention_clamp(a->in.query_start[r + 1], begin, a->n_tokens);

		flex_cpu_write_blocks(&p, (int32_t)r, begin, end,
			attention_clamp(a->in.seq_lens[r], 0, a->in.capacity));
		begin = end;
	}
	flex_cpu_write_blocks(&p, -1, begin, a->n_tokens, 0);
	while (p.n_blocks < a->in.max_blocks)
		flex_cpu_write_block(&p, &(struct flex_block){ .row = -1 });
}

/* ---- a layer ---- */

struct flex_cpu_layer {
	const struct flex_args *args;
	struct gqa_cache cache;
	struct running_softmax *running; /* [n_heads] */
};

/* Keep only the keys that the view sees, of the tile that begins at position `from`. */
static void flex_cpu_pick(struct gqa_tile *tile, const struct mask_view *view, uint32_t from)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < tile->n; i++)
		if (mask_sees(view, from + i))
			tile->keys[n++] = tile->keys[i];
	tile->n = n;
}

static void flex_cpu_token(const struct flex_cpu_layer *l, const struct flex_block *block,
	const int32_t *list, int32_t i, float *out)
{
	const struct flex_args *a = l->args;
	const struct mask_view view = flex_cpu_view(&a->in, block, i, a->window);
	const int32_t *pages = a->block_table + (size_t)block->row * a->max_pages;
	const float *q = (const float *)a->q + (size_t)(block->first + i) * a->q_stride;
	struct gqa_tile tile;

	gqa_begin(l->running, a->n_heads, out, a->head_dim);
	for (; *list >= 0; list++) {
		uint32_t from = FLEX_ENTRY_BLOCK(*list) * FLEX_KEYS;

		gqa_tile_load(&tile, &l->cache, pages, from,
			mask_min(from + FLEX_KEYS, (uint32_t)block->seq_len));
		if (!FLEX_ENTRY_WHOLE(*list))
			flex_cpu_pick(&tile, &view, from);
		if (tile.n)
			gqa_tile_attend(&tile, &l->cache, q, a->n_heads, l->running, out);
	}
	gqa_end(l->running, a->n_heads, out, a->head_dim);
}

static void flex_cpu_block(const struct flex_cpu_layer *l, uint32_t b)
{
	const struct flex_args *a = l->args;
	const struct flex_block *block = &a->plan.blocks[b];
	const int32_t *list = flex_cpu_list(&a->in, &a->plan, b);
	size_t width = (size_t)a->n_heads * a->head_dim;

	for (int32_t i = 0; i < block->n_tokens; i++) {
		float *out = (float *)a->out + (size_t)(block->first + i) * width;

		if (block->position + i < 0)
			memset(out, 0, width * sizeof(*out));
		else
			flex_cpu_token(l, block, list, i, out);
	}
}

static void flex_cpu_attend(const void *args, void *workspace)
{
	const struct flex_args *a = args;
	const struct flex_cpu_layer layer = {
		.args = a,
		.cache = {
			.kv = a->kv,
			.page_tokens = a->page_tokens,
			.n_kv_heads = a->n_kv_heads,
			.head_dim = a->head_dim,
			.n_pages = a->n_pages,
			.scale = a->scale,
			.soft_cap = a->soft_cap,
			.decoded = gqa_decoded(workspace, a->n_heads, a->fp8),
			.factors = a->factors,
		},
		.running = workspace,
	};

	for (uint32_t b = 0; b < a->n_blocks; b++)
		flex_cpu_block(&layer, b);
}

static const struct cpu_op flex_cpu_plan_op = { .name = "flex_plan", .run = flex_cpu_make_plan };
static const struct cpu_op flex_cpu_op = { .name = "flex_attention", .run = flex_cpu_attend };

static void flex_cpu_geometry(
	const struct attention_config *config, uint32_t *ret_queries, uint32_t *ret_keys)
{
	*ret_queries = FLEX_QUERIES;
	*ret_keys = FLEX_KEYS;
}

static int flex_cpu_plan(
	struct flex_state *state, struct stream *stream, const struct flex_plan_args *a)
{
	return cpu_launch(stream, &flex_cpu_plan_op, a, sizeof(*a), 0);
}

static int flex_cpu_run(struct flex_state *state, struct stream *stream, const struct flex_args *a)
{
	assert(a->n_blocks <= a->in.max_blocks);
	return cpu_launch(stream, &flex_cpu_op, a, sizeof(*a),
		gqa_workspace_bytes(a->n_heads, a->n_kv_heads, a->head_dim, a->fp8));
}

const struct flex_kernels flex_cpu_kernels = {
	.dtype = DTYPE_F32,
	.geometry = flex_cpu_geometry,
	.plan = flex_cpu_plan,
	.run = flex_cpu_run,
};
