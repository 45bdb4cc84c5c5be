/* SPDX-License-Identifier: MIT */
#include "daemon/model/checkpoint.h"

#include <string.h>
#include <sys/stat.h>

#include "daemon/model/gguf_model.h"

#define OUTER "model."
#define EMBEDDING "embed_tokens.weight"

bool checkpoint_is_file(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static const char *checkpoint_inner_name(const char *name, char *buffer, size_t size)
{
	(void)buffer;
	(void)size;
	return strncmp(name, OUTER, strlen(OUTER)) ? name : name + strlen(OUTER);
}

static int checkpoint_open_directory(const char *path, struct safetensors *ret, struct model_error *error)
{
	int rc = safetensors_open(path, ret, error);

	if (rc)
		return rc;
	ret->is_inner = safetensors_find(ret, EMBEDDING) && !safetensors_find(ret, OUTER EMBEDDING);
	if (ret->is_inner)
		ret->rename = checkpoint_inner_name;
	return 0;
}

int checkpoint_open(const char *path, struct safetensors *ret, struct model_error *error)
{
	return checkpoint_is_file(path) ? gguf_checkpoint_open(path, ret, error)
					: checkpoint_open_directory(path, ret, error);
}
