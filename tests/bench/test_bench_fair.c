/* SPDX-License-Identifier: MIT */

/*
 * mimeo-bench fair as a user runs it: the numbers of its row go together. Whether tokens follow the weights is
 * tested by engine_share, without a clock.
 */

#include "tests/bench/run.h"

#include <unistd.h>

#define SMALL "fair --processes 1 --in-flight 2 --requests 3 --prompt 16-64 --tokens 4-8 --flood 60-120 --seconds 1"

static void test_row_has_both_users_and_a_token_alone_and_beside_the_flood(void **state)
{
	if (geteuid() != 0) {
		printf("# skipped: fair: clients of two users need root\n");
		return;
	}
	json_t *rows = rows_of(SMALL " --token-us 2000");
	double light = number(rows, 0, "light_tokens"), heavy = number(rows, 0, "heavy_tokens");

	assert_int_equal(json_array_size(rows), 1);
	assert_true(number(rows, 0, "processes") == 1 && number(rows, 0, "slots") == 4);
	assert_true(number(rows, 0, "counted_s") >= 1 && number(rows, 0, "settled_s") > 0);
	assert_true(light + heavy > 0);
	assert_near(number(rows, 0, "light_tokens_per_s") * number(rows, 0, "counted_s") + heavy, light + heavy);
	if (light > 0)
		assert_near(number(rows, 0, "tokens_ratio") + 1, heavy / light + 1);
	assert_ratio(rows, 0, "beside_p99_s", "alone_p99_s");
	assert_true(number(rows, 0, "alone_median_s") <= number(rows, 0, "alone_p99_s"));
	assert_true(number(rows, 0, "beside_median_s") <= number(rows, 0, "beside_p99_s"));
	/* 3 answers of 8 tokens, without the first of each. */
	assert_true(number(rows, 0, "samples") > 0 && number(rows, 0, "samples") <= 3 * 7);
	assert_true(number(rows, 0, "target_tokens_ratio") == 3 && number(rows, 0, "target_ratio") == 1.5);
	assert_string_equal(text(rows, 0, "token_us"), "2000");
	json_decref(rows);
}

static void test_nothing_is_left_of_its_clients_and_daemon(void **state)
{
	char output[OUTPUT_MAX];

	if (geteuid() != 0) {
		printf("# skipped: fair: clients of two users need root\n");
		return;
	}
	/* Ended while the flood runs. */
	run_in_folder("--device cpu --model " MODELS "tinycalc " SMALL "0 >/dev/null 2>&1 & p=$!; "
		"flood() { grep -ls \"^PPid:.$p$\" /proc/[0-9]*/status | xargs -r grep -ls '^Uid:.60001'; }; "
		"until left=$(flood) && [ -n \"$left\" ]; do kill -0 $p || exit 1; sleep 0.05; done; "
		"kill -TERM $p; wait $p; s=$?; ls $left 2>/dev/null; (exit $s)", output);
	assert_string_equal(output, "status 143\nempty\n");
}

static void test_other_users_than_root_are_told_why_not(void **state)
{
	char output[OUTPUT_MAX];

	/* A copy that any user can execute. */
	assert_int_equal(shell(output, "d=$(mktemp -d); chmod 755 $d; "
		"b=\"$MIMEO_BUILD\"; cp \"$b\"/daemon/mimeo-bench \"$b\"/sdk/libmimeo.so.0 \"$b\"/sdk/text/libmimeo-text.so.0 $d; "
		"cd $d; export LD_LIBRARY_PATH=$d; "
		"[ $(id -u) = 0 ] && as='setpriv --reuid=65534 --clear-groups' || as=; "
		"$as ./mimeo-bench --model /none --mimeod /none fair 2>&1; s=$?; cd /; rm -r $d; exit $s"), 1);
	assert_non_null(strstr(output, "two users cannot be measured: only root can start clients with uids"));
}

static void test_options_that_make_no_sense_are_refused(void **state)
{
	assert_run(2, "fair --socket /tmp/x.sock", "--socket is not for this bench");
	assert_run(2, "fair --seconds 0", "--seconds 0: not a number of seconds from 1 to 3600");
	assert_run(2, "fair --flood 9-3", "--flood 9-3: not N or N-M");
	assert_run(2, "load --flood 9", "--flood is not for this bench");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_row_has_both_users_and_a_token_alone_and_beside_the_flood),
		cmocka_unit_test(test_nothing_is_left_of_its_clients_and_daemon),
		cmocka_unit_test(test_other_users_than_root_are_told_why_not),
		cmocka_unit_test(test_options_that_make_no_sense_are_refused),
	};

	return cmocka_run_group_tests_name("bench_fair", tests, NULL, NULL);
}
