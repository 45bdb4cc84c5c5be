/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_SDK_TEXT_DECODER_H
#define MIMEO_SDK_TEXT_DECODER_H

/*
 * The decoder of a tokenizer.json turns tokens into text. `tokenizers` gives each step a list of
 * all tokens. Here tokens go through the steps as they come, and each step keeps what it cannot
 * decide yet; at the end the text is the same. Behind a step that makes one token of all (Fuse,
 * ByteLevel) tokens come in parts.
 */

#include "sdk/text/buffer.h"
#include "sdk/text/pattern.h"
#include "sdk/text/spec.h"
#include "sdk/text/utf8.h"

#define DECODER_STEPS_MAX 16u
#define DECODER_TEXT_MAX 256u   /* bytes of the strings of a step */
#define DECODER_STRIP_MAX 1024u /* characters, which are looked at again for each token */

enum decoder_kind {
	DECODER_JOIN, /* no decoder: spaces between tokens */
	DECODER_BYTE_LEVEL,
	DECODER_BYTE_FALLBACK,
	DECODER_FUSE,
	DECODER_METASPACE,
	DECODER_REPLACE,
	DECODER_STRIP,
	DECODER_WORDPIECE,
	DECODER_BPE,
	DECODER_CTC,
};

struct decoder_text {
	char bytes[DECODER_TEXT_MAX];
	size_t length;
};

struct decoder_step {
	enum decoder_kind kind;
	bool is_fused;                 /* the step before makes one token of all */
	struct pattern pattern;        /* REPLACE */
	struct decoder_text text;      /* REPLACE: content; METASPACE: replacement; STRIP: content;
					  WORDPIECE: prefix;      BPE: suffix; CTC: pad_token */
	struct decoder_text delimiter; /* CTC: word_delimiter_token */
	uint32_t start, stop;          /* STRIP: characters */
	bool prepends; /* METASPACE: the first token loses its replacement characters */
	bool cleanup;  /* WORDPIECE, CTC */
};

struct decoder {
	struct decoder_step steps[DECODER_STEPS_MAX];
	unsigned n;
};

/* From the root's member "decoder", which may be null. False after an error; decoder_deinit in
 * either case. */
bool decoder_init(struct decoder *decoder, const struct spec *root);
void decoder_deinit(struct decoder *decoder);

/* ---- a run ---- */

struct decoder_state {
	bool started;       /* there was a token, or a part of one */
	bool is_stripping;  /* STRIP: nothing but `start` characters so far */
	uint32_t n_start;   /* STRIP: characters stripped at the start */
	struct bytes held;  /* what is not decided; CTC: the last token */
	struct bytes whole; /* the parts of a token, for a step that needs all of it */
	struct bytes scratch[2];
};

struct decoder_run {
	const struct decoder *decoder;
	struct matcher matcher;
	struct decoder_state states[DECODER_STEPS_MAX];
	struct bytes *out; /* valid UTF-8 is added; takes failures */
};

void decoder_run_init(struct decoder_run *run, const struct decoder *decoder, struct bytes *out);
void decoder_run_deinit(struct decoder_run *run);
/* Add a token. 0, TOO_LONG or NO_MEMORY; then the run is of no use any more. */
int decoder_run_push(struct decoder_run *run, const char *token, size_t length);
/* The tokens so far are not part of the text, but decide about a space before the next one. */
int decoder_run_forget(struct decoder_run *run);
/* No token follows: add what was kept. */
int decoder_run_end(struct decoder_run *run);

#endif
