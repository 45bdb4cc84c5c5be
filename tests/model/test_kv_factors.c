/* SPDX-License-Identifier: MIT */

/* Factors of keys and values in fp8, as a checkpoint's files have them. */

#include "tests/model/quantisations.h"

#include <math.h>

#include "daemon/model/kv_factors.h"
#include "kernels/convert.h"
#include "tests/device_memory.h"
#include "tests/model/writing.h"

#define LAYER "model.layers.0.self_attn."

/* A tensor of one number. */
static void add_factor(struct writing *w, const char *name, float factor)
{
	memcpy(writing_add(w, name, "F32", 1, 0, sizeof(factor)), &factor, sizeof(factor));
}

/* The factors of two layers from the file under construction: 0, or why not. `config`: at least that it is fp8. */
static int read_factors(const struct scratch *scratch, struct writing *w, const struct model_config *config,
	struct kv_factors ret[2], struct model_error *error)
{
	struct model_layer layers[2] = {0};
	struct model model = {.config = *config, .layers = layers};
	struct safetensors checkpoint;
	int rc;

	model.config.n_layers = 2;
	writing_write(scratch, w);
	MUST(safetensors_open(scratch->directory, &checkpoint, error));
	rc = kv_factors_read(&checkpoint, scratch->directory, config->quantisation, &model, error);
	safetensors_deinit(&checkpoint);
	for (size_t i = 0; i < 2; i++)
		ret[i] = layers[i].kv_factors;
	return rc;
}

static const struct model_config fp8 = {.family = MODEL_LLAMA, .kv_fp8 = true};

static void test_factors_are_the_layers_own_of_any_dtype(void **state)
{
	struct writing w = writing_begin(64);
	struct model_error error = {""};
	struct kv_factors factors[2];
	uint16_t half = f32_to_bf16(0.0625f);

	add_factor(&w, LAYER "k_scale", 0.37f);
	memcpy(writing_add(&w, LAYER "v_scale", "BF16", 1, 0, sizeof(half)), &half, sizeof(half));
	json_object_set_new(json_object_get(w.header, LAYER "v_scale"), "shape", json_array());
	add_factor(&w, "model.layers.1.self_attn.k_scale", 2);
	add_factor(&w, "model.layers.1.self_attn.v_scale", 3);
	MUST(read_factors(*state, &w, &fp8, factors, &error));
	assert_true(factors[0].key == 0.37f && factors[0].value == 0.0625f);
	assert_true(factors[1].key == 2 && factors[1].value == 3);
}

static void test_layer_without_factors_has_1(void **state)
{
	struct writing w = writing_begin(64);
	struct model_error error = {""};
	struct kv_factors factors[2];

	add_factor(&w, "model.layers.1.self_attn.k_scale", 2);
	add_factor(&w, "model.layers.1.self_attn.v_scale", 3);
	MUST(read_factors(*state, &w, &fp8, factors, &error));
	assert_true(factors[0].key == 1 && factors[0].value == 1 && factors[1].key == 2);
}

static void test_latent_attention_has_a_factor_of_keys_alone(void **state)
{
	const struct model_config latent = {.family = MODEL_DEEPSEEK_V2, .kv_fp8 = true, .latent.rank = 8};
	struct writing w = writing_begin(64);
	struct model_error error = {""};
	struct kv_factors factors[2];

	add_factor(&w, LAYER "k_scale", 0.5f);
	MUST(read_factors(*state, &w, &latent, factors, &error));
	assert_true(factors[0].key == 0.5f && factors[1].key == 1);
}

static void test_draft_models_factors_are_found_by_its_names(void **state)
{
	const struct model_config eagle3 = {.family = MODEL_EAGLE3, .kv_fp8 = true};
	struct writing w = writing_begin(64);
	struct model_error error = {""};
	struct kv_factors factors[2];

	add_factor(&w, "midlayer.self_attn.k_scale", 0.5f);
	add_factor(&w, "midlayer.self_attn.v_scale", 0.25f);
	MUST(read_factors(*state, &w, &eagle3, factors, &error));
	assert_true(factors[0].key == 0.5f && factors[0].value == 0.25f);
}

static void test_modelopts_factors_are_found_by_its_names(void **state)
{
	struct writing w = writing_begin(64);
	struct model_error error = {""};
	struct kv_factors factors[2];

	add_factor(&w, LAYER "k_proj.k_scale", 0.5f);
	add_factor(&w, LAYER "v_proj.v_scale", 0.25f);
	MUST(read_factors(*state, &w, &fp8, factors, &error));
	assert_true(factors[0].key == 0.5f && factors[0].value == 0.25f && factors[1].key == 1);
}

