/* SPDX-License-Identifier: MIT */
#include "tests/model/loaded.h"

#include <errno.h>
#include <math.h>
#include <sys/stat.h>

#include "kernels/convert.h"

#define TINYCALC "examples/models/tinycalc"
#define CHECKPOINTS "tests/data/checkpoints/"

static void test_tinycalc_is_loaded_byte_for_byte(void **state)
{
	struct loaded *l = *state;
	const struct model *m = l->model;

	assert_int_equal(m->config.n_layers, 5);
	assert_int_equal(m->embedding.rows, 256);
	assert_int_equal(m->embedding.cols, 160);
	assert_holds(l, &m->embedding, 0, "model.embed_tokens.weight");
	assert_holds(l, &m->head, 0, "lm_head.weight");
	assert_holds(l, &m->final_norm, 0, "model.norm.weight");
	assert_holds(l, &m->layers[4].input_norm, 0, "model.layers.4.input_layernorm.weight");
	assert_holds(
		l, &m->layers[4].post_norm, 0, "model.layers.4.post_attention_layernorm.weight");
	assert_holds(l, &m->layers[3].o, 0, "model.layers.3.self_attn.o_proj.weight");
	assert_holds(l, &m->layers[2].down, 0, "model.layers.2.mlp.down_proj.weight");
	assert_null(m->layers[0].qkv_bias.data);
	assert_null(m->layers[0].q_norm.data);
	assert_int_equal(m->file_bytes, 3551680 - 8 - 5112);
	assert_true(m->bytes >= m->file_bytes + 64 * 64 * sizeof(float));
}

static void test_q_k_v_and_gate_up_are_fused_by_rows(void **state)
{
	struct loaded *l = *state;
	const struct model_layer *layer = &l->model->layers[1];
	uint64_t at;

	assert_int_equal(layer->qkv.rows, (4 + 2 + 2) * 64);
	assert_int_equal(layer->qkv.cols, 160);
	at = assert_holds(l, &layer->qkv, 0, "model.layers.1.self_attn.q_proj.weight");
	at = assert_holds(l, &layer->qkv, at, "model.layers.1.self_attn.k_proj.weight");
	assert_holds(l, &layer->qkv, at, "model.layers.1.self_attn.v_proj.weight");
	assert_int_equal(layer->gate_up.rows, 2 * 448);
	at = assert_holds(l, &layer->gate_up, 0, "model.layers.1.mlp.gate_proj.weight");
	assert_holds(l, &layer->gate_up, at, "model.layers.1.mlp.up_proj.weight");
}

static void test_biases_are_fused_like_their_weights(void **state)
{
	struct loaded *l = *state;
	const struct model_layer *layer = &l->model->layers[1];
	uint64_t at;

	assert_int_equal(layer->qkv_bias.rows, 1);
	assert_int_equal(layer->qkv_bias.cols, layer->qkv.rows);
	at = assert_holds(l, &layer->qkv_bias, 0, "model.layers.1.self_attn.q_proj.bias");
	at = assert_holds(l, &layer->qkv_bias, at, "model.layers.1.self_attn.k_proj.bias");
	assert_holds(l, &layer->qkv_bias, at, "model.layers.1.self_attn.v_proj.bias");
	assert_holds(l, &layer->o_bias, 0, "model.layers.1.self_attn.o_proj.bias");
	at = assert_holds(l, &layer->gate_up_bias, 0, "model.layers.1.mlp.gate_proj.bias");
	assert_holds(l, &layer->gate_up_bias, at, "model.layers.1.mlp.up_proj.bias");
	assert_holds(l, &layer->down_bias, 0, "model.layers.1.mlp.down_proj.bias");
}

/* The tensor's elements, of that dtype in the file, are in the weight from `at` on, as far
 * as the weight's own dtype goes. Returns where they end. */
