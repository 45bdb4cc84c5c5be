/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "attention/attention.h"

/* ---- a backend that is only chosen ---- */

static enum attention_support claimed_level;
static uint32_t claimed_query;
static int fake_refuses;

static int fake_check(const struct attention_config *config, char *why, size_t size)
{
	if (!fake_refuses)
		return 0;
	snprintf(why, size, "it refuses");
	return -ENOTSUP;
}

static enum attention_support fake_support(
	const struct attention_config *config, uint32_t *ret_max_query)
{
	*ret_max_query = claimed_query;
	return claimed_level;
}

static int fake_manager_new(struct device *device, const struct attention_config *config,
	const struct step_inputs *inputs, struct attention_manager **ret)
{
	return -ENOTSUP;
}

static void fake_manager_free(struct attention_manager *manager)
{
}

static int fake_metadata_new(struct attention_manager *manager, struct attention_metadata **ret)
{
	return -ENOTSUP;
}

static void fake_metadata_free(struct attention_metadata *metadata)
{
}

static int fake_build(struct attention_metadata *metadata, const struct attention_batch *batch,
	struct stream *stream)
{
	return -ENOTSUP;
}

static int fake_run(struct attention_metadata *metadata, struct stream *stream,
	const struct attention_args *args)
{
	return -ENOTSUP;
}

#define FAKE(fake_name) \
	{ \
		.name = fake_name, .breaks = true, .check = fake_check, .support = fake_support, \
		.manager_new = fake_manager_new, .manager_free = fake_manager_free, \
		.metadata_new = fake_metadata_new, .metadata_free = fake_metadata_free, \
		.build = fake_build, .run = fake_run, \
	}

/* Registered once; they refuse unless a test sets fake_refuses to 0. */
static const struct attention_backend fake = FAKE("fake");

#define ODD_HEADS 5 /* that no built-in backend can serve */

static int masked_check(const struct attention_config *config, char *why, size_t size)
{
	return config->n_kv_heads == ODD_HEADS ? 0 : -ENOTSUP;
}

static enum attention_support masked_support(
	const struct attention_config *config, uint32_t *ret_max_query)
{
	*ret_max_query = config->max_tokens;
	return ATTENTION_ALWAYS;
}

/* What a test asks for, which begins as `model`, and what was chosen for it. */
static struct attention_config config;
static const struct attention_backend *backend;
static enum attention_support support;
static char why[512];

static const struct attention_config model = {
	.n_layers = 2, .n_heads = 8, .n_kv_heads = 2, .head_dim = 64, .scale = 0.125f,
	.page_tokens = 16, .max_rows = 8, .max_tokens = 64, .max_pages = 8, .max_seq_len = 128,
	.max_decode_query = 1, .activation_dtype = DTYPE_F32, .kv_dtype = DTYPE_F32,
	.n_kv_pages = 100,
};

static int reset_config(void **state)
{
	config = model;
	return 0;
}

static int register_fake(void **state)
{
	config = model;
	fake_refuses = 0;
	return attention_find("fake") ? 0 : attention_register(&fake);
}

static int end_fake(void **state)
{
	fake_refuses = 1;
	return 0;
}

/* ---- registration ---- */

static void test_builtin_backends_are_there(void **state)
{
	assert_ptr_equal(attention_find("naive"), &attention_naive);
	assert_ptr_equal(attention_find("paged"), &attention_paged);
	assert_ptr_equal(attention_find("flex"), &attention_flex);
	assert_ptr_equal(attention_find("mla"), &attention_mla);
	assert_ptr_equal(attention_find("mla_planned"), &attention_mla_planned);
	assert_null(attention_find("none"));
}

static void test_unmarked_backend_is_refused(void **state)
{
	struct attention_backend unmarked = FAKE("unmarked");

	unmarked.breaks = false;
	assert_int_equal(attention_register(&unmarked), -EPERM);
	assert_null(attention_find("unmarked"));
}

