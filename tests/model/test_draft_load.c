/* SPDX-License-Identifier: MIT */
/* A draft model's configuration, what is refused, and where its tensors end up. */
#include "tests/model/configs.h"
#include "tests/model/loaded.h"

#include <errno.h>

#include "daemon/model/draft.h"

#define DRAFT_SIZES                                                                                \
	"\"hidden_size\":64,\"intermediate_size\":96,\"num_attention_heads\":4,\"vocab_size\":200"
#define DRAFT(family, more)                                                                        \
	"{\"architectures\":[\"" family "\"]," DRAFT_SIZES ",\"num_hidden_layers\":1" more "}"
#define EAGLE(more) DRAFT("LlamaForCausalLMEagle", more)
#define EAGLE3(more) DRAFT("LlamaForCausalLMEagle3", more)
#define V3(layers, more)                                                                           \
	"{\"architectures\":[\"DeepseekV3ForCausalLM\"]," DRAFT_SIZES ",\"num_hidden_layers\":" #layers more "}"

/* ---- configuration ---- */

static struct model_config parse_draft(const char *text)
{
	struct model_config config = {0};
	struct model_error error = {""};

	if (hf_config_parse("x/config.json", text, strlen(text), true, &config, &error))
		fail_msg("%s", error.text);
	return keep_config(config);
}

static void expect_draft_refusal(const char *text, int rc, const char *words)
{
	struct model_config config = {.n_layers = 77};
	struct model_error error = {""};

	assert_int_equal(hf_config_parse("x/config.json", text, strlen(text), true, &config, &error), rc);
	assert_contains(error.text, "x/config.json: ");
	assert_contains(error.text, words);
	assert_int_equal(config.n_layers, 77);
}

/* The configuration of a draft model's directory (model_config_deinit()). */
static struct model_config load_draft_config(const char *below, char directory[512])
{
	struct model_config config;
	struct model_error error = {""};

	source_path(below, directory);
	if (draft_config_load(directory, &config, &error))
		fail_msg("%s", error.text);
	return config;
}

static void test_shipped_draft_is_an_eagle_of_one_layer(void **state)
{
	char directory[512];
	struct model_config c = load_draft_config("examples/models/tinycalc-eagle", directory);

	assert_int_equal(c.family, MODEL_EAGLE);
	assert_string_equal(c.architecture, "LlamaForCausalLMEagle");
	assert_int_equal(c.n_layers, 1);
	assert_int_equal(c.head_dim, 64);
	assert_int_equal(c.draft.vocab_size, 256);
	assert_true(c.rope.theta == 10000.0);
	model_config_deinit(&c);
}

/* The fields of yuhuili/EAGLE3-LLaMA3.1-Instruct-8B. */
static void test_published_eagle3_is_understood(void **state)
{
	struct model_config c = parse_draft(
		"{\"architectures\":[\"LlamaForCausalLMEagle3\"],\"bos_token_id\":128000,"
		"\"eos_token_id\":128001,\"hidden_act\":\"silu\",\"hidden_size\":4096,"
		"\"initializer_range\":0.02,\"intermediate_size\":14336,"
		"\"max_position_embeddings\":2048,\"model_type\":\"llama\","
		"\"num_attention_heads\":32,\"num_key_value_heads\":8,\"num_hidden_layers\":1,"
		"\"pad_token_id\":0,\"rms_norm_eps\":1e-05,\"tie_word_embeddings\":false,"
		"\"torch_dtype\":\"float16\",\"transformers_version\":\"4.28.1\","
		"\"use_cache\":true,\"vocab_size\":128256,\"draft_vocab_size\":32000}");

	assert_int_equal(c.family, MODEL_EAGLE3);
	assert_int_equal(c.vocab_size, 128256);
	assert_int_equal(c.draft.vocab_size, 32000);
	assert_int_equal(c.head_dim, 128);
	assert_int_equal(c.windows[0], 0);
	assert_false(c.draft.names_layers || c.qkv_bias || c.mlp_bias);
}

