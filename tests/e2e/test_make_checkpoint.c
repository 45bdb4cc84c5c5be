/* SPDX-License-Identifier: MIT */
/*
 * examples/make-checkpoint: what it writes is what mimeod loads, of every family, in one file or in
 * shards; the weights depend on the seed and on nothing else of how they are made.
 */
#include <math.h>
#include <sys/stat.h>

#include "tests/e2e/calls.h"
#include "tests/e2e/daemon.h"
#include "tests/e2e/made.h"

#define N_TOKENS 12u
#define VOCAB 256u /* of the shape "tiny" */

/* The logits behind a fixed prompt; a few greedy tokens follow it. */
static void answer(struct mimeo *m, const char *model, float ret[VOCAB])
{
	static const int32_t prompt[] = {1, 70, 33, 150, 9, 200};
	struct mimeo_generate generate = generate_of(prompt, 6, N_TOKENS);
	int index = mimeo_model_find(m, model);
	struct mimeo_event event;
	uint32_t n_distinct = 0;

	assert_true(index >= 0);
	generate.model = (uint32_t)index;
	generate.flags = MIMEO_GENERATE_IGNORE_EOS | MIMEO_GENERATE_PROMPT_LOGITS;
	submit_generate(m, &generate);
	for (uint32_t n = 0;;) {
		event = wait_event(m);
		assert_int_equal(event.status, 0);
		for (uint32_t i = 0; i < event.n_tokens; i++)
			assert_in_range(event.tokens[i], 0, VOCAB - 1);
		n += event.n_tokens;
		if (event.kind == MIMEO_EVENT_FINAL) {
			assert_int_equal(n, N_TOKENS);
			break;
		}
		mimeo_event_seen(m, &event);
	}
	assert_non_null(event.logits);
	for (uint32_t i = 0; i < VOCAB; i++) {
		/* plausible scales: neither NaN nor so large that one token always wins */
		assert_true(fabsf(event.logits[i]) < 20);
		n_distinct += event.logits[i] != event.logits[0];
	}
	assert_true(n_distinct > 200);
	memcpy(ret, event.logits, VOCAB * sizeof(*ret));
	mimeo_event_seen(m, &event);
}

/* A daemon with models that were made, each under its own name. */
static struct mimeo *serve_made(struct daemon *daemon, unsigned n)
{
	static char models[4][128];

	daemon_init(daemon);
	for (unsigned i = 0; i < n; i++) {
		const char name[] = {(char)('a' + i), '\0'};

		snprintf(models[i], sizeof(models[i]), "%s=%s", name, path_of(name));
		daemon_option(daemon, "--model", models[i]);
	}
	daemon_start(daemon);
	return daemon_connect(daemon, 0, 0);
}

static void serve_end(struct daemon *daemon, struct mimeo *m)
{
	mimeo_close(m);
	daemon_stop(daemon);
	daemon_deinit(daemon);
}

static void test_tiny_model_of_each_family_is_served(void **state)
{
	struct daemon daemon;
	float logits[4][VOCAB], again[VOCAB];

	must_make("a", OPTIONS("--family", "llama"));
	must_make("b", OPTIONS("--family", "mistral", "--window", "9"));
	must_make("c", OPTIONS("--family", "qwen2"));
	must_make("d", OPTIONS("--family", "qwen3"));
	struct mimeo *m = serve_made(&daemon, 4);
	for (unsigned i = 0; i < 4; i++)
		answer(m, (const char[]){(char)('a' + i), '\0'}, logits[i]);
	answer(m, "a", again);
	assert_memory_equal(logits[0], again, sizeof(again));
	/* biases and norms of heads are in the weights, and show; the window is longer than the
	 * prompt */
	assert_memory_equal(logits[0], logits[1], sizeof(again));
	assert_memory_not_equal(logits[0], logits[2], sizeof(again));
	assert_memory_not_equal(logits[0], logits[3], sizeof(again));
	serve_end(&daemon, m);
}

static void test_tiny_model_with_experts_beside_plain_attention_is_served(void **state)
{
	struct daemon daemon;
	float logits[3][VOCAB];

	must_make("a", OPTIONS("--family", "qwen3"));
	must_make("b", OPTIONS("--family", "qwen3_moe", "--dense", "2"));
	must_make("c", OPTIONS("--family", "qwen3_moe"));
	struct mimeo *m = serve_made(&daemon, 3);
	answer(m, "a", logits[0]);
	answer(m, "b", logits[1]);
	answer(m, "c", logits[2]);
	/* without a layer of experts it is Qwen3 */
	assert_memory_equal(logits[0], logits[1], sizeof(logits[0]));
	assert_memory_not_equal(logits[0], logits[2], sizeof(logits[0]));
	serve_end(&daemon, m);
}

