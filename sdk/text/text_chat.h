/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_TEXT_CHAT_H
#define MIMEO_SDK_TEXT_TEXT_CHAT_H

/* A model's chat templates, and the special tokens that they name. */

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

#include "sdk/text/buffer.h"
#include "sdk/text/fault.h"

#define TEXT_CHAT_TEMPLATES_MAX 16u
#define TEXT_CHAT_NAME_MAX 64u
#define TEXT_CHAT_FILE_MAX ((size_t)1 << 20)
#define TEXT_CHAT_CONFIG_MAX ((size_t)32 << 20)
#define TEXT_CHAT_MESSAGE_MAX 256u

struct chat_template;

struct text_chat_template {
	char name[TEXT_CHAT_NAME_MAX];
	struct chat_template *parsed; /* NULL: it is not understood */
	char message[TEXT_CHAT_MESSAGE_MAX]; /* why not */
};

struct text_chat {
	struct text_chat_template templates[TEXT_CHAT_TEMPLATES_MAX];
	unsigned n;
	json_t *variables; /* special tokens, add_generation_prompt */
};

/* From tokenizer_config.json, which may be empty, and chat_template.jinja, which is NULL if there is none. 0, INVALID with a
 * sentence, or NO_MEMORY; text_chat_deinit in either case. */
int text_chat_init(struct text_chat *chat, const struct bytes *config, const struct bytes *chat_template,
	const struct fault *fault);
void text_chat_deinit(struct text_chat *chat);

/* As mimeo_text_chat_render; (*ret_foreign)[*ret_length] says which bytes came from `json`. */
int text_chat_render(const struct text_chat *chat, const char *json, size_t length, char **ret_text,
	uint8_t **ret_foreign, size_t *ret_length, const struct fault *fault);

#endif
