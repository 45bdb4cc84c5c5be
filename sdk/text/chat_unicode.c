/* SPDX-License-Identifier: MIT */
#include <assert.h>
#include <string.h>

#include <utf8proc.h>

#include "sdk/text/chat_unicode.h"

/* ---- classes ---- */

bool chat_is_space(int32_t c)
{
	return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
	       c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
	       c == 0x202f || c == 0x205f || c == 0x3000;
}

bool chat_is_line_end(int32_t c)
{
	return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
	       c == 0x2029;
}

bool chat_is_printable(int32_t c)
{
	switch (utf8proc_category(c)) {
	case UTF8PROC_CATEGORY_CN:
	case UTF8PROC_CATEGORY_CC:
	case UTF8PROC_CATEGORY_CF:
	case UTF8PROC_CATEGORY_CS:
	case UTF8PROC_CATEGORY_CO:
	case UTF8PROC_CATEGORY_ZL:
	case UTF8PROC_CATEGORY_ZP:
		return false;
	case UTF8PROC_CATEGORY_ZS:
		return c == ' ';
	default:
		return true;
	}
}

bool chat_is_alpha(int32_t c)
{
	utf8proc_category_t category = utf8proc_category(c);

	return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool chat_is_digit(int32_t c)
{
	return utf8proc_category(c) == UTF8PROC_CATEGORY_ND;
}

bool chat_is_numeric(int32_t c)
{
	utf8proc_category_t category = utf8proc_category(c);

	return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

static bool chat_is_cased(int32_t c)
{
	utf8proc_category_t category = utf8proc_category(c);

	return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LT;
}

bool chat_has_case(const struct chat_string *string, bool upper)
{
	size_t length;
	bool found = false;

	for (size_t at = 0; at < string->length; at += length) {
		int32_t c = chat_string_at(string, at, &length);

		if (!chat_is_cased(c))
			continue;
		if (utf8proc_category(c) != (upper ? UTF8PROC_CATEGORY_LU : UTF8PROC_CATEGORY_LL))
			return false;
		found = true;
	}
	return found;
}

/* ---- case ---- */

#define SIGMA 0x3a3
#define FINAL_SIGMA 0x3c2
#define I_WITH_DOT 0x130
#define DOT_ABOVE 0x307

/*
 * Upper case of more than one character (Unicode's SpecialCasing.txt, unconditional), four numbers
 * each: the character and two or three others. GREEK_IOTA ... GREEK_IOTA + 47, letters with an iota
 * below, follow a rule instead.
 */
static const uint16_t long_upper[] = {0xdf, 0x53, 0x53, 0, 0x149, 0x2bc, 0x4e, 0, 0x1f0, 0x4a,
	0x30c, 0, 0x390, 0x399, 0x308, 0x301, 0x3b0, 0x3a5, 0x308, 0x301, 0x587, 0x535, 0x552, 0,
	0x1e96, 0x48, 0x331, 0, 0x1e97, 0x54, 0x308, 0, 0x1e98, 0x57, 0x30a, 0, 0x1e99, 0x59, 0x30a,
	0, 0x1e9a, 0x41, 0x2be, 0, 0x1f50, 0x3a5, 0x313, 0, 0x1f52, 0x3a5, 0x313, 0x300, 0x1f54,
	0x3a5, 0x313, 0x301, 0x1f56, 0x3a5, 0x313, 0x342, 0x1fb2, 0x1fba, 0x399, 0, 0x1fb3, 0x391,
	0x399, 0, 0x1fb4, 0x386, 0x399, 0, 0x1fb6, 0x391, 0x342, 0, 0x1fb7, 0x391, 0x342, 0x399,
	0x1fbc, 0x391, 0x399, 0, 0x1fc2, 0x1fca, 0x399, 0, 0x1fc3, 0x397, 0x399, 0, 0x1fc4, 0x389,
	0x399, 0, 0x1fc6, 0x397, 0x342, 0, 0x1fc7, 0x397, 0x342, 0x399, 0x1fcc, 0x397, 0x399, 0,
	0x1fd2, 0x399, 0x308, 0x300, 0x1fd3, 0x399, 0x308, 0x301, 0x1fd6, 0x399, 0x342, 0, 0x1fd7,
	0x399, 0x308, 0x342, 0x1fe2, 0x3a5, 0x308, 0x300, 0x1fe3, 0x3a5, 0x308, 0x301, 0x1fe4,
	0x3a1, 0x313, 0, 0x1fe6, 0x3a5, 0x342, 0, 0x1fe7, 0x3a5, 0x308, 0x342, 0x1ff2, 0x1ffa,
	0x399, 0, 0x1ff3, 0x3a9, 0x399, 0, 0x1ff4, 0x38f, 0x399, 0, 0x1ff6, 0x3a9, 0x342, 0, 0x1ff7,
	0x3a9, 0x342, 0x399, 0x1ffc, 0x3a9, 0x399, 0, 0xfb00, 0x46, 0x46, 0, 0xfb01, 0x46, 0x49, 0,
	0xfb02, 0x46, 0x4c, 0, 0xfb03, 0x46, 0x46, 0x49, 0xfb04, 0x46, 0x46, 0x4c, 0xfb05, 0x53,
	0x54, 0, 0xfb06, 0x53, 0x54, 0, 0xfb13, 0x544, 0x546, 0, 0xfb14, 0x544, 0x535, 0, 0xfb15,
	0x544, 0x53b, 0, 0xfb16, 0x54e, 0x546, 0, 0xfb17, 0x544, 0x53d, 0};

#define GREEK_IOTA 0x1f80
#define IOTA 0x399

/* *ret_upper [3], ended by 0. */
static bool chat_find_long_upper(int32_t c, int32_t ret_upper[3])
{
	static const int32_t greek[] = {0x1f08, 0x1f28, 0x1f68};

	if (c >= GREEK_IOTA && c < GREEK_IOTA + 48) {
		ret_upper[0] = greek[(c - GREEK_IOTA) / 16] + (c & 7);
		ret_upper[1] = IOTA;
		ret_upper[2] = 0;
		return true;
	}
	for (size_t i = 0; i < sizeof(long_upper) / sizeof(long_upper[0]); i += 4) {
		if (long_upper[i] != c)
			continue;
		for (size_t k = 0; k < 3; k++)
			ret_upper[k] = long_upper[i + 1 + k];
		return true;
	}
	return false;
}

/* A sigma is final behind a letter and before none; marks do not count. */
static bool chat_is_final_sigma(const struct chat_string *string, size_t at, bool behind_letter)
{
	size_t length;

	for (at += 2; behind_letter && at < string->length; at += length) {
		int32_t c = chat_string_at(string, at, &length);

		if (chat_is_cased(c))
			return false;
		if (utf8proc_category(c) != UTF8PROC_CATEGORY_MN && c != '\'' && c != '.')
			return true;
	}
	return behind_letter;
}

static void chat_add_upper(struct chat_text *text, int32_t c, bool foreign)
{
	int32_t upper[3];

	if (c < 0x80 || !chat_find_long_upper(c, upper)) {
		chat_text_add_character(text, utf8proc_toupper(c), foreign);
		return;
	}
	for (int i = 0; i < 3 && upper[i]; i++)
		chat_text_add_character(text, upper[i], foreign);
}

/*
 * Greek letters with an iota below have a title case of one character; ligatures become a capital
 * and small letters.
 */
static void chat_add_title(struct chat_text *text, int32_t c, bool foreign)
{
	int32_t upper[3];

	if (c < 0x80 || (c >= GREEK_IOTA && c < 0x2000 && utf8proc_totitle(c) != c) ||
		utf8proc_category(c) == UTF8PROC_CATEGORY_LT || !chat_find_long_upper(c, upper)) {
		chat_text_add_character(text, utf8proc_totitle(c), foreign);
		return;
	}
	chat_text_add_character(text, upper[0], foreign);
	for (int i = 1; i < 3 && upper[i]; i++)
		chat_text_add_character(text,
			chat_is_cased(upper[0]) ? utf8proc_tolower(upper[i]) : upper[i], foreign);
}

static void chat_add_lower(struct chat_text *text, int32_t c, bool foreign)
{
	if (c == I_WITH_DOT) {
		chat_text_add_character(text, 'i', foreign);
		c = DOT_ABOVE;
	}
	chat_text_add_character(text, utf8proc_tolower(c), foreign);
}

static bool chat_is_word_start(const struct chat_string *string, size_t at)
{
	size_t length, before = at;

	if (!at)
		return true;
	do
		before--;
	while ((string->bytes[before] & 0xc0) == 0x80);
	return memchr("-({[<", string->bytes[before], 5) ||
	       chat_is_space(chat_string_at(string, before, &length));
}

struct chat_value chat_change_case(
	struct chat_context *context, const struct chat_string *string, enum chat_case to)
{
	struct chat_text *text = chat_text_new(context);
	bool behind_letter = false;
	size_t length;

	chat_charge(context, string->length);
	for (size_t at = 0; at < string->length; at += length) {
		int32_t c = chat_string_at(string, at, &length);
		bool foreign = string->foreign && string->foreign[at];

		if (to == CHAT_UPPER || (to == CHAT_WORDS && chat_is_word_start(string, at)))
			chat_add_upper(text, c, foreign);
		else if ((to == CHAT_CAPITALIZE && !at) || (to == CHAT_TITLE && !behind_letter))
			chat_add_title(text, c, foreign);
		else if (c == SIGMA && chat_is_final_sigma(string, at, behind_letter))
			chat_text_add_character(text, FINAL_SIGMA, foreign);
		else
			chat_add_lower(text, c, foreign);
		if (to == CHAT_TITLE || utf8proc_category(c) != UTF8PROC_CATEGORY_MN)
			behind_letter = chat_is_cased(c);
	}
	return chat_text_string(text);
}
