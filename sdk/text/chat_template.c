/* SPDX-License-Identifier: MIT */
#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "sdk/text/chat_builtin.h"
#include "sdk/text/chat_function.h"
#include "sdk/text/chat_run.h"
#include "sdk/text/chat_template.h"
#include "sdk/text/utf8.h"

#define ROLE_MAX 32   /* bytes of a role that is trusted */
#define ONES_MIN 4096 /* bytes */

struct chat_template {
	struct chat_context context; /* owns the tree */
	const struct chat_tree *tree;
	locale_t locale; /* "C": for the numbers of printf and strtod, and the names of strftime */
};

/* ---- parsing ---- */

int chat_template_new(struct chat_template **ret_template, const char *source, size_t length,
	char *message, size_t size)
{
	struct chat_template *new;
	locale_t outer;
	int status;

	if (length > CHAT_SOURCE_MAX || utf8_valid(source, length) < length) {
		chat_message(message, size, "the chat template is not UTF-8 of at most %u bytes",
			CHAT_SOURCE_MAX);
		return MIMEO_E_UNSUPPORTED;
	}
	new = calloc(1, sizeof(*new));
	if (new)
		new->locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
	if (!new || !new->locale) {
		free(new);
		chat_message(message, size, "no memory for the chat template");
		return MIMEO_E_NO_MEMORY;
	}
	chat_context_init(&new->context, message, size);
	outer = uselocale(new->locale);
	if (!setjmp(new->context.unwind))
		new->tree = chat_parse(&new->context, source, length);
	uselocale(outer);
	status = new->context.status;
	if (status) {
		chat_template_free(new);
		return status;
	}
	*ret_template = new;
	return 0;
}

void chat_template_free(struct chat_template *chat_template)
{
	if (!chat_template)
		return;
	freelocale(chat_template->locale);
	chat_context_deinit(&chat_template->context);
	free(chat_template);
}

/* ---- values of JSON ---- */

struct converter {
	struct chat_context *context;
	bool foreign;
	const uint8_t *ones; /* [n_ones]: the marks of every foreign string */
	size_t n_ones;
};

static struct chat_value convert_string(
	struct converter *converter, const char *bytes, size_t length)
{
	if (converter->foreign && length > converter->n_ones) {
		size_t n = length < ONES_MIN ? ONES_MIN : length;
		uint8_t *ones = chat_alloc(converter->context, n);

		memset(ones, 1, n);
		converter->ones = ones;
		converter->n_ones = n;
	}
	chat_charge_bytes(converter->context, length);
	return chat_string_wrap(
		converter->context, bytes, length, converter->foreign ? converter->ones : NULL);
}

static struct chat_value convert(struct converter *converter, const json_t *json);

static struct chat_value convert_list(struct converter *converter, const json_t *json)
{
	struct chat_value list = chat_list_new(converter->context, CHAT_LIST);
	const json_t *item;
	size_t i;

	json_array_foreach((json_t *)(uintptr_t)json, i, item)
		chat_list_add(converter->context, list.list, convert(converter, item));
	return list;
}

static struct chat_value convert_dict(struct converter *converter, const json_t *json)
{
	struct chat_value dict = chat_dict_new(converter->context);
	const char *key;
	json_t *item;

	json_object_foreach((json_t *)(uintptr_t)json, key, item) chat_dict_set(converter->context,
		dict.dict, convert_string(converter, key, strlen(key)), convert(converter, item));
	return dict;
}

static struct chat_value convert(struct converter *converter, const json_t *json)
{
	struct chat_value value = chat_none();

	chat_enter(converter->context);
	switch (json_typeof(json)) {
	case JSON_OBJECT:
		value = convert_dict(converter, json);
		break;
	case JSON_ARRAY:
		value = convert_list(converter, json);
		break;
	case JSON_STRING:
		value = convert_string(
			converter, json_string_value(json), json_string_length(json));
		break;
	case JSON_INTEGER:
		value = chat_int(json_integer_value(json));
		break;
	case JSON_REAL:
		value = chat_float(json_real_value(json));
		break;
	case JSON_TRUE:
	case JSON_FALSE:
		value = chat_bool(json_is_true(json));
		break;
	case JSON_NULL:
		break;
	}
	value.foreign = converter->foreign;
	chat_leave(converter->context);
	return value;
}

