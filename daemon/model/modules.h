/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_MODEL_MODULES_H
#define MIMEO_DAEMON_MODEL_MODULES_H

/*
 * A list of modules in an untrusted config.json: names ("lm_head", "model.layers.0.mlp") and, after
 * "re:", regular expressions of at most 256 bytes, which match as Python's re.match does: from the
 * first character on, to any. PCRE2 matches them, within limits of steps and memory.
 */

#include <stdbool.h>
#include <stdint.h>

#define MODULES_MAX 65536u       /* names of a list */
#define MODULES_PATTERNS_MAX 64u /* those of them that are patterns */

struct modules_entry;
struct modules {
	struct modules_entry *entries;
	uint32_t n, n_patterns;
	bool exact; /* a name is a whole module's; else parts of it, "mlp.gate", count as well */
};

/* A copy of the text. 0, -ENOMEM, or -ENOTSUP: more than the limits, or a pattern that is not
 * understood. */
int modules_add(struct modules *modules, const char *text);
/* A zeroed list is allowed. */
void modules_deinit(struct modules *modules);

/* MAYBE: the text is in the module's name, but not between dots: programs differ there. Or a pattern
 * exceeds its limits. */
enum modules_match { MODULES_NO, MODULES_MAYBE, MODULES_YES };
/* *ret_text, unless NULL: the entry that matches best. */
enum modules_match modules_match(
	const struct modules *modules, const char *module, const char **ret_text);
/* Of the entries that are patterns, or of those that are names. */
enum modules_match modules_match_kind(
	const struct modules *modules, bool patterns, const char *module, const char **ret_text);

#endif
