/* SPDX-License-Identifier: MIT */
#include "sdk/text/fault.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

int fault_set(const struct fault *fault, int status, const char *format, ...)
{
	va_list arguments;

	assert(status < 0);
	if (fault->size == 0)
		return status;
	va_start(arguments, format);
	vsnprintf(fault->message, fault->size, format, arguments);
	va_end(arguments);
	/* What a file contributed may hold line ends or other control characters. */
	for (char *at = fault->message; *at; at++) {
		if ((unsigned char)*at < ' ' || *at == 0x7f)
			*at = '?';
	}
	return status;
}
