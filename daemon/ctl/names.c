/* SPDX-License-Identifier: MIT */
#include "daemon/ctl/names.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/ctl/ask.h"
#include "daemon/ctl/users.h"

static const struct names_source {
	const char *op, *key;
	const char *about[2]; /* keys of texts that describe it */
} names_sources[] = {
	[NAMES_MODELS] = {"models", "name", {"architecture", "attention"}},
	[NAMES_GRAPHS] = {"graphs", "graph", {"model", "state"}},
	[NAMES_SESSIONS] = {"sessions", "id", {"name", "state"}},
	[NAMES_REQUESTS] = {"requests", "id", {"client", "state"}},
	[NAMES_USERS] = {"limits", "uid", {"", ""}},
};

static bool names_has(const struct names *names, const char *name)
{
	for (size_t i = 0; i < names->n; i++) {
		if (strcmp(names->items[i], name) == 0)
			return true;
	}
	return false;
}

static int names_add(struct names *names, const char *name, const char *description)
{
	names->items[names->n] = strdup(name);
	names->descriptions[names->n] = strdup(description);
	if (names->items[names->n] && names->descriptions[names->n]) {
		names->n++;
		return 0;
	}
	free(names->items[names->n]);
	free(names->descriptions[names->n]);
	return -ENOMEM;
}

/* The row's name; "": it has none. */
static void names_of_row(
	const struct answer *answer, size_t row, enum names_of of, char *ret, size_t size)
{
	const char *key = names_sources[of].key;
	const msgpack_object *cell = answer_cell(answer, row, key);

	answer_text(answer, row, key, ret, size);
	if (!cell || cell->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
		return;
	if (of == NAMES_USERS && cell->via.u64 <= UINT32_MAX)
		users_name((uid_t)cell->via.u64, ret, size);
	else
		snprintf(ret, size, "%" PRIu64, cell->via.u64);
}

static int names_take_row(struct names *names, const struct answer *answer, size_t row, enum names_of of)
{
	const struct names_source *source = &names_sources[of];
	char name[128], about[2][64], description[136];

	names_of_row(answer, row, of, name, sizeof(name));
	if (!name[0] || (of == NAMES_GRAPHS && strcmp(name, "none") == 0) || names_has(names, name))
		return 0;
	for (int i = 0; i < 2; i++)
		answer_text(answer, row, source->about[i], about[i], sizeof(about[i]));
	snprintf(description, sizeof(description), "%s%s%s", about[0], about[1][0] ? ", " : "", about[1]);
	return names_add(names, name, description);
}

int names_ask(int fd, enum names_of of, struct names *ret)
{
	CLEANUP(cleanup_answer) struct answer *answer = NULL;

	*ret = (struct names){0};
	int rc = ask_once(fd, &(struct ask){.op = names_sources[of].op}, &answer);
	if (rc < 0)
		return rc;
	if (answer->status < 0)
		return -EPROTO;
	ret->items = calloc(answer->n_rows + 1, sizeof(*ret->items));
	ret->descriptions = calloc(answer->n_rows + 1, sizeof(*ret->descriptions));
	if (!ret->items || !ret->descriptions)
		return -ENOMEM;
	for (size_t row = 0; row < answer->n_rows && rc == 0; row++)
		rc = names_take_row(ret, answer, row, of);
	return rc;
}

void names_deinit(struct names *names)
{
	for (size_t i = 0; i < names->n; i++) {
		free(names->items[i]);
		free(names->descriptions[i]);
	}
	free(names->items);
	free(names->descriptions);
	*names = (struct names){0};
}
