/* SPDX-License-Identifier: MIT */

/* bench-internals as a developer runs it: what it prints is whole and consistent. */

#include "tests/bench/run.h"

static void test_kill_sees_everything_come_back(void **state)
{
	static const char *const measures[] = {
		"pages back", "slots back", "file descriptors back", "all of it back"};
	json_t *rows = rows_of("kill --count 3");

	assert_measured(rows, measures, 4, 3);
	for (size_t i = 0; i < 3; i++)
		assert_true(number(rows, i, "median_s") <= number(rows, 3, "median_s"));
	json_decref(rows);
}

/* A graph of decodes: whole, of as many rows as tokens. One in pieces: of any rows, with a break in
 * each of tinycalc's 5 layers. */
static void assert_captured(const json_t *rows, size_t i)
{
	char name[40];
	bool whole = strcmp(text(rows, i, "mode"), "FULL") == 0;
	unsigned tokens = (unsigned)number(rows, i, "tokens");

	snprintf(name, sizeof(name), whole ? "FULL %ux1" : "PIECEWISE %u", tokens);
	assert_string_equal(text(rows, i, "graph"), name);
	assert_true(number(rows, i, "rows") == (whole ? tokens : 0));
	assert_true(number(rows, i, "query_len") == whole);
	assert_true(number(rows, i, "segments") == (whole ? 1 : 6));
	assert_true(number(rows, i, "nodes") > 5 && number(rows, i, "bytes") > 0);
	assert_ratio(rows, i, "seconds", "floor_s");
	/* Ascending, first the whole ones, then those in pieces. */
	if (i == 0 || strcmp(text(rows, i - 1, "mode"), text(rows, i, "mode")) != 0)
		assert_true(tokens == 1 && whole == (i == 0));
	else
		assert_true(tokens > number(rows, i - 1, "tokens"));
}

static void test_capture_adds_up_what_each_graph_cost(void **state)
{
	json_t *rows = rows_of("capture");
	size_t n = json_array_size(rows) - 2;
	double seconds = 0, nodes = 0, segments = 0;

	assert_true(n >= 4);
	for (size_t i = 0; i < n; i++) {
		assert_captured(rows, i);
		seconds += number(rows, i, "seconds");
		segments += number(rows, i, "segments");
		nodes += number(rows, i, "nodes");
	}
	assert_string_equal(text(rows, n - 1, "mode"), "PIECEWISE");
	assert_string_equal(text(rows, n, "graph"), "all");
	assert_true(number(rows, n, "nodes") == nodes);
	assert_true(number(rows, n, "segments") == segments);
	assert_true(fabs(number(rows, n, "seconds") / seconds - 1) < 1e-6);
	assert_string_equal(text(rows, n + 1, "graph"), "while serving");
	assert_non_null(strstr(text(rows, n + 1, "note"), "stood idle"));
	assert_ratio(rows, n + 1, "seconds", "floor_s");
	json_decref(rows);
}

static void test_gap_has_one_for_each_step_that_generates_on(void **state)
{
	json_t *rows = rows_of("gap --processes 1,2 --tokens 12");

	assert_int_equal(json_array_size(rows), 2);
	assert_true(number(rows, 0, "gaps") == 11);
	assert_true(number(rows, 1, "gaps") >= 11 && number(rows, 1, "gaps") <= 22);
	for (size_t i = 0; i < 2; i++) {
		assert_true(number(rows, i, "long_gaps") <= number(rows, i, "gaps"));
		assert_true(number(rows, i, "gap_mean_s") >= 0);
		assert_true(number(rows, i, "floor_mean_s") >= 0);
		assert_true(number(rows, i, "step_mean_s") > 0);
		assert_true(number(rows, i, "engine_s") > 0);
		assert_true(number(rows, i, "floor_engine_s") > 0);
		assert_true(number(rows, i, "idle_percent") < 100);
	}
	json_decref(rows);
}

