/* SPDX-License-Identifier: MIT */
/* Drafts of examples/make-checkpoint: they are loaded for the model that the same sizes make. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include "daemon/model/draft.h"
#include "tests/device_memory.h"
#include "tests/e2e/daemon.h"

#define ARGUMENTS_MAX 12

static char folder[64];

static int make_folder(void **state)
{
	strcpy(folder, "/tmp/mimeo-drafts-XXXXXX");
	return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
	char path[96];

	for (char name = 'a'; name <= 'c'; name++) {
		snprintf(path, sizeof(path), "%s/%c", folder, name);
		folder_remove(path);
	}
	folder_remove(folder);
	return 0;
}

static const char *path_of(const char *name)
{
	static char path[2][96];
	static int turn;

	turn = !turn;
	snprintf(path[turn], sizeof(path[turn]), "%s/%s", folder, name);
	return path[turn];
}

/* The exit status; NULL ends the options. */
static int make(const char *name, const char *const options[ARGUMENTS_MAX],
	struct program_output *ret)
{
	const char *argv[ARGUMENTS_MAX + 3] = {build_path("examples/make-checkpoint")};
	unsigned n = 1;

	for (unsigned i = 0; i < ARGUMENTS_MAX && options[i]; i++)
		argv[n++] = options[i];
	argv[n++] = path_of(name);
	argv[n] = NULL;
	program_run(argv, ret);
	return ret->status;
}

static void must_make(const char *name, const char *const options[ARGUMENTS_MAX])
{
	struct program_output output;

	if (make(name, options, &output) != 0)
		fail_msg("make-checkpoint: %s", output.text);
}

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
	const char *const sizes[ARGUMENTS_MAX] = {"--layers", "5", "--hidden", "96"};
	struct pair p;

	must_make("a", sizes);
	must_make("b", (const char *const[ARGUMENTS_MAX]){
			"--layers", "5", "--hidden", "96", "--family", "eagle", "--seed", "3"});
	p = load("a", "b");
	assert_int_equal(p.draft->config.family, MODEL_EAGLE);
	assert_int_equal(p.draft->config.n_layers, 1);
	assert_int_equal(p.draft->fc.cols, 2 * 96);
	assert_ptr_equal(p.draft->head.data, p.target->head.data);
	unload(&p);
}

static void test_eagle3_knows_every_so_manieth_id(void **state)
{
	struct pair p;
	int32_t *d2t;

	must_make("a", (const char *const[ARGUMENTS_MAX]){"--layers", "5", "--vocab", "1000"});
	must_make("c", (const char *const[ARGUMENTS_MAX]){"--layers", "5", "--vocab", "1000",
			"--family", "eagle3", "--draft-vocab", "300"});
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
	char path[128];
	size_t size, n_marked = 0;
	char *file;

	must_make("c", (const char *const[ARGUMENTS_MAX]){
			"--family", "eagle3", "--vocab", "1000", "--draft-vocab", "300"});
	snprintf(path, sizeof(path), "%s/c/model.safetensors", folder);
	file = file_text(path, &size);
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

	assert_int_equal(make("a", (const char *const[ARGUMENTS_MAX]){"--draft-vocab", "8"},
				 &output), 2);
	assert_non_null(strstr(output.text, "--draft-vocab is for --family eagle3"));
	assert_int_equal(make("a", (const char *const[ARGUMENTS_MAX]){"--family", "eagle3",
				 "--draft-vocab", "257"}, &output), 2);
	assert_non_null(strstr(output.text, "--draft-vocab 257 is more than --vocab 256"));
}

static void test_eagle3_for_a_model_of_too_few_layers_is_noted(void **state)
{
	struct program_output output;

	assert_int_equal(make("a", (const char *const[ARGUMENTS_MAX]){"--family", "eagle3"}, &output),
		0);
	assert_non_null(strstr(output.text, "note: the model of these sizes has 2 layers, and one that "
					    "this draft fits needs 3 or more"));
	assert_int_equal(make("b", (const char *const[ARGUMENTS_MAX]){"--family", "eagle3",
				 "--layers", "3"}, &output), 0);
	assert_null(strstr(output.text, "note:"));
}

#define MAKING(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void)
{
	const struct CMUnitTest tests[] = {
		MAKING(test_eagle_is_loaded_for_the_model_of_its_sizes),
		MAKING(test_eagle3_knows_every_so_manieth_id),
		MAKING(test_eagle3_for_a_model_of_too_few_layers_is_noted),
		MAKING(test_t2d_marks_the_ids_that_d2t_leads_to),
		MAKING(test_vocabularies_that_cannot_be_are_status_2),
	};

	watchdog(WATCHDOG_SECONDS);
	return cmocka_run_group_tests_name("make draft", tests, NULL, NULL);
}
