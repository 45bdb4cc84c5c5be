/* SPDX-License-Identifier: MIT */
#include "daemon/startup/startup_model.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "attention/kv_cache.h"
#include "daemon/model/draft.h"
#include "daemon/output/log.h"
#include "daemon/startup/progress.h"
#include "daemon/output/table_format.h"

/* ---- before its weights ---- */

static struct mimeo_mask startup_model_mask(const struct mask_text *text)
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
	attention.masks = startup_model_mask(&model->options->mask).kind != MIMEO_MASK_DEFAULT;
	return attention;
}

static int startup_model_choose_attention(struct startup_model *model, const struct config *config,
	const struct device_info *info, struct startup_error *error)
{
	const struct attention_config attention =
		startup_model_attention(model, &model->config, config, info);
	char why[1024] = "";

	int rc = attention_layers_choose(
		model->options->attention, &attention, &model->attention, why, sizeof(why));
	if (rc < 0)
		return startup_refuse(error, rc, "model %s: %s", model->options->name, why);
	log_info("model %s: attention: %s", model->options->name, why);
	return 0;
}

static bool startup_model_wants_deterministic(const struct startup_model *model)
{
	return strcmp(model->options->deterministic, "yes") == 0;
}

/* The cpu device has no other results. */
static int startup_model_check_deterministic(const struct startup_model *model, const struct device_info *info,
	struct startup_error *error)
{
	const struct model_config *c = &model->config;
	const char *why = NULL;

	if (!startup_model_wants_deterministic(model) || strcmp(info->kind, "cpu") == 0)
		return 0;
	if (!info->invariant)
		why = "its products need a GPU of compute capability 9.0 and a build for it";
	else if (c->latent.rank)
		why = "latent attention has no such kernels on a GPU";
	else if (c->experts.n)
		why = "experts have no such kernels on a GPU";
	else if (c->hidden_size % 8 || c->intermediate_size % 8 || c->n_heads * c->head_dim % 8)
		why = "the sizes of its layers are not multiples of 8";
	return why ? startup_refuse(error, -ENOTSUP, "model %s: deterministic = yes: %s", model->options->name, why)
		   : 0;
}

static int startup_model_resolve_mode(struct startup_model *model, struct startup_error *error)
{
	const struct mode_request request = {
		.configured = model->options->graph_mode,
		.support = model->attention.support,
		.backend = model->attention.blamed,
		.decode_query = 1 + startup_model_drafts(model),
		.piecewise_available = strcmp(model->options->breakable, "yes") == 0,
	};
	const char *name = model->options->name;

	int rc = mode_resolve(&request, &model->mode);
	if (rc < 0)
		return startup_refuse(error, rc, "model %s: graph mode %s: %s", name,
			graph_mode_name(request.configured), model->mode.reason);
	if (model->mode.lowered)
		log_warn("model %s: graph mode %s becomes %s: %s", name,
			graph_mode_name(model->mode.configured),
			graph_mode_name(model->mode.resolved), model->mode.reason);
	return 0;
}

/* Activations and inputs, without the logits of draft tokens; on the cpu device with the pinned part,
 * which is the same memory. */
static uint64_t startup_model_pool_bytes(const struct engine_needs *needs, const struct device_info *info)
{
	return needs->pool_bytes + needs->inputs_bytes - needs->draft_logits_bytes +
	       (strcmp(info->kind, "cpu") == 0 ? needs->pinned_bytes : 0);
}

int startup_model_measure(struct startup_model *model, const struct device_info *info,
	const struct engine_options *engine, struct startup_error *error)
{
	const struct model_config *draft = model->has_draft ? &model->draft : NULL;
	struct engine_needs needs, without;

	int rc = engine_measure(engine, &model->config, &model->sets, draft, startup_model_drafts(model),
		model->max_seq_len, info->activation_dtype, &needs);
	if (rc < 0)
		return startup_refuse(error, rc,
			"model %s: the size of its inputs overflows: lower --max-seq-len or "
			"--max-requests",
			model->options->name);
	rc = engine_measure(engine, &model->config, &model->sets, NULL, 0, model->max_seq_len,
		info->activation_dtype, &without);
	assert(rc == 0); /* needs no more than with the draft model */
	model->memory->draft_logits_bytes = needs.draft_logits_bytes;
	model->memory->pool_bytes = startup_model_pool_bytes(&needs, info);
	model->memory->draft_pool_bytes =
		startup_model_pool_bytes(&needs, info) - startup_model_pool_bytes(&without, info);
	return 0;
}

