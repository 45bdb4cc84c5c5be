/* SPDX-License-Identifier: MIT */

/*
 * The backends, and which one serves a model.
 *
 * A level that covers uniform batches must hold for the longest uniform query that this model will
 * decode with. Where a backend's claim does not, a graph captured for that query length would run a
 * kernel outside of its limits, so the level is lowered to one that holds before a graph mode is
 * resolved from it.
 */

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "attention/attention.h"

#define BACKENDS_MAX 16u

#define BUILT_IN &attention_naive, &attention_paged, &attention_flex, &attention_mla_planned, &attention_mla

static const struct attention_backend *backends[BACKENDS_MAX] = { BUILT_IN };
static uint32_t n_backends =
	sizeof((const struct attention_backend *[]){ BUILT_IN }) / sizeof(backends[0]);

static const char *const support_names[] = {
	[ATTENTION_NEVER] = "never",
	[ATTENTION_UNIFORM_SINGLE_TOKEN_DECODE] = "uniform_single_token_decode",
	[ATTENTION_UNIFORM_BATCH] = "uniform_batch",
	[ATTENTION_ALWAYS] = "always",
};

const char *attention_support_name(enum attention_support support)
{
	return support <= ATTENTION_ALWAYS ? support_names[support] : "unknown";
}

int attention_register(const struct attention_backend *backend)
{
	if (!backend->name || !backend->name[0] || !backend->check || !backend->support)
		return -EINVAL;
	if (!backend->manager_new || !backend->manager_free || !backend->metadata_new ||
		!backend->metadata_free || !backend->build || !backend->run)
		return -EINVAL;
	if (!backend->breaks)
		return -EPERM;
	if (strcmp(backend->name, "auto") == 0 || attention_find(backend->name))
		return -EEXIST;
	assert(n_backends <= BACKENDS_MAX);
	if (n_backends == BACKENDS_MAX)
		return -ENOSPC;
	backends[n_backends++] = backend;
	return 0;
}

const struct attention_backend *attention_find(const char *name)
{
	for (uint32_t i = 0; i < n_backends; i++)
		if (strcmp(backends[i]->name, name) == 0)
			return backends[i];
	return NULL;
}



/* ---- choice ---- */

/* A sentence under construction in the caller's buffer, cut off at its size. */
struct registry_sentence {
	char *text;
	size_t size, used;
};

__attribute__((format(printf, 2, 3))) static void registry_say(struct registry_sentence *s, const char *format, ...)
{
	va_list args;
	int n;

	if (s->used >= s->size)
		return;
	va_start(args, format);
	n = vsnprintf(s->text + s->used, s->size - s->used, format, args);
	va_end(args);
	if (n > 0)
		s->used += (size_t)n;
}

struct registry_candidate {
	const struct attention_backend *backend;
	enum attention_support claimed, level;
	uint32_t max_query;
};

/* The highest level not above the claim that holds for this model's decode queries. */
static enum attention_support registry_level(
	enum attention_support claimed, uint32_t max_query, uint32_t decode_query)
{
	if (claimed > ATTENTION_ALWAYS || max_query == 0)
		return ATTENTION_NEVER;
	if (claimed >= ATTENTION_UNIFORM_BATCH && max_query < decode_query)
		return ATTENTION_UNIFORM_SINGLE_TOKEN_DECODE;
	return claimed;
}

static int registry_consider(const struct attention_backend *backend, const struct attention_config *config,
	struct registry_candidate *ret, char *why, size_t size)
{
	struct registry_candidate c = { .backend = backend };
	int rc = backend->check(config, why, size);

	if (rc)
		return rc;
	if (config->masks && !backend->masks) {
		snprintf(why, size, "it has no mask but the causal one");
		return -ENOTSUP;
	}
	c.claimed = backend->support(config, &c.max_query);
	c.level = registry_level(c.claimed, c.max_query, config->max_decode_query);
	*ret = c;
	return 0;
}

static void registry_say_choice(struct registry_sentence *s, const struct registry_candidate *c, const char *reason,
	const struct attention_config *config)
{
	registry_say(s, "%s (%s; graphs: %s", c->backend->name, reason,
		attention_support_name(c->level));
	if (c->level != c->claimed)
		registry_say(s, ", lowered from %s: queries of at most %u, decodes have up to %u",
			attention_support_name(c->claimed), c->max_query, config->max_decode_query);
	registry_say(s, ")");
}

