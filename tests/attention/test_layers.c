/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "attention/layers.h"

/* ---- backends that are only chosen ---- */

static int check_any(const struct attention_config *config, char *why, size_t size)
{
	return 0;
}

static int check_windows(const struct attention_config *config, char *why, size_t size)
{
	for (uint32_t i = 0; i < config->n_layers; i++) {
		if (config->windows[i])
			continue;
		snprintf(why, size, "it has windows alone");
		return -ENOTSUP;
	}
	return 0;
}

#define BACKEND(text, level, check_by, has_masks) \
	static enum attention_support support_##text(const struct attention_config *config, uint32_t *ret_max_query) \
	{ \
		*ret_max_query = 4; \
		return level; \
	} \
	static const struct attention_backend text = {.name = #text, .breaks = true, .masks = has_masks, \
		.check = check_by, .support = support_##text}

BACKEND(never, ATTENTION_NEVER, check_any, false);
BACKEND(single, ATTENTION_UNIFORM_SINGLE_TOKEN_DECODE, check_any, false);
BACKEND(uniform, ATTENTION_UNIFORM_BATCH, check_any, true);
BACKEND(always, ATTENTION_ALWAYS, check_windows, true);

static const uint32_t windows[] = {0, 32, 32, 0, 16, 32};

static const struct attention_config model = {
	.n_layers = 6, .n_heads = 8, .n_kv_heads = 2, .head_dim = 64, .scale = 0.125f, .windows = windows,
	.page_tokens = 16, .max_rows = 8, .max_tokens = 64, .max_pages = 8, .max_seq_len = 128,
	.max_decode_query = 1, .activation_dtype = DTYPE_F32, .kv_dtype = DTYPE_F32, .n_kv_pages = 100,
};

/* ---- groups ---- */

static void test_layers_of_one_window_are_a_group(void **state)
{
	static const uint8_t groups[] = {0, 1, 1, 0, 2, 1};
	static const uint16_t index[] = {0, 0, 1, 1, 0, 2};
	struct attention_layers layers;

	assert_int_equal(attention_layers_group(&model, &layers), 0);
	assert_int_equal(layers.n_groups, 3);
	assert_memory_equal(layers.group, groups, sizeof(groups));
	assert_memory_equal(layers.index, index, sizeof(index));
	assert_int_equal(layers.groups[0].kind, ATTENTION_FULL);
	assert_int_equal(layers.groups[1].kind, ATTENTION_WINDOW);
	assert_int_equal(layers.groups[1].window, 32);
	assert_int_equal(layers.groups[1].first, 1);
	assert_int_equal(layers.groups[1].n_layers, 3);
	assert_int_equal(layers.groups[2].first, 4);
}

static void test_latent_layers_are_a_group_of_their_kind(void **state)
{
	struct attention_config latent = model;
	struct attention_layers layers;

	latent.windows = NULL;
	latent.latent.rank = 512;
	assert_int_equal(attention_layers_group(&latent, &layers), 0);
	assert_int_equal(layers.n_groups, 1);
	assert_int_equal(layers.groups[0].kind, ATTENTION_LATENT);
}

static void test_more_windows_than_groups_are_refused(void **state)
{
	uint32_t many[ATTENTION_GROUPS_MAX + 1];
	struct attention_config config = model;
	struct attention_layers layers;
	char why[128];

	for (uint32_t i = 0; i <= ATTENTION_GROUPS_MAX; i++)
		many[i] = 1 + i;
	config.windows = many;
	config.n_layers = ATTENTION_GROUPS_MAX;
	assert_int_equal(attention_layers_group(&config, &layers), 0);
	config.n_layers = ATTENTION_GROUPS_MAX + 1;
	assert_int_equal(attention_layers_group(&config, &layers), -ENOTSUP);
	assert_int_equal(attention_layers_choose("auto", &config, &layers, why, sizeof(why)), -ENOTSUP);
	assert_string_equal(why, "its layers have more than 8 different sliding windows: the next is 9 in layer 8");
	config.n_layers = 1030;
	assert_int_equal(attention_layers_choose("auto", &config, &layers, why, sizeof(why)), -ENOTSUP);
	assert_string_equal(why, "num_hidden_layers 1030: at least 1 and at most 1024");
}

/* ---- the model's level ---- */

struct level_case {
	const struct attention_backend *backends[3]; /* of the groups, whose first layers are 0, 1 and 4 */
	enum attention_support level;
	const char *text, *blamed, *names;
	bool is_mixed, masks;
};

/* The specification, written out: the lowest of the groups' levels, and the first layer that has no more. */
static const struct level_case levels[] = {
	{{&uniform, &uniform, &uniform}, ATTENTION_UNIFORM_BATCH, "uniform_batch", "uniform", "uniform", false, true},
	{{&uniform, &always, &always}, ATTENTION_UNIFORM_BATCH, "uniform_batch (layer 0, uniform)",
		"uniform of layer 0", "uniform, always", true, true},
	{{&always, &uniform, &always}, ATTENTION_UNIFORM_BATCH, "uniform_batch (layer 1, uniform)",
		"uniform of layer 1", "always, uniform", true, true},
	{{&always, &uniform, &never}, ATTENTION_NEVER, "never (layer 4, never)", "never of layer 4",
		"always, uniform, never", true, false},
	{{&always, &never, &uniform}, ATTENTION_NEVER, "never (layer 1, never)", "never of layer 1",
		"always, never, uniform", true, false},
	{{&single, &uniform, &single}, ATTENTION_UNIFORM_SINGLE_TOKEN_DECODE,
		"uniform_single_token_decode (layer 0, single)", "single of layer 0", "single, uniform", true, false},
	{{&always, &always, &always}, ATTENTION_ALWAYS, "always", "always", "always", false, true},
};

static void test_level_is_the_lowest_of_all_layers_and_names_the_layer(void **state)
{
	for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
		const struct level_case *c = &levels[i];
		struct attention_layers layers;

		assert_int_equal(attention_layers_group(&model, &layers), 0);
		for (uint32_t g = 0; g < layers.n_groups; g++) {
			uint32_t max_query;

			layers.groups[g].backend = c->backends[g];
			layers.groups[g].support = c->backends[g]->support(&model, &max_query);
		}
		attention_layers_join(&layers);
		assert_int_equal(layers.support, c->level);
		assert_string_equal(layers.level, c->text);
		assert_string_equal(layers.blamed, c->blamed);
		assert_string_equal(layers.names, c->names);
		assert_ptr_equal(layers.backend, c->is_mixed ? &attention_by_layer : c->backends[0]);
		assert_int_equal(layers.masks, c->masks);
	}
}

