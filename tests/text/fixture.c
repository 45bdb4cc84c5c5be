/* SPDX-License-Identifier: MIT */
#include "tests/text/fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sdk/text/byte_level.h"
#include "sdk/text/utf8.h"

json_t *fixture_load(void)
{
	char path[4096];
	json_error_t reason;

	snprintf(path, sizeof(path), "%s/tests/text/tokenizers.json", getenv("MIMEO_SOURCE"));
	json_t *table = json_load_file(path, JSON_ALLOW_NUL, &reason);
	if (!table)
		fail_msg("%s: line %d: %s", path, reason.line, reason.text);
	return table;
}

const json_t *fixture_find(const json_t *table, const char *claim)
{
	const json_t *entries = json_object_get(table, "entries");

	for (size_t i = 0; i < json_array_size(entries); i++) {
		const json_t *entry = json_array_get(entries, i);

		if (strcmp(json_string_value(json_object_get(entry, "claim")), claim) == 0)
			return entry;
	}
	fail_msg("tokenizers.json has no entry \"%s\"", claim);
	return NULL;
}

int fixture_file(const char *content, size_t length)
{
	int fd = memfd_create("fixture", MFD_CLOEXEC);

	assert_true(fd >= 0);
	for (size_t done = 0; done < length;) {
		ssize_t n = write(fd, content + done, length - done);

		assert_true(n > 0);
		done += (size_t)n;
	}
	return fd;
}

int fixture_open_json(struct mimeo_text **ret, const char *json, char *message, size_t size)
{
	struct mimeo_model_files files = MIMEO_MODEL_FILES_INIT;

	files.tokenizer = fixture_file(json, strlen(json));
	int rc = mimeo_text_open_files(ret, &files, message, size);
	close(files.tokenizer);
	return rc;
}

struct mimeo_text *fixture_open(const json_t *table, const json_t *entry)
{
	size_t index = (size_t)json_integer_value(json_object_get(entry, "model"));
	json_t *tokenizer = json_copy(json_object_get(entry, "tokenizer"));
	char message[256] = "";
	struct mimeo_text *text;

	json_object_set(
		tokenizer, "model", json_array_get(json_object_get(table, "models"), index));
	char *json = json_dumps(tokenizer, JSON_COMPACT);
	assert_non_null(json);
	if (fixture_open_json(&text, json, message, sizeof(message)) < 0)
		fail_msg("%s", message);
	free(json);
	json_decref(tokenizer);
	return text;
}

struct mimeo_text *fixture_open_bytes(void)
{
	char json[8192], message[256] = "";
	struct mimeo_text *text;
	size_t n = (size_t)snprintf(json, sizeof(json),
		"{\"added_tokens\":[{\"id\":256,\"content\":\"<a>\",\"special\":true,"
		"\"normalized\":false},"
		"{\"id\":257,\"content\":\"<b>\",\"special\":true,\"normalized\":false}],"
		"\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_"
		"regex\":false},"
		"\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"merges\":[],"
		"\"vocab\":{");

	for (unsigned i = 0; i < 256; i++) {
		uint32_t c = byte_level_character((uint8_t)i);

		n += (size_t)snprintf(json + n, sizeof(json) - n, "%s\"", i > 0 ? "," : "");
		if (c == '"' || c == '\\')
			json[n++] = '\\';
		n += utf8_encode(json + n, c);
		n += (size_t)snprintf(json + n, sizeof(json) - n, "\":%u", i);
	}
	snprintf(json + n, sizeof(json) - n, "}}}");
	if (fixture_open_json(&text, json, message, sizeof(message)) < 0)
		fail_msg("%s", message);
	return text;
}
