/* SPDX-License-Identifier: MIT */
#include "sdk/text/normalizer.h"

#include <assert.h>
#include <stdlib.h>

#include "sdk/text/byte_level.h"
#include "sdk/text/normal_form.h"
#include "sdk/text/unichar.h"
#include "sdk/text/utf8.h"

/* ---- steps ---- */

/* Drop the characters that `is_dropped` holds for. */
static void normalizer_filter(struct edit *edit, bool (*is_dropped)(uint32_t))
{
	unsigned size;

	while (edit->done < edit->in.length) {
		if (is_dropped(utf8_decode(edit->in.bytes + edit->done, &size)))
			edit_drop(edit, size);
		else
			edit_keep(edit, size);
	}
}

static void normalizer_lowercase(struct edit *edit)
{
	char text[UTF8_MAX];
	unsigned size;

	while (edit->done < edit->in.length) {
		uint32_t c = utf8_decode(edit->in.bytes + edit->done, &size),
			 lower = unichar_lower(c);

		if (c == 0x130)
			edit_replace(edit, size, "i\xcc\x87", 3);
		else if (lower != c)
			edit_replace(edit, size, text, utf8_encode(text, lower));
		else
			edit_keep(edit, size);
	}
}

static void normalizer_strip(struct edit *edit, bool left, bool right)
{
	struct span in = edit->in;
	size_t start = 0, end = in.length;
	unsigned size;

	while (left && start < end && unichar_is_white_space(utf8_decode(in.bytes + start, &size)))
		start += size;
	while (right && end > start) {
		size_t before = end - 1;

		while (utf8_is_continuation(in.bytes[before]))
			before--;
		if (!unichar_is_white_space(utf8_decode(in.bytes + before, &size)))
			break;
		end = before;
	}
	if (start > 0)
		edit_drop(edit, start);
	edit_keep(edit, end - start);
	if (end < in.length)
		edit_drop(edit, in.length - end);
}

static void normalizer_bert_clean(struct edit *edit)
{
	unsigned size;

	while (edit->done < edit->in.length) {
		uint32_t c = utf8_decode(edit->in.bytes + edit->done, &size);

		if (unichar_is_control(c))
			edit_drop(edit, size);
		else if (c != ' ' && unichar_is_white_space(c))
			edit_replace(edit, size, " ", 1);
		else
			edit_keep(edit, size);
	}
}

static void normalizer_bert_cjk(struct edit *edit)
{
	char text[UTF8_MAX + 2] = " ";
	unsigned size;

	while (edit->done < edit->in.length) {
		uint32_t c = utf8_decode(edit->in.bytes + edit->done, &size);

		if (c < 0x3400 || !unichar_is_cjk(c)) {
			edit_keep(edit, size);
			continue;
		}
		memcpy(text + 1, edit->in.bytes + edit->done, size);
		text[1 + size] = ' ';
		edit_replace(edit, size, text, size + 2);
	}
}

/* Nmt's controls go, and what it takes for white space becomes a space. */
static void normalizer_nmt(struct edit *edit)
{
	unsigned size;

	while (edit->done < edit->in.length) {
		uint32_t c = utf8_decode(edit->in.bytes + edit->done, &size);

		if ((c >= 0x1 && c <= 0x8) || c == 0xb || (c >= 0xe && c <= 0x1f) || c == 0x7f ||
			c == 0x8f || c == 0x9f)
			edit_drop(edit, size);
		else if (c == 0x9 || c == 0xa || c == 0xc || c == 0xd || c == 0x1680 ||
			 (c >= 0x200b && c <= 0x200f) || c == 0x2028 || c == 0x2029 ||
			 c == 0x2581 || c == 0xfeff || c == 0xfffd)
			edit_replace(edit, size, " ", 1);
		else
			edit_keep(edit, size);
	}
}

static void normalizer_byte_level(struct edit *edit)
{
	char text[UTF8_MAX];

	while (edit->done < edit->in.length) {
		uint8_t byte = (uint8_t)edit->in.bytes[edit->done];
		uint32_t c = byte_level_character(byte);

		if (c == byte && c < 0x80)
			edit_keep(edit, 1);
		else
			edit_replace(edit, 1, text, utf8_encode(text, c));
	}
}