int startup_model_examine(struct startup_model *model, const struct config *config,
	const struct device_info *info, struct startup_error *error)
{
	const struct config_model *options = model->options;
	uint32_t limit = config->max_seq_len;
	struct model_error model_error = {.text = ""};

	int rc = model_config_load(options->dir, &model->config, &model_error);
	if (rc < 0)
		return startup_refuse(error, rc, "model %s: %s", options->name, model_error.text);
	model->has_config = true;
	model->config.head_fp8 = strcmp(options->head_dtype, "fp8") == 0;
	model->config.kv_fp8 = strcmp(options->kv_dtype, "fp8") == 0;
	model->max_seq_len = model->config.max_seq_len;
	if (limit > model->max_seq_len)
		log_warn("model %s: max_seq_len %u is more than the model allows: %u is used",
			options->name, limit, model->max_seq_len);
	else if (limit > 0)
		model->max_seq_len = limit;
	rc = startup_model_check_deterministic(model, info, error);
	if (rc < 0)
		return rc;
	rc = startup_model_choose_attention(model, config, info, error);
	if (rc < 0)
		return rc;
	rc = startup_model_resolve_mode(model, error);
	if (rc < 0)
		return rc;
	rc = model_measure(options->dir, &model->config, model->max_seq_len, info,
		&model->memory->weights_bytes, &model_error);
	if (rc < 0)
		return startup_refuse(error, rc, "model %s: %s", options->name, model_error.text);

	struct kv_config kv = model_kv(&model->config, info, config->page_tokens);
	model_kv_sets(&model->config, model->max_seq_len, config->page_tokens, startup_model_drafts(model) > 0,
		&model->sets);
	kv_config_divide(&kv, &model->sets);
	model->memory->page_bytes = kv_page_bytes(&kv);
	return 0;
}

int startup_model_limit(struct startup_model *model, const struct config *config, struct startup_error *error)
{
	struct kv_config kv = {.page_tokens = config->page_tokens, .near_tokens = config->max_batch_tokens};
	uint32_t most;

	kv_config_divide(&kv, &model->sets);
	most = kv_tokens_within(&kv, model->memory->kv_pages, model->max_seq_len);

	assert(model->max_seq_len > 0 && model->memory->kv_pages > 0);
	if (!most)
		return startup_refuse(error, -ENOMEM,
			"model %s: %u page%s of KV cache hold%s no token: a token takes a page of each of %u sets of layers: "
			"give --kv-pages %u or more",
			model->options->name, model->memory->kv_pages, model->memory->kv_pages == 1 ? "" : "s",
			model->memory->kv_pages == 1 ? "s" : "", kv.n_sets, kv.n_sets);
	if (most >= model->max_seq_len)
		return 0;
	log_warn("model %s: its KV cache of %u page%s holds sequences of at most %u tokens, not %u: give "
		 "--kv-pages %u or more for those, or --max-seq-len %u",
		model->options->name, model->memory->kv_pages,
		model->memory->kv_pages == 1 ? "" : "s", most, model->max_seq_len,
		kv_pages_in_all(&kv, model->max_seq_len, false), most);
	model->max_seq_len = most;
	return 0;
}

/* ---- weights ---- */

struct loading {
	const char *name;
	struct progress progress;
};

static void startup_model_on_load(void *userdata, uint64_t done, uint64_t total)
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

/* One kind of factors serves all positions (model_rope_is_long). */
static void startup_model_log_rope(const char *name, const struct model *model)
{
	const struct model_config *c = &model->config;

	if (c->rope.type == ROPE_LONGROPE)
		log_info("model %s: longrope with %s: sequences of %u tokens, original_max_position_embeddings %.0f",
			name, model_rope_is_long(c, model->max_positions) ? "long_factor" : "short_factor",
			model->max_positions, c->rope.original_max_position_embeddings);
}

static void startup_model_log_sets(const char *name, const struct kv_sets *sets)
{
	if (sets->window)
		log_info("model %s: its layers have KV pages in sets of at most %u: %u without a window, %u that give "
			 "pages back which have left the last %u tokens",
			name, sets->n_layers, sets->n_full, sets->n - sets->n_full, sets->window);
}

static void startup_model_log_heads(const struct config_model *options, const struct model_unused *unused)
{
	if (unused->n_heads == 1 && strcmp(options->draft, DRAFT_MTP) != 0)
		log_info("model %s: %u tensors of its MTP head are not read: --draft mtp uses them", options->name,
			unused->n_prediction);
	else if (unused->n_heads > 1)
		log_info("model %s: %u tensors of its %u MTP heads are not used", options->name, unused->n_prediction,
			unused->n_heads);
}

