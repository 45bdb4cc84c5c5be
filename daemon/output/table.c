/* SPDX-License-Identifier: MIT */
#include "daemon/output/table.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <libsmartcols.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/cleanup.h"

struct cell {
	enum { CELL_EMPTY, CELL_TEXT, CELL_COUNT, CELL_NUMBER } kind;
	char *text; /* owned */
	uint64_t count;
	double number;
};

struct table {
	const struct table_column *columns;
	size_t n_columns;
	unsigned flags;
	struct cell *cells; /* [capacity, n_columns] */
	size_t n_rows, capacity;
	int error;
};

int table_new(
	struct table **ret, const struct table_column *columns, size_t n_columns, unsigned flags)
{
	if (n_columns == 0 || (flags & ~(TABLE_RECORD | TABLE_NARROW)))
		return -EINVAL;
	struct table *table = calloc(1, sizeof(*table));
	if (!table)
		return -ENOMEM;
	table->columns = columns;
	table->n_columns = n_columns;
	table->flags = flags;
	*ret = table;
	return 0;
}

void table_free(struct table *table)
{
	if (!table)
		return;
	for (size_t i = 0; i < table->n_rows * table->n_columns; i++)
		free(table->cells[i].text);
	free(table->cells);
	free(table);
}

/* ---- filling ---- */

static void table_fail(struct table *table, int error)
{
	assert(error < 0);
	if (table->error == 0)
		table->error = error;
}

void table_row(struct table *table)
{
	if (table->error < 0)
		return;
	if ((table->flags & TABLE_RECORD) && table->n_rows == 1) {
		table_fail(table, -EINVAL);
		return;
	}
	if (table->n_rows == table->capacity) {
		size_t capacity = table->capacity == 0 ? 8 : table->capacity * 2;
		struct cell *cells = reallocarray(
			table->cells, capacity, table->n_columns * sizeof(*cells));
		if (!cells) {
			table_fail(table, -ENOMEM);
			return;
		}
		table->cells = cells;
		table->capacity = capacity;
	}
	assert(table->n_rows < table->capacity);
	memset(table->cells + table->n_rows * table->n_columns, 0,
		table->n_columns * sizeof(*table->cells));
	table->n_rows++;
}

static struct cell *table_cell(const struct table *table, size_t row, size_t column)
{
	assert(row < table->n_rows && column < table->n_columns);
	return &table->cells[row * table->n_columns + column];
}

/* The last row's cell of that key, or NULL with the error noted. */
static struct cell *table_find(struct table *table, const char *key, bool text)
{
	if (table->error < 0)
		return NULL;
	for (size_t i = 0; i < table->n_columns && table->n_rows > 0; i++) {
		if (strcmp(table->columns[i].key, key) == 0 &&
			(table->columns[i].unit == TABLE_TEXT) == text)
			return table_cell(table, table->n_rows - 1, i);
	}
	table_fail(table, -EINVAL);
	return NULL;
}

void table_set_text(struct table *table, const char *key, const char *text)
{
	struct cell *cell = table_find(table, key, true);

	if (!cell)
		return;
	char *copy = strdup(text);
	if (!copy) {
		table_fail(table, -ENOMEM);
		return;
	}
	free(cell->text);
	*cell = (struct cell){.kind = CELL_TEXT, .text = copy};
}

void table_set_count(struct table *table, const char *key, uint64_t value)
{
	struct cell *cell = table_find(table, key, false);

	if (cell)
		*cell = (struct cell){.kind = CELL_COUNT, .count = value};
}

void table_set_number(struct table *table, const char *key, double value)
{
	struct cell *cell = table_find(table, key, false);

	if (cell)
		*cell = (struct cell){.kind = CELL_NUMBER, .number = value};
}

/* ---- text ---- */

static const char *table_cell_text(
	const struct cell *cell, enum table_unit unit, char buffer[static TABLE_FORMAT_MAX])
{
	double value = cell->kind == CELL_COUNT ? (double)cell->count : cell->number;

	if (cell->kind == CELL_EMPTY)
		return "-";
	if (cell->kind == CELL_TEXT)
		return cell->text;
	if (unit == TABLE_BYTES)
		return table_format_bytes(buffer, value);
	if (unit == TABLE_SECONDS)
		return table_format_seconds(buffer, value);
	if (unit == TABLE_PRECISE)
		return table_format_precise(buffer, value);
	if (cell->kind == CELL_NUMBER)
		return table_format_number(buffer, value);
	snprintf(buffer, TABLE_FORMAT_MAX, "%" PRIu64, cell->count);
	return buffer;
}

static bool table_is_usual(const struct cell *cell, const char *usual)
{
	switch (cell->kind) {
	case CELL_TEXT:
		return strcmp(cell->text, usual) == 0;
	case CELL_COUNT:
		return cell->count == 0;
	case CELL_NUMBER:
		return cell->number == 0;
	case CELL_EMPTY:
		break;
	}
	return true;
}

static bool table_shows(const struct table *table, size_t column, enum table_form form)
{
	const struct table_column *c = &table->columns[column];

	if (!c->title || form == TABLE_AS_WIDE_TEXT)
		return c->title;
	if (c->wide || !c->usual)
		return !c->wide;
	for (size_t row = 0; row < table->n_rows; row++) {
		if (!table_is_usual(table_cell(table, row, column), c->usual))
			return true;
	}
	return false;
}

