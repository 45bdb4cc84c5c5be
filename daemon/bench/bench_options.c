/* SPDX-License-Identifier: MIT */
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "build-config.h"
#include "daemon/bench/bench.h"
#include "daemon/bench/replay.h"
#include "daemon/config/command_line.h"
#include "daemon/config/digits.h"
#include "daemon/graph/speculator.h"

#define COMMON "model shape device timeout json"
#define HELP_COLUMN 16

enum kind { FLAG, WORD, NUMBER, RANGE, LIST };

#define TO(field) offsetof(struct bench_options, field)

static const struct option_row {
	struct command_option option;
	enum kind kind;
	size_t field; /* offset in struct bench_options; of a range that of the upper end, which the lower end follows */
	uint32_t min, max;
	const char *unit; /* of its numbers; NULL: none, or it depends on the bench */
} rows[] = {
	{{"socket", "PATH", "measure the daemon that listens there"}, WORD, TO(socket)},
	{{"mimeod", "FILE", "program to start (default: beside this one)"}, WORD, TO(mimeod)},
	{{"model", "DIR", "model to serve or run (default: the shipped tinycalc)"}, WORD, TO(model_dir)},
	{{"shape", "NAME", "make a random model of that shape: tiny, 1B, 3B, 8B, V2-Lite, Qwen2.5-0.5B, "
		"Qwen2.5-1.5B, Mistral-7B"}, WORD, TO(shape)},
	{{"name", "NAME", "model of a running daemon (default: its first)"}, WORD, TO(model_name)},
	{{"device", "NAME", "device to use or to serve with (default: auto)"}, WORD, TO(device)},
	{{"attention", "NAME", "attention backend, as for mimeod(8) (default: auto)"}, WORD, TO(attention)},
	{{"deterministic", NULL, "a deterministic model, as for mimeod(8)"}, FLAG, TO(deterministic)},
	{{"head-dtype", "model|fp8", "the output head, as for mimeod(8) (default: model)"}, WORD, TO(head_dtype)},
	{{"kv-dtype", "model|fp8", "keys and values, as for mimeod(8) (default: model)"}, WORD, TO(kv_dtype)},
	{{"spin-us", "N", "how long the daemon spins, as for mimeod(8)"}, WORD, TO(spin_us)},
	{{"graph-mode", "MODE", "of the daemon, as for mimeod(8)"}, WORD, TO(graph_mode)},
	{{"prefix-sharing", "WHO", "of the daemon, as for mimeod(8)"}, WORD, TO(prefix_sharing)},
	{{"token-us", "N", "of the daemon, as for mimeod(8)"}, WORD, TO(token_us)},
	{{"processes", "LIST", "numbers of processes, 1 to 64 each"}, LIST, TO(processes), 1, BENCH_PROCESSES_MAX,
		"processes"},
	{{"in-flight", "N", "concurrent requests of each process"}, NUMBER, TO(in_flight), 1, 64, "requests"},
	{{"requests", "N", "all requests of each process"}, NUMBER, TO(requests), 1, 1u << 16, "requests"},
	{{"prompt", "N[-M]", "tokens of a prompt; of a range, drawn for each request"}, RANGE, TO(prompt), 1, 1u << 20,
		"tokens"},
	{{"tokens", "N[-M]", "tokens that a request generates"}, RANGE, TO(tokens), 2, 1u << 20, "tokens"},
	{{"flood", "N[-M]", "tokens of a prompt of the user who floods"}, RANGE, TO(flood), 1, 1u << 20, "tokens"},
	{{"seconds", "N", "how long tokens of both users are counted"}, NUMBER, TO(seconds), 1, 3600, "seconds"},
	{{"prefix", "N", "first tokens that all prompts share"}, NUMBER, TO(prefix), 0, 1u << 20, "tokens"},
	{{"seed", "N", "of lengths and prompts"}, NUMBER, TO(seed), 1, UINT32_MAX},
	{{"draft", "DIR", "draft model, or mtp (default: tinycalc's, or one made for --shape)"}, WORD, TO(draft)},
	{{"draft-tokens", "N", "draft tokens per row and step"}, NUMBER, TO(draft_tokens), 1, SPECULATE_MAX, "tokens"},
	{{"text", "TEXT", "prompt instead of --prompt, for a vocabulary of bytes; perplexity: the file with the text"},
		WORD, TO(text)},
	{{"count", "N", "repetitions: round trips of a round, attaches, kills, steps, calls"}, NUMBER, TO(count), 1,
		10000000},
	{{"batches", "LIST", "numbers of rows"}, LIST, TO(batches), 1, 1u << 16, "rows"},
	{{"contexts", "LIST", "tokens that a row attends to; perplexity: tokens of a window"}, LIST, TO(contexts), 1,
		1u << 20, "tokens"},
	{{"prompts", "LIST", "lengths of whole prompts, one row each"}, LIST, TO(prompts), 1, 1u << 17, "tokens"},
	{{"query", "N", "tokens of a row that attend"}, NUMBER, TO(query), 1, 1u << 17, "tokens"},
	{{"sides", "LIST", "whose products, on CUDA: 0 the fastest, 1 cuBLASLt's, 2 ours, 3 and more one of ours"},
		LIST, TO(sides), 0, 32},
	{{"packed", "LIST", "weights, on CUDA: 0 plain, 1 packed FP8, 2 packed INT4"}, LIST, TO(packed), 0, 2},
	{{"timeout", "N", "time limit of a stage (default: 120)"}, NUMBER, TO(timeout_s), 1, 86400, "seconds"},
	{{"plot", "FILE", "write an SVG chart of the results as well"}, WORD, TO(plot)},
	{{"json", NULL, "write JSON"}, FLAG, TO(json)},
};
#define N_ROWS (sizeof(rows) / sizeof(rows[0]))

