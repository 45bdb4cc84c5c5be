/* SPDX-License-Identifier: MIT */

/*
 * A chat template of any bytes, up to the first NUL, rendered with the request that follows it.
 * What is rendered is UTF-8 with a mark for each byte; what fails says why.
 */

#include <stdlib.h>
#include <string.h>

#include "sdk/text/chat_config.h"
#include "sdk/text/utf8.h"

static const char config[] = "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\"}}";

static void render(const struct chat_set *set, const char *request, size_t length)
{
	char message[256] = "", *text;
	uint8_t *foreign;
	size_t n;

	if (chat_set_render(set, request, length, &text, &foreign, &n, message, sizeof(message))) {
		n = strnlen(message, sizeof(message));
		if (utf8_valid(message, n) != n)
			abort();
		return;
	}
	if (text[n] || utf8_valid(text, n) != n)
		abort();
	for (size_t i = 0; i < n; i++) {
		if (foreign[i] > 1)
			abort();
	}
	free(text);
	free(foreign);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *bytes = (const char *)data;
	size_t length = strnlen(bytes, size);
	struct chat_set *set;
	char message[256];

	if (chat_set_new(&set, config, strlen(config), bytes, length, message, sizeof(message)))
		abort();
	if (length < size)
		render(set, bytes + length + 1, size - length - 1);
	chat_set_free(set);
	/* the same bytes as a configuration */
	if (!chat_set_new(&set, bytes, size, NULL, 0, message, sizeof(message)))
		chat_set_free(set);
	else if (!*message)
		abort();
	return 0;
}
