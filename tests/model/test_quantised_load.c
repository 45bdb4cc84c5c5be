/* SPDX-License-Identifier: MIT */

/* Quantised checkpoints against their configuration, and what loading one says. test_model_forward
 * has their logits. */

#include "tests/model/loaded.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>

#include "daemon/model/hf_config.h"
#include "kernels/convert.h"
#include "tests/model/writing.h"

#define CHECKPOINTS "tests/data/checkpoints/"
#define FP8_TENSOR CHECKPOINTS "fp8-tensor"

/* The configuration of the checkpoint, quantization_config.key being the JSON `value` (key NULL:
 * quantization_config itself). */
static struct model_config changed_config(const char *directory, const char *key, const char *value)
{
	struct model_config config = {0};
	struct model_error error = {""};
	char path[600], *text;
	json_t *root, *new_value = json_loads(value, JSON_DECODE_ANY, NULL);

	snprintf(path, sizeof(path), "%s/config.json", directory);
	root = json_load_file(path, 0, NULL);
	assert_non_null(root);
	assert_non_null(new_value);
	json_object_set_new(key ? json_object_get(root, "quantization_config") : root,
		key ? key : "quantization_config", new_value);
	text = json_dumps(root, 0);
	if (hf_config_parse(path, text, strlen(text), false, &config, &error))
		fail_msg("%s", error.text);
	free(text);
	json_decref(root);
	return config;
}

static void expect_contradiction(
	const char *below, const char *key, const char *value, int rc, const char *words)
{
	struct model_error error = {""};
	char directory[512];
	uint64_t bytes;

	source_path(below, directory);
	CLEANUP(model_config_deinit)
	struct model_config config = changed_config(directory, key, value);
	assert_int_equal(model_measure(directory, &config, 8, DEVICE_F32, &bytes, &error), rc);
	assert_contains(error.text, directory);
	assert_contains(error.text, words);
}

static void test_quantised_tensor_of_an_excluded_module_is_refused(void **state)
{
	expect_contradiction(FP8_TENSOR, "ignored_layers", "[\"model.layers.1.mlp\"]", -EINVAL,
		"tensor \"model.layers.1.mlp.gate_proj.weight\" is quantised, but "
		"quantization_config.ignored_layers \"model.layers.1.mlp\" excludes it");
}

static void test_plain_tensor_of_a_module_that_is_not_excluded_is_refused(void **state)
{
	expect_contradiction(CHECKPOINTS "llama-f32", NULL, "{\"quant_method\":\"fp8\"}", -EINVAL,
		"tensor \"model.layers.0.self_attn.q_proj.weight\" is not quantised, and "
		"quantization_config does not exclude it");
}

static void test_quantised_tensor_without_a_configuration_is_refused(void **state)
{
	expect_contradiction(FP8_TENSOR, NULL, "null", -ENOTSUP,
		"tensor \"model.layers.0.self_attn.q_proj.weight\": dtype F8_E4M3 is not one of");
}

static void test_factors_of_another_granularity_are_refused(void **state)
{
	expect_contradiction(FP8_TENSOR, "weight_block_size", "[16,16]", -EINVAL,
		"tensor \"model.layers.0.self_attn.q_proj.weight_scale\": shape [] is not [3, 3]");
}

/* As the model could have been before it was quantised. */
static void test_model_with_all_modules_excluded_is_plain(void **state)
{
	struct model_error error = {""};
	char directory[512];
	uint64_t bytes[2];

	source_path(CHECKPOINTS "llama-f32", directory);
	for (uint32_t i = 0; i < 2; i++) {
		CLEANUP(model_config_deinit)
		struct model_config config = changed_config(directory, NULL,
			i ? "{\"quant_method\":\"fp8\",\"ignored_layers\":[\"model\"]}" : "null");

		if (model_measure(directory, &config, 8, DEVICE_F32, &bytes[i], &error))
			fail_msg("%s", error.text);
	}
	assert_int_equal(bytes[0], bytes[1]);
}

#define INNER(targets, ignored)                                                                             \
	"{\"quant_method\":\"compressed-tensors\",\"format\":\"float-quantized\",\"ignore\":[" ignored "],"     \
	"\"config_groups\":{\"group_0\":{\"targets\":[" targets "],\"weights\":{\"num_bits\":8,\"type\":\"float\"," \
	"\"strategy\":\"tensor\"}}}}"

