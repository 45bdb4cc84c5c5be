/* SPDX-License-Identifier: MIT */
#include "daemon/run/run_options.h"

#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config/digits.h"

static const char run_options_usage[] =
	"usage: mimeo-run --model NAME (--prompt TEXT | --tokens IDS) [OPTION...]\n"
	"Generate from a prompt through mimeod and print the answer.\n"
	"\n"
	"  --model NAME        the model, as mimeod names it\n"
	"  --prompt TEXT       prompt for a vocabulary of bytes, after the begin token\n"
	"  --tokens IDS        prompt as token ids, taken verbatim: 1,2,3\n"
	"  --max-tokens N      most tokens to generate (default 128, or what the sequence can hold); 0: no limit\n"
	"  --ignore-eos        go on after an end token\n"
	"  --deterministic     refuse a model whose results may depend on what else runs\n"
	"  --stop IDS          further token ids that end the answer, up to 8\n"
	"  --temperature T     0 is greedy, the default without sampling options; 1 with\n"
	"  --top-k K           sample from the K likeliest tokens\n"
	"  --top-p P           sample from the likeliest tokens that together have probability P\n"
	"  --min-p P           sample from tokens at least P times as likely as the likeliest\n"
	"  --seed N            repeatable sampling\n"
	"  --sampling model    the model's own sampling defaults\n"
	"  --mask MASK         what tokens attend to: causal, window:N, window:N+SINKS or prefix\n"
	"  --draft-tokens N    most draft tokens in a step, 1 to 8, or none\n"
	"  --logits FILE       write the logits of the last prompt position, raw float32\n"
	"  --ids               print token ids instead of text\n"
	"  --timeout SECONDS   give up after that long\n"
	"  --first-token SECONDS\n"
	"                      give up if no token came after that long\n"
	"  --socket PATH       the daemon's client socket\n"
	"  --help, --version\n";

void run_complain(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	fputs("mimeo-run: ", stderr);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
}

/* ---- values: each takes the option's text, and returns RUN_OK, or RUN_USAGE after one line ---- */

static int run_options_take_u64(const char *option, const char *text, uint64_t least, uint64_t most,
	uint64_t *ret)
{
	const char *at = text;
	uint64_t value = 0;

	int rc = digits_parse(&at, most, &value);
	if (rc == -ERANGE && !*at) {
		run_complain("--%s: '%s' is more than %llu", option, text, (unsigned long long)most);
		return RUN_USAGE;
	}
	if (rc < 0 || *at || value < least) {
		run_complain("--%s: '%s' is not an integer of at least %llu", option, text,
			(unsigned long long)least);
		return RUN_USAGE;
	}
	*ret = value;
	return RUN_OK;
}

static int run_options_take_u32(const char *option, const char *text, uint32_t least, uint32_t *ret)
{
	uint64_t value = 0;

	if (run_options_take_u64(option, text, least, UINT32_MAX, &value) != RUN_OK)
		return RUN_USAGE;
	*ret = (uint32_t)value;
	return RUN_OK;
}

static int run_options_take_float(const char *option, const char *text, float most, float *ret)
{
	char *end;
	float value = strtof(text, &end);

	if (end == text || *end || !isfinite(value) || value < 0 || value > most) {
		run_complain("--%s: '%s' is not a number %s", option, text,
			most < 2 ? "from 0 to 1" : "of at least 0");
		return RUN_USAGE;
	}
	*ret = value;
	return RUN_OK;
}

/* "1,2,3" into ids[capacity]. */
static int run_options_take_ids(
	const char *option, const char *text, int32_t *ids, uint32_t capacity, uint32_t *ret_n)
{
	uint32_t n = 0;

	for (const char *at = text;; at++) {
		uint64_t id = 0;

		if (digits_parse(&at, INT32_MAX, &id) < 0 || (*at && *at != ',')) {
			run_complain("--%s: '%.40s%s' is not a list of token ids such as 1,2,3", option,
				text, strlen(text) > 40 ? "..." : "");
			return RUN_USAGE;
		}
		if (n == capacity) {
			run_complain("--%s: at most %u ids", option, capacity);
			return RUN_USAGE;
		}
		ids[n++] = (int32_t)id;
		if (!*at)
			break;
	}
	*ret_n = n;
	return RUN_OK;
}

static int run_options_take_tokens(struct run_options *options, const char *text)
{
	size_t most = strlen(text) / 2 + 1;
	int32_t *tokens = calloc(most, sizeof(*tokens));

	if (!tokens) {
		run_complain("--tokens: out of memory");
		return RUN_USAGE;
	}
	free(options->tokens);
	options->tokens = tokens;
	return run_options_take_ids("tokens", text, tokens, (uint32_t)most, &options->n_tokens);
}

static int run_options_take_mask(struct run_options *options, const char *text)
{
	options->mask_text = text;
	if (mask_text_parse(text, &options->mask))
		return RUN_OK;
	run_complain("--mask: '%s' is not " MASK_TEXT_ACCEPTED, text);
	return RUN_USAGE;
}

static int run_options_take_seconds(const char *option, const char *text, uint32_t *ret_ms)
{
	char *end;
	double seconds = strtod(text, &end);

	if (end == text || *end || !(seconds >= 0.001) || seconds > 4000000) {
		run_complain("--%s: '%s' is not a number of seconds from 0.001 to 4000000", option,
			text);
		return RUN_USAGE;
	}
	*ret_ms = (uint32_t)(seconds * 1000);
	return RUN_OK;
}

