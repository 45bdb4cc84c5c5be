/* SPDX-License-Identifier: MIT */
#include "daemon/model/kv_factors.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "daemon/model/error.h"
#include "daemon/model/file.h"
#include "daemon/model/plan.h"
#include "kernels/checks.h"
#include "kernels/convert.h"

#define KEYS "self_attn.k_scale"
#define VALUES "self_attn.v_scale"

struct kv_factors_source {
	const struct safetensors *checkpoint;
	const char *directory;
	const struct model *model;
	struct model_error *error;
};

static int kv_factors_check_form(
	const struct kv_factors_source *s, const struct safetensors_tensor *t, const char *path)
{
	char shape[SAFETENSORS_SHAPE_MAX];
	uint64_t n = 1;

	if (!t->usable || t->format)
		return model_fail(s->error, -ENOTSUP, "%s: tensor \"%.128s\": dtype %s is not one of %s", path,
			t->name, t->dtype_name, s->checkpoint->dtypes);
	for (uint32_t i = 0; i < t->n_dims; i++)
		n *= t->shape[i] == 1 ? 1 : 0;
	safetensors_shape_text(t, shape);
	if (n != 1)
		return model_fail(s->error, -EINVAL, "%s: tensor \"%.128s\": shape [%s] is not that of one number",
			path, t->name, shape);
	return 0;
}

static int kv_factors_read_one(
	const struct kv_factors_source *s, const struct safetensors_tensor *t, float *ret)
{
	const struct safetensors_file *file = &s->checkpoint->files[t->file];
	struct weight number = {.dtype = t->dtype, .rows = 1, .cols = 1};
	uint32_t bytes = 0;
	int rc = kv_factors_check_form(s, t, file->path);

	if (rc)
		return rc;
	assert(t->bytes == dtype_bytes(t->dtype));
	rc = file_read(file->fd, file->path, t->offset, &bytes, t->bytes, s->error);
	if (rc)
		return rc;
	number.data = &bytes;
	weight_to_f32(ret, &number, 0, 1);
	if (!kv_factors_fit(&(struct kv_factors){*ret, *ret}))
		return model_fail(s->error, -EINVAL,
			"%s: tensor \"%.128s\": %g is not a finite number above 0", file->path, t->name, (double)*ret);
	return 0;
}

static int kv_factors_read_layer(const struct kv_factors_source *s, uint32_t layer, struct kv_factors *ret)
{
	const struct model_config *c = &s->model->config;
	char names[2][PLAN_NAME_MAX];
	const struct safetensors_tensor *tensors[2];
	int rc;

	*ret = (struct kv_factors){1, 1};
	plan_layer_name(c->family, layer, KEYS, names[0]);
	plan_layer_name(c->family, layer, VALUES, names[1]);
	for (size_t i = 0; i < 2; i++)
		tensors[i] = safetensors_find(s->checkpoint, names[i]);
	if (c->latent.rank)
		return tensors[0] ? kv_factors_read_one(s, tensors[0], &ret->key) : 0;
	if (!tensors[0] && !tensors[1])
		return 0;
	for (size_t i = 0; i < 2; i++)
		if (!tensors[i])
			return model_fail(s->error, -EINVAL, "%s: tensor \"%s\" is missing, but there is \"%s\"",
				s->directory, names[i], names[1 - i]);
	rc = kv_factors_read_one(s, tensors[0], &ret->key);
	return rc ? rc : kv_factors_read_one(s, tensors[1], &ret->value);
}

int kv_factors_read(const struct safetensors *checkpoint, const char *directory,
	const struct quantisation *quantisation, struct model *model, struct model_error *error)
{
	const struct kv_factors_source source = {checkpoint, directory, model, error};

	if (!model->config.kv_fp8)
		return 0;
	if (quantisation && quantisation->kv_rc)
		return model_fail(error, quantisation->kv_rc, "%s", quantisation->kv_error.text);
	for (uint32_t layer = 0; layer < model->config.n_layers; layer++) {
		struct kv_factors *factors = &model->layers[layer].kv_factors;
		int rc = kv_factors_read_layer(&source, layer, factors);

		if (rc)
			return rc;
		model->n_kv_factors += factors->key != 1.0f || factors->value != 1.0f;
	}
	return 0;
}

bool kv_factors_has(const char *name)
{
	static const char *const ends[] = {"." KEYS, "." VALUES};
	const size_t length = strlen(name);

	for (size_t i = 0; i < 2; i++)
		if (length > strlen(ends[i]) && !strcmp(name + length - strlen(ends[i]), ends[i]))
			return true;
	return false;
}
