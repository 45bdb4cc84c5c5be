/* SPDX-License-Identifier: MIT */
#include "daemon/model/quantisation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool quantisation_targets(
	const struct quantisation_scheme *scheme, bool patterns, const char *module, const char *inner)
{
	return modules_match_kind(&scheme->targets, patterns, module, NULL) == MODULES_YES ||
	       (inner && modules_match_kind(&scheme->targets, patterns, inner, NULL) == MODULES_YES);
}

const struct quantisation_scheme *quantisation_scheme_of(
	const struct quantisation *quantisation, const char *module, const char *inner)
{
	for (int patterns = 0; patterns < 2; patterns++) {
		for (uint32_t i = 0; i < quantisation->n_schemes; i++) {
			const struct quantisation_scheme *scheme = &quantisation->schemes[i];

			if (quantisation_targets(scheme, patterns, module, inner))
				return scheme;
		}
	}
	for (uint32_t i = 0; i < quantisation->n_schemes; i++)
		if (quantisation->schemes[i].targets_all)
			return &quantisation->schemes[i];
	return NULL;
}

static enum modules_match quantisation_excludes(
	const struct quantisation *quantisation, const char *module, const char *inner, const char **ret_text)
{
	enum modules_match match = modules_match(&quantisation->excluded, module, ret_text), other;
	const char *text = "";

	if (!inner)
		return match;
	other = modules_match(&quantisation->excluded, inner, &text);
	if (other <= match)
		return match;
	*ret_text = text;
	return other;
}

enum quantisation_rule quantisation_rule_of(const struct quantisation *quantisation,
	const char *module, const char *inner, char ret_why[QUANTISATION_WHY_MAX])
{
	const char *text = "";
	enum modules_match excluded = quantisation_excludes(quantisation, module, inner, &text);

	if (excluded == MODULES_YES) {
		snprintf(ret_why, QUANTISATION_WHY_MAX,
			"%s \"%.64s\" excludes it", quantisation->excluded_key,
			text);
		return QUANTISATION_NEVER;
	}
	if (!quantisation_scheme_of(quantisation, module, inner)) {
		snprintf(ret_why, QUANTISATION_WHY_MAX,
			"quantization_config.config_groups has no target that names it");
		return QUANTISATION_NEVER;
	}
	return excluded == MODULES_MAYBE ? QUANTISATION_MAYBE : QUANTISATION_ALWAYS;
}

static void quantisation_describe_scheme(const struct quantisation_scheme *scheme, char *ret, size_t n)
{
	static const char *const names[] = {
		[QUANTISATION_FP8] = "fp8",
		[QUANTISATION_PACKED] = "int4",
		[QUANTISATION_GPTQ] = "int4 (gptq)",
		[QUANTISATION_AWQ] = "int4 (awq)",
	};
	const char *name = names[scheme->method];

	if (scheme->block_rows > 1)
		snprintf(ret, n, "%s in blocks of %u x %u", name, scheme->block_rows, scheme->block_cols);
	else if (!scheme->block_rows)
		snprintf(ret, n, "%s with a factor a tensor", name);
	else if (!scheme->block_cols)
		snprintf(ret, n, "%s with a factor a row", name);
	else
		snprintf(ret, n, "%s in groups of %u", name, scheme->block_cols);
}

void quantisation_describe(const struct quantisation *quantisation, char ret[QUANTISATION_TEXT_MAX])
{
	size_t length = 0;
	char text[64];

	*ret = 0;
	for (uint32_t i = 0; i < quantisation->n_schemes && length < QUANTISATION_TEXT_MAX; i++) {
		quantisation_describe_scheme(&quantisation->schemes[i], text, sizeof(text));
		if (!strstr(ret, text))
			length += (size_t)snprintf(ret + length, QUANTISATION_TEXT_MAX - length, "%s%s",
				length ? " and " : "", text);
	}
}

void quantisation_free(struct quantisation *quantisation)
{
	if (!quantisation)
		return;
	modules_deinit(&quantisation->excluded);
	for (uint32_t i = 0; i < quantisation->n_schemes; i++)
		modules_deinit(&quantisation->schemes[i].targets);
	free(quantisation);
}
