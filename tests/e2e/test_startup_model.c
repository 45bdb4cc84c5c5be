/* SPDX-License-Identifier: MIT */
/* What a daemon makes of a bad model, or of one that it has no memory for, before it serves. */
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <jansson.h>

#include "tests/e2e/startup.h"

/* ---- bad models ---- */

struct model_folder {
	char path[96], option[128], weights[128], config[128];
	char *bytes; /* of model.safetensors */
	size_t size;
};

/* A copy of tinycalc in the daemon's folder, and the option that serves it. */
static void model_copy(struct daemon *daemon, struct model_folder *ret)
{
	size_t size;

	snprintf(ret->path, sizeof(ret->path), "%s/model", daemon->folder);
	snprintf(ret->option, sizeof(ret->option), "bad=%s", ret->path);
	snprintf(ret->weights, sizeof(ret->weights), "%s/model.safetensors", ret->path);
	snprintf(ret->config, sizeof(ret->config), "%s/config.json", ret->path);
	assert_int_equal(mkdir(ret->path, 0700), 0);
	ret->bytes =
		file_text(source_path("examples/models/tinycalc/model.safetensors"), &ret->size);
	assert_non_null(ret->bytes);
	char *config = file_text(source_path("examples/models/tinycalc/config.json"), &size);
	assert_non_null(config);
	file_write(ret->config, config, size);
	free(config);
	daemon_option(daemon, "--model", ret->option);
}

static void model_write(struct model_folder *model, size_t size)
{
	file_write(model->weights, model->bytes, size);
	free(model->bytes);
}

static void test_truncated_weights_are_refused_by_file(void **state)
{
	struct model_folder model;

	model_copy(*state, &model);
	model_write(&model, model.size - 1000);
	ASSERT_REFUSES(*state, EXIT_ERROR, "model bad", "model.safetensors");
}

static void test_missing_weights_are_refused_by_file(void **state)
{
	struct model_folder model;

	model_copy(*state, &model);
	ASSERT_REFUSES(*state, EXIT_ERROR, "model bad", "model.safetensors");
	free(model.bytes);
}

static void test_header_length_beyond_the_file_is_refused(void **state)
{
	struct model_folder model;

	model_copy(*state, &model);
	memset(model.bytes, 0xff, 8);
	model_write(&model, model.size);
	ASSERT_REFUSES(*state, EXIT_ERROR, "model.safetensors", "header");
}

static void test_header_that_is_no_json_is_refused(void **state)
{
	struct model_folder model;

	model_copy(*state, &model);
	memset(model.bytes + 20, '\x01', 40);
	model_write(&model, model.size);
	ASSERT_REFUSES(*state, EXIT_ERROR, "model.safetensors", "JSON");
}

/* Write the weights with another header. */
static void write_with_header(struct model_folder *model, json_t *header)
{
	uint64_t old, length;
	char *text = json_dumps(header, JSON_COMPACT);

	memcpy(&old, model->bytes, sizeof(old));
	size_t n = strlen(text);
	length = (n + 7) & ~(uint64_t)7;
	size_t data = model->size - 8 - old;
	char *bytes = calloc(1, 8 + length + data);
	memcpy(bytes, &length, sizeof(length));
	memset(bytes + 8, ' ', length);
	memcpy(bytes + 8, text, n);
	memcpy(bytes + 8 + length, model->bytes + 8 + old, data);
	file_write(model->weights, bytes, 8 + length + data);
	free(bytes);
	free(text);
}

static json_t *header_of(const struct model_folder *model)
{
	uint64_t length;

	memcpy(&length, model->bytes, sizeof(length));
	json_t *header = json_loadb(model->bytes + 8, length, 0, NULL);
	assert_non_null(header);
	return header;
}

#define SOME_TENSOR "model.layers.1.mlp.down_proj.weight"

enum spoilt { OFFSETS_OUTSIDE, OFFSETS_OVERLAP, SHAPE, DTYPE, MISSING };

static void header_spoil(json_t *header, enum spoilt spoilt)
{
	json_t *tensor = json_object_get(header, SOME_TENSOR);
	json_t *other = json_object_get(header, "model.layers.2.mlp.down_proj.weight");

	assert_non_null(tensor);
	assert_non_null(other);
	if (spoilt == OFFSETS_OUTSIDE)
		json_array_set_new(
			json_object_get(tensor, "data_offsets"), 1, json_integer(INT64_C(1) << 62));
	else if (spoilt == OFFSETS_OVERLAP)
		json_object_set(tensor, "data_offsets", json_object_get(other, "data_offsets"));
	else if (spoilt == SHAPE)
		json_array_set_new(json_object_get(tensor, "shape"), 0, json_integer(161));
	else if (spoilt == DTYPE)
		json_object_set_new(tensor, "dtype", json_string("F32"));
	else {
		json_object_set(header, "model.layers.1.mlp.stray.weight", tensor);
		json_object_del(header, SOME_TENSOR);
	}
}

