/* SPDX-License-Identifier: MIT */
#include "daemon/bench/shape.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/bench/child.h"
#include "daemon/bench/spawn.h"

struct shape_work {
	const char *program, *shape, *model;
	const char *family; /* NULL: the shape's own */
	bool config_only;
};

static int exec_program(void *arg, int fd)
{
	const struct shape_work *work = arg;
	const char *argv[8] = {work->program, "--shape", work->shape, work->model};
	int n = 4;

	if (work->config_only)
		argv[n++] = "--config-only";
	if (work->family) {
		argv[n++] = "--family";
		argv[n++] = work->family;
	}
	int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

	/* The pipe must end with the program, so the program has to have it. */
	if (null < 0 || dup2(null, STDOUT_FILENO) < 0 || fcntl(fd, F_SETFD, 0) < 0)
		return 1;
	execv(work->program, (char *const *)argv);
	fprintf(stderr, "mimeo-bench: %s: %s\n", work->program, strerror(errno));
	return 1;
}

static int take_folder(struct shape_folder *ret)
{
	const char *place = getenv("TMPDIR");

	if (!place || *place != '/' || strlen(place) + sizeof("/mimeo-bench-XXXXXX") > 60)
		place = "/tmp";
	snprintf(ret->folder, sizeof(ret->folder), "%s/mimeo-bench-XXXXXX", place);
	if (!mkdtemp(ret->folder)) {
		int r = -errno;

		fprintf(stderr, "mimeo-bench: %s: %s\n", ret->folder, strerror(-r));
		ret->folder[0] = '\0';
		return r;
	}
	snprintf(ret->model, sizeof(ret->model), "%s/model", ret->folder);
	return 0;
}

static int make(const struct bench_options *options, struct shape_work *work)
{
	char path[600];

	work->shape = options->shape;
	work->program = options->make_checkpoint;
	if (!work->program)
		work->program = spawn_find_make_checkpoint(path, sizeof(path));
	if (!work->program) {
		fprintf(stderr, "mimeo-bench: make-checkpoint is neither in ../libexec/mimeo "
				"nor in ../examples: say --make-checkpoint FILE\n");
		return -ENOENT;
	}
	return child_run("make-checkpoint", exec_program, work, options->timeout_s);
}

int shape_make(const struct bench_options *options, bool config_only, struct shape_folder *ret)
{
	struct shape_work work = {.model = ret->model, .config_only = config_only};

	*ret = (struct shape_folder){.folder = ""};
	int r = take_folder(ret);
	return r < 0 ? r : make(options, &work);
}

int shape_make_draft(const struct bench_options *options, struct shape_folder *folder)
{
	struct shape_work work = {.model = folder->draft, .family = "eagle"};

	snprintf(folder->draft, sizeof(folder->draft), "%s/draft", folder->folder);
	return make(options, &work);
}

void shape_remove(struct shape_folder *folder)
{
	if (!folder->folder[0])
		return;
	spawn_remove_folder(folder->model);
	if (folder->draft[0])
		spawn_remove_folder(folder->draft);
	spawn_remove_folder(folder->folder);
	folder->folder[0] = '\0';
}
