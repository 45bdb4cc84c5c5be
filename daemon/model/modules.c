/* SPDX-License-Identifier: MIT */
#include "daemon/model/modules.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/cleanup.h"

#define PATTERN_PREFIX "re:"
/* A character of a pattern becomes at most "[A-Za-z0-9_]". */
#define EXTENDED_MAX (MODULES_PATTERN_MAX * 12 + 8)

struct modules_entry {
	char *text;
	bool is_pattern;
	regex_t regex;
};

/* ---- patterns ---- */

/* What stands for the escaped character, or NULL. */
static const char *modules_class(char escaped)
{
	return escaped == 'd' ? "[0-9]" : escaped == 'w' ? "[A-Za-z0-9_]" : NULL;
}

/* A bracket expression from *at on; backslashes mean something else there than in Python. */
static bool modules_copy_bracket(const char **at, char *ret, size_t *length)
{
	const char *end = strchr(*at + ((*at)[1] == '^' ? 3 : 2), ']');
	size_t n = end ? (size_t)(end - *at) + 1 : 0;

	if (!end || memchr(*at, '\\', n) || memchr(*at + 1, '[', n - 1))
		return false;
	memcpy(ret + *length, *at, n);
	*length += n;
	*at = end;
	return true;
}

/* The pattern as an extended regular expression; false: it has what is not translated. */
static bool modules_translate(const char *pattern, char ret[EXTENDED_MAX])
{
	size_t length = 0;

	ret[length++] = '^';
	ret[length++] = '(';
	for (const char *at = pattern; *at; at++) {
		const char *class = *at == '\\' ? modules_class(at[1]) : NULL;

		if (class) {
			memcpy(ret + length, class, strlen(class));
			length += strlen(class);
			at++;
		} else if (*at == '\\') {
			if (!ispunct((unsigned char)at[1]))
				return false;
			ret[length++] = *at++;
			ret[length++] = *at;
		} else if (*at == '[') {
			if (!at[1] || (at[1] == '^' && !at[2]) ||
				!modules_copy_bracket(&at, ret, &length))
				return false;
		} else if (*at == '{' || (at[0] == '(' && at[1] == '?' && at[2] != ':')) {
			return false;
		} else {
			ret[length++] = *at;
			if (*at == '(' && at[1] == '?')
				at += 2;
		}
	}
	ret[length++] = ')';
	ret[length] = 0;
	assert(length < EXTENDED_MAX);
	return true;
}

static int modules_compile(struct modules *modules, struct modules_entry *entry)
{
	const char *pattern = entry->text + strlen(PATTERN_PREFIX);
	char extended[EXTENDED_MAX];
	int rc;

	if (modules->n_patterns == MODULES_PATTERNS_MAX || strlen(pattern) > MODULES_PATTERN_MAX ||
		!modules_translate(pattern, extended))
		return -ENOTSUP;
	rc = regcomp(&entry->regex, extended, REG_EXTENDED | REG_NOSUB);
	if (rc)
		return rc == REG_ESPACE ? -ENOMEM : -ENOTSUP;
	entry->is_pattern = true;
	modules->n_patterns++;
	return 0;
}

/* ---- the list ---- */

int modules_add(struct modules *modules, const char *text)
{
	struct modules_entry *entries, *entry;
	int rc;

	if (modules->n == MODULES_MAX)
		return -ENOTSUP;
	entries = reallocarray(modules->entries, modules->n + 1, sizeof(*entries));
	if (!entries)
		return -ENOMEM;
	modules->entries = entries;
	entry = &entries[modules->n];
	*entry = (struct modules_entry){.text = strdup(text)};
	if (!entry->text)
		return -ENOMEM;
	rc = strncmp(text, PATTERN_PREFIX, strlen(PATTERN_PREFIX))
		     ? 0
		     : modules_compile(modules, entry);
	if (rc) {
		free(entry->text);
		return rc;
	}
	modules->n++;
	return 0;
}

void modules_deinit(struct modules *modules)
{
	for (uint32_t i = 0; i < modules->n; i++) {
		if (modules->entries[i].is_pattern)
			regfree(&modules->entries[i].regex);
		free(modules->entries[i].text);
	}
	free(modules->entries);
	*modules = (struct modules){0};
}

/* ---- matching ---- */

static enum modules_match modules_match_name(const char *text, const char *module, bool exact)
{
	size_t length = strlen(text);
	enum modules_match best = MODULES_NO;

	if (exact)
		return strcmp(text, module) ? MODULES_NO : MODULES_YES;
	if (!length)
		return MODULES_NO;
	for (const char *at = strstr(module, text); at; at = strstr(at + 1, text)) {
		bool begins = at == module || at[-1] == '.';

		if (begins && (!at[length] || at[length] == '.'))
			return MODULES_YES;
		best = MODULES_MAYBE;
	}
	return best;
}

enum modules_match modules_match(
	const struct modules *modules, const char *module, const char **ret_text)
{
	enum modules_match best = MODULES_NO;

	for (uint32_t i = 0; i < modules->n && best != MODULES_YES; i++) {
		const struct modules_entry *entry = &modules->entries[i];
		enum modules_match match;

		if (entry->is_pattern)
			match = regexec(&entry->regex, module, 0, NULL, 0) ? MODULES_NO
									   : MODULES_YES;
		else
			match = modules_match_name(entry->text, module, modules->exact);
		if (match <= best)
			continue;
		best = match;
		if (ret_text)
			*ret_text = entry->text;
	}
	return best;
}
