/* SPDX-License-Identifier: MIT */
#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/model/error.h"
#include "daemon/model/field.h"
#include "daemon/model/file.h"
#include "daemon/model/safetensors.h"

#define INDEX "model.safetensors.index.json"

/* ---- one tensor's entry ---- */

static const struct safetensors_format {
	const char *name;
	uint32_t bits;
	bool usable;
	enum dtype dtype;
} formats[] = {
	{"F32", 32, true, DTYPE_F32}, {"BF16", 16, true, DTYPE_BF16}, {"F16", 16, true, DTYPE_F16},
	{"BOOL", 8}, {"U8", 8}, {"I8", 8}, {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8},
	{"U16", 16}, {"I16", 16}, {"U32", 32}, {"I32", 32}, {"U64", 64}, {"I64", 64}, {"F64", 64},
	{"C64", 64}, {"F4", 4}, {"F6_E2M3", 6}, {"F6_E3M2", 6},
};

/* A tensor under examination, and how errors name it. */
struct safetensors_entry {
	const char *path;
	const char *name;
	const json_t *json;
	uint64_t data_start, data_bytes;
	struct model_error *error;
};

__attribute__((format(printf, 2, 3))) static int safetensors_refuse(const struct safetensors_entry *entry,
	const char *format, ...)
{
	char why[200];
	va_list args;

	va_start(args, format);
	vsnprintf(why, sizeof(why), format, args);
	va_end(args);
	return model_fail(
		entry->error, -EINVAL, "%s: tensor \"%.128s\": %s", entry->path, entry->name, why);
}

/* Non-negative integer at a list's index. */
static bool safetensors_list_u64(const json_t *list, size_t index, uint64_t *ret)
{
	const json_t *json = json_array_get(list, index);

	if (!json_is_integer(json) || json_integer_value(json) < 0)
		return false;
	*ret = (uint64_t)json_integer_value(json);
	return true;
}

static int safetensors_parse_shape(const struct safetensors_entry *entry, struct safetensors_tensor *tensor,
	uint64_t *ret_elements)
{
	const json_t *shape = json_object_get(entry->json, "shape");
	uint64_t elements = 1;

	if (!json_is_array(shape))
		return safetensors_refuse(entry, "shape is missing or not a list");
	if (json_array_size(shape) > SAFETENSORS_DIMS_MAX)
		return safetensors_refuse(entry, "shape has more than %d dimensions", SAFETENSORS_DIMS_MAX);
	tensor->n_dims = (uint32_t)json_array_size(shape);
	for (uint32_t i = 0; i < tensor->n_dims; i++) {
		if (!safetensors_list_u64(shape, i, &tensor->shape[i]))
			return safetensors_refuse(entry, "shape[%u] is not a non-negative integer", i);
		if (__builtin_mul_overflow(elements, tensor->shape[i], &elements))
			return safetensors_refuse(entry, "shape overflows");
	}
	*ret_elements = elements;
	return 0;
}

static int safetensors_parse_offsets(const struct safetensors_entry *entry, struct safetensors_tensor *tensor)
{
	const json_t *offsets = json_object_get(entry->json, "data_offsets");
	uint64_t begin, end;

	if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
		!safetensors_list_u64(offsets, 0, &begin) || !safetensors_list_u64(offsets, 1, &end))
		return safetensors_refuse(entry, "data_offsets is not a list of two non-negative integers");
	if (begin > end)
		return safetensors_refuse(
			entry, "data_offsets %" PRIu64 " to %" PRIu64 " run backwards", begin, end);
	if (end > entry->data_bytes)
		return safetensors_refuse(entry, "data_offsets end at %" PRIu64 ", but the file has %" PRIu64
			" bytes of data", end, entry->data_bytes);
	tensor->offset = entry->data_start + begin;
	tensor->bytes = end - begin;
	return 0;
}

static int safetensors_parse_dtype(const struct safetensors_entry *entry, uint64_t elements,
	struct safetensors_tensor *tensor)
{
	const char *name = json_string_value(json_object_get(entry->json, "dtype"));
	uint64_t bits;

	if (!name)
		return safetensors_refuse(entry, "dtype is missing or not a string");
	snprintf(tensor->dtype_name, sizeof(tensor->dtype_name), "%s", name);
	for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
		if (strcmp(name, formats[i].name))
			continue;
		tensor->usable = formats[i].usable;
		tensor->dtype = formats[i].dtype;
		if (__builtin_mul_overflow(elements, formats[i].bits, &bits))
			return safetensors_refuse(entry, "shape overflows");
		if (bits % 8 || bits / 8 != tensor->bytes)
			return safetensors_refuse(entry,
				"shape and dtype %s make %" PRIu64 " bits, data_offsets %" PRIu64
				" bytes",
				name, bits, tensor->bytes);
	}
	return 0;
}

