/* SPDX-License-Identifier: MIT */
#include "tests/bench/scene.h"

#include <stdio.h>
#include <string.h>

#include "attention/flex/mask.h"

bool bench_mask_parse(const char *text, struct bench_mask *ret)
{
	static const char *const names[] = {[MASK_WINDOW] = "window", [MASK_PREFIX] = "prefix",
		[MASK_DOCUMENTS] = "documents", [MASK_TREE] = "tree"};
	char name[16];
	int end = 0;

	*ret = (struct bench_mask){.kind = MASK_CAUSAL};
	if (!text || strcmp(text, "causal") == 0)
		return true;
	if (sscanf(text, "%15[a-z]:%7u%n", name, &ret->n, &end) != 2 || text[end] || !ret->n)
		return false;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (names[i] && strcmp(names[i], name) == 0)
			ret->kind = (enum mask_kind)i;
	}
	return ret->kind != MASK_CAUSAL && (ret->kind != MASK_TREE || ret->n <= MASK_TREE_MAX);
}

uint32_t bench_mask_query(const struct bench_mask *mask)
{
	return mask->kind == MASK_TREE ? mask->n : 1;
}

struct slot_mask bench_mask_program(const struct bench_mask *mask, uint32_t context)
{
	struct slot_mask program = {.kind = mask->kind};

	if (mask->kind == MASK_WINDOW)
		program.window = mask->n;
	if (mask->kind == MASK_PREFIX)
		program.end = mask_min(mask->n, context);
	if (mask->kind == MASK_TREE)
		program.begin = context > mask->n ? context - mask->n : 0;
	return program;
}

/* Documents of equal length; a binary tree, whose token i has the parent (i - 1) / 2. */
uint64_t bench_mask_word(const struct bench_mask *mask, uint32_t position, uint32_t context)
{
	uint32_t begin = bench_mask_program(mask, context).begin;
	uint64_t word = 0;

	if (mask->kind == MASK_DOCUMENTS)
		return position / mask->n * mask->n;
	if (mask->kind != MASK_TREE || position < begin)
		return 0;
	for (uint32_t i = position - begin; i; i = (i - 1) / 2)
		word |= (uint64_t)1 << i;
	return word | 1;
}

struct bench_mask_cost bench_mask_cost(
	const struct bench_mask *mask, uint32_t query, uint32_t context)
{
	struct slot_mask program = bench_mask_program(mask, context);
	struct bench_mask_cost cost = {0};

	for (uint32_t from = 0; from < context; from += 64) {
		uint64_t any = 0;

		for (uint32_t p = context - query; p < context; p++) {
			struct mask_view view = mask_view_of(
				&program, bench_mask_word(mask, p, context), p, context, 0);
			uint64_t bits = mask_view_bits(&view, from);

			any |= bits;
			cost.pairs += __builtin_popcountll(bits);
		}
		cost.keys += (uint64_t)__builtin_popcountll(any);
	}
	return cost;
}
