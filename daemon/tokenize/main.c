/* SPDX-License-Identifier: MIT */

/* mimeo-tokenize: libmimeo-text from the command line, through the public header only. */

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mimeo/text.h>

#include "daemon/tokenize/tokenize_options.h"

/* An id and its separator are at most so long, and a text has at most as many ids as bytes. */
#define MAIN_ID_BYTES 12u
#define MAIN_INPUT_MAX ((size_t)MIMEO_TEXT_MAX * MAIN_ID_BYTES)
#define MAIN_MESSAGE_MAX 320u

struct main_input {
	char *bytes; /* [length], and a terminator */
	size_t length;
};

/* ---- input ---- */

static int main_read(FILE *file, const char *name, struct main_input *ret)
{
	size_t capacity = 65536, length = 0;
	char *bytes = malloc(capacity);

	while (bytes) {
		length += fread(bytes + length, 1, capacity - length - 1, file);
		if (length < capacity - 1)
			break;
		if (capacity > MAIN_INPUT_MAX) {
			tokenize_complain("%s: more than %zu bytes", name, MAIN_INPUT_MAX);
			free(bytes);
			return TOKENIZE_FAILED;
		}
		char *grown = realloc(bytes, capacity * 2);
		if (!grown)
			free(bytes);
		bytes = grown;
		capacity *= 2;
	}
	if (!bytes || ferror(file)) {
		tokenize_complain("%s: %s", name, bytes ? strerror(errno) : "out of memory");
		free(bytes);
		return TOKENIZE_FAILED;
	}
	bytes[length] = '\0';
	*ret = (struct main_input){.bytes = bytes, .length = length};
	return TOKENIZE_OK;
}

static int main_read_file(const char *path, struct main_input *ret)
{
	if (strcmp(path, "-") == 0)
		return main_read(stdin, "standard input", ret);
	FILE *file = fopen(path, "rb");
	if (!file) {
		tokenize_complain("%s: %s", path, strerror(errno));
		return TOKENIZE_FAILED;
	}
	int rc = main_read(file, path, ret);
	fclose(file);
	return rc;
}

/* ---- output ---- */

static void main_print_id(int32_t id)
{
	char digits[MAIN_ID_BYTES];
	size_t n = 0;
	uint32_t rest = (uint32_t)id;

	do
		digits[n++] = (char)('0' + rest % 10);
	while ((rest /= 10) > 0);
	while (n > 0)
		putchar_unlocked(digits[--n]);
}

static void main_print_ids(const int32_t *ids, size_t n, const struct tokenize_options *options)
{
	for (size_t i = 0; i < n; i++) {
		if (options->null && i > 0)
			putchar_unlocked(' ');
		main_print_id(ids[i]);
		if (!options->null)
			putchar_unlocked('\n');
	}
	if (options->null)
		putchar_unlocked('\n');
}

static int main_flush(void)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return TOKENIZE_OK;
	tokenize_complain("standard output: %s", strerror(errno));
	return TOKENIZE_FAILED;
}

/* ---- encoding ---- */

static int main_encode_one(const struct mimeo_text *text, const struct tokenize_options *options,
	const char *bytes, size_t length)
{
	uint32_t flags = (options->special ? MIMEO_TEXT_SPECIAL : 0) |
			 (options->literal ? MIMEO_TEXT_LITERAL : 0);
	int32_t *ids;
	size_t n;

	int rc = mimeo_text_encode(text, bytes, length, flags, &ids, &n);
	if (rc < 0) {
		tokenize_complain("%s",
			rc == MIMEO_E_TOO_LONG
				? "the text has more than 64 MiB, or a normalizer or a regular "
				  "expression of the tokenizer exceeds its limit"
			: rc == MIMEO_E_INVALID ? "the text has a character without a token, "
						  "and the vocabulary lacks an unknown token"
						: "out of memory");
		return TOKENIZE_FAILED;
	}
	main_print_ids(ids, n, options);
	free(ids);
	return TOKENIZE_OK;
}

static int main_encode(const struct mimeo_text *text, const struct tokenize_options *options,
	const struct main_input *input)
{
	const char *at = input->bytes, *end = at + input->length;

	if (!options->null)
		return main_encode_one(text, options, at, input->length);
	while (at < end) {
		/* the last one need not end in a NUL byte: behind it is the terminator */
		size_t length = strnlen(at, (size_t)(end - at));
		int rc = main_encode_one(text, options, at, length);

		if (rc != TOKENIZE_OK)
			return rc;
		at += length + 1;
	}
	return TOKENIZE_OK;
}

