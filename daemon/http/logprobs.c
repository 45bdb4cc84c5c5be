/* SPDX-License-Identifier: MIT */
#include "daemon/http/logprobs.h"

#include <stdlib.h>
#include <string.h>

#include "ipc/cleanup.h"

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */
#define LOGPROB_LEAST (-9999.0) /* JSON has no infinity */

/* A token as it is written behind another one: decoded alone, it would lose the space that it begins with. *ret [*ret_n]
 * is released by free. 0 or a status. */
static int logprobs_text(const struct upstream_model *model, int32_t token, char **ret, size_t *ret_n)
{
	const int32_t twice[2] = {token, token};
	CLEANUP(cleanup_free) char *once = NULL;
	size_t n_once = 0;

	int rc = mimeo_text_decode(model->text, twice, 1, 0, &once, &n_once);
	if (rc < 0)
		return rc;
	rc = mimeo_text_decode(model->text, twice, 2, 0, ret, ret_n);
	if (rc < 0)
		return rc;
	/* Twice it may be other characters than once. */
	if (*ret_n < n_once || ((*ret)[n_once] & 0xc0) == 0x80) {
		free(*ret);
		*ret = STEAL(once);
		*ret_n = n_once;
		return 0;
	}
	*ret_n -= n_once;
	memmove(*ret, *ret + n_once, *ret_n + 1);
	return 0;
}

/* Null of a part of a character, whose own bytes are not known here. */
static json_t *logprobs_bytes(const char *text, size_t n)
{
	if (strstr(text, REPLACEMENT))
		return json_null();
	json_t *bytes = json_array();
	for (size_t i = 0; i < n; i++)
		json_array_append_new(bytes, json_integer((unsigned char)text[i]));
	return bytes;
}

static json_t *logprobs_entry(const struct upstream_model *model, const struct mimeo_logprob *entry)
{
	CLEANUP(cleanup_free) char *text = NULL;
	double logprob = entry->logprob;
	size_t n = 0;

	if (logprobs_text(model, entry->token, &text, &n) < 0)
		return NULL;
	if (!(logprob > LOGPROB_LEAST))
		logprob = LOGPROB_LEAST;
	return json_pack("{s:s%, s:f, s:o}", "token", text, n, "logprob", logprob, "bytes", logprobs_bytes(text, n));
}

json_t *logprobs_json(const struct upstream_model *model, const struct mimeo_logprob *entries, uint32_t n_top)
{
	json_t *json = logprobs_entry(model, &entries[0]), *top = json_array();

	for (uint32_t i = 1; i <= n_top; i++) {
		if (entries[i].token >= 0)
			json_array_append_new(top, logprobs_entry(model, &entries[i]));
	}
	json_object_set_new(json, "top_logprobs", top);
	return json;
}

/* {"TOKEN": LOGPROB, ...} */
static json_t *logprobs_legacy_top(const json_t *list)
{
	json_t *top = json_object();
	const json_t *entry;
	size_t i;

	json_array_foreach (list, i, entry)
		json_object_set(top, json_string_value(json_object_get(entry, "token")),
			json_object_get(entry, "logprob"));
	return top;
}

static json_int_t logprobs_characters(const json_t *text)
{
	const char *bytes = json_string_value(text);
	json_int_t n = 0;

	for (size_t i = 0; i < json_string_length(text); i++)
		n += (bytes[i] & 0xc0) != 0x80;
	return n;
}

json_t *logprobs_legacy(const json_t *list, json_int_t *offset)
{
	json_t *tokens = json_array(), *logprobs = json_array(), *top = json_array(), *offsets = json_array();
	const json_t *entry;
	size_t i;

	json_array_foreach (list, i, entry) {
		json_array_append(tokens, json_object_get(entry, "token"));
		json_array_append(logprobs, json_object_get(entry, "logprob"));
		json_array_append_new(top, logprobs_legacy_top(json_object_get(entry, "top_logprobs")));
		json_array_append_new(offsets, json_integer(*offset));
		*offset += logprobs_characters(json_object_get(entry, "token"));
	}
	return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", logprobs, "top_logprobs", top,
		"text_offset", offsets);
}
