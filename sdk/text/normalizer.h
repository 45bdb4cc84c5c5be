/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_NORMALIZER_H
#define MIMEO_SDK_TEXT_NORMALIZER_H

/* The normalizer of a tokenizer.json: steps that change a text, one after the other. */

#include "sdk/text/buffer.h"
#include "sdk/text/charsmap.h"
#include "sdk/text/pattern.h"
#include "sdk/text/span.h"
#include "sdk/text/spec.h"

#define NORMALIZER_STEPS_MAX 32u
#define NORMALIZER_TEXT_MAX 4096u /* bytes of a text that Prepend or Replace inserts */

enum normalizer_kind {
	NORMALIZER_NFC,
	NORMALIZER_NFD,
	NORMALIZER_NFKC,
	NORMALIZER_NFKD,
	NORMALIZER_LOWERCASE,
	NORMALIZER_STRIP,
	NORMALIZER_STRIP_ACCENTS,
	NORMALIZER_BERT_CLEAN, /* BertNormalizer becomes several steps */
	NORMALIZER_BERT_CJK,
	NORMALIZER_BERT_ACCENTS, /* behind NFD */
	NORMALIZER_REPLACE,
	NORMALIZER_PREPEND,
	NORMALIZER_PRECOMPILED,
	NORMALIZER_NMT,
	NORMALIZER_BYTE_LEVEL,
};

struct normalizer_step {
	enum normalizer_kind kind;
	struct pattern pattern; /* REPLACE */
	char *text;             /* [text_length]: REPLACE, PREPEND */
	size_t text_length;
	bool left, right;         /* STRIP */
	struct charsmap charsmap; /* PRECOMPILED */
};

struct normalizer {
	struct normalizer_step steps[NORMALIZER_STEPS_MAX];
	unsigned n;
};

/* From the root's member "normalizer", which may be null. False after an error; normalizer_deinit
 * in either case. */
bool normalizer_init(struct normalizer *normalizer, const struct spec *root);
void normalizer_deinit(struct normalizer *normalizer);

/* What a run writes to: the result lies in `text`, or is the input. */
struct normalizer_work {
	struct bytes text[2], foreign[2];
	struct matcher *matcher;
};
void normalizer_work_deinit(struct normalizer_work *work);

/* *ret lives as long as `in` and until the next run with `work`. 0, TOO_LONG or NO_MEMORY. */
int normalizer_run(const struct normalizer *normalizer, struct normalizer_work *work,
	struct span in, struct span *ret);

#endif
