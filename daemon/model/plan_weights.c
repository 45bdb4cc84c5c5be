/* SPDX-License-Identifier: MIT */
#include <assert.h>
#include <stdio.h>

#include "daemon/model/plan_weights.h"
#include "daemon/model/quantised_order.h"
#include "kernels/packed.h"

/* norms 4, q, k, v, o, gate, up, down and a bias of each; or norms 4, q_a, q, kv_a, kv_b, o, gate, up,
 * down and biases, router and its bias, and of each expert three */
#define PLACEMENTS_PER_LAYER 20
#define PLACEMENTS_PER_EXPERT 3
#define PLACEMENTS_BESIDE 5 /* embedding, head, norm; a draft model's fc and its bias; or its fc and three norms */
#define UNIT_ALIGN 16 /* each lane of a warp loads so many bytes of a unit at once */

/* A tensor's rows in a weight; for vectors, its length. */
struct plan_part {
	const char *name;
	uint32_t rows;
	uint32_t head_rows, n_heads; /* of q and k, which begin it; else 0 */
};

uint32_t plan_placements_max(const struct model_config *config)
{
	return config->n_layers *
			(PLACEMENTS_PER_LAYER + config->experts.n * PLACEMENTS_PER_EXPERT) +
		PLACEMENTS_BESIDE;
}

/* The composition of one weight: parts one after another, or the parts of each of n_experts experts. */
struct plan_recipe {
	uint32_t layer; /* PLAN_NO_LAYER: the parts' names are whole */
	const struct plan_part *parts;
	uint32_t n_parts, n_experts;
	uint32_t cols; /* 0: a vector */
	enum plan_kind kind;
	bool as_f32;   /* whatever the device's activations are */
	bool adds_one; /* to each element */
	bool may_pack; /* only products take it */
	bool rounds;   /* to e4m3, where the file has it not quantised */
	struct quantised_order row_order, col_order; /* of quantised parts; col_order: of ones that are packed */
};

void plan_layer_name(const struct model_config *config, uint32_t layer, const char *part, char ret[PLAN_NAME_MAX])
{
	if (config->family == MODEL_EAGLE3)
		snprintf(ret, PLAN_NAME_MAX, "midlayer.%s", part);
	else
		snprintf(ret, PLAN_NAME_MAX, "%slayers.%u.%s", config->family == MODEL_EAGLE ? "" : "model.",
			config->first_layer + layer, part);
}

static bool plan_find_part(struct plan *plan, const struct plan_recipe *recipe, uint32_t i,
	struct plan_placement *ret)
{
	const struct plan_part *part = &recipe->parts[i % recipe->n_parts];
	char name[PLAN_NAME_MAX], of_expert[64];

	snprintf(of_expert, sizeof(of_expert), "mlp.experts.%u.%s", i / recipe->n_parts, part->name);
	if (recipe->layer == PLAN_NO_LAYER)
		snprintf(name, sizeof(name), "%s", part->name);
	else
		plan_layer_name(plan->config, recipe->layer, recipe->n_experts ? of_expert : part->name, name);
	ret->head_rows = plan->checkpoint->has_pairs || plan->rotary_dim ? part->head_rows : 0;
	ret->n_heads = part->n_heads;
	ret->rotary_rows = plan->rotary_dim;
	if (!plan_tensor_find(plan, &(struct plan_want){name, part->rows, recipe->cols, recipe->kind}, ret))
		return false;
	ret->rounds = recipe->rounds && !ret->source.format;
	ret->adds_one = recipe->adds_one;
	ret->source.row_order = recipe->row_order;
	ret->source.col_order = recipe->col_order;
	return true;
}

/* Of the weight that the parts make. */
struct plan_form {
	enum dtype dtype;
	bool is_packed, grouped; /* grouped: if packed */
	uint32_t rows;
};

/* Can parts of these forms be packed as one weight? */
static bool plan_packs_with(const struct quantised_packing *a, const struct quantised_packing *b)
{
	return a->dtype == b->dtype && a->grouped == b->grouped;
}

/* Can the weight, whose earlier parts have the form, be packed with this one in it? */
static bool plan_packs_part(struct plan *plan, const struct plan_placement *part, bool is_first,
	struct quantised_packing *form)
{
	struct quantised_packing own = {.dtype = DTYPE_E4M3}; /* of what is rounded */
	int rc = QUANTISED_WIDENS;

