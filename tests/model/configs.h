/* SPDX-License-Identifier: MIT */
#ifndef MIMEO_TESTS_MODEL_CONFIGS_H
#define MIMEO_TESTS_MODEL_CONFIGS_H

/* Small config.json texts, and the results that they must have. */

#include "tests/model/fixture.h"

#include <errno.h>

#include "daemon/model/hf_config.h"

#define SIZES                                                                                      \
	"\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":3,"                     \
	"\"num_attention_heads\":4,\"vocab_size\":200"
#define CONFIG(family, more) "{\"architectures\":[\"" family "\"]," SIZES more "}"
#define LLAMA(more) CONFIG("LlamaForCausalLM", more)
#define MISTRAL(more) CONFIG("MistralForCausalLM", ",\"num_key_value_heads\":2" more)
#define QWEN2(more) CONFIG("Qwen2ForCausalLM", ",\"num_key_value_heads\":2" more)
#define QWEN3(more) CONFIG("Qwen3ForCausalLM", ",\"num_key_value_heads\":2" more)

static struct model_config *configs_parsed;
static size_t n_configs_parsed;

/* It lives until the group ends. */
static inline struct model_config keep_config(struct model_config config)
{
	configs_parsed =
		reallocarray(configs_parsed, n_configs_parsed + 1, sizeof(*configs_parsed));
	assert_non_null(configs_parsed);
	configs_parsed[n_configs_parsed++] = config;
	return config;
}

/* A group's teardown. */
static inline int free_configs(void **state)
{
	while (n_configs_parsed)
		model_config_deinit(&configs_parsed[--n_configs_parsed]);
	free(configs_parsed);
	return 0;
}

static inline struct model_config parse(const char *text)
{
	struct model_config config = {0};
	struct model_error error = {""};

	if (hf_config_parse("x/config.json", text, strlen(text), false, &config, &error))
		fail_msg("%s", error.text);
	return keep_config(config);
}

/* The windows of the three layers. */
struct windows {
	const char *text;
	uint32_t windows[3];
};

static inline void test_windows(void **state)
{
	const struct windows *want = *state;
	struct model_config c = parse(want->text);

	for (int i = 0; i < 3; i++)
		assert_int_equal(c.windows[i], want->windows[i]);
}

#define WINDOWS(claim, text, w0, w1, w2) \
	{claim, test_windows, NULL, NULL, &(struct windows){text, {w0, w1, w2}}}

static inline void expect_refusal(const char *text, int rc, const char *words)
{
	struct model_config config = {.n_layers = 77};
	struct model_error error = {""};

	assert_int_equal(hf_config_parse("x/config.json", text, strlen(text), false, &config, &error), rc);
	assert_contains(error.text, "x/config.json: ");
	assert_contains(error.text, words);
	assert_int_equal(config.n_layers, 77);
}

struct refusal {
	const char *text;
	int rc;
	const char *words;
};

static inline void test_refusal(void **state)
{
	const struct refusal *refusal = *state;

	expect_refusal(refusal->text, refusal->rc, refusal->words);
}

/* A row of a group's tests. */
#define REFUSED(claim, text, rc, words) \
	{claim, test_refusal, NULL, NULL, &(struct refusal){text, rc, words}}

#endif
