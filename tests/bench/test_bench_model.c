/* SPDX-License-Identifier: MIT */

/* The benches that run a model's parts in process: what they print is whole and consistent. */

#include "tests/bench/run.h"

/* tiny: 2 layers of 2 heads of keys and values of 16, float32 on the cpu device; weights bf16:
 * 2 (2 x 64 + 128 x 64 + 64 x 64 + 3 x 160 x 64) elements, the norm's 64, the head's 256 x 64 */
#define TINY_WEIGHT_BYTES (2 * (2 * (2 * 64 + 192 * 64 + 480 * 64) + 64 + 256 * 64))
#define TINY_KV_BYTES_A_TOKEN (2 * 2 * 2 * 16 * 4)

static void test_decode_counts_the_bytes_that_its_floor_is_made_of(void **state)
{
	json_t *rows = rows_of_tiny("decode --batches 1,3 --contexts 64,100 --count 6");

	(void)state;
	assert_int_equal(json_array_size(rows), 4);
	for (size_t i = 0; i < 4; i++) {
		double batch = i < 2 ? 1 : 3, context = i % 2 ? 100 : 64;
		double bytes = TINY_WEIGHT_BYTES + batch * context * TINY_KV_BYTES_A_TOKEN;

		assert_true(number(rows, i, "batch") == batch);
		assert_true(number(rows, i, "context") == context);
		assert_true(number(rows, i, "samples") == 6);
		assert_true(number(rows, i, "weight_bytes") == TINY_WEIGHT_BYTES);
		assert_true(number(rows, i, "kv_bytes") ==
			batch * context * TINY_KV_BYTES_A_TOKEN);
		assert_true(fabs(number(rows, i, "floor_median_s") *
					    number(rows, i, "copy_bytes_per_s") / bytes -
				    1) < 1e-6);
		assert_true(fabs(number(rows, i, "tokens_per_s") *
					    number(rows, i, "step_median_s") / batch -
				    1) < 1e-6);
		assert_ratio(rows, i, "step_median_s", "floor_median_s");
		assert_true(number(rows, i, "load_bytes") > TINY_WEIGHT_BYTES - 1);
		assert_true(strncmp(text(rows, i, "device"), "cpu", 3) == 0);
	}
	json_decref(rows);
}

static void test_decode_of_more_than_the_model_takes_is_told(void **state)
{
	char output[OUTPUT_MAX];

	(void)state;
	assert_int_equal(
		run("--device cpu --shape tiny decode --batches 1 --contexts 4096", "2>&1", output),
		1);
	assert_non_null(strstr(output, "the model takes 2048 tokens, not "));
	assert_ptr_equal(strchr(output, '\n'), output + strlen(output) - 1);
}

static void test_gemm_has_each_matrix_of_the_model(void **state)
{
	static const struct {
		const char *name;
		int outputs, inputs;
	} matrices[] = {{"qkv", 128, 64}, {"o", 64, 64}, {"gate_up", 320, 64}, {"down", 64, 160},
		{"head", 256, 64}};
	json_t *rows = rows_of_tiny("gemm --batches 1,5");

	(void)state;
	assert_int_equal(json_array_size(rows), 10);
	for (size_t i = 0; i < 10; i++) {
		int n = i % 2 ? 5 : 1, out = matrices[i / 2].outputs, in = matrices[i / 2].inputs;

		assert_string_equal(text(rows, i, "matrix"), matrices[i / 2].name);
		assert_true(number(rows, i, "rows") == n);
		assert_true(number(rows, i, "outputs") == out && number(rows, i, "inputs") == in);
		/* the gated one leaves half of what it computes; random weights are float32 there */
		assert_true(number(rows, i, "bytes") ==
			4 * (out * in + n * (in + (i / 2 == 2 ? out / 2 : out))));
		assert_ratio(rows, i, "seconds", "floor_s");
	}
	json_decref(rows);
}

/* Of tinycalc-mla. */
enum { MLA_HEADS = 4, MLA_RANK = 64, MLA_ROPE = 32 };

/* Options and a bench, of a model that is shipped or, without one, of what it finds. */
static json_t *rows_of_shipped(const char *model, const char *bench)
{
	const char *source = getenv("MIMEO_SOURCE");
	char arguments[1024], output[OUTPUT_MAX];
	json_t *rows;

	snprintf(arguments, sizeof(arguments), "--json --device cpu %s%s%s %s",
		model ? "--model " : "", model && source ? source : "", model ? model : "", bench);
	assert_int_equal(run(arguments, "", output), 0);
	rows = json_loads(output, 0, NULL);
	assert_non_null(rows);
	return rows;
}

static void test_experts_finds_the_shipped_model_that_has_them(void **state)
{
	json_t *rows = rows_of_shipped(NULL, "experts --batches 1");

	(void)state;
	assert_int_equal(json_array_size(rows), 6);
	assert_non_null(strstr(text(rows, 0, "model"), "examples/models/tinycalc-moe"));
	json_decref(rows);
}

/* Heads, rank and rope of a latent model that is named are its own, but for what is given beside. */
static void test_attention_of_a_latent_model_has_its_sizes(void **state)
{
	static const char *const benches[] = {"attention --batches 2 --contexts 24",
		"attention --batches 2 --contexts 24 --attention mla --rank 32"};

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		json_t *rows = rows_of_shipped("/examples/models/tinycalc-mla", benches[i]);

		assert_string_equal(text(rows, 0, "backend"), i ? "mla" : "mla_planned");
		assert_true(number(rows, 0, "heads") == MLA_HEADS);
		assert_true(number(rows, 0, "rank") == (i ? 32 : MLA_RANK));
		assert_true(number(rows, 0, "rope") == MLA_ROPE);
		assert_string_equal(text(rows, 0, "part"), "attend");
		/* the cached rows of two sequences, float32 */
		assert_true(number(rows, 0, "bytes") ==
			2 * 24 * ((i ? 32 : MLA_RANK) + MLA_ROPE) * 4);
		json_decref(rows);
	}
}