static size_t assert_converted(const struct loaded *l, const struct weight *weight, size_t at,
	const char *name, enum dtype want_dtype)
{
	uint64_t bytes;
	enum dtype dtype;
	uint8_t *file = tensor_bytes(l, name, &bytes, &dtype);
	const struct weight in_file = {.data = file, .dtype = dtype};
	size_t n = bytes / dtype_bytes(dtype), width = dtype_bytes(weight->dtype);
	struct weight fetched = *weight;
	float *want = malloc(n * sizeof(*want)), *have = malloc(n * sizeof(*have));

	assert_int_equal(dtype, want_dtype);
	assert_non_null(want);
	assert_non_null(have);
	assert_true(at + n <= (size_t)weight->rows * weight->cols);
	fetched.data = test_fetch(l->device, (const uint8_t *)weight->data + at * width, n * width);
	weight_to_f32(want, &in_file, 0, n);
	weight_to_f32(have, &fetched, 0, n);
	for (size_t i = 0; i < n; i++) {
		if (weight->dtype == DTYPE_BF16)
			want[i] = bf16_to_f32(f32_to_bf16(want[i]));
		if (have[i] != want[i])
			fail_msg("%s: element %zu is %g, not %g", name, i, have[i], want[i]);
	}
	free((void *)fetched.data);
	free(have);
	free(want);
	free(file);
	return at + n;
}

/* float32 where activations are, bf16 elsewhere. */
static void test_fused_parts_of_different_dtypes_become_one(void **state)
{
	struct loaded *l = *state;
	const enum dtype dtype = test_device_info(l->device).activation_dtype;
	const struct weight *qkv = &l->model->layers[0].qkv;
	size_t at;

	assert_int_equal(qkv->dtype, dtype);
	assert_int_equal(l->model->layers[0].gate_up.dtype, dtype);
	assert_int_equal(l->model->layers[0].down.dtype, DTYPE_BF16);
	at = assert_converted(l, qkv, 0, "model.layers.0.self_attn.q_proj.weight", DTYPE_F32);
	at = assert_converted(l, qkv, at, "model.layers.0.self_attn.k_proj.weight", DTYPE_F16);
	assert_converted(l, qkv, at, "model.layers.0.self_attn.v_proj.weight", DTYPE_BF16);
}

static void test_shards_are_loaded_as_one(void **state)
{
	struct loaded *l = *state;

	assert_holds(l, &l->model->layers[2].down, 0, "model.layers.2.mlp.down_proj.weight");
	assert_holds(l, &l->model->layers[0].o, 0, "model.layers.0.self_attn.o_proj.weight");
	assert_holds(l, &l->model->head, 0, "lm_head.weight");
}

static void test_tied_head_is_the_embedding(void **state)
{
	struct loaded *l = *state;

	assert_ptr_equal(l->model->head.data, l->model->embedding.data);
	assert_int_equal(l->model->head.rows, 199);
}

static void test_model_keeps_its_own_copy_of_the_config(void **state)
{
	struct loaded *l = *state;

	assert_ptr_not_equal(l->model->config.windows, l->config.windows);
	assert_int_equal(l->model->config.windows[1], 9);
}

static void test_measure_is_what_load_takes(void **state)
{
	struct loaded *l = *state;
	const struct device_info info = test_device_info(l->device);
	struct model_error error = {""};
	uint64_t bytes = 0, longer = 0;

	assert_int_equal(model_measure(l->directory, &l->config, 64, &info, &bytes, &error), 0);
	assert_int_equal(bytes, l->model->bytes);
	assert_int_equal(model_measure(l->directory, &l->config, 1064, &info, &longer, &error), 0);
	assert_int_equal(longer, bytes + 1000 * 64 * sizeof(float));
}

struct progress {
	uint64_t done, total;
	bool backwards;
};

static void on_progress(void *userdata, uint64_t done, uint64_t total)
{
	struct progress *progress = userdata;

	progress->backwards |= done <= progress->done || done > total;
	progress->done = done;
	progress->total = total;
}

static void test_progress_rises_to_the_total(void **state)
{
	struct loaded *l = *state;
	struct progress progress = {0};
	struct model_error error = {""};
	struct model *again;

	assert_int_equal(model_load(l->device, l->directory, &l->config, 64, on_progress, &progress,
				 &again, &error),
		0);
	assert_false(progress.backwards);
	assert_int_equal(progress.done, again->file_bytes);
	assert_int_equal(progress.total, again->file_bytes);
	model_free(again);
}

/* ---- refusals, and models written for them ---- */

