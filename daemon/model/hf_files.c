/* SPDX-License-Identifier: MIT */
/* The JSON files of a directory: a model's and a draft's. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/model/draft.h"
#include "daemon/model/error.h"
#include "daemon/model/file.h"
#include "daemon/model/hf_config.h"

#define FILE_MAX (4u << 20) /* real ones have some kilobytes */

static int open_directory(const char *directory, struct model_error *error)
{
	int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd >= 0 ? fd
		       : model_fail(error, -errno, "%s: cannot be opened as a directory: %s",
				 directory, strerror(errno));
}

static int load_config(int fd, const char *directory, bool draft, struct model_config *ret,
	struct model_error *error)
{
	char path[PATH_MAX], *text;
	size_t bytes;
	int rc;

	snprintf(path, sizeof(path), "%s/config.json", directory);
	rc = file_load(fd, path, "config.json", FILE_MAX, &text, &bytes, error);
	if (rc == -ENOENT)
		return model_fail(error, rc, "%s: does not exist", path);
	if (rc)
		return rc;
	rc = draft ? hf_draft_parse(path, text, bytes, ret, error)
		   : hf_config_parse(path, text, bytes, ret, error);
	free(text);
	return rc;
}

/* It need not be there. */
static int load_generation(
	int fd, const char *directory, struct model_config *config, struct model_error *error)
{
	char path[PATH_MAX], *text;
	size_t bytes;
	int rc;

	snprintf(path, sizeof(path), "%s/generation_config.json", directory);
	rc = file_load(fd, path, "generation_config.json", FILE_MAX, &text, &bytes, error);
	if (rc)
		return rc == -ENOENT ? 0 : rc;
	rc = hf_generation_parse(path, text, bytes, config, error);
	free(text);
	return rc;
}

int model_config_load(const char *directory, struct model_config *ret, struct model_error *error)
{
	struct model_config config = {0};
	int fd = open_directory(directory, error), rc;

	if (fd < 0)
		return fd;
	rc = load_config(fd, directory, false, &config, error);
	if (!rc)
		rc = load_generation(fd, directory, &config, error);
	if (rc)
		model_config_deinit(&config);
	else
		*ret = config;
	close(fd);
	return rc;
}

int draft_config_load(const char *directory, struct model_config *ret, struct model_error *error)
{
	int fd = open_directory(directory, error), rc;

	if (fd < 0)
		return fd;
	rc = load_config(fd, directory, true, ret, error);
	close(fd);
	return rc;
}