/* Writes a sentence to standard error. Returns EXIT_USAGE. */
static int __attribute__((format(printf, 1, 2))) bench_options_misuse(const char *format, ...)
{
	va_list arguments;

	fprintf(stderr, "%s: ", program_invocation_short_name);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fprintf(stderr, "; see --help\n");
	return EXIT_USAGE;
}

/* Is the word in a list that is separated by spaces? */
static bool bench_options_lists(const char *list, const char *word)
{
	size_t length = strlen(word);

	for (const char *at = list; (at = strstr(at, word)); at += length) {
		if ((at == list || at[-1] == ' ') && (at[length] == ' ' || !at[length]))
			return true;
	}
	return false;
}

static bool bench_options_takes(const struct bench *bench, const char *name)
{
	return bench_options_lists(COMMON, name) || bench_options_lists(bench->options, name);
}

static void bench_options_help(const struct program *program)
{
	struct command_option options[N_ROWS];
	char text[512];
	size_t n = 0;

	printf("Usage: %s [OPTION]... BENCH\n\n%s\n", program_invocation_short_name, program->purpose);
	for (size_t i = 0; i < program->n_benches; i++) {
		const struct bench *bench = &program->benches[i];

		putchar('\n');
		command_line_print(stdout, bench->name, HELP_COLUMN, bench->help);
		snprintf(text, sizeof(text), "options: %s", bench->options);
		command_line_print(stdout, "", HELP_COLUMN, text);
		snprintf(text, sizeof(text), "defaults: %s", bench->defaults);
		if (bench->defaults)
			command_line_print(stdout, "", HELP_COLUMN, text);
		snprintf(text, sizeof(text), "default model: %s", bench->model);
		if (bench->model)
			command_line_print(stdout, "", HELP_COLUMN, text);
	}
	printf("\nOptions of all benches: %s. All options:\n\n", COMMON);
	for (size_t i = 0; i < N_ROWS; i++) {
		bool taken = false;

		for (size_t j = 0; j < program->n_benches; j++)
			taken |= bench_options_takes(&program->benches[j], rows[i].option.name);
		if (taken)
			options[n++] = rows[i].option;
	}
	command_line_print_options(stdout, options, n);
	printf("\nExit status: 0 measured, whatever the results are; 1 not measured; 2 the command\n"
	       "line is wrong. See mimeo-bench(1).\n");
}

/* ---- values ---- */

/* Returns what follows the number, a character of `end`; NULL if it is not a number or out of range. */
static const char *bench_options_number(
	const char *text, const char *end, const struct option_row *row, uint32_t *ret)
{
	uint64_t value = 0;

	if (digits_parse(&text, row->max, &value) < 0 || !strchr(end, *text) || value < row->min)
		return NULL;
	*ret = (uint32_t)value;
	return text;
}

static bool bench_options_list(const char *text, const struct option_row *row, struct bench_list *ret)
{
	for (ret->n = 0; ret->n < BENCH_LIST_MAX; text++) {
		text = bench_options_number(text, ",", row, &ret->at[ret->n++]);
		if (!text || !*text)
			return text;
	}
	return false;
}

