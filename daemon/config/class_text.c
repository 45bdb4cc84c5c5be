/* SPDX-License-Identifier: MIT */
#include "daemon/config/class_text.h"

#include <string.h>

#include <mimeo/types.h>

bool class_text_parse(const char *text, uint32_t *ret)
{
	static const char *const names[] = {
		[MIMEO_CLASS_NORMAL] = "normal",
		[MIMEO_CLASS_INTERACTIVE] = "interactive",
		[MIMEO_CLASS_BATCH] = "batch",
	};

	for (uint32_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (strcmp(text, names[i]) != 0)
			continue;
		*ret = i;
		return true;
	}
	return false;
}
