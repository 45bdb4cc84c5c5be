/* SPDX-License-Identifier: MIT */
#include "daemon/http/base64.h"

#include <stdint.h>
#include <stdlib.h>

#include "ipc/cleanup.h"

json_t *base64_json(const void *data, size_t n)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	const uint8_t *bytes = data;
	CLEANUP(cleanup_free) char *text = malloc((n + 2) / 3 * 4 + 1);
	size_t length = 0;

	if (!text)
		return NULL;
	for (size_t i = 0; i < n; i += 3) {
		uint32_t group = (uint32_t)bytes[i] << 16 | (i + 1 < n ? (uint32_t)bytes[i + 1] << 8 : 0) |
			(i + 2 < n ? bytes[i + 2] : 0);

		text[length++] = digits[group >> 18];
		text[length++] = digits[group >> 12 & 63];
		text[length++] = i + 1 < n ? digits[group >> 6 & 63] : '=';
		text[length++] = i + 2 < n ? digits[group & 63] : '=';
	}
	return json_stringn(text, length);
}
