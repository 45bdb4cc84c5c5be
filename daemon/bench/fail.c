/* SPDX-License-Identifier: MIT */
#include "daemon/bench/fail.h"

#include <err.h>
#include <stdarg.h>

#include "kernels/device.h"

int bench_fail(int rc, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vwarnx(format, arguments);
	va_end(arguments);
	return rc;
}

int bench_fail_device(int rc, const char *what, const char *why)
{
	return rc ? bench_fail(rc, "%s: %s", what, *why ? why : device_strerror(rc)) : 0;
}