/* One line a row. */
static int table_fill_list(
	const struct table *table, struct libscols_table *lines, enum table_form form)
{
	for (size_t i = 0; i < table->n_columns; i++) {
		const struct table_column *column = &table->columns[i];
		int flags = (column->unit == TABLE_TEXT ? 0 : SCOLS_FL_RIGHT) |
			(column->cut ? SCOLS_FL_TRUNC : 0);

		if (table_shows(table, i, form) &&
			!scols_table_new_column(lines, column->title, 0, flags))
			return -ENOMEM;
	}
	for (size_t row = 0; row < table->n_rows; row++) {
		struct libscols_line *line = scols_table_new_line(lines, NULL);
		size_t at = 0;

		for (size_t i = 0; i < table->n_columns && line; i++) {
			char buffer[TABLE_FORMAT_MAX];
			const struct cell *cell = table_cell(table, row, i);

			if (table_shows(table, i, form) &&
				scols_line_set_data(line, at++,
					table_cell_text(cell, table->columns[i].unit, buffer)))
				return -ENOMEM;
		}
		if (!line)
			return -ENOMEM;
	}
	return 0;
}

/* One line a column. */
static int table_fill_record(
	const struct table *table, struct libscols_table *lines, enum table_form form)
{
	scols_table_enable_noheadings(lines, 1);
	if (!scols_table_new_column(lines, "key", 0, 0) ||
		!scols_table_new_column(lines, "value", 0, form == TABLE_AS_TEXT ? SCOLS_FL_WRAP : 0))
		return -ENOMEM;
	for (size_t i = 0; i < table->n_columns && table->n_rows > 0; i++) {
		char buffer[TABLE_FORMAT_MAX];
		const struct table_column *column = &table->columns[i];

		if (!table_shows(table, i, form))
			continue;
		struct libscols_line *line = scols_table_new_line(lines, NULL);
		if (!line || scols_line_set_data(line, 0, column->title) ||
			scols_line_set_data(line, 1,
				table_cell_text(table_cell(table, 0, i), column->unit, buffer)))
			return -ENOMEM;
	}
	return 0;
}

DEFINE_CLEANUP(lines, struct libscols_table, scols_unref_table)

static int table_print_text(const struct table *table, FILE *file, enum table_form form)
{
	CLEANUP(cleanup_lines) struct libscols_table *lines = scols_new_table();

	if (!lines || scols_table_set_column_separator(lines, "  "))
		return -ENOMEM;
	int rc = table->flags & TABLE_RECORD ? table_fill_record(table, lines, form)
					     : table_fill_list(table, lines, form);
	if (rc < 0)
		return rc;
	/* An empty table prints nothing, not even its headings. */
	if (scols_table_get_nlines(lines) == 0)
		return 0;
	if ((table->flags & (TABLE_NARROW | TABLE_RECORD)) && form == TABLE_AS_TEXT) {
		scols_table_set_termforce(lines, SCOLS_TERMFORCE_ALWAYS);
		scols_table_set_termwidth(lines, TABLE_NARROW_COLUMNS);
	}
	rc = scols_table_set_stream(lines, file);
	if (rc == 0)
		rc = scols_print_table(lines);
	return rc < 0 ? rc : rc > 0 ? -EIO : 0;
}

/* ---- JSON ---- */

static json_t *table_cell_json(const struct cell *cell)
{
	switch (cell->kind) {
	case CELL_TEXT:
		return json_string(cell->text);
	case CELL_COUNT:
		return json_integer(
			cell->count > INT64_MAX ? INT64_MAX : (json_int_t)cell->count);
	case CELL_NUMBER:
		return isfinite(cell->number) ? json_real(cell->number) : json_null();
	case CELL_EMPTY:
		break;
	}
	return json_null();
}

/* Or NULL. Jansson refuses values that are NULL, and takes the others over even if it fails. */
static json_t *table_row_json(const struct table *table, size_t row)
{
	json_t *object = json_object();
	int rc = 0;

	for (size_t i = 0; i < table->n_columns; i++)
		rc |= json_object_set_new(object, table->columns[i].key,
			table_cell_json(table_cell(table, row, i)));
	if (rc == 0)
		return object;
	json_decref(object);
	return NULL;
}

static int table_print_json(const struct table *table, FILE *file)
{
	json_t *rows = json_array();
	int rc = 0;

	for (size_t row = 0; row < table->n_rows; row++)
		rc |= json_array_append_new(rows, table_row_json(table, row));
	if (table->flags & TABLE_RECORD && table->n_rows == 0)
		rc |= json_array_append_new(rows, json_object());
	if (rc == 0)
		rc = json_dumpf(table->flags & TABLE_RECORD ? json_array_get(rows, 0) : rows, file,
			JSON_INDENT(2) | JSON_REAL_PRECISION(15));
	json_decref(rows);
	return rc < 0 || putc('\n', file) == EOF ? -ENOMEM : 0;
}

int table_write(FILE *file, const char *text, size_t length)
{
	errno = 0;
	if (fwrite(text, 1, length, file) == length && fflush(file) == 0)
		return 0;
	return errno > 0 ? -errno : -EIO;
}

/* Printed to memory first, because the libraries do not report why a file could not be written. */
int table_print(const struct table *table, FILE *file, enum table_form form)
{
	CLEANUP(cleanup_free) char *text = NULL;
	size_t length = 0;

	if (table->error < 0)
		return table->error;
	FILE *memory = open_memstream(&text, &length);
	if (!memory)
		return -ENOMEM;
	int rc = form == TABLE_AS_JSON ? table_print_json(table, memory)
				       : table_print_text(table, memory, form);
	if (fclose(memory) == EOF && rc == 0)
		rc = -ENOMEM;
	if (rc < 0)
		return rc;
	return table_write(file, text, length);
}