static void test_attention_of_a_latent_model_refuses_masks(void **state)
{
	const char *source = getenv("MIMEO_SOURCE");
	char arguments[1024], output[OUTPUT_MAX];

	(void)state;
	snprintf(arguments, sizeof(arguments),
		"--device cpu --model '%s/examples/models/tinycalc-mla' attention --mask window:4",
		source ? source : ".");
	assert_int_equal(run(arguments, "2>&1", output), 1);
	assert_non_null(strstr(output, "--mask is not for latent attention, which the model's is"));
}

/* Of the shipped model with experts: each op, and all of them at once, whose costs are the sums. */
static void test_experts_has_each_op_and_all_of_them(void **state)
{
	static const char *const ops[] = {
		"route", "group", "gate_up", "down", "combine", "all of them"};
	const char *source = getenv("MIMEO_SOURCE");
	char arguments[1024], output[OUTPUT_MAX];
	json_t *rows;

	(void)state;
	snprintf(arguments, sizeof(arguments),
		"--json --device cpu --model '%s/examples/models/tinycalc-moe' experts "
		"--batches 1,5",
		source ? source : ".");
	assert_int_equal(run(arguments, "", output), 0);
	rows = json_loads(output, 0, NULL);
	assert_int_equal(json_array_size(rows), 12);
	for (size_t i = 0; i < 12; i++) {
		double chosen = number(rows, i, "experts"), bytes = 0;

		assert_string_equal(text(rows, i, "op"), ops[i % 6]);
		assert_true(number(rows, i, "tokens") == (i < 6 ? 1 : 5));
		/* two of eight a token */
		assert_true(i < 6 ? chosen == 2 : chosen >= 2 && chosen <= 8);
		for (size_t j = i - i % 6; i % 6 == 5 && j < i; j++)
			bytes += number(rows, j, "bytes");
		assert_true(i % 6 != 5 || number(rows, i, "bytes") == bytes);
		assert_ratio(rows, i, "seconds", "floor_s");
	}
	/* gate and up of two experts, 96 by 160; a token, and 96 numbers a pair */
	assert_true(number(rows, 2, "bytes") == 4 * (2 * 2 * 96 * 160 + 160 + 2 * 96));
	json_decref(rows);
}

static void test_experts_of_a_model_without_them_is_refused(void **state)
{
	char output[OUTPUT_MAX];

	(void)state;
	assert_int_equal(run("--device cpu --shape tiny experts", "2>&1", output), 1);
	assert_non_null(strstr(output, "it has no experts"));
}

static void test_attention_has_decodes_and_whole_prompts(void **state)
{
	json_t *rows = rows_of_tiny("attention --batches 1,4 --contexts 40 --prompts 48");

	(void)state;
	assert_int_equal(json_array_size(rows), 3);
	for (size_t i = 0; i < 3; i++) {
		double batch = i == 1 ? 4 : 1, context = i == 2 ? 48 : 40;

		assert_true(number(rows, i, "batch") == batch);
		assert_true(number(rows, i, "query") == (i == 2 ? 48 : 1));
		assert_true(number(rows, i, "context") == context);
		/* one layer's keys and values, float32 */
		assert_true(number(rows, i, "bytes") == batch * context * 2 * 2 * 16 * 4);
		assert_string_equal(text(rows, i, "backend"), "paged");
		assert_ratio(rows, i, "seconds", "floor_s");
	}
	json_decref(rows);
}

/* Two rows of one token, and a prompt of 48 under windows of 8: the first seven tokens see less. */
static void test_attention_under_a_mask_counts_what_is_seen(void **state)
{
	json_t *rows = rows_of_tiny("attention --attention flex --mask window:8 --batches 2 "
				    "--contexts 40 --prompts 48");

	(void)state;
	assert_int_equal(json_array_size(rows), 2);
	for (size_t i = 0; i < 2; i++) {
		double keys = i ? 48 : 2 * 8, pairs = i ? 48 * 8 - 28 : 2 * 8;
		double flop = number(rows, i, "tflop_per_s") * 1e12 * number(rows, i, "seconds");

		assert_string_equal(text(rows, i, "backend"), "flex");
		assert_string_equal(text(rows, i, "mask"), "window:8");
		assert_true(number(rows, i, "bytes") == keys * 2 * 2 * 16 * 4);
		/* four heads of 16 */
		assert_true(fabs(flop - pairs * 4 * 16 * 4) < 1);
		assert_true(number(rows, i, "plan_s") >= 0);
		assert_ratio(rows, i, "seconds", "floor_s");
	}
	json_decref(rows);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_decode_counts_the_bytes_that_its_floor_is_made_of),
		cmocka_unit_test(test_decode_of_more_than_the_model_takes_is_told),
		cmocka_unit_test(test_gemm_has_each_matrix_of_the_model),
		cmocka_unit_test(test_experts_has_each_op_and_all_of_them),
		cmocka_unit_test(test_experts_finds_the_shipped_model_that_has_them),
		cmocka_unit_test(test_attention_of_a_latent_model_has_its_sizes),
		cmocka_unit_test(test_attention_of_a_latent_model_refuses_masks),
		cmocka_unit_test(test_experts_of_a_model_without_them_is_refused),
		cmocka_unit_test(test_attention_has_decodes_and_whole_prompts),
		cmocka_unit_test(test_attention_under_a_mask_counts_what_is_seen),
	};

	return cmocka_run_group_tests_name("bench of models", tests, NULL, NULL);
}