static void test_incomplete_backend_is_refused(void **state)
{
	struct attention_backend incomplete = FAKE("incomplete");

	incomplete.metadata_free = NULL;
	assert_int_equal(attention_register(&incomplete), -EINVAL);
	incomplete = (struct attention_backend)FAKE("");
	assert_int_equal(attention_register(&incomplete), -EINVAL);
	incomplete = (struct attention_backend)FAKE("incomplete");
	incomplete.run = NULL;
	assert_int_equal(attention_register(&incomplete), -EINVAL);
	assert_null(attention_find("incomplete"));
}

static void test_name_in_use_is_refused(void **state)
{
	static const struct attention_backend again = FAKE("paged"), automatic = FAKE("auto");

	assert_int_equal(attention_register(&again), -EEXIST);
	assert_int_equal(attention_register(&automatic), -EEXIST);
	assert_ptr_equal(attention_find("paged"), &attention_paged);
}

static void test_registered_backend_is_found(void **state)
{
	assert_ptr_equal(attention_find("fake"), &fake);
	assert_int_equal(attention_register(&fake), -EEXIST);
}

/* ---- choice ---- */

static int choose(const char *name)
{
	backend = NULL;
	support = ATTENTION_NEVER;
	why[0] = '\0';
	return attention_choose(name, &config, &backend, &support, why, sizeof(why));
}

static enum attention_support level_of(const char *name)
{
	assert_int_equal(choose(name), 0);
	assert_string_equal(backend->name, name);
	return support;
}

static void test_auto_takes_highest_level(void **state)
{
	fake_refuses = 1;
	assert_int_equal(choose("auto"), 0);
	assert_ptr_equal(backend, &attention_paged);
	assert_int_equal(support, ATTENTION_UNIFORM_BATCH);
	assert_non_null(strstr(why, "paged"));

	fake_refuses = 0;
	claimed_level = ATTENTION_ALWAYS;
	claimed_query = 64;
	assert_int_equal(choose("auto"), 0);
	assert_ptr_equal(backend, &fake);
	assert_int_equal(support, ATTENTION_ALWAYS);
}

static void test_auto_prefers_paged_to_flex_for_all_its_level(void **state)
{
	fake_refuses = 1;
	assert_int_equal(level_of("flex"), ATTENTION_ALWAYS);
	for (config.max_decode_query = 1; config.max_decode_query <= 64;
		config.max_decode_query *= 8) {
		assert_int_equal(choose("auto"), 0);
		assert_ptr_equal(backend, &attention_paged);
	}
}

/* Whichever was registered first. */
static void test_auto_takes_masks_where_none_without_has_graphs(void **state)
{
	static struct attention_backend masked = FAKE("masked"), late = FAKE("late");
	masked.masks = true;
	masked.check = masked_check;
	masked.support = masked_support;
	late.check = masked_check;
	assert_int_equal(attention_register(&masked), 0);
	assert_int_equal(attention_register(&late), 0);
	config.n_kv_heads = ODD_HEADS;
	claimed_query = 64;
	for (fake_refuses = 0; fake_refuses < 2; fake_refuses++) {
		for (int level = ATTENTION_NEVER; level <= ATTENTION_UNIFORM_BATCH; level++) {
			claimed_level = (enum attention_support)level;
			assert_int_equal(choose("auto"), 0);
			assert_ptr_equal(backend, level == ATTENTION_NEVER ? &masked
						  : fake_refuses           ? &late
									   : &fake);
			assert_int_equal(
				strstr(why, "none without masks") != NULL, backend == &masked);
		}
	}
}

static void test_auto_takes_earlier_registered_on_a_tie(void **state)
{
	claimed_level = ATTENTION_UNIFORM_BATCH;
	claimed_query = 64;
	assert_int_equal(choose("auto"), 0);
	assert_ptr_equal(backend, &attention_paged);
}

static void test_auto_ranks_by_level_that_holds(void **state)
{
	config.max_decode_query = 5;
	claimed_level = ATTENTION_ALWAYS;
	claimed_query = 1;
	assert_int_equal(choose("auto"), 0);
	assert_ptr_equal(backend, &attention_paged);
}

