/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_UNICHAR_H
#define MIMEO_SDK_TEXT_UNICHAR_H

/*
 * Classes of characters as Hugging Face's `tokenizers` knows them: of several versions of Unicode,
 * see unichar_ranges.h. Characters that are newer than utf8proc's tables are in none of them.
 */

#include <stdbool.h>
#include <stdint.h>

bool unichar_is_white_space(uint32_t c); /* property White_Space */
bool unichar_is_numeric(uint32_t c);     /* category N */
bool unichar_is_word(uint32_t c);        /* \w of Unicode technical standard 18 */
bool unichar_is_punctuation(uint32_t c); /* category P, and all of ASCII's */
bool unichar_is_control(uint32_t c);     /* BertNormalizer removes it, if clean_text */
bool unichar_is_accent(uint32_t c);      /* BertNormalizer removes it, if strip_accents */
bool unichar_is_mark(uint32_t c);        /* StripAccents removes it */
bool unichar_is_cjk(uint32_t c); /* BertNormalizer puts spaces around it, if handle_chinese_chars */
/* Lower case, of one character except for U+0130. */
uint32_t unichar_lower(uint32_t c);
/* Normalization forms know the decomposition of the character. */
bool unichar_is_decomposed(uint32_t c, bool compatible);
uint8_t unichar_combining_class(uint32_t c);
/* A mark whose class is 0 because normalization forms do not know it. */
bool unichar_is_unordered(uint32_t c);
/* Nothing before the character combines with it or is ordered with it, in any normalization form.
 * May be false for characters of which that is true. */
bool unichar_is_boundary(uint32_t c);

#endif