/* Parses "N" or "N-M": ret[0] is the upper end, ret[1] the lower. */
static bool bench_options_range(const char *text, const struct option_row *row, uint32_t ret[2])
{
	const char *rest = bench_options_number(text, "-", row, &ret[1]);

	ret[0] = ret[1];
	return rest && (!*rest || (bench_options_number(rest + 1, "", row, &ret[0]) && ret[1] <= ret[0]));
}

/* False if the option does not accept the value. */
static bool bench_options_set(const struct option_row *row, const char *value, struct bench_options *o)
{
	void *field = (char *)o + row->field;

	switch (row->kind) {
	case FLAG:
		*(bool *)field = true;
		return true;
	case WORD:
		*(const char **)field = value;
		return true;
	case NUMBER:
		return bench_options_number(value, "", row, field);
	case RANGE:
		return bench_options_range(value, row, field);
	case LIST:
		return bench_options_list(value, row, field);
	}
	return false;
}

static const struct option_row *bench_options_find(const char *name, size_t length)
{
	for (size_t i = 0; i < N_ROWS; i++) {
		if (strncmp(rows[i].option.name, name, length) == 0 && !rows[i].option.name[length])
			return &rows[i];
	}
	return NULL;
}

/* "NAME=VALUE ..." of the program's own tables. */
static void bench_options_defaults(const char *defaults, struct bench_options *o)
{
	while (defaults && *defaults) {
		size_t name = strcspn(defaults, "="), whole = strcspn(defaults, " ");
		const struct option_row *row = bench_options_find(defaults, name);
		char value[64];

		assert(row && row->kind != WORD && name < whole && whole - name <= sizeof(value));
		snprintf(value, sizeof(value), "%.*s", (int)(whole - name - 1), defaults + name + 1);
		bool valid = bench_options_set(row, value, o);
		assert(valid);
		(void)valid;
		defaults += whole + (defaults[whole] == ' ');
	}
}

/* ---- the command line ---- */

/* given: the values by row, which are parsed when the bench and its defaults are known; NULL: not given. */
static bool bench_options_given(const char *const *given, const char *name)
{
	return given[bench_options_find(name, strlen(name)) - rows];
}

/* 0, EXIT_USAGE, or -1 after --help and --version. */
static int bench_options_parse(
	const struct program *program, int argc, char **argv, const char **ret)
{
	struct command_option options[N_ROWS];
	struct command_line line = {.argc = argc, .argv = argv, .options = options, .n_options = N_ROWS};
	int option;

	for (size_t i = 0; i < N_ROWS; i++)
		options[i] = rows[i].option;
	while ((option = command_line_next(&line)) >= 0)
		ret[option] = line.value ? line.value : "";
	if (option == COMMAND_WRONG)
		return bench_options_misuse("%s", line.error);
	if (option == COMMAND_HELP)
		bench_options_help(program);
	if (option == COMMAND_VERSION)
		printf("%s %s\n", program_invocation_short_name, MIMEO_VERSION);
	return option == COMMAND_END ? 0 : -1;
}

static int bench_options_misuse_value(const struct option_row *row, const char *value)
{
	const char *of = row->unit ? " of " : "", *unit = row->unit ? row->unit : "";

	if (row->kind == RANGE)
		return bench_options_misuse("--%s %s: not N or N-M, numbers%s%s from %u to %u", row->option.name, value,
			of, unit, row->min, row->max);
	if (row->kind == LIST)
		return bench_options_misuse("--%s %s: not a list of at most %u numbers%s%s from %u to %u",
			row->option.name, value, BENCH_LIST_MAX, of, unit, row->min, row->max);
	return bench_options_misuse("--%s %s: not a number%s%s from %u to %u", row->option.name, value, of, unit,
		row->min, row->max);
}

static int bench_options_apply(
	const struct bench *bench, const char *const *given, struct bench_options *o)
{
	bench_options_defaults(bench->defaults, o);
	for (size_t i = 0; i < N_ROWS; i++) {
		const struct option_row *row = &rows[i];
		const char *value = given[i];

		if (!value)
			continue;
		if (!bench_options_takes(bench, row->option.name))
			return bench_options_misuse("--%s is not for this bench", row->option.name);
		if (!bench_options_set(row, value, o))
			return bench_options_misuse_value(row, value);
		if (row->kind == RANGE && !(bench->flags & BENCH_RANGES) && strchr(value, '-'))
			return bench_options_misuse("--%s: this bench takes one number", row->option.name);
	}
	return 0;
}