/* Two models that differ in their window alone, which is shorter than the prompt. */
static void check_window_shows(const char *const *without, const char *const *with)
{
	struct daemon daemon;
	float logits[2][VOCAB];

	must_make("a", without);
	must_make("b", with);
	struct mimeo *m = serve_made(&daemon, 2);
	answer(m, "a", logits[0]);
	answer(m, "b", logits[1]);
	assert_memory_not_equal(logits[0], logits[1], sizeof(logits[0]));
	serve_end(&daemon, m);
}

static void test_tiny_model_with_fused_tensors_is_served(void **state)
{
	check_window_shows(OPTIONS("--family", "phi3"), OPTIONS("--family", "phi3", "--window", "3"));
}

static void test_tiny_model_with_soft_caps_is_served(void **state)
{
	check_window_shows(OPTIONS("--family", "gemma2", "--tied", "0"), OPTIONS("--family", "gemma2", "--tied", "0", "--window", "3"));
}

static void test_tiny_model_with_two_rope_tables_is_served(void **state)
{
	check_window_shows(OPTIONS("--family", "gemma3", "--tied", "0"), OPTIONS("--family", "gemma3", "--tied", "0", "--window", "3"));
}

/* Routed, grouped and shared experts, and both ways to make a query. */
static void test_tiny_model_of_each_deepseek_family_is_served(void **state)
{
	struct daemon daemon;
	float logits[3][VOCAB], again[VOCAB];

	must_make("a", OPTIONS("--family", "deepseek_v2"));
	must_make("b", OPTIONS("--family", "deepseek_v2", "--q-rank", "0", "--groups", "1"));
	must_make("c", OPTIONS("--family", "deepseek_v3"));
	struct mimeo *m = serve_made(&daemon, 3);
	answer(m, "a", logits[0]);
	answer(m, "b", logits[1]);
	answer(m, "c", logits[2]);
	answer(m, "a", again);
	assert_memory_equal(logits[0], again, sizeof(again));
	assert_memory_not_equal(logits[0], logits[1], sizeof(again));
	assert_memory_not_equal(logits[0], logits[2], sizeof(again));
	serve_end(&daemon, m);
}

static void test_shards_and_threads_make_no_difference(void **state)
{
	struct stat st;
	struct daemon daemon;
	float logits[2][VOCAB];

	must_make("a", OPTIONS("--threads", "1", "--seed", "5"));
	must_make("b", OPTIONS("--threads", "3", "--seed", "5", "--shard-bytes", "50000"));
	assert_int_equal(stat(path_of("b/model.safetensors.index.json"), &st), 0);
	struct mimeo *m = serve_made(&daemon, 2);
	answer(m, "a", logits[0]);
	answer(m, "b", logits[1]);
	assert_memory_equal(logits[0], logits[1], sizeof(logits[0]));
	serve_end(&daemon, m);
}

static char *weights_of(const char *file, size_t *ret_size)
{
	char *text = file_text(path_of(file), ret_size);

	assert_non_null(text);
	return text;
}

static void test_same_seed_same_bytes_and_another_seed_others(void **state)
{
	size_t sizes[3];

	must_make("a", OPTIONS("--seed", "7", "--threads", "1"));
	must_make("b", OPTIONS("--seed", "7", "--threads", "4"));
	must_make("c", OPTIONS("--seed", "8"));
	char *a = weights_of("a/model.safetensors", &sizes[0]);
	char *b = weights_of("b/model.safetensors", &sizes[1]);
	char *c = weights_of("c/model.safetensors", &sizes[2]);
	assert_int_equal(sizes[0], sizes[1]);
	assert_int_equal(sizes[0], sizes[2]);
	assert_memory_equal(a, b, sizes[0]);
	assert_memory_not_equal(a, c, sizes[0]);
	free(c);
	free(b);
	free(a);
}

static void test_nothing_is_overwritten(void **state)
{
	struct program_output output;
	size_t before, after;

	must_make("a", (const char *const[]){NULL});
	char *was = weights_of("a/model.safetensors", &before);
	assert_int_equal(make("a", OPTIONS("--seed", "2"), &output), 1);
	assert_non_null(strstr(output.text, "/a/model.safetensors: File exists"));
	char *is = weights_of("a/model.safetensors", &after);
	assert_int_equal(before, after);
	assert_memory_equal(was, is, before);
	free(is);
	free(was);
}

