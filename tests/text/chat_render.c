/* SPDX-License-Identifier: MIT */

/*
 * chat_render TEMPLATE: render a chat template for each line of stdin, a JSON object {"variables": ..., "chat": ...}.
 * Prints a JSON object for each: "text" and "foreign" (a string of 0 and 1, one for each byte of the text), or
 * "status" and "message". A template that is not understood gives that for each line.
 */

#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sdk/text/chat_template.h"

#define MESSAGE_MAX 8192

static char *read_file(const char *path, size_t *ret_length)
{
	FILE *file = fopen(path, "rb");
	char *bytes = malloc(16u << 20);

	if (!file || !bytes)
		err(1, "%s", path);
	*ret_length = fread(bytes, 1, 16u << 20, file);
	fclose(file);
	return bytes;
}

static json_t *render(const struct chat_template *chat_template, const json_t *input)
{
	const json_t *variables = json_object_get(input, "variables");
	const json_t *chat = json_object_get(input, "chat");
	char message[MESSAGE_MAX] = "", *text;
	uint8_t *foreign;
	size_t length;
	json_t *result;
	int status;

	if (!json_is_object(variables) || !json_is_object(chat))
		errx(1, "a line is no object with variables and chat");
	status = chat_template_render(chat_template, variables, chat, &text, &foreign, &length,
		message, sizeof(message));
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
	struct chat_template *chat_template = NULL;
	char message[MESSAGE_MAX], *source, *line = NULL;
	size_t length, capacity = 0;
	ssize_t n;
	int status;

	if (argc != 2)
		errx(2, "usage: chat_render TEMPLATE");
	source = read_file(argv[1], &length);
	status = chat_template_new(&chat_template, source, length, message, sizeof(message));
	free(source);
	while ((n = getline(&line, &capacity, stdin)) > 0) {
		json_error_t error;
		json_t *input = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, &error), *output;

		if (!input)
			errx(1, "%s", error.text);
		output = status ? json_pack("{s:i, s:s}", "status", status, "message", message)
				: render(chat_template, input);
		if (!output || json_dumpf(output, stdout, JSON_COMPACT))
			errx(1, "cannot print a result");
		putchar('\n');
		fflush(stdout);
		json_decref(output);
		json_decref(input);
	}
	free(line);
	chat_template_free(chat_template);
	return 0;
}
