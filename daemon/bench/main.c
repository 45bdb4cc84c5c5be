/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "build-config.h"
#include "daemon/bench/bench.h"
#include "daemon/bench/child.h"
#include "daemon/bench/spawn.h"

#define EXIT_FAILED 1
#define EXIT_USAGE 2

static const struct bench {
	const char *name, *help;
	int (*run)(const struct bench_options *options);
} benches[] = {
	{"ring", "a null request there and back, spinning and asleep", bench_ring},
	{"attach", "connect, handshake and first tokens of one more process", bench_attach},
	{"share", "N processes with a sequence each, against one loop in process", bench_share},
	{"kill", "how soon what a killed client had is back", bench_kill},
};
#define N_BENCHES (sizeof(benches) / sizeof(benches[0]))

enum { OPT_SOCKET, OPT_SPAWN, OPT_MIMEOD, OPT_MODEL, OPT_NAME, OPT_DEVICE, OPT_COUNT, OPT_SECONDS,
	OPT_PROCESSES, OPT_TOKENS, OPT_TIMEOUT, OPT_JSON, OPT_HELP, OPT_VERSION };

static const struct option_text {
	const char *name, *argument, *help;
	const char *bench; /* the only one that takes it; NULL: all */
} texts[] = {
	[OPT_SOCKET] = {"socket", "PATH", "measure the daemon that listens there", NULL},
	[OPT_SPAWN] = {"spawn", NULL, "start a private daemon and measure that (default)", NULL},
	[OPT_MIMEOD] = {"mimeod", "FILE", "program to start (default: beside this one)", NULL},
	[OPT_MODEL] = {"model", "DIR", "model to serve (default: tinycalc)", NULL},
	[OPT_NAME] = {"name", "NAME", "model of a running daemon (default: its first)", NULL},
	[OPT_DEVICE] = {"device", "NAME", "device of the daemon to start (default: auto)", NULL},
	[OPT_COUNT] = {"count", "N",
		"round trips a round (4000), attaches (50), kills (30)", NULL},
	[OPT_SECONDS] = {"seconds", "N", "ring: the most that a row may take (default: 4)", "ring"},
	[OPT_PROCESSES] = {"processes", "LIST",
		"share: numbers of processes (default: 1,2,4,8)", "share"},
	[OPT_TOKENS] = {"tokens", "N", "share: tokens of each process (default: 200)", "share"},
	[OPT_TIMEOUT] = {"timeout", "N", "seconds after which a step is given up (default: 120)",
		NULL},
	[OPT_JSON] = {"json", NULL, "write JSON", NULL},
	[OPT_HELP] = {"help", NULL, "print this and exit", NULL},
	[OPT_VERSION] = {"version", NULL, "print the version and exit", NULL},
};
#define N_OPTIONS (sizeof(texts) / sizeof(texts[0]))

static void print_help(void)
{
	char left[40];

	printf("Usage: mimeo-bench [OPTION]... BENCH\n\n"
	       "Measure what Mimeo costs, beside the floor that this machine sets.\n\n");
	for (size_t i = 0; i < N_BENCHES; i++)
		printf("  %-22s%s\n", benches[i].name, benches[i].help);
	printf("\n");
	for (size_t i = 0; i < N_OPTIONS; i++) {
		snprintf(left, sizeof(left), "--%s%s%s", texts[i].name,
			texts[i].argument ? " " : "", texts[i].argument ? texts[i].argument : "");
		printf("  %-22s%s\n", left, texts[i].help);
	}
	printf("\nExit status: 0 measured, whatever came out; 1 not measured; 2 the command line "
	       "makes no\nsense. See mimeo-bench(1).\n");
}

static bool parse_number(const char *text, uint32_t min, uint32_t max, uint32_t *ret)
{
	char *end;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	unsigned long value = strtoul(text, &end, 10);
	if (errno || *end || value < min || value > max)
		return false;
	*ret = (uint32_t)value;
	return true;
}

static bool parse_processes(const char *text, struct bench_options *options)
{
	char copy[256], *rest = copy, *item;

	if (strlen(text) >= sizeof(copy))
		return false;
	strcpy(copy, text);
	options->n_processes = 0;
	while ((item = strsep(&rest, ","))) {
		if (options->n_processes == BENCH_RUNS_MAX ||
			!parse_number(item, 1, BENCH_PROCESSES_MAX,
				&options->processes[options->n_processes++]))
			return false;
	}
	return true;
}

