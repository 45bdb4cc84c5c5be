/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_POSTPROCESSOR_H
#define MIMEO_SDK_TEXT_POSTPROCESSOR_H

/* The post-processor of a tokenizer.json: what is added around the ids of a text. Offsets and
 * types, with which it deals as well, are not computed here. */

#include "sdk/text/buffer.h"
#include "sdk/text/spec.h"

#define POSTPROCESSOR_PIECES_MAX 64u
#define POSTPROCESSOR_IDS_MAX 256u /* of one special token */

struct postprocessor_piece {
	bool is_text; /* the ids of the text; else: */
	int32_t *ids; /* [n] of a special token */
	size_t n;
};

struct postprocessor {
	struct postprocessor_piece pieces[POSTPROCESSOR_PIECES_MAX];
	unsigned n;
	bool is_given; /* else the ids stay as they are */
};

/* From the root's member "post_processor", which may be null. False after an error;
 * postprocessor_deinit in either case. */
bool postprocessor_init(struct postprocessor *postprocessor, const struct spec *root);
void postprocessor_deinit(struct postprocessor *postprocessor);

/* Add the ids of a text, with special tokens or without, to `out`. 0, TOO_LONG or NO_MEMORY. */
int postprocessor_run(const struct postprocessor *postprocessor, const struct ids *text,
	bool special, struct ids *out);

#endif
