/* SPDX-License-Identifier: MIT */
#include "tests/daemon/checkpoint.h"

#include <dirent.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <jansson.h>

#include "tests/device.h"
#include "tests/random.h"

extern char **environ;

static void make_folder(struct checkpoint *checkpoint)
{
	snprintf(checkpoint->folder, sizeof(checkpoint->folder), "%s/mimeo-made-XXXXXX",
		getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	assert_non_null(mkdtemp(checkpoint->folder));
}

void checkpoint_make(struct checkpoint *checkpoint, const char *const options[])
{
	char program[512];
	const char *argv[CHECKPOINT_OPTIONS_MAX + 4] = {program};
	unsigned n = 1;
	posix_spawn_file_actions_t actions;
	int status;
	pid_t pid;

	snprintf(program, sizeof(program), "%s/examples/make-checkpoint",
		getenv("MIMEO_BUILD") ? getenv("MIMEO_BUILD") : ".");
	make_folder(checkpoint);
	for (; options[n - 1]; n++) {
		assert_true(n <= CHECKPOINT_OPTIONS_MAX);
		argv[n] = options[n - 1];
	}
	argv[n++] = "--threads";
	argv[n++] = "1";
	argv[n] = checkpoint->folder;
	/* What it says is not the test's to say. */
	assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
	assert_int_equal(posix_spawn_file_actions_adddup2(&actions, 2, 1), 0);
	if (posix_spawn(&pid, program, &actions, NULL, (char *const *)argv, environ))
		fail_msg("%s does not run", program);
	posix_spawn_file_actions_destroy(&actions);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

void checkpoint_remove(struct checkpoint *checkpoint)
{
	DIR *folder = opendir(checkpoint->folder);
	char path[600];

	assert_non_null(folder);
	for (struct dirent *entry; (entry = readdir(folder));) {
		snprintf(path, sizeof(path), "%s/%s", checkpoint->folder, entry->d_name);
		if (entry->d_name[0] != '.')
			unlink(path);
	}
	closedir(folder);
	assert_int_equal(rmdir(checkpoint->folder), 0);
}

static uint8_t *read_weights(FILE *file, size_t *ret_size)
{
	uint8_t *bytes;

	assert_int_equal(fseek(file, 0, SEEK_END), 0);
	*ret_size = (size_t)ftell(file);
	rewind(file);
	bytes = malloc(*ret_size);
	assert_non_null(bytes);
	assert_int_equal(fread(bytes, 1, *ret_size, file), *ret_size);
	rewind(file);
	return bytes;
}

/* fc [hidden, 2 hidden] bf16 := 0 | 1 */
static void pass_hidden(uint8_t *data, const json_t *fc)
{
	uint64_t at = (uint64_t)json_integer_value(
		json_array_get(json_object_get(fc, "data_offsets"), 0));
	uint64_t hidden = (uint64_t)json_integer_value(
		json_array_get(json_object_get(fc, "shape"), 0));
	const uint16_t one = 0x3f80;

	assert_string_equal(json_string_value(json_object_get(fc, "dtype")), "BF16");
	for (uint64_t i = 0; i < hidden; i++)
		memcpy(data + at + (i * 2 * hidden + hidden + i) * sizeof(one), &one, sizeof(one));
}

struct weights {
	FILE *file;
	uint8_t *bytes, *data; /* of the file; behind its header */
	size_t size;
	json_t *header;
};

static void weights_open(struct weights *w, const struct checkpoint *checkpoint)
{
	char path[300];
	uint64_t n_header;

	snprintf(path, sizeof(path), "%s/model.safetensors", checkpoint->folder);
	w->file = fopen(path, "r+e");
	assert_non_null(w->file);
	w->bytes = read_weights(w->file, &w->size);
	memcpy(&n_header, w->bytes, sizeof(n_header));
	w->data = w->bytes + sizeof(n_header) + n_header;
	w->header = json_loadb((const char *)w->bytes + sizeof(n_header), n_header, 0, NULL);
	assert_non_null(w->header);
}

static void weights_close(struct weights *w)
{
	assert_int_equal(fwrite(w->bytes, 1, w->size, w->file), w->size);
	assert_int_equal(fclose(w->file), 0);
	json_decref(w->header);
	free(w->bytes);
}

static void copy_file(const struct checkpoint *checkpoint, const char *folder, const char *name)
{
	char path[600];
	uint8_t *bytes;
	size_t size;
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	file = fopen(path, "re");
	assert_non_null(file);
	bytes = read_weights(file, &size);
	fclose(file);
	snprintf(path, sizeof(path), "%s/%s", checkpoint->folder, name);
	file = fopen(path, "we");
	assert_non_null(file);
	assert_int_equal(fwrite(bytes, 1, size, file), size);
	assert_int_equal(fclose(file), 0);
	free(bytes);
}

void checkpoint_copy(struct checkpoint *checkpoint, const char *folder)
{
	make_folder(checkpoint);
	copy_file(checkpoint, folder, "config.json");
	copy_file(checkpoint, folder, "model.safetensors");
}

void checkpoint_flip_signs(const struct checkpoint *checkpoint, const char *prefix, uint32_t every)
{
	uint64_t seed = 7;
	struct weights w;
	const char *name;
	json_t *entry;

	weights_open(&w, checkpoint);
	json_object_foreach(w.header, name, entry) {
		const json_t *offsets = json_object_get(entry, "data_offsets");
		uint64_t end = (uint64_t)json_integer_value(json_array_get(offsets, 1));
		const char *dtype = json_string_value(json_object_get(entry, "dtype"));

		if (strncmp(name, prefix, strlen(prefix)) || !dtype || strcmp(dtype, "BF16"))
			continue;
		/* the sign is in the second byte */
		for (uint64_t i = (uint64_t)json_integer_value(json_array_get(offsets, 0)) + 1; i < end; i += 2) {
			if (random_below(&seed, every) == 0)
				w.data[i] ^= 0x80;
		}
	}
	weights_close(&w);
}

void checkpoint_repeat_last(const struct checkpoint *checkpoint)
{
	struct weights w;

	weights_open(&w, checkpoint);
	memset(w.data, 0, w.size - (size_t)(w.data - w.bytes));
	pass_hidden(w.data, json_object_get(w.header, "fc.weight"));
	weights_close(&w);
}

void checkpoint_fill_row(
	const struct checkpoint *checkpoint, const char *tensor, uint32_t row, uint16_t bf16)
{
	struct weights w;
	const json_t *entry;
	uint64_t at, rows, cols;

	weights_open(&w, checkpoint);
	entry = json_object_get(w.header, tensor);
	assert_string_equal(json_string_value(json_object_get(entry, "dtype")), "BF16");
	at = (uint64_t)json_integer_value(json_array_get(json_object_get(entry, "data_offsets"), 0));
	rows = (uint64_t)json_integer_value(json_array_get(json_object_get(entry, "shape"), 0));
	cols = (uint64_t)json_integer_value(json_array_get(json_object_get(entry, "shape"), 1));
	assert_true(row < rows);
	for (uint64_t i = 0; i < cols; i++)
		memcpy(w.data + at + (row * cols + i) * sizeof(bf16), &bf16, sizeof(bf16));
	weights_close(&w);
}
