/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <string.h>

#include "daemon/graph/mode.h"

/* The specification as a second, slower reading: one row per (mode, support), q = 1 and q > 1, with
 * and without piecewise graphs. 'E' is the error. */
struct expectation {
	enum graph_mode configured;
	enum attention_support support;
	const char *q1, *q5, *q1_without, *q5_without;
};

static const struct expectation table[] = {
	{GRAPH_NONE, ATTENTION_NEVER, "NONE", "NONE", "NONE", "NONE"},
	{GRAPH_NONE, ATTENTION_UNIFORM_SINGLE_TOKEN_DECODE, "NONE", "NONE", "NONE", "NONE"},
	{GRAPH_NONE, ATTENTION_UNIFORM_BATCH, "NONE", "NONE", "NONE", "NONE"},
	{GRAPH_NONE, ATTENTION_ALWAYS, "NONE", "NONE", "NONE", "NONE"},
	{GRAPH_PIECEWISE, ATTENTION_NEVER, "PIECEWISE", "PIECEWISE", "NONE", "NONE"},
	{GRAPH_PIECEWISE, ATTENTION_UNIFORM_SINGLE_TOKEN_DECODE, "PIECEWISE", "PIECEWISE", "NONE",
		"NONE"},
	{GRAPH_PIECEWISE, ATTENTION_UNIFORM_BATCH, "PIECEWISE", "PIECEWISE", "NONE", "NONE"},
	{GRAPH_PIECEWISE, ATTENTION_ALWAYS, "PIECEWISE", "PIECEWISE", "NONE", "NONE"},
	{GRAPH_FULL, ATTENTION_NEVER, "E", "E", "E", "E"},
	{GRAPH_FULL, ATTENTION_UNIFORM_SINGLE_TOKEN_DECODE, "FULL_AND_PIECEWISE", "PIECEWISE",
		"FULL_DECODE_ONLY", "NONE"},
	{GRAPH_FULL, ATTENTION_UNIFORM_BATCH, "FULL_AND_PIECEWISE", "FULL_AND_PIECEWISE",
		"FULL_DECODE_ONLY", "FULL_DECODE_ONLY"},
	{GRAPH_FULL, ATTENTION_ALWAYS, "FULL", "FULL", "FULL", "FULL"},
	{GRAPH_FULL_DECODE_ONLY, ATTENTION_NEVER, "PIECEWISE", "PIECEWISE", "NONE", "NONE"},
	{GRAPH_FULL_DECODE_ONLY, ATTENTION_UNIFORM_SINGLE_TOKEN_DECODE, "FULL_DECODE_ONLY",
		"PIECEWISE", "FULL_DECODE_ONLY", "NONE"},
	{GRAPH_FULL_DECODE_ONLY, ATTENTION_UNIFORM_BATCH, "FULL_DECODE_ONLY", "FULL_DECODE_ONLY",
		"FULL_DECODE_ONLY", "FULL_DECODE_ONLY"},
	{GRAPH_FULL_DECODE_ONLY, ATTENTION_ALWAYS, "FULL_DECODE_ONLY", "FULL_DECODE_ONLY",
		"FULL_DECODE_ONLY", "FULL_DECODE_ONLY"},
	{GRAPH_FULL_AND_PIECEWISE, ATTENTION_NEVER, "PIECEWISE", "PIECEWISE", "NONE", "NONE"},
	{GRAPH_FULL_AND_PIECEWISE, ATTENTION_UNIFORM_SINGLE_TOKEN_DECODE, "FULL_AND_PIECEWISE",
		"PIECEWISE", "FULL_DECODE_ONLY", "NONE"},
	{GRAPH_FULL_AND_PIECEWISE, ATTENTION_UNIFORM_BATCH, "FULL_AND_PIECEWISE",
		"FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "FULL_DECODE_ONLY"},
	{GRAPH_FULL_AND_PIECEWISE, ATTENTION_ALWAYS, "FULL_AND_PIECEWISE", "FULL_AND_PIECEWISE",
		"FULL_DECODE_ONLY", "FULL_DECODE_ONLY"},
};

static const char *resolve(const struct expectation *e, uint32_t query, bool piecewise,
	struct mode_resolution *ret)
{
	struct mode_request request = {
		.configured = e->configured,
		.support = e->support,
		.backend = "some_backend",
		.decode_query = query,
		.piecewise_available = piecewise,
	};
	int rc = mode_resolve(&request, ret);

	if (rc) {
		assert_int_equal(rc, -ENOTSUP);
		assert_non_null(strstr(ret->reason, "some_backend"));
		return "E";
	}
	assert_int_equal(ret->configured, e->configured);
	return graph_mode_name(ret->resolved);
}

static void test_mode_resolves_over_its_whole_input_space(void **state)
{
	struct mode_resolution r;

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		assert_string_equal(resolve(&table[i], 1, true, &r), table[i].q1);
		assert_string_equal(resolve(&table[i], 5, true, &r), table[i].q5);
		assert_string_equal(resolve(&table[i], 1, false, &r), table[i].q1_without);
		assert_string_equal(resolve(&table[i], 5, false, &r), table[i].q5_without);
	}
}

