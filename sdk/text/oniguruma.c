/* SPDX-License-Identifier: MIT */
#include "sdk/text/oniguruma.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "sdk/text/oniguruma_class.h"
#include "sdk/text/oniguruma_property.h"
#include "sdk/text/utf8.h"

#define ONIGURUMA_DEPTH_MAX 100u

struct oniguruma_group {
	size_t start;    /* in the output */
	unsigned nested; /* groups that options opened within it: each ends with it */
	bool caseless;
};

struct oniguruma {
	struct oniguruma_source source;
	struct bytes *out;
	struct oniguruma_group groups[ONIGURUMA_DEPTH_MAX + 1]; /* 0 is the whole pattern */
	unsigned depth;
	size_t atom;       /* where the last atom begins in the output */
	bool has_atom;     /* a quantifier may follow */
	uint32_t previous; /* the character that the last atom is, or 0 */
	bool is_several;   /* the last atom may be more than one character */
	bool has_alternatives;
};

static bool oniguruma_more(const struct oniguruma *o)
{
	return o->source.at < o->source.end;
}

static bool oniguruma_take(struct oniguruma *o, const char *text)
{
	size_t n = strlen(text);

	if ((size_t)(o->source.end - o->source.at) < n || memcmp(o->source.at, text, n) != 0)
		return false;
	o->source.at += n;
	return true;
}

static void oniguruma_begin_atom(struct oniguruma *o)
{
	o->atom = o->out->length;
	o->has_atom = true;
	o->previous = 0;
	o->is_several = false;
}

/* ---- characters ---- */

/* Letters that one other character folds to, which PCRE2 does not match. */
static bool oniguruma_folds_together(uint32_t first, uint32_t second)
{
	static const char pairs[][3] = {"ss", "st", "ff", "fi", "fl"};

	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
		if ((first | 0x20) == (unsigned char)pairs[i][0] &&
			(second | 0x20) == (unsigned char)pairs[i][1])
			return true;
	}
	return false;
}

static void oniguruma_character(struct oniguruma *o, uint32_t character)
{
	uint32_t previous = o->previous;

	oniguruma_begin_atom(o);
	o->previous = character;
	if (o->groups[o->depth].caseless && (oniguruma_folds_together(previous, character) ||
						    oniguruma_folds_to_several(character))) {
		oniguruma_refuse(&o->source, "ignores the case of characters that fold to several");
		return;
	}
	if (character >= 0x80 || character == '_' || (character >= '0' && character <= '9') ||
		(character >= 'A' && character <= 'Z') || (character >= 'a' && character <= 'z')) {
		utf8_add(o->out, character);
		return;
	}
	oniguruma_put_character(o->out, character);
}

/* ---- escapes ---- */

/* A look at the word character, or another, before or behind. */
static void oniguruma_look(struct oniguruma *o, const char *look)
{
	bytes_put(o->out, look);
	bytes_put(o->out, "[");
	bytes_put(o->out, oniguruma_word);
	bytes_put(o->out, oniguruma_word_alone);
	bytes_put(o->out, "])");
}

/* \b: a word character on one side only; \B: on both or none. */
static void oniguruma_boundary(struct oniguruma *o, bool negated)
{
	bytes_put(o->out, "(?:");
	oniguruma_look(o, "(?<=");
	oniguruma_look(o, negated ? "(?=" : "(?!");
	bytes_put(o->out, "|");
	oniguruma_look(o, "(?<!");
	oniguruma_look(o, negated ? "(?!" : "(?=");
	bytes_put(o->out, ")");
}

static bool oniguruma_is_word(const struct bytes *items)
{
	size_t length = strlen(oniguruma_word);

	return items->length == length && memcmp(items->data, oniguruma_word, length) == 0;
}

