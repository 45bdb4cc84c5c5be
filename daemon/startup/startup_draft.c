/* SPDX-License-Identifier: MIT */
#include "daemon/startup/startup_draft.h"

#include <assert.h>
#include <errno.h>

#include "attention/kv_cache.h"
#include "daemon/output/log.h"
#include "daemon/model/draft.h"
#include "daemon/output/table_format.h"
#include "kernels/ops.h"

/* Requests with a mask get no draft tokens: with a default mask no request would. */
static int startup_draft_check_mask(const struct startup_model *model, struct startup_error *error)
{
	char mask[MASK_TEXT_MAX];

	if (!model->options->mask.window && !model->options->mask.prefix)
		return 0;
	return startup_refuse(error, -EINVAL,
		"model %s: draft: draft models support the causal mask only, the model's mask is %s: use "
		"--mask causal or --draft none",
		model->options->name, mask_text(&model->options->mask, mask));
}

/* In a step with draft tokens each generating row has 1 + draft_tokens tokens. */
static void startup_draft_warn_rows(const struct startup_model *model, const struct config *config)
{
	uint32_t width = 1 + startup_model_drafts(model);
	uint32_t rows = config->max_batch_tokens / width;

	if (rows < config->max_requests)
		log_warn("model %s: draft: a step holds %u row%s of %u tokens, fewer than "
			 "--max-requests %u: see --max-batch-tokens",
			model->options->name, rows, rows == 1 ? "" : "s", width,
			config->max_requests);
}

static int startup_draft_check_device(const struct startup_model *model, const struct device *device,
	const struct device_info *info, struct startup_error *error)
{
	const struct kernel_ops *ops = device->kernels;

	if (ops->verify && ops->draft_begin && ops->draft_advance)
		return 0;
	return startup_refuse(error, -ENOTSUP,
		"model %s: draft: the %s device cannot verify draft tokens: use another --device or "
		"--draft none",
		model->options->name, info->kind);
}

/* The lengths of rows with draft tokens are known only on the device. */
static int startup_draft_choose_attention(struct startup_model *model, const struct config *config,
	const struct device_info *info, struct startup_error *error)
{
	const struct attention_config attention =
		startup_model_attention(model, &model->draft, config, info);
	const char *name = model->options->name;
	char why[512] = "";

	if (model->attention.support == ATTENTION_NEVER)
		return startup_refuse(error, -ENOTSUP,
			"model %s: draft: attention %s needs the lengths of sequences on the host, which "
			"are known only on the device: use another --attention or --draft none",
			name, model->attention.blamed);
	/* A setting that serves latent attention serves that of an MTP head as well. */
	int rc = attention_choose(model->draft.latent.rank ? model->options->attention : "auto", &attention,
		&model->draft_attention, &model->draft_support, why, sizeof(why));
	if (rc < 0)
		return startup_refuse(error, rc, "model %s: draft: attention: %s", name, why);
	log_debug("model %s: draft: attention: %s", name, why);
	return 0;
}

int startup_draft_examine(struct startup_model *model, const struct config *config,
	const struct device *device, const struct device_info *info, struct startup_error *error)
{
	const char *dir = draft_directory(model->options->draft, model->options->dir);
	const char *name = model->options->name;
	struct model_error model_error = {.text = ""};
	uint64_t bytes;

	if (!startup_model_drafts(model))
		return 0;
	int rc = startup_draft_check_mask(model, error);
	if (rc < 0)
		return rc;
	rc = draft_config_load(dir, &model->draft, &model_error);
	if (rc < 0)
		return startup_refuse(error, rc, "model %s: draft: %s", name, model_error.text);
	model->has_draft = true;
	model->draft.kv_fp8 = model->config.kv_fp8; /* both models' keys and values lie in pages of one kind */
	rc = draft_check(dir, &model->draft, &model->config, &model_error);
	if (rc < 0)
		return startup_refuse(error, rc, "model %s: draft: %s", name, model_error.text);
	rc = model_measure(dir, &model->draft, model->max_seq_len, info, &bytes, &model_error);
	if (rc < 0)
		return startup_refuse(error, rc, "model %s: draft: %s", name, model_error.text);
	rc = startup_draft_check_device(model, device, info, error);
	if (rc < 0)
		return rc;
	const struct kv_config kv = model_kv(&model->draft, info, config->page_tokens);
	startup_draft_warn_rows(model, config);
	model->memory->weights_bytes += bytes;
	model->memory->draft_weights_bytes = bytes;
	model->memory->page_bytes += kv_page_bytes(&kv);
	return startup_draft_choose_attention(model, config, info, error);
}

int startup_draft_load(const struct startup_model *model, struct engine_model_options *options,
	struct startup_error *error)
{
	struct model_error model_error = {.text = ""};
	char weights[TABLE_FORMAT_MAX], rope[TABLE_FORMAT_MAX], logits[TABLE_FORMAT_MAX];

	if (!model->has_draft)
		return 0;
	int rc = draft_load(draft_directory(model->options->draft, model->options->dir), &model->draft,
		options->model, NULL, NULL, &options->draft, &model_error);
	if (rc != 0)
		return startup_refuse(
			error, rc, "model %s: draft: %s", model->options->name, model_error.text);
	assert(model->draft_attention);
	options->n_drafts = startup_model_drafts(model);
	options->draft_attention = model->draft_attention;
	options->draft_support = model->draft_support;
	log_info("model %s: draft: %s%s%s, %s of weights (%s of it the rope table), %u draft token%s per row, "
		 "%s for their logits",
		model->options->name, model->draft.architecture,
		*options->draft->quantised ? ", " : "", options->draft->quantised,
		table_format_bytes(weights, (double)options->draft->bytes),
		table_format_bytes(rope, (double)(options->draft->bytes - options->draft->weights_bytes)),
		options->n_drafts,
		options->n_drafts == 1 ? "" : "s",
		table_format_bytes(logits, (double)model->memory->draft_logits_bytes));
	startup_model_log_kv(model->options->name, "draft: ", options->draft);
	return 0;
}
