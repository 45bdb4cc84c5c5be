/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_E2E_MADE_H
#define MIMEO_TESTS_E2E_MADE_H

/* Models that examples/make-checkpoint makes in a folder of the test's own. */

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "tests/e2e/process.h"

#define ARGUMENTS_MAX 16

static char folder[64];

static inline int make_folder(void **state)
{
	strcpy(folder, "/tmp/mimeo-made-XXXXXX");
	return mkdtemp(folder) ? 0 : -1;
}

/* folder/name; static storage for two of them. */
static inline const char *path_of(const char *name)
{
	static char path[2][96];
	static int turn;

	turn = !turn;
	snprintf(path[turn], sizeof(path[turn]), "%s/%s", folder, name);
	return path[turn];
}

static inline int remove_folder(void **state)
{
	for (char name[2] = "a"; name[0] <= 'h'; name[0]++)
		folder_remove(path_of(name));
	folder_remove(folder);
	return 0;
}

/* Run the program with options (NULL-terminated) for folder/name: its exit status. */
static inline int make(const char *name, const char *const *options, struct program_output *ret)
{
	const char *argv[ARGUMENTS_MAX] = {build_path("examples/make-checkpoint")};
	unsigned n = 1;

	for (; *options; options++) {
		assert_true(n + 2 < ARGUMENTS_MAX);
		argv[n++] = *options;
	}
	argv[n] = path_of(name);
	program_run(argv, ret);
	return ret->status;
}

static inline void must_make(const char *name, const char *const *options)
{
	struct program_output output;

	if (make(name, options, &output) != 0)
		fail_msg("make-checkpoint: %s", output.text);
}

#define OPTIONS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define MAKING(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

#endif
