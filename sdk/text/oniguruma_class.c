/* SPDX-License-Identifier: MIT */
#include "sdk/text/oniguruma_class.h"

#include <assert.h>
#include <stdio.h>

#include <utf8proc.h>

#include "sdk/text/oniguruma_property.h"
#include "sdk/text/utf8.h"

#define CLASS_DEPTH_MAX 8u
/* PCRE2 looks for the other case of each: a few times all of Unicode. */
#define CLASS_CASELESS_MAX (1u << 22)

/* A failure is handed on, too. */
static void class_append(struct bytes *out, const struct bytes *more)
{
	if (more->rc < 0)
		out->rc = more->rc;
	bytes_add(out, more->data, more->length);
}

void oniguruma_put_character(struct bytes *out, uint32_t character)
{
	char text[16];

	snprintf(text, sizeof(text), "\\x{%x}", character);
	bytes_put(out, text);
}

/* ---- escapes ---- */

static bool class_digits(struct oniguruma_source *source, unsigned base, unsigned least,
	unsigned most, uint32_t *ret)
{
	unsigned n = 0;

	*ret = 0;
	for (; source->at < source->end && n < most && oniguruma_is_alnum(*source->at); n++) {
		char c = *source->at;
		unsigned digit =
			c <= '9' ? (unsigned)(c - '0') : (unsigned)(oniguruma_lower(c) - 'a' + 10);

		if (digit >= base)
			break;
		*ret = *ret * base + digit;
		source->at++;
	}
	return n >= least;
}

/* Behind x, u or an octal digit's backslash. */
static bool class_number(struct oniguruma_source *source, char kind, uint32_t *ret)
{
	bool ok;

	if (kind == 'u') {
		ok = class_digits(source, 16, 4, 4, ret);
	} else if (kind == '0') {
		ok = class_digits(source, 8, 0, 2, ret);
	} else if (source->at < source->end && *source->at == '{') {
		source->at++;
		ok = class_digits(source, 16, 1, 8, ret) && source->at < source->end &&
		     *source->at == '}';
		source->at += ok;
	} else {
		/* Without braces it is a byte of UTF-8. */
		ok = class_digits(source, 16, 0, 2, ret) && *ret < 0x80;
	}
	if (!ok || *ret > 0x10ffff || (*ret >= 0xd800 && *ret < 0xe000)) {
		oniguruma_refuse(source, "has a numeric escape that is not supported");
		*ret = 0;
	}
	return true;
}

bool oniguruma_read_character(struct oniguruma_source *source, uint32_t *ret_character)
{
	static const char letters[] = "tnrfvae", values[] = "\t\n\r\f\v\a\x1b";
	char kind = *source->at;
	const char *letter = kind ? strchr(letters, kind) : NULL;
	unsigned size;

	if (letter) {
		*ret_character = (unsigned char)values[letter - letters];
		source->at++;
		return true;
	}
	if (kind == 'x' || kind == 'u' || kind == '0') {
		source->at++;
		return class_number(source, kind, ret_character);
	}
	if (oniguruma_is_alnum(kind))
		return false;
	*ret_character = utf8_decode(source->at, &size);
	source->at += size;
	return true;
}

bool oniguruma_read_shorthand(
	struct oniguruma_source *source, struct bytes *items, bool *ret_negated)
{
	char kind = *source->at, lower = oniguruma_lower(kind);

	*ret_negated = kind != lower;
	if (lower == 's' || lower == 'd' || lower == 'w' || lower == 'h') {
		source->at++;
		bytes_put(items, lower == 's'   ? oniguruma_space
				 : lower == 'd' ? "\\p{Nd}"
				 : lower == 'w' ? oniguruma_word
						: oniguruma_hex);
		return true;
	}
	if (lower != 'p')
		return false;
	const char *name = source->at + 1;
	if (name < source->end && *name == '{')
		name++;
	else
		return false;
	if (name < source->end && *name == '^') {
		name++;
		*ret_negated = !*ret_negated;
	}
	const char *close = memchr(name, '}', (size_t)(source->end - name));
	if (!close)
		return !oniguruma_refuse(source, "has an unfinished property");
	source->at = close + 1;
	oniguruma_put_property(source, name, (size_t)(close - name), items);
	return true;
}

/* ---- classes ---- */

/* A set of characters: its items within [ ], or their complement, and expressions of one character
 * that are in it as well. */
struct class_set {
	struct bytes items, expressions;
	bool negated;        /* then there are no expressions */
	bool has_other;      /* items that are no general category */
	uint32_t categories; /* the others */
};

static void class_set_deinit(struct class_set *set)
{
	bytes_deinit(&set->items);
	bytes_deinit(&set->expressions);
}

static bool class_set_is_empty(const struct class_set *set)
{
	return set->items.length == 0 && set->expressions.length == 0 && !set->negated;
}

