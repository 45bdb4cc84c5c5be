/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/model/error.h"
#include "daemon/model/plan.h"

#define NO_LAYER UINT32_MAX
/* norms 4, q, k, v, o, gate, up, down and a bias of each; or norms 4, q_a, q, kv_a, kv_b, o, gate, up,
 * down and biases, router and its bias, and of each expert three */
#define PLACEMENTS_PER_LAYER 20
#define PLACEMENTS_PER_EXPERT 3
#define PLACEMENTS_BESIDE 5 /* embedding, head, norm; a draft's fc and its bias */

/* A tensor's rows in a weight; for vectors, its length. */
struct part {
	const char *name;
	uint32_t rows;
};

uint32_t plan_placements_max(const struct model_config *config)
{
	return config->n_layers *
			(PLACEMENTS_PER_LAYER + config->experts.n * PLACEMENTS_PER_EXPERT) +
		PLACEMENTS_BESIDE;
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
		"%s: tensor \"%s\": shape [%s] is not [%s], which the configuration makes it%s%s",
		path_of(plan, tensor), tensor->name, have, want,
		plan->assumed[0] ? ", with defaults for what it leaves out: " : "", plan->assumed);
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

/* What one weight is made of: parts one after another, or, of n_experts experts, each one's parts. */
struct recipe {
	uint32_t layer; /* NO_LAYER: the parts' names are whole */
	const struct part *parts;
	uint32_t n_parts, n_experts;
	uint32_t cols; /* 0: a vector */
	bool as_f32;   /* whatever the device's activations are */
};

static int find_part(const struct plan *plan, const struct recipe *recipe, uint32_t i,
	const struct safetensors_tensor **ret)
{
	const struct part *part = &recipe->parts[i % recipe->n_parts];
	char name[96];

	if (recipe->layer == NO_LAYER)
		snprintf(name, sizeof(name), "%s", part->name);
	else if (recipe->n_experts)
		snprintf(name, sizeof(name), "model.layers.%u.mlp.experts.%u.%s", recipe->layer,
			i / recipe->n_parts, part->name);
	else if (plan->family == MODEL_EAGLE3)
		snprintf(name, sizeof(name), "midlayer.%s", part->name);
	else
		snprintf(name, sizeof(name), "%slayers.%u.%s",
			plan->family == MODEL_EAGLE ? "" : "model.", recipe->layer, part->name);
	return find(plan, name, part->rows, recipe->cols, ret);
}

/* The dtype that all of them will have. */
static int choose_dtype(const struct plan *plan, const struct recipe *recipe, uint32_t n,
	uint32_t *ret_rows, enum dtype *ret)
{
	const struct safetensors_tensor *tensor;
	enum dtype dtype = DTYPE_F32;
	uint32_t rows = 0;

	for (uint32_t i = 0; i < n; i++) {
		int rc = find_part(plan, recipe, i, &tensor);

		if (rc)
			return rc;
		if (!i)
			dtype = tensor->dtype;
		else if (tensor->dtype != dtype)
			dtype = DTYPE_F32;
		rows += recipe->parts[i % recipe->n_parts].rows;
	}
	if (plan->activation_dtype != DTYPE_F32)
		dtype = plan->activation_dtype;
	*ret = recipe->as_f32 ? DTYPE_F32 : dtype;
	*ret_rows = rows;
	return 0;
}

static int place_recipe(struct plan *plan, const struct recipe *recipe, struct weight *ret)
{
	uint32_t n = recipe->n_parts * (recipe->n_experts ? recipe->n_experts : 1), rows;
	size_t cols = recipe->cols ? recipe->cols : 1;
	enum dtype dtype;
	uint8_t *target;
	int rc = choose_dtype(plan, recipe, n, &rows, &dtype);

	if (rc)
		return rc;
	target = arena_take(&plan->arena, rows * cols, dtype_bytes(dtype));
	*ret = (struct weight){.data = target,
		.dtype = dtype,
		.rows = recipe->cols ? rows : 1,
		.cols = recipe->cols ? recipe->cols : rows};
	for (uint32_t i = 0; !rc && target && plan->placements && i < n; i++) {
		const struct safetensors_tensor *tensor = NULL;

		rc = find_part(plan, recipe, i, &tensor);
		plan->placements[plan->n_placements++] = (struct plan_placement){
			.tensor = tensor, .target = target, .dtype = dtype};
		target += recipe->parts[i % recipe->n_parts].rows * cols * dtype_bytes(dtype);
	}
	return rc;
}

