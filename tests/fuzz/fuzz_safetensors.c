/* SPDX-License-Identifier: MIT */

/*
 * A safetensors header of any bytes, which describes as many bytes of data as its first 8 say. What
 * is accepted must hold: tensors sorted by name, inside the file, one after another, each of the size
 * that its shape makes.
 */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/safetensors.h"

static void check(const struct safetensors_tensor *tensors, uint32_t n, uint64_t start, uint64_t bytes)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < n; i++) {
		const struct safetensors_tensor *t = &tensors[i];
		unsigned __int128 elements = 1;

		if (i && strcmp(tensors[i - 1].name, t->name) >= 0)
			abort();
		if (t->offset < start || t->offset - start > bytes || t->bytes > bytes - (t->offset - start))
			abort();
		for (uint32_t d = 0; d < t->n_dims; d++)
			elements *= t->shape[d];
		if (t->usable && elements * dtype_bytes(t->dtype) != t->bytes)
			abort();
		sum += t->bytes;
	}
	if (sum != bytes)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct safetensors_tensor *tensors;
	struct model_error error = {""};
	uint64_t bytes;
	uint32_t n;

	if (size < sizeof(bytes))
		return 0;
	memcpy(&bytes, data, sizeof(bytes));
	bytes >>= 2; /* no file is longer than an off_t can say */
	if (safetensors_parse("f", (const char *)data + 8, size - 8, size, bytes, &tensors, &n, &error)) {
		if (!*error.text || !memchr(error.text, 0, sizeof(error.text)))
			abort();
		return 0;
	}
	check(tensors, n, size, bytes);
	safetensors_tensors_free(tensors, n);
	return 0;
}
