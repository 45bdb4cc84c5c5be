/* SPDX-License-Identifier: MIT */

/* Matrices of 4 bits whose columns are not in the order of their groups, on a device that packs weights: the columns
 * are sorted; what makes their x, a norm or the rows of gate and up, follows. */

#include "tests/model/packing.h"
#include "tests/model/writing.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

enum { HIDDEN = 256, INNER = 384, GROUP = 128 };
#define LAYER "model.layers.0."

struct form {
	const char *quantisation; /* of config.json */
	const char *more;         /* fields of config.json beside it */
	void (*add)(struct writing *w, const char *module, uint32_t rows, uint32_t cols);
	bool orders_down, orders_inputs; /* are the columns of down, and of all others, in another order? */
	bool differs;                    /* are those of k in another order than those of q and v? */
	bool is_uneven;                  /* a group of down's has one column more, another one less */
	bool has_bias;
	bool is_mixed; /* k and up have groups of 32; the order of their columns is that of q, v and gate */
};

static const struct form *form_now;
static bool is_other; /* the matrix that differs is being written */

/* ---- a file ---- */

static uint32_t group_size(void)
{
	return is_other && form_now->is_mixed ? 32 : GROUP;
}

/* Column k of the matrix is in group (k * step % cols) / group_size(). */
static uint32_t step_of(const struct form *form, uint32_t cols)
{
	return cols == INNER ? form->orders_down ? 5 : 1 : form->orders_inputs ? 3 : 1;
}

static uint32_t group_of(const struct form *form, uint32_t cols, uint32_t k)
{
	if (form->is_uneven && cols == INNER && k == 0)
		return 1;
	if (form->is_mixed)
		return (k + cols / 2) % cols / group_size();
	return k * (is_other ? 7 : step_of(form, cols)) % cols / GROUP;
}

static void *add(struct writing *w, const char *module, const char *part, const char *dtype, uint32_t rows,
	uint32_t cols, size_t bytes)
{
	char name[128];

	snprintf(name, sizeof(name), "%s.%s", module, part);
	return writing_add(w, name, dtype, rows, cols, bytes);
}

static void add_random(struct writing *w, const char *module, const char *part, uint32_t rows, uint32_t cols)
{
	uint32_t *words = add(w, module, part, "I32", rows, cols, (size_t)rows * cols * sizeof(*words));
	uint64_t seed = w->bytes;

	for (size_t i = 0; i < (size_t)rows * cols; i++) {
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		words[i] = (uint32_t)(seed >> 32);
	}
}

static void add_factors(
	struct writing *w, const char *module, const char *part, const char *dtype, uint32_t rows, uint32_t cols)
{
	uint16_t *at = add(w, module, part, dtype, rows, cols, (size_t)rows * cols * sizeof(*at));

	for (size_t i = 0; i < (size_t)rows * cols; i++)
		at[i] = (uint16_t)(0x1401 + 7 * i % 0x2000);
}

static void add_groups(struct writing *w, const char *module, const char *part, uint32_t cols)
{
	int32_t *groups = add(w, module, part, "I32", cols, 0, cols * sizeof(*groups));

	for (uint32_t k = 0; k < cols; k++)
		groups[k] = (int32_t)group_of(form_now, cols, k);
}

static void add_gptq(struct writing *w, const char *module, uint32_t rows, uint32_t cols)
{
	add_random(w, module, "qweight", cols / 8, rows);
	add_random(w, module, "qzeros", cols / GROUP, rows / 8);
	add_factors(w, module, "scales", "F16", cols / GROUP, rows);
	add_groups(w, module, "g_idx", cols);
}

static void add_integers(struct writing *w, const char *module, uint32_t rows, uint32_t cols)
{
	int64_t *shape;

	add_random(w, module, "weight_packed", rows, cols / 8);
	add_random(w, module, "weight_zero_point", rows / 8, cols / group_size());
	add_factors(w, module, "weight_scale", "BF16", rows, cols / group_size());
	add_groups(w, module, "weight_g_idx", cols);
	shape = add(w, module, "weight_shape", "I64", 2, 0, 2 * sizeof(*shape));
	shape[0] = rows;
	shape[1] = cols;
}

#define GPTQ "\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":128,\"desc_act\":true,\"sym\":false"
#define INTEGERS                                                                                          \
	"\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"ignore\":[\"lm_head\"]," \
	"\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":4,"           \
	"\"type\":\"int\",\"symmetric\":false,\"strategy\":\"group\",\"group_size\":128,\"actorder\":\"group\"}}}"
