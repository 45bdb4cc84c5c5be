/* SPDX-License-Identifier: MIT */
#include "daemon/config/mask_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/config/digits.h"

/* A number from `least` to UINT32_MAX, and then one of `ends`. */
static bool mask_text_parse_tokens(const char **at, const char *ends, uint32_t least, uint32_t *ret)
{
	uint64_t value = 0;

	if (digits_parse(at, UINT32_MAX, &value) < 0 || value < least || !strchr(ends, **at))
		return false;
	*ret = (uint32_t)value;
	return true;
}

bool mask_text_parse(const char *text, struct mask_text *ret)
{
	struct mask_text mask = {0};

	if (strcmp(text, "prefix") == 0) {
		mask.prefix = UINT32_MAX;
	} else if (strncmp(text, "window:", strlen("window:")) == 0) {
		const char *at = text + strlen("window:");

		if (!mask_text_parse_tokens(&at, "+", 1, &mask.window)) /* strchr finds the end, too */
			return false;
		if (*at++ == '+' && !mask_text_parse_tokens(&at, "", 0, &mask.sinks))
			return false;
	} else if (strcmp(text, "causal") != 0) {
		return false;
	}
	*ret = mask;
	return true;
}

const char *mask_text(const struct mask_text *mask, char ret[MASK_TEXT_MAX])
{
	if (!mask->window)
		snprintf(ret, MASK_TEXT_MAX, "%s", mask->prefix ? "prefix" : "causal");
	else if (mask->sinks)
		snprintf(ret, MASK_TEXT_MAX, "window:%" PRIu32 "+%" PRIu32, mask->window, mask->sinks);
	else
		snprintf(ret, MASK_TEXT_MAX, "window:%" PRIu32, mask->window);
	return ret;
}
