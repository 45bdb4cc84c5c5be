/* SPDX-License-Identifier: MIT */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "daemon/bench/child.h"
#include "daemon/bench/options.h"
#include "daemon/bench/shape.h"
#include "daemon/bench/spawn.h"

#define DEFAULT_DRAFT "tinycalc-eagle"

static const char *default_model(const struct bench *bench)
{
	return bench->model ? bench->model : "tinycalc";
}

static int no_model(const char *name)
{
	char places[2048];

	spawn_model_places(name, places, sizeof(places));
	fprintf(stderr, "mimeo-bench: there is no model in any of %s; say --model DIR\n", places);
	return EXIT_FAILED;
}

/* The draft that belongs to the default model, of which it is trained; of a shape one is made. */
static int find_draft(struct bench_options *options, char *draft, size_t size)
{
	if (options->draft || options->shape)
		return 0;
	options->draft = spawn_find_model(DEFAULT_DRAFT, draft, size);
	return options->draft ? 0 : no_model(DEFAULT_DRAFT);
}

static int find_defaults(const struct bench *bench, struct bench_options *options, char *mimeod,
	char *model, size_t size)
{
	if (options->socket)
		return 0;
	if (!options->mimeod && !bench->in_process)
		options->mimeod = spawn_find_mimeod(mimeod, size);
	if (!options->model_dir && !options->shape)
		options->model_dir = spawn_find_model(default_model(bench), model, size);
	if (!options->mimeod && !bench->in_process)
		return options_misuse("mimeod is not where this program is: say --mimeod FILE");
	if (!options->model_dir && !options->shape)
		return no_model(default_model(bench));
	return 0;
}

static int run(const struct bench *bench, struct bench_options *options)
{
	struct shape_folder folder = {.folder = ""};
	int r = 0;

	if (options->shape)
		r = shape_make(options, bench->config_only, &folder);
	if (options->shape)
		options->model_dir = folder.model;
	if (r == 0 && options->shape && strcmp(bench->name, "speculation") == 0 && !options->draft) {
		r = shape_make_draft(options, &folder);
		options->draft = folder.draft;
	}
	if (r == 0)
		r = bench->run(options);
	shape_remove(&folder);
	return r;
}

int program_main(const struct program *program, int argc, char **argv)
{
	struct bench_options options;
	const struct bench *bench;
	char mimeod[600], model[600], draft[600];
	int r = options_read(program, argc, argv, &options, &bench);

	if (r != 0)
		return r < 0 ? 0 : r;
	r = find_defaults(bench, &options, mimeod, model, sizeof(mimeod));
	if (r == 0 && strcmp(bench->name, "speculation") == 0)
		r = find_draft(&options, draft, sizeof(draft));
	if (r != 0)
		return r;
	r = child_supervise();
	if (r == 0)
		r = run(bench, &options);
	if (child_signal()) {
		/* All is cleaned up: end as the signal would have ended us. */
		sigset_t all;

		signal(child_signal(), SIG_DFL);
		raise(child_signal());
		sigfillset(&all);
		sigprocmask(SIG_UNBLOCK, &all, NULL);
	}
	return r < 0 ? EXIT_FAILED : 0;
}
