/* SPDX-License-Identifier: MIT */
#include "sdk/text/postprocessor.h"

#include <stdlib.h>
#include <string.h>

#include "sdk/text/vocabulary.h"

#define POSTPROCESSOR_DEPTH_MAX 8u
#define POSTPROCESSOR_STEPS_MAX 32u

/* ---- reading ---- */

static struct postprocessor_piece *postprocessor_add(
	struct postprocessor *postprocessor, const struct spec *spec, bool is_text, size_t n)
{
	if (postprocessor->n == POSTPROCESSOR_PIECES_MAX) {
		spec_fail(
			spec, MIMEO_E_UNSUPPORTED, "more than %u pieces", POSTPROCESSOR_PIECES_MAX);
		return NULL;
	}
	struct postprocessor_piece *piece = &postprocessor->pieces[postprocessor->n];
	*piece = (struct postprocessor_piece){.is_text = is_text};
	if (!is_text) {
		piece->ids = calloc(n + 1, sizeof(*piece->ids));
		piece->n = n;
		if (!piece->ids) {
			spec_no_memory(spec);
			return NULL;
		}
	}
	postprocessor->n++;
	return piece;
}

static int32_t postprocessor_read_id(const struct spec *spec, const char *key, const json_t *id)
{
	if (json_is_integer(id) && json_integer_value(id) >= 0 &&
		json_integer_value(id) < VOCABULARY_IDS_MAX)
		return (int32_t)json_integer_value(id);
	spec_fail(spec, MIMEO_E_INVALID, "%s has an id that is no integer from 0 to %u", key,
		VOCABULARY_IDS_MAX - 1);
	return 0;
}

/* A member of the form ["[SEP]", 102]. */
static void postprocessor_read_pair(
	struct postprocessor *postprocessor, const struct spec *spec, const char *key)
{
	const json_t *pair = spec_field(spec, key);
	struct postprocessor_piece *piece = postprocessor_add(postprocessor, spec, false, 1);

	if (json_array_size(pair) != 2)
		spec_fail(spec, MIMEO_E_INVALID, "%s is not a token and its id", key);
	else if (piece)
		piece->ids[0] = postprocessor_read_id(spec, key, json_array_get(pair, 1));
}

/* BertProcessing and RobertaProcessing, whose options concern offsets. */
static void postprocessor_read_bert(struct postprocessor *postprocessor, const struct spec *spec)
{
	static const char *const known[] = {"sep", "cls", "trim_offsets", "add_prefix_space", NULL};

	spec_allow(spec, known);
	postprocessor_read_pair(postprocessor, spec, "cls");
	postprocessor_add(postprocessor, spec, true, 0);
	postprocessor_read_pair(postprocessor, spec, "sep");
}

/* The ids of {"id": NAME} by the list special_tokens. */
static void postprocessor_read_special(
	struct postprocessor *postprocessor, const struct spec *spec, const struct spec *piece_spec)
{
	static const char *const known[] = {"id", "type_id", NULL};
	size_t length;
	const char *name = spec_string(piece_spec, "id", &length);
	const json_t *token = json_object_get(spec_field(spec, "special_tokens"), name);
	const json_t *ids = json_object_get(token, "ids");
	size_t n = json_array_size(ids);

	spec_allow(piece_spec, known);
	if (!json_is_array(ids) || n > POSTPROCESSOR_IDS_MAX) {
		spec_fail(spec, MIMEO_E_INVALID,
			"special_tokens has no list of at most %u ids for %.40s",
			POSTPROCESSOR_IDS_MAX, name);
		return;
	}
	struct postprocessor_piece *piece = postprocessor_add(postprocessor, spec, false, n);
	for (size_t i = 0; piece && i < n; i++)
		piece->ids[i] =
			postprocessor_read_id(spec, "special_tokens", json_array_get(ids, i));
}

