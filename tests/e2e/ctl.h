/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_E2E_CTL_H
#define MIMEO_TESTS_E2E_CTL_H

/* mimeoctl beside the group's daemon. */

#include "tests/e2e/daemon.h"

#define CTL_WORDS_MAX 8

/* Run it with these words, which NULL ends. Static storage, until the next call. */
static inline const struct program_output *ctl_run(const char *const *words)
{
	static struct program_output output;
	const char *argv[4 + CTL_WORDS_MAX] = {build_path("daemon/mimeoctl"), "--socket", group_daemon.socket};
	unsigned n = 3;

	while (*words) {
		assert_true(n < 3 + CTL_WORDS_MAX);
		argv[n++] = *words++;
	}
	program_run(argv, &output);
	return &output;
}
#define MIMEOCTL(...) ctl_run((const char *const[]){__VA_ARGS__, NULL})

#endif
