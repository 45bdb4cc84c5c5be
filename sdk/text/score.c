/* SPDX-License-Identifier: MIT */
#include "sdk/text/score.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Digits of the shortest form of a double that is not shorter still. */
#define SCORE_DIGITS_MIN 15
#define SCORE_DIGITS_MAX 17
#define SCORE_EXPONENT_MAX 308

static double score_power(int exponent)
{
	char text[16];

	snprintf(text, sizeof(text), "1e%d", exponent);
	return strtod(text, NULL);
}

double score_divide(const char *text)
{
	uint64_t digits = 0;
	int exponent = 0;
	const char *at = text + (*text == '-');

	for (bool behind_point = false; *at && *at != 'e'; at++) {
		if (*at < '0' || *at > '9') {
			behind_point = true;
			continue;
		}
		digits = digits * 10 + (uint64_t)(*at - '0');
		exponent -= behind_point;
	}
	if (*at == 'e')
		exponent += atoi(at + 1);
	while (digits > 0 && digits % 10 == 0) {
		digits /= 10;
		exponent++;
	}
	double value = (double)digits;
	if (exponent < -SCORE_EXPONENT_MAX) {
		value /= score_power(SCORE_EXPONENT_MAX);
		exponent += SCORE_EXPONENT_MAX;
	}
	value = exponent < 0 ? value / score_power(-exponent) : value * score_power(exponent);
	return *text == '-' ? -value : value;
}

double score_read(double number)
{
	char text[40];

	for (int n = SCORE_DIGITS_MIN; n <= SCORE_DIGITS_MAX; n++) {
		snprintf(text, sizeof(text), "%.*e", n - 1, number);
		if (strtod(text, NULL) == number)
			break;
	}
	return score_divide(text);
}
