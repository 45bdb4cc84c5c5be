/* SPDX-License-Identifier: MIT */
#include "sdk/text/oniguruma_class.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>

#include <utf8proc.h>

#include "sdk/text/utf8.h"

#define CLASS_DEPTH_MAX 8u
#define CLASS_NAME_MAX 40u

const char oniguruma_word[] = "0-9A-Z_a-z\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24b6}-\\x{24e9}"
			      "\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}";
const char oniguruma_word_alone[] = "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";
/* Ranges, because PCRE2 tests them faster than properties, and its \s has U+180E. */
const char oniguruma_space[] = "\\x{9}-\\x{d} \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}"
			       "\\x{202f}\\x{205f}\\x{3000}";
static const char oniguruma_hex[] = "0-9A-Fa-f";

/* General categories, a bit each in oniguruma_set.categories; the groups come after their members. */
static const char *const class_categories[] = {
	"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi",
	"Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cs", "Cn",
};
#define CLASS_CATEGORIES (sizeof(class_categories) / sizeof(class_categories[0]))
#define CLASS_ALL_CATEGORIES ((1u << CLASS_CATEGORIES) - 1)

/* Names of properties, without spaces, - and _ and in lower case, and the items that they stand for. */
struct class_name {
	const char *name, *items;
};

static const struct class_name class_names[] = {
	{"letter", "\\p{L}"}, {"uppercaseletter", "\\p{Lu}"}, {"lowercaseletter", "\\p{Ll}"},
	{"titlecaseletter", "\\p{Lt}"}, {"modifierletter", "\\p{Lm}"}, {"otherletter", "\\p{Lo}"},
	{"lc", "\\p{Lu}\\p{Ll}\\p{Lt}"}, {"casedletter", "\\p{Lu}\\p{Ll}\\p{Lt}"}, {"mark", "\\p{M}"},
	{"combiningmark", "\\p{M}"}, {"nonspacingmark", "\\p{Mn}"}, {"spacingmark", "\\p{Mc}"},
	{"enclosingmark", "\\p{Me}"}, {"number", "\\p{N}"}, {"decimalnumber", "\\p{Nd}"},
	{"letternumber", "\\p{Nl}"}, {"othernumber", "\\p{No}"}, {"punctuation", "\\p{P}"},
	{"connectorpunctuation", "\\p{Pc}"}, {"dashpunctuation", "\\p{Pd}"},
	{"openpunctuation", "\\p{Ps}"}, {"closepunctuation", "\\p{Pe}"},
	{"initialpunctuation", "\\p{Pi}"}, {"finalpunctuation", "\\p{Pf}"},
	{"otherpunctuation", "\\p{Po}"}, {"symbol", "\\p{S}"}, {"mathsymbol", "\\p{Sm}"},
	{"currencysymbol", "\\p{Sc}"}, {"modifiersymbol", "\\p{Sk}"}, {"othersymbol", "\\p{So}"},
	{"separator", "\\p{Z}"}, {"spaceseparator", "\\p{Zs}"}, {"lineseparator", "\\p{Zl}"},
	{"paragraphseparator", "\\p{Zp}"}, {"other", "\\p{C}"}, {"control", "\\p{Cc}"},
	{"format", "\\p{Cf}"}, {"unassigned", "\\p{Cn}"}, {"privateuse", "\\p{Co}"},
	{"surrogate", "\\p{Cs}"}, {"word", oniguruma_word}, {"space", oniguruma_space},
	{"whitespace", oniguruma_space}, {"digit", "\\p{Nd}"}, {"xdigit", oniguruma_hex},
	{"alpha", "\\p{Alphabetic}"}, {"alphabetic", "\\p{Alphabetic}"},
	{"alnum", "\\p{Alphabetic}\\p{Nd}"}, {"upper", "\\p{Uppercase}"}, {"lower", "\\p{Lowercase}"},
	{"uppercase", "\\p{Uppercase}"}, {"lowercase", "\\p{Lowercase}"}, {"punct", "\\p{P}"},
	{"blank", "\\x{9}\\p{Zs}"}, {"cntrl", "\\p{Cc}"}, {"any", "\\x{0}-\\x{10ffff}"},
	{"ascii", "\\x{0}-\\x{7f}"}, {"assigned", "\\P{Cn}"}, {"emoji", "\\p{Emoji}"},
	{"emojipresentation", "\\p{Emoji_Presentation}"},
	{"emojimodifier", "\\p{Emoji_Modifier}"}, {"emojimodifierbase", "\\p{Emoji_Modifier_Base}"},
	{"emojicomponent", "\\p{Emoji_Component}"},
	{"extendedpictographic", "\\p{Extended_Pictographic}"}, {"ideographic", "\\p{Ideographic}"},
	{"unifiedideograph", "\\p{Unified_Ideograph}"}, {"idstart", "\\p{ID_Start}"},
	{"idcontinue", "\\p{ID_Continue}"}, {"xidstart", "\\p{XID_Start}"},
	{"xidcontinue", "\\p{XID_Continue}"}, {"math", "\\p{Math}"}, {"dash", "\\p{Dash}"},
	{"diacritic", "\\p{Diacritic}"}, {"extender", "\\p{Extender}"},
	{"quotationmark", "\\p{Quotation_Mark}"}, {"variationselector", "\\p{Variation_Selector}"},
	{"regionalindicator", "\\p{Regional_Indicator}"}, {"joincontrol", "\\p{Join_Control}"},
	{"cased", "\\p{Cased}"}, {"caseignorable", "\\p{Case_Ignorable}"},
	{"graphemebase", "\\p{Grapheme_Base}"}, {"graphemeextend", "\\p{Grapheme_Extend}"},
};

