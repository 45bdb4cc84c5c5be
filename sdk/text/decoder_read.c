/* SPDX-License-Identifier: MIT */

/* The decoder's part of tokenizer.json. */

#include <string.h>

#include "sdk/text/decoder.h"

#define DECODER_DEPTH_MAX 8u

static struct decoder_step *decoder_add(
	struct decoder *decoder, const struct spec *spec, enum decoder_kind kind)
{
	if (decoder->n == DECODER_STEPS_MAX) {
		spec_fail(spec, MIMEO_E_UNSUPPORTED, "more than %u decoders", DECODER_STEPS_MAX);
		return NULL;
	}
	struct decoder_step *step = &decoder->steps[decoder->n++];
	*step = (struct decoder_step){.kind = kind};
	return step;
}

static void decoder_read_text(
	struct decoder_text *text, const struct spec *spec, const char *key, bool may_be_empty)
{
	size_t length;
	const char *string = spec_string(spec, key, &length);

	if (length > DECODER_TEXT_MAX || (length == 0 && !may_be_empty)) {
		spec_fail(spec, MIMEO_E_UNSUPPORTED,
			"%s: %zu bytes are not supported; the range is %u to %u", key, length,
			!may_be_empty, DECODER_TEXT_MAX);
		return;
	}
	memcpy(text->bytes, string, length);
	text->length = length;
}

static void decoder_read_character(
	struct decoder_text *text, const struct spec *spec, const char *key)
{
	text->length = utf8_encode(text->bytes, spec_character(spec, key));
}

static void decoder_read_replace(struct decoder *decoder, const struct spec *spec)
{
	static const char *const known[] = {"pattern", "content", NULL};
	struct decoder_step *step = decoder_add(decoder, spec, DECODER_REPLACE);

	spec_allow(spec, known);
	if (!step)
		return;
	pattern_init(&step->pattern, spec, "pattern");
	if (step->pattern.literal && step->pattern.length > DECODER_TEXT_MAX)
		spec_refuse(spec, "pattern");
	decoder_read_text(&step->text, spec, "content", true);
}

static void decoder_read_strip(struct decoder *decoder, const struct spec *spec)
{
	static const char *const known[] = {"content", "start", "stop", NULL};
	struct decoder_step *step = decoder_add(decoder, spec, DECODER_STRIP);

	spec_allow(spec, known);
	if (!step)
		return;
	decoder_read_character(&step->text, spec, "content");
	step->start = spec_u32(spec, "start", DECODER_STRIP_MAX, 0);
	step->stop = spec_u32(spec, "stop", DECODER_STRIP_MAX, 0);
}

static void decoder_read_metaspace(struct decoder *decoder, const struct spec *spec)
{
	static const char *const known[] = {
		"replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split", NULL};
	static const char *const schemes[] = {"always", "never", "first"};
	struct decoder_step *step = decoder_add(decoder, spec, DECODER_METASPACE);

	spec_allow(spec, known);
	if (!step)
		return;
	decoder_read_character(&step->text, spec, "replacement");
	step->prepends = spec_bool(spec, "add_prefix_space", true);
	if (spec_field(spec, "prepend_scheme"))
		step->prepends = spec_choice(spec, "prepend_scheme", schemes, 3) != 1;
}

static void decoder_read_wordpiece(struct decoder *decoder, const struct spec *spec)
{
	static const char *const known[] = {"prefix", "cleanup", NULL};
	struct decoder_step *step = decoder_add(decoder, spec, DECODER_WORDPIECE);

	spec_allow(spec, known);
	if (!step)
		return;
	decoder_read_text(&step->text, spec, "prefix", true);
	step->cleanup = spec_bool(spec, "cleanup", true);
}

static void decoder_read_bpe(struct decoder *decoder, const struct spec *spec)
{
	static const char *const known[] = {"suffix", NULL};
	struct decoder_step *step = decoder_add(decoder, spec, DECODER_BPE);

	spec_allow(spec, known);
	if (step)
		decoder_read_text(&step->text, spec, "suffix", false);
}

static void decoder_read_ctc(struct decoder *decoder, const struct spec *spec)
{
	static const char *const known[] = {"pad_token", "word_delimiter_token", "cleanup", NULL};
	struct decoder_step *step = decoder_add(decoder, spec, DECODER_CTC);

	spec_allow(spec, known);
	if (!step)
		return;
	decoder_read_text(&step->text, spec, "pad_token", false);
	decoder_read_text(&step->delimiter, spec, "word_delimiter_token", false);
	step->cleanup = spec_bool(spec, "cleanup", true);
}

static void decoder_read_plain(struct decoder *decoder, const struct spec *spec, const char *type)
{
	static const char *const known[] = {NULL};
	static const char *const known_byte_level[] = {
		"add_prefix_space", "trim_offsets", "use_regex", NULL};

	if (strcmp(type, "ByteLevel") == 0) {
		spec_allow(spec, known_byte_level);
		decoder_add(decoder, spec, DECODER_BYTE_LEVEL);
		return;
	}
	spec_allow(spec, known);
	if (strcmp(type, "ByteFallback") == 0)
		decoder_add(decoder, spec, DECODER_BYTE_FALLBACK);
	else if (strcmp(type, "Fuse") == 0)
		decoder_add(decoder, spec, DECODER_FUSE);
	else
		spec_refuse(spec, "type");
}

static void decoder_read(struct decoder *decoder, const struct spec *spec, unsigned depth)
{
	const char *type = spec_type(spec);
	struct spec element;

	if (depth > DECODER_DEPTH_MAX) {
		spec_fail(spec, MIMEO_E_UNSUPPORTED, "sequences are nested too deeply");
	} else if (strcmp(type, "Sequence") == 0) {
		size_t n = spec_count(spec, "decoders", DECODER_STEPS_MAX);

		for (size_t i = 0; i < n && spec_element(spec, "decoders", i, &element); i++)
			decoder_read(decoder, &element, depth + 1);
	} else if (strcmp(type, "Replace") == 0) {
		decoder_read_replace(decoder, spec);
	} else if (strcmp(type, "Strip") == 0) {
		decoder_read_strip(decoder, spec);
	} else if (strcmp(type, "Metaspace") == 0) {
		decoder_read_metaspace(decoder, spec);
	} else if (strcmp(type, "WordPiece") == 0) {
		decoder_read_wordpiece(decoder, spec);
	} else if (strcmp(type, "BPEDecoder") == 0) {
		decoder_read_bpe(decoder, spec);
	} else if (strcmp(type, "CTC") == 0) {
		decoder_read_ctc(decoder, spec);
	} else {
		decoder_read_plain(decoder, spec, type);
	}
}

bool decoder_init(struct decoder *decoder, const struct spec *root)
{
	bool is_fused = false;
	struct spec spec;

	*decoder = (struct decoder){0};
	if (!spec_field(root, "decoder")) {
		decoder_add(decoder, root, DECODER_JOIN);
		return true;
	}
	if (spec_member(root, "decoder", &spec))
		decoder_read(decoder, &spec, 0);
	for (unsigned i = 0; i < decoder->n; i++) {
		decoder->steps[i].is_fused = is_fused;
		is_fused |= decoder->steps[i].kind == DECODER_FUSE ||
			    decoder->steps[i].kind == DECODER_BYTE_LEVEL;
	}
	return root->file->rc == 0;
}

void decoder_deinit(struct decoder *decoder)
{
	for (unsigned i = 0; i < decoder->n; i++)
		pattern_deinit(&decoder->steps[i].pattern);
	*decoder = (struct decoder){0};
}