static void test_modes_tell_the_price_of_a_break(void **state)
{
	json_t *rows = rows_of("modes --batches 1,3 --contexts 64 --count 6");

	assert_int_equal(json_array_size(rows), 2);
	for (size_t i = 0; i < 2; i++) {
		double more = number(rows, i, "piecewise_s") - number(rows, i, "full_s");

		assert_true(number(rows, i, "batch") == (i == 0 ? 1 : 3));
		assert_true(number(rows, i, "context") == 64);
		assert_true(number(rows, i, "samples") == 6);
		assert_true(number(rows, i, "breaks") == 5);
		assert_true(fabs(number(rows, i, "break_s") * 5 - more) < 1e-9);
		assert_ratio(rows, i, "full_s", "floor_s");
		assert_true(number(rows, i, "none_s") > 0);
		assert_true(number(rows, i, "full_launch_s") > 0);
		assert_true(number(rows, i, "piecewise_launch_s") > 0);
		assert_true(number(rows, i, "none_launch_s") > 0);
	}
	json_decref(rows);
}

/* The cpu device has no such kernel. */
static void test_whole_has_nodes_and_says_where_there_is_no_one_kernel(void **state)
{
	json_t *rows = rows_of("whole --batches 1,2 --contexts 32,64 --count 6");

	assert_int_equal(json_array_size(rows), 4);
	for (size_t i = 0; i < 4; i++) {
		assert_true(number(rows, i, "batch") == (i < 2 ? 1 : 2));
		assert_true(number(rows, i, "context") == (i % 2 ? 64 : 32));
		assert_true(number(rows, i, "samples") == 6);
		assert_ratio(rows, i, "nodes_s", "floor_s");
		assert_true(json_is_null(json_object_get(json_array_get(rows, i), "kernel_s")));
	}
	json_decref(rows);
}

/* Each size of each call comes in pairs: made, closed. */
static void assert_calls(const json_t *rows, size_t first, const char *const names[2])
{
	static const double bytes[] = {4096, 2 << 20, 64 << 20};

	for (size_t i = 0; i < 6; i++) {
		const char *name = text(rows, first + i, "measure");

		assert_ptr_equal(strstr(name, names[i % 2]), name);
		assert_true(number(rows, first + i, "bytes") == bytes[i / 2]);
		assert_true(number(rows, first + i, "samples") == 2);
	}
}

/* In the arena; in a buffer until the fence; until the end. */
static void assert_steps(const json_t *rows, size_t first, int batch)
{
	const double bytes = batch * 256 * sizeof(float);

	for (size_t i = first; i < first + 3; i++) {
		double more = number(rows, i, "median_s") - number(rows, i, "floor_median_s");

		assert_true(number(rows, i, "samples") == 20);
		assert_true(number(rows, i, "n_rows") == batch);
		assert_true(number(rows, i, "bytes") == bytes);
		assert_true(number(rows, i, "saved_bytes") == (i == first ? 0 : bytes));
		assert_true(fabs(number(rows, i, "extra_s") - more) < 1e-9);
	}
	assert_non_null(strstr(text(rows, first, "measure"), "in the arena"));
	assert_non_null(strstr(text(rows, first + 1, "measure"), "to the fence"));
	assert_true(number(rows, first + 1, "median_s") <= number(rows, first + 2, "median_s"));
}

static void test_buffer_has_calls_steps_and_idle_time_beside_their_floors(void **state)
{
	static const char *const own[] = {"allocate memfd", "close memfd"};
	json_t *rows = rows_of("buffer --count 2");

	assert_int_equal(json_array_size(rows), 13);
	for (size_t i = 0; i < 13; i++) {
		assert_ratio(rows, i, "median_s", "floor_median_s");
		assert_true(number(rows, i, "median_s") <= number(rows, i, "p99_s"));
		assert_true(*text(rows, i, "floor") != '\0');
	}
	assert_calls(rows, 0, own);
	assert_steps(rows, 6, 1);
	assert_steps(rows, 9, 8);
	assert_string_equal(text(rows, 12, "measure"), "idle time, descriptors closed");
	assert_true(number(rows, 12, "samples") == 5);
	json_decref(rows);
}

