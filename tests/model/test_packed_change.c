/* SPDX-License-Identifier: MIT */
/*
 * Stored groups of columns decide whether a matrix stays packed. A file whose groups are out of range, or change
 * while the model is loaded, is refused by name.
 */
#include "tests/model/packing.h"
#include "tests/model/writing.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "daemon/model/model.h"
#include "tests/model/fixture.h"

enum { HIDDEN = 256, INNER = 128, GROUPS = HIDDEN / 128 };

#define MLP "model.layers.0.mlp."

/* Rows of gate or up, whose columns are in the order of their groups. */
static void add_int4(struct writing *w, const char *module)
{
	char name[96];
	int64_t *shape;
	uint16_t *factors;
	int32_t *groups;

	snprintf(name, sizeof(name), "%s.weight_packed", module);
	memset(writing_add(w, name, "I32", INNER, HIDDEN / 8, (size_t)INNER * HIDDEN / 2), 0x5a,
		(size_t)INNER * HIDDEN / 2);
	snprintf(name, sizeof(name), "%s.weight_scale", module);
	factors = writing_add(w, name, "BF16", INNER, GROUPS, sizeof(*factors) * INNER * GROUPS);
	for (size_t i = 0; i < (size_t)INNER * GROUPS; i++)
		factors[i] = f32_to_bf16(0.01f * (float)(1 + i % 7));
	snprintf(name, sizeof(name), "%s.weight_shape", module);
	shape = writing_add(w, name, "I64", 2, 0, 2 * sizeof(*shape));
	shape[0] = INNER;
	shape[1] = HIDDEN;
	snprintf(name, sizeof(name), "%s.weight_g_idx", module);
	groups = writing_add(w, name, "I32", HIDDEN, 0, sizeof(*groups) * HIDDEN);
	for (int32_t k = 0; k < HIDDEN; k++)
		groups[k] = k / 128;
}

/* Up's groups are the file's last bytes. */
static void write_model(const struct scratch *scratch)
{
	struct writing w = writing_begin_layer(4u << 20, HIDDEN);

	writing_add_zeros(&w, MLP "down_proj.weight", HIDDEN, INNER);
	add_int4(&w, MLP "gate_proj");
	add_int4(&w, MLP "up_proj");
	writing_write(scratch, &w);
	scratch_text(scratch, "config.json",
		"{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":256,\"intermediate_size\":128,"
		"\"num_hidden_layers\":1,\"num_attention_heads\":2,\"vocab_size\":6,\"tie_word_embeddings\":true,"
		"\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\","
		"\"quantization_status\":\"compressed\",\"kv_cache_scheme\":null,"
		"\"ignore\":[\"lm_head\",\"re:.*self_attn.*\",\"re:.*down_proj\"],"
		"\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],\"input_activations\":null,"
		"\"weights\":{\"num_bits\":4,\"type\":\"int\",\"symmetric\":true,\"strategy\":\"group\","
		"\"group_size\":128,\"actorder\":\"group\"}}}}}");
}

/* The group of up's last column := `group`. */
static void change_group(const struct scratch *scratch, int32_t group)
{
	char path[256];
	int fd;
	off_t end;

	scratch_path(scratch, "model.safetensors", path);
	fd = open(path, O_RDWR);
	assert_true(fd >= 0);
	end = lseek(fd, 0, SEEK_END);
	assert_true(pwrite(fd, &group, sizeof(group), end - (off_t)sizeof(group)) == sizeof(group));
	close(fd);
}

/* ---- changes while it is read ---- */

static struct {
	const struct scratch *scratch;
	int (*mem_alloc)(struct device *device, size_t bytes, void **ret);
	int (*host_alloc)(struct device *device, size_t bytes, void **ret);
} change;

/* The model's memory is taken behind its counting, ahead of the placing. */
static int change_mem_alloc(struct device *device, size_t bytes, void **ret)
{
	change_group(change.scratch, 0);
	return change.mem_alloc(device, bytes, ret);
}

/* Memory for reads, behind the placing. */
static int change_host_alloc(struct device *device, size_t bytes, void **ret)
{
	change_group(change.scratch, 0);
	return change.host_alloc(device, bytes, ret);
}

static void assert_load_fails(const struct scratch *scratch, struct device *device, const char *sentence)
{
	struct model_error error = {""};
	struct model_config config;
	struct model *model = NULL;

	packing.packs = true;
	MUST(model_config_load(scratch->directory, &config, &error));
	assert_int_equal(model_load(device, scratch->directory, &config, 8, NULL, NULL, &model, &error), -EINVAL);
	assert_contains(error.text, sentence);
	model_config_deinit(&config);
}

static void test_groups_in_order_are_packed(void **state)
{
	struct packing p;

	write_model(*state);
	p = packing_load(((const struct scratch *)*state)->directory, model_config_load);
	assert_int_equal(p.packed->layers[0].gate_up.dtype, DTYPE_U4);
	packing_unload(&p);
}

static void test_groups_that_change_behind_the_counting_are_named(void **state)
{
	struct device *device = packing_open();

	write_model(*state);
	change.scratch = *state;
	change.mem_alloc = packing.ops.mem_alloc;
	packing.ops.mem_alloc = change_mem_alloc;
	assert_load_fails(*state, device, "has changed while it was read");
	device->ops->free(device);
}

static void test_groups_that_change_behind_the_placing_are_named(void **state)
{
	struct device *device = packing_open();

	write_model(*state);
	change.scratch = *state;
	change.host_alloc = packing.ops.host_alloc;
	packing.ops.host_alloc = change_host_alloc;
	assert_load_fails(
		*state, device, "tensor \"" MLP "up_proj.weight_g_idx\" has changed while it was read");
	device->ops->free(device);
}

static void test_group_out_of_range_is_named_before_memory_is_taken(void **state)
{
	struct device *device = packing_open();
	struct device_info info;
	struct model_error error = {""};
	struct model_config config;
	uint64_t bytes;

	write_model(*state);
	change_group(*state, 7);
	packing.packs = true;
	assert_int_equal(device->ops->info(device, &info), 0);
	MUST(model_config_load(((const struct scratch *)*state)->directory, &config, &error));
	assert_int_equal(model_measure(((const struct scratch *)*state)->directory, &config, 8, &info, &bytes, &error),
		-EINVAL);
	assert_contains(error.text, "tensor \"" MLP "up_proj.weight_g_idx\": element 255, 7, is not one of 2 groups");
	model_config_deinit(&config);
	device->ops->free(device);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		scratch_test(test_groups_in_order_are_packed),
		scratch_test(test_groups_that_change_behind_the_counting_are_named),
		scratch_test(test_groups_that_change_behind_the_placing_are_named),
		scratch_test(test_group_out_of_range_is_named_before_memory_is_taken),
	};

	return cmocka_run_group_tests_name("packed_change", tests, NULL, NULL);
}