/* ---- what is no factor ---- */

static void assert_refused_as(void **state, struct writing *w, int rc, const char *sentence)
{
	static const struct model_config wide = {.family = MODEL_LLAMA};
	const struct writing copy = {json_deep_copy(w->header), malloc(w->max), w->bytes, w->max};
	struct writing again = copy;
	struct model_error error = {""};
	struct kv_factors factors[2];

	assert_non_null(again.data);
	memcpy(again.data, w->data, w->bytes);
	assert_int_equal(read_factors(*state, w, &fp8, factors, &error), rc);
	assert_contains(error.text, sentence);
	assert_contains(error.text, ": use kv_dtype = model");
	MUST(read_factors(*state, &again, &wide, factors, &error)); /* nobody asks for them */
}

static void test_numbers_that_are_no_factors_are_refused_by_tensor(void **state)
{
	static const float bad[] = {0, -0.5f, INFINITY, -INFINITY, NAN, 3e38f, 0x1p41f, 0x1p-41f, 1e-45f};

	for (size_t i = 0; i < 2 * ARRAY_SIZE(bad); i++) {
		struct writing w = writing_begin(64);

		add_factor(&w, LAYER "k_scale", i % 2 ? 1 : bad[i / 2]);
		add_factor(&w, LAYER "v_scale", i % 2 ? bad[i / 2] : 1);
		assert_refused_as(state, &w, -EINVAL,
			i % 2 ? "model.safetensors: tensor \"" LAYER "v_scale\": " : "tensor \"" LAYER "k_scale\": ");
	}
}

static void test_factors_of_several_numbers_are_refused_by_tensor(void **state)
{
	struct writing w = writing_begin(64);

	add_factor(&w, LAYER "k_scale", 1);
	memset(writing_add(&w, LAYER "v_scale", "F32", 2, 0, 8), 0, 8);
	assert_refused_as(
		state, &w, -EINVAL, "tensor \"" LAYER "v_scale\": shape [2] is not that of one number");
}

static void test_factors_of_other_dtypes_are_refused_by_tensor(void **state)
{
	struct writing w = writing_begin(64);

	memset(writing_add(&w, LAYER "k_scale", "I32", 1, 0, 4), 0, 4);
	add_factor(&w, LAYER "v_scale", 1);
	assert_refused_as(state, &w, -ENOTSUP, "tensor \"" LAYER "k_scale\": dtype I32 is not one of F32, F16, BF16: ");
}

static void check_single(void **state, const char *found, const char *missing)
{
	struct writing w = writing_begin(64);
	char sentence[256];

	add_factor(&w, found, 1);
	snprintf(sentence, sizeof(sentence), "tensor \"%s\" is missing, but there is \"%s\"", missing, found);
	assert_refused_as(state, &w, -EINVAL, sentence);
}

static void test_factor_without_the_other_one_is_refused_by_tensor(void **state)
{
	check_single(state, LAYER "k_scale", LAYER "v_scale");
	check_single(state, LAYER "v_scale", LAYER "k_scale");
}

static void test_factor_without_the_other_one_is_refused_in_its_spelling(void **state)
{
	check_single(state, LAYER "k_proj.k_scale", LAYER "v_proj.v_scale");
	check_single(state, LAYER "v_proj.v_scale", LAYER "k_proj.k_scale");
}

/* ---- kv_cache_scheme ---- */

#define SCHEME(fields) COMPRESSED("float-quantized", "\"num_bits\":8,\"type\":\"float\",\"strategy\":\"tensor\"", \
	",\"kv_cache_scheme\":" fields)
#define STATIC "\"num_bits\":8,\"type\":\"float\",\"strategy\":\"tensor\",\"dynamic\":false,\"symmetric\":true"

/* The status of a model of that configuration, with one tensor of that name, whose cache is to be fp8. */
static int read_under(const struct scratch *scratch, const char *text, const char *name, struct model_error *error)
{
	struct model_config config = parse(text);
	struct writing w = writing_begin(64);
	struct kv_factors factors[2];

	add_factor(&w, name, 1);
	config.kv_fp8 = true;
	return read_factors(scratch, &w, &config, factors, error);
}

