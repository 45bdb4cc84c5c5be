/* SPDX-License-Identifier: MIT */
#include "daemon/startup/startup_error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

int startup_refuse(struct startup_error *error, int rc, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(error->text, sizeof(error->text), format, arguments);
	va_end(arguments);
	return rc < 0 ? rc : -EIO;
}
