/* SPDX-License-Identifier: MIT */

/* The pre-tokenizer's part of tokenizer.json. */

#include <assert.h>
#include <string.h>

#include "sdk/text/pretokenizer.h"
#include "sdk/text/unichar.h"

#define PRETOKENIZER_DEPTH_MAX 8u
#define PRETOKENIZER_LENGTH_MAX 1000000u
#define PRETOKENIZER_LENGTH_DEFAULT 5u

/* The expression of ByteLevel with use_regex (openai/gpt-2, encoder.py). */
static const char pretokenizer_gpt2[] =
	"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static struct pretokenizer_step *pretokenizer_add(
	struct pretokenizer *pretokenizer, const struct spec *spec, enum pretokenizer_kind kind)
{
	if (pretokenizer->n == PRETOKENIZER_STEPS_MAX) {
		spec_fail(spec, MIMEO_E_UNSUPPORTED, "more than %u pre-tokenizers",
			PRETOKENIZER_STEPS_MAX);
		return NULL;
	}
	struct pretokenizer_step *step = &pretokenizer->steps[pretokenizer->n++];
	*step = (struct pretokenizer_step){.kind = kind};
	return step;
}

static void pretokenizer_add_class(struct pretokenizer *pretokenizer, const struct spec *spec,
	bool (*is_match)(uint32_t), enum pretokenizer_behavior behavior)
{
	struct pretokenizer_step *step =
		pretokenizer_add(pretokenizer, spec, PRETOKENIZER_CHARACTERS);

	if (!step)
		return;
	step->is_match = is_match;
	step->behavior = behavior;
}

static enum pretokenizer_behavior pretokenizer_read_behavior(const struct spec *spec)
{
	static const char *const names[] = {
		"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};

	return (enum pretokenizer_behavior)spec_choice(
		spec, "behavior", names, sizeof(names) / sizeof(names[0]));
}

static void pretokenizer_read_byte_level(struct pretokenizer *pretokenizer, const struct spec *spec)
{
	static const char *const known[] = {"add_prefix_space", "trim_offsets", "use_regex", NULL};
	struct pretokenizer_step *step;

	spec_allow(spec, known);
	if (spec_bool(spec, "add_prefix_space", true))
		pretokenizer_add(pretokenizer, spec, PRETOKENIZER_PREFIX_SPACE);
	if (spec_bool(spec, "use_regex", true)) {
		step = pretokenizer_add(pretokenizer, spec, PRETOKENIZER_SPLIT);
		if (!step)
			return;
		step->behavior = PRETOKENIZER_ISOLATED;
		pattern_init_regex(
			&step->pattern, spec, pretokenizer_gpt2, sizeof(pretokenizer_gpt2) - 1);
	}
	pretokenizer_add(pretokenizer, spec, PRETOKENIZER_BYTE_LEVEL);
}

static void pretokenizer_read_split(struct pretokenizer *pretokenizer, const struct spec *spec)
{
	static const char *const known[] = {"pattern", "behavior", "invert", NULL};
	struct pretokenizer_step *step = pretokenizer_add(pretokenizer, spec, PRETOKENIZER_SPLIT);

	spec_allow(spec, known);
	if (!step)
		return;
	pattern_init(&step->pattern, spec, "pattern");
	step->behavior = pretokenizer_read_behavior(spec);
	step->invert = spec_bool(spec, "invert", false);
}

/* add_prefix_space is how older files say prepend_scheme. */
static enum pretokenizer_prepend pretokenizer_read_prepend(const struct spec *spec)
{
	static const char *const schemes[] = {"always", "never", "first"};
	bool adds = spec_bool(spec, "add_prefix_space", true);

	if (!spec_field(spec, "prepend_scheme"))
		return adds ? PRETOKENIZER_ALWAYS : PRETOKENIZER_NEVER;
	enum pretokenizer_prepend scheme =
		(enum pretokenizer_prepend)spec_choice(spec, "prepend_scheme", schemes, 3);
	if (!adds && scheme != PRETOKENIZER_NEVER)
		spec_fail(spec, MIMEO_E_INVALID, "add_prefix_space contradicts prepend_scheme");
	return scheme;
}

static void pretokenizer_read_metaspace(struct pretokenizer *pretokenizer, const struct spec *spec)
{
	static const char *const known[] = {
		"replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split", NULL};
	struct pretokenizer_step *step =
		pretokenizer_add(pretokenizer, spec, PRETOKENIZER_METASPACE);
	uint32_t replacement = spec_character(spec, "replacement");

	spec_allow(spec, known);
	if (!step)
		return;
	step->replacement_size = utf8_encode(step->replacement, replacement);
	step->prepend = pretokenizer_read_prepend(spec);
	if (!spec_bool(spec, "split", true))
		return;
	step = pretokenizer_add(pretokenizer, spec, PRETOKENIZER_CHARACTER);
	if (!step)
		return;
	step->character = replacement;
	step->behavior = PRETOKENIZER_WITH_NEXT;
}

static void pretokenizer_read_digits(struct pretokenizer *pretokenizer, const struct spec *spec)
{
	static const char *const known[] = {"individual_digits", NULL};

	spec_allow(spec, known);
	pretokenizer_add_class(pretokenizer, spec, unichar_is_numeric,
		spec_bool(spec, "individual_digits", false) ? PRETOKENIZER_ISOLATED
							    : PRETOKENIZER_CONTIGUOUS);
}

static void pretokenizer_read_punctuation(
	struct pretokenizer *pretokenizer, const struct spec *spec)
{
	static const char *const known[] = {"behavior", NULL};

