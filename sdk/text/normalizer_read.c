/* SPDX-License-Identifier: MIT */

/* The normalizer's part of tokenizer.json. */

#include <stdlib.h>
#include <string.h>

#include "sdk/text/normalizer.h"

#define NORMALIZER_DEPTH_MAX 8u /* of sequences within sequences */

static struct normalizer_step *normalizer_add(
	struct normalizer *normalizer, const struct spec *spec, enum normalizer_kind kind)
{
	if (normalizer->n == NORMALIZER_STEPS_MAX) {
		spec_fail(spec, MIMEO_E_UNSUPPORTED, "more than %u normalizers",
			NORMALIZER_STEPS_MAX);
		return NULL;
	}
	struct normalizer_step *step = &normalizer->steps[normalizer->n++];
	*step = (struct normalizer_step){.kind = kind};
	return step;
}

static void normalizer_read_text(
	struct normalizer_step *step, const struct spec *spec, const char *key)
{
	size_t length;
	const char *text = spec_string(spec, key, &length);

	if (length > NORMALIZER_TEXT_MAX) {
		spec_fail(spec, MIMEO_E_INVALID, "%s: %zu bytes; the limit is %u", key, length,
			NORMALIZER_TEXT_MAX);
		return;
	}
	step->text = malloc(length + 1);
	if (!step->text) {
		spec_no_memory(spec);
		return;
	}
	memcpy(step->text, text, length);
	step->text_length = length;
}

static void normalizer_read_bert(struct normalizer *normalizer, const struct spec *spec)
{
	static const char *const known[] = {
		"clean_text", "handle_chinese_chars", "strip_accents", "lowercase", NULL};
	bool lowercase = spec_bool(spec, "lowercase", true);

	spec_allow(spec, known);
	if (spec_bool(spec, "clean_text", true))
		normalizer_add(normalizer, spec, NORMALIZER_BERT_CLEAN);
	if (spec_bool(spec, "handle_chinese_chars", true))
		normalizer_add(normalizer, spec, NORMALIZER_BERT_CJK);
	if (spec_bool(spec, "strip_accents", lowercase)) {
		normalizer_add(normalizer, spec, NORMALIZER_NFD);
		normalizer_add(normalizer, spec, NORMALIZER_BERT_ACCENTS);
	}
	if (lowercase)
		normalizer_add(normalizer, spec, NORMALIZER_LOWERCASE);
}

static void normalizer_read_strip(struct normalizer *normalizer, const struct spec *spec)
{
	static const char *const known[] = {"strip_left", "strip_right", NULL};
	struct normalizer_step *step = normalizer_add(normalizer, spec, NORMALIZER_STRIP);

	spec_allow(spec, known);
	if (!step)
		return;
	step->left = spec_bool(spec, "strip_left", true);
	step->right = spec_bool(spec, "strip_right", true);
}

static void normalizer_read_replace(struct normalizer *normalizer, const struct spec *spec)
{
	static const char *const known[] = {"pattern", "content", NULL};
	struct normalizer_step *step = normalizer_add(normalizer, spec, NORMALIZER_REPLACE);

	spec_allow(spec, known);
	if (!step)
		return;
	pattern_init(&step->pattern, spec, "pattern");
	normalizer_read_text(step, spec, "content");
}

static void normalizer_read_prepend(struct normalizer *normalizer, const struct spec *spec)
{
	static const char *const known[] = {"prepend", NULL};
	struct normalizer_step *step = normalizer_add(normalizer, spec, NORMALIZER_PREPEND);

	spec_allow(spec, known);
	if (step)
		normalizer_read_text(step, spec, "prepend");
}

static void normalizer_read_precompiled(struct normalizer *normalizer, const struct spec *spec)
{
	static const char *const known[] = {"precompiled_charsmap", NULL};
	size_t length;
	const char *map = spec_string_or_null(spec, "precompiled_charsmap", &length), *reason;

	spec_allow(spec, known);
	/* Without a map nothing changes. */
	if (!map || length == 0)
		return;
	struct normalizer_step *step = normalizer_add(normalizer, spec, NORMALIZER_PRECOMPILED);
	if (!step)
		return;
	int rc = charsmap_init(&step->charsmap, map, length, &reason);
	if (rc == MIMEO_E_NO_MEMORY)
		spec_no_memory(spec);
	else if (rc < 0)
		spec_fail(spec, rc, "precompiled_charsmap: %s", reason);
}

struct normalizer_simple {
	const char *type;
	enum normalizer_kind kind;
};

static const struct normalizer_simple normalizer_simple[] = {
	{"NFC", NORMALIZER_NFC},
	{"NFD", NORMALIZER_NFD},
	{"NFKC", NORMALIZER_NFKC},
	{"NFKD", NORMALIZER_NFKD},
	{"Lowercase", NORMALIZER_LOWERCASE},
	{"StripAccents", NORMALIZER_STRIP_ACCENTS},
	{"Nmt", NORMALIZER_NMT},
	{"ByteLevel", NORMALIZER_BYTE_LEVEL},
};

static bool normalizer_read_simple(
	struct normalizer *normalizer, const struct spec *spec, const char *type)
{
	static const char *const known[] = {NULL};

	for (size_t i = 0; i < sizeof(normalizer_simple) / sizeof(normalizer_simple[0]); i++) {
		if (strcmp(type, normalizer_simple[i].type) != 0)
			continue;
		spec_allow(spec, known);
		normalizer_add(normalizer, spec, normalizer_simple[i].kind);
		return true;
	}
	return false;
}

static void normalizer_read(struct normalizer *normalizer, const struct spec *spec, unsigned depth)
{
	const char *type = spec_type(spec);
	struct spec element;

	if (depth > NORMALIZER_DEPTH_MAX) {
		spec_fail(spec, MIMEO_E_UNSUPPORTED, "sequences are nested too deeply");
	} else if (strcmp(type, "Sequence") == 0) {
		size_t n = spec_count(spec, "normalizers", NORMALIZER_STEPS_MAX);

		for (size_t i = 0; i < n && spec_element(spec, "normalizers", i, &element); i++)
			normalizer_read(normalizer, &element, depth + 1);
	} else if (strcmp(type, "BertNormalizer") == 0 || strcmp(type, "Bert") == 0) {
		normalizer_read_bert(normalizer, spec);
	} else if (strcmp(type, "Strip") == 0 || strcmp(type, "StripNormalizer") == 0) {
		normalizer_read_strip(normalizer, spec);
	} else if (strcmp(type, "Replace") == 0) {
		normalizer_read_replace(normalizer, spec);
	} else if (strcmp(type, "Prepend") == 0) {
		normalizer_read_prepend(normalizer, spec);
	} else if (strcmp(type, "Precompiled") == 0) {
		normalizer_read_precompiled(normalizer, spec);
	} else if (!normalizer_read_simple(normalizer, spec, type)) {
		spec_refuse(spec, "type");
	}
}

bool normalizer_init(struct normalizer *normalizer, const struct spec *root)
{
	struct spec spec;

	*normalizer = (struct normalizer){0};
	if (!spec_field(root, "normalizer"))
		return true;
	if (spec_member(root, "normalizer", &spec))
		normalizer_read(normalizer, &spec, 0);
	return root->file->rc == 0;
}

void normalizer_deinit(struct normalizer *normalizer)
{
	for (unsigned i = 0; i < normalizer->n; i++) {
		pattern_deinit(&normalizer->steps[i].pattern);
		charsmap_deinit(&normalizer->steps[i].charsmap);
		free(normalizer->steps[i].text);
	}
	*normalizer = (struct normalizer){0};
}
