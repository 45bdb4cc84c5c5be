/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_CHECKPOINT_H
#define MIMEO_DAEMON_MODEL_CHECKPOINT_H

/* The tensors of a model, whatever its files are: a directory has safetensors, a regular file is GGUF. */

#include <stdbool.h>

#include "daemon/model/safetensors.h"

/* Freed with safetensors_deinit. 0, or -errno with a sentence. */
int checkpoint_open(const char *path, struct safetensors *ret, struct model_error *error);
/* Is it a regular file? */
bool checkpoint_is_file(const char *path);

#endif