/* ---- choice ---- */

static void test_choice_says_what_each_group_has(void **state)
{
	struct attention_layers layers;
	char why[512];

	assert_int_equal(attention_layers_choose("auto", &model, &layers, why, sizeof(why)), 0);
	assert_ptr_equal(layers.backend, &attention_paged);
	assert_non_null(strstr(why, "2 layers from 0 on, full: paged (chosen automatically"));
	assert_non_null(strstr(why, "; 3 layers from 1 on, window 32: paged ("));
	assert_non_null(strstr(why, "; 1 layer from 4 on, window 16: paged ("));
}

static void test_choice_for_layers_of_one_kind_says_no_more_than_the_backend_s(void **state)
{
	struct attention_config config = model;
	struct attention_layers layers;
	char why[512];

	config.windows = NULL;
	assert_int_equal(attention_layers_choose("naive", &config, &layers, why, sizeof(why)), 0);
	assert_string_equal(why, "naive (as configured; graphs: never)");
	assert_string_equal(layers.level, "never");
}

static void test_refusal_names_the_layers(void **state)
{
	struct attention_layers layers;
	char why[512];

	assert_int_equal(attention_layers_choose("mla", &model, &layers, why, sizeof(why)), -ENOTSUP);
	assert_non_null(strstr(why, "2 layers from 0 on, full: attention backend mla cannot serve"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_layers_of_one_window_are_a_group),
		cmocka_unit_test(test_latent_layers_are_a_group_of_their_kind),
		cmocka_unit_test(test_more_windows_than_groups_are_refused),
		cmocka_unit_test(test_level_is_the_lowest_of_all_layers_and_names_the_layer),
		cmocka_unit_test(test_choice_says_what_each_group_has),
		cmocka_unit_test(test_choice_for_layers_of_one_kind_says_no_more_than_the_backend_s),
		cmocka_unit_test(test_refusal_names_the_layers),
	};

	return cmocka_run_group_tests_name("attention by layer", tests, NULL, NULL);
}