static void oniguruma_escape(struct oniguruma *o)
{
	uint32_t character;
	bool negated;

	if (!oniguruma_more(o)) {
		oniguruma_refuse(&o->source, "ends in a backslash");
		return;
	}
	if (oniguruma_read_character(&o->source, &character)) {
		oniguruma_character(o, character);
		return;
	}
	oniguruma_begin_atom(o);
	struct bytes items = {0};
	if (oniguruma_read_shorthand(&o->source, &items, &negated)) {
		bytes_put(o->out, negated ? "[^" : "[");
		bytes_add(o->out, items.data, items.length);
		if (oniguruma_is_word(&items))
			bytes_put(o->out, oniguruma_word_alone);
		bytes_put(o->out, "]");
		bytes_deinit(&items);
		return;
	}
	bytes_deinit(&items);
	switch (*o->source.at++) {
	case 'R':
		bytes_put(o->out, "\\R");
		o->is_several = true;
		return;
	case 'X':
		bytes_put(o->out, "\\X");
		o->is_several = true;
		return;
	case 'N':
		bytes_put(o->out, "\\N");
		return;
	case 'O':
		bytes_put(o->out, "(?s:.)");
		return;
	case 'K':
		bytes_put(o->out, "\\K");
		break;
	case 'A':
		bytes_put(o->out, "\\A");
		break;
	case 'Z':
		bytes_put(o->out, "\\Z");
		break;
	case 'z':
		bytes_put(o->out, "\\z");
		break;
	case 'G':
		bytes_put(o->out, "\\G");
		break;
	case 'b':
		oniguruma_boundary(o, false);
		break;
	case 'B':
		oniguruma_boundary(o, true);
		break;
	default:
		oniguruma_refuse(&o->source, "has an escape that is not supported");
	}
	o->has_atom = false;
}

/* ---- groups ---- */

static bool oniguruma_enter(struct oniguruma *o, const char *opening)
{
	bool caseless = o->groups[o->depth].caseless;

	if (o->depth == ONIGURUMA_DEPTH_MAX)
		return oniguruma_refuse(&o->source, "nests groups too deeply");
	o->depth++;
	o->groups[o->depth] =
		(struct oniguruma_group){.start = o->out->length, .caseless = caseless};
	bytes_put(o->out, opening);
	o->has_atom = false;
	o->previous = 0;
	return true;
}

static void oniguruma_close_nested(struct oniguruma *o)
{
	struct oniguruma_group *group = &o->groups[o->depth];

	for (; group->nested > 0; group->nested--)
		bytes_put(o->out, ")");
}

static void oniguruma_leave(struct oniguruma *o)
{
	if (o->depth == 0) {
		oniguruma_refuse(&o->source, "has an unmatched )");
		return;
	}
	oniguruma_close_nested(o);
	bytes_put(o->out, ")");
	o->atom = o->groups[o->depth].start;
	o->has_atom = true;
	o->is_several = true;
	o->previous = 0;
	o->depth--;
}

/* Behind (?: options such as i-m, up to : or ). An option without : lasts to the end of the group,
 * across |. */
static void oniguruma_options(struct oniguruma *o)
{
	char text[16] = "(?";
	size_t n = 2;
	bool on = true, caseless = o->groups[o->depth].caseless;

	for (; oniguruma_more(o) && *o->source.at != ':' && *o->source.at != ')'; o->source.at++) {
		char option = *o->source.at;

		if (n > 8 || !strchr("im-", option)) {
			oniguruma_refuse(&o->source, "has a group that is not supported");
			return;
		}
		if (option == '-')
			on = false;
		else if (option == 'i')
			caseless = on;
		/* Oniguruma's m is PCRE2's s. */
		text[n++] = option == 'm' ? 's' : option;
	}
	if (!oniguruma_more(o)) {
		oniguruma_refuse(&o->source, "has an unfinished group");
		return;
	}
	text[n++] = ':';
	text[n] = '\0';
	if (*o->source.at++ == ':') {
		if (oniguruma_enter(o, text))
			o->groups[o->depth].caseless = caseless;
		return;
	}
	if (++o->groups[o->depth].nested > ONIGURUMA_DEPTH_MAX) {
		oniguruma_refuse(&o->source, "nests groups too deeply");
		return;
	}
	o->groups[o->depth].caseless = caseless;
	bytes_put(o->out, text);
	o->has_atom = false;
}

