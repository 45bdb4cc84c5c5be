/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_TEXT_FILES_H
#define MIMEO_DAEMON_MODEL_TEXT_FILES_H

/*
 * The files that make text of a model's tokens, for clients that may not read the model's folder.
 *
 * They are copied when the model is loaded, into sealed memory. A descriptor of the file itself would be less than
 * read-only: its receiver could open it for writing through /proc where the file's mode allows that, and set
 * O_DIRECT, which all descriptors of an open file share. Copies also stay the same when the folder is edited.
 */

#include <mimeo/types.h>

#include "daemon/model/error.h"

/* Those of libmimeo-text. */
#define TEXT_FILES_TOKENIZER_MAX (128u << 20)
#define TEXT_FILES_CONFIG_MAX (32u << 20)
#define TEXT_FILES_TEMPLATE_MAX (1u << 20)

/* The copies of a directory's files, or what gguf_tokenizer.h makes of a GGUF file; -1 in place of those that it does
 * not have. *ret is the caller's, until text_files_free. 0, or -errno with a sentence: a file that cannot be read, is
 * not a regular one, or exceeds its limit; a tokenizer of a GGUF file that is not read. */
int text_files_load(const char *path, struct mimeo_model_files **ret, struct model_error *error);
/* NULL is allowed. */
void text_files_free(struct mimeo_model_files *files);

#endif