static int safetensors_parse_tensor(const struct safetensors_entry *entry, struct safetensors_tensor *ret)
{
	struct safetensors_tensor tensor = {0};
	uint64_t elements = 0;
	int rc;

	if (!json_is_object(entry->json))
		return safetensors_refuse(entry, "is not an object");
	rc = safetensors_parse_shape(entry, &tensor, &elements);
	if (rc)
		return rc;
	rc = safetensors_parse_offsets(entry, &tensor);
	if (rc)
		return rc;
	rc = safetensors_parse_dtype(entry, elements, &tensor);
	if (rc)
		return rc;
	tensor.name = strdup(entry->name);
	if (!tensor.name)
		return model_fail(
			entry->error, -ENOMEM, "%s: no memory for its header", entry->path);
	*ret = tensor;
	return 0;
}

/* ---- a header ---- */

static int safetensors_by_offset(const void *a, const void *b)
{
	const struct safetensors_tensor *x = a, *y = b;
	uint64_t x_end = x->offset + x->bytes, y_end = y->offset + y->bytes;

	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	return x_end < y_end ? -1 : x_end > y_end;
}

static int safetensors_by_name(const void *a, const void *b)
{
	const struct safetensors_tensor *x = a, *y = b;

	return strcmp(x->name, y->name);
}

static int safetensors_check_cover(const char *path, struct safetensors_tensor *tensors, uint32_t n,
	uint64_t data_start, uint64_t data_bytes, struct model_error *error)
{
	uint64_t at = data_start;

	if (n)
		qsort(tensors, n, sizeof(*tensors), safetensors_by_offset);
	for (uint32_t i = 0; i < n; i++) {
		if (tensors[i].offset < at)
			return model_fail(error, -EINVAL,
				"%s: tensor \"%.128s\": data_offsets overlap those of \"%.128s\"",
				path, tensors[i].name, tensors[i - 1].name);
		if (tensors[i].offset > at)
			return model_fail(error, -EINVAL,
				"%s: tensor \"%.128s\": data_offsets leave a hole of %" PRIu64
				" bytes before it",
				path, tensors[i].name, tensors[i].offset - at);
		at += tensors[i].bytes;
	}
	if (at != data_start + data_bytes)
		return model_fail(error, -EINVAL,
			"%s: bytes after the last tensor: %" PRIu64, path,
			data_start + data_bytes - at);
	return 0;
}

static int safetensors_parse_tensors(
	struct safetensors_entry *entry, json_t *json, struct safetensors_tensor *tensors, uint32_t *n)
{
	const char *name;
	json_t *value;

	json_object_foreach(json, name, value) {
		int rc;

		if (!strcmp(name, "__metadata__"))
			continue;
		entry->name = name;
		entry->json = value;
		rc = safetensors_parse_tensor(entry, &tensors[*n]);
		if (rc)
			return rc;
		++*n;
	}
	return 0;
}

int safetensors_parse(const char *path, const char *header, size_t header_bytes,
	uint64_t data_start, uint64_t data_bytes, struct safetensors_tensor **ret, uint32_t *ret_n,
	struct model_error *error)
{
	CLEANUP(cleanup_json) json_t *json = NULL;
	struct safetensors_entry entry = {
		.path = path, .data_start = data_start, .data_bytes = data_bytes, .error = error};
	struct safetensors_tensor *tensors;
	uint32_t n = 0;
	int rc;

	if (!header_bytes || header[0] != '{')
		return model_fail(error, -EINVAL, "%s: header does not begin with {", path);
	rc = field_parse(path, header, header_bytes, &json, error);
	if (rc)
		return rc;
	tensors = calloc(json_object_size(json) + 1, sizeof(*tensors));
	if (!tensors)
		return model_fail(error, -ENOMEM, "%s: no memory for its header", path);
	rc = safetensors_parse_tensors(&entry, json, tensors, &n);
	assert(n <= json_object_size(json));
	if (!rc)
		rc = safetensors_check_cover(path, tensors, n, data_start, data_bytes, error);
	if (rc) {
		safetensors_tensors_free(tensors, n);
		return rc;
	}
	if (n)
		qsort(tensors, n, sizeof(*tensors), safetensors_by_name);
	*ret = tensors;
	*ret_n = n;
	return 0;
}

void safetensors_tensors_free(struct safetensors_tensor *tensors, uint32_t n)
{
	for (uint32_t i = 0; tensors && i < n; i++)
		free(tensors[i].name);
	free(tensors);
}

