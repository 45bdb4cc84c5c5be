/* SPDX-License-Identifier: MIT */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "sdk/text/chat_lexer.h"
#include "sdk/text/chat_string.h"
#include "sdk/text/chat_unicode.h"

#define BRACKETS_MAX 200 /* open at the same time */

struct lexer {
	struct chat_context *context;
	const char *source; /* newlines are \n; the one at the end is removed */
	size_t length, at;
	bool at_line_start; /* the last match ended with a newline */
	struct chat_token *tokens;
	size_t n, capacity;
	char brackets[BRACKETS_MAX]; /* the closing ones that are awaited */
	size_t n_brackets;
};

bool chat_token_is(const struct chat_token *token, const char *text)
{
	return (token->type == CHAT_TOKEN_NAME || token->type == CHAT_TOKEN_OPERATOR) &&
	       token->length == strlen(text) && !memcmp(token->bytes, text, token->length);
}

static struct chat_token *lexer_add(
	struct lexer *lexer, enum chat_token_type type, const char *bytes, size_t length)
{
	struct chat_token *token;

	if (lexer->n == lexer->capacity)
		lexer->tokens = chat_grow(
			lexer->context, lexer->tokens, &lexer->capacity, sizeof(*lexer->tokens));
	token = &lexer->tokens[lexer->n++];
	*token = (struct chat_token){
		.type = type, .line = lexer->context->line, .bytes = bytes, .length = length};
	return token;
}

static bool lexer_is(const struct lexer *lexer, size_t at, const char *text)
{
	size_t n = strlen(text);

	return at <= lexer->length && n <= lexer->length - at &&
	       !memcmp(lexer->source + at, text, n);
}

/* Go to `at`, counting lines. */
static void lexer_advance(struct lexer *lexer, size_t at)
{
	assert(at >= lexer->at && at <= lexer->length);
	for (size_t i = lexer->at; i < at; i++)
		lexer->context->line += lexer->source[i] == '\n';
	if (at > lexer->at)
		lexer->at_line_start = lexer->source[at - 1] == '\n';
	lexer->at = at;
}

/* The end of the white space that begins at `at`, and the beginning of what ends at `at`. */
static size_t lexer_space_end(const struct lexer *lexer, size_t at)
{
	const struct chat_string rest = {.bytes = lexer->source, .length = lexer->length};
	size_t length;

	while (at < lexer->length && chat_is_space(chat_string_at(&rest, at, &length)))
		at += length;
	return at;
}

static size_t lexer_space_begin(const struct lexer *lexer, size_t from, size_t at)
{
	const struct chat_string rest = {.bytes = lexer->source, .length = lexer->length};

	while (at > from) {
		size_t before = at - 1, length;

		while ((lexer->source[before] & 0xc0) == 0x80)
			before--;
		if (!chat_is_space(chat_string_at(&rest, before, &length)))
			break;
		at = before;
	}
	return at;
}

/* ---- text ---- */

/* Text up to the tag at `end`, less what the tag's sign or the rule for its line removes. */
static void lexer_add_data(struct lexer *lexer, size_t end, char sign, bool is_print)
{
	size_t start = lexer->at, stop = end, line_start = end;
	struct chat_token *token;

	if (sign == '-') {
		stop = lexer_space_begin(lexer, start, end);
	} else if (sign != '+' && !is_print) {
		while (line_start > start && lexer->source[line_start - 1] != '\n')
			line_start--;
		if ((line_start > start || lexer->at_line_start) &&
			lexer_space_begin(lexer, line_start, end) == line_start)
			stop = line_start;
	}
	if (stop > start) {
		token = lexer_add(lexer, CHAT_TOKEN_DATA, lexer->source + start, stop - start);
		token->value =
			chat_string_wrap(lexer->context, lexer->source + start, stop - start, NULL);
	}
	lexer_advance(lexer, end);
}

/*
 * The byte behind a tag that ends at `at` ("%}" or "#}"): by its sign the white space behind it
 * goes, too.
 */
static size_t lexer_tag_end(const struct lexer *lexer, size_t at, char sign)
{
	at += 2;
	if (sign == '-')
		return lexer_space_end(lexer, at);
	return sign != '+' && lexer_is(lexer, at, "\n") ? at + 1 : at;
}

static void lexer_skip_comment(struct lexer *lexer)
{
	size_t at = lexer->at;

	while (at < lexer->length && !lexer_is(lexer, at, "#}"))
		at++;
	if (at == lexer->length && at > lexer->at)
		chat_fail(lexer->context, MIMEO_E_UNSUPPORTED, "a comment has no end");
	if (at == lexer->length)
		return; /* for Jinja, an empty one has */
	lexer_advance(lexer, lexer_tag_end(lexer, at, at > lexer->at ? lexer->source[at - 1] : 0));
}

