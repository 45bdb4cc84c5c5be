/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_SCORE_H
#define MIMEO_SDK_TEXT_SCORE_H

/*
 * A number of tokenizer.json as Hugging Face's `tokenizers` reads it. Its parser (serde_json
 * without float_roundtrip) divides the digits by a power of ten, so that numbers of 16 and more
 * digits may be off in the last bit, and that decides between tokens whose scores have equal sums.
 * The file is taken to have the shortest digits for `number`.
 */
double score_read(double number);
/* From a text of the form -d.ddde-dd. What is between the digits is the locale's decimal point. */
double score_divide(const char *text);

#endif
