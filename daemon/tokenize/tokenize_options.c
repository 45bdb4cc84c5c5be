/* SPDX-License-Identifier: MIT */
#include "daemon/tokenize/tokenize_options.h"

#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>

#include "build-config.h"
#include "daemon/config/command_line.h"

/* The options; tokenize_options_table has them in this order. */
enum tokenize_option {
	TOKENIZE_TOKENIZER, TOKENIZE_DECODE, TOKENIZE_CHAT, TOKENIZE_RENDER, TOKENIZE_SPECIAL, TOKENIZE_LITERAL,
	TOKENIZE_SKIP_SPECIAL, TOKENIZE_NULL, TOKENIZE_N_OPTIONS,
};

static const struct command_option tokenize_options_table[TOKENIZE_N_OPTIONS] = {
	[TOKENIZE_TOKENIZER] = {"tokenizer", "PATH", "a model's folder, or a tokenizer.json"},
	[TOKENIZE_DECODE] = {"decode", NULL, "read ids, print their text"},
	[TOKENIZE_CHAT] = {"chat", "FILE", "encode a chat by the model's template; - is standard input"},
	[TOKENIZE_RENDER] = {"render", NULL, "with --chat: print the text instead of its ids"},
	[TOKENIZE_SPECIAL] = {"special", NULL, "add the tokens that the model expects around a text"},
	[TOKENIZE_LITERAL] = {"literal", NULL, "special tokens in the text are text"},
	[TOKENIZE_SKIP_SPECIAL] = {"skip-special", NULL, "with --decode: leave out special tokens"},
	[TOKENIZE_NULL] = {"null", NULL, "several texts, each ending in a NUL byte; a line of ids for each"},
};

void tokenize_complain(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	fputs("mimeo-tokenize: ", stderr);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
}

static void tokenize_options_take(struct tokenize_options *o, enum tokenize_option option, const char *value)
{
	switch (option) {
	case TOKENIZE_TOKENIZER:
		o->tokenizer = value;
		break;
	case TOKENIZE_DECODE:
		o->decode = true;
		break;
	case TOKENIZE_CHAT:
		o->chat = value;
		break;
	case TOKENIZE_RENDER:
		o->render = true;
		break;
	case TOKENIZE_SPECIAL:
		o->special = true;
		break;
	case TOKENIZE_LITERAL:
		o->literal = true;
		break;
	case TOKENIZE_SKIP_SPECIAL:
		o->skip_special = true;
		break;
	case TOKENIZE_NULL:
		o->null = true;
		break;
	case TOKENIZE_N_OPTIONS:
		break;
	}
}

static int tokenize_options_check(const struct tokenize_options *o)
{
	const char *wrong = !o->tokenizer ? "--tokenizer is missing; see --help"
			    : o->chat && (o->decode || o->special || o->literal || o->null)
				    ? "--chat excludes --decode, --special, --literal and --null"
			    : o->decode && (o->special || o->literal)
				    ? "--decode excludes --special and --literal"
			    : o->render && !o->chat         ? "--render needs --chat"
			    : o->skip_special && !o->decode ? "--skip-special needs --decode"
							    : NULL;

	if (!wrong)
		return TOKENIZE_OK;
	tokenize_complain("%s", wrong);
	return TOKENIZE_USAGE;
}

static void tokenize_options_help(void)
{
	fputs("Usage: mimeo-tokenize --tokenizer PATH [OPTION]... <INPUT\n\n"
	      "Print the token ids of a text, or the text of ids, by a model's tokenizer.json.\n\n", stdout);
	command_line_print_options(stdout, tokenize_options_table, TOKENIZE_N_OPTIONS);
}

int tokenize_options_parse(struct tokenize_options *ret, int argc, char **argv)
{
	struct command_line line = {.argc = argc, .argv = argv, .options = tokenize_options_table,
		.n_options = TOKENIZE_N_OPTIONS};
	int option;

	*ret = (struct tokenize_options){0};
	while ((option = command_line_next(&line)) != COMMAND_END) {
		ret->done = option == COMMAND_HELP || option == COMMAND_VERSION;
		if (option == COMMAND_HELP)
			tokenize_options_help();
		if (option == COMMAND_VERSION)
			printf("mimeo-tokenize %s\n", MIMEO_VERSION);
		if (ret->done)
			return TOKENIZE_OK;
		if (option == COMMAND_WRONG) {
			tokenize_complain("%s; see --help", line.error);
			return TOKENIZE_USAGE;
		}
		tokenize_options_take(ret, (enum tokenize_option)option, line.value);
	}
	if (optind < argc) {
		tokenize_complain("'%s': not an option; see --help", argv[optind]);
		return TOKENIZE_USAGE;
	}
	return tokenize_options_check(ret);
}