	spec_allow(spec, known);
	pretokenizer_add_class(pretokenizer, spec, unichar_is_punctuation,
		spec_field(spec, "behavior") ? pretokenizer_read_behavior(spec)
					     : PRETOKENIZER_ISOLATED);
}

static void pretokenizer_read_delimiter(struct pretokenizer *pretokenizer, const struct spec *spec)
{
	static const char *const known[] = {"delimiter", NULL};
	struct pretokenizer_step *step =
		pretokenizer_add(pretokenizer, spec, PRETOKENIZER_CHARACTER);

	spec_allow(spec, known);
	if (!step)
		return;
	step->character = spec_character(spec, "delimiter");
	step->behavior = PRETOKENIZER_REMOVED;
}

static void pretokenizer_read_length(struct pretokenizer *pretokenizer, const struct spec *spec)
{
	static const char *const known[] = {"length", NULL};
	struct pretokenizer_step *step = pretokenizer_add(pretokenizer, spec, PRETOKENIZER_LENGTH);

	spec_allow(spec, known);
	if (!step)
		return;
	step->length =
		spec_u32(spec, "length", PRETOKENIZER_LENGTH_MAX, PRETOKENIZER_LENGTH_DEFAULT);
	if (step->length == 0)
		spec_refuse(spec, "length");
}

static void pretokenizer_read_plain(
	struct pretokenizer *pretokenizer, const struct spec *spec, const char *type)
{
	static const char *const known[] = {NULL};

	if (strcmp(type, "Whitespace") == 0) {
		pretokenizer_add(pretokenizer, spec, PRETOKENIZER_WORDS);
	} else if (strcmp(type, "WhitespaceSplit") == 0) {
		pretokenizer_add_class(
			pretokenizer, spec, unichar_is_white_space, PRETOKENIZER_REMOVED);
	} else if (strcmp(type, "BertPreTokenizer") == 0) {
		pretokenizer_add_class(
			pretokenizer, spec, unichar_is_white_space, PRETOKENIZER_REMOVED);
		pretokenizer_add_class(
			pretokenizer, spec, unichar_is_punctuation, PRETOKENIZER_ISOLATED);
	} else {
		spec_refuse(spec, "type");
	}
	spec_allow(spec, known);
}

static void pretokenizer_read(
	struct pretokenizer *pretokenizer, const struct spec *spec, unsigned depth)
{
	const char *type = spec_type(spec);
	struct spec element;

	if (depth > PRETOKENIZER_DEPTH_MAX) {
		spec_fail(spec, MIMEO_E_UNSUPPORTED, "sequences are nested too deeply");
	} else if (strcmp(type, "Sequence") == 0) {
		size_t n = spec_count(spec, "pretokenizers", PRETOKENIZER_STEPS_MAX);

		for (size_t i = 0; i < n && spec_element(spec, "pretokenizers", i, &element); i++)
			pretokenizer_read(pretokenizer, &element, depth + 1);
	} else if (strcmp(type, "ByteLevel") == 0) {
		pretokenizer_read_byte_level(pretokenizer, spec);
	} else if (strcmp(type, "Split") == 0) {
		pretokenizer_read_split(pretokenizer, spec);
	} else if (strcmp(type, "Metaspace") == 0) {
		pretokenizer_read_metaspace(pretokenizer, spec);
	} else if (strcmp(type, "Digits") == 0) {
		pretokenizer_read_digits(pretokenizer, spec);
	} else if (strcmp(type, "Punctuation") == 0) {
		pretokenizer_read_punctuation(pretokenizer, spec);
	} else if (strcmp(type, "CharDelimiterSplit") == 0) {
		pretokenizer_read_delimiter(pretokenizer, spec);
	} else if (strcmp(type, "FixedLength") == 0) {
		pretokenizer_read_length(pretokenizer, spec);
	} else {
		pretokenizer_read_plain(pretokenizer, spec, type);
	}
}

bool pretokenizer_init(struct pretokenizer *pretokenizer, const struct spec *root)
{
	struct spec spec;

	*pretokenizer = (struct pretokenizer){0};
	if (!spec_field(root, "pre_tokenizer"))
		return true;
	if (spec_member(root, "pre_tokenizer", &spec))
		pretokenizer_read(pretokenizer, &spec, 0);
	return root->file->rc == 0;
}

bool pretokenizer_ends_in_bytes(const struct pretokenizer *pretokenizer)
{
	return pretokenizer->n > 0 &&
	       pretokenizer->steps[pretokenizer->n - 1].kind == PRETOKENIZER_BYTE_LEVEL;
}

void pretokenizer_defer_bytes(struct pretokenizer *pretokenizer)
{
	assert(pretokenizer_ends_in_bytes(pretokenizer));
	pretokenizer->n--;
}

void pretokenizer_deinit(struct pretokenizer *pretokenizer)
{
	for (unsigned i = 0; i < pretokenizer->n; i++)
		pattern_deinit(&pretokenizer->steps[i].pattern);
	*pretokenizer = (struct pretokenizer){0};
}
