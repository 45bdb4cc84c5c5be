/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_ATTENTION_FLEX_GROUP_H
#define MIMEO_TESTS_ATTENTION_FLEX_GROUP_H

/* What the programs that test block masks share: shapes, and batches that are drawn. All run on the
 * device that MIMEO_DEVICE names. */

#include "attention/flex/flex.h"
#include "attention/flex/mask.h"
#include "tests/attention/fixture.h"

#define LENGTH 300u /* of the longest sequence */

/* The group's device; what locks one takes its own (NULL). */
extern struct device *flex_device;
int flex_device_open(void **state);
int flex_device_free(void **state);

/* Head and page sizes: of a cuda device the first and the last are served by its slow kernel. */
extern const struct shape flex_shapes[];
#define N_FLEX_SHAPES 8u
#define FLEX_ORDINARY (&flex_shapes[1])

/* The device's kernels and their blocks, for a fixture's model. */
const struct flex_kernels *flex_kernels_of(const struct fixture *f);
struct flex_inputs flex_inputs_in(const struct fixture *f);

/* At the edge of a page, of a block of keys, or anywhere in [1, LENGTH]. */
uint32_t flex_draw_length(uint64_t *dice, uint32_t page_tokens);
/* Up to FIXTURE_ROWS / 2 rows, each under a mask of its own. */
uint32_t flex_draw_rows(uint64_t *dice, uint32_t page_tokens, struct row *rows,
	uint64_t (*words)[LENGTH]);

#endif