/* A question that the shipped model and its draft model were trained for; the prompt has one token more than
 * the text has bytes, the begin token. */
static void bench_options_draft_text(const char *const *given, struct bench_options *o)
{
	if (!o->model_dir && !o->shape && !o->text && !bench_options_given(given, "prompt")) {
		o->text = "count 97 30\n";
		if (!bench_options_given(given, "tokens"))
			o->tokens = o->tokens_least = 112;
	}
	if (o->text)
		o->prompt = o->prompt_least = (uint32_t)strlen(o->text) + 1;
}

static bool bench_options_is_dtype(const char *text)
{
	return strcmp(text, "model") == 0 || strcmp(text, "fp8") == 0;
}

static int bench_options_check(
	const struct bench *bench, const char *const *given, const struct bench_options *o)
{
	static const struct {
		const char *one, *other;
	} apart[] = {{"socket", "mimeod"}, {"socket", "shape"}, {"socket", "spin-us"},
		{"socket", "graph-mode"}, {"socket", "attention"}, {"socket", "deterministic"},
		{"socket", "head-dtype"}, {"socket", "kv-dtype"}, {"shape", "model"}, {"text", "prompt"}};

	for (size_t i = 0; i < sizeof(apart) / sizeof(apart[0]); i++) {
		if (bench_options_given(given, apart[i].one) && bench_options_given(given, apart[i].other))
			return bench_options_misuse(
				"--%s does not go with --%s", apart[i].other, apart[i].one);
	}
	if (o->socket && o->model_dir && (bench->flags & BENCH_WINDOWS))
		return bench_options_misuse("--model does not go with --socket: --name says which of the daemon's models "
					    "is measured");
	if (o->model_name && !o->socket)
		return bench_options_misuse("--name needs --socket");
	if (!bench_options_is_dtype(o->head_dtype))
		return bench_options_misuse("--head-dtype %s: not model or fp8", o->head_dtype);
	if (!bench_options_is_dtype(o->kv_dtype))
		return bench_options_misuse("--kv-dtype %s: not model or fp8", o->kv_dtype);
	if (o->text && !*o->text)
		return bench_options_misuse("--text is empty");
	if ((bench->flags & BENCH_DRAFT) && !o->shape && !o->model_dir != !o->draft)
		return bench_options_misuse("--%s needs --%s: a draft is made for one model",
			o->draft ? "draft" : "model", o->draft ? "model" : "draft");
	for (uint32_t i = 0; i < o->batches.n && (bench->flags & BENCH_LANE); i++) {
		if (o->batches.at[i] > REPLAY_ROWS_MAX)
			return bench_options_misuse("--batches %u: a step has %u rows at most",
				o->batches.at[i], REPLAY_ROWS_MAX);
	}
	for (uint32_t i = 0; i < o->contexts.n && (bench->flags & BENCH_WINDOWS); i++) {
		if (o->contexts.at[i] < 2)
			return bench_options_misuse("--contexts %u: a window has 2 tokens or more", o->contexts.at[i]);
	}
	return 0;
}

int bench_options_read(const struct program *program, int argc, char **argv, struct bench_options *ret,
	const struct bench **ret_bench)
{
	const char *given[N_ROWS] = {NULL};
	const struct bench *bench = NULL;
	int rc = bench_options_parse(program, argc, argv, given);

	if (rc != 0)
		return rc;
	if (optind == argc)
		return bench_options_misuse("no bench is named");
	for (size_t i = 0; i < program->n_benches; i++) {
		if (strcmp(program->benches[i].name, argv[optind]) == 0)
			bench = &program->benches[i];
	}
	if (!bench)
		return bench_options_misuse("there is no bench \"%s\"", argv[optind]);
	if (optind + 1 < argc)
		return bench_options_misuse("one bench at a time, and then \"%s\"", argv[optind + 1]);
	*ret = (struct bench_options){
		.device = "auto", .attention = "auto", .head_dtype = "model", .kv_dtype = "model",
		.timeout_s = 120};
	rc = bench_options_apply(bench, given, ret);
	if (rc != 0)
		return rc;
	if (bench->flags & BENCH_DRAFT)
		bench_options_draft_text(given, ret);
	*ret_bench = bench;
	return bench_options_check(bench, given, ret);
}