/* Its tensors' names lack "model.". */
static void test_lists_have_the_names_of_an_inner_checkpoint(void **state)
{
	struct model_error error = {""};
	char directory[512];
	uint64_t bytes;

	source_path(CHECKPOINTS "qwen3-embedding", directory);
	CLEANUP(model_config_deinit)
	struct model_config config = changed_config(directory, NULL, INNER("\"Linear\"", "\"re:layers\\\\..*\""));
	if (model_measure(directory, &config, 8, DEVICE_F32, &bytes, &error))
		fail_msg("%s", error.text);
	expect_contradiction(CHECKPOINTS "qwen3-embedding", NULL, INNER("\"re:layers\\\\.1.*o_proj\"", ""), -EINVAL,
		"layers.1.self_attn.o_proj.weight\" is not quantised, and quantization_config does not exclude it");
}

/* ---- loading ---- */

static void test_load_says_format_and_widening(void **state)
{
	struct loaded *l = *state;
	char want[128];

	snprintf(want, sizeof(want), "fp8 with a factor a tensor, widened to %s at load",
		test_device_info(l->device).activation_dtype == DTYPE_F32 ? "f32" : "bf16");
	assert_string_equal(l->model->quantised, want);
}

static void test_side_tensors_are_not_without_use(void **state)
{
	struct loaded *l = *state;

	assert_int_equal(l->model->unused.n, 0);
}

static void test_measured_bytes_are_those_of_the_widened_weights(void **state)
{
	struct loaded *l = *state;
	const struct device_info info = test_device_info(l->device);
	struct model_error error = {""};
	uint64_t bytes;

	assert_int_equal(model_measure(l->directory, &l->config, 64, &info, &bytes, &error), 0);
	assert_int_equal(bytes, l->model->bytes);
	assert_int_equal(
		l->model->layers[0].qkv.dtype, test_device_info(l->device).activation_dtype);
}

/* 36864 elements are quantised; the others are bf16 in the file. */
static void test_widened_weights_have_the_width_of_activations(void **state)
{
	struct loaded *l = *state;
	struct model_error error = {""};
	uint64_t wide, narrow;

	assert_int_equal(
		model_measure(l->directory, &l->config, 64, DEVICE_F32, &wide, &error), 0);
	assert_int_equal(
		model_measure(l->directory, &l->config, 64, DEVICE_BF16, &narrow, &error), 0);
	assert_int_equal(wide - narrow, 36864 * 2);
}

static void on_progress(void *userdata, uint64_t done, uint64_t total)
{
	uint64_t *last = userdata;

	assert_true(done > last[0] && done <= total);
	last[0] = done;
	last[1] = total;
}

static void test_progress_counts_side_tensors(void **state)
{
	struct loaded *l = *state;
	struct model_error error = {""};
	struct model *again;
	uint64_t last[2] = {0};

	assert_int_equal(model_load(l->device, l->directory, &l->config, 64, on_progress, last,
				 &again, &error),
		0);
	assert_int_equal(last[0], last[1]);
	assert_int_equal(last[0], again->file_bytes);
	model_free(again);
}

/* ---- large tensors ---- */

enum { WIDE_ROWS = 1000000, WIDE_COLS = 16 };

/* The model but its gate: one layer, whose MLP has a million rows. */
static struct writing begin_wide(void)
{
	struct writing w = writing_begin_layer(128u << 20, WIDE_COLS);

	return w;
}

#define MLP "model.layers.0.mlp."

static int load_wide(const struct scratch *scratch, const char *quantisation, struct loaded *ret,
	char words[512])
{
	struct model_error error = {""};
	char text[768];
	int rc;

	snprintf(text, sizeof(text),
		"{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":%d,"
		"\"intermediate_size\":%d,\"num_hidden_layers\":1,\"num_attention_heads\":2,"
		"\"vocab_size\":6,\"tie_word_embeddings\":true,\"quantization_config\":{%s,"
		"\"modules_to_not_convert\":[\"self_attn\",\"up_proj\",\"down_proj\"]}}",
		WIDE_COLS, WIDE_ROWS, quantisation);
	scratch_text(scratch, "config.json", text);
	*ret = (struct loaded){0};
	snprintf(ret->directory, sizeof(ret->directory), "%s", scratch->directory);
	ret->device = test_device_open(0);
	if (model_config_load(ret->directory, &ret->config, &error))
		fail_msg("%s", error.text);
	rc = model_load(
		ret->device, ret->directory, &ret->config, 8, NULL, NULL, &ret->model, &error);
	snprintf(words, 512, "%s", error.text);
	return rc;
}