/*
 * The byte behind "NAME %}" with white space around the name, or 0; *ret_sign: the sign before
 * "%}".
 */
static size_t lexer_match_tag(
	const struct lexer *lexer, size_t at, const char *name, char *ret_sign)
{
	at = lexer_space_end(lexer, at);
	if (!lexer_is(lexer, at, name))
		return 0;
	at = lexer_space_end(lexer, at + strlen(name));
	*ret_sign = 0;
	if (lexer_is(lexer, at, "-%}") || lexer_is(lexer, at, "+%}"))
		*ret_sign = lexer->source[at++];
	return lexer_is(lexer, at, "%}") ? at : 0;
}

/* Behind "{% raw %}". */
static void lexer_read_raw(struct lexer *lexer)
{
	for (size_t at = lexer->at; at < lexer->length; at++) {
		char sign = 0, end_sign;
		size_t end;

		if (!lexer_is(lexer, at, "{%"))
			continue;
		if (lexer_is(lexer, at + 2, "-") || lexer_is(lexer, at + 2, "+"))
			sign = lexer->source[at + 2];
		end = lexer_match_tag(lexer, at + 2 + (sign != 0), "endraw", &end_sign);
		if (!end)
			continue;
		lexer_add_data(lexer, at, sign, false);
		lexer_advance(lexer, lexer_tag_end(lexer, end, end_sign));
		return;
	}
	if (lexer->at < lexer->length)
		chat_fail(lexer->context, MIMEO_E_UNSUPPORTED, "a raw block has no end");
}

/* ---- tokens within tags ---- */

/* The number that n hexadecimal digits make, or -1. */
static int lexer_hex(const char *digits, size_t n)
{
	int character = 0;

	for (size_t i = 0; i < n; i++) {
		char c = digits[i];
		int value = c >= '0' && c <= '9'   ? c - '0'
			    : c >= 'a' && c <= 'f' ? c - 'a' + 10
			    : c >= 'A' && c <= 'F' ? c - 'A' + 10
						   : -1;

		if (value < 0 || character > 0x10ffff)
			return -1;
		character = 16 * character + value;
	}
	return character;
}