/* Likewise, with factors of both layers. */
static int read_whole_under(const struct scratch *scratch, const char *text, struct model_error *error)
{
	struct model_config config = parse(text);
	struct writing w = writing_begin(64);
	struct kv_factors factors[2];

	for (int i = 0; i < 4; i++) {
		char name[64];

		snprintf(name, sizeof(name), "model.layers.%d.self_attn.%c_scale", i / 2, i % 2 ? 'v' : 'k');
		add_factor(&w, name, 2);
	}
	config.kv_fp8 = true;
	return read_factors(scratch, &w, &config, factors, error);
}

static void test_scheme_of_the_configuration_does_not_switch_fp8_on(void **state)
{
	const struct device_info info = {.activation_dtype = DTYPE_F32, .kv_dtype = DTYPE_F32};
	struct model_config config = parse(SCHEME("{" STATIC "}"));

	assert_false(config.kv_fp8);
	assert_int_equal(model_kv(&config, &info, 16).dtype, DTYPE_F32);
	assert_int_equal(model_attention(&config, &info).kv_dtype, DTYPE_F32);
	config.kv_fp8 = true;
	assert_int_equal(model_kv(&config, &info, 16).dtype, DTYPE_E4M3);
	assert_int_equal(model_attention(&config, &info).kv_dtype, DTYPE_E4M3);
}

static void test_schemes_of_a_factor_a_tensor_are_served(void **state)
{
	struct model_error error = {""};

	MUST(read_whole_under(*state, SCHEME("{" STATIC ",\"observer\":\"minmax\"}"), &error));
	MUST(read_whole_under(*state, SCHEME("null"), &error));
	MUST(read_whole_under(*state, FP8(",\"kv_cache_scheme\":\"static\""), &error));
}

static void test_factors_that_a_scheme_declares_and_files_lack_are_refused_by_tensor(void **state)
{
	static const char *const declared[] = {SCHEME("{" STATIC "}"), FP8(",\"kv_cache_scheme\":\"static\"")};

	for (size_t i = 0; i < ARRAY_SIZE(declared); i++) {
		struct model_error error = {""};

		assert_int_equal(read_under(*state, declared[i], LAYER "k_proj.output_scale", &error), -EINVAL);
		assert_contains(error.text, "tensor \"" LAYER "k_scale\" is missing, though kv_cache_scheme");
		assert_contains(error.text, ": use kv_dtype = model");
	}
}

static void test_factors_that_no_scheme_declares_may_be_missing(void **state)
{
	struct model_error error = {""};

	MUST(read_under(*state, SCHEME("null"), "other", &error));
	MUST(read_under(*state, FP8(""), "other", &error));
}

static void test_other_schemes_are_refused_only_where_fp8_is_asked_for(void **state)
{
	static const struct {
		const char *config, *words;
	} cases[] = {
		{SCHEME("{\"num_bits\":4,\"type\":\"float\",\"strategy\":\"tensor\"}"), "kv_cache_scheme.num_bits 4"},
		{SCHEME("{\"num_bits\":8,\"type\":\"int\",\"strategy\":\"tensor\"}"), "kv_cache_scheme.type \"int\""},
		{SCHEME("{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"attn_head\"}"),
			"kv_cache_scheme.strategy \"attn_head\""},
		{SCHEME("{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"tensor\",\"dynamic\":true}"),
			"kv_cache_scheme.dynamic true"},
		{SCHEME("{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"tensor\",\"novel\":1}"),
			"kv_cache_scheme.novel 1"},
		{FP8(",\"kv_cache_scheme\":\"odd\""), "kv_cache_scheme \"odd\""},
		{FP8(",\"kv_cache_scheme\":true"), "kv_cache_scheme true"},
		{FP8(",\"kv_cache_scheme\":8"), "kv_cache_scheme 8"},
		{FP8(",\"kv_cache_scheme\":[]"), "kv_cache_scheme []"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct model_error error = {""};

		parse(cases[i].config); /* is served otherwise */
		assert_int_equal(read_whole_under(*state, cases[i].config, &error), -ENOTSUP);
		assert_contains(error.text, cases[i].words);
		assert_contains(error.text, ": use kv_dtype = model");
	}
}

/* ---- a whole model ---- */

/* Of one layer; `more`: the name of a further factor, or NULL. */
static void write_model(const struct scratch *scratch, float factor, const char *more)
{
	struct writing w = writing_begin_layer(1u << 20, 64);

	writing_add_zeros(&w, "model.layers.0.mlp.gate_proj.weight", 32, 64);
	writing_add_zeros(&w, "model.layers.0.mlp.up_proj.weight", 32, 64);
	writing_add_zeros(&w, "model.layers.0.mlp.down_proj.weight", 64, 32);
	add_factor(&w, LAYER "k_scale", factor);
	add_factor(&w, LAYER "v_scale", factor);
	if (more)
		add_factor(&w, more, 1);
	writing_write(scratch, &w);
	scratch_text(scratch, "config.json",
		"{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":64,\"intermediate_size\":32,"
		"\"num_hidden_layers\":1,\"num_attention_heads\":2,\"vocab_size\":6,\"tie_word_embeddings\":true}");
}

struct loaded {
	float key; /* the layer's factor */
	uint32_t n_kv_factors, n_unused;
};

static struct loaded load(const struct scratch *scratch, bool kv_fp8)
{
	struct device *device = test_device_open(0);
	struct model_error error = {""};
	struct model_config config;
	struct model *model;
	struct loaded ret;

	MUST(model_config_load(scratch->directory, &config, &error));
	config.kv_fp8 = kv_fp8;
	MUST(model_load(device, scratch->directory, &config, 8, NULL, NULL, &model, &error));
	ret = (struct loaded){model->layers[0].kv_factors.key, model->n_kv_factors, model->unused.n};
	model_free(model);
	model_config_deinit(&config);
	device->ops->free(device);
	return ret;
}

static void test_factors_are_no_tensors_of_another_model(void **state)
{
	write_model(*state, 2, NULL);
	assert_int_equal(load(*state, false).n_unused, 0);
	assert_int_equal(load(*state, true).n_unused, 0);
}

static void test_factors_of_layers_that_do_not_exist_are_unused(void **state)
{
	static const char *const names[] = {"model.layers.1.self_attn.k_scale", "layers.0.self_attn.v_scale"};

	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		write_model(*state, 2, names[i]);
		assert_int_equal(load(*state, true).n_unused, 1);
	}
}

