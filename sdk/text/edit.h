/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_EDIT_H
#define MIMEO_SDK_TEXT_EDIT_H

/*
 * One pass of changes over a text, from its beginning to its end. Nothing is copied before the
 * first change; flags of foreign bytes follow.
 */

#include "sdk/text/buffer.h"
#include "sdk/text/span.h"

struct edit {
	struct span in;
	size_t done; /* bytes of the input that were dealt with */
	bool changed;
	bool at_origin;              /* as in struct span, of the result */
	struct bytes *out, *foreign; /* the result, if changed */
};

void edit_init(struct edit *edit, struct span in, struct bytes *out, struct bytes *foreign);
/* The next n bytes become text[length]. Text that replaces foreign bytes is foreign. */
void edit_replace(struct edit *edit, size_t n, const char *text, size_t length);
/* The next n bytes go. What follows them is no longer at the origin. */
void edit_drop(struct edit *edit, size_t n);
/* Keep the rest. 0, or a failure of the buffers. */
int edit_finish(struct edit *edit, struct span *ret);

void edit_copy(struct edit *edit, size_t n);

/* The next n bytes stay. */
static inline void edit_keep(struct edit *edit, size_t n)
{
	if (edit->changed)
		edit_copy(edit, n);
	edit->done += n;
}

#endif
