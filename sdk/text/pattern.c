/* SPDX-License-Identifier: MIT */
#include "sdk/text/pattern.h"

#include <assert.h>
#include <stdlib.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "sdk/text/oniguruma.h"
#include "sdk/text/utf8.h"

#define PATTERN_LITERAL_MAX 4096u
#define PATTERN_CODE_MAX 262144u /* bytes of an expression in PCRE2's syntax */
#define PATTERN_NESTED_MAX 250u
/* Steps at one start that are not counted: ordinary words need a few. */
#define PATTERN_FIRST_STEPS 1000u
#define PATTERN_STEPS_FACTOR 8u
#define PATTERN_PART_FIRST ((size_t)32768) /* bytes */
#define PATTERN_STEP_BYTES 8u              /* looked at without backtracking */
#define PATTERN_HEAP_KIB 262144u
#define PATTERN_STACK_FIRST 65536u
#define PATTERN_STACK_MAX ((size_t)64 << 20)

#define PATTERN_OPTIONS                                                                            \
	(PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_CAPTURE)

DEFINE_CLEANUP(compile_context, pcre2_compile_context, pcre2_compile_context_free)

/* ---- making ---- */

static pcre2_code *pattern_compile(const struct spec *spec, const struct bytes *text)
{
	CLEANUP(cleanup_compile_context)
	pcre2_compile_context *context = pcre2_compile_context_create(NULL);
	PCRE2_SIZE offset;
	int error;
	char reason[120];

	if (!context) {
		spec_no_memory(spec);
		return NULL;
	}
	pcre2_set_newline(context, PCRE2_NEWLINE_LF);
	pcre2_set_bsr(context, PCRE2_BSR_UNICODE);
	pcre2_set_max_pattern_length(context, PATTERN_CODE_MAX);
	pcre2_set_parens_nest_limit(context, PATTERN_NESTED_MAX);
	pcre2_code *code = pcre2_compile(
		(PCRE2_SPTR)text->data, text->length, PATTERN_OPTIONS, &error, &offset, context);
	if (!code && error == PCRE2_ERROR_HEAP_FAILED) {
		spec_no_memory(spec);
	} else if (!code) {
		pcre2_get_error_message(error, (PCRE2_UCHAR *)reason, sizeof(reason));
		spec_fail(spec, MIMEO_E_UNSUPPORTED, "the regular expression is not supported: %s",
			reason);
	}
	return code;
}

static pcre2_code *pattern_make_code(struct pattern *pattern, const struct spec *spec,
	const char *prefix, const struct bytes *body, const char *suffix)
{
	struct bytes text = {0};

	bytes_add(&text, prefix, strlen(prefix));
	bytes_add(&text, body->data, body->length);
	bytes_add(&text, suffix, strlen(suffix));
	pcre2_code *code = text.rc < 0 ? NULL : pattern_compile(spec, &text);
	if (text.rc < 0)
		spec_no_memory(spec);
	bytes_deinit(&text);
	/* Where machine code may not be made, PCRE2 interprets. */
	pattern->is_interpreted |=
		code && pcre2_jit_compile(code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) < 0;
	return code;
}

/*
 * Where \s+X failed, it fails at the other spaces of the run, too: only the first one and the place
 * where the search begins are tried, or else a long run takes quadratic time. In `text`, the first
 * `run` bytes match one of the run.
 */
static void pattern_make_run(
	struct pattern *pattern, const struct spec *spec, const struct bytes *text, size_t run)
{
	struct bytes character = {.data = text->data, .length = run}, limited = {0};
	static const char before[] = "(?:\\G|(?<!", after[] = "))";

	bytes_add(&limited, before, sizeof(before) - 1);
	bytes_add(&limited, text->data, run);
	bytes_add(&limited, after, sizeof(after) - 1);
	bytes_add(&limited, text->data, text->length);
	if (limited.rc < 0) {
		spec_no_memory(spec);
	} else {
		pattern->start = pattern_make_code(pattern, spec, "\\G(?<!", &character, ")");
		pattern->code = pattern_make_code(pattern, spec, "", &limited, "");
	}
	bytes_deinit(&limited);
}

bool pattern_init_regex(
	struct pattern *pattern, const struct spec *spec, const char *regex, size_t length)
{
	struct bytes text = {0};
	const char *reason = NULL;
	size_t run = 0;

	*pattern = (struct pattern){0};
	int rc = oniguruma_translate(regex, length, &text, &run, &reason);
	if (rc == 0) {
		pattern->anchored = pattern_make_code(pattern, spec, "\\G(?:", &text, ")");
		if (run > 0)
			pattern_make_run(pattern, spec, &text, run);
		else
			pattern->code = pattern_make_code(pattern, spec, "", &text, "");
	} else if (reason) {
		spec_fail(spec, rc, "the regular expression %.*s %s",
			(int)(length < 64 ? length : 64), regex, reason);
	} else {
		spec_no_memory(spec);
	}
	bytes_deinit(&text);
	return spec->file->rc == 0;
}

