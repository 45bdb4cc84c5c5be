/* SPDX-License-Identifier: MIT */

/* Passes with weights whose rows and columns are in the order of the columns' groups. The cpu device takes no packed
 * weights: they are loaded as such, and widened here in the order that they have. */

#include "tests/model/packing.h"
#include "tests/model/rig.h"

#define CHECKPOINTS "tests/data/checkpoints/"
#define TOLERANCE 1e-5f /* of the largest logit: sums have another order */

struct widened {
	struct rig rig;
	struct model *model; /* packed */
	void *memory[4];     /* of its weights, widened */
	uint32_t n;
};

static void widen(struct widened *w, struct weight *weight)
{
	struct device *device = w->rig.device;
	const size_t bytes = (size_t)weight->rows * weight->cols * sizeof(float);
	float *rows = malloc(bytes);

	if (!packed_is(weight->dtype)) {
		free(rows);
		return;
	}
	assert_non_null(rows);
	assert_true(w->n < ARRAY_SIZE(w->memory) && !weight->factors);
	struct weight units = *weight;

	units.data = test_fetch(device, weight->data, packed_bytes(weight->rows, weight->cols, weight->dtype, true));
	for (uint32_t r = 0; r < weight->rows; r++)
		packed_to_f32(&units, r, rows + (size_t)r * weight->cols);
	MUST(device->ops->mem_alloc(device, bytes, &w->memory[w->n]));
	test_copy(device, w->memory[w->n], rows, bytes);
	*weight = (struct weight){w->memory[w->n++], DTYPE_F32, weight->rows, weight->cols, NULL};
	free((void *)units.data);
	free(rows);
}

/* The model as a device that packs has it, instead of the rig's own. */
static void load_packed(struct widened *w, const char *directory)
{
	struct device *device = packing_hook(w->rig.device);
	struct model_config config;
	struct model_error error = {""};
	struct model_layer *layer;

	packing.packs = true;
	MUST(model_config_load(directory, &config, &error));
	if (model_load(device, directory, &config, RIG_LENGTH, NULL, NULL, &w->model, &error))
		fail_msg("%s", error.text);
	model_config_deinit(&config);
	layer = &w->model->layers[0];
	assert_true(layer->input_order && layer->post_order);
	widen(w, &layer->qkv);
	widen(w, &layer->o);
	widen(w, &layer->gate_up);
	widen(w, &layer->down);
	assert_true(w->n >= 3); /* all but o, perhaps */
}

/* The test's initial state is the checkpoint's path. */
static void check_logits(void **state)
{
	static const int32_t prompt[] = {7, 24, 5, 25, 11, 5, 17, 20};
	const struct rig_row row = {0, ARRAY_SIZE(prompt), prompt};
	struct widened w = {0};
	char directory[512];
	float want[64], largest = 0;
	struct model *own;
	uint32_t vocab;

	source_path(*state, directory);
	rig_init(&w.rig, directory, "paged");
	own = w.rig.model;
	vocab = own->config.vocab_size;
	assert_true(vocab <= ARRAY_SIZE(want));
	rig_step(&w.rig, &row, 1);
	memcpy(want, rig_logits(&w.rig, 0), vocab * sizeof(*want));
	load_packed(&w, directory);
	rig_reset(&w.rig);
	w.rig.model = w.model;
	rig_step(&w.rig, &row, 1);
	for (uint32_t i = 0; i < vocab; i++)
		largest = fmaxf(largest, fabsf(want[i]));
	for (uint32_t i = 0; i < vocab; i++)
		if (!(fabsf(rig_logits(&w.rig, 0)[i] - want[i]) <= TOLERANCE * largest))
			fail_msg("logit %u is %g, not %g", i, (double)rig_logits(&w.rig, 0)[i], (double)want[i]);
	w.rig.model = own;
	for (uint32_t i = 0; i < w.n; i++)
		w.rig.device->ops->mem_free(w.rig.device, w.memory[i]);
	model_free(w.model);
	rig_deinit(&w.rig);
}

#define LOGITS(claim, name) {claim, check_logits, NULL, NULL, CHECKPOINTS name}

int main(void)
{
	static const struct test_cpu_only only[] = {
		{"test_ordered", "the device computes with packed weights itself (test_model_forward)"}};
	const struct CMUnitTest tests[] = {
		LOGITS("test_ordered_weights_give_the_logits_of_the_files_order", "gptq-order-256"),
		LOGITS("test_ordered_weights_of_gemma2_give_the_logits_of_the_files_order", "gptq-order-gemma2-32"),
	};

	return TEST_RUN_GROUP("packed_forward", tests, only, NULL, NULL);
}