static void class_put(struct bytes *out, const char *text)
{
	bytes_add(out, text, strlen(text));
}

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
	class_put(out, text);
}

/* ---- escapes ---- */

static bool class_digits(struct oniguruma_source *source, unsigned base, unsigned least,
	unsigned most, uint32_t *ret)
{
	unsigned n = 0;

	*ret = 0;
	for (; source->at < source->end && n < most && isxdigit((unsigned char)*source->at); n++) {
		char c = *source->at;
		unsigned digit = c <= '9' ? (unsigned)(c - '0') : (unsigned)((c | 0x20) - 'a' + 10);

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
		ok = class_digits(source, 16, 1, 8, ret) && source->at < source->end && *source->at == '}';
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
	if (isalnum((unsigned char)kind))
		return false;
	*ret_character = utf8_decode(source->at, &size);
	source->at += size;
	return true;
}

/* Items for the name of a property in at[n]: a general category, a name above, or else a script. */
static void class_property(struct oniguruma_source *source, const char *at, size_t n, struct bytes *items)
{
	char name[CLASS_NAME_MAX], text[CLASS_NAME_MAX + 8];
	size_t length = 0;

	for (size_t i = 0; i < n; i++) {
		if (at[i] == ' ' || at[i] == '_' || at[i] == '-')
			continue;
		if (!isalnum((unsigned char)at[i]) || length == CLASS_NAME_MAX - 1) {
			oniguruma_refuse(source, "has a property that is not known");
			return;
		}
		name[length++] = (char)tolower((unsigned char)at[i]);
	}
	name[length] = '\0';
	for (size_t i = 0; i < sizeof(class_names) / sizeof(class_names[0]); i++) {
		if (strcmp(class_names[i].name, name) == 0) {
			class_put(items, class_names[i].items);
			return;
		}
	}
	if (length > 0)
		name[0] = (char)toupper((unsigned char)name[0]);
	if (length == 1 && strchr("LMNPSZC", name[0]))
		snprintf(text, sizeof(text), "\\p{%s}", name);
	else if (length == 2)
		snprintf(text, sizeof(text), "\\p{%s}", name);
	else
		snprintf(text, sizeof(text), "\\p{sc:%s}", name);
	class_put(items, text);
}

bool oniguruma_read_shorthand(
	struct oniguruma_source *source, struct bytes *items, bool *ret_negated)
{
	char kind = *source->at, lower = (char)tolower((unsigned char)kind);

	*ret_negated = kind != lower;
	if (lower == 's' || lower == 'd' || lower == 'w' || lower == 'h') {
		source->at++;
		class_put(items, lower == 's' ? oniguruma_space : lower == 'd' ? "\\p{Nd}"
			: lower == 'w' ? oniguruma_word : oniguruma_hex);
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
	class_property(source, name, (size_t)(close - name), items);
	return true;
}

/* ---- classes ---- */

/* A set of characters: its items within [ ], or their complement, and expressions of one character that are in it
 * as well. */
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
		class_put(out, "(?:");
	if (set->items.length > 0) {
		class_put(out, set->negated ? "[^" : "[");
		class_append(out, &set->items);
		class_put(out, "]");
	} else if (set->expressions.length == 0) {
		class_put(out, set->negated ? "(?s:.)" : "(?!)");
	}
	if (both)
		class_put(out, "|");
	if (set->expressions.length > 0) {
		class_append(out, &set->expressions);
		class_put(out, ")");
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
	class_put(&text, "(?!");
	class_set_print(set, &text);
	class_put(&text, ")(?s:.)");
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
		class_put(&set->expressions, "|");
	class_append(&set->expressions, &other->expressions);
	set->has_other |= other->has_other;
	set->categories |= other->categories;
	class_set_deinit(other);
	*other = (struct class_set){0};
}

/*
 * *set becomes the intersection. Takes over `other`.
 * What is in some general categories and not in a list of items, the usual case, is what is not in the other categories
 * and not in the list: one class, which PCRE2 repeats without remembering each character, unlike a group.
 */
static void class_set_intersect(struct class_set *set, struct class_set *other)
{
	struct class_set *positive = set->negated ? other : set, *negative = set->negated ? set : other;
	struct class_set result = {.has_other = true};

	if (negative->negated && !positive->negated && !positive->has_other) {
		for (size_t i = 0; i < CLASS_CATEGORIES; i++) {
			if (positive->categories & 1u << i)
				continue;
			class_put(&result.items, "\\p{");
			class_put(&result.items, class_categories[i]);
			class_put(&result.items, "}");
		}
		class_append(&result.items, &negative->items);
		result.negated = true;
	} else {
		class_put(&result.expressions, "(?=");
		class_set_print(set, &result.expressions);
		class_put(&result.expressions, ")");
		class_set_print(other, &result.expressions);
	}
	class_set_deinit(set);
	class_set_deinit(other);
	*set = result;
	*other = (struct class_set){0};
}

/* The general categories that the item at text[length], of the form \p{L} or \p{Lu}, stands for; 0: it is something else. */
static uint32_t class_category_bits(const char *text, size_t length)
{
	uint32_t bits = 0;
	size_t n = length - 4;

	if (length < 5 || memcmp(text, "\\p{", 3) != 0 || n > 2)
		return 0;
	for (size_t i = 0; i < CLASS_CATEGORIES; i++) {
		if (memcmp(class_categories[i], text + 3, n) == 0)
			bits |= 1u << i;
	}
	return bits;
}

static void class_add_shorthand(
	struct class_set *set, struct bytes *items, bool negated)
{
	struct class_set added = {.items = *items};

	added.categories = class_category_bits(items->data, items->length);
	added.has_other = added.categories == 0;
	*items = (struct bytes){0};
	if (negated && !added.has_other) {
		/* the other categories, so that a list with \P{L} stays one */
		bytes_clear(&added.items);
		added.categories = CLASS_ALL_CATEGORIES & ~added.categories;
		for (size_t i = 0; i < CLASS_CATEGORIES; i++) {
			if (!(added.categories & 1u << i))
				continue;
			class_put(&added.items, "\\p{");
			class_put(&added.items, class_categories[i]);
			class_put(&added.items, "}");
		}
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
		class_property(source, names[i], n, &items);
		/* [:punct:] has the symbols, which \p{Punct} lacks. */
		if (strcmp(names[i], "punct") == 0)
			class_put(&items, "\\p{S}");
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

	return character >= 0x80 &&
	       utf8proc_decompose_char((utf8proc_int32_t)character, folded, 8,
		       UTF8PROC_CASEFOLD, &class) > 1;
}

static void class_add_range(
	struct oniguruma_source *source, struct class_set *set, uint32_t first, uint32_t last)
{
	struct class_set added = {.has_other = true};

	for (uint32_t c = first; source->caseless && c <= last; c++) {
		if (oniguruma_folds_to_several(c)) {
			oniguruma_refuse(source, "ignores the case of characters that fold to several");
			break;
		}
	}
	oniguruma_put_character(&added.items, first);
	if (last != first) {
		class_put(&added.items, "-");
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
static void class_read_operand(struct oniguruma_source *source, struct class_set *set, unsigned depth,
	bool is_first)
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
