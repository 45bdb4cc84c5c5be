/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_DEVICE_MEMORY_H
#define MIMEO_TESTS_DEVICE_MEMORY_H

/*
 * The device of tests/device.h, opened, its graphs' nodes, and its memory seen from the host: on a
 * GPU it cannot be read through its address. Copies wait, and fail the running test if anything
 * does. What streams still have to do with the memory is the caller's care.
 */

#include "kernels/device.h"
#include "tests/device.h"

static inline struct device *test_device_open(uint32_t spin_us)
{
	const struct device_options options = {.spin_us = spin_us};
	struct device *device = NULL;
	int rc = device_open(test_device(), &options, &device);

	if (rc != 0)
		fail_msg("device %s, by MIMEO_DEVICE, does not open: %s", test_device(),
			device_strerror(rc));
	return device;
}

static inline struct device_info test_device_info(struct device *device)
{
	struct device_info info;

	assert_int_equal(device->ops->info(device, &info), 0);
	return info;
}

/* Either way between host and device. */
static inline void test_copy(struct device *device, void *dst, const void *src, size_t bytes)
{
	assert_int_equal(device->ops->copy(device, dst, src, bytes), 0);
}

static inline void test_fill(struct device *device, void *memory, uint8_t value, size_t bytes)
{
	struct stream *stream;

	assert_int_equal(device->ops->stream_new(device, &stream), 0);
	assert_int_equal(device->ops->fill_async(stream, memory, value, bytes), 0);
	assert_int_equal(device->ops->stream_sync(stream), 0);
	device->ops->stream_free(stream);
}

/* A copy on the host (malloc). */
static inline void *test_fetch(struct device *device, const void *memory, size_t bytes)
{
	void *copy = malloc(bytes);

	assert_non_null(copy);
	test_copy(device, copy, memory, bytes);
	return copy;
}

static inline int32_t test_fetch_int(struct device *device, const int32_t *memory)
{
	int32_t value;

	test_copy(device, &value, memory, sizeof(value));
	return value;
}

/* The graph's nodes of that name. */
static inline uint32_t test_count_nodes(
	struct device *device, struct graph *graph, const char *name)
{
	const char *node;
	uint32_t n = 0;

	for (uint32_t i = 0; (node = device->ops->graph_node_name(graph, i)); i++)
		n += strcmp(node, name) == 0;
	return n;
}

#endif
