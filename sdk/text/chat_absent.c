/* SPDX-License-Identifier: MIT */

/* Stands in for chat templates in a build without them. */

#include <mimeo/types.h>

#include "sdk/text/chat_template.h"
#include "sdk/text/fault.h"

__attribute__((weak)) int chat_template_new(struct chat_template **ret_template, const char *source,
	size_t length, char *message, size_t size)
{
	return fault_set(&(struct fault){message, size}, MIMEO_E_UNSUPPORTED,
		"this library is built without chat templates");
}

__attribute__((weak)) void chat_template_free(struct chat_template *chat_template)
{
}

__attribute__((weak)) int chat_template_render(const struct chat_template *chat_template,
	const json_t *variables, const json_t *chat, char **ret_text, uint8_t **ret_foreign,
	size_t *ret_length, char *message, size_t size)
{
	return fault_set(&(struct fault){message, size}, MIMEO_E_UNSUPPORTED,
		"this library is built without chat templates");
}
