/* SPDX-License-Identifier: MIT */
#include "sdk/text/pretokenizer.h"

#include <assert.h>

#include "sdk/text/byte_level.h"
#include "sdk/text/unichar.h"

/* A piece on its way through the steps. */
struct pretokenizer_stage {
	const struct pretokenizer *pretokenizer;
	struct pretokenizer_work *work;
	unsigned step; /* the one that `text` is cut by */
	struct span text;
};

static int pretokenizer_pass(const struct pretokenizer_stage *stage, struct span piece);

/* ---- behaviors ---- */

/* Receives what a step found, in order and without gaps, and hands pieces to the next step. */
struct pretokenizer_cut {
	const struct pretokenizer_stage *stage;
	enum pretokenizer_behavior behavior;
	size_t start, end; /* a piece that is not finished; empty: none */
	bool is_match;     /* the last part was a match */
	bool has_piece;
};

static int pretokenizer_emit(struct pretokenizer_cut *cut)
{
	if (!cut->has_piece)
		return 0;
	cut->has_piece = false;
	return cut->start < cut->end ? pretokenizer_pass(cut->stage,
					       span_slice(cut->stage->text, cut->start, cut->end))
				     : 0;
}

/* Whether a part is joined to the one before it. */
static bool pretokenizer_joins(const struct pretokenizer_cut *cut, bool is_match)
{
	switch (cut->behavior) {
	case PRETOKENIZER_WITH_PREVIOUS:
		return is_match && !cut->is_match;
	case PRETOKENIZER_WITH_NEXT:
		return !is_match && cut->is_match;
	case PRETOKENIZER_CONTIGUOUS:
		return is_match == cut->is_match;
	default:
		return false;
	}
}

static int pretokenizer_part(struct pretokenizer_cut *cut, size_t start, size_t end, bool is_match)
{
	bool joins = cut->has_piece && pretokenizer_joins(cut, is_match);
	int rc = joins ? 0 : pretokenizer_emit(cut);

	if (rc != 0)
		return rc;
	cut->is_match = is_match;
	if (cut->behavior == PRETOKENIZER_REMOVED && is_match)
		return 0;
	if (!joins)
		cut->start = start;
	cut->end = end;
	cut->has_piece = true;
	/* Nothing can join. */
	return cut->behavior <= PRETOKENIZER_ISOLATED ? pretokenizer_emit(cut) : 0;
}

/* ---- steps ---- */

static int pretokenizer_split(
	const struct pretokenizer_stage *stage, const struct pretokenizer_step *step)
{
	struct pretokenizer_cut cut = {.stage = stage, .behavior = step->behavior};
	struct pattern_search search;
	size_t start, end, done = 0;
	int rc;

	pattern_search_init(&search, &step->pattern, stage->work->matcher, stage->text.bytes,
		stage->text.length);
	while ((rc = pattern_search_next(&search, &start, &end)) > 0) {
		rc = done < start ? pretokenizer_part(&cut, done, start, step->invert) : 0;
		if (rc == 0)
			rc = pretokenizer_part(&cut, start, end, !step->invert);
		if (rc != 0)
			return rc;
		done = end;
	}
	if (rc == 0 && done < stage->text.length)
		rc = pretokenizer_part(&cut, done, stage->text.length, step->invert);
	return rc == 0 ? pretokenizer_emit(&cut) : rc;
}

static int pretokenizer_characters(
	const struct pretokenizer_stage *stage, const struct pretokenizer_step *step)
{
	struct pretokenizer_cut cut = {.stage = stage, .behavior = step->behavior};
	size_t done = 0;
	unsigned size;
	int rc = 0;

	for (size_t at = 0; at < stage->text.length; at += size) {
		uint32_t c = utf8_decode(stage->text.bytes + at, &size);

		if (step->kind == PRETOKENIZER_CHARACTER ? c != step->character
							 : !step->is_match(c))
			continue;
		rc = done < at ? pretokenizer_part(&cut, done, at, false) : 0;
		if (rc == 0)
			rc = pretokenizer_part(&cut, at, at + size, true);
		if (rc != 0)
			return rc;
		done = at + size;
	}
	if (done < stage->text.length)
		rc = pretokenizer_part(&cut, done, stage->text.length, false);
	return rc == 0 ? pretokenizer_emit(&cut) : rc;
}

enum pretokenizer_class { PRETOKENIZER_SPACE, PRETOKENIZER_WORD, PRETOKENIZER_OTHER };

static enum pretokenizer_class pretokenizer_class(uint32_t c)
{
	return unichar_is_word(c)          ? PRETOKENIZER_WORD
	       : unichar_is_white_space(c) ? PRETOKENIZER_SPACE
					   : PRETOKENIZER_OTHER;
}

static int pretokenizer_words(const struct pretokenizer_stage *stage)
{
	enum pretokenizer_class last = PRETOKENIZER_SPACE;
	size_t start = 0, at = 0;
	unsigned size;
	int rc = 0;

	for (; rc == 0 && at < stage->text.length; at += size) {
		enum pretokenizer_class class =
			pretokenizer_class(utf8_decode(stage->text.bytes + at, &size));

		if (class == last)
			continue;
		if (last != PRETOKENIZER_SPACE)
			rc = pretokenizer_pass(stage, span_slice(stage->text, start, at));
		last = class;
		start = at;
	}
	if (rc == 0 && last != PRETOKENIZER_SPACE)
		rc = pretokenizer_pass(stage, span_slice(stage->text, start, at));
	return rc;
}

