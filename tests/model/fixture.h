/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_MODEL_FIXTURE_H
#define MIMEO_TESTS_MODEL_FIXTURE_H

/* A throw-away directory to write checkpoints into, and where the shipped ones are. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/model/model.h"
#include "ipc/cleanup.h"

#define ARRAY_SIZE(array) (sizeof(array) / sizeof((array)[0]))

struct scratch {
	char directory[64];
	const void *given; /* the test's initial state */
};

static inline int scratch_setup(void **state)
{
	struct scratch *scratch = calloc(1, sizeof(*scratch));

	if (!scratch)
		return -1;
	scratch->given = *state;
	strcpy(scratch->directory, "/tmp/mimeo-model-XXXXXX");
	if (!mkdtemp(scratch->directory)) {
		free(scratch);
		return -1;
	}
	*state = scratch;
	return 0;
}

static inline int scratch_teardown(void **state)
{
	struct scratch *scratch = *state;
	DIR *dir = opendir(scratch->directory);
	struct dirent *entry;

	while (dir && (entry = readdir(dir)))
		unlinkat(dirfd(dir), entry->d_name, 0);
	if (dir)
		closedir(dir);
	rmdir(scratch->directory);
	free(scratch);
	return 0;
}

#define scratch_test(test) cmocka_unit_test_setup_teardown(test, scratch_setup, scratch_teardown)

static inline void scratch_path(const struct scratch *scratch, const char *name, char path[256])
{
	snprintf(path, 256, "%s/%s", scratch->directory, name);
}

static inline void scratch_write(const struct scratch *scratch, const char *name, const void *data,
	size_t bytes)
{
	char path[256];
	FILE *file;

	scratch_path(scratch, name, path);
	file = fopen(path, "w");
	assert_non_null(file);
	assert_int_equal(fwrite(data, 1, bytes, file), bytes);
	assert_int_equal(fclose(file), 0);
}

static inline void scratch_text(const struct scratch *scratch, const char *name, const char *text)
{
	scratch_write(scratch, name, text, strlen(text));
}

/* A safetensors file of that header, the length it claims being `claimed` (UINT64_MAX: the truth),
 * and data_bytes of data: byte i is i modulo 251. */
static inline void scratch_safetensors(const struct scratch *scratch, const char *name,
	const char *header, uint64_t claimed, size_t data_bytes)
{
	size_t header_bytes = strlen(header);
	uint64_t length = claimed == UINT64_MAX ? header_bytes : claimed;
	uint8_t *file = malloc(8 + header_bytes + data_bytes);

	assert_non_null(file);
	for (int i = 0; i < 8; i++)
		file[i] = (uint8_t)(length >> (8 * i));
	memcpy(file + 8, header, header_bytes);
	for (size_t i = 0; i < data_bytes; i++)
		file[8 + header_bytes + i] = (uint8_t)(i % 251);
	scratch_write(scratch, name, file, 8 + header_bytes + data_bytes);
	free(file);
}

/* A path below the repository's root. */
static inline void source_path(const char *below, char path[512])
{
	const char *root = getenv("MIMEO_SOURCE");

	snprintf(path, 512, "%s/%s", root ? root : ".", below);
}

/* For model_measure: devices with activations of that dtype, which do not pack. */
#define DEVICE_F32 (&(struct device_info){.activation_dtype = DTYPE_F32})
#define DEVICE_BF16 (&(struct device_info){.activation_dtype = DTYPE_BF16})

#define MUST(call) assert_int_equal(call, 0)

#define assert_contains(text, part)                                                                \
	do {                                                                                       \
		if (!strstr(text, part))                                                           \
			fail_msg("\"%s\" does not contain \"%s\"", text, part);                    \
	} while (0)

#endif
