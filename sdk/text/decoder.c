/* SPDX-License-Identifier: MIT */
#include "sdk/text/decoder.h"

#include <assert.h>

#include "sdk/text/byte_level.h"
#include "sdk/text/decoder_text.h"

/* Hand a part of a token to a step; `last`: the token ends with it. Steps that are not fused get
 * whole tokens. */
static void decoder_pass(
	struct decoder_run *run, unsigned index, const char *text, size_t length, bool last);

static void decoder_fail(struct decoder_run *run, int rc)
{
	if (rc < 0 && run->out->rc == 0)
		run->out->rc = rc;
}

/* Hand on what a buffer has. */
static void decoder_pass_bytes(
	struct decoder_run *run, unsigned index, const struct bytes *bytes, bool last)
{
	decoder_fail(run, bytes->rc);
	decoder_pass(run, index, bytes->data ? bytes->data : "", bytes->length, last);
}

/* ---- tokens to bytes ---- */

/* Add the bytes that the characters of a token stand for, or those of the token itself if one
 * stands for none. */
static void decoder_add_bytes(struct bytes *out, const char *token, size_t length)
{
	size_t first = out->length;
	unsigned size;

	for (size_t i = 0; i < length; i += size) {
		int byte = byte_level_byte(utf8_decode(token + i, &size));

		if (byte < 0) {
			out->length = first;
			bytes_add(out, token, length);
			return;
		}
		bytes_fill(out, (char)byte, 1);
	}
}

/* Pass what is certain of the bytes: whole characters, and U+FFFD for what is none. */
static void decoder_pass_characters(struct decoder_run *run, unsigned index, bool last)
{
	struct decoder_state *state = &run->states[index];
	struct bytes *held = &state->held, *text = &state->scratch[0];
	size_t at = 0;
	bool incomplete = false;

	bytes_clear(text);
	while (at < held->length) {
		size_t valid = utf8_valid(held->data + at, held->length - at);

		bytes_add(text, held->data + at, valid);
		at += valid;
		if (at == held->length)
			break;
		int n = utf8_look(held->data + at, held->length - at, &incomplete);
		if (incomplete && !last)
			break;
		bytes_add(text, UTF8_REPLACEMENT, sizeof(UTF8_REPLACEMENT) - 1);
		at += (size_t)-n;
	}
	decoder_fail(run, held->rc);
	if (held->rc == 0 && at > 0) {
		memmove(held->data, held->data + at, held->length - at);
		held->length -= at;
	}
	decoder_pass_bytes(run, index + 1, text, last);
}

/* The byte of a token such as <0x0A>, or -1. */
static int decoder_fallback_byte(const char *token, size_t length)
{
	int value = 0;

	if (length != 6 || memcmp(token, "<0x", 3) != 0 || token[5] != '>')
		return -1;
	for (unsigned i = 3; i < 5; i++) {
		char c = token[i];
		int digit = c >= '0' && c <= '9'   ? c - '0'
			    : c >= 'a' && c <= 'f' ? c - 'a' + 10
			    : c >= 'A' && c <= 'F' ? c - 'A' + 10
						   : -1;

		if (digit < 0)
			return -1;
		value = value * 16 + digit;
	}
	return value;
}

/* A run of bytes is text if it is valid as a whole, or else one U+FFFD for each byte. */
static void decoder_flush_fallback(struct decoder_run *run, unsigned index)
{
	struct bytes *held = &run->states[index].held;
	size_t n = held->length;

	if (n == 0)
		return;
	if (utf8_valid(held->data, n) == n) {
		decoder_pass_bytes(run, index + 1, held, true);
	} else {
		for (size_t i = 0; i < n; i++)
			decoder_pass(run, index + 1, UTF8_REPLACEMENT, sizeof(UTF8_REPLACEMENT) - 1,
				true);
	}
	bytes_clear(held);
}

static void decoder_byte_fallback(
	struct decoder_run *run, unsigned index, const char *token, size_t length)
{
	int byte = decoder_fallback_byte(token, length);

	if (byte >= 0) {
		bytes_fill(&run->states[index].held, (char)byte, 1);
		decoder_fail(run, run->states[index].held.rc);
		return;
	}
	decoder_flush_fallback(run, index);
	decoder_pass(run, index + 1, token, length, true);
}