	if (part->source.format)
		rc = quantised_packing_of(&part->source, plan->checkpoint, &own, plan->error);
	else if (part->rounds && packed_fits((uint32_t)part->tensor->shape[0], plan_cols(part)))
		rc = 0;
	if (rc < 0)
		plan->rc = rc;
	if (rc || (!is_first && !plan_packs_with(&own, form)))
		return false;
	*form = own;
	return true;
}

/* False: the plan has failed. */
static bool plan_choose_form(
	struct plan *plan, const struct plan_recipe *recipe, uint32_t n, struct plan_form *ret)
{
	struct plan_form form = {.dtype = DTYPE_F32, .is_packed = plan->packs && recipe->may_pack};
	struct quantised_packing packing = {0};
	struct plan_placement part;

	for (uint32_t i = 0; i < n; i++) {
		if (!plan_find_part(plan, recipe, i, &part))
			return false;
		const enum dtype own = part.source.format || part.rounds ? DTYPE_F32 : part.tensor->dtype;

		form.dtype = i && own != form.dtype ? DTYPE_F32 : own;
		form.rows += recipe->parts[i % recipe->n_parts].rows;
		form.is_packed = form.is_packed && plan_packs_part(plan, &part, !i, &packing);
	}
	/* products of experts do not take it */
	form.is_packed &= !(recipe->n_experts && packing.dtype == DTYPE_U4_32);
	if (form.is_packed) {
		form.dtype = packing.dtype;
		form.grouped = packing.grouped || recipe->n_experts; /* which products of experts want */
	} else if (recipe->as_f32) {
		form.dtype = DTYPE_F32;
	} else if (plan->activation_dtype != DTYPE_F32) {
		form.dtype = plan->activation_dtype;
	}
	*ret = form;
	return !plan->rc;
}

static size_t plan_form_row_bytes(enum dtype dtype, bool grouped, uint32_t cols)
{
	if (!packed_is(dtype))
		return cols * dtype_bytes(dtype);
	return packed_bytes(PACKED_ROWS, cols, dtype, grouped) / PACKED_ROWS;
}

size_t plan_row_bytes(const struct plan_placement *p)
{
	return plan_form_row_bytes(p->dtype, !p->factors, plan_cols(p));
}

uint32_t plan_rows_together(const struct plan_placement *p)
{
	return packed_is(p->dtype) ? PACKED_ROWS : 1;
}

static void plan_place_parts(struct plan *plan, const struct plan_recipe *recipe, uint32_t n,
	const struct weight *weight, size_t row_bytes, uint32_t *order)
{
	uint8_t *target = (uint8_t *)weight->data;
	float *factors = (float *)weight->factors;

	for (uint32_t i = 0; i < n; i++) {
		const uint32_t rows = recipe->parts[i % recipe->n_parts].rows;
		struct plan_placement *placement = &plan->placements[plan->n_placements++];

		assert(plan->n_placements <= plan->max_placements);
		plan_find_part(plan, recipe, i, placement);
		placement->target = target;
		placement->dtype = weight->dtype;
		placement->factors = factors;
		placement->order = i ? NULL : order;
		target += rows * row_bytes;
		factors = factors ? factors + rows : NULL;
	}
}

/* *ret_order, unless NULL: memory for the order of columns; NULL if they have none. */
static struct weight plan_recipe_in_order(
	struct plan *plan, const struct plan_recipe *recipe, const uint32_t **ret_order)
{
	const uint32_t n = recipe->n_parts * (recipe->n_experts ? recipe->n_experts : 1);
	const uint32_t cols = recipe->cols ? recipe->cols : 1;
	struct plan_form form;
	uint32_t *order = NULL;
	size_t row_bytes;

	if (plan->rc || !plan_choose_form(plan, recipe, n, &form))
		return (struct weight){0};
	assert(form.is_packed || !recipe->col_order.groups);
	row_bytes = plan_form_row_bytes(form.dtype, form.grouped, cols);
	struct weight weight = {
		.dtype = form.dtype,
		.rows = recipe->cols ? form.rows : 1,
		.cols = recipe->cols ? recipe->cols : form.rows,
	};
	if (form.is_packed)
		weight.data = arena_take(&plan->arena, form.rows * row_bytes / UNIT_ALIGN, UNIT_ALIGN);
	else
		weight.data = arena_take(&plan->arena, (size_t)form.rows * cols, dtype_bytes(form.dtype));
	if (form.is_packed && !form.grouped)
		weight.factors = arena_take(&plan->arena, form.rows, sizeof(*weight.factors));
	if (recipe->col_order.groups && ret_order)
		*ret_order = order = arena_take(&plan->arena, cols, sizeof(*order));
	if (weight.data && plan->placements && !plan->arena.failed)
		plan_place_parts(plan, recipe, n, &weight, row_bytes, order);
	return weight;
}