/* ---- rendering ---- */

static bool template_is_plain_role(const struct chat_string *role)
{
	for (size_t i = 0; i < role->length; i++) {
		char c = role->bytes[i];

		if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !(c >= '0' && c <= '9') &&
			c != '_' && c != '-')
			return false;
	}
	return role->length <= ROLE_MAX;
}

/*
 * Templates make tokens of roles ("<|" + message.role + "|>"). A role that is a plain word cannot
 * contain a special token, so it is taken as the template's own.
 */
static void template_trust_roles(struct chat_context *context, struct chat_value messages)
{
	for (size_t i = 0; messages.type == CHAT_LIST && i < messages.list->n; i++) {
		struct chat_value message = messages.list->items[i], *role = NULL;

		if (message.type == CHAT_DICT)
			role = chat_dict_find_name(context, message.dict, "role");
		if (role && role->type == CHAT_STRING && template_is_plain_role(role->string))
			*role = chat_string_wrap(
				context, role->string->bytes, role->string->length, NULL);
	}
}

static void template_set_variables(struct chat_run *run, const json_t *trusted, const json_t *chat)
{
	struct converter converter = {.context = &run->context};
	struct chat_value variables = convert(&converter, trusted), foreign;
	const struct chat_value *messages;

	converter.foreign = true;
	foreign = convert(&converter, chat);
	messages = chat_dict_find_name(&run->context, foreign.dict, "messages");
	if (messages)
		template_trust_roles(&run->context, *messages);
	run->variables = chat_alloc(&run->context, run->tree->n_symbols * sizeof(*run->variables));
	for (size_t i = 0; i < run->tree->n_symbols; i++) {
		struct chat_value name = run->tree->symbols[i];
		const struct chat_value *found = chat_dict_find(&run->context, foreign.dict, name);

		if (!found)
			found = chat_dict_find(&run->context, variables.dict, name);
		if (found) {
			run->variables[i] = *found;
			continue;
		}
		run->variables[i] = (struct chat_value){
			.type = CHAT_FUNCTION, .function = chat_find_function(name.string)};
		if (!run->variables[i].function)
			run->variables[i] = chat_undefined_name(&run->context, name);
	}
}

static int template_return_text(
	const struct chat_text *text, char **ret_text, uint8_t **ret_foreign, size_t *ret_length)
{
	char *bytes = malloc(text->length + 1);
	uint8_t *foreign = malloc(text->length + 1);

	if (!bytes || !foreign) {
		free(bytes);
		free(foreign);
		return MIMEO_E_NO_MEMORY;
	}
	if (text->length) {
		memcpy(bytes, text->bytes, text->length);
		memcpy(foreign, text->foreign, text->length);
	}
	bytes[text->length] = 0;
	*ret_text = bytes;
	*ret_foreign = foreign;
	*ret_length = text->length;
	return 0;
}

int chat_template_render(const struct chat_template *chat_template, const json_t *variables,
	const json_t *chat, char **ret_text, uint8_t **ret_foreign, size_t *ret_length,
	char *message, size_t size)
{
	struct chat_run *run = calloc(1, sizeof(*run));
	locale_t outer;
	int status;

	if (!run) {
		chat_message(message, size, "no memory");
		return MIMEO_E_NO_MEMORY;
	}
	chat_context_init(&run->context, message, size);
	run->tree = chat_template->tree;
	outer = uselocale(chat_template->locale);
	if (!setjmp(run->context.unwind)) {
		run->output = chat_text_new(&run->context);
		template_set_variables(run, variables, chat);
		chat_execute(run);
	}
	uselocale(outer);
	status = run->context.status;
	if (!status)
		status = template_return_text(run->output, ret_text, ret_foreign, ret_length);
	if (status == MIMEO_E_NO_MEMORY)
		chat_message(message, size, "no memory for the rendered chat");
	chat_context_deinit(&run->context);
	free(run);
	return status;
}