static int pretokenizer_length(
	const struct pretokenizer_stage *stage, const struct pretokenizer_step *step)
{
	size_t start = 0;

	while (start < stage->text.length) {
		size_t end = start;

		for (uint32_t n = 0; n < step->length && end < stage->text.length; n++)
			end += utf8_size(stage->text.bytes[end]);
		int rc = pretokenizer_pass(stage, span_slice(stage->text, start, end));
		if (rc != 0)
			return rc;
		start = end;
	}
	return 0;
}

/* The text of this step's buffer goes on. */
static int pretokenizer_pass_buffer(const struct pretokenizer_stage *stage, struct bytes *out)
{
	if (out->rc < 0)
		return out->rc;
	return pretokenizer_pass(stage, (struct span){.bytes = out->data,
						.length = out->length,
						.at_origin = stage->text.at_origin});
}

static int pretokenizer_metaspace(
	const struct pretokenizer_stage *stage, const struct pretokenizer_step *step)
{
	struct bytes *out = &stage->work->text[stage->step];
	const char *at = stage->text.bytes, *end = at + stage->text.length, *space;
	bool prepends = step->prepend == PRETOKENIZER_ALWAYS ||
			(step->prepend == PRETOKENIZER_FIRST && stage->text.at_origin);

	bytes_clear(out);
	if (prepends && *at != ' ' &&
		((size_t)(end - at) < step->replacement_size ||
			memcmp(at, step->replacement, step->replacement_size) != 0))
		bytes_add(out, step->replacement, step->replacement_size);
	while ((space = memchr(at, ' ', (size_t)(end - at)))) {
		bytes_add(out, at, (size_t)(space - at));
		bytes_add(out, step->replacement, step->replacement_size);
		at = space + 1;
	}
	bytes_add(out, at, (size_t)(end - at));
	return pretokenizer_pass_buffer(stage, out);
}

static int pretokenizer_prefix_space(const struct pretokenizer_stage *stage)
{
	struct bytes *out = &stage->work->text[stage->step];

	if (stage->text.bytes[0] == ' ')
		return pretokenizer_pass(stage, stage->text);
	bytes_clear(out);
	bytes_add(out, " ", 1);
	bytes_add(out, stage->text.bytes, stage->text.length);
	return pretokenizer_pass_buffer(stage, out);
}

static int pretokenizer_byte_level(const struct pretokenizer_stage *stage)
{
	struct bytes *out = &stage->work->text[stage->step];

	bytes_clear(out);
	byte_level_add(out, stage->text.bytes, stage->text.length);
	return pretokenizer_pass_buffer(stage, out);
}

static int pretokenizer_cut_by(
	const struct pretokenizer_stage *stage, const struct pretokenizer_step *step)
{
	switch (step->kind) {
	case PRETOKENIZER_SPLIT:
		return pretokenizer_split(stage, step);
	case PRETOKENIZER_CHARACTERS:
	case PRETOKENIZER_CHARACTER:
		return pretokenizer_characters(stage, step);
	case PRETOKENIZER_WORDS:
		return pretokenizer_words(stage);
	case PRETOKENIZER_METASPACE:
		return pretokenizer_metaspace(stage, step);
	case PRETOKENIZER_PREFIX_SPACE:
		return pretokenizer_prefix_space(stage);
	case PRETOKENIZER_BYTE_LEVEL:
		return pretokenizer_byte_level(stage);
	case PRETOKENIZER_LENGTH:
		return pretokenizer_length(stage, step);
	}
	return MIMEO_E_INVALID;
}

/* ---- the run ---- */

static int pretokenizer_stage_run(const struct pretokenizer_stage *stage)
{
	const struct pretokenizer *pretokenizer = stage->pretokenizer;

	assert(stage->text.length > 0);
	if (stage->step == pretokenizer->n)
		return stage->work->word(stage->work->data, stage->text.bytes, stage->text.length);
	return pretokenizer_cut_by(stage, &pretokenizer->steps[stage->step]);
}

/* A piece that is not empty goes to the next step. */
static int pretokenizer_pass(const struct pretokenizer_stage *stage, struct span piece)
{
	struct pretokenizer_stage next = *stage;

	next.step++;
	next.text = piece;
	return pretokenizer_stage_run(&next);
}

int pretokenizer_run(
	const struct pretokenizer *pretokenizer, struct pretokenizer_work *work, struct span text)
{
	struct pretokenizer_stage stage = {
		.pretokenizer = pretokenizer, .work = work, .text = text};

	return text.length > 0 ? pretokenizer_stage_run(&stage) : 0;
}

void pretokenizer_work_deinit(struct pretokenizer_work *work)
{
	for (unsigned i = 0; i < PRETOKENIZER_STEPS_MAX; i++)
		bytes_deinit(&work->text[i]);
}
