/* SPDX-License-Identifier: MIT */
/* A draft is refused while nothing of its model has cost anything: by a device that cannot verify it. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/startup/startup_draft.h"
#include "kernels/ops.h"
#include "tests/device_memory.h"

static const char *folder_of(const char *below)
{
	static char path[2][512];
	static int turn;
	const char *source = getenv("MIMEO_SOURCE");

	turn = !turn;
	snprintf(path[turn], sizeof(path[turn]), "%s/%s", source ? source : ".", below);
	return path[turn];
}

#define TARGET "examples/models/tinycalc"
#define DRAFT "examples/models/tinycalc-eagle"

enum { VERIFY = 1, BEGIN = 2, ADVANCE = 4 }; /* ops of speculation */

struct examination {
	const char *target, *draft; /* folders; draft: NULL for none, or "mtp" */
	unsigned without;           /* ops that the device is examined without */
	const char *attention;      /* NULL: "auto" */
	uint32_t n_drafts;          /* 0: 4 */
	struct mask_text mask;
	/* results */
	struct budget_model memory;
	struct startup_error error;
	char draft_attention[16];
	enum graph_mode resolved;
	bool speculates; /* the device has all ops of speculation */
};

static int examine_on(struct examination *e, struct device *device, const struct device_info *info,
	struct config_model *options)
{
	const struct config config = {.max_requests = 4, .max_batch_tokens = 32, .page_tokens = 16};
	const struct engine_options engine = {.device = device, .max_requests = 4,
		.max_batch_tokens = 32, .page_tokens = 16};
	struct startup_model model = {.options = options, .memory = &e->memory};
	int rc = startup_model_examine(&model, &config, info, &e->error);

	if (rc == 0)
		rc = startup_draft_examine(&model, &config, device, info, &e->error);
	if (rc == 0)
		rc = startup_model_measure(&model, info, &engine, &e->error);
	if (model.draft_attention)
		snprintf(e->draft_attention, sizeof(e->draft_attention), "%s", model.draft_attention->name);
	e->resolved = model.mode.resolved;
	startup_model_deinit(&model);
	return rc;
}

static int examine(struct examination *e)
{
	struct device *device = test_device_open(0);
	const struct device_info info = test_device_info(device);
	struct kernel_ops kernels = *device->kernels;
	struct device examined = {.ops = device->ops, .kernels = &kernels};
	struct config_model options = {.dir = strdup(folder_of(e->target)), .name = "tinycalc",
		.breakable = "yes", .graph_mode = GRAPH_FULL_AND_PIECEWISE, .mask = e->mask,
		.draft_tokens = e->n_drafts ? e->n_drafts : 4};
	int rc;

	e->speculates = kernels.verify;
	if (e->without & VERIFY)
		kernels.verify = NULL;
	if (e->without & BEGIN)
		kernels.draft_begin = NULL;
	if (e->without & ADVANCE)
		kernels.draft_advance = NULL;
	snprintf(options.attention, sizeof(options.attention), "%s", e->attention ? e->attention : "auto");
	if (e->draft)
		snprintf(options.draft, sizeof(options.draft), "%s",
			strcmp(e->draft, "mtp") ? folder_of(e->draft) : "mtp");
	rc = examine_on(e, &examined, &info, &options);
	free(options.dir);
	device->ops->free(device);
	return rc;
}

static void test_device_without_any_op_of_speculation_refuses_a_draft_when_examined(void **state)
{
	for (unsigned without = VERIFY; without <= ADVANCE; without *= 2) {
		struct examination e = {TARGET, DRAFT, .without = without};

		assert_int_equal(examine(&e), -ENOTSUP);
		assert_non_null(strstr(e.error.text, "model tinycalc: draft: the "));
		assert_non_null(strstr(e.error.text, " device cannot verify draft tokens"));
	}
}

static void test_device_without_them_serves_the_model_without_a_draft(void **state)
{
	struct examination e = {TARGET, .without = VERIFY | BEGIN | ADVANCE};

	assert_int_equal(examine(&e), 0);
}

static void test_device_takes_a_draft_if_it_has_them(void **state)
{
	struct examination e = {TARGET, DRAFT};
	int rc = examine(&e);

	assert_int_equal(rc, e.speculates ? 0 : -ENOTSUP);
}

static void test_draft_that_no_request_would_have_is_refused(void **state)
{
	struct examination e = {TARGET, DRAFT, .mask = {.window = 9}};

	assert_int_equal(examine(&e), -EINVAL);
	assert_non_null(strstr(e.error.text, "model tinycalc: draft: draft models support the causal "
					     "mask only, the model's mask is window:9"));
}

static void test_logits_of_drafts_are_counted_for_each_slot_token_and_id(void **state)
{
	uint64_t bytes[2];

	for (uint32_t i = 0; i < 2; i++) {
		struct examination e = {TARGET, DRAFT, .n_drafts = 4 + 4 * i};
		int rc = examine(&e);

		if (!e.speculates)
			return;
		assert_int_equal(rc, 0);
		bytes[i] = e.memory.pool_bytes;
		assert_int_equal(e.memory.draft_logits_bytes, 4 * e.n_drafts * 256 * sizeof(float));
	}
	/* and not in the rest as well, where logits of 4 tokens more a row are, and their log-probabilities in
	 * the inputs and both steps in flight */
	assert_true(bytes[1] - bytes[0] >= 4 * 4 * 256 * sizeof(float));
	assert_true(bytes[1] - bytes[0] < 2 * 4 * 4 * 256 * sizeof(float) +
		3 * 4 * 4 * LOGPROBS_WIDTH * sizeof(struct token_logprob));
}