static void test_gemm_has_each_matrix_of_the_model(void **state)
{
	static const struct {
		const char *name;
		int outputs, inputs;
	} matrices[] = {{"qkv", 128, 64}, {"o", 64, 64}, {"gate_up", 320, 64}, {"down", 64, 160},
		{"head", 256, 64}};
	json_t *rows = rows_of_tiny("gemm --batches 1,5");

	assert_int_equal(json_array_size(rows), 10);
	for (size_t i = 0; i < 10; i++) {
		int n = i % 2 ? 5 : 1, out = matrices[i / 2].outputs, in = matrices[i / 2].inputs;

		assert_string_equal(text(rows, i, "matrix"), matrices[i / 2].name);
		assert_true(number(rows, i, "side") == 0);
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

#define MLA "--model " MODELS "tinycalc-mla"

static void test_experts_finds_the_shipped_model_that_has_them(void **state)
{
	json_t *rows = rows_of_model("", "experts --batches 1");

	assert_int_equal(json_array_size(rows), 6);
	assert_non_null(strstr(text(rows, 0, "model"), "examples/models/tinycalc-moe"));
	json_decref(rows);
}

static void test_attention_of_a_latent_model_has_its_sizes(void **state)
{
	static const char *const benches[] = {"attention --batches 2 --contexts 24",
		"attention --batches 2 --contexts 24 --attention mla"};

	for (size_t i = 0; i < 2; i++) {
		json_t *rows = rows_of_model(MLA, benches[i]);

		assert_string_equal(text(rows, 0, "backend"), i ? "mla" : "mla_planned");
		assert_true(number(rows, 0, "heads") == MLA_HEADS);
		assert_true(number(rows, 0, "rank") == MLA_RANK);
		assert_true(number(rows, 0, "rope") == MLA_ROPE);
		assert_string_equal(text(rows, 0, "part"), "attend");
		/* the cached rows of two sequences, float32 */
		assert_true(number(rows, 0, "bytes") == 2 * 24 * (MLA_RANK + MLA_ROPE) * 4);
		json_decref(rows);
	}
}

/* Both parts of what a graph may hold; prompts as whole layers. */
static void test_attention_of_a_latent_model_has_layers_and_prompts(void **state)
{
	static const char *const parts[] = {"attend", "layer", "layer"};
	json_t *rows = rows_of_model(MLA,
		"attention --batches 3 --contexts 40 --query 5 --prompts 32");

	assert_int_equal(json_array_size(rows), 3);
	for (size_t i = 0; i < 3; i++) {
		assert_string_equal(text(rows, i, "part"), parts[i]);
		assert_true(number(rows, i, "batch") == (i < 2 ? 3 : 1));
		assert_true(number(rows, i, "query") == (i < 2 ? 5 : 32));
		assert_true(number(rows, i, "context") == (i < 2 ? 40 : 32));
		assert_ratio(rows, i, "seconds", "floor_s");
	}
	assert_true(number(rows, 0, "bytes") < number(rows, 1, "bytes"));
	json_decref(rows);
}

/* Of the shipped model with experts: each op, and all of them at once, whose costs are the sums. */
static void test_experts_has_each_op_and_all_of_them(void **state)
{
	static const char *const ops[] = {
		"route", "group", "gate_up", "down", "combine", "all of them"};
	json_t *rows = rows_of_model("--model " MODELS "tinycalc-moe", "experts --batches 1,5");

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
	assert_run(1, "--device cpu --shape tiny experts", "it has no experts");
}

static void test_experts_that_the_device_does_not_take_packed_are_refused(void **state)
{
	assert_run(1, "--device cpu --model " MODELS "tinycalc-moe experts --packed 1",
		"cpu takes no packed experts of 96 by 160");
}

static void test_attention_has_decodes_and_whole_prompts(void **state)
{
	json_t *rows = rows_of_tiny("attention --batches 1,4 --contexts 40 --prompts 48");

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

static void test_attention_over_fp8_has_a_byte_of_each_element(void **state)
{
	json_t *rows = rows_of_tiny("attention --batches 4 --contexts 40 --prompts 48 --kv-dtype fp8");

	for (size_t i = 0; i < 2; i++) {
		assert_true(number(rows, i, "bytes") == (i ? 48 : 4 * 40) * 2 * 2 * 16);
		assert_string_equal(text(rows, i, "kv_dtype"), "fp8");
		assert_ratio(rows, i, "seconds", "floor_s");
	}
	json_decref(rows);
}

/* Two rows of three tokens, which see 38, 39 and 40 tokens, and a prompt. */
static void test_attention_counts_what_the_causal_mask_lets_be_seen(void **state)
{
	json_t *rows = rows_of_tiny("attention --attention flex --batches 2 --contexts 40 --query 3 "
				    "--prompts 48");

	assert_int_equal(json_array_size(rows), 2);
	for (size_t i = 0; i < 2; i++) {
		double keys = i ? 48 : 2 * 40, pairs = i ? 48 * 49 / 2 : 2 * (38 + 39 + 40);
		double flop = number(rows, i, "tflop_per_s") * 1e12 * number(rows, i, "seconds");

		assert_string_equal(text(rows, i, "backend"), "flex");
		assert_true(number(rows, i, "bytes") == keys * 2 * 2 * 16 * 4);
		/* four heads of 16 */
		assert_true(fabs(flop - pairs * 4 * 16 * 4) < 1);
		assert_true(number(rows, i, "plan_s") >= 0);
		assert_ratio(rows, i, "seconds", "floor_s");
	}
	json_decref(rows);
}

static void test_device_that_is_not_there_is_one_line(void **state)
{
	assert_one_line(1, "--device cuda:63 --shape tiny attention", "device cuda:63: ");
	assert_one_line(1, "--device cuda:63 --shape tiny gemm", "device cuda:63: ");
}

static void test_nonsense_is_status_2(void **state)
{
	static const char *const nonsense[] = {"", "gemm --contexts 5", "gemm --attention flex",
		"modes --batches 513", "modes --socket /nonexistent/x.sock"};

	for (size_t i = 0; i < sizeof(nonsense) / sizeof(nonsense[0]); i++)
		assert_run(2, nonsense[i], "see --help");
	assert_run(2, "decode", "there is no bench \"decode\"");
	assert_run(1, "attention --attention melt", "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kill_sees_everything_come_back),
		cmocka_unit_test(test_capture_adds_up_what_each_graph_cost),
		cmocka_unit_test(test_gap_has_one_for_each_step_that_generates_on),
		cmocka_unit_test(test_modes_tell_the_price_of_a_break),
		cmocka_unit_test(test_whole_has_nodes_and_says_where_there_is_no_one_kernel),
		cmocka_unit_test(test_buffer_has_calls_steps_and_idle_time_beside_their_floors),
		cmocka_unit_test(test_gemm_has_each_matrix_of_the_model),
		cmocka_unit_test(test_experts_has_each_op_and_all_of_them),
		cmocka_unit_test(test_experts_finds_the_shipped_model_that_has_them),
		cmocka_unit_test(test_attention_of_a_latent_model_has_its_sizes),
		cmocka_unit_test(test_attention_of_a_latent_model_has_layers_and_prompts),
		cmocka_unit_test(test_experts_of_a_model_without_them_is_refused),
		cmocka_unit_test(test_experts_that_the_device_does_not_take_packed_are_refused),
		cmocka_unit_test(test_attention_has_decodes_and_whole_prompts),
		cmocka_unit_test(test_attention_over_fp8_has_a_byte_of_each_element),
		cmocka_unit_test(test_attention_counts_what_the_causal_mask_lets_be_seen),
		cmocka_unit_test(test_device_that_is_not_there_is_one_line),
		cmocka_unit_test(test_nonsense_is_status_2),
	};

	bench_program = "tests/bench/bench-internals";
	return cmocka_run_group_tests_name("bench_internals", tests, NULL, NULL);
}