static void test_mode_reason_names_the_backend_that_lowered_it(void **state)
{
	struct expectation e = {.configured = GRAPH_FULL_DECODE_ONLY, .support = ATTENTION_NEVER};
	struct mode_resolution r;

	resolve(&e, 1, true, &r);
	assert_true(r.lowered);
	assert_non_null(strstr(r.reason, "some_backend"));
	e.support = ATTENTION_UNIFORM_BATCH;
	resolve(&e, 1, true, &r);
	assert_false(r.lowered);
	assert_string_equal(r.reason, "as configured");
}

/* The default mode as well, also if it was set explicitly. */
static void test_mode_lowered_for_want_of_pieces_is_worth_a_warning(void **state)
{
	struct expectation e = {.support = ATTENTION_UNIFORM_BATCH};
	struct mode_resolution r;

	for (unsigned i = 0; i < 2; i++) {
		e.configured = i ? GRAPH_PIECEWISE : GRAPH_FULL_AND_PIECEWISE;
		resolve(&e, 1, false, &r);
		assert_true(r.lowered);
		assert_non_null(strstr(r.reason, "breakable = no"));
	}
	e.configured = GRAPH_FULL_DECODE_ONLY;
	resolve(&e, 1, false, &r);
	assert_false(r.lowered);
}

/* F5: all of its inputs. */
static void test_draft_decodes_are_full_or_eager_and_never_in_pieces(void **state)
{
	static const struct {
		enum graph_mode target, drafts;
	} drafts[] = {
		{GRAPH_NONE, GRAPH_NONE},
		{GRAPH_PIECEWISE, GRAPH_NONE},
		{GRAPH_FULL, GRAPH_FULL_DECODE_ONLY},
		{GRAPH_FULL_DECODE_ONLY, GRAPH_FULL_DECODE_ONLY},
		{GRAPH_FULL_AND_PIECEWISE, GRAPH_FULL_DECODE_ONLY},
	};

	for (size_t i = 0; i < sizeof(drafts) / sizeof(drafts[0]); i++) {
		assert_int_equal(mode_resolve_draft(drafts[i].target, ATTENTION_NEVER), GRAPH_NONE);
		for (enum attention_support support = ATTENTION_UNIFORM_SINGLE_TOKEN_DECODE;
			support <= ATTENTION_ALWAYS; support++) {
			enum graph_mode mode = mode_resolve_draft(drafts[i].target, support);

			assert_int_equal(mode, drafts[i].drafts);
			assert_int_not_equal(graph_mode_decode(mode), GRAPH_PIECEWISE);
			assert_int_equal(graph_mode_mixed(mode), GRAPH_NONE);
		}
	}
}

static void test_mode_names_parse_with_dashes_and_in_any_case(void **state)
{
	static const enum graph_mode modes[] = {GRAPH_NONE, GRAPH_PIECEWISE, GRAPH_FULL,
		GRAPH_FULL_DECODE_ONLY, GRAPH_FULL_AND_PIECEWISE};
	enum graph_mode mode;

	for (size_t i = 0; i < 5; i++) {
		assert_int_equal(graph_mode_parse(graph_mode_name(modes[i]), &mode), 0);
		assert_int_equal(mode, modes[i]);
	}
	assert_int_equal(graph_mode_parse("full-and-piecewise", &mode), 0);
	assert_int_equal(mode, GRAPH_FULL_AND_PIECEWISE);
	assert_int_equal(graph_mode_parse("full_decode-only", &mode), 0);
	assert_int_equal(mode, GRAPH_FULL_DECODE_ONLY);
	assert_int_equal(graph_mode_parse("ful", &mode), -EINVAL);
	assert_int_equal(graph_mode_parse("fulll", &mode), -EINVAL);
	assert_int_equal(graph_mode_parse("", &mode), -EINVAL);
}

static void test_mode_parts_are_concrete(void **state)
{
	assert_int_equal(graph_mode_decode(GRAPH_FULL_DECODE_ONLY), GRAPH_FULL);
	assert_int_equal(graph_mode_mixed(GRAPH_FULL_DECODE_ONLY), GRAPH_NONE);
	assert_int_equal(graph_mode_decode(GRAPH_FULL_AND_PIECEWISE), GRAPH_FULL);
	assert_int_equal(graph_mode_mixed(GRAPH_FULL_AND_PIECEWISE), GRAPH_PIECEWISE);
	assert_int_equal(graph_mode_decode(GRAPH_PIECEWISE), GRAPH_PIECEWISE);
	assert_int_equal(graph_mode_mixed(GRAPH_FULL), GRAPH_FULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_mode_resolves_over_its_whole_input_space),
		cmocka_unit_test(test_mode_reason_names_the_backend_that_lowered_it),
		cmocka_unit_test(test_mode_lowered_for_want_of_pieces_is_worth_a_warning),
		cmocka_unit_test(test_draft_decodes_are_full_or_eager_and_never_in_pieces),
		cmocka_unit_test(test_mode_names_parse_with_dashes_and_in_any_case),
		cmocka_unit_test(test_mode_parts_are_concrete),
	};

	return cmocka_run_group_tests_name("mode", tests, NULL, NULL);
}