/* ---- replacing ---- */

static void decoder_replace_token(
	struct decoder_run *run, unsigned index, const char *token, size_t length)
{
	const struct decoder_step *step = &run->decoder->steps[index];
	struct bytes *text = &run->states[index].scratch[0];

	bytes_clear(text);
	run->matcher.steps += (uint64_t)length * PATTERN_STEPS_PER_BYTE;
	decoder_fail(run, decoder_text_replace_pattern(&step->pattern, &run->matcher, token, length,
				  step->text.bytes, step->text.length, text));
	decoder_pass_bytes(run, index + 1, text, true);
}

/* A string within a token that comes in parts: what may be its beginning is kept. */
static void decoder_replace_part(
	struct decoder_run *run, unsigned index, const char *part, size_t length, bool last)
{
	const struct decoder_step *step = &run->decoder->steps[index];
	struct decoder_state *state = &run->states[index];
	struct bytes *text = &state->scratch[0], *held = &state->held;

	bytes_add(held, part, length);
	decoder_fail(run, held->rc);
	bytes_clear(text);
	if (held->rc == 0 && held->length > 0) {
		size_t done = decoder_text_replace(held->data, held->length, step->pattern.literal,
			step->pattern.length, step->text.bytes, step->text.length, text);
		size_t rest = held->length - done;
		size_t kept = last ? 0
				   : decoder_text_overlap(held->data + done, rest,
					     step->pattern.literal, step->pattern.length);

		bytes_add(text, held->data + done, rest - kept);
		memmove(held->data, held->data + held->length - kept, kept);
		held->length = kept;
	}
	decoder_pass_bytes(run, index + 1, text, last);
}

/* ---- stripping ---- */

static bool decoder_is_content(const struct decoder_step *step, const char *text, size_t length)
{
	return length >= step->text.length &&
	       memcmp(text, step->text.bytes, step->text.length) == 0;
}

/* Strip content characters at the start of a token and, held back until it ends, at its end. */
static void decoder_strip(
	struct decoder_run *run, unsigned index, const char *part, size_t length, bool last)
{
	const struct decoder_step *step = &run->decoder->steps[index];
	struct decoder_state *state = &run->states[index];
	struct bytes *held = &state->held, *text = &state->scratch[0];
	size_t size = step->text.length, n_held = 0;

	if (!state->started) {
		state->started = true;
		state->is_stripping = true;
		state->n_start = 0;
	}
	while (state->is_stripping && length > 0) {
		if (state->n_start == step->start || !decoder_is_content(step, part, length)) {
			state->is_stripping = false;
			break;
		}
		state->n_start++;
		part += size;
		length -= size;
	}
	bytes_clear(text);
	bytes_add(text, held->data, held->length);
	bytes_add(text, part, length);
	while (n_held < step->stop && text->length >= (n_held + 1) * size &&
		decoder_is_content(step, text->data + text->length - (n_held + 1) * size, size))
		n_held++;
	bytes_clear(held);
	if (text->rc == 0) {
		text->length -= n_held * size;
		for (size_t i = 0; i < n_held && !last; i++)
			bytes_add(held, step->text.bytes, size);
	}
	decoder_fail(run, held->rc);
	if (last)
		state->started = false;
	decoder_pass_bytes(run, index + 1, text, last);
}

/* ---- words ---- */

static void decoder_metaspace(
	struct decoder_run *run, unsigned index, const char *token, size_t length)
{
	const struct decoder_step *step = &run->decoder->steps[index];
	struct decoder_state *state = &run->states[index];
	struct bytes *text = &state->scratch[0];
	size_t n_space = !state->started && step->prepends ? 0 : 1;

	state->started = true;
	bytes_clear(text);
	size_t done = decoder_text_replace(
		token, length, step->text.bytes, step->text.length, " ", n_space, text);
	bytes_add(text, token + done, length - done);
	decoder_pass_bytes(run, index + 1, text, true);
}

static void decoder_wordpiece(
	struct decoder_run *run, unsigned index, const char *token, size_t length)
{
	const struct decoder_step *step = &run->decoder->steps[index];
	struct decoder_state *state = &run->states[index];
	struct bytes *text = &state->scratch[0];