/* ---- files ---- */

static int safetensors_read_header(const struct safetensors_file *file, struct safetensors_tensor **ret,
	uint32_t *ret_n, struct model_error *error)
{
	CLEANUP(cleanup_free) char *header = NULL;
	uint64_t length;
	int rc;

	if (file->size < sizeof(length))
		return model_fail(error, -EINVAL, "%s: %" PRIu64 " bytes are too few for a header",
			file->path, file->size);
	rc = file_read(file->fd, file->path, 0, &length, sizeof(length), error);
	if (rc)
		return rc;
	length = le64toh(length);
	if (length > SAFETENSORS_HEADER_MAX)
		return model_fail(error, -EINVAL,
			"%s: header length %" PRIu64 " exceeds the limit of %u", file->path, length,
			SAFETENSORS_HEADER_MAX);
	if (length > file->size - sizeof(length))
		return model_fail(error, -EINVAL,
			"%s: header length %" PRIu64 " leaves the file, which has %" PRIu64
			" bytes",
			file->path, length, file->size);
	header = malloc(length ? length : 1);
	if (!header)
		return model_fail(error, -ENOMEM, "%s: no memory for its header", file->path);
	rc = file_read(file->fd, file->path, sizeof(length), header, length, error);
	if (rc)
		return rc;
	return safetensors_parse(file->path, header, length, sizeof(length) + length,
		file->size - sizeof(length) - length, ret, ret_n, error);
}

/* Append a file and its tensors, not sorted. */
static int safetensors_add_file(struct safetensors *s, int directory_fd, const char *directory,
	const char *name, struct model_error *error)
{
	struct safetensors_file *file = &s->files[s->n_files];
	struct safetensors_tensor *tensors = NULL, *all;
	uint32_t n = 0;
	int rc;

	assert(s->n_files < SAFETENSORS_FILES_MAX);
	if (asprintf(&file->path, "%s/%s", directory, name) < 0)
		return model_fail(error, -ENOMEM, "%s: no memory for a path", directory);
	rc = file_open(directory_fd, file->path, name, &file->fd, &file->size, error);
	if (rc) {
		if (rc == -ENOENT)
			model_fail(error, rc, "%s: does not exist", file->path);
		free(file->path);
		return rc;
	}
	s->n_files++;
	rc = safetensors_read_header(file, &tensors, &n, error);
	if (rc)
		return rc;
	all = reallocarray(s->tensors, (size_t)s->n_tensors + n + 1, sizeof(*all));
	if (!all) {
		safetensors_tensors_free(tensors, n);
		return model_fail(error, -ENOMEM, "%s: no memory for its header", file->path);
	}
	for (uint32_t i = 0; i < n; i++)
		tensors[i].file = s->n_files - 1;
	memcpy(all + s->n_tensors, tensors, n * sizeof(*all));
	s->tensors = all;
	s->n_tensors += n;
	free(tensors);
	return 0;
}

static int safetensors_sort(struct safetensors *s, struct model_error *error)
{
	const struct safetensors_tensor *t = s->tensors;

	if (s->n_tensors)
		qsort(s->tensors, s->n_tensors, sizeof(*s->tensors), safetensors_by_name);
	for (uint32_t i = 1; i < s->n_tensors; i++) {
		if (!strcmp(t[i - 1].name, t[i].name))
			return model_fail(error, -EINVAL, "%s: tensor \"%.128s\": is in %s too",
				s->files[t[i].file].path, t[i].name, s->files[t[i - 1].file].path);
	}
	return 0;
}

/* ---- the index of shards ---- */

/* model.safetensors.index.json: which shard has which tensor. */
struct safetensors_index {
	char *path;
	json_t *json;
	const char **files; /* [n_files] plain names of the JSON, sorted, each once */
	uint32_t n_files;
};

