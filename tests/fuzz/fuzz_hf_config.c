/* SPDX-License-Identifier: MIT */

/*
 * config.json of any bytes, of a model and of a draft, then the same bytes as generation_config.json
 * over a sound model. What is accepted must be safe to compute with: sizes in range, a finite rope
 * table.
 */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/hf_config.h"
#include "daemon/model/hf_modelopt.h"

#define POSITIONS 3

static void check_sizes(const struct model_config *c)
{
	if (!c->hidden_size || !c->n_layers || c->n_layers > 1000 || !c->n_heads || !c->n_kv_heads ||
		c->n_heads % c->n_kv_heads || c->head_dim < 2 || c->head_dim % 2 ||
		c->head_dim > MODEL_HEAD_DIM_MAX || !c->vocab_size || !c->max_seq_len || !c->windows ||
		c->n_eos > MODEL_EOS_MAX || !(c->rms_norm_eps >= 0))
		abort();
	for (uint32_t i = 0; i < c->n_eos; i++) {
		if (c->eos[i] < 0 || (uint32_t)c->eos[i] >= c->vocab_size)
			abort();
	}
	if (c->bos < -1 || (c->bos >= 0 && (uint32_t)c->bos >= c->vocab_size))
		abort();
}

/* What model_buffers_carve and the experts' ops count on. */
static void check_latent(const struct model_config *c)
{
	const struct model_experts *e = &c->experts;

	if (!c->latent.rank && c->q_rank)
		abort();
	if (c->latent.rank && (c->n_kv_heads != 1 || !c->latent.nope || !c->latent.v || c->latent.rope != c->head_dim))
		abort();
	if (!e->n)
		return;
	if (e->n > MODEL_EXPERTS_MAX || !e->n_active || !e->intermediate_size ||
		!e->n_groups || e->n % e->n_groups || !e->n_groups_active ||
		e->n_groups_active > e->n_groups ||
		e->n_active > e->n / e->n_groups * e->n_groups_active ||
		(e->group_top_two && e->n / e->n_groups < 2) || !isfinite(e->scale))
		abort();
}

static void check_rope(const struct model_config *c)
{
	static float table[POSITIONS * MODEL_HEAD_DIM_MAX];

	if (c->rotary_dim && (c->rotary_dim % 2 || c->rotary_dim >= c->head_dim))
		abort();
	model_rope_fill(c, POSITIONS, table);
	for (uint32_t i = 0; i < POSITIONS * c->head_dim; i++) {
		if (!isfinite(table[i]))
			abort();
	}
}

/* Sizes, and answers for names of all kinds. */
static void check_quantisation(const struct quantisation *q)
{
	static const char *const modules[] = {"lm_head", "model.layers.10.self_attn.q_proj",
		"model.layers.3.mlp.experts.255.gate_proj", "model.layers.3.mlp.gate"};
	char text[QUANTISATION_TEXT_MAX], why[QUANTISATION_WHY_MAX];

	if (!q)
		return;
	if (!q->n_schemes || q->n_schemes > QUANTISATION_SCHEMES_MAX)
		abort();
	for (uint32_t i = 0; i < q->n_schemes; i++)
		if (q->schemes[i].block_rows > HF_WIDTH_MAX || q->schemes[i].block_cols > HF_WIDTH_MAX)
			abort();
	quantisation_describe(q, text);
	if (!*text)
		abort();
	for (size_t i = 0; i < sizeof(modules) / sizeof(modules[0]); i++)
		quantisation_rule_of(q, modules[i], NULL, why);
}

/* hf_quant_config.json. */
static void check_modelopt(const char *text, size_t size)
{
	struct quantisation *q = NULL;
	struct model_error error = {""};

	if (hf_modelopt_parse_file("q", text, size, &q, &error) && !*error.text)
		abort();
	check_quantisation(q);
	quantisation_free(q);
}

static void check_caps(const struct model_config *c)
{
	const struct device_info info = {.activation_dtype = DTYPE_F32};
	const struct attention_config attention = model_attention(c, &info);

	if (!isfinite(c->embedding_scale) || !(c->logit_cap >= 0) || !(attention.soft_cap >= 0) ||
		!isfinite(attention.scale))
		abort();
}

static void check_sampling(const struct slot_sampling *s)
{
	if (!(s->temperature >= 0) || !(s->top_p >= 0 && s->top_p <= 1) ||
		!(s->min_p >= 0 && s->min_p <= 1))
		abort();
}

static void check_draft(const struct model_config *c)
{
	const bool is_mtp = c->family == MODEL_MTP;

	if (c->n_layers != 1 || !c->draft.vocab_size || c->draft.vocab_size > c->vocab_size ||
		!c->latent.rank == is_mtp || (c->experts.n && !is_mtp) || !c->first_layer == is_mtp)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *text = (const char *)data;
	struct model_config config;
	struct model_error error = {""};

	if (!hf_config_parse("c", text, size, false, &config, &error)) {
		check_sizes(&config);
		check_latent(&config);
		check_caps(&config);
		check_quantisation(config.quantisation);
		check_rope(&config);
		model_config_deinit(&config);
	} else if (!*error.text) {
		abort();
	}
	error.text[0] = 0;
	if (!hf_config_parse("d", text, size, true, &config, &error)) {
		check_sizes(&config);
		check_draft(&config);
		check_quantisation(config.quantisation);
		check_rope(&config);
		model_config_deinit(&config);
	} else if (!*error.text) {
		abort();
	}
	check_modelopt(text, size);
	config = (struct model_config){.vocab_size = 100, .bos = -1, .sampling = {.top_p = 1}};
	error.text[0] = 0;
	if (!hf_generation_parse("g", text, size, &config, &error))
		check_sampling(&config.sampling);
	else if (!*error.text)
		abort();
	return 0;
}