/* The header of a safetensors file under construction. */
struct header {
	char text[4096];
	size_t at, data; /* bytes of it, and of data that it describes */
};

/* `what`: dtype and shape. */
static void add_tensor(struct header *h, const char *name, const char *what, size_t bytes)
{
	h->at += (size_t)snprintf(h->text + h->at, sizeof(h->text) - h->at,
		"%c\"%s\":{%s,\"data_offsets\":[%zu,%zu]}", h->at ? ',' : '{', name, what, h->data,
		h->data + bytes);
	h->data += bytes;
}

static void write_tensors(const struct scratch *scratch, struct header *h)
{
	snprintf(h->text + h->at, sizeof(h->text) - h->at, "}");
	scratch_safetensors(scratch, "model.safetensors", h->text, UINT64_MAX, h->data);
}

#define BF16(shape) "\"dtype\":\"BF16\",\"shape\":[" shape "]"

/* A model of one layer. The tensor `name` is left out, or has `entry` for dtype and shape; behind the
 * model's come those of `more`, up to NULL. */
static void write_small_and(const struct scratch *scratch, const char *name, const char *entry,
	const char *const *more)
{
	static const struct {
		const char *name, *what;
		uint32_t bytes;
	} tensors[] = {
		{"model.embed_tokens.weight", BF16("6,4"), 48},
		{"model.norm.weight", BF16("4"), 8},
		{"lm_head.weight", BF16("6,4"), 48},
		{"model.layers.0.input_layernorm.weight", BF16("4"), 8},
		{"model.layers.0.post_attention_layernorm.weight", BF16("4"), 8},
		{"model.layers.0.self_attn.q_proj.weight", BF16("4,4"), 32},
		{"model.layers.0.self_attn.k_proj.weight", BF16("4,4"), 32},
		{"model.layers.0.self_attn.v_proj.weight", BF16("4,4"), 32},
		{"model.layers.0.self_attn.o_proj.weight", BF16("4,4"), 32},
		{"model.layers.0.mlp.gate_proj.weight", BF16("2,4"), 16},
		{"model.layers.0.mlp.up_proj.weight", BF16("2,4"), 16},
		{"model.layers.0.mlp.down_proj.weight", BF16("4,2"), 16},
	};
	struct header h = {0};

	for (size_t i = 0; i < ARRAY_SIZE(tensors); i++) {
		bool chosen = name && !strcmp(name, tensors[i].name);

		if (!chosen || entry)
			add_tensor(&h, tensors[i].name, chosen ? entry : tensors[i].what,
				tensors[i].bytes);
	}
	for (; *more; more++)
		add_tensor(&h, *more, "\"dtype\":\"F32\",\"shape\":[1]", 4);
	write_tensors(scratch, &h);
}

static void write_small(const struct scratch *scratch, const char *name, const char *entry)
{
	write_small_and(scratch, name, entry, (const char *const[]){NULL});
}

static struct model_config small_config(const struct scratch *scratch, const char *more,
	const char *intermediate_size)
{
	struct model_config config = {0};
	struct model_error error = {""};
	char text[512];

	snprintf(text, sizeof(text),
		"{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":4,"
		"\"intermediate_size\":%s,"
		"\"num_hidden_layers\":1,\"num_attention_heads\":2,\"vocab_size\":6%s}",
		intermediate_size, more);
	scratch_text(scratch, "config.json", text);
	if (model_config_load(scratch->directory, &config, &error))
		fail_msg("%s", error.text);
	return config;
}

/* An MLP of a million rows of 4: 8 MB as bf16, several chunks of a bulk read. */
static void write_wide(const struct scratch *scratch)
{
	static const char *const squares[] = {"q_proj", "k_proj", "v_proj", "o_proj"};
	struct header h = {0};
	char name[96];

	add_tensor(&h, "model.embed_tokens.weight", BF16("6,4"), 48);
	add_tensor(&h, "model.norm.weight", BF16("4"), 8);
	add_tensor(&h, "model.layers.0.input_layernorm.weight", BF16("4"), 8);
	add_tensor(&h, "model.layers.0.post_attention_layernorm.weight", BF16("4"), 8);
	for (size_t i = 0; i < ARRAY_SIZE(squares); i++) {
		snprintf(name, sizeof(name), "model.layers.0.self_attn.%s.weight", squares[i]);
		add_tensor(&h, name, BF16("4,4"), 32);
	}
	add_tensor(&h, "model.layers.0.mlp.gate_proj.weight", BF16("1000000,4"), 8000000);
	add_tensor(&h, "model.layers.0.mlp.up_proj.weight",
		"\"dtype\":\"F32\",\"shape\":[1000000,4]", 16000000);
	add_tensor(&h, "model.layers.0.mlp.down_proj.weight", BF16("4,1000000"), 8000000);
	write_tensors(scratch, &h);
}

