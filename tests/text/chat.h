/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_TEXT_CHAT_H
#define MIMEO_TESTS_TEXT_CHAT_H

/* A template rendered with variables in JSON. */

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <mimeo/types.h>

#include "sdk/text/chat_template.h"

struct chat {
	int status;
	char message[256];
	char *text; /* if status is 0, like the next two */
	uint8_t *foreign;
	size_t length;
};

/* `trusted` and `users` are JSON objects with ' for ". */
static inline struct chat chat_make(const char *source, const char *trusted, const char *users)
{
	const char *const json[] = {trusted, users};
	json_t *variables[2];
	struct chat_template *chat_template;
	struct chat chat = {0};

	for (size_t i = 0; i < 2; i++) {
		char *copy = strdup(json[i]);

		for (char *quote = copy; (quote = strchr(quote, '\''));)
			*quote = '"';
		variables[i] = json_loads(copy, 0, NULL);
		assert_non_null(variables[i]);
		free(copy);
	}
	chat.status = chat_template_new(
		&chat_template, source, strlen(source), chat.message, sizeof(chat.message));
	if (!chat.status) {
		chat.status =
			chat_template_render(chat_template, variables[0], variables[1], &chat.text,
				&chat.foreign, &chat.length, chat.message, sizeof(chat.message));
		chat_template_free(chat_template);
	}
	json_decref(variables[0]);
	json_decref(variables[1]);
	return chat;
}

static inline void chat_free(struct chat *chat)
{
	free(chat->text);
	free(chat->foreign);
}

/* The template fails with this status, and its message begins so. */
static inline void assert_chat_fails(const char *source, int status, const char *message)
{
	struct chat chat = chat_make(source, "{}", "{}");

	if (strncmp(chat.message, message, strlen(message)))
		fail_msg("%s\nexpected: %s\ngot:      %s", source, message, chat.message);
	assert_int_equal(chat.status, status);
	chat_free(&chat);
}

#endif
