/* SPDX-License-Identifier: MIT */
#include "sdk/text/text_chat.h"

#include <stdio.h>
#include <stdlib.h>

#include <mimeo/text.h>

#include "ipc/cleanup.h"
#include "sdk/text/chat_template.h"

DEFINE_CLEANUP(json, json_t, json_decref)

#define TEXT_CHAT_DEFAULT "default"
#define TEXT_CHAT_TOOLS "tool_use"
#define TEXT_CHAT_VALUES_MAX 2000000u /* of a chat */

/* ---- templates ---- */

static int text_chat_add(struct text_chat *chat, const char *name, const char *source, size_t length)
{
	struct text_chat_template *entry;

	/* What is left out is missed only by a chat that names it. */
	if (chat->n == TEXT_CHAT_TEMPLATES_MAX || strlen(name) >= TEXT_CHAT_NAME_MAX)
		return 0;
	entry = &chat->templates[chat->n++];
	snprintf(entry->name, sizeof(entry->name), "%s", name);
	if (length > TEXT_CHAT_FILE_MAX) {
		snprintf(entry->message, sizeof(entry->message),
			"the chat template has %zu bytes; the limit is %zu", length, TEXT_CHAT_FILE_MAX);
		return 0;
	}
	int rc = chat_template_new(
		&entry->parsed, source, length, entry->message, sizeof(entry->message));
	return rc == MIMEO_E_NO_MEMORY ? rc : 0;
}

/* A template, or a list of {"name": ..., "template": ...}. */
static int text_chat_add_config(struct text_chat *chat, const json_t *value)
{
	int rc = 0;

	if (json_is_string(value))
		return text_chat_add(chat, TEXT_CHAT_DEFAULT, json_string_value(value),
			json_string_length(value));
	for (size_t i = 0; i < json_array_size(value) && rc == 0; i++) {
		const json_t *element = json_array_get(value, i);
		const json_t *name = json_object_get(element, "name");
		const json_t *source = json_object_get(element, "template");

		if (json_is_string(name) && json_is_string(source))
			rc = text_chat_add(chat, json_string_value(name), json_string_value(source),
				json_string_length(source));
	}
	return rc;
}

/* ---- special tokens ---- */

/* A token is a string, or an object with its content. A new reference, or NULL. */
static json_t *text_chat_token(const json_t *value)
{
	const json_t *content = json_is_object(value) ? json_object_get(value, "content") : value;

	return json_is_string(content) ? json_copy((json_t *)content) : NULL;
}

static int text_chat_add_list(struct text_chat *chat, const json_t *config)
{
	static const char name[] = "additional_special_tokens";
	const json_t *list = json_object_get(config, name);
	json_t *tokens = json_array();
	int failed = !tokens;

	for (size_t i = 0; i < json_array_size(list) && !failed; i++) {
		json_t *token = text_chat_token(json_array_get(list, i));

		if (token)
			failed = json_array_append_new(tokens, token);
	}
	if (!failed && json_array_size(tokens) > 0)
		failed = json_object_set(chat->variables, name, tokens);
	json_decref(tokens);
	return failed ? MIMEO_E_NO_MEMORY : 0;
}

static int text_chat_add_variables(struct text_chat *chat, const json_t *config)
{
	static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
		"pad_token", "cls_token", "mask_token"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		json_t *token = text_chat_token(json_object_get(config, names[i]));

		if (token && json_object_set_new(chat->variables, names[i], token) < 0)
			return MIMEO_E_NO_MEMORY;
	}
	if (json_object_set_new(chat->variables, "add_generation_prompt", json_true()) < 0)
		return MIMEO_E_NO_MEMORY;
	return text_chat_add_list(chat, config);
}