/* The scratch directory's model, which is the caller's to unload. */
static struct loaded load_scratch(
	const struct scratch *scratch, struct model_config config, uint32_t max_positions)
{
	struct loaded l = {.config = config};
	struct model_error error = {""};

	snprintf(l.directory, sizeof(l.directory), "%s", scratch->directory);
	l.device = test_device_open(0);
	if (model_load(l.device, l.directory, &l.config, max_positions, NULL, NULL, &l.model,
		    &error))
		fail_msg("%s", error.text);
	return l;
}

static void test_tensors_of_many_chunks_arrive_whole(void **state)
{
	struct scratch *scratch = *state;
	struct model_config config =
		small_config(scratch, ",\"tie_word_embeddings\":true", "1000000");
	const struct model_layer *layer;
	struct loaded l;
	size_t at;

	write_wide(scratch);
	l = load_scratch(scratch, config, 8);
	layer = &l.model->layers[0];
	assert_holds(&l, &layer->down, 0, "model.layers.0.mlp.down_proj.weight");
	at = assert_converted(
		&l, &layer->gate_up, 0, "model.layers.0.mlp.gate_proj.weight", DTYPE_BF16);
	assert_converted(&l, &layer->gate_up, at, "model.layers.0.mlp.up_proj.weight", DTYPE_F32);
	unload(&l);
}

/* The rope table does, and so do the bytes of both. */
static void test_bytes_of_weights_do_not_depend_on_the_positions(void **state)
{
	struct scratch *scratch = *state;
	uint64_t weights[2], all[2];

	write_small(scratch, NULL, NULL);
	for (uint32_t i = 0; i < 2; i++) {
		struct loaded l =
			load_scratch(scratch, small_config(scratch, "", "2"), i ? 4096 : 8);

		weights[i] = l.model->weights_bytes;
		all[i] = l.model->bytes;
		unload(&l);
	}
	assert_true(weights[0] > 0 && weights[0] < all[0]);
	assert_int_equal(weights[0], weights[1]);
	assert_true(all[0] < all[1]);
}

/* A model of its files, and of `more`: what it says of those that it has no use for. */
static struct model_unused unused_of(struct scratch *scratch, const char *const *more)
{
	struct model_unused unused;
	struct loaded l;

	write_small_and(scratch, NULL, NULL, more);
	l = load_scratch(scratch, small_config(scratch, "", "2"), 8);
	unused = l.model->unused;
	unload(&l);
	return unused;
}

static void test_tensors_without_a_use_are_counted_and_the_first_is_named(void **state)
{
	struct model_unused unused = unused_of(*state, (const char *const[]){
		"model.layers.1.mlp.up_proj.weight", "model.layers.0.self_attn.q_norm.weight",
		"model.layers.0.self_attn.rotary_emb.inv_freq", NULL});

	assert_int_equal(unused.n, 2);
	assert_string_equal(unused.first, "model.layers.0.self_attn.q_norm.weight");
	assert_int_equal(unused.n_buffers, 1);
	assert_int_equal(unused.n_prediction, 0);
	unused = unused_of(*state, (const char *const[]){NULL});
	assert_int_equal(unused.n, 0);
	assert_int_equal(unused.n_buffers, 0);
}

