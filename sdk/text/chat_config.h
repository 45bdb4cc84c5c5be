/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_CHAT_CONFIG_H
#define MIMEO_SDK_TEXT_CHAT_CONFIG_H

/*
 * The chat templates and the special tokens of a model, from its files. It does not change after
 * chat_set_new, and any number of threads may use it.
 */

#include <stddef.h>
#include <stdint.h>

#define CHAT_TEMPLATES_MAX 32 /* of one model */

struct chat_set;

/*
 * From the bytes of tokenizer_config.json and of chat_template.jinja; either is NULL if there is no
 * such file. With the latter, the templates of the former are ignored. A template that is not
 * understood is no error here: it is when it is rendered. 0, or INVALID (the configuration is no
 * JSON, or its members have wrong types), NO_MEMORY, with a sentence in message[size].
 */
int chat_set_new(struct chat_set **ret_set, const char *config, size_t config_length,
	const char *chat_template, size_t template_length, char *message, size_t size);
void chat_set_free(struct chat_set *set);

/*
 * Render a request, as <mimeo/text.h> describes it for mimeo_text_chat_render, by the template that
 * it asks for.
 * (*ret_foreign)[*ret_length] is as of chat_template_render. Results are released by free().
 */
int chat_set_render(const struct chat_set *set, const char *json, size_t length, char **ret_text,
	uint8_t **ret_foreign, size_t *ret_length, char *message, size_t size);

#endif
