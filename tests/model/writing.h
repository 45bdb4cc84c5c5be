/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_MODEL_WRITING_H
#define MIMEO_TESTS_MODEL_WRITING_H

/* A model.safetensors under construction, with data of any size. */

#include "tests/model/fixture.h"

#include <jansson.h>

struct writing {
	json_t *header;
	uint8_t *data;
	size_t bytes, max;
};

/* Of at most `max` bytes of data. */
static inline struct writing writing_begin(size_t max)
{
	struct writing w = {.header = json_object(), .data = malloc(max), .max = max};

	assert_true(w.header && w.data);
	return w;
}

/* The tensor's data, for the caller to fill; cols 0: a vector. */
static inline void *writing_add(struct writing *w, const char *name, const char *dtype,
	uint64_t rows, uint64_t cols, size_t bytes)
{
	json_t *shape = cols ? json_pack("[I,I]", (json_int_t)rows, (json_int_t)cols)
			     : json_pack("[I]", (json_int_t)rows);
	void *at = w->data + w->bytes;

	assert_true(w->bytes + bytes <= w->max);
	json_object_set_new(w->header, name,
		json_pack("{s:s,s:o,s:[I,I]}", "dtype", dtype, "shape", shape, "data_offsets",
			(json_int_t)w->bytes, (json_int_t)(w->bytes + bytes)));
	w->bytes += bytes;
	return at;
}

static inline void writing_add_zeros(struct writing *w, const char *name, uint64_t rows, uint64_t cols)
{
	const size_t bytes = rows * (cols ? cols : 1) * sizeof(uint16_t);

	memset(writing_add(w, name, "BF16", rows, cols, bytes), 0, bytes);
}

/* A model of one layer and 6 tokens, without its MLP: zeros in bf16. */
static inline struct writing writing_begin_layer(size_t max, uint64_t hidden)
{
	static const char *const squares[] = {"q_proj", "k_proj", "v_proj", "o_proj"};
	struct writing w = writing_begin(max);
	char name[96];

	writing_add_zeros(&w, "model.embed_tokens.weight", 6, hidden);
	writing_add_zeros(&w, "model.norm.weight", hidden, 0);
	writing_add_zeros(&w, "model.layers.0.input_layernorm.weight", hidden, 0);
	writing_add_zeros(&w, "model.layers.0.post_attention_layernorm.weight", hidden, 0);
	for (size_t i = 0; i < sizeof(squares) / sizeof(squares[0]); i++) {
		snprintf(name, sizeof(name), "model.layers.0.self_attn.%s.weight", squares[i]);
		writing_add_zeros(&w, name, hidden, hidden);
	}
	return w;
}

/* Into the scratch directory, and the end of it. */
static inline void writing_write(const struct scratch *scratch, struct writing *w)
{
	char path[256], *header = json_dumps(w->header, JSON_COMPACT);
	uint64_t length = strlen(header);
	FILE *file;

	scratch_path(scratch, "model.safetensors", path);
	file = fopen(path, "w");
	assert_non_null(file);
	assert_true(fwrite(&length, sizeof(length), 1, file) == 1);
	assert_true(fwrite(header, length, 1, file) == 1);
	assert_true(fwrite(w->data, w->bytes, 1, file) == 1);
	assert_int_equal(fclose(file), 0);
	free(header);
	json_decref(w->header);
	free(w->data);
	*w = (struct writing){0};
}

#endif