static void test_claim_beyond_ability_is_lowered(void **state)
{
	config.max_decode_query = 5;
	claimed_level = ATTENTION_UNIFORM_BATCH;
	claimed_query = 1;
	assert_int_equal(level_of("fake"), ATTENTION_UNIFORM_SINGLE_TOKEN_DECODE);
	assert_non_null(strstr(why, "lowered from uniform_batch"));
	claimed_query = 4;
	assert_int_equal(level_of("fake"), ATTENTION_UNIFORM_SINGLE_TOKEN_DECODE);
	claimed_query = 5;
	assert_int_equal(level_of("fake"), ATTENTION_UNIFORM_BATCH);
	assert_null(strstr(why, "lowered"));
}

static void test_claim_without_any_query_is_never(void **state)
{
	claimed_query = 0;
	claimed_level = ATTENTION_UNIFORM_SINGLE_TOKEN_DECODE;
	assert_int_equal(level_of("fake"), ATTENTION_NEVER);
	claimed_level = ATTENTION_ALWAYS;
	assert_int_equal(level_of("fake"), ATTENTION_NEVER);
}

static void test_claim_of_unknown_level_is_never(void **state)
{
	claimed_query = 64;
	claimed_level = (enum attention_support)7;
	assert_int_equal(level_of("fake"), ATTENTION_NEVER);
}

static void test_paged_is_lowered_for_queries_past_its_limit(void **state)
{
	config.max_decode_query = 16;
	assert_int_equal(level_of("paged"), ATTENTION_UNIFORM_BATCH);
	config.max_decode_query = 17;
	assert_int_equal(level_of("paged"), ATTENTION_UNIFORM_SINGLE_TOKEN_DECODE);
}

static void test_naive_is_never_captured(void **state)
{
	assert_int_equal(level_of("naive"), ATTENTION_NEVER);
}

static void test_unknown_name_names_those_there_are(void **state)
{
	assert_int_equal(choose("pagde"), -ENOENT);
	assert_null(backend);
	assert_non_null(strstr(why, "pagde"));
	assert_non_null(strstr(why, "naive, paged"));
}

static void test_unfit_model_is_refused_with_reasons(void **state)
{
	fake_refuses = 1;
	config.n_kv_heads = 3;
	assert_int_equal(choose("paged"), -ENOTSUP);
	assert_string_equal(why,
		"attention backend paged cannot serve this model: 8 query heads do not "
		"divide among 3 kv heads; no other can either");
	assert_int_equal(choose("auto"), -ENOTSUP);
	assert_memory_equal(why, "no attention backend can serve this model; naive: ", 50);
	assert_non_null(strstr(why, "paged:"));
	assert_non_null(strstr(why, "fake: it refuses"));
	assert_null(backend);
}

static void test_refusal_names_those_that_can(void **state)
{
	fake_refuses = 1;
	assert_int_equal(choose("mla"), -ENOTSUP);
	assert_memory_equal(why,
		"attention backend mla cannot serve this model: its attention is not latent "
		"(MLA); ",
		81);
	assert_non_null(strstr(why, "paged"));
	assert_null(strstr(why, "mla_planned"));
	assert_null(strstr(why, "fake"));
	/* None of latent attention has masks: then it is the mask that has to go. */
	config.latent = (struct attention_latent){.rank = 32, .nope = 16, .rope = 8, .v = 16};
	config.head_dim = 40;
	config.n_kv_heads = 1;
	config.masks = true;
	assert_int_equal(choose("mla"), -ENOTSUP);
	assert_string_equal(why,
		"attention backend mla cannot serve this model with a mask that is not "
		"causal: it has no mask but the causal one; naive, mla_planned and mla can with "
		"the causal mask");
	assert_int_equal(choose("auto"), -ENOTSUP);
	assert_memory_equal(why,
		"no attention backend can serve this model with a mask that is not causal", 72);
	assert_non_null(strstr(why, "; naive, mla_planned and mla can with the causal mask"));
}

static void test_masks_are_for_those_that_have_them(void **state)
{
	fake_refuses = 1;
	config.masks = true;
	assert_int_equal(choose("auto"), 0);
	assert_ptr_equal(backend, &attention_flex);
	assert_non_null(strstr(why, "among those with masks"));
	assert_int_equal(choose("paged"), -ENOTSUP);
	assert_string_equal(why,
		"attention backend paged cannot serve this model with a mask that is "
		"not causal: it has no mask but the causal one; flex can");
}