/* The gate's rows are want's. */
static void assert_gate(struct scratch *scratch, const char *quantisation, const float *want)
{
	struct weight weight;
	struct loaded l;
	char words[512];
	float *have;
	size_t n;

	if (load_wide(scratch, quantisation, &l, words))
		fail_msg("%s", words);
	weight = l.model->layers[0].gate_up;
	assert_int_equal(weight.rows, 2 * WIDE_ROWS);
	n = (size_t)weight.rows / 2 * weight.cols;
	have = malloc(n * sizeof(*have));
	assert_non_null(have);
	weight.data = test_fetch(l.device, weight.data, n * dtype_bytes(weight.dtype));
	weight_to_f32(have, &weight, 0, n);
	for (size_t i = 0; i < n; i++) {
		float wanted =
			weight.dtype == DTYPE_BF16 ? bf16_to_f32(f32_to_bf16(want[i])) : want[i];

		if (have[i] != wanted)
			fail_msg("[%zu, %zu] is %g, not %g", i / WIDE_COLS, i % WIDE_COLS,
				(double)have[i], (double)wanted);
	}
	free((void *)weight.data);
	free(have);
	unload(&l);
}

/* Powers of two from 2^-6 to 2^7, and a factor a block. */
static void test_rows_of_many_chunks_arrive_whole(void **state)
{
	const size_t n = (size_t)WIDE_ROWS * WIDE_COLS, n_blocks = (WIDE_ROWS + 127) / 128;
	struct writing w = begin_wide();
	uint8_t *q = writing_add(&w, MLP "gate_proj.weight", "F8_E4M3", WIDE_ROWS, WIDE_COLS, n);
	float *factors = writing_add(&w, MLP "gate_proj.weight_scale_inv", "F32", n_blocks, 1,
		n_blocks * sizeof(*factors));
	float *want = malloc(n * sizeof(*want));

	assert_non_null(want);
	for (size_t i = 0; i < n_blocks; i++)
		factors[i] = (float)(1 + i % 5);
	for (size_t i = 0; i < n; i++) {
		int power = (int)(i * 7 % 13);

		q[i] = (uint8_t)((power + 1) << 3);
		want[i] = ldexpf(1, power - 6) * (float)(1 + i / WIDE_COLS / 128 % 5);
	}
	writing_add_zeros(&w, MLP "up_proj.weight", WIDE_ROWS, WIDE_COLS);
	writing_add_zeros(&w, MLP "down_proj.weight", WIDE_COLS, WIDE_ROWS);
	writing_write(*state, &w);
	assert_gate(*state, "\"quant_method\":\"fp8\",\"weight_block_size\":[128,16]", want);
	free(want);
}

static void test_transposed_data_of_many_chunks_arrives_whole(void **state)
{
	static const uint8_t nibbles[8] = {0, 4, 1, 5, 2, 6, 3, 7};
	const size_t n_words = (size_t)WIDE_COLS * WIDE_ROWS / 8;
	struct writing w = begin_wide();
	uint32_t *q = writing_add(
		&w, MLP "gate_proj.qweight", "I32", WIDE_COLS, WIDE_ROWS / 8, n_words * 4);
	uint32_t *zeros =
		writing_add(&w, MLP "gate_proj.qzeros", "I32", 1, WIDE_ROWS / 8, WIDE_ROWS / 2);
	float *factors = writing_add(
		&w, MLP "gate_proj.scales", "F32", 1, WIDE_ROWS, WIDE_ROWS * sizeof(*factors));
	float *want = malloc(n_words * 8 * sizeof(*want));

	assert_non_null(want);
	for (size_t i = 0; i < n_words; i++)
		q[i] = (uint32_t)(i * 2654435761u);
	memset(zeros, 0x77, WIDE_ROWS / 2);
	for (size_t row = 0; row < WIDE_ROWS; row++) {
		factors[row] = (float)(1 + row % 3);
		for (size_t k = 0; k < WIDE_COLS; k++) {
			uint32_t word = q[(k * WIDE_ROWS + row) / 8];
			int value = (int)(word >> 4 * nibbles[row % 8] & 15);

			want[row * WIDE_COLS + k] = (float)(value - 7) * factors[row];
		}
	}
	writing_add_zeros(&w, MLP "up_proj.weight", WIDE_ROWS, WIDE_COLS);
	writing_add_zeros(&w, MLP "down_proj.weight", WIDE_COLS, WIDE_ROWS);
	writing_write(*state, &w);
	assert_gate(*state,
		"\"quant_method\":\"awq\",\"bits\":4,\"group_size\":-1,"
		"\"zero_point\":true,\"version\":\"gemm\"",
		want);
	free(want);
}

