/* SPDX-License-Identifier: MIT */
/* The tables of rows, their order, and which are shown. */
#include "daemon/ctl/top_rows.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOP_COLUMNS_MAX 16

static const struct table_column top_fields[N_TOP_FIELDS] = {
	[TOP_F_KIND] = {"kind", "KIND", TABLE_TEXT},
	[TOP_F_NAME] = {"name", "NAME", TABLE_TEXT, .cut = true},
	[TOP_F_OWNER] = {"user", "USER", TABLE_TEXT, .cut = true},
	[TOP_F_STATE] = {"state", "STATE", TABLE_TEXT},
	[TOP_F_ID] = {"id", "ID", TABLE_COUNT},
	[TOP_F_PID] = {"pid", "PID", TABLE_COUNT},
	[TOP_F_SESSION] = {"session", "SESSION", TABLE_COUNT},
	[TOP_F_SESSIONS] = {"sessions", "SESSIONS", TABLE_COUNT},
	[TOP_F_BUSY] = {"busy", "BUSY", TABLE_NUMBER},
	[TOP_F_MEMORY] = {"memory_bytes", "MEMORY", TABLE_BYTES},
	[TOP_F_TOKENS_S] = {"tokens_s", "TOK/S", TABLE_NUMBER},
	[TOP_F_PROMPT_S] = {"prompt_s", "PROMPT/S", TABLE_NUMBER},
	[TOP_F_STEPS_S] = {"steps_s", "STEPS/S", TABLE_NUMBER},
	[TOP_F_BATCH] = {"batch", "BATCH", TABLE_NUMBER},
	[TOP_F_GRAPHS] = {"graphs", "GRAPHS", TABLE_NUMBER},
	[TOP_F_FIRST] = {"first_token_s", "FIRST", TABLE_SECONDS},
	[TOP_F_TOKEN] = {"token_s", "NEXT", TABLE_SECONDS},
	[TOP_F_RUNNING] = {"running", "RUN", TABLE_COUNT},
	[TOP_F_WAITING] = {"waiting", "QUEUE", TABLE_COUNT},
	[TOP_F_PAGES] = {"pages", "PAGES", TABLE_COUNT},
	[TOP_F_CACHED] = {"cached", "CACHED", TABLE_NUMBER},
	[TOP_F_TOKENS] = {"tokens", "TOKENS", TABLE_COUNT},
	[TOP_F_AGE] = {"age_s", "AGE", TABLE_SECONDS},
};

/* The columns of each kind's table, and what its names are of. N_TOP_FIELDS ends them. */
static const struct top_table {
	const char *name;
	enum top_field fields[TOP_COLUMNS_MAX];
} top_tables[N_TOP_KINDS] = {
	[TOP_DEVICE] = {"DEVICE", {TOP_F_NAME, TOP_F_STATE, TOP_F_BUSY, TOP_F_MEMORY, TOP_F_TOKENS_S, TOP_F_PROMPT_S,
		TOP_F_STEPS_S, TOP_F_RUNNING, TOP_F_WAITING, N_TOP_FIELDS}},
	[TOP_MODEL] = {"MODEL", {TOP_F_NAME, TOP_F_TOKENS_S, TOP_F_BATCH, TOP_F_GRAPHS, TOP_F_FIRST, TOP_F_TOKEN,
		TOP_F_RUNNING, TOP_F_WAITING, TOP_F_PAGES, N_TOP_FIELDS}},
	[TOP_USER] = {"USER", {TOP_F_OWNER, TOP_F_SESSIONS, TOP_F_TOKENS_S, TOP_F_PROMPT_S, TOP_F_FIRST, TOP_F_TOKEN,
		TOP_F_RUNNING, TOP_F_WAITING, TOP_F_PAGES, N_TOP_FIELDS}},
	[TOP_SESSION] = {"CLIENT", {TOP_F_ID, TOP_F_NAME, TOP_F_OWNER, TOP_F_TOKENS_S, TOP_F_FIRST, TOP_F_TOKEN,
		TOP_F_RUNNING, TOP_F_WAITING, TOP_F_PAGES, TOP_F_CACHED, N_TOP_FIELDS}},
	[TOP_REQUEST] = {"MODEL", {TOP_F_ID, TOP_F_NAME, TOP_F_OWNER, TOP_F_SESSION, TOP_F_STATE, TOP_F_TOKENS,
		TOP_F_TOKENS_S, TOP_F_AGE, N_TOP_FIELDS}},
};

/* ---- fields ---- */

enum top_field top_field_find(const char *name)
{
	enum top_field field = 0;

	while (field < N_TOP_FIELDS && strcmp(top_fields[field].key, name) != 0)
		field++;
	return field;
}

const char *top_field_name(enum top_field field)
{
	return top_fields[field].key;
}

