/* SPDX-License-Identifier: MIT */
#include "daemon/run/options.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
	"usage: mimeo-run --model NAME (--prompt TEXT | --tokens IDS) [OPTION...]\n"
	"Generate from a prompt through mimeod and print the answer.\n"
	"\n"
	"  --model NAME        the model, as mimeod names it\n"
	"  --prompt TEXT       prompt for a vocabulary of bytes, after the begin token\n"
	"  --tokens IDS        prompt as token ids, taken verbatim: 1,2,3\n"
	"  --max-tokens N      most tokens to generate (default 128, or what there is room for)\n"
	"  --ignore-eos        go on after an end token\n"
	"  --stop IDS          further token ids that end the answer, up to 8\n"
	"  --temperature T     0 is greedy, the default without sampling options; 1 with\n"
	"  --top-k K           sample from the K likeliest tokens\n"
	"  --top-p P           sample from the likeliest tokens that together have probability P\n"
	"  --min-p P           sample from tokens at least P times as likely as the likeliest\n"
	"  --seed N            repeatable sampling\n"
	"  --sampling model    the model's own sampling defaults\n"
	"  --mask MASK         what tokens attend to: causal, window:N, window:N+SINKS or prefix\n"
	"  --draft-tokens N    most tokens that the model's draft may guess in a step, 1 to 8, or none\n"
	"  --logits FILE       write the logits of the last prompt position, raw float32\n"
	"  --ids               print token ids instead of text\n"
	"  --timeout SECONDS   give up after that long\n"
	"  --socket PATH       the daemon's client socket\n"
	"  --help, --version\n";

enum option_key {
	OPT_MODEL = 256,
	OPT_PROMPT,
	OPT_TOKENS,
	OPT_MAX_TOKENS,
	OPT_IGNORE_EOS,
	OPT_STOP,
	OPT_TEMPERATURE,
	OPT_TOP_K,
	OPT_TOP_P,
	OPT_MIN_P,
	OPT_SEED,
	OPT_SAMPLING,
	OPT_MASK,
	OPT_DRAFT_TOKENS,
	OPT_LOGITS,
	OPT_IDS,
	OPT_TIMEOUT,
	OPT_SOCKET,
	OPT_HELP,
	OPT_VERSION,
};

static const struct option long_options[] = {
	{"model", required_argument, NULL, OPT_MODEL},
	{"prompt", required_argument, NULL, OPT_PROMPT},
	{"tokens", required_argument, NULL, OPT_TOKENS},
	{"max-tokens", required_argument, NULL, OPT_MAX_TOKENS},
	{"ignore-eos", no_argument, NULL, OPT_IGNORE_EOS},
	{"stop", required_argument, NULL, OPT_STOP},
	{"temperature", required_argument, NULL, OPT_TEMPERATURE},
	{"top-k", required_argument, NULL, OPT_TOP_K},
	{"top-p", required_argument, NULL, OPT_TOP_P},
	{"min-p", required_argument, NULL, OPT_MIN_P},
	{"seed", required_argument, NULL, OPT_SEED},
	{"sampling", required_argument, NULL, OPT_SAMPLING},
	{"mask", required_argument, NULL, OPT_MASK},
	{"draft-tokens", required_argument, NULL, OPT_DRAFT_TOKENS},
	{"logits", required_argument, NULL, OPT_LOGITS},
	{"ids", no_argument, NULL, OPT_IDS},
	{"timeout", required_argument, NULL, OPT_TIMEOUT},
	{"socket", required_argument, NULL, OPT_SOCKET},
	{"help", no_argument, NULL, OPT_HELP},
	{"version", no_argument, NULL, OPT_VERSION},
	{0},
};

void run_complain(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	fputs("mimeo-run: ", stderr);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
}

/* ---- values ---- */

/* An unsigned number, and where it ends. */
static bool number(const char *text, uint64_t most, uint64_t *ret, const char **ret_end)
{
	char *end;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	unsigned long long value = strtoull(text, &end, 10);
	if (errno != 0 || value > most)
		return false;
	*ret = value;
	*ret_end = end;
	return true;
}

static int take_u64(const char *option, const char *text, uint64_t least, uint64_t most,
	uint64_t *ret)
{
	const char *end;
	uint64_t value;

	if (!number(text, most, &value, &end) || *end || value < least) {
		run_complain("--%s: '%s' is not an integer from %llu to %llu", option, text,
			(unsigned long long)least, (unsigned long long)most);
		return RUN_USAGE;
	}
	*ret = value;
	return RUN_OK;
}

static int take_u32(const char *option, const char *text, uint32_t least, uint32_t *ret)
{
	uint64_t value;
	int r = take_u64(option, text, least, UINT32_MAX, &value);

	if (r == RUN_OK)
		*ret = (uint32_t)value;
	return r;
}

static int take_float(const char *option, const char *text, float most, float *ret)
{
	char *end;
	float value = strtof(text, &end);

	if (end == text || *end || !isfinite(value) || value < 0 || value > most) {
		if (most < 2)
			run_complain("--%s: '%s' is not a number from 0 to 1", option, text);
		else
			run_complain("--%s: '%s' is not a number of at least 0", option, text);
		return RUN_USAGE;
	}
	*ret = value;
	return RUN_OK;
}

