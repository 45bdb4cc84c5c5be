/* SPDX-License-Identifier: MIT */
#include <assert.h>
#include <string.h>

#include "sdk/text/chat_builtin.h"

const struct chat_builtin *chat_find_builtin(
	const struct chat_builtin *table, size_t n, const struct chat_string *name)
{
	for (size_t i = 0; i < n; i++) {
		if (chat_string_is(name, table[i].name))
			return &table[i];
	}
	return NULL;
}

/* The index of a parameter in "a, b", or -1; *ret_n: the number of parameters. */
static int builtin_find_parameter(
	const char *parameters, const struct chat_string *name, size_t *ret_n)
{
	int found = -1;
	size_t n = 0;

	while (*parameters) {
		size_t length = strcspn(parameters, ",");

		if (name && name->length == length && !memcmp(name->bytes, parameters, length))
			found = (int)n;
		n++;
		parameters += length;
		parameters += strspn(parameters, ", ");
	}
	assert(n <= CHAT_PARAMETERS_MAX);
	*ret_n = n;
	return found;
}

static void builtin_bind(struct chat_call *call, const struct chat_builtin *builtin)
{
	struct chat_context *context = call->context;
	size_t n_parameters;

	builtin_find_parameter(builtin->parameters, NULL, &n_parameters);
	if (call->positional->n > n_parameters)
		chat_fail(context, MIMEO_E_INVALID, "%s() takes %zu arguments, %zu were given",
			builtin->name, n_parameters, call->positional->n);
	for (size_t i = 0; i < call->positional->n; i++)
		call->arguments[i] = call->positional->items[i];
	for (size_t i = 0; i < call->keywords->n; i++) {
		const struct chat_string *name = call->keywords->pairs[i].key.string;
		int at = builtin_find_parameter(builtin->parameters, name, &n_parameters);

		if (at < 0 || call->arguments[at].type != CHAT_MISSING)
			chat_fail(context, MIMEO_E_INVALID,
				"%s() got an unexpected argument \"%.*s\"", builtin->name,
				(int)(name->length < 40 ? name->length : 40), name->bytes);
		call->arguments[at] = call->keywords->pairs[i].value;
	}
	for (size_t i = 0; i < builtin->n_required; i++) {
		if (call->arguments[i].type == CHAT_MISSING)
			chat_fail(
				context, MIMEO_E_INVALID, "%s() lacks an argument", builtin->name);
	}
}

struct chat_value chat_call_builtin(struct chat_context *context,
	const struct chat_builtin *builtin, struct chat_value self,
	const struct chat_list *positional, const struct chat_dict *keywords)
{
	struct chat_call call = {.context = context,
		.builtin = builtin,
		.self = self,
		.positional = positional,
		.keywords = keywords};

	if (!builtin->call)
		chat_fail(context, MIMEO_E_UNSUPPORTED, "%s() of a '%s' is not supported",
			builtin->name, chat_type_name(self));
	if (builtin->parameters)
		builtin_bind(&call, builtin);
	chat_charge(context, 1);
	return builtin->call(&call);
}

bool chat_argument_bool(const struct chat_call *call, size_t i, bool missing)
{
	assert(i < CHAT_PARAMETERS_MAX);
	return call->arguments[i].type == CHAT_MISSING ? missing : chat_truth(call->arguments[i]);
}

int64_t chat_argument_integer(const struct chat_call *call, size_t i, int64_t missing)
{
	assert(i < CHAT_PARAMETERS_MAX);
	return call->arguments[i].type == CHAT_MISSING
		       ? missing
		       : chat_integer(call->context, call->arguments[i], "an argument");
}

const struct chat_string *chat_argument_string(const struct chat_call *call, size_t i)
{
	struct chat_value value = call->arguments[i];

	if (value.type == CHAT_MISSING || value.type == CHAT_NONE)
		return NULL;
	if (value.type == CHAT_UNDEFINED)
		chat_fail_undefined(call->context, value);
	if (value.type != CHAT_STRING)
		chat_fail(call->context, MIMEO_E_INVALID, "an argument must be a string, not '%s'",
			chat_type_name(value));
	return value.string;
}
