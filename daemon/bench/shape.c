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
	bool config_only;
};

static int exec_program(void *arg, int fd)
{
	const struct shape_work *work = arg;
	const char *argv[] = {work->program, "--shape", work->shape, work->model,
		work->config_only ? "--config-only" : NULL, NULL};
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

int shape_make(const struct bench_options *options, bool config_only, struct shape_folder *ret)
{
	char path[600];
	const char *program = options->make_checkpoint;

	*ret = (struct shape_folder){""};
	if (!program)
		program = spawn_find_make_checkpoint(path, sizeof(path));
	if (!program) {
		fprintf(stderr, "mimeo-bench: make-checkpoint is neither in ../libexec/mimeo "
				"nor in ../examples: say --make-checkpoint FILE\n");
		return -ENOENT;
	}
	int r = take_folder(ret);
	if (r < 0)
		return r;
	struct shape_work work = {program, options->shape, ret->model, config_only};
	return child_run("make-checkpoint", exec_program, &work, options->timeout_s);
}

void shape_remove(struct shape_folder *folder)
{
	if (!folder->folder[0])
		return;
	spawn_remove_folder(folder->model);
	spawn_remove_folder(folder->folder);
	folder->folder[0] = '\0';
}
