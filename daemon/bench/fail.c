/* SPDX-License-Identifier: MIT */
#include "daemon/bench/fail.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "kernels/device.h"

int bench_fail(int rc, const char *format, ...)
{
	va_list arguments;

	fprintf(stderr, "%s: ", program_invocation_short_name);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	return rc;
}

int bench_fail_device(int rc, const char *what, const char *why)
{
	return rc ? bench_fail(rc, "%s: %s", what, *why ? why : device_strerror(rc)) : 0;
}
