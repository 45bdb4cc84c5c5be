/* SPDX-License-Identifier: MIT */
#include "daemon/tokenize/tokenize_options.h"

#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>

#include "build-config.h"

static const char tokenize_options_usage[] =
	"usage: mimeo-tokenize --tokenizer PATH [OPTION...] < INPUT\n"
	"Turn text into token ids, or ids into text, by a model's tokenizer.json.\n"
	"\n"
	"  --tokenizer PATH    a model's folder, or a tokenizer.json\n"
	"  --decode            read ids, print their text\n"
	"  --chat FILE         encode a chat by the model's template; - is standard input\n"
	"  --render            with --chat: print the text instead of its ids\n"
	"  --special           add the tokens that the model expects around a text\n"
	"  --literal           special tokens in the text are text\n"
	"  --skip-special      with --decode: leave out special tokens\n"
	"  --null              several texts, each ending in a NUL byte; a line of ids for each\n"
	"  --help, --version\n";

void tokenize_complain(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	fputs("mimeo-tokenize: ", stderr);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
}

static const struct option tokenize_options_table[] = {
	{"tokenizer", required_argument, NULL, 't'},
	{"decode", no_argument, NULL, 'd'},
	{"chat", required_argument, NULL, 'c'},
	{"render", no_argument, NULL, 'r'},
	{"special", no_argument, NULL, 's'},
	{"literal", no_argument, NULL, 'l'},
	{"skip-special", no_argument, NULL, 'k'},
	{"null", no_argument, NULL, '0'},
	{"help", no_argument, NULL, 'h'},
	{"version", no_argument, NULL, 'v'},
	{0},
};

static void tokenize_options_take(struct tokenize_options *o, int option, const char *value)
{
	switch (option) {
	case 't':
		o->tokenizer = value;
		break;
	case 'd':
		o->decode = true;
		break;
	case 'c':
		o->chat = value;
		break;
	case 'r':
		o->render = true;
		break;
	case 's':
		o->special = true;
		break;
	case 'l':
		o->literal = true;
		break;
	case 'k':
		o->skip_special = true;
		break;
	case '0':
		o->null = true;
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

int tokenize_options_parse(struct tokenize_options *ret, int argc, char **argv)
{
	int option;

	*ret = (struct tokenize_options){0};
	opterr = 0;
	while ((option = getopt_long(argc, argv, ":", tokenize_options_table, NULL)) != -1) {
		if (option == 'h' || option == 'v') {
			if (option == 'h')
				fputs(tokenize_options_usage, stdout);
			else
				printf("mimeo-tokenize %s\n", MIMEO_VERSION);
			ret->done = true;
			return TOKENIZE_OK;
		}
		if (option == '?' || option == ':') {
			tokenize_complain(option == ':'
						  ? "%s: needs a value; see --help"
						  : "%s: unknown or misused option; see --help",
				argv[optind - 1]);
			return TOKENIZE_USAGE;
		}
		tokenize_options_take(ret, option, optarg);
	}
	if (optind < argc) {
		tokenize_complain("'%s': no arguments are taken beside options", argv[optind]);
		return TOKENIZE_USAGE;
	}
	return tokenize_options_check(ret);
}
