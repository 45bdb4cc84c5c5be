/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_ONIGURUMA_PROPERTY_H
#define MIMEO_SDK_TEXT_ONIGURUMA_PROPERTY_H

/* Oniguruma's names of sets of characters, as items of PCRE2's [ ]. */

#include "sdk/text/oniguruma_class.h"

/* What \w, \s and \h mean. Outside of classes, Oniguruma takes some more of Latin-1 for word
 * characters. */
extern const char oniguruma_word[], oniguruma_word_alone[];
extern const char oniguruma_space[], oniguruma_hex[];

/* Add the items for the name[n] of a property: a general category, one of a list of names, or else
 * a script. */
void oniguruma_put_property(
	struct oniguruma_source *source, const char *name, size_t n, struct bytes *items);

/* General categories as bits. */
#define ONIGURUMA_CATEGORIES 30u
#define ONIGURUMA_ALL_CATEGORIES ((1u << ONIGURUMA_CATEGORIES) - 1)
/* Those that an item of the form \p{L} or \p{Lu} stands for; 0: it is something else. */
uint32_t oniguruma_categories(const char *item, size_t length);
void oniguruma_put_categories(struct bytes *items, uint32_t categories);

#endif
