/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/startup/budget.h"

#define MIB (1ull << 20)
#define GIB (1ull << 30)

static char text[256];

static struct budget_model model_of(uint64_t weights_bytes)
{
	return (struct budget_model){
		.name = "m",
		.weights_bytes = weights_bytes,
		.pool_bytes = MIB,
		.page_bytes = MIB,
	};
}

static int plan(uint64_t memory, struct budget_model *models, uint32_t n_models)
{
	const struct budget budget = {.memory = memory, .free_bytes = 64 * GIB};

	return budget_plan(&budget, models, n_models, text, sizeof(text));
}

static void test_rest_is_divided_equally_beside_the_null_pages(void **state)
{
	struct budget_model models[] = {model_of(10 * MIB), model_of(20 * MIB)};

	/* 100 less 30 of weights, 2 of activations and 2 null pages: 66 for two. */
	assert_int_equal(plan(100 * MIB, models, 2), 0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(models[i].kv_pages, 33);
		assert_int_equal(models[i].kv_bytes, 33 * MIB);
	}
}

static void test_size_of_its_own_goes_before_the_shares(void **state)
{
	struct budget_model models[] = {model_of(0), model_of(0), model_of(0)};

	models[1].kv_bytes = 10 * MIB + 1;
	models[2].kv_pages = 7;
	assert_int_equal(plan(100 * MIB, models, 3), 0);
	assert_int_equal(models[0].kv_pages, 76); /* 97 less three null pages, 11 and 7 */
	assert_int_equal(models[1].kv_pages, 10);
	assert_int_equal(models[1].kv_bytes, 10 * MIB);
	assert_int_equal(models[2].kv_pages, 7);
}

static void test_host_keeps_seven_eighths_and_all_above_a_gigabyte(void **state)
{
	struct budget budget = {.free_bytes = 64 * GIB, .host = true};
	struct budget_model model = model_of(MIB);

	assert_int_equal(budget_plan(&budget, &model, 1, text, sizeof(text)), 0);
	assert_int_equal(model.kv_bytes, GIB);
	model = model_of(MIB);
	budget.free_bytes = 800 * MIB;
	assert_int_equal(budget_plan(&budget, &model, 1, text, sizeof(text)), 0);
	assert_int_equal(model.kv_bytes, 100 * MIB);
}

static void test_weights_beyond_the_budget_are_refused_by_name(void **state)
{
	struct budget_model models[] = {model_of(MIB), model_of(99 * MIB)};

	models[1].name = "large";
	assert_int_equal(plan(100 * MIB, models, 2), -ENOMEM);
	assert_non_null(strstr(text, "model large: its weights need"));
}

static void test_logits_of_drafts_are_charged_and_refused_by_name(void **state)
{
	struct budget_model model = model_of(10 * MIB);

	model.draft_logits_bytes = 50 * MIB;
	assert_int_equal(plan(100 * MIB, &model, 1), 0);
	assert_int_equal(model.kv_pages, 38); /* less 10, 50, 1 of activations and a null page */
	model = model_of(10 * MIB);
	model.draft_logits_bytes = 90 * MIB;
	assert_int_equal(plan(100 * MIB, &model, 1), -ENOMEM);
	assert_non_null(strstr(text, "model m: its logits of draft tokens (max_requests x "
				     "draft_tokens x vocabulary) need 90.0 MiB, the memory budget "
				     "has 89.0 MiB left"));
}

static void test_share_of_a_draft_is_named_where_its_model_is_refused(void **state)
{
	struct budget_model model = model_of(12 * MIB);

	model.draft_weights_bytes = 3 * MIB;
	assert_int_equal(plan(10 * MIB, &model, 1), -ENOMEM);
	assert_string_equal(text, "model m: its weights need 12.0 MiB (3.00 MiB of them for the "
		"draft model, see --draft none), the memory budget has 10.0 MiB left: see --memory");
	model = model_of(9 * MIB);
	model.pool_bytes = 4 * MIB;
	model.draft_pool_bytes = 2 * MIB;
	assert_int_equal(plan(10 * MIB, &model, 1), -ENOMEM);
	assert_string_equal(text, "model m: its activations and inputs need 4.00 MiB (2.00 MiB of "
		"them for the draft model, see --draft none), the memory budget has 1.00 MiB left: "
		"see --memory");
}

static void test_null_page_is_charged_too(void **state)
{
	struct budget_model model = model_of(0);

	model.kv_pages = 99;
	assert_int_equal(plan(100 * MIB, &model, 1), -ENOMEM);
	assert_non_null(strstr(text, "pages of KV cache"));
	model.kv_pages = 98;
	assert_int_equal(plan(100 * MIB, &model, 1), 0);
}

static void test_share_below_a_page_is_refused(void **state)
{
	struct budget_model model = model_of(0);

	model.kv_bytes = MIB - 1;
	assert_int_equal(plan(100 * MIB, &model, 1), -ENOMEM);
	assert_non_null(strstr(text, "give more by --kv-bytes or --kv-pages"));
}

static void test_sizes_whose_sum_overflows_are_refused(void **state)
{
	struct budget_model models[] = {model_of(0), model_of(0)};

	models[1].name = "endless";
	models[1].kv_bytes = UINT64_MAX;
	assert_int_equal(plan(100 * MIB, models, 1), 0);
	assert_int_equal(plan(100 * MIB, models, 2), -ENOMEM);
	models[0] = model_of(0);
	models[1].kv_bytes = 0;
	models[1].kv_pages = INT32_MAX;
	models[1].page_bytes = UINT64_MAX / 2;
	assert_int_equal(plan(UINT64_MAX, models, 2), -ENOMEM);
	assert_non_null(strstr(text, "model "));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rest_is_divided_equally_beside_the_null_pages),
		cmocka_unit_test(test_size_of_its_own_goes_before_the_shares),
		cmocka_unit_test(test_host_keeps_seven_eighths_and_all_above_a_gigabyte),
		cmocka_unit_test(test_weights_beyond_the_budget_are_refused_by_name),
		cmocka_unit_test(test_logits_of_drafts_are_charged_and_refused_by_name),
		cmocka_unit_test(test_share_of_a_draft_is_named_where_its_model_is_refused),
		cmocka_unit_test(test_null_page_is_charged_too),
		cmocka_unit_test(test_share_below_a_page_is_refused),
		cmocka_unit_test(test_sizes_whose_sum_overflows_are_refused),
	};

	return cmocka_run_group_tests_name("budget", tests, NULL, NULL);
}
