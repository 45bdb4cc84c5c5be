/* SPDX-License-Identifier: MIT */
#include "sdk/text/model.h"

void model_deinit(struct model *model)
{
	bpe_deinit(&model->bpe);
	unigram_deinit(&model->unigram);
	wordpiece_deinit(&model->wordpiece);
	vocabulary_deinit(&model->vocabulary);
}

void model_work_deinit(struct model_work *work)
{
	bpe_work_deinit(&work->bpe);
	unigram_work_deinit(&work->unigram);
	word_cache_deinit(&work->cache);
}

static int model_encode_wordlevel(
	const struct model *model, const char *word, size_t length, struct ids *out)
{
	int32_t id = vocabulary_find(&model->vocabulary, word, length);

	if (id < 0)
		id = model->unknown;
	if (id < 0)
		return MIMEO_E_INVALID;
	ids_add(out, id);
	return out->rc;
}

static int model_encode_uncached(const struct model *model, struct model_work *work,
	const char *word, size_t length, struct ids *out)
{
	switch (model->kind) {
	case MODEL_BPE:
		return bpe_encode(&model->bpe, &work->bpe, word, length, out);
	case MODEL_UNIGRAM:
		return unigram_encode(&model->unigram, &work->unigram, word, length, out);
	case MODEL_WORDPIECE:
		return wordpiece_encode(&model->wordpiece, word, length, out);
	case MODEL_WORDLEVEL:
		return model_encode_wordlevel(model, word, length, out);
	}
	return MIMEO_E_INVALID;
}

static int model_encode_part(const struct model *model, struct model_work *work, const char *word,
	size_t length, struct ids *out)
{
	struct word_cache_line *line = word_cache_line(&work->cache, word, length);
	size_t first = out->n;

	if (line && word_cache_has(line, word, length)) {
		if (ids_reserve(out, line->n_ids) < 0)
			return out->rc;
		for (unsigned i = 0; i < line->n_ids; i++)
			out->data[first + i] = line->ids[i];
		out->n += line->n_ids;
		return 0;
	}
	int rc = model_encode_uncached(model, work, word, length, out);
	if (rc == 0 && line)
		word_cache_put(line, word, length, out->data + first, out->n - first);
	return rc;
}

int model_encode(const struct model *model, struct model_work *work, const char *word,
	size_t length, struct ids *out)
{
	if (length <= WORD_CACHE_BYTES || model->kind != MODEL_BPE || !model->bpe.joins)
		return model_encode_part(model, work, word, length, out);
	while (length > 0) {
		size_t part = bpe_cut(&model->bpe, word, length);
		int rc = model_encode_part(model, work, word, part, out);

		if (rc < 0)
			return rc;
		word += part;
		length -= part;
	}
	return 0;
}