static void test_unfit_configurations_are_distinguished(void **state)
{
	assert_int_equal(attention_paged.check(&config, why, sizeof(why)), 0);
	config.max_seq_len = 129;
	assert_int_equal(attention_paged.check(&config, why, sizeof(why)), -ENOTSUP);
	assert_non_null(strstr(why, "129"));
	config = model;
	config.kv_dtype = DTYPE_BF16;
	assert_int_equal(attention_paged.check(&config, why, sizeof(why)), -ENOTSUP);
	assert_non_null(strstr(why, "float32"));
	config.activation_dtype = DTYPE_BF16;
	assert_int_equal(attention_paged.check(&config, why, sizeof(why)), 0);
	assert_int_equal(attention_naive.check(&config, why, sizeof(why)), -ENOTSUP);
	assert_non_null(strstr(why, "cpu device"));
	config = model;
	config.head_dim = 0;
	assert_int_equal(attention_paged.check(&config, why, sizeof(why)), -ENOTSUP);
	config = model;
	config.page_tokens = 0;
	assert_int_equal(attention_paged.check(&config, why, sizeof(why)), -ENOTSUP);
}

static void test_reason_is_cut_off_at_its_size(void **state)
{
	char cut[16];

	memset(cut, 'x', sizeof(cut));
	assert_int_equal(attention_choose("paged", &config, &backend, &support, cut, 8), 0);
	assert_int_equal(strlen(cut), 7);
	assert_int_equal(cut[8], 'x');
	assert_int_equal(attention_choose("paged", &config, &backend, &support, NULL, 0), 0);
}

static void test_levels_have_names(void **state)
{
	assert_string_equal(attention_support_name(ATTENTION_NEVER), "never");
	assert_string_equal(attention_support_name(ATTENTION_UNIFORM_SINGLE_TOKEN_DECODE),
		"uniform_single_token_decode");
	assert_string_equal(attention_support_name(ATTENTION_UNIFORM_BATCH), "uniform_batch");
	assert_string_equal(attention_support_name(ATTENTION_ALWAYS), "always");
	assert_string_equal(attention_support_name((enum attention_support)9), "unknown");
}

#define OF_MODEL(test) cmocka_unit_test_setup(test, reset_config)
#define WITH_FAKE(test) cmocka_unit_test_setup_teardown(test, register_fake, end_fake)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_builtin_backends_are_there),
		cmocka_unit_test(test_unmarked_backend_is_refused),
		cmocka_unit_test(test_incomplete_backend_is_refused),
		cmocka_unit_test(test_name_in_use_is_refused),
		WITH_FAKE(test_registered_backend_is_found),
		WITH_FAKE(test_auto_takes_highest_level),
		WITH_FAKE(test_auto_prefers_paged_to_flex_for_all_its_level),
		WITH_FAKE(test_auto_takes_masks_where_none_without_has_graphs),
		WITH_FAKE(test_auto_takes_earlier_registered_on_a_tie),
		WITH_FAKE(test_auto_ranks_by_level_that_holds),
		WITH_FAKE(test_claim_beyond_ability_is_lowered),
		WITH_FAKE(test_claim_without_any_query_is_never),
		WITH_FAKE(test_claim_of_unknown_level_is_never),
		OF_MODEL(test_paged_is_lowered_for_queries_past_its_limit),
		OF_MODEL(test_naive_is_never_captured),
		OF_MODEL(test_unknown_name_names_those_there_are),
		WITH_FAKE(test_unfit_model_is_refused_with_reasons),
		WITH_FAKE(test_refusal_names_those_that_can),
		OF_MODEL(test_masks_are_for_those_that_have_them),
		OF_MODEL(test_unfit_configurations_are_distinguished),
		OF_MODEL(test_reason_is_cut_off_at_its_size),
		cmocka_unit_test(test_levels_have_names),
	};

	return cmocka_run_group_tests_name("attention registry", tests, NULL, NULL);
}
