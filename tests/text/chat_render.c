/* SPDX-License-Identifier: MIT */

/*
 * chat_render TEMPLATE [TOKENIZER_CONFIG]: render a chat for each line of stdin, which is a request as in <mimeo/text.h>.
 * Prints a JSON object for each: "text" and "foreign" (a 0 or a 1 for each byte of the text), or "status" and "message".
 */

#include <err.h>
#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>

#include "sdk/text/chat_config.h"

#define FILE_MAX (16u << 20)
#define MESSAGE_MAX 8192

static char *read_file(const char *path, size_t *ret_length)
{
	FILE *file = fopen(path, "rb");
	char *bytes = malloc(FILE_MAX);

	if (!file || !bytes)
		err(1, "%s", path);
	*ret_length = fread(bytes, 1, FILE_MAX, file);
	fclose(file);
	return bytes;
}

static json_t *render(const struct chat_set *set, const char *request, size_t n)
{
	char message[MESSAGE_MAX] = "", *text;
	uint8_t *foreign;
	size_t length;
	json_t *result;
	int status;

	status = chat_set_render(
		set, request, n, &text, &foreign, &length, message, sizeof(message));
	if (status)
		return json_pack("{s:i, s:s}", "status", status, "message", message);
	for (size_t i = 0; i < length; i++)
		foreign[i] = foreign[i] ? '1' : '0';
	result = json_pack("{s:s%, s:s%}", "text", text, length, "foreign", foreign, length);
	free(text);
	free(foreign);
	return result;
}

int main(int argc, char **argv)
{
	char message[MESSAGE_MAX], *chat_template, *config = NULL, *line = NULL;
	size_t template_length, config_length = 0, capacity = 0;
	struct chat_set *set;
	ssize_t n;

	if (argc < 2 || argc > 3)
		errx(2, "usage: chat_render TEMPLATE [TOKENIZER_CONFIG]");
	chat_template = read_file(argv[1], &template_length);
	if (argc == 3)
		config = read_file(argv[2], &config_length);
	if (chat_set_new(&set, config, config_length, chat_template, template_length, message,
		    sizeof(message)))
		errx(1, "%s", message);
	free(chat_template);
	free(config);
	while ((n = getline(&line, &capacity, stdin)) > 0) {
		json_t *result = render(set, line, (size_t)n);

		if (!result || json_dumpf(result, stdout, JSON_COMPACT))
			errx(1, "cannot print a result");
		putchar('\n');
		fflush(stdout);
		json_decref(result);
	}
	free(line);
	chat_set_free(set);
	return 0;
}