static void class_set_print(const struct class_set *set, struct bytes *out)
{
	bool both = set->items.length > 0 && set->expressions.length > 0;

	if (set->expressions.length > 0)
		bytes_put(out, "(?:");
	if (set->items.length > 0) {
		bytes_put(out, set->negated ? "[^" : "[");
		class_append(out, &set->items);
		bytes_put(out, "]");
	} else if (set->expressions.length == 0) {
		bytes_put(out, set->negated ? "(?s:.)" : "(?!)");
	}
	if (both)
		bytes_put(out, "|");
	if (set->expressions.length > 0) {
		class_append(out, &set->expressions);
		bytes_put(out, ")");
	}
}

/* Turn the set into one expression, so that more can be added to it or it can be negated. */
static void class_set_fold(struct class_set *set)
{
	struct bytes text = {0};

	class_set_print(set, &text);
	class_set_deinit(set);
	*set = (struct class_set){.expressions = text, .has_other = true};
}

static void class_set_negate(struct class_set *set)
{
	struct bytes text = {0};

	if (set->expressions.length == 0) {
		set->negated = !set->negated;
		return;
	}
	bytes_put(&text, "(?!");
	class_set_print(set, &text);
	bytes_put(&text, ")(?s:.)");
	class_set_deinit(set);
	*set = (struct class_set){.expressions = text, .has_other = true};
}

/* *set becomes the union. Takes over `other`. */
static void class_set_unite(struct class_set *set, struct class_set *other)
{
	if (class_set_is_empty(set)) {
		class_set_deinit(set);
		*set = *other;
		*other = (struct class_set){0};
		return;
	}
	if (set->negated)
		class_set_fold(set);
	if (other->negated)
		class_set_fold(other);
	class_append(&set->items, &other->items);
	if (set->expressions.length > 0 && other->expressions.length > 0)
		bytes_put(&set->expressions, "|");
	class_append(&set->expressions, &other->expressions);
	set->has_other |= other->has_other;
	set->categories |= other->categories;
	class_set_deinit(other);
	*other = (struct class_set){0};
}

/*
 * *set becomes the intersection. Takes over `other`.
 * What is in some general categories and not in a list of items, the usual case, is what is not in
 * the other categories and not in the list: one class, which PCRE2 repeats without remembering each
 * character, unlike a group.
 */
static void class_set_intersect(struct class_set *set, struct class_set *other)
{
	struct class_set *positive = set->negated ? other : set,
			 *negative = set->negated ? set : other;
	struct class_set result = {.has_other = true};

	if (negative->negated && !positive->negated && !positive->has_other) {
		oniguruma_put_categories(&result.items, ~positive->categories);
		class_append(&result.items, &negative->items);
		result.negated = true;
	} else {
		bytes_put(&result.expressions, "(?=");
		class_set_print(set, &result.expressions);
		bytes_put(&result.expressions, ")");
		class_set_print(other, &result.expressions);
	}
	class_set_deinit(set);
	class_set_deinit(other);
	*set = result;
	*other = (struct class_set){0};
}

static void class_add_shorthand(struct class_set *set, struct bytes *items, bool negated)
{
	struct class_set added = {.items = *items};

	added.categories = oniguruma_categories(items->data, items->length);
	added.has_other = added.categories == 0;
	*items = (struct bytes){0};
	if (negated && !added.has_other) {
		/* the other categories, so that a list with \P{L} stays one */
		bytes_clear(&added.items);
		added.categories = ONIGURUMA_ALL_CATEGORIES & ~added.categories;
		oniguruma_put_categories(&added.items, added.categories);
	} else {
		added.negated = negated;
	}
	class_set_unite(set, &added);
}

/* Behind [: [:alpha:] or [:^alpha:]. False: it is none of these. */
static bool class_posix(struct oniguruma_source *source, struct class_set *set)
{
	static const char *const names[] = {"alnum", "alpha", "ascii", "blank", "cntrl", "digit",
		"lower", "punct", "space", "upper", "xdigit", "word"};
	const char *at = source->at + 1;
	struct bytes items = {0};
	bool negated = false;

	if (source->at == source->end || *source->at != ':')
		return false;
	if (at < source->end && *at == '^') {
		negated = true;
		at++;
	}
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		size_t n = strlen(names[i]);

		if ((size_t)(source->end - at) < n + 2 || memcmp(at, names[i], n) != 0 ||
			memcmp(at + n, ":]", 2) != 0)
			continue;
		source->at = at + n + 2;
		oniguruma_put_property(source, names[i], n, &items);
		/* [:punct:] has the symbols, which \p{Punct} lacks. */
		if (strcmp(names[i], "punct") == 0)
			bytes_put(&items, "\\p{S}");
		class_add_shorthand(set, &items, negated);
		return true;
	}
	return !oniguruma_refuse(source, "has a POSIX class that is not supported");
}

