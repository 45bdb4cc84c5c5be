/* SPDX-License-Identifier: MIT */

/*
 * The beginning of a GGUF file, whose size the first 8 bytes say. What is accepted must hold: tensors sorted by name,
 * inside the file, apart from each other, each of the size that its shape makes; arrays inside the header; a
 * configuration within its limits; and a tokenizer that is JSON.
 */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/field.h"
#include "daemon/model/gguf.h"
#include "daemon/model/gguf_blocks.h"
#include "daemon/model/gguf_model.h"
#include "daemon/model/gguf_tokenizer.h"

static void check_tensor(const struct safetensors_tensor *t, uint64_t file_bytes)
{
	unsigned __int128 elements = 1;

	if (!t->n_dims || t->n_dims > GGUF_DIMS_MAX)
		abort();
	if (t->offset > file_bytes || t->bytes > file_bytes - t->offset)
		abort();
	for (uint32_t d = 0; d < t->n_dims; d++)
		elements *= t->shape[d];
	if (t->usable && (!t->bytes || safetensors_elements(t, t->bytes) != elements))
		abort();
}

static void check_tensors(const struct gguf *gguf, uint64_t file_bytes)
{
	for (uint32_t i = 0; i < gguf->n_tensors; i++) {
		const struct safetensors_tensor *t = &gguf->tensors[i];

		check_tensor(t, file_bytes);
		if (i && strcmp(gguf->tensors[i - 1].name, t->name) >= 0)
			abort();
		for (uint32_t j = 0; j < i && j < 64; j++) {
			const struct safetensors_tensor *other = &gguf->tensors[j];

			if (t->offset < other->offset + other->bytes &&
				other->offset < t->offset + t->bytes)
				abort();
		}
	}
}

static void check_arrays(const struct gguf *gguf, const uint8_t *end)
{
	for (uint32_t i = 0; i < gguf->n_arrays; i++) {
		const struct gguf_array *array = &gguf->arrays[i];
		const uint8_t *at = array->data;
		size_t length;

		for (uint64_t n = 0; array->type == GGUF_STRING && n < array->n; n++)
			gguf_next_string(&at, &length);
		if (at > end || gguf_find_array(gguf, array->key) != array)
			abort();
	}
}

static void check_config(const struct gguf *gguf)
{
	struct model_config config;
	struct model_error error = {""};

	if (gguf_config_parse(gguf, &config, &error)) {
		if (!*error.text)
			abort();
		return;
	}
	if (!config.n_layers || !config.n_heads || config.n_heads % config.n_kv_heads ||
		!config.vocab_size || config.head_dim % 2 || config.n_eos > MODEL_EOS_MAX)
		abort();
	model_config_deinit(&config);
}

static void check_text(const struct gguf *gguf)
{
	const struct gguf_text_limits limits = {64 << 10, 4 << 10};
	struct gguf_text text;
	struct model_error error = {""};
	CLEANUP(cleanup_json) json_t *json = NULL;

	if (gguf_text_make(gguf, limits, &text, &error)) {
		if (!*error.text)
			abort();
		return;
	}
	if (text.tokenizer && (strlen(text.tokenizer) > limits.tokenizer ||
				      strlen(text.config) > limits.config))
		abort();
	if (text.tokenizer && !(json = json_loads(text.tokenizer, 0, NULL)))
		abort();
	gguf_text_deinit(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct gguf gguf;
	struct model_error error = {""};
	uint64_t file_bytes;

	if (size < sizeof(file_bytes))
		return 0;
	memcpy(&file_bytes, data, sizeof(file_bytes));
	file_bytes >>= 2; /* no file is longer than an off_t can say */
	data += sizeof(file_bytes);
	size -= sizeof(file_bytes);
	file_bytes = file_bytes < size ? size : file_bytes;
	int rc = gguf_parse("f", data, size, file_bytes, &gguf, &error);
	if (rc) {
		if ((rc < 0) != (*error.text != 0) || !memchr(error.text, 0, sizeof(error.text)))
			abort();
		return 0;
	}
	check_tensors(&gguf, file_bytes);
	check_arrays(&gguf, data + size);
	gguf.path = strdup("f");
	if (gguf.path) {
		check_config(&gguf);
		check_text(&gguf);
	}
	gguf_deinit(&gguf);
	return 0;
}