#define MIXED                                                                                             \
	"\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"ignore\":[\"lm_head\"]," \
	"\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":4,"           \
	"\"type\":\"int\",\"symmetric\":false,\"strategy\":\"group\",\"group_size\":128,\"actorder\":\"group\"}},"  \
	"\"group_1\":{\"targets\":[\"re:.*(k|up)_proj\"],\"weights\":{\"num_bits\":4,\"type\":\"int\","     \
	"\"symmetric\":false,\"strategy\":\"group\",\"group_size\":32,\"actorder\":\"group\"}}}"

static const struct form gptq = {.quantisation = GPTQ, .add = add_gptq, .orders_down = true, .orders_inputs = true};
static const struct form gptq_down = {.quantisation = GPTQ, .add = add_gptq, .orders_down = true};
static const struct form gptq_differs = {
	.quantisation = GPTQ, .add = add_gptq, .orders_down = true, .orders_inputs = true, .differs = true};
static const struct form gptq_uneven = {
	.quantisation = GPTQ, .add = add_gptq, .orders_down = true, .is_uneven = true};
static const struct form gptq_bias = {
	.quantisation = GPTQ, .add = add_gptq, .orders_down = true, .has_bias = true, .more = ",\"mlp_bias\":true"};
static const struct form integers = {
	.quantisation = INTEGERS, .add = add_integers, .orders_down = true, .orders_inputs = true};
static const struct form integers_mixed = {.quantisation = MIXED, .add = add_integers, .is_mixed = true};
static const struct form integers_down = {.quantisation = INTEGERS, .add = add_integers, .orders_down = true};

static void add_biases(struct writing *w)
{
	writing_add_zeros(w, LAYER "mlp.gate_proj.bias", INNER, 0);
	writing_add_zeros(w, LAYER "mlp.up_proj.bias", INNER, 0);
	writing_add_zeros(w, LAYER "mlp.down_proj.bias", HIDDEN, 0);
}

/* Down's groups are the file's last bytes of those that groups decide. */
static void write_model(const struct scratch *scratch, const struct form *form)
{
	static const char *const squares[] = {"q_proj", "k_proj", "v_proj", "o_proj"};
	static const char *const norms[] = {"model.norm.weight", LAYER "input_layernorm.weight",
		LAYER "post_attention_layernorm.weight"};
	struct writing w = writing_begin(4u << 20);
	char text[1024];

	form_now = form;
	writing_add_zeros(&w, "model.embed_tokens.weight", 6, HIDDEN);
	for (size_t i = 0; i < ARRAY_SIZE(norms); i++)
		writing_add_zeros(&w, norms[i], HIDDEN, 0);
	for (size_t i = 0; i < ARRAY_SIZE(squares); i++) {
		snprintf(text, sizeof(text), LAYER "self_attn.%s", squares[i]);
		is_other = (form->differs || form->is_mixed) && i == 1;
		form->add(&w, text, HIDDEN, HIDDEN);
	}
	is_other = false;
	if (form->has_bias)
		add_biases(&w);
	form->add(&w, LAYER "mlp.gate_proj", INNER, HIDDEN);
	is_other = form->is_mixed;
	form->add(&w, LAYER "mlp.up_proj", INNER, HIDDEN);
	is_other = false;
	form->add(&w, LAYER "mlp.down_proj", HIDDEN, INNER);
	writing_write(scratch, &w);
	snprintf(text, sizeof(text),
		"{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":%d,\"intermediate_size\":%d,"
		"\"num_hidden_layers\":1,\"num_attention_heads\":2,\"vocab_size\":6,\"tie_word_embeddings\":true,"
		"\"quantization_config\":{%s}%s}",
		HIDDEN, INNER, form->quantisation, form->more ? form->more : "");
	scratch_text(scratch, "config.json", text);
}

/* ---- loaded matrices ---- */

static struct packing load_form(void **state, const struct form *form)
{
	const struct scratch *scratch = *state;

	write_model(scratch, form);
	return packing_load(scratch->directory, model_config_load);
}

/* The columns of the file, those of group 0 first. */
static void order_of(const struct form *form, uint32_t cols, uint32_t *ret)
{
	uint32_t n = 0;

	for (uint32_t g = 0; g < cols / GROUP; g++)
		for (uint32_t k = 0; k < cols; k++)
			if (group_of(form, cols, k) == g)
				ret[n++] = k;
	assert_int_equal(n, cols);
}

