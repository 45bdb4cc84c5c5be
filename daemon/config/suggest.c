/* SPDX-License-Identifier: MIT */
#include "daemon/config/suggest.h"

#include <string.h>
#include <strings.h>

#define SUGGEST_MAX 64 /* characters of a word */

static unsigned suggest_least(unsigned a, unsigned b)
{
	return a < b ? a : b;
}

/* The optimal string alignment distance. Both have SUGGEST_MAX characters at most. */
static unsigned suggest_distance(const char *a, size_t n_a, const char *b, size_t n_b)
{
	unsigned rows[3][SUGGEST_MAX + 1]; /* the row of a's character, and the two before */

	for (size_t j = 0; j <= n_b; j++)
		rows[0][j] = (unsigned)j;
	for (size_t i = 1; i <= n_a; i++) {
		unsigned *row = rows[i % 3], *before = rows[(i + 2) % 3], *earlier = rows[(i + 1) % 3];

		row[0] = (unsigned)i;
		for (size_t j = 1; j <= n_b; j++) {
			const unsigned other = a[i - 1] != b[j - 1];

			row[j] = suggest_least(suggest_least(before[j], row[j - 1]) + 1, before[j - 1] + other);
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				row[j] = suggest_least(row[j], earlier[j - 2] + 1);
		}
	}
	return rows[n_a % 3][n_b];
}

static const char *suggest_longer(const char *word, const char *const *names, size_t n)
{
	const char *found = NULL;

	for (size_t i = 0; i < n && word[0]; i++) {
		if (strncasecmp(names[i], word, strlen(word)) != 0)
			continue;
		if (found && strcmp(found, names[i]) != 0)
			return NULL;
		found = names[i];
	}
	return found;
}

const char *suggest(const char *word, const char *const *names, size_t n)
{
	const char *found = suggest_longer(word, names, n);
	unsigned least = SUGGEST_MAX;

	if (found)
		return found;
	for (size_t i = 0; i < n && strlen(word) <= SUGGEST_MAX; i++) {
		const size_t length = strlen(names[i]);

		if (length > SUGGEST_MAX)
			continue;
		const unsigned distance = suggest_distance(word, strlen(word), names[i], length);
		if (distance >= least || distance > (length + 2) / 3)
			continue;
		least = distance;
		found = names[i];
	}
	return found;
}
