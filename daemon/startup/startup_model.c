/* SPDX-License-Identifier: MIT */
#include "daemon/startup/startup_model.h"

#include <stdio.h>
#include <string.h>

#include "attention/kv_cache.h"
#include "daemon/output/log.h"
#include "daemon/startup/progress.h"
#include "daemon/output/table_format.h"

/* ---- before its weights ---- */

static struct mimeo_mask mask_of(const struct mask_text *text)
{
	return (struct mimeo_mask){
		.kind = text->window ? MIMEO_MASK_WINDOW
			: text->prefix ? MIMEO_MASK_PREFIX : MIMEO_MASK_DEFAULT,
		.window = text->window,
		.sinks = text->sinks,
		.prefix = text->prefix,
	};
}

uint32_t startup_model_drafts(const struct startup_model *model)
{
	return model->options->draft[0] ? model->options->draft_tokens : 0;
}

struct attention_config startup_model_attention(const struct startup_model *model,
	const struct model_config *of, const struct config *config, const struct device_info *info)
{
	uint32_t n_drafts = startup_model_drafts(model), longest = model->max_seq_len + n_drafts;
	struct attention_config attention = model_attention(of, info);

	attention.page_tokens = config->page_tokens;
	attention.max_rows = config->max_requests;
	attention.max_tokens = config->max_batch_tokens;
	attention.max_pages = (longest + config->page_tokens - 1) / config->page_tokens;
	attention.max_seq_len = longest;
	attention.max_decode_query = 1 + n_drafts;
	attention.masks = mask_of(&model->options->mask).kind != MIMEO_MASK_DEFAULT;
	return attention;
}

static int choose_attention(struct startup_model *model, const struct config *config,
	const struct device_info *info, struct startup_error *error)
{
	const struct attention_config attention =
		startup_model_attention(model, &model->config, config, info);
	char why[512] = "";

	int r = attention_choose(model->options->attention, &attention, &model->attention,
		&model->support, why, sizeof(why));
	if (r < 0)
		return startup_refuse(error, r, "model %s: %s", model->options->name, why);
	log_info("model %s: attention: %s", model->options->name, why);
	return 0;
}

static int resolve_mode(struct startup_model *model, struct startup_error *error)
{
	const struct mode_request request = {
		.configured = model->options->graph_mode,
		.support = model->support,
		.backend = model->attention->name,
		.decode_query = 1 + startup_model_drafts(model),
		.piecewise_available = model->attention->breaks &&
			strcmp(model->options->breakable, "yes") == 0,
	};
	const char *name = model->options->name;

	int r = mode_resolve(&request, &model->mode);
	if (r < 0)
		return startup_refuse(error, r, "model %s: graph mode %s: %s", name,
			graph_mode_name(request.configured), model->mode.reason);
	if (model->mode.lowered)
		log_warn("model %s: graph mode %s becomes %s: %s", name,
			graph_mode_name(model->mode.configured),
			graph_mode_name(model->mode.resolved), model->mode.reason);
	return 0;
}

/* Beside drafts' logits; on the host the pinned part as well. */
static uint64_t pool_of(const struct engine_needs *needs, const struct device_info *info)
{
	return needs->pool_bytes + needs->inputs_bytes - needs->draft_logits_bytes +
	       (strcmp(info->kind, "cpu") == 0 ? needs->pinned_bytes : 0);
}

/* What the engine will allocate beside weights and pages, and what of it the draft is the reason for. */
static int measure(struct startup_model *model, const struct device_info *info,
	const struct engine_options *engine, struct startup_error *error)
{
	struct engine_needs needs, without;

	int r = engine_measure(engine, &model->config, model->has_draft ? &model->draft : NULL,
		startup_model_drafts(model), model->max_seq_len, info->activation_dtype, &needs);
	if (r == 0)
		r = engine_measure(engine, &model->config, NULL, 0, model->max_seq_len,
			info->activation_dtype, &without);
	if (r < 0)
		return startup_refuse(error, r,
			"model %s: its inputs exceed any memory: lower --max-seq-len or "
			"--max-requests",
			model->options->name);
	model->memory->draft_logits_bytes = needs.draft_logits_bytes;
	model->memory->pool_bytes = pool_of(&needs, info);
	model->memory->draft_pool_bytes = pool_of(&needs, info) - pool_of(&without, info);
	return 0;
}

int startup_model_examine(struct startup_model *model, const struct config *config,
	const struct device_info *info, const struct engine_options *engine,
	struct startup_error *error)
{
	const struct config_model *options = model->options;
	uint32_t limit = config->max_seq_len;
	struct model_error model_error = {.text = ""};

