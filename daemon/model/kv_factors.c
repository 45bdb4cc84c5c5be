/* SPDX-License-Identifier: MIT */
#include "daemon/model/kv_factors.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "daemon/model/error.h"
#include "daemon/model/file.h"
#include "daemon/model/plan.h"
#include "kernels/checks.h"
#include "kernels/convert.h"

struct kv_factors_source {
	const struct safetensors *checkpoint;
	const char *directory;
	bool declared; /* config.json says that each layer has factors */
	const struct model *model;
	struct model_error *error;
};

/* Keep the sentence, and what to do; rc. */
__attribute__((format(printf, 3, 4))) static int kv_factors_refuse(
	const struct kv_factors_source *s, int rc, const char *format, ...)
{
	char why[sizeof(s->error->text)];
	va_list args;

	va_start(args, format);
	vsnprintf(why, sizeof(why), format, args);
	va_end(args);
	return model_fail(s->error, rc, "%.480s: use kv_dtype = model", why);
}

static int kv_factors_check_form(
	const struct kv_factors_source *s, const struct safetensors_tensor *t, const char *path)
{
	char shape[SAFETENSORS_SHAPE_MAX];
	bool is_one = true;

	if (!t->usable || t->format)
		return kv_factors_refuse(s, -ENOTSUP, "%s: tensor \"%.128s\": dtype %s is not one of F32, F16, BF16",
			path, t->name, t->dtype_name);
	for (uint32_t i = 0; i < t->n_dims; i++)
		is_one &= t->shape[i] == 1;
	safetensors_shape_text(t, shape);
	if (!is_one)
		return kv_factors_refuse(s, -EINVAL,
			"%s: tensor \"%.128s\": shape [%s] is not that of one number", path, t->name, shape);
	return 0;
}

static int kv_factors_read_one(
	const struct kv_factors_source *s, const struct safetensors_tensor *t, float *ret)
{
	const struct safetensors_file *file = &s->checkpoint->files[t->file];
	struct weight number = {.dtype = t->dtype, .rows = 1, .cols = 1};
	uint32_t bytes = 0;
	float factor;
	int rc = kv_factors_check_form(s, t, file->path);

	if (rc)
		return rc;
	assert(t->bytes == dtype_bytes(t->dtype));
	rc = file_read(file->fd, file->path, t->offset, &bytes, t->bytes, s->error);
	if (rc)
		return rc;
	number.data = &bytes;
	weight_to_f32(&factor, &number, 0, 1);
	if (!kv_factor_fits(factor))
		return kv_factors_refuse(s, -EINVAL, "%s: tensor \"%.128s\": %g is not from 2^-40 to 2^40",
			file->path, t->name, (double)factor);
	*ret = factor;
	return 0;
}

/* The two spellings of a factor's name, the second one of ModelOpt. */
enum { SPELLINGS = 2 };

static void kv_factors_name(const struct model_config *config, uint32_t layer, enum kv_factors_side side,
	uint32_t spelling, char ret[PLAN_NAME_MAX])
{
	static const char *const names[SPELLINGS][KV_FACTORS_SIDES] = {
		{[KV_FACTORS_KEYS] = "self_attn.k_scale", [KV_FACTORS_VALUES] = "self_attn.v_scale"},
		{[KV_FACTORS_KEYS] = "self_attn.k_proj.k_scale", [KV_FACTORS_VALUES] = "self_attn.v_proj.v_scale"},
	};

	plan_layer_name(config, layer, names[spelling][side], ret);
}

const struct safetensors_tensor *kv_factors_find(const struct safetensors *checkpoint,
	const struct model_config *config, uint32_t layer, enum kv_factors_side side)
{
	const struct safetensors_tensor *found = NULL;
	char name[PLAN_NAME_MAX];

	if (config->latent.rank && side == KV_FACTORS_VALUES)
		return NULL;
	for (uint32_t i = 0; i < SPELLINGS && !found; i++) {
		kv_factors_name(config, layer, side, i, name);
		found = safetensors_find(checkpoint, name);
	}
	return found;
}

/* The layer has the factor of the other side: its name and that of the missing one, in the same spelling. */
static int kv_factors_refuse_single(
	const struct kv_factors_source *s, uint32_t layer, enum kv_factors_side side)
{
	const enum kv_factors_side other = side == KV_FACTORS_KEYS ? KV_FACTORS_VALUES : KV_FACTORS_KEYS;
	char missing[PLAN_NAME_MAX], found[PLAN_NAME_MAX];
	uint32_t i = 0;

	kv_factors_name(&s->model->config, layer, other, i, found);
	while (!safetensors_find(s->checkpoint, found) && i + 1 < SPELLINGS)
		kv_factors_name(&s->model->config, layer, other, ++i, found);
	kv_factors_name(&s->model->config, layer, side, i, missing);
	return kv_factors_refuse(s, -EINVAL, "%s: tensor \"%s\" is missing, but there is \"%s\"", s->directory, missing,
		found);
}

static int kv_factors_refuse_missing(const struct kv_factors_source *s, uint32_t layer)
{
	char name[PLAN_NAME_MAX];

	kv_factors_name(&s->model->config, layer, KV_FACTORS_KEYS, 0, name);
	return kv_factors_refuse(s, -EINVAL,
		"%s: tensor \"%s\" is missing, though kv_cache_scheme says that there are factors", s->directory, name);
}

/* *ret_read: does the layer have factors of its own? */
static int kv_factors_read_layer(
	const struct kv_factors_source *s, uint32_t layer, struct kv_factors *ret, bool *ret_read)
{
	const struct model_config *c = &s->model->config;
	const struct safetensors_tensor *keys = kv_factors_find(s->checkpoint, c, layer, KV_FACTORS_KEYS);
	const struct safetensors_tensor *values = kv_factors_find(s->checkpoint, c, layer, KV_FACTORS_VALUES);
	struct kv_factors own = {1, 1};
	int rc = 0;

	if (!keys && values)
		return kv_factors_refuse_single(s, layer, KV_FACTORS_KEYS);
	if (keys && !values && !c->latent.rank)
		return kv_factors_refuse_single(s, layer, KV_FACTORS_VALUES);
	if (!keys && s->declared)
		return kv_factors_refuse_missing(s, layer);
	if (keys)
		rc = kv_factors_read_one(s, keys, &own.key);
	if (!rc && values)
		rc = kv_factors_read_one(s, values, &own.value);
	if (rc)
		return rc;
	*ret = own;
	*ret_read = keys;
	return 0;
}

int kv_factors_read(const struct safetensors *checkpoint, const char *directory,
	const struct quantisation *quantisation, struct model *model, struct model_error *error)
{
	const struct kv_factors_source source = {.checkpoint = checkpoint, .directory = directory,
		.declared = quantisation && quantisation->kv_factors, .model = model, .error = error};

	if (!model->config.kv_fp8)
		return 0;
	if (quantisation && quantisation->kv_rc)
		return kv_factors_refuse(&source, quantisation->kv_rc, "%s", quantisation->kv_error.text);
	for (uint32_t layer = 0; layer < model->config.n_layers; layer++) {
		bool is_read = false;
		int rc = kv_factors_read_layer(&source, layer, &model->layers[layer].kv_factors, &is_read);

		if (rc)
			return rc;
		model->n_kv_factors += is_read;
	}
	return 0;
}
