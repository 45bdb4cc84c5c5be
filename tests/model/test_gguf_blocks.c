/* SPDX-License-Identifier: MIT */

/* Blocks of each type against what PyPI's gguf makes of them: blocks.gguf (tests/data/make_gguf.py). */
#include "tests/model/fixture.h"

#include "daemon/model/file.h"
#include "daemon/model/gguf.h"
#include "daemon/model/gguf_blocks.h"

static uint8_t *read_tensor(const struct gguf *gguf, const struct safetensors_tensor *tensor)
{
	struct model_error error = {""};
	uint8_t *bytes = malloc(tensor->bytes);

	assert_non_null(bytes);
	assert_int_equal(file_read(gguf->fd, gguf->path, tensor->offset, bytes, tensor->bytes, &error), 0);
	return bytes;
}

static void test_type_widens_to_the_bits_of_the_reference(void **state)
{
	const char *type = *state;
	struct gguf gguf;
	struct model_error error = {""};
	char path[512], name[32];
	const struct safetensors_tensor *packed, *wide;

	source_path("tests/data/gguf/blocks.gguf", path);
	if (gguf_open(path, &gguf, &error))
		fail_msg("%s", error.text);
	snprintf(name, sizeof(name), "%s.f32", type);
	packed = gguf_find_tensor(&gguf, type);
	wide = gguf_find_tensor(&gguf, name);
	assert_true(packed && wide && packed->format);
	CLEANUP(cleanup_free) uint8_t *blocks = read_tensor(&gguf, packed);
	CLEANUP(cleanup_free) uint8_t *want = read_tensor(&gguf, wide);
	CLEANUP(cleanup_free) float *have = malloc(wide->bytes);
	assert_non_null(have);
	assert_int_equal(safetensors_elements(packed, packed->bytes) * sizeof(float), wide->bytes);
	assert_true(packed->format->to_f32(have, blocks, packed->bytes / packed->format->bytes));
	assert_memory_equal(have, want, wide->bytes);
	gguf_deinit(&gguf);
}

/* Where a type's scales are: the first two bytes of a block, two more, or the last two. */
static void test_scale_that_is_not_finite_is_reported(void **state)
{
	static const struct {
		uint32_t type, at[2];
	} cases[] = {
		{2, {0, 0}}, {3, {0, 2}}, {6, {0, 0}}, {7, {0, 2}}, {8, {0, 0}}, {12, {0, 2}},
		{13, {0, 2}}, {14, {208, 208}},
	};
	static const uint16_t bad[] = {0x7c00, 0xfc00, 0x7e00};
	uint8_t blocks[2 * 256];
	float wide[2 * 256];

	for (size_t i = 0; i < ARRAY_SIZE(cases) * 2 * ARRAY_SIZE(bad); i++) {
		const struct block_format *format = gguf_type_find(cases[i / 6].type)->format;

		memset(blocks, 0, sizeof(blocks));
		assert_true(format->to_f32(wide, blocks, 2));
		memcpy(blocks + format->bytes + cases[i / 6].at[i % 2], &bad[i / 2 % 3], 2);
		assert_false(format->to_f32(wide, blocks, 2));
	}
	(void)state;
}

int main(void)
{
	static const char *const types[] = {
		"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"};
	static struct CMUnitTest tests[ARRAY_SIZE(types) + 1];
	static char names[ARRAY_SIZE(types)][64];

	for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
		snprintf(names[i], sizeof(names[i]), "test_%s_widens_to_the_bits_of_the_reference",
			types[i]);
		tests[i] = (struct CMUnitTest){.name = names[i],
			.test_func = test_type_widens_to_the_bits_of_the_reference,
			.initial_state = (void *)(uintptr_t)types[i]};
	}
	tests[ARRAY_SIZE(types)] =
		(struct CMUnitTest)cmocka_unit_test(test_scale_that_is_not_finite_is_reported);
	return cmocka_run_group_tests_name("gguf_blocks", tests, NULL, NULL);
}