/* Parts one after another as one weight; cols 0: as one vector. */
static int place(struct plan *plan, uint32_t layer, const struct part *parts, uint32_t n_parts,
	uint32_t cols, struct weight *ret)
{
	return place_recipe(plan,
		&(struct recipe){.layer = layer, .parts = parts, .n_parts = n_parts, .cols = cols},
		ret);
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
	uint32_t cols = c->family == MODEL_EAGLE3 ? 2 * c->hidden_size : c->hidden_size;
	int rc = place(plan, layer, weights, 3, cols, &l->qkv);

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

/* Queries may have a latent of their own; biases are on what reads the hidden state, and on o. */
static int place_query(struct plan *plan, const struct model_config *c, uint32_t layer,
	struct model_layer *l)
{
	uint32_t q = c->n_heads * (c->latent.nope + c->latent.rope);
	int rc;

	if (!c->q_rank)
		return place_one(
			plan, layer, "self_attn.q_proj.weight", q, c->hidden_size, &l->q);
	rc = place_one(plan, layer, "self_attn.q_a_proj.weight", c->q_rank, c->hidden_size, &l->q_a);
	if (!rc && c->o_bias)
		rc = place_one(plan, layer, "self_attn.q_a_proj.bias", c->q_rank, 0, &l->q_a_bias);
	if (!rc)
		rc = place_one(
			plan, layer, "self_attn.q_a_layernorm.weight", c->q_rank, 0, &l->q_a_norm);
	return rc ? rc : place_one(plan, layer, "self_attn.q_b_proj.weight", q, c->q_rank, &l->q);
}

static int place_latent_attention(struct plan *plan, const struct model_config *c, uint32_t layer,
	struct model_layer *l)
{
	const struct attention_latent *a = &c->latent;
	uint32_t kv = a->rank + a->rope;
	int rc = place_query(plan, c, layer, l);

	if (!rc)
		rc = place_one(plan, layer, "self_attn.kv_a_proj_with_mqa.weight", kv,
			c->hidden_size, &l->kv_a);
	if (!rc && c->o_bias)
		rc = place_one(
			plan, layer, "self_attn.kv_a_proj_with_mqa.bias", kv, 0, &l->kv_a_bias);
	if (!rc)
		rc = place_one(
			plan, layer, "self_attn.kv_a_layernorm.weight", a->rank, 0, &l->kv_a_norm);
	if (!rc)
		rc = place_one(plan, layer, "self_attn.kv_b_proj.weight",
			c->n_heads * (a->nope + a->v), a->rank, &l->kv_b);
	if (!rc)
		rc = place_one(plan, layer, "self_attn.o_proj.weight", c->hidden_size,
			c->n_heads * a->v, &l->o);
	if (!rc && c->o_bias)
		rc = place_one(plan, layer, "self_attn.o_proj.bias", c->hidden_size, 0, &l->o_bias);
	return rc;
}

static int place_mlp(struct plan *plan, const struct model_config *c, uint32_t layer,
	const char *prefix, uint32_t inner, struct model_layer *l)
{
	char gate[64], up[64], down[64];
	struct part parts[] = {{gate, inner}, {up, inner}};
	int rc;

	snprintf(gate, sizeof(gate), "%s.gate_proj.weight", prefix);
	snprintf(up, sizeof(up), "%s.up_proj.weight", prefix);
	snprintf(down, sizeof(down), "%s.down_proj.weight", prefix);
	rc = place(plan, layer, parts, 2, c->hidden_size, &l->gate_up);
	if (!rc)
		rc = place_one(plan, layer, down, c->hidden_size, inner, &l->down);
	if (rc || !c->mlp_bias)
		return rc;
	snprintf(gate, sizeof(gate), "%s.gate_proj.bias", prefix);
	snprintf(up, sizeof(up), "%s.up_proj.bias", prefix);
	snprintf(down, sizeof(down), "%s.down_proj.bias", prefix);
	rc = place(plan, layer, parts, 2, 0, &l->gate_up_bias);
	return rc ? rc : place_one(plan, layer, down, c->hidden_size, 0, &l->down_bias);
}

static int place_experts(struct plan *plan, const struct model_config *c, uint32_t layer,
	struct model_layer *l)
{
	const struct model_experts *e = &c->experts;
	const struct part bias = {"mlp.gate.e_score_correction_bias", e->n};
	const struct part gate_up[] = {{"gate_proj.weight", e->intermediate_size},
		{"up_proj.weight", e->intermediate_size}};
	const struct part down = {"down_proj.weight", c->hidden_size};
	struct recipe recipe = {.layer = layer, .parts = &bias, .n_parts = 1, .as_f32 = true};
	int rc = place_one(plan, layer, "mlp.gate.weight", e->n, c->hidden_size, &l->router);

	if (!rc && e->choice_bias)
		rc = place_recipe(plan, &recipe, &l->router_bias);
	recipe = (struct recipe){.layer = layer, .parts = gate_up, .n_parts = 2, .n_experts = e->n,
		.cols = c->hidden_size};
	if (!rc)
		rc = place_recipe(plan, &recipe, &l->expert_gate_up);
	recipe.parts = &down;
	recipe.n_parts = 1;
	recipe.cols = e->intermediate_size;
	if (!rc)
		rc = place_recipe(plan, &recipe, &l->expert_down);
	if (rc || !e->n_shared)
		return rc;
	return place_mlp(plan, c, layer, "mlp.shared_experts", e->n_shared * e->intermediate_size, l);
}

static int place_layer(struct plan *plan, const struct model_config *c, uint32_t layer,
	struct model_layer *l)
{
	int rc =
		place_one(plan, layer, "input_layernorm.weight", c->hidden_size, 0, &l->input_norm);

	if (!rc)
		rc = c->latent.rank ? place_latent_attention(plan, c, layer, l)
				    : place_attention(plan, c, layer, l);
	if (!rc)
		rc = place_one(plan, layer, "post_attention_layernorm.weight", c->hidden_size, 0,
			&l->post_norm);
	if (rc)
		return rc;
	return model_layer_has_experts(c, layer)
		? place_experts(plan, c, layer, l)
		: place_mlp(plan, c, layer, "mlp", c->intermediate_size, l);
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

/* ---- drafts ---- */

/* What a draft lacks it has from its target, and its data stays NULL. EAGLE's copies of the
 * target's are not looked at. With a tied head the embedding that it brings is its head as well. */
static int place_draft_ends(struct plan *plan, const struct model_config *c, struct model *model)
{
	const char *embedding = "embed_tokens.weight", *head = "lm_head.weight";
	bool is_eagle3 = c->family == MODEL_EAGLE3;
	uint32_t fc_cols = (is_eagle3 ? MODEL_FEATURES : 2) * c->hidden_size;
	int rc = place_one(plan, NO_LAYER, "fc.weight", c->hidden_size, fc_cols, &model->fc);

	if (!rc && safetensors_find(plan->checkpoint, "fc.bias"))
		rc = place_one(plan, NO_LAYER, "fc.bias", c->hidden_size, 0, &model->fc_bias);
	if (rc || !is_eagle3)
		return rc;
	rc = place_one(plan, NO_LAYER, "norm.weight", c->hidden_size, 0, &model->final_norm);
	if (!rc && safetensors_find(plan->checkpoint, embedding))
		rc = place_one(plan, NO_LAYER, embedding, c->vocab_size, c->hidden_size,
			&model->embedding);
	if (rc)
		return rc;
	if (safetensors_find(plan->checkpoint, head) || c->draft.vocab_size != c->vocab_size)
		return place_one(plan, NO_LAYER, head, c->draft.vocab_size, c->hidden_size,
			&model->head);
	if (c->tie_word_embeddings)
		model->head = model->embedding;
	return 0;
}

static int place_draft(struct plan *plan, const struct model_config *c, struct model *model)
{
	struct model_layer *l = &model->layers[0];
	int rc = place_draft_ends(plan, c, model);

	if (!rc && c->family == MODEL_EAGLE3)
		rc = place_one(
			plan, 0, "input_layernorm.weight", c->hidden_size, 0, &l->input_norm);
	if (!rc && c->family == MODEL_EAGLE3)
		rc = place_one(plan, 0, "hidden_norm.weight", c->hidden_size, 0, &l->hidden_norm);
	if (!rc)
		rc = place_attention(plan, c, 0, l);
	if (!rc)
		rc = place_one(plan, 0, "post_attention_layernorm.weight", c->hidden_size, 0,
			&l->post_norm);
	if (!rc)
		rc = place_mlp(plan, c, 0, "mlp", c->intermediate_size, l);
	if (!rc && c->family == MODEL_EAGLE3 && safetensors_find(plan->checkpoint, "d2t"))
		model->d2t =
			arena_take(&plan->arena, c->draft.vocab_size, sizeof(*model->d2t));
	return rc;
}

/* ---- all of it ---- */

static int place_model(struct plan *plan, const struct model_config *c, struct model *model)
{
	int rc = place_ends(plan, c, model);

	for (uint32_t layer = 0; !rc && layer < c->n_layers; layer++)
		rc = place_layer(plan, c, layer, &model->layers[layer]);
	return rc;
}

int plan_model(struct plan *plan, struct model *model)
{
	const struct model_config *c = &model->config;
	int rc;

	plan->family = c->family;
	plan->assumed = c->assumed;
	rc = c->draft.vocab_size ? place_draft(plan, c, model) : place_model(plan, c, model);
	if (rc)
		return rc;
	model->weights_bytes = plan->arena.used;
	model->cos_sin = arena_take(&plan->arena, (size_t)model->max_positions * c->head_dim,
		sizeof(float));
	if (plan->arena.failed)
		return model_fail(plan->error, -EOVERFLOW, "%s: the model's size overflows",
			plan->directory);
	return 0;
}
