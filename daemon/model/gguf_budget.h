/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_GGUF_BUDGET_H
#define MIMEO_DAEMON_MODEL_GGUF_BUDGET_H

/* The bytes of JSON that may be made of a file. They are taken before the values are made, which need several times as
 * much memory. */

#include <errno.h>
#include <stddef.h>

#define GGUF_BUDGET_EXCEEDED "its %s exceeds the limit of %zu bytes" /* name, limit */

struct gguf_budget {
	const char *name; /* of the text */
	size_t limit, left;
};

/* 0, or -EFBIG: then and from now on. */
static inline int gguf_budget_take(struct gguf_budget *budget, size_t bytes)
{
	if (bytes > budget->left) {
		budget->left = 0;
		return -EFBIG;
	}
	budget->left -= bytes;
	return 0;
}

/* The bytes of a string in JSON, with its quotes, as jansson writes it. */
static inline size_t gguf_budget_of_string(const char *text, size_t length)
{
	size_t bytes = length + 2;

	for (size_t i = 0; i < length; i++) {
		unsigned char byte = (unsigned char)text[i];

		if (byte == '"' || byte == '\\' || (byte >= '\b' && byte <= '\r' && byte != '\v'))
			bytes++;
		else if (byte < ' ')
			bytes += 5;
	}
	return bytes;
}

#endif
