/* SPDX-License-Identifier: MIT */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <mimeo/types.h>

#include "ipc/cleanup.h"
#include "sdk/text/chat_config.h"
#include "sdk/text/chat_context.h"
#include "sdk/text/chat_request.h"
#include "sdk/text/chat_template.h"

#define MESSAGE_MAX 256

struct chat_entry {
	char *name; /* NULL: of a model with one template */
	struct chat_template *chat_template;
	int status; /* why there is none, with its message */
	char message[MESSAGE_MAX];
};

struct chat_set {
	json_t *special_tokens; /* {"bos_token": "<s>", ...} */
	struct chat_entry entries[CHAT_TEMPLATES_MAX];
	size_t n;
};

DEFINE_CLEANUP(json, json_t, json_decref)
DEFINE_CLEANUP(set, struct chat_set, chat_set_free)

void chat_set_free(struct chat_set *set)
{
	if (!set)
		return;
	for (size_t i = 0; i < set->n; i++) {
		free(set->entries[i].name);
		chat_template_free(set->entries[i].chat_template);
	}
	json_decref(set->special_tokens);
	free(set);
}

/* ---- templates ---- */

static int config_refuse(char *message, size_t size, const char *what)
{
	chat_message(message, size, "tokenizer_config.json: %s", what);
	return MIMEO_E_INVALID;
}

static int config_add_template(
	struct chat_set *set, const char *name, const char *source, size_t length)
{
	struct chat_entry *entry = &set->entries[set->n];

	entry->name = name ? strdup(name) : NULL;
	if (name && !entry->name)
		return MIMEO_E_NO_MEMORY;
	set->n++;
	entry->status = chat_template_new(
		&entry->chat_template, source, length, entry->message, sizeof(entry->message));
	return entry->status == MIMEO_E_NO_MEMORY ? MIMEO_E_NO_MEMORY : 0;
}

static int config_add_named(
	struct chat_set *set, const json_t *name, const json_t *source, char *message, size_t size)
{
	if (!json_is_string(name) || !json_is_string(source))
		return config_refuse(message, size, "a chat template has no name or no text");
	if (set->n == CHAT_TEMPLATES_MAX)
		return config_refuse(message, size, "too many chat templates");
	return config_add_template(set, json_string_value(name), json_string_value(source),
		json_string_length(source));
}

/* "chat_template": a text, or a list of {"name": ..., "template": ...}. */
static int config_add_templates(
	struct chat_set *set, const json_t *templates, char *message, size_t size)
{
	const json_t *item;
	size_t i;

	if (!templates || json_is_null(templates))
		return 0;
	if (json_is_string(templates))
		return config_add_template(
			set, NULL, json_string_value(templates), json_string_length(templates));
	if (!json_is_array(templates))
		return config_refuse(message, size, "\"chat_template\" is no text and no list");
	json_array_foreach((json_t *)(uintptr_t)templates, i, item)
	{
		int rc = config_add_named(set, json_object_get(item, "name"),
			json_object_get(item, "template"), message, size);

		if (rc)
			return rc;
	}
	return 0;
}

/* ---- special tokens ---- */

/* A token is written as a string, or as an object with its "content"; anything else is not one. */
static int config_add_token(struct chat_set *set, const char *name, json_t *token)
{
	if (json_is_object(token))
		token = json_object_get(token, "content");
	if (!json_is_string(token))
		return 0;
	return json_object_set(set->special_tokens, name, token) ? MIMEO_E_NO_MEMORY : 0;
}

/* Every member "..._token", and those that newer files keep in an object of their own. */
static int config_add_tokens(struct chat_set *set, const json_t *config)
{
	const json_t *extra = json_object_get(config, "extra_special_tokens");
	const char *name;
	json_t *token;

	json_object_foreach((json_t *)(uintptr_t)config, name, token)
	{
		size_t length = strlen(name);

		if (length > 6 && !strcmp(name + length - 6, "_token") &&
			config_add_token(set, name, token))
			return MIMEO_E_NO_MEMORY;
	}
	json_object_foreach((json_t *)(uintptr_t)extra, name, token)
	{
		if (config_add_token(set, name, token))
			return MIMEO_E_NO_MEMORY;
	}
	return 0;
}

