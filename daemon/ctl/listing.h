/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_DAEMON_CTL_LISTING_H
#define MIMEO_DAEMON_CTL_LISTING_H

/* Which columns a listing has, and its table from a reply. */

#include <sys/types.h>

#include "daemon/ctl/ask.h"
#include "daemon/output/table.h"

struct listing {
	const char *op; /* as on the wire */
	const struct table_column *columns;
	size_t n_columns;
	unsigned flags;
	const char *none; /* said where there are no rows; NULL: nothing is */
};

/* Which rows are printed: all that have these values. */
struct listing_filter {
	const char *model; /* NULL: any */
	bool has_uid;
	uid_t uid;
};

/* By the operation; NULL: its answers have no rows. */
const struct listing *listing_find(const char *op);
/* The rows that the filter does not leave out. 0 or -errno. */
int listing_print(const struct listing *listing, const struct answer *answer, const struct listing_filter *filter,
	FILE *file, enum table_form form);
/* The row of that "id" alone, with all columns. -ENOENT: there is none. */
int listing_print_one(const struct listing *listing, const struct answer *answer, uint64_t id, FILE *file,
	enum table_form form);
/* The model of that name alone, from the answer to "models". -ENOENT: there is none. */
int listing_print_model(const struct answer *answer, const char *model, FILE *file, enum table_form form);
/* Text and a line end; TABLE_AS_TEXT: a line of more than 80 columns is continued, indented, on the next. 0 or
 * -errno. */
int listing_print_text(const char *text, FILE *file, enum table_form form);

#endif
