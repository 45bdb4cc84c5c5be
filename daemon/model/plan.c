/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/model/error.h"
#include "daemon/model/plan.h"

#define NO_LAYER UINT32_MAX
#define PARTS_MAX 3
/* norms 4, q, k, v, o, gate, up, down and a bias of each */
#define PLACEMENTS_PER_LAYER 18
#define PLACEMENTS_BESIDE 3

/* A tensor's rows in a weight; for vectors, its length. */
struct part {
	const char *name;
	uint32_t rows;
};

uint32_t plan_placements_max(const struct model_config *config)
{
	return config->n_layers * PLACEMENTS_PER_LAYER + PLACEMENTS_BESIDE;
}

static const char *path_of(const struct plan *plan, const struct safetensors_tensor *tensor)
{
	return tensor ? plan->checkpoint->files[tensor->file].path : plan->directory;
}

static int refuse_shape(const struct plan *plan, const struct safetensors_tensor *tensor,
	uint32_t rows, uint32_t cols)
{
	char have[SAFETENSORS_DIMS_MAX * 22 + 1] = "", want[32];
	size_t at = 0;

	for (uint32_t i = 0; i < tensor->n_dims; i++)
		at += (size_t)snprintf(have + at, sizeof(have) - at, "%s%" PRIu64, i ? ", " : "",
			tensor->shape[i]);
	if (cols)
		snprintf(want, sizeof(want), "%u, %u", rows, cols);
	else
		snprintf(want, sizeof(want), "%u", rows);
	return model_fail(plan->error, -EINVAL,
		"%s: tensor \"%s\": shape [%s] is not [%s], which the configuration makes it",
		path_of(plan, tensor), tensor->name, have, want);
}

/* The tensor, checked; cols 0: a vector of `rows` elements. */
static int find(const struct plan *plan, const char *name, uint32_t rows, uint32_t cols,
	const struct safetensors_tensor **ret)
{
	const struct safetensors_tensor *tensor = safetensors_find(plan->checkpoint, name);

	if (!tensor)
		return model_fail(plan->error, -EINVAL, "%s: tensor \"%s\" is missing",
			plan->checkpoint->n_files == 1 ? plan->checkpoint->files[0].path
						       : plan->directory,
			name);
	if (!tensor->usable)
		return model_fail(plan->error, -ENOTSUP,
			"%s: tensor \"%s\": dtype %s is not one of F32, BF16, F16",
			path_of(plan, tensor), name, tensor->dtype_name);
	if (tensor->n_dims != (cols ? 2 : 1) || tensor->shape[0] != rows ||
		(cols && tensor->shape[1] != cols))
		return refuse_shape(plan, tensor, rows, cols);
	*ret = tensor;
	return 0;
}

/* Parts one after another as one weight; cols 0: as one vector. */
static int place(struct plan *plan, uint32_t layer, const struct part *parts, uint32_t n_parts,
	uint32_t cols, struct weight *ret)
{
	const struct safetensors_tensor *tensors[PARTS_MAX] = {0};
	char name[96];
	uint32_t rows = 0;
	enum dtype dtype;
	uint8_t *target;

	for (uint32_t i = 0; i < n_parts; i++) {
		int rc;

		if (layer == NO_LAYER)
			snprintf(name, sizeof(name), "%s", parts[i].name);
		else
			snprintf(name, sizeof(name), "model.layers.%u.%s", layer, parts[i].name);
		rc = find(plan, name, parts[i].rows, cols, &tensors[i]);
		if (rc)
			return rc;
		rows += parts[i].rows;
	}
	dtype = tensors[0]->dtype;
	for (uint32_t i = 1; i < n_parts; i++) {
		if (tensors[i]->dtype != dtype)
			dtype = DTYPE_F32;
	}
	if (plan->activation_dtype != DTYPE_F32)
		dtype = plan->activation_dtype;

	target = arena_take(&plan->arena, (size_t)rows * (cols ? cols : 1), dtype_bytes(dtype));
	*ret = (struct weight){.data = target,
		.dtype = dtype,
		.rows = cols ? rows : 1,
		.cols = cols ? cols : rows};
	for (uint32_t i = 0; target && plan->placements && i < n_parts; i++) {
		plan->placements[plan->n_placements++] = (struct plan_placement){
			.tensor = tensors[i], .target = target, .dtype = dtype};
		target += (size_t)parts[i].rows * (cols ? cols : 1) * dtype_bytes(dtype);
	}
	return 0;
}