/* The layer behind the last one has experts by the same fields. */
static void test_mtp_head_is_the_layer_behind_the_last(void **state)
{
	struct model_config c = parse_draft(V3(61, ",\"num_nextn_predict_layers\":1,\"layer_types\":[]"));

	assert_int_equal(c.family, MODEL_MTP);
	assert_int_equal(c.first_layer, 61);
	assert_int_equal(c.n_layers, 1);
	assert_int_equal(c.draft.vocab_size, 200);
	assert_int_equal(c.latent.rank, 512);
	assert_true(model_layer_has_experts(&c, 0));
	assert_int_equal(c.experts.score, MOE_SIGMOID);
	c = parse_draft(V3(3, ",\"num_nextn_predict_layers\":1,\"first_k_dense_replace\":3"));
	assert_true(model_layer_has_experts(&c, 0));
	c = parse_draft(V3(3, ",\"num_nextn_predict_layers\":1,\"first_k_dense_replace\":4"));
	assert_int_equal(c.experts.n, 0);
	c = parse_draft(V3(5, ",\"num_nextn_predict_layers\":1,\"moe_layer_freq\":2"));
	assert_false(model_layer_has_experts(&c, 0));
}

static void test_model_without_one_mtp_head_is_no_draft(void **state)
{
	expect_draft_refusal(V3(3, ""), -ENOTSUP,
		"num_nextn_predict_layers 0: a draft model is one MTP head, and this model has none");
	expect_draft_refusal(V3(3, ",\"num_nextn_predict_layers\":2"), -ENOTSUP,
		"num_nextn_predict_layers 2: a draft model is one MTP head");
}

static void test_rope_is_understood_in_both_spellings(void **state)
{
	struct model_config c = parse_draft(EAGLE(
		",\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"llama3\","
		"\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
		"\"original_max_position_embeddings\":8192}"));

	assert_int_equal(c.rope.type, ROPE_LLAMA3);
	assert_true(c.rope.theta == 500000.0);
	c = parse_draft(EAGLE3(
		",\"rope_parameters\":{\"rope_type\":\"linear\",\"rope_theta\":7000.0,"
		"\"factor\":2.0}"));
	assert_int_equal(c.rope.type, ROPE_LINEAR);
	assert_true(c.rope.theta == 7000.0);
}

static void test_biases_and_named_layers_are_understood(void **state)
{
	struct model_config c =
		parse_draft(EAGLE3(",\"attention_bias\":true,\"mlp_bias\":true,\"eagle_config\":{"
				   "\"eagle_aux_hidden_state_layer_ids\":[2,16,29]}"));

	assert_true(c.qkv_bias && c.o_bias && c.mlp_bias && c.draft.names_layers);
	assert_int_equal(c.draft.layers[0], 2);
	assert_int_equal(c.draft.layers[1], 16);
	assert_int_equal(c.draft.layers[2], 29);
	assert_int_equal(c.draft.vocab_size, 200);
	c = parse_draft(EAGLE3(",\"eagle_config\":{\"eagle_aux_hidden_state_layer_ids\":[]},"
			       "\"draft_vocab_size\":null"));
	assert_false(c.draft.names_layers);
	assert_int_equal(c.draft.vocab_size, 200);
}

static void test_model_is_no_draft_and_draft_is_no_model(void **state)
{
	expect_draft_refusal(LLAMA(""), -EINVAL,
		"architectures \"LlamaForCausalLM\" is not a draft model, which is LlamaForCausalLMEagle, "
		"LlamaForCausalLMEagle3 or the MTP head of DeepseekV3ForCausalLM");
	expect_draft_refusal(DRAFT("EagleForCausalLM", ""), -ENOTSUP,
		"\"EagleForCausalLM\" is not one of LlamaForCausalLMEagle, LlamaForCausalLMEagle3");
	expect_refusal(EAGLE(""), -EINVAL,
		"architectures \"LlamaForCausalLMEagle\" is a draft model: it is not served by itself");
	expect_refusal(EAGLE3(""), -EINVAL, "\"LlamaForCausalLMEagle3\" is a draft model");
}