static int run_options_take_draft_tokens(struct run_options *options, const char *text)
{
	const char *at = text;
	uint64_t n = 0;

	if (strcmp(text, "none") == 0) {
		options->draft_tokens = MIMEO_DRAFT_NONE;
		return RUN_OK;
	}
	if (digits_parse(&at, MIMEO_DRAFT_MAX, &n) < 0 || *at || n == 0) {
		run_complain("--draft-tokens: '%s' is neither an integer from 1 to %u nor 'none'", text,
			MIMEO_DRAFT_MAX);
		return RUN_USAGE;
	}
	options->draft_tokens = (uint32_t)n;
	return RUN_OK;
}

/* ---- the command line ---- */

static const struct option run_options_table[] = {
	{"model", required_argument, NULL, 'm'},
	{"prompt", required_argument, NULL, 'p'},
	{"tokens", required_argument, NULL, 'i'},
	{"max-tokens", required_argument, NULL, 'n'},
	{"ignore-eos", no_argument, NULL, 'E'},
	{"deterministic", no_argument, NULL, 'D'},
	{"stop", required_argument, NULL, 'e'},
	{"temperature", required_argument, NULL, 't'},
	{"top-k", required_argument, NULL, 'k'},
	{"top-p", required_argument, NULL, 'P'},
	{"min-p", required_argument, NULL, 'M'},
	{"seed", required_argument, NULL, 's'},
	{"sampling", required_argument, NULL, 'S'},
	{"mask", required_argument, NULL, 'a'},
	{"draft-tokens", required_argument, NULL, 'd'},
	{"logits", required_argument, NULL, 'l'},
	{"ids", no_argument, NULL, 'I'},
	{"timeout", required_argument, NULL, 'T'},
	{"first-token", required_argument, NULL, 'f'},
	{"socket", required_argument, NULL, 'u'},
	{"help", no_argument, NULL, 'h'},
	{"version", no_argument, NULL, 'v'},
	{0},
};

/* Which sampling options were given; the defaults of the others depend on it. */
struct given {
	bool temperature, other, model;
};

static int run_options_take(struct run_options *o, struct given *given, int option, const char *value)
{
	given->temperature |= option == 't';
	given->other |= option == 'k' || option == 'P' || option == 'M';
	given->model |= option == 'S';
	switch (option) {
	case 'm':
		o->model = value;
		break;
	case 'p':
		o->prompt = value;
		break;
	case 'i':
		return run_options_take_tokens(o, value);
	case 'n':
		o->has_max_tokens = true;
		return run_options_take_u32("max-tokens", value, 0, &o->max_tokens);
	case 'E':
		o->ignore_eos = true;
		break;
	case 'D':
		o->deterministic = true;
		break;
	case 'e':
		return run_options_take_ids("stop", value, o->stop, MIMEO_STOP_MAX, &o->n_stop);
	case 't':
		return run_options_take_float("temperature", value, HUGE_VALF, &o->sampling.temperature);
	case 'k':
		return run_options_take_u32("top-k", value, 0, &o->sampling.top_k);
	case 'P':
		return run_options_take_float("top-p", value, 1, &o->sampling.top_p);
	case 'M':
		return run_options_take_float("min-p", value, 1, &o->sampling.min_p);
	case 's':
		o->sampling.flags |= MIMEO_SAMPLING_SEEDED;
		return run_options_take_u64("seed", value, 0, UINT64_MAX, &o->sampling.seed);
	case 'S':
		if (strcmp(value, "model") == 0)
			break;
		run_complain("--sampling: '%s' is not 'model'", value);
		return RUN_USAGE;
	case 'a':
		return run_options_take_mask(o, value);
	case 'd':
		return run_options_take_draft_tokens(o, value);
	case 'l':
		o->logits = value;
		break;
	case 'I':
		o->ids = true;
		break;
	case 'T':
		return run_options_take_seconds("timeout", value, &o->timeout_ms);
	case 'f':
		return run_options_take_seconds("first-token", value, &o->first_token_ms);
	case 'u':
		o->socket = value;
		break;
	}
	return RUN_OK;
}

static int run_options_check(struct run_options *o, const struct given *given)
{
	bool sampled = given->other || (o->sampling.flags & MIMEO_SAMPLING_SEEDED);
	const char *wrong = !o->model ? "--model is missing; see --help"
		: !o->prompt && !o->tokens ? "--prompt or --tokens is missing; see --help"
		: o->prompt && o->tokens ? "--prompt and --tokens exclude each other"
		: given->model && (given->temperature || given->other)
		? "--sampling model excludes every sampling option but --seed" : NULL;

	if (wrong) {
		run_complain("%s", wrong);
		return RUN_USAGE;
	}
	if (given->model)
		o->sampling.flags |= MIMEO_SAMPLING_MODEL;
	else if (sampled && !given->temperature)
		o->sampling.temperature = 1;
	return RUN_OK;
}

int run_options_parse(struct run_options *ret, int argc, char **argv)
{
	struct given given = {0};
	int option;

	*ret = (struct run_options){0};
	opterr = 0;
	while ((option = getopt_long(argc, argv, ":", run_options_table, NULL)) != -1) {
		if (option == 'h' || option == 'v') {
			if (option == 'h')
				fputs(run_options_usage, stdout);
			else
				printf("mimeo-run %s\n", mimeo_version());
			ret->done = true;
			return RUN_OK;
		}
		if (option == '?' || option == ':') {
			run_complain(option == ':' ? "%s: needs a value; see --help"
						   : "%s: unknown or misused option; see --help",
				argv[optind - 1]);
			return RUN_USAGE;
		}
		if (run_options_take(ret, &given, option, optarg) != RUN_OK)
			return RUN_USAGE;
	}
	if (optind < argc) {
		run_complain("'%s': no arguments are taken beside options", argv[optind]);
		return RUN_USAGE;
	}
	return run_options_check(ret, &given);
}

void run_options_deinit(struct run_options *options)
{
	free(options->tokens);
	options->tokens = NULL;
}
