/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_PRETOKENIZER_H
#define MIMEO_SDK_TEXT_PRETOKENIZER_H

/*
 * The pre-tokenizer of a tokenizer.json cuts a text into the words that the model turns into
 * tokens. Its steps cut the pieces of the step before; a piece goes through all steps before the
 * next one does, so that no list of pieces is kept.
 */

#include "sdk/text/buffer.h"
#include "sdk/text/pattern.h"
#include "sdk/text/span.h"
#include "sdk/text/spec.h"
#include "sdk/text/utf8.h"

#define PRETOKENIZER_STEPS_MAX 32u

enum pretokenizer_kind {
	PRETOKENIZER_SPLIT,      /* at matches of a pattern */
	PRETOKENIZER_CHARACTERS, /* at characters of a class */
	PRETOKENIZER_CHARACTER,  /* at one character */
	PRETOKENIZER_WORDS, /* Whitespace: runs of word characters, and of others that are no space
			     */
	PRETOKENIZER_METASPACE, /* replace and prepend only; its cut is a step of its own */
	PRETOKENIZER_PREFIX_SPACE,
	PRETOKENIZER_BYTE_LEVEL, /* bytes become characters */
	PRETOKENIZER_LENGTH,
};

/* What becomes of a match (tokenizers' SplitDelimiterBehavior). */
enum pretokenizer_behavior {
	PRETOKENIZER_REMOVED,
	PRETOKENIZER_ISOLATED,
	PRETOKENIZER_WITH_PREVIOUS,
	PRETOKENIZER_WITH_NEXT,
	PRETOKENIZER_CONTIGUOUS,
};

enum pretokenizer_prepend { PRETOKENIZER_ALWAYS, PRETOKENIZER_NEVER, PRETOKENIZER_FIRST };

struct pretokenizer_step {
	enum pretokenizer_kind kind;
	struct pattern pattern;              /* SPLIT */
	bool invert;                         /* SPLIT: what does not match counts as a match */
	enum pretokenizer_behavior behavior; /* SPLIT, CHARACTERS, CHARACTER */
	bool (*is_match)(uint32_t);          /* CHARACTERS */
	uint32_t character;                  /* CHARACTER */
	char replacement[UTF8_MAX];          /* METASPACE */
	unsigned replacement_size;
	enum pretokenizer_prepend prepend; /* METASPACE */
	uint32_t length;                   /* LENGTH: characters */
};

struct pretokenizer {
	struct pretokenizer_step steps[PRETOKENIZER_STEPS_MAX];
	unsigned n;
};

/* From the root's member "pre_tokenizer", which may be null. False after an error;
 * pretokenizer_deinit in either case. */
bool pretokenizer_init(struct pretokenizer *pretokenizer, const struct spec *root);
void pretokenizer_deinit(struct pretokenizer *pretokenizer);
bool pretokenizer_ends_in_bytes(const struct pretokenizer *pretokenizer);
/* Leave the last step, BYTE_LEVEL, to the model. */
void pretokenizer_defer_bytes(struct pretokenizer *pretokenizer);

struct pretokenizer_work {
	struct bytes text[PRETOKENIZER_STEPS_MAX]; /* of steps that change the text */
	struct matcher *matcher;
	/* Gets each word in order; a result other than 0 ends the run, which returns it. */
	int (*word)(void *data, const char *bytes, size_t length);
	void *data;
};
void pretokenizer_work_deinit(struct pretokenizer_work *work);

/* 0, TOO_LONG, NO_MEMORY or what `word` returned. */
int pretokenizer_run(
	const struct pretokenizer *pretokenizer, struct pretokenizer_work *work, struct span text);

#endif