static void oniguruma_named_group(struct oniguruma *o)
{
	while (oniguruma_more(o) && *o->source.at != '>')
		o->source.at++;
	if (!oniguruma_take(o, ">"))
		oniguruma_refuse(&o->source, "has an unfinished group");
	else
		oniguruma_enter(o, "(?:");
}

static void oniguruma_open(struct oniguruma *o)
{
	static const char *const same[] = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"};

	for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
		if (oniguruma_take(o, same[i] + 1)) {
			oniguruma_enter(o, same[i]);
			return;
		}
	}
	if (oniguruma_take(o, "?#")) {
		while (oniguruma_more(o) && *o->source.at != ')')
			o->source.at++;
		if (!oniguruma_take(o, ")"))
			oniguruma_refuse(&o->source, "has an unfinished group");
	} else if (oniguruma_take(o, "?<")) {
		oniguruma_named_group(o);
	} else if (oniguruma_take(o, "?")) {
		oniguruma_options(o);
	} else if (oniguruma_take(o, "*")) {
		oniguruma_refuse(&o->source, "has a group that is not supported");
	} else {
		/* Nothing refers to a group, so none captures. */
		oniguruma_enter(o, "(?:");
	}
}

/* ---- quantifiers ---- */

/* A quantifier of a quantified atom: PCRE2 wants it in a group. */
static void oniguruma_wrap(struct oniguruma *o)
{
	static const char opening[] = "(?:";
	size_t length = o->out->length - o->atom;

	bytes_put(o->out, opening);
	if (o->out->rc < 0)
		return;
	char *atom = o->out->data + o->atom;
	memmove(atom + sizeof(opening) - 1, atom, length);
	memcpy(atom, opening, sizeof(opening) - 1);
	bytes_put(o->out, ")");
}

static bool oniguruma_number(const char **at, const char *end, unsigned long *ret)
{
	const char *from = *at;

	*ret = 0;
	for (; *at < end && **at >= '0' && **at <= '9'; (*at)++) {
		*ret = *ret * 10 + (unsigned long)(**at - '0');
		if (*ret > 100000)
			return false;
	}
	return *at > from;
}

/* At {: an interval, as text for PCRE2; *ret_fixed: its bounds are one number. False: the brace is
 * a character. */
static bool oniguruma_interval(struct oniguruma *o, char *text, size_t size, bool *ret_fixed)
{
	const char *at = o->source.at + 1, *end = o->source.end;
	unsigned long least = 0, most = 0;
	bool has_least = oniguruma_number(&at, end, &least), has_comma = at < end && *at == ',',
	     has_most;

	if (has_comma)
		at++;
	has_most = has_comma && oniguruma_number(&at, end, &most);
	if (at == end || *at != '}' || (!has_least && !has_most))
		return false;
	if (has_most && most < least)
		return oniguruma_refuse(&o->source, "has an interval whose bounds are reversed");
	o->source.at = at + 1;
	*ret_fixed = !has_comma;
	if (!has_comma)
		snprintf(text, size, "{%lu}", least);
	else if (!has_most)
		snprintf(text, size, "{%lu,}", least);
	else
		snprintf(text, size, "{%lu,%lu}", least, most);
	return true;
}