static int main_chat(const struct mimeo_text *text, const struct tokenize_options *options,
	const struct main_input *input)
{
	char message[MAIN_MESSAGE_MAX] = "", *utf8;
	int32_t *ids;
	size_t n;

	int rc = options->render ? mimeo_text_chat_render(text, input->bytes, input->length, &utf8,
					   &n, message, sizeof(message))
				 : mimeo_text_chat(text, input->bytes, input->length, &ids, &n,
					   message, sizeof(message));
	if (rc < 0) {
		tokenize_complain("%s", message);
		return TOKENIZE_FAILED;
	}
	if (options->render) {
		fwrite(utf8, 1, n, stdout);
		free(utf8);
	} else {
		main_print_ids(ids, n, options);
		free(ids);
	}
	return TOKENIZE_OK;
}

/* ---- decoding ---- */

static bool main_is_separator(char c)
{
	return c == ' ' || c == ',' || c == '\n' || c == '\r' || c == '\t';
}

/* The ids of a part of the input: digits, between separators. */
static int main_take_ids(char **at, const char *end, bool to_line_end, int32_t *ids, size_t *ret_n)
{
	size_t n = 0;

	while (*at < end && !(to_line_end && **at == '\n')) {
		char *stop;

		if (main_is_separator(**at)) {
			(*at)++;
			continue;
		}
		errno = 0;
		long id = strtol(*at, &stop, 10);
		if (**at < '0' || **at > '9' || errno != 0 || id > INT32_MAX ||
			(stop < end && !main_is_separator(*stop))) {
			tokenize_complain("'%.20s': not a token id", *at);
			return TOKENIZE_FAILED;
		}
		ids[n++] = (int32_t)id;
		*at = stop;
	}
	*ret_n = n;
	return TOKENIZE_OK;
}

static int main_decode_one(const struct mimeo_text *text, const struct tokenize_options *options,
	const int32_t *ids, size_t n)
{
	char *utf8;
	size_t length;

	int rc = mimeo_text_decode(
		text, ids, n, options->skip_special ? MIMEO_TEXT_SKIP_SPECIAL : 0, &utf8, &length);
	if (rc < 0) {
		tokenize_complain(
			"%s", rc == MIMEO_E_TOO_LONG ? "the text is too long" : "out of memory");
		return TOKENIZE_FAILED;
	}
	fwrite(utf8, 1, length, stdout);
	if (options->null)
		putchar('\0');
	free(utf8);
	return TOKENIZE_OK;
}

static int main_decode(const struct mimeo_text *text, const struct tokenize_options *options,
	const struct main_input *input)
{
	/* every id but the last has a separator */
	int32_t *ids = malloc((input->length / 2 + 1) * sizeof(*ids));
	char *at = input->bytes;
	const char *end = at + input->length;
	int rc = TOKENIZE_OK;
	size_t n;

	if (!ids) {
		tokenize_complain("out of memory");
		return TOKENIZE_FAILED;
	}
	for (; rc == TOKENIZE_OK && at < end; at++) {
		rc = main_take_ids(&at, end, options->null, ids, &n);
		if (rc == TOKENIZE_OK)
			rc = main_decode_one(text, options, ids, n);
	}
	free(ids);
	return rc;
}

/* ---- the program ---- */

static int main_run(const struct mimeo_text *text, const struct tokenize_options *options)
{
	struct main_input input;

	int rc = main_read_file(options->chat ? options->chat : "-", &input);
	if (rc != TOKENIZE_OK)
		return rc;
	rc = options->chat     ? main_chat(text, options, &input)
	     : options->decode ? main_decode(text, options, &input)
			       : main_encode(text, options, &input);
	free(input.bytes);
	int flushed = main_flush();
	return rc != TOKENIZE_OK ? rc : flushed;
}

int main(int argc, char **argv)
{
	struct tokenize_options options;
	char message[MAIN_MESSAGE_MAX] = "";
	struct mimeo_text *text;

	int rc = tokenize_options_parse(&options, argc, argv);
	if (rc != TOKENIZE_OK || options.done)
		return rc;
	if (mimeo_text_open(&text, options.tokenizer, message, sizeof(message)) < 0) {
		tokenize_complain("%s", message);
		return TOKENIZE_FAILED;
	}
	rc = main_run(text, &options);
	mimeo_text_close(text);
	return rc;
}
