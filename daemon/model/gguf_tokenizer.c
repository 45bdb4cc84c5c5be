/* SPDX-License-Identifier: MIT */
#include "daemon/model/gguf_tokenizer.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/error.h"
#include "daemon/model/field.h"
#include "daemon/model/gguf_budget.h"
#include "daemon/model/gguf_pretokenizer.h"
#include "daemon/model/gguf_tokens.h"
#include "daemon/model/gguf_vocabulary.h"
#include "ipc/cleanup.h"

#define KEY(name) "tokenizer.ggml." name
#define SPACE "\xe2\x96\x81" /* U+2581, in place of a space */

struct gguf_tokenizer {
	const struct gguf *gguf;
	struct field_object root;
	struct gguf_vocabulary vocabulary;
	const struct gguf_pretokenizer *pretokenizer; /* NULL: SentencePiece */
	struct gguf_budget text, config;
	struct model_error *error;
};

/* False: the text has become too long. */
static bool gguf_tokenizer_take(
	const struct gguf_tokenizer *t, struct gguf_budget *budget, size_t bytes)
{
	int rc = gguf_budget_take(budget, bytes);

	if (rc)
		field_fail(&t->root, rc, GGUF_BUDGET_EXCEEDED, budget->name, budget->limit);
	return !rc;
}

/* A list of steps as one object, that of the kind which calls its steps `name`. */
static json_t *gguf_tokenizer_sequence(const char *name, json_t *steps)
{
	return json_pack("{s:s, s:o}", "type", "Sequence", name, steps);
}

static json_t *gguf_tokenizer_byte_level(void)
{
	return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
		"trim_offsets", 1, "use_regex", 0);
}

static json_t *gguf_tokenizer_replace(const char *from, const char *to)
{
	return json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", "String", from,
		"content", to);
}

/* ---- tokens ---- */

/* The token of an id that a field names; NULL: there is no such field, or no such token. */
static const struct gguf_token *gguf_tokenizer_named(
	const struct gguf_tokenizer *t, const char *key, uint32_t *ret_id)
{
	*ret_id = field_u32(&t->root, key, 0, UINT32_MAX, UINT32_MAX);
	return *ret_id < t->vocabulary.n ? &t->vocabulary.tokens[*ret_id] : NULL;
}

/* Take what the tokens need at least. */
static int gguf_tokenizer_count(struct gguf_tokenizer *t)
{
	static const char added[] = "{'id':0,'content':,'single_word':false,'lstrip':false,"
				    "'rstrip':false,'normalized':false,'special':true},";
	uint32_t first = gguf_tokens_first_added(&t->vocabulary), n_added = 0;

	for (uint32_t id = 0; id < t->vocabulary.n && !t->root.file->rc; id++) {
		const struct gguf_token *token = &t->vocabulary.tokens[id];
		size_t bytes = gguf_budget_of_string(token->text, token->length);

		if (id < first)
			gguf_tokenizer_take(t, &t->text, bytes + strlen(":0,"));
		if (!gguf_tokens_is_added(token))
			continue;
		gguf_tokenizer_take(t, &t->text, bytes + strlen(added));
		if (++n_added > GGUF_ADDED_MAX)
			field_fail(&t->root, -E2BIG,
				"it has more than %u special and user-defined tokens",
				GGUF_ADDED_MAX);
	}
	return t->root.file->rc;
}

/* ---- the model ---- */

static json_t *gguf_tokenizer_listed_merges(struct gguf_tokenizer *t)
{
	const struct gguf_array *array = gguf_find_array(t->gguf, KEY("merges"));
	CLEANUP(cleanup_json) json_t *merges = json_array();
	const uint8_t *at;

	if (!array || array->type != GGUF_STRING || array->n > GGUF_MERGES_MAX) {
		field_fail(&t->root, -EINVAL,
			KEY("merges") " is missing, not of strings, or has more than %u",
			GGUF_MERGES_MAX);
		return NULL;
	}
	at = array->data;
	for (uint64_t i = 0; i < array->n; i++) {
		size_t length;
		const char *text = gguf_next_string(&at, &length);

		if (!gguf_tokenizer_take(
			    t, &t->text, gguf_budget_of_string(text, length) + strlen(",")))
			return NULL;
		if (memchr(text, 0, length) ||
			json_array_append_new(merges, json_stringn(text, length))) {
			field_fail(&t->root, -EINVAL,
				KEY("merges") "[%" PRIu64 "] is not UTF-8 or has a NUL", i);
			return NULL;
		}
	}
	return STEAL(merges);
}

static json_t *gguf_tokenizer_byte_bpe(struct gguf_tokenizer *t)
{
	json_t *merges = gguf_tokenizer_listed_merges(t);

	return json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE",
		"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
		0, "byte_fallback", 0, "ignore_merges", t->pretokenizer->ignore_merges, "vocab",
		gguf_tokens_vocab(&t->vocabulary, gguf_find_array(t->gguf, KEY("merges"))), "merges",
		merges);
}