static int safetensors_index_compare(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool safetensors_index_is_plain(const char *name)
{
	return *name && !strchr(name, '/') && strcmp(name, ".") && strcmp(name, "..");
}

static int safetensors_index_collect(
	struct safetensors_index *index, const json_t *map, struct model_error *error)
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

static void safetensors_index_deinit(struct safetensors_index *index)
{
	free(index->files);
	json_decref(index->json);
	free(index->path);
	*index = (struct safetensors_index){0};
}

static int safetensors_index_load(int directory_fd, const char *directory, struct safetensors_index *ret,
	struct model_error *error)
{
	CLEANUP(cleanup_free) char *text = NULL;
	CLEANUP(safetensors_index_deinit) struct safetensors_index index = {0};
	size_t bytes;
	int rc;

	if (asprintf(&index.path, "%s/" INDEX, directory) < 0)
		return model_fail(error, -ENOMEM, "%s: no memory for a path", directory);
	rc = file_load(
		directory_fd, index.path, INDEX, SAFETENSORS_HEADER_MAX, &text, &bytes, error);
	if (rc == -ENOENT)
		return model_fail(
			error, rc, "%s: has neither model.safetensors nor " INDEX, directory);
	if (rc)
		return rc;
	rc = safetensors_index_parse(&index, text, bytes, error);
	if (rc)
		return rc;
	*ret = index;
	index = (struct safetensors_index){0};
	return 0;
}

/* Is every tensor in the shard that the index says? */
static int safetensors_check_index(const struct safetensors_index *index,
	const struct safetensors *safetensors, struct model_error *error)
{
	const char *name;
	json_t *value;

	json_object_foreach(json_object_get(index->json, "weight_map"), name, value) {
		const struct safetensors_tensor *tensor = safetensors_find(safetensors, name);
		const char *path = tensor ? safetensors->files[tensor->file].path : NULL;
		const char *base = path ? strrchr(path, '/') + 1 : NULL;

		if (!base || strcmp(base, json_string_value(value)))
			return model_fail(error, -EINVAL,
				"%s: weight_map.%.128s: \"%.128s\" does not have it", index->path,
				name, json_string_value(value));
	}
	return 0;
}

static int safetensors_open_shards(struct safetensors *s, int directory_fd, const char *directory,
	struct model_error *error)
{
	CLEANUP(safetensors_index_deinit) struct safetensors_index index = {0};
	int rc = safetensors_index_load(directory_fd, directory, &index, error);

	if (rc)
		return rc;
	for (uint32_t i = 0; i < index.n_files; i++) {
		rc = safetensors_add_file(s, directory_fd, directory, index.files[i], error);
		if (rc)
			return rc;
	}
	rc = safetensors_sort(s, error);
	return rc ? rc : safetensors_check_index(&index, s, error);
}

int safetensors_open(const char *directory, struct safetensors *ret, struct model_error *error)
{
	CLEANUP(cleanup_close) int fd = file_open_directory(directory, error);
	CLEANUP(safetensors_deinit) struct safetensors s = {0};
	int rc;

	if (fd < 0)
		return fd;
	s.dtypes = "F32, BF16, F16";
	s.files = calloc(SAFETENSORS_FILES_MAX, sizeof(*s.files));
	if (!s.files)
		return model_fail(error, -ENOMEM, "%s: no memory for its files", directory);
	/* One that is there and cannot be reached (a loop of symlinks) is named. */
	if (faccessat(fd, "model.safetensors", F_OK, AT_SYMLINK_NOFOLLOW) == 0)
		rc = safetensors_add_file(&s, fd, directory, "model.safetensors", error);
	else
		rc = safetensors_open_shards(&s, fd, directory, error);
	if (rc)
		return rc;
	*ret = s;
	s = (struct safetensors){0};
	return 0;
}

void safetensors_deinit(struct safetensors *safetensors)
{
	safetensors_tensors_free(safetensors->tensors, safetensors->n_tensors);
	for (uint32_t i = 0; i < safetensors->n_files; i++) {
		close(safetensors->files[i].fd);
		free(safetensors->files[i].path);
	}
	free(safetensors->files);
	*safetensors = (struct safetensors){0};
}

void safetensors_shape_text(const struct safetensors_tensor *tensor, char ret[SAFETENSORS_SHAPE_MAX])
{
	size_t at = 0;

	*ret = 0;
	for (uint32_t i = 0; i < tensor->n_dims; i++)
		at += (size_t)snprintf(ret + at, SAFETENSORS_SHAPE_MAX - at, "%s%" PRIu64, i ? ", " : "",
			tensor->shape[i]);
}

uint64_t safetensors_elements(const struct safetensors_tensor *tensor, uint64_t bytes)
{
	const struct block_format *format = tensor->format;

	assert(tensor->usable && bytes % (format ? format->bytes : dtype_bytes(tensor->dtype)) == 0);
	return format ? bytes / format->bytes * format->elements : bytes / dtype_bytes(tensor->dtype);
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *safetensors,
	const char *name)
{
	char buffer[SAFETENSORS_NAME_MAX];
	struct safetensors_tensor key = {.name = (char *)name};

	if (safetensors->rename)
		key.name = (char *)safetensors->rename(name, buffer, sizeof(buffer));
	if (!safetensors->n_tensors)
		return NULL;
	return bsearch(&key, safetensors->tensors, safetensors->n_tensors, sizeof(key),
		safetensors_by_name);
}
