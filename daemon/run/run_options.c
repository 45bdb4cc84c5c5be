/* SPDX-License-Identifier: MIT */
#include "daemon/run/run_options.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/config/class_text.h"
#include "daemon/config/command_line.h"
#include "daemon/config/digits.h"

/* The options; run_options_table has them in this order. */
enum run_option {
	RUN_MODEL, RUN_PROMPT, RUN_TOKENS, RUN_CHAT, RUN_SYSTEM, RUN_TOKENIZE, RUN_SCORE, RUN_MAX_TOKENS,
	RUN_STOP_TEXT, RUN_STOP, RUN_IGNORE_EOS, RUN_TEMPERATURE, RUN_TOP_K, RUN_TOP_P, RUN_MIN_P, RUN_SEED,
	RUN_SAMPLING, RUN_REPETITION, RUN_PRESENCE, RUN_FREQUENCY, RUN_LOGPROBS, RUN_JSON_EVENTS, RUN_IDS, RUN_CLASS,
	RUN_DETERMINISTIC, RUN_MASK, RUN_DRAFT_TOKENS, RUN_LOGITS, RUN_TIMEOUT, RUN_FIRST_TOKEN, RUN_SOCKET,
	RUN_N_OPTIONS,
};

static const struct command_option run_options_table[RUN_N_OPTIONS] = {
	[RUN_MODEL] = {"model", "NAME", "the model, as mimeod names it; not needed if it has one"},
	[RUN_PROMPT] = {"prompt", "TEXT", "the prompt (default: standard input, if that is no terminal)"},
	[RUN_TOKENS] = {"tokens", "IDS", "prompt as token ids, taken verbatim: 1,2,3"},
	[RUN_CHAT] = {"chat", NULL, "the prompt is a message of a chat; on a terminal: a chat with history"},
	[RUN_SYSTEM] = {"system", "TEXT", "with --chat: the system message"},
	[RUN_TOKENIZE] = {"tokenize", NULL, "print the token ids of the prompt, one a line, and exit"},
	[RUN_SCORE] = {"score", NULL, "print the log-probability of each token of the prompt, and exit"},
	[RUN_MAX_TOKENS] = {"max-tokens", "N",
		"most tokens to generate (default: 128, with --chat 0, or what the sequence can hold); 0: no limit"},
	[RUN_STOP_TEXT] = {"stop-text", "TEXT", "end the answer before this text; up to 16 times"},
	[RUN_IGNORE_EOS] = {"ignore-eos", NULL, "continue after an end token"},
	[RUN_DETERMINISTIC] = {"deterministic", NULL, "refuse a model whose results may depend on what else runs"},
	[RUN_STOP] = {"stop", "IDS", "further token ids that end the answer, up to 8"},
	[RUN_TEMPERATURE] = {"temperature", "T", "0 is greedy, the default without sampling options; 1 with"},
	[RUN_TOP_K] = {"top-k", "K", "sample from the K most likely tokens"},
	[RUN_TOP_P] = {"top-p", "P", "sample from the most likely tokens that together have probability P"},
	[RUN_MIN_P] = {"min-p", "P", "sample from tokens at least P times as likely as the most likely one"},
	[RUN_SEED] = {"seed", "N", "repeatable sampling"},
	[RUN_SAMPLING] = {"sampling", "model", "the model's own sampling defaults"},
	[RUN_REPETITION] = {"repetition-penalty", "R", "of tokens of prompt and answer; from 0.01 to 100, 1: off"},
	[RUN_PRESENCE] = {"presence-penalty", "P", "of tokens of the answer, once each; from -2 to 2"},
	[RUN_FREQUENCY] = {"frequency-penalty", "F", "of tokens of the answer, each time; from -2 to 2"},
	[RUN_LOGPROBS] = {"logprobs", "N", "with --json-events: log-probabilities, and those of the N likeliest tokens"},
	[RUN_JSON_EVENTS] = {"json-events", NULL, "print the events as JSON objects, one a line"},
	[RUN_CLASS] = {"class", "CLASS", "interactive, normal (the default) or batch"},
	[RUN_MASK] = {"mask", "MASK", "what tokens attend to: causal, window:N, window:N+SINKS or prefix"},
	[RUN_DRAFT_TOKENS] = {"draft-tokens", "N", "most draft tokens in a step, 1 to 8, or none"},
	[RUN_LOGITS] = {"logits", "FILE", "write the logits of the last prompt position, raw float32"},
	[RUN_IDS] = {"ids", NULL, "print token ids instead of text"},
	[RUN_TIMEOUT] = {"timeout", "SECONDS", "give up after that long"},
	[RUN_FIRST_TOKEN] = {"first-token", "SECONDS", "give up if no token came after that long"},
	[RUN_SOCKET] = {"socket", "PATH", "the daemon's client socket"},
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

static int run_options_take_float(const char *option, const char *text, float least, float most, float *ret)
{
	char *end;
	float value = strtof(text, &end);

	if (end != text && !*end && isfinite(value) && value >= least && value <= most) {
		*ret = value;
		return RUN_OK;
	}
	if (isfinite(most))
		run_complain("--%s: '%s' is not a number from %g to %g", option, text, (double)least, (double)most);
	else
		run_complain("--%s: '%s' is not a number of at least %g", option, text, (double)least);
	return RUN_USAGE;
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

static int run_options_take_stop_text(struct run_options *options, const char *text)
{
	if (!*text || strlen(text) > MIMEO_TEXT_STOP_BYTES) {
		run_complain("--stop-text: it has %zu bytes, not 1 to %d", strlen(text), MIMEO_TEXT_STOP_BYTES);
		return RUN_USAGE;
	}
	if (options->n_stop_texts == MIMEO_TEXT_STOP_MAX) {
		run_complain("--stop-text: at most %d times", MIMEO_TEXT_STOP_MAX);
		return RUN_USAGE;
	}
	options->stop_texts[options->n_stop_texts++] = text;
	return RUN_OK;
}

static int run_options_take_class(struct run_options *options, const char *text)
{
	if (class_text_parse(text, &options->request_class))
		return RUN_OK;
	run_complain("--class: '%s' is not " CLASS_TEXT_ACCEPTED, text);
	return RUN_USAGE;
}

static int run_options_take_logprobs(struct run_options *options, const char *text)
{
	uint64_t n = 0;

	options->logprobs = true;
	if (run_options_take_u64("logprobs", text, 0, MIMEO_TOP_LOGPROBS_MAX, &n) != RUN_OK)
		return RUN_USAGE;
	options->top_logprobs = (uint32_t)n;
	return RUN_OK;
}

/* --chat, --tokenize, --score */
static int run_options_take_mode(struct run_options *options, enum run_mode mode)
{
	if (options->mode == RUN_MODE_GENERATE || options->mode == mode) {
		options->mode = mode;
		return RUN_OK;
	}
	run_complain("--chat, --tokenize and --score exclude each other%s",
		options->mode == RUN_MODE_SCORE || mode == RUN_MODE_SCORE
			? "" : "; mimeo-tokenize --chat prints the token ids of a chat");
	return RUN_USAGE;
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

/* Which sampling options were given; the defaults of the others depend on it. */
struct given {
	bool temperature, other, model;
};

static int run_options_take(
	struct run_options *o, struct given *given, enum run_option option, const char *value)
{
	given->temperature |= option == RUN_TEMPERATURE;
	given->other |= option == RUN_TOP_K || option == RUN_TOP_P || option == RUN_MIN_P;
	given->model |= option == RUN_SAMPLING;
	switch (option) {
	case RUN_MODEL:
		o->model = value;
		break;
	case RUN_PROMPT:
		o->prompt = value;
		break;
	case RUN_TOKENS:
		return run_options_take_tokens(o, value);
	case RUN_CHAT:
		return run_options_take_mode(o, RUN_MODE_CHAT);
	case RUN_SYSTEM:
		o->system = value;
		break;
	case RUN_TOKENIZE:
		return run_options_take_mode(o, RUN_MODE_TOKENIZE);
	case RUN_SCORE:
		return run_options_take_mode(o, RUN_MODE_SCORE);
	case RUN_STOP_TEXT:
		return run_options_take_stop_text(o, value);
	case RUN_REPETITION:
		return run_options_take_float("repetition-penalty", value, 0.01f, 100, &o->repetition_penalty);
	case RUN_PRESENCE:
		return run_options_take_float("presence-penalty", value, -MIMEO_PENALTY_RANGE, MIMEO_PENALTY_RANGE,
			&o->presence_penalty);
	case RUN_FREQUENCY:
		return run_options_take_float("frequency-penalty", value, -MIMEO_PENALTY_RANGE, MIMEO_PENALTY_RANGE,
			&o->frequency_penalty);
	case RUN_LOGPROBS:
		return run_options_take_logprobs(o, value);
	case RUN_JSON_EVENTS:
		o->json_events = true;
		break;
	case RUN_CLASS:
		return run_options_take_class(o, value);
	case RUN_MAX_TOKENS:
		o->has_max_tokens = true;
		return run_options_take_u32("max-tokens", value, 0, &o->max_tokens);
	case RUN_IGNORE_EOS:
		o->ignore_eos = true;
		break;
	case RUN_DETERMINISTIC:
		o->deterministic = true;
		break;
	case RUN_STOP:
		return run_options_take_ids("stop", value, o->stop, MIMEO_STOP_MAX, &o->n_stop);
	case RUN_TEMPERATURE:
		return run_options_take_float("temperature", value, 0, HUGE_VALF, &o->sampling.temperature);
	case RUN_TOP_K:
		return run_options_take_u32("top-k", value, 0, &o->sampling.top_k);
	case RUN_TOP_P:
		return run_options_take_float("top-p", value, 0, 1, &o->sampling.top_p);
	case RUN_MIN_P:
		return run_options_take_float("min-p", value, 0, 1, &o->sampling.min_p);
	case RUN_SEED:
		o->sampling.flags |= MIMEO_SAMPLING_SEEDED;
		return run_options_take_u64("seed", value, 0, UINT64_MAX, &o->sampling.seed);
	case RUN_SAMPLING:
		if (strcmp(value, "model") == 0)
			break;
		run_complain("--sampling: '%s' is not 'model'", value);
		return RUN_USAGE;
	case RUN_MASK:
		return run_options_take_mask(o, value);
	case RUN_DRAFT_TOKENS:
		return run_options_take_draft_tokens(o, value);
	case RUN_LOGITS:
		o->logits = value;
		break;
	case RUN_IDS:
		o->ids = true;
		break;
	case RUN_TIMEOUT:
		return run_options_take_seconds("timeout", value, &o->timeout_ms);
	case RUN_FIRST_TOKEN:
		return run_options_take_seconds("first-token", value, &o->first_token_ms);
	case RUN_SOCKET:
		o->socket = value;
		break;
	case RUN_N_OPTIONS:
		break;
	}
	return RUN_OK;
}

static int run_options_check(struct run_options *o, const struct given *given)
{
	bool sampled = given->other || (o->sampling.flags & MIMEO_SAMPLING_SEEDED);
	bool terminal = isatty(STDIN_FILENO);
	const char *wrong = !o->prompt && !o->tokens && terminal && o->mode != RUN_MODE_CHAT
		? "--prompt or --tokens is missing; see --help"
		: o->prompt && o->tokens ? "--prompt and --tokens exclude each other"
		: o->mode == RUN_MODE_CHAT && o->tokens ? "--chat and --tokens exclude each other"
		: o->system && o->mode != RUN_MODE_CHAT ? "--system needs --chat"
		: o->logprobs && !o->json_events ? "--logprobs needs --json-events"
		: o->json_events && o->mode == RUN_MODE_TOKENIZE ? "--json-events and --tokenize exclude each other"
		: o->logits && o->mode != RUN_MODE_GENERATE ? "--logits excludes --chat, --score and --tokenize"
		: o->mode == RUN_MODE_SCORE && (o->has_max_tokens || o->n_stop_texts)
		? "--score generates nothing: it excludes --max-tokens and --stop-text"
		: o->n_stop_texts && o->ids ? "--stop-text and --ids exclude each other"
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

static void run_options_help(void)
{
	fputs("Usage: mimeo-run [--model NAME] [--prompt TEXT | --tokens IDS] [OPTION]...\n"
	      "       mimeo-run --chat [--system TEXT] [OPTION]...\n\n"
	      "Generate from a prompt through mimeod and print the answer.\n\n", stdout);
	command_line_print_options(stdout, run_options_table, RUN_N_OPTIONS);
}

int run_options_parse(struct run_options *ret, int argc, char **argv)
{
	struct command_line line = {.argc = argc, .argv = argv, .options = run_options_table,
		.n_options = RUN_N_OPTIONS};
	struct given given = {0};
	int option;

	*ret = (struct run_options){0};
	while ((option = command_line_next(&line)) != COMMAND_END) {
		ret->done = option == COMMAND_HELP || option == COMMAND_VERSION;
		if (option == COMMAND_HELP)
			run_options_help();
		if (option == COMMAND_VERSION)
			printf("mimeo-run %s\n", mimeo_version());
		if (ret->done)
			return RUN_OK;
		if (option == COMMAND_WRONG) {
			run_complain("%s; see --help", line.error);
			return RUN_USAGE;
		}
		if (run_options_take(ret, &given, (enum run_option)option, line.value) != RUN_OK)
			return RUN_USAGE;
	}
	if (optind < argc) {
		run_complain("'%s': not an option; see --help", argv[optind]);
		return RUN_USAGE;
	}
	return run_options_check(ret, &given);
}

void run_options_deinit(struct run_options *options)
{
	free(options->tokens);
	options->tokens = NULL;
}
