/* SPDX-License-Identifier: MIT */

/*
 * The fields that decide what the stored numbers mean are checked one by one; those of the program
 * that quantised, or of one that computes with quantised activations, are known and ignored; any
 * other field is refused, because it may change what the numbers mean.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/hf_compressed.h"
#include "daemon/model/hf_kv.h"
#include "daemon/model/hf_modelopt.h"
#include "daemon/model/hf_quantisation.h"
#include "daemon/model/hf_rules.h"

#define KEY "quantization_config"

DEFINE_CLEANUP(quantisation, struct quantisation, quantisation_free)

/* Older files call the list ignored_layers. */
static void hf_quantisation_parse_excluded(
	const struct field_object *object, struct quantisation *ret)
{
	static const char *const keys[] = {KEY ".modules_to_not_convert", KEY ".ignored_layers"};

	ret->excluded_key = keys[0];
	for (size_t i = 0; i < 2; i++) {
		const char *key = keys[i] + strlen(KEY ".");

		if (field_state(object, key) != FIELD_THERE)
			continue;
		ret->excluded_key = keys[i];
		hf_rules_modules(object, key, &ret->excluded);
	}
}

/* One for all linear modules. */
static struct quantisation_scheme *hf_quantisation_scheme(
	struct quantisation *ret, enum quantisation_method method, uint32_t block_rows)
{
	struct quantisation_scheme *scheme = &ret->schemes[ret->n_schemes++];

	*scheme = (struct quantisation_scheme){.method = method, .block_rows = block_rows, .targets_all = true};
	return scheme;
}

static void hf_quantisation_parse_fp8(const struct field_object *object, struct quantisation *ret)
{
	static const struct hf_rule rules[] = {
		{"quant_method", NULL, true},
		{"fmt", "\"e4m3\"", false},
		{"activation_scheme", "\"dynamic\"|\"static\"", false},
		{"weight_block_size", NULL, false},
		{"modules_to_not_convert", NULL, false},
		{"ignored_layers", NULL, false},
		{"dequantize", NULL, false},
		{"kv_cache_scheme", NULL, false},
	};

	struct quantisation_scheme *scheme = hf_quantisation_scheme(ret, QUANTISATION_FP8, 0);

	hf_rules_check(object, rules, sizeof(rules) / sizeof(rules[0]));
	if (field_state(object, "weight_block_size") == FIELD_THERE)
		hf_rules_block(object, "weight_block_size", &scheme->block_rows, &scheme->block_cols);
	hf_quantisation_parse_excluded(object, ret);
}

static void hf_quantisation_parse_gptq(const struct field_object *object, struct quantisation *ret)
{
	static const struct hf_rule rules[] = {
		{"quant_method", NULL, true},
		{"bits", "4", true},
		{"group_size", NULL, true},
		{"desc_act", "true|false", false},
		{"checkpoint_format", "\"gptq\"|\"gptq_v2\"", false},
		{"format", "\"gptq\"|\"gptq_v2\"", false},
		{"pack_dtype", "\"int32\"", false},
		{"dynamic", "{}", false},
		{"is_marlin_format", "false", false},
		{"modules_in_block_to_quantize", "[]", false},
		/* the zeros and groups that are stored say these */
		{"sym", "true|false", false},
		{"static_groups", "true|false", false},
		{"lm_head", "true|false", false},
		/* how the weights were quantised, and how transformers would run them */
		{"damp_percent", NULL, false},
		{"damp_auto_increment", NULL, false},
		{"true_sequential", NULL, false},
		{"dataset", NULL, false},
		{"tokenizer", NULL, false},
		{"batch_size", NULL, false},
		{"block_name_to_quantize", NULL, false},
		{"module_name_preceding_first_block", NULL, false},
		{"cache_block_outputs", NULL, false},
		{"model_seqlen", NULL, false},
		{"max_input_length", NULL, false},
		{"pad_token_id", NULL, false},
		{"model_name_or_path", NULL, false},
		{"model_file_base_name", NULL, false},
		{"quantizer", NULL, false},
		{"meta", NULL, false},
		{"act_group_aware", NULL, false},
		{"backend", NULL, false},
		{"use_exllama", NULL, false},
		{"use_cuda_fp16", NULL, false},
		{"exllama_config", NULL, false},
		{"disable_exllama", NULL, false},
	};
	struct quantisation_scheme *scheme = hf_quantisation_scheme(ret, QUANTISATION_GPTQ, 1);
	const char *format;

	hf_rules_check(object, rules, sizeof(rules) / sizeof(rules[0]));
	format = field_string(object, "format", "gptq");
	format = field_string(object, "checkpoint_format", format);
	scheme->block_cols = hf_rules_group(object, "group_size");
	scheme->needs_groups = field_bool(object, "desc_act", false);
	scheme->zeros_less_one = strcmp(format, "gptq_v2");
}

static void hf_quantisation_parse_awq(const struct field_object *object, struct quantisation *ret)
{
	static const struct hf_rule rules[] = {
		{"quant_method", NULL, true},
		{"bits", "4", true},
		{"group_size", NULL, true},
		{"zero_point", "true", true},
		{"version", "\"gemm\"|\"GEMM\"", true},
		{"modules_to_not_convert", NULL, false},
		/* how transformers would run them */
		{"backend", NULL, false},
		{"do_fuse", NULL, false},
		{"fuse_max_seq_len", NULL, false},
		{"modules_to_fuse", NULL, false},
		{"exllama_config", NULL, false},
	};
	struct quantisation_scheme *scheme = hf_quantisation_scheme(ret, QUANTISATION_AWQ, 1);

	hf_rules_check(object, rules, sizeof(rules) / sizeof(rules[0]));
	scheme->block_cols = hf_rules_group(object, "group_size");
	hf_quantisation_parse_excluded(object, ret);
}

static void hf_quantisation_parse_unknown(
	const struct field_object *object, struct quantisation *ret)
{
	(void)ret;
	if (field_state(object, "quant_method") != FIELD_THERE)
		field_fail(object, -EINVAL, "quant_method is missing");
	field_fail(object, -ENOTSUP,
		"quant_method \"%.64s\" is not one of fp8, compressed-tensors, gptq, awq, modelopt",
		field_string(object, "quant_method", ""));
}

void hf_quantisation_parse(const struct field_object *root, struct quantisation **ret)
{
	static const struct {
		const char *name;
		void (*parse)(const struct field_object *object, struct quantisation *ret);
	} methods[] = {
		{"fp8", hf_quantisation_parse_fp8},
		{"compressed-tensors", hf_compressed_parse},
		{"gptq", hf_quantisation_parse_gptq},
		{"awq", hf_quantisation_parse_awq},
		{"modelopt", hf_modelopt_parse},
	};
	const struct field_object object = field_member(root, KEY, KEY ".");
	CLEANUP(cleanup_quantisation) struct quantisation *q = NULL;
	void (*parse)(const struct field_object *, struct quantisation *) =
		hf_quantisation_parse_unknown;

	*ret = NULL;
	if (!object.json)
		return;
	q = calloc(1, sizeof(*q));
	if (!q) {
		field_fail(root, -ENOMEM, "no memory for " KEY);
		return;
	}
	for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++) {
		if (!strcmp(field_string(&object, "quant_method", ""), methods[i].name))
			parse = methods[i].parse;
	}
	parse(&object, q);
	if (parse != hf_modelopt_parse)
		hf_kv_parse(&object, "kv_cache_scheme", q);
	if (!root->file->rc)
		*ret = STEAL(q);
}
