/* SPDX-License-Identifier: MIT */
#include "sdk/text/decoder_text.h"

#include <assert.h>

size_t decoder_text_replace(const char *text, size_t length, const char *from, size_t n_from,
	const char *to, size_t n_to, struct bytes *out)
{
	size_t done = 0;
	const char *match;

	assert(n_from > 0);
	while (done < length && (match = memmem(text + done, length - done, from, n_from))) {
		size_t start = (size_t)(match - text);

		bytes_add(out, text + done, start - done);
		bytes_add(out, to, n_to);
		done = start + n_from;
	}
	return done;
}

void decoder_text_change(struct bytes *text, struct bytes *scratch, const char *from, size_t n_from,
	const char *to, size_t n_to)
{
	struct bytes changed;

	if (text->length == 0 || text->rc < 0 || !memmem(text->data, text->length, from, n_from))
		return;
	bytes_clear(scratch);
	size_t done =
		decoder_text_replace(text->data, text->length, from, n_from, to, n_to, scratch);
	bytes_add(scratch, text->data + done, text->length - done);
	changed = *scratch;
	*scratch = *text;
	*text = changed;
}

size_t decoder_text_overlap(const char *text, size_t length, const char *string, size_t n)
{
	for (size_t overlap = n - 1 < length ? n - 1 : length; overlap > 0; overlap--) {
		if (memcmp(text + length - overlap, string, overlap) == 0)
			return overlap;
	}
	return 0;
}

int decoder_text_replace_pattern(const struct pattern *pattern, struct matcher *matcher,
	const char *text, size_t length, const char *to, size_t n_to, struct bytes *out)
{
	struct pattern_search search;
	size_t start, end, done = 0;
	int rc = 0;

	if (length == 0)
		return 0;
	pattern_search_init(&search, pattern, matcher, text, length);
	while ((rc = pattern_search_next(&search, &start, &end)) > 0) {
		bytes_add(out, text + done, start - done);
		bytes_add(out, to, n_to);
		done = end;
	}
	bytes_add(out, text + done, length - done);
	return rc;
}

void decoder_text_clean(struct bytes *text, struct bytes *scratch)
{
	static const char *const changes[][2] = {
		{" .", "."},
		{" ?", "?"},
		{" !", "!"},
		{" ,", ","},
		{" ' ", "'"},
		{" n't", "n't"},
		{" 'm", "'m"},
		{" do not", " don't"},
		{" 's", "'s"},
		{" 've", "'ve"},
		{" 're", "'re"},
	};

	for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++)
		decoder_text_change(text, scratch, changes[i][0], strlen(changes[i][0]),
			changes[i][1], strlen(changes[i][1]));
}
