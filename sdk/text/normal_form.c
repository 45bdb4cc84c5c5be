/* SPDX-License-Identifier: MIT */

/*
 * Most text is in every form already, so a text is searched for characters that may change, and
 * only runs of these are decomposed, put in order, and composed again. utf8proc orders marks by
 * exchanging neighbours, which takes quadratic time for a long run of marks: they are ordered here.
 */

#include "sdk/text/normal_form.h"

#include <assert.h>
#include <stdlib.h>

#include <utf8proc.h>

#include "sdk/text/unichar.h"
#include "sdk/text/utf8.h"

#define FORM_RUN 512u      /* characters of a run, if there is a boundary behind them */
#define FORM_EXPANSION 32u /* no character decomposes into more; utf8proc is asked for 18 at most  \
			    */
#define FORM_INSERTION_MAX 24u

struct form {
	bool composed, compatible;
	unsigned char least;   /* the least first byte of a character that may change */
	struct ids characters; /* of a run */
	struct bytes text;     /* the same in UTF-8 */
};

/* ---- order of marks ---- */

static void form_insert(int32_t *marks, size_t n)
{
	for (size_t i = 1; i < n; i++) {
		int32_t mark = marks[i];
		uint8_t class = unichar_combining_class((uint32_t)mark);
		size_t at = i;

		for (; at > 0 && unichar_combining_class((uint32_t)marks[at - 1]) > class; at--)
			marks[at] = marks[at - 1];
		marks[at] = mark;
	}
}

/* By counting. 0 or NO_MEMORY. */
static int form_count(int32_t *marks, size_t n)
{
	size_t starts[257] = {0};
	int32_t *sorted = malloc(n * sizeof(*sorted));

	if (!sorted)
		return MIMEO_E_NO_MEMORY;
	for (size_t i = 0; i < n; i++)
		starts[unichar_combining_class((uint32_t)marks[i]) + 1]++;
	for (size_t i = 1; i < 257; i++)
		starts[i] += starts[i - 1];
	for (size_t i = 0; i < n; i++)
		sorted[starts[unichar_combining_class((uint32_t)marks[i])]++] = marks[i];
	memcpy(marks, sorted, n * sizeof(*marks));
	free(sorted);
	return 0;
}

/* Sort each run of marks by class; marks of the same class stay in order. */
static void form_order(struct ids *characters)
{
	for (size_t i = 0; i < characters->n; i++) {
		size_t end = i;

		while (end < characters->n &&
			unichar_combining_class((uint32_t)characters->data[end]) > 0)
			end++;
		if (end - i > FORM_INSERTION_MAX) {
			int rc = form_count(characters->data + i, end - i);
			if (rc < 0)
				characters->rc = rc;
		} else if (end - i > 1) {
			form_insert(characters->data + i, end - i);
		}
		i = end;
	}
}

/* ---- runs ---- */

static void form_decompose(struct form *form, uint32_t c)
{
	struct ids *to = &form->characters;
	int class = 0;

	if (ids_reserve(to, FORM_EXPANSION) < 0)
		return;
	if (!unichar_is_decomposed(c, form->compatible)) {
		to->data[to->n++] = (int32_t)c;
		return;
	}
	utf8proc_ssize_t n =
		utf8proc_decompose_char((utf8proc_int32_t)c, to->data + to->n, FORM_EXPANSION,
			UTF8PROC_DECOMPOSE | (form->compatible ? UTF8PROC_COMPAT : 0), &class);
	assert(n > 0 && n <= (utf8proc_ssize_t)FORM_EXPANSION);
	to->n += (size_t)n;
}

/* A composed character, or what it was composed of if normalization forms do not know it. */
static void form_add_composed(struct form *form, int32_t c)
{
	utf8proc_int32_t parts[FORM_EXPANSION] = {c};
	utf8proc_ssize_t n = 1;
	int class = 0;

	if (!unichar_is_decomposed((uint32_t)c, false))
		n = utf8proc_decompose_char(c, parts, FORM_EXPANSION, UTF8PROC_DECOMPOSE, &class);
	for (utf8proc_ssize_t i = 0; i < n; i++)
		utf8_add(&form->text, (uint32_t)parts[i]);
}