static struct weight plan_recipe(struct plan *plan, const struct plan_recipe *recipe)
{
	return plan_recipe_in_order(plan, recipe, NULL);
}

/* ---- columns in the order of their groups (quantised_order.h) ---- */

/* The order of a part that can be packed if its columns have one, and its form then. False: it cannot, or need not. */
static bool plan_find_order(struct plan *plan, const struct plan_recipe *recipe, uint32_t i,
	struct quantised_order *ret, struct quantised_packing *ret_form)
{
	struct plan_placement part;
	int rc = QUANTISED_UNORDERED;

	if (!plan->packs || !plan_find_part(plan, recipe, i, &part))
		return false;
	if (part.source.format)
		rc = quantised_order_of(&part.source, plan->checkpoint, ret, plan->error);
	if (!rc) {
		part.source.col_order = *ret;
		rc = quantised_packing_of(&part.source, plan->checkpoint, ret_form, plan->error);
	}
	if (rc < 0)
		plan->rc = rc;
	return !rc;
}

/* Set the recipe's order of columns, if all parts have the same, and can be packed as one weight. */
static void plan_order_columns(struct plan *plan, struct plan_recipe *recipe)
{
	struct quantised_packing form, other_form;
	struct quantised_order first, other;
	bool same = plan_find_order(plan, recipe, 0, &first, &form);

	for (uint32_t i = 1; i < recipe->n_parts && same && !plan->rc; i++) {
		same = plan_find_order(plan, recipe, i, &other, &other_form) && plan_packs_with(&other_form, &form);
		if (same)
			plan->rc = quantised_order_same(&first, &other, plan->checkpoint, &same, plan->error);
	}
	if (same && !plan->rc)
		recipe->col_order = first;
}

/* Likewise of one whose x is a norm of the hidden state. */
static void plan_order_normed(struct plan *plan, struct plan_recipe *recipe)
{
	if (recipe->cols <= RMS_NORM_ORDER_MAX)
		plan_order_columns(plan, recipe);
}

/* Set the order of the columns of down and of the rows of gate and up, which have no biases. */
static void plan_order_inner(struct plan *plan, struct plan_recipe *gate_up, struct plan_recipe *down)
{
	struct plan_placement part;

	for (uint32_t i = 0; i < gate_up->n_parts; i++)
		if (!plan_find_part(plan, gate_up, i, &part) || !quantised_takes_row_order(&part.source))
			return;
	plan_order_columns(plan, down);
	gate_up->row_order = down->col_order;
}

/* Parts one after another as one weight, which only products take; cols 0: as one vector. */
static struct weight plan_parts(struct plan *plan, uint32_t layer, const struct plan_part *parts,
	uint32_t n_parts, uint32_t cols)
{
	return plan_recipe(plan,
		&(struct plan_recipe){.layer = layer, .parts = parts, .n_parts = n_parts, .cols = cols,
			.may_pack = cols != 0});
}

struct weight plan_one(
	struct plan *plan, uint32_t layer, const char *name, uint32_t rows, uint32_t cols)
{
	return plan_parts(plan, layer, &(struct plan_part){name, rows, 0, 0}, 1, cols);
}

/* In float32 where it is 1 + the weight, which bf16 would round. */
static struct weight plan_norm_of(
	struct plan *plan, const struct model_config *c, uint32_t layer, const char *name, uint32_t n)
{
	return plan_recipe(plan,
		&(struct plan_recipe){.layer = layer,
			.parts = &(struct plan_part){name, n, 0, 0},
			.n_parts = 1,
			.as_f32 = c->norms_add_one,
			.adds_one = c->norms_add_one});
}

struct weight plan_norm(struct plan *plan, const struct model_config *c, uint32_t layer, const char *name)
{
	return plan_norm_of(plan, c, layer, name, c->hidden_size);
}

struct weight plan_of_kind(struct plan *plan, enum plan_kind kind, uint32_t layer,
	const char *name, uint32_t rows, uint32_t cols)
{
	return plan_recipe(plan,
		&(struct plan_recipe){.layer = layer,
			.parts = &(struct plan_part){name, rows, 0, 0},
			.n_parts = 1,
			.cols = cols,
			.kind = kind});
}

struct weight plan_end(struct plan *plan, uint32_t layer, const char *name, uint32_t rows, uint32_t cols)
{
	return plan_recipe(plan,
		&(struct plan_recipe){.layer = layer,
			.parts = &(struct plan_part){name, rows, 0, 0},
			.n_parts = 1,
			.cols = cols,
			.kind = PLAN_EITHER,
			.may_pack = true});
}

