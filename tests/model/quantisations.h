/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_MODEL_QUANTISATIONS_H
#define MIMEO_TESTS_MODEL_QUANTISATIONS_H

/* Small config.json texts with quantization_config. */

#include "tests/model/configs.h"

#include "daemon/model/quantisation.h"

#define QUANTISED(fields) LLAMA(",\"quantization_config\":{" fields "}")

#define FP8(more) QUANTISED("\"quant_method\":\"fp8\"" more)

#define COMPRESSED_GROUP(format, group, more)                                                      \
	QUANTISED("\"quant_method\":\"compressed-tensors\",\"format\":\"" format                   \
		  "\",\"config_groups\":{\"group_0\":{" group "}}" more)
#define COMPRESSED(format, weights, more)                                                          \
	COMPRESSED_GROUP(format, "\"targets\":[\"Linear\"],\"weights\":{" weights "}", more)
/* Of a format for all, with groups of "name":{...}. */
#define COMPRESSED_GROUPS(format, groups, more)                                                    \
	QUANTISED("\"quant_method\":\"compressed-tensors\",\"format\":\"" format                   \
		  "\",\"config_groups\":{" groups "}" more)
/* "name":{...} with a format of its own. */
#define GROUP_OF(name, format, targets, weights)                                                   \
	"\"" name "\":{\"format\":\"" format "\",\"targets\":[" targets "],\"weights\":{" weights "}}"
#define CHANNELS "\"num_bits\":8,\"type\":\"float\",\"strategy\":\"channel\""
#define INT4_128 "\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\",\"group_size\":128"
#define MODELOPT(algorithm, more) QUANTISED("\"quant_method\":\"modelopt\",\"quant_algo\":\"" algorithm "\"" more)
#define AWQ(version, more)                                                                         \
	QUANTISED("\"quant_method\":\"awq\",\"bits\":4,\"group_size\":64,\"zero_point\":true,"     \
		  "\"version\":\"" version "\"" more)

static inline const struct quantisation *quantisation_of(const char *text)
{
	const struct quantisation *quantisation = parse(text).quantisation;

	assert_non_null(quantisation);
	return quantisation;
}

/* The only one. */
static inline const struct quantisation_scheme *scheme_of(const char *text)
{
	const struct quantisation *quantisation = quantisation_of(text);

	assert_int_equal(quantisation->n_schemes, 1);
	return &quantisation->schemes[0];
}

#endif