static bool pattern_init_literal(
	struct pattern *pattern, const struct spec *spec, const char *literal, size_t length)
{
	if (length == 0 || length > PATTERN_LITERAL_MAX) {
		spec_fail(spec, MIMEO_E_UNSUPPORTED,
			"a pattern of %zu bytes is not supported; the range is 1 to %u", length,
			PATTERN_LITERAL_MAX);
		return false;
	}
	*pattern = (struct pattern){.literal = malloc(length), .length = length};
	if (!pattern->literal) {
		spec_no_memory(spec);
		return false;
	}
	memcpy(pattern->literal, literal, length);
	return true;
}

bool pattern_init(struct pattern *pattern, const struct spec *spec, const char *key)
{
	static const char *const known[] = {"String", "Regex", NULL};
	struct spec member;
	const char *text;
	size_t length;

	*pattern = (struct pattern){0};
	if (!spec_member(spec, key, &member))
		return false;
	spec_allow(&member, known);
	text = spec_string_or_null(&member, "String", &length);
	if (text)
		return pattern_init_literal(pattern, spec, text, length);
	text = spec_string(&member, "Regex", &length);
	return member.file->rc == 0 && pattern_init_regex(pattern, spec, text, length);
}

void pattern_deinit(struct pattern *pattern)
{
	free(pattern->literal);
	pcre2_code_free(pattern->code);
	pcre2_code_free(pattern->anchored);
	pcre2_code_free(pattern->start);
	*pattern = (struct pattern){0};
}

/* ---- matching ---- */

void matcher_init(struct matcher *matcher, size_t length)
{
	*matcher = (struct matcher){
		.steps = PATTERN_STEPS + (uint64_t)length * PATTERN_STEPS_PER_BYTE};
}

void matcher_deinit(struct matcher *matcher)
{
	pcre2_match_data_free(matcher->data);
	pcre2_match_context_free(matcher->context);
	pcre2_jit_stack_free(matcher->stack);
	*matcher = (struct matcher){0};
}

static int matcher_prepare(struct matcher *matcher)
{
	if (matcher->data)
		return 0;
	matcher->context = pcre2_match_context_create(NULL);
	if (!matcher->context)
		return MIMEO_E_NO_MEMORY;
	pcre2_set_match_limit(matcher->context, PATTERN_FIRST_STEPS);
	pcre2_set_heap_limit(matcher->context, PATTERN_HEAP_KIB);
	matcher->data = pcre2_match_data_create(1, NULL);
	return matcher->data ? 0 : MIMEO_E_NO_MEMORY;
}

/* A greater stack for machine code. False: it has one already. */
static bool matcher_grow_stack(struct matcher *matcher)
{
	if (matcher->stack)
		return false;
	matcher->stack = pcre2_jit_stack_create(PATTERN_STACK_FIRST, PATTERN_STACK_MAX, NULL);
	if (!matcher->stack)
		return false;
	pcre2_jit_stack_assign(matcher->context, NULL, matcher->stack);
	return true;
}

/* As pcre2_match, in text[length]: a positive number, PCRE2_ERROR_NOMATCH or another error. */
static int pattern_match_within(struct pattern_search *search, const pcre2_code *code, size_t from,
	size_t length, uint32_t options)
{
	struct matcher *matcher = search->matcher;
	PCRE2_SPTR text = (PCRE2_SPTR)search->text;
	int rc = PCRE2_ERROR_JIT_STACKLIMIT;

	if (!search->pattern->is_interpreted) {
		do {
			rc = pcre2_jit_match(
				code, text, length, from, options, matcher->data, matcher->context);
		} while (rc == PCRE2_ERROR_JIT_STACKLIMIT && matcher_grow_stack(matcher));
	}
	if (rc != PCRE2_ERROR_JIT_STACKLIMIT)
		return rc;
	return pcre2_match(code, text, length, from, options | PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
		matcher->data, matcher->context);
}

/* False: fewer steps are left, and now none. */
static bool matcher_charge(struct matcher *matcher, uint64_t steps)
{
	bool has_steps = matcher->steps >= steps;

	matcher->steps = has_steps ? matcher->steps - steps : 0;
	return has_steps;
}

/*
 * PCRE2 does not count how far it looks without backtracking. So it gets a part of the text first,
 * and a larger one, which is charged, if it reaches the part's end: an expression that looks ahead
 * to the end of a long text at each place runs out of steps, and does not take quadratic time.
 */
static int pattern_match(struct pattern_search *search, const pcre2_code *code, size_t from)
{
	bool goes_on = code == search->pattern->code; /* looks for a start at later places, too */
	size_t rest = search->length - from;

	for (size_t n = PATTERN_PART_FIRST; n < rest; n *= PATTERN_STEPS_FACTOR) {
		size_t end = from + n, next = n * PATTERN_STEPS_FACTOR;

		while (utf8_is_continuation(search->text[end]))
			end--;
		int rc = pattern_match_within(search, code, from, end, PCRE2_PARTIAL_HARD);
		if (rc != PCRE2_ERROR_PARTIAL && (rc != PCRE2_ERROR_NOMATCH || !goes_on))
			return rc;
		next = next < rest ? next : rest;
		if (rc == PCRE2_ERROR_PARTIAL &&
			!matcher_charge(search->matcher, next / PATTERN_STEP_BYTES))
			return PCRE2_ERROR_MATCHLIMIT;
	}
	return pattern_match_within(search, code, from, search->length, 0);
}

