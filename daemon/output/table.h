/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_TABLE_H
#define MIMEO_DAEMON_TABLE_H

/*
 * Tables for people (aligned text, units made readable) and for programs (JSON, raw numbers).
 *
 * A table is MADE from its columns, gets ROWS whose cells are set by the column's key, and is
 * PRINTED. Errors are sticky: setters return nothing, table_print returns the first error.
 *
 *	static const struct table_column columns[] = {
 *		{"name", "NAME", TABLE_TEXT}, {"bytes", "MEMORY", TABLE_BYTES},
 *	};
 *	table_new(&table, columns, 2, 0);
 *	table_row(table);
 *	table_set_text(table, "name", "tinycalc");
 *	table_set_count(table, "bytes", 3700000);
 *	table_print(table, stdout, TABLE_AS_TEXT);
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "daemon/output/table_format.h"
#include "ipc/cleanup.h"

enum table_unit {
	TABLE_TEXT,
	TABLE_COUNT,   /* an integer as it is */
	TABLE_BYTES,   /* 3.5 MiB */
	TABLE_SECONDS, /* 12.3 us, 4.56 s, 2h05m */
	TABLE_NUMBER,  /* three significant digits or more */
	TABLE_PRECISE, /* six significant digits */
};

struct table_column {
	const char *key;   /* in JSON, and for the setters */
	const char *title; /* of the text's column; NULL: in JSON only */
	enum table_unit unit;
	bool wide; /* not in TABLE_AS_TEXT */
	bool cut;  /* text that is cut where a TABLE_NARROW would be too wide */
	/* In TABLE_AS_TEXT the column is shown only if a cell differs from this, 0 and nothing; NULL: always
	 * shown. */
	const char *usual;
};

enum table_form { TABLE_AS_TEXT, TABLE_AS_WIDE_TEXT, TABLE_AS_JSON };

/* One row at most: as text a line for each column, as JSON an object instead of an array of them. In TABLE_AS_TEXT a
 * long value goes on in the next line. */
#define TABLE_RECORD 1u
/* In TABLE_AS_TEXT lines have TABLE_NARROW_COLUMNS at most, if cutting suffices. */
#define TABLE_NARROW 2u
#define TABLE_NARROW_COLUMNS 80

struct table;

/* `columns` is not copied. 0, -EINVAL, -ENOMEM. */
int table_new(struct table **ret, const struct table_column *columns, size_t n_columns,
	unsigned flags);
void table_free(struct table *table);
DEFINE_CLEANUP(table, struct table, table_free)

/* Begin a row; its cells are empty ("-", in JSON null) until set. */
void table_row(struct table *table);
/* Set a cell of the last row; text is copied. Text belongs into TABLE_TEXT columns, numbers into
 * the others: anything else, or an unknown key, is -EINVAL later. */
void table_set_text(struct table *table, const char *key, const char *text);
void table_set_count(struct table *table, const char *key, uint64_t value);
void table_set_number(struct table *table, const char *key, double value);

/* 0, or the first error: -ENOMEM, -EINVAL, or that of the file (-ENOSPC, ...). */
int table_print(const struct table *table, FILE *file, enum table_form form);
/* Text to the file, flushed: 0 or -errno. */
int table_write(FILE *file, const char *text, size_t length);

#endif