/* One escape behind a backslash, as in Python; returns its bytes. */
static size_t lexer_unescape(
	struct lexer *lexer, struct chat_text *text, const char *escape, size_t length)
{
	static const char simple[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";
	int character = 0;
	size_t n;

	for (const char *pair = simple; *pair; pair += 2) {
		if (escape[0] == pair[0]) {
			chat_text_add(text, pair + 1, 1, false);
			return 1;
		}
	}
	if (escape[0] == '\n')
		return 1;
	if (escape[0] >= '0' && escape[0] <= '7') {
		for (n = 0; n < 3 && n < length && escape[n] >= '0' && escape[n] <= '7'; n++)
			character = 8 * character + (escape[n] - '0');
		chat_text_add_character(text, character, false);
		return n;
	}
	n = escape[0] == 'x' ? 2 : escape[0] == 'u' ? 4 : escape[0] == 'U' ? 8 : 0;
	if (!n && escape[0] != 'N') {
		chat_text_add_literal(text, "\\", false);
		return 0;
	}
	character = n && n < length ? lexer_hex(escape + 1, n) : -1;
	if (character < 0 || character > 0x10ffff || (character & ~0x7ff) == 0xd800)
		chat_fail(lexer->context, MIMEO_E_UNSUPPORTED, "escape \"\\%.*s\" is not supported",
			(int)(n < length ? n + 1 : 1), escape);
	chat_text_add_character(text, character, false);
	return n + 1;
}

static void lexer_read_string(struct lexer *lexer)
{
	const char *start = lexer->source + lexer->at + 1, *at = start;
	const char *end = lexer->source + lexer->length;
	char quote = start[-1];
	struct chat_text *text = chat_text_new(lexer->context);
	struct chat_token *token = lexer_add(lexer, CHAT_TOKEN_CONSTANT, start - 1, 1);

	while (at < end && *at != quote) {
		const char *plain = at;

		while (at < end && *at != quote && *at != '\\')
			at++;
		chat_text_add(text, plain, (size_t)(at - plain), false);
		if (at + 1 < end && *at == '\\')
			at += 1 + lexer_unescape(lexer, text, at + 1, (size_t)(end - at - 1));
		else if (at < end && *at == '\\')
			at = end;
	}
	if (at >= end)
		chat_fail(lexer->context, MIMEO_E_UNSUPPORTED, "a string has no end");
	token->value = chat_text_string(text);
	lexer_advance(lexer, (size_t)(at + 1 - lexer->source));
}

/* Digits with single underscores between them, copied without these; the byte behind them. */
static size_t lexer_read_digits(
	const struct lexer *lexer, size_t at, const char *digits, struct chat_text *text)
{
	while (at < lexer->length) {
		size_t next = at + (lexer->source[at] == '_');

		if (next == lexer->length || !lexer->source[next] ||
			!strchr(digits, lexer->source[next]))
			break;
		chat_text_add(text, lexer->source + next, 1, false);
		at = next + 1;
	}
	return at;
}

#define DECIMAL "0123456789"

/* The end of a fraction and an exponent, or `at` if there are none. */
static size_t lexer_read_fraction(const struct lexer *lexer, size_t at, struct chat_text *text)
{
	size_t next = at, end, length = text->length;

	if (lexer_is(lexer, at, ".")) {
		chat_text_add_literal(text, ".", false);
		next = lexer_read_digits(lexer, at + 1, DECIMAL, text);
		if (next == at + 1) {
			text->length = length;
			return at;
		}
		at = next;
		length = text->length;
	}
	if (lexer_is(lexer, at, "e") || lexer_is(lexer, at, "E")) {
		chat_text_add_literal(text, "e", false);
		next = at + 1;
		if (lexer_is(lexer, next, "+") || lexer_is(lexer, next, "-"))
			chat_text_add(text, lexer->source + next++, 1, false);
		end = lexer_read_digits(lexer, next, DECIMAL, text);
		if (end > next)
			return end;
		text->length = length;
	}
	return at;
}

static void lexer_read_number(struct lexer *lexer)
{
	static const struct {
		const char *prefix, *digits;
		int base;
	} bases[] = {{"0x", "0123456789abcdefABCDEF", 16}, {"0X", "0123456789abcdefABCDEF", 16},
		{"0o", "01234567", 8}, {"0O", "01234567", 8}, {"0b", "01", 2}, {"0B", "01", 2}};
	struct chat_text *text = chat_text_new(lexer->context);
	struct chat_token *token =
		lexer_add(lexer, CHAT_TOKEN_CONSTANT, lexer->source + lexer->at, 1);
	size_t end, integer_end;
	int base = 10;

	end = lexer_read_digits(lexer, lexer->at, DECIMAL, text);
	integer_end = end;
	/* not behind a point: "a.0.1" are two items */
	if (!lexer->at || lexer->source[lexer->at - 1] != '.')
		end = lexer_read_fraction(lexer, end, text);
	for (size_t i = 0; i < sizeof(bases) / sizeof(bases[0]) && end == integer_end; i++) {
		if (!lexer_is(lexer, lexer->at, bases[i].prefix))
			continue;
		text->length = 0;
		end = lexer_read_digits(lexer, lexer->at + 2, bases[i].digits, text);
		base = bases[i].base;
		break;
	}
	chat_text_add(text, "", 1, false);
	errno = 0;
	token->value = end == integer_end || base != 10 ? chat_int(strtoll(text->bytes, NULL, base))
							: chat_float(strtod(text->bytes, NULL));
	if (errno == ERANGE && token->value.type == CHAT_INT)
		chat_fail(lexer->context, MIMEO_E_UNSUPPORTED, "an integer exceeds 64 bits");
	lexer_advance(lexer, end);
}

static bool lexer_is_name_byte(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       c == '_';
}

static void lexer_read_operator(struct lexer *lexer)
{
	static const char *const operators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
		"*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".", ":", "|", ",",
		";"};
	static const char opening[] = {'(', '[', '{'}, closing[] = {')', ']', '}'};
	const char *at = lexer->source + lexer->at;
	const char *opened = memchr(opening, *at, sizeof(opening));

	for (size_t i = 0; i < sizeof(operators) / sizeof(operators[0]); i++) {
		if (!lexer_is(lexer, lexer->at, operators[i]))
			continue;
		if (opened && lexer->n_brackets == BRACKETS_MAX)
			chat_fail(lexer->context, MIMEO_E_UNSUPPORTED, "more than %d open brackets",
				BRACKETS_MAX);
		if (opened)
			lexer->brackets[lexer->n_brackets++] = closing[opened - opening];
		if (memchr(closing, *at, sizeof(closing)) &&
			(!lexer->n_brackets || lexer->brackets[--lexer->n_brackets] != *at))
			chat_fail(lexer->context, MIMEO_E_UNSUPPORTED, "unexpected \"%c\"", *at);
		lexer_add(lexer, CHAT_TOKEN_OPERATOR, at, strlen(operators[i]));
		lexer_advance(lexer, lexer->at + strlen(operators[i]));
		return;
	}
	chat_fail(lexer->context, MIMEO_E_UNSUPPORTED, "unexpected character \"%.*s\"",
		(int)(lexer->length - lexer->at < 4 ? lexer->length - lexer->at : 4), at);
}