	int r = model_config_load(options->dir, &model->config, &model_error);
	if (r < 0)
		return startup_refuse(error, r, "model %s: %s", options->name, model_error.text);
	model->has_config = true;
	model->max_seq_len = model->config.max_seq_len;
	if (limit > model->max_seq_len)
		log_warn("model %s: max_seq_len %u is more than the model allows: %u is used",
			options->name, limit, model->max_seq_len);
	else if (limit > 0)
		model->max_seq_len = limit;
	r = choose_attention(model, config, info, error);
	if (r == 0)
		r = resolve_mode(model, error);
	if (r < 0)
		return r;
	r = model_measure(options->dir, &model->config, model->max_seq_len, info->activation_dtype,
		&model->memory->weights_bytes, &model_error);
	if (r < 0)
		return startup_refuse(error, r, "model %s: %s", options->name, model_error.text);

	const struct kv_config kv = model_kv(&model->config, info, config->page_tokens);
	model->memory->page_bytes = kv_page_bytes(&kv);
	r = startup_draft_examine(model, config, engine->device, info, error);
	return r < 0 ? r : measure(model, info, engine, error);
}

void startup_model_cut(struct startup_model *model, uint32_t page_tokens)
{
	uint64_t most = (uint64_t)model->memory->kv_pages * page_tokens;

	if (most >= model->max_seq_len)
		return;
	log_warn("model %s: its KV cache of %u page%s fits sequences of %u tokens at most, not %u: "
		 "see --kv-pages, --kv-bytes and --max-seq-len",
		model->options->name, model->memory->kv_pages,
		model->memory->kv_pages == 1 ? "" : "s", (uint32_t)most, model->max_seq_len);
	model->max_seq_len = (uint32_t)most;
}

/* ---- weights ---- */

struct loading {
	const char *name;
	struct progress progress;
};

static void on_load(void *userdata, uint64_t done, uint64_t total)
{
	struct loading *loading = userdata;
	char done_text[TABLE_FORMAT_MAX], total_text[TABLE_FORMAT_MAX], text[256];

	if (!progress_due(&loading->progress))
		return;
	snprintf(text, sizeof(text), "model %s: read %s of %s", loading->name,
		table_format_bytes(done_text, (double)done),
		table_format_bytes(total_text, (double)total));
	progress_show(&loading->progress, text);
}

/* What of its files the model has no use for. */
static void tell_unused(const char *name, const struct model_unused *unused)
{
	if (unused->n)
		log_warn("model %s: %u tensor%s of its files %s not used, the first is \"%s\": "
			 "config.json may be another model's",
			name, unused->n, unused->n == 1 ? "" : "s", unused->n == 1 ? "is" : "are",
			unused->first);
	if (unused->n_prediction)
		log_info("model %s: %u tensors of layers that predict further tokens are not used",
			name, unused->n_prediction);
	if (unused->n_buffers)
		log_debug("model %s: %u buffers of rotary frequencies are not used", name,
			unused->n_buffers);
}

int startup_model_load(const struct startup_model *model, struct device *device,
	struct engine_model_options *ret, struct startup_error *error)
{
	const char *name = model->options->name;
	struct loading loading = {.name = name};
	struct model_error model_error = {.text = ""};
	struct model *loaded;
	char bytes[TABLE_FORMAT_MAX], seconds[TABLE_FORMAT_MAX];

	progress_begin(&loading.progress);
	int r = model_load(device, model->options->dir, &model->config, model->max_seq_len, on_load,
		&loading, &loaded, &model_error);
	progress_end(&loading.progress);
	if (r != 0)
		return startup_refuse(error, r, "model %s: %s", name, model_error.text);
	log_info("model %s: %s, %s of weights in %s (%s, %.2f GB/s), attention %s, graph mode %s",
		name, model->config.architecture, table_format_bytes(bytes, (double)loaded->weights_bytes),
		table_format_seconds(seconds, loaded->load_seconds), loaded->reader,
		(double)loaded->file_bytes * 1e-9 / loaded->load_seconds, model->attention->name,
		graph_mode_name(model->mode.resolved));

	if (model->config.experts.normalise_ignored)
		log_warn("model %s: norm_topk_prob is not obeyed in %s, as transformers does not: experts' "
			 "weights are scaled and not normalised, where the model's own code normalises "
			 "them", name, model->config.architecture);
	tell_unused(name, &loaded->unused);
	*ret = (struct engine_model_options){
		.model = loaded,
		.attention = model->attention,
		.support = model->support,
		.mode = model->mode,
		.mask = mask_of(&model->options->mask),
		.max_seq_len = model->max_seq_len,
		.kv_pages = model->memory->kv_pages,
		.kv_exact = model->options->kv_pages > 0,
		.kv_bytes = model->memory->kv_bytes,
	};
	snprintf(ret->name, sizeof(ret->name), "%s", name);
	r = startup_draft_load(model, ret, error);
	if (r < 0)
		model_free(loaded);
	return r;
}

void startup_model_deinit(struct startup_model *model)
{
	if (model->has_draft)
		model_config_deinit(&model->draft);
	if (model->has_config)
		model_config_deinit(&model->config);
	model->has_config = model->has_draft = false;
}
