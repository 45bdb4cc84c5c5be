/* SPDX-License-Identifier: MIT */
#include "daemon/output/table.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <libsmartcols.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

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
	if (n_columns == 0 || (flags & ~TABLE_RECORD))
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

static void fail(struct table *table, int error)
{
	if (table->error == 0)
		table->error = error;
}

void table_row(struct table *table)
{
	if (table->error < 0)
		return;
	if ((table->flags & TABLE_RECORD) && table->n_rows == 1) {
		fail(table, -EINVAL);
		return;
	}
	if (table->n_rows == table->capacity) {
		size_t capacity = table->capacity == 0 ? 8 : table->capacity * 2;
		struct cell *cells = reallocarray(
			table->cells, capacity, table->n_columns * sizeof(*cells));
		if (!cells) {
			fail(table, -ENOMEM);
			return;
		}
		table->cells = cells;
		table->capacity = capacity;
	}
	memset(table->cells + table->n_rows * table->n_columns, 0,
		table->n_columns * sizeof(*table->cells));
	table->n_rows++;
}

/* The last row's cell of that key, or NULL with the error noted. */
static struct cell *cell_find(struct table *table, const char *key, bool text)
{
	if (table->error < 0)
		return NULL;
	for (size_t i = 0; i < table->n_columns && table->n_rows > 0; i++) {
		if (strcmp(table->columns[i].key, key) != 0)
			continue;
		if ((table->columns[i].unit == TABLE_TEXT) != text)
			break;
		return &table->cells[(table->n_rows - 1) * table->n_columns + i];
	}
	fail(table, -EINVAL);
	return NULL;
}

void table_set_text(struct table *table, const char *key, const char *text)
{
	struct cell *cell = cell_find(table, key, true);

	if (!cell)
		return;
	char *copy = strdup(text);
	if (!copy) {
		fail(table, -ENOMEM);
		return;
	}
	free(cell->text);
	cell->text = copy;
	cell->kind = CELL_TEXT;
}

void table_set_count(struct table *table, const char *key, uint64_t value)
{
	struct cell *cell = cell_find(table, key, false);

	if (cell) {
		cell->kind = CELL_COUNT;
		cell->count = value;
	}
}

void table_set_number(struct table *table, const char *key, double value)
{
	struct cell *cell = cell_find(table, key, false);

	if (cell) {
		cell->kind = CELL_NUMBER;
		cell->number = value;
	}
}

/* ---- text ---- */

static const char *cell_text(
	const struct cell *cell, enum table_unit unit, char buffer[static TABLE_FORMAT_MAX])
{
	double value = cell->kind == CELL_COUNT ? (double)cell->count : cell->number;

	if (cell->kind == CELL_EMPTY)
		return "-";
	if (cell->kind == CELL_TEXT)
		return cell->text;
	switch (unit) {
	case TABLE_BYTES:
		return table_format_bytes(buffer, value);
	case TABLE_SECONDS:
		return table_format_seconds(buffer, value);
	case TABLE_TEXT:
	case TABLE_COUNT:
	case TABLE_NUMBER:
		break;
	}
	if (cell->kind == CELL_NUMBER)
		return table_format_number(buffer, value);
	snprintf(buffer, TABLE_FORMAT_MAX, "%" PRIu64, cell->count);
	return buffer;
}

static int add_line(struct libscols_table *lines, const char *const *texts, size_t n_texts)
{
	struct libscols_line *line = scols_table_new_line(lines, NULL);
	int r = line ? 0 : -ENOMEM;

	for (size_t i = 0; i < n_texts && r == 0; i++)
		r = scols_line_set_data(line, i, texts[i]);
	return r;
}

static bool is_usual(const struct cell *cell, const char *usual)
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

static bool is_shown(const struct table *table, size_t column, enum table_form form)
{
	const struct table_column *c = &table->columns[column];

	if (!c->title || form == TABLE_AS_WIDE_TEXT)
		return c->title;
	if (c->wide || !c->usual)
		return !c->wide;
	for (size_t row = 0; row < table->n_rows; row++) {
		if (!is_usual(&table->cells[row * table->n_columns + column], c->usual))
			return true;
	}
	return false;
}

