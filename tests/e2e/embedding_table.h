/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_E2E_EMBEDDING_TABLE_H
#define MIMEO_TESTS_E2E_EMBEDDING_TABLE_H

/* Tinycalc's own embeddings. */

#include <jansson.h>

#include "tests/e2e/process.h"

#define VOCAB 256u
#define HIDDEN 160u

/* [VOCAB, HIDDEN] bf16 (malloc), or NULL. */
static inline uint16_t *embedding_table_bf16(void)
{
	const size_t bytes = VOCAB * HIDDEN * sizeof(uint16_t);
	size_t size;
	char *file = file_text(source_path("examples/models/tinycalc/model.safetensors"), &size);
	uint16_t *table = malloc(bytes);
	uint64_t header_bytes;

	if (!file || !table)
		return NULL;
	memcpy(&header_bytes, file, sizeof(header_bytes));
	json_t *header = json_loadb(file + 8, header_bytes, 0, NULL);
	json_t *offsets = json_object_get(
		json_object_get(header, "model.embed_tokens.weight"), "data_offsets");
	memcpy(table, file + 8 + header_bytes + json_integer_value(json_array_get(offsets, 0)), bytes);
	json_decref(header);
	free(file);
	return table;
}

/* As the cpu device takes it: [VOCAB, HIDDEN] float32 (malloc), or NULL. */
static inline float *embedding_table_f32(void)
{
	uint16_t *halves = embedding_table_bf16();
	float *table = malloc(VOCAB * HIDDEN * sizeof(*table));

	if (!halves || !table)
		return NULL;
	for (size_t i = 0; i < VOCAB * HIDDEN; i++) {
		uint32_t bits = (uint32_t)halves[i] << 16;

		memcpy(&table[i], &bits, sizeof(bits));
	}
	free(halves);
	return table;
}

#endif