/* As their authors publish them. */
static void test_shape_has_its_models_family_and_sizes(void **state)
{
	static const struct {
		const char *folder, *shape, *lines[10];
	} cases[] = {
		{"a", "3B",
			{"architectures\": [\"LlamaForCausalLM\"]", "hidden_size\": 3072", "intermediate_size\": 8192",
				"vocab_size\": 128256", "num_hidden_layers\": 28", "num_attention_heads\": 24",
				"num_key_value_heads\": 8", "head_dim\": 128", "rope_theta\": 500000.0",
				"tie_word_embeddings\": true"}},
		{"b", "Qwen2.5-0.5B",
			{"architectures\": [\"Qwen2ForCausalLM\"]", "hidden_size\": 896", "intermediate_size\": 4864",
				"vocab_size\": 151936", "num_hidden_layers\": 24", "num_attention_heads\": 14",
				"num_key_value_heads\": 2", "head_dim\": 64", "rope_theta\": 1000000.0",
				"tie_word_embeddings\": true"}},
		{"c", "Qwen2.5-1.5B",
			{"architectures\": [\"Qwen2ForCausalLM\"]", "hidden_size\": 1536", "intermediate_size\": 8960",
				"vocab_size\": 151936", "num_hidden_layers\": 28", "num_attention_heads\": 12",
				"num_key_value_heads\": 2", "head_dim\": 128", "rope_theta\": 1000000.0",
				"tie_word_embeddings\": true"}},
		{"d", "Mistral-7B",
			{"architectures\": [\"MistralForCausalLM\"]", "hidden_size\": 4096", "intermediate_size\": 14336",
				"vocab_size\": 32768", "num_hidden_layers\": 32", "num_attention_heads\": 32",
				"num_key_value_heads\": 8", "head_dim\": 128", "rope_theta\": 1000000.0",
				"tie_word_embeddings\": false"}},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char name[16], line[80];
		size_t size;

		must_make(cases[i].folder, OPTIONS("--config-only", "--shape", cases[i].shape));
		snprintf(name, sizeof(name), "%s/config.json", cases[i].folder);
		char *config = file_text(path_of(name), &size);
		assert_non_null(config);
		for (size_t j = 0; j < sizeof(cases[i].lines) / sizeof(cases[i].lines[0]); j++) {
			snprintf(line, sizeof(line), "\n  \"%s,\n", cases[i].lines[j]);
			if (!strstr(config, line))
				fail_msg("%s has no line%s%s", cases[i].shape, line, config);
		}
		free(config);
	}
}

static void test_nonsense_is_status_2_and_names_the_option(void **state)
{
	static const struct {
		const char *options[7], *text;
	} cases[] = {
		{{"--shape", "2B"}, "there is no shape \"2B\""},
		{{"--family", "gpt2"}, "there is no family \"gpt2\""},
		{{"--heads", "5"}, "--heads 5 is not a multiple of --kv-heads 2"},
		{{"--layers", "0"}, "--layers 0: not a number from 1"},
		{{"--head-dim", "7"}, "--head-dim 7 is odd"},
		{{"--window", "4"}, "--window is for --family mistral, phi3, gemma2 and gemma3"},
		{{"--threads", "many"}, "--threads many"},
		{{"--rank", "8"}, "--rank is for the families deepseek_v2 and deepseek_v3"},
		{{"--family", "deepseek_v2", "--rope", "7"}, "--rope 7 is odd"},
		{{"--family", "deepseek_v2", "--groups", "3"},
			"--experts 8 is not a multiple of --groups 3"},
		{{"--family", "deepseek_v3", "--active", "5"},
			"--active 5 is more than the experts of --groups-active 1 groups"},
		{{"--family", "deepseek_v3", "--groups", "8", "--groups-active", "8"},
			"--groups 8 leaves one expert in a group"},
		{{"--family", "deepseek_v2", "--groups-active", "3"},
			"--groups-active 3 is more than --groups 2"},
		{{"--family", "deepseek_v3", "--kv-heads", "2"},
			"--kv-heads is not for the families deepseek_v2 and deepseek_v3"},
		{{"--family", "deepseek_v2", "--dense", "9", "--layers", "2"},
			"--dense 9 is more than --layers 2"},
		{{"--family", "phi3", "--head-dim", "8"},
			"--hidden 64 is not --heads 4 times --head-dim 8, as it is for --family phi3"},
		{{"--family", "qwen3_moe", "--groups", "2"},
			"--groups is for the families deepseek_v2 and deepseek_v3"},
		{{"--family", "qwen3", "--experts", "4"},
			"--experts is for the families qwen3_moe, deepseek_v2 and deepseek_v3"},
		{{"--family", "qwen3_moe", "--active", "9"}, "--active 9 is more than --experts 8"},
	};
	struct program_output output;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(make("h", cases[i].options, &output), 2);
		if (!strstr(output.text, cases[i].text))
			fail_msg("\"%s\" does not name \"%s\"", output.text, cases[i].text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		MAKING(test_tiny_model_of_each_family_is_served),
		MAKING(test_tiny_model_with_experts_beside_plain_attention_is_served),
		MAKING(test_tiny_model_with_fused_tensors_is_served),
		MAKING(test_tiny_model_with_soft_caps_is_served),
		MAKING(test_tiny_model_with_two_rope_tables_is_served),
		MAKING(test_tiny_model_of_each_deepseek_family_is_served),
		MAKING(test_shards_and_threads_make_no_difference),
		MAKING(test_same_seed_same_bytes_and_another_seed_others),
		MAKING(test_nothing_is_overwritten),
		MAKING(test_shape_has_its_models_family_and_sizes),
		MAKING(test_nonsense_is_status_2_and_names_the_option),
	};

	watchdog(WATCHDOG_SECONDS);
	return cmocka_run_group_tests_name("make-checkpoint", tests, NULL, NULL);
}
