/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_GGUF_MODEL_H
#define MIMEO_DAEMON_MODEL_GGUF_MODEL_H

/*
 * A model in a GGUF file: its configuration, from metadata; its tensors, under Hugging Face's names. Architectures are
 * llama (Mistral's files too), qwen2 and qwen3. Fields that are known to change the arithmetic and are not read are
 * refused with name and value.
 *
 * Rope is on halves of a head with every family here; llama.cpp rotates pairs of neighbours for the architecture llama,
 * whose rows of q and k are in that order in the file.
 */

#include "daemon/model/gguf.h"
#include "daemon/model/model_config.h"

/* On success the caller owns ret (model_config_deinit). */
int gguf_config_load(const char *path, struct model_config *ret, struct model_error *error);
/* The same of an open file. */
int gguf_config_parse(const struct gguf *gguf, struct model_config *ret, struct model_error *error);
int gguf_checkpoint_open(const char *path, struct safetensors *ret, struct model_error *error);

/* The tensor's name in a GGUF file; `name` itself if it has no other, and "" if `size` is too small. */
const char *gguf_rename(const char *name, char *buffer, size_t size);

#endif
