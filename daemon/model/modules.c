/* SPDX-License-Identifier: MIT */
#include "daemon/model/modules.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "ipc/cleanup.h"

#define PATTERN_PREFIX "re:"
#define PATTERN_MAX 256u /* bytes */
#define PATTERN_NESTED_MAX 32u
#define PATTERN_STEPS_MAX 10000u /* for a name; those that end need a few hundred */
#define PATTERN_HEAP_KIB 1024u

struct modules_entry {
	char *text;
	pcre2_code *pattern; /* NULL: a name */
	bool exceeded;       /* the pattern has exceeded its limits, and is not tried again */
};

DEFINE_CLEANUP(compile_context, pcre2_compile_context, pcre2_compile_context_free)
DEFINE_CLEANUP(match_context, pcre2_match_context, pcre2_match_context_free)
DEFINE_CLEANUP(match_data, pcre2_match_data, pcre2_match_data_free)

/* ---- patterns ---- */

static int modules_compile(struct modules *modules, const char *text, pcre2_code **ret)
{
	CLEANUP(cleanup_compile_context) pcre2_compile_context *context =
		pcre2_compile_context_create(NULL);
	PCRE2_SIZE offset;
	int error;

	if (!context)
		return -ENOMEM;
	if (modules->n_patterns == MODULES_PATTERNS_MAX)
		return -ENOTSUP;
	pcre2_set_max_pattern_length(context, PATTERN_MAX);
	pcre2_set_parens_nest_limit(context, PATTERN_NESTED_MAX);
	*ret = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
		PCRE2_ANCHORED | PCRE2_NEVER_UTF | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context);
	if (!*ret)
		return error == PCRE2_ERROR_HEAP_FAILED ? -ENOMEM : -ENOTSUP;
	modules->n_patterns++;
	return 0;
}

/* MAYBE: the limits do not suffice to know. */
static enum modules_match modules_match_pattern(const pcre2_code *pattern, const char *module)
{
	CLEANUP(cleanup_match_context) pcre2_match_context *context =
		pcre2_match_context_create(NULL);
	CLEANUP(cleanup_match_data) pcre2_match_data *data = pcre2_match_data_create(1, NULL);
	int rc;

	if (!context || !data)
		return MODULES_MAYBE;
	pcre2_set_match_limit(context, PATTERN_STEPS_MAX);
	pcre2_set_heap_limit(context, PATTERN_HEAP_KIB);
	rc = pcre2_match(
		pattern, (PCRE2_SPTR)module, PCRE2_ZERO_TERMINATED, 0, 0, data, context);
	if (rc == PCRE2_ERROR_NOMATCH)
		return MODULES_NO;
	return rc >= 0 ? MODULES_YES : MODULES_MAYBE;
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
		     : modules_compile(modules, text + strlen(PATTERN_PREFIX), &entry->pattern);
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
		pcre2_code_free(modules->entries[i].pattern);
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

static enum modules_match modules_match_entry(struct modules_entry *entry, const char *module, bool exact)
{
	enum modules_match match;

	if (!entry->pattern)
		return modules_match_name(entry->text, module, exact);
	match = entry->exceeded ? MODULES_MAYBE : modules_match_pattern(entry->pattern, module);
	entry->exceeded = match == MODULES_MAYBE;
	return match;
}

enum modules_match modules_match_kind(
	const struct modules *modules, bool patterns, const char *module, const char **ret_text)
{
	enum modules_match best = MODULES_NO;

	for (uint32_t i = 0; i < modules->n && best != MODULES_YES; i++) {
		struct modules_entry *entry = &modules->entries[i];
		enum modules_match match;

		if ((entry->pattern != NULL) != patterns)
			continue;
		match = modules_match_entry(entry, module, modules->exact);
		if (match <= best)
			continue;
		best = match;
		if (ret_text)
			*ret_text = entry->text;
	}
	return best;
}

enum modules_match modules_match(
	const struct modules *modules, const char *module, const char **ret_text)
{
	const char *text = NULL;
	enum modules_match name = modules_match_kind(modules, false, module, ret_text);
	enum modules_match pattern =
		name == MODULES_YES ? MODULES_NO : modules_match_kind(modules, true, module, &text);

	if (pattern <= name)
		return name;
	if (ret_text)
		*ret_text = text;
	return pattern;
}