static void check_spoilt(struct daemon *daemon, enum spoilt spoilt)
{
	struct model_folder model;

	model_copy(daemon, &model);
	json_t *header = header_of(&model);
	header_spoil(header, spoilt);
	write_with_header(&model, header);
	json_decref(header);
	free(model.bytes);
	if (spoilt == OFFSETS_OVERLAP)
		ASSERT_REFUSES(daemon, EXIT_ERROR, "model bad", "model.safetensors");
	else
		ASSERT_REFUSES(daemon, EXIT_ERROR, "model bad", SOME_TENSOR);
}

#define TEST_SPOILT(name, spoilt)                                                                        \
	static void name(void **state)                                                             \
	{                                                                                          \
		check_spoilt(*state, spoilt);                                                            \
	}

TEST_SPOILT(test_tensor_beyond_its_file_is_refused_by_name, OFFSETS_OUTSIDE)
TEST_SPOILT(test_tensors_that_overlap_are_refused, OFFSETS_OVERLAP)
TEST_SPOILT(test_tensor_of_another_shape_is_refused_by_name, SHAPE)
TEST_SPOILT(test_tensor_whose_type_does_not_fit_its_size_is_refused_by_name, DTYPE)
TEST_SPOILT(test_missing_tensor_is_refused_by_name, MISSING)

static void check_config(struct daemon *daemon, const char *field, json_t *value, const char *text)
{
	struct model_folder model;

	model_copy(daemon, &model);
	file_write(model.weights, model.bytes, model.size);
	free(model.bytes);
	json_t *config = json_load_file(model.config, 0, NULL);
	json_object_set_new(config, field, value);
	assert_int_equal(json_dump_file(config, model.config, 0), 0);
	json_decref(config);
	ASSERT_REFUSES(daemon, EXIT_ERROR, "model bad", "config.json", field, text);
}

static void test_unknown_architecture_is_refused_by_name(void **state)
{
	check_config(
		*state, "architectures", json_pack("[s]", "GPT2LMHeadModel"), "GPT2LMHeadModel");
}

static void test_unsupported_activation_is_refused_by_name(void **state)
{
	check_config(*state, "hidden_act", json_string("gelu"), "gelu");
}

static void test_unsupported_rope_is_refused_by_name(void **state)
{
	check_config(*state, "rope_parameters",
		json_pack("{ss sf}", "rope_type", "spiral", "rope_theta", 10000.0), "spiral");
}

static void test_config_that_is_no_json_is_refused_by_file(void **state)
{
	struct model_folder model;

	model_copy(*state, &model);
	model_write(&model, model.size);
	file_write(model.config, "{\"architectures\": [", 19);
	ASSERT_REFUSES(*state, EXIT_ERROR, "model bad", "config.json");
}

/* Of the files' five layers the configuration leaves the last one out. */
static void test_tensors_without_a_use_are_warned_of(void **state)
{
	struct model_folder model;

	model_copy(*state, &model);
	file_write(model.weights, model.bytes, model.size);
	free(model.bytes);
	json_t *config = json_load_file(model.config, 0, NULL);
	json_int_t n = json_integer_value(json_object_get(config, "num_hidden_layers"));
	json_object_set_new(config, "num_hidden_layers", json_integer(n - 1));
	assert_int_equal(json_dump_file(config, model.config, 0), 0);
	json_decref(config);
	daemon_start(*state);
	assert_true(daemon_log_has(*state, "model bad: 9 tensors of its files are not used, the first is "
		"\"model.layers.4.input_layernorm.weight\": the configuration may belong to another model"));
	assert_false(daemon_log_has(*state, "model tinycalc: 9 tensors"));
}

static void test_head_that_predicts_tokens_is_named_with_the_setting_that_uses_it(void **state)
{
	char option[512];

	snprintf(option, sizeof(option), "v3=%s", source_path("tests/data/drafts/mtp"));
	daemon_option(*state, "--model", option);
	daemon_start(*state);
	assert_true(daemon_log_has(*state, " tensors of its MTP head are not read: --draft mtp uses them"));
}

/* ---- GGUF ---- */

static void gguf_serve(struct daemon *daemon, const char *name)
{
	static char option[512];
	char below[64];

	snprintf(below, sizeof(below), "tests/data/gguf/%s.gguf", name);
	snprintf(option, sizeof(option), "file=%s", source_path(below));
	daemon_option(daemon, "--model", option);
}

