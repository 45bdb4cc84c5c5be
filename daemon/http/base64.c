/* SPDX-License-Identifier: MIT */
#include "daemon/http/base64.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>

#include "ipc/cleanup.h"

int base64_append(struct bytes *bytes, const void *data, size_t n)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	const uint8_t *from = data;
	CLEANUP(cleanup_free) char *text = malloc((n + 2) / 3 * 4 + 1);
	size_t length = 0;

	if (!text)
		return -ENOMEM;
	for (size_t i = 0; i < n; i += 3) {
		uint32_t group = (uint32_t)from[i] << 16 | (i + 1 < n ? (uint32_t)from[i + 1] << 8 : 0) |
			(i + 2 < n ? from[i + 2] : 0);

		text[length++] = digits[group >> 18];
		text[length++] = digits[group >> 12 & 63];
		text[length++] = i + 1 < n ? digits[group >> 6 & 63] : '=';
		text[length++] = i + 2 < n ? digits[group & 63] : '=';
	}
	return bytes_append(bytes, text, length);
}