/* One line a row. */
static int fill_list(
	const struct table *table, struct libscols_table *lines, enum table_form form)
{
	int r = 0;

	for (size_t i = 0; i < table->n_columns && r == 0; i++) {
		const struct table_column *column = &table->columns[i];
		int right = column->unit == TABLE_TEXT ? 0 : SCOLS_FL_RIGHT;

		if (is_shown(table, i, form) &&
			!scols_table_new_column(lines, column->title, 0, right))
			r = -ENOMEM;
	}
	for (size_t row = 0; row < table->n_rows && r == 0; row++) {
		struct libscols_line *line = scols_table_new_line(lines, NULL);
		size_t at = 0;

		if (!line)
			return -ENOMEM;
		for (size_t i = 0; i < table->n_columns && r == 0; i++) {
			char buffer[TABLE_FORMAT_MAX];
			const struct cell *cell = &table->cells[row * table->n_columns + i];

			if (is_shown(table, i, form))
				r = scols_line_set_data(line, at++,
					cell_text(cell, table->columns[i].unit, buffer));
		}
	}
	return r;
}

/* One line a column. */
static int fill_record(
	const struct table *table, struct libscols_table *lines, enum table_form form)
{
	int r = 0;

	scols_table_enable_noheadings(lines, 1);
	if (!scols_table_new_column(lines, "key", 0, 0) ||
		!scols_table_new_column(lines, "value", 0, 0))
		return -ENOMEM;
	for (size_t i = 0; i < table->n_columns && table->n_rows > 0 && r == 0; i++) {
		char buffer[TABLE_FORMAT_MAX];
		const struct table_column *column = &table->columns[i];

		if (is_shown(table, i, form))
			r = add_line(lines,
				(const char *[]){column->title,
					cell_text(&table->cells[i], column->unit, buffer)},
				2);
	}
	return r;
}

static int print_text(const struct table *table, FILE *file, enum table_form form)
{
	struct libscols_table *lines = scols_new_table();
	if (!lines)
		return -ENOMEM;

	int r = scols_table_set_column_separator(lines, "  ");
	if (r == 0)
		r = table->flags & TABLE_RECORD ? fill_record(table, lines, form)
						: fill_list(table, lines, form);
	if (r == 0)
		r = scols_table_set_stream(lines, file);
	/* An empty table prints nothing, not even its headings. */
	if (r == 0 && scols_table_get_nlines(lines) > 0)
		r = scols_print_table(lines);
	scols_unref_table(lines);
	return r < 0 ? r : r > 0 ? -EIO : 0;
}

/* ---- JSON ---- */

static json_t *cell_json(const struct cell *cell)
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

static json_t *row_json(const struct table *table, size_t row)
{
	json_t *object = json_object();

	for (size_t i = 0; i < table->n_columns && object; i++) {
		json_t *value = cell_json(&table->cells[row * table->n_columns + i]);

		if (!value || json_object_set_new(object, table->columns[i].key, value) < 0) {
			json_decref(object);
			return NULL;
		}
	}
	return object;
}

static int print_json(const struct table *table, FILE *file)
{
	bool record = table->flags & TABLE_RECORD;
	json_t *root = record ? table->n_rows > 0 ? row_json(table, 0) : json_object()
			      : json_array();

	for (size_t row = 0; row < table->n_rows && !record && root; row++) {
		json_t *object = row_json(table, row);

		if (!object || json_array_append_new(root, object) < 0) {
			json_decref(root);
			return -ENOMEM;
		}
	}
	if (!root)
		return -ENOMEM;
	int r = json_dumpf(root, file, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
	json_decref(root);
	return r < 0 || putc('\n', file) == EOF ? -EIO : 0;
}

int table_write(FILE *file, const char *text, size_t length)
{
	errno = 0;
	if (fwrite(text, 1, length, file) == length && fflush(file) == 0)
		return 0;
	return errno > 0 ? -errno : -EIO;
}

/* By way of memory: the libraries that print do not say why a file could not be written. */
int table_print(const struct table *table, FILE *file, enum table_form form)
{
	size_t length = 0;
	char *text = NULL;

	if (table->error < 0)
		return table->error;
	FILE *memory = open_memstream(&text, &length);
	if (!memory)
		return -ENOMEM;
	int r = form == TABLE_AS_JSON ? print_json(table, memory)
				      : print_text(table, memory, form);
	if (fclose(memory) == EOF && r == 0)
		r = -ENOMEM;
	if (r == 0)
		r = table_write(file, text, length);
	free(text);
	return r;
}
