/* SPDX-License-Identifier: MIT */

/* Fused tensors of Phi-3, whose heads may rotate in part. test_model_forward has its logits. */

#include "tests/model/loaded.h"

#include <errno.h>

#include "kernels/convert.h"
#include "tests/model/writing.h"

enum { HEADS = 16, KV_HEADS = 2, DIM = 128, HIDDEN = HEADS * DIM, INNER = 8 };
enum { ROWS = (HEADS + 2 * KV_HEADS) * DIM, ROTARY = 96 };

/* 10 MB of qkv: element 0 is the row's place in its head, element 1 the head. */
static void write_model(const struct scratch *scratch)
{
	struct writing w = writing_begin(32u << 20);
	uint16_t *qkv;

	writing_add_zeros(&w, "model.embed_tokens.weight", 6, HIDDEN);
	writing_add_zeros(&w, "model.norm.weight", HIDDEN, 0);
	writing_add_zeros(&w, "model.layers.0.input_layernorm.weight", HIDDEN, 0);
	writing_add_zeros(&w, "model.layers.0.post_attention_layernorm.weight", HIDDEN, 0);
	writing_add_zeros(&w, "model.layers.0.self_attn.o_proj.weight", HIDDEN, HIDDEN);
	writing_add_zeros(&w, "model.layers.0.mlp.gate_up_proj.weight", 2 * INNER, HIDDEN);
	writing_add_zeros(&w, "model.layers.0.mlp.down_proj.weight", HIDDEN, INNER);
	qkv = writing_add(&w, "model.layers.0.self_attn.qkv_proj.weight", "BF16", ROWS, HIDDEN,
		(size_t)ROWS * HIDDEN * sizeof(*qkv));
	memset(qkv, 0, (size_t)ROWS * HIDDEN * sizeof(*qkv));
	for (size_t row = 0; row < ROWS; row++) {
		qkv[row * HIDDEN] = f32_to_bf16((float)(row % DIM));
		qkv[row * HIDDEN + 1] = f32_to_bf16((float)(row / DIM));
	}
	writing_write(scratch, &w);
}

static struct loaded load_model(const struct scratch *scratch, double partial)
{
	struct model_error error = {""};
	struct loaded l = {0};
	char text[512];

	write_model(scratch);
	snprintf(text, sizeof(text),
		"{\"architectures\":[\"Phi3ForCausalLM\"],\"hidden_size\":%d,\"intermediate_size\":%d,"
		"\"num_hidden_layers\":1,\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"vocab_size\":6,"
		"\"tie_word_embeddings\":true,\"partial_rotary_factor\":%g}",
		HIDDEN, INNER, HEADS, KV_HEADS, partial);
	scratch_text(scratch, "config.json", text);
	snprintf(l.directory, sizeof(l.directory), "%s", scratch->directory);
	l.device = test_device_open(0);
	if (model_config_load(l.directory, &l.config, &error) ||
		model_load(l.device, l.directory, &l.config, 8, NULL, NULL, &l.model, &error))
		fail_msg("%s", error.text);
	return l;
}

/* The row of a head that lies at `at` in memory. */
static uint32_t row_at(uint32_t at, uint32_t rotary)
{
	const uint32_t half = DIM / 2, n = rotary / 2;

	if (at < n)
		return at;
	if (at < half)
		return at + n; /* not rotated: behind both rotated halves */
	return at < half + n ? at - half + n : at;
}

static void assert_rows(const struct loaded *l, uint32_t rotary)
{
	const struct weight qkv = l->model->layers[0].qkv;
	const uint16_t *data = test_fetch(l->device, qkv.data, (size_t)ROWS * HIDDEN * sizeof(*data));

	assert_int_equal(qkv.rows, ROWS);
	for (uint32_t row = 0; row < ROWS; row++) {
		const bool turns = row / DIM < HEADS + KV_HEADS;
		const float want = (float)(turns ? row_at(row % DIM, rotary) : row % DIM);

		if (bf16_to_f32(data[row * HIDDEN]) != want || bf16_to_f32(data[row * HIDDEN + 1]) != row / DIM)
			fail_msg("row %u is row %g of head %g", row, (double)bf16_to_f32(data[row * HIDDEN]),
				(double)bf16_to_f32(data[row * HIDDEN + 1]));
	}
	free((void *)data);
}

static void test_rotated_rows_begin_the_halves_of_q_and_k_and_v_keeps_its_order(void **state)
{
	struct loaded l = load_model(*state, (double)ROTARY / DIM);

	assert_rows(&l, ROTARY);
	assert_int_equal(l.model->unused.n, 0);
	unload(&l);
}

static void test_heads_that_rotate_whole_keep_their_order(void **state)
{
	struct loaded l = load_model(*state, 1);

	assert_rows(&l, DIM);
	unload(&l);
}

static void test_quantised_heads_that_rotate_in_part_are_refused(void **state)
{
	struct loaded *l = *state;
	struct model_error error = {""};
	uint64_t bytes;

	l->config.rotary_dim = 6;
	assert_int_equal(model_measure(l->directory, &l->config, 8, DEVICE_F32, &bytes, &error), -ENOTSUP);
	assert_contains(error.text, "tensor \"model.layers.0.self_attn.q_proj.weight\" is quantised, which is not "
				    "supported where rope rotates 6 of head_dim 12 elements");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		scratch_test(test_rotated_rows_begin_the_halves_of_q_and_k_and_v_keeps_its_order),
		scratch_test(test_heads_that_rotate_whole_keep_their_order),
		loaded_test(test_quantised_heads_that_rotate_in_part_are_refused, "tests/data/checkpoints/fp8-tensor"),
	};

	return cmocka_run_group_tests_name("fused_load", tests, NULL, NULL);
}
