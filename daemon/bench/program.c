/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "daemon/bench/bench.h"
#include "daemon/bench/child.h"
#include "daemon/bench/spawn.h"

#define DEFAULT_DRAFT "tinycalc-eagle"

struct places {
	char mimeod[SPAWN_PATH_MAX], model[SPAWN_PATH_MAX], draft[SPAWN_PATH_MAX];
};

/* Find the models that the command line does not name, relative to the program. */
static int program_find(
	const struct bench *bench, struct bench_options *options, struct places *places)
{
	bool shipped = !options->model_dir && !options->shape;

	if (options->socket)
		return 0;
	if (shipped) {
		options->model_dir = spawn_find(
			SPAWN_MODEL, bench->model ? bench->model : "tinycalc", places->model);
		if (!options->model_dir)
			return EXIT_FAILED;
	}
	if (shipped && (bench->flags & BENCH_DRAFT) && !options->draft) {
		options->draft = spawn_find(SPAWN_MODEL, DEFAULT_DRAFT, places->draft);
		if (!options->draft)
			return EXIT_FAILED;
	}
	if (options->mimeod || (bench->flags & BENCH_IN_PROCESS))
		return 0;
	options->mimeod = spawn_find(SPAWN_MIMEOD, "mimeod", places->mimeod);
	return options->mimeod ? 0 : EXIT_FAILED;
}

struct program_work {
	const struct bench *bench;
	const struct bench_options *options;
	struct results *results;
};

static int program_child(void *arg, int fd)
{
	const struct program_work *work = arg;

	return work->bench->run(work->options, work->results) != 0;
}

/* The models of --shape, below TMPDIR: a model of 8B takes 16 GB there. */
struct shape {
	char directory[SPAWN_DIRECTORY_MAX];
	char model[SPAWN_DIRECTORY_MAX + 8], draft[SPAWN_DIRECTORY_MAX + 8];
};

static int program_make_shape(
	const struct bench *bench, struct bench_options *options, struct shape *ret)
{
	int rc = spawn_make_directory(ret->directory);

	if (rc < 0)
		return rc;
	rc = spawn_make_model(options, ret->directory, "model", NULL,
		bench->flags & BENCH_CONFIG_ONLY, ret->model);
	options->model_dir = ret->model;
	if (rc < 0 || !(bench->flags & BENCH_DRAFT) || options->draft)
		return rc;
	options->draft = ret->draft;
	return spawn_make_model(options, ret->directory, "draft", "eagle", false, ret->draft);
}

static int program_measure(
	const struct bench *bench, struct bench_options *options, struct shape *made)
{
	CLEANUP(cleanup_results) struct results *results = NULL;
	const char *model = options->shape ? options->shape : options->model_dir ? options->model_dir
								      : options->model_name;
	int rc = results_new(&results, bench->name, model);

	if (rc < 0)
		return bench_fail(rc, "%s", strerror(-rc));
	if (!options->socket) /* a running daemon does not tell */
		results_dtypes(results, options->head_dtype, options->kv_dtype);
	rc = options->shape ? program_make_shape(bench, options, made) : 0;
	if (rc < 0)
		return rc;
	struct program_work work = {bench, options, results};
	rc = bench->flags & BENCH_IN_PROCESS
		     ? child_run(bench->name, program_child, &work, options->timeout_s)
		     : bench->run(options, results);
	if (rc < 0)
		return rc;
	rc = results_print(results, options->json);
	if (rc < 0 || !options->plot)
		return rc;
	char heading[256];
	const char *slash = model ? strrchr(model, '/') : NULL;
	snprintf(heading, sizeof(heading), "%s %s, %s, %s", program_invocation_short_name,
		bench->name, slash ? slash + 1 : model ? model : "first model",
		results_device(results));
	return plot_write(options->plot, results, bench->panels, heading);
}

int program_main(const struct program *program, int argc, char **argv)
{
	struct bench_options options;
	const struct bench *bench;
	struct places places;
	struct shape made = {.directory = ""};
	int rc = bench_options_read(program, argc, argv, &options, &bench);

	if (rc != 0)
		return rc < 0 ? 0 : rc;
	rc = program_find(bench, &options, &places);
	if (rc != 0)
		return rc;
	rc = child_supervise();
	if (rc == 0)
		rc = program_measure(bench, &options, &made);
	if (*made.directory)
		spawn_remove_directory(made.directory);
	if (child_signal()) {
		/* Everything is cleaned up: now end by the signal. */
		sigset_t all;

		signal(child_signal(), SIG_DFL);
		raise(child_signal());
		sigfillset(&all);
		sigprocmask(SIG_UNBLOCK, &all, NULL);
	}
	return rc < 0 ? EXIT_FAILED : 0;
}