/* Characters of which only the first one may be a barrier. */
static void form_write_part(struct form *form, int32_t *characters, size_t n)
{
	int32_t first = n > 0 ? characters[0] : 0;
	size_t left = n;

	if (form->composed && n > 0)
		left = (size_t)utf8proc_normalize_utf32(
			characters, (utf8proc_ssize_t)n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
	assert(left <= n);
	for (size_t i = 0; i < left; i++) {
		if (form->composed && (i > 0 || characters[i] != first))
			form_add_composed(form, characters[i]);
		else
			utf8_add(&form->text, (uint32_t)characters[i]);
	}
}

/*
 * Nothing is composed with what is before these: marks that count as no marks; characters whose decomposition is not known;
 * and U+11A7, which utf8proc takes for a final consonant of Hangul and drops.
 */
static bool form_is_barrier(uint32_t c)
{
	return unichar_is_unordered(c) || !unichar_is_decomposed(c, false) || c == 0x11a7;
}

static void form_write(struct form *form)
{
	struct ids *characters = &form->characters;
	size_t start = 0;

	form_order(characters);
	for (size_t i = 0; i < characters->n && form->composed; i++) {
		if (!form_is_barrier((uint32_t)characters->data[i]))
			continue;
		form_write_part(form, characters->data + start, i - start);
		start = i;
	}
	form_write_part(form, characters->data + start, characters->n - start);
	if (characters->rc < 0)
		form->text.rc = characters->rc;
}

/* The bytes of the input from `at` become what form->text has: only what differs is replaced. */
static void form_replace(struct edit *edit, const struct bytes *text, size_t n)
{
	const char *old = edit->in.bytes + edit->done;
	size_t same = 0, same_end = 0, most = n < text->length ? n : text->length;

	if (n == text->length && memcmp(old, text->data, n) == 0) {
		edit_keep(edit, n);
		return;
	}
	while (same < most && old[same] == text->data[same])
		same++;
	while (same > 0 && ((same < n && utf8_is_continuation(old[same])) ||
				   (same < text->length && utf8_is_continuation(text->data[same]))))
		same--;
	while (same_end < most - same &&
		old[n - 1 - same_end] == text->data[text->length - 1 - same_end])
		same_end++;
	while (same_end > 0 && utf8_is_continuation(old[n - same_end]))
		same_end--;
	edit_keep(edit, same);
	edit_replace(edit, n - same - same_end, text->data + same, text->length - same - same_end);
	edit_keep(edit, same_end);
}

/* The characters from edit->done on, up to one that does not change and with which nothing
 * combines. */
static void form_run(struct form *form, struct edit *edit)
{
	const char *bytes = edit->in.bytes;
	size_t at = edit->done;
	unsigned size;

	form->characters.n = 0;
	form->characters.rc = 0;
	bytes_clear(&form->text);
	for (size_t n = 0; at < edit->in.length; n++, at += size) {
		uint32_t c = utf8_decode(bytes + at, &size);

		if (n > 0 && (unsigned char)bytes[at] < form->least)
			break;
		if (n >= FORM_RUN && unichar_is_boundary(c))
			break;
		form_decompose(form, c);
	}
	form_write(form);
	if (form->text.rc < 0) {
		/* edit_finish reports it */
		edit_replace(edit, 0, "", 0);
		edit->out->rc = form->text.rc;
		edit->done = edit->in.length;
		return;
	}
	form_replace(edit, &form->text, at - edit->done);
}

/* Keep what does not change; the character before the one that may change stays, because it may
 * combine with it. */
static void form_skip(const struct form *form, struct edit *edit)
{
	const char *bytes = edit->in.bytes;
	size_t length = edit->in.length, at = edit->done;

	while (at < length && (unsigned char)bytes[at] < form->least) {
		uint64_t eight;

		if (length - at >= sizeof(eight)) {
			memcpy(&eight, bytes + at, sizeof(eight));
			if ((eight & 0x8080808080808080u) == 0) {
				at += sizeof(eight);
				continue;
			}
		}
		at += utf8_size(bytes[at]);
	}
	if (at > edit->done && at < length) {
		do
			at--;
		while (utf8_is_continuation(bytes[at]));
	}
	edit_keep(edit, at - edit->done);
}

void normal_form(struct edit *edit, bool composed, bool compatible)
{
	struct form form = {
		.composed = composed,
		.compatible = compatible,
		/* U+00A0 is the first with a compatible decomposition, U+00C0 with a canonical one;
		 * no character below U+0300 changes when it is composed. */
		.least = compatible ? 0xc2
			 : composed ? 0xcc
				    : 0xc3,
	};

	while (edit->done < edit->in.length) {
		form_skip(&form, edit);
		if (edit->done < edit->in.length)
			form_run(&form, edit);
	}
	ids_deinit(&form.characters);
	bytes_deinit(&form.text);
}
