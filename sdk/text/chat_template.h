/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_CHAT_TEMPLATE_H
#define MIMEO_SDK_TEXT_CHAT_TEMPLATE_H

/*
 * A chat template: the part of Jinja that published templates use, in the environment that
 * transformers gives them (trim_blocks, lstrip_blocks, loop controls, sandbox). It does not change
 * after chat_template_new, and any number of threads may use it.
 *
 * Templates are programs of whoever made the checkpoint: steps, depth and output have limits, and
 * there is no access to files, the network or the environment; strftime_now is the only clock.
 *
 * Functions return 0 or a negative enum mimeo_status, and write one sentence to message[size] if
 * they fail.
 */

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

struct chat_template;

/* Parse source[length]. */
int chat_template_new(struct chat_template **ret_template, const char *source, size_t length,
	char *message, size_t size);
void chat_template_free(struct chat_template *chat_template);

/*
 * Render with the members of `variables` (trusted: special tokens) and of `chat` (foreign: what a
 * user wrote) as variables; those of `chat` win. *ret_text [*ret_length] is terminated;
 * (*ret_foreign)[*ret_length] is 1 for each byte that came from `chat` and 0 for those of the
 * template and of `variables`. Both are released by free().
 */
int chat_template_render(const struct chat_template *chat_template, const json_t *variables,
	const json_t *chat, char **ret_text, uint8_t **ret_foreign, size_t *ret_length,
	char *message, size_t size);

#endif
