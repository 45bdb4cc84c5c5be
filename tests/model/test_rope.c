/* SPDX-License-Identifier: MIT */

/* tests/data/rope.json has tables that transformers computed, for settings of real models. */

#include "tests/model/fixture.h"

#include <jansson.h>
#include <math.h>

#include "daemon/model/hf_config.h"

/* Two correct float32 computations of a frequency may differ in its last bit, which the position
 * multiplies. */
#define FREQUENCY_ULP 1.2e-7

static json_t *load(void)
{
	char path[512];
	json_t *root;

	source_path("tests/data/rope.json", path);
	root = json_load_file(path, 0, NULL);
	assert_non_null(root);
	return root;
}

static struct model_config config_of(const json_t *root, json_t *rope_parameters)
{
	json_t *json = json_deep_copy(json_object_get(root, "config"));
	struct model_config config = {0};
	struct model_error error = {""};
	char *text;

	json_object_set(json, "rope_parameters", rope_parameters);
	text = json_dumps(json, 0);
	if (hf_config_parse("rope.json", text, strlen(text), false, &config, &error))
		fail_msg("%s", error.text);
	free(text);
	json_decref(json);
	return config;
}

static void compare(const char *name, uint32_t position, const json_t *want, const float *have,
	uint32_t n)
{
	assert_int_equal(json_array_size(want), n);
	for (uint32_t i = 0; i < n; i++) {
		double w = json_number_value(json_array_get(want, i));

		if (!(fabs(w - (double)have[i]) <= 2e-7 * 1.5 + 1.5 * FREQUENCY_ULP * position))
			fail_msg("%s: position %u, pair %u: %.8g is not %.8g", name, position, i,
				(double)have[i], w);
	}
}

static void check_case(const json_t *root, const json_t *item)
{
	struct model_config config = config_of(root, json_object_get(item, "rope_parameters"));
	const json_t *positions = json_object_get(item, "positions");
	const char *name = json_string_value(json_object_get(item, "name"));
	uint32_t half = config.head_dim / 2, max = 4001;
	float *table = malloc(sizeof(float) * max * config.head_dim);

	assert_non_null(table);
	assert_true(json_array_size(positions) > 4);
	model_rope_fill(&config, max, table);
	for (size_t i = 0; i < json_array_size(positions); i++) {
		uint32_t p = (uint32_t)json_integer_value(json_array_get(positions, i));
		const float *row = table + (size_t)p * config.head_dim;

		compare(name, p, json_array_get(json_object_get(item, "cos"), i), row, half);
		compare(name, p, json_array_get(json_object_get(item, "sin"), i), row + half, half);
	}
	free(table);
	model_config_deinit(&config);
}

/* All n cases whose name begins with `prefix`. */
struct cases {
	const char *prefix;
	size_t n;
};

static void test_table_is_that_of_transformers(void **state)
{
	const struct cases *cases = *state;
	json_t *root = load(), *item;
	size_t i, found = 0;

	json_array_foreach(json_object_get(root, "cases"), i, item) {
		const char *name = json_string_value(json_object_get(item, "name"));

		if (strncmp(name, cases->prefix, strlen(cases->prefix)))
			continue;
		check_case(root, item);
		found++;
	}
	assert_int_equal(found, cases->n);
	json_decref(root);
}

#define CASES(prefix, n)                                                              \
	{prefix " tables are those of transformers", test_table_is_that_of_transformers, \
		NULL, NULL, &(struct cases){prefix, n}}

static void test_position_zero_turns_nothing(void **state)
{
	struct model_config config = {.head_dim = 8, .rope = {.type = ROPE_DEFAULT, .theta = 1e4}};
	float table[8];

	model_rope_fill(&config, 1, table);
	for (int i = 0; i < 4; i++) {
		assert_true(table[i] == 1.0f);
		assert_true(table[4 + i] == 0.0f);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASES("default", 2),
		CASES("linear", 1),
		CASES("llama3", 1),
		CASES("yarn", 5),
		cmocka_unit_test(test_position_zero_turns_nothing),
	};

	return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