/* Such a layer has a projection; a layer of the model that the configuration leaves out has none. */
static void test_layers_that_predict_further_tokens_are_counted_apart(void **state)
{
	struct model_unused unused = unused_of(*state, (const char *const[]){
		"model.layers.1.eh_proj.weight", "model.layers.1.mlp.up_proj.weight",
		"model.layers.2.mlp.up_proj.weight", NULL});

	assert_int_equal(unused.n, 1);
	assert_string_equal(unused.first, "model.layers.2.mlp.up_proj.weight");
	assert_int_equal(unused.n_prediction, 2);
}

/* A checkpoint whose tensor `name` is missing (entry NULL) or has `entry`, under a config.json with
 * `more`. */
struct refused {
	const char *name, *entry, *more;
	int rc;
	const char *words;
};

static void expect_refusal(const struct scratch *scratch, const struct refused *refused)
{
	CLEANUP(model_config_deinit) struct model_config config =
		small_config(scratch, refused->more, "2");
	struct model_error error = {""};
	uint64_t bytes = 77;

	assert_int_equal(model_measure(scratch->directory, &config, 8, DEVICE_F32, &bytes, &error),
		refused->rc);
	assert_contains(error.text, scratch->directory);
	assert_contains(error.text, refused->words);
	assert_int_equal(bytes, 77);
}

static void test_refused(void **state)
{
	const struct scratch *scratch = *state;
	const struct refused *refused = scratch->given;

	write_small(scratch, refused->name, refused->entry);
	expect_refusal(scratch, refused);
}

#define REFUSED(claim, name, entry, more, rc, words)                     \
	{claim, test_refused, scratch_setup, scratch_teardown,           \
		&(struct refused){name, entry, more, rc, words}}

static void test_small_model_is_accepted(void **state)
{
	struct scratch *scratch = *state;
	CLEANUP(model_config_deinit) struct model_config config = small_config(scratch, "", "2");
	struct model_error error = {""};
	uint64_t bytes = 0;

	write_small(scratch, NULL, NULL);
	assert_int_equal(
		model_measure(scratch->directory, &config, 8, DEVICE_F32, &bytes, &error), 0);
	assert_true(bytes > 0);
}

static void test_truncated_file_is_refused(void **state)
{
	struct scratch *scratch = *state;
	struct stat st;
	char path[256];

	write_small(scratch, NULL, NULL);
	scratch_path(scratch, "model.safetensors", path);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(truncate(path, st.st_size - 1), 0);
	expect_refusal(scratch, &(struct refused){NULL, NULL, "", -EINVAL, "but the file has"});
}

static void test_tied_model_may_have_its_head_alone(void **state)
{
	struct scratch *scratch = *state;
	struct loaded l;

	write_small(scratch, "model.embed_tokens.weight", NULL);
	l = load_scratch(scratch, small_config(scratch, ",\"tie_word_embeddings\":true", "2"), 8);
	assert_ptr_equal(l.model->head.data, l.model->embedding.data);
	unload(&l);
}

static void test_device_without_memory_is_named(void **state)
{
	struct loaded *l = *state;
	struct model_error error = {""};
	struct model *model = NULL;

	assert_int_equal(l->device->ops->lock(l->device), 0);
	assert_true(
		model_load(l->device, l->directory, &l->config, 64, NULL, NULL, &model, &error) < 0);
	assert_contains(error.text, "bytes of device memory are not available");
	assert_null(model);
}

static void test_names_without_their_first_part_are_found(void **state)
{
	const struct loaded *l = *state;

	assert_holds(l, &l->model->embedding, 0, "embed_tokens.weight");
	assert_holds(l, &l->model->layers[1].o, 0, "layers.1.self_attn.o_proj.weight");
	assert_true(l->model->has_head);
	assert_ptr_equal(l->model->head.data, l->model->embedding.data);
	assert_int_equal(l->model->unused.n, 0);
}

static void test_head_may_be_missing_where_names_lack_their_first_part(void **state)
{
	struct model_error error = {""};
	struct loaded *l = *state;
	struct model *again;

	l->config.tie_word_embeddings = false;
	assert_int_equal(
		model_load(l->device, l->directory, &l->config, 64, NULL, NULL, &again, &error), 0);
	assert_false(again->has_head);
	assert_int_equal(again->head.rows, l->config.vocab_size);
	assert_int_equal(again->bytes, l->model->bytes);
	model_free(again);
}

