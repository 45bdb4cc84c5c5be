/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/error.h"
#include "daemon/model/field.h"
#include "daemon/model/file.h"
#include "daemon/model/safetensors_index.h"

#define NAME "model.safetensors.index.json"

static int safetensors_index_compare(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool safetensors_index_is_plain(const char *name)
{
	return *name && !strchr(name, '/') && strcmp(name, ".") && strcmp(name, "..");
}

/* The names, sorted, each once. They live in the JSON. */
static int safetensors_index_collect(struct safetensors_index *index, const json_t *map, struct model_error *error)
{
	const char *tensor;
	json_t *value;
	uint32_t n = 0;

	index->files = calloc(json_object_size(map) + 1, sizeof(*index->files));
	if (!index->files)
		return model_fail(error, -ENOMEM, "%s: no memory for its names", index->path);
	json_object_foreach((json_t *)map, tensor, value) {
		const char *name = json_string_value(value);

		if (!name || !safetensors_index_is_plain(name))
			return model_fail(error, -EINVAL,
				"%s: weight_map.%.128s \"%.128s\" is not the name of a file "
				"beside it",
				index->path, tensor, name ? name : "(not a string)");
		index->files[index->n_files++] = name;
	}
	if (!index->n_files)
		return model_fail(error, -EINVAL, "%s: weight_map names no tensor", index->path);
	qsort(index->files, index->n_files, sizeof(*index->files), safetensors_index_compare);
	for (uint32_t i = 0; i < index->n_files; i++) {
		if (!n || strcmp(index->files[n - 1], index->files[i]))
			index->files[n++] = index->files[i];
	}
	index->n_files = n;
	if (n > SAFETENSORS_FILES_MAX)
		return model_fail(error, -EINVAL, "%s: weight_map names more than %d files",
			index->path, SAFETENSORS_FILES_MAX);
	return 0;
}

static int safetensors_index_parse(struct safetensors_index *index, const char *text, size_t bytes,
	struct model_error *error)
{
	struct field_file file = {.path = index->path, .error = error};
	struct field_object root = {.prefix = "", .file = &file}, map;
	int rc = field_parse(index->path, text, bytes, &index->json, error);

	if (rc)
		return rc;
	root.json = index->json;
	map = field_member(&root, "weight_map", "weight_map.");
	if (!map.json)
		return field_fail(&root, -EINVAL, "weight_map is missing");
	return safetensors_index_collect(index, map.json, error);
}

int safetensors_index_load(int directory_fd, const char *directory, struct safetensors_index *ret,
	struct model_error *error)
{
	CLEANUP(cleanup_free) char *text = NULL;
	CLEANUP(safetensors_index_deinit) struct safetensors_index index = {0};
	size_t bytes;
	int rc;

	if (asprintf(&index.path, "%s/" NAME, directory) < 0)
		return model_fail(error, -ENOMEM, "%s: no memory for a path", directory);
	rc = file_load(
		directory_fd, index.path, NAME, SAFETENSORS_HEADER_MAX, &text, &bytes, error);
	if (rc == -ENOENT)
		model_fail(error, rc, "%s: has neither model.safetensors nor " NAME, directory);
	if (!rc)
		rc = safetensors_index_parse(&index, text, bytes, error);
	if (rc)
		return rc;
	*ret = index;
	index = (struct safetensors_index){0};
	return 0;
}

void safetensors_index_deinit(struct safetensors_index *index)
{
	free(index->files);
	json_decref(index->json);
	free(index->path);
	*index = (struct safetensors_index){0};
}