/* A quantifier of the last atom. False: what is next is none. */
static bool oniguruma_quantifier(struct oniguruma *o, bool *is_quantified)
{
	char text[40];
	bool fixed = false, has_interval = false;
	char first = *o->source.at;

	if (first == '{') {
		has_interval = oniguruma_interval(o, text, sizeof(text), &fixed);
		if (!has_interval)
			return false;
	} else if (first == '*' || first == '+' || first == '?') {
		text[0] = first;
		text[1] = '\0';
		o->source.at++;
	} else {
		return false;
	}
	if (!o->has_atom)
		return oniguruma_refuse(&o->source, "has a quantifier without anything to repeat");
	if (*is_quantified)
		oniguruma_wrap(o);
	*is_quantified = true;
	o->previous = 0;
	bytes_put(o->out, text);
	/* Only an interval with two bounds can be reluctant, and none is possessive. */
	if (oniguruma_more(o) && *o->source.at == '?' && !fixed) {
		o->source.at++;
		bytes_put(o->out, "?");
	} else if (oniguruma_more(o) && *o->source.at == '+' && !has_interval) {
		o->source.at++;
		bytes_put(o->out, "+");
	}
	return true;
}

/* ---- the whole ---- */

static void oniguruma_next(struct oniguruma *o)
{
	unsigned size;

	switch (*o->source.at) {
	case '\\':
		o->source.at++;
		oniguruma_escape(o);
		return;
	case '[':
		o->source.at++;
		oniguruma_begin_atom(o);
		o->source.caseless = o->groups[o->depth].caseless;
		oniguruma_read_class(&o->source, o->out);
		return;
	case '(':
		o->source.at++;
		oniguruma_open(o);
		return;
	case ')':
		o->source.at++;
		oniguruma_leave(o);
		return;
	case '.':
		o->source.at++;
		oniguruma_begin_atom(o);
		bytes_put(o->out, ".");
		return;
	case '|':
		o->has_alternatives |= o->depth == 0;
		__attribute__((fallthrough));
	case '^':
	case '$':
		utf8_add(o->out, (unsigned char)*o->source.at++);
		o->has_atom = false;
		o->previous = 0;
		return;
	default:
		oniguruma_character(o, utf8_decode(o->source.at, &size));
		/* after an error there is nothing left */
		if (oniguruma_more(o))
			o->source.at += size;
	}
}

/* An atom or something else, and its quantifiers. Returns the length of the atom in the output if
 * it is one character and its first quantifier is * or +, else 0. */
static size_t oniguruma_piece(struct oniguruma *o)
{
	bool is_quantified = false;
	size_t length = 0;

	if (oniguruma_quantifier(o, &is_quantified) || !oniguruma_more(o))
		return 0;
	oniguruma_next(o);
	while (oniguruma_more(o) && o->has_atom) {
		char kind = *o->source.at;
		size_t atom_length = o->out->length - o->atom;

		if (!oniguruma_quantifier(o, &is_quantified))
			break;
		length = !o->is_several && (kind == '*' || kind == '+') ? atom_length : 0;
		o->is_several = true;
	}
	return length;
}

int oniguruma_translate(const char *pattern, size_t length, struct bytes *out, size_t *ret_run,
	const char **ret_reason)
{
	struct oniguruma *o = calloc(1, sizeof(*o));
	size_t run = 0;

	if (!o)
		return MIMEO_E_NO_MEMORY;
	assert(out->length == 0);
	o->source = (struct oniguruma_source){.at = pattern, .end = pattern + length};
	o->out = out;
	if (length > ONIGURUMA_PATTERN_MAX)
		oniguruma_refuse(&o->source, "is too long");
	if (oniguruma_more(o))
		run = oniguruma_piece(o);
	if (!oniguruma_more(o))
		run = 0;
	while (oniguruma_more(o))
		oniguruma_piece(o);
	if (o->depth > 0)
		oniguruma_refuse(&o->source, "has an unmatched (");
	oniguruma_close_nested(o);
	*ret_run = o->has_alternatives ? 0 : run;
	*ret_reason = o->source.reason;
	free(o);
	if (*ret_reason)
		return MIMEO_E_UNSUPPORTED;
	return out->rc;
}