/* Whether the tag ends here; *ret_end: the byte behind it. */
static bool lexer_at_tag_end(const struct lexer *lexer, bool is_print, size_t *ret_end)
{
	const char *end = is_print ? "}}" : "%}";
	char sign = 0;
	size_t at = lexer->at;

	if (lexer->n_brackets)
		return false;
	if (lexer_is(lexer, at, "-") || (!is_print && lexer_is(lexer, at, "+")))
		sign = lexer->source[at++];
	if (!lexer_is(lexer, at, end))
		return false;
	*ret_end = is_print && sign != '-' ? at + 2 : lexer_tag_end(lexer, at, sign);
	return true;
}

/* Behind "{{" or "{%". */
static void lexer_read_tag(struct lexer *lexer, bool is_print)
{
	size_t end;

	while (!lexer_at_tag_end(lexer, is_print, &end)) {
		size_t start = lexer_space_end(lexer, lexer->at);
		char c;

		if (start == lexer->length)
			chat_fail(lexer->context, MIMEO_E_UNSUPPORTED, "a tag has no end");
		if (start > lexer->at) {
			lexer_advance(lexer, start);
			continue;
		}
		c = lexer->source[start];
		if (c == '\'' || c == '"') {
			lexer_read_string(lexer);
		} else if (c >= '0' && c <= '9') {
			lexer_read_number(lexer);
		} else if (lexer_is_name_byte(c)) {
			size_t stop = start;

			while (stop < lexer->length && lexer_is_name_byte(lexer->source[stop]))
				stop++;
			lexer_add(lexer, CHAT_TOKEN_NAME, lexer->source + start, stop - start);
			lexer_advance(lexer, stop);
		} else {
			lexer_read_operator(lexer);
		}
	}
	lexer_add(lexer, is_print ? CHAT_TOKEN_PRINT_END : CHAT_TOKEN_BLOCK_END,
		lexer->source + lexer->at, 2);
	lexer_advance(lexer, end);
}

/* ---- the whole source ---- */

static void lexer_normalize(struct lexer *lexer, const char *source, size_t length)
{
	char *copy = chat_alloc(lexer->context, length + 1);
	size_t n = 0;

	for (size_t i = 0; i < length; i++) {
		if (source[i] == '\r' && i + 1 < length && source[i + 1] == '\n')
			continue;
		copy[n++] = source[i] == '\r' ? '\n' : source[i];
	}
	if (n && copy[n - 1] == '\n')
		n--;
	lexer->source = copy;
	lexer->length = n;
}

struct chat_token *chat_tokenize(struct chat_context *context, const char *source, size_t length)
{
	struct lexer *lexer = CHAT_NEW(context, struct lexer);

	lexer->context = context;
	lexer->at_line_start = true;
	lexer_normalize(lexer, source, length);
	while (lexer->at < lexer->length) {
		size_t tag = lexer->at, raw;
		char kind, sign = 0, raw_sign;

		while (tag < lexer->length && !lexer_is(lexer, tag, "{%") &&
			!lexer_is(lexer, tag, "{{") && !lexer_is(lexer, tag, "{#"))
			tag++;
		if (tag == lexer->length) {
			lexer_add_data(lexer, tag, '+', false);
			break;
		}
		kind = lexer->source[tag + 1];
		if (lexer_is(lexer, tag + 2, "-") || lexer_is(lexer, tag + 2, "+"))
			sign = lexer->source[tag + 2];
		lexer_add_data(lexer, tag, sign, kind == '{');
		raw = kind == '%' ? lexer_match_tag(lexer, tag + 2 + (sign != 0), "raw", &raw_sign)
				  : 0;
		if (!raw || raw_sign == '+')
			lexer_advance(lexer, tag + 2 + (sign != 0));
		if (raw && raw_sign != '+') {
			lexer_advance(
				lexer, raw_sign == '-' ? lexer_space_end(lexer, raw + 2) : raw + 2);
			lexer_read_raw(lexer);
		} else if (kind == '#') {
			lexer_skip_comment(lexer);
		} else {
			lexer_add(lexer,
				kind == '%' ? CHAT_TOKEN_BLOCK_BEGIN : CHAT_TOKEN_PRINT_BEGIN,
				lexer->source + tag, 2);
			lexer_read_tag(lexer, kind == '{');
		}
	}
	lexer_add(lexer, CHAT_TOKEN_END, lexer->source + lexer->length, 0);
	return lexer->tokens;
}