/* "; paged and naive can", of the backends that pass; false if none does. */
static bool registry_say_who_can(
	struct registry_sentence *s, const struct attention_config *config, const char *with)
{
	struct registry_candidate ignored;
	uint32_t who[BACKENDS_MAX], n = 0;
	char reason[256];

	for (uint32_t i = 0; i < n_backends; i++) {
		if (registry_consider(backends[i], config, &ignored, reason, sizeof(reason)) == 0)
			who[n++] = i;
	}
	assert(n <= BACKENDS_MAX);
	for (uint32_t i = 0; i < n; i++)
		registry_say(s, "%s%s", i == 0 ? "; " : i + 1 < n ? ", " : " and ", backends[who[i]]->name);
	if (n)
		registry_say(s, " can%s", with);
	return n > 0;
}

/* The backends that could serve the model with the causal mask, if its mask is the only
 * obstacle. */
static bool registry_say_without_mask(struct registry_sentence *s, const struct attention_config *config)
{
	struct attention_config causal = *config;

	causal.masks = false;
	return config->masks && registry_say_who_can(s, &causal, " with the causal mask");
}

static const char *registry_with_mask(const struct attention_config *config)
{
	return config->masks ? " with a mask that is not causal" : "";
}

static int registry_choose_named(const char *name, const struct attention_config *config,
	struct registry_candidate *ret, struct registry_sentence *s)
{
	const struct attention_backend *backend = attention_find(name);
	char reason[256] = "";
	int rc;

	if (!backend) {
		registry_say(s, "no attention backend %s; there are", name);
		for (uint32_t i = 0; i < n_backends; i++)
			registry_say(s, "%s %s", i ? "," : "", backends[i]->name);
		return -ENOENT;
	}
	rc = registry_consider(backend, config, ret, reason, sizeof(reason));
	if (rc)
		registry_say(s, "attention backend %s cannot serve this model%s: %s", name, registry_with_mask(config), reason);
	else
		registry_say_choice(s, ret, "as configured", config);
	if (rc && !registry_say_who_can(s, config, "") && !registry_say_without_mask(s, config))
		registry_say(s, "; no other can either");
	return rc;
}

/* The higher level; but one with masks, slower without them, only where the other has no graphs. */
static bool registry_is_better(const struct registry_candidate *c, const struct registry_candidate *best)
{
	if (!best->backend)
		return true;
	if (c->backend->masks && !best->backend->masks && best->level != ATTENTION_NEVER)
		return false;
	if (!c->backend->masks && best->backend->masks && c->level != ATTENTION_NEVER)
		return true;
	return c->level > best->level;
}

static int registry_choose_best(
	const struct attention_config *config, struct registry_candidate *ret, struct registry_sentence *s)
{
	struct registry_sentence refusals = *s;
	struct registry_candidate best = { 0 };

	registry_say(&refusals, "no attention backend can serve this model%s", registry_with_mask(config));
	for (uint32_t i = 0; i < n_backends; i++) {
		struct registry_candidate c;
		char reason[256] = "";

		if (registry_consider(backends[i], config, &c, reason, sizeof(reason)) != 0)
			registry_say(&refusals, "; %s: %s", backends[i]->name, reason);
		else if (registry_is_better(&c, &best))
			best = c;
	}
	if (!best.backend) {
		registry_say_without_mask(&refusals, config);
		return -ENOTSUP;
	}
	registry_say_choice(s, &best, config->masks ? "chosen automatically among those with masks"
			: best.backend->masks
			? "chosen automatically: none without masks can be captured"
			: "chosen automatically", config);
	*ret = best;
	return 0;
}

int attention_choose(const char *name, const struct attention_config *config,
	const struct attention_backend **ret, enum attention_support *ret_support, char *why,
	size_t size)
{
	struct registry_sentence s = { .text = why, .size = size };
	struct registry_candidate chosen;
	int rc;

	if (strcmp(name, "auto") == 0)
		rc = registry_choose_best(config, &chosen, &s);
	else
		rc = registry_choose_named(name, config, &chosen, &s);
	if (rc)
		return rc;
	assert(chosen.backend && chosen.level <= chosen.claimed);
	assert(!config->masks || chosen.backend->masks);
	*ret = chosen.backend;
	*ret_support = chosen.level;
	return 0;
}
