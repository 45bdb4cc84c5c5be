/* SPDX-License-Identifier: MIT */
#include "daemon/model/checkpoint.h"

#include <sys/stat.h>

#include "daemon/model/gguf_model.h"

bool checkpoint_is_file(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

int checkpoint_open(const char *path, struct safetensors *ret, struct model_error *error)
{
	return checkpoint_is_file(path) ? gguf_checkpoint_open(path, ret, error)
					: safetensors_open(path, ret, error);
}