static json_t *gguf_tokenizer_scored_bpe(struct gguf_tokenizer *t)
{
	uint32_t id;
	const struct gguf_token *unknown = gguf_tokenizer_named(t, KEY("unknown_token_id"), &id);
	json_t *merges = NULL;

	if (!t->vocabulary.has_scores)
		field_fail(&t->root, -EINVAL, KEY("scores") " is missing");
	else
		t->root.file->rc = gguf_merges_of_scores(
			&t->vocabulary, t->gguf->path, &t->text, &merges, t->error);
	if (t->root.file->rc)
		return NULL;
	return json_pack("{s:s, s:n, s:o, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE",
		"dropout", "unk_token",
		unknown ? json_stringn(unknown->text, unknown->length) : json_null(),
		"continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 1, "byte_fallback", 1,
		"ignore_merges", 0, "vocab", gguf_tokens_vocab(&t->vocabulary, NULL), "merges", merges);
}

/* ---- what surrounds it ---- */

/* Append the token that the field `key` names, if the field `adds` says so. -ENOMEM, or 0. */
static int gguf_tokenizer_add_end(const struct gguf_tokenizer *t, const char *key, const char *adds,
	bool absent, json_t *single, json_t *special)
{
	uint32_t id;
	const struct gguf_token *token = gguf_tokenizer_named(t, key, &id);

	if (!token || !field_bool(&t->root, adds, absent))
		return 0;
	CLEANUP(cleanup_free) char *text = strndup(token->text, token->length);
	if (!text || json_array_append_new(single, json_pack("{s:{s:s, s:i}}", "SpecialToken", "id",
							   text, "type_id", 0)))
		return -ENOMEM;
	return json_object_set_new(special, text, json_pack("{s:s, s:[i], s:[s]}", "id", text, "ids",
							  (int)id, "tokens", text))
		? -ENOMEM
		: 0;
}

/* The begin and end tokens that are put around a text, or null. */
static json_t *gguf_tokenizer_postprocessor(const struct gguf_tokenizer *t, bool adds_bos)
{
	CLEANUP(cleanup_json) json_t *single = json_array();
	CLEANUP(cleanup_json) json_t *special = json_object();

	if (gguf_tokenizer_add_end(t, KEY("bos_token_id"), KEY("add_bos_token"), adds_bos, single,
		    special) ||
		json_array_append_new(single,
			json_pack("{s:{s:s, s:i}}", "Sequence", "id", "A", "type_id", 0)) ||
		gguf_tokenizer_add_end(t, KEY("eos_token_id"), KEY("add_eos_token"), false, single,
			special))
		return NULL;
	if (!json_object_size(special))
		return json_null();
	return json_pack("{s:s, s:O, s:[], s:O}", "type", "TemplateProcessing", "single", single,
		"pair", "special_tokens", special);
}

static json_t *gguf_tokenizer_bytes(struct gguf_tokenizer *t)
{
	json_t *steps = json_loads(t->pretokenizer->steps, 0, NULL);

	if (json_array_append_new(steps, gguf_tokenizer_byte_level())) {
		json_decref(steps);
		return NULL;
	}
	return json_pack("{s:s, s:n, s:n, s:o, s:o, s:o, s:o, s:o, s:o}", "version", "1.0",
		"truncation", "padding", "added_tokens", gguf_tokens_added(&t->vocabulary), "normalizer",
		json_loads(t->pretokenizer->normalizer, JSON_DECODE_ANY, NULL), "pre_tokenizer",
		gguf_tokenizer_sequence("pretokenizers", steps), "post_processor",
		gguf_tokenizer_postprocessor(t, t->pretokenizer->adds_bos), "decoder",
		gguf_tokenizer_byte_level(), "model", gguf_tokenizer_byte_bpe(t));
}

static json_t *gguf_tokenizer_pieces(struct gguf_tokenizer *t)
{
	bool prefix = field_bool(&t->root, KEY("add_space_prefix"), true);
	json_t *marked = gguf_tokenizer_replace(" ", SPACE);
	json_t *plain = gguf_tokenizer_replace(SPACE, " ");
	json_t *before = prefix ? json_pack("[{s:s, s:s}, o]", "type", "Prepend", "prepend", SPACE,
					  marked)
				: json_pack("[o]", marked);
	json_t *after = prefix
		? json_pack("[o, {s:s}, {s:s}, {s:s, s:s, s:i, s:i}]", plain, "type", "ByteFallback",
			  "type", "Fuse", "type", "Strip", "content", " ", "start", 1, "stop", 0)
		: json_pack("[o, {s:s}, {s:s}]", plain, "type", "ByteFallback", "type", "Fuse");

	return json_pack("{s:s, s:n, s:n, s:o, s:o, s:n, s:o, s:o, s:o}", "version", "1.0",
		"truncation", "padding", "added_tokens", gguf_tokens_added(&t->vocabulary), "normalizer",
		gguf_tokenizer_sequence("normalizers", before), "pre_tokenizer", "post_processor",
		gguf_tokenizer_postprocessor(t, true), "decoder",
		gguf_tokenizer_sequence("decoders", after), "model", gguf_tokenizer_scored_bpe(t));
}