static int place_one(struct plan *plan, uint32_t layer, const char *name, uint32_t rows,
	uint32_t cols, struct weight *ret)
{
	return place(plan, layer, &(struct part){name, rows}, 1, cols, ret);
}

static int place_attention(struct plan *plan, const struct model_config *c, uint32_t layer,
	struct model_layer *l)
{
	uint32_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
	const struct part weights[] = {{"self_attn.q_proj.weight", q},
		{"self_attn.k_proj.weight", kv}, {"self_attn.v_proj.weight", kv}};
	const struct part biases[] = {{"self_attn.q_proj.bias", q}, {"self_attn.k_proj.bias", kv},
		{"self_attn.v_proj.bias", kv}};
	int rc = place(plan, layer, weights, 3, c->hidden_size, &l->qkv);

	if (!rc && c->qkv_bias)
		rc = place(plan, layer, biases, 3, 0, &l->qkv_bias);
	if (!rc && c->qk_norm)
		rc = place_one(plan, layer, "self_attn.q_norm.weight", c->head_dim, 0, &l->q_norm);
	if (!rc && c->qk_norm)
		rc = place_one(plan, layer, "self_attn.k_norm.weight", c->head_dim, 0, &l->k_norm);
	if (!rc)
		rc = place_one(plan, layer, "self_attn.o_proj.weight", c->hidden_size, q, &l->o);
	if (!rc && c->o_bias)
		rc = place_one(plan, layer, "self_attn.o_proj.bias", c->hidden_size, 0, &l->o_bias);
	return rc;
}

static int place_mlp(struct plan *plan, const struct model_config *c, uint32_t layer,
	struct model_layer *l)
{
	uint32_t inner = c->intermediate_size;
	const struct part weights[] = {
		{"mlp.gate_proj.weight", inner}, {"mlp.up_proj.weight", inner}};
	const struct part biases[] = {{"mlp.gate_proj.bias", inner}, {"mlp.up_proj.bias", inner}};
	int rc = place(plan, layer, weights, 2, c->hidden_size, &l->gate_up);

	if (!rc && c->mlp_bias)
		rc = place(plan, layer, biases, 2, 0, &l->gate_up_bias);
	if (!rc)
		rc = place_one(
			plan, layer, "mlp.down_proj.weight", c->hidden_size, inner, &l->down);
	if (!rc && c->mlp_bias)
		rc = place_one(plan, layer, "mlp.down_proj.bias", c->hidden_size, 0, &l->down_bias);
	return rc;
}

static int place_layer(struct plan *plan, const struct model_config *c, uint32_t layer,
	struct model_layer *l)
{
	int rc =
		place_one(plan, layer, "input_layernorm.weight", c->hidden_size, 0, &l->input_norm);

	if (!rc)
		rc = place_attention(plan, c, layer, l);
	if (!rc)
		rc = place_one(plan, layer, "post_attention_layernorm.weight", c->hidden_size, 0,
			&l->post_norm);
	return rc ? rc : place_mlp(plan, c, layer, l);
}

/* With a tied head either name may stand for both; where both are there, each is used as it is. */
static int place_ends(struct plan *plan, const struct model_config *c, struct model *model)
{
	const char *embedding = "model.embed_tokens.weight", *head = "lm_head.weight";
	bool has_embedding = safetensors_find(plan->checkpoint, embedding);
	bool has_head = safetensors_find(plan->checkpoint, head);
	int rc;

	if (c->tie_word_embeddings && !has_embedding && has_head)
		embedding = head;
	rc = place_one(plan, NO_LAYER, embedding, c->vocab_size, c->hidden_size, &model->embedding);
	if (rc)
		return rc;
	if (c->tie_word_embeddings && !(has_embedding && has_head))
		model->head = model->embedding;
	else
		rc = place_one(plan, NO_LAYER, head, c->vocab_size, c->hidden_size, &model->head);
	return rc ? rc
		  : place_one(plan, NO_LAYER, "model.norm.weight", c->hidden_size, 0,
			    &model->final_norm);
}

int plan_model(struct plan *plan, struct model *model)
{
	const struct model_config *c = &model->config;
	int rc = place_ends(plan, c, model);

	for (uint32_t layer = 0; !rc && layer < c->n_layers; layer++)
		rc = place_layer(plan, c, layer, &model->layers[layer]);
	if (rc)
		return rc;
	model->cos_sin = arena_take(&plan->arena, (size_t)model->max_positions * c->head_dim,
		sizeof(float));
	if (plan->arena.failed)
		return model_fail(plan->error, -EOVERFLOW, "%s: the model's size overflows",
			plan->directory);
	return 0;
}
