/* SPDX-License-Identifier: MIT */
#include "daemon/bench/options.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "build-config.h"
#include "daemon/bench/client.h"
#include "daemon/bench/lane.h"
#include "daemon/graph/speculate.h"

enum {
	OPT_SOCKET,
	OPT_SPAWN,
	OPT_MIMEOD,
	OPT_MODEL,
	OPT_SHAPE,
	OPT_MAKE,
	OPT_NAME,
	OPT_DEVICE,
	OPT_DRAFT,
	OPT_DRAFT_TOKENS,
	OPT_SPIN,
	OPT_ATTENTION,
	OPT_COUNT,
	OPT_SECONDS,
	OPT_PROCESSES,
	OPT_PROMPT,
	OPT_TEXT,
	OPT_TOKENS,
	OPT_BATCHES,
	OPT_CONTEXTS,
	OPT_PROMPTS,
	OPT_HEADS,
	OPT_RANK,
	OPT_ROPE,
	OPT_MASK,
	OPT_TIMEOUT,
	OPT_JSON,
	OPT_HELP,
	OPT_VERSION
};

#define WITH_DAEMON "ring attach share gap kill capture buffer"
#define WITH_PRIVATE WITH_DAEMON " modes speculation"

static const struct option_text {
	const char *name, *argument, *help;
	const char *benches; /* that take it; NULL: all */
} texts[] = {
	[OPT_SOCKET] = {"socket", "PATH", "measure the daemon that listens there", WITH_DAEMON},
	[OPT_SPAWN] = {"spawn", NULL, "start a private daemon and measure that (default)",
		WITH_PRIVATE},
	[OPT_MIMEOD] = {"mimeod", "FILE", "program to start (default: beside this one)",
		WITH_PRIVATE},
	[OPT_MODEL] = {"model", "DIR", "model to serve or run (default: tinycalc; experts: tinycalc-moe)",
		NULL},
	[OPT_SHAPE] = {"shape", "NAME",
		"make a model of that shape for the run: tiny, 1B, 8B, V2-Lite", NULL},
	[OPT_MAKE] = {"make-checkpoint", "FILE", "program that makes it (default: in ../libexec/mimeo)",
		NULL},
	[OPT_NAME] = {"name", "NAME", "model of a running daemon (default: its first)",
		WITH_DAEMON},
	[OPT_DEVICE] = {"device", "NAME", "device to use or to serve with (default: auto)", NULL},
	[OPT_DRAFT] = {"draft", "DIR",
		"speculation: the model's draft (default: tinycalc's, or one made for --shape)",
		"speculation"},
	[OPT_DRAFT_TOKENS] = {"draft-tokens", "N",
		"speculation: tokens that it guesses a step, 1 to 8 (default: 4)", "speculation"},
	[OPT_SPIN] = {"spin-us", "N",
		"share, gap, modes, speculation: how long the daemon spins, as for mimeod(8)",
		"share gap modes speculation"},
	[OPT_ATTENTION] = {"attention", "NAME",
		"attention backend, as for mimeod(8) (default: auto)", WITH_PRIVATE " decode attention"},
	[OPT_COUNT] = {"count", "N",
		"round trips a round (4000), attaches (50), kills (30), steps (64), buffers (20)",
		"ring attach kill decode buffer modes"},
	[OPT_SECONDS] = {"seconds", "N", "ring: the most that a row may take (default: 4)", "ring"},
	[OPT_PROCESSES] = {"processes", "LIST",
		"share, gap, modes, speculation: numbers of processes (default: 1,2,4,8,16; modes: 8)",
		"share gap modes speculation"},
	[OPT_PROMPT] = {"prompt", "N",
		"share, gap, speculation: tokens that each begins with (16); modes: longest prompt "
		"(1000)",
		"share gap modes speculation"},
	[OPT_TEXT] = {"text", "TEXT",
		"speculation: what each begins with, for a model of bytes (default of tinycalc: "
		"\"count 97 30\\n\")",
		"speculation"},
	[OPT_TOKENS] = {"tokens", "N",
		"share, gap, speculation: tokens of each process (200; of tinycalc's text 112); modes: "
		"longest answer (200)",
		"share gap modes speculation"},
	[OPT_BATCHES] = {"batches", "LIST",
		"decode, attention, gemm, experts, modes: numbers of rows (default: 1,8,32,128; "
		"modes: 1,2,4,8,16,32,64)",
		"decode attention gemm experts modes"},
	[OPT_CONTEXTS] = {"contexts", "LIST",
		"decode, attention, modes: tokens that a row sees (default: 1024)",
		"decode attention modes"},
	[OPT_PROMPTS] = {"prompts", "LIST", "attention: lengths of whole prompts (default: none)",
		"attention"},
	[OPT_HEADS] = {"heads", "N", "attention: heads of latent attention (default: the model's, or 16)",
		"attention"},
	[OPT_RANK] = {"rank", "N", "attention: its latent columns (default: the model's, or 512)", "attention"},
	[OPT_ROPE] = {"rope", "N", "attention: its rotated columns (default: the model's, or 64)", "attention"},
	[OPT_MASK] = {"mask", "MASK",
		"attention: causal, window:N, prefix:N, documents:N, tree:N (default: causal)",
		"attention"},
	[OPT_TIMEOUT] = {"timeout", "N", "seconds after which a step is given up (default: 120)",
		NULL},
	[OPT_JSON] = {"json", NULL, "write JSON", NULL},
	[OPT_HELP] = {"help", NULL, "print this and exit", NULL},
	[OPT_VERSION] = {"version", NULL, "print the version and exit", NULL},
};
#define N_OPTIONS (sizeof(texts) / sizeof(texts[0]))

