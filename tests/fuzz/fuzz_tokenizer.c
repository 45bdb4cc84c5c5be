/* SPDX-License-Identifier: MIT */

/*
 * A tokenizer.json, a NUL byte, and a text. What is accepted must encode and decode any text: ids
 * are tokens, text is UTF-8, and tokens one by one give the text of all at once.
 */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <mimeo/text.h>

#include "sdk/text/tokenizer.h"
#include "sdk/text/utf8.h"

static void check_decode(
	const struct tokenizer *tokenizer, const int32_t *ids, size_t n, bool skip_special)
{
	struct bytes streamed = {0};
	struct decoder_run run;
	char *text;
	size_t length;

	int rc = tokenizer_decode(
		tokenizer, ids, n, skip_special ? MIMEO_TEXT_SKIP_SPECIAL : 0, &text, &length);
	if (rc < 0) {
		if (rc != MIMEO_E_TOO_LONG)
			abort();
		return;
	}
	if (utf8_valid(text, length) < length)
		abort();
	decoder_run_init(&run, tokenizer_decoder(tokenizer), &streamed);
	for (size_t i = 0; i < n; i++) {
		size_t n_token;
		const char *token = tokenizer_decoded(tokenizer, ids[i], skip_special, &n_token);

		if (token && decoder_run_push(&run, token, n_token) == 0 &&
			utf8_valid(streamed.data ? streamed.data : "", streamed.length) <
				streamed.length)
			abort();
	}
	if (decoder_run_end(&run) == 0 &&
		(streamed.length != length ||
			(length > 0 && memcmp(streamed.data, text, length) != 0)))
		abort();
	decoder_run_deinit(&run);
	bytes_deinit(&streamed);
	free(text);
}

static void check_text(const struct tokenizer *tokenizer, const char *text, size_t length,
	uint32_t flags, const uint8_t *foreign)
{
	int32_t *ids;
	size_t n;

	int rc = tokenizer_encode(tokenizer, text, length, foreign, flags, &ids, &n);
	if (rc < 0) {
		if (rc != MIMEO_E_INVALID && rc != MIMEO_E_TOO_LONG)
			abort();
		return;
	}
	for (size_t i = 0; i < n; i++) {
		if (ids[i] < 0)
			abort();
	}
	check_decode(tokenizer, ids, n, flags != 0);
	free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *end = memchr(data, 0, size);
	size_t json_length = end ? (size_t)(end - data) : size;
	char message[256] = "";
	struct tokenizer *tokenizer;

	int rc = tokenizer_new(
		&tokenizer, (const char *)data, json_length, message, sizeof(message));
	if (rc < 0) {
		if (!*message)
			abort();
		return 0;
	}
	const char *text = (const char *)data + json_length;
	size_t length = size - json_length;
	uint8_t *foreign = malloc(length + 1);

	for (size_t i = 0; foreign && i < length; i++)
		foreign[i] = (uint8_t)text[i] & 1;
	check_text(tokenizer, text, length, 0, NULL);
	check_text(tokenizer, text, length, MIMEO_TEXT_SPECIAL | MIMEO_TEXT_LITERAL, NULL);
	check_text(tokenizer, text, length, MIMEO_TEXT_SPECIAL, foreign);
	free(foreign);
	tokenizer_free(tokenizer);
	return 0;
}