enum top_field top_field_next(enum top_kind kind, enum top_field field)
{
	const enum top_field *fields = top_tables[kind].fields;
	size_t i = 0;

	while (fields[i] != N_TOP_FIELDS && fields[i] != field)
		i++;
	if (fields[i] == N_TOP_FIELDS || fields[i + 1] == N_TOP_FIELDS)
		return fields[0];
	return fields[i + 1];
}

/* ---- order and filter ---- */

/* For qsort, which passes nothing else. */
static enum top_field top_order;

static int top_compare(const void *a, const void *b)
{
	const struct top_row *x = a, *y = b;

	if (x->kind != y->kind)
		return x->kind < y->kind ? -1 : 1;
	if (top_order < N_TOP_TEXTS && strcmp(x->texts[top_order], y->texts[top_order]) != 0)
		return strcmp(x->texts[top_order], y->texts[top_order]);
	if (top_order >= N_TOP_TEXTS) {
		const double p = isnan(x->numbers[top_order]) ? -1 : x->numbers[top_order];
		const double q = isnan(y->numbers[top_order]) ? -1 : y->numbers[top_order];

		if (p != q)
			return p > q ? -1 : 1;
	}
	/* The same order in each picture. */
	if (!isnan(x->numbers[TOP_F_ID]) && x->numbers[TOP_F_ID] != y->numbers[TOP_F_ID])
		return x->numbers[TOP_F_ID] < y->numbers[TOP_F_ID] ? -1 : 1;
	return strcmp(x->texts[TOP_F_NAME], y->texts[TOP_F_NAME]);
}

void top_rows_sort(struct top_rows *rows, enum top_field field)
{
	top_order = field;
	qsort(rows->rows, rows->n, sizeof(*rows->rows), top_compare);
}

static bool top_holds(const struct top_row *row, const char *text)
{
	char id[24];

	for (int i = TOP_F_NAME; i < N_TOP_TEXTS; i++) {
		if (strcasestr(row->texts[i], text))
			return true;
	}
	snprintf(id, sizeof(id), "%.0f", row->numbers[TOP_F_ID]);
	return strcmp(id, text) == 0;
}

void top_rows_filter(struct top_rows *rows, const char *text)
{
	size_t n = 0;

	for (size_t i = 0; i < rows->n; i++) {
		if (rows->rows[i].kind < TOP_SESSION || top_holds(&rows->rows[i], text))
			rows->rows[n++] = rows->rows[i];
	}
	rows->n = n;
}

/* ---- tables ---- */

static void top_fill(struct table *table, const struct top_row *row, const enum top_field *fields)
{
	table_row(table);
	for (size_t i = 0; fields[i] != N_TOP_FIELDS; i++) {
		const enum top_field field = fields[i];
		const char *key = top_fields[field].key;

		if (field < N_TOP_TEXTS && row->texts[field][0])
			table_set_text(table, key, row->texts[field]);
		else if (field >= N_TOP_TEXTS && !isnan(row->numbers[field]) && top_fields[field].unit == TABLE_COUNT)
			table_set_count(table, key, (uint64_t)row->numbers[field]);
		else if (field >= N_TOP_TEXTS && !isnan(row->numbers[field]))
			table_set_number(table, key, row->numbers[field]);
	}
}

int top_rows_print(const struct top_rows *rows, enum top_kind kind, FILE *file, enum table_form form)
{
	struct table_column columns[TOP_COLUMNS_MAX];
	CLEANUP(cleanup_table) struct table *table = NULL;
	const enum top_field *fields = top_tables[kind].fields;
	size_t n = 0;

	for (; fields[n] != N_TOP_FIELDS; n++) {
		columns[n] = top_fields[fields[n]];
		if (fields[n] == TOP_F_NAME)
			columns[n].title = top_tables[kind].name;
	}
	int rc = table_new(&table, columns, n, TABLE_NARROW);
	if (rc < 0)
		return rc;
	for (size_t i = 0; i < rows->n; i++) {
		if (rows->rows[i].kind == kind)
			top_fill(table, &rows->rows[i], fields);
	}
	return table_print(table, file, form);
}

int top_rows_print_json(const struct top_rows *rows, FILE *file)
{
	enum top_field all[N_TOP_FIELDS + 1];
	CLEANUP(cleanup_table) struct table *table = NULL;

	for (int i = 0; i <= N_TOP_FIELDS; i++)
		all[i] = (enum top_field)i;
	int rc = table_new(&table, top_fields, N_TOP_FIELDS, 0);
	if (rc < 0)
		return rc;
	for (size_t i = 0; i < rows->n; i++)
		top_fill(table, &rows->rows[i], all);
	return table_print(table, file, TABLE_AS_JSON);
}
