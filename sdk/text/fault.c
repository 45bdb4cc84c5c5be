/* SPDX-License-Identifier: MIT */
#include "sdk/text/fault.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "sdk/text/utf8.h"

void fault_clean(char *message, bool is_cut)
{
	char *at = message, *end = message + strlen(message);
	bool is_incomplete;
	unsigned size;

	while (at < end) {
		int n = utf8_look(at, (size_t)(end - at), &is_incomplete);

		if (n < 0 && is_incomplete && is_cut) {
			*at = '\0';
			return;
		}
		size = n < 0 ? 1 : (unsigned)n;
		uint32_t c = n < 0 ? 0 : utf8_decode(at, &size);
		if (c < ' ' || (c >= 0x7f && c <= 0x9f))
			memset(at, '?', size);
		at += size;
	}
}

int fault_set(const struct fault *fault, int status, const char *format, ...)
{
	va_list arguments;

	assert(status < 0);
	if (fault->size == 0)
		return status;
	va_start(arguments, format);
	int length = vsnprintf(fault->message, fault->size, format, arguments);
	va_end(arguments);
	fault_clean(fault->message, length >= 0 && (size_t)length >= fault->size);
	return status;
}
