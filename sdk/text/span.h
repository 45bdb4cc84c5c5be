/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_SPAN_H
#define MIMEO_SDK_TEXT_SPAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A part of a text on its way to tokens: valid UTF-8. */
struct span {
	const char *bytes; /* [length], not terminated */
	size_t length;
	const uint8_t *foreign; /* [length], 1 for bytes that no special token may contain; or NULL:
				   none */
	/* The first character is what became of the first character of the whole text: Metaspace
	 * with prepend_scheme "first" asks. */
	bool at_origin;
};

static inline struct span span_slice(struct span span, size_t start, size_t end)
{
	return (struct span){
		.bytes = span.bytes + start,
		.length = end - start,
		.foreign = span.foreign ? span.foreign + start : NULL,
		.at_origin = span.at_origin && start == 0,
	};
}

#endif
