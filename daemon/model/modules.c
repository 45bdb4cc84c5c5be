/* SPDX-License-Identifier: MIT */
#include "daemon/model/modules.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/module_pattern.h"

#define PATTERN_PREFIX "re:"

struct modules_entry {
	char *text;
	struct module_pattern *pattern; /* NULL: a name */
};

static int modules_compile(struct modules *modules, struct modules_entry *entry)
{
	int rc;

	if (modules->n_patterns == MODULES_PATTERNS_MAX)
		return -ENOTSUP;
	rc = module_pattern_new(entry->text + strlen(PATTERN_PREFIX), &entry->pattern);
	if (rc)
		return rc;
	modules->n_patterns++;
	return 0;
}

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
		module_pattern_free(modules->entries[i].pattern);
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

		if (entry->pattern)
			match = module_pattern_matches(entry->pattern, module) ? MODULES_YES
									       : MODULES_NO;
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