/* Row r of a weight on the host, as float32 that bf16 can hold if the other one has been widened to it. */
static void row_of(const struct weight *w, uint32_t r, bool as_bf16, float *ret)
{
	if (packed_is(w->dtype))
		packed_to_f32(w, r, ret);
	else
		weight_to_f32(ret, w, (size_t)r * w->cols, w->cols);
	if (as_bf16)
		for (uint32_t k = 0; k < w->cols; k++)
			ret[k] = bf16_to_f32(f32_to_bf16(ret[k]));
}

/* Row r of `have` is row rows[r] of `want`, of each part of part_rows, and column k is its column cols[k]; NULL: the
 * same. */
static void assert_ordered(const struct packing *p, const struct weight *have_weight, const struct weight *want_weight,
	uint32_t part_rows, const uint32_t *rows, const uint32_t *cols)
{
	struct weight have = packing_fetch(p, *have_weight), want = packing_fetch(p, *want_weight);
	const bool as_bf16 = want.dtype == DTYPE_BF16;
	float a[INNER], b[INNER];

	assert_int_equal(have.rows, want.rows);
	assert_int_equal(have.cols, want.cols);
	for (uint32_t r = 0; r < have.rows; r++) {
		const uint32_t in_part = r % part_rows;

		row_of(&have, r, as_bf16, a);
		row_of(&want, r - in_part + (rows ? rows[in_part] : in_part), as_bf16, b);
		for (uint32_t k = 0; k < have.cols; k++)
			if (a[k] != b[cols ? cols[k] : k])
				fail_msg("[%u, %u] is %g, not %g", r, k, (double)a[k], (double)b[cols ? cols[k] : k]);
	}
	packing_drop(&have);
	packing_drop(&want);
}

static bool is_packed(const struct weight *w)
{
	return w->dtype == DTYPE_U4;
}

/* The norm that makes x for qkv or gate_up writes it in `want`; NULL: in the hidden state's order. */
static void assert_norm_order(const struct packing *p, const uint32_t *have, const uint32_t *want)
{
	uint32_t *order;

	assert_true(!have == !want);
	if (!have)
		return;
	order = test_fetch(p->device, have, HIDDEN * sizeof(*order));
	assert_memory_equal(order, want, HIDDEN * sizeof(*order));
	free(order);
}

/* Down, gate and up are packed with their columns in the order of their groups, and gate and up have their rows in
 * that of down's. */
static void check_ordered(void **state, const struct form *form)
{
	struct packing p = load_form(state, form);
	const struct model_layer *have = &p.packed->layers[0], *want = &p.wide->layers[0];
	uint32_t inner[INNER], hidden[HIDDEN];
	const uint32_t *inputs = form->orders_inputs ? hidden : NULL;

	order_of(form, INNER, inner);
	order_of(form, HIDDEN, hidden);
	assert_true(is_packed(&have->down) && is_packed(&have->gate_up));
	assert_ordered(&p, &have->down, &want->down, HIDDEN, NULL, inner);
	assert_ordered(&p, &have->gate_up, &want->gate_up, INNER, inner, inputs);
	assert_norm_order(&p, have->post_order, inputs);
	packing_unload(&p);
}

static void check_unordered(void **state, const struct form *form)
{
	struct packing p = load_form(state, form);
	const struct model_layer *have = &p.packed->layers[0], *want = &p.wide->layers[0];

	assert_false(is_packed(&have->down));
	assert_same_weight(&p, &have->down, &want->down, "down");
	assert_true(is_packed(&have->gate_up));
	assert_same_weight(&p, &have->gate_up, &want->gate_up, "gate_up");
	packing_unload(&p);
}

static void test_gptq_mlp_is_packed_in_the_order_of_groups(void **state)
{
	check_ordered(state, &gptq);
}

static void test_compressed_mlp_is_packed_in_the_order_of_groups(void **state)
{
	check_ordered(state, &integers);
}

static void test_gate_and_up_in_order_follow_down(void **state)
{
	check_ordered(state, &gptq_down);
	check_ordered(state, &integers_down);
}

static void check_qkv(void **state, const struct form *form)
{
	struct packing p = load_form(state, form);
	const struct model_layer *have = &p.packed->layers[0], *want = &p.wide->layers[0];
	uint32_t hidden[HIDDEN];

	order_of(form, HIDDEN, hidden);
	assert_true(is_packed(&have->qkv));
	assert_ordered(&p, &have->qkv, &want->qkv, 3 * HIDDEN, NULL, hidden);
	assert_norm_order(&p, have->input_order, hidden);
	packing_unload(&p);
}

