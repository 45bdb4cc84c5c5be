/* SPDX-License-Identifier: MIT */
#include "daemon/model/text_files.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/model/checkpoint.h"
#include "daemon/model/file.h"
#include "daemon/model/gguf_tokenizer.h"
#include "ipc/cleanup.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#define TEXT_FILES_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL)

/* Kernels before 6.3 don't know MFD_NOEXEC_SEAL. */
static int text_files_memfd(const char *name)
{
	const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
	int fd = memfd_create(name, flags | MFD_NOEXEC_SEAL);

	if (fd < 0 && errno == EINVAL)
		fd = memfd_create(name, flags);
	return fd < 0 ? -errno : fd;
}

static int text_files_write(int fd, const char *bytes, size_t n)
{
	for (size_t done = 0; done < n;) {
		ssize_t written = write(fd, bytes + done, n - done);

		if (written < 0 && errno == EINTR)
			continue;
		if (written < 0)
			return -errno;
		done += (size_t)written;
	}
	return lseek(fd, 0, SEEK_SET) < 0 || fcntl(fd, F_ADD_SEALS, TEXT_FILES_SEALS) < 0 ? -errno : 0;
}

static int text_files_store(const char *path, const char *name, const char *text, size_t bytes,
	int *ret_fd, struct model_error *error)
{
	CLEANUP(cleanup_close) int fd = text_files_memfd(name);
	int rc = fd < 0 ? fd : text_files_write(fd, text, bytes);

	if (rc)
		return model_fail(error, rc, "%s: its %zu bytes cannot be copied to memory: %s", path,
			bytes, strerror(-rc));
	*ret_fd = STEAL_FD(fd);
	return 0;
}

/* The copy of one file; *ret_fd stays as it is if there is no such file. */
static int text_files_copy(int directory_fd, const char *directory, const char *name, size_t limit,
	int *ret_fd, struct model_error *error)
{
	CLEANUP(cleanup_free) char *text = NULL;
	char path[PATH_MAX];
	size_t bytes;

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	int rc = file_load(directory_fd, path, name, limit, &text, &bytes, error);
	if (rc)
		return rc == -ENOENT ? 0 : rc;
	return text_files_store(path, name, text, bytes, ret_fd, error);
}

void text_files_free(struct mimeo_model_files *files)
{
	if (!files)
		return;
	cleanup_close(&files->tokenizer);
	cleanup_close(&files->config);
	cleanup_close(&files->chat_template);
	free(files);
}

DEFINE_CLEANUP(text_files, struct mimeo_model_files, text_files_free)

static int text_files_copy_all(
	const char *directory, struct mimeo_model_files *files, struct model_error *error)
{
	CLEANUP(cleanup_close) int fd = file_open_directory(directory, error);
	if (fd < 0)
		return fd;
	const struct {
		const char *name;
		size_t limit;
		int *fd;
	} wanted[] = {
		{"tokenizer.json", TEXT_FILES_TOKENIZER_MAX, &files->tokenizer},
		{"tokenizer_config.json", TEXT_FILES_CONFIG_MAX, &files->config},
		{"chat_template.jinja", TEXT_FILES_TEMPLATE_MAX, &files->chat_template},
	};
	for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
		int rc = text_files_copy(
			fd, directory, wanted[i].name, wanted[i].limit, wanted[i].fd, error);
		if (rc)
			return rc;
	}
	return 0;
}

static int text_files_make(
	const char *path, struct mimeo_model_files *files, struct model_error *error)
{
	const struct gguf_text_limits limits = {TEXT_FILES_TOKENIZER_MAX, TEXT_FILES_CONFIG_MAX};
	CLEANUP(gguf_text_deinit) struct gguf_text text = {0};
	int rc = gguf_text_load(path, limits, &text, error);

	if (rc || !text.tokenizer)
		return rc;
	rc = text_files_store(path, "tokenizer.json", text.tokenizer, strlen(text.tokenizer),
		&files->tokenizer, error);
	if (rc)
		return rc;
	return text_files_store(path, "tokenizer_config.json", text.config, strlen(text.config),
		&files->config, error);
}

int text_files_load(const char *path, struct mimeo_model_files **ret, struct model_error *error)
{
	CLEANUP(cleanup_text_files) struct mimeo_model_files *files = malloc(sizeof(*files));
	if (!files)
		return model_fail(error, -ENOMEM, "%s: no memory", path);
	*files = (struct mimeo_model_files)MIMEO_MODEL_FILES_INIT;
	int rc = checkpoint_is_file(path) ? text_files_make(path, files, error)
					  : text_files_copy_all(path, files, error);
	if (rc)
		return rc;
	*ret = STEAL(files);
	return 0;
}