/* False: the value is not what the option takes. */
static bool take(int option, const char *value, struct bench_options *options)
{
	switch (option) {
	case OPT_SOCKET:
		options->socket = value;
		return true;
	case OPT_MIMEOD:
		options->mimeod = value;
		return true;
	case OPT_MODEL:
		options->model_dir = value;
		return true;
	case OPT_NAME:
		options->model_name = value;
		return true;
	case OPT_DEVICE:
		options->device = value;
		return true;
	case OPT_COUNT:
		return parse_number(value, 1, 10000000, &options->count);
	case OPT_SECONDS:
		return parse_number(value, 1, 3600, &options->seconds);
	case OPT_PROCESSES:
		return parse_processes(value, options);
	case OPT_TOKENS:
		return parse_number(value, 2, 1u << 20, &options->tokens);
	case OPT_TIMEOUT:
		return parse_number(value, 1, 86400, &options->timeout_s);
	case OPT_JSON:
		options->json = true;
	}
	return true;
}

static int __attribute__((format(printf, 1, 2))) misuse(const char *format, ...)
{
	va_list arguments;

	fprintf(stderr, "mimeo-bench: ");
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fprintf(stderr, "; see --help\n");
	return EXIT_USAGE;
}

static const struct bench *find_bench(const char *name)
{
	for (size_t i = 0; i < N_BENCHES; i++) {
		if (strcmp(benches[i].name, name) == 0)
			return &benches[i];
	}
	return NULL;
}

/* 0, EXIT_USAGE, or -1: there is nothing more to do. */
static int parse(int argc, char **argv, struct bench_options *options, bool given[N_OPTIONS])
{
	struct option names[N_OPTIONS + 1] = {0};
	int option, index;

	for (size_t i = 0; i < N_OPTIONS; i++)
		names[i] = (struct option){texts[i].name,
			texts[i].argument ? required_argument : no_argument, NULL, (int)i};
	while ((option = getopt_long(argc, argv, "", names, &index)) != -1) {
		if (option == '?')
			return EXIT_USAGE;
		if (option == OPT_HELP)
			print_help();
		if (option == OPT_VERSION)
			printf("mimeo-bench %s\n", MIMEO_VERSION);
		if (option == OPT_HELP || option == OPT_VERSION)
			return -1;
		given[option] = true;
		if (!take(option, optarg, options)) {
			return misuse("--%s %s: out of range or not a number", texts[option].name,
				optarg);
		}
	}
	return 0;
}

static int check(const struct bench *bench, const bool given[N_OPTIONS])
{
	static const int of_private[] = {OPT_SPAWN, OPT_MIMEOD, -1};

	for (size_t i = 0; i < N_OPTIONS; i++) {
		if (given[i] && texts[i].bench && strcmp(texts[i].bench, bench->name) != 0)
			return misuse("--%s is not for this bench", texts[i].name);
	}
	if (given[OPT_COUNT] && bench->run == bench_share)
		return misuse("--count is not for this bench: its size is --tokens");
	for (size_t i = 0; of_private[i] >= 0 && given[OPT_SOCKET]; i++) {
		if (given[of_private[i]])
			return misuse("--%s does not go with --socket", texts[of_private[i]].name);
	}
	if (given[OPT_NAME] && !given[OPT_SOCKET])
		return misuse("--%s needs --socket", texts[OPT_NAME].name);
	return 0;
}

static int no_model(void)
{
	char places[2048];

	spawn_model_places(places, sizeof(places));
	fprintf(stderr, "mimeo-bench: there is no model in any of %s; say --model DIR\n", places);
	return EXIT_FAILED;
}

static int find_defaults(struct bench_options *options, char *mimeod, char *model, size_t size)
{
	if (options->socket)
		return 0;
	if (!options->mimeod)
		options->mimeod = spawn_find_mimeod(mimeod, size);
	if (!options->model_dir)
		options->model_dir = spawn_find_model(model, size);
	if (!options->mimeod)
		return misuse("mimeod is not where this program is: say --mimeod FILE");
	if (!options->model_dir)
		return no_model();
	return 0;
}

int main(int argc, char **argv)
{
	struct bench_options options = {
		.device = "auto",
		.seconds = 4,
		.timeout_s = 120,
		.tokens = 200,
		.processes = {1, 2, 4, 8},
		.n_processes = 4,
	};
	bool given[N_OPTIONS] = {false};
	char mimeod[600], model[600];
	int r = parse(argc, argv, &options, given);

	if (r != 0)
		return r < 0 ? 0 : r;
	const struct bench *bench = optind < argc ? find_bench(argv[optind]) : NULL;
	if (!bench)
		return optind < argc ? misuse("there is no bench \"%s\"", argv[optind])
				     : misuse("no bench is named");
	if (optind + 1 < argc)
		return misuse("one bench at a time, and then \"%s\"", argv[optind + 1]);
	r = check(bench, given);
	if (r == 0)
		r = find_defaults(&options, mimeod, model, sizeof(mimeod));
	if (r != 0)
		return r;
	r = child_supervise();
	if (r == 0)
		r = bench->run(&options);
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
