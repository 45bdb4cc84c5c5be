/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_MODEL_LOADED_H
#define MIMEO_TESTS_MODEL_LOADED_H

/* A checkpoint on the device of MIMEO_DEVICE, and its tensors as the file has them. */

#include "tests/model/fixture.h"

#include "daemon/model/safetensors.h"
#include "tests/device_memory.h"

struct loaded {
	char directory[512];
	struct device *device;
	struct model_config config;
	struct model *model;
};

static inline struct loaded load(const char *below)
{
	struct loaded l = {0};
	struct model_error error = {""};

	source_path(below, l.directory);
	l.device = test_device_open(0);
	if (model_config_load(l.directory, &l.config, &error) ||
		model_load(l.device, l.directory, &l.config, 64, NULL, NULL, &l.model, &error))
		fail_msg("%s", error.text);
	return l;
}

static inline void unload(struct loaded *l)
{
	model_free(l->model);
	model_config_deinit(&l->config);
	l->device->ops->free(l->device);
}

/* The test's initial state is the checkpoint's path; it gets the loaded one. */
static inline int loaded_setup(void **state)
{
	struct loaded *l = malloc(sizeof(*l));

	if (!l)
		return -1;
	*l = load(*state);
	*state = l;
	return 0;
}

static inline int loaded_teardown(void **state)
{
	unload(*state);
	free(*state);
	return 0;
}

#define loaded_test(test, below) {#test, test, loaded_setup, loaded_teardown, below}

/* A tensor's bytes as the file has them. */
static inline uint8_t *tensor_bytes(const struct loaded *l, const char *name,
	uint64_t *ret_bytes, enum dtype *ret_dtype)
{
	struct safetensors s;
	struct model_error error = {""};
	const struct safetensors_tensor *tensor;
	uint8_t *bytes;

	assert_int_equal(safetensors_open(l->directory, &s, &error), 0);
	tensor = safetensors_find(&s, name);
	assert_non_null(tensor);
	bytes = malloc(tensor->bytes);
	assert_non_null(bytes);
	assert_int_equal(
		pread(s.files[tensor->file].fd, bytes, tensor->bytes, (off_t)tensor->offset),
		(ssize_t)tensor->bytes);
	*ret_bytes = tensor->bytes;
	*ret_dtype = tensor->dtype;
	safetensors_deinit(&s);
	return bytes;
}

/* The tensor's bytes are in the weight, `at` bytes from its beginning. Returns where they end. */
static inline uint64_t assert_holds(const struct loaded *l, const struct weight *weight,
	uint64_t at, const char *name)
{
	uint64_t n;
	enum dtype dtype;
	uint8_t *want = tensor_bytes(l, name, &n, &dtype), *have = malloc(n);

	assert_non_null(have);
	assert_int_equal(weight->dtype, dtype);
	assert_true(at + n <= (uint64_t)weight->rows * weight->cols * dtype_bytes(weight->dtype));
	assert_int_equal(
		l->device->ops->copy(l->device, have, (const uint8_t *)weight->data + at, n), 0);
	assert_memory_equal(have, want, n);
	free(have);
	free(want);
	return at + n;
}

#endif
