/* SPDX-License-Identifier: MIT */
#include "daemon/model/quantisation.h"

#include <stdio.h>
#include <stdlib.h>

enum quantisation_rule quantisation_rule_of(const struct quantisation *quantisation,
	const char *module, char ret_why[QUANTISATION_WHY_MAX])
{
	const char *text = "";
	enum modules_match excluded = modules_match(&quantisation->excluded, module, &text);

	if (excluded == MODULES_YES) {
		snprintf(ret_why, QUANTISATION_WHY_MAX,
			"quantization_config.%s \"%.64s\" excludes it", quantisation->excluded_key,
			text);
		return QUANTISATION_NEVER;
	}
	if (!quantisation->targets_all &&
		modules_match(&quantisation->targets, module, NULL) != MODULES_YES) {
		snprintf(ret_why, QUANTISATION_WHY_MAX,
			"quantization_config.config_groups has no target that names it");
		return QUANTISATION_NEVER;
	}
	return excluded == MODULES_MAYBE ? QUANTISATION_MAYBE : QUANTISATION_ALWAYS;
}

void quantisation_describe(const struct quantisation *quantisation, char ret[QUANTISATION_TEXT_MAX])
{
	static const char *const names[] = {
		[QUANTISATION_FP8] = "fp8",
		[QUANTISATION_PACKED] = "int4",
		[QUANTISATION_GPTQ] = "int4 (gptq)",
		[QUANTISATION_AWQ] = "int4 (awq)",
	};
	const char *name = names[quantisation->method];

	if (quantisation->block_rows > 1)
		snprintf(ret, QUANTISATION_TEXT_MAX, "%s in blocks of %u x %u", name,
			quantisation->block_rows, quantisation->block_cols);
	else if (!quantisation->block_rows)
		snprintf(ret, QUANTISATION_TEXT_MAX, "%s with a factor a tensor", name);
	else if (!quantisation->block_cols)
		snprintf(ret, QUANTISATION_TEXT_MAX, "%s with a factor a row", name);
	else
		snprintf(ret, QUANTISATION_TEXT_MAX, "%s in groups of %u", name,
			quantisation->block_cols);
}

void quantisation_free(struct quantisation *quantisation)
{
	if (!quantisation)
		return;
	modules_deinit(&quantisation->excluded);
	modules_deinit(&quantisation->targets);
	free(quantisation);
}
