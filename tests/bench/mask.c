/* SPDX-License-Identifier: MIT */
#include "tests/bench/mask.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "attention/flex/mask.h"

static const struct {
	const char *name;
	enum mask_kind kind;
	uint32_t most; /* tokens behind the colon; 0: there is no number */
} names[] = {
	{"causal", MASK_CAUSAL, 0},
	{"window", MASK_WINDOW, 1u << 20},
	{"prefix", MASK_PREFIX, 1u << 20},
	{"documents", MASK_DOCUMENTS, 1u << 20},
	{"tree", MASK_TREE, MASK_TREE_MAX},
};
#define N_NAMES (sizeof(names) / sizeof(names[0]))

static bool parse_tokens(const char *text, uint32_t most, uint32_t *ret)
{
	char *end;

	if (most == 0)
		return *text == '\0';
	if (text[0] != ':' || text[1] < '0' || text[1] > '9')
		return false;
	errno = 0;
	unsigned long value = strtoul(text + 1, &end, 10);
	*ret = (uint32_t)value;
	return errno == 0 && *end == '\0' && value >= 1 && value <= most;
}

bool bench_mask_parse(const char *text, struct bench_mask *ret)
{
	*ret = (struct bench_mask){.kind = MASK_CAUSAL};
	if (!text)
		return true;
	for (size_t i = 0; i < N_NAMES; i++) {
		size_t length = strlen(names[i].name);

		if (strncmp(text, names[i].name, length) != 0)
			continue;
		ret->kind = names[i].kind;
		return parse_tokens(text + length, names[i].most, &ret->n);
	}
	return false;
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
