/* SPDX-License-Identifier: MIT */
#include "daemon/ctl/findings.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config/command_line.h"
#include "ipc/cleanup.h"

#define FINDINGS_COLUMN 22 /* of the text, behind state and check */

DEFINE_CLEANUP(file, FILE, fclose)

/* ---- collecting ---- */

static struct finding *findings_new(struct doctor *doctor, enum finding_state state, const char *check)
{
	struct finding *finding = &doctor->findings[doctor->n++];

	assert(doctor->n <= FINDINGS_MAX);
	*finding = (struct finding){.check = check, .state = state};
	return finding;
}

void findings_ok(struct doctor *doctor, const char *check, const char *found, ...)
{
	struct finding *finding = findings_new(doctor, FINDING_OK, check);
	va_list arguments;

	va_start(arguments, found);
	vsnprintf(finding->found, sizeof(finding->found), found, arguments);
	va_end(arguments);
}

void findings_add(struct doctor *doctor, enum finding_state state, const char *check, const char *found, ...)
{
	struct finding *finding = findings_new(doctor, state, check);
	va_list arguments;

	va_start(arguments, found);
	vsnprintf(finding->found, sizeof(finding->found), found, arguments);
	va_end(arguments);
}

void findings_explain(struct doctor *doctor, const char *costs, const char *todo)
{
	struct finding *finding = &doctor->findings[doctor->n - 1];

	assert(doctor->n > 0);
	snprintf(finding->costs, sizeof(finding->costs), "%s", costs);
	snprintf(finding->todo, sizeof(finding->todo), "%s", todo);
}

static FILE *findings_open(const struct doctor *doctor, const char *path)
{
	char full[512];

	if (snprintf(full, sizeof(full), "%s%s", doctor->root, path) >= (int)sizeof(full))
		return NULL;
	return fopen(full, "re");
}

bool findings_read(const struct doctor *doctor, const char *path, char *ret, size_t size)
{
	CLEANUP(cleanup_file) FILE *file = findings_open(doctor, path);

	if (!file || !fgets(ret, (int)size, file))
		return false;
	ret[strcspn(ret, "\n")] = '\0';
	return ret[0] != '\0';
}

bool findings_read_key(const struct doctor *doctor, const char *path, const char *key, char *ret, size_t size)
{
	CLEANUP(cleanup_file) FILE *file = findings_open(doctor, path);
	const size_t length = strlen(key);
	char line[512];

	while (file && fgets(line, sizeof(line), file)) {
		const char *value = line + length;

		if (strncmp(line, key, length) != 0 || !strchr(": \t", *value))
			continue;
		value += strspn(value, ": \t");
		snprintf(ret, size, "%.*s", (int)strcspn(value, "\n"), value);
		return true;
	}
	return false;
}

/* ---- printing ---- */

static const char *findings_state_name(enum finding_state state)
{
	return state == FINDING_OK ? "ok" : state == FINDING_NOTE ? "note" : "warn";
}

static int findings_print_json(const struct doctor *doctor, FILE *file)
{
	static const struct table_column columns[] = {
		{"check", "CHECK", TABLE_TEXT},
		{"state", "STATE", TABLE_TEXT},
		{"found", "FOUND", TABLE_TEXT},
		{"costs", "COSTS", TABLE_TEXT},
		{"todo", "TO DO", TABLE_TEXT},
	};
	CLEANUP(cleanup_table) struct table *table = NULL;

	int rc = table_new(&table, columns, sizeof(columns) / sizeof(columns[0]), 0);
	if (rc < 0)
		return rc;
	for (size_t i = 0; i < doctor->n; i++) {
		const struct finding *finding = &doctor->findings[i];

		table_row(table);
		table_set_text(table, "check", finding->check);
		table_set_text(table, "state", findings_state_name(finding->state));
		table_set_text(table, "found", finding->found);
		if (finding->costs[0])
			table_set_text(table, "costs", finding->costs);
		if (finding->todo[0])
			table_set_text(table, "todo", finding->todo);
	}
	return table_print(table, file, TABLE_AS_JSON);
}

static void findings_print_one(const struct finding *finding, FILE *file)
{
	char head[FINDINGS_COLUMN];

	snprintf(head, sizeof(head), "%-4s  %.14s", findings_state_name(finding->state), finding->check);
	command_line_print(file, head, FINDINGS_COLUMN, finding->found);
	if (finding->costs[0])
		command_line_print(file, "      costs", FINDINGS_COLUMN, finding->costs);
	if (finding->todo[0])
		command_line_print(file, "      to do", FINDINGS_COLUMN, finding->todo);
}

int findings_print(const struct doctor *doctor, FILE *file, enum table_form form)
{
	if (form == TABLE_AS_JSON)
		return findings_print_json(doctor, file);
	for (size_t i = 0; i < doctor->n; i++)
		findings_print_one(&doctor->findings[i], file);
	return fflush(file) == EOF || ferror(file) ? -EIO : 0;
}

int findings_status(const struct doctor *doctor)
{
	for (size_t i = 0; i < doctor->n; i++) {
		if (doctor->findings[i].state == FINDING_WARN)
			return 1;
	}
	return 0;
}