static float loaded_scale(const struct scratch *scratch, const char *dtype_and_shape)
{
	struct model_config config = small_config(scratch, "", "2");
	struct loaded l;
	float scale;

	write_small(scratch, "model.embed_tokens.weight", dtype_and_shape);
	config.embedding_scale = sqrtf(3584);
	l = load_scratch(scratch, config, 8);
	scale = l.model->config.embedding_scale;
	unload(&l);
	return scale;
}

static void test_scale_of_embeddings_in_bf16_is_in_bf16(void **state)
{
	assert_true(loaded_scale(*state, BF16("6,4")) == 59.75f);
	assert_true(loaded_scale(*state, "\"dtype\":\"F16\",\"shape\":[6,4]") == sqrtf(3584));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		loaded_test(test_tinycalc_is_loaded_byte_for_byte, TINYCALC),
		loaded_test(test_q_k_v_and_gate_up_are_fused_by_rows, TINYCALC),
		loaded_test(test_biases_are_fused_like_their_weights, CHECKPOINTS "llama-bias"),
		loaded_test(test_fused_parts_of_different_dtypes_become_one, CHECKPOINTS "qwen2-mixed"),
		loaded_test(test_shards_are_loaded_as_one, CHECKPOINTS "llama-sharded"),
		loaded_test(test_tied_head_is_the_embedding, CHECKPOINTS "llama-tied"),
		loaded_test(test_names_without_their_first_part_are_found, CHECKPOINTS "qwen3-embedding"),
		loaded_test(test_head_may_be_missing_where_names_lack_their_first_part,
			CHECKPOINTS "qwen3-embedding"),
		loaded_test(test_model_keeps_its_own_copy_of_the_config, CHECKPOINTS "mistral-window"),
		loaded_test(test_measure_is_what_load_takes, TINYCALC),
		loaded_test(test_progress_rises_to_the_total, TINYCALC),
		scratch_test(test_tensors_of_many_chunks_arrive_whole),
		scratch_test(test_bytes_of_weights_do_not_depend_on_the_positions),
		scratch_test(test_tensors_without_a_use_are_counted_and_the_first_is_named),
		scratch_test(test_layers_that_predict_further_tokens_are_counted_apart),
		scratch_test(test_small_model_is_accepted),
		REFUSED("missing tensor is named", "model.layers.0.self_attn.k_proj.weight", NULL, "",
			-EINVAL, "model.safetensors: tensor "
			"\"model.layers.0.self_attn.k_proj.weight\" is missing"),
		REFUSED("missing layer is named", NULL, NULL, ",\"mlp_bias\":true", -EINVAL,
			"tensor \"model.layers.0.mlp.gate_proj.bias\" is missing"),
		REFUSED("missing head of an untied model is named", "lm_head.weight", NULL, "",
			-EINVAL, "tensor \"lm_head.weight\" is missing"),
		REFUSED("wrong shape is refused", "model.layers.0.mlp.up_proj.weight",
			"\"dtype\":\"BF16\",\"shape\":[4,2]", "", -EINVAL,
			"tensor \"model.layers.0.mlp.up_proj.weight\": shape [4, 2] is not [2, 4]"),
		REFUSED("wrong number of dimensions is refused", "model.norm.weight",
			"\"dtype\":\"BF16\",\"shape\":[4,1]", "", -EINVAL,
			"tensor \"model.norm.weight\": shape [4, 1] is not [4]"),
		REFUSED("needed tensor of another dtype is refused", "model.norm.weight",
			"\"dtype\":\"I16\",\"shape\":[4]", "", -ENOTSUP,
			"tensor \"model.norm.weight\": dtype I16 is not one of F32, BF16, F16"),
		REFUSED("needed tensor of unknown dtype is refused", "lm_head.weight",
			"\"dtype\":\"NF4\",\"shape\":[6,4]", "", -ENOTSUP,
			"tensor \"lm_head.weight\": dtype NF4 is not one of"),
		scratch_test(test_truncated_file_is_refused),
		scratch_test(test_tied_model_may_have_its_head_alone),
		loaded_test(test_device_without_memory_is_named, TINYCALC),
		scratch_test(test_scale_of_embeddings_in_bf16_is_in_bf16),
	};

	return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
