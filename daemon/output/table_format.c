/* SPDX-License-Identifier: MIT */
#include "daemon/output/table_format.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

const char *table_format_number(char ret[static TABLE_FORMAT_MAX], double value)
{
	double size = fabs(value);
	int decimals = size >= 99.95 || value == 0 ? 0 : size >= 9.995 ? 1 : 2;

	if (size != 0 && size < 0.1)
		snprintf(ret, TABLE_FORMAT_MAX, "%.3g", value);
	else
		snprintf(ret, TABLE_FORMAT_MAX, "%.*f", decimals, value);
	return ret;
}

const char *table_format_precise(char ret[static TABLE_FORMAT_MAX], double value)
{
	snprintf(ret, TABLE_FORMAT_MAX, "%#.6g", value);
	return ret;
}

/* value with a unit; 1000 of a unit never print where 1 of the next can. */
static void table_format_scaled(char ret[static TABLE_FORMAT_MAX], double value, const char *unit)
{
	char number[TABLE_FORMAT_MAX];

	snprintf(ret, TABLE_FORMAT_MAX, "%.20s %s", table_format_number(number, value), unit);
}

const char *table_format_bytes(char ret[static TABLE_FORMAT_MAX], double bytes)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
	size_t i = 0;

	while (fabs(bytes) >= 1023.5 && i + 1 < sizeof(units) / sizeof(units[0])) {
		bytes /= 1024;
		i++;
	}
	if (i == 0)
		snprintf(ret, TABLE_FORMAT_MAX, "%.0f B", bytes);
	else
		table_format_scaled(ret, bytes, units[i]);
	return ret;
}

const char *table_format_seconds(char ret[static TABLE_FORMAT_MAX], double seconds)
{
	double size = fabs(seconds);

	if (size == 0)
		snprintf(ret, TABLE_FORMAT_MAX, "0 s");
	else if (size < 999.5e-9)
		table_format_scaled(ret, seconds * 1e9, "ns");
	else if (size < 999.5e-6)
		table_format_scaled(ret, seconds * 1e6, "us");
	else if (size < 999.5e-3)
		table_format_scaled(ret, seconds * 1e3, "ms");
	else if (!(size < 1e15))
		snprintf(ret, TABLE_FORMAT_MAX, "%g s", seconds);
	else if (size < 59.995)
		table_format_scaled(ret, seconds, "s");
	else {
		uint64_t whole = (uint64_t)(size + 0.5);
		const char *sign = seconds < 0 ? "-" : "";

		if (whole < 3600)
			snprintf(ret, TABLE_FORMAT_MAX, "%s%" PRIu64 "m%02" PRIu64 "s", sign,
				whole / 60, whole % 60);
		else if (whole < 86400)
			snprintf(ret, TABLE_FORMAT_MAX, "%s%" PRIu64 "h%02" PRIu64 "m", sign,
				whole / 3600, whole / 60 % 60);
		else
			snprintf(ret, TABLE_FORMAT_MAX, "%s%" PRIu64 "d%02" PRIu64 "h", sign,
				whole / 86400, whole / 3600 % 24);
	}
	return ret;
}
