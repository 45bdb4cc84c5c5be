/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_TEXT_FILES_H
#define MIMEO_SDK_TEXT_TEXT_FILES_H

/* The files of a model that concern text. */

#include <mimeo/text.h>

#include "sdk/text/buffer.h"
#include "sdk/text/fault.h"

#define TEXT_FILES_TOKENIZER "tokenizer.json"
#define TEXT_FILES_CONFIG "tokenizer_config.json"
#define TEXT_FILES_CHAT_TEMPLATE "chat_template.jinja"
#define TEXT_FILES_CONFIG_MAX ((size_t)32 << 20)
#define TEXT_FILES_CHAT_TEMPLATE_MAX ((size_t)1 << 20)

/* Open those that a folder has, or a tokenizer.json alone. 0, or a failure with a sentence;
 * text_files_close in either case. */
int text_files_open(struct mimeo_model_files *ret, const char *path, const struct fault *fault);
void text_files_close(struct mimeo_model_files *files);

/* The contents of a regular file of at most `most` bytes; its offset stays. `name` is for messages.
 * 0, INVALID or NO_MEMORY. */
int text_files_read(
	int fd, const char *name, size_t most, struct bytes *out, const struct fault *fault);

#endif
