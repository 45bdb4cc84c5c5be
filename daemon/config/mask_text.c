/* SPDX-License-Identifier: MIT */
#include "daemon/config/mask_text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Digits, of `least` to UINT32_MAX, and then one of `ends`. */
static bool parse_tokens(const char **at, const char *ends, uint32_t least, uint32_t *ret)
{
	unsigned long long value;
	char *end;

	if (**at < '0' || **at > '9')
		return false;
	errno = 0;
	value = strtoull(*at, &end, 10);
	if (errno || value < least || value > UINT32_MAX || !strchr(ends, *end))
		return false;
	*ret = (uint32_t)value;
	*at = end;
	return true;
}

bool mask_text_parse(const char *text, struct mask_text *ret)
{
	struct mask_text mask = {0};

	if (strcmp(text, "prefix") == 0) {
		mask.prefix = UINT32_MAX;
	} else if (strncmp(text, "window:", strlen("window:")) == 0) {
		const char *at = text + strlen("window:");

		if (!parse_tokens(&at, "+", 1, &mask.window)) /* strchr finds the end, too */
			return false;
		if (*at++ == '+' && !parse_tokens(&at, "", 0, &mask.sinks))
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
