/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_SAFETENSORS_INDEX_H
#define MIMEO_DAEMON_MODEL_SAFETENSORS_INDEX_H

/* model.safetensors.index.json: which shard has which tensor. */

#include <jansson.h>

#include "daemon/model/safetensors.h"

struct safetensors_index {
	char *path;
	json_t *json;
	const char **files; /* [n_files] names without a folder, sorted, each once */
	uint32_t n_files;
};

/* Every file name stays within the directory. */
int safetensors_index_load(int directory_fd, const char *directory, struct safetensors_index *ret,
	struct model_error *error);
void safetensors_index_deinit(struct safetensors_index *index);

#endif