/* In the budget: the difference to the same without it, logits apart. */
static void test_drafts_share_of_memory_is_what_it_adds(void **state)
{
	struct examination e[] = {{TARGET}, {TARGET, DRAFT}};
	const struct budget_model *alone = &e[0].memory, *both = &e[1].memory;

	assert_int_equal(examine(&e[0]), 0);
	if (!e[0].speculates)
		return;
	assert_int_equal(examine(&e[1]), 0);
	assert_int_equal(alone->draft_weights_bytes, 0);
	assert_int_equal(alone->draft_pool_bytes, 0);
	assert_true(both->draft_weights_bytes > 0 && both->draft_pool_bytes > 0);
	assert_int_equal(both->draft_weights_bytes, both->weights_bytes - alone->weights_bytes);
	assert_int_equal(both->draft_pool_bytes, both->pool_bytes - alone->pool_bytes);
}

/* Whatever its target's is, a draft's attention is an ordinary one. */
static void test_latent_target_takes_a_draft_but_not_by_lengths_on_the_host(void **state)
{
	static const char *const attentions[] = {"auto", "mla", "mla_planned", "naive"};

	for (int i = 0; i < 4; i++) {
		struct examination e = {"examples/models/tinycalc-mla", DRAFT, .attention = attentions[i]};
		int rc = examine(&e);

		assert_int_equal(rc, i == 3 || !e.speculates ? -ENOTSUP : 0);
		if (rc == 0)
			assert_string_equal(e.draft_attention, "paged");
		else if (e.speculates)
			assert_non_null(strstr(e.error.text,
				"draft: attention naive needs the lengths of sequences"));
	}
}

static void test_mtp_is_the_head_in_the_targets_folder_with_the_targets_attention(void **state)
{
	static const char *const attentions[] = {"mla", "mla_planned", "naive"};

	for (int i = 0; i < 3; i++) {
		struct examination e = {"tests/data/drafts/mtp", "mtp", .attention = attentions[i]};
		int rc = examine(&e);

		assert_int_equal(rc, i == 2 || !e.speculates ? -ENOTSUP : 0);
		if (rc == 0) {
			assert_string_equal(e.draft_attention, attentions[i]);
			assert_true(e.memory.draft_weights_bytes > 0);
		}
	}
}

static void test_gguf_file_is_refused_as_a_draft(void **state)
{
	struct examination own = {"tests/data/gguf/llama.gguf", "mtp"};
	struct examination other = {TARGET, "tests/data/gguf/llama.gguf"};

	assert_int_equal(examine(&own), -ENOTSUP);
	assert_non_null(strstr(own.error.text, "model tinycalc: draft: "));
	assert_non_null(strstr(own.error.text, "llama.gguf: a GGUF file has no MTP head and is no draft model: "
		"use --draft none"));
	assert_int_equal(examine(&other), -ENOTSUP);
	assert_non_null(strstr(other.error.text, "is no draft model"));
}

/* ---- what the target's attention is asked for ---- */

static uint32_t decode_query; /* the longest that it was asked for */

static enum attention_support support_of_one_token(
	const struct attention_config *config, uint32_t *ret_max_query)
{
	decode_query = config->max_decode_query;
	*ret_max_query = 1;
	return ATTENTION_UNIFORM_SINGLE_TOKEN_DECODE;
}

static struct attention_backend one_token;

/* A verification has 1 + draft_tokens tokens a row. */
static void test_decode_graphs_are_for_verifications_where_there_is_a_draft(void **state)
{
	for (int with_draft = 0; with_draft < 2; with_draft++) {
		struct examination e = {TARGET, with_draft ? DRAFT : NULL, .n_drafts = 3,
			.attention = one_token.name};

		decode_query = 0;
		assert_int_equal(examine(&e), 0);
		assert_int_equal(decode_query, with_draft ? 4 : 1);
		assert_int_equal(e.resolved, with_draft ? GRAPH_PIECEWISE : GRAPH_FULL_AND_PIECEWISE);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_device_without_any_op_of_speculation_refuses_a_draft_when_examined),
		cmocka_unit_test(test_device_without_them_serves_the_model_without_a_draft),
		cmocka_unit_test(test_device_takes_a_draft_if_it_has_them),
		cmocka_unit_test(test_draft_that_no_request_would_have_is_refused),
		cmocka_unit_test(test_logits_of_drafts_are_counted_for_each_slot_token_and_id),
		cmocka_unit_test(test_drafts_share_of_memory_is_what_it_adds),
		cmocka_unit_test(
			test_latent_target_takes_a_draft_but_not_by_lengths_on_the_host),
		cmocka_unit_test(test_gguf_file_is_refused_as_a_draft),
		cmocka_unit_test(test_mtp_is_the_head_in_the_targets_folder_with_the_targets_attention),
		cmocka_unit_test(
			test_decode_graphs_are_for_verifications_where_there_is_a_draft),
	};

	one_token = attention_paged;
	one_token.name = "one_token";
	one_token.support = support_of_one_token;
	if (attention_register(&one_token))
		return 1;

	return cmocka_run_group_tests_name("startup draft", tests, NULL, NULL);
}