int text_chat_init(struct text_chat *chat, const struct bytes *config, const struct bytes *chat_template,
	const struct fault *fault)
{
	json_error_t reason;
	int rc;

	*chat = (struct text_chat){.variables = json_object()};
	if (!chat->variables)
		return fault_set(fault, MIMEO_E_NO_MEMORY, "out of memory");
	CLEANUP(cleanup_json) json_t *json = config->length > 0
		? json_loadb(config->data, config->length, 0, &reason) : json_object();
	if (!json && config->length == 0)
		return fault_set(fault, MIMEO_E_NO_MEMORY, "out of memory");
	if (!json_is_object(json))
		return fault_set(fault, MIMEO_E_INVALID, "tokenizer_config.json: %s",
			json ? "not a JSON object" : reason.text);
	rc = text_chat_add_variables(chat, json);
	if (rc == 0 && chat_template)
		rc = text_chat_add(
			chat, TEXT_CHAT_DEFAULT, chat_template->data, chat_template->length);
	else if (rc == 0)
		rc = text_chat_add_config(chat, json_object_get(json, "chat_template"));
	return rc < 0 ? fault_set(fault, rc, "out of memory") : 0;
}

void text_chat_deinit(struct text_chat *chat)
{
	for (unsigned i = 0; i < chat->n; i++)
		chat_template_free(chat->templates[i].parsed);
	json_decref(chat->variables);
	*chat = (struct text_chat){0};
}

/* ---- rendering ---- */

static const struct text_chat_template *text_chat_find(const struct text_chat *chat, const char *name)
{
	for (unsigned i = 0; i < chat->n; i++) {
		if (strcmp(chat->templates[i].name, name) == 0)
			return &chat->templates[i];
	}
	return NULL;
}

/* The one that the chat names; else, for a chat with tools, tool_use; else default. */
static const struct text_chat_template *text_chat_choose(
	const struct text_chat *chat, const json_t *json, const struct fault *fault)
{
	const char *name = json_string_value(json_object_get(json, "chat_template"));
	const json_t *tools = json_object_get(json, "tools");
	const struct text_chat_template *chosen = NULL;

	if (name)
		chosen = text_chat_find(chat, name);
	else if (tools && !json_is_null(tools))
		chosen = text_chat_find(chat, TEXT_CHAT_TOOLS);
	if (!chosen && !name)
		chosen = text_chat_find(chat, TEXT_CHAT_DEFAULT);
	if (!chosen)
		fault_set(fault, MIMEO_E_UNSUPPORTED, "the model has no chat template%s%.60s",
			name ? " named " : "", name ? name : "");
	else if (!chosen->parsed)
		fault_set(fault, MIMEO_E_UNSUPPORTED, "%s", chosen->message);
	return chosen && chosen->parsed ? chosen : NULL;
}

/* NULL after an error. */
static json_t *text_chat_parse(const char *text, size_t length, const struct fault *fault)
{
	uint32_t n_values = 0;
	json_error_t reason;

	for (size_t i = 0; i < length; i++)
		n_values += text[i] == ',' || text[i] == '[' || text[i] == '{';
	if (n_values > TEXT_CHAT_VALUES_MAX) {
		fault_set(fault, MIMEO_E_INVALID, "the chat has %u values; the limit is %u", n_values,
			TEXT_CHAT_VALUES_MAX);
		return NULL;
	}
	CLEANUP(cleanup_json) json_t *json = json_loadb(text, length, JSON_ALLOW_NUL, &reason);
	if (!json) {
		fault_set(fault, MIMEO_E_INVALID, "the chat: line %d: no valid JSON: %s", reason.line,
			reason.text);
		return NULL;
	}
	if (!json_is_array(json_object_get(json, "messages"))) {
		fault_set(fault, MIMEO_E_INVALID, "the chat is not an object with a list \"messages\"");
		return NULL;
	}
	return STEAL(json);
}

int text_chat_render(const struct text_chat *chat, const char *json, size_t length, char **ret_text,
	uint8_t **ret_foreign, size_t *ret_length, const struct fault *fault)
{
	if (length > MIMEO_TEXT_MAX)
		return fault_set(fault, MIMEO_E_TOO_LONG, "the chat has %zu bytes; the limit is %u", length,
			MIMEO_TEXT_MAX);
	CLEANUP(cleanup_json) json_t *parsed = text_chat_parse(json, length, fault);
	if (!parsed)
		return MIMEO_E_INVALID;
	const struct text_chat_template *chosen = text_chat_choose(chat, parsed, fault);
	if (!chosen)
		return MIMEO_E_UNSUPPORTED;
	return chat_template_render(chosen->parsed, chat->variables, parsed, ret_text, ret_foreign,
		ret_length, fault->message, fault->size);
}