static json_t *gguf_tokenizer_config(struct gguf_tokenizer *t)
{
	static const char *const named[][2] = {{"bos_token", KEY("bos_token_id")},
		{"eos_token", KEY("eos_token_id")}, {"unk_token", KEY("unknown_token_id")},
		{"pad_token", KEY("padding_token_id")}};
	const char *chat = field_string(&t->root, "tokenizer.chat_template", NULL);
	CLEANUP(cleanup_json) json_t *config = json_object();

	for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++) {
		uint32_t id;
		const struct gguf_token *token = gguf_tokenizer_named(t, named[i][1], &id);

		if (!token)
			continue;
		if (!gguf_tokenizer_take(t, &t->config,
			    gguf_budget_of_string(token->text, token->length)) ||
			json_object_set_new(config, named[i][0],
				json_stringn(token->text, token->length)))
			return NULL;
	}
	if (chat && !gguf_tokenizer_take(t, &t->config, gguf_budget_of_string(chat, strlen(chat))))
		return NULL;
	if (chat && json_object_set_new(config, "chat_template", json_string(chat)))
		return NULL;
	return STEAL(config);
}

/* ---- all of it ---- */

static int gguf_tokenizer_choose(struct gguf_tokenizer *t, const char *model)
{
	const char *pre = field_string(&t->root, KEY("pre"), "default");
	char names[GGUF_PRETOKENIZERS_BYTES];

	if (!strcmp(model, "llama"))
		return t->root.file->rc;
	if (strcmp(model, "gpt2"))
		return field_fail(&t->root, -ENOTSUP, KEY("model") " \"%.64s\" is neither gpt2 nor llama",
			model);
	t->pretokenizer = gguf_pretokenizer_find(pre);
	if (!t->pretokenizer)
		field_fail(&t->root, -ENOTSUP, KEY("pre") " \"%.64s\" is not one of %s", pre,
			gguf_pretokenizer_list(names, sizeof(names)));
	return t->root.file->rc;
}

/* *ret: the text, to be freed. */
static int gguf_tokenizer_dump(const struct gguf_tokenizer *t, const json_t *json,
	const struct gguf_budget *budget, char **ret)
{
	size_t bytes = json_dumpb(json, NULL, 0, JSON_COMPACT); /* 0: json is NULL */

	if (t->root.file->rc)
		return t->root.file->rc;
	if (bytes > budget->limit)
		return field_fail(
			&t->root, -EFBIG, GGUF_BUDGET_EXCEEDED, budget->name, budget->limit);
	CLEANUP(cleanup_free) char *text = calloc(1, bytes + 1);
	if (!bytes || !text || json_dumpb(json, text, bytes, JSON_COMPACT) != bytes)
		return field_fail(&t->root, -ENOMEM, "no memory for its tokenizer");
	*ret = STEAL(text);
	return 0;
}

static int gguf_tokenizer_write(struct gguf_tokenizer *t, struct gguf_text *ret)
{
	CLEANUP(gguf_text_deinit) struct gguf_text text = {0};
	CLEANUP(cleanup_json) json_t *config = gguf_tokenizer_config(t);
	int rc = gguf_tokenizer_dump(t, config, &t->config, &text.config);

	if (rc)
		return rc;
	rc = gguf_tokenizer_count(t);
	if (rc)
		return rc;
	CLEANUP(cleanup_json) json_t *tokenizer =
		t->pretokenizer ? gguf_tokenizer_bytes(t) : gguf_tokenizer_pieces(t);
	rc = gguf_tokenizer_dump(t, tokenizer, &t->text, &text.tokenizer);
	if (rc)
		return rc;
	*ret = text;
	text = (struct gguf_text){0};
	return 0;
}

int gguf_text_make(const struct gguf *gguf, struct gguf_text_limits limits, struct gguf_text *ret,
	struct model_error *error)
{
	struct field_file file = {.path = gguf->path, .error = error};
	struct gguf_tokenizer t = {.gguf = gguf,
		.root = {.json = gguf->fields, .prefix = "", .file = &file},
		.text = {"tokenizer.json", limits.tokenizer, limits.tokenizer},
		.config = {"tokenizer_config.json", limits.config, limits.config},
		.error = error};
	const char *model = field_string(&t.root, KEY("model"), NULL);
	int rc = file.rc;

	if (!rc && !model) {
		*ret = (struct gguf_text){0};
		return 0;
	}
	if (!rc)
		rc = gguf_tokenizer_choose(&t, model);
	if (!rc)
		rc = gguf_vocabulary_init(gguf, &t.vocabulary, error);
	if (!rc)
		rc = gguf_tokenizer_write(&t, ret);
	gguf_vocabulary_deinit(&t.vocabulary);
	return rc;
}

int gguf_text_load(const char *path, struct gguf_text_limits limits, struct gguf_text *ret,
	struct model_error *error)
{
	CLEANUP(gguf_deinit) struct gguf gguf = {.fd = -1};
	int rc = gguf_open(path, &gguf, error);

	return rc ? rc : gguf_text_make(&gguf, limits, ret, error);
}

void gguf_text_deinit(struct gguf_text *text)
{
	free(text->tokenizer);
	free(text->config);
	*text = (struct gguf_text){0};
}
