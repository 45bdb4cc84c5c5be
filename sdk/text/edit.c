/* SPDX-License-Identifier: MIT */
#include "sdk/text/edit.h"

#include <assert.h>

void edit_init(struct edit *edit, struct span in, struct bytes *out, struct bytes *foreign)
{
	bytes_clear(out);
	bytes_clear(foreign);
	*edit = (struct edit){.in = in, .at_origin = in.at_origin, .out = out, .foreign = foreign};
}

void edit_copy(struct edit *edit, size_t n)
{
	assert(n <= edit->in.length - edit->done);
	bytes_add(edit->out, edit->in.bytes + edit->done, n);
	if (edit->in.foreign)
		bytes_add(edit->foreign, (const char *)edit->in.foreign + edit->done, n);
}

static void edit_change(struct edit *edit)
{
	size_t done = edit->done;

	if (edit->changed)
		return;
	/* Most changes are about as long as what they replace. */
	bytes_reserve(edit->out, edit->in.length + edit->in.length / 8);
	edit->changed = true;
	edit->done = 0;
	edit_copy(edit, done);
	edit->done = done;
}

void edit_replace(struct edit *edit, size_t n, const char *text, size_t length)
{
	assert(n <= edit->in.length - edit->done);
	edit_change(edit);
	bytes_add(edit->out, text, length);
	if (edit->in.foreign)
		bytes_fill(
			edit->foreign, memchr(edit->in.foreign + edit->done, 1, n) != NULL, length);
	edit->done += n;
}

void edit_drop(struct edit *edit, size_t n)
{
	edit_replace(edit, n, "", 0);
	if (edit->out->length == 0)
		edit->at_origin = false;
}

int edit_finish(struct edit *edit, struct span *ret)
{
	if (!edit->changed) {
		*ret = edit->in;
		ret->at_origin = edit->at_origin;
		return 0;
	}
	edit_keep(edit, edit->in.length - edit->done);
	if (edit->out->rc < 0)
		return edit->out->rc;
	if (edit->foreign->rc < 0)
		return edit->foreign->rc;
	*ret = (struct span){
		.bytes = edit->out->data ? edit->out->data : "",
		.length = edit->out->length,
		.foreign = edit->in.foreign && edit->foreign->data
				   ? (const uint8_t *)edit->foreign->data
				   : NULL,
		.at_origin = edit->at_origin,
	};
	return 0;
}