static void print_help(const struct program *program)
{
	char left[40];

	printf("Usage: %s [OPTION]... BENCH\n\n%s\n\n", program->name, program->purpose);
	for (size_t i = 0; i < program->n_benches; i++)
		printf("  %-24s%s\n", program->benches[i].name, program->benches[i].help);
	printf("\n");
	for (size_t i = 0; i < N_OPTIONS; i++) {
		snprintf(left, sizeof(left), "--%s%s%s", texts[i].name,
			texts[i].argument ? " " : "", texts[i].argument ? texts[i].argument : "");
		printf("  %-24s%s\n", left, texts[i].help);
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

static bool parse_list(
	const char *text, uint32_t max, uint32_t ret[BENCH_RUNS_MAX], uint32_t *ret_n)
{
	char copy[256], *rest = copy, *item;

	if (strlen(text) >= sizeof(copy))
		return false;
	strcpy(copy, text);
	*ret_n = 0;
	while ((item = strsep(&rest, ","))) {
		if (*ret_n == BENCH_RUNS_MAX || !parse_number(item, 1, max, &ret[(*ret_n)++]))
			return false;
	}
	return true;
}

static bool take_number(int option, const char *value, struct bench_options *o)
{
	switch (option) {
	case OPT_COUNT:
		return parse_number(value, 1, 10000000, &o->count);
	case OPT_SECONDS:
		return parse_number(value, 1, 3600, &o->seconds);
	case OPT_PROCESSES:
		return parse_list(value, BENCH_PROCESSES_MAX, o->processes, &o->n_processes);
	case OPT_PROMPT:
		return parse_number(value, 1, 1u << 20, &o->prompt);
	case OPT_DRAFT_TOKENS:
		return parse_number(value, 1, SPECULATE_MAX, &o->draft_tokens);
	case OPT_TOKENS:
		return parse_number(value, 2, 1u << 20, &o->tokens);
	case OPT_BATCHES:
		return parse_list(value, 1u << 16, o->batches, &o->n_batches);
	case OPT_CONTEXTS:
		return parse_list(value, 1u << 20, o->contexts, &o->n_contexts);
	case OPT_PROMPTS:
		return parse_list(value, 1u << 17, o->prompts, &o->n_prompts);
	case OPT_HEADS:
		return parse_number(value, 1, 1024, &o->heads);
	case OPT_RANK:
		return parse_number(value, 8, 4096, &o->rank);
	case OPT_ROPE:
		return parse_number(value, 2, 4096, &o->rope);
	case OPT_TIMEOUT:
		return parse_number(value, 1, 86400, &o->timeout_s);
	}
	return true;
}

/* False: the value is not what the option takes. */
static bool take(int option, const char *value, struct bench_options *o)
{
	const char **const words[N_OPTIONS] = {
		[OPT_SOCKET] = &o->socket,
		[OPT_MIMEOD] = &o->mimeod,
		[OPT_MODEL] = &o->model_dir,
		[OPT_SHAPE] = &o->shape,
		[OPT_MAKE] = &o->make_checkpoint,
		[OPT_NAME] = &o->model_name,
		[OPT_DEVICE] = &o->device,
		[OPT_SPIN] = &o->spin_us,
		[OPT_ATTENTION] = &o->attention,
		[OPT_MASK] = &o->mask,
		[OPT_DRAFT] = &o->draft,
		[OPT_TEXT] = &o->text,
	};

	if (words[option])
		*words[option] = value;
	else if (option == OPT_JSON)
		o->json = true;
	else
		return take_number(option, value, o);
	return true;
}

int options_misuse(const char *format, ...)
{
	va_list arguments;

	fprintf(stderr, "%s: ", program_invocation_short_name);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fprintf(stderr, "; see --help\n");
	return EXIT_USAGE;
}

static const struct bench *find_bench(const struct program *program, const char *name)
{
	for (size_t i = 0; i < program->n_benches; i++) {
		if (strcmp(program->benches[i].name, name) == 0)
			return &program->benches[i];
	}
	return NULL;
}

/* 0, EXIT_USAGE, or -1: there is nothing more to do. */
static int parse(const struct program *program, int argc, char **argv, struct bench_options *options,
	bool given[N_OPTIONS])
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
			print_help(program);
		if (option == OPT_VERSION)
			printf("%s %s\n", program->name, MIMEO_VERSION);
		if (option == OPT_HELP || option == OPT_VERSION)
			return -1;
		given[option] = true;
		if (!take(option, optarg, options)) {
			return options_misuse("--%s %s: out of range or not a number",
				texts[option].name, optarg);
		}
	}
	return 0;
}