/* A match that begins at `from`, with as many steps as are left. */
static int pattern_match_here(struct pattern_search *search, size_t from)
{
	struct matcher *matcher = search->matcher;
	uint32_t limit = PATTERN_FIRST_STEPS;
	int rc;

	for (;;) {
		pcre2_set_match_limit(matcher->context, limit);
		rc = pattern_match(search, search->pattern->anchored, from);
		if (limit > PATTERN_FIRST_STEPS)
			matcher_charge(matcher, limit);
		if (rc != PCRE2_ERROR_MATCHLIMIT || matcher->steps <= PATTERN_FIRST_STEPS)
			break;
		uint64_t next = (uint64_t)limit * PATTERN_STEPS_FACTOR;
		if (next > matcher->steps)
			next = matcher->steps;
		limit = next < UINT32_MAX ? (uint32_t)next : UINT32_MAX;
	}
	pcre2_set_match_limit(matcher->context, PATTERN_FIRST_STEPS);
	return rc;
}

/* Whether a match may begin at a place behind that where the search began. */
static bool pattern_may_start(struct pattern_search *search, size_t from)
{
	return from == search->from || !search->pattern->start ||
	       pattern_match(search, search->pattern->start, from) != PCRE2_ERROR_NOMATCH;
}

/* One start after the other, so that the steps of each are counted. */
static int pattern_match_slowly(struct pattern_search *search)
{
	size_t from = search->from;

	for (;;) {
		int rc = pattern_may_start(search, from) ? pattern_match_here(search, from)
							 : PCRE2_ERROR_NOMATCH;
		if (rc != PCRE2_ERROR_NOMATCH || from == search->length)
			return rc;
		from += utf8_size(search->text[from]);
		assert(from <= search->length);
	}
}

static int pattern_status(int rc)
{
	switch (rc) {
	case PCRE2_ERROR_MATCHLIMIT:
	case PCRE2_ERROR_DEPTHLIMIT:
	case PCRE2_ERROR_HEAPLIMIT:
	case PCRE2_ERROR_JIT_STACKLIMIT:
		return MIMEO_E_TOO_LONG;
	case PCRE2_ERROR_NOMEMORY:
		return MIMEO_E_NO_MEMORY;
	default:
		return MIMEO_E_INVALID;
	}
}

static int pattern_find_literal(struct pattern_search *search, size_t *ret_start, size_t *ret_end)
{
	const struct pattern *pattern = search->pattern;
	const char *found = memmem(search->text + search->from, search->length - search->from,
		pattern->literal, pattern->length);

	if (!found)
		return 0;
	*ret_start = (size_t)(found - search->text);
	*ret_end = *ret_start + pattern->length;
	return 1;
}

static int pattern_find(struct pattern_search *search, size_t *ret_start, size_t *ret_end)
{
	struct matcher *matcher = search->matcher;

	if (search->pattern->literal)
		return pattern_find_literal(search, ret_start, ret_end);
	int rc = matcher_prepare(matcher);
	if (rc < 0)
		return rc;
	rc = pattern_match(search, search->pattern->code, search->from);
	if (rc == PCRE2_ERROR_MATCHLIMIT)
		rc = pattern_match_slowly(search);
	if (rc == PCRE2_ERROR_NOMATCH)
		return 0;
	if (rc < 0)
		return pattern_status(rc);
	const PCRE2_SIZE *found = pcre2_get_ovector_pointer(matcher->data);
	/* \K may set the start behind the end */
	if (found[0] > found[1] || found[0] < search->from || found[1] > search->length)
		return MIMEO_E_INVALID;
	*ret_start = found[0];
	*ret_end = found[1];
	return 1;
}

void pattern_search_init(struct pattern_search *search, const struct pattern *pattern,
	struct matcher *matcher, const char *text, size_t length)
{
	assert(length > 0);
	*search = (struct pattern_search){.pattern = pattern,
		.matcher = matcher,
		.text = text,
		.length = length,
		.last_end = SIZE_MAX};
}

int pattern_search_next(struct pattern_search *search, size_t *ret_start, size_t *ret_end)
{
	while (search->from <= search->length) {
		int rc = pattern_find(search, ret_start, ret_end);
		if (rc <= 0)
			return rc;
		if (*ret_start != *ret_end || *ret_end != search->last_end) {
			search->from = search->last_end = *ret_end;
			return 1;
		}
		search->from +=
			search->from < search->length ? utf8_size(search->text[search->from]) : 1;
	}
	return 0;
}
