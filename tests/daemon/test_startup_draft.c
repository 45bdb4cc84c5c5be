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

struct fixture {
	struct device *device;
	/* The device as it is examined, without the ops that a test leaves out. */
	struct kernel_ops kernels;
	struct device examined;
	struct config config;
	struct config_model options;
	struct budget_model memory;
	struct startup_error error;
	char draft_attention[16];
	enum graph_mode resolved;
};

static void set_up(struct fixture *f, const char *target, const char *draft)
{
	*f = (struct fixture){.device = test_device_open(0),
		.config = {.max_requests = 4, .max_batch_tokens = 32, .page_tokens = 16},
		.options = {.name = "tinycalc", .breakable = "yes", .attention = "auto",
			.graph_mode = GRAPH_FULL_AND_PIECEWISE, .draft_tokens = 4}};
	f->kernels = *f->device->kernels;
	f->examined = (struct device){.ops = f->device->ops, .kernels = &f->kernels};
	f->options.dir = strdup(folder_of(target));
	if (draft)
		snprintf(f->options.draft, sizeof(f->options.draft), "%s", folder_of(draft));
}

static void tear_down(struct fixture *f)
{
	free(f->options.dir);
	f->device->ops->free(f->device);
}

static int examine(struct fixture *f)
{
	const struct device_info info = test_device_info(f->device);
	const struct engine_options engine = {.device = &f->examined, .max_requests = 4,
		.max_batch_tokens = 32, .page_tokens = 16};
	struct startup_model model = {.options = &f->options, .memory = &f->memory};
	int rc = startup_model_examine(&model, &f->config, &info, &f->error);

	if (rc == 0)
		rc = startup_draft_examine(&model, &f->config, &f->examined, &info, &f->error);
	if (rc == 0)
		rc = startup_model_measure(&model, &info, &engine, &f->error);
	if (model.draft_attention)
		snprintf(f->draft_attention, sizeof(f->draft_attention), "%s",
			model.draft_attention->name);
	f->resolved = model.mode.resolved;
	startup_model_deinit(&model);
	return rc;
}

static void test_device_without_any_op_of_speculation_refuses_a_draft_when_examined(void **state)
{
	for (int without = 0; without < 3; without++) {
		struct fixture f;

		set_up(&f, "examples/models/tinycalc", "examples/models/tinycalc-eagle");
		if (without == 0)
			f.kernels.verify = NULL;
		else if (without == 1)
			f.kernels.draft_begin = NULL;
		else
			f.kernels.draft_advance = NULL;
		assert_int_equal(examine(&f), -ENOTSUP);
		assert_non_null(strstr(f.error.text, "model tinycalc: draft: the "));
		assert_non_null(strstr(f.error.text, " device cannot verify draft tokens"));
		tear_down(&f);
	}
}

static void test_device_without_them_serves_the_model_without_a_draft(void **state)
{
	struct fixture f;

	set_up(&f, "examples/models/tinycalc", NULL);
	f.kernels.verify = NULL;
	f.kernels.draft_begin = NULL;
	f.kernels.draft_advance = NULL;
	assert_int_equal(examine(&f), 0);
	tear_down(&f);
}

static void test_device_takes_a_draft_if_it_has_them(void **state)
{
	struct fixture f;

	set_up(&f, "examples/models/tinycalc", "examples/models/tinycalc-eagle");
	assert_int_equal(examine(&f), f.device->kernels->verify ? 0 : -ENOTSUP);
	tear_down(&f);
}

static void test_draft_that_no_request_would_have_is_refused(void **state)
{
	struct fixture f;

	set_up(&f, "examples/models/tinycalc", "examples/models/tinycalc-eagle");
	f.options.mask = (struct mask_text){.window = 9};
	assert_int_equal(examine(&f), -EINVAL);
	assert_non_null(strstr(f.error.text, "model tinycalc: draft: draft models support the causal "
					     "mask only, the model's mask is window:9"));
	tear_down(&f);
}

static void test_logits_of_drafts_are_counted_for_each_slot_token_and_id(void **state)
{
	uint64_t bytes[2];

	for (int i = 0; i < 2; i++) {
		struct fixture f;

		set_up(&f, "examples/models/tinycalc", "examples/models/tinycalc-eagle");
		f.options.draft_tokens = i ? 8 : 4;
		if (!f.device->kernels->verify) {
			tear_down(&f);
			return;
		}
		assert_int_equal(examine(&f), 0);
		bytes[i] = f.memory.pool_bytes;
		assert_int_equal(f.memory.draft_logits_bytes,
			4 * f.options.draft_tokens * 256 * sizeof(float));
		tear_down(&f);
	}
	/* and not in the rest as well, where logits of 4 tokens more a row are */
	assert_true(bytes[1] - bytes[0] >= 4 * 4 * 256 * sizeof(float));
	assert_true(bytes[1] - bytes[0] < 2 * 4 * 4 * 256 * sizeof(float));
}

/* What the budget says of it: as much as there is more of with it, logits apart. */
static void test_drafts_share_of_memory_is_what_it_adds(void **state)
{
	struct budget_model memory[2];

	for (int i = 0; i < 2; i++) {
		struct fixture f;

		set_up(&f, "examples/models/tinycalc", i ? "examples/models/tinycalc-eagle" : NULL);
		if (!f.device->kernels->verify) {
			tear_down(&f);
			return;
		}
		assert_int_equal(examine(&f), 0);
		memory[i] = f.memory;
		tear_down(&f);
	}
	assert_int_equal(memory[0].draft_weights_bytes, 0);
	assert_int_equal(memory[0].draft_pool_bytes, 0);
	assert_true(memory[1].draft_weights_bytes > 0 && memory[1].draft_pool_bytes > 0);
	assert_int_equal(memory[1].draft_weights_bytes,
		memory[1].weights_bytes - memory[0].weights_bytes);
	assert_int_equal(memory[1].draft_pool_bytes, memory[1].pool_bytes - memory[0].pool_bytes);
}

/* Whatever its target's is, a draft's attention is an ordinary one. */
static void test_latent_target_takes_a_draft_but_not_by_lengths_on_the_host(void **state)
{
	static const char *const attentions[] = {"auto", "mla", "mla_planned", "naive"};

	for (int i = 0; i < 4; i++) {
		struct fixture f;

		set_up(&f, "examples/models/tinycalc-mla", "examples/models/tinycalc-eagle");
		snprintf(f.options.attention, sizeof(f.options.attention), "%s", attentions[i]);
		if (i == 3 || !f.device->kernels->verify) {
			assert_int_equal(examine(&f), -ENOTSUP);
		} else {
			assert_int_equal(examine(&f), 0);
			assert_string_equal(f.draft_attention, "paged");
		}
		if (i == 3 && f.device->kernels->verify)
			assert_non_null(strstr(f.error.text, "draft: attention naive needs the lengths of sequences"));
		tear_down(&f);
	}
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
		struct fixture f;

		set_up(&f, "examples/models/tinycalc",
			with_draft ? "examples/models/tinycalc-eagle" : NULL);
		snprintf(f.options.attention, sizeof(f.options.attention), "%s", one_token.name);
		f.options.draft_tokens = 3;
		decode_query = 0;
		assert_int_equal(examine(&f), 0);
		assert_int_equal(decode_query, with_draft ? 4 : 1);
		assert_int_equal(f.resolved,
			with_draft ? GRAPH_PIECEWISE : GRAPH_FULL_AND_PIECEWISE);
		tear_down(&f);
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
