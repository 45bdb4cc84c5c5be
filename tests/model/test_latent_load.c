/* SPDX-License-Identifier: MIT */
/* Where the tensors of DeepSeek's families end up, and what is refused before they are read. */
#include "tests/model/loaded.h"

#include <errno.h>

#include "daemon/model/plan.h"

#define MLA "examples/models/tinycalc-mla"
#define MOE "examples/models/tinycalc-moe"
#define CHECKPOINTS "tests/data/checkpoints/"

static void test_latent_attention_is_loaded_byte_for_byte(void **state)
{
	struct loaded *l = *state;
	const struct model_layer *layer = &l->model->layers[3];

	assert_holds(l, &layer->q, 0, "model.layers.3.self_attn.q_proj.weight");
	assert_holds(l, &layer->kv_a, 0, "model.layers.3.self_attn.kv_a_proj_with_mqa.weight");
	assert_holds(l, &layer->kv_a_norm, 0, "model.layers.3.self_attn.kv_a_layernorm.weight");
	assert_holds(l, &layer->kv_b, 0, "model.layers.3.self_attn.kv_b_proj.weight");
	assert_holds(l, &layer->o, 0, "model.layers.3.self_attn.o_proj.weight");
	assert_int_equal(layer->kv_b.rows, 4 * (32 + 32));
	assert_int_equal(layer->kv_b.cols, 64);
	assert_null(layer->q_a.data);
	assert_null(layer->qkv.data);
	assert_null(layer->router.data);
}

static void test_queries_with_a_latent_and_biases_are_loaded(void **state)
{
	struct loaded *l = *state;
	const struct model_layer *layer = &l->model->layers[2];
	uint64_t at;

	assert_holds(l, &layer->q_a, 0, "model.layers.2.self_attn.q_a_proj.weight");
	assert_holds(l, &layer->q_a_bias, 0, "model.layers.2.self_attn.q_a_proj.bias");
	assert_holds(l, &layer->q_a_norm, 0, "model.layers.2.self_attn.q_a_layernorm.weight");
	assert_holds(l, &layer->q, 0, "model.layers.2.self_attn.q_b_proj.weight");
	assert_holds(l, &layer->kv_a_bias, 0, "model.layers.2.self_attn.kv_a_proj_with_mqa.bias");
	assert_holds(l, &layer->o_bias, 0, "model.layers.2.self_attn.o_proj.bias");
	at = assert_holds(
		l, &layer->gate_up_bias, 0, "model.layers.2.mlp.shared_experts.gate_proj.bias");
	assert_holds(
		l, &layer->gate_up_bias, at, "model.layers.2.mlp.shared_experts.up_proj.bias");
	assert_holds(l, &layer->down_bias, 0, "model.layers.2.mlp.shared_experts.down_proj.bias");
}

static void test_experts_are_one_weight_gate_and_up_of_each_together(void **state)
{
	struct loaded *l = *state;
	const struct model_layer *layer = &l->model->layers[1];
	char name[96];
	uint64_t at = 0, down = 0;

	for (int e = 0; e < 8; e++) {
		static const char *const parts[] = {"gate_proj", "up_proj"};

		for (int i = 0; i < 2; i++) {
			snprintf(name, sizeof(name), "model.layers.1.mlp.experts.%d.%s.weight", e,
				parts[i]);
			at = assert_holds(l, &layer->expert_gate_up, at, name);
		}
		snprintf(name, sizeof(name), "model.layers.1.mlp.experts.%d.down_proj.weight", e);
		down = assert_holds(l, &layer->expert_down, down, name);
	}
	assert_int_equal(layer->expert_gate_up.rows, 8 * 2 * 96);
	assert_int_equal(layer->expert_down.rows, 8 * 160);
	assert_holds(l, &layer->router, 0, "model.layers.1.mlp.gate.weight");
	assert_holds(l, &layer->down, 0, "model.layers.1.mlp.shared_experts.down_proj.weight");
	assert_null(layer->router_bias.data);
	assert_null(l->model->layers[0].router.data);
	assert_holds(l, &l->model->layers[0].down, 0, "model.layers.0.mlp.down_proj.weight");
}

