/* SPDX-License-Identifier: MIT */
#include "daemon/startup/budget.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "daemon/output/table_format.h"

#define HOST_KV_BYTES_MAX (1ull << 30)

/* Sums and products of what an operator wrote: beyond any number is more than there is. */
static uint64_t plus(uint64_t a, uint64_t b)
{
	uint64_t sum;

	return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

static uint64_t times(uint64_t a, uint64_t b)
{
	uint64_t product;

	return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

/* Charge `bytes` of a model to what is left; so many of them are its draft's. */
static int charge(const struct budget_model *model, uint64_t bytes, uint64_t drafts,
	const char *what, uint64_t *left, char *text, size_t size)
{
	char needed[TABLE_FORMAT_MAX], available[TABLE_FORMAT_MAX], share[TABLE_FORMAT_MAX];

	if (bytes > *left) {
		int used = snprintf(text, size, "model %s: its %s need %s", model->name, what,
			table_format_bytes(needed, (double)bytes));

		if (drafts && used >= 0 && (size_t)used < size)
			used += snprintf(text + used, size - (size_t)used,
				" (with its draft's %s: --draft none is without)",
				table_format_bytes(share, (double)drafts));
		if (used >= 0 && (size_t)used < size)
			snprintf(text + used, size - (size_t)used,
				", and %s of the memory budget are left: see --memory",
				table_format_bytes(available, (double)*left));
		return -ENOMEM;
	}
	*left -= bytes;
	return 0;
}

static int charge_kv(
	struct budget_model *model, uint64_t share, uint64_t *left, char *text, size_t size)
{
	uint64_t bytes = model->kv_bytes > 0 ? model->kv_bytes : share;
	uint64_t pages = model->kv_pages > 0 ? model->kv_pages : bytes / model->page_bytes;

	if (pages == 0) {
		snprintf(text, size,
			"model %s: %" PRIu64 " bytes of KV cache hold no page of %" PRIu64
			" bytes: see --kv-bytes and --kv-pages",
			model->name, bytes, model->page_bytes);
		return -ENOMEM;
	}
	if (pages > INT32_MAX)
		pages = INT32_MAX;
	model->kv_pages = (uint32_t)pages;
	model->kv_bytes = times(pages, model->page_bytes);
	return charge(model, plus(model->kv_bytes, model->page_bytes), 0, "pages of KV cache", left,
		text, size);
}

/* What each model without a KV size of its own gets. */
static uint64_t kv_share(const struct budget *budget, const struct budget_model *models,
	uint32_t n_models, uint64_t left)
{
	uint64_t reserved = 0;
	uint32_t n = 0;

	for (uint32_t i = 0; i < n_models; i++) {
		const struct budget_model *model = &models[i];
		uint64_t given = model->kv_pages > 0 ? times(model->kv_pages, model->page_bytes)
						     : model->kv_bytes;

		n += given == 0;
		reserved = plus(reserved, plus(given, model->page_bytes));
	}
	if (n == 0)
		return 0;
	uint64_t total = reserved < left ? left - reserved : 0;
	if (budget->host && total > budget->free_bytes / 8)
		total = budget->free_bytes / 8;
	if (budget->host && total > HOST_KV_BYTES_MAX)
		total = HOST_KV_BYTES_MAX;
	return total / n;
}

int budget_plan(const struct budget *budget, struct budget_model *models, uint32_t n_models,
	char *text, size_t size)
{
	uint64_t left = budget->memory > 0 ? budget->memory : budget->free_bytes / 10 * 9;
	int r = 0;

	for (uint32_t i = 0; i < n_models && r == 0; i++) {
		const struct budget_model *model = &models[i];

		r = charge(model, model->weights_bytes, model->draft_weights_bytes, "weights", &left,
			text, size);
		if (r == 0)
			r = charge(model, model->pool_bytes, model->draft_pool_bytes,
				"activations and inputs", &left, text, size);
		if (r == 0)
			r = charge(model, model->draft_logits_bytes, 0,
				"drafts' logits (max_requests x draft_tokens x vocabulary)", &left,
				text, size);
	}
	uint64_t share = kv_share(budget, models, n_models, left);
	for (uint32_t i = 0; i < n_models && r == 0; i++)
		r = charge_kv(&models[i], share, &left, text, size);
	return r;
}
