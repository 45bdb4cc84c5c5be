/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_ATTENTION_CUDA_GROUP_H
#define MIMEO_TESTS_ATTENTION_CUDA_GROUP_H

/* What the programs that test CUDA's paged backend share: shapes, and one device for a group of
 * tests. */

#include "tests/attention/fixture.h"

static struct device *shared; /* for the length of the group */

static const struct shape ordinary = {
	.n_heads = 8, .n_kv_heads = 2, .head_dim = 64, .page_tokens = 16, .max_seq_len = 400,
};
static const struct shape windowed = {
	.n_heads = 4, .n_kv_heads = 4, .head_dim = 128, .page_tokens = 64, .window = 77,
	.max_seq_len = 400,
};
static const struct shape slow = { /* of no fast kernel */
	.n_heads = 6, .n_kv_heads = 2, .head_dim = 24, .page_tokens = 4, .max_seq_len = 150,
};
static const struct shape *const shapes[] = { &ordinary, &windowed, &slow };
#define N_SHAPES COUNT(shapes)

/* The program's status; a plan of nothing where there is no device. */
#define CUDA_GROUP_RUN(name, tests) cuda_group_run(name, tests, COUNT(tests))
static inline int cuda_group_run(const char *name, const struct CMUnitTest *tests, size_t n)
{
	int failed, rc = device_open("cuda", NULL, &shared);

	if (rc == -ENODEV || rc == -ENOTSUP) {
		printf("1..0 # SKIP no CUDA device: %s\n", device_strerror(rc));
		return 0;
	}
	if (rc != 0) {
		printf("Bail out! the device does not open: %s\n", device_strerror(rc));
		return 1;
	}
	failed = _cmocka_run_group_tests(name, tests, n, NULL, NULL);
	shared->ops->free(shared);
	return failed;
}

#endif
