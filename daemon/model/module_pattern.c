/* SPDX-License-Identifier: MIT */
#include "daemon/model/module_pattern.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* A character makes at most two steps: itself or a split and a jump. */
#define STEPS_MAX (2 * MODULE_PATTERN_MAX + 1)
#define DEPTH_MAX 32 /* groups within groups */

enum step_kind {
	STEP_SET,   /* a character of the set */
	STEP_SPLIT, /* go on at both */
	STEP_JUMP,  /* go on at the first */
	STEP_BEGIN, /* the name's */
	STEP_END,
	STEP_MATCH,
};

struct step {
	enum step_kind kind;
	int32_t to[2]; /* relative, so that steps can be moved as one */
	uint8_t set[32];
};

struct module_pattern {
	uint32_t n;
	struct step steps[];
};

/* ---- the pattern ---- */

struct compiler {
	const char *at;
	struct step steps[STEPS_MAX];
	uint32_t n, depth;
};

static void compiler_insert(struct compiler *c, uint32_t at, const struct step *step)
{
	assert(at <= c->n && c->n < STEPS_MAX);
	memmove(&c->steps[at + 1], &c->steps[at], (c->n - at) * sizeof(*c->steps));
	c->steps[at] = *step;
	c->n++;
}

static void compiler_add(struct compiler *c, const struct step *step)
{
	compiler_insert(c, c->n, step);
}

static void set_add(struct step *step, uint8_t from, uint8_t to)
{
	for (uint32_t i = from; i <= to; i++)
		step->set[i / 8] |= (uint8_t)(1u << i % 8);
}

static void set_invert(struct step *step)
{
	for (size_t i = 0; i < sizeof(step->set); i++)
		step->set[i] = (uint8_t)~step->set[i];
}

/* The escape at `at`, behind its backslash. A capital letter is the complement. */
static bool compiler_escape(const char *at, struct step *step)
{
	struct step class = {.kind = STEP_SET};

	switch (tolower((unsigned char)*at)) {
	case 'd':
		set_add(&class, '0', '9');
		break;
	case 'w':
		set_add(&class, '0', '9');
		set_add(&class, 'A', 'Z');
		set_add(&class, 'a', 'z');
		set_add(&class, '_', '_');
		break;
	case 's':
		set_add(&class, '\t', '\r');
		set_add(&class, ' ', ' ');
		break;
	default:
		if (!ispunct((unsigned char)*at))
			return false;
		set_add(&class, (uint8_t)*at, (uint8_t)*at);
	}
	if (isupper((unsigned char)*at))
		set_invert(&class);
	for (size_t i = 0; i < sizeof(class.set); i++)
		step->set[i] |= class.set[i];
	return true;
}

/* One member of a bracket expression, or a range of them. */
static bool compiler_member(struct compiler *c, struct step *step)
{
	uint8_t from = (uint8_t)*c->at++;

	if (from == '\\')
		return compiler_escape(c->at++, step);
	if (c->at[0] != '-' || c->at[1] == ']' || !c->at[1]) {
		set_add(step, from, from);
		return true;
	}
	if (c->at[1] == '\\' || (uint8_t)c->at[1] < from)
		return false;
	set_add(step, from, (uint8_t)c->at[1]);
	c->at += 2;
	return true;
}

/* Behind its opening bracket. A closing one that comes first is a member. */
static bool compiler_bracket(struct compiler *c)
{
	struct step step = {.kind = STEP_SET};
	bool inverted = *c->at == '^';
	const char *first;

	c->at += inverted;
	for (first = c->at; *c->at && (*c->at != ']' || c->at == first);) {
		if (!compiler_member(c, &step))
			return false;
	}
	if (*c->at++ != ']')
		return false;
	if (inverted)
		set_invert(&step);
	compiler_add(c, &step);
	return true;
}

static bool compiler_alternatives(struct compiler *c);

static bool compiler_group(struct compiler *c)
{
	if (++c->depth > DEPTH_MAX)
		return false;
	if (c->at[0] == '?') {
		if (c->at[1] != ':')
			return false;
		c->at += 2;
	}
	if (!compiler_alternatives(c) || *c->at++ != ')')
		return false;
	c->depth--;
	return true;
}

static bool compiler_atom(struct compiler *c)
{
	struct step step = {.kind = STEP_SET};
	char character = *c->at++;

	switch (character) {
	case '(':
		return compiler_group(c);
	case '[':
		return compiler_bracket(c);
	case '*':
	case '+':
	case '?':
	case '{':
		return false;
	case '^':
		step.kind = STEP_BEGIN;
		break;
	case '$':
		step.kind = STEP_END;
		break;
	case '\\':
		if (!compiler_escape(c->at++, &step))
			return false;
		break;
	case '.':
		set_add(&step, '\n', '\n');
		set_invert(&step);
		break;
	default:
		set_add(&step, (uint8_t)character, (uint8_t)character);
	}
	compiler_add(c, &step);
	return true;
}

