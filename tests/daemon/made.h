/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_DAEMON_MADE_H
#define MIMEO_TESTS_DAEMON_MADE_H

/* A model folder with random weights, made by examples/make-checkpoint of the build folder
 * (MIMEO_BUILD). */

#define MADE_OPTIONS_MAX 24

struct made {
	char folder[256];
};

/* `options` end with NULL. */
void made_init(struct made *made, const char *const options[]);
void made_deinit(struct made *made);

/* The EAGLE draft there says the last token again and again: its weights are 0, but for those that hand the
 * target's hidden state through. What models repeat, it is right about. */
void made_repeat(const struct made *made);

/* A folder below the source (MIMEO_SOURCE); one of four that are kept. */
const char *made_source(const char *below);

#endif
