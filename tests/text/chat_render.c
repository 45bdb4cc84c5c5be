/* SPDX-License-Identifier: MIT */

/*
 * chat_render TEMPLATE [TOKENIZER_CONFIG]: render a chat for each line of stdin, which is a request
 * as in <mimeo/text.h>. If TEMPLATE is "-", "chat_template" in the request is the text of its
 * template. Prints a JSON object for each: "text" and "foreign" (a 0 or a 1 for each byte of the
 * text), or "status" and "message".
 */

#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static json_t *render_own_template(const char *line, size_t n)
{
	json_t *request = json_loadb(line, n, JSON_ALLOW_NUL, NULL), *result;
	const json_t *source = json_object_get(request, "chat_template");
	char message[MESSAGE_MAX], *rest;
	struct chat_set *set;

	if (!json_is_string(source) ||
		chat_set_new(&set, NULL, 0, json_string_value(source), json_string_length(source),
			message, sizeof(message)))
		errx(1, "a request has no template");
	json_object_del(request, "chat_template");
	rest = json_dumps(request, JSON_COMPACT);
	result = render(set, rest, strlen(rest));
	free(rest);
	json_decref(request);
	chat_set_free(set);
	return result;
}

int main(int argc, char **argv)
{
	char message[MESSAGE_MAX], *chat_template = NULL, *config = NULL, *line = NULL;
	size_t template_length = 0, config_length = 0, capacity = 0;
	struct chat_set *set;
	ssize_t n;

	if (argc < 2 || argc > 3)
		errx(2, "usage: chat_render TEMPLATE [TOKENIZER_CONFIG]");
	if (strcmp(argv[1], "-"))
		chat_template = read_file(argv[1], &template_length);
	if (argc == 3)
		config = read_file(argv[2], &config_length);
	if (chat_set_new(&set, config, config_length, chat_template, template_length, message,
		    sizeof(message)))
		errx(1, "%s", message);
	while ((n = getline(&line, &capacity, stdin)) > 0) {
		json_t *result = chat_template ? render(set, line, (size_t)n)
					       : render_own_template(line, (size_t)n);

		if (!result || json_dumpf(result, stdout, JSON_COMPACT))
			errx(1, "cannot print a result");
		putchar('\n');
		fflush(stdout);
		json_decref(result);
	}
	free(chat_template);
	free(config);
	free(line);
	chat_set_free(set);
	return 0;
}