void plan_attention(struct plan *plan, const struct model_config *c, uint32_t layer,
	struct model_layer *l)
{
	const uint32_t dim = c->head_dim, q = c->n_heads * dim, kv = c->n_kv_heads * dim;
	const struct plan_part weights[] = {{"self_attn.q_proj.weight", q, dim, c->n_heads},
		{"self_attn.k_proj.weight", kv, dim, c->n_kv_heads}, {"self_attn.v_proj.weight", kv, 0, 0}};
	const struct plan_part biases[] = {{"self_attn.q_proj.bias", q, dim, c->n_heads},
		{"self_attn.k_proj.bias", kv, dim, c->n_kv_heads}, {"self_attn.v_proj.bias", kv, 0, 0}};
	const struct plan_part fused = {"self_attn.qkv_proj.weight", q + 2 * kv, dim, c->n_heads + c->n_kv_heads};
	uint32_t cols = c->family == MODEL_EAGLE3 ? 2 * c->hidden_size : c->hidden_size;

	struct plan_recipe qkv = {.layer = layer, .parts = weights, .n_parts = 3, .cols = cols, .may_pack = true};

	if (c->family == MODEL_PHI3) {
		qkv.parts = &fused;
		qkv.n_parts = 1;
	}
	if (c->family < MODEL_EAGLE) /* x is not a norm itself */
		plan_order_normed(plan, &qkv);
	l->qkv = plan_recipe_in_order(plan, &qkv, &l->input_order);
	if (c->qkv_bias)
		l->qkv_bias = plan_parts(plan, layer, biases, 3, 0);
	if (c->qk_norm) {
		l->q_norm = plan_norm_of(plan, c, layer, "self_attn.q_norm.weight", c->head_dim);
		l->k_norm = plan_norm_of(plan, c, layer, "self_attn.k_norm.weight", c->head_dim);
	}
	l->o = plan_one(plan, layer, "self_attn.o_proj.weight", c->hidden_size, q);
	if (c->o_bias)
		l->o_bias = plan_one(plan, layer, "self_attn.o_proj.bias", c->hidden_size, 0);
}

/* Queries may have a latent of their own; biases are on what reads the hidden state, and on o. */
static void plan_query(struct plan *plan, const struct model_config *c, uint32_t layer,
	struct model_layer *l)
{
	uint32_t q = c->n_heads * (c->latent.nope + c->latent.rope);

	if (!c->q_rank) {
		l->q = plan_one(plan, layer, "self_attn.q_proj.weight", q, c->hidden_size);
		return;
	}
	l->q_a = plan_one(plan, layer, "self_attn.q_a_proj.weight", c->q_rank, c->hidden_size);
	if (c->o_bias)
		l->q_a_bias = plan_one(plan, layer, "self_attn.q_a_proj.bias", c->q_rank, 0);
	l->q_a_norm = plan_one(plan, layer, "self_attn.q_a_layernorm.weight", c->q_rank, 0);
	l->q = plan_one(plan, layer, "self_attn.q_b_proj.weight", q, c->q_rank);
}

static void plan_latent_attention(struct plan *plan, const struct model_config *c, uint32_t layer,
	struct model_layer *l)
{
	const struct attention_latent *a = &c->latent;
	uint32_t hidden = c->hidden_size, kv = a->rank + a->rope;

	plan_query(plan, c, layer, l);
	l->kv_a = plan_one(plan, layer, "self_attn.kv_a_proj_with_mqa.weight", kv, hidden);
	if (c->o_bias)
		l->kv_a_bias = plan_one(plan, layer, "self_attn.kv_a_proj_with_mqa.bias", kv, 0);
	l->kv_a_norm = plan_one(plan, layer, "self_attn.kv_a_layernorm.weight", a->rank, 0);
	l->kv_b = plan_of_kind(plan, PLAN_LINEAR, layer, "self_attn.kv_b_proj.weight",
		c->n_heads * (a->nope + a->v), a->rank);
	l->o = plan_one(plan, layer, "self_attn.o_proj.weight", hidden, c->n_heads * a->v);
	if (c->o_bias)
		l->o_bias = plan_one(plan, layer, "self_attn.o_proj.bias", hidden, 0);
}