static void test_bias_of_the_choice_stays_float32_where_activations_are_not(void **state)
{
	struct loaded *l = *state;
	struct model_error error = {""};
	struct model_layer layers[3];
	struct model counted = {.config = l->config, .max_positions = 8, .layers = layers};
	struct safetensors checkpoint;
	struct plan plan = {.directory = l->directory, .activation_dtype = DTYPE_BF16,
		.checkpoint = &checkpoint, .error = &error};

	assert_holds(l, &l->model->layers[1].router_bias, 0,
		"model.layers.1.mlp.gate.e_score_correction_bias");
	assert_int_equal(l->config.n_layers, ARRAY_SIZE(layers));
	assert_int_equal(safetensors_open(l->directory, &checkpoint, &error), 0);
	assert_int_equal(plan_model(&plan, &counted), 0);
	assert_int_equal(layers[1].router_bias.dtype, DTYPE_F32);
	assert_int_equal(layers[1].router.dtype, DTYPE_BF16);
	assert_int_equal(layers[1].kv_a_norm.dtype, DTYPE_BF16);
	safetensors_deinit(&checkpoint);
}

static void test_missing_expert_is_named(void **state)
{
	struct model_error error = {""};
	struct loaded *l = *state;
	uint64_t bytes;

	l->config.experts.n = 9;
	assert_int_equal(
		model_measure(l->directory, &l->config, 64, DEVICE_F32, &bytes, &error), -EINVAL);
	assert_contains(error.text, "model.layers.1.mlp.gate.weight");
	assert_contains(error.text, "[8, 160] is not [9, 160]");
	l->config.experts.n = 8;
	l->config.experts.layers[0] = true;
	assert_int_equal(
		model_measure(l->directory, &l->config, 64, DEVICE_F32, &bytes, &error), -EINVAL);
	assert_contains(error.text, "tensor \"model.layers.0.mlp.gate.weight\" is missing");
}

static void test_wrong_shape_names_sizes_that_are_defaults(void **state)
{
	struct model_error error = {""};
	struct loaded *l = *state;
	uint64_t bytes;

	assert_string_equal(l->config.assumed, "");
	strcpy(l->config.assumed, "kv_lora_rank 512");
	l->config.latent.rank = 512;
	assert_int_equal(
		model_measure(l->directory, &l->config, 64, DEVICE_F32, &bytes, &error), -EINVAL);
	assert_contains(error.text, "which the configuration gives it, with defaults for what it leaves "
		"out: kv_lora_rank 512");
}

/* Loading is refused on a device with those ops. */
static void expect_lacking(struct loaded *l, const struct kernel_ops *ops, const char *what)
{
	const struct kernel_ops *whole = l->device->kernels;
	struct model_error error = {""};
	struct model *model = NULL;

	l->device->kernels = ops;
	assert_int_equal(model_load(l->device, l->directory, &l->config, 64, NULL, NULL, &model,
				 &error), -ENOTSUP);
	l->device->kernels = whole;
	assert_null(model);
	assert_contains(error.text, "architectures \"DeepseekV2ForCausalLM\" needs");
	assert_contains(error.text, what);
}

static void test_device_that_lacks_an_op_of_the_model_is_refused(void **state)
{
	struct loaded *l = *state;
	struct kernel_ops ops = *l->device->kernels;

	ops.head_gemm = NULL;
	expect_lacking(l, &ops, "latent attention");
	ops = *l->device->kernels;
	ops.moe_combine = NULL;
	expect_lacking(l, &ops, "experts");
}

static void test_cache_has_a_row_of_latent_and_rope_and_no_values(void **state)
{
	struct loaded *l = *state;
	const struct device_info info = test_device_info(l->device);
	struct kv_config kv = model_kv(&l->config, &info, 16);
	struct attention_config attention = model_attention(&l->config, &info);

	assert_int_equal(kv_layer_page_bytes(&kv), 16 * (64 + 32) * dtype_bytes(info.kv_dtype));
	assert_int_equal(attention.n_kv_heads, 1);
	assert_int_equal(attention.head_dim, 64 + 32);
	assert_int_equal(attention.latent.v, 32);
	assert_true(attention.scale == 0.125f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		loaded_test(test_latent_attention_is_loaded_byte_for_byte, MLA),
		loaded_test(test_queries_with_a_latent_and_biases_are_loaded, CHECKPOINTS "deepseek-v2"),
		loaded_test(test_experts_are_one_weight_gate_and_up_of_each_together, MOE),
		loaded_test(test_bias_of_the_choice_stays_float32_where_activations_are_not, CHECKPOINTS "deepseek-v3"),
		loaded_test(test_missing_expert_is_named, MOE),
		loaded_test(test_wrong_shape_names_sizes_that_are_defaults, MOE),
		loaded_test(test_device_that_lacks_an_op_of_the_model_is_refused, MOE),
		loaded_test(test_cache_has_a_row_of_latent_and_rope_and_no_values, MLA),
	};

	static const struct test_cpu_only only[] = {
		{"test_queries_with_a_latent", "float32 weights are narrowed when they are loaded"},
	};

	return TEST_RUN_GROUP("latent load", tests, only, NULL, NULL);
}
