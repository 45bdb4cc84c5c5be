/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_MODEL_PACKING_H
#define MIMEO_TESTS_MODEL_PACKING_H

/* A checkpoint loaded twice: onto a device that widens quantised weights, and onto one that packs them. Both are the
 * device of MIMEO_DEVICE, told to say so. */

#include "tests/model/loaded.h"

#include "kernels/convert.h"
#include "kernels/packed.h"

static struct {
	struct device_ops ops;
	int (*info)(struct device *device, struct device_info *ret);
	bool packs;
} packing;

static inline int packing_info(struct device *device, struct device_info *ret)
{
	int rc = packing.info(device, ret);

	ret->packs = packing.packs;
	return rc;
}

/* To be loaded onto alone: the ops need not take packed weights. */
static inline struct device *packing_hook(struct device *device)
{
	packing.ops = *device->ops;
	packing.info = packing.ops.info;
	packing.ops.info = packing_info;
	device->ops = &packing.ops;
	return device;
}

static inline struct device *packing_open(void)
{
	return packing_hook(test_device_open(0));
}

struct packing {
	char directory[512];
	struct device *device;
	struct model_config config;
	struct model *wide, *packed;
};

/* load_config: model_config_load or draft_config_load. */
static inline struct packing packing_load(const char *directory,
	int (*load_config)(const char *directory, struct model_config *ret, struct model_error *error))
{
	struct packing p = {.device = packing_open()};
	struct model_error error = {""};

	snprintf(p.directory, sizeof(p.directory), "%s", directory);
	if (load_config(directory, &p.config, &error))
		fail_msg("%s", error.text);
	for (uint32_t i = 0; i < 2; i++) {
		packing.packs = i;
		if (model_load(p.device, directory, &p.config, 64, NULL, NULL, i ? &p.packed : &p.wide, &error))
			fail_msg("%s", error.text);
	}
	return p;
}

static inline void packing_unload(struct packing *p)
{
	model_free(p->packed);
	model_free(p->wide);
	model_config_deinit(&p->config);
	p->device->ops->free(p->device);
}

/* The weight with its data and factors on the host, from malloc. */
static inline struct weight packing_fetch(const struct packing *p, struct weight w)
{
	const bool grouped = !w.factors;

	if (!w.data)
		return w;
	w.data = test_fetch(p->device, w.data,
		packed_is(w.dtype) ? packed_bytes(w.rows, w.cols, w.dtype, grouped)
				   : (size_t)w.rows * w.cols * dtype_bytes(w.dtype));
	if (w.factors)
		w.factors = test_fetch(p->device, w.factors, w.rows * sizeof(*w.factors));
	return w;
}

static inline void packing_drop(const struct weight *w)
{
	free((void *)w->data);
	free((void *)w->factors);
}

/* Widening a packed weight gives, bit for bit, what was widened at load; others are the same as there. */
static inline void assert_same_weight(
	const struct packing *p, const struct weight *packed, const struct weight *wide, const char *name)
{
	struct weight have = packing_fetch(p, *packed), want = packing_fetch(p, *wide);
	float *row = malloc((wide->cols + 1) * sizeof(*row));
	const size_t width = dtype_bytes(wide->dtype);

	assert_non_null(row);
	assert_int_equal(have.rows, want.rows);
	assert_int_equal(have.cols, want.cols);
	assert_true(!have.data == !want.data);
	if (!packed_is(have.dtype)) {
		assert_int_equal(have.dtype, want.dtype);
		if (have.data)
			assert_memory_equal(have.data, want.data, width * want.rows * want.cols);
	}
	for (uint32_t r = 0; packed_is(have.dtype) && r < want.rows; r++) {
		packed_to_f32(&have, r, row);
		if (want.dtype == DTYPE_BF16)
			f32_to_bf16_n(row, row, want.cols);
		if (memcmp(row, (const uint8_t *)want.data + (size_t)r * want.cols * width, want.cols * width))
			fail_msg("row %u of %s differs", r, name);
	}
	free(row);
	packing_drop(&have);
	packing_drop(&want);
}

#endif
