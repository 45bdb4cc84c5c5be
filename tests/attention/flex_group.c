/* SPDX-License-Identifier: MIT */
#include "tests/attention/flex_group.h"

struct device *flex_device;

int flex_device_open(void **state)
{
	flex_device = test_device_open(0);
	return 0;
}

int flex_device_free(void **state)
{
	flex_device->ops->free(flex_device);
	return 0;
}

const struct shape flex_shapes[N_FLEX_SHAPES] = {
	{ .n_heads = 4, .n_kv_heads = 2, .head_dim = 16, .page_tokens = 4,
		.max_seq_len = LENGTH },
	{ .n_heads = 8, .n_kv_heads = 2, .head_dim = 64, .page_tokens = 16,
		.max_seq_len = LENGTH },
	{ .n_heads = 2, .n_kv_heads = 2, .head_dim = 128, .page_tokens = 64,
		.max_seq_len = LENGTH },
	{ .n_heads = 6, .n_kv_heads = 2, .head_dim = 96, .page_tokens = 32,
		.max_seq_len = LENGTH },
	{ .n_heads = 4, .n_kv_heads = 1, .head_dim = 256, .page_tokens = 128,
		.max_seq_len = LENGTH },
	{ .n_heads = 7, .n_kv_heads = 1, .head_dim = 128, .page_tokens = 16,
		.max_seq_len = LENGTH },
	{ .n_heads = 32, .n_kv_heads = 1, .head_dim = 64, .page_tokens = 256,
		.max_seq_len = LENGTH },
	{ .n_heads = 3, .n_kv_heads = 1, .head_dim = 42, .page_tokens = 24,
		.max_seq_len = LENGTH },
};

const struct flex_kernels *flex_kernels_of(const struct fixture *f)
{
	return flex_kernels_for(f->is_cuda ? "cuda" : "cpu");
}

struct flex_inputs flex_inputs_in(const struct fixture *f)
{
	return flex_inputs_of(flex_kernels_of(f), &f->config, &f->at_device);
}

/* ---- drawing ---- */

uint32_t flex_draw_length(uint64_t *dice, uint32_t page_tokens)
{
	uint32_t unit = random_below(dice, 2) ? 64u >> random_below(dice, 2) : page_tokens;
	uint32_t edge = (1 + random_below(dice, 4)) * unit, length = 1 + random_below(dice, LENGTH);

	if (random_below(dice, 3) && edge + 1 <= LENGTH)
		length = edge + random_below(dice, 3) - 1;
	return length ? length : 1;
}

static struct slot_mask draw_mask(uint64_t *dice, uint32_t seq_len)
{
	struct slot_mask mask = {
		.kind = random_below(dice, MASK_KINDS),
		.window = 1 + random_below(dice, 140),
		.begin = random_below(dice, seq_len + 1),
	};

	mask.end = mask.begin + random_below(dice, seq_len + 1 - mask.begin);
	if (mask.kind == MASK_WINDOW)
		mask.end = random_below(dice, 80);
	return mask;
}

/* Documents and trees; the others don't look. */
static void draw_words(uint64_t *dice, const struct slot_mask *mask, uint64_t *words)
{
	uint64_t start = 0;

	for (uint32_t p = 0; p < LENGTH; p++) {
		if (random_below(dice, 40) == 0)
			start = p;
		words[p] = start;
		if (mask->kind == MASK_TREE)
			words[p] = (uint64_t)random_below(dice, UINT32_MAX) << 32 ^
				   random_below(dice, UINT32_MAX);
	}
}

/* One token, few, or a chunk of a prompt. */
static uint32_t draw_query(uint64_t *dice, uint32_t seq_len)
{
	static const uint32_t most[] = { 1, 16, 39, 100 };
	uint32_t n = 1 + random_below(dice, most[random_below(dice, 4)]);

	return n < seq_len ? n : seq_len;
}

uint32_t flex_draw_rows(uint64_t *dice, uint32_t page_tokens, struct row *rows,
	uint64_t (*words)[LENGTH])
{
	uint32_t n_rows = 1 + random_below(dice, FIXTURE_ROWS / 2);

	for (uint32_t r = 0; r < n_rows; r++) {
		uint32_t seq_len = flex_draw_length(dice, page_tokens);

		rows[r] = (struct row){
			.seed = random_below(dice, 1000),
			.seq_len = seq_len,
			.n_query = draw_query(dice, seq_len),
			.mask = draw_mask(dice, seq_len),
			.words = words[r],
		};
		draw_words(dice, &rows[r].mask, words[r]);
	}
	return n_rows;
}
