/* SPDX-License-Identifier: MIT */

/* The JSON files of a directory, a target model's and a draft model's; or a target's GGUF file. */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "daemon/model/checkpoint.h"
#include "daemon/model/draft.h"
#include "daemon/model/error.h"
#include "daemon/model/file.h"
#include "daemon/model/gguf_model.h"
#include "daemon/model/hf_config.h"
#include "daemon/model/hf_modelopt.h"
#include "ipc/cleanup.h"

#define FILE_MAX (4u << 20) /* real ones have some kilobytes */

/* Load a file of the directory; ret_path is for errors. */
static int hf_files_load(int fd, const char *directory, const char *name, char ret_path[static PATH_MAX],
	char **ret_text, size_t *ret_bytes, struct model_error *error)
{
	snprintf(ret_path, PATH_MAX, "%s/%s", directory, name);
	return file_load(fd, ret_path, name, FILE_MAX, ret_text, ret_bytes, error);
}

/* Older versions of NVIDIA's Model Optimizer leave config.json as it was. */
static int hf_files_load_modelopt(
	int fd, const char *directory, struct model_config *config, struct model_error *error)
{
	CLEANUP(cleanup_free) char *text = NULL;
	char path[PATH_MAX];
	size_t bytes;
	int rc = hf_files_load(fd, directory, "hf_quant_config.json", path, &text, &bytes, error);

	if (rc)
		return rc == -ENOENT ? 0 : rc;
	return hf_modelopt_parse_file(path, text, bytes, &config->quantisation, error);
}

static int hf_files_load_config(int fd, const char *directory, bool draft,
	struct model_config *ret, struct model_error *error)
{
	CLEANUP(cleanup_free) char *text = NULL;
	char path[PATH_MAX];
	size_t bytes;
	int rc = hf_files_load(fd, directory, "config.json", path, &text, &bytes, error);

	if (rc == -ENOENT)
		return model_fail(error, rc, "%s: does not exist", path);
	if (rc)
		return rc;
	rc = hf_config_parse(path, text, bytes, draft, ret, error);
	if (rc || ret->quantisation)
		return rc;
	rc = hf_files_load_modelopt(fd, directory, ret, error);
	if (rc)
		model_config_deinit(ret);
	return rc;
}

/* The file is optional. */
static int hf_files_load_generation(
	int fd, const char *directory, struct model_config *config, struct model_error *error)
{
	CLEANUP(cleanup_free) char *text = NULL;
	char path[PATH_MAX];
	size_t bytes;
	int rc = hf_files_load(fd, directory, "generation_config.json", path, &text, &bytes, error);

	if (rc)
		return rc == -ENOENT ? 0 : rc;
	return hf_generation_parse(path, text, bytes, config, error);
}

static int hf_files_load_target(
	const char *directory, struct model_config *ret, struct model_error *error)
{
	CLEANUP(cleanup_close) int fd = file_open_directory(directory, error);
	struct model_config config;
	int rc;

	if (fd < 0)
		return fd;
	rc = hf_files_load_config(fd, directory, false, &config, error);
	if (rc)
		return rc;
	rc = hf_files_load_generation(fd, directory, &config, error);
	if (rc) {
		model_config_deinit(&config);
		return rc;
	}
	*ret = config;
	return 0;
}

int model_config_load(const char *path, struct model_config *ret, struct model_error *error)
{
	return checkpoint_is_file(path) ? gguf_config_load(path, ret, error)
					: hf_files_load_target(path, ret, error);
}

int draft_config_load(const char *directory, struct model_config *ret, struct model_error *error)
{
	CLEANUP(cleanup_close) int fd = -1;

	if (checkpoint_is_file(directory))
		return model_fail(error, -ENOTSUP,
			"%s: a GGUF file has no MTP head and is no draft model: use --draft none", directory);
	fd = file_open_directory(directory, error);
	return fd < 0 ? fd : hf_files_load_config(fd, directory, true, ret, error);
}