/* "1,2,3" into ids[capacity]. */
static int take_ids(
	const char *option, const char *text, int32_t *ids, uint32_t capacity, uint32_t *ret_n)
{
	const char *at = text;
	uint64_t id;
	uint32_t n = 0;

	for (;; at++) {
		if (!number(at, INT32_MAX, &id, &at) || (*at && *at != ',')) {
			run_complain("--%s: '%s' is not a list of token ids such as 1,2,3", option,
				text);
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

static int take_tokens(struct run_options *options, const char *text)
{
	size_t most = strlen(text) / 2 + 1;
	int32_t *tokens = calloc(most, sizeof(*tokens));

	if (!tokens) {
		run_complain("--tokens: out of memory");
		return RUN_USAGE;
	}
	free(options->tokens);
	options->tokens = tokens;
	return take_ids("tokens", text, tokens, (uint32_t)most, &options->n_tokens);
}

static int take_mask(struct run_options *options, const char *text)
{
	options->mask_text = text;
	if (mask_text_parse(text, &options->mask))
		return RUN_OK;
	run_complain("--mask: '%s' is not " MASK_TEXT_ACCEPTED, text);
	return RUN_USAGE;
}

static int take_timeout(struct run_options *options, const char *text)
{
	char *end;
	double seconds = strtod(text, &end);

	if (end == text || *end || !(seconds >= 0.001) || seconds > 4000000) {
		run_complain("--timeout: '%s' is not a number of seconds from 0.001 to 4000000",
			text);
		return RUN_USAGE;
	}
	options->timeout_ms = (uint32_t)(seconds * 1000);
	return RUN_OK;
}

static int take_draft_tokens(struct run_options *options, const char *text)
{
	const char *end;
	uint64_t n;

	if (strcmp(text, "none") == 0) {
		options->draft_tokens = MIMEO_DRAFT_NONE;
		return RUN_OK;
	}
	if (!number(text, MIMEO_DRAFT_MAX, &n, &end) || *end || n == 0) {
		run_complain("--draft-tokens: '%s' is neither an integer from 1 to %u nor 'none'", text,
			MIMEO_DRAFT_MAX);
		return RUN_USAGE;
	}
	options->draft_tokens = (uint32_t)n;
	return RUN_OK;
}

/* ---- the whole ---- */

/* Which sampling options were given; what they leave open depends on it. */
struct given {
	bool temperature, other, model;
};

static int take_option(struct run_options *o, struct given *given, int option, const char *value)
{
	switch (option) {
	case OPT_MODEL:
		o->model = value;
		return RUN_OK;
	case OPT_PROMPT:
		o->prompt = value;
		return RUN_OK;
	case OPT_TOKENS:
		return take_tokens(o, value);
	case OPT_MAX_TOKENS:
		return take_u32("max-tokens", value, 1, &o->max_tokens);
	case OPT_IGNORE_EOS:
		o->ignore_eos = true;
		return RUN_OK;
	case OPT_STOP:
		return take_ids("stop", value, o->stop, MIMEO_STOP_MAX, &o->n_stop);
	case OPT_TEMPERATURE:
		given->temperature = true;
		return take_float("temperature", value, HUGE_VALF, &o->sampling.temperature);
	case OPT_TOP_K:
		given->other = true;
		return take_u32("top-k", value, 0, &o->sampling.top_k);
	case OPT_TOP_P:
		given->other = true;
		return take_float("top-p", value, 1, &o->sampling.top_p);
	case OPT_MIN_P:
		given->other = true;
		return take_float("min-p", value, 1, &o->sampling.min_p);
	case OPT_SEED:
		o->sampling.flags |= MIMEO_SAMPLING_SEEDED;
		return take_u64("seed", value, 0, UINT64_MAX, &o->sampling.seed);
	case OPT_SAMPLING:
		given->model = true;
		if (strcmp(value, "model") == 0)
			return RUN_OK;
		run_complain("--sampling: '%s' is not 'model'", value);
		return RUN_USAGE;
	case OPT_MASK:
		return take_mask(o, value);
	case OPT_DRAFT_TOKENS:
		return take_draft_tokens(o, value);
	case OPT_LOGITS:
		o->logits = value;
		return RUN_OK;
	case OPT_IDS:
		o->ids = true;
		return RUN_OK;
	case OPT_TIMEOUT:
		return take_timeout(o, value);
	case OPT_SOCKET:
		o->socket = value;
		return RUN_OK;
	}
	return RUN_USAGE;
}

static int check(struct run_options *o, const struct given *given)
{
	bool sampled = given->other || (o->sampling.flags & MIMEO_SAMPLING_SEEDED);

	if (!o->model)
		run_complain("--model is missing; see --help");
	else if (!o->prompt && !o->tokens)
		run_complain("--prompt or --tokens is missing; see --help");
	else if (o->prompt && o->tokens)
		run_complain("--prompt and --tokens exclude each other");
	else if (given->model && (given->temperature || given->other))
		run_complain("--sampling model excludes every sampling option but --seed");
	else {
		if (given->model)
			o->sampling.flags |= MIMEO_SAMPLING_MODEL;
		else if (sampled && !given->temperature)
			o->sampling.temperature = 1;
		return RUN_OK;
	}
	return RUN_USAGE;
}

int run_options_parse(struct run_options *ret, int argc, char **argv)
{
	struct given given = {0};
	int option, r;

	*ret = (struct run_options){0};
	opterr = 0;
	while ((option = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
		if (option == OPT_HELP || option == OPT_VERSION) {
			if (option == OPT_HELP)
				fputs(usage, stdout);
			else
				printf("mimeo-run %s\n", mimeo_version());
			ret->done = true;
			return RUN_OK;
		}
		if (option == '?') {
			run_complain("%s: unknown option, or its value is missing; see --help",
				argv[optind - 1]);
			return RUN_USAGE;
		}
		r = take_option(ret, &given, option, optarg);
		if (r != RUN_OK)
			return r;
	}
	if (optind < argc) {
		run_complain("'%s': no arguments are taken beside options", argv[optind]);
		return RUN_USAGE;
	}
	return check(ret, &given);
}

void run_options_deinit(struct run_options *options)
{
	free(options->tokens);
	options->tokens = NULL;
}
