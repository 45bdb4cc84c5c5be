/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_MODEL_H
#define MIMEO_SDK_TEXT_MODEL_H

/* The model of a tokenizer.json turns words into ids. */

#include "sdk/text/bpe.h"
#include "sdk/text/spec.h"
#include "sdk/text/unigram.h"
#include "sdk/text/vocabulary.h"
#include "sdk/text/word_cache.h"
#include "sdk/text/wordpiece.h"

enum model_kind { MODEL_BPE, MODEL_UNIGRAM, MODEL_WORDPIECE, MODEL_WORDLEVEL };

struct model {
	enum model_kind kind;
	struct vocabulary vocabulary;
	struct bpe bpe;
	struct unigram unigram;
	struct wordpiece wordpiece;
	int32_t unknown; /* WORDLEVEL: -1: the vocabulary lacks it */
};

/* From the root's member "model". `bytes_deferred`: words will be bytes that stand for characters
 * of byte_level.h, if the model is BPE without affixes; *ret_is_byte_level says whether. False
 * after an error; model_deinit in either case. */
bool model_init(
	struct model *model, const struct spec *root, bool bytes_deferred, bool *ret_is_byte_level);
void model_deinit(struct model *model);

struct model_work {
	struct bpe_work bpe;
	struct unigram_work unigram;
	struct word_cache cache;
};
void model_work_deinit(struct model_work *work);

/* Add the ids of a word, which is not empty. 0, INVALID (a character is unknown, and the vocabulary
 * lacks the unknown token), TOO_LONG or NO_MEMORY. */
int model_encode(const struct model *model, struct model_work *work, const char *word,
	size_t length, struct ids *out);

#endif