	bytes_clear(text);
	if (state->started && decoder_is_content(step, token, length)) {
		token += step->text.length;
		length -= step->text.length;
	} else if (state->started) {
		bytes_add(text, " ", 1);
	}
	state->started = true;
	bytes_add(text, token, length);
	if (step->cleanup)
		decoder_text_clean(text, &state->scratch[1]);
	decoder_pass_bytes(run, index + 1, text, true);
}

/* The token that is kept: its suffixes are spaces if another token follows. */
static void decoder_flush_bpe(struct decoder_run *run, unsigned index, bool at_end)
{
	const struct decoder_step *step = &run->decoder->steps[index];
	struct decoder_state *state = &run->states[index];
	struct bytes *held = &state->held, *text = &state->scratch[0];

	if (!state->started)
		return;
	bytes_clear(text);
	size_t done = decoder_text_replace(held->data ? held->data : "", held->length,
		step->text.bytes, step->text.length, " ", at_end ? 0 : 1, text);
	if (held->length > done)
		bytes_add(text, held->data + done, held->length - done);
	decoder_fail(run, held->rc);
	bytes_clear(held);
	decoder_pass_bytes(run, index + 1, text, true);
}

static void decoder_bpe(struct decoder_run *run, unsigned index, const char *token, size_t length)
{
	const struct decoder_step *step = &run->decoder->steps[index];
	struct decoder_state *state = &run->states[index];
	size_t certain = 0;

	decoder_flush_bpe(run, index, false);
	state->started = true;
	/* Only the last step may pass on a part of a token. */
	if (index + 1 == run->decoder->n) {
		const char *suffix = memmem(token, length, step->text.bytes, step->text.length);

		certain = suffix ? (size_t)(suffix - token) : length;
		decoder_pass(run, index + 1, token, certain, false);
	}
	bytes_add(&state->held, token + certain, length - certain);
}

static void decoder_ctc(struct decoder_run *run, unsigned index, const char *token, size_t length)
{
	const struct decoder_step *step = &run->decoder->steps[index];
	struct decoder_state *state = &run->states[index];
	struct bytes *held = &state->held, *text = &state->scratch[0];

	if (state->started && held->length == length && memcmp(held->data, token, length) == 0)
		return;
	state->started = true;
	bytes_clear(held);
	bytes_add(held, token, length);
	decoder_fail(run, held->rc);
	bytes_clear(text);
	bytes_add(text, token, length);
	decoder_text_change(text, &state->scratch[1], step->text.bytes, step->text.length, "", 0);
	if (step->cleanup) {
		decoder_text_clean(text, &state->scratch[1]);
		decoder_text_change(text, &state->scratch[1], step->delimiter.bytes,
			step->delimiter.length, " ", 1);
	}
	if (text->length > 0)
		decoder_pass_bytes(run, index + 1, text, true);
}

static void decoder_join(struct decoder_run *run, unsigned index, const char *token, size_t length)
{
	struct decoder_state *state = &run->states[index];

	if (state->started)
		decoder_pass(run, index + 1, " ", 1, false);
	state->started = true;
	decoder_pass(run, index + 1, token, length, true);
}

/* ---- the run ---- */

/* Steps that take a token in parts. */
static bool decoder_takes_parts(const struct decoder_step *step)
{
	return step->kind == DECODER_FUSE || step->kind == DECODER_STRIP ||
	       (step->kind == DECODER_REPLACE && step->pattern.literal);
}

static void decoder_step_token(
	struct decoder_run *run, unsigned index, const char *token, size_t length)
{
	switch (run->decoder->steps[index].kind) {
	case DECODER_JOIN:
		decoder_join(run, index, token, length);
		break;
	case DECODER_BYTE_LEVEL:
		decoder_add_bytes(&run->states[index].held, token, length);
		decoder_pass_characters(run, index, false);
		break;
	case DECODER_BYTE_FALLBACK:
		decoder_byte_fallback(run, index, token, length);
		break;
	case DECODER_FUSE:
		decoder_pass(run, index + 1, token, length, false);
		break;
	case DECODER_METASPACE:
		decoder_metaspace(run, index, token, length);
		break;
	case DECODER_REPLACE:
		decoder_replace_token(run, index, token, length);
		break;
	case DECODER_STRIP:
		decoder_strip(run, index, token, length, true);
		break;
	case DECODER_WORDPIECE:
		decoder_wordpiece(run, index, token, length);
		break;
	case DECODER_BPE:
		decoder_bpe(run, index, token, length);
		break;
	case DECODER_CTC:
		decoder_ctc(run, index, token, length);
		break;
	}
}