static void startup_model_log_unused(const char *name, const struct model_unused *unused)
{
	if (unused->n)
		log_warn("model %s: %u tensor%s of its files %s not used, the first is \"%s\": "
			 "the configuration may belong to another model",
			name, unused->n, unused->n == 1 ? "" : "s", unused->n == 1 ? "is" : "are",
			unused->first);
	if (unused->n_buffers)
		log_debug("model %s: buffers of rotary frequencies, not used: %u", name,
			unused->n_buffers);
}

void startup_model_log_kv(const char *name, const char *part, const struct model *model)
{
	if (model->config.kv_fp8 && !model->n_kv_factors)
		log_warn("model %s: %skeys and values in fp8: its files have no factors, so all are 1: measure its "
			 "perplexity with mimeo-bench",
			name, part);
	else if (model->config.kv_fp8)
		log_info("model %s: %skeys and values in fp8, %u of %u layers with factors of its files, others with 1",
			name, part, model->n_kv_factors, model->config.n_layers);
}

/* Without a tokenizer a model still serves clients that send ids. */
static void startup_model_load_files(const char *name, const char *directory, struct model *model)
{
	struct model_error error = {.text = ""};

	if (text_files_load(directory, &model->files, &error) < 0)
		log_warn("model %s: %s: clients get no tokenizer from this daemon", name, error.text);
	else if (model->files->tokenizer < 0)
		log_info("model %s: it has no tokenizer: clients send and get token ids", name);
}

int startup_model_load(const struct startup_model *model, struct device *device,
	struct engine_model_options *ret, struct startup_error *error)
{
	const char *name = model->options->name;
	struct loading loading = {.name = name};
	struct model_error model_error = {.text = ""};
	struct model *loaded;
	char bytes[TABLE_FORMAT_MAX], rope[TABLE_FORMAT_MAX], seconds[TABLE_FORMAT_MAX];
	char stage[PROGRESS_TEXT_MAX];

	assert(model->has_config && model->attention.backend && model->memory->kv_pages > 0);
	snprintf(stage, sizeof(stage), "model %s: reading its weights", name);
	progress_begin(&loading.progress, stage);
	int rc = model_load(device, model->options->dir, &model->config, model->max_seq_len, startup_model_on_load,
		&loading, &loaded, &model_error);
	progress_end(&loading.progress);
	if (rc != 0)
		return startup_refuse(error, rc, "model %s: %s", name, model_error.text);
	log_info("model %s: %s%s%s, %s of weights in %s (%s of it the rope table; %s, %.2f GB/s), attention %s, "
		 "graph mode %s%s",
		name, model->config.architecture, *loaded->quantised ? ", " : "", loaded->quantised,
		table_format_bytes(bytes, (double)loaded->bytes),
		table_format_seconds(seconds, loaded->load_seconds),
		table_format_bytes(rope, (double)(loaded->bytes - loaded->weights_bytes)), loaded->reader,
		(double)loaded->file_bytes * 1e-9 / loaded->load_seconds, model->attention.names,
		graph_mode_name(model->mode.resolved),
		startup_model_wants_deterministic(model) ? ", deterministic" : "");

	startup_model_log_kv(name, "", loaded);
	startup_model_log_rope(name, loaded);
	startup_model_log_sets(name, &model->sets);
	if (!loaded->has_head)
		log_info("model %s: its files have no head: requests get hidden states (embeddings) alone", name);
	if (model->config.head_fp8 && !loaded->head_rounded)
		log_info("model %s: head_dtype = fp8 changes nothing: its files have a quantised head", name);
	if (model->config.experts.normalise_ignored)
		log_warn("model %s: norm_topk_prob is ignored for %s, as in transformers: the weights of "
			 "experts are scaled but not normalised; the model's own code normalises them",
			name, model->config.architecture);
	startup_model_log_heads(model->options, &loaded->unused);
	startup_model_log_unused(name, &loaded->unused);
	startup_model_load_files(name, model->options->dir, loaded);
	*ret = (struct engine_model_options){
		.model = loaded,
		.attention = model->attention,
		.mode = model->mode,
		.mask = startup_model_mask(&model->options->mask),
		.max_seq_len = model->max_seq_len,
		.sets = model->sets,
		.kv_pages = model->memory->kv_pages,
		.kv_exact = model->options->kv_pages > 0,
		.kv_bytes = model->memory->kv_bytes,
	};
	loaded->deterministic |= startup_model_wants_deterministic(model);
	snprintf(ret->name, sizeof(ret->name), "%s", name);
	return 0;
}

void startup_model_deinit(struct startup_model *model)
{
	if (model->has_draft)
		model_config_deinit(&model->draft);
	if (model->has_config)
		model_config_deinit(&model->config);
	model->has_config = model->has_draft = false;
}