static void class_read_set(struct oniguruma_source *source, struct class_set *set, unsigned depth);

/* The next item of a class. True: it is the character *ret, which is not in the set yet. */
static bool class_read_item(
	struct oniguruma_source *source, struct class_set *set, unsigned depth, uint32_t *ret)
{
	struct bytes items = {0};
	struct class_set nested = {0};
	unsigned size;
	bool negated;

	if (*source->at == '[') {
		source->at++;
		if (class_posix(source, set))
			return false;
		class_read_set(source, &nested, depth + 1);
		class_set_unite(set, &nested);
		class_set_deinit(&nested);
		return false;
	}
	if (*source->at != '\\') {
		*ret = utf8_decode(source->at, &size);
		source->at += size;
		return true;
	}
	if (++source->at == source->end)
		return oniguruma_refuse(source, "ends in a backslash");
	if (*source->at == 'b') {
		source->at++;
		*ret = '\b';
		return true;
	}
	if (oniguruma_read_character(source, ret))
		return true;
	if (oniguruma_read_shorthand(source, &items, &negated))
		class_add_shorthand(set, &items, negated);
	else
		oniguruma_refuse(source, "has an escape in a class that is not supported");
	bytes_deinit(&items);
	return false;
}

bool oniguruma_folds_to_several(uint32_t character)
{
	utf8proc_int32_t folded[8];
	int class = 0;

	return character >= 0x80 && utf8proc_decompose_char((utf8proc_int32_t)character, folded, 8,
					    UTF8PROC_CASEFOLD, &class) > 1;
}

static void class_add_range(
	struct oniguruma_source *source, struct class_set *set, uint32_t first, uint32_t last)
{
	struct class_set added = {.has_other = true};

	source->n_caseless += source->caseless && first <= last ? last - first : 0;
	if (source->n_caseless > CLASS_CASELESS_MAX)
		oniguruma_refuse(source, "ignores the case of too many characters");
	for (uint32_t c = first; source->caseless && c <= last; c++) {
		if (oniguruma_folds_to_several(c)) {
			oniguruma_refuse(
				source, "ignores the case of characters that fold to several");
			break;
		}
	}
	oniguruma_put_character(&added.items, first);
	if (last != first) {
		bytes_put(&added.items, "-");
		oniguruma_put_character(&added.items, last);
	}
	class_set_unite(set, &added);
	class_set_deinit(&added);
}

/* Behind a character: the - and the last character of a range. */
static bool class_read_range_end(
	struct oniguruma_source *source, struct class_set *set, unsigned depth, uint32_t *ret)
{
	const char *at = source->at;

	if (source->end - at < 2 || at[0] != '-' || at[1] == ']')
		return false;
	source->at++;
	if (*source->at == '[' || !class_read_item(source, set, depth, ret))
		return oniguruma_refuse(source, "has a range without an end");
	return true;
}

/* What stands between && and && or ]. */
static void class_read_operand(
	struct oniguruma_source *source, struct class_set *set, unsigned depth, bool is_first)
{
	uint32_t first, last;

	while (source->at < source->end) {
		bool is_bracket = *source->at == ']' && is_first;

		if ((*source->at == ']' && !is_bracket) ||
			(source->end - source->at >= 2 && memcmp(source->at, "&&", 2) == 0))
			return;
		is_first = false;
		if (!class_read_item(source, set, depth, &first))
			continue;
		if (!class_read_range_end(source, set, depth, &last))
			last = first;
		if (!source->reason && last < first)
			oniguruma_refuse(source, "has an empty range");
		class_add_range(source, set, first, last);
	}
}

static void class_read_set(struct oniguruma_source *source, struct class_set *set, unsigned depth)
{
	bool negated = source->at < source->end && *source->at == '^', is_first = true;

	if (depth > CLASS_DEPTH_MAX) {
		oniguruma_refuse(source, "nests classes too deeply");
		return;
	}
	source->at += negated;
	for (;;) {
		struct class_set operand = {0};

		class_read_operand(source, &operand, depth, is_first);
		if (is_first)
			class_set_unite(set, &operand);
		else
			class_set_intersect(set, &operand);
		class_set_deinit(&operand);
		is_first = false;
		if (source->at == source->end) {
			oniguruma_refuse(source, "has an unfinished class");
			break;
		}
		if (*source->at++ == ']')
			break;
		source->at++; /* && */
	}
	if (negated)
		class_set_negate(set);
}

void oniguruma_read_class(struct oniguruma_source *source, struct bytes *out)
{
	struct class_set set = {0};

	class_read_set(source, &set, 0);
	class_set_print(&set, out);
	class_set_deinit(&set);
}
