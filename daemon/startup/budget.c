/* SPDX-License-Identifier: MIT */
#include "daemon/startup/budget.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "daemon/output/table_format.h"

#define HOST_KV_BYTES_MAX (1ull << 30)

/* Saturating: configured values may be of any size. */
static uint64_t budget_add(uint64_t a, uint64_t b)
{
	uint64_t sum;

	return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

static uint64_t budget_multiply(uint64_t a, uint64_t b)
{
	uint64_t product;

	return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

/* Subtract a model's bytes from *left. draft_bytes: the part of them that its draft model needs. */
static int budget_charge(const struct budget_model *model, uint64_t bytes, uint64_t draft_bytes,
	const char *what, uint64_t *left, char *text, size_t size)
{
	char needed[TABLE_FORMAT_MAX], available[TABLE_FORMAT_MAX], share[TABLE_FORMAT_MAX];

	if (bytes > *left) {
		int used = snprintf(text, size, "model %s: its %s need %s", model->name, what,
			table_format_bytes(needed, (double)bytes));

		if (draft_bytes && used >= 0 && (size_t)used < size)
			used += snprintf(text + used, size - (size_t)used,
				" (%s of them for the draft model, see --draft none)",
				table_format_bytes(share, (double)draft_bytes));
		if (used >= 0 && (size_t)used < size)
			snprintf(text + used, size - (size_t)used,
				", the memory budget has %s left: see --memory",
				table_format_bytes(available, (double)*left));
		return -ENOMEM;
	}
	*left -= bytes;
	return 0;
}

static int budget_charge_kv(
	struct budget_model *model, uint64_t share, uint64_t *left, char *text, size_t size)
{
	uint64_t bytes = model->kv_bytes > 0 ? model->kv_bytes : share;
	uint64_t pages = model->kv_pages > 0 ? model->kv_pages : bytes / model->page_bytes;

	if (pages == 0) {
		snprintf(text, size,
			"model %s: %" PRIu64 " byte%s of KV cache hold no page of %" PRIu64
			" bytes: give more by --kv-bytes or --kv-pages%s",
			model->name, bytes, bytes == 1 ? "" : "s", model->page_bytes,
			model->kv_bytes > 0 ? "" : ", or more memory by --memory");
		return -ENOMEM;
	}
	if (pages > INT32_MAX)
		pages = INT32_MAX;
	assert(pages <= INT32_MAX);
	model->kv_pages = (uint32_t)pages;
	model->kv_bytes = budget_multiply(pages, model->page_bytes);
	return budget_charge(model, budget_add(model->kv_bytes, model->page_bytes), 0, "pages of KV cache", left,
		text, size);
}

/* Bytes for each model without a configured KV size. */
static uint64_t budget_kv_share(const struct budget *budget, const struct budget_model *models,
	uint32_t n_models, uint64_t left)
{
	uint64_t reserved = 0;
	uint32_t n = 0;

	for (uint32_t i = 0; i < n_models; i++) {
		const struct budget_model *model = &models[i];
		uint64_t given = model->kv_pages > 0 ? budget_multiply(model->kv_pages, model->page_bytes)
						     : model->kv_bytes;

		n += given == 0;
		reserved = budget_add(reserved, budget_add(given, model->page_bytes));
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

static int budget_charge_model(
	const struct budget_model *model, uint64_t *left, char *text, size_t size)
{
	const struct {
		uint64_t bytes, draft_bytes;
		const char *what;
	} parts[] = {
		{model->weights_bytes, model->draft_weights_bytes, "weights"},
		{model->pool_bytes, model->draft_pool_bytes, "activations and inputs"},
		{model->draft_logits_bytes, 0,
			"logits of draft tokens (max_requests x draft_tokens x vocabulary)"},
	};

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		int rc = budget_charge(model, parts[i].bytes, parts[i].draft_bytes, parts[i].what,
			left, text, size);
		if (rc < 0)
			return rc;
	}
	return 0;
}

int budget_plan(const struct budget *budget, struct budget_model *models, uint32_t n_models,
	char *text, size_t size)
{
	uint64_t left = budget->memory > 0 ? budget->memory : budget->free_bytes / 10 * 9;

	for (uint32_t i = 0; i < n_models; i++) {
		int rc = budget_charge_model(&models[i], &left, text, size);
		if (rc < 0)
			return rc;
	}
	uint64_t share = budget_kv_share(budget, models, n_models, left);
	for (uint32_t i = 0; i < n_models; i++) {
		assert(models[i].page_bytes > 0);
		int rc = budget_charge_kv(&models[i], share, &left, text, size);
		if (rc < 0)
			return rc;
	}
	return 0;
}