static int normalizer_replace(
	const struct normalizer_step *step, struct matcher *matcher, struct edit *edit)
{
	struct pattern_search search;
	size_t start, end;
	int rc;

	if (edit->in.length == 0)
		return 0;
	pattern_search_init(&search, &step->pattern, matcher, edit->in.bytes, edit->in.length);
	while ((rc = pattern_search_next(&search, &start, &end)) > 0) {
		edit_keep(edit, start - edit->done);
		/* The text is aligned with the last character that it replaces. */
		if (start == 0 && (step->text_length == 0 || end > utf8_size(edit->in.bytes[0])))
			edit->at_origin = false;
		edit_replace(edit, end - start, step->text, step->text_length);
		if (edit->out->rc < 0)
			return edit->out->rc;
	}
	return rc;
}

static void normalizer_map_part(const struct charsmap *map, struct edit *edit, size_t size)
{
	size_t length;
	const char *text = charsmap_find(map, edit->in.bytes + edit->done, size, &length);

	if (text)
		edit_replace(edit, size, text, length);
	else
		edit_keep(edit, size);
}

/* `tokenizers` maps short grapheme clusters as a whole if they begin with a key. */
static void normalizer_precompiled(const struct charsmap *map, struct edit *edit)
{
	size_t length;

	while (edit->done < edit->in.length && edit->out->rc == 0) {
		const char *at = edit->in.bytes + edit->done;
		size_t end = edit->done + charsmap_cluster(at, edit->in.length - edit->done);
		size_t size = end - edit->done;

		if (size < CHARSMAP_CLUSTER_MAX && charsmap_find(map, at, size, &length)) {
			normalizer_map_part(map, edit, size);
			continue;
		}
		while (edit->done < end && edit->out->rc == 0)
			normalizer_map_part(map, edit, utf8_size(edit->in.bytes[edit->done]));
	}
}

static int normalizer_step_run(
	const struct normalizer_step *step, struct matcher *matcher, struct edit *edit)
{
	switch (step->kind) {
	case NORMALIZER_NFC:
	case NORMALIZER_NFKC:
		normal_form(edit, true, step->kind == NORMALIZER_NFKC);
		break;
	case NORMALIZER_NFD:
	case NORMALIZER_NFKD:
		normal_form(edit, false, step->kind == NORMALIZER_NFKD);
		break;
	case NORMALIZER_LOWERCASE:
		normalizer_lowercase(edit);
		break;
	case NORMALIZER_STRIP:
		normalizer_strip(edit, step->left, step->right);
		break;
	case NORMALIZER_STRIP_ACCENTS:
		normalizer_filter(edit, unichar_is_mark);
		break;
	case NORMALIZER_BERT_CLEAN:
		normalizer_bert_clean(edit);
		break;
	case NORMALIZER_BERT_CJK:
		normalizer_bert_cjk(edit);
		break;
	case NORMALIZER_BERT_ACCENTS:
		normalizer_filter(edit, unichar_is_accent);
		break;
	case NORMALIZER_REPLACE:
		return normalizer_replace(step, matcher, edit);
	case NORMALIZER_PREPEND:
		if (edit->in.length > 0)
			edit_replace(edit, 0, step->text, step->text_length);
		break;
	case NORMALIZER_PRECOMPILED:
		normalizer_precompiled(&step->charsmap, edit);
		break;
	case NORMALIZER_NMT:
		normalizer_nmt(edit);
		break;
	case NORMALIZER_BYTE_LEVEL:
		normalizer_byte_level(edit);
		break;
	}
	return 0;
}

int normalizer_run(const struct normalizer *normalizer, struct normalizer_work *work,
	struct span in, struct span *ret)
{
	unsigned target = 0;

	for (unsigned i = 0; i < normalizer->n; i++) {
		struct edit edit;

		edit_init(&edit, in, &work->text[target], &work->foreign[target]);
		int rc = normalizer_step_run(&normalizer->steps[i], work->matcher, &edit);
		assert(rc <= 0);
		if (rc == 0)
			rc = edit_finish(&edit, &in);
		if (rc < 0)
			return rc;
		/* The next step must not write to what it reads. */
		if (edit.changed)
			target = !target;
	}
	*ret = in;
	return 0;
}

void normalizer_work_deinit(struct normalizer_work *work)
{
	for (unsigned i = 0; i < 2; i++) {
		bytes_deinit(&work->text[i]);
		bytes_deinit(&work->foreign[i]);
	}
}
