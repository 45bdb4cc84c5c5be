/* SPDX-License-Identifier: MIT */
#include <stdarg.h>
#include <stdio.h>

#include "daemon/model/error.h"

int model_fail(struct model_error *error, int rc, const char *format, ...)
{
	va_list args;

	if (!error)
		return rc;
	va_start(args, format);
	vsnprintf(error->text, sizeof(error->text), format, args);
	va_end(args);
	for (unsigned char *c = (unsigned char *)error->text; *c; c++) {
		if (*c < 0x20 || *c == 0x7f)
			*c = '?';
	}
	return rc;
}