/* A word of a list with blanks between. */
static bool is_among(const char *word, const char *list)
{
	size_t length = strlen(word);

	for (const char *at = list; (at = strstr(at, word)); at += length) {
		if ((at == list || at[-1] == ' ') && (at[length] == ' ' || !at[length]))
			return true;
	}
	return false;
}

static int check(
	const struct bench *bench, const struct bench_options *options, const bool given[N_OPTIONS])
{
	static const int of_private[] = {OPT_SPAWN, OPT_MIMEOD, OPT_SHAPE, OPT_SPIN,
		OPT_ATTENTION, -1};

	for (size_t i = 0; i < N_OPTIONS; i++) {
		if (given[i] && texts[i].benches && !is_among(bench->name, texts[i].benches))
			return options_misuse("--%s is not for this bench", texts[i].name);
	}
	for (size_t i = 0; of_private[i] >= 0 && given[OPT_SOCKET]; i++) {
		if (given[of_private[i]])
			return options_misuse(
				"--%s does not go with --socket", texts[of_private[i]].name);
	}
	if (given[OPT_NAME] && !given[OPT_SOCKET])
		return options_misuse("--%s needs --socket", texts[OPT_NAME].name);
	if (given[OPT_SHAPE] && given[OPT_MODEL])
		return options_misuse("--shape does not go with --model");
	if (given[OPT_TEXT] && (given[OPT_PROMPT] || !*options->text))
		return options_misuse(given[OPT_PROMPT] ? "--text does not go with --prompt"
							: "--text is empty");
	if (strcmp(bench->name, "speculation") == 0 && given[OPT_MODEL] != given[OPT_DRAFT] &&
		!given[OPT_SHAPE])
		return options_misuse("--%s needs --%s: a draft is made for one model",
			texts[given[OPT_MODEL] ? OPT_MODEL : OPT_DRAFT].name,
			texts[given[OPT_MODEL] ? OPT_DRAFT : OPT_MODEL].name);
	bool has_lane = strcmp(bench->name, "decode") == 0 || strcmp(bench->name, "modes") == 0;
	for (uint32_t i = 0; i < options->n_batches && has_lane; i++) {
		if (options->batches[i] > LANE_ROWS_MAX)
			return options_misuse("--batches %u: a step has %u rows at most",
				options->batches[i], LANE_ROWS_MAX);
	}
	return 0;
}

/* `modes` has a load of its own, and the batches that graphs in pieces are judged at. */
static void fill_modes(struct bench_options *o, const bool given[N_OPTIONS])
{
	static const uint32_t batches[] = {1, 2, 4, 8, 16, 32, 64};

	if (!given[OPT_PROCESSES]) {
		o->processes[0] = 8;
		o->n_processes = 1;
	}
	if (!given[OPT_PROMPT])
		o->prompt = 1000;
	if (!given[OPT_BATCHES]) {
		memcpy(o->batches, batches, sizeof(batches));
		o->n_batches = sizeof(batches) / sizeof(batches[0]);
	}
}

/* `speculation` of the shipped model: an answer that model and draft were trained for. */
static void fill_speculation(struct bench_options *o, const bool given[N_OPTIONS])
{
	static const char text[] = "count 97 30\n";
	bool shipped = !given[OPT_MODEL] && !given[OPT_SHAPE] && !given[OPT_PROMPT];

	if (shipped && !o->text) {
		o->text = text;
		if (!given[OPT_TOKENS])
			o->tokens = 112;
	}
	if (o->text) /* and a token to begin with, which the model may have */
		o->prompt = (uint32_t)strlen(o->text) + 1;
}

int options_read(const struct program *program, int argc, char **argv, struct bench_options *ret,
	const struct bench **ret_bench)
{
	bool given[N_OPTIONS] = {false};

	*ret = (struct bench_options){
		.device = "auto",
		.attention = "auto",
		.seconds = 4,
		.timeout_s = 120,
		.tokens = 200,
		.prompt = CLIENT_PROMPT_TOKENS,
		.draft_tokens = 4,
		.processes = {1, 2, 4, 8, 16},
		.n_processes = 5,
		.batches = {1, 8, 32, 128},
		.n_batches = 4,
		.contexts = {1024},
		.n_contexts = 1,
	};
	int r = parse(program, argc, argv, ret, given);
	if (r != 0)
		return r;
	const struct bench *bench = optind < argc ? find_bench(program, argv[optind]) : NULL;
	if (!bench)
		return optind < argc ? options_misuse("there is no bench \"%s\"", argv[optind])
				     : options_misuse("no bench is named");
	if (optind + 1 < argc)
		return options_misuse("one bench at a time, and then \"%s\"", argv[optind + 1]);
	*ret_bench = bench;
	if (strcmp(bench->name, "modes") == 0)
		fill_modes(ret, given);
	if (strcmp(bench->name, "speculation") == 0)
		fill_speculation(ret, given);
	ret->model_named = given[OPT_MODEL] || given[OPT_SHAPE];
	r = check(bench, ret, given);
	return r == 0 && program->check ? program->check(bench, ret) : r;
}