static void test_factors_are_read_only_for_fp8(void **state)
{
	struct loaded loaded;

	write_model(*state, 2, NULL);
	assert_int_equal(load(*state, false).n_kv_factors, 0);
	loaded = load(*state, true);
	assert_true(loaded.n_kv_factors == 1 && loaded.key == 2);
}

static void test_factors_of_1_count_as_the_files(void **state)
{
	write_model(*state, 1, NULL);
	assert_int_equal(load(*state, true).n_kv_factors, 1);
}

static void test_model_with_a_bad_factor_cannot_be_measured(void **state)
{
	const struct scratch *scratch = *state;
	struct model_error error = {""};
	struct model_config config;
	uint64_t bytes;

	write_model(scratch, 0, NULL);
	MUST(model_config_load(scratch->directory, &config, &error));
	MUST(model_measure(scratch->directory, &config, 8, DEVICE_F32, &bytes, &error));
	config.kv_fp8 = true;
	assert_int_equal(model_measure(scratch->directory, &config, 8, DEVICE_F32, &bytes, &error), -EINVAL);
	assert_contains(error.text, "tensor \"" LAYER "k_scale\": 0 is not from 2^-40 to 2^40");
	model_config_deinit(&config);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		scratch_test(test_factors_are_the_layers_own_of_any_dtype),
		scratch_test(test_layer_without_factors_has_1),
		scratch_test(test_latent_attention_has_a_factor_of_keys_alone),
		scratch_test(test_draft_models_factors_are_found_by_its_names),
		scratch_test(test_modelopts_factors_are_found_by_its_names),
		scratch_test(test_numbers_that_are_no_factors_are_refused_by_tensor),
		scratch_test(test_factors_of_several_numbers_are_refused_by_tensor),
		scratch_test(test_factors_of_other_dtypes_are_refused_by_tensor),
		scratch_test(test_factor_without_the_other_one_is_refused_by_tensor),
		scratch_test(test_factor_without_the_other_one_is_refused_in_its_spelling),
		scratch_test(test_scheme_of_the_configuration_does_not_switch_fp8_on),
		scratch_test(test_schemes_of_a_factor_a_tensor_are_served),
		scratch_test(test_factors_that_a_scheme_declares_and_files_lack_are_refused_by_tensor),
		scratch_test(test_factors_that_no_scheme_declares_may_be_missing),
		scratch_test(test_other_schemes_are_refused_only_where_fp8_is_asked_for),
		scratch_test(test_factors_are_no_tensors_of_another_model),
		scratch_test(test_factors_of_layers_that_do_not_exist_are_unused),
		scratch_test(test_factors_are_read_only_for_fp8),
		scratch_test(test_factors_of_1_count_as_the_files),
		scratch_test(test_model_with_a_bad_factor_cannot_be_measured),
	};

	return cmocka_run_group_tests_name("factors of keys and values", tests, NULL, free_configs);
}
