/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_PATTERN_H
#define MIMEO_SDK_TEXT_PATTERN_H

/*
 * What tokenizer.json calls a pattern: a string, or a regular expression in Oniguruma's syntax. A
 * pattern does not change after pattern_init; each call that matches has a matcher of its own.
 *
 * A regular expression is the work of whoever made the file, so its steps are counted: a matcher
 * has PATTERN_STEPS and PATTERN_STEPS_PER_BYTE for each byte of text, about 10 ns each. Steps are
 * those of PCRE2's match limit, and 8 bytes each of what a match looks at beyond 32 KiB.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sdk/text/spec.h"

#ifndef PATTERN_STEPS /* a fuzzer has less patience */
#define PATTERN_STEPS ((uint64_t)1 << 26)
#endif
#define PATTERN_STEPS_PER_BYTE 64u

struct pattern {
	char *literal; /* [length]; or: */
	size_t length;
	void *code;          /* pcre2_code */
	void *anchored;      /* the same, of a match that begins where the search does: to count its
				steps */
	void *start;         /* what holds where a match may begin, or NULL */
	bool is_interpreted; /* not compiled to machine code */
};

/* From a member `key` that is {"String": ...} or {"Regex": ...}. False after an error, which
 * spec->file has; pattern_deinit in either case. */
bool pattern_init(struct pattern *pattern, const struct spec *spec, const char *key);
/* A regular expression of this library, or of spec->where. */
bool pattern_init_regex(
	struct pattern *pattern, const struct spec *spec, const char *regex, size_t length);
void pattern_deinit(struct pattern *pattern);

struct matcher {
	void *data;    /* pcre2_match_data; made when it is needed */
	void *context; /* pcre2_match_context */
	void *stack;   /* pcre2_jit_stack */
	uint64_t steps;
};

/* For texts of `length` bytes together. */
void matcher_init(struct matcher *matcher, size_t length);
void matcher_deinit(struct matcher *matcher);

/* The matches of a pattern in text[length], which is valid UTF-8 and not empty, in turn. */
struct pattern_search {
	const struct pattern *pattern;
	struct matcher *matcher;
	const char *text;
	size_t length;
	size_t from;     /* where the next search begins */
	size_t last_end; /* of the last match, or SIZE_MAX */
};

void pattern_search_init(struct pattern_search *search, const struct pattern *pattern,
	struct matcher *matcher, const char *text, size_t length);
/*
 * 1: the next match is text[*ret_start ... *ret_end); it may be empty, but then it does not follow
 * the last one directly. 0: there is none. TOO_LONG: steps or memory of the regular expression
 * exceed their limits. NO_MEMORY.
 */
int pattern_search_next(struct pattern_search *search, size_t *ret_start, size_t *ret_end);

#endif