/* ---- the set ---- */

static int config_read(struct chat_set *set, const char *config, size_t config_length,
	bool with_templates, char *message, size_t size)
{
	json_error_t error = {0};
	CLEANUP(cleanup_json)
	json_t *root = json_loadb(config, config_length, JSON_ALLOW_NUL, &error);
	int rc;

	/* Jansson has no reason for most allocations that fail. */
	if (!root && (json_error_code(&error) == json_error_out_of_memory || !error.text[0]))
		return MIMEO_E_NO_MEMORY;
	if (!json_is_object(root))
		return config_refuse(message, size, root ? "it is no object" : error.text);
	rc = config_add_tokens(set, root);
	if (!rc && with_templates)
		rc = config_add_templates(
			set, json_object_get(root, "chat_template"), message, size);
	return rc;
}

int chat_set_new(struct chat_set **ret_set, const char *config, size_t config_length,
	const char *chat_template, size_t template_length, char *message, size_t size)
{
	CLEANUP(cleanup_set) struct chat_set *set = calloc(1, sizeof(*set));
	int rc = 0;

	if (set)
		set->special_tokens = json_object();
	if (!set || !set->special_tokens)
		rc = MIMEO_E_NO_MEMORY;
	if (!rc && config)
		rc = config_read(set, config, config_length, !chat_template, message, size);
	if (!rc && chat_template)
		rc = config_add_template(set, NULL, chat_template, template_length);
	if (rc == MIMEO_E_NO_MEMORY)
		chat_message(message, size, "no memory for the chat template");
	if (rc)
		return rc;
	*ret_set = STEAL(set);
	return 0;
}

static const struct chat_entry *chat_set_find(const struct chat_set *set, const char *name)
{
	for (size_t i = 0; i < set->n; i++) {
		if (set->entries[i].name && !strcmp(set->entries[i].name, name))
			return &set->entries[i];
	}
	return NULL;
}

/* By the name that the request gives; else "tool_use" for a request with tools, else "default". */
static int chat_set_choose(const struct chat_set *set, const json_t *chat,
	const struct chat_entry **ret_entry, char *message, size_t size)
{
	const json_t *name = json_object_get(chat, "chat_template");
	const struct chat_entry *entry = NULL;

	if (!set->n) {
		chat_message(message, size, "the model has no chat template");
		return MIMEO_E_UNSUPPORTED;
	}
	if (name && !json_is_null(name)) {
		if (json_is_string(name))
			entry = chat_set_find(set, json_string_value(name));
		if (!entry) {
			chat_message(message, size,
				"\"chat_template\" is not the name of one of the model's "
				"templates");
			return MIMEO_E_INVALID;
		}
	} else if (!set->entries[0].name) {
		entry = &set->entries[0];
	} else {
		if (!json_is_null(json_object_get(chat, "tools")))
			entry = chat_set_find(set, "tool_use");
		if (!entry)
			entry = chat_set_find(set, "default");
	}
	if (!entry) {
		chat_message(message, size,
			"the model has %zu chat templates and none is the default: name one in "
			"\"chat_template\"",
			set->n);
		return MIMEO_E_INVALID;
	}
	*ret_entry = entry;
	return 0;
}

int chat_set_render(const struct chat_set *set, const char *json, size_t length, char **ret_text,
	uint8_t **ret_foreign, size_t *ret_length, char *message, size_t size)
{
	CLEANUP(cleanup_json) json_t *chat = NULL;
	const struct chat_entry *entry;
	int rc = chat_request_new(&chat, json, length, message, size);

	if (rc)
		return rc;
	rc = chat_set_choose(set, chat, &entry, message, size);
	if (rc)
		return rc;
	if (entry->status) {
		chat_message(message, size, "the model's chat template is not supported: %s",
			entry->message);
		return MIMEO_E_UNSUPPORTED;
	}
	json_object_del(chat, "chat_template");
	return chat_template_render(entry->chat_template, set->special_tokens, chat, ret_text,
		ret_foreign, ret_length, message, size);
}