static void test_load_ends_at_a_corrupt_factor(void **state)
{
	const size_t n = (size_t)WIDE_ROWS * WIDE_COLS;
	struct writing w = begin_wide();
	struct loaded l;
	char words[512];

	memset(writing_add(&w, MLP "gate_proj.weight", "F8_E4M3", WIDE_ROWS, WIDE_COLS, n), 0, n);
	*(float *)writing_add(&w, MLP "gate_proj.weight_scale", "F32", 1, 0, 4) = NAN;
	writing_add_zeros(&w, MLP "up_proj.weight", WIDE_ROWS, WIDE_COLS);
	writing_add_zeros(&w, MLP "down_proj.weight", WIDE_COLS, WIDE_ROWS);
	writing_write(*state, &w);
	assert_int_equal(load_wide(*state, "\"quant_method\":\"fp8\"", &l, words), -EINVAL);
	assert_contains(
		words, "tensor \"" MLP "gate_proj.weight_scale\": element 0, a factor, is nan");
	assert_null(l.model);
	unload(&l);
}

/* ---- hf_quant_config.json ---- */

#define SIZES                                                                                       \
	"{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":8,\"intermediate_size\":8,"           \
	"\"num_hidden_layers\":1,\"num_attention_heads\":2,\"vocab_size\":6"
#define FP4 "{\"quantization\":{\"quant_algo\":\"NVFP4\"}}"

static void test_modelopts_own_file_of_fp4_is_refused(void **state)
{
	const struct scratch *scratch = *state;
	struct model_config config;
	struct model_error error = {""};

	scratch_text(scratch, "config.json", SIZES "}");
	scratch_text(scratch, "hf_quant_config.json", FP4);
	assert_int_equal(model_config_load(scratch->directory, &config, &error), -ENOTSUP);
	assert_contains(error.text, scratch->directory);
	assert_contains(error.text, "/hf_quant_config.json: quantization.quant_algo \"NVFP4\" is not supported");
}

/* Newer versions write both. */
static void test_modelopts_own_file_is_not_read_beside_quantization_config(void **state)
{
	const struct scratch *scratch = *state;
	struct model_config config;
	struct model_error error = {""};

	scratch_text(scratch, "config.json", SIZES ",\"quantization_config\":{\"quant_method\":\"fp8\"}}");
	scratch_text(scratch, "hf_quant_config.json", FP4);
	MUST(model_config_load(scratch->directory, &config, &error));
	model_config_deinit(&config);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_quantised_tensor_of_an_excluded_module_is_refused),
		cmocka_unit_test(test_plain_tensor_of_a_module_that_is_not_excluded_is_refused),
		cmocka_unit_test(test_quantised_tensor_without_a_configuration_is_refused),
		cmocka_unit_test(test_factors_of_another_granularity_are_refused),
		cmocka_unit_test(test_model_with_all_modules_excluded_is_plain),
		cmocka_unit_test(test_lists_have_the_names_of_an_inner_checkpoint),
		loaded_test(test_load_says_format_and_widening, FP8_TENSOR),
		loaded_test(test_side_tensors_are_not_without_use, FP8_TENSOR),
		loaded_test(test_measured_bytes_are_those_of_the_widened_weights, FP8_TENSOR),
		loaded_test(test_widened_weights_have_the_width_of_activations, FP8_TENSOR),
		loaded_test(test_progress_counts_side_tensors, FP8_TENSOR),
		scratch_test(test_rows_of_many_chunks_arrive_whole),
		scratch_test(test_transposed_data_of_many_chunks_arrives_whole),
		scratch_test(test_load_ends_at_a_corrupt_factor),
		scratch_test(test_modelopts_own_file_of_fp4_is_refused),
		scratch_test(test_modelopts_own_file_is_not_read_beside_quantization_config),
	};

	return cmocka_run_group_tests_name("quantised_load", tests, NULL, NULL);
}
