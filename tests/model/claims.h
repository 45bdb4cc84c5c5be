/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_MODEL_CLAIMS_H
#define MIMEO_TESTS_MODEL_CLAIMS_H

/* Tests of several claims about each of several cases. */

#include "tests/model/fixture.h"

struct claim {
	const char *name;
	CMUnitTestFunction run;
};

#define CLAIM(name) {#name, name}

struct claims {
	const struct claim *claims;
	size_t n_claims;
	const void *cases; /* structs of case_bytes, each with its name as its first member; a test's initial state */
	size_t n_cases, case_bytes;
	CMFixtureFunction setup, teardown;
};

/* The tests of all cases, behind n others. What main returns. */
static inline int claims_run(
	const char *group, const struct claims *c, const struct CMUnitTest *others, size_t n)
{
	const size_t n_all = n + c->n_cases * c->n_claims;
	char(*names)[128] = calloc(n_all, sizeof(*names));
	struct CMUnitTest *tests = calloc(n_all, sizeof(*tests));
	int failed;

	if (!names || !tests)
		return 1;
	memcpy(tests, others, n * sizeof(*tests));
	for (size_t i = n; i < n_all; i++) {
		const struct claim *claim = &c->claims[(i - n) % c->n_claims];
		const void *one = (const char *)c->cases + (i - n) / c->n_claims * c->case_bytes;

		snprintf(names[i], sizeof(names[i]), "%s: %s", claim->name, *(const char *const *)one);
		tests[i] = (struct CMUnitTest){names[i], claim->run, c->setup, c->teardown, (void *)one};
	}
	failed = _cmocka_run_group_tests(group, tests, n_all, NULL, NULL);
	free(tests);
	free(names);
	return failed;
}

#endif
