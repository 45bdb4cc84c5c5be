/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_DAEMON_CHECKPOINT_H
#define MIMEO_TESTS_DAEMON_CHECKPOINT_H

/* A model folder with random weights, made by examples/make-checkpoint of the build folder
 * (MIMEO_BUILD). */

#include <stdint.h>

#define CHECKPOINT_OPTIONS_MAX 24

struct checkpoint {
	char folder[256];
};

/* `options` end with NULL. */
void checkpoint_make(struct checkpoint *checkpoint, const char *const options[]);
/* A copy of config.json and model.safetensors of another folder, to be changed. */
void checkpoint_copy(struct checkpoint *checkpoint, const char *folder);
void checkpoint_remove(struct checkpoint *checkpoint);

/* The EAGLE draft there says the last token again and again: its weights are 0, but for those that hand the
 * target's hidden state through. What models repeat, it is right about. */
void checkpoint_repeat_last(const struct checkpoint *checkpoint);

/* One bf16 weight of `every` changes its sign, of the tensors whose names begin with the prefix. */
void checkpoint_flip_signs(const struct checkpoint *checkpoint, const char *prefix, uint32_t every);

/* The row of that bf16 tensor := the value. */
void checkpoint_fill_row(
	const struct checkpoint *checkpoint, const char *tensor, uint32_t row, uint16_t bf16);

#endif