static void test_gguf_file_is_served_without_a_tokenizer_that_is_not_read(void **state)
{
	gguf_serve(*state, "llama-bias");
	daemon_start(*state);
	assert_true(daemon_log_has(*state, "model file: LlamaForCausalLM, "));
	assert_true(daemon_log_has(*state, "llama-bias.gguf: tokenizer.ggml.pre \"tekken\" is not one of default, "));
	assert_true(daemon_log_has(*state, "clients get no tokenizer from this daemon"));
}

static void test_gguf_file_of_another_architecture_is_refused_by_name(void **state)
{
	gguf_serve(*state, "blocks");
	ASSERT_REFUSES(*state, EXIT_ERROR,
		"blocks.gguf: general.architecture \"blocks\" is not one of llama, qwen2, qwen3");
}

/* ---- attention ---- */

static void test_attention_of_another_kind_than_the_models_is_refused_with_the_reason(void **state)
{
	daemon_option(*state, "--attention", "mla_planned");
	ASSERT_REFUSES(*state, EXIT_ERROR, "model tinycalc: attention backend mla_planned cannot serve this model: "
		"its attention is not latent (MLA); ", "paged");
	daemon_model(*state, "tinycalc-mla");
	daemon_option(*state, "--attention", "paged");
	ASSERT_REFUSES(*state, EXIT_ERROR, "model tinycalc-mla: attention backend paged cannot serve this model: "
		"its attention is latent (MLA), and the cache holds no values; ",
		"mla_planned and mla can");
}

static void test_mask_that_the_attention_does_not_know_is_refused_with_the_reason(void **state)
{
	daemon_option(*state, "--mask", "window:8");
	daemon_option(*state, "--attention", "paged");
	ASSERT_REFUSES(*state, EXIT_ERROR, "model tinycalc: attention backend paged cannot serve this model with a "
		"mask that is not causal: it has no mask but the causal one; flex can");
	daemon_model(*state, "tinycalc-mla");
	daemon_option(*state, "--attention", "auto");
	ASSERT_REFUSES(*state, EXIT_ERROR, "model tinycalc-mla: no attention backend can serve this model "
		"with a mask that is not causal", "mla: it has no mask but the causal one",
		"mla_planned and mla can with the causal mask");
}

/* ---- memory ---- */

static void test_model_too_large_for_the_memory_is_refused(void **state)
{
	daemon_option(*state, "--memory", "1M");
	ASSERT_REFUSES(*state, EXIT_ERROR, "model tinycalc", "weights", "--memory");
}

static void test_pages_too_many_for_the_memory_are_refused(void **state)
{
	daemon_option(*state, "--memory", "64M");
	daemon_option(*state, "--kv-pages", "1000000");
	ASSERT_REFUSES(*state, EXIT_ERROR, "model tinycalc", "KV cache", "--memory");
}

/* One full layer and three with a window lie in pages of their own. */
static void test_pages_too_few_for_a_token_are_refused_with_how_many_it_takes(void **state)
{
	char option[512];

	snprintf(option, sizeof(option), "windows=%s", source_path("tests/data/checkpoints/gemma3"));
	daemon_option(*state, "--model", option);
	daemon_option(*state, "--kv-pages", "windows=3");
	ASSERT_REFUSES(*state, EXIT_ERROR, "model windows: 3 pages of KV cache hold no token: a token takes a page of "
		"each of 4 sets of layers: give --kv-pages 4 or more");
	assert_false(daemon_log_has(*state, "of weights in"));
}

static void test_inputs_too_large_for_the_memory_are_refused_before_loading(void **state)
{
	struct daemon *daemon = *state;

	/* Enough for the weights; the logits of 4096 rows alone take more than the rest. */
	daemon_option(daemon, "--memory", "32M");
	daemon_option(daemon, "--max-requests", "4096");
	daemon_option(daemon, "--max-batch-tokens", "4096");
	ASSERT_REFUSES(daemon, EXIT_ERROR, "model tinycalc: its activations and inputs need");
	assert_false(daemon_log_has(daemon, "of weights in"));
}

static void test_log_and_operators_socket_agree_on_the_weights(void **state)
{
	char line[64];

	daemon_start(*state);
	int64_t bytes = daemon_number(*state, "models", 0, "weights_bytes");
	assert_int_equal(daemon_count(*state, "weights_bytes"), bytes);
	/* of a few MiB */
	snprintf(line, sizeof(line), ", %.2f MiB of weights in ", (double)bytes / (1 << 20));
	if (!daemon_log_has(*state, line))
		fail_msg("the log has no \"%s\"", line);
}

static void test_log_says_how_weights_were_quantised_and_that_they_are_widened(void **state)
{
	char option[512], line[128];

	snprintf(option, sizeof(option), "quantised=%s",
		source_path("tests/data/checkpoints/fp8-blocks"));
	daemon_option(*state, "--model", option);
	daemon_start(*state);
	snprintf(line, sizeof(line),
		"model quantised: LlamaForCausalLM, fp8 in blocks of 128 x 128, widened to %s at load, ",
		test_on_cuda() ? "bf16" : "f32");
	if (!daemon_log_has(*state, line))
		fail_msg("the log has no \"%s\"", line);
}

