/* SPDX-License-Identifier: MIT */
#include "sdk/text/unichar.h"

#include <stddef.h>

#include <utf8proc.h>

struct unichar_range {
	uint32_t first, last;
};

#include "sdk/text/unichar_ranges.h"

#define UNICHAR_IS_IN(c, ranges) unichar_find(c, ranges, sizeof(ranges) / sizeof((ranges)[0]))

static bool unichar_find(uint32_t c, const struct unichar_range *ranges, size_t n)
{
	size_t low = 0, high = n;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (c > ranges[middle].last)
			low = middle + 1;
		else
			high = middle;
	}
	return low < n && c >= ranges[low].first;
}

static utf8proc_category_t unichar_category(uint32_t c)
{
	return utf8proc_category((utf8proc_int32_t)c);
}

static bool unichar_is_mark_category(utf8proc_category_t category)
{
	return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
	       category == UTF8PROC_CATEGORY_ME;
}

bool unichar_is_white_space(uint32_t c)
{
	if (c < 0x80)
		return c == ' ' || (c >= '\t' && c <= '\r');
	return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
	       c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool unichar_is_numeric(uint32_t c)
{
	if (c < 0x80)
		return c >= '0' && c <= '9';
	utf8proc_category_t category = unichar_category(c);
	return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
	       category == UTF8PROC_CATEGORY_NO;
}

bool unichar_is_word(uint32_t c)
{
	if (c < 0x80)
		return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
		       c == '_';
	utf8proc_category_t category = unichar_category(c);
	if ((category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO) ||
		unichar_is_mark_category(category) || category == UTF8PROC_CATEGORY_ND ||
		category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_PC)
		return true;
	/* the letters in circles and squares, which are alphabetic symbols, and the joiners */
	return (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
	       (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189) || c == 0x200c ||
	       c == 0x200d;
}

bool unichar_is_punctuation(uint32_t c)
{
	if (c < 0x80)
		return c > ' ' && c < 0x7f && (!unichar_is_word(c) || c == '_');
	utf8proc_category_t category = unichar_category(c);
	if (category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO)
		return !UNICHAR_IS_IN(c, unichar_not_punctuation);
	return UNICHAR_IS_IN(c, unichar_also_punctuation);
}

bool unichar_is_control(uint32_t c)
{
	if (c < 0x80)
		return (c < ' ' && c != '\t' && c != '\n' && c != '\r') || c == 0x7f;
	utf8proc_category_t category = unichar_category(c);
	if (category != UTF8PROC_CATEGORY_CC && category != UTF8PROC_CATEGORY_CF &&
		category != UTF8PROC_CATEGORY_CO)
		return c == 0xfffd;
	return !UNICHAR_IS_IN(c, unichar_not_control);
}

bool unichar_is_accent(uint32_t c)
{
	if (c < 0x300)
		return false;
	if (unichar_category(c) == UTF8PROC_CATEGORY_MN)
		return !UNICHAR_IS_IN(c, unichar_not_accent);
	return UNICHAR_IS_IN(c, unichar_also_accent);
}

bool unichar_is_mark(uint32_t c)
{
	if (c < 0x300)
		return false;
	if (unichar_is_mark_category(unichar_category(c)))
		return !UNICHAR_IS_IN(c, unichar_not_mark);
	return UNICHAR_IS_IN(c, unichar_also_mark);
}

bool unichar_is_cjk(uint32_t c)
{
	return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) ||
	       (c >= 0x20000 && c <= 0x2a6df) || (c >= 0x2a700 && c <= 0x2b73f) ||
	       (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
	       (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

uint32_t unichar_lower(uint32_t c)
{
	if (c < 0x80)
		return c >= 'A' && c <= 'Z' ? c + 32 : c;
	return (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
}

bool unichar_is_decomposed(uint32_t c, bool compatible)
{
	if (c < 0x300)
		return true;
	return !(compatible ? UNICHAR_IS_IN(c, unichar_not_compatible)
			    : UNICHAR_IS_IN(c, unichar_not_decomposed));
}

bool unichar_is_unordered(uint32_t c)
{
	return c >= 0x300 && UNICHAR_IS_IN(c, unichar_not_ordered);
}

uint8_t unichar_combining_class(uint32_t c)
{
	if (c < 0x300)
		return 0;
	uint8_t class = (uint8_t)utf8proc_get_property((utf8proc_int32_t)c)->combining_class;
	return class == 0 || UNICHAR_IS_IN(c, unichar_not_ordered) ? 0 : class;
}

bool unichar_is_boundary(uint32_t c)
{
	if (c < 0x300)
		return true;
	/* Vowels and final consonants of Hangul and what decomposes to them, and the half-width
	 * voice marks. Everything else that combines with a character before it is a mark. */
	if ((c >= 0x1160 && c <= 0x11ff) || (c >= 0xd7b0 && c <= 0xd7ff) ||
		(c >= 0x3131 && c <= 0x318e) || (c >= 0xff9e && c <= 0xffdc))
		return false;
	return !unichar_is_mark_category(unichar_category(c));
}
