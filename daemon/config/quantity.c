/* SPDX-License-Identifier: MIT */
#include "daemon/config/quantity.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <strings.h>

#include "daemon/config/digits.h"

#define DECIMALS_MAX 6

struct quantity_unit {
	const char *name;
	uint64_t factor; /* at most 2^40: with six decimals a product has 60 bits */
};

static const struct quantity_unit quantity_sizes[] = {
	{"K", UINT64_C(1) << 10}, {"M", UINT64_C(1) << 20}, {"G", UINT64_C(1) << 30}, {"T", UINT64_C(1) << 40},
	{"KiB", UINT64_C(1) << 10}, {"MiB", UINT64_C(1) << 20}, {"GiB", UINT64_C(1) << 30}, {"TiB", UINT64_C(1) << 40},
	{"KB", UINT64_C(1000)}, {"MB", UINT64_C(1000000)}, {"GB", UINT64_C(1000000000)},
	{"TB", UINT64_C(1000000000000)},
	{NULL, 0},
};

/* In microseconds. */
static const struct quantity_unit quantity_durations[] = {
	{"us", UINT64_C(1)}, {"ms", UINT64_C(1000)}, {"s", UINT64_C(1000000)}, {"min", UINT64_C(60000000)},
	{"h", UINT64_C(3600000000)},
	{NULL, 0},
};

struct quantity {
	uint64_t whole, fraction, scale; /* whole + fraction / scale */
	const char *unit;                /* "": none */
};

static int quantity_parse(const char *text, struct quantity *ret)
{
	struct quantity quantity = {.scale = 1};

	int rc = digits_parse(&text, UINT64_MAX, &quantity.whole);
	if (rc < 0)
		return rc;
	if (*text == '.') {
		const char *decimals = ++text;

		rc = digits_parse(&text, UINT64_MAX, &quantity.fraction);
		if (rc < 0 || text - decimals > DECIMALS_MAX)
			return -EINVAL;
		for (; decimals < text; decimals++)
			quantity.scale *= 10;
	}
	if (*text == ' ' && text[1])
		text++;
	quantity.unit = text;
	*ret = quantity;
	return 0;
}

/* 0: there is no such unit. */
static uint64_t quantity_factor(const struct quantity_unit *units, const char *name)
{
	while (units->name && strcasecmp(units->name, name) != 0)
		units++;
	return units->factor;
}

/* The quantity in the unit whose `factor`th part its own is; *ret_rest: whether a fraction was dropped. */
static int quantity_scale(const struct quantity *quantity, uint64_t factor, uint64_t *ret, bool *ret_rest)
{
	const uint64_t part = quantity->fraction * factor;
	uint64_t value;

	if (!factor)
		return -EINVAL;
	if (__builtin_mul_overflow(quantity->whole, factor, &value) ||
		__builtin_add_overflow(value, part / quantity->scale, &value))
		return -ERANGE;
	*ret = value;
	*ret_rest = part % quantity->scale != 0;
	return 0;
}

int quantity_parse_size(const char *text, uint64_t *ret)
{
	struct quantity quantity;
	bool rest;

	int rc = quantity_parse(text, &quantity);
	if (rc < 0)
		return rc;
	if (!*quantity.unit && quantity.scale > 1)
		return -EINVAL;
	const uint64_t factor = *quantity.unit ? quantity_factor(quantity_sizes, quantity.unit) : 1;
	return quantity_scale(&quantity, factor, ret, &rest);
}

int quantity_parse_duration(const char *text, uint64_t unit_us, uint64_t *ret)
{
	struct quantity quantity;
	uint64_t us = 0;
	bool rest = false;

	int rc = quantity_parse(text, &quantity);
	if (rc < 0)
		return rc;
	if (!*quantity.unit && quantity.scale > 1)
		return -EINVAL;
	const uint64_t factor = *quantity.unit ? quantity_factor(quantity_durations, quantity.unit) : unit_us;
	rc = quantity_scale(&quantity, factor, &us, &rest);
	if (rc < 0)
		return rc;
	if (rest || us % unit_us)
		return -EINVAL;
	*ret = us / unit_us;
	return 0;
}