static void decoder_step_part(
	struct decoder_run *run, unsigned index, const char *part, size_t length, bool last)
{
	const struct decoder_step *step = &run->decoder->steps[index];

	if (step->kind == DECODER_FUSE) {
		/* It ends with the run, as what came before does. */
		decoder_pass(run, index + 1, part, length, false);
	} else if (step->kind == DECODER_STRIP) {
		decoder_strip(run, index, part, length, last);
	} else {
		decoder_replace_part(run, index, part, length, last);
	}
}

static void decoder_pass(
	struct decoder_run *run, unsigned index, const char *text, size_t length, bool last)
{
	if (run->out->rc < 0)
		return;
	if (index == run->decoder->n) {
		bytes_add(run->out, text, length);
		return;
	}
	const struct decoder_step *step = &run->decoder->steps[index];
	if (!step->is_fused) {
		assert(last);
		decoder_step_token(run, index, text, length);
	} else if (decoder_takes_parts(step)) {
		decoder_step_part(run, index, text, length, last);
	} else {
		struct bytes *whole = &run->states[index].whole;

		bytes_add(whole, text, length);
		decoder_fail(run, whole->rc);
		if (last)
			decoder_step_token(
				run, index, whole->data ? whole->data : "", whole->length);
	}
}

/* No token follows for this step. */
static void decoder_step_end(struct decoder_run *run, unsigned index)
{
	switch (run->decoder->steps[index].kind) {
	case DECODER_BYTE_LEVEL:
		decoder_pass_characters(run, index, true);
		break;
	case DECODER_BYTE_FALLBACK:
		decoder_flush_fallback(run, index);
		break;
	case DECODER_FUSE:
		decoder_pass(run, index + 1, "", 0, true);
		break;
	case DECODER_BPE:
		decoder_flush_bpe(run, index, true);
		break;
	default:
		break;
	}
}

/* What a step keeps of the tokens so far goes, but for what only decides about the next one. */
static void decoder_step_forget(struct decoder_run *run, unsigned index)
{
	const struct decoder_step *step = &run->decoder->steps[index];
	struct decoder_state *state = &run->states[index];
	const char *suffix;

	switch (step->kind) {
	case DECODER_BYTE_FALLBACK:
		/* Steps behind it have to know that there was text. */
		decoder_flush_fallback(run, index);
		break;
	case DECODER_BPE:
		suffix = state->held.length > 0 ? memmem(state->held.data, state->held.length,
							  step->text.bytes, step->text.length)
						: NULL;
		state->held.length = suffix ? step->text.length : 0;
		if (suffix)
			memmove(state->held.data, suffix, step->text.length);
		break;
	case DECODER_CTC:
		break;
	default:
		bytes_clear(&state->held);
		break;
	}
	bytes_clear(&state->whole);
}

void decoder_run_init(struct decoder_run *run, const struct decoder *decoder, struct bytes *out)
{
	*run = (struct decoder_run){.decoder = decoder, .out = out};
	matcher_init(&run->matcher, 0);
}

void decoder_run_deinit(struct decoder_run *run)
{
	for (unsigned i = 0; i < run->decoder->n; i++) {
		bytes_deinit(&run->states[i].held);
		bytes_deinit(&run->states[i].whole);
		bytes_deinit(&run->states[i].scratch[0]);
		bytes_deinit(&run->states[i].scratch[1]);
	}
	matcher_deinit(&run->matcher);
}

int decoder_run_push(struct decoder_run *run, const char *token, size_t length)
{
	decoder_pass(run, 0, token, length, true);
	return run->out->rc;
}

int decoder_run_end(struct decoder_run *run)
{
	for (unsigned i = 0; i < run->decoder->n && run->out->rc == 0; i++)
		decoder_step_end(run, i);
	return run->out->rc;
}

int decoder_run_forget(struct decoder_run *run)
{
	for (unsigned i = 0; i < run->decoder->n && run->out->rc == 0; i++)
		decoder_step_forget(run, i);
	run->out->length = 0;
	return run->out->rc;
}