/* ---- graphs ---- */

static void test_full_graphs_of_a_backend_that_cannot_are_refused_before_loading(void **state)
{
	struct daemon *daemon = *state;

	daemon_option(daemon, "--graph-mode", "full");
	daemon_option(daemon, "--attention", "naive");
	if (test_on_cuda()) /* which has no such backend at all */
		ASSERT_REFUSES(daemon, EXIT_ERROR, "model tinycalc: attention backend naive cannot serve this model");
	else
		ASSERT_REFUSES(daemon, EXIT_ERROR,
			"model tinycalc: graph mode FULL: attention backend naive cannot run in a graph");
	assert_false(daemon_log_has(daemon, "of weights in"));
}

static void test_mode_lowered_without_pieces_is_warned_of(void **state)
{
	daemon_option(*state, "--breakable", "no");
	daemon_start(*state);
	assert_true(daemon_log_has(*state, "graph mode FULL_AND_PIECEWISE becomes FULL_DECODE_ONLY: "
		"breakable = no: there are no piecewise graphs"));
}

/* ---- signals before it serves ---- */

/* Hold the daemon in the middle of its start-up: true if it had not read the weights yet. */
static bool held_before_loading(struct daemon *daemon)
{
	daemon_launch(daemon);
	if (!EVENTUALLY(daemon_log_has(daemon, "config: device")))
		fail_msg("mimeod logs nothing");
	daemon_pause(daemon);
	return !daemon_log_has(daemon, "of weights in");
}

static void test_signal_before_serving_ends_the_daemon_with_status_1(void **state)
{
	struct daemon *daemon = *state;

	daemon_option(daemon, "--log-level", "debug");
	for (unsigned i = 0; !held_before_loading(daemon); i++) {
		daemon_kill(daemon);
		unlink(daemon->log);
		if (i == 20)
			fail_msg("mimeod was never seen before it read its weights");
	}
	/* All of the loading, the warm-up and the capture are still to come. */
	kill(daemon->pid, SIGTERM);
	kill(daemon->pid, SIGCONT);
	assert_int_equal(daemon_wait(daemon), EXIT_ERROR);
	assert_true(daemon_log_has(daemon, "ended by SIGTERM before serving"));
	assert_false(daemon_log_has(daemon, "ready:"));
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		OWN(test_truncated_weights_are_refused_by_file),
		OWN(test_missing_weights_are_refused_by_file),
		OWN(test_header_length_beyond_the_file_is_refused),
		OWN(test_header_that_is_no_json_is_refused),
		OWN(test_tensor_beyond_its_file_is_refused_by_name),
		OWN(test_tensors_that_overlap_are_refused),
		OWN(test_tensor_of_another_shape_is_refused_by_name),
		OWN(test_tensor_whose_type_does_not_fit_its_size_is_refused_by_name),
		OWN(test_missing_tensor_is_refused_by_name),
		OWN(test_unknown_architecture_is_refused_by_name),
		OWN(test_unsupported_activation_is_refused_by_name),
		OWN(test_unsupported_rope_is_refused_by_name),
		OWN(test_config_that_is_no_json_is_refused_by_file),
		OWN(test_tensors_without_a_use_are_warned_of),
		OWN(test_head_that_predicts_tokens_is_named_with_the_setting_that_uses_it),
		OWN(test_gguf_file_is_served_without_a_tokenizer_that_is_not_read),
		OWN(test_gguf_file_of_another_architecture_is_refused_by_name),
		OWN(test_attention_of_another_kind_than_the_models_is_refused_with_the_reason),
		OWN(test_mask_that_the_attention_does_not_know_is_refused_with_the_reason),
		OWN(test_model_too_large_for_the_memory_is_refused),
		OWN(test_pages_too_many_for_the_memory_are_refused),
		OWN(test_pages_too_few_for_a_token_are_refused_with_how_many_it_takes),
		OWN(test_inputs_too_large_for_the_memory_are_refused_before_loading),
		OWN(test_log_and_operators_socket_agree_on_the_weights),
		OWN(test_log_says_how_weights_were_quantised_and_that_they_are_widened),
		OWN(test_full_graphs_of_a_backend_that_cannot_are_refused_before_loading),
		OWN(test_mode_lowered_without_pieces_is_warned_of),
		OWN(test_signal_before_serving_ends_the_daemon_with_status_1),
	};

	watchdog(WATCHDOG_SECONDS);
	return cmocka_run_group_tests_name("startup_model", tests, NULL, NULL);
}