/* Steps from `start` on, repeated as the character says. */
static void compiler_repeat(struct compiler *c, uint32_t start, char how)
{
	int32_t n = (int32_t)(c->n - start);

	if (how == '+') {
		compiler_add(c, &(struct step){.kind = STEP_SPLIT, .to = {-n, 1}});
		return;
	}
	compiler_insert(c, start,
		&(struct step){.kind = STEP_SPLIT, .to = {1, how == '*' ? n + 2 : n + 1}});
	if (how == '*')
		compiler_add(c, &(struct step){.kind = STEP_JUMP, .to = {-n - 1}});
}

/* A ? behind a repetition changes which match is found, not whether there is one; a + would. */
static bool compiler_sequence(struct compiler *c)
{
	while (*c->at && *c->at != '|' && *c->at != ')') {
		uint32_t start = c->n;

		if (!compiler_atom(c))
			return false;
		if (!*c->at || !strchr("*+?", *c->at))
			continue;
		compiler_repeat(c, start, *c->at++);
		c->at += *c->at == '?';
	}
	return true;
}

static bool compiler_alternatives(struct compiler *c)
{
	uint32_t start = c->n, jump;

	if (!compiler_sequence(c))
		return false;
	if (*c->at != '|')
		return true;
	c->at++;
	compiler_insert(c, start,
		&(struct step){.kind = STEP_SPLIT, .to = {1, (int32_t)(c->n - start) + 2}});
	jump = c->n;
	compiler_add(c, &(struct step){.kind = STEP_JUMP});
	if (!compiler_alternatives(c))
		return false;
	c->steps[jump].to[0] = (int32_t)(c->n - jump);
	return true;
}

int module_pattern_new(const char *text, struct module_pattern **ret)
{
	struct compiler compiler = {.at = text};
	struct module_pattern *pattern;

	if (strlen(text) > MODULE_PATTERN_MAX || !compiler_alternatives(&compiler) || *compiler.at)
		return -ENOTSUP;
	compiler_add(&compiler, &(struct step){.kind = STEP_MATCH});
	pattern = malloc(sizeof(*pattern) + compiler.n * sizeof(*pattern->steps));
	if (!pattern)
		return -ENOMEM;
	pattern->n = compiler.n;
	memcpy(pattern->steps, compiler.steps, compiler.n * sizeof(*pattern->steps));
	*ret = pattern;
	return 0;
}

void module_pattern_free(struct module_pattern *pattern)
{
	free(pattern);
}

/* ---- a match ---- */

/* The steps that wait for the next character. */
struct front {
	uint16_t steps[STEPS_MAX];
	uint32_t n;
	bool seen[STEPS_MAX];
};

/* The steps that are reached from one without a character. True: one of them is the match. */
static bool front_reach(struct front *front, const struct module_pattern *pattern, uint32_t from,
	bool begins, bool ends)
{
	uint16_t stack[2 * STEPS_MAX + 1];
	uint32_t n = 0;

	stack[n++] = (uint16_t)from;
	while (n) {
		uint32_t at = stack[--n];
		const struct step *step = &pattern->steps[at];

		assert(at < pattern->n);
		if (front->seen[at])
			continue;
		front->seen[at] = true;
		if (step->kind == STEP_MATCH)
			return true;
		if (step->kind == STEP_SET)
			front->steps[front->n++] = (uint16_t)at;
		else if (step->kind == STEP_SPLIT || step->kind == STEP_JUMP)
			stack[n++] = (uint16_t)((int32_t)at + step->to[0]);
		else if (step->kind == STEP_BEGIN ? begins : ends)
			stack[n++] = (uint16_t)(at + 1);
		if (step->kind == STEP_SPLIT)
			stack[n++] = (uint16_t)((int32_t)at + step->to[1]);
	}
	return false;
}

bool module_pattern_matches(const struct module_pattern *pattern, const char *name)
{
	struct front fronts[2], *now = &fronts[0], *next = &fronts[1], *other;

	*now = (struct front){0};
	if (front_reach(now, pattern, 0, true, !*name))
		return true;
	for (; *name && now->n; name++) {
		uint8_t character = (uint8_t)*name;

		*next = (struct front){0};
		for (uint32_t i = 0; i < now->n; i++) {
			const struct step *step = &pattern->steps[now->steps[i]];

			if ((step->set[character / 8] >> character % 8 & 1) &&
				front_reach(next, pattern, now->steps[i] + 1u, false, !name[1]))
				return true;
		}
		other = now;
		now = next;
		next = other;
	}
	return false;
}
