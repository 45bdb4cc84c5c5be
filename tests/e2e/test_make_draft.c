/* SPDX-License-Identifier: MIT */
/* Drafts of examples/make-checkpoint: they are loaded for the model that the same sizes make. */
#include "daemon/model/draft.h"
#include "tests/device_memory.h"
#include "tests/e2e/made.h"

struct pair {
	struct device *device;
	struct model *target, *draft;
};

static struct pair load(const char *target, const char *draft)
{
	struct pair p = {.device = test_device_open(0)};
	struct model_config config;
	struct model_error error = {""};

	if (model_config_load(path_of(target), &config, &error) ||
		model_load(p.device, path_of(target), &config, 64, NULL, NULL, &p.target, &error))
		fail_msg("%s", error.text);
	model_config_deinit(&config);
	if (draft_config_load(path_of(draft), &config, &error) ||
		draft_load(path_of(draft), &config, p.target, NULL, NULL, &p.draft, &error))
		fail_msg("%s", error.text);
	model_config_deinit(&config);
	return p;
}

static void unload(struct pair *p)
{
	model_free(p->draft);
	model_free(p->target);
	p->device->ops->free(p->device);
}

static void test_eagle_is_loaded_for_the_model_of_its_sizes(void **state)
{
	struct pair p;

	must_make("a", OPTIONS("--layers", "5", "--hidden", "96"));
	must_make("b", OPTIONS("--layers", "5", "--hidden", "96", "--family", "eagle", "--seed", "3"));
	p = load("a", "b");
	assert_int_equal(p.draft->config.family, MODEL_EAGLE);
	assert_int_equal(p.draft->config.n_layers, 1);
	assert_int_equal(p.draft->fc.cols, 2 * 96);
	assert_ptr_equal(p.draft->head.data, p.target->head.data);
	unload(&p);
}

static void test_deepseek_v3_has_an_mtp_head(void **state)
{
	struct pair p;

	must_make("a", OPTIONS("--family", "deepseek_v3", "--layers", "3", "--hidden", "96"));
	p = load("a", "a");
	assert_int_equal(p.draft->config.family, MODEL_MTP);
	assert_int_equal(p.draft->config.first_layer, 3);
	assert_int_equal(p.draft->fc.cols, 2 * 96);
	assert_non_null(p.draft->layers[0].router.data);
	assert_int_equal(p.target->unused.n, 0);
	unload(&p);
}

static void test_eagle3_knows_ids_at_equal_distances(void **state)
{
	struct pair p;
	int32_t *d2t;

	must_make("a", OPTIONS("--layers", "5", "--vocab", "1000"));
	must_make("c", OPTIONS("--layers", "5", "--vocab", "1000", "--family", "eagle3", "--draft-vocab", "300"));
	p = load("a", "c");
	assert_int_equal(p.draft->config.draft.vocab_size, 300);
	assert_int_equal(p.draft->head.rows, 300);
	assert_ptr_equal(p.draft->embedding.data, p.target->embedding.data);
	d2t = test_fetch(p.device, p.draft->d2t, 300 * sizeof(*d2t));
	for (int i = 0; i < 300; i++)
		assert_int_equal(i + d2t[i], i * 1000 / 300);
	free(d2t);
	unload(&p);
}

/* Only other servers read t2d, from which they take the ids. */
static void test_t2d_marks_the_ids_that_d2t_leads_to(void **state)
{
	size_t size, n_marked = 0;
	char *file;

	must_make("c", OPTIONS("--family", "eagle3", "--vocab", "1000", "--draft-vocab", "300"));
	file = file_text(path_of("c/model.safetensors"), &size);
	assert_non_null(file);
	for (size_t id = 0; id < 1000; id++) {
		bool marked = file[size - 1000 + id], wanted = false;

		for (size_t i = 0; i < 300; i++)
			wanted |= i * 1000 / 300 == id;
		assert_int_equal(marked, wanted);
		n_marked += marked;
	}
	assert_int_equal(n_marked, 300);
	free(file);
}

static void test_vocabularies_that_cannot_be_are_status_2(void **state)
{
	struct program_output output;

	assert_int_equal(make("a", OPTIONS("--draft-vocab", "8"),
				 &output), 2);
	assert_non_null(strstr(output.text, "--draft-vocab is for --family eagle3"));
	assert_int_equal(make("a", OPTIONS("--family", "eagle3", "--draft-vocab", "257"), &output), 2);
	assert_non_null(strstr(output.text, "--draft-vocab 257 is more than --vocab 256"));
}

static void test_eagle3_for_a_model_of_too_few_layers_is_noted(void **state)
{
	struct program_output output;

	assert_int_equal(make("a", OPTIONS("--family", "eagle3"), &output),
		0);
	assert_non_null(strstr(output.text, "note: the model of these sizes has 2 layers, and one that "
					    "this draft fits needs 3 or more"));
	assert_int_equal(make("b", OPTIONS("--family", "eagle3", "--layers", "3"), &output), 0);
	assert_null(strstr(output.text, "note:"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		MAKING(test_eagle_is_loaded_for_the_model_of_its_sizes),
		MAKING(test_deepseek_v3_has_an_mtp_head),
		MAKING(test_eagle3_knows_ids_at_equal_distances),
		MAKING(test_eagle3_for_a_model_of_too_few_layers_is_noted),
		MAKING(test_t2d_marks_the_ids_that_d2t_leads_to),
		MAKING(test_vocabularies_that_cannot_be_are_status_2),
	};

	watchdog(WATCHDOG_SECONDS);
	return cmocka_run_group_tests_name("make draft", tests, NULL, NULL);
}
