/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_MODEL_REFERENCE_H
#define MIMEO_TESTS_MODEL_REFERENCE_H

/* Reference answers in JSON. */

#include "tests/model/fixture.h"

#include <jansson.h>
#include <math.h>

static inline json_t *load_reference(const char *path)
{
	json_t *root = json_load_file(path, 0, NULL);

	if (!root)
		fail_msg("%s cannot be read", path);
	return root;
}

/* The length of a list of 1 to `max` integers. */
static inline uint32_t integers(const json_t *list, int32_t *ret, uint32_t max)
{
	uint32_t n = (uint32_t)json_array_size(list);

	assert_in_range(n, 1, max);
	for (uint32_t i = 0; i < n; i++)
		ret[i] = (int32_t)json_integer_value(json_array_get(list, i));
	return n;
}

/* n logits against a list; `tolerance` is of the largest. */
static inline void assert_logits(
	const float *have, uint32_t n, const json_t *want, double tolerance, const char *what)
{
	double largest = 0;

	assert_int_equal(json_array_size(want), n);
	for (uint32_t i = 0; i < n; i++)
		largest = fmax(largest, fabs(json_number_value(json_array_get(want, i))));
	for (uint32_t i = 0; i < n; i++) {
		double w = json_number_value(json_array_get(want, i));

		if (!(fabs((double)have[i] - w) <= tolerance * largest))
			fail_msg("%s: logit %u is %.7g, not %.7g (largest %.4g)", what, i,
				(double)have[i], w, largest);
	}
}

#endif