void plan_mlp(struct plan *plan, const struct model_config *c, uint32_t layer,
	const char *prefix, uint32_t inner, bool norm_has_order, struct model_layer *l)
{
	char gate[64], up[64], down[64];
	const bool is_fused = c->family == MODEL_PHI3;
	const struct plan_part parts[] = {{gate, inner, 0, 0}, {up, inner, 0, 0}};
	const struct plan_part fused = {"mlp.gate_up_proj.weight", 2 * inner, 0, 0};
	const struct plan_part down_part = {down, c->hidden_size, 0, 0};
	struct plan_recipe gate_up_recipe = {.layer = layer, .parts = is_fused ? &fused : parts,
		.n_parts = is_fused ? 1 : 2, .cols = c->hidden_size, .may_pack = true};
	struct plan_recipe down_recipe = {.layer = layer, .parts = &down_part, .n_parts = 1, .cols = inner,
		.may_pack = true};

	snprintf(gate, sizeof(gate), "%s.gate_proj.weight", prefix);
	snprintf(up, sizeof(up), "%s.up_proj.weight", prefix);
	snprintf(down, sizeof(down), "%s.down_proj.weight", prefix);
	if (!c->mlp_bias && !is_fused) /* the order is of gate's rows and of up's */
		plan_order_inner(plan, &gate_up_recipe, &down_recipe);
	if (norm_has_order)
		plan_order_normed(plan, &gate_up_recipe);
	l->gate_up = plan_recipe_in_order(plan, &gate_up_recipe, &l->post_order);
	l->down = plan_recipe(plan, &down_recipe);
	if (!c->mlp_bias)
		return;
	snprintf(gate, sizeof(gate), "%s.gate_proj.bias", prefix);
	snprintf(up, sizeof(up), "%s.up_proj.bias", prefix);
	snprintf(down, sizeof(down), "%s.down_proj.bias", prefix);
	l->gate_up_bias = plan_parts(plan, layer, parts, 2, 0);
	l->down_bias = plan_one(plan, layer, down, c->hidden_size, 0);
}

static void plan_experts(struct plan *plan, const struct model_config *c, uint32_t layer,
	struct model_layer *l)
{
	const struct model_experts *e = &c->experts;
	const struct plan_part bias = {"mlp.gate.e_score_correction_bias", e->n, 0, 0};
	const struct plan_part gate_up[] = {{"gate_proj.weight", e->intermediate_size, 0, 0},
		{"up_proj.weight", e->intermediate_size, 0, 0}};
	const struct plan_part down = {"down_proj.weight", c->hidden_size, 0, 0};

	l->router = plan_of_kind(plan, PLAN_EITHER, layer, "mlp.gate.weight", e->n, c->hidden_size);
	if (e->choice_bias)
		l->router_bias = plan_recipe(plan,
			&(struct plan_recipe){
				.layer = layer, .parts = &bias, .n_parts = 1, .as_f32 = true});
	l->expert_gate_up = plan_recipe(plan,
		&(struct plan_recipe){.layer = layer, .parts = gate_up, .n_parts = 2,
			.n_experts = e->n, .cols = c->hidden_size, .may_pack = true});
	l->expert_down = plan_recipe(plan,
		&(struct plan_recipe){.layer = layer, .parts = &down, .n_parts = 1,
			.n_experts = e->n, .cols = e->intermediate_size, .may_pack = true});
	if (e->n_shared)
		plan_mlp(plan, c, layer, "mlp.shared_experts", e->n_shared * e->intermediate_size, false, l);
}

void plan_layer(struct plan *plan, const struct model_config *c, uint32_t layer,
	struct model_layer *l)
{
	l->input_norm = plan_norm(plan, c, layer, "input_layernorm.weight");
	if (c->latent.rank)
		plan_latent_attention(plan, c, layer, l);
	else
		plan_attention(plan, c, layer, l);
	l->post_norm = plan_norm(plan, c, layer, "post_attention_layernorm.weight");
	if (model_is_gemma(c)) {
		l->pre_feed_norm = plan_norm(plan, c, layer, "pre_feedforward_layernorm.weight");
		l->post_feed_norm = plan_norm(plan, c, layer, "post_feedforward_layernorm.weight");
	}
	if (model_layer_has_experts(c, layer))
		plan_experts(plan, c, layer, l);
	else
		plan_mlp(plan, c, layer, "mlp", c->intermediate_size, true, l);
}

struct weight plan_rounded_head(
	struct plan *plan, const struct model_config *c, enum plan_kind kind, const char *name)
{
	return plan_recipe(plan,
		&(struct plan_recipe){.layer = PLAN_NO_LAYER,
			.parts = &(struct plan_part){name, c->vocab_size, 0, 0},
			.n_parts = 1,
			.cols = c->hidden_size,
			.kind = kind,
			.may_pack = true,
			.rounds = true});
}