/* The template of one text; that of pairs is not used. */
static void postprocessor_read_template(
	struct postprocessor *postprocessor, const struct spec *spec)
{
	static const char *const known[] = {"single", "pair", "special_tokens", NULL};
	static const char *const known_piece[] = {"Sequence", "SpecialToken", NULL};
	size_t n = spec_count(spec, "single", POSTPROCESSOR_PIECES_MAX), length;
	struct spec element, piece;

	spec_allow(spec, known);
	for (size_t i = 0; i < n && spec_element(spec, "single", i, &element); i++) {
		spec_allow(&element, known_piece);
		if (spec_field(&element, "SpecialToken")) {
			if (spec_member(&element, "SpecialToken", &piece))
				postprocessor_read_special(postprocessor, spec, &piece);
		} else if (spec_member(&element, "Sequence", &piece)) {
			if (strcmp(spec_string(&piece, "id", &length), "A") != 0)
				spec_refuse(&piece, "id");
			postprocessor_add(postprocessor, spec, true, 0);
		}
	}
}

static void postprocessor_read(
	struct postprocessor *postprocessor, const struct spec *spec, unsigned depth)
{
	static const char *const known_byte_level[] = {
		"add_prefix_space", "trim_offsets", "use_regex", NULL};
	const char *type = spec_type(spec);
	bool adds = strcmp(type, "TemplateProcessing") == 0 ||
		    strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0;
	struct spec element;

	if (depth > POSTPROCESSOR_DEPTH_MAX) {
		spec_fail(spec, MIMEO_E_UNSUPPORTED, "sequences are nested too deeply");
	} else if (strcmp(type, "Sequence") == 0) {
		size_t n = spec_count(spec, "processors", POSTPROCESSOR_STEPS_MAX);

		for (size_t i = 0; i < n && spec_element(spec, "processors", i, &element); i++)
			postprocessor_read(postprocessor, &element, depth + 1);
	} else if (strcmp(type, "ByteLevel") == 0) {
		spec_allow(spec, known_byte_level);
	} else if (adds && postprocessor->is_given) {
		spec_fail(spec, MIMEO_E_UNSUPPORTED, "two post-processors that add tokens");
	} else if (adds) {
		postprocessor->is_given = true;
		if (strcmp(type, "TemplateProcessing") == 0)
			postprocessor_read_template(postprocessor, spec);
		else
			postprocessor_read_bert(postprocessor, spec);
	} else {
		spec_refuse(spec, "type");
	}
}

bool postprocessor_init(struct postprocessor *postprocessor, const struct spec *root)
{
	struct spec spec;

	*postprocessor = (struct postprocessor){0};
	if (!spec_field(root, "post_processor"))
		return true;
	if (spec_member(root, "post_processor", &spec))
		postprocessor_read(postprocessor, &spec, 0);
	return root->file->rc == 0;
}

void postprocessor_deinit(struct postprocessor *postprocessor)
{
	for (unsigned i = 0; i < postprocessor->n; i++)
		free(postprocessor->pieces[i].ids);
	*postprocessor = (struct postprocessor){0};
}

/* ---- running ---- */

static void postprocessor_add_ids(struct ids *out, const int32_t *ids, size_t n)
{
	if (n == 0 || ids_reserve(out, n) < 0)
		return;
	memcpy(out->data + out->n, ids, n * sizeof(*ids));
	out->n += n;
}

int postprocessor_run(const struct postprocessor *postprocessor, const struct ids *text,
	bool special, struct ids *out)
{
	if (!postprocessor->is_given)
		postprocessor_add_ids(out, text->data, text->n);
	/* RobertaProcessing and BertProcessing are templates, too */
	for (unsigned i = 0; i < postprocessor->n; i++) {
		const struct postprocessor_piece *piece = &postprocessor->pieces[i];

		if (piece->is_text)
			postprocessor_add_ids(out, text->data, text->n);
		else if (special)
			postprocessor_add_ids(out, piece->ids, piece->n);
	}
	return out->rc;
}