static void test_variants_that_are_not_computed_are_refused_by_name(void **state)
{
	static const struct {
		const char *text, *words;
	} cases[] = {
		{EAGLE(",\"add_para_norm\":true"), "add_para_norm is not supported"},
		{EAGLE3(",\"norm_before_residual\":true"), "norm_before_residual is not supported"},
		{EAGLE3(",\"norm_before_fc\":true"), "norm_before_fc is not supported"},
		{EAGLE3(",\"parallel_drafting\":true"), "parallel_drafting is not supported"},
		{EAGLE3(",\"logit_scale\":0.5"), "logit_scale 0.5 is not supported"},
		{EAGLE3(",\"target_hidden_size\":96"),
			"target_hidden_size 96 is not hidden_size 64"},
		{EAGLE3(",\"eagle_config\":{\"use_aux_hidden_state\":false}"),
			"eagle_config.use_aux_hidden_state false"},
		{EAGLE3(",\"eagle_aux_hidden_state_layer_ids\":[1,2]"),
			"eagle_aux_hidden_state_layer_ids is not a list of 3 layers"},
		{EAGLE(",\"draft_vocab_size\":100"), "draft_vocab_size 100 is not vocab_size 200"},
		{EAGLE(",\"quantization_config\":{\"quant_method\":\"hqq\"}"),
			"quantization_config.quant_method \"hqq\" is not one of"},
		{"{\"architectures\":[\"LlamaForCausalLMEagle\"]," DRAFT_SIZES
		 ",\"num_hidden_layers\":2}", "num_hidden_layers 2: a draft model with more"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
		expect_draft_refusal(cases[i].text, -ENOTSUP, cases[i].words);
	expect_draft_refusal(EAGLE3(",\"draft_vocab_size\":201"), -EINVAL, "draft_vocab_size");
	expect_draft_refusal(EAGLE3(",\"eagle_aux_hidden_state_layer_ids\":[1,2,-3]"), -EINVAL,
		"eagle_aux_hidden_state_layer_ids[2] is not a layer");
	expect_draft_refusal(
		EAGLE3(",\"eagle_config\":7"), -EINVAL, "eagle_config is not an object");
}

/* ---- draft and target ---- */

static void expect_mismatch(const char *draft, const char *target, int rc, const char *words)
{
	struct model_config d = parse_draft(draft), t = parse(target);
	struct model_error error = {""};

	assert_int_equal(draft_check("/d", &d, &t, &error), rc);
	if (rc)
		assert_contains(error.text, words);
}

#define TARGET(hidden, layers, vocab)                                                              \
	"{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":" #hidden                       \
	",\"intermediate_size\":96,\"num_hidden_layers\":" #layers                                 \
	",\"num_attention_heads\":4,\"vocab_size\":" #vocab "}"

static void test_draft_of_another_target_is_refused(void **state)
{
	expect_mismatch(EAGLE(""), TARGET(64, 1, 200), 0, "");
	expect_mismatch(EAGLE3(""), TARGET(64, 3, 200), 0, "");
	expect_mismatch(EAGLE(""), TARGET(128, 1, 200), -EINVAL,
		"/d/config.json: hidden_size 64 is not 128, the target's");
	expect_mismatch(EAGLE3(""), TARGET(64, 8, 201), -EINVAL,
		"/d/config.json: vocab_size 200 is not 201, the target's");
	expect_mismatch(EAGLE3(""), TARGET(64, 2, 200), -EINVAL, "so its target needs 3 layers or more; it has 2");
}

static void test_mtp_head_of_another_target_is_refused(void **state)
{
#define MTP ",\"num_nextn_predict_layers\":1"
	expect_mismatch(V3(4, MTP), V3(4, ""), 0, "");
	expect_mismatch(V3(4, MTP), V3(5, ""), -EINVAL, "/d/config.json: num_hidden_layers 4 is not 5, the target's");
	expect_mismatch(V3(4, MTP), TARGET(64, 4, 200), -EINVAL,
		"/d: DeepseekV3ForCausalLMMTP cannot draft for LlamaForCausalLM");
}

static void test_the_name_mtp_is_the_targets_own_directory(void **state)
{
	assert_string_equal(draft_directory("mtp", "/models/v3"), "/models/v3");
	assert_string_equal(draft_directory("./mtp", "/models/v3"), "./mtp");
}

static void test_layers_that_are_not_the_usual_ones_are_refused(void **state)
{
	expect_mismatch(EAGLE3(",\"eagle_aux_hidden_state_layer_ids\":[2,4,5]"),
		TARGET(64, 8, 200), 0, "");
	expect_mismatch(EAGLE3(",\"eagle_aux_hidden_state_layer_ids\":[1,3,4]"),
		TARGET(64, 8, 200), -ENOTSUP,
		"eagle_aux_hidden_state_layer_ids [1, 3, 4] are not [2, 4, 5]");
}

static void test_draft_cannot_draft_for_a_draft(void **state)
{
	struct model_config d = parse_draft(EAGLE("")), t = parse_draft(EAGLE3(""));
	struct model_error error = {""};

	assert_int_equal(draft_check("/d", &d, &t, &error), -EINVAL);
	assert_contains(error.text, "cannot draft for LlamaForCausalLMEagle3");
}

/* ---- tensors ---- */

struct pair {
	struct loaded target, draft; /* one device */
};

/* The directories of both are the test's initial state. */
static int pair_setup(void **state)
{
	const char *const *below = *state;
	struct pair *p = calloc(1, sizeof(*p));
	struct model_error error = {""};

	if (!p)
		return -1;
	p->target = load(below[0]);
	p->draft.config = load_draft_config(below[1], p->draft.directory);
	p->draft.device = p->target.device;
	if (draft_load(p->draft.directory, &p->draft.config, p->target.model, NULL, NULL,
			&p->draft.model, &error))
		fail_msg("%s", error.text);
	*state = p;
	return 0;
}

static int pair_teardown(void **state)
{
	struct pair *p = *state;

	model_free(p->draft.model);
	model_config_deinit(&p->draft.config);
	unload(&p->target);
	free(p);
	return 0;
}

#define pair_test(test, target, draft) \
	{#test, test, pair_setup, pair_teardown, (const char *[]){target, draft}}

static void test_shipped_draft_is_loaded_byte_for_byte_and_shares_the_ends(void **state)
{
	struct pair *p = *state;
	const struct model *m = p->draft.model;
	const struct model_layer *layer = &m->layers[0];
	uint64_t at;

	assert_holds(&p->draft, &m->fc, 0, "fc.weight");
	assert_int_equal(m->fc.cols, 2 * 160);
	at = assert_holds(&p->draft, &layer->qkv, 0, "layers.0.self_attn.q_proj.weight");
	at = assert_holds(&p->draft, &layer->qkv, at, "layers.0.self_attn.k_proj.weight");
	assert_holds(&p->draft, &layer->qkv, at, "layers.0.self_attn.v_proj.weight");
	assert_holds(&p->draft, &layer->o, 0, "layers.0.self_attn.o_proj.weight");
	assert_holds(&p->draft, &layer->post_norm, 0, "layers.0.post_attention_layernorm.weight");
	at = assert_holds(&p->draft, &layer->gate_up, 0, "layers.0.mlp.gate_proj.weight");
	assert_holds(&p->draft, &layer->gate_up, at, "layers.0.mlp.up_proj.weight");
	assert_holds(&p->draft, &layer->down, 0, "layers.0.mlp.down_proj.weight");
	assert_ptr_equal(m->embedding.data, p->target.model->embedding.data);
	assert_ptr_equal(m->head.data, p->target.model->head.data);
	assert_null(layer->input_norm.data);
	assert_null(m->fc_bias.data);
	assert_null(m->d2t);
	assert_int_equal(m->max_positions, p->target.model->max_positions);
}

static void test_eagle_does_not_look_at_its_copy_of_the_embedding(void **state)
{
	struct pair *p = *state;

	assert_ptr_equal(p->draft.model->embedding.data, p->target.model->embedding.data);
	assert_ptr_equal(p->draft.model->head.data, p->target.model->head.data);
	assert_holds(&p->draft, &p->draft.model->fc_bias, 0, "fc.bias");
}

static void test_mtp_head_is_loaded_byte_for_byte_and_shares_the_ends(void **state)
{
	struct pair *p = *state;
	const struct model *m = p->draft.model;
	const struct model_layer *l = &m->layers[0];
	uint64_t at;

	assert_holds(&p->draft, &m->fc, 0, "model.layers.3.eh_proj.weight");
	assert_holds(&p->draft, &l->embedding_norm, 0, "model.layers.3.enorm.weight");
	assert_holds(&p->draft, &l->hidden_norm, 0, "model.layers.3.hnorm.weight");
	assert_holds(&p->draft, &m->final_norm, 0, "model.layers.3.shared_head.norm.weight");
	assert_holds(&p->draft, &l->input_norm, 0, "model.layers.3.input_layernorm.weight");
	assert_holds(&p->draft, &l->q_a, 0, "model.layers.3.self_attn.q_a_proj.weight");
	assert_holds(&p->draft, &l->kv_b, 0, "model.layers.3.self_attn.kv_b_proj.weight");
	at = assert_holds(&p->draft, &l->expert_gate_up, 0, "model.layers.3.mlp.experts.0.gate_proj.weight");
	assert_holds(&p->draft, &l->expert_gate_up, at, "model.layers.3.mlp.experts.0.up_proj.weight");
	assert_holds(&p->draft, &l->down, 0, "model.layers.3.mlp.shared_experts.down_proj.weight");
	assert_ptr_equal(m->embedding.data, p->target.model->embedding.data);
	assert_ptr_equal(m->head.data, p->target.model->head.data);
	assert_null(m->d2t);
	assert_int_equal(p->target.model->unused.n, 0);
	assert_true(p->target.model->unused.n_prediction > 30);
	assert_int_equal(p->target.model->unused.n_heads, 1);
}

static void test_eagle3_reads_twice_the_columns_and_has_its_own_head_and_ids(void **state)
{
	struct pair *p = *state;
	const struct model *m = p->draft.model;
	enum dtype dtype;
	uint64_t bytes, at;
	int64_t *want;
	int32_t *have;

	assert_int_equal(m->fc.cols, 3 * 32);
	assert_int_equal(m->layers[0].qkv.cols, 2 * 32);
	at = assert_holds(&p->draft, &m->layers[0].qkv, 0, "midlayer.self_attn.q_proj.weight");
	assert_holds(&p->draft, &m->layers[0].qkv, at, "midlayer.self_attn.k_proj.weight");
	assert_holds(&p->draft, &m->layers[0].input_norm, 0, "midlayer.input_layernorm.weight");
	assert_holds(&p->draft, &m->layers[0].hidden_norm, 0, "midlayer.hidden_norm.weight");
	assert_holds(&p->draft, &m->final_norm, 0, "norm.weight");
	assert_holds(&p->draft, &m->head, 0, "lm_head.weight");
	assert_int_equal(m->head.rows, 61);
	assert_ptr_equal(m->embedding.data, p->target.model->embedding.data);
	want = (int64_t *)(void *)tensor_bytes(&p->draft, "d2t", &bytes, &dtype);
	assert_int_equal(bytes, 61 * sizeof(*want));
	have = test_fetch(p->draft.device, m->d2t, 61 * sizeof(*have));
	for (int i = 0; i < 61; i++)
		assert_int_equal(have[i], want[i]);
	free(have);
	free(want);
}

static void test_eagle3_keeps_an_embedding_of_its_own(void **state)
{
	struct pair *p = *state;

	assert_holds(&p->draft, &p->draft.model->embedding, 0, "embed_tokens.weight");
	assert_null(p->draft.model->d2t);
}

static void test_draft_of_another_size_is_refused_before_it_is_read(void **state)
{
	struct loaded target = load("examples/models/tinycalc");
	char directory[512];
	struct model_config config = load_draft_config("tests/data/drafts/eagle", directory);
	struct model_error error = {""};
	struct model *draft = NULL;

	assert_int_equal(
		draft_load(directory, &config, target.model, NULL, NULL, &draft, &error), -EINVAL);
	assert_contains(error.text, "hidden_size 32 is not 160, the target's");
	assert_null(draft);
	model_config_deinit(&config);
	unload(&target);
}

/* ---- files that do not fit ---- */

/* A checkpoint of tests/data/drafts, its header with `from` turned into `to`, and eight bytes at
 * `at` of its data (SIZE_MAX: none) into `value`. */
static void copy_changed(const struct scratch *scratch, const char *draft, const char *from,
	const char *to, size_t at, int64_t value)
{
	char below[128], path[512], *where;
	static char file[1 << 17], changed[1 << 17];
	uint64_t header;
	size_t size, start;
	FILE *f;

	snprintf(below, sizeof(below), "tests/data/drafts/%s/model.safetensors", draft);
	source_path(below, path);
	f = fopen(path, "r");
	assert_non_null(f);
	size = fread(file, 1, sizeof(file), f);
	assert_int_equal(fclose(f), 0);
	memcpy(&header, file, sizeof(header));
	assert_in_range(header, 2, size - 8);
	if (at != SIZE_MAX)
		memcpy(file + 8 + header + at, &value, sizeof(value));
	where = memmem(file + 8, header, from, strlen(from));
	assert_non_null(where);
	start = (size_t)(where - file);
	memcpy(changed, file, start);
	memcpy(changed + start, to, strlen(to));
	memcpy(changed + start + strlen(to), where + strlen(from), size - start - strlen(from));
	header = header + strlen(to) - strlen(from);
	memcpy(changed, &header, sizeof(header));
	scratch_write(scratch, "model.safetensors", changed, size + strlen(to) - strlen(from));
}

static void expect_measure(const struct scratch *scratch, const char *draft, int rc,
	const char *words)
{
	char below[128], directory[512];
	struct model_config config;
	struct model_error error = {""};
	uint64_t bytes;

	snprintf(below, sizeof(below), "tests/data/drafts/%s", draft);
	config = load_draft_config(below, directory);
	assert_int_equal(
		model_measure(scratch->directory, &config, 64, DEVICE_F32, &bytes, &error), rc);
	if (rc)
		assert_contains(error.text, words);
	model_config_deinit(&config);
}

/* d2t is the first of the file's data. A head that is the target's has its vocabulary. */
static void test_d2t_and_heads_that_do_not_fit_are_refused(void **state)
{
	static const char d2t[] = "\"d2t\"";
	static const struct {
		const char *draft, *from, *to;
		size_t at;
		int64_t value;
		int rc;
		const char *words;
	} cases[] = {
		{"eagle3", d2t, d2t, SIZE_MAX, 0, 0, ""},
		{"eagle3", d2t, d2t, 60 * 8, 97 - 60, -EINVAL, "tensor \"d2t\": draft id 60 plus 37 "
			"is not an id of the target's vocabulary of 97"},
		{"eagle3", d2t, d2t, 60 * 8, INT64_MAX, -EINVAL,
			"draft id 60 plus 9223372036854775807"},
		{"eagle3", d2t, d2t, 0, -1, -EINVAL, "draft id 0 plus -1"},
		{"eagle3", "\"I64\"", "\"F64\"", SIZE_MAX, 0, -ENOTSUP,
			"tensor \"d2t\": dtype F64 is not I64"},
		{"eagle3", "\"shape\":[61]", "\"shape\":[61,1]", SIZE_MAX, 0, -EINVAL,
			"\"d2t\" is not a vector of draft_vocab_size 61"},
		{"eagle3", d2t, "\"d3t\"", SIZE_MAX, 0, -EINVAL,
			"tensor \"d2t\" is missing, and draft_vocab_size 61 is not vocab_size 97"},
		{"eagle3-own", "\"lm_head.weight\"", "\"other.weight\"", SIZE_MAX, 0, 0, ""},
	};
	const struct scratch *scratch = *state;

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		copy_changed(scratch, cases[i].draft, cases[i].from, cases[i].to, cases[i].at,
			cases[i].value);
		expect_measure(scratch, cases[i].draft, cases[i].rc, cases[i].words);
	}
}

static void test_d2t_that_gives_two_drafts_one_id_is_refused(void **state)
{
	const struct scratch *scratch = *state;
	struct loaded l = {0};
	enum dtype dtype;
	uint64_t bytes;
	int64_t *table;

	source_path("tests/data/drafts/eagle3", l.directory);
	table = (int64_t *)(void *)tensor_bytes(&l, "d2t", &bytes, &dtype);
	copy_changed(scratch, "eagle3", "\"d2t\"", "\"d2t\"", 7 * 8, table[3] + 3 - 7);
	free(table);
	expect_measure(scratch, "eagle3", -EINVAL, "of two draft ids, the second being 7");
}

static void test_tensors_that_are_missing_are_named(void **state)
{
	static const struct {
		const char *draft, *tensor;
	} cases[] = {
		{"eagle", "fc.weight"},
		{"eagle", "layers.0.self_attn.k_proj.weight"},
		{"eagle", "layers.0.post_attention_layernorm.weight"},
		{"eagle3", "midlayer.hidden_norm.weight"},
		{"eagle3", "midlayer.input_layernorm.weight"},
		{"eagle3", "norm.weight"},
		{"eagle3", "lm_head.weight"},
	};
	const struct scratch *scratch = *state;

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		char from[96], to[96], words[128];

		snprintf(from, sizeof(from), "\"%s\"", cases[i].tensor);
		snprintf(to, sizeof(to), "\"%s_\"", cases[i].tensor);
		snprintf(words, sizeof(words), "tensor %s is missing", from);
		copy_changed(scratch, cases[i].draft, from, to, SIZE_MAX, 0);
		expect_measure(scratch, cases[i].draft, -EINVAL, words);
	}
}

/* An EAGLE's ids are the target's, whatever tensors its file has beside those that count. */
static void test_eagle_does_not_look_at_a_d2t(void **state)
{
	const struct scratch *scratch = *state;
	struct loaded target = load("tests/data/drafts/target");
	char directory[512];
	struct model_config config = load_draft_config("tests/data/drafts/eagle", directory);
	struct model_error error = {""};
	struct model *draft;

	copy_changed(scratch, "eagle", "\"embed_tokens.weight\"", "\"d2t\"", SIZE_MAX, 0);
	assert_int_equal(draft_load(scratch->directory, &config, target.model, NULL, NULL, &draft,
				 &error), 0);
	assert_null(draft->d2t);
	model_free(draft);
	model_config_deinit(&config);
	unload(&target);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_shipped_draft_is_an_eagle_of_one_layer),
		cmocka_unit_test(test_published_eagle3_is_understood),
		cmocka_unit_test(test_mtp_head_is_the_layer_behind_the_last),
		cmocka_unit_test(test_model_without_one_mtp_head_is_no_draft),
		cmocka_unit_test(test_mtp_head_of_another_target_is_refused),
		cmocka_unit_test(test_the_name_mtp_is_the_targets_own_directory),
		pair_test(test_mtp_head_is_loaded_byte_for_byte_and_shares_the_ends, "tests/data/drafts/mtp",
			"tests/data/drafts/mtp"),
		cmocka_unit_test(test_rope_is_understood_in_both_spellings),
		cmocka_unit_test(test_biases_and_named_layers_are_understood),
		cmocka_unit_test(test_model_is_no_draft_and_draft_is_no_model),
		cmocka_unit_test(test_variants_that_are_not_computed_are_refused_by_name),
		cmocka_unit_test(test_draft_of_another_target_is_refused),
		cmocka_unit_test(test_layers_that_are_not_the_usual_ones_are_refused),
		cmocka_unit_test(test_draft_cannot_draft_for_a_draft),
		pair_test(test_shipped_draft_is_loaded_byte_for_byte_and_shares_the_ends,
			"examples/models/tinycalc", "examples/models/tinycalc-eagle"),
		pair_test(test_eagle_does_not_look_at_its_copy_of_the_embedding,
			"tests/data/drafts/target", "tests/data/drafts/eagle"),
		pair_test(test_eagle3_reads_twice_the_columns_and_has_its_own_head_and_ids,
			"tests/data/drafts/target", "tests/data/drafts/eagle3"),
		pair_test(test_eagle3_keeps_an_embedding_of_its_own,
			"tests/data/drafts/target", "tests/data/drafts/eagle3-own"),
		cmocka_unit_test(test_draft_of_another_size_is_refused_before_it_is_read),
		scratch_test(test_d2t_and_heads_that_do_not_fit_are_refused),
		scratch_test(test_d2t_that_gives_two_drafts_one_id_is_refused),
		scratch_test(test_tensors_that_are_missing_are_named),
		scratch_test(test_eagle_does_not_look_at_a_d2t),
	};

	return cmocka_run_group_tests_name("draft load", tests, NULL, free_configs);
}
