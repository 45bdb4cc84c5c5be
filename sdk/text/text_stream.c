/* SPDX-License-Identifier: MIT */

/* Decoding as tokens come. */

#include <assert.h>
#include <stdlib.h>

#include <mimeo/text.h>

#include "ipc/cleanup.h"
#include "sdk/text/stops.h"
#include "sdk/text/text_internal.h"
#include "sdk/versioned.h"

struct mimeo_text_stream {
	const struct tokenizer *tokenizer;
	bool skip_special;
	bool ended;
	int stopped; /* index of the stop string that was found, or -1 */
	struct decoder_run run;
	struct bytes text; /* decoded: first what may be the beginning of a stop string, then what
			      is new */
	struct stops stops;
	struct bytes out; /* the caller's until the next call */
};

DEFINE_CLEANUP(stream, struct mimeo_text_stream, mimeo_text_stream_free)

static int text_stream_add(struct mimeo_text_stream *stream, int32_t id)
{
	size_t length;
	const char *token = tokenizer_decoded(stream->tokenizer, id, stream->skip_special, &length);

	return token ? decoder_run_push(&stream->run, token, length) : 0;
}

/* Look for stop strings in the text behind the first `seen` bytes; if there is one, the text ends
 * before it. */
static void text_stream_look(struct mimeo_text_stream *stream, size_t seen)
{
	size_t end;

	if (stream->text.length == seen)
		return;
	int found = stops_push(
		&stream->stops, stream->text.data + seen, stream->text.length - seen, &end);
	if (found < 0)
		return;
	assert(stream->stops.stops[found].length <= seen + end);
	stream->stopped = found;
	stream->text.length = seen + end - stream->stops.stops[found].length;
}

/* Move the text but for its last `held` bytes to `out`. */
static int text_stream_release(
	struct mimeo_text_stream *stream, size_t held, const char **ret_utf8, size_t *ret_length)
{
	size_t certain = stream->text.length - held;

	assert(held <= stream->text.length);
	bytes_clear(&stream->out);
	bytes_add(&stream->out, stream->text.data, certain);
	if (bytes_terminate(&stream->out) < 0)
		return stream->out.rc;
	if (certain > 0)
		memmove(stream->text.data, stream->text.data + certain, held);
	stream->text.length = held;
	*ret_utf8 = stream->out.data;
	*ret_length = stream->out.length;
	return 0;
}

static int text_stream_init(
	struct mimeo_text_stream *stream, const struct mimeo_text_stream_config *config)
{
	int rc = stops_init(&stream->stops, config->stop, config->n_stop);

	for (size_t i = 0; i < config->n_before && rc == 0; i++) {
		rc = text_stream_add(stream, config->before[i]);
		stream->text.length = 0;
	}
	return rc == 0 ? decoder_run_forget(&stream->run) : rc;
}

int mimeo_text_stream_new(struct mimeo_text_stream **ret_stream, const struct mimeo_text *text,
	const struct mimeo_text_stream_config *config)
{
	struct mimeo_text_stream_config known = MIMEO_TEXT_STREAM_CONFIG_INIT;

	if (config && !versioned_read(&known, sizeof(known), config, sizeof(known)))
		return MIMEO_E_INVALID;
	if ((known.flags & ~MIMEO_TEXT_SKIP_SPECIAL) || (known.n_before > 0 && !known.before))
		return MIMEO_E_INVALID;
	CLEANUP(cleanup_stream) struct mimeo_text_stream *stream = calloc(1, sizeof(*stream));
	if (!stream)
		return MIMEO_E_NO_MEMORY;
	stream->tokenizer = text->tokenizer;
	stream->skip_special = (known.flags & MIMEO_TEXT_SKIP_SPECIAL) != 0;
	stream->stopped = -1;
	decoder_run_init(&stream->run, tokenizer_decoder(text->tokenizer), &stream->text);
	int rc = text_stream_init(stream, &known);
	if (rc < 0)
		return rc;
	*ret_stream = STEAL(stream);
	return 0;
}

void mimeo_text_stream_free(struct mimeo_text_stream *stream)
{
	if (!stream)
		return;
	decoder_run_deinit(&stream->run);
	stops_deinit(&stream->stops);
	bytes_deinit(&stream->text);
	bytes_deinit(&stream->out);
	free(stream);
}

int mimeo_text_stream_push(struct mimeo_text_stream *stream, const int32_t *ids, size_t n,
	const char **ret_utf8, size_t *ret_length)
{
	if (stream->ended)
		return MIMEO_E_INVALID;
	for (size_t i = 0; i < n && stream->stopped < 0; i++) {
		size_t seen = stream->text.length;
		int rc = text_stream_add(stream, ids[i]);

		if (rc < 0)
			return rc;
		text_stream_look(stream, seen);
	}
	size_t held = stream->stopped < 0 ? stops_held(&stream->stops) : 0;
	int rc = text_stream_release(stream, held, ret_utf8, ret_length);
	return rc < 0 ? rc : stream->stopped >= 0;
}

int mimeo_text_stream_end(
	struct mimeo_text_stream *stream, const char **ret_utf8, size_t *ret_length)
{
	if (!stream->ended && stream->stopped < 0) {
		size_t seen = stream->text.length;
		int rc = decoder_run_end(&stream->run);

		if (rc < 0)
			return rc;
		text_stream_look(stream, seen);
	}
	stream->ended = true;
	return text_stream_release(stream, 0, ret_utf8, ret_length);
}

int mimeo_text_stream_stopped(const struct mimeo_text_stream *stream)
{
	return stream->stopped;
}
