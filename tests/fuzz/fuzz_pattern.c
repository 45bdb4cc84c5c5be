/* SPDX-License-Identifier: MIT */

/* A regular expression in Oniguruma's syntax, a NUL byte, and a text. Matches go forward and lie on
 * characters. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "sdk/text/pattern.h"
#include "sdk/text/utf8.h"

static void check_matches(const struct pattern *pattern, const char *text, size_t length)
{
	struct pattern_search search;
	struct matcher matcher;
	size_t start, end, last = 0;
	int rc;

	matcher_init(&matcher, length);
	pattern_search_init(&search, pattern, &matcher, text, length);
	while ((rc = pattern_search_next(&search, &start, &end)) > 0) {
		if (start < last || end < start || end > length ||
			(start < length && utf8_is_continuation(text[start])) ||
			(end < length && utf8_is_continuation(text[end])))
			abort();
		last = end;
	}
	matcher_deinit(&matcher);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *end = memchr(data, 0, size);
	size_t n = end ? (size_t)(end - data) : size;
	char message[256] = "";
	struct fault fault = {.message = message, .size = sizeof(message)};
	struct spec_file file = {.fault = &fault};
	struct spec spec = {.where = "p", .file = &file};
	struct bytes regex = {0}, text = {0}, none = {0};
	struct pattern pattern;

	/* both come from JSON, or were repaired */
	utf8_repair((const char *)data, n, NULL, &regex, &none);
	utf8_repair((const char *)data + n, size - n, NULL, &text, &none);
	if (pattern_init_regex(&pattern, &spec, regex.data ? regex.data : "", regex.length)) {
		if (text.length > 0)
			check_matches(&pattern, text.data, text.length);
	} else if (!*message) {
		abort();
	}
	pattern_deinit(&pattern);
	bytes_deinit(&regex);
	bytes_deinit(&text);
	return 0;
}