static void test_qkv_are_packed_in_the_order_of_their_groups(void **state)
{
	check_qkv(state, &gptq);
	check_qkv(state, &integers);
}

/* They share x. */
static void test_qkv_of_two_orders_are_widened(void **state)
{
	struct packing p = load_form(state, &gptq_differs);
	const struct model_layer *have = &p.packed->layers[0], *want = &p.wide->layers[0];

	assert_false(is_packed(&have->qkv));
	assert_norm_order(&p, have->input_order, NULL);
	assert_same_weight(&p, &have->qkv, &want->qkv, "qkv");
	packing_unload(&p);
}

static void test_parts_of_one_order_and_two_sizes_of_groups_are_widened(void **state)
{
	struct packing p = load_form(state, &integers_mixed);
	const struct model_layer *have = &p.packed->layers[0], *want = &p.wide->layers[0];

	assert_false(packed_is(have->qkv.dtype) || packed_is(have->gate_up.dtype));
	assert_norm_order(&p, have->input_order, NULL);
	assert_norm_order(&p, have->post_order, NULL);
	assert_same_weight(&p, &have->qkv, &want->qkv, "qkv");
	packing_unload(&p);
}

/* Heads make its x, and have rows in no other order. */
static void test_o_is_widened(void **state)
{
	struct packing p = load_form(state, &gptq);
	const struct model_layer *have = &p.packed->layers[0], *want = &p.wide->layers[0];

	assert_false(is_packed(&have->o));
	assert_same_weight(&p, &have->o, &want->o, "o");
	packing_unload(&p);
}

static void test_down_whose_groups_are_not_of_one_size_is_widened(void **state)
{
	check_unordered(state, &gptq_uneven);
}

/* Biases of gate and up are in the order of the file. */
static void test_down_of_an_mlp_with_biases_is_widened(void **state)
{
	check_unordered(state, &gptq_bias);
}

/* ---- changes while it is read ---- */

static struct {
	char path[256];
	int (*host_alloc)(struct device *device, size_t bytes, void **ret);
} change;

/* Memory for reads is taken behind the placing. The last column of down gets the group of the first. */
static int change_host_alloc(struct device *device, size_t bytes, void **ret)
{
	const int32_t group = 0;
	int fd = open(change.path, O_RDWR);
	off_t end;

	assert_true(fd >= 0);
	end = lseek(fd, 0, SEEK_END);
	assert_true(pwrite(fd, &group, sizeof(group), end - (off_t)sizeof(group)) == sizeof(group));
	close(fd);
	return change.host_alloc(device, bytes, ret);
}

static void test_order_that_changes_behind_the_placing_is_named(void **state)
{
	const struct scratch *scratch = *state;
	struct device *device = packing_open();
	struct model_error error = {""};
	struct model_config config;
	struct model *model = NULL;

	write_model(scratch, &gptq);
	scratch_path(scratch, "model.safetensors", change.path);
	change.host_alloc = packing.ops.host_alloc;
	packing.ops.host_alloc = change_host_alloc;
	packing.packs = true;
	MUST(model_config_load(scratch->directory, &config, &error));
	assert_int_equal(model_load(device, scratch->directory, &config, 8, NULL, NULL, &model, &error), -EINVAL);
	assert_contains(error.text, "tensor \"" LAYER "mlp.down_proj.g_idx\" has changed while it was read");
	model_config_deinit(&config);
	device->ops->free(device);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		scratch_test(test_gptq_mlp_is_packed_in_the_order_of_groups),
		scratch_test(test_compressed_mlp_is_packed_in_the_order_of_groups),
		scratch_test(test_gate_and_up_in_order_follow_down),
		scratch_test(test_qkv_are_packed_in_the_order_of_their_groups),
		scratch_test(test_qkv_of_two_orders_are_widened),
		scratch_test(test_parts_of_one_order_and_two_sizes_of_groups_are_widened),
		scratch_test(test_o_is_widened),
		scratch_test(test_down_whose_groups_are_not_of_one_size_is_widened),
		scratch_test(test_down_of_an_mlp_with_biases_is_widened),
		scratch_test(test_order_that_changes_behind_the_placing_is_named),
	};

	return cmocka_run_group_tests_name("packed_order", tests, NULL, NULL);
}
