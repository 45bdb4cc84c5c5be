/* SPDX-License-Identifier: MIT */
#include "daemon/graph/ladder.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t ladder_smaller(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static void ladder_push(struct ladder *ladder, uint32_t size)
{
	if (ladder->n < LADDER_MAX && (!ladder->n || ladder->sizes[ladder->n - 1] < size))
		ladder->sizes[ladder->n++] = size;
}

void ladder_default(struct ladder *ret, uint32_t max_batch_tokens, uint32_t max_requests, uint32_t query)
{
	uint64_t widest = (uint64_t)max_requests * query;
	uint32_t maximum = (uint32_t)(widest > LADDER_DEFAULT_MAX ? widest : LADDER_DEFAULT_MAX);
	/* A very wide maximum coarsens the upper part, so that the list stays below LADDER_MAX. */
	uint32_t step = 16;

	if (widest > max_batch_tokens || maximum > max_batch_tokens)
		maximum = max_batch_tokens;
	while ((maximum - ladder_smaller(maximum, 248)) / step > LADDER_MAX / 2)
		step *= 2;
	ret->n = 0;
	for (uint32_t size = 1; size <= 4 && size <= maximum; size *= 2)
		ladder_push(ret, size);
	for (uint32_t size = 8; size <= 248 && size <= maximum; size += 8)
		ladder_push(ret, size);
	for (uint32_t size = 256; size <= maximum; size += step)
		ladder_push(ret, size);
	ladder_push(ret, maximum);
	assert(ret->n <= LADDER_MAX && (!ret->n || ret->sizes[ret->n - 1] == maximum));
}

uint32_t ladder_wide(uint32_t tokens)
{
	return tokens < 4 ? tokens : tokens - tokens % rows_class_step(tokens);
}

static int ladder_ascending(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

int ladder_user(struct ladder *ret, const uint32_t *sizes, size_t n, uint32_t max_batch_tokens,
	uint32_t *ret_bad)
{
	uint32_t sorted[LADDER_MAX];

	if (n > LADDER_MAX)
		return -E2BIG;
	for (size_t i = 0; i < n; i++) {
		if (!sizes[i] || sizes[i] > max_batch_tokens) {
			*ret_bad = sizes[i];
			return -ERANGE;
		}
		sorted[i] = sizes[i];
	}
	qsort(sorted, n, sizeof(sorted[0]), ladder_ascending);
	ret->n = 0;
	for (size_t i = 0; i < n; i++)
		ladder_push(ret, sorted[i]);
	return 0;
}

struct descriptor descriptor_decode(uint32_t size, uint32_t query, uint32_t max_requests)
{
	uint64_t rows;

	assert(query);
	rows = ((uint64_t)size + query - 1) / query;
	if (rows > max_requests)
		rows = max_requests;
	return (struct descriptor){
		.mode = GRAPH_FULL,
		.tokens = (uint32_t)rows * query,
		.rows = (uint32_t)rows,
		.query_len = query,
	};
}

struct descriptor descriptor_mixed(enum graph_mode mode, uint32_t size, uint32_t max_requests)
{
	assert(mode == GRAPH_FULL || mode == GRAPH_PIECEWISE);
	return (struct descriptor){
		.mode = mode,
		.tokens = size,
		.rows = mode == GRAPH_FULL ? ladder_smaller(size, max_requests) : 0,
	};
}

struct descriptor descriptor_eager(uint32_t rows, uint32_t tokens)
{
	return (struct descriptor){.mode = GRAPH_NONE, .tokens = tokens, .rows = rows};
}

bool descriptor_equal(const struct descriptor *a, const struct descriptor *b)
{
	return a->mode == b->mode && a->tokens == b->tokens && a->rows == b->rows &&
		a->query_len == b->query_len;
}

void descriptor_format(const struct descriptor *d, char *buffer, size_t size)
{
	if (d->query_len)
		snprintf(buffer, size, "%s %ux%u", graph_mode_name(d->mode), d->rows, d->query_len);
	else
		snprintf(buffer, size, "%s %u", graph_mode_name(d->mode), d->tokens);
}

uint32_t ladder_decode_family(const struct ladder *ladder, uint32_t query, uint32_t max_requests,
	struct descriptor *ret)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < ladder->n; i++) {
		struct descriptor d = descriptor_decode(ladder->sizes[i], query, max_requests);

		if (!n || !descriptor_equal(&ret[n - 1], &d))
			ret[n++] = d;
	}
	return n;
}

uint32_t ladder_mixed_family(const struct ladder *ladder, enum graph_mode mode,
	uint32_t max_requests, struct descriptor *ret)
{
	for (uint32_t i = 0; i < ladder->n; i++)
		ret[i] = descriptor_mixed(mode, ladder->sizes[i], max_requests);
	return ladder->n;
}

static bool ladder_fits(const struct descriptor *d, const struct batch_shape *shape)
{
	if (d->query_len && (!batch_is_decode(shape) || d->query_len != shape->query_len))
		return false;
	return d->tokens >= shape->tokens && (!d->rows || d->rows >= shape->rows);
}

int descriptor_find(const struct descriptor *family, uint32_t n, const struct batch_shape *shape)
{
	uint32_t from = 0, to = n;

	if (!shape->rows)
		return -1;
	while (from < to) { /* the first with tokens enough */
		uint32_t middle = from + (to - from) / 2;

		if (family[middle].tokens < shape->tokens)
			from = middle + 1;
		else
			to = middle;
	}
	while (from < n && !ladder_fits(&family[from], shape))
		from++;
	return from < n ? (int)from : -1;
}
